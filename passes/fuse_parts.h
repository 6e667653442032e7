/* Between the files of the pass fuse: groups found by fuse.c, with fuse_assign.c on updates in place, made into nodes by fuse_body.c. */
#ifndef DLC_PASSES_FUSE_PARTS_H
#define DLC_PASSES_FUSE_PARTS_H

#include "fuse.h"

enum { FUSE_MAX_OPS = 56, FUSE_MAX_OPERANDS = 24, FUSE_MAX_RESULTS = 16 };

typedef VEC(Node *) NodeVec;
typedef VEC(Value *) ValueVec;

typedef enum GroupKind { GROUP_MAP, GROUP_ROW, GROUP_COLUMN } GroupKind;

/* Nodes that become one kernel. */
typedef struct Group {
	int32_t id;
	GroupKind kind;
	int32_t key; /* flags that members share */
	Type domain;
	bool reduced[IR_MAX_DIMS]; /* of the domain's axes; ROW and COLUMN */
	NodeVec members;	   /* in order of position */
	ValueVec operands;	   /* read from outside (leaves apart) */
	int32_t first, last;	   /* positions */
	int32_t reach;		   /* no group or node that it depends on begins behind this position, nor does it */
	bool has_assign, has_shape;
	bool gone; /* merged into another */
	uint32_t mark;
} Group;

/* One block at work. Arrays are indexed by Node.pos and Value.id of the whole function. */
typedef struct Fuse {
	Module *m;
	PassCtx *cx;
	Arena *a;
	Block *block;
	int32_t nnodes, nvalues;
	Node **node;		     /* by position; NULL for nodes of other blocks */
	Group **group;		     /* by position */
	int32_t *first_user, *users; /* users of value v: users[first_user[v]] ..
					users[first_user[v+1]], positions in the block */
	VEC(Group *) groups;
	int32_t *last_reader; /* value -> group that read it last, -1 */
	int32_t *reach;	      /* by position, of nodes without a group: as Group.reach */
	int32_t at;	      /* position that is visited: what is behind has no group yet */
	int32_t *reducer;     /* value -> last group with reductions that read it, -1 */
	bool *squeezed;	      /* by position: made from a reduction without `keep` in its group */
	uint32_t *mark;	      /* by position */
	uint32_t stamp;
	bool replays; /* the function has a backward pass, for which forward kernels may run again */
	Value **map; /* value -> its replacement after fusing, shared by all blocks of the function
		      */
} Fuse;

/* const, iota and random numbers: copied into each kernel that reads them. */
bool fuse_is_leaf(const Node *n);
/* Whether a kernel of a, b and n (either may be NULL) may store what its assigns say while it runs. */
bool fuse_assigns_hold(const Fuse *f, const Group *a, const Group *b, const Node *n);
/* Replaces the block's nodes by kernels in a valid order. */
void fuse_materialise(Fuse *f);
/* Puts a node of no block behind the last of b. */
void fuse_append(Block *b, Node *n);
/* Visits, by `fn`, every node that must run before `n`: makers of operands, and for an assign the
 * other readers. */
void fuse_before(const Fuse *f, const Node *n, void (*fn)(void *ctx, Node *before), void *ctx);
/* True where a group makes scalars out of constants: it may run anywhere, and runs first. */
bool fuse_floats(const Group *g);
/* The last position that a group reads from, outside of itself and of `other` (which may be NULL).
 */
int32_t fuse_ready(const Fuse *f, const Group *g, const Group *other);
/* Reduced axes of a reduction, as flags of its operand's axes. */
void fuse_axes(const Node *reduce, bool *on);

#endif

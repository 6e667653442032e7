/* Between the files of the pass fuse: groups (fuse_group.c) found by fuse.c, with fuse_order.c on
 * what then waits for what and fuse_assign.c on updates in place, made into nodes by fuse_body.c. */
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

static inline bool fuse_same_dims(const Type *a, const Type *b)
{
	return a->ndim == b->ndim && type_same_shape(a, b);
}

static inline bool fuse_is_reduce(const Node *n)
{
	return ir_ops[n->op].kind == K_REDUCE;
}

/* The group that makes v; NULL. */
static inline Group *fuse_group_of(const Fuse *f, const Value *v)
{
	return v->def && v->def->parent == f->block ? f->group[v->def->pos] : NULL;
}

/* ---- fuse.c ---- */

/* const, iota and random numbers: copied into each kernel that reads them. */
bool fuse_is_leaf(const Node *n);
/* Reduced axes of a reduction, as flags of its operand's axes. */
void fuse_axes(const Node *reduce, bool *on);

/* ---- fuse_group.c ---- */

/* The shape that a node's element-wise work covers. */
const Type *fuse_shape(const Node *n);
/* The flags that members of a group share. */
int32_t fuse_key(const Node *n);
bool fuse_has(const ValueVec *v, const Value *x);
/* Whether the group, of which v's reader is or becomes a member, reads v from outside: leaves are copied. */
bool fuse_is_operand(const Fuse *f, const Value *v, const Group *g);
/* Whether a member's value is squeezed: made from a reduction without `keep`. */
bool fuse_is_squeezed(const Fuse *f, const Group *g, const Value *v);
void fuse_add(Fuse *f, Group *g, Node *n);
Group *fuse_start(Fuse *f, Node *n);
/* Moves b's members into a, in order of position. */
void fuse_merge(Fuse *f, Group *a, Group *b);
/* A kept reduction's shape: the domain with ones on the reduced axes. */
bool fuse_is_keep_shape(const Group *g, const Type *t);
bool fuse_reads_reduction(const Fuse *f, const Group *g, const Node *n);
/* Whether n's own shape suits the group's loop nest; the same of a reduction that is no member yet. */
bool fuse_fits(const Fuse *f, const Group *g, const Node *n);
bool fuse_fits_reduce(const Group *g, const Node *n);

/* ---- fuse_order.c ---- */

/* Visits, by `fn`, every node that must run before `n`: makers of operands, and for an assign the
 * other readers. */
void fuse_before(const Fuse *f, const Node *n, void (*fn)(void *ctx, Node *before), void *ctx);
/* The reach of what n waits for. */
int32_t fuse_reach_before(Fuse *f, const Node *n);
/* A group waits for more: so does what waits for it. */
void fuse_raise_reach(Fuse *f, Group *g, int32_t reach);
/* True where some node outside of a, b and n lies on a path from a or b to a, b or n; b may be NULL. Answers true
 * when the search grows too long. */
bool fuse_detour(Fuse *f, const Group *a, const Group *b, const Node *n);
/* Whether v is read by members of a and b, and at `pos`, alone. */
bool fuse_used_only_in(const Fuse *f, const Value *v, const Group *a, const Group *b, int32_t pos);
/* True where a group makes scalars out of constants: it may run anywhere, and runs first. */
bool fuse_floats(const Group *g);
/* The last position that a group reads from, outside of itself and of `other` (which may be NULL).
 */
int32_t fuse_ready(const Fuse *f, const Group *g, const Group *other);
/* True where delaying g up to n (and to what `other` waits for) keeps no more bytes alive than the
 * values that need no storage any more, and keeps no reader of g waiting. */
bool fuse_delay_pays(const Fuse *f, const Group *g, const Group *other, const Node *n);

/* ---- fuse_assign.c, fuse_body.c ---- */

/* Whether a kernel of a, b and n (either may be NULL) may store what its assigns say while it runs. */
bool fuse_assigns_hold(const Fuse *f, const Group *a, const Group *b, const Node *n);
/* Replaces the block's nodes by kernels in a valid order. */
void fuse_materialise(Fuse *f);
/* Puts a node of no block behind the last of b. */
void fuse_append(Block *b, Node *n);

#endif

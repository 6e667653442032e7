/* Between the files of the pass chunk: heads found by chunk_find.c, cut by chunk.c. */
#ifndef DLC_PASSES_CHUNK_PARTS_H
#define DLC_PASSES_CHUNK_PARTS_H

#include "chunk.h"

/* What a node of a head gives. */
typedef enum Role {
	ROLE_NONE, /* no node of the head */
	ROLE_ROWS, /* as many rows as the head has, each from the same rows of its operands */
	ROLE_SUM   /* a sum (or largest) over the rows */
} Role;

/* How a node of a head reads an operand. */
typedef enum Reads {
	READS_WHOLE,  /* the same for every row */
	READS_ROWS,   /* row by row: its leading axes are the rows */
	READS_SPREAD  /* some of the rows' axes: to be broadcast along the others first */
} Reads;

typedef struct Roles {
	Role role;
	int lead; /* leading axes of the result that are the rows; 0: of a sum */
	struct {
		Reads how;
		int lead; /* likewise; WHOLE: axes that stand where the rows' are, all 1 */
	} arg[IR_MAX_ARGS];
} Roles;

typedef VEC(Node *) ChunkNodes;

/* One head, or an attempt at one. Arrays are by Node.pos and Value.id of the function. */
typedef struct Head {
	Arena *a;
	Block *block;
	Node *seed;
	int64_t rows;
	Node **node; /* by position; NULL for nodes of other blocks */
	int32_t nnodes, nvalues;
	int32_t *first_user, *users; /* positions of the block's users of value v: users[first_user[v]] .. */
	uint8_t *role;       /* Role by position */
	uint8_t *lead;       /* by value that the head makes: leading axes that are the rows */
	bool *below, *above; /* by position, outside of the head: depends on it; it depends on that */
	ChunkNodes todo;
	bool reduces;        /* has a reduction */
} Head;

/* The seeds of the block's heads, last first. Numbers the function anew where something might be one. */
ChunkNodes chunk_seeds(Arena *a, Func *f, Block *b);
/* The head around a seed; NULL where there is none. Numbers the function anew. */
Head *chunk_head_at(Arena *a, Func *f, Block *b, Node *seed);
/* How a node of the head works on rows; false where it does not. */
bool chunk_roles(const Head *h, const Node *n, Roles *out);
bool chunk_is_inside(const Head *h, const Value *v);
/* A constant, or an index along another axis than the rows: made again for any number of rows. */
bool chunk_is_leaf(const Value *v, int lead);

#endif

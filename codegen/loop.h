/* The loop form of a fused kernel: what every printer of kernels (CPU, CUDA) works from.
 *
 * A kernel is one loop nest of three levels over a domain D: `outer` (rows, parallel), `mid` and
 * `inner` (vectors). Every load, store and counter is an affine index over the loop dimensions, so
 * that broadcast, transpose, slice, pad and concat cost no copy: they are coefficients and guards.
 *
 *   LOOP_MAP     no reduction. outer: all dimensions but the last, inner: the last.
 *   LOOP_ROW     reductions over axes that include the last one. outer: the kept axes; mid and
 * inner: the reduced ones. A row runs in phases: each reduction ends a phase, later phases may read
 * its value. Sums over all rows (LoopInstr.column: over `outer`, one for each element of a row) may stand
 * beside them; they are known behind the last row.
 *   LOOP_COLUMN  reductions over leading or middle axes. inner: the last kept axis, outer:
 * the other kept ones; mid: the reduced.
 *
 * Neighbouring dimensions are merged where every index allows it. */
#ifndef DLC_CODEGEN_LOOP_H
#define DLC_CODEGEN_LOOP_H

#include "../ir/ir.h"

enum { LOOP_MAX_GUARDS = 8, LOOP_CHUNK = 16384, LOOP_COLUMN_CHUNKS = 16 };

typedef enum LoopKind { LOOP_MAP, LOOP_ROW, LOOP_COLUMN } LoopKind;

/* lo <= index of dimension `dim` < hi */
typedef struct LoopGuard {
	int dim;
	int64_t lo, hi;
} LoopGuard;

/* Element base + sum coef[d] * i_d, valid where all guards hold. */
typedef struct LoopIndex {
	int64_t base, coef[IR_MAX_DIMS];
	int nguards;
	LoopGuard guard[LOOP_MAX_GUARDS];
} LoopIndex;

typedef enum LoopOp {
	LI_LOAD,  /* an operand's element; anything where a guard fails */
	LI_LEAF,  /* const, iota, random: index is the element (iota: along its axis) */
	LI_EWISE, /* node's expression of arg[0..narg) */
	LI_GUARD, /* arg[0] where guard[0] of index holds, else arg[1] (-1: zero) */
	LI_REDUCE /* node's reduction of arg[0]; readable from phase+1 on (`column`: by stores alone) */
} LoopOp;

typedef struct LoopInstr {
	LoopOp op;
	const Node *node; /* NULL for a load; NULL in a leaf: zero */
	DType dtype;
	int narg, arg[3]; /* earlier instructions */
	int operand;	  /* load: which */
	LoopIndex index;
	int level; /* 0: outside of all loops, 1: in outer, 2: in mid, 3: in inner */
	int phase; /* the first phase in which it can be computed (a reduction: in which it runs) */
	unsigned needed; /* bit p: phase p evaluates it (or reads it from its row buffer) */
	bool buffered;	 /* kept in a row buffer from `phase` on instead of being evaluated again */
	bool column;	 /* of a row's loop nest: a reduction over the rows */
} LoopInstr;

/* A result, or the target of an assign. */
typedef struct LoopStore {
	int instr;
	int result; /* result number, or -1: in place to operand `operand` */
	int operand;
	LoopIndex index;
	int phase;
} LoopStore;

typedef struct Loop {
	LoopKind kind;
	int ndims, nouter, nmid; /* dimensions: outer, then mid, then inner (the rest; more than
				    one: see flat) */
	int64_t extent[IR_MAX_DIMS];
	int64_t outer, mid, inner; /* products of the extents */
	int64_t elems;		   /* of the domain */
	bool flat; /* inner has several dimensions: their indices are decoded from j */
	LoopInstr *instr;
	int ninstrs;
	LoopStore *store;
	int nstores;
	int phases;
	int nreduce;
	int ncolumns; /* of them over rows */
	int64_t chunks; /* > 1: a full or column reduction is split into this many partial ones */
	double cost;	/* rough operations per element */
	int64_t work_bytes; /* partial results */
} Loop;

/* The loop form of a fused node; `micro` is the batch of the enclosing function or loop body (only
 * random counters read it). NULL where the body has no loop form (the pass fuse makes no such
 * kernel). */
Loop *loop_build(Arena *a, const Node *fused, int64_t micro);

/* Elements that one sample of a batch-marked type has; 0 for an unmarked one. */
int64_t loop_sample_elems(const Type *t, int64_t micro);

#endif

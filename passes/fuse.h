/* Kernels out of nodes: element-wise ops, reductions and shape ops that may run as one loop nest
 * become one `fused` node. See fuse.c for the rules.
 *
 * A fused node's operands are values from outside, its results what is used outside, its body reads
 * parameters alone. An `assign` in a body stores to the storage of the variable behind its operand,
 * in place. */
#ifndef DLC_PASSES_FUSE_H
#define DLC_PASSES_FUSE_H

#include "pass.h"

/* Fuses one function, loop bodies included, and sets work_bytes of every node. Operands and results
 * keep their meaning; the order of nodes is a valid one. Deterministic, independent of budgets.
 * False after diagnostics. */
bool fuse_func(Func *f, PassCtx *cx);

/* Drops results without keep[i] from a fused node, the body ops that only they need, and operands
 * that are no longer read. Edits in place and returns `fused` with fewer results (assigns stay).
 * keep has fused->nres entries. */
Node *fuse_trim(Module *m, Node *fused, const bool *keep);

/* True where result `res` of a fused node may be written over operand `arg` while the kernel runs:
 * equal bytes, every read of the operand is at the element that is written, and no later pass of
 * the kernel reads it again. */
bool fuse_may_alias(const Node *fused, int arg, int res);

#endif

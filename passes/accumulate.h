/* Gradient accumulation: one function split into loops over micro-batches. See accumulate.c for the
 * method. */
#ifndef DLC_PASSES_ACCUMULATE_H
#define DLC_PASSES_ACCUMULATE_H

#include "pass.h"

/* Splits the function's batch into micro-batches of `micro` samples (0 or f->batch: none; batch_sum
 * just goes). False after diagnostics: where micro does not divide the batch, or the graph depends
 * on statistics of the whole batch and cx->allow_microbatch_stats does not hold (with it, a warning
 * names the places). Works in place. */
bool accumulate_func(Func *f, PassCtx *cx, int64_t micro);

/* True where the batch can be split with equal results; else *why (which may be NULL) is the first
 * node that forbids it. Leaves the graph alone, but for Value.aux and numbers. */
bool accumulate_possible(const Func *f, const Node **why);

#endif

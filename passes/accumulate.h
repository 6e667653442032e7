/* Gradient accumulation: one function split into loops over micro-batches. See accumulate.c for the
 * method. */
#ifndef DLC_PASSES_ACCUMULATE_H
#define DLC_PASSES_ACCUMULATE_H

#include "pass.h"

/* Splits the function's batch into micro-batches of `micro` samples, and a smaller last one where it
 * does not divide evenly (0 or f->batch: not at all; batch_sum just goes). False after diagnostics:
 * where micro is larger than the batch, or the graph depends on statistics of the whole batch and
 * cx->allow_microbatch_stats does not hold (with it, a warning names the places, and only a
 * statistic over one value is refused). Works in place. */
bool accumulate_func(Func *f, PassCtx *cx, int64_t micro);

/* True where the batch can be split with equal results; else *why (which may be NULL) is the first
 * node that forbids it. Leaves the graph alone, but for Value.aux and numbers. */
bool accumulate_possible(const Func *f, const Node **why);

/* False where a statistic over a micro-batch would see one value, in the smallest of the
 * micro-batches of at most `micro` samples; *why (which may be NULL) is then the first such. */
bool accumulate_has_variance(const Func *f, int64_t micro, const Node **why);

#endif

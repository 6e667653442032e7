/* One number of many tensors, in two stages: parts of all of them, then their sum. */
#ifndef DLC_PASSES_TENSOR_SUMS_H
#define DLC_PASSES_TENSOR_SUMS_H

#include "../ir/ir.h"

/* The sum over all elements of n tensors (n > 0), each times the scalar `by` (NULL: 1): of squares, in the tensors' type (f64 where they
 * differ), or of how many are not finite, i32. The order of the sum depends on the tensors' sizes and their order alone. */
Value *tensor_squares(Builder *b, int n, Value *const *x, Value *by);
Value *tensor_not_finite(Builder *b, int n, Value *const *x, Value *by);

#endif

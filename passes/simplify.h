/* Simplification of one function, for the passes that leave something to tidy. */
#ifndef DLC_PASSES_SIMPLIFY_H
#define DLC_PASSES_SIMPLIFY_H

#include "pass.h"

/* Simplifies in place and removes dead nodes; true when something changed. `drop_stops` also
 * removes stop_gradient, which has done its work once the gradients exist (or never will). */
bool simplify_func(Func *f, bool drop_stops);

/* Op, operands, attributes, types and kind: two such nodes have equal results. */
bool simplify_equal(const Node *a, const Node *b);

#endif

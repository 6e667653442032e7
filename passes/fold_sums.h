/* Products that are computed straight into the sum that they go into. See fold_sums.c. */
#ifndef DLC_PASSES_FOLD_SUMS_H
#define DLC_PASSES_FOLD_SUMS_H

#include "pass.h"

/* Rewrites sums of gradients with products in them, where the back end can add to a sum; after accumulate and chunk, before fuse.
 * What it does depends on the function alone. Numbers the function anew; true where it changed anything. */
bool fold_sums_func(Func *f, const Capabilities *caps);

#endif

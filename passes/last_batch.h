/* A last batch of an epoch that has fewer samples than the others. */
#ifndef DLC_PASSES_LAST_BATCH_H
#define DLC_PASSES_LAST_BATCH_H

#include "pass.h"

/* The input that says of each sample of a batch whether there is one, bool[batch]; its section, "data batch", has the type of the
 * same name. */
#define LAST_BATCH_INPUT "batch.valid"

/* With `drop_last = false`: makes `step`, which still has its macros, count the samples alone that LAST_BATCH_INPUT names. False
 * after diagnostics, where what the model computes of a batch has no such form. */
bool last_batch_mask(Func *step);

#endif

/* What the backward pass keeps of the forward pass. */
#ifndef DLC_PASSES_SAVED_H
#define DLC_PASSES_SAVED_H

#include "pass.h"

/* Lets backward nodes of @step compute cheap forward values again, where fewer large tensors are
 * kept for it. Results stay the same to the bit. */
void saved_reduce(Func *step);

#endif

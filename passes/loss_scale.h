/* Loss scaling (fp16): what autodiff needs of it. */
#ifndef DLC_PASSES_LOSS_SCALE_H
#define DLC_PASSES_LOSS_SCALE_H

#include "pass.h"

/* Where the backward pass begins: the gradient of the loss (of type t) by itself. 1, or under fp16
 * what the loss is multiplied by; the pass loss_scale divides the gradients by it. */
Value *loss_scale_root(Builder *b, const PassCtx *cx, const Type *t);

#endif

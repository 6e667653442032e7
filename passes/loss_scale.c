/* loss_scale: keeps fp16 gradients out of the underflow (semantics.md, "Loss scaling").
 *
 * Only fp16 needs a scale; other precisions leave the graph as it is. */
#include "precision.h"

PassResult pass_loss_scale(Module *m, PassCtx *cx)
{
	Span at;
	if (strcmp(precision_of(m, cx, &at), "fp16"))
		return PASS_SAME;
	diag_error(cx->diag, at, "precision fp16 is not supported yet");
	return PASS_FAILED;
}

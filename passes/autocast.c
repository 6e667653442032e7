/* autocast: products in a 16-bit type, by the precision classes of the op table (OpInfo.prec).
 *
 * Full precision leaves the graph as it is. The 16-bit precisions are refused: a graph that
 * silently computed in another precision than asked for would be worse than none. */
#include "precision.h"

PassResult pass_autocast(Module *m, PassCtx *cx)
{
	Span at;
	const char *p = precision_of(m, cx, &at);
	if (precision_is_full(p))
		return PASS_SAME;
	bool known = !strcmp(p, "bf16") || !strcmp(p, "fp16");
	diag_error(cx->diag, at,
		   known ? "precision %s is not supported yet"
			 : "'%s' is not a precision (fp32, bf16, fp16)",
		   p);
	return PASS_FAILED;
}

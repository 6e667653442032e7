/* The precision of a run, as the passes that depend on it read it. */
#ifndef DLC_PASSES_PRECISION_H
#define DLC_PASSES_PRECISION_H

#include "pass.h"

/* The command line's precision, else the setting train.precision, else "fp32"; *span is the
 * setting's. */
static inline const char *precision_of(const Module *m, const PassCtx *cx, Span *span)
{
	const Section *train = ir_find_section(m, "train", "");
	const Setting *s = ir_setting(train, "precision");
	*span = s && !cx->precision ? s->span : NO_SPAN;
	return cx->precision ? cx->precision : ir_setting_str(train, "precision", "fp32");
}

/* True where every op computes in the type it was written in, but for those of blocks with a precision
 * of their own. */
static inline bool precision_is_full(const char *p)
{
	return !strcmp(p, "fp32") || !strcmp(p, "f32") || !strcmp(p, "fp64") || !strcmp(p, "f64");
}

/* True where products of f32 are computed by tensor cores from tf32. */
static inline bool precision_is_tf32(const char *p)
{
	return !strcmp(p, "tf32");
}

/* The 16-bit type that products compute in; DT_NONE where there is none. */
static inline DType precision_low(const char *p)
{
	if (!strcmp(p, "bf16"))
		return DT_BF16;
	return !strcmp(p, "fp16") || !strcmp(p, "f16") ? DT_F16 : DT_NONE;
}

/* The type that a node's block asks products to compute in: DT_F32, DT_BF16, DT_F16; DT_NONE: the run's. */
static inline DType precision_of_block(const Node *n)
{
	return n->flags & NF_IN_F32    ? DT_F32
	       : n->flags & NF_IN_BF16 ? DT_BF16
	       : n->flags & NF_IN_F16  ? DT_F16
				       : DT_NONE;
}

#endif

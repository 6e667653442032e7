/* Macros of layers that are compositions: transposed convolution, norms of rows and of groups.
 *
 * A transposed convolution is a convolution's gradient by its image, which the library computes
 * as such; its result's size is not told by its operands alone (several images give one size under
 * a stride), hence `output_pad`. */
#include "op_util.h"

/* ---- conv_transpose2d ---- */

bool t_conv_transpose2d(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *w = op_arg(n, 1);
	int64_t stride[2], pad[2], dilation[2], more[2], groups = ir_int(n, "groups");
	const int64_t limit = INT32_MAX;
	if (!op_pair(n, "stride", 1, stride, why) || !op_pair(n, "pad", 0, pad, why) ||
	    !op_pair(n, "dilation", 1, dilation, why) || !op_pair(n, "output_pad", 0, more, why))
		return false;
	if (x->ndim != 4 || w->ndim != 4)
		return op_fail(why, "needs [N,C,H,W] and [C,O,h,w], got %s and %s", TYPE_TEXT(x),
			       TYPE_TEXT(w));
	if (x->dtype != w->dtype || !dtype_is_float(x->dtype))
		return op_fail(why, "needs floating-point numbers of one type, got %s and %s",
			       TYPE_TEXT(x), TYPE_TEXT(w));
	if (x->dim[1] != w->dim[0] || groups < 1 || x->dim[1] % groups)
		return op_fail(why, "channels differ, %s by %s in %lld groups", TYPE_TEXT(x),
			       TYPE_TEXT(w), (long long)groups);
	if (x->batch & ~1u || w->batch)
		return op_fail(why, "the batch must be axis 0 of the images, got %s by %s",
			       TYPE_TEXT(x), TYPE_TEXT(w));
	if (groups > INT64_MAX / w->dim[1])
		return op_fail(why, "sizes are too large, %s by %s", TYPE_TEXT(x), TYPE_TEXT(w));
	*res = *x;
	res->dim[1] = w->dim[1] * groups;
	for (int i = 0; i < 2; i++) {
		int64_t in = x->dim[2 + i], k = w->dim[2 + i];
		if (in > limit || k > limit || stride[i] > limit || dilation[i] > limit ||
		    pad[i] > limit)
			return op_fail(why, "sizes are too large, %s by %s", TYPE_TEXT(x),
				       TYPE_TEXT(w));
		if (more[i] >= stride[i])
			return op_fail(why, "output_pad %lld must be less than the stride %lld",
				       (long long)more[i], (long long)stride[i]);
		res->dim[2 + i] =
			(in - 1) * stride[i] - 2 * pad[i] + dilation[i] * (k - 1) + 1 + more[i];
		if (res->dim[2 + i] < 1)
			return op_fail(why, "padding %lld leaves nothing of %s", (long long)pad[i],
				       TYPE_TEXT(x));
	}
	if (!type_check(res))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(res));
	return true;
}

bool x_conv_transpose2d(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	Attr attr[4] = { *ir_attr(n, "stride"), *ir_attr(n, "pad"), *ir_attr(n, "dilation"),
			 *ir_attr(n, "groups") };
	res[0] = ir_value(b, OP_conv2d_grad_x, 2, n->arg, attr, &n->res[0]->type);
	return true;
}

/* ---- rms_norm ---- */

bool t_rms_norm(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	*res = *x;
	if (!op_float_arg(n, 0, why))
		return false;
	if (x->ndim < 1 || type_marked(x, x->ndim - 1))
		return op_fail(why, "needs a last axis that is not the batch, got %s",
			       TYPE_TEXT(x));
	return op_channel_arg(n, 1, x->dim[x->ndim - 1], why);
}

bool x_rms_norm(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	Value *x = n->arg[0];
	Value *square = ir_reduce_last(b, OP_mean, ir_binary(b, OP_mul, x, x), true);
	Value *r = ir_unary(b, OP_rsqrt, ir_binary_c(b, OP_add, square, ir_float(n, "eps")));
	res[0] = ir_binary(b, OP_mul, ir_binary(b, OP_mul, x, r), n->arg[1]);
	return true;
}

/* ---- group_norm ---- */

bool t_group_norm(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	int64_t groups = ir_int(n, "groups");
	*res = *x;
	if (!op_float_arg(n, 0, why))
		return false;
	if (x->ndim < 2 || x->ndim == IR_MAX_DIMS || x->batch & ~1u)
		return op_fail(why, "needs [N,C,...], got %s", TYPE_TEXT(x));
	if (groups < 1 || x->dim[1] % groups)
		return op_fail(why, "%lld channels do not divide into %lld groups",
			       (long long)x->dim[1], (long long)groups);
	return op_channel_arg(n, 1, x->dim[1], why) && op_channel_arg(n, 2, x->dim[1], why);
}

/* [C] as [G,C/G,1,...], to stand beside x as [N,G,C/G,...] */
static Value *per_group(Builder *b, Value *v, const Type *parts)
{
	Type t = type_scalar(v->type.dtype);
	t.ndim = (uint8_t)(parts->ndim - 1);
	for (int i = 0; i < t.ndim; i++)
		t.dim[i] = i < 2 ? parts->dim[i + 1] : 1;
	return ir_reshape(b, v, t);
}

bool x_group_norm(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	const Type *t = op_arg(n, 0);
	Type parts = type_scalar(t->dtype);
	type_append(&parts, t, 0, 2);
	type_append(&parts, t, 1, t->ndim);
	parts.dim[1] = ir_int(n, "groups");
	parts.dim[2] /= parts.dim[1];
	IntList axes = { .n = 0 };
	for (int i = 2; i < parts.ndim; i++)
		axes.v[axes.n++] = i;
	Value *x = ir_reshape(b, n->arg[0], parts), *var;
	Value *mean = ir_reduce(b, OP_mean, x, &axes, true);
	Value *rstd = op_inverse_deviation(b, x, mean, &axes, ir_float(n, "eps"), &var);
	Value *y = ir_binary(b, OP_mul, ir_binary(b, OP_sub, x, mean), rstd);
	y = ir_binary(b, OP_mul, y, per_group(b, n->arg[1], &parts));
	y = ir_binary(b, OP_add, y, per_group(b, n->arg[2], &parts));
	res[0] = ir_reshape(b, y, *t);
	return true;
}

/* Reductions: type rules and gradients.
 *
 * `axes` are ascending and in range; `keep` leaves them in place with size 1. The gradient of a
 * reduction is spread over the reduced axes again: reshaped to the kept shape, then broadcast. */
#include "op_util.h"

/* ---- types ---- */

Type op_kept_type(const Type *x, const IntList *axes)
{
	Type t = *x;
	for (int i = 0; i < axes->n; i++) {
		t.dim[axes->v[i]] = 1;
		t.batch = (uint16_t)(t.batch & ~(1u << axes->v[i]));
	}
	return t;
}

bool t_reduce(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	const IntList *axes = ir_ints(n, "axes");
	if (x->dtype == DT_BOOL)
		return op_fail(why, "expected numbers, got %s", TYPE_TEXT(x));
	for (int i = 0; i < axes->n; i++) {
		int a;
		if (!op_prim_axis(x, axes->v[i], &a, why))
			return false;
		if (i && axes->v[i] <= axes->v[i - 1])
			return op_fail(why, "axes must be ascending and different");
	}
	if (ir_int(n, "keep")) {
		*res = op_kept_type(x, axes);
		return true;
	}
	Type t = type_scalar(x->dtype);
	for (int i = 0, next = 0; i < x->ndim; i++) {
		if (next < axes->n && axes->v[next] == i)
			next++;
		else
			type_append(&t, x, i, i + 1);
	}
	*res = t;
	return true;
}

bool t_reduce_float(const Node *n, Type *res, char why[256])
{
	return op_float_arg(n, 0, why) && t_reduce(n, res, why);
}

bool t_argmax(const Node *n, Type *res, char why[256])
{
	if (ir_ints(n, "axes")->n != 1)
		return op_fail(why, "needs one axis, got %d", (int)ir_ints(n, "axes")->n);
	if (!t_reduce(n, res, why))
		return false;
	res->dtype = DT_I32;
	return true;
}

/* ---- gradients ---- */

/* v, of the reduction's result type, over the reduced axes of its operand again; `kept` stops at
 * size 1. */
static Value *keep_axes(Builder *b, const Node *n, Value *v)
{
	if (ir_int(n, "keep"))
		return v;
	return ir_reshape(b, v, op_kept_type(op_arg(n, 0), ir_ints(n, "axes")));
}

static Value *spread(Builder *b, const Node *n, Value *v)
{
	return ir_broadcast(b, keep_axes(b, n, v), *op_arg(n, 0));
}

Value *op_count(Builder *b, const Type *t, const IntList *axes, DType d)
{
	double fixed = 1;
	Value *scaled = NULL;
	for (int i = 0; i < axes->n; i++) {
		int axis = (int)axes->v[i];
		if (!type_marked(t, axis)) {
			fixed *= (double)t->dim[axis];
			continue;
		}
		Type row = type_scalar(d);
		type_append(&row, t, axis, axis + 1);
		Value *len = ir_reduce_all(b, OP_sum, ir_const(b, row, 1));
		scaled = scaled ? ir_binary(b, OP_mul, scaled, len) : len;
	}
	if (!scaled)
		return ir_scalar(b, d, fixed);
	return fixed > 1 ? ir_binary_c(b, OP_mul, scaled, fixed) : scaled;
}

bool g_sum(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = spread(b, n, dy[0]);
	return true;
}

/* dy / count, before it is spread */
bool g_mean(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *count = op_count(b, op_arg(n, 0), ir_ints(n, "axes"), dy[0]->type.dtype);
	dx[0] = spread(b, n, ir_binary(b, OP_div, dy[0], count));
	return true;
}

/* Equal largest elements share dy. */
bool g_reduce_max(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	DType d = dy[0]->type.dtype;
	Value *is_max = ir_binary(b, OP_eq, n->arg[0], keep_axes(b, n, n->res[0]));
	Value *count = ir_reduce(b, OP_sum, ir_cast(b, is_max, d), ir_ints(n, "axes"), true);
	Value *share = ir_binary(b, OP_div, keep_axes(b, n, dy[0]), count);
	dx[0] = ir_select(b, is_max, share, ir_scalar(b, d, 0));
	return true;
}

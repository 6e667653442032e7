/* Shape ops: the same elements elsewhere. Type rules and gradients.
 *
 * A part of an axis that scales with the batch has bounds that are numbers, and so a fixed size: the
 * slice carries no mark, and a reshape gives the mark back to what was put together from such
 * parts. Neither can be re-typed for another batch (clone.c); the front end refuses to cut a batch.
 * Padding one is refused here. */
#include "op_util.h"

/* ---- types ---- */

bool t_reshape(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *y = &n->res[0]->type;
	if (!type_check(y))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(y));
	if (type_elems(x) != type_elems(y) || x->dtype != y->dtype)
		return op_fail(why, "%s has %lld elements, %s has %lld", TYPE_TEXT(x),
			       (long long)type_elems(x), TYPE_TEXT(y), (long long)type_elems(y));
	if (type_marks(x) != type_marks(y) && type_marks(x) > 0)
		return op_fail(why, "the batch axis of %s is not one of %s", TYPE_TEXT(x),
			       TYPE_TEXT(y));
	*res = *y;
	return true;
}

bool t_transpose(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	const IntList *perm = ir_ints(n, "perm");
	unsigned seen = 0;
	if (perm->n != x->ndim)
		return op_fail(why, "%d axes named for %s", (int)perm->n, TYPE_TEXT(x));
	Type t = type_scalar(x->dtype);
	for (int i = 0; i < perm->n; i++) {
		int a;
		if (!op_prim_axis(x, perm->v[i], &a, why))
			return false;
		if (seen >> a & 1)
			return op_fail(why, "axis %d is named twice", a);
		seen |= 1u << a;
		type_append(&t, x, a, a + 1);
	}
	*res = t;
	return true;
}

bool t_broadcast(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *y = &n->res[0]->type;
	Type joined;
	if (!type_check(y))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(y));
	if (x->dtype != y->dtype || !type_broadcast(x, y, &joined) || !type_same_shape(&joined, y))
		return op_fail(why, "%s does not broadcast to %s", TYPE_TEXT(x), TYPE_TEXT(y));
	for (int i = 0; i < x->ndim; i++) {
		int j = y->ndim - x->ndim + i;
		if (type_marked(x, i) != type_marked(y, j) && x->dim[i] != 1)
			return op_fail(why,
				       "axis %d scales with the batch in one of %s and %s only", j,
				       TYPE_TEXT(x), TYPE_TEXT(y));
	}
	*res = *y;
	return true;
}

bool t_slice(const Node *n, Type *res, char why[256])
{
	int axis;
	if (!op_prim_axis(op_arg(n, 0), ir_int(n, "axis"), &axis, why))
		return false;
	int64_t start = ir_int(n, "start"), stop = ir_int(n, "stop");
	*res = *op_arg(n, 0);
	if (start < 0 || stop <= start || stop > res->dim[axis])
		return op_fail(why, "%lld..%lld is not a range within axis %d of %s",
			       (long long)start, (long long)stop, axis, TYPE_TEXT(res));
	res->dim[axis] = stop - start;
	res->batch = (uint16_t)(res->batch & ~(1u << axis));
	return true;
}

bool t_pad(const Node *n, Type *res, char why[256])
{
	int axis;
	if (!op_prim_axis(op_arg(n, 0), ir_int(n, "axis"), &axis, why))
		return false;
	if (type_marked(op_arg(n, 0), axis))
		return op_fail(why, "axis %d of %s is the batch and cannot be padded", axis,
			       TYPE_TEXT(op_arg(n, 0)));
	int64_t before = ir_int(n, "before"), after = ir_int(n, "after");
	const int64_t limit = INT64_MAX / 4;
	*res = *op_arg(n, 0);
	if (before < 0 || after < 0 || before > limit || after > limit)
		return op_fail(why, "padding must not be negative, got %lld and %lld",
			       (long long)before, (long long)after);
	if (res->dim[axis] > limit)
		return op_fail(why, "the result of padding %s is too large",
			       TYPE_TEXT(op_arg(n, 0)));
	res->dim[axis] += before + after;
	if (!type_check(res))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(res));
	return true;
}

bool t_concat(const Node *n, Type *res, char why[256])
{
	int axis;
	*res = *op_arg(n, 0);
	if (!op_prim_axis(res, ir_int(n, "axis"), &axis, why))
		return false;
	for (int i = 1; i < n->nargs; i++) {
		const Type *t = op_arg(n, i);
		Type as_first = *t;
		if (t->ndim == res->ndim)
			as_first.dim[axis] = res->dim[axis];
		if (t->dtype != res->dtype || !type_same_shape(&as_first, res))
			return op_fail(why, "shapes differ in more than axis %d, %s and %s", axis,
				       TYPE_TEXT(res), TYPE_TEXT(t));
		if (t->batch != res->batch)
			return op_fail(why, "only one of %s and %s scales with the batch",
				       TYPE_TEXT(res), TYPE_TEXT(t));
		if (t->dim[axis] > INT64_MAX - res->dim[axis])
			return op_fail(why, "the result is too large");
		res->dim[axis] += t->dim[axis];
	}
	if (!type_check(res))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(res));
	return true;
}

/* ---- gradients ---- */

bool g_reshape(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_reshape(b, dy[0], *op_arg(n, 0));
	return true;
}

bool g_transpose(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	const IntList *perm = ir_ints(n, "perm");
	IntList inverse = { .n = perm->n };
	for (int i = 0; i < perm->n; i++)
		inverse.v[perm->v[i]] = i;
	dx[0] = ir_transpose(b, dy[0], &inverse);
	return true;
}

/* The walker sums the broadcast axes. */
bool g_broadcast(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)b, (void)n;
	dx[0] = dy[0];
	return true;
}

bool g_slice(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	int axis = (int)ir_int(n, "axis");
	int64_t start = ir_int(n, "start"), stop = ir_int(n, "stop");
	dx[0] = ir_pad(b, dy[0], axis, start, op_arg(n, 0)->dim[axis] - stop);
	return true;
}

bool g_pad(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	int axis = (int)ir_int(n, "axis");
	int64_t start = ir_int(n, "before");
	dx[0] = ir_slice(b, dy[0], axis, start, start + op_arg(n, 0)->dim[axis]);
	return true;
}

bool g_concat(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	int axis = (int)ir_int(n, "axis");
	int64_t at = 0;
	if (type_marked(op_arg(n, 0), axis)) {
		diag_error(b->m->diag, n->span, "concat: no gradient along the batch axis");
		return false;
	}
	for (int i = 0; i < n->nargs; i++) {
		int64_t end = at + op_arg(n, i)->dim[axis];
		dx[i] = ir_slice(b, dy[0], axis, at, end);
		at = end;
	}
	return true;
}

/* The result is a sum over micro-batches, so each one's part has the gradient of the whole. */
bool g_batch_sum(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)b, (void)n;
	dx[0] = dy[0];
	return true;
}

/* Helpers of the rule files; see op_util.h. */
#include "op_util.h"

#include <stdarg.h>
#include <stdio.h>

bool op_fail(char why[256], const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(why, 256, fmt, ap);
	va_end(ap);
	return false;
}

const char *op_type_text(TypeText *buf, const Type *t)
{
	size_t cap = sizeof buf->s;
	int at = snprintf(buf->s, cap, "%s[", dtype_name(t->dtype));
	for (int i = 0; i < t->ndim && at > 0 && (size_t)at < cap; i++)
		at += snprintf(buf->s + at, cap - (size_t)at, i ? ",%lld" : "%lld",
			       (long long)t->dim[i]);
	if (at > 0 && (size_t)at < cap)
		(void)snprintf(buf->s + at, cap - (size_t)at, "]");
	return buf->s;
}

void type_append(Type *t, const Type *s, int from, int to)
{
	for (int i = from; i < to && t->ndim < IR_MAX_DIMS; i++) {
		if (type_marked(s, i))
			t->batch = (uint16_t)(t->batch | 1u << t->ndim);
		t->dim[t->ndim++] = s->dim[i];
	}
}

bool op_axis(const Type *t, int64_t axis, int *out, char why[256])
{
	int64_t a = axis < 0 ? axis + t->ndim : axis;
	if (a < 0 || a >= t->ndim)
		return op_fail(why, "axis %lld does not exist in %s", (long long)axis,
			       TYPE_TEXT(t));
	*out = (int)a;
	return true;
}

bool op_prim_axis(const Type *t, int64_t axis, int *out, char why[256])
{
	if (axis < 0)
		return op_fail(why, "axis must not be negative, got %lld", (long long)axis);
	return op_axis(t, axis, out, why);
}

bool op_pair(const Node *n, const char *name, int64_t low, int64_t out[2], char why[256])
{
	const IntList *l = ir_ints(n, name);
	if (l->n != 2)
		return op_fail(why, "%s needs two numbers, got %d", name, (int)l->n);
	for (int i = 0; i < 2; i++) {
		/* The bound keeps products of window sizes far from overflow. */
		if (l->v[i] < low || l->v[i] > (1 << 24))
			return op_fail(why, "%s must be at least %lld, got %lld", name,
				       (long long)low, (long long)l->v[i]);
		out[i] = l->v[i];
	}
	return true;
}

bool op_float_arg(const Node *n, int i, char why[256])
{
	if (dtype_is_float(op_arg(n, i)->dtype))
		return true;
	return op_fail(why, "expected floating-point numbers, got %s", TYPE_TEXT(op_arg(n, i)));
}

bool op_acc_arg(const Node *n, const Type *res, char why[256])
{
	const Value *acc = ir_acc(n);
	if (!acc)
		return true;
	if (res->dtype != DT_F32 && res->dtype != DT_F64)
		return op_fail(why, "sums are f32 or f64, and so nothing is added to %s", TYPE_TEXT(res));
	if (!type_equal(&acc->type, res))
		return op_fail(why, "a result %s cannot be added to %s", TYPE_TEXT(res), TYPE_TEXT(&acc->type));
	return true;
}

int type_marks(const Type *t)
{
	int n = 0;
	for (int i = 0; i < t->ndim; i++)
		n += type_marked(t, i);
	return n;
}

/* Training ops: learning-rate schedules, optimizer updates, effects and regions.
 *
 * An update does its arithmetic in the parameter's dtype, in the order of PyTorch's single-tensor
 * optimizers; numbers that are scalars of the step (1 - lr*wd, bias corrections) are computed in
 * f64 and rounded once, where they meet the tensor. */
#include "op_util.h"

/* ---- effects and regions ---- */

bool t_region(const Node *n, Type *res, char why[256])
{
	for (int i = 0; i < n->nres; i++) {
		res[i] = n->res[i]->type;
		if (!type_check(&res[i]))
			return op_fail(why, "%s is not a valid type", TYPE_TEXT(&res[i]));
	}
	return true;
}

bool t_assign(const Node *n, Type *res, char why[256])
{
	(void)res;
	if (!type_equal(op_arg(n, 0), op_arg(n, 1)))
		return op_fail(why, "expected a value of type %s, got %s", TYPE_TEXT(op_arg(n, 0)),
			       TYPE_TEXT(op_arg(n, 1)));
	return true;
}

bool t_output(const Node *n, Type *res, char why[256])
{
	(void)res;
	if (!ir_str(n, "name") || !*ir_str(n, "name"))
		return op_fail(why, "an output needs a name");
	return true;
}

bool t_schedule(const Node *n, Type *res, char why[256])
{
	static const char *const kinds[] = { "constant", "linear", "cosine", "step", "wsd" };
	const Type *x = op_arg(n, 0);
	const char *kind = ir_str(n, "kind");
	if (x->dtype != DT_I64 || x->ndim)
		return op_fail(why, "expected the step as i64[], got %s", TYPE_TEXT(x));
	*res = type_scalar(DT_F64);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kind && !strcmp(kind, kinds[i]))
			return true;
	return op_fail(why, "'%s' is not a schedule (constant, linear, cosine, step, wsd)",
		       kind ? kind : "");
}

/* Operands parameter, gradient, lr, t, state... */
bool t_update(const Node *n, Type *res, char why[256])
{
	(void)res;
	const Type *p = op_arg(n, 0), *lr = op_arg(n, 2), *t = op_arg(n, 3);
	if (!op_float_arg(n, 0, why))
		return false;
	if (!n->arg[0]->def || n->arg[0]->def->op != OP_var)
		return op_fail(why, "the parameter must be a variable");
	if (lr->dtype != DT_F64 || lr->ndim || t->dtype != DT_I64 || t->ndim)
		return op_fail(why, "expected lr as f64[] and the step as i64[], got %s and %s",
			       TYPE_TEXT(lr), TYPE_TEXT(t));
	for (int i = 1; i < n->nargs; i++)
		if (i != 2 && i != 3 && !type_equal(op_arg(n, i), p))
			return op_fail(why,
				       "gradient and state must be like the parameter, %s, got %s",
				       TYPE_TEXT(p), TYPE_TEXT(op_arg(n, i)));
	if (n->op == OP_sgd && (ir_float(n, "momentum") > 0) != (n->nargs == 5))
		return op_fail(why, "momentum needs a buffer, and only momentum; got %d operands",
			       (int)n->nargs);
	return true;
}

/* ---- updates ---- */

static Value *mul(Builder *b, Value *x, Value *y)
{
	return ir_binary(b, OP_mul, x, y);
}

static Value *mul_c(Builder *b, Value *x, double c)
{
	return ir_binary_c(b, OP_mul, x, c);
}

static Value *add(Builder *b, Value *x, Value *y)
{
	return ir_binary(b, OP_add, x, y);
}

/* A scalar of the step, rounded to the dtype of the tensor that it meets. */
static Value *meet(Builder *b, Value *scalar, const Value *tensor)
{
	return scalar->type.dtype == tensor->type.dtype ? scalar
							: ir_cast(b, scalar, tensor->type.dtype);
}

/* g + wd*p */
static Value *add_decay(Builder *b, Value *g, Value *p, double wd)
{
	return wd > 0 ? add(b, g, mul_c(b, p, wd)) : g;
}

bool x_sgd(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	Value *p = n->arg[0], *lr = n->arg[2], *t = n->arg[3];
	double mu = ir_float(n, "momentum"), damp = ir_float(n, "dampening");
	Value *g = add_decay(b, n->arg[1], p, ir_float(n, "weight_decay"));
	Value *d = g;
	if (mu > 0) {
		Value *buf = n->arg[4];
		Value *next = add(b, mul_c(b, buf, mu), mul_c(b, g, 1 - damp));
		/* The first step starts the buffer with the gradient itself. */
		if (damp > 0)
			next = ir_select(b, ir_binary_c(b, OP_eq, t, 1), g, next);
		ir_assign(b, buf, next);
		d = ir_int(n, "nesterov") ? add(b, g, mul_c(b, next, mu)) : next;
	}
	ir_assign(b, p, ir_binary(b, OP_sub, p, mul(b, meet(b, lr, p), d)));
	return true;
}

/* 1 - beta^t, an f64 scalar */
static Value *bias_correction(Builder *b, double beta, Value *t)
{
	Value *power = ir_binary(b, OP_pow, ir_scalar(b, DT_F64, beta), ir_cast(b, t, DT_F64));
	return ir_binary(b, OP_sub, ir_scalar(b, DT_F64, 1), power);
}

/* m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g*g; p - lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps) */
static void adam_update(Builder *b, Node *n, Value *p, Value *g)
{
	Value *lr = n->arg[2], *t = n->arg[3];
	double b1 = ir_float(n, "beta1"), b2 = ir_float(n, "beta2");
	Value *m = add(b, mul_c(b, n->arg[4], b1), mul_c(b, g, 1 - b1));
	Value *v = add(b, mul_c(b, n->arg[5], b2), mul(b, mul_c(b, g, 1 - b2), g));
	Value *size = ir_binary(b, OP_div, lr, bias_correction(b, b1, t));
	Value *root = ir_unary(b, OP_sqrt, bias_correction(b, b2, t));
	Value *denom = ir_binary(b, OP_div, ir_unary(b, OP_sqrt, v), meet(b, root, p));
	denom = ir_binary_c(b, OP_add, denom, ir_float(n, "eps"));
	Value *step = ir_binary(b, OP_div, mul(b, meet(b, size, p), m), denom);
	ir_assign(b, n->arg[4], m);
	ir_assign(b, n->arg[5], v);
	ir_assign(b, n->arg[0], ir_binary(b, OP_sub, p, step));
}

bool x_adam(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	adam_update(b, n, n->arg[0],
		    add_decay(b, n->arg[1], n->arg[0], ir_float(n, "weight_decay")));
	return true;
}

/* p *= 1 - lr*wd first */
bool x_adamw(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	Value *p = n->arg[0];
	double wd = ir_float(n, "weight_decay");
	if (wd > 0) {
		Value *keep =
			ir_binary(b, OP_sub, ir_scalar(b, DT_F64, 1), mul_c(b, n->arg[2], wd));
		p = mul(b, p, meet(b, keep, p));
	}
	adam_update(b, n, p, n->arg[1]);
	return true;
}

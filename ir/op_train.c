/* Training ops: learning-rate schedules, optimizer updates, effects and regions.
 *
 * An update does its arithmetic in the parameter's dtype, in the order of PyTorch's single-tensor
 * optimizers; numbers that are scalars of the step (1 - lr*wd, bias corrections) are computed in
 * f64 and rounded once, where they meet the tensor. */
#include "op_util.h"

#include <float.h>
#include <math.h>

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

/* ---- between device and host memory ---- */

bool t_send(const Node *n, Type *res, char why[256])
{
	const Value *x = n->arg[0];
	if (ir_in_host(x))
		return op_fail(why, "expected a value of the device, got one in host memory");
	if (!x->def || x->def->op == OP_var || ir_is_view(x->def))
		return op_fail(why, "expected the result of a node that computes it, got a variable, a parameter or a view");
	*res = x->type;
	return true;
}

bool t_sent(const Node *n, Type *res, char why[256])
{
	(void)res;
	if (!ir_in_host(n->arg[1]) || n->arg[1]->def->arg[0] != n->arg[0])
		return op_fail(why, "expected a value and what 'send' makes of it");
	return true;
}

bool t_fetch(const Node *n, Type *res, char why[256])
{
	if (!ir_in_host(n->arg[0]))
		return op_fail(why, "expected what 'send' makes, in host memory");
	*res = n->arg[0]->type;
	return true;
}

bool t_fetched(const Node *n, Type *res, char why[256])
{
	(void)res;
	if (!n->arg[0]->def || n->arg[0]->def->op != OP_fetch)
		return op_fail(why, "expected what 'fetch' makes");
	return true;
}

/* ---- schedules and updates ---- */

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

/* What every update has: operands 0, 2 and 3. */
static bool update_args(const Node *n, char why[256])
{
	const Type *lr = op_arg(n, 2), *t = op_arg(n, 3);
	if (!op_float_arg(n, 0, why))
		return false;
	if (!n->arg[0]->def || n->arg[0]->def->op != OP_var)
		return op_fail(why, "the parameter must be a variable");
	if (lr->dtype != DT_F64 || lr->ndim || t->dtype != DT_I64 || t->ndim)
		return op_fail(why, "expected lr as f64[] and the step as i64[], got %s and %s",
			       TYPE_TEXT(lr), TYPE_TEXT(t));
	return true;
}

/* Operands parameter, gradient, lr, t, state... */
bool t_update(const Node *n, Type *res, char why[256])
{
	(void)res;
	const Type *p = op_arg(n, 0);
	if (!update_args(n, why))
		return false;
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

/* p * (1 - lr*wd) */
static Value *decay_apart(Builder *b, Value *p, Value *lr, double wd)
{
	if (wd <= 0)
		return p;
	Value *keep = ir_binary(b, OP_sub, ir_scalar(b, DT_F64, 1), mul_c(b, lr, wd));
	return mul(b, p, meet(b, keep, p));
}

bool x_adamw(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	Value *p = decay_apart(b, n->arg[0], n->arg[2], ir_float(n, "weight_decay"));
	adam_update(b, n, p, n->arg[1]);
	return true;
}

/* update = sign(b1*m + (1-b1)*g); p = p*(1 - lr*wd) - lr*update; m = b2*m + (1-b2)*g */
bool x_lion(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	Value *p = decay_apart(b, n->arg[0], n->arg[2], ir_float(n, "weight_decay"));
	Value *g = n->arg[1], *m = n->arg[4];
	double b1 = ir_float(n, "beta1"), b2 = ir_float(n, "beta2");
	Value *mix = add(b, mul_c(b, m, b1), mul_c(b, g, 1 - b1));
	Value *step = mul(b, meet(b, n->arg[2], p), ir_unary(b, OP_sign, mix));
	ir_assign(b, m, add(b, mul_c(b, m, b2), mul_c(b, g, 1 - b2)));
	ir_assign(b, n->arg[0], ir_binary(b, OP_sub, p, step));
	return true;
}

/* ---- adafactor ----
 *
 * As torch.optim.Adafactor (PyTorch 2.5): of a tensor of two or more dimensions the second moment is
 * kept as its means over the last axis (rows) and over the one before (columns), whose product over
 * the mean of the rows estimates it; a vector keeps all of it. */

/* Means over one of the last two axes, which is kept with size 1. */
static Type factor_type(const Type *p, int axis_from_end)
{
	Type t = *p;
	t.dim[t.ndim - axis_from_end] = 1;
	return t;
}

bool t_adafactor(const Node *n, Type *res, char why[256])
{
	(void)res;
	const Type *p = op_arg(n, 0);
	if (!update_args(n, why))
		return false;
	if (!type_equal(op_arg(n, 1), p))
		return op_fail(why, "the gradient must be like the parameter, %s, got %s", TYPE_TEXT(p),
			       TYPE_TEXT(op_arg(n, 1)));
	int states = p->ndim >= 2 ? 2 : 1;
	if (n->nargs != 4 + states && n->nargs != 5 + states)
		return op_fail(why, "a parameter of %d dimensions has %d states, and there may be a factor; got %d", p->ndim,
			       states, (int)n->nargs - 4);
	if (n->nargs == 5 + states && (op_arg(n, 4 + states)->ndim || op_arg(n, 4 + states)->dtype != p->dtype))
		return op_fail(why, "the factor must be %s[], got %s", dtype_name(p->dtype), TYPE_TEXT(op_arg(n, 4 + states)));
	for (int i = 4; i < 4 + states; i++) {
		Type want = p->ndim >= 2 ? factor_type(p, i - 3) : *p;
		if (!type_equal(op_arg(n, i), &want))
			return op_fail(why, "expected a state of type %s, got %s", TYPE_TEXT(&want),
				       TYPE_TEXT(op_arg(n, i)));
	}
	return true;
}

/* x + w*(y - x), w a scalar of the step */
static Value *lerp(Builder *b, Value *x, Value *y, Value *w)
{
	return add(b, x, mul(b, meet(b, w, x), ir_binary(b, OP_sub, y, x)));
}

/* The root of the mean of the squares, as an f64 scalar. */
static Value *rms(Builder *b, Value *x)
{
	Value *sum = ir_cast(b, ir_reduce_all(b, OP_sum, mul(b, x, x)), DT_F64);
	double root = 1 / sqrt((double)type_elems(&x->type));
	return mul_c(b, ir_unary(b, OP_sqrt, sum), root);
}

static Value *mean_over(Builder *b, Value *x, int axis_from_end)
{
	IntList axis = ir_list(1, &(int64_t){ x->type.ndim - axis_from_end });
	return ir_reduce(b, OP_mean, x, &axis, true);
}

/* The gradient is read by three kernels: the means over two axes and the update. What two of them read would be stored between
 * them, as large as the gradient itself: its squares, or what has become of it when it is clipped. So each makes these for itself, by
 * ways that are nodes of their own and give the same bits: g, |g| (squares alone ask for it), and g as (-g)*(-factor). */
typedef enum Way { WAY_PLAIN, WAY_SIZE, WAY_AGAIN } Way;

static Value *clipped(Builder *b, const Node *n, Way way)
{
	int states = n->arg[0]->type.ndim >= 2 ? 2 : 1;
	Value *g = n->arg[1], *factor = n->nargs > 4 + states ? n->arg[4 + states] : NULL;
	double most = ir_float(n, "clip_value");
	bool again = way == WAY_AGAIN && (factor || most > 0);
	g = way == WAY_SIZE ? ir_unary(b, OP_abs, g) : again ? ir_unary(b, OP_neg, g) : g;
	if (factor)
		g = mul(b, g, again ? ir_unary(b, OP_neg, factor) : factor);
	if (most > 0) {
		g = way == WAY_SIZE ? g : ir_binary_c(b, OP_max, g, -most);
		g = ir_binary_c(b, OP_min, g, most);
	}
	return again && !factor ? ir_unary(b, OP_neg, g) : g;
}

/* The estimate of the second moment, from states that it brings up to date. */
static Value *second_moment(Builder *b, Node *n, Value *fresh, double eps1)
{
	Value *g = clipped(b, n, WAY_PLAIN), *squares = mul(b, g, g);
	if (n->arg[0]->type.ndim < 2) {
		Value *v = lerp(b, n->arg[4], squares, fresh);
		ir_assign(b, n->arg[4], v);
		return v;
	}
	Value *size = clipped(b, n, WAY_SIZE);
	Value *row = lerp(b, n->arg[4], mean_over(b, squares, 1), fresh);
	Value *column = lerp(b, n->arg[5], mean_over(b, mul(b, size, size), 2), fresh);
	ir_assign(b, n->arg[4], row);
	ir_assign(b, n->arg[5], column);
	Value *whole = ir_binary_c(b, OP_max, mean_over(b, row, 2), eps1);
	/* The rows by their mean first: the product then waits for that, and is made in the kernel of the update. */
	return mul(b, ir_binary(b, OP_div, row, whole), column);
}

/* The size of a step: min(lr, 1/sqrt(t)) relative to the parameter's, at least eps2; less where the
 * update is larger than d. */
static Value *step_size(Builder *b, Node *n, Value *t, Value *update)
{
	Value *rate = ir_binary(b, OP_min, n->arg[2], ir_unary(b, OP_rsqrt, t));
	Value *scale = ir_binary_c(b, OP_max, rms(b, n->arg[0]), ir_float(n, "eps2"));
	Value *over = ir_binary_c(b, OP_max, mul_c(b, rms(b, update), 1 / ir_float(n, "d")), 1);
	return ir_binary(b, OP_div, mul(b, scale, rate), over);
}

bool x_adafactor(Builder *b, Node *n, bool training, Value **res)
{
	(void)training, (void)res;
	Value *p = n->arg[0], *t = ir_cast(b, n->arg[3], DT_F64);
	double eps1 = ir_float(n, "eps1");
	if (eps1 <= 0)
		eps1 = p->type.dtype == DT_F64 ? DBL_EPSILON : FLT_EPSILON;
	Value *fresh = ir_binary(b, OP_pow, t, ir_scalar(b, DT_F64, ir_float(n, "beta2_decay")));
	Value *v = ir_binary_c(b, OP_max, second_moment(b, n, fresh, eps1), eps1 * eps1);
	Value *g = clipped(b, n, n->arg[0]->type.ndim < 2 ? WAY_PLAIN : WAY_AGAIN);
	Value *update = mul(b, ir_unary(b, OP_rsqrt, v), g);
	Value *size = step_size(b, n, t, update);
	p = decay_apart(b, p, n->arg[2], ir_float(n, "weight_decay"));
	ir_assign(b, n->arg[0], ir_binary(b, OP_sub, p, mul(b, meet(b, size, p), update)));
	return true;
}

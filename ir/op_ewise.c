/* Element-wise ops and leaves: type rules and gradients.
 *
 * Types: operands broadcast by NumPy's rule and are promoted to the widest dtype. Gradients:
 * written on whole tensors; where an operand was broadcast the walker (passes/autodiff.c) sums the
 * extra axes away. A rule reads the operands and results that its row of ops.def lists as saved,
 * and nothing else of the forward pass. */
#include "op_util.h"

/* ---- types ---- */

bool t_given(const Node *n, Type *res, char why[256])
{
	res[0] = n->res[0]->type;
	if (!type_check(&res[0]))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(&res[0]));
	return true;
}

bool t_same(const Node *n, Type *res, char why[256])
{
	(void)why;
	res[0] = *op_arg(n, 0);
	return true;
}

bool t_same_float(const Node *n, Type *res, char why[256])
{
	res[0] = *op_arg(n, 0);
	return op_float_arg(n, 0, why);
}

/* Joins the shapes of arguments [first, nargs) into *out, whose dtype becomes their promotion. */
static bool join(const Node *n, int first, Type *out, char why[256])
{
	*out = *op_arg(n, first);
	for (int i = first + 1; i < n->nargs; i++) {
		const Type *t = op_arg(n, i);
		DType d = dtype_promote(out->dtype, t->dtype);
		Type joined;
		if (!type_broadcast(out, t, &joined))
			return op_fail(why, "shapes do not match, %s with %s",
				       TYPE_TEXT(op_arg(n, first)), TYPE_TEXT(t));
		joined.dtype = d;
		*out = joined;
	}
	if (!type_check(out))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(out));
	return true;
}

bool t_ewise(const Node *n, Type *res, char why[256])
{
	for (int i = 0; i < n->nargs; i++)
		if (op_arg(n, i)->dtype == DT_BOOL && n->op != OP_stop_gradient)
			return op_fail(why, "expected numbers, got %s", TYPE_TEXT(op_arg(n, i)));
	return join(n, 0, res, why);
}

bool t_ewise_float(const Node *n, Type *res, char why[256])
{
	if (!t_ewise(n, res, why))
		return false;
	if (!dtype_is_float(res->dtype))
		return op_fail(why, "expected floating-point numbers, got %s",
			       TYPE_TEXT(op_arg(n, 0)));
	return true;
}

bool t_cast(const Node *n, Type *res, char why[256])
{
	const char *to = ir_str(n, "to");
	res[0] = *op_arg(n, 0);
	res->dtype = to ? dtype_from_name(to, strlen(to)) : DT_NONE;
	if (res->dtype == DT_NONE)
		return op_fail(why, "'%s' is not a type", to ? to : "");
	if (!type_check(res))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(res));
	return true;
}

bool t_cast_like(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *y = op_arg(n, 1);
	if (!op_float_arg(n, 0, why) || !op_float_arg(n, 1, why))
		return false;
	if (!type_same_shape(x, y) || x->batch != y->batch)
		return op_fail(why, "shapes must be equal, got %s and %s", TYPE_TEXT(x),
			       TYPE_TEXT(y));
	*res = *x;
	res->dtype = y->dtype;
	return true;
}

bool t_compare(const Node *n, Type *res, char why[256])
{
	if (n->op == OP_is_finite && !op_float_arg(n, 0, why))
		return false;
	if (!join(n, 0, res, why))
		return false;
	res->dtype = DT_BOOL;
	return true;
}

bool t_logic(const Node *n, Type *res, char why[256])
{
	for (int i = 0; i < n->nargs; i++)
		if (op_arg(n, i)->dtype != DT_BOOL)
			return op_fail(why, "expected bool, got %s", TYPE_TEXT(op_arg(n, i)));
	return join(n, 0, res, why);
}

bool t_select(const Node *n, Type *res, char why[256])
{
	if (op_arg(n, 0)->dtype != DT_BOOL)
		return op_fail(why, "the condition must be bool, got %s", TYPE_TEXT(op_arg(n, 0)));
	Type values;
	if (!join(n, 1, &values, why))
		return false;
	if (!type_broadcast(op_arg(n, 0), &values, res))
		return op_fail(why, "shapes do not match, condition %s with %s",
			       TYPE_TEXT(op_arg(n, 0)), TYPE_TEXT(&values));
	res->dtype = values.dtype;
	if (!type_check(res))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(res));
	return true;
}

/* ---- gradients: arithmetic ---- */

static Value *mul(Builder *b, Value *x, Value *y)
{
	return ir_binary(b, OP_mul, x, y);
}

static Value *mul_c(Builder *b, Value *x, double c)
{
	return ir_binary_c(b, OP_mul, x, c);
}

/* c - x */
static Value *c_sub(Builder *b, double c, Value *x)
{
	return ir_binary(b, OP_sub, ir_scalar(b, x->type.dtype, c), x);
}

/* dy where cond holds, else 0 */
static Value *where(Builder *b, Value *cond, Value *dy)
{
	return ir_select(b, cond, dy, ir_scalar(b, dy->type.dtype, 0));
}

static Value *where_not(Builder *b, Value *cond, Value *dy)
{
	return ir_select(b, cond, ir_scalar(b, dy->type.dtype, 0), dy);
}

/* x op 0 */
static Value *against_zero(Builder *b, OpCode op, Value *x)
{
	return ir_binary_c(b, op, x, 0);
}

bool g_add(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)b, (void)n;
	dx[0] = dx[1] = dy[0];
	return true;
}

bool g_sub(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)n;
	dx[0] = dy[0];
	dx[1] = ir_unary(b, OP_neg, dy[0]);
	return true;
}

/* d(x*y) = dy*y, dy*x */
bool g_mul(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], n->arg[1]);
	dx[1] = mul(b, dy[0], n->arg[0]);
	return true;
}

/* d(x/y) = dy/y, -(dy/y)*(x/y) */
bool g_div(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_binary(b, OP_div, dy[0], n->arg[1]);
	dx[1] = ir_unary(b, OP_neg, mul(b, dx[0], n->res[0]));
	return true;
}

/* d(x^y) = dy*y*x^(y-1), dy*x^y*log(x) */
bool g_pow(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *x = n->arg[0], *y = n->arg[1];
	Value *less = ir_binary(b, OP_pow, x, ir_binary_c(b, OP_sub, y, 1));
	dx[0] = mul(b, dy[0], mul(b, y, less));
	if (dtype_is_float(x->type.dtype))
		dx[1] = mul(b, dy[0], mul(b, n->res[0], ir_unary(b, OP_log, x)));
	return true;
}

static bool pick(Builder *b, Node *n, OpCode first_wins, Value *const *dy, Value **dx)
{
	Value *first = ir_binary(b, first_wins, n->arg[0], n->arg[1]);
	dx[0] = where(b, first, dy[0]);
	dx[1] = where_not(b, first, dy[0]);
	return true;
}

bool g_max(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	return pick(b, n, OP_ge, dy, dx);
}

bool g_min(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	return pick(b, n, OP_le, dy, dx);
}

bool g_neg(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)n;
	dx[0] = ir_unary(b, OP_neg, dy[0]);
	return true;
}

bool g_abs(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], ir_unary(b, OP_sign, n->arg[0]));
	return true;
}

/* ---- gradients: functions ---- */

bool g_exp(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], n->res[0]);
	return true;
}

bool g_log(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_binary(b, OP_div, dy[0], n->arg[0]);
	return true;
}

/* dy / (2y) */
bool g_sqrt(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_binary(b, OP_div, dy[0], mul_c(b, n->res[0], 2));
	return true;
}

/* -dy/2 * y^3 */
bool g_rsqrt(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *y = n->res[0];
	dx[0] = mul(b, mul_c(b, dy[0], -0.5), mul(b, y, mul(b, y, y)));
	return true;
}

bool g_sin(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], ir_unary(b, OP_cos, n->arg[0]));
	return true;
}

bool g_cos(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_unary(b, OP_neg, mul(b, dy[0], ir_unary(b, OP_sin, n->arg[0])));
	return true;
}

/* dy * (1 - y*y) */
bool g_tanh(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *y = n->res[0];
	dx[0] = mul(b, dy[0], c_sub(b, 1, mul(b, y, y)));
	return true;
}

/* dy * (1 - y) * y */
bool g_sigmoid(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *y = n->res[0];
	dx[0] = mul(b, mul(b, dy[0], c_sub(b, 1, y)), y);
	return true;
}

/* dy * 2/sqrt(pi) * exp(-x*x) */
bool g_erf(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *x = n->arg[0];
	Value *e = ir_unary(b, OP_exp, ir_unary(b, OP_neg, mul(b, x, x)));
	dx[0] = mul(b, mul_c(b, dy[0], 1.12837916709551257390), e);
	return true;
}

/* From the result, so that x need not be kept: y > 0 exactly where x > 0. */
bool g_relu(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = where(b, against_zero(b, OP_gt, n->res[0]), dy[0]);
	return true;
}

bool g_gelu(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], ir_unary(b, OP_gelu_grad, n->arg[0]));
	return true;
}

/* dy * (cdf(x) + x*pdf(x)) of the normal distribution */
bool g_gelu_erf(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *x = n->arg[0];
	Value *erf = ir_unary(b, OP_erf, mul_c(b, x, 0.70710678118654752440));
	Value *cdf = mul_c(b, ir_binary_c(b, OP_add, erf, 1), 0.5);
	Value *e = ir_unary(b, OP_exp, mul_c(b, mul(b, x, x), -0.5));
	Value *pdf = mul_c(b, e, 0.39894228040143267794);
	dx[0] = mul(b, dy[0], ir_binary(b, OP_add, cdf, mul(b, x, pdf)));
	return true;
}

/* dy * s * (1 + x*(1 - s)), s = sigmoid(x) */
bool g_silu(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *x = n->arg[0];
	Value *s = ir_unary(b, OP_sigmoid, x);
	Value *inner = ir_binary_c(b, OP_add, mul(b, x, c_sub(b, 1, s)), 1);
	dx[0] = mul(b, dy[0], mul(b, s, inner));
	return true;
}

bool g_softplus(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = mul(b, dy[0], ir_unary(b, OP_sigmoid, n->arg[0]));
	return true;
}

bool g_leaky_relu(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *positive = against_zero(b, OP_gt, n->arg[0]);
	dx[0] = ir_select(b, positive, dy[0], mul_c(b, dy[0], ir_float(n, "slope")));
	return true;
}

/* The walker casts to the operand's dtype. */
bool g_cast(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)b;
	if (dtype_is_float(n->arg[0]->type.dtype) && dtype_is_float(n->res[0]->type.dtype))
		dx[0] = dy[0];
	return true;
}

bool g_cast_like(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	(void)b, (void)n;
	dx[0] = dy[0];
	return true;
}

bool g_select(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[1] = where(b, n->arg[0], dy[0]);
	dx[2] = where_not(b, n->arg[0], dy[0]);
	return true;
}

/* The functions of the language: arithmetic on constants, initial values, parameters, and questions
 * about tensors.
 *
 * A function that is also an op (exp, max, ...) computes a number from numbers and becomes the op
 * when an operand is a tensor. */
#include "front.h"

#include <math.h>

typedef Val (*BuiltinFn)(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name);

typedef struct Builtin {
	const char *name, *usage;
	int min, max; /* arguments, named ones included */
	BuiltinFn run;
} Builtin;

static const Actual *arg(Actuals *a, int i, const char *name)
{
	return actual_take(a, i, name);
}

static bool want(Front *f, const Frame *fr, const Actual *x, bool good, const char *name,
		 const char *what)
{
	if (!good)
		front_error(f, fr, x->expr->span, "%s takes %s, got %s", name, what,
			    val_describe(f->arena, x->v));
	return good;
}

/* ---- numbers ---- */

typedef double (*Math1)(double);

static Val math1(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	static const struct {
		const char *name;
		Math1 fn;
	} table[] = { { "sqrt", sqrt }, { "exp", exp }, { "log", log },
		      { "sin", sin },   { "cos", cos }, { "tanh", tanh } };
	const Actual *x = arg(args, 0, NULL);

	if (!x || !want(f, fr, x, val_is_number(x->v), name, "a number or a tensor"))
		return POISON;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(table[i].name, name))
			return value_finite(
				f, fr, e->span,
				arena_printf(f->arena, "%s(%s)", name, val_text(f->arena, x->v)),
				table[i].fn(val_number(x->v)), x->v.mark ? BM_OTHER : BM_NONE);
	return POISON;
}

static Val fn_pow(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL), *y = arg(args, 1, NULL);

	if (!x || !y || !want(f, fr, x, val_is_number(x->v), name, "numbers or tensors") ||
	    !want(f, fr, y, val_is_number(y->v), name, "numbers or tensors"))
		return POISON;
	Val v = value_finite(f, fr, e->span, "the power", pow(val_number(x->v), val_number(y->v)),
			     x->v.mark || y->v.mark ? BM_OTHER : BM_NONE);
	if (v.kind == V_FLOAT && x->v.kind == V_INT && y->v.kind == V_INT && v.f == floor(v.f) &&
	    fabs(v.f) < 9e15)
		return (Val){ .kind = V_INT, .i = (int64_t)v.f, .mark = v.mark };
	return v;
}

static Val fn_minmax(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	Val best = POISON;

	(void)e;
	for (int i = 0; i < args->npos; i++) {
		const Actual *x = arg(args, i, NULL);
		if (!want(f, fr, x, val_is_number(x->v), name, "numbers or two tensors"))
			return POISON;
		double d = i ? val_number(x->v) - val_number(best) : 0;
		if (i == 0 || (!strcmp(name, "max") ? d > 0 : d < 0))
			best = x->v;
	}
	for (int i = 0; i < args->npos; i++) /* max(batch, 64) is no multiple of the batch */
		if (args->at[i].v.mark && args->npos > 1)
			best.mark = BM_OTHER;
	return best;
}

static Val fn_abs(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);

	if (!x || !want(f, fr, x, val_is_number(x->v), name, "a number or a tensor"))
		return POISON;
	return val_number(x->v) < 0 ? value_unary(f, fr, e->span, O_NEG, x->v) : x->v;
}

/* floor, ceil, round: to an int. */
static Val fn_round(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);
	double v;

	if (!x || !want(f, fr, x, val_is_number(x->v), name, "a number"))
		return POISON;
	if (x->v.kind == V_INT)
		return x->v;
	v = !strcmp(name, "floor")  ? floor(x->v.f)
	    : !strcmp(name, "ceil") ? ceil(x->v.f)
				    : round(x->v.f);
	if (fabs(v) > 9.2e18) {
		front_error(f, fr, e->span, "%s does not fit in 64 bits", val_text(f->arena, x->v));
		return POISON;
	}
	return (Val){ .kind = V_INT, .i = (int64_t)v, .mark = x->v.mark ? BM_OTHER : BM_NONE };
}

/* ---- initial values ---- */

static Val init_val(Front *f, InitKind kind, double a, double b)
{
	InitVal *x = ARENA_NEW(f->arena, InitVal);

	*x = (InitVal){ kind, a, b };
	return (Val){ .kind = V_INIT, .init = x };
}

static bool number(Front *f, const Frame *fr, Actuals *args, int i, const char *key,
		   const char *name, double *out)
{
	const Actual *x = arg(args, i, key);

	if (!x)
		return true;
	if (!want(f, fr, x, val_is_number(x->v), name, "numbers"))
		return false;
	*out = val_number(x->v);
	return true;
}

static Val fn_normal(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	bool both = args->npos == 2; /* normal(std) or normal(mean, std) */
	double mean = 0, std = 1;

	if (!number(f, fr, args, both ? 0 : -1, "mean", name, &mean) ||
	    !number(f, fr, args, both ? 1 : 0, "std", name, &std))
		return POISON;
	if (std < 0) {
		front_error(f, fr, e->span, "normal: the deviation %g is negative", std);
		return POISON;
	}
	return init_val(f, INIT_NORMAL, mean, std);
}

static Val fn_uniform(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	double a = 0, b = 1;

	if (!number(f, fr, args, 0, "low", name, &a) || !number(f, fr, args, 1, "high", name, &b))
		return POISON;
	if (!(a <= b)) {
		front_error(f, fr, e->span, "uniform: the low end %g is above the high end %g", a,
			    b);
		return POISON;
	}
	return init_val(f, INIT_UNIFORM, a, b);
}

static Val fn_constant(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	double v = 0;

	(void)e;
	return number(f, fr, args, 0, "value", name, &v) ? init_val(f, INIT_CONST, v, 0) : POISON;
}

/* ---- parameters ---- */

static bool var_init(Front *f, const Frame *fr, const Actual *x, const char *name, InitVal *out)
{
	*out = (InitVal){ INIT_CONST, 0, 0 };
	if (!x)
		return true;
	if (x->v.kind == V_INIT)
		*out = *x->v.init;
	else if (val_is_number(x->v))
		out->a = val_number(x->v);
	else
		return want(f, fr, x, false, name,
			    "initial values such as normal(0.02) for 'init'");
	return true;
}

/* param(name, shape, init = zeros, decay = none) and stat(name, shape, init = zeros). */
static Val fn_param(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *who = arg(args, 0, "name"), *shape = arg(args, 1, "shape"),
		     *init = arg(args, 2, "init");
	bool stat = !strcmp(name, "stat");
	const Actual *decay = stat ? NULL : arg(args, 3, "decay");
	InitVal value;
	Type t;

	if (!who || !shape) {
		front_error(f, fr, e->span, "%s needs a name and a shape", name);
		return POISON;
	}
	if (!want(f, fr, who, who->v.kind == V_STR, name, "a string as name") ||
	    !eval_shape(f, fr, shape->expr->span, shape->v, false, &t) ||
	    !var_init(f, fr, init, name, &value))
		return POISON;
	if (decay && !want(f, fr, decay, decay->v.kind == V_BOOL || decay->v.kind == V_NONE, name,
			   "true or false for 'decay'"))
		return POISON;
	if (t.batch) {
		front_error(f, fr, shape->expr->span,
			    "%s '%s' cannot have the batch among its dimensions", name, who->v.s);
		return POISON;
	}
	t.dtype = f->real;
	return param_use(f, fr, e, who->v.s, &t, stat ? VAR_STAT : VAR_PARAM, &value,
			 decay && decay->v.kind == V_BOOL ? decay->v.b : -1);
}

/* ---- questions ---- */

static Val fn_rank(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);

	(void)e;
	return x && want(f, fr, x, x->v.kind == V_TENSOR, name, "a tensor")
		       ? val_int(x->v.t->type.ndim)
		       : POISON;
}

static Val fn_dim(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL), *at = arg(args, 1, "axis");
	int64_t axis;

	(void)e;
	if (!x || !at || !want(f, fr, x, x->v.kind == V_TENSOR, name, "a tensor") ||
	    !tensor_axis(f, fr, at->expr->span, at->v, &x->v.t->type, &axis))
		return POISON;
	Val v = val_int(x->v.t->type.dim[axis]);
	v.mark = tensor_is_batch(&x->v.t->type, axis) ? BM_MULTIPLE : BM_NONE;
	return v;
}

static Val fn_len(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);

	(void)e;
	return x && want(f, fr, x, x->v.kind == V_LIST, name, "a list") ? val_int(x->v.n) : POISON;
}

/* pair(3) is [3, 3]; pair([3, 5]) is itself. */
static Val fn_pair(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);
	Val v = { .kind = V_LIST, .n = 2, .at = ARENA_ARRAY(f->arena, 2, Val) };

	(void)e;
	if (!x || !want(f, fr, x, x->v.kind == V_INT || (x->v.kind == V_LIST && x->v.n == 2), name,
			"a whole number or a list of two"))
		return POISON;
	v.at[0] = v.at[1] = x->v;
	return x->v.kind == V_LIST ? x->v : v;
}

/* ---- tensors ---- */

/* split(x, parts, axis = -1): as many tensors. */
static Val fn_split(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL), *parts = arg(args, 1, "parts"),
		     *at = arg(args, 2, "axis");
	int64_t n, axis;
	Val out = { .kind = V_TUPLE };

	if (!x || !parts) {
		front_error(f, fr, e->span, "split needs a tensor and a number of parts");
		return POISON;
	}
	if (!want(f, fr, x, x->v.kind == V_TENSOR, name, "a tensor") ||
	    !eval_int(f, fr, parts->expr->span, parts->v, "the number of parts", &n) ||
	    !tensor_axis(f, fr, at ? at->expr->span : e->span, at ? at->v : val_int(-1),
			 &x->v.t->type, &axis))
		return POISON;
	const Type *t = &x->v.t->type;
	if (n < 1 || n > 4096 || t->dim[axis] % n != 0) {
		front_error(f, fr, e->span,
			    "split: axis %lld of %s does not divide into %lld parts",
			    (long long)axis, type_text(f->arena, t, false), (long long)n);
		return POISON;
	}
	if (tensor_is_batch(t, axis)) {
		front_error(f, fr, e->span,
			    "split: axis %lld of %s is the batch, which cannot be cut",
			    (long long)axis, type_text(f->arena, t, false));
		return POISON;
	}
	out.at = ARENA_ARRAY(f->arena, n, Val);
	for (int64_t i = 0; i < n; i++) {
		Attr attr[3] = { { .i = axis }, { .i = n }, { .i = i } };
		Value *operand = x->v.t;
		Val part = prim_results(f, fr, e,
					prim_node(f, fr, e, OP_split, 1, &operand, attr, NULL, 0));
		if (part.kind == V_POISON)
			return POISON;
		out.at[out.n++] = part;
	}
	return out.n == 1 ? out.at[0] : out;
}

/* concat(list, axis = 0), stack(list, axis = 0), stack(x, y, ..., axis = 0). Of tensors one by one,
 * concat is the op. */
static Val fn_join(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	return tensor_join(f, fr, e, args, !strcmp(name, "stack"));
}

/* vector(list): the numbers of a list as a tensor of one dimension. */
static Val fn_vector(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	const Actual *x = arg(args, 0, NULL);
	double *v;

	if (!x || !want(f, fr, x, x->v.kind == V_LIST && x->v.n > 0, name, "a list of numbers"))
		return POISON;
	v = ARENA_ARRAY(f->arena, x->v.n, double);
	for (int32_t i = 0; i < x->v.n; i++) {
		if (!val_is_number(x->v.at[i]) || x->v.at[i].mark) {
			front_error(f, fr, x->expr->span, "element %d is %s, expected a number", (int)i,
				    val_describe(f->arena, x->v.at[i]));
			return POISON;
		}
		v[i] = val_number(x->v.at[i]);
	}
	return tensor_vector(f, fr, e, v, x->v.n);
}

/* full(shape, value, dtype = "f32") */
static Val fn_full(Front *f, Frame *fr, const Expr *e, Actuals *args, const char *name)
{
	(void)name;
	return prim_apply(f, fr, e, OP_const, args);
}

/* ---- the table ---- */

static const Builtin builtins[] = {
	{ "sqrt", "sqrt(x)", 1, 1, math1 },
	{ "exp", "exp(x)", 1, 1, math1 },
	{ "log", "log(x)", 1, 1, math1 },
	{ "sin", "sin(x)", 1, 1, math1 },
	{ "cos", "cos(x)", 1, 1, math1 },
	{ "tanh", "tanh(x)", 1, 1, math1 },
	{ "pow", "pow(x, y)", 2, 2, fn_pow },
	{ "min", "min(x, y)", 1, IR_MAX_ARGS, fn_minmax },
	{ "max", "max(x, y)", 1, IR_MAX_ARGS, fn_minmax },
	{ "abs", "abs(x)", 1, 1, fn_abs },
	{ "floor", "floor(x)", 1, 1, fn_round },
	{ "ceil", "ceil(x)", 1, 1, fn_round },
	{ "round", "round(x)", 1, 1, fn_round },
	{ "normal", "normal(std) or normal(mean, std)", 0, 2, fn_normal },
	{ "uniform", "uniform(low, high)", 0, 2, fn_uniform },
	{ "constant", "constant(value)", 1, 1, fn_constant },
	{ "param", "param(name, shape, init = zeros, decay = none)", 2, 4, fn_param },
	{ "stat", "stat(name, shape, init = zeros)", 2, 3, fn_param },
	{ "rank", "rank(x)", 1, 1, fn_rank },
	{ "dim", "dim(x, axis)", 2, 2, fn_dim },
	{ "len", "len(list)", 1, 1, fn_len },
	{ "pair", "pair(x)", 1, 1, fn_pair },
	{ "split", "split(x, parts, axis = -1)", 2, 3, fn_split },
	{ "concat", "concat(x, y, ..., axis = 0) or concat(list, axis = 0)", 1, 2, fn_join },
	{ "stack", "stack(x, y, ..., axis = 0) or stack(list, axis = 0)", 1, IR_MAX_ARGS + 1, fn_join },
	{ "vector", "vector(list)", 1, 1, fn_vector },
	{ "full", "full(shape, value, dtype = \"f32\")", 2, 3, fn_full },
};

enum { NBUILTINS = sizeof builtins / sizeof *builtins };

int builtin_find(const char *name)
{
	for (int i = 0; i < NBUILTINS; i++)
		if (!strcmp(builtins[i].name, name))
			return i;
	return -1;
}

void builtin_suggest(Suggest *s)
{
	for (int i = 0; i < NBUILTINS; i++)
		suggest_try(s, builtins[i].name);
}

Val builtin_call(Front *f, Frame *fr, const Expr *e, int index)
{
	const Builtin *b = &builtins[index];
	OpCode op = prim_find(b->name);
	bool tensors = false;
	Actuals args;
	Val v;

	if (!eval_args(f, fr, e->call.args, &args) || args.poison)
		return POISON;
	for (int i = 0; i < args.n; i++)
		tensors |= args.at[i].v.kind == V_TENSOR;
	if (tensors && op != OP_COUNT && b->run != fn_split)
		return prim_apply(f, fr, e, op, &args);
	if (args.n < b->min || args.n > b->max) {
		if (front_error(f, fr, e->span, "%s takes %s%d argument%s, got %d", b->name,
				b->min == b->max  ? ""
				: args.n < b->min ? "at least "
						  : "at most ",
				args.n < b->min ? b->min : b->max,
				(args.n < b->min ? b->min : b->max) == 1 ? "" : "s", args.n))
			diag_hint(f->diag, "it is called as %s", b->usage);
		return POISON;
	}
	v = b->run(f, fr, e, &args, b->name);
	if (v.kind != V_POISON && !actuals_done(f, fr, &args, b->name, b->usage))
		return POISON;
	return v;
}

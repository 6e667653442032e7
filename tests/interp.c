/* The reference interpreter: the walk, leaves, element-wise ops, reductions and shape ops. See
 * interp.h. */
#include "interp.h"

#include <math.h>
#include <stdio.h>

typedef struct Run {
	InterpEnv *env;
	Arena *scratch;
	int64_t batch; /* samples of the block at hand */
	int64_t base;  /* samples before them */
} Run;

static double *data(const Value *v)
{
	return v->aux;
}

static int64_t elems(const Value *v)
{
	return type_elems(&v->type);
}

static void fail(Run *r, const char *what, const char *why)
{
	snprintf(r->env->error, sizeof r->env->error, "%s: %s", what, why);
}

/* ---- slots ---- */

InterpSlot *interp_find(InterpSlot *list, const char *name)
{
	while (list && strcmp(list->name, name))
		list = list->next;
	return list;
}

InterpSlot *interp_slot(InterpEnv *env, InterpSlot **list, const char *name, const Type *type)
{
	InterpSlot *s = interp_find(*list, name);
	if (s)
		return s;
	s = ARENA_NEW(env->arena, InterpSlot);
	s->name = arena_strdup(env->arena, name);
	s->type = *type;
	s->v = ARENA_ARRAY(env->arena, type_elems(type), double);
	s->next = *list;
	*list = s;
	return s;
}

/* ---- numbers ---- */

/* To `digits` binary digits, none below the unit of 2^least; to nearest even. */
static double round_digits(double v, int digits, int least, double largest)
{
	int exponent;
	if (!isfinite(v) || v == 0)
		return v;
	(void)frexp(v, &exponent);
	int unit = exponent - digits > least ? exponent - digits : least;
	double r = ldexp(nearbyint(ldexp(v, -unit)), unit);
	return fabs(r) > largest ? copysign(INFINITY, v) : copysign(r, v);
}

double interp_round(DType t, double v)
{
	if (t == DT_BF16)
		return round_digits((double)(float)v, 8, -133, 0x1.fep127);
	if (t == DT_F16)
		return round_digits((double)(float)v, 11, -24, 65504);
	switch ((int)t) {
	case DT_BOOL: return v != 0;
	case DT_U8: return (double)(uint8_t)(int64_t)v;
	case DT_U16: return (double)(uint16_t)(int64_t)v;
	case DT_I32: return (double)(int32_t)(int64_t)v;
	case DT_I64: return trunc(v);
	case DT_F32: return (double)(float)v;
	default: return v;
	}
}

double interp_value(DType t, uint16_t bits)
{
	bool half = t == DT_F16;
	int width = half ? 10 : 7, most = half ? 31 : 255, bias = half ? 15 : 127;
	int exponent = (bits & 0x7fff) >> width, fraction = bits & ((1 << width) - 1);
	double v = exponent == most ? (fraction ? NAN : INFINITY)
		   : exponent == 0
			   ? ldexp(fraction, 1 - bias - width)
			   : ldexp(fraction + (1 << width), exponent - bias - width);
	return bits & 0x8000 ? -v : v;
}

/* Numbers of one sign are in the order of their bits. */
uint16_t interp_bits(DType t, double v)
{
	uint32_t sign = signbit(v) ? 0x8000 : 0, low = 0, high = t == DT_F16 ? 0x7c00 : 0x7f80;
	if (isnan(v))
		return (uint16_t)(high | 1 << 6);
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (interp_value(t, (uint16_t)middle) < fabs(v))
			low = middle + 1;
		else
			high = middle;
	}
	return (uint16_t)(sign | low);
}

void interp_philox(uint64_t element, uint32_t stream, uint32_t step, uint64_t seed, uint32_t out[2])
{
	uint32_t c[4] = { (uint32_t)element, (uint32_t)(element >> 32), stream, step };
	uint32_t k[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
		uint32_t next[4] = { (uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
				     (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0 };
		memcpy(c, next, sizeof c);
		k[0] += 0x9E3779B9u;
		k[1] += 0xBB67AE85u;
	}
	out[0] = c[0];
	out[1] = c[1];
}

static double unit(uint32_t word)
{
	return (double)(word >> 8) * 0x1p-24;
}

/* ---- leaves ---- */

/* The numbers of element i: of the whole batch, so that a micro-batch gets its part of it. */
static void random_words(const Run *r, const Node *n, int64_t i, uint32_t w[2])
{
	const Type *t = &n->res[0]->type;
	int64_t first = t->batch ? r->base * (type_elems(t) / r->batch) : 0;
	interp_philox((uint64_t)(first + i), (uint32_t)ir_int(n, "stream"), (uint32_t)r->env->step,
		      r->env->seed, w);
}

static double random_element(const Run *r, const Node *n, int64_t i)
{
	uint32_t w[2];
	DType d = n->res[0]->type.dtype;
	if (dtype_bytes(d) == 2)
		d = DT_F32;
	random_words(r, n, i, w);
	if (n->op == OP_dropout_scale) {
		double p = ir_float(n, "p");
		return unit(w[0]) >= p ? 1 / (1 - p) : 0;
	}
	if (n->op == OP_random_uniform) {
		double lo = interp_round(d, ir_float(n, "lo")),
		       hi = interp_round(d, ir_float(n, "hi"));
		return lo + interp_round(d, interp_round(d, hi - lo) * unit(w[0]));
	}
	double u1 = (double)((w[0] >> 8) + 1) * 0x1p-24;
	double z = sqrt(-2 * log(u1)) * cos(6.28318530717958647692 * unit(w[1]));
	double std = interp_round(d, ir_float(n, "std")),
	       mean = interp_round(d, ir_float(n, "mean"));
	return mean + interp_round(d, std * interp_round(d, z));
}

static double iota_element(const Node *n, int64_t i)
{
	const Type *t = &n->res[0]->type;
	int64_t inner = 1, axis = ir_int(n, "axis");
	for (int64_t a = axis + 1; a < t->ndim; a++)
		inner *= t->dim[a];
	return (double)(i / inner % t->dim[axis]);
}

static bool run_input(Run *r, const Node *n)
{
	InterpSlot *s = interp_find(r->env->inputs, ir_str(n, "name"));
	const Type *t = &n->res[0]->type;
	int64_t each = type_elems(t) / r->batch, first = (r->base - r->env->base) * each;
	if (!s || s->type.dtype != t->dtype || first + type_elems(t) > type_elems(&s->type)) {
		fail(r, ir_str(n, "name"), "the input is missing or of another type");
		return false;
	}
	memcpy(data(n->res[0]), s->v + first, (size_t)type_elems(t) * sizeof(double));
	return true;
}

static bool run_leaf(Run *r, Node *n)
{
	Value *y = n->res[0];
	if (n->op == OP_input)
		return run_input(r, n);
	if (n->op == OP_var) { /* the storage itself, so that an assign can find it */
		y->aux = interp_slot(r->env, &r->env->vars, ir_str(n, "name"), &y->type)->v;
		return true;
	}
	for (int64_t i = 0; i < elems(y); i++) {
		double v = n->op == OP_const  ? ir_float(n, "value")
			   : n->op == OP_iota ? iota_element(n, i)
					      : random_element(r, n, i);
		data(y)[i] = interp_round(y->type.dtype, v);
	}
	return true;
}

/* ---- element-wise ---- */

static double sigmoid(double x)
{
	return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double gelu_tanh(double x)
{
	return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double interp_gelu_grad(double x)
{
	double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

static double schedule(const Node *n, double it)
{
	const char *kind = ir_str(n, "kind");
	double peak = ir_float(n, "peak"), least = ir_float(n, "min"), param = ir_float(n, "param");
	double w = (double)ir_int(n, "warmup"), total = (double)ir_int(n, "total");
	if (it < w)
		return peak * (it + 1) / (w + 1);
	double done = total > w ? fmin((it - w) / (total - w), 1) : 1;
	if (!strcmp(kind, "cosine"))
		return it > total ? least : least + (1 + cos(M_PI * done)) / 2 * (peak - least);
	if (!strcmp(kind, "linear"))
		return peak + (least - peak) * done;
	if (!strcmp(kind, "step"))
		return fmax(least, peak * pow(0.1, param > 0 ? floor((it - w) / param) : 0));
	if (!strcmp(kind, "wsd")) {
		double start = total * (1 - param);
		if (it <= start || param <= 0)
			return peak;
		return least + (1 - sqrt(fmin((it - start) / (total - start), 1))) * (peak - least);
	}
	return peak;
}

static double larger(double x, double y)
{
	return isnan(x) || x > y ? x : y;
}

static double smaller(double x, double y)
{
	return isnan(x) || x < y ? x : y;
}

/* One element; integers are truncated where the result is rounded. */
static double scalar_op(const Node *n, const double *x)
{
	switch ((int)n->op) {
	case OP_add: return x[0] + x[1];
	case OP_sub: return x[0] - x[1];
	case OP_mul: return x[0] * x[1];
	case OP_div: return x[0] / x[1];
	case OP_pow: return pow(x[0], x[1]);
	case OP_max: return larger(x[0], x[1]);
	case OP_min: return smaller(x[0], x[1]);
	case OP_neg: return -x[0];
	case OP_abs: return fabs(x[0]);
	case OP_sign: return x[0] > 0 ? 1 : x[0] < 0 ? -1 : x[0];
	case OP_exp: return exp(x[0]);
	case OP_log: return log(x[0]);
	case OP_sqrt: return sqrt(x[0]);
	case OP_rsqrt:
		return 1 / interp_round(n->res[0]->type.dtype == DT_F64 ? DT_F64 : DT_F32,
					sqrt(x[0]));
	case OP_sin: return sin(x[0]);
	case OP_cos: return cos(x[0]);
	case OP_tanh: return tanh(x[0]);
	case OP_sigmoid: return sigmoid(x[0]);
	case OP_erf: return erf(x[0]);
	case OP_relu: return larger(x[0], 0);
	case OP_gelu: return gelu_tanh(x[0]);
	case OP_gelu_grad: return interp_gelu_grad(x[0]);
	case OP_gelu_erf: return 0.5 * x[0] * (1 + erf(x[0] * M_SQRT1_2));
	case OP_silu: return x[0] * sigmoid(x[0]);
	case OP_softplus: return fmax(x[0], 0) + log1p(exp(-fabs(x[0])));
	case OP_leaky_relu: return x[0] > 0 ? x[0] : x[0] * ir_float(n, "slope");
	case OP_floor: return floor(x[0]);
	case OP_stop_gradient:
	case OP_cast_like:
	case OP_cast: return x[0];
	case OP_eq: return x[0] == x[1];
	case OP_ne: return x[0] != x[1];
	case OP_lt: return x[0] < x[1];
	case OP_le: return x[0] <= x[1];
	case OP_gt: return x[0] > x[1];
	case OP_ge: return x[0] >= x[1];
	case OP_and: return x[0] != 0 && x[1] != 0;
	case OP_or: return x[0] != 0 || x[1] != 0;
	case OP_not: return x[0] == 0;
	case OP_is_finite: return isfinite(x[0]);
	case OP_select: return x[0] != 0 ? x[1] : x[2];
	case OP_schedule: return schedule(n, x[0]);
	default: return NAN;
	}
}

/* The element of x that NumPy's broadcasting puts beside element i of y. */
static int64_t broadcast_index(const Type *x, const Type *y, int64_t i)
{
	int64_t at = 0, stride = 1;
	for (int a = y->ndim - 1; a >= 0; a--) {
		int b = a - (y->ndim - x->ndim);
		if (b >= 0) {
			at += x->dim[b] == 1 ? 0 : i % y->dim[a] * stride;
			stride *= x->dim[b];
		}
		i /= y->dim[a];
	}
	return at;
}

static void run_ewise(const Node *n)
{
	Value *y = n->res[0];
	int first = n->op == OP_select;
	DType compute = n->arg[first]->type.dtype; /* operands meet in their promotion */
	for (int k = first + 1; k < n->nargs; k++)
		compute = dtype_promote(compute, n->arg[k]->type.dtype);
	for (int64_t i = 0; i < elems(y); i++) {
		double x[3];
		for (int k = 0; k < n->nargs; k++) {
			x[k] = data(n->arg[k])[broadcast_index(&n->arg[k]->type, &y->type, i)];
			if (k >= first && n->op != OP_cast && n->op != OP_cast_like &&
			    n->op != OP_schedule)
				x[k] = interp_round(compute, x[k]);
		}
		data(y)[i] = interp_round(y->type.dtype, scalar_op(n, x));
	}
}

/* ---- reductions ---- */

/* The element of the result that element i of x goes to. */
static int64_t reduced_index(const Node *n, int64_t i)
{
	const Type *x = &n->arg[0]->type;
	const IntList *axes = ir_ints(n, "axes");
	int64_t at = 0, stride = 1;
	for (int a = x->ndim - 1, k = axes->n - 1; a >= 0; a--) {
		if (k >= 0 && axes->v[k] == a) {
			k--;
		} else {
			at += i % x->dim[a] * stride;
			stride *= x->dim[a];
		}
		i /= x->dim[a];
	}
	return at;
}

static void run_reduce(const Run *r, const Node *n)
{
	const Value *x = n->arg[0];
	Value *y = n->res[0];
	int64_t count = elems(x) / elems(y);
	int64_t *seen = ARENA_ARRAY(r->scratch, elems(y), int64_t);
	double *best = ARENA_ARRAY(r->scratch, elems(y), double);
	for (int64_t i = 0; i < elems(x); i++) {
		int64_t at = reduced_index(n, i);
		double v = data(x)[i], *to = &data(y)[at];
		if (n->op == OP_sum || n->op == OP_mean) {
			*to += v;
		} else if (n->op == OP_reduce_max) {
			*to = !seen[at] ? v : isnan(*to) || *to > v ? *to : v;
		} else if (!seen[at] ||
			   v > best[at]) { /* argmax: elements come in order of the axis */
			best[at] = v;
			*to = (double)seen[at];
		}
		seen[at]++;
	}
	for (int64_t i = 0; i < elems(y); i++)
		data(y)[i] = interp_round(
			y->type.dtype, n->op == OP_mean ? data(y)[i] / (double)count : data(y)[i]);
}

/* ---- shape ---- */

static void index_of(const Type *t, int64_t i, int64_t *at)
{
	for (int a = t->ndim - 1; a >= 0; a--) {
		at[a] = i % t->dim[a];
		i /= t->dim[a];
	}
}

static int64_t flat(const Type *t, const int64_t *at)
{
	int64_t i = 0;
	for (int a = 0; a < t->ndim; a++)
		i = i * t->dim[a] + at[a];
	return i;
}

/* The element of which operand element i of the result is; -1: none, a zero. */
static int64_t source_of(const Node *n, int64_t i, int *operand)
{
	const Type *y = &n->res[0]->type, *x = &n->arg[0]->type;
	int64_t at[IR_MAX_DIMS], from[IR_MAX_DIMS], axis;
	*operand = 0;
	switch ((int)n->op) {
	case OP_broadcast: return broadcast_index(x, y, i);
	case OP_transpose:
		index_of(y, i, at);
		for (int a = 0; a < y->ndim; a++)
			from[ir_ints(n, "perm")->v[a]] = at[a];
		return flat(x, from);
	case OP_slice:
		index_of(y, i, at);
		at[ir_int(n, "axis")] += ir_int(n, "start");
		return flat(x, at);
	case OP_pad:
		index_of(y, i, at);
		axis = ir_int(n, "axis");
		at[axis] -= ir_int(n, "before");
		return at[axis] < 0 || at[axis] >= x->dim[axis] ? -1 : flat(x, at);
	case OP_concat:
		index_of(y, i, at);
		axis = ir_int(n, "axis");
		while (at[axis] >= n->arg[*operand]->type.dim[axis])
			at[axis] -= n->arg[(*operand)++]->type.dim[axis];
		return flat(&n->arg[*operand]->type, at);
	default: /* reshape, batch_sum: the same elements */ return i;
	}
}

static void run_shape(const Node *n)
{
	Value *y = n->res[0];
	for (int64_t i = 0; i < elems(y); i++) {
		int operand;
		int64_t from = source_of(n, i, &operand);
		data(y)[i] = from < 0 ? 0 : data(n->arg[operand])[from];
	}
}

/* ---- effects and regions ---- */

static bool run_block(Run *r, const Block *b);

static void run_effect(Run *r, const Node *n)
{
	const Value *x = n->arg[n->op == OP_assign];
	size_t bytes = (size_t)elems(x) * sizeof(double);
	if (n->op == OP_assign)
		memmove(n->arg[0]->aux, x->aux, bytes);
	else
		memcpy(interp_slot(r->env, &r->env->outputs, ir_str(n, "name"), &x->type)->v,
		       x->aux, bytes);
}

/* Host memory and the device's are arrays of their own; what a copy is to bring is there at its end, and NaN until then. */
static void run_move(const Node *n)
{
	if (n->op == OP_fetch)
		for (int64_t i = 0; i < elems(n->res[0]); i++)
			data(n->res[0])[i] = NAN;
	else if (n->op == OP_sent)
		memcpy(data(n->arg[1]), data(n->arg[0]), (size_t)elems(n->arg[0]) * sizeof(double));
	else if (n->op == OP_fetched)
		memcpy(data(n->arg[0]), data(n->arg[0]->def->arg[0]), (size_t)elems(n->arg[0]) * sizeof(double));
}

static const Node *yield_of(const Block *b)
{
	return b->last && b->last->op == OP_yield ? b->last : NULL;
}

static bool run_region(Run *r, Node *n)
{
	const Node *yield = n->body ? yield_of(n->body) : NULL;
	if (!yield || yield->nargs < n->nres || n->body->nparam != n->nargs) {
		fail(r, ir_ops[n->op].name, "no sound body");
		return false;
	}
	Run inner = *r;
	bool loop = n->op == OP_loop;
	int64_t trips = loop ? ir_int(n, "trips") : 1, first = loop ? ir_int(n, "base") : 0;
	inner.batch = loop ? ir_int(n, "batch") : r->batch;
	for (int i = 0; i < n->nargs; i++)
		n->body->param[i]->aux = n->arg[i]->aux;
	for (int64_t trip = 0; trip < trips; trip++) {
		inner.base = r->base + first + trip * inner.batch;
		if (!run_block(&inner, n->body))
			return false;
		for (int i = 0; i < n->nres && loop; i++)
			n->body->param[i]->aux = yield->arg[i]->aux;
	}
	for (int i = 0; i < n->nres; i++)
		n->res[i]->aux = yield->arg[i]->aux;
	return true;
}

static bool run_node(Run *r, Node *n)
{
	for (int i = 0; i < n->nres; i++)
		n->res[i]->aux = ARENA_ARRAY(r->scratch, elems(n->res[i]), double);
	switch ((int)ir_ops[n->op].kind) {
	case K_LEAF: return run_leaf(r, n);
	case K_EWISE: run_ewise(n); return true;
	case K_REDUCE: run_reduce(r, n); return true;
	case K_SHAPE: run_shape(n); return true;
	case K_EFFECT: run_effect(r, n); return true;
	case K_MOVE: run_move(n); return true;
	case K_REGION: return n->op == OP_yield || run_region(r, n);
	case K_MATRIX:
	case K_KERNEL:
		if (interp_kernel(n, r->env->magnitudes))
			return true;
		break;
	default: break;
	}
	fail(r, ir_ops[n->op].name, "not an op to be run");
	return false;
}

static bool run_block(Run *r, const Block *b)
{
	for (Node *n = b->first; n; n = n->next)
		if (!run_node(r, n))
			return false;
	return true;
}

bool interp_func(const Func *f, InterpEnv *env)
{
	Run r = { .env = env, .scratch = arena_new(), .batch = f->batch, .base = env->base };
	env->error[0] = 0;
	bool good = run_block(&r, f->body);
	arena_free(r.scratch);
	return good;
}

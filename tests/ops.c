/* Walks the op table: every example of every row is built, typed, printed, read back, run and
 * differentiated.
 *
 * An example ("f64[2,3], f64[3] {axis = 1} -> f64[2]") becomes a module whose step computes one
 * number from the op:
 *
 *     loss = sum over the results r of sum(r * w), w random
 *
 * The gradient that the pass autodiff gives for each float operand is held against central
 * differences of fourth order, both computed in f64 by the reference interpreter. Over 16-bit
 * numbers autocast gives the op what its precision class says. A new row is tested without anyone
 * writing a test. */
#include "interp.h"
#include "passes/accumulate.h"
#include "passes/expand.h"

#include <math.h>
#include <stdlib.h>

enum { TEXT_MAX = 1 << 16 };

typedef struct Example {
	OpCode op;
	const char *text;
	int nargs, nres;
	Type arg[8], res[4];
	Attr attr[8];
} Example;

typedef struct Test {
	Arena *arena;
	Diag *diag;
	FILE *sink;
	int passed, failed;
	char why[512];
} Test;

static bool wrong(Test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(Test *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	(void)vsnprintf(t->why, sizeof t->why, fmt, ap);
	va_end(ap);
	return false;
}

/* ---- reading an example ---- */

static void skip_space(const char **s)
{
	while (**s == ' ' || **s == ',')
		(*s)++;
}

static bool read_type(const char **s, Type *t)
{
	size_t n = strcspn(*s, "[");
	*t = type_scalar(dtype_from_name(*s, n));
	*s += n;
	if (t->dtype == DT_NONE || *(*s)++ != '[')
		return false;
	while (**s && **s != ']') {
		char *end;
		t->dim[t->ndim++] = strtoll(*s, &end, 10);
		*s = end + (*end == ',');
	}
	return *(*s)++ == ']';
}

static bool read_value(const char **s, AttrKind kind, Attr *a, Arena *arena)
{
	char *end = NULL;
	if (kind == A_STR) {
		size_t n = strcspn(*s + 1, "\"");
		a->s = arena_strndup(arena, *s + 1, n);
		*s += n + 2;
	} else if (kind == A_INTS) {
		for ((*s)++; **s != ']'; *s = end + (*end == ','))
			a->ints.v[a->ints.n++] = strtoll(*s, &end, 10);
		(*s)++;
	} else if (kind == A_BOOL) {
		a->i = **s == 't';
		*s += a->i ? 4 : 5;
	} else {
		if (kind == A_FLOAT)
			a->f = strtod(*s, &end);
		else
			a->i = strtoll(*s, &end, 10);
		*s = end;
	}
	return true;
}

static bool read_attrs(const char **s, Example *e, Arena *arena)
{
	const AttrSpec *spec = ir_ops[e->op].attrs;
	for ((*s)++; **s && **s != '}'; skip_space(s)) {
		size_t n = strcspn(*s, " =");
		int i = 0;
		while (i < 8 && spec[i].kind != A_END &&
		       (strlen(spec[i].name) != n || memcmp(spec[i].name, *s, n)))
			i++;
		if (i == 8 || spec[i].kind == A_END)
			return false;
		*s += n;
		*s += strspn(*s, " =");
		memset(&e->attr[i], 0, sizeof e->attr[i]);
		read_value(s, spec[i].kind, &e->attr[i], arena);
	}
	return *(*s)++ == '}';
}

static bool read_example(Test *t, OpCode op, const char *text, Example *e)
{
	const AttrSpec *spec = ir_ops[op].attrs;
	*e = (Example){ .op = op, .text = text };
	for (int i = 0; i < 8 && spec[i].kind != A_END; i++) {
		if (spec[i].kind == A_FLOAT)
			e->attr[i].f = spec[i].dflt;
		else if (spec[i].kind == A_INT || spec[i].kind == A_BOOL)
			e->attr[i].i = (int64_t)spec[i].dflt;
	}
	bool results = false, good = true;
	for (const char *s = text; good && *s; skip_space(&s)) {
		if (s[0] == '-' && s[1] == '>') {
			results = true;
			s += 2;
		} else if (*s == '{') {
			good = read_attrs(&s, e, t->arena);
		} else {
			good = e->nargs < 8 && e->nres < 4 &&
			       read_type(&s, results ? &e->res[e->nres++] : &e->arg[e->nargs++]);
		}
	}
	return good || wrong(t, "the example cannot be read");
}

/* ---- the module of an example ---- */

static bool is_float(const Value *v)
{
	return dtype_is_float(v->type.dtype);
}

/* func step: variables x0.., the op, and the loss over its float results with weights w0.. */
static Module *build(Test *t, const Example *e, Node **made)
{
	Module *m = ir_module(t->arena, t->diag, "op", 1);
	Func *step = ir_func(m, "step");
	Builder b = ir_builder(m, step->body);
	Value *args[8], *loss = NULL;
	for (int i = 0; i < e->nargs; i++) {
		VarRole role = dtype_is_float(e->arg[i].dtype) ? VAR_PARAM : VAR_STAT;
		args[i] = ir_var(&b,
				 ir_var_new(m, arena_printf(t->arena, "x%d", i), e->arg[i], role));
	}
	bool typed = (ir_ops[e->op].flags & OPF_TYPED) != 0;
	Node *n = ir_node(&b, e->op, e->nargs, args, e->attr, typed ? e->res : NULL);
	*made = n;
	for (int i = 0; i < n->nres && !b.failed; i++) {
		Value *r = n->res[i];
		if (n->op == OP_attention && i == 1)
			continue; /* no gradient flows from the row sums */
		if (!is_float(r))
			r = ir_cast(&b, r, DT_F64);
		Var *w = ir_var_new(m, arena_printf(t->arena, "w%d", i), r->type, VAR_STAT);
		Value *sum = ir_reduce_all(&b, OP_sum, ir_binary(&b, OP_mul, r, ir_var(&b, w)));
		sum = ir_cast(&b, sum, DT_F64);
		loss = loss ? ir_binary(&b, OP_add, loss, sum) : sum;
	}
	if (b.failed || !loss)
		return NULL;
	ir_output(&b, "loss", loss);
	return m;
}

/* ---- text ---- */

static char *print_text(Test *t, const Module *m)
{
	char *text = arena_alloc(t->arena, TEXT_MAX);
	FILE *out = fmemopen(text, TEXT_MAX - 1, "w");
	ir_print_module(out, m);
	fclose(out);
	return text;
}

static bool check_text(Test *t, const Module *m)
{
	const char *once = print_text(t, m);
	Module *again = ir_parse(t->arena, t->diag, "op.ir", once, strlen(once));
	if (!again)
		return wrong(t, "its text cannot be read back:\n%s", once);
	if (!ir_verify(again, "text", stderr))
		return wrong(t, "its text reads back unsound");
	return !strcmp(once, print_text(t, again)) ||
	       wrong(t, "its text reads back as another one");
}

/* ---- numbers ---- */

/* A fixed sequence of integers that looks random. */
static uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

/* All float elements of the module get values of one permuted grid, so that no two are closer than
 * a few steps of the differences: maxima and kinks stay on their side. `mixed`: of both signs. */
static void fill(Test *t, InterpEnv *env, const Module *m, bool mixed)
{
	int64_t total = 0, at = 0;
	uint64_t state = 7;
	for (const Var *v = m->vars; v; v = v->next)
		total += type_elems(&v->type);
	int64_t *order = ARENA_ARRAY(t->arena, total, int64_t);
	for (int64_t i = 0; i < total; i++) {
		int64_t j = (int64_t)(next_random(&state) % (uint64_t)(i + 1));
		order[i] = order[j];
		order[j] = i;
	}
	for (const Var *v = m->vars; v; v = v->next) {
		InterpSlot *s = interp_slot(env, &env->vars, v->name, &v->type);
		for (int64_t i = 0; i < type_elems(&v->type); i++) {
			double u = ((double)order[at++] + 0.5) / (double)total;
			if (!dtype_is_float(v->type.dtype))
				s->v[i] = (double)(order[at - 1] %
						   (v->type.dtype == DT_BOOL ? 2 : 4));
			else
				s->v[i] = mixed ? -1.7 + 3.4 * u : 0.3 + 1.7 * u;
		}
	}
}

static double loss_of(const Func *f, InterpEnv *env)
{
	if (!interp_func(f, env))
		return NAN;
	return interp_find(env->outputs, "loss")->v[0];
}

/* (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h */
static double difference(const Func *f, InterpEnv *env, double *x)
{
	const double h = 1e-3, at[] = { 1, -1, 2, -2 }, weight[] = { 8, -8, -1, 1 };
	double keep = *x, sum = 0;
	for (int i = 0; i < 4; i++) {
		*x = keep + at[i] * h;
		sum += weight[i] * loss_of(f, env);
	}
	*x = keep;
	return sum / (12 * h);
}

static bool check_gradient(Test *t, const Func *forward, const Func *step, InterpEnv *env,
			   const Var *v)
{
	InterpEnv back = *env;
	back.outputs = NULL;
	if (!interp_func(step, &back))
		return wrong(t, "the backward pass does not run: %s", back.error);
	const InterpSlot *g = interp_find(back.outputs, arena_printf(t->arena, "grad:%s", v->name));
	double scale = 1;
	for (int64_t i = 0; g && i < type_elems(&v->type); i++)
		scale = fmax(scale, fabs(g->v[i]));
	double *x = interp_find(env->vars, v->name)->v;
	for (int64_t i = 0; i < type_elems(&v->type); i++) {
		double expected = difference(forward, env, &x[i]);
		double got = g ? g->v[i] : 0; /* of what the loss does not depend on */
		if (!(fabs(got - expected) <= 1e-6 * scale))
			return wrong(t, "gradient of %s, element %lld: expected %.9g, got %.9g",
				     v->name, (long long)i, expected, got);
	}
	return true;
}

/* Positive operands must work for every op; operands of both signs are tried as well, where the op
 * allows them. */
static bool check_numbers(Test *t, const Module *m, const Func *forward, const Func *step)
{
	for (int mixed = 0; mixed < 2; mixed++) {
		InterpEnv env = { .arena = t->arena, .seed = 11, .step = 3 };
		fill(t, &env, m, mixed != 0);
		double loss = loss_of(forward, &env);
		if (env.error[0])
			return wrong(t, "it does not run: %s", env.error);
		if (!isfinite(loss) && mixed)
			continue;
		if (!isfinite(loss))
			return wrong(t, "the result is not finite");
		for (const Var *v = m->vars; v && step; v = v->next)
			if (v->role == VAR_PARAM && !check_gradient(t, forward, step, &env, v))
				return false;
	}
	return true;
}

/* ---- one example ---- */

/* Casting to an integer or to fewer bits makes steps that differences cannot see through. */
static bool is_smooth(const Module *m, const Node *n)
{
	for (const Var *v = m->vars; v; v = v->next)
		if (v->role == VAR_PARAM && v->type.dtype != DT_F64)
			return false;
	for (int i = 0; i < n->nres; i++)
		if (n->res[i]->type.dtype != DT_F64)
			return false;
	return true;
}

static bool has_gradient(const Node *n)
{
	return ir_ops[n->op].grad || ir_ops[n->op].kind == K_MACRO;
}

/* ---- precision ---- */

static Type in_f32(Type t)
{
	t.dtype = dtype_is_float(t.dtype) ? DT_F32 : t.dtype;
	return t;
}

/* The variable x, in the type of a product: f32 until autocast has narrowed that. */
static Value *narrowed(Builder *b, Value *x)
{
	Value *one = ir_const(b, type_make(DT_F32, 2, (int64_t[]){ 1, 1 }), 1);
	Value *product = ir_matmul(b, one, one, false, false);
	product = ir_broadcast(b, ir_reshape(b, product, type_scalar(DT_F32)), x->type);
	return ir_binary(b, OP_cast_like, x, product);
}

/* The example over f32 numbers that autocast narrows, but for those that the row says stay f32. */
static Module *build_narrow(Test *t, const Example *e, Node **made)
{
	Module *m = ir_module(t->arena, t->diag, "op", 1);
	Builder b = ir_builder(m, ir_func(m, "step")->body);
	Value *args[8];
	Type res[4];
	for (int i = 0; i < e->nargs; i++) {
		Type type = in_f32(e->arg[i]);
		args[i] = ir_var(
			&b, ir_var_new(m, arena_printf(t->arena, "x%d", i), type, VAR_STAT));
		if (type.dtype == DT_F32 && !(ir_ops[e->op].f32_args >> i & 1))
			args[i] = narrowed(&b, args[i]);
	}
	for (int i = 0; i < e->nres; i++)
		res[i] = in_f32(e->res[i]);
	bool typed = (ir_ops[e->op].flags & OPF_TYPED) != 0;
	bool f32 = ir_ops[e->op].kind == K_MACRO && ir_ops[e->op].prec == P_F32;
	b.flags = f32 ? NF_F32 : 0; /* as expand does */
	*made = ir_node(&b, e->op, e->nargs, args, e->attr, typed ? res : NULL);
	b.flags = 0;
	for (int i = 0; i < (*made)->nres && !b.failed; i++)
		ir_output(&b, arena_printf(t->arena, "r%d", i), (*made)->res[i]);
	return b.failed ? NULL : m;
}

/* After autocast n's operands, and its result, are of its class: all operands were 16-bit. */
static bool check_class(Test *t, const Node *n, Precision prec)
{
	DType want = prec == P_F32 ? DT_F32 : DT_BF16;
	for (int i = 0; i < n->nargs; i++) {
		DType d = n->arg[i]->type.dtype;
		bool wide = prec != P_F32 && (ir_ops[n->op].f32_args >> i & 1);
		if (dtype_is_float(d) && d != (wide ? DT_F32 : want))
			return wrong(t, "operand %d is %s under bf16", i, dtype_name(d));
	}
	if (n->nargs && n->nres && dtype_is_float(n->res[0]->type.dtype) &&
	    n->res[0]->type.dtype != want && n->op != OP_embedding_grad && !ir_acc(n))
		return wrong(t, "the result is %s under bf16", dtype_name(n->res[0]->type.dtype));
	return true;
}

/* Element-wise ops of a macro of class f32 give f32, whatever they read. */
static bool check_inside(Test *t, const Node *n)
{
	OpKind k = ir_ops[n->op].kind;
	DType d = n->nres ? n->res[0]->type.dtype : DT_NONE;
	bool low = dtype_is_float(d) && d != DT_F32;
	return !low || (k != K_EWISE && k != K_REDUCE) || n->op == OP_cast ||
	       wrong(t, "%s inside of it gives %s under bf16", ir_ops[n->op].name, dtype_name(d));
}

static bool check_precision(Test *t, const Example *e)
{
	Node *n;
	const OpInfo *o = &ir_ops[e->op];
	Module *m = build_narrow(t, e, &n);
	PassCtx cx = { .arena = t->arena, .diag = t->diag, .dump = t->sink, .precision = "bf16" };
	if (!m)
		return wrong(t, "the type rule refuses it in f32");
	Func *step = ir_find_func(m, "step");
	if (!expand_func(step, true))
		return wrong(t, "it does not expand in f32");
	if (pass_autocast(m, &cx) == PASS_FAILED)
		return wrong(t, "autocast fails");
	if (!ir_verify(m, "autocast", stderr))
		return wrong(t, "it is not sound after autocast");
	for (Node *x = step->body->first; x; x = x->next)
		if (o->kind == K_MACRO && o->prec == P_F32 ? !check_inside(t, x)
		    : x->op == e->op && o->prec != P_NONE  ? !check_class(t, x, o->prec)
							   : false)
			return false;
	return check_text(t, m);
}

static bool check_example(Test *t, const Example *e)
{
	Node *n;
	Module *m = build(t, e, &n);
	if (!m)
		return wrong(t, "the type rule refuses it");
	if (!ir_verify(m, "ops", stderr))
		return wrong(t, "it is not sound");
	if (!check_text(t, m) || !check_precision(t, e))
		return false;
	Func *step = ir_find_func(m, "step");
	bool differentiable = has_gradient(n) && is_smooth(m, n);
	if (!expand_func(step, true))
		return wrong(t, "it does not expand");
	Func *forward = ir_clone_func(m, step, "before", 1);
	PassCtx cx = { .arena = t->arena, .diag = t->diag, .dump = t->sink };
	if (differentiable && pass_autodiff(m, &cx) == PASS_FAILED)
		return wrong(t, "autodiff fails");
	if (!ir_verify(m, "autodiff", stderr))
		return wrong(t, "it is not sound after autodiff");
	return check_numbers(t, m, forward, differentiable ? step : NULL);
}

/* The i-th of examples separated by " ; "; NULL behind the last. */
static const char *example_text(Test *t, OpCode op, int i)
{
	const char *s = ir_ops[op].ex;
	for (; i > 0 && s; i--) {
		s = strstr(s, " ; ");
		s = s ? s + 3 : NULL;
	}
	if (!s || !*s)
		return NULL;
	const char *end = strstr(s, " ; ");
	return end ? arena_strndup(t->arena, s, (size_t)(end - s)) : s;
}

int main(void)
{
	Test t = { .arena = arena_new(), .sink = stderr };
	const char *bad = op_table_check();
	if (bad) {
		printf("FAIL %s\n0 passed, 1 failed\n", bad);
		return 1;
	}
	t.diag = diag_new(t.arena, stderr, 0);
	for (int op = 0; op < OP_COUNT; op++) {
		const char *text;
		for (int i = 0; (text = example_text(&t, (OpCode)op, i)) != NULL; i++) {
			Example e;
			if (read_example(&t, (OpCode)op, text, &e) && check_example(&t, &e)) {
				t.passed++;
				continue;
			}
			t.failed++;
			printf("FAIL %s %s: %s\n", ir_ops[op].name, text, t.why);
		}
	}
	printf("%d passed, %d failed\n", t.passed, t.failed);
	arena_free(t.arena);
	return t.failed != 0;
}

/* Prints fused kernels as C for the CPU.
 *
 * Before:  %b0 = add %a0, %a1   %b1 = relu %b0     (f32[64,128], f32[128])
 * After:   for (o...) {                            rows, in parallel where it pays
 *                  for (j...) {                    vectorised by the C compiler
 *                          const float v0 = a0[128 * i0 + j], v1 = a1[j];
 *                          const float v2 = v0 + v1, v3 = dl_max_f32(v2, 0.0f);
 *                          r0[128 * i0 + j] = v3;
 *
 * Elements of a reduction go to a block buffer, which kernel.h's lanes add up in an order of their
 * own; so how the C compiler vectorises the loop has no bearing on the result. One multiplication
 * or addition of the source is one rounding (no contraction). Operands and results may share
 * storage element by element (fuse_may_alias). */
#include "cpu.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

enum { MAP_BLOCK = 4096, COLUMN_BLOCK = 1024 };
static const double parallel_cost = 60000; /* element operations below which one thread is faster */

typedef struct Printer {
	Arena *a;
	FILE *out;
	const Node *fused;
	const Loop *l;
	int64_t micro;
	int64_t *stream; /* of the random ops, as off[] has them */
	int indent;
} Printer;

int cpu_own_numbers(const Node *n) { return n->nargs + n->nres + (n->work_bytes > 0); }

int cpu_streams(Arena *a, const Node *n, int64_t **stream)
{
	VEC(int64_t) found = { 0 };
	for (const Node *x = n->body ? n->body->first : NULL; x; x = x->next) {
		if (!(ir_ops[x->op].flags & OPF_RANDOM))
			continue;
		size_t i = 0;
		while (i < found.len && found.at[i] != ir_int(x, "stream"))
			i++;
		if (i == found.len)
			vec_push(a, &found, ir_int(x, "stream"));
	}
	*stream = found.at;
	return (int)found.len;
}

const char *cpu_ctype(DType t)
{
	static const char *const name[DT_COUNT] = { "void",    "uint8_t", "uint8_t",  "uint16_t",
						    "int32_t", "int64_t", "uint16_t", "uint16_t",
						    "float",   "double" };
	return name[t];
}

const char *cpu_vtype(DType t)
{
	static const char *const name[DT_COUNT] = { "void",    "int32_t", "uint8_t", "uint16_t",
						    "int32_t", "int64_t", "float",   "float",
						    "float",   "double" };
	return name[t];
}

/* The suffix of kernel.h's functions. */
static const char *suffix(DType t)
{
	static const char *const name[DT_COUNT] = { "none", "i32", "i32", "i32", "i32",
						    "i64",  "f32", "f32", "f32", "f64" };
	return name[t];
}

static const char *reducer_type(DType t)
{
	return t == DT_I64 ? "int64_t" : dtype_is_float(t) ? cpu_vtype(t) : "int32_t";
}

const char *cpu_literal(Arena *a, DType t, double v)
{
	if (!dtype_is_float(t)) {
		if (t == DT_BOOL)
			return v != 0 ? "1" : "0";
		return arena_printf(a, "%lld%s", (long long)v, t == DT_I64 ? "LL" : "");
	}
	if (isnan(v))
		return "NAN";
	if (isinf(v))
		return v > 0 ? "INFINITY" : "(-INFINITY)";
	const char *s;
	if (t == DT_F64) {
		s = arena_printf(a, "%.17g", v);
	} else {
		s = arena_printf(a, "%.9g", (double)(float)v);
		if (strtof(s, NULL) != (float)v)
			s = arena_printf(a, "%a", (double)(float)v);
	}
	bool point = strpbrk(s, ".ep") != NULL;
	return arena_printf(a, v < 0 ? "(%s%s%s)" : "%s%s%s", s, point ? "" : ".0",
			    t == DT_F64 ? "" : "f");
}

static bool is_narrow(DType t) { return t == DT_F16 || t == DT_BF16; }

/* Values of 16-bit types are held as f32, rounded to their type. */
static const char *rounded(Arena *a, DType t, const char *s)
{
	return is_narrow(t) ? arena_printf(a, "dl_round_%s(%s)", dtype_name(t), s) : s;
}

/* ---- lines, indices ----------------------------------------------------------------------------
 */

static void line(Printer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(Printer *p, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	size_t n = strlen(fmt);
	if (n && fmt[0] == '}')
		p->indent--;
	for (int i = 0; i < p->indent; i++)
		fputc('\t', p->out);
	vfprintf(p->out, fmt, ap);
	fputc('\n', p->out);
	if (n && fmt[n - 1] == '{')
		p->indent++;
	va_end(ap);
}

static const char *dim_name(const Printer *p, int d)
{
	bool inner = d >= p->l->nouter + p->l->nmid;
	return inner && !p->l->flat ? "j" : arena_printf(p->a, "i%d", d);
}

static const char *index_text(const Printer *p, const LoopIndex *x)
{
	const char *s = "";
	for (int d = 0; d < p->l->ndims; d++) {
		if (x->coef[d] == 0)
			continue;
		const char *plus = *s ? " + " : "", *name = dim_name(p, d);
		s = x->coef[d] == 1 ? arena_printf(p->a, "%s%s%s", s, plus, name)
				    : arena_printf(p->a, "%s%s%lld * %s", s, plus,
						   (long long)x->coef[d], name);
	}
	if (x->base != 0 || !*s)
		s = arena_printf(p->a, "%s%s%lld", s, *s ? " + " : "", (long long)x->base);
	return s;
}

/* "" without guards. */
static const char *guard_text(const Printer *p, const LoopIndex *x)
{
	const char *s = "";
	for (int g = 0; g < x->nguards; g++) {
		const LoopGuard *k = &x->guard[g];
		const char *name = dim_name(p, k->dim), *and = *s ? " & " : "";
		int64_t extent = p->l->extent[k->dim];
		if (k->lo > 0 && k->hi < extent)
			s = arena_printf(p->a, "%s%s(%s >= %lld) & (%s < %lld)", s, and, name,
					 (long long)k->lo, name, (long long)k->hi);
		else if (k->lo > 0)
			s = arena_printf(p->a, "%s%s(%s >= %lld)", s, and, name, (long long)k->lo);
		else if (k->hi < extent)
			s = arena_printf(p->a, "%s%s(%s < %lld)", s, and, name, (long long)k->hi);
	}
	return s;
}

/* Declares the indices of dimensions [first, first+n) of a flattened variable. */
static void decode(Printer *p, const char *var, int first, int n)
{
	int64_t below = 1;
	for (int d = first + n - 1; d >= first; d--) {
		const char *t = strcmp(var, "j") == 0 ? "int" : "int64_t";
		const char *mod =
			d > first ? arena_printf(p->a, " %% %lld", (long long)p->l->extent[d]) : "";
		if (below == 1)
			line(p, "const %s i%d = %s%s;", t, d, var, mod);
		else
			line(p, "const %s i%d = %s / %lld%s;", t, d, var, (long long)below, mod);
		below *= p->l->extent[d];
	}
}

/* ---- expressions ---- */

/* The type in which an element-wise op computes: its result's, or for a comparison its operands'.
 */
static DType compute_type(const Node *n)
{
	DType t = n->res[0]->type.dtype;
	if (t != DT_BOOL || n->op == OP_select)
		return t;
	t = n->arg[0]->type.dtype;
	for (int i = 1; i < n->nargs; i++)
		t = dtype_promote(t, n->arg[i]->type.dtype);
	return t;
}

static const char *arg_text(const Printer *p, const LoopInstr *x, int k, DType compute)
{
	const LoopInstr *y = &p->l->instr[x->arg[k]];
	bool as_is = strcmp(cpu_vtype(y->dtype), cpu_vtype(compute)) == 0 ||
		     (x->node->op == OP_select && k == 0) || x->node->op == OP_schedule;
	if (as_is)
		return arena_printf(p->a, "v%d", x->arg[k]);
	const char *s = arena_printf(p->a, "(%s)v%d", cpu_vtype(compute), x->arg[k]);
	return dtype_is_float(y->dtype) ? s : rounded(p->a, compute, s);
}

static const char *attr_text(const Printer *p, const Node *n, const char *name, DType compute)
{
	const OpInfo *op = &ir_ops[n->op];
	for (int i = 0; i < 8 && op->attrs[i].name; i++) {
		if (strcmp(op->attrs[i].name, name) != 0)
			continue;
		switch (op->attrs[i].kind) {
		case A_STR:
			return arena_printf(p->a, "DL_%s", n->attr[i].s);
		case A_FLOAT:
			return cpu_literal(p->a, compute, n->attr[i].f);
		default:
			return arena_printf(p->a, "%lld", (long long)n->attr[i].i);
		}
	}
	assert(!"an expression names an attribute of its row");
	return "";
}

/* Expands $0, #f(, @a and T( of an op's expression. */
static const char *ewise_text(const Printer *p, const LoopInstr *x)
{
	DType compute = compute_type(x->node);
	char *s = arena_strdup(p->a, "");
	for (const char *e = ir_ops[x->node->op].expr; *e;) {
		size_t n = 0;
		if (*e == '$') {
			s = arena_printf(p->a, "%s%s", s, arg_text(p, x, e[1] - '0', compute));
			e += 2;
		} else if (*e == '#' || *e == '@') {
			for (n = 1; isalnum((unsigned char)e[n]) || e[n] == '_'; n++)
				;
			const char *name = arena_strndup(p->a, e + 1, n - 1);
			s = *e == '#' ? arena_printf(p->a, "%sdl_%s_%s", s, name, suffix(compute))
				      : arena_printf(p->a, "%s%s", s,
						     attr_text(p, x->node, name, compute));
			e += n;
		} else if (e[0] == 'T' && e[1] == '(') {
			for (n = 2; e[n] != ')'; n++)
				;
			double v = strtod(e + 2, NULL);
			s = arena_printf(p->a, "%s%s", s, cpu_literal(p->a, compute, v));
			e += n + 1;
		} else {
			s = arena_printf(p->a, "%s%c", s, *e++);
		}
	}
	return s;
}

/* The variable that holds a random op's stream. */
static const char *stream_name(const Printer *p, const Node *n)
{
	int i = 0;
	while (p->stream[i] != ir_int(n, "stream"))
		i++;
	return arena_printf(p->a, "z%d", i);
}

static const char *leaf_text(const Printer *p, const LoopInstr *x)
{
	const Node *n = x->node;
	const char *t = cpu_vtype(x->dtype);
	if (!n)
		return "0";
	if (n->op == OP_const)
		return cpu_literal(p->a, x->dtype, ir_float(n, "value"));
	const char *at = index_text(p, &x->index);
	if (n->op == OP_iota)
		return arena_printf(p->a, "(%s)(%s)", t, at);
	int64_t sample = loop_sample_elems(&n->res[0]->type, p->micro);
	if (sample > 0)
		at = arena_printf(p->a, "env->base * %lld + %s", (long long)sample, at);
	const char *stream = stream_name(p, n), *real = x->dtype == DT_F64 ? "double" : "float";
	if (n->op == OP_random_uniform)
		return arena_printf(p->a, "DL_UNIFORM(%s, %s, %s, %s, %s)", real, at, stream,
				    cpu_literal(p->a, DT_F64, ir_float(n, "lo")),
				    cpu_literal(p->a, DT_F64, ir_float(n, "hi")));
	if (n->op == OP_dropout_scale)
		return arena_printf(p->a, "DL_DROPOUT(%s, %s, %s, %s)", real, at, stream,
				    cpu_literal(p->a, DT_F64, ir_float(n, "p")));
	assert(n->op == OP_random_normal);
	return arena_printf(p->a, "%s + %s * dl_normal_%s(DL_RANDOM(%s, %s))",
			    cpu_literal(p->a, x->dtype, ir_float(n, "mean")),
			    cpu_literal(p->a, x->dtype, ir_float(n, "std")), suffix(x->dtype), at,
			    stream);
}

/* Ops whose result is an operand, or as exact: no rounding in the operands' type. */
static bool is_exact(const LoopInstr *x, const Loop *l)
{
	switch ((int)x->node->op) {
	case OP_neg:
	case OP_abs:
	case OP_sign:
	case OP_max:
	case OP_min:
	case OP_relu:
	case OP_select:
	case OP_stop_gradient: break;
	default: return false;
	}
	for (int k = x->node->op == OP_select; k < x->narg; k++)
		if (l->instr[x->arg[k]].dtype != x->dtype)
			return false;
	return true;
}

static const char *instr_text(const Printer *p, const LoopInstr *x)
{
	const char *guard = guard_text(p, &x->index);
	switch (x->op) {
	case LI_LOAD: {
		const char *s = arena_printf(p->a, "a%d[%s]", x->operand, index_text(p, &x->index));
		if (is_narrow(x->dtype))
			s = arena_printf(p->a, "dl_load_%s(%s)", dtype_name(x->dtype), s);
		if (*guard)
			s = arena_printf(p->a, "%s ? %s : 0", guard, s);
		return x->dtype == DT_BOOL ? arena_printf(p->a, "(%s) != 0", s) : s;
	}
	case LI_LEAF:
		return x->node ? rounded(p->a, x->dtype, leaf_text(p, x)) : leaf_text(p, x);
	case LI_GUARD: {
		const char *other = x->arg[1] >= 0 ? arena_printf(p->a, "v%d", x->arg[1]) : "0";
		return *guard ? arena_printf(p->a, "%s ? v%d : %s", guard, x->arg[0], other)
			      : arena_printf(p->a, "v%d", x->arg[0]);
	}
	default:
		break;
	}
	const char *s = ewise_text(p, x);
	const char *vt = cpu_vtype(x->dtype);
	if (x->node->op == OP_cast && x->dtype == DT_BOOL)
		return arena_printf(p->a, "v%d != 0", x->arg[0]);
	if (is_narrow(x->dtype))
		return is_exact(x, p->l) ? s : rounded(p->a, x->dtype, s);
	bool narrow = x->dtype == DT_U8 || x->dtype == DT_U16;
	return narrow ? arena_printf(p->a, "(%s)(%s)", vt, s) : s;
}

/* Declares instruction i as seen in a phase. */
static void emit_instr(Printer *p, int i, int phase)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *vt = cpu_vtype(x->dtype);
	if (x->buffered && phase > x->phase) {
		const char *q = p->l->mid > 1
					? arena_printf(p->a, "%lld * q + j", (long long)p->l->inner)
					: "j";
		line(p, "const %s v%d = w%d[%s];", vt, i, i, q);
		return;
	}
	line(p, "const %s v%d = %s;", vt, i, instr_text(p, x));
	if (x->buffered) {
		const char *q = p->l->mid > 1
					? arena_printf(p->a, "%lld * q + j", (long long)p->l->inner)
					: "j";
		line(p, "w%d[%s] = v%d;", i, q, i);
	}
}

static void emit_level(Printer *p, int level, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->level == level && (x->needed >> phase & 1))
			emit_instr(p, i, phase);
	}
}

/* Instructions outside of all loops. */
static void emit_top(Printer *p)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->level == 0 && x->phase == 0)
			emit_instr(p, i, 0);
	}
}

/* Instructions outside of the inner loops: of a phase, each once. */
static void emit_row_level(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->phase == phase &&
		    (x->level == 1 || (x->level == 0 && phase > 0)))
			emit_instr(p, i, phase);
	}
}

static void emit_store(Printer *p, const LoopStore *s)
{
	const LoopInstr *x = &p->l->instr[s->instr];
	const char *to = s->result >= 0 ? arena_printf(p->a, "r%d", s->result)
					: arena_printf(p->a, "a%d", s->operand);
	DType t = s->result >= 0 ? p->fused->res[s->result]->type.dtype
				 : p->fused->body->param[s->operand]->type.dtype;
	const char *cast =
		t == x->dtype && t != DT_BOOL ? "" : arena_printf(p->a, "(%s)", cpu_ctype(t));
	if (is_narrow(t)) {
		line(p, "%s[%s] = dl_pack_%s(v%d);", to, index_text(p, &s->index), dtype_name(t),
		     s->instr);
		return;
	}
	line(p, "%s[%s] = %sv%d;", to, index_text(p, &s->index), cast, s->instr);
}

static bool store_is_inner(const Loop *l, const LoopStore *s)
{
	for (int d = l->nouter; d < l->ndims; d++)
		if (s->index.coef[d] != 0)
			return true;
	return l->kind == LOOP_MAP;
}

static void emit_inner_stores(Printer *p, int phase)
{
	for (int i = 0; i < p->l->nstores; i++)
		if (p->l->store[i].phase == phase && store_is_inner(p->l, &p->l->store[i]))
			emit_store(p, &p->l->store[i]);
}

static bool phase_has_inner(const Loop *l, int phase)
{
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE && l->instr[i].phase == phase)
			return true;
	for (int i = 0; i < l->nstores; i++)
		if (l->store[i].phase == phase && store_is_inner(l, &l->store[i]))
			return true;
	return false;
}

/* Before a loop over units; where their number is N, whether it is worth threads is seen when the
 * kernel runs. */
static void open_parallel(Printer *p, int64_t units, bool over_n)
{
	double work = (double)p->l->elems * (p->l->cost + p->l->nstores);
	if (over_n) {
		double each = work / (double)units;
		line(p,
		     "#pragma omp parallel for num_threads(env->threads) schedule(static) if (N > "
		     "%lld)",
		     (long long)(parallel_cost / (each > 1 ? each : 1)));
	} else if (units > 1 && work >= parallel_cost) {
		line(p, "#pragma omp parallel for num_threads(env->threads) schedule(static)");
	}
}

/* Opens `for (int j = from; j < to; j++)` with its indices. */
static void open_inner(Printer *p, const char *from, const char *to)
{
	line(p, "#pragma omp simd");
	line(p, "for (int j = %s; j < %s; j++) {", from, to);
	int first = p->l->nouter + p->l->nmid;
	if (p->l->flat)
		decode(p, "j", first, p->l->ndims - first);
}

static const char *number(const Printer *p, int64_t v)
{
	return arena_printf(p->a, "%lld", (long long)v);
}

/* ---- maps ---- */

/* One dimension: N elements in blocks, so that arrays of every size share the text (an optimizer's
 * update of each parameter). */
static bool is_flat(const Loop *l)
{
	return l->kind == LOOP_MAP && l->ndims == 1 && l->inner > 1;
}

static void print_flat_map(Printer *p)
{
	double worth = parallel_cost / (p->l->cost + p->l->nstores);
	line(p,
	     "#pragma omp parallel for num_threads(env->threads) schedule(static) if (N > %lld)",
	     worth > MAP_BLOCK ? (long long)worth : (long long)MAP_BLOCK);
	line(p, "for (int64_t from = 0; from < N; from += %d) {", MAP_BLOCK);
	line(p, "const int64_t to = from + %d < N ? from + %d : N;", MAP_BLOCK, MAP_BLOCK);
	emit_row_level(p, 0);
	open_inner(p, "(int)from", "(int)to");
	emit_level(p, 3, 0);
	emit_inner_stores(p, 0);
	line(p, "}");
	line(p, "}");
}

static void print_map(Printer *p)
{
	const Loop *l = p->l;
	bool split = l->outer < 16 && l->inner > MAP_BLOCK;
	int64_t blocks = split ? (l->inner + MAP_BLOCK - 1) / MAP_BLOCK : 1,
		units = l->outer * blocks;
	const char *from = "0", *to = number(p, l->inner);
	if (units > 1) {
		open_parallel(p, units, blocks == 1);
		line(p, "for (int64_t u = 0; u < %s; u++) {", blocks == 1 ? "N" : number(p, units));
		const char *o = blocks == 1 ? "u" : "o";
		if (blocks > 1 && l->outer > 1)
			line(p, "const int64_t o = u / %lld;", (long long)blocks);
		if (blocks > 1) {
			const char *b =
				l->outer > 1 ? arena_printf(p->a, "(u %% %lld)", (long long)blocks)
					     : "u";
			line(p, "const int64_t from = %s * %d, end = from + %d;", b, MAP_BLOCK,
			     MAP_BLOCK);
			line(p, "const int64_t to = end < %lld ? end : %lld;", (long long)l->inner,
			     (long long)l->inner);
			from = "(int)from";
			to = "(int)to";
		}
		decode(p, o, 0, l->nouter);
	}
	emit_row_level(p, 0);
	open_inner(p, from, to);
	emit_level(p, 3, 0);
	emit_inner_stores(p, 0);
	line(p, "}");
	if (units > 1)
		line(p, "}");
}

/* An array of one constant or of random numbers as they come: a call of kernel.h for N elements. */
static bool print_fill(Printer *p)
{
	const Loop *l = p->l;
	const LoopInstr *x = &l->instr[0];
	if (l->kind != LOOP_MAP || l->ninstrs != 1 || l->nstores != 1 || x->op != LI_LEAF ||
	    !x->node || l->ndims > 1)
		return false;
	DType t = x->dtype;
	if (t != DT_F32 && t != DT_F64 && t != DT_I32 && t != DT_I64)
		return false;
	const Node *n = x->node;
	const char *to = l->store[0].result >= 0 ? arena_printf(p->a, "r%d", l->store[0].result)
						 : arena_printf(p->a, "a%d", l->store[0].operand);
	if (n->op == OP_const) {
		line(p, "dl_fill_const_%s(%s, N, 0, %s, env);", suffix(t), to,
		     cpu_literal(p->a, t, ir_float(n, "value")));
		return true;
	}
	bool normal = n->op == OP_random_normal;
	if (!normal && n->op != OP_random_uniform)
		return false;
	int64_t sample = loop_sample_elems(&n->res[0]->type, p->micro);
	const char *first =
		sample > 0 ? arena_printf(p->a, "env->base * %lld", (long long)sample) : "0";
	DType d = normal ? t : DT_F64;
	line(p, "dl_fill_%s_%s(%s, N, %s, %s, %s, %s, env);", normal ? "normal" : "uniform",
	     suffix(t), to, first, stream_name(p, n),
	     cpu_literal(p->a, d, ir_float(n, normal ? "mean" : "lo")),
	     cpu_literal(p->a, d, ir_float(n, normal ? "std" : "hi")));
	return true;
}

/* ---- rows ---- */

static bool is_max(const LoopInstr *x) { return x->node->op == OP_reduce_max; }

/* The type that a reduction accumulates in. */
static DType reduce_dtype(const Loop *l, const LoopInstr *x)
{
	return x->node->op == OP_argmax ? l->instr[x->arg[0]].dtype : x->dtype;
}

static const char *lowest(DType t)
{
	return t == DT_I64 ? "INT64_MIN" : dtype_is_float(t) ? "-INFINITY" : "INT32_MIN";
}

static int64_t reduce_count(const Loop *l)
{
	return l->kind == LOOP_COLUMN ? l->mid : l->mid * l->inner;
}

static void emit_reduce_start(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		DType t = reduce_dtype(p->l, x);
		const char *s = suffix(t);
		if (x->node->op == OP_argmax) {
			line(p, "%s m%d = 0;", reducer_type(t), i);
			line(p, "int32_t s%d = -1;", i);
		} else {
			line(p, "dl_v_%s s%d = dl_fill_%s(%s);", s, i, s,
			     is_max(x) ? lowest(t) : "0");
		}
	}
}

static void emit_block_start(Printer *p, int phase, int64_t room)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			line(p, "%s t%d[%lld];", reducer_type(reduce_dtype(p->l, x)), i,
			     (long long)room);
	}
}

static void emit_block_fill(Printer *p, int phase, const char *at)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			line(p, "t%d[%s] = (%s)v%d;", i, at, reducer_type(reduce_dtype(p->l, x)),
			     x->arg[0]);
	}
}

/* first: the position of the block's first element in the whole reduction. */
static void emit_block_end(Printer *p, int phase, const char *n, const char *first)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		const char *s = suffix(reduce_dtype(p->l, x));
		if (x->node->op == OP_argmax)
			line(p, "dl_argmax_%s(t%d, %s, %s, &m%d, &s%d);", s, i, n, first, i, i);
		else if (is_max(x))
			line(p, "s%d = dl_pick_%s(s%d, dl_lanes_max_%s(t%d, %s));", i, s, i, s, i,
			     n);
		else
			line(p, "s%d += dl_lanes_sum_%s(t%d, %s);", i, s, i, n);
	}
}

/* The reduced value of one row (or of one chunk: without the division of a mean). */
static const char *reduce_value(const Printer *p, int i)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *s = suffix(reduce_dtype(p->l, x));
	if (x->node->op == OP_argmax)
		return arena_printf(p->a, "s%d", i);
	return arena_printf(p->a, "dl_tree_%s_%s(s%d)", is_max(x) ? "max" : "sum", s, i);
}

static const char *mean_divisor(const Printer *p, const LoopInstr *x)
{
	if (x->node->op != OP_mean)
		return "";
	return arena_printf(p->a, " / %s", cpu_literal(p->a, x->dtype, (double)reduce_count(p->l)));
}

/* The value of reduction i, of what it has come to. */
static void declare_reduced(Printer *p, int i, const char *sum)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *t = cpu_vtype(x->dtype),
		   *s = arena_printf(p->a, "(%s)%s%s", t, sum, mean_divisor(p, x));
	line(p, "const %s v%d = %s;", t, i, rounded(p->a, x->dtype, s));
}

static void emit_reduce_end(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			declare_reduced(p, i, reduce_value(p, i));
	}
}

/* Inner loops of one phase over elements [from,to) of the inner dimension. */
static void emit_row_blocks(Printer *p, int phase, const char *from, const char *to,
			    int64_t longest, const char *base)
{
	bool blocked = longest > 1024;
	if (blocked) {
		line(p, "for (int b = %s; b < %s; b += DL_BLOCK) {", from, to);
		line(p, "const int e = b + DL_BLOCK < %s ? b + DL_BLOCK : %s;", to, to);
		from = "b";
		to = "e";
	}
	emit_block_start(p, phase, blocked ? 1024 : longest);
	open_inner(p, from, to);
	emit_level(p, 3, phase);
	emit_block_fill(p, phase, blocked ? "j - b" : "j");
	emit_inner_stores(p, phase);
	line(p, "}");
	const char *first =
		blocked ? arena_printf(p->a, "%sb", base) : arena_printf(p->a, "%s0", base);
	emit_block_end(p, phase, blocked ? "e - b" : to, first);
	if (blocked)
		line(p, "}");
}

static void emit_row_phase(Printer *p, int phase)
{
	const Loop *l = p->l;
	emit_row_level(p, phase);
	if (!phase_has_inner(l, phase))
		return;
	emit_reduce_start(p, phase);
	const char *base = "";
	if (l->mid > 1) {
		line(p, "for (int64_t q = 0; q < %lld; q++) {", (long long)l->mid);
		decode(p, "q", l->nouter, l->nmid);
		emit_level(p, 2, phase);
		base = arena_printf(p->a, "q * %lld + ", (long long)l->inner);
	} else {
		line(p, "{");
	}
	emit_row_blocks(p, phase, "0", number(p, l->inner), l->inner, base);
	line(p, "}");
	emit_reduce_end(p, phase);
}

static void emit_row_stores(Printer *p)
{
	for (int i = 0; i < p->l->nstores; i++)
		if (!store_is_inner(p->l, &p->l->store[i]))
			emit_store(p, &p->l->store[i]);
}

static void print_rows(Printer *p)
{
	const Loop *l = p->l;
	if (l->outer > 1) {
		open_parallel(p, l->outer, true);
		line(p, "for (int64_t o = 0; o < N; o++) {");
		decode(p, "o", 0, l->nouter);
	}
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].buffered)
			line(p, "%s w%d[%lld];", cpu_vtype(l->instr[i].dtype), i,
			     (long long)(l->mid * l->inner));
	for (int phase = 0; phase < l->phases; phase++)
		emit_row_phase(p, phase);
	emit_row_stores(p);
	if (l->outer > 1)
		line(p, "}");
}

/* ---- one long row: in chunks ---- */

static void emit_partials(Printer *p)
{
	int64_t at = 0;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		const char *t = reducer_type(reduce_dtype(p->l, x));
		int64_t kept = p->l->kind == LOOP_COLUMN ? p->l->outer * p->l->inner : 1;
		line(p, "%s *const p%d = (%s *)(work + %lld);", t, i, t, (long long)at);
		at += p->l->chunks * kept * 8;
		if (x->node->op == OP_argmax) {
			line(p, "int32_t *const q%d = (int32_t *)(work + %lld);", i, (long long)at);
			at += p->l->chunks * 8;
		}
	}
}

static void emit_chunk_combine(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		const char *t = reducer_type(reduce_dtype(p->l, x));
		bool arg = x->node->op == OP_argmax;
		line(p, "%s c%d = p%d[0];", t, i, i);
		if (arg)
			line(p, "int32_t d%d = q%d[0];", i, i);
		line(p, "for (int c = 1; c < %lld; c++) {", (long long)p->l->chunks);
		if (arg)
			line(p,
			     "d%d = p%d[c] > c%d || (p%d[c] != p%d[c] && c%d == c%d) ? q%d[c] : "
			     "d%d;",
			     i, i, i, i, i, i, i, i, i);
		if (arg || is_max(x))
			line(p, "c%d = p%d[c] > c%d || p%d[c] != p%d[c] ? p%d[c] : c%d;", i, i, i,
			     i, i, i, i);
		else
			line(p, "c%d += p%d[c];", i, i);
		line(p, "}");
		declare_reduced(p, i, arena_printf(p->a, "%c%d", arg ? 'd' : 'c', i));
	}
}

static void print_chunked_row(Printer *p)
{
	const Loop *l = p->l;
	emit_partials(p);
	for (int phase = 0; phase < l->phases; phase++) {
		emit_row_level(p, phase);
		if (!phase_has_inner(l, phase))
			continue;
		open_parallel(p, l->chunks, false);
		line(p, "for (int64_t c = 0; c < %lld; c++) {", (long long)l->chunks);
		line(p, "const int64_t from = c * %d, end = from + %d;", LOOP_CHUNK, LOOP_CHUNK);
		line(p, "const int64_t to = end < %lld ? end : %lld;", (long long)l->inner,
		     (long long)l->inner);
		emit_reduce_start(p, phase);
		emit_row_blocks(p, phase, "(int)from", "(int)to", l->inner, "");
		for (int i = 0; i < l->ninstrs; i++) {
			const LoopInstr *x = &l->instr[i];
			if (x->op != LI_REDUCE || x->phase != phase)
				continue;
			bool arg = x->node->op == OP_argmax;
			line(p, "p%d[c] = %s;", i,
			     arg ? arena_printf(p->a, "m%d", i) : reduce_value(p, i));
			if (arg)
				line(p, "q%d[c] = s%d;", i, i);
		}
		line(p, "}");
		emit_chunk_combine(p, phase);
	}
	emit_row_stores(p);
}

/* ---- columns ---- */

/* Adds one element into an accumulator. */
static void emit_accumulate(Printer *p, const LoopInstr *x, const char *acc, const char *value)
{
	if (is_max(x))
		line(p, "%s = %s > %s || %s != %s ? %s : %s;", acc, value, acc, value, value, value,
		     acc);
	else
		line(p, "%s += %s;", acc, value);
}

static void emit_column_result(Printer *p, int i, const char *acc)
{
	declare_reduced(p, i, acc);
	for (int s = 0; s < p->l->nstores; s++)
		if (p->l->store[s].instr == i)
			emit_store(p, &p->l->store[s]);
}

static void print_column_pass(Printer *p, int64_t blocks)
{
	const Loop *l = p->l;
	int64_t per = (l->mid + l->chunks - 1) / l->chunks;
	line(p,
	     "for (int64_t r = c * %lld; r < ((c + 1) * %lld < %lld ? (c + 1) * %lld : %lld); r++) "
	     "{",
	     (long long)per, (long long)per, (long long)l->mid, (long long)per, (long long)l->mid);
	decode(p, "r", l->nouter, l->nmid);
	emit_level(p, 2, 0);
	open_inner(p, blocks > 1 ? "b" : "0", blocks > 1 ? "e" : number(p, l->inner));
	emit_level(p, 3, 0);
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE) {
			const char *t = reducer_type(l->instr[i].dtype);
			line(p, "const %s x%d = (%s)v%d;", t, i, t, l->instr[i].arg[0]);
			emit_accumulate(p, &l->instr[i],
					arena_printf(p->a, blocks > 1 ? "s%d[j - b]" : "s%d[j]", i),
					arena_printf(p->a, "x%d", i));
		}
	emit_inner_stores(p, 0);
	line(p, "}");
	line(p, "}");
}

static void print_column_combine(Printer *p)
{
	const Loop *l = p->l;
	line(p, "for (int64_t o = 0; o < %lld; o++) {", (long long)l->outer);
	decode(p, "o", 0, l->nouter);
	open_inner(p, "0", number(p, l->inner));
	for (int i = 0; i < l->ninstrs; i++) {
		const LoopInstr *x = &l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		int64_t kept = l->outer * l->inner;
		line(p, "%s c%d = p%d[o * %lld + j];", reducer_type(x->dtype), i, i,
		     (long long)l->inner);
		for (int64_t c = 1; c < l->chunks; c++)
			emit_accumulate(p, x, arena_printf(p->a, "c%d", i),
					arena_printf(p->a, "p%d[%lld + o * %lld + j]", i,
						     (long long)(c * kept), (long long)l->inner));
		emit_column_result(p, i, arena_printf(p->a, "c%d", i));
	}
	line(p, "}");
	line(p, "}");
}

static void print_columns(Printer *p)
{
	const Loop *l = p->l;
	int64_t blocks = (l->inner + COLUMN_BLOCK - 1) / COLUMN_BLOCK,
		units = l->outer * l->chunks * blocks;
	if (l->chunks > 1)
		emit_partials(p);
	open_parallel(p, units, false);
	line(p, "for (int64_t u = 0; u < %lld; u++) {", (long long)units);
	line(p, "const int64_t o = u / %lld, c = u / %lld %% %lld;",
	     (long long)(l->chunks * blocks), (long long)blocks, (long long)l->chunks);
	const char *room = number(p, blocks > 1 ? COLUMN_BLOCK : l->inner),
		   *n = number(p, l->inner);
	if (blocks > 1) {
		line(p, "const int b = (int)(u %% %lld) * %d;", (long long)blocks, COLUMN_BLOCK);
		line(p, "const int e = b + %d < %s ? b + %d : %s;", COLUMN_BLOCK, n, COLUMN_BLOCK,
		     n);
		n = "e - b";
	}
	decode(p, "o", 0, l->nouter);
	emit_row_level(p, 0);
	for (int i = 0; i < l->ninstrs; i++) {
		const LoopInstr *x = &l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		line(p, "%s s%d[%s];", reducer_type(x->dtype), i, room);
		line(p, "for (int j = 0; j < %s; j++)", n);
		line(p, "\ts%d[j] = %s;", i, is_max(x) ? lowest(x->dtype) : "0");
	}
	print_column_pass(p, blocks);
	open_inner(p, blocks > 1 ? "b" : "0", blocks > 1 ? "e" : n);
	for (int i = 0; i < l->ninstrs; i++) {
		if (l->instr[i].op != LI_REDUCE)
			continue;
		const char *acc = arena_printf(p->a, blocks > 1 ? "s%d[j - b]" : "s%d[j]", i);
		if (l->chunks > 1)
			line(p, "p%d[(c * %lld + o) * %lld + j] = %s;", i, (long long)l->outer,
			     (long long)l->inner, acc);
		else
			emit_column_result(p, i, acc);
	}
	line(p, "}");
	line(p, "}");
	if (l->chunks > 1)
		print_column_combine(p);
}

/* ---- a kernel ---- */

static bool is_assigned(const Loop *l, int operand)
{
	for (int i = 0; i < l->nstores; i++)
		if (l->store[i].result < 0 && l->store[i].operand == operand)
			return true;
	return false;
}

static void print_operands(Printer *p)
{
	const Node *n = p->fused;
	for (int i = 0; i < n->nargs; i++) {
		const char *t = cpu_ctype(n->arg[i]->type.dtype),
			   *c = is_assigned(p->l, i) ? "" : "const ";
		line(p, "%s%s *const a%d = (%s%s *)(arena + off[%d]);", c, t, i, c, t, i);
	}
	for (int i = 0; i < n->nres; i++) {
		const char *t = cpu_ctype(n->res[i]->type.dtype);
		line(p, "%s *const r%d = (%s *)(arena + off[%d]);", t, i, t, n->nargs + i);
	}
	if (p->l->work_bytes > 0)
		line(p, "unsigned char *const work = arena + off[%d];", n->nargs + n->nres);
	int own = cpu_own_numbers(n), nstreams = cpu_streams(p->a, n, &p->stream);
	line(p, "const int64_t N = off[%d];", own);
	for (int i = 0; i < nstreams; i++)
		line(p, "const int32_t z%d = (int32_t)off[%d];", i, own + 1 + i);
}

static void print_loops(Printer *p)
{
	emit_top(p);
	if (is_flat(p->l))
		print_flat_map(p);
	else if (p->l->kind == LOOP_MAP)
		print_map(p);
	else if (p->l->kind == LOOP_COLUMN)
		print_columns(p);
	else if (p->l->chunks > 1)
		print_chunked_row(p);
	else
		print_rows(p);
}

CpuText cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro)
{
	char *text = NULL;
	size_t len = 0;
	Printer p = {
		.a = a, .out = open_memstream(&text, &len), .fused = fused, .l = l, .micro = micro
	};
	line(&p, "(unsigned char *arena, const int64_t *off, const PlanEnv *env)");
	line(&p, "{");
	print_operands(&p);
	bool fill = print_fill(&p);
	if (!fill)
		print_loops(&p);
	line(&p, "}");
	fclose(p.out);
	CpuText r = { arena_strndup(a, text, len), fill || is_flat(l) ? l->elems : l->outer };
	free(text);
	return r;
}

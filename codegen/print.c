/* Types, literals, indices and expressions of fused kernels (print.h). One multiplication or
 * addition of the source is one rounding; values of 16-bit types are f32, rounded after each op. */
#include "print.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

int kernel_own_numbers(const Node *n)
{
	return n->nargs + n->nres + (n->work_bytes > 0);
}

int kernel_streams(Arena *a, const Node *n, int64_t **stream)
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

const char *print_ctype(DType t)
{
	static const char *const name[DT_COUNT] = { "void",    "uint8_t", "uint8_t",  "uint16_t",
						    "int32_t", "int64_t", "uint16_t", "uint16_t",
						    "float",   "double" };
	return name[t];
}

const char *print_vtype(DType t)
{
	static const char *const name[DT_COUNT] = { "void",    "int32_t", "uint8_t", "uint16_t",
						    "int32_t", "int64_t", "float",   "float",
						    "float",   "double" };
	return name[t];
}

/* The suffix of kernel.h's functions. */
const char *print_suffix(DType t)
{
	static const char *const name[DT_COUNT] = { "none", "i32", "i32", "i32", "i32",
						    "i64",  "f32", "f32", "f32", "f64" };
	return name[t];
}

const char *print_reducer(DType t)
{
	return t == DT_I64 ? "int64_t" : dtype_is_float(t) ? print_vtype(t) : "int32_t";
}

const char *print_literal(Arena *a, DType t, double v)
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

static bool is_narrow(DType t)
{
	return t == DT_F16 || t == DT_BF16;
}

/* Values of 16-bit types are held as f32, rounded to their type. */
static const char *rounded(Arena *a, DType t, const char *s)
{
	return is_narrow(t) ? arena_printf(a, "dl_round_%s(%s)", dtype_name(t), s) : s;
}

/* ---- lines, indices ---- */

void print_line(Printer *p, const char *fmt, ...)
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
	if (p->last ? inner && d == p->l->ndims - 1 : inner && !p->l->flat)
		return p->last ? p->last : "j";
	return arena_printf(p->a, "i%d", d);
}

const char *print_index(const Printer *p, const LoopIndex *x)
{
	const char *s = "";
	for (int d = 0; d < p->l->ndims; d++) {
		if (x->coef[d] == 0)
			continue;
		const char *plus = *s ? " + " : "", *name = dim_name(p, d);
		s = x->coef[d] == 1
			? arena_printf(p->a, "%s%s%s", s, plus, name)
			: arena_printf(p->a, "%s%s%lld * %s", s, plus, (long long)x->coef[d], name);
	}
	if (x->base != 0 || !*s)
		s = arena_printf(p->a, "%s%s%lld", s, *s ? " + " : "", (long long)x->base);
	return s;
}

const char *print_guard(const Printer *p, const LoopIndex *x)
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

void print_decode(Printer *p, const char *type, const char *var, int first, int n)
{
	int64_t below = 1;
	for (int d = first + n - 1; d >= first; d--) {
		const char *mod =
		    d > first ? arena_printf(p->a, " %% %lld", (long long)p->l->extent[d]) : "";
		if (below == 1)
			print_line(p, "const %s i%d = %s%s;", type, d, var, mod);
		else
			print_line(p, "const %s i%d = %s / %lld%s;", type, d, var, (long long)below,
				   mod);
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
	bool as_is = strcmp(print_vtype(y->dtype), print_vtype(compute)) == 0 ||
		     (x->node->op == OP_select && k == 0) || x->node->op == OP_schedule;
	if (as_is)
		return arena_printf(p->a, "v%d", x->arg[k]);
	const char *s = arena_printf(p->a, "(%s)v%d", print_vtype(compute), x->arg[k]);
	return dtype_is_float(y->dtype) ? s : rounded(p->a, compute, s);
}

static const char *attr_text(const Printer *p, const Node *n, const char *name, DType compute)
{
	const OpInfo *op = &ir_ops[n->op];
	for (int i = 0; i < 8 && op->attrs[i].name; i++) {
		if (strcmp(op->attrs[i].name, name) != 0)
			continue;
		switch (op->attrs[i].kind) {
		case A_STR: return arena_printf(p->a, "DL_%s", n->attr[i].s);
		case A_FLOAT: return print_literal(p->a, compute, n->attr[i].f);
		default: return arena_printf(p->a, "%lld", (long long)n->attr[i].i);
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
			s = *e == '#'
				? arena_printf(p->a, "%sdl_%s_%s", s, name, print_suffix(compute))
				: arena_printf(p->a, "%s%s", s,
					       attr_text(p, x->node, name, compute));
			e += n;
		} else if (e[0] == 'T' && e[1] == '(') {
			for (n = 2; e[n] != ')'; n++)
				;
			double v = strtod(e + 2, NULL);
			s = arena_printf(p->a, "%s%s", s, print_literal(p->a, compute, v));
			e += n + 1;
		} else {
			s = arena_printf(p->a, "%s%c", s, *e++);
		}
	}
	return s;
}

const char *print_stream(const Printer *p, const Node *n)
{
	int i = 0;
	while (p->stream[i] != ir_int(n, "stream"))
		i++;
	return arena_printf(p->a, "z%d", i);
}

static const char *leaf_text(const Printer *p, const LoopInstr *x)
{
	const Node *n = x->node;
	const char *t = print_vtype(x->dtype);
	if (!n)
		return "0";
	if (n->op == OP_const)
		return print_literal(p->a, x->dtype, ir_float(n, "value"));
	const char *at = print_index(p, &x->index);
	if (n->op == OP_iota)
		return arena_printf(p->a, "(%s)(%s)", t, at);
	int64_t sample = loop_sample_elems(&n->res[0]->type, p->micro);
	if (sample > 0)
		at = arena_printf(p->a, "env->base * %lld + %s", (long long)sample, at);
	const char *stream = print_stream(p, n), *real = x->dtype == DT_F64 ? "double" : "float";
	if (n->op == OP_random_uniform)
		return arena_printf(p->a, "DL_UNIFORM(%s, %s, %s, %s, %s)", real, at, stream,
				    print_literal(p->a, DT_F64, ir_float(n, "lo")),
				    print_literal(p->a, DT_F64, ir_float(n, "hi")));
	if (n->op == OP_dropout_scale)
		return arena_printf(p->a, "DL_DROPOUT(%s, %s, %s, %s)", real, at, stream,
				    print_literal(p->a, DT_F64, ir_float(n, "p")));
	assert(n->op == OP_random_normal);
	return arena_printf(p->a, "%s + %s * dl_normal_%s(DL_RANDOM(%s, %s))",
			    print_literal(p->a, x->dtype, ir_float(n, "mean")),
			    print_literal(p->a, x->dtype, ir_float(n, "std")),
			    print_suffix(x->dtype), at, stream);
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

const char *print_instr(const Printer *p, const LoopInstr *x)
{
	const char *guard = print_guard(p, &x->index);
	switch (x->op) {
	case LI_LOAD: {
		int i = (int)(x - p->l->instr);
		bool staged = p->stage && p->stage[i] >= 0;
		const char *s =
		    staged ? arena_printf(p->a, "x%d[e]", p->stage[i])
			   : arena_printf(p->a, "a%d[%s]", x->operand, print_index(p, &x->index));
		if (is_narrow(x->dtype))
			s = arena_printf(p->a, "dl_load_%s(%s)", dtype_name(x->dtype), s);
		if (*guard && !staged)
			s = arena_printf(p->a, "%s ? %s : 0", guard, s);
		return x->dtype == DT_BOOL ? arena_printf(p->a, "(%s) != 0", s) : s;
	}
	case LI_LEAF: return x->node ? rounded(p->a, x->dtype, leaf_text(p, x)) : leaf_text(p, x);
	case LI_GUARD: {
		const char *other = x->arg[1] >= 0 ? arena_printf(p->a, "v%d", x->arg[1]) : "0";
		return *guard ? arena_printf(p->a, "%s ? v%d : %s", guard, x->arg[0], other)
			      : arena_printf(p->a, "v%d", x->arg[0]);
	}
	default: break;
	}
	const char *s = ewise_text(p, x);
	const char *vt = print_vtype(x->dtype);
	if (x->node->op == OP_cast && x->dtype == DT_BOOL)
		return arena_printf(p->a, "v%d != 0", x->arg[0]);
	if (is_narrow(x->dtype))
		return is_exact(x, p->l) ? s : rounded(p->a, x->dtype, s);
	bool narrow = x->dtype == DT_U8 || x->dtype == DT_U16;
	return narrow ? arena_printf(p->a, "(%s)(%s)", vt, s) : s;
}

const char *print_target(const Printer *p, const LoopStore *s)
{
	return s->result >= 0 ? arena_printf(p->a, "r%d", s->result)
			      : arena_printf(p->a, "a%d", s->operand);
}

DType print_stored_type(const Printer *p, const LoopStore *s)
{
	return s->result >= 0 ? p->fused->res[s->result]->type.dtype
			      : p->fused->body->param[s->operand]->type.dtype;
}

const char *print_stored(const Printer *p, const LoopStore *s)
{
	DType t = print_stored_type(p, s);
	if (is_narrow(t))
		return arena_printf(p->a, "dl_pack_%s(v%d)", dtype_name(t), s->instr);
	bool as_is = t == p->l->instr[s->instr].dtype && t != DT_BOOL;
	const char *cast = as_is ? "" : arena_printf(p->a, "(%s)", print_ctype(t));
	return arena_printf(p->a, "%sv%d", cast, s->instr);
}

void print_store(Printer *p, const LoopStore *s)
{
	print_line(p, "%s[%s] = %s;", print_target(p, s), print_index(p, &s->index),
		   print_stored(p, s));
}

bool loop_store_is_column(const Loop *l, const LoopStore *s)
{
	return l->instr[s->instr].column;
}

bool loop_store_is_inner(const Loop *l, const LoopStore *s)
{
	if (loop_store_is_column(l, s))
		return false;
	for (int d = l->nouter; d < l->ndims; d++)
		if (s->index.coef[d] != 0)
			return true;
	return l->kind == LOOP_MAP;
}

bool loop_phase_has_inner(const Loop *l, int phase)
{
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE && l->instr[i].phase == phase)
			return true;
	for (int i = 0; i < l->nstores; i++)
		if (l->store[i].phase == phase && loop_store_is_inner(l, &l->store[i]))
			return true;
	return false;
}

const char *print_number(const Printer *p, int64_t v)
{
	return arena_printf(p->a, "%lld", (long long)v);
}

/* ---- reductions ---- */

bool loop_is_max(const LoopInstr *x)
{
	return x->node->op == OP_reduce_max;
}

DType loop_reduce_dtype(const Loop *l, const LoopInstr *x)
{
	return x->node->op == OP_argmax ? l->instr[x->arg[0]].dtype : x->dtype;
}

const char *print_lowest(DType t)
{
	return t == DT_I64 ? "INT64_MIN" : dtype_is_float(t) ? "-INFINITY" : "INT32_MIN";
}

int64_t loop_reduce_count(const Loop *l)
{
	return l->kind == LOOP_COLUMN ? l->mid : l->mid * l->inner;
}

static const char *mean_divisor(const Printer *p, const LoopInstr *x)
{
	if (x->node->op != OP_mean)
		return "";
	return arena_printf(p->a, " / %s",
			    print_literal(p->a, x->dtype, (double)loop_reduce_count(p->l)));
}

void print_reduced(Printer *p, int i, const char *sum)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *t = print_vtype(x->dtype),
		   *s = arena_printf(p->a, "(%s)%s%s", t, sum, mean_divisor(p, x));
	print_line(p, "const %s v%d = %s;", t, i, rounded(p->a, x->dtype, s));
}

bool loop_assigns(const Loop *l, int operand)
{
	for (int i = 0; i < l->nstores; i++)
		if (l->store[i].result < 0 && l->store[i].operand == operand)
			return true;
	return false;
}

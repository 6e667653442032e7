/* IR as text. ARCHITECTURE.md shows the format; parse.c reads all of it back.
 *
 * Values are named as the text needs it, whatever numbers the graph has at the moment: %0, %1, ... in a function, and in
 * a body at depth d two letters of its own, the first for parameters and the second for values (%a0, %b0; one
 * level deeper %c0, %d0). So a dump depends on the graph alone, and printing changes nothing. */
#include "internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct Printer {
	FILE *out;
	Map names; /* see ir_value_names */
} Printer;

/* ---- pieces ---- */

static void print_string(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c == '\n')
			fputs("\\n", out);
		else if (c == '\t')
			fputs("\\t", out);
		else if (c < 0x20 || c == 0x7f)
			fprintf(out, "\\x%02x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

/* A name bare where the reader takes it so, else quoted. */
static void print_name(FILE *out, const char *s)
{
	bool bare = isalpha((unsigned char)*s) || *s == '_';
	for (const char *p = s; *p; p++)
		bare &= isalnum((unsigned char)*p) || *p == '_';
	if (bare)
		fputs(s, out);
	else
		print_string(out, s);
}

/* The shortest of 15 to 17 digits that reads back as the same number; with `point`, never like an integer. */
static void print_float(FILE *out, double x, bool point)
{
	char text[40];
	if (isnan(x)) {
		fputs("nan", out);
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, x);
		if (strtod(text, NULL) == x)
			break;
	}
	fputs(text, out);
	if (point && !strpbrk(text, ".ein"))
		fputs(".0", out);
}

static void print_ints(FILE *out, const IntList *list)
{
	fputc('[', out);
	for (int i = 0; i < list->n; i++)
		fprintf(out, "%s%" PRId64, i ? "," : "", list->v[i]);
	fputc(']', out);
}

static void print_attr(FILE *out, AttrKind kind, const Attr *a, bool point)
{
	if (kind == A_INT)
		fprintf(out, "%" PRId64, a->i);
	else if (kind == A_BOOL)
		fputs(a->i ? "true" : "false", out);
	else if (kind == A_FLOAT)
		print_float(out, a->f, point);
	else if (kind == A_STR)
		print_string(out, a->s);
	else
		print_ints(out, &a->ints);
}

static void print_type(FILE *out, const Type *t)
{
	fprintf(out, "%s[", dtype_name(t->dtype));
	for (int i = 0; i < t->ndim; i++)
		fprintf(out, "%s%" PRId64 "%s", i ? "," : "", t->dim[i], t->batch >> i & 1 ? "'" : "");
	fputc(']', out);
}

static void print_offset(FILE *out, int64_t offset)
{
	if (offset >= 0)
		fprintf(out, " @ 0x%" PRIx64, (uint64_t)offset);
}

/* A value's type and place. */
static void print_place(FILE *out, const Value *v)
{
	print_type(out, &v->type);
	if (v->ld)
		fprintf(out, " ld %" PRId64, v->ld);
	print_offset(out, v->offset);
}

static void indent(FILE *out, int depth)
{
	fprintf(out, "%*s", 2 * depth, "");
}

/* ---- names of values ---- */

/* A name is depth << 40 | is parameter << 39 | number. */
enum { DEPTH_SHIFT = 40, PARAM_SHIFT = 39 };

static void name_value(Map *names, const Value *v, int depth, bool param, int64_t number)
{
	map_set(names, v, (int64_t)depth << DEPTH_SHIFT | (int64_t)param << PARAM_SHIFT | number);
}

static void name_block(Map *names, const Block *b, int depth)
{
	int64_t next = 0;
	for (int i = 0; i < b->nparam; i++)
		name_value(names, b->param[i], depth, true, i);
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			name_value(names, n->res[i], depth, false, next++);
		if (n->body && depth < IR_MAX_DEPTH)
			name_block(names, n->body, depth + 1);
	}
}

Map ir_value_names(Arena *a, const Func *f)
{
	Map names = { .arena = a };
	name_block(&names, f->body, 0);
	return names;
}

const char *ir_value_name(const Map *names, const Value *v, char text[32])
{
	int64_t name;
	if (!v || !map_get(names, v, &name))
		return "%?"; /* of another function: the verifier says so */
	int depth = (int)(name >> DEPTH_SHIFT);
	int64_t number = name & ((INT64_C(1) << PARAM_SHIFT) - 1);
	char letter[2] = { (char)('a' + 2 * (depth - 1) + !(name >> PARAM_SHIFT & 1)) };
	snprintf(text, 32, "%%%s%" PRId64, depth ? letter : "", number);
	return text;
}

static void print_value(Printer *p, const Value *v)
{
	char text[32];
	fputs(ir_value_name(&p->names, v, text), p->out);
}

/* ---- nodes ---- */

/* In the body of a kernel only where they differ from the kernel's. */
static void print_flags(FILE *out, const Node *n)
{
	static const struct {
		int32_t flag;
		const char *name;
	} names[] = { { NF_BACKWARD, "backward" }, { NF_OPTIMIZER, "optimizer" }, { NF_BATCH_STATS, "batch_stats" },
		    { NF_F32, "f32" }, { NF_IN_F32, "in_f32" }, { NF_IN_BF16, "in_bf16" }, { NF_IN_F16, "in_f16" }, { NF_TF32, "tf32" } };
	const Node *owner = n->parent->owner;
	if (owner && owner->op == OP_fused && owner->flags == n->flags)
		return;
	if (owner && owner->op == OP_fused && !n->flags)
		fputs(" []", out);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (n->flags & names[i].flag)
			fprintf(out, " [%s]", names[i].name);
}

static void print_attrs(FILE *out, const Node *n)
{
	int count = op_attr_count(n->op), printed = 0;
	for (int i = 0; i < count; i++) {
		const AttrSpec *spec = &ir_ops[n->op].attrs[i];
		if (spec->optional && (spec->kind == A_STR ? !n->attr[i].s[0] : !n->attr[i].i))
			continue;
		fprintf(out, "%s%s = ", printed++ ? ", " : " {", spec->name);
		print_attr(out, spec->kind, &n->attr[i], false);
	}
	if (printed)
		fputc('}', out);
}

static void print_results(Printer *p, const Node *n)
{
	for (int i = 0; i < n->nres; i++) {
		fputs(i ? ", " : "", p->out);
		print_value(p, n->res[i]);
	}
	if (n->nres)
		fputs(" = ", p->out);
	if (n->replay_of) {
		fputs("replay(", p->out);
		print_value(p, n->replay_of->nres ? n->replay_of->res[0] : NULL);
		fputs(") ", p->out);
	}
}

static void print_block(Printer *p, const Block *b, int depth, int level);

static void print_node(Printer *p, const Node *n, int depth, int level)
{
	FILE *out = p->out;
	indent(out, level);
	print_results(p, n);
	fputs(ir_ops[n->op].name, out);
	for (int i = 0; i < n->nargs; i++) {
		fputs(i ? ", " : " ", out);
		print_value(p, n->arg[i]);
	}
	print_attrs(out, n);
	print_flags(out, n);
	for (int i = 0; i < n->nres; i++) {
		fputs(i ? ", " : " : ", out);
		print_place(out, n->res[i]);
	}
	if (n->work_bytes && n->work_offset >= 0)
		fprintf(out, " work 0x%" PRIx64 "+%" PRId64, (uint64_t)n->work_offset, n->work_bytes);
	else if (n->work_bytes)
		fprintf(out, " work %" PRId64, n->work_bytes);
	if (n->body) {
		fputs(" {\n", out);
		print_block(p, n->body, depth + 1, level + 1);
		indent(out, level);
		fputc('}', out);
	}
	fputc('\n', out);
}

static void print_block(Printer *p, const Block *b, int depth, int level)
{
	if (b->owner) {
		indent(p->out, level);
		fputc('(', p->out);
		for (int i = 0; i < b->nparam; i++) {
			fputs(i ? ", " : "", p->out);
			print_value(p, b->param[i]);
			fputs(" : ", p->out);
			print_place(p->out, b->param[i]);
		}
		fputs(")\n", p->out);
	}
	for (const Node *n = b->first; n; n = n->next)
		print_node(p, n, depth, level);
}

static void print_func(FILE *out, const Func *f, int level)
{
	Arena *scratch = arena_new();
	Printer p = { out, ir_value_names(scratch, f) };
	indent(out, level);
	fputs("func @", out);
	print_name(out, f->name);
	fprintf(out, " batch %" PRId64, f->batch);
	if (f->arena_bytes)
		fprintf(out, " arena %" PRId64, f->arena_bytes);
	if (f->host_bytes)
		fprintf(out, " host %" PRId64, f->host_bytes);
	fputs(" {\n", out);
	print_block(&p, f->body, 0, level + 1);
	indent(out, level);
	fputs("}\n", out);
	arena_free(scratch);
}

void ir_print_func(FILE *out, const Func *f)
{
	print_func(out, f, 0);
}

/* ---- modules ---- */

static void print_var(FILE *out, const Var *v)
{
	static const char *const roles[] = { "param", "stat", "opt", "counter" };
	static const char *const inits[] = { "const", "uniform", "normal" };
	fputs("  var ", out);
	print_string(out, v->name);
	fputs(" : ", out);
	print_type(out, &v->type);
	print_offset(out, v->offset);
	fprintf(out, " %s%s init %s(", roles[v->role], v->frozen ? " frozen" : "", inits[v->init]);
	print_float(out, v->a, false);
	if (v->init != INIT_CONST) {
		fputs(", ", out);
		print_float(out, v->b, false);
	}
	fputc(')', out);
	if (v->stream || v->init != INIT_CONST)
		fprintf(out, " stream %" PRId32, v->stream);
	if (v->decay >= 0)
		fprintf(out, " decay %d", v->decay);
	if (v->group)
		fprintf(out, " group %" PRId32, v->group);
	fputc('\n', out);
}

static void print_section(FILE *out, const Section *s)
{
	fputs("  section ", out);
	print_name(out, s->kind);
	if (s->name[0] || s->type[0]) {
		fputc(' ', out);
		print_name(out, s->name);
	}
	if (s->type[0]) {
		fputc(' ', out);
		print_name(out, s->type);
	}
	fputs(" {", out);
	for (const Setting *x = s->first; x; x = x->next) {
		fputs(x == s->first ? "" : ", ", out);
		print_name(out, x->key);
		fputs(" = ", out);
		print_attr(out, x->kind, &x->value, true);
	}
	fputs("}\n", out);
}

void ir_print_module(FILE *out, const Module *m)
{
	fputs("module ", out);
	print_string(out, m->name);
	fprintf(out, " batch %" PRId64, m->batch);
	if (m->streams)
		fprintf(out, " streams %" PRId32, m->streams);
	fputs(" {\n", out);
	for (const Var *v = m->vars; v; v = v->next)
		print_var(out, v);
	for (const Section *s = m->sections; s; s = s->next)
		print_section(out, s);
	for (const Func *f = m->funcs; f; f = f->next) {
		fputs(f != m->funcs || m->vars || m->sections ? "\n" : "", out);
		print_func(out, f, 1);
	}
	fputs("}\n", out);
}

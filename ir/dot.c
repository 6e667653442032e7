/* A function as a Graphviz graph: dlc model.dl --emit=dot | dot -Tsvg.
 *
 * Kernels are records that list the ops of their body, loops are clusters, edges carry the bytes that they keep
 * alive, views are dashed, and what belongs to the backward pass or to the optimizer has a colour of its own. */
#include <inttypes.h>

#include "internal.h"

typedef struct Dot {
	FILE *out;
	const Diag *diag;
	Arena *scratch;
	Map names, boxes; /* boxes: Node to the number of its box */
} Dot;

/* Text within a quoted label: backslashes and quotes escaped, and what records treat as structure. */
static void print_label(FILE *out, const char *s)
{
	for (; *s; s++) {
		if (strchr("\"\\{}<>|", *s))
			fputc('\\', out);
		fputc((unsigned char)*s < 0x20 ? ' ' : *s, out);
	}
}

static const char *bytes_text(Arena *a, int64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double x = (double)bytes;
	int unit = 0;
	for (; x >= 1024 && unit < 6; unit++)
		x /= 1024;
	return arena_printf(a, unit && x < 100 ? "%.1f %s" : "%.0f %s", x, units[unit]);
}

static const char *color_of(const Node *n)
{
	if (n->replay_of)
		return "#f6d5a8";
	if (n->flags & NF_OPTIMIZER)
		return "#d9ccec";
	if (n->flags & NF_BACKWARD)
		return "#f3c9c9";
	return ir_ops[n->op].kind == K_LEAF ? "#e4e4e4" : "#cfe3f5";
}

static bool is_view(const Node *n)
{
	return n->nargs > 0 && n->nres == 1 && ir_is_view(n);
}

static int64_t box_of(Dot *d, const Node *n)
{
	int64_t id = (int64_t)d->boxes.len;
	if (!map_get(&d->boxes, n, &id))
		map_set(&d->boxes, n, id);
	return id;
}

/* The box that an operand comes from: a loop's parameters stand at its head, its results at its yield. */
static const Node *source_of(const Value *v)
{
	if (!v->def)
		return v->block->owner;
	return v->def->op == OP_loop && v->def->body->last ? v->def->body->last : v->def;
}

/* The first lines of a kernel's body, one op a line. */
static void print_kernel(Dot *d, const Block *b)
{
	enum { LINES = 12 };
	int line = 0;
	fputc('|', d->out);
	for (const Node *n = b->first; n && n->op != OP_yield; n = n->next, line++) {
		if (line == LINES) {
			fputs("...\\l", d->out);
			return;
		}
		char name[32];
		if (n->nres > 0)
			fprintf(d->out, "%s = ", ir_value_name(&d->names, n->res[0], name));
		fprintf(d->out, "%s", ir_ops[n->op].name);
		for (int i = 0; i < n->nargs; i++)
			fprintf(d->out, "%s%s", i ? ", " : " ", ir_value_name(&d->names, n->arg[i], name));
		fputs("\\l", d->out);
	}
}

static void print_box(Dot *d, const Node *n, int depth)
{
	char name[32];
	fprintf(d->out, "%*sn%" PRId64 " [label=\"{", 2 * depth, "", box_of(d, n));
	if (n->nres > 0)
		fprintf(d->out, "%s = ", ir_value_name(&d->names, n->res[0], name));
	fprintf(d->out, "%s%s", n->replay_of ? "again: " : "", ir_ops[n->op].name);
	for (int i = 0; i < op_attr_count(n->op); i++)
		if (ir_ops[n->op].attrs[i].kind == A_STR && n->attr[i].s[0]) {
			fputc(' ', d->out);
			print_label(d->out, n->attr[i].s);
		}
	for (int i = 0; i < n->nres; i++) {
		fputs(i ? ", " : "\\n", d->out);
		print_label(d->out, type_text(d->scratch, &n->res[i]->type, true));
	}
	if (n->op == OP_fused)
		print_kernel(d, n->body);
	if (n->work_bytes)
		fprintf(d->out, "|workspace %s", bytes_text(d->scratch, n->work_bytes));
	fprintf(d->out, "}\" fillcolor=\"%s\" tooltip=\"", color_of(n));
	print_label(d->out, diag_where(d->diag, d->scratch, n->span));
	fprintf(d->out, "\"%s];\n", is_view(n) ? " style=\"filled,dashed\"" : "");
}

static void print_edges(Dot *d, const Node *n, int depth)
{
	for (int i = 0; i < n->nargs; i++) {
		const Value *v = n->arg[i];
		fprintf(d->out, "%*sn%" PRId64 " -> n%" PRId64 " [label=\"%s\"%s];\n", 2 * depth, "",
			box_of(d, source_of(v)), box_of(d, n), bytes_text(d->scratch, type_bytes(&v->type)),
			is_view(n) ? " style=dashed" : "");
	}
}

static void print_block(Dot *d, const Block *b, int depth)
{
	for (const Node *n = b->first; n; n = n->next) {
		if (n->op != OP_loop) {
			print_box(d, n, depth);
			print_edges(d, n, depth);
			continue;
		}
		fprintf(d->out, "%*ssubgraph cluster_%" PRId64 " {\n", 2 * depth, "", box_of(d, n));
		fprintf(d->out, "%*slabel=\"%" PRId64 " times\"; color=\"#888888\";\n", 2 * depth + 2, "",
			ir_int(n, "trips"));
		print_box(d, n, depth + 1);
		print_block(d, n->body, depth + 1);
		fprintf(d->out, "%*s}\n", 2 * depth, "");
		print_edges(d, n, depth);
	}
}

void ir_print_dot(FILE *out, const Func *f)
{
	Arena *scratch = arena_new();
	Dot d = { out, f->module->diag, scratch, ir_value_names(scratch, f), { .arena = scratch } };
	fputs("digraph \"", out);
	print_label(out, f->name);
	fputs("\" {\n  rankdir=TB; node [shape=record style=filled fontname=\"Helvetica\" fontsize=10];\n"
	      "  edge [fontname=\"Helvetica\" fontsize=8 color=\"#555555\"];\n", out);
	print_block(&d, f->body, 1);
	fputs("}\n", out);
	arena_free(scratch);
}

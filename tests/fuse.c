/* Kernels that update variables in place, on random functions: what fuse makes of them reads what was there before.
 *
 *     fuse [GRAPHS] [SEED]
 *     fuse --print GRAPH SEED     the text of one graph, as a failure names it
 *
 * A function of an optimizer's kind: matrices, columns, rows, scalars and what is reduced from them, joined by element-wise ops and
 * broadcasts, some of it assigned to variables. After fuse, the plan checker's rule holds for each variable that a kernel
 * assigns and for each result that fuse_may_alias would let take an operand's bytes; and the reference interpreter finds the same
 * variables and outputs, bit for bit, as before. */
#include "codegen/backend.h"
#include "interp.h"
#include "passes/check_parts.h"
#include "passes/fuse.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>

/* Shapes of values, of a matrix of ROWS by COLS. */
enum { FULL, COLUMN, ROW, ROW1, ROWS_ONLY, SCALAR, SHAPES };
enum { VALUES = 64, OPS = 22, VARS = 7 };

static const char *const shape_text[SHAPES] = { "f32[4,6]", "f32[4,1]", "f32[6]", "f32[1,6]", "f32[4]", "f32[]" };

typedef struct Text {
	FILE *vars, *body;
	Random r;
	int n, shape[VALUES], view_of[VALUES]; /* view_of: the variable, -1 */
	bool assigned[VARS];
} Text;

typedef struct Test {
	const Capabilities *caps;
	int graph, passed, failed, kernels, nodes, assigns, aliases, beside;
	bool good;
} Test;

/* ---- functions ---- */

/* A value that may still be read. */
static int pick_value(Text *t)
{
	int v = pick(&t->r, t->n);
	while (t->view_of[v] >= 0 && t->assigned[t->view_of[v]])
		v = pick(&t->r, t->n);
	return v;
}

static int value(Text *t, int shape)
{
	t->view_of[t->n] = t->n < VARS ? t->n : -1;
	t->shape[t->n] = shape;
	return t->n++;
}

/* The shape of an element-wise op on two; -1: they do not match. */
static int joined(int a, int b)
{
	if (a == b || b == SCALAR)
		return a;
	if (a == SCALAR)
		return b;
	if (a == ROWS_ONLY || b == ROWS_ONLY)
		return -1;
	if ((a == ROW && b == ROW1) || (a == ROW1 && b == ROW))
		return ROW1;
	return FULL;
}

static void binary(Text *t)
{
	static const char *const op[] = { "add", "sub", "mul", "max" };
	int a = pick_value(t), b = pick_value(t), shape = joined(t->shape[a], t->shape[b]);

	if (shape < 0)
		return;
	fprintf(t->body, "    %%%d = %s %%%d, %%%d [optimizer] : %s\n", t->n, op[pick(&t->r, 4)], a, b, shape_text[shape]);
	value(t, shape);
}

static void unary(Text *t)
{
	static const char *const op[] = { "neg", "abs", "relu", "tanh" };
	int a = pick_value(t), shape = t->shape[a];

	fprintf(t->body, "    %%%d = %s %%%d [optimizer] : %s\n", t->n, op[pick(&t->r, 4)], a, shape_text[shape]);
	value(t, shape);
}

static void reduce(Text *t)
{
	static const char *const op[] = { "sum", "mean", "reduce_max" }, *const axes[] = { "0", "1", "0,1" };
	static const int kept[] = { ROW1, COLUMN, -1 }, dropped[] = { ROW, ROWS_ONLY, SCALAR };
	int a = pick_value(t), over = pick(&t->r, 3);
	bool keep = over < 2 && pick(&t->r, 2);

	for (int i = 0; i < 20 && t->shape[a] != FULL; i++)
		a = pick_value(t);
	if (t->shape[a] != FULL)
		return;
	fprintf(t->body, "    %%%d = %s %%%d {axes = [%s], keep = %s} [optimizer] : %s\n", t->n, op[pick(&t->r, 3)], a, axes[over],
		keep ? "true" : "false", shape_text[keep ? kept[over] : dropped[over]]);
	value(t, keep ? kept[over] : dropped[over]);
}

/* A reshape between a column and as many numbers, or a broadcast to a whole matrix. */
static void move(Text *t)
{
	int a = pick_value(t), shape = t->shape[a];

	if (shape == FULL)
		return;
	int to = shape == ROWS_ONLY ? COLUMN : shape == COLUMN && pick(&t->r, 2) ? ROWS_ONLY : FULL;
	fprintf(t->body, "    %%%d = %s %%%d [optimizer] : %s\n", t->n, to == FULL ? "broadcast" : "reshape", a, shape_text[to]);
	value(t, to);
	t->view_of[t->n - 1] = to == FULL ? -1 : t->view_of[a];
}

static void assign(Text *t)
{
	int var = pick(&t->r, VARS);

	for (int i = 0; i < 40 && !t->assigned[var]; i++) {
		int a = pick_value(t);
		if (a == var || t->shape[a] != t->shape[var])
			continue;
		fprintf(t->body, "    assign %%%d, %%%d [optimizer]\n", var, a);
		t->assigned[var] = true;
	}
}

static char *graph_text(int graph, int seed)
{
	static const int shape[VARS] = { FULL, FULL, COLUMN, COLUMN, ROW, ROWS_ONLY, SCALAR };
	char *body = NULL, *vars = NULL, *text = NULL;
	size_t size[3];
	Text t = { .vars = open_memstream(&vars, &size[0]), .body = open_memstream(&body, &size[1]),
		   .r = { (uint64_t)seed * 1000003u + (uint64_t)graph } };

	for (int i = 0; i < VARS; i++) {
		fprintf(t.vars, "  var \"v%d\" : %s param init uniform(-1, 1) stream %d\n", i, shape_text[shape[i]], i);
		fprintf(t.body, "    %%%d = var {name = \"v%d\"} : %s\n", i, i, shape_text[shape[i]]);
		value(&t, shape[i]);
	}
	for (int i = 0; i < OPS; i++) {
		int what = pick(&t.r, 10);
		(what < 4 ? binary : what < 5 ? unary : what < 7 ? reduce : what < 8 ? move : assign)(&t);
	}
	for (int i = 0; i < VARS; i++)
		assign(&t);
	for (int i = 0; i < 3; i++)
		fprintf(t.body, "    output %%%d {name = \"o%d\"} [optimizer]\n", pick_value(&t), i);
	fclose(t.vars);
	fclose(t.body);
	FILE *f = open_memstream(&text, &size[2]);
	fprintf(f, "module \"fuse\" batch 1 {\n%s\n  func @step batch 1 {\n%s  }\n}\n", vars, body);
	fclose(f);
	free(vars);
	free(body);
	return text;
}

/* ---- what holds ---- */

static void check(Test *t, bool good, const char *what, const char *why)
{
	if (!good && t->good)
		printf("FAIL graph %d: %s: %s\n", t->graph, what, why);
	t->good = t->good && good;
}

/* As the checker has them. */
static void number_body(const Block *b)
{
	int32_t id = 0;

	for (int i = 0; i < b->nparam; i++)
		b->param[i]->id = id++;
	for (const Node *n = b->first; n; n = n->next)
		for (int i = 0; i < n->nres; i++)
			n->res[i]->id = id++;
}

/* A variable's operand is stored to by the body's assign. */
static void check_kernel(Test *t, const Node *n)
{
	const Node *yield = n->body->last;

	number_body(n->body);

	for (const Node *k = n->body->first; k; k = k->next) {
		if (k->op != OP_assign)
			continue;
		Value *var = n->arg[k->arg[0]->index];
		for (int i = 0; i < n->nargs; i++) {
			const char *why = ir_view_root(n->arg[i], NULL) == var ? rule_inplace(n, i, k->arg[1]) : NULL;
			check(t, !why, "a kernel assigns a variable out of step", why);
		}
		t->assigns++;
	}
	for (int i = 0; i < n->nargs; i++)
		for (int k = 0; k < n->nres; k++) {
			if (!fuse_may_alias(n, i, k))
				continue;
			const char *why = rule_inplace(n, i, yield->arg[k]);
			check(t, !why, "a result may not take an operand's bytes", why);
			t->aliases++;
		}
}

static bool run(Test *t, Module *m, InterpEnv *env)
{
	*env = (InterpEnv){ .arena = m->arena, .seed = 5 };
	for (const Var *v = m->vars; v; v = v->next) {
		InterpSlot *s = interp_slot(env, &env->vars, v->name, &v->type);
		for (int64_t i = 0; i < type_elems(&v->type); i++)
			s->v[i] = (float)sin(1 + 1.7 * (double)i + 0.6 * v->stream);
	}
	bool good = interp_func(ir_find_func(m, "step"), env);
	check(t, good, "it does not run", env->error);
	return good;
}

static bool same(const InterpSlot *a, InterpSlot *list)
{
	const InterpSlot *b = interp_find(list, a->name);

	return b && memcmp(a->v, b->v, (size_t)type_elems(&a->type) * sizeof *a->v) == 0;
}

static bool always(int64_t rows, int64_t length, int sums)
{
	return rows > 0 && length > 0 && sums > 0;
}

/* Reductions along rows (last axis) and over them. */
static void count_reductions(const Node *fused, int *along, int *over)
{
	*along = *over = 0;
	for (const Node *k = fused->body->first; k; k = k->next) {
		const IntList *axes = ir_ops[k->op].kind == K_REDUCE ? ir_ints(k, "axes") : NULL;
		bool last = axes && axes->n == 0;
		for (int i = 0; axes && i < axes->n; i++)
			last = last || axes->v[i] == k->arg[0]->type.ndim - 1 || axes->v[i] == -1;
		*along += axes && last;
		*over += axes && !last;
	}
}

/* A kernel with sums over rows beside others: of its results the sums alone are kept, and their order with them. */
static void check_beside(Test *t, Module *m, Node *n)
{
	bool keep[16] = { false };
	int along, over, left;

	count_reductions(n, &along, &over);
	if (!along || !over || n->nres > 16)
		return;
	t->beside++;
	for (int i = 0; i < n->nres; i++) {
		const Node *def = n->body->last->arg[i]->def;
		keep[i] = def && def->op == OP_sum && type_elems(&def->res[0]->type) == 6;
	}
	fuse_trim(m, n, keep);
	count_reductions(n, &left, &over);
	check(t, left == along && over > 0, "a trimmed kernel's loop nest", "is no longer one of rows");
}

static void check_graph(Test *t, const char *text)
{
	Arena *a = arena_new();
	PassCtx cx = { .arena = a, .diag = diag_new(a, stdout, 5), .caps = t->caps };
	Module *m = ir_parse(a, cx.diag, "fuse.ir", text, strlen(text));
	InterpEnv before, after;

	t->good = true;
	check(t, m != NULL, "it cannot be read", "");
	if (m && run(t, m, &before)) {
		Func *f = ir_find_func(m, "step");

		check(t, fuse_func(f, &cx) && ir_verify(m, "fuse", stdout), "fuse", "failed");
		for (const Node *n = f->body->first; n; n = n->next) {
			if (n->op == OP_fused)
				check_kernel(t, n);
			t->kernels += n->op == OP_fused;
			for (const Node *k = n->op == OP_fused ? n->body->first : NULL; k; k = k->next)
				t->nodes++;
		}
		if (t->good && run(t, m, &after)) {
			for (const InterpSlot *s = before.vars; s; s = s->next)
				check(t, same(s, after.vars), "another value of the variable", s->name);
			for (const InterpSlot *s = before.outputs; s; s = s->next)
				check(t, same(s, after.outputs), "another value of the output", s->name);
		}
	}
	for (Node *n = m && t->good && t->caps->sums_beside_rows ? ir_find_func(m, "step")->body->first : NULL; n; n = n->next)
		if (n->op == OP_fused)
			check_beside(t, m, n);
	t->passed += t->good;
	t->failed += !t->good;
	arena_free(a);
}

int main(int argc, char **argv)
{
	bool print = argc == 4 && !strcmp(argv[1], "--print");
	int graphs = argc > 1 ? atoi(argv[1]) : 2000, seed = argc > 2 ? atoi(argv[2]) : 1;
	const Backend *cpu = backend_find("cpu");
	Capabilities caps = { .threads = 1, .strided_attention = cpu->strided_attention, .workspace = cpu->workspace,
		              .fusable = cpu->fusable, .accumulates = cpu->accumulates };
	Capabilities more = caps;
	Test t = { .caps = &caps };

	more.sums_beside_rows = always;
	if (print) {
		char *text = graph_text(atoi(argv[2]), atoi(argv[3]));
		fputs(text, stdout);
		free(text);
		return 0;
	}
	for (t.graph = 0; t.graph < graphs; t.graph++) {
		char *text = graph_text(t.graph, seed);
		check_graph(&t, text);
		t.caps = &more;
		check_graph(&t, text);
		t.caps = &caps;
		free(text);
	}
	/* Kernels of one op, without an assign, would say little. */
	if (t.beside < graphs / 200 || t.assigns < graphs || t.aliases < graphs || 2 * t.nodes < 5 * t.kernels) {
		printf("FAIL %d assigns in %d kernels of %d nodes, %d operands to take over, %d with sums over rows\n", t.assigns, t.kernels, t.nodes, t.aliases,
		       t.beside);
		t.failed++;
	}
	printf("%d kernels of %d nodes, %d assigns, %d operands to take over, %d with sums over rows\n", t.kernels, t.nodes, t.assigns, t.aliases, t.beside);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed > 0;
}

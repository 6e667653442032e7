/* Steps that are joined into one launch (codegen/group.h), on random functions whose values lie anywhere.
 *
 *     group [GRAPHS] [SEED]
 *
 * Values overlap at random, so that steps stop each other in every way. A step is taken for one that reads all bytes of its operands, and then
 * writes what depends on all of them: as the nodes are written, what each reads must be what it reads among the
 * joined steps, whichever member of a group comes first, and the memory must end the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../codegen/cuda.h"
#include "random.h"

enum { CELL = 64, CELLS = 48, ELEMS = 64, BYTES = ELEMS * 4, VARS = 6, STEPS = 40 };

typedef struct Test {
	int passed, failed, joined;
} Test;

static void check(Test *t, bool good, const char *what, int graph)
{
	t->passed += good;
	t->failed += !good;
	if (!good && t->failed < 10)
		printf("FAIL graph %d: %s\n", graph, what);
}

/* ---- functions ---- */

/* A place of a value: its own, where values are apart. */
static int place(Random *r, bool apart, int number)
{
	return CELL * (apart ? number * (BYTES / CELL) : pick(r, CELLS - BYTES / CELL));
}

/* A value, or a variable that has its old value still: there is no reading behind an assign. */
static int pick_operand(Random *r, int readable, unsigned assigned)
{
	int x = pick(r, readable);
	return x < VARS && assigned >> x & 1 ? VARS : x;
}

/* A kernel of one of four texts: a result of one value, or of two; or a variable that goes on with a value. */
static void write_step(FILE *f, Random *r, bool apart, int *values, unsigned *assigned)
{
	static const char *const unary[] = { "relu", "exp" };
	int kind = pick(r, apart ? 2 : 4), readable = apart ? VARS + 1 : *values, x = pick_operand(r, readable, *assigned);
	int y = pick_operand(r, readable, *assigned), var = pick(r, VARS);
	const char *type = "f32[64]";
	if (kind < 2)
		fprintf(f, "    %%%d = fused %%%d : %s @ 0x%x {\n      (%%a0 : %s)\n      %%b0 = %s %%a0 : %s\n      yield %%b0\n    }\n",
			*values, x, type, place(r, apart, *values), type, unary[kind], type);
	else if (kind == 2)
		fprintf(f, "    %%%d = fused %%%d, %%%d : %s @ 0x%x {\n      (%%a0 : %s, %%a1 : %s)\n      %%b0 = sub %%a0, %%a1 : %s\n"
			   "      yield %%b0\n    }\n", *values, x, x == y ? VARS : y, type, place(r, apart, *values), type, type, type);
	else if (!(*assigned >> var & 1))
		fprintf(f, "    fused %%%d, %%%d {\n      (%%a0 : %s, %%a1 : %s)\n      %%b0 = add %%a0, %%a1 : %s\n      assign %%a0, %%b0\n"
			   "      yield\n    }\n", var, VARS + pick(r, *values - VARS), type, type, type);
	*assigned |= kind == 3 ? 1u << var : 0;
	*values += kind < 3;
}

static char *write_module(Random *r, bool apart)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	int values = VARS + 1;
	unsigned assigned = 0;
	fprintf(f, "module \"random\" batch 1 {\n");
	for (int i = 0; i < VARS; i++)
		fprintf(f, "  var \"v%d\" : f32[64] @ 0x%x param init const(0)\n", i, place(r, apart, i));
	fprintf(f, "\n  func @step batch 1 {\n");
	for (int i = 0; i < VARS; i++)
		fprintf(f, "    %%%d = var {name = \"v%d\"} : f32[64]\n", i, i);
	fprintf(f, "    %%%d = input {name = \"d.x\"} : f32[64] @ 0x%x\n", VARS, place(r, apart, VARS));
	for (int i = 0; i < STEPS; i++)
		write_step(f, r, apart, &values, &assigned);
	fprintf(f, "    output %%%d {name = \"loss\"}\n  }\n}\n", values - 1);
	fclose(f);
	return text;
}

/* ---- what steps read ---- */

/* Cells of memory, each a number that stands for what has been written there. */
typedef struct Memory {
	uint64_t cell[STEPS * BYTES / CELL + CELLS];
} Memory;

static uint64_t mix(uint64_t h, uint64_t x) { return (h ^ x) * UINT64_C(0x9e3779b97f4a7c15) + (h >> 29); }

static uint64_t read_all(const Module *m, const Memory *mem, const Node *n)
{
	uint64_t h = (uint64_t)n->op;
	for (int i = 0; i < n->nargs; i++)
		for (int k = 0; k < BYTES / CELL; k++)
			h = mix(h, mem->cell[emit_offset(m, n->arg[i]) / CELL + k]);
	return h;
}

static void write_value(const Module *m, Memory *mem, const Value *v, uint64_t h)
{
	for (int k = 0; k < BYTES / CELL; k++)
		mem->cell[emit_offset(m, v) / CELL + k] = mix(h, (uint64_t)k);
}

/* What a node reads, kept by its number; it writes. */
static void run_node(const Module *m, Memory *mem, const Node *n, uint64_t *reads)
{
	uint64_t h = reads[n->pos] = read_all(m, mem, n);
	for (int i = 0; i < n->nres; i++)
		write_value(m, mem, n->res[i], h + (uint64_t)i);
	for (const Node *x = n->body ? n->body->first : NULL; x; x = x->next)
		if (x->op == OP_assign)
			write_value(m, mem, n->arg[0], h + 99);
}

static void run_joined(const Module *m, Memory *mem, const EmitFunc *f, bool backwards, uint64_t *reads)
{
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		for (int k = 0; k < s->nmembers; k++)
			run_node(m, mem, s->member[backwards ? s->nmembers - 1 - k : k].node, reads);
		if (!s->nmembers)
			run_node(m, mem, s->node, reads);
	}
}

static int kernels_of(const EmitFunc *f)
{
	int n = 0;
	for (size_t i = 0; i < f->steps.len; i++)
		n += f->steps.at[i].kind == PLAN_KERNEL;
	return n;
}

static void check_graph(Test *t, int graph, Random *r, bool apart)
{
	Arena *a = arena_new();
	Diag *diag = diag_new(a, stdout, 5);
	char *text = write_module(r, apart);
	Module *m = ir_parse(a, diag, "random.ir", text, strlen(text));
	const Emit *e = m ? emit_module(a, m, &cuda_printer, "sm_90") : NULL;
	check(t, e != NULL, "it cannot be emitted", graph);
	if (e) {
		const Func *f = m->funcs;
		const EmitFunc *ef = &e->funcs.at[0];
		uint64_t want[3 * STEPS] = { 0 }, got[3 * STEPS];
		int nodes = 0;
		Memory start, end;
		for (size_t i = 0; i < sizeof start.cell / sizeof *start.cell; i++)
			start.cell[i] = i;
		end = start;
		for (Node *n = f->body->first; n; n = n->next) {
			n->pos = nodes++;
			if (n->op != OP_var)
				run_node(m, &end, n, want);
			t->joined += n->op == OP_fused;
		}
		for (int backwards = 0; backwards < 2; backwards++) {
			Memory mem = start;
			memset(got, 0, sizeof got);
			run_joined(m, &mem, ef, backwards, got);
			check(t, memcmp(want, got, sizeof want) == 0, "a step reads something else", graph);
			check(t, memcmp(&mem, &end, sizeof mem) == 0, "something else is left", graph);
		}
		t->joined -= kernels_of(ef);
		check(t, !apart || kernels_of(ef) <= 2, "equal kernels are not one launch each", graph);
	}
	arena_free(a);
	free(text);
}

int main(int argc, char **argv)
{
	int graphs = argc > 1 ? atoi(argv[1]) : 300;
	Random r = { argc > 2 ? (uint64_t)atoi(argv[2]) : 1 };
	Test t = { 0 };
	for (int i = 0; i < graphs; i++)
		check_graph(&t, i, &r, i % 10 == 0);
	check(&t, t.joined > graphs, "too little is joined for this to show anything", graphs);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed > 0;
}

/* The plan checker against a simple machine: random small programs with random places are executed cell by cell (a cell
 * is 64 bytes; loops run all their trips), and both must agree on whether the places are sound.
 *
 *     check_plan_random [PROGRAMS] [SEED]
 *
 * The programs have two variables, opaque ops (no result over an operand), kernels that may work in place, views of
 * part of a value, one loop with a carried sum, updates, outputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/ir.h"
#include "../passes/check_plan.h"
#include "random.h"

enum { CELL = 64, CELLS = 14, NVARS = 2, TRIPS = 4, MAX_VALUES = 64 };

/* ---- a program ---- */

typedef struct Program {
	Random r;
	Module *m;
	Builder b;
	Value *value[MAX_VALUES]; /* in scope */
	int n;
	int tight; /* arenas of fewer cells make more faults */
} Program;

static Type cells_type(int cells)
{
	return type_make(DT_F32, 1, (int64_t[]){ 16 * cells });
}

static int cells_of(const Value *v)
{
	return (int)(type_bytes(&v->type) / CELL);
}

static void place(Program *p, Value *v)
{
	v->offset = CELL * (NVARS + pick(&p->r, CELLS - NVARS - cells_of(v) + 1 - p->tight));
}

static void in_scope(Program *p, Value *v)
{
	if (p->n < MAX_VALUES)
		p->value[p->n++] = v;
}

static Value *any(Program *p)
{
	return p->value[pick(&p->r, p->n)];
}

static Node *opaque(Program *p)
{
	Value *arg[3];
	Type res[2];
	int nargs = pick(&p->r, 3), nres = 1 + pick(&p->r, 2);
	Node *n;

	for (int i = 0; i < nargs; i++)
		arg[i] = any(p);
	for (int i = 0; i < nres; i++)
		res[i] = cells_type(1 + pick(&p->r, 3));
	n = ir_region(&p->b, OP_opaque, nargs, arg, NULL, nres, res);
	for (int i = 0; i < nres; i++) {
		place(p, n->res[i]);
		in_scope(p, n->res[i]);
	}
	if (pick(&p->r, 3) == 0) {
		n->work_bytes = CELL * (1 + pick(&p->r, 2));
		n->work_offset = CELL * (NVARS + pick(&p->r, CELLS - NVARS - 2));
	}
	return n;
}

/* yield relu(x), and with `var` also: assign var, x (of the same size). */
static Node *kernel(Program *p, Value *x, Value *var)
{
	Value *arg[2] = { x, var }, *y;
	Node *n = ir_region(&p->b, OP_fused, var ? 2 : 1, arg, NULL, 1, &x->type);
	Builder in = ir_builder(p->m, n->body);

	for (int i = 0; i < n->nargs; i++)
		ir_block_param(p->m, n->body, arg[i]->type);
	y = ir_unary(&in, OP_relu, n->body->param[0]);
	if (var)
		ir_assign(&in, n->body->param[1], n->body->param[0]);
	ir_region(&in, OP_yield, 1, &y, NULL, 0, NULL);
	if (pick(&p->r, 2) && x->offset >= CELL * NVARS)
		n->res[0]->offset = x->offset;
	else
		place(p, n->res[0]);
	in_scope(p, n->res[0]);
	return n;
}

static void view(Program *p)
{
	Value *x = any(p);
	int cells = cells_of(x), from = pick(&p->r, cells), to = from + 1 + pick(&p->r, cells - from);
	Value *v = ir_slice(&p->b, x, 0, 16 * from, 16 * to);

	v->offset = x->offset + CELL * from;
	in_scope(p, v);
}

static void some_nodes(Program *p, int count)
{
	for (int i = 0; i < count; i++) {
		int what = pick(&p->r, 8);

		if (what < 4)
			opaque(p);
		else if (what < 7)
			kernel(p, any(p), NULL);
		else
			view(p);
	}
}

static void loop(Program *p)
{
	Type t = cells_type(1 + pick(&p->r, 2));
	const Attr trips[] = { { .i = TRIPS }, { .i = 1 }, { .i = 0 } };
	Value *start, *next;
	Node *zero, *n;
	Builder outer = p->b;
	int before = p->n;

	zero = ir_region(&p->b, OP_opaque, 0, NULL, NULL, 1, &t);
	start = zero->res[0];
	place(p, start);
	n = ir_region(&p->b, OP_loop, 1, &start, trips, 1, &t);
	in_scope(p, ir_block_param(p->m, n->body, t));
	n->body->param[0]->offset = start->offset;
	p->b = ir_builder(p->m, n->body);
	some_nodes(p, 1 + pick(&p->r, 3));
	next = kernel(p, n->body->param[0], NULL)->res[0];
	next->offset = start->offset;
	some_nodes(p, pick(&p->r, 2));
	ir_region(&p->b, OP_yield, 1, &next, NULL, 0, NULL);
	p->b = outer;
	p->n = before;
	n->res[0]->offset = start->offset;
	in_scope(p, n->res[0]);
}

static void make_program(Program *p)
{
	Value *var[NVARS];

	for (int i = 0; i < NVARS; i++) {
		Var *v = ir_var_new(p->m, i ? "v" : "w", cells_type(1), VAR_PARAM);

		v->offset = CELL * i;
		var[i] = ir_var(&p->b, v);
		var[i]->offset = v->offset;
		in_scope(p, var[i]);
	}
	some_nodes(p, 1 + pick(&p->r, 4));
	if (pick(&p->r, 2))
		loop(p);
	some_nodes(p, pick(&p->r, 3));
	ir_output(&p->b, "loss", any(p));
	if (pick(&p->r, 2)) {
		Value *x = any(p);

		if (cells_of(x) == 1 && !(x->def && x->def->op == OP_var))
			kernel(p, x, var[pick(&p->r, NVARS)]);
	}
	some_nodes(p, pick(&p->r, 2));
}

/* ---- the machine ---- */

typedef struct Machine {
	int cell[CELLS + 4];
	int content[1024]; /* by Value.id: what the value was given when it was defined */
	int var[NVARS];
	bool assigned[NVARS];
	int next;
	bool sound;
	const Value *kept;
	int kept_content;
} Machine;

static int var_index(const Value *v)
{
	while (v->def && v->def->op == OP_slice)
		v = v->def->arg[0];
	return v->def && v->def->op == OP_var ? (int)(v->offset / CELL) : -1;
}

static void read_cells(Machine *c, const Value *v, int content)
{
	for (int i = 0; i < cells_of(v); i++)
		if (c->cell[v->offset / CELL + i] != content)
			c->sound = false;
}

static int expected(Machine *c, const Value *v)
{
	return var_index(v) >= 0 ? c->var[var_index(v)] : c->content[v->id];
}

static void read_value(Machine *c, const Value *v)
{
	if (var_index(v) >= 0 && c->assigned[var_index(v)])
		c->sound = false;
	read_cells(c, v, expected(c, v));
}

static bool overlap(int64_t a, int64_t na, int64_t b, int64_t nb)
{
	return a < b + nb && b < a + na;
}

static void run_node(Machine *c, const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		read_value(c, n->arg[i]);
	for (int i = 0; i < n->nres; i++) {
		const Value *r = n->res[i];
		int64_t nr = type_bytes(&r->type);

		for (int j = 0; j < n->nargs; j++)
			if (overlap(r->offset, nr, n->arg[j]->offset, type_bytes(&n->arg[j]->type)) &&
			    !(n->op == OP_fused && j == 0 && r->offset == n->arg[j]->offset))
				c->sound = false;
		for (int j = 0; j < i; j++)
			if (overlap(r->offset, nr, n->res[j]->offset, type_bytes(&n->res[j]->type)))
				c->sound = false;
		if (n->work_bytes && overlap(r->offset, nr, n->work_offset, n->work_bytes))
			c->sound = false;
	}
	for (int i = 0; i < n->nargs; i++)
		if (n->work_bytes && overlap(n->work_offset, n->work_bytes, n->arg[i]->offset, type_bytes(&n->arg[i]->type)))
			c->sound = false;
	for (int64_t i = 0; i < n->work_bytes / CELL; i++)
		c->cell[n->work_offset / CELL + i] = -1;
	for (int i = 0; i < n->nres; i++) {
		c->content[n->res[i]->id] = ++c->next;
		for (int k = 0; k < cells_of(n->res[i]); k++)
			c->cell[n->res[i]->offset / CELL + k] = c->next;
	}
	if (n->op == OP_fused && n->nargs == 2) {
		int v = var_index(n->arg[1]);

		c->cell[v] = c->var[v] = ++c->next;
		c->assigned[v] = true;
	}
}

static void run_block(Machine *c, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		if (n->op == OP_var || n->op == OP_yield)
			continue;
		if (n->op == OP_slice) {
			c->content[n->res[0]->id] = expected(c, n->arg[0]);
		} else if (n->op == OP_output) {
			read_value(c, n->arg[0]);
			c->kept = n->arg[0];
			c->kept_content = expected(c, n->arg[0]);
		} else if (n->op == OP_loop) {
			const Value *from = n->arg[0];

			for (int trip = 0; trip < TRIPS; trip++) {
				read_value(c, from);
				c->content[n->body->param[0]->id] = expected(c, from);
				run_block(c, n->body);
				from = n->body->last->arg[0];
			}
			read_value(c, from);
			c->content[n->res[0]->id] = expected(c, from);
		} else {
			run_node(c, n);
		}
	}
}

static bool run_machine(Func *f)
{
	Machine *c = calloc(1, sizeof *c);
	bool sound;

	c->sound = true;
	ir_number(f, NULL);
	for (int i = 0; i < NVARS; i++)
		c->cell[i] = c->var[i] = ++c->next;
	run_block(c, f->body);
	if (c->kept)
		read_cells(c, c->kept, c->kept_content);
	for (int i = 0; i < NVARS; i++)
		if (c->cell[i] != c->var[i])
			c->sound = false;
	sound = c->sound;
	free(c);
	return sound;
}

int main(int argc, char **argv)
{
	int programs = argc > 1 ? atoi(argv[1]) : 20000, seed = argc > 2 ? atoi(argv[2]) : 1;
	int sound = 0, failed = 0;

	for (int i = 0; i < programs; i++) {
		Arena *a = arena_new();
		Program *p = ARENA_NEW(a, Program);
		char *said = NULL;
		size_t size = 0;
		FILE *out = open_memstream(&said, &size);
		Func *f;
		bool machine, checker;

		p->r.state = (uint64_t)seed << 32 | (uint64_t)i;
		pick(&p->r, 2);
		p->m = ir_module(a, diag_new(a, stderr, 0), "random", TRIPS);
		f = ir_func(p->m, "step");
		f->batch = TRIPS;
		f->arena_bytes = CELL * CELLS;
		p->b = ir_builder(p->m, f->body);
		p->tight = pick(&p->r, 3) * 2;
		make_program(p);
		machine = run_machine(f);
		checker = check_plan(p->m, INT64_MAX, out);
		fclose(out);
		sound += machine;
		if (machine != checker && failed++ < 3) {
			printf("FAIL program %d of seed %d: the machine finds it %s, the checker says\n%s", i, seed,
			       machine ? "sound" : "wrong", checker ? "nothing\n" : said);
			ir_print_module(stdout, p->m);
		}
		free(said);
		arena_free(a);
	}
	/* Both kinds must have been met often, or the test says nothing. */
	if (sound < programs / 20 || sound > programs * 19 / 20) {
		printf("FAIL %d of %d programs are sound, expected between 5 and 95 %%\n", sound, programs);
		failed++;
	}
	printf("%d of %d random programs have sound places\n", sound, programs);
	printf("%d passed, %d failed\n", failed ? 0 : 1, failed);
	return failed > 0;
}

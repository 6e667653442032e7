/* Joins steps that run the same kernel: the updates of all parameters, casts of all weights, zero fills of all sums become
 * one launch each, whose blocks find out whose elements they compute (KernelPrinter.group).
 *
 *   before:  k3 (w1)  k7  k3 (w2)  k3 (b1)        after:  k3 of (w1, w2, b1)  k7
 *
 * Method. In a stretch of steps without a loop's start or end or an output, each step that may join goes back to the last group
 * of its kernel, past all steps in between; where one of those stops it, that group comes forward to the step,
 * where nothing stops it. Two steps stop each other where both touch a byte and one of them writes it. The bytes are all of
 * an operand's storage, whatever part of it the step reads.
 *
 * Invariants. Steps that share a byte which one of them writes keep their order, and are never in one group. So every
 * load gives the same bits as before, no value lives longer or elsewhere than planned, and numbers do not depend on what was joined. */
#include "group.h"

#include <assert.h>

#include "print.h"

enum { MOST_NUMBERS = 500 }; /* of off[]: parameters of a kernel are at most 4096 bytes, two pointers among them */

typedef struct Range {
	int64_t lo, hi;
	bool written;
} Range;

typedef struct Touched {
	Range *at;
	int n;
} Touched;

/* One step to be, or several in one. */
typedef struct Entry {
	int kernel; /* that others may join; -1 */
	VEC(int) members; /* steps of the function, by number */
	int64_t blocks;
} Entry;

typedef struct Grouper {
	Emit *e;
	EmitFunc *f;
	Touched *touched; /* by step */
	VEC(Entry *) list;
	size_t start; /* of the stretch, in list */
} Grouper;

/* ---- bytes ---- */

static bool assigns(const Node *n, int arg)
{
	if (n->op == OP_assign)
		return arg == 0;
	for (const Node *x = n->op == OP_fused ? n->body->first : NULL; x; x = x->next)
		if (x->op == OP_assign && x->arg[0] == n->body->param[arg])
			return true;
	return false;
}

static Range storage(const Emit *e, Value *v, bool written)
{
	const Value *root = ir_view_root(v, NULL);
	int64_t at = emit_offset(e->m, root);
	return (Range){ at, at + type_bytes(&root->type), written };
}

static Touched touched_by(const Emit *e, const Node *n)
{
	Touched t = { .at = ARENA_ARRAY(e->a, n->nargs + n->nres + 1, Range) };
	/* A copy writes up to its end; host memory is no part of the arena. */
	for (int i = 0; i < n->nargs; i++)
		if (!ir_in_host(n->arg[i]))
			t.at[t.n++] = storage(e, n->arg[i], n->op == OP_fetched || assigns(n, i));
	for (int i = 0; i < n->nres; i++)
		if (!ir_in_host(n->res[i]))
			t.at[t.n++] = storage(e, n->res[i], true);
	if (n->work_bytes > 0)
		t.at[t.n++] = (Range){ n->work_offset, n->work_offset + n->work_bytes, true };
	return t;
}

static bool meet(const Touched *a, const Touched *b)
{
	for (int i = 0; i < a->n; i++)
		for (int k = 0; k < b->n; k++)
			if ((a->at[i].written || b->at[k].written) && a->at[i].lo < b->at[k].hi && b->at[k].lo < a->at[i].hi)
				return true;
	return false;
}

static bool step_meets(const Grouper *g, int step, const Entry *x)
{
	for (size_t i = 0; i < x->members.len; i++)
		if (meet(&g->touched[step], &g->touched[x->members.at[i]]))
			return true;
	return false;
}

/* ---- joining ---- */

static int numbers_of(const Emit *e, const EmitStep *s)
{
	int64_t *stream = NULL;
	return kernel_own_numbers(s->node) + 1 + kernel_streams(e->a, s->node, &stream) + 1;
}

static bool has_room(const Grouper *g, const Entry *x, const EmitStep *s)
{
	return ((int)x->members.len + 1) * numbers_of(g->e, s) <= MOST_NUMBERS && x->blocks + s->launch[0].grid[0] <= INT32_MAX;
}

/* The place of the last group of the step's kernel in this stretch; -1. */
static int last_group(const Grouper *g, const EmitStep *s)
{
	for (size_t i = g->list.len; i > g->start; i--)
		if (g->list.at[i - 1]->kernel == s->index)
			return (int)i - 1;
	return -1;
}

/* Whether a step may go before, or a group behind, all that is behind a place. */
static bool step_passes(const Grouper *g, int step, int place)
{
	for (size_t i = (size_t)place + 1; i < g->list.len; i++)
		if (step_meets(g, step, g->list.at[i]))
			return false;
	return true;
}

static bool group_passes(const Grouper *g, const Entry *x, int place)
{
	for (size_t i = 0; i < x->members.len; i++)
		if (!step_passes(g, x->members.at[i], place))
			return false;
	return true;
}

static void bring_forward(Grouper *g, int place)
{
	Entry *x = g->list.at[place];
	for (size_t i = (size_t)place + 1; i < g->list.len; i++)
		g->list.at[i - 1] = g->list.at[i];
	g->list.at[g->list.len - 1] = x;
}

static bool join(Grouper *g, int step)
{
	const EmitStep *s = &g->f->steps.at[step];
	int place = last_group(g, s);
	if (place < 0 || !has_room(g, g->list.at[place], s) || step_meets(g, step, g->list.at[place]))
		return false;
	Entry *x = g->list.at[place];
	if (!step_passes(g, step, place)) {
		if (!group_passes(g, x, place))
			return false;
		bring_forward(g, place);
	}
	vec_push(g->e->a, &x->members, step);
	x->blocks += s->launch[0].grid[0];
	return true;
}

static void add_step(Grouper *g, int step)
{
	const EmitStep *s = &g->f->steps.at[step];
	bool fixed = s->kind == PLAN_LOOP || s->kind == PLAN_END || s->kind == PLAN_OUTPUT;
	if (!fixed)
		g->touched[step] = touched_by(g->e, s->node);
	if (s->joins && join(g, step))
		return;
	Entry *x = ARENA_NEW(g->e->a, Entry);
	*x = (Entry){ .kernel = s->joins ? s->index : -1, .blocks = s->joins ? s->launch[0].grid[0] : 0 };
	vec_push(g->e->a, &x->members, step);
	vec_push(g->e->a, &g->list, x);
	if (fixed)
		g->start = g->list.len;
}

/* ---- steps ---- */

static EmitStep grouped(Grouper *g, const Entry *x)
{
	Emit *e = g->e;
	int n = (int)x->members.len;
	EmitStep *member = ARENA_ARRAY(e->a, n, EmitStep);
	for (int i = 0; i < n; i++)
		member[i] = g->f->steps.at[x->members.at[i]];
	EmitStep s = member[0];
	const Loop *l = loop_build(e->a, s.node, s.micro);
	KernelText text = e->printer->group(e->a, s.node, l, s.micro, n);
	assert(text.nlaunch == 1);
	PlanLaunch *launch = ARENA_NEW(e->a, PlanLaunch);
	*launch = text.launch[0];
	launch->grid[0] = (uint32_t)x->blocks;
	s.index = emit_kernel(e, s.node, text.text, false);
	s.launch = launch;
	s.member = member;
	s.nmembers = n;
	return s;
}

static void group_func(Emit *e, EmitFunc *f)
{
	Grouper g = { .e = e, .f = f, .touched = ARENA_ARRAY(e->a, f->steps.len, Touched) };
	for (size_t i = 0; i < f->steps.len; i++)
		add_step(&g, (int)i);
	EmitStep *step = ARENA_ARRAY(e->a, g.list.len, EmitStep);
	for (size_t i = 0; i < g.list.len; i++) {
		const Entry *x = g.list.at[i];
		step[i] = x->members.len > 1 ? grouped(&g, x) : f->steps.at[x->members.at[0]];
	}
	f->steps.at = step;
	f->steps.len = f->steps.cap = g.list.len;
}

static void drop_unused(Emit *e)
{
	int32_t *number = ARENA_ARRAY(e->a, e->kernels.len + 1, int32_t);
	int32_t kept = 0;
	for (size_t i = 0; i < e->funcs.len; i++)
		for (size_t k = 0; k < e->funcs.at[i].steps.len; k++)
			if (e->funcs.at[i].steps.at[k].kind == PLAN_KERNEL)
				number[e->funcs.at[i].steps.at[k].index] = 1;
	for (size_t i = 0; i < e->kernels.len; i++)
		if (number[i]) {
			number[i] = kept;
			e->kernels.at[kept++] = e->kernels.at[i];
		}
	e->kernels.len = (size_t)kept;
	for (size_t i = 0; i < e->funcs.len; i++)
		for (size_t k = 0; k < e->funcs.at[i].steps.len; k++) {
			EmitStep *s = &e->funcs.at[i].steps.at[k];
			s->index = s->kind == PLAN_KERNEL ? number[s->index] : s->index;
		}
}

void group_steps(Emit *e)
{
	if (!e->printer->group)
		return;
	for (size_t i = 0; i < e->funcs.len; i++)
		group_func(e, &e->funcs.at[i]);
	drop_unused(e);
	e->table_size = 0; /* it has the old numbers */
}

/* The state of the recompute search, its trajectories and the bound on them, on random graphs.
 *
 *     stages [GRAPHS] [SEED]
 *
 * A graph has ops with several results and workspaces, long and short gaps, and some that may not run again. Gaps are flipped at
 * random, and values replayed early: the state's peak and seconds must be what timeline_lives counts for the plan that it stands for, what
 * stages_try foretold must come, undoing must lead back, and the plan, loaded, must give the state again. Then each plan of the trajectory is measured, and none may beat the bound. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/ir.h"
#include "../passes/bound.h"
#include "../passes/machine.h"
#include "../passes/recompute.h"
#include "../passes/stages.h"
#include "random.h"

typedef struct Test {
	int passed, failed;
} Test;

static void check(Test *t, bool good, const char *what, int graph)
{
	t->passed += good;
	t->failed += !good;
	if (!good)
		printf("FAIL graph %d: %s\n", graph, what);
}

/* ---- graphs ---- */

/* Ops that mostly read recent results, then as many that read them from the last to the first, as a backward pass does. */
static Func *make_graph(Arena *a, Random *r)
{
	Module *m = ir_module(a, diag_new(a, stderr, 20), "random", 1);
	Func *f = ir_func(m, "step");
	Builder b = ir_builder(m, f->body);
	Value *value[256];
	int n = 0, ops = 4 + pick(r, 24);

	for (int i = 0; i < 2 * ops && n < 250; i++) {
		Value *arg[3];
		Type res[3];
		Attr attr[8];
		int nargs = 0, nres = 1 + (pick(r, 4) == 0) + (pick(r, 8) == 0);
		Node *node;

		if (i >= ops && n > 1)
			arg[nargs++] = value[n - 1];
		if (i > 0)
			arg[nargs++] = i < ops ? value[n - 1 - pick(r, n < 3 ? n : 3)] : value[(2 * ops - 1 - i) * n / (2 * ops)];
		if (i > 0 && pick(r, 3) == 0)
			arg[nargs++] = value[pick(r, n)];
		for (int k = 0; k < nres; k++)
			res[k] = type_make(DT_F32, 1, (int64_t[]){ 16 * (1 + pick(r, 8)) });
		op_attr_defaults(OP_opaque, attr);
		attr[op_attr_find(OP_opaque, "name", 4)].s = "f";
		attr[op_attr_find(OP_opaque, "seconds", 7)].f = 1e-3 * (1 + pick(r, 9));
		attr[op_attr_find(OP_opaque, "remat", 5)].i = pick(r, 12) != 0;
		node = ir_region(&b, OP_opaque, nargs, arg, attr, nres, res);
		node->work_bytes = pick(r, 4) == 0 ? 64 * pick(r, 20) : 0;
		for (int k = 0; k < nres; k++)
			value[n++] = node->res[k];
	}
	return f;
}

/* ---- the state ---- */

/* The plan that the state stands for, measured. */
static TPlan plan_of(const Stages *s, Arena *a)
{
	TPlan p = { .step = ARENA_ARRAY(a, 1 << 16, TStep) };

	for (int32_t i = 0; i < s->t->nops; i++) {
		for (int32_t k = 0; k < s->stage[i].n; k++)
			p.step[p.nsteps++] = s->stage[i].step[k];
		p.step[p.nsteps++] = (TStep){ .op = i, .wanted = UINT32_MAX };
	}
	timeline_lives(s->t, a, &p, NULL);
	return p;
}

static double seconds_of(const Timeline *t)
{
	double sum = 0;

	for (int32_t i = 0; i < t->nops; i++)
		sum += t->op[i].seconds;
	return sum;
}

/* Flips a random gap; false where there is none to flip. */
static bool flip(Test *t, Stages *s, Random *r, int graph)
{
	int32_t buf = pick(r, s->t->nbufs), i;
	double seconds = s->seconds;
	int64_t top = stages_peak(s);
	Effect e;

	if (s->buf[buf].n < 2)
		return false;
	i = pick(r, s->buf[buf].n - 1);
	if (!stages_try(s, buf, i, top, &e))
		return false;
	check(t, stages_peak(s) == top && s->seconds <= seconds && s->seconds >= seconds, "a look changes nothing", graph);
	if (!stages_flip(s, buf, i)) {
		check(t, stages_peak(s) == top && s->seconds <= seconds && s->seconds >= seconds, "a flip that fails changes nothing", graph);
		return false;
	}
	check(t, s->seconds <= seconds + e.seconds + 1e-9, "seconds are what was foretold, or fewer", graph);
	return true;
}

/* Replays a random buffer early, within a random gap that is not held; false where there is none, or it cannot be done. */
static bool start(Test *t, Stages *s, Random *r, int graph)
{
	int32_t buf = pick(r, s->t->nbufs), i, left, right;
	double seconds = s->seconds;
	int64_t top = stages_peak(s);

	if (s->buf[buf].n < 2)
		return false;
	i = pick(r, s->buf[buf].n - 1);
	left = s->buf[buf].at[i].stage;
	right = s->buf[buf].at[i + 1].stage;
	if (s->buf[buf].at[i].held || right == left + 1)
		return false;
	if (stages_start(s, buf, left + 1 + pick(r, right - left - 1)))
		return true;
	check(t, stages_peak(s) == top && s->seconds <= seconds && s->seconds >= seconds, "a start that fails changes nothing", graph);
	return false;
}

/* The plan of a state, loaded, is that state again: the same bundles and what is held. */
static void reload(Test *t, const Stages *s, Arena *a, int graph)
{
	TPlan p = plan_of(s, a);
	Stages *again = stages_of(s->t, a, &p);
	bool same = true;

	for (int32_t b = 0; b < s->t->nbufs; b++) {
		same &= s->buf[b].n == again->buf[b].n;
		for (int32_t i = 0; same && i < s->buf[b].n; i++)
			same &= s->buf[b].at[i].stage == again->buf[b].at[i].stage && s->buf[b].at[i].held == again->buf[b].at[i].held;
	}
	check(t, same, "a plan that is loaded holds what it held", graph);
	check(t, plan_of(again, a).live_bytes == stages_peak(again), "the peak of a plan that is loaded", graph);
	check(t, fabs(s->seconds - again->seconds) < 1e-9, "the seconds of a plan that is loaded", graph);
}

static void flip_some(Test *t, const Timeline *tl, Random *r, int graph)
{
	Arena *a = arena_new();
	Stages *s = stages_new(tl, a);
	double plain = seconds_of(tl);

	check(t, stages_peak(s) == plan_of(s, a).live_bytes, "the peak without replays", graph);
	for (int k = 0; k < 40; k++) {
		size_t now = stages_now(s);
		int64_t peak = stages_peak(s);
		double seconds = s->seconds;
		TPlan p;

		if (!(pick(r, 3) ? flip(t, s, r, graph) : start(t, s, r, graph)))
			continue;
		p = plan_of(s, a);
		check(t, p.live_bytes == stages_peak(s), "the peak of the state is the plan's", graph);
		check(t, fabs(p.seconds - plain - s->seconds) < 1e-9, "the seconds of the state are the plan's", graph);
		if (pick(r, 3) == 0) {
			stages_undo(s, now);
			check(t, stages_peak(s) == peak && fabs(s->seconds - seconds) < 1e-12 &&
			         plan_of(s, a).live_bytes == peak, "undone", graph);
		} else if (pick(r, 3) == 0) {
			stages_keep(s);
		}
		if (pick(r, 8) == 0)
			reload(t, s, a, graph);
	}
	arena_free(a);
}

/* ---- trajectories ---- */

static void walk_trajectory(Test *t, const Timeline *tl, int graph)
{
	Arena *a = arena_new();
	Trajectory tr = recompute_trajectory(tl, a, INFINITY, RECOMPUTE_WORK);
	double plain = seconds_of(tl);

	check(t, tr.n > 0 && tr.plan[0].seconds <= plain + 1e-9, "the first plan runs no operation twice", graph);
	for (int32_t k = 0; k < tr.n; k++) {
		TPlan p = recompute_plan(&tr, k, a);
		double least;

		timeline_lives(tl, a, &p, NULL);
		check(t, p.live_bytes == tr.plan[k].live_bytes && fabs(p.seconds - tr.plan[k].seconds) < 1e-9,
		      "a plan is what it says", graph);
		check(t, k == 0 || (tr.plan[k].live_bytes < tr.plan[k - 1].live_bytes &&
		                    tr.plan[k].seconds >= tr.plan[k - 1].seconds), "plans are in order", graph);
		if (recompute_moves(&tr, k))
			continue; /* the bound knows no operation that runs later than where it stands */
		least = bound_replay_seconds(tl, a, p.live_bytes, p.seconds - plain);
		check(t, least <= p.seconds - plain + 1e-9, "no plan beats the bound", graph);
	}
	arena_free(a);
}

int main(int argc, char **argv)
{
	int graphs = argc > 1 ? atoi(argv[1]) : 60;
	Random r = { argc > 2 ? (uint64_t)atoll(argv[2]) : 1 };
	Test t = { 0 };

	for (int g = 0; g < graphs; g++) {
		Arena *a = arena_new();
		Func *f = make_graph(a, &r);
		PassCtx cx = { .arena = a, .machine = machine_builtin(a, "generic-cpu") };
		Timeline *tl = timeline_build(a, f, &cx);

		flip_some(&t, tl, &r, g);
		if (g % 4 == 0)
			walk_trajectory(&t, tl, g);
		arena_free(a);
	}
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed > 0;
}

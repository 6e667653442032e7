/* The planner (see planner.h).
 *
 * Method: each candidate, a micro-batch and a number of chunks of its head (candidates.c), gets a copy of the step, lowered as far as
 * execution order, and one trajectory of plans from no replay to the smallest reachable peak (recompute.c). All plans of all trajectories are
 * ordered by predicted seconds; the answer for a budget is the first whose placed arena fits (choices.c).
 *
 * Why the promises hold: the set of plans and their arenas do not depend on the budget. If b1 < b2 and the answer for b1 had the
 * larger arena, it would not come before the answer for b2 in the order (it would be that answer) nor after it (the
 * answer for b2 fits in b1 too, and comes first). So a smaller budget never has a larger arena nor a faster step.
 *
 * Evaluation and prediction share the arena; they run with the step's micro-batch or as much of it as fits beside
 * the variables, so that the step alone decides the arena where that is possible. */
#include "planner.h"

#include "accumulate.h"
#include "epilogue.h"
#include "fuse.h"
#include "place.h"
#include "planner_parts.h"
#include "schedule.h"

/* ---- the other functions ---- */

static const char *const one_sample[] = { "init", "eval1", "predict1" };
static const char *const batched[] = { "eval", "predict" };

/* Lowers and places a function that does not train; returns its arena, -1 after diagnostics. */
static int64_t place_other(Planner *p, Func *f, int64_t chunks)
{
	if (!accumulate_func(f, p->cx, 0) || !chunk_func(f, p->cx, chunks))
		return -1;
	epilogue_func(f, p->cx->caps);
	place_strided_views(f, p->cx->caps);
	if (!fuse_func(f, p->cx))
		return -1;
	schedule_func(f, p->arena, false);
	return place_func(f, p->cx);
}

/* Twice the chunks of a function's head; 0 where it cannot be cut into so many. */
static int64_t more_chunks(Func *f, int64_t chunks)
{
	ChunkHead head = { 0 };

	return 2 * chunks <= CHUNK_MOST && chunk_head(f, &head) && 2 * chunks <= head.rows ? 2 * chunks : 0;
}

/* Places `whole`, re-typed for `batch` samples, in its own place: in as few chunks as fit into `target` bytes, else in those that need
 * the fewest, if at all costs. Its arena, then; 0 where it does not fit, -1 after diagnostics. */
static int64_t place_within(Planner *p, Func *whole, int64_t batch, int64_t target, bool at_all_costs)
{
	const char *name = whole->name;
	Func *best = NULL;
	int64_t least = 0;

	for (int64_t n = 1; n > 0 && (!best || least > target); n = more_chunks(whole, n)) {
		Func *f = ir_clone_func(p->m, whole, arena_printf(p->m->arena, "%s.%lld", name, (long long)n), batch);
		int64_t bytes = place_other(p, f, n);

		if (bytes < 0)
			return -1;
		if (best && bytes >= least) {
			ir_remove_func(p->m, f->name);
			continue;
		}
		if (best)
			ir_remove_func(p->m, best->name);
		best = f;
		least = bytes;
	}
	if (least > target && !at_all_costs) {
		ir_remove_func(p->m, best->name);
		return 0;
	}
	ir_remove_func(p->m, name);
	best->name = name;
	return least;
}

/* The functions of one sample are part of any plan: they take no more than the smallest step does, where they can. */
static bool place_one_sample(Planner *p)
{
	int64_t target = p->choice[0].bound;

	for (size_t i = 1; i < p->nchoices; i++)
		if (p->choice[i].bound < target)
			target = p->choice[i].bound;
	p->floor = place_variables(p->m);
	for (size_t i = 0; i < sizeof one_sample / sizeof *one_sample; i++) {
		Func *f = ir_find_func(p->m, one_sample[i]);
		int64_t bytes = f ? place_within(p, f, f->batch, target, true) : 0;

		if (bytes < 0)
			return false;
		if (bytes > p->floor) {
			p->floor = bytes;
			p->floor_func = one_sample[i];
		}
	}
	return true;
}

/* eval and predict take as many samples at once as fit in the arena that the step needs. */
static bool place_batched(Planner *p, int64_t micro_batch, int64_t arena)
{
	for (size_t i = 0; i < sizeof batched / sizeof *batched; i++) {
		Func *whole = ir_find_func(p->m, batched[i]);
		int64_t placed = 0;

		for (int64_t b = micro_batch; whole && placed == 0; b /= 2) {
			placed = place_within(p, whole, b, arena, b == 1);
			if (placed < 0)
				return false;
		}
	}
	return true;
}

/* ---- the answer ---- */

/* Dumps after a pass that ran on one function: the module with that function alone. */
static void show(const Planner *p, const char *pass, Func *f)
{
	Func *all = p->m->funcs, *next = f->next;

	if (!pass_dumps(p->cx))
		return;
	p->m->funcs = f;
	f->next = NULL;
	pass_dump(pass, p->m, p->cx, true);
	f->next = next;
	p->m->funcs = all;
}

/* For the dumps of a person who asks: the chosen candidate's way from `optimizer` to `schedule` once more. */
static void show_lowering(Planner *p, const Choice *c)
{
	const Func *step = ir_find_func(p->m, "step");
	Func *all = p->m->funcs, *f;
	ChunkHead head = { 0 };

	if (!pass_dumps(p->cx))
		return;
	p->m->funcs = NULL;
	f = ir_clone_func(p->m, step, "step", step->batch);
	candidate_lower(p, f, c->candidate->micro_batch, c->candidate->chunks, &head, show);
	p->m->funcs = all;
}

/* Leaves the chosen plan as the function `step`. */
static void materialize(Planner *p, const Choice *c)
{
	Func *f = c->candidate->func;

	TPlan plan = recompute_plan(&c->candidate->trajectory, c->plan, p->arena);
	TLives lives = timeline_lives(c->candidate->timeline, p->arena, &plan, NULL);

	show_lowering(p, c);
	recompute_apply(c->candidate->timeline, p->arena, &plan);
	for (size_t i = 0; i < p->candidates.len; i++)
		if (p->candidates.at[i].func != f)
			ir_remove_func(p->m, p->candidates.at[i].func->name);
	ir_remove_func(p->m, "step");
	f->name = "step";
	show(p, "recompute", f);
	place_func_as(f, p->cx, &lives, c->candidate->offset[c->plan]);
	show(p, "offsets", f);
}

static void say_too_small(Planner *p, const Choice *least, const PlanSummary *s)
{
	Diag *d = p->m->diag;
	const PlanBytes *b = &s->peak;
	int64_t step = candidate_bytes(least->candidate, least->plan);
	int64_t live = b->parameters + b->optimizer + b->gradients + b->activations + b->workspace + b->input;

	diag_error(d, NO_SPAN, "a budget of %lld bytes is too small: the smallest feasible is %lld bytes",
	           (long long)p->o->budget, (long long)s->min_budget_bytes);
	if (p->floor_func && step < p->floor)
		diag_note(d, NO_SPAN, "so many are for '%s', of one sample; a training step could do with %lld",
		          p->floor_func, (long long)step);
	diag_note(d, NO_SPAN,
	          "at %s peak: parameters %lld, optimizer %lld, gradients %lld, activations %lld, workspace %lld, "
	          "input %lld, gaps %lld bytes (micro-batch %lld of %lld)",
	          step < p->floor ? "the step's" : "its", (long long)b->parameters, (long long)b->optimizer,
	          (long long)b->gradients, (long long)b->activations, (long long)b->workspace, (long long)b->input,
	          (long long)(step - live), (long long)s->micro_batch, (long long)s->batch);
}

/* ---- from the top ---- */

static bool prepare(Planner *p)
{
	if (!pass_without_moves(p->m) || !candidates_make(p))
		return false;
	choices_order(p);
	return place_one_sample(p);
}

static PlannerResult run(Planner *p, PlanSummary *out, PlanStudy *study)
{
	const Choice *least, *chosen;

	if (!prepare(p))
		return PLAN_FAILED;
	least = choices_smallest(p, choices_all);
	chosen = choices_first(p, p->o->budget, choices_all);
	choice_summary(p, chosen ? chosen : least, least, p->o->budget, out);
	if (study)
		study->point = study_curve(p, least, false, &study->npoints);
	if (!chosen) {
		say_too_small(p, least, out);
		return PLAN_TOO_SMALL;
	}
	if (study)
		study_neighbours(p, chosen, least, study);
	choice_bound(chosen, out);
	materialize(p, chosen);
	return place_batched(p, chosen->candidate->micro_batch, out->arena_bytes) ? PLAN_OK : PLAN_FAILED;
}

PlannerResult planner_study(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary *out, PlanStudy *study)
{
	Planner p = { .m = m, .cx = cx, .o = o, .arena = arena_new() };
	PlannerResult result;

	*out = (PlanSummary){ 0 };
	if (study)
		*study = (PlanStudy){ 0 };
	result = run(&p, out, study);
	arena_free(p.arena);
	return result;
}

PlannerResult planner_run(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary *out)
{
	return planner_study(m, cx, o, out, NULL);
}

bool planner_curve(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary **points, int *n)
{
	Planner p = { .m = m, .cx = cx, .o = o, .arena = arena_new() };
	bool good = prepare(&p);

	*n = 0;
	if (good)
		*points = study_curve(&p, choices_smallest(&p, choices_all), true, n);
	arena_free(p.arena);
	return good;
}

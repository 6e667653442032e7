/* The planner (see planner.h).
 *
 * Method: each candidate, a micro-batch and a number of chunks of its head (chunk.c), gets a copy of the step, lowered as far as execution
 * order, and one trajectory of plans from no replay to the smallest reachable peak (recompute.c). All plans of all trajectories are ordered
 * by predicted seconds; the answer for a budget is the first whose placed arena fits.
 *
 * The candidates are the most even splits into any number of parts (60: 60, 30, 20, 15, 12, 10, 9 with a rest of 6, ..), but
 * no two that are closer than an eighth where they leave a rest. One without a replay that takes as long as another's plan
 * which needs less than any of its own could is left out: it would never be an answer. Chunks are tried where the head is a notable
 * part of the least that its micro-batch can do with, four times as many each time, until one part of the head no longer is.
 *
 * Why the promises hold: the set of plans and their arenas do not depend on the budget. If b1 < b2 and the answer for b1 had the
 * larger arena, it would not come before the answer for b2 in the order (it would be that answer) nor after it (the
 * answer for b2 fits in b1 too, and comes first). So a smaller budget never has a larger arena nor a faster step.
 *
 * Evaluation and prediction share the arena; they run with the step's micro-batch or as much of it as fits beside
 * the variables, so that the step alone decides the arena where that is possible. */
#include "planner.h"

#include "accumulate.h"
#include "bound.h"
#include "chunk.h"
#include "cost.h"
#include "fold_sums.h"
#include "fuse.h"
#include "place.h"
#include "recompute.h"
#include "schedule.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

typedef struct Candidate {
	int64_t micro_batch, chunks;
	ChunkHead head; /* rows 0: none */
	int64_t least;  /* bytes that no plan of it goes below, or that its smallest lives on */
	Func *func;
	Timeline *timeline;
	Trajectory trajectory;
	Arena *keep;    /* for what is found out later */
	int64_t *arena; /* by plan: placed bytes, 0 not yet known, and ... */
	int64_t **offset; /* ... its lives' offsets */
} Candidate;

typedef struct Choice {
	const Candidate *candidate;
	int32_t plan;
	double seconds;
	int64_t bound; /* variables and largest live sum: no placement is smaller */
} Choice;

typedef struct Planner {
	Module *m;
	PassCtx *cx;
	const PlannerOptions *o;
	Arena *arena;
	VEC(Candidate) candidates;
	Choice *choice; /* fastest first */
	size_t nchoices;
	int64_t floor;  /* what init and the one-sample functions need */
	int64_t work;   /* for the search of each candidate */
} Planner;

/* ---- candidates ---- */

static bool lower(Candidate *c, Planner *p)
{
	Func *f = c->func;

	if (!accumulate_func(f, p->cx, c->micro_batch))
		return false;
	chunk_head(f, &c->head);
	if (!chunk_func(f, p->cx, c->chunks))
		return false;
	fold_sums_func(f, p->cx->caps);
	place_strided_views(f, p->cx->caps);
	if (!fuse_func(f, p->cx))
		return false;
	schedule_func(f, p->arena, p->o->optimizer_in_backward != 0);
	return timeline_plannable(f);
}

/* The end of a placed plan: placed once, remembered. */
static int64_t placed_bytes(const Candidate *c, int32_t plan)
{
	if (c->arena[plan] == 0) {
		Arena *scratch = arena_new();
		TPlan steps = recompute_plan(&c->trajectory, plan, scratch);
		TLives lives = timeline_lives(c->timeline, scratch, &steps, NULL);
		int64_t *offset = ARENA_ARRAY(c->keep, lives.n, int64_t);

		assert(steps.live_bytes == c->trajectory.plan[plan].live_bytes);
		c->arena[plan] = timeline_place(c->timeline, scratch, &lives, 0, PLACE_ROUNDS, offset);
		c->offset[plan] = offset;
		arena_free(scratch);
	}
	return c->arena[plan];
}

/* ---- candidates that cannot win ---- */

static int64_t sum_bytes(const Timeline *t, const int32_t *buf, int32_t n, bool carried_too)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < n; i++)
		if (carried_too || !t->buf[buf[i]].carried)
			sum += t->buf[buf[i]].bytes;
	return sum;
}

/* No plan has a smaller arena: the variables, with the sums of a loop and what one operation reads beside them. */
static int64_t least_bytes(const Timeline *t)
{
	int64_t most = 0, carried = 0;

	for (int32_t i = 0; i < t->nops; i++) {
		const TOp *op = &t->op[i];
		int64_t here;

		if (!op->node || op->node->op == OP_loop)
			carried = op->node ? sum_bytes(t, op->use, op->nuse, true) : 0;
		if (!op->node || op->node->op == OP_loop)
			continue;
		here = carried + sum_bytes(t, op->use, op->nuse, false) + op->work_bytes;
		if (here > most)
			most = here;
	}
	return t->var_bytes + most;
}

/* Whether a plan that takes no longer than `seconds` is known to need no more than `bytes`. */
static bool is_beaten(const Planner *p, double seconds, int64_t bytes)
{
	for (size_t i = 0; i < p->candidates.len; i++) {
		const Candidate *c = &p->candidates.at[i];

		for (int32_t k = 0; k < c->trajectory.n && c->trajectory.plan[k].seconds <= seconds; k++)
			if (c->timeline->var_bytes + c->trajectory.plan[k].live_bytes <= bytes && placed_bytes(c, k) <= bytes)
				return true;
	}
	return false;
}

/* ---- which micro-batches ---- */

enum {
	HEAD_SHARE = 8,    /* a head below 1/8 of the rest is not worth a cut */
	CHUNKS_RATIO = 4,  /* so many times as many are tried next */
	CHUNKS_TRIED = 64, /* at most; --chunks takes more */
	SMALL_OPS = 600
};

/* The candidates share the work; what is small gets more for each operation. */
static int64_t work_on(const Planner *p, const Timeline *t)
{
	if (t->nops >= SMALL_OPS)
		return p->work;
	return 2 * p->work > RECOMPUTE_WORK / 2 ? 2 * p->work : RECOMPUTE_WORK / 2;
}

/* Fills *c, of which micro-batch and chunks are given, and adds it where it may win. */
static bool add_candidate(Planner *p, Candidate *c, double *max_seconds)
{
	const Func *step = ir_find_func(p->m, "step");
	const char *name = arena_printf(p->m->arena, "step%lldx%lld", (long long)c->micro_batch, (long long)c->chunks);

	c->func = ir_clone_func(p->m, step, name, step->batch);
	if (!lower(c, p))
		return false;
	c->timeline = timeline_build(p->arena, c->func, p->cx);
	c->trajectory = recompute_nothing(c->timeline, p->arena);
	c->least = least_bytes(c->timeline);
	if (is_beaten(p, c->trajectory.plan[0].seconds, c->least)) {
		ir_remove_func(p->m, c->func->name);
		return true;
	}
	if (p->o->recompute)
		c->trajectory = recompute_trajectory(c->timeline, p->arena, *max_seconds, work_on(p, c->timeline));
	/* The first candidate, the largest micro-batch, is the measure of slowness. */
	if (p->candidates.len == 0)
		*max_seconds = c->trajectory.plan[0].seconds * p->o->max_slowdown;
	c->keep = p->arena;
	c->arena = ARENA_ARRAY(p->arena, c->trajectory.n, int64_t);
	c->offset = ARENA_ARRAY(p->arena, c->trajectory.n, int64_t *);
	c->least = c->timeline->var_bytes + c->trajectory.plan[c->trajectory.n - 1].live_bytes;
	vec_push(p->arena, &p->candidates, *c);
	return true;
}

/* The candidates of one micro-batch: the head whole, then in ever more chunks. */
static bool add_candidates(Planner *p, int64_t micro_batch, double *max_seconds)
{
	Candidate whole = { .micro_batch = micro_batch, .chunks = p->o->chunks > 0 ? p->o->chunks : 1 };
	int64_t most, least;

	if (!add_candidate(p, &whole, max_seconds))
		return false;
	most = whole.head.rows < CHUNKS_TRIED ? whole.head.rows : CHUNKS_TRIED;
	least = whole.least;
	for (int64_t n = CHUNKS_RATIO; p->o->chunks == 0 && n <= most && whole.head.bytes / (n / CHUNKS_RATIO) >= least / HEAD_SHARE; n *= CHUNKS_RATIO) {
		Candidate c = { .micro_batch = micro_batch, .chunks = n };

		if (!add_candidate(p, &c, max_seconds))
			return false;
		if (c.least < least)
			least = c.least;
	}
	return true;
}

/* Whether a micro-batch has rows enough for as many chunks as were asked for; the first one says if any has. */
static bool has_rows(const Planner *p, int64_t micro_batch)
{
	const Candidate *first = p->candidates.at;

	return p->candidates.len == 0 || p->o->chunks <= 1 ||
	       first->head.rows / first->micro_batch * micro_batch >= p->o->chunks;
}

/* The next smaller micro-batch that is the most even split of the batch into some number of parts; 0 below 1. */
static int64_t smaller_part(int64_t batch, int64_t part)
{
	int64_t parts = part > 1 ? (batch - 1) / (part - 1) + 1 : 0; /* the least number that needs smaller ones */

	return parts ? (batch - 1) / parts + 1 : 0;
}

/* Whether micro-batches of b are worth a trajectory beside those of `before`, the next larger ones considered. */
static bool is_candidate(const Func *step, int64_t b, int64_t before)
{
	if (b < step->batch && !accumulate_has_variance(step, b, NULL))
		return false;
	return step->batch % b == 0 || 8 * (before - b) >= before;
}

/* How many micro-batches are candidates: the search shares its work among them. Also where one is asked for, whose plans then are those
 * that it has among the others. */
static int64_t count_parts(const Func *step)
{
	int64_t n = 0, before = 0;

	for (int64_t b = step->batch; b >= 1; b = smaller_part(step->batch, b))
		if (is_candidate(step, b, before)) {
			before = b;
			n++;
		}
	return n;
}

static bool make_candidates(Planner *p)
{
	const Func *step = ir_find_func(p->m, "step");
	int64_t before = 0;
	const Node *why = NULL;
	double max_seconds = 1e300;
	bool whole_only = !accumulate_possible(step, &why) && !p->o->allow_microbatch_stats;

	p->work = whole_only ? RECOMPUTE_WORK : RECOMPUTE_WORK / count_parts(step);
	if (p->o->micro_batch > 0)
		return add_candidates(p, p->o->micro_batch, &max_seconds);
	for (int64_t b = step->batch; b >= 1; b = smaller_part(step->batch, b)) {
		if (!is_candidate(step, b, before) || !has_rows(p, b))
			continue;
		before = b;
		if (!add_candidates(p, b, &max_seconds))
			return false;
		if (whole_only)
			break;
	}
	return true;
}

static int compare_choices(const void *pa, const void *pb)
{
	const Choice *a = pa, *b = pb;

	if (a->seconds < b->seconds || a->seconds > b->seconds)
		return a->seconds < b->seconds ? -1 : 1;
	if (a->bound != b->bound)
		return a->bound < b->bound ? -1 : 1;
	if (a->candidate->micro_batch != b->candidate->micro_batch)
		return a->candidate->micro_batch > b->candidate->micro_batch ? -1 : 1;
	if (a->candidate->chunks != b->candidate->chunks)
		return a->candidate->chunks < b->candidate->chunks ? -1 : 1;
	return a->plan - b->plan;
}

static void order_choices(Planner *p)
{
	size_t total = 0;
	double limit = p->candidates.at[0].trajectory.plan[0].seconds * p->o->max_slowdown;

	for (size_t i = 0; i < p->candidates.len; i++)
		total += (size_t)p->candidates.at[i].trajectory.n;
	p->choice = ARENA_ARRAY(p->arena, total, Choice);
	for (size_t i = 0; i < p->candidates.len; i++) {
		const Candidate *c = &p->candidates.at[i];

		for (int32_t k = 0; k < c->trajectory.n; k++)
			if (c->trajectory.plan[k].seconds <= limit)
				p->choice[p->nchoices++] =
					(Choice){ c, k, c->trajectory.plan[k].seconds,
				                  c->timeline->var_bytes + c->trajectory.plan[k].live_bytes };
	}
	qsort(p->choice, p->nchoices, sizeof *p->choice, compare_choices);
}

/* ---- choosing ---- */

static int64_t arena_of(Planner *p, const Choice *c)
{
	int64_t placed = placed_bytes(c->candidate, c->plan);

	return placed > p->floor ? placed : p->floor;
}

/* Which choices a question is about: those of one micro-batch (0: any) that take at most so many seconds. */
typedef struct Among {
	int64_t micro_batch;
	double seconds;
} Among;

static const Among everything = { 0, INFINITY };

static bool is_among(const Choice *c, Among among)
{
	return c->seconds <= among.seconds &&
	       (among.micro_batch == 0 || c->candidate->micro_batch == among.micro_batch);
}

static const Choice *first_that_fits(Planner *p, int64_t budget, Among among)
{
	for (size_t i = 0; i < p->nchoices; i++)
		if (p->choice[i].bound <= budget && is_among(&p->choice[i], among) &&
		    arena_of(p, &p->choice[i]) <= budget)
			return &p->choice[i];
	return NULL;
}

static int compare_bounds(const void *pa, const void *pb)
{
	const Choice *const *a = pa, *const *b = pb;

	if ((*a)->bound != (*b)->bound)
		return (*a)->bound < (*b)->bound ? -1 : 1;
	return *a < *b ? -1 : *a > *b;
}

static const Choice *smallest(Planner *p, Among among)
{
	const Choice **by_bound = ARENA_ARRAY(p->arena, p->nchoices, const Choice *);
	const Choice *best = NULL;
	size_t n = 0;

	for (size_t i = 0; i < p->nchoices; i++)
		if (is_among(&p->choice[i], among))
			by_bound[n++] = &p->choice[i];
	qsort(by_bound, n, sizeof *by_bound, compare_bounds);
	for (size_t i = 0; i < n; i++) {
		if (best && by_bound[i]->bound >= arena_of(p, best))
			break;
		if (!best || arena_of(p, by_bound[i]) < arena_of(p, best))
			best = by_bound[i];
	}
	return best;
}

/* ---- the other functions ---- */

static const char *const one_sample[] = { "init", "eval1", "predict1" };
static const char *const batched[] = { "eval", "predict" };

/* Lowers and places a function that does not train; returns its arena, -1 after diagnostics. */
static int64_t place_other(Planner *p, Func *f, int64_t chunks)
{
	if (!accumulate_func(f, p->cx, 0) || !chunk_func(f, p->cx, chunks))
		return -1;
	place_strided_views(f, p->cx->caps);
	if (!fuse_func(f, p->cx))
		return -1;
	schedule_func(f, p->arena, false);
	return place_func(f, p->cx);
}

/* Twice the chunks of a function's head; 0 where it cannot be cut into so many. */
static int64_t more_chunks(Func *f, int64_t chunks)
{
	ChunkHead head;

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
		if (bytes > p->floor)
			p->floor = bytes;
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

static void sum_variables(const Module *m, PlanSummary *out)
{
	for (const Var *v = m->vars; v; v = v->next) {
		int64_t bytes = timeline_align(type_bytes(&v->type));

		if (v->role == VAR_PARAM)
			out->parameters += type_elems(&v->type);
		if (v->role == VAR_PARAM && !v->frozen)
			out->trained += type_elems(&v->type);
		if (v->role == VAR_PARAM || v->role == VAR_STAT)
			out->peak.parameters += bytes;
		else
			out->peak.optimizer += bytes;
	}
}

/* What is live at the peak of a plan, by kind. */
static void sum_peak(const Timeline *t, const TPlan *p, const TLives *l, PlanBytes *out)
{
	for (int32_t k = 0; k < l->n; k++) {
		const TLife *life = &l->at[k];

		if (life->from + (life->over >= 0) > p->peak || life->to < p->peak)
			continue;
		if (life->buf < 0)
			out->workspace += life->bytes;
		else if (t->buf[life->buf].kind == BUF_GRADIENT)
			out->gradients += life->bytes;
		else if (t->buf[life->buf].kind == BUF_IO)
			out->io += life->bytes;
		else
			out->activations += life->bytes;
	}
}

/* Operations that run again: a replay in the plan may be the first run of one that has moved. */
static int64_t count_replays(const Timeline *t, const TPlan *p, Arena *scratch)
{
	bool *ran = ARENA_ARRAY(scratch, t->nops, bool);
	int64_t n = 0;

	for (int32_t i = 0; i < p->nsteps; i++) {
		n += ran[p->step[i].op];
		ran[p->step[i].op] = true;
	}
	return n;
}

/* `least` is the answer to the smallest budget. */
static void summarize(Planner *p, const Choice *c, const Choice *least, int64_t budget, PlanSummary *out)
{
	const Timeline *t = c->candidate->timeline;
	Arena *scratch = arena_new();
	TPlan plan = recompute_plan(&c->candidate->trajectory, c->plan, scratch);
	const Sketch *plain = &c->candidate->trajectory.plan[0];
	TLives lives = timeline_lives(t, scratch, &plan, NULL);

	*out = (PlanSummary){ .batch = p->m->batch, .budget_bytes = budget, .min_budget_bytes = arena_of(p, least) };
	out->micro_batch = c->candidate->micro_batch;
	out->accumulation_steps = (p->m->batch + out->micro_batch - 1) / out->micro_batch;
	out->chunks = c->candidate->chunks;
	out->head = c->candidate->head.span;
	out->head_rows = c->candidate->head.rows;
	out->head_bytes = c->candidate->head.bytes;
	out->step_seconds = c->seconds;
	out->unlimited_step_seconds = p->choice[0].seconds;
	out->lower_bound_bytes = c->bound;
	out->arena_bytes = arena_of(p, c);
	out->unlimited_arena_bytes = arena_of(p, &p->choice[0]);
	sum_variables(p->m, out);
	sum_peak(t, &plan, &lives, &out->peak);
	out->recompute_nodes = count_replays(t, &plan, scratch);
	out->recompute_seconds = c->seconds - plain->seconds;
	out->recompute_bytes_saved = plain->live_bytes - plan.live_bytes;
	arena_free(scratch);
}

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

	if (!pass_dumps(p->cx))
		return;
	p->m->funcs = NULL;
	f = ir_clone_func(p->m, step, "step", step->batch);
	accumulate_func(f, p->cx, c->candidate->micro_batch);
	show(p, "accumulate", f);
	chunk_func(f, p->cx, c->candidate->chunks);
	show(p, "chunk", f);
	place_strided_views(f, p->cx->caps);
	show(p, "inplace", f);
	fuse_func(f, p->cx);
	show(p, "fuse", f);
	schedule_func(f, p->arena, p->o->optimizer_in_backward != 0);
	show(p, "schedule", f);
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

static void say_too_small(Planner *p, const PlanSummary *s)
{
	Diag *d = p->m->diag;
	const PlanBytes *b = &s->peak;

	diag_error(d, NO_SPAN, "a budget of %lld bytes is too small: the smallest feasible is %lld bytes",
	           (long long)p->o->budget, (long long)s->min_budget_bytes);
	diag_note(d, NO_SPAN,
	          "at its peak: parameters %lld, optimizer %lld, gradients %lld, activations %lld, workspace %lld, "
	          "input %lld bytes (micro-batch %lld of %lld)",
	          (long long)b->parameters, (long long)b->optimizer, (long long)b->gradients,
	          (long long)b->activations, (long long)b->workspace, (long long)b->io,
	          (long long)s->micro_batch, (long long)s->batch);
}

/* ---- the trade-off ---- */

/* Answers, smallest arena last. */
typedef struct Curve {
	const Choice *at[PLAN_CURVE_POINTS];
	bool whole[PLAN_CURVE_POINTS]; /* no answer lies between this one and the next */
	int n;
} Curve;

/* Walks down from the plan without a limit: the next budget is a step smaller in the logarithm of the arena. */
static void sample_curve(Planner *p, const Choice *least, Curve *curve)
{
	int64_t bottom = arena_of(p, least);
	double ratio = pow((double)arena_of(p, &p->choice[0]) / (double)bottom, 1.0 / (PLAN_CURVE_POINTS - 1));
	const Choice *c = first_that_fits(p, INT64_MAX, everything);

	while (curve->n < PLAN_CURVE_POINTS - 1 && arena_of(p, c) > bottom) {
		int64_t budget = (int64_t)((double)arena_of(p, c) / ratio);

		curve->at[curve->n++] = c;
		if (budget >= arena_of(p, c))
			budget = arena_of(p, c) - 1;
		c = first_that_fits(p, budget < bottom ? bottom : budget, everything);
	}
	curve->at[curve->n++] = first_that_fits(p, bottom, everything);
}

/* The widest gap that may hold an answer, by the logarithm of the arena; -1 where there is none. */
static int widest_gap(Planner *p, const Curve *curve)
{
	double widest = 0;
	int gap = -1;

	for (int i = 0; i + 1 < curve->n; i++) {
		double width = log((double)arena_of(p, curve->at[i]) / (double)arena_of(p, curve->at[i + 1]));

		if (!curve->whole[i] && width > widest) {
			widest = width;
			gap = i;
		}
	}
	return gap;
}

/* Puts more answers into the gaps, while there is room: a short curve becomes complete. */
static void refine_curve(Planner *p, Curve *curve)
{
	int i;

	while (curve->n < PLAN_CURVE_POINTS && (i = widest_gap(p, curve)) >= 0) {
		int64_t high = arena_of(p, curve->at[i]), low = arena_of(p, curve->at[i + 1]);
		const Choice *c = first_that_fits(p, (int64_t)sqrt((double)high * (double)low), everything);

		if (!c || arena_of(p, c) <= low) /* nothing in the lower half */
			c = first_that_fits(p, high - 1, everything);
		if (arena_of(p, c) <= low) {
			curve->whole[i] = true;
			continue;
		}
		for (int k = curve->n++; k > i + 1; k--) {
			curve->at[k] = curve->at[k - 1];
			curve->whole[k] = curve->whole[k - 1];
		}
		curve->at[i + 1] = c;
		curve->whole[i + 1] = false;
	}
}

static PlanSummary *make_curve(Planner *p, const Choice *least, int *n)
{
	Curve curve = { 0 };
	PlanSummary *point;

	sample_curve(p, least, &curve);
	refine_curve(p, &curve);
	point = ARENA_ARRAY(p->m->arena, curve.n, PlanSummary);
	for (int i = 0; i < curve.n; i++) {
		const Choice *c = curve.at[curve.n - 1 - i];

		summarize(p, c, least, arena_of(p, c), &point[i]);
	}
	*n = curve.n;
	return point;
}

/* The smallest micro-batch above that of the answer; 0 where there is none. */
static int64_t next_larger(const Planner *p, int64_t micro_batch)
{
	int64_t next = 0;

	for (size_t i = 0; i < p->candidates.len; i++) {
		int64_t b = p->candidates.at[i].micro_batch;

		if (b > micro_batch && (next == 0 || b < next))
			next = b;
	}
	return next;
}

static void note(Planner *p, const Choice *c, const Choice *least, int64_t budget, PlanSummary *out)
{
	if (c)
		summarize(p, c, least, budget, out);
}

static void study_around(Planner *p, const Choice *chosen, const Choice *least, PlanStudy *s)
{
	int64_t arena = arena_of(p, chosen), budget = p->o->budget == INT64_MAX ? arena : p->o->budget;
	int64_t more = budget + budget / 10, less = budget - budget / 10;
	int64_t larger = next_larger(p, chosen->candidate->micro_batch);

	note(p, first_that_fits(p, more, everything), least, more, &s->more);
	note(p, first_that_fits(p, less, everything), least, less, &s->less);
	if (larger == 0)
		return;
	note(p, smallest(p, (Among){ larger, INFINITY }), least, budget, &s->larger_least);
	note(p, first_that_fits(p, budget, (Among){ larger, INFINITY }), least, budget, &s->larger_within);
	note(p, smallest(p, (Among){ larger, chosen->seconds }), least, budget, &s->larger_as_fast);
}

/* ---- from the top ---- */

static bool prepare(Planner *p)
{
	if (!make_candidates(p))
		return false;
	order_choices(p);
	return place_one_sample(p);
}

/* What is known about all plans like the chosen one: how fast they are at best within the budget. Nothing where an operation has moved. */
static void add_bound(Planner *p, const Choice *c, PlanSummary *out)
{
	Arena *scratch;
	const Timeline *t = c->candidate->timeline;
	int64_t bytes = (p->o->budget < out->unlimited_arena_bytes ? p->o->budget : out->unlimited_arena_bytes) - t->var_bytes;
	double plain = c->candidate->trajectory.plan[0].seconds;

	if (recompute_moves(&c->candidate->trajectory, c->plan))
		return;
	scratch = arena_new();
	out->step_seconds_bound = c->seconds;
	if (out->recompute_nodes > 0)
		out->step_seconds_bound = fmin(c->seconds, plain + bound_replay_seconds(t, scratch, bytes, c->seconds - plain));
	arena_free(scratch);
}

static PlannerResult run(Planner *p, PlanSummary *out, PlanStudy *study)
{
	const Choice *least, *chosen;

	if (!prepare(p))
		return PLAN_FAILED;
	least = smallest(p, everything);
	chosen = first_that_fits(p, p->o->budget, everything);
	summarize(p, chosen ? chosen : least, least, p->o->budget, out);
	if (study)
		study->point = make_curve(p, least, &study->npoints);
	if (!chosen) {
		say_too_small(p, out);
		return PLAN_TOO_SMALL;
	}
	if (study)
		study_around(p, chosen, least, study);
	add_bound(p, chosen, out);
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
		*points = make_curve(&p, smallest(&p, everything), n);
	arena_free(p.arena);
	return good;
}

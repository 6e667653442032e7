/* Choices of the planner (see planner_parts.h): the plans of all candidates, fastest first, and which of them answers a budget. */
#include "planner_parts.h"

#include "bound.h"

#include <math.h>
#include <stdlib.h>

static int32_t moves_of(const Choice *c)
{
	return c->candidate->trajectory.plan[c->plan].nmoves;
}

/* Copies that cost nothing, as predicted, are made only where bytes are wanted. */
static int compare_choices(const void *pa, const void *pb)
{
	const Choice *a = pa, *b = pb;

	if (a->seconds < b->seconds || a->seconds > b->seconds)
		return a->seconds < b->seconds ? -1 : 1;
	if (moves_of(a) != moves_of(b))
		return moves_of(a) < moves_of(b) ? -1 : 1;
	if (a->bound != b->bound)
		return a->bound < b->bound ? -1 : 1;
	if (a->candidate->micro_batch != b->candidate->micro_batch)
		return a->candidate->micro_batch > b->candidate->micro_batch ? -1 : 1;
	if (a->candidate->chunks != b->candidate->chunks)
		return a->candidate->chunks < b->candidate->chunks ? -1 : 1;
	return a->plan - b->plan;
}

void choices_order(Planner *p)
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

int64_t choice_bytes(Planner *p, const Choice *c)
{
	int64_t placed = candidate_bytes(c->candidate, c->plan);

	return placed > p->floor ? placed : p->floor;
}

const Among choices_all = { 0, INFINITY };

static bool is_among(const Choice *c, Among among)
{
	return c->seconds <= among.seconds &&
	       (among.micro_batch == 0 || c->candidate->micro_batch == among.micro_batch);
}

const Choice *choices_first(Planner *p, int64_t budget, Among among)
{
	for (size_t i = 0; i < p->nchoices; i++)
		if (p->choice[i].bound <= budget && is_among(&p->choice[i], among) &&
		    choice_bytes(p, &p->choice[i]) <= budget)
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

const Choice *choices_smallest(Planner *p, Among among)
{
	const Choice **by_bound = ARENA_ARRAY(p->arena, p->nchoices, const Choice *);
	const Choice *best = NULL;
	size_t n = 0;

	for (size_t i = 0; i < p->nchoices; i++)
		if (is_among(&p->choice[i], among))
			by_bound[n++] = &p->choice[i];
	qsort(by_bound, n, sizeof *by_bound, compare_bounds);
	for (size_t i = 0; i < n; i++) {
		if (best && by_bound[i]->bound >= choice_bytes(p, best))
			break;
		if (!best || choice_bytes(p, by_bound[i]) < choice_bytes(p, best))
			best = by_bound[i];
	}
	return best;
}

/* ---- what a choice is ---- */

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
			out->input += life->bytes;
		else
			out->activations += life->bytes;
	}
}

/* What goes to host memory and comes back, in a step. */
static void sum_moves(const Timeline *t, const TPlan *p, Arena *scratch, PlanSummary *out)
{
	double *stall = ARENA_ARRAY(scratch, p->nsteps, double);

	timeline_seconds(t, p, stall);
	for (int32_t i = 0; i < p->nsteps; i++) {
		const TStep *s = &p->step[i];
		int64_t trips = (int64_t)t->op[s->op].trips;

		out->wait_seconds += stall[i];
		out->moved += s->move == MOVE_SEND ? trips : 0;
		out->moved_bytes += s->move == MOVE_SEND ? trips * t->buf[s->buf].bytes : 0;
	}
}

/* Operations that run again: a replay in the plan may be the first run of one that has moved. */
static int64_t count_replays(const Timeline *t, const TPlan *p, Arena *scratch)
{
	bool *ran = ARENA_ARRAY(scratch, t->nops, bool);
	int64_t n = 0;

	for (int32_t i = 0; i < p->nsteps; i++) {
		if (p->step[i].move)
			continue;
		n += ran[p->step[i].op];
		ran[p->step[i].op] = true;
	}
	return n;
}

void choice_summary(Planner *p, const Choice *c, const Choice *least, int64_t budget, PlanSummary *out)
{
	const Timeline *t = c->candidate->timeline;
	Arena *scratch = arena_new();
	TPlan plan = recompute_plan(&c->candidate->trajectory, c->plan, scratch);
	const Sketch *plain = &c->candidate->trajectory.plan[0];
	TLives lives = timeline_lives(t, scratch, &plan, NULL);

	*out = (PlanSummary){ .batch = p->m->batch, .budget_bytes = budget, .min_budget_bytes = choice_bytes(p, least) };
	out->micro_batch = c->candidate->micro_batch;
	out->accumulation_steps = (p->m->batch + out->micro_batch - 1) / out->micro_batch;
	out->chunks = c->candidate->chunks;
	out->head = c->candidate->head.span;
	out->head_rows = c->candidate->head.rows;
	out->head_bytes = c->candidate->head.bytes;
	out->step_seconds = c->seconds;
	out->unlimited_step_seconds = p->choice[0].seconds;
	out->lower_bound_bytes = c->bound;
	out->arena_bytes = choice_bytes(p, c);
	out->unlimited_arena_bytes = choice_bytes(p, &p->choice[0]);
	sum_variables(p->m, out);
	sum_peak(t, &plan, &lives, &out->peak);
	out->recompute_nodes = count_replays(t, &plan, scratch);
	sum_moves(t, &plan, scratch, out);
	out->host_bytes = c->candidate->trajectory.plan[c->plan].host_bytes;
	out->recompute_seconds = c->seconds - out->wait_seconds - plain->seconds;
	out->recompute_bytes_saved = plain->live_bytes - plan.live_bytes;
	arena_free(scratch);
}

void choice_bound(const Choice *c, PlanSummary *out)
{
	Arena *scratch;
	const Timeline *t = c->candidate->timeline;
	int64_t bytes = (out->budget_bytes < out->unlimited_arena_bytes ? out->budget_bytes : out->unlimited_arena_bytes) - t->var_bytes;
	double plain = c->candidate->trajectory.plan[0].seconds;

	if (out->moved > 0 || recompute_moves(&c->candidate->trajectory, c->plan))
		return;
	scratch = arena_new();
	out->step_seconds_bound = c->seconds;
	if (out->recompute_nodes > 0)
		out->step_seconds_bound = fmin(c->seconds, plain + bound_replay_seconds(t, scratch, bytes, c->seconds - plain));
	arena_free(scratch);
}

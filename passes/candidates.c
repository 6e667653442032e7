/* The candidates of the planner (see planner_parts.h): micro-batches and chunks of the head, each with its plans.
 *
 * They are the most even splits into any number of parts (60: 60, 30, 20, 15, 12, 10, 9 with a rest of 6, ..), but
 * no two that are closer than an eighth where they leave a rest. One without a replay that takes as long as another's plan
 * which needs less than any of its own could is left out: it would never be an answer. Chunks are tried where the head is a notable
 * part of the least that its micro-batch can do with, four times as many each time, until one part of the head no longer is. */
#include "planner_parts.h"

#include "accumulate.h"
#include "epilogue.h"
#include "fold_sums.h"
#include "fuse.h"
#include "offload.h"
#include "place.h"
#include "schedule.h"

#include <assert.h>
#include <stdlib.h>

bool candidate_lower(const Planner *p, Func *f, int64_t micro_batch, int64_t chunks, ChunkHead *head, CandidateShow *show)
{
	if (!accumulate_func(f, p->cx, micro_batch))
		return false;
	show(p, "accumulate", f);
	chunk_head(f, head);
	if (!chunk_func(f, p->cx, chunks))
		return false;
	show(p, "chunk", f);
	fold_sums_func(f, p->cx->caps);
	show(p, "fold_sums", f);
	epilogue_func(f, p->cx->caps);
	show(p, "epilogue", f);
	place_strided_views(f, p->cx->caps);
	show(p, "inplace", f);
	if (!fuse_func(f, p->cx))
		return false;
	show(p, "fuse", f);
	schedule_func(f, p->arena, p->o->optimizer_in_backward != 0);
	show(p, "schedule", f);
	return timeline_plannable(f);
}

static void show_nothing(const Planner *p, const char *pass, Func *f)
{
	(void)p;
	(void)pass;
	(void)f;
}

int64_t candidate_bytes(const Candidate *c, int32_t plan)
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
			if (c->timeline->var_bytes + c->trajectory.plan[k].live_bytes <= bytes && candidate_bytes(c, k) <= bytes)
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

/* No plan has been placed. */
static void expect_places(const Planner *p, Candidate *c)
{
	c->arena = ARENA_ARRAY(p->arena, c->trajectory.n, int64_t);
	c->offset = ARENA_ARRAY(p->arena, c->trajectory.n, int64_t *);
}

/* Fills *c, of which micro-batch and chunks are given, and adds it where it may win. */
static bool add_candidate(Planner *p, Candidate *c, double *max_seconds)
{
	const Func *step = ir_find_func(p->m, "step");
	const char *name = arena_printf(p->m->arena, "step%lldx%lld", (long long)c->micro_batch, (long long)c->chunks);

	c->func = ir_clone_func(p->m, step, name, step->batch);
	if (!candidate_lower(p, c->func, c->micro_batch, c->chunks, &c->head, show_nothing))
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
	expect_places(p, c);
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

static bool make_all(Planner *p)
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

/* ---- host memory ---- */

/* A plan that takes so much longer than another one of as few bytes is not made an answer by copies. */
static const double LOST = 1.2;

typedef struct Known {
	int64_t bytes;
	double seconds;
} Known;

static int compare_known(const void *pa, const void *pb)
{
	const Known *a = pa, *b = pb;

	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? -1 : 1;
	return a->seconds < b->seconds ? -1 : a->seconds > b->seconds;
}

/* For bytes without gaps, ascending, the seconds of the fastest plan that needs no more. */
static Known *know_all(const Planner *p, size_t *n)
{
	Known *known;
	size_t all = 0;

	for (size_t i = 0; i < p->candidates.len; i++)
		all += (size_t)p->candidates.at[i].trajectory.n;
	known = ARENA_ARRAY(p->arena, all, Known);
	*n = 0;
	for (size_t i = 0; i < p->candidates.len; i++) {
		const Candidate *c = &p->candidates.at[i];

		for (int32_t k = 0; k < c->trajectory.n; k++)
			known[(*n)++] = (Known){ c->timeline->var_bytes + c->trajectory.plan[k].live_bytes, c->trajectory.plan[k].seconds };
	}
	qsort(known, *n, sizeof *known, compare_known);
	for (size_t i = 1; i < *n; i++)
		if (known[i - 1].seconds < known[i].seconds)
			known[i].seconds = known[i - 1].seconds;
	return known;
}

static double fastest_within(const Known *known, size_t n, int64_t bytes)
{
	size_t lo = 0, hi = n;

	while (lo + 1 < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (known[mid].bytes <= bytes)
			lo = mid;
		else
			hi = mid;
	}
	return known[lo].seconds;
}

/* Once all candidates are there: what no copies can save is not looked at. */
static void offload_candidates(Planner *p)
{
	size_t n;
	const Known *known = know_all(p, &n);

	for (size_t i = 0; i < p->candidates.len; i++) {
		Candidate *c = &p->candidates.at[i];
		bool *worth = ARENA_ARRAY(p->arena, c->trajectory.n, bool);

		for (int32_t k = 0; k < c->trajectory.n; k++)
			worth[k] = c->trajectory.plan[k].seconds <=
			           LOST * fastest_within(known, n, c->timeline->var_bytes + c->trajectory.plan[k].live_bytes);
		offload_trajectory(&c->trajectory, p->arena, worth, p->o->host_bytes, work_on(p, c->timeline));
		expect_places(p, c);
	}
}

bool candidates_make(Planner *p)
{
	if (!make_all(p))
		return false;
	if (p->o->offload && offload_possible(p->cx))
		offload_candidates(p);
	return true;
}

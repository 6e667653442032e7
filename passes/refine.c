/* refine: local search on plans of small functions, from what the descents have found.
 *
 * A walk starts from a plan, has a target for the peak, and moves from state to state (stages.c):
 *
 *     flip    hold a gap, or drop it                    h ===== c       <->   h ----- c       (replayed in c)
 *     start   replay a value early, and hold it on      h ----- c       -->   h --t== c       (replayed in t)
 *     both    drop a gap, and start within              h ===== c       -->   h --t== c
 *
 * A state costs the seconds of its replays and, at a price, the bytes above the target, summed over the stages. A move is taken if the cost
 * does not rise, or is not above that of HISTORY moves ago (late acceptance: Burke and Bykov, "The Late Acceptance Hill-Climbing
 * Heuristic", 2017). The price rises while the target is exceeded and falls while it is not, so a walk goes back and forth across
 * the border, where the good plans are (strategic oscillation: Glover, 1977), and never comes to rest.
 *
 * Every state met, taken or not, is noted if its plan is not beaten by one that is known. Each plan is a target, to go just below it, from
 * the fastest plan that is there already; the smallest one has nothing below it and starts itself. Plans that are found are targets of the
 * next round. So the ladder of targets follows from the function alone, no budget is known here.
 *
 * Invariant: plans are sorted by seconds, with ever fewer bytes. Random numbers start from a constant; work is counted, not timed. */
#include "refine.h"

#include <assert.h>
#include <stdlib.h>

enum { HISTORY = 4, PRICE_EVERY = 6, TARGETS = 64, ROUNDS = 3, WORK_A_MOVE = 8 };

typedef struct Cost {
	double seconds, excess; /* of replays; bytes times stages above the target */
} Cost;

typedef struct Refine {
	const Timeline *t;
	Arena *arena;     /* of the plans */
	Arena *scratch;   /* of the walk at hand */
	Sketches *plans;
	double limit;     /* seconds of replays */
	uint64_t random;
	int64_t work;     /* of the walks before this one */
	bool found;       /* a plan, in this round */
	Stages *s;
	int64_t target;
	int64_t *live;    /* by stage */
	double price;     /* seconds by byte and stage */
	int32_t *movable; /* buffers that may be replayed and are read */
	int32_t nmovable;
} Refine;

/* ---- plans ---- */

Sketch refine_sketch(const Stages *s, Arena *a)
{
	Sketch p = { .live_bytes = stages_peak(s) };

	for (int32_t i = 0; i < s->t->nops; i++) {
		p.n += s->stage[i].n;
		p.seconds += s->t->op[i].seconds;
	}
	p.replay = ARENA_ARRAY(a, p.n, Replay);
	p.n = 0;
	for (int32_t i = 0; i < s->t->nops; i++) {
		const Stage *st = &s->stage[i];

		for (int32_t k = 0; k < st->n; k++)
			p.replay[p.n++] = (Replay){ i, st->step[k] };
		p.seconds += st->seconds;
	}
	return p;
}

static int by_seconds(const void *pa, const void *pb)
{
	const Sketch *a = pa, *b = pb;

	if (a->seconds < b->seconds || a->seconds > b->seconds)
		return a->seconds < b->seconds ? -1 : 1;
	if (a->live_bytes != b->live_bytes)
		return a->live_bytes < b->live_bytes ? -1 : 1;
	return a < b ? -1 : a > b;
}

void refine_undominated(Sketches *plans)
{
	size_t n = 0;

	qsort(plans->at, plans->len, sizeof *plans->at, by_seconds);
	for (size_t k = 0; k < plans->len; k++)
		if (n == 0 || plans->at[k].live_bytes < plans->at[n - 1].live_bytes)
			plans->at[n++] = plans->at[k];
	plans->len = n;
}

/* The first plan of at most so many bytes: all before it have more. */
static size_t first_within(const Sketches *plans, int64_t bytes)
{
	size_t lo = 0, hi = plans->len;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (plans->at[mid].live_bytes > bytes)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Notes the state's plan, in the place of those that it beats, unless one that is known is as good. */
static void note(Refine *r)
{
	Sketches *plans = r->plans;
	int64_t bytes = stages_peak(r->s);
	double plain = plans->at[0].seconds;
	size_t end = first_within(plans, bytes), at;
	Sketch p;

	if (r->s->seconds > r->limit)
		return;
	if (end < plans->len && plans->at[end].seconds <= (plain + r->s->seconds) * (1 + 1e-12))
		return;
	p = refine_sketch(r->s, r->arena);
	for (at = end; at > 0 && plans->at[at - 1].seconds >= p.seconds; at--)
		;
	end += end < plans->len && plans->at[end].live_bytes == bytes;
	if (at == end)
		vec_push(r->arena, plans, p); /* room for one more */
	else
		plans->len -= end - at - 1;
	memmove(&plans->at[at + 1], &plans->at[at == end ? at : end], (plans->len - at - 1) * sizeof p);
	plans->at[at] = p;
	r->found = true;
}

/* ---- moves ---- */

/* A number below n: SplitMix64 (Steele, Lea and Flood, 2014). */
static int32_t pick(Refine *r, int32_t n)
{
	uint64_t x = r->random += UINT64_C(0x9E3779B97F4A7C15);

	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return (int32_t)(((x ^ (x >> 31)) >> 33) % (uint64_t)n);
}

static Cost cost_now(Refine *r)
{
	Cost c = { .seconds = r->s->seconds };

	if (stages_peak(r->s) <= r->target)
		return c;
	peaks_read(&r->s->peaks, r->live);
	r->s->work += r->t->nops;
	for (int32_t i = 0; i < r->t->nops; i++)
		if (r->live[i] > r->target)
			c.excess += (double)(r->live[i] - r->target);
	return c;
}

static double priced(const Refine *r, Cost c)
{
	return c.seconds + r->price * c.excess;
}

/* Starts the buffer at stage t, if that lies in a gap that is not held. */
static bool start(Refine *r, int32_t buf, int32_t t)
{
	const Marks *m = &r->s->buf[buf];
	int32_t i = marks_before(m, t);

	return i > 0 && i < m->n && !m->at[i - 1].held && m->at[i].stage > t && stages_start(r->s, buf, t);
}

/* One move at random; false where it cannot be made. */
static bool move(Refine *r)
{
	int32_t buf = r->movable[pick(r, r->nmovable)], n = r->s->buf[buf].n;
	int32_t i = n > 1 ? pick(r, n - 1) : -1, how = pick(r, 8), left, width, t;
	bool held;

	r->s->work += WORK_A_MOVE;
	if (i < 0)
		return false;
	left = r->s->buf[buf].at[i].stage;
	width = r->s->buf[buf].at[i + 1].stage - left;
	held = r->s->buf[buf].at[i].held;
	if (width == 1 || how >= (held ? 2 : 3))
		return stages_flip(r->s, buf, i);
	t = left + 1 + pick(r, width - 1);
	if (!held)
		return start(r, buf, t);
	return stages_flip(r->s, buf, i) && (start(r, buf, t) || true);
}

/* ---- walks ---- */

Stages *refine_state(const Timeline *t, Arena *a, const Sketch *p)
{
	TPlan plan = { .step = ARENA_ARRAY(a, t->nops + p->n, TStep) };

	for (int32_t i = 0, k = 0; i < t->nops; i++) {
		for (; k < p->n && p->replay[k].before == i; k++)
			plan.step[plan.nsteps++] = p->replay[k].step;
		plan.step[plan.nsteps++] = (TStep){ .op = i, .wanted = UINT32_MAX };
	}
	return stages_of(t, a, &plan);
}

static void load(Refine *r, const Sketch *p)
{
	const Timeline *t = r->t;

	arena_reset(r->scratch);
	r->s = refine_state(t, r->scratch, p);
	r->live = ARENA_ARRAY(r->scratch, t->nops, int64_t);
	r->movable = ARENA_ARRAY(r->scratch, t->nbufs, int32_t);
	r->nmovable = 0;
	for (int32_t b = 0; b < t->nbufs; b++)
		if (!t->buf[b].carried && t->op[t->buf[b].op].replayable && r->s->buf[b].n > 1)
			r->movable[r->nmovable++] = b;
}

static void walk(Refine *r, const Sketch *from, int64_t work)
{
	Cost history[HISTORY], here;

	load(r, from);
	here = cost_now(r);
	for (int i = 0; i < HISTORY; i++)
		history[i] = here;
	for (int64_t n = 1; r->nmovable > 0 && r->s->work < work; n++) {
		Cost *late = &history[n % HISTORY];
		size_t before = stages_now(r->s);

		if (n % PRICE_EVERY == 0)
			r->price *= here.excess > 0 ? 1.3 : 0.8;
		if (move(r)) {
			Cost next = cost_now(r);
			double cost = priced(r, next);

			note(r);
			if (cost <= priced(r, here) || cost <= priced(r, *late)) {
				here = next;
				stages_keep(r->s);
			} else {
				stages_undo(r->s, before);
			}
		}
		*late = here;
	}
	r->work += r->s->work;
}

/* One walk below each plan, or below as many, evenly chosen, as TARGETS. */
static void refine_round(Refine *r, double price, int64_t work)
{
	size_t n = r->plans->len, stride = (n + TARGETS - 1) / TARGETS;
	int64_t *bytes = ARENA_ARRAY(r->arena, n, int64_t); /* the plans change */
	int64_t share = work / (int64_t)((n + stride - 1) / stride);

	for (size_t k = 0; k < n; k++)
		bytes[k] = r->plans->at[k].live_bytes;
	for (size_t k = (n - 1) % stride; k < n; k += stride) {
		size_t from = first_within(r->plans, bytes[k] - 1);
		Sketch start_at = r->plans->at[from < r->plans->len ? from : r->plans->len - 1];

		r->target = bytes[k] - 1;
		r->price = price;
		walk(r, &start_at, share);
	}
}

void refine_plans(const Timeline *t, Arena *a, Sketches *plans, double limit, int64_t work)
{
	Refine r = { .t = t, .arena = a, .scratch = arena_new(), .plans = plans, .limit = limit, .found = true };
	double bytes = 1;

	assert(plans->len > 0);
	for (int32_t b = 0; b < t->nbufs; b++)
		bytes += (double)t->buf[b].bytes;
	for (int round = 0; round < ROUNDS && r.found; round++) {
		r.found = false;
		refine_round(&r, 4 * plans->at[0].seconds / (bytes * t->nops), (work - r.work) / (ROUNDS - round));
	}
	arena_free(r.scratch);
}

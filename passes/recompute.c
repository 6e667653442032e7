/* recompute: drop forward values and replay them just before their next use.
 *
 *     h = gelu(u) ... [peak] ... dw = matmul(h, dy)   ==>   h = gelu(u) ... [peak] ... h' = gelu(u); dw = matmul(h', dy)
 *
 * The state of the search (stages.c) says over which gaps between two uses a buffer is held; the replays follow from that.
 * A descent takes the plan that holds everything to ever lower targets for the peak, each a little below the last peak:
 *
 *   1. evict: among the held gaps that lie over stages above the target, drop the one with the fewest seconds per byte and stage
 *      relieved, until no stage is above it. Seconds count what the replay must itself replay, less what two bundles then share:
 *      where a replay makes a value that a neighbouring stage replays too, it is held from one to the other if it fits. A stage may rise
 *      above the target as long as others sink by more: so a flat profile is no dead end.
 *      At the peak itself, gaps that end or begin there are candidates as well, and so is holding what its bundle makes.
 *   2. restore: hold what fits below the target again, the most seconds per byte first.
 *
 * Descents after the first weigh each buffer by a factor of its own and take longer strides (as greedy randomized searches do: Feo and
 * Resende, "Greedy Randomized Adaptive Search Procedures", 1995, here with fixed numbers), within a limit of work: hundreds for a chain
 * of thirty operations, one for a thousand. All their plans are pooled; those that another beats in bytes and seconds are left out. Those of
 * small functions are then the starts of a local search with as much work again (refine.c); of others, what the smallest replays is held again
 * where a little more memory is enough for that.
 *
 * Looking at a gap costs a walk over what is replayed at its end. What was found is remembered with the gap, from target to target, until the
 * bundle at its end changes, and looked at again before it is dropped. Equal layers (alike.c) are looked at once: of gaps of one class one is, in
 * each round of remembered costs, and the others are expected to be like it. After a drop, sharing is tried for what its bundle makes anew. Many
 * gaps go in one round where there are very many. The nearer a descent is to its limit of work, the longer are its strides.
 *
 * Invariants: effects (assign, output) and carried sums are never replayed; a replay that reads a variable comes before
 * the variable is overwritten; a replay stays in the loop of its producer (all in stages.c). The result depends on the timeline and
 * the limit of seconds alone: work is counted, not timed. */
#include "recompute.h"

#include "alike.h"
#include "refine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { PATIENCE = 16, MOST_DESCENTS = 256, EASE = 256, REFINED_OPS = 150 };
static const double EASED = 0.9;
enum { LARGE_OPS = 3000, WORK_AN_OP = 2000, WORK_AN_OP_MORE = 1300, TIRED = 3, TIRED_OF_MANY = 6 };
enum { SHARED_A_CLASS = 8 }; /* gaps of the buffers of one class */
enum { GAPS_AT_ONCE = 50000, GAPS_OF_LARGE = 400000 }; /* a round takes more of them, the more there are and the longer a look at all takes */

typedef struct Candidate {
	double score;       /* the lower the better */
	int32_t buf, stage; /* the gap after the buffer's mark at the stage */
} Candidate;

/* What the last look at a gap of some class found. */
typedef struct Shared {
	uint64_t gap;
	int64_t work;       /* of the look */
	Found found;
} Shared;

typedef struct Search {
	const Timeline *t;
	Stages *s;
	Arena *arena;       /* of the result */
	double limit;       /* seconds of replays */
	int32_t descent;    /* its number */
	double bias;        /* how far tastes differ in it */
	int64_t work;       /* of the descents before it */
	int64_t enough;     /* work in one descent */
	int32_t round;      /* of remembered costs */
	int64_t target;
	bool *kept;         /* by stage: what it reads is never dropped in front of it */
	int64_t *live;      /* by stage */
	double *above;      /* by stage: how many before it are above the target */
	VEC(Candidate) cand;
	Sketches plans;
	VEC(int32_t) made;
	const Alike *alike; /* NULL: hardly any two buffers are */
	Shared *shared;     /* by the last bits of the class; what is not of this round is none */
	uint64_t nshared;   /* a power of two */
	uint64_t *end;      /* by stage: its class, with the bundle of the version in ... */
	int32_t *end_version;
	int64_t looks, spared; /* at gaps to drop; because of one at a gap that is alike */
	int32_t *noted, stamp; /* by buffer: the last time it was marked */
	Arena *scratch;
} Search;

/* ---- candidates ---- */

static int compare_candidates(const void *pa, const void *pb)
{
	const Candidate *a = pa, *b = pb;

	if (a->score < b->score || a->score > b->score)
		return a->score < b->score ? -1 : 1;
	if (a->buf != b->buf)
		return a->buf < b->buf ? -1 : 1;
	return a->stage < b->stage ? -1 : a->stage > b->stage;
}

/* Appends, unless the score says that it cannot be done. */
static void add_candidate(Search *s, double score, int32_t buf, int32_t stage)
{
	if (score < INFINITY)
		vec_push(s->scratch, &s->cand, ((Candidate){ score, buf, stage }));
}

static void sort_candidates(Search *s)
{
	if (s->cand.len)
		qsort(s->cand.at, s->cand.len, sizeof *s->cand.at, compare_candidates);
}

static void sift_down(Candidate *heap, size_t n, size_t i)
{
	Candidate c = heap[i];

	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		child += child + 1 < n && compare_candidates(&heap[child + 1], &heap[child]) < 0;
		if (compare_candidates(&c, &heap[child]) <= 0)
			break;
		heap[i] = heap[child];
	}
	heap[i] = c;
}

/* As a heap: of many candidates a round takes but a few. */
static void heap_candidates(Search *s)
{
	for (size_t i = s->cand.len / 2; i-- > 0;)
		sift_down(s->cand.at, s->cand.len, i);
}

/* The best of the heap, which there must be, leaves it. */
static Candidate pop_candidate(Search *s)
{
	Candidate best = s->cand.at[0];

	s->cand.at[0] = s->cand.at[--s->cand.len];
	if (s->cand.len)
		sift_down(s->cand.at, s->cand.len, 0);
	return best;
}

/* The number of the mark at a stage, -1 where there is none. */
static int32_t find_mark(const Marks *m, int32_t stage)
{
	int32_t i = marks_before(m, stage);

	return i < m->n && m->at[i].stage == stage ? i : -1;
}

/* The most bytes at a stage within the gap, both ends left out. */
static int64_t peak_within(const Search *s, const Mark *m)
{
	return peaks_over(&s->s->peaks, m[0].stage + 1, m[1].stage);
}

static bool fits_within(const Search *s, const Mark *m, int64_t bytes, int64_t limit)
{
	return m[0].stage + 1 == m[1].stage || peak_within(s, m) + bytes <= limit;
}

/* ---- evict ---- */

/* Counts the stages above the target; returns by how many bytes they are, together. */
static double count_above(Search *s)
{
	double sum = 0;

	peaks_read(&s->s->peaks, s->live);
	s->s->work += s->t->nops + s->t->nbufs;
	for (int32_t i = 0; i < s->t->nops; i++) {
		bool above = s->live[i] > s->target;

		s->above[i + 1] = s->above[i] + above;
		sum += above ? (double)(s->live[i] - s->target) : 0;
	}
	return sum;
}

/* A factor of its own for each buffer and descent: descents after the first try other ways. */
static double taste(const Search *s, int32_t buf)
{
	uint64_t x = ((uint64_t)s->descent << 32) + (uint64_t)buf; /* mixed as in Steele et al., SplitMix64 */

	if (s->bias <= 0)
		return 1;
	x *= UINT64_C(0x9E3779B97F4A7C15);
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return 1 + s->bias * (double)((x ^ (x >> 31)) >> 40) / (double)(1 << 24);
}

/* Looks at dropping a gap, and remembers what it finds. */
static void look(Search *s, int32_t buf, int32_t i, Effect *e)
{
	const Mark *m = &s->s->buf[buf].at[i];
	Found *f = &s->s->buf[buf].found[i];

	s->looks++;
	f->round = s->round;
	f->version = s->s->stage[m[1].stage].version;
	f->cost = INFINITY;
	if (!stages_try(s->s, buf, i, s->target, e))
		return;
	f->cost = e->seconds - e->shared;
	f->rise = e->right - peaks_at(&s->s->peaks, m[1].stage);
}

/* The class of a stage with the bundle that it has. */
static uint64_t end_class(Search *s, int32_t stage)
{
	const Stage *st = &s->s->stage[stage];

	if (s->end_version[stage] != st->version) {
		uint64_t h = s->alike->op[stage];

		for (int32_t k = 0; k < st->n; k++)
			h = alike_mix(h, s->alike->op[st->step[k].op] + st->step[k].wanted);
		s->end[stage] = h;
		s->end_version[stage] = st->version;
	}
	return s->end[stage];
}

/* Looks at a gap unless one that is alike has been looked at in this round: then the same is expected of it. What the replay finds held at the
 * gap's end is not compared, which takes as long as a look. */
static void look_or_share(Search *s, int32_t buf, int32_t i)
{
	const Mark *m = &s->s->buf[buf].at[i];
	uint64_t gap;
	Shared *known;
	Effect e;

	if (!s->alike) {
		look(s, buf, i, &e);
		return;
	}
	gap = alike_mix(s->alike->buf[buf] + (uint64_t)i, end_class(s, m[1].stage) + m[1].held);
	known = &s->shared[gap & (s->nshared - 1)];
	if (known->gap != gap || known->found.round != s->round) {
		int64_t before = s->s->work;

		look(s, buf, i, &e);
		*known = (Shared){ gap, s->s->work - before, s->s->buf[buf].found[i] };
		return;
	}
	s->spared++;
	s->s->work += known->work; /* the descent goes as far as if it had looked: what is spared is time */
	known->found.version = s->s->stage[m[1].stage].version;
	s->s->buf[buf].found[i] = known->found;
}

/* By how many bytes its end, which has `was` now, is then further above the target. */
static double harm(const Search *s, const Found *f, int64_t was)
{
	int64_t is = was + f->rise;

	return (double)((is > s->target ? is : s->target) - (was > s->target ? was : s->target));
}

/* Seconds by byte and stage that dropping a gap costs, whose end has so many bytes now; INFINITY where it cannot be done or does not help.
 * What was found before is taken for true while the bundle at its end is the same, or has been looked at for this target: `anew` asks
 * again. */
static double drop_score(Search *s, int32_t buf, int32_t i, int32_t peak, int64_t at_end, bool anew)
{
	const Mark *m = &s->s->buf[buf].at[i];
	const Found *f = &s->s->buf[buf].found[i];
	double bytes = (double)s->t->buf[buf].bytes;
	double relief = s->above[m[1].stage] - s->above[m->stage + 1];
	bool beside = m->stage == peak || m[1].stage == peak;
	Effect e;

	if (anew || beside) {
		look(s, buf, i, &e);
		if (beside && m->stage == peak && f->cost < INFINITY)
			relief += (double)(stages_peak(s->s) - e.left) / bytes;
	} else if (f->round != s->round && f->version != s->s->stage[m[1].stage].version) {
		look_or_share(s, buf, i);
	}
	relief -= f->cost < INFINITY ? harm(s, f, at_end) / bytes : relief;
	if (!(relief > 0) || s->s->seconds + f->cost > s->limit)
		return INFINITY;
	return f->cost > 0 ? (f->cost + 1e-12) / (bytes * relief) * taste(s, buf) : f->cost - 1e-12;
}

/* What outputs read: made again at the very end, it rarely pays, and descents leave it alone. */
static bool *find_kept(const Timeline *t, Arena *a)
{
	bool *kept = ARENA_ARRAY(a, t->nops, bool);

	for (int32_t i = 0; i < t->nops; i++)
		kept[i] = t->op[i].node && t->op[i].node->op == OP_output;
	return kept;
}

static void gather_drops(Search *s)
{
	int32_t peak = peaks_where(&s->s->peaks);

	for (int32_t b = 0; b < s->t->nbufs; b++) {
		const Marks *marks = &s->s->buf[b];

		if (marks->n < 2 || s->t->buf[b].carried || !s->t->op[s->t->buf[b].op].replayable)
			continue;
		if (s->above[marks->at[marks->n - 1].stage + 1] == s->above[marks->at[0].stage]) /* nothing above the target meets its life */
			continue;
		for (int32_t i = 0; i + 1 < marks->n; i++) {
			const Mark *m = &marks->at[i];

			if (m->held && (m->stage == peak || m[1].stage == peak || s->above[m[1].stage] > s->above[m->stage + 1]) &&
			    !s->kept[m[1].stage])
				add_candidate(s, drop_score(s, b, i, peak, s->live[m[1].stage], false), b, m->stage);
		}
	}
}

/* Holding what the bundle at the peak makes shortens it. */
static double hold_score(Search *s, int32_t buf, int32_t i, bool loose)
{
	const Mark *m = &s->s->buf[buf].at[i];
	int64_t top = stages_peak(s->s), bytes = s->t->buf[buf].bytes;
	Effect e;

	if (!fits_within(s, m, bytes, top - 1) || !stages_try(s->s, buf, i, s->target, &e) || e.left >= top || e.right >= top)
		return INFINITY;
	if (e.left > s->target || e.right > s->target || !fits_within(s, m, bytes, s->target))
		return loose ? 1 : INFINITY; /* a way on where nothing else is free */
	return e.seconds;
}

static void gather_holds(Search *s, bool loose)
{
	int32_t peak = peaks_where(&s->s->peaks);
	const Stage *st = &s->s->stage[peak];

	for (int32_t k = 0; k < st->n; k++) {
		const TOp *op = &s->t->op[st->step[k].op];

		for (int32_t d = 0; d < op->ndef; d++) {
			int32_t i = find_mark(&s->s->buf[op->def[d]], peak);

			if (((st->step[k].wanted >> d) & 1) && i > 0)
				add_candidate(s, hold_score(s, op->def[d], i - 1, loose), op->def[d],
				              s->s->buf[op->def[d]].at[i - 1].stage);
		}
	}
}

/* Holds the gap if it fits and saves seconds. */
static bool hold_if_good(Search *s, int32_t buf, int32_t i)
{
	const Mark *m = &s->s->buf[buf].at[i];
	size_t before;
	int64_t top;
	Effect e;

	if (m->held || !fits_within(s, m, s->t->buf[buf].bytes, s->target) ||
	    !stages_try(s->s, buf, i, s->target, &e) || e.seconds >= 0 || e.left > s->target || e.right > s->target)
		return false;
	before = stages_now(s->s);
	top = stages_peak(s->s);
	if (!stages_flip(s->s, buf, i))
		return false;
	if (stages_peak(s->s) <= (top > s->target ? top : s->target))
		return true;
	stages_undo(s->s, before); /* a stage beyond both ends has changed too */
	return false;
}

/* Marks what the bundle of a stage makes. */
static void note_bundle(Search *s, int32_t stage)
{
	const Stage *st = &s->s->stage[stage];

	s->stamp++;
	for (int32_t k = 0; k < st->n; k++) {
		const TOp *op = &s->t->op[st->step[k].op];

		for (int32_t d = 0; d < op->ndef; d++)
			if ((st->step[k].wanted >> d) & 1)
				s->noted[op->def[d]] = s->stamp;
	}
}

/* Values that the bundle makes since it was noted, and that a neighbouring stage makes too, are held from one to the other. */
static void share_replays(Search *s, int32_t stage)
{
	const Stage *st = &s->s->stage[stage];

	s->made.len = 0;
	if (st->n < 2)
		return;
	for (int32_t k = st->n - 1; k >= 0; k--) {
		const TOp *op = &s->t->op[st->step[k].op];

		for (int32_t d = 0; d < op->ndef; d++)
			if (((st->step[k].wanted >> d) & 1) && s->noted[op->def[d]] != s->stamp)
				vec_push(s->scratch, &s->made, op->def[d]);
	}
	for (size_t k = 0; k < s->made.len; k++) {
		const Marks *m = &s->s->buf[s->made.at[k]];
		int32_t i = find_mark(m, stage);

		if (i >= 0 && i + 1 < m->n)
			hold_if_good(s, s->made.at[k], i);
		i = find_mark(m, stage);
		if (i > 1)
			hold_if_good(s, s->made.at[k], i - 1);
	}
}

/* Drops (or holds) candidate k unless it has become dearer than it looked; `next` is what the one behind it looks like. */
static bool take(Search *s, const Candidate *c, bool first, double next)
{
	int32_t i = find_mark(&s->s->buf[c->buf], c->stage);
	const Mark *m;
	int32_t right;

	if (i < 0 || i + 1 >= s->s->buf[c->buf].n)
		return false;
	m = &s->s->buf[c->buf].at[i];
	right = m[1].stage;
	if (!m->held) {
		if (!first || !(hold_score(s, c->buf, i, true) < INFINITY))
			return false;
		return stages_flip(s->s, c->buf, i);
	}
	if (!first && (m->stage + 1 == right || peak_within(s, m) <= s->target))
		return false; /* others have made room there */
	if (drop_score(s, c->buf, i, peaks_where(&s->s->peaks), peaks_at(&s->s->peaks, right), true) > fmax(c->score > 0 ? c->score * 1.05 : 0, next))
		return false;
	note_bundle(s, right);
	if (!stages_flip(s->s, c->buf, i))
		return false;
	share_replays(s, right);
	return true;
}

/* Lowers the peak to the target; false where nothing more can be done. */
static bool evict(Search *s)
{
	double least = INFINITY;
	int stale = 0;

	s->round++;
	while (stages_peak(s->s) > s->target && stale < PATIENCE && s->s->work < s->enough) {
		double sum = count_above(s);
		size_t most, done = 0;

		stale = sum < least ? 0 : stale + 1;
		least = fmin(least, sum);
		s->cand.len = 0;
		gather_drops(s);
		gather_holds(s, false);
		if (s->cand.len == 0)
			gather_holds(s, true);
		heap_candidates(s);
		most = 1 + (size_t)((double)s->cand.len * s->t->nops / (s->t->nops > LARGE_OPS ? GAPS_OF_LARGE : GAPS_AT_ONCE));
		while (s->cand.len > 0 && done < most && stages_peak(s->s) > s->target) {
			Candidate best = pop_candidate(s);

			done += take(s, &best, done == 0, s->cand.len ? s->cand.at[0].score : INFINITY);
		}
		if (done == 0)
			stale = PATIENCE;
	}
	return stages_peak(s->s) <= s->target;
}

/* ---- restore ---- */

static bool restore_some(Search *s)
{
	bool any = false;

	s->cand.len = 0;
	peaks_read(&s->s->peaks, s->live);
	s->s->work += s->t->nops + s->t->nbufs;
	for (int32_t b = 0; b < s->t->nbufs; b++)
		for (int32_t i = 0; i + 1 < s->s->buf[b].n; i++) {
			const Mark *m = &s->s->buf[b].at[i];
			int64_t bytes = s->t->buf[b].bytes;
			Effect e;

			if (m->held || (m->stage + 1 < m[1].stage && s->live[m->stage + 1] + bytes > s->target) ||
			    !fits_within(s, m, bytes, s->target) || !stages_try(s->s, b, i, s->target, &e) || e.seconds >= 0 || e.left > s->target || e.right > s->target)
				continue;
			add_candidate(s, e.seconds / (double)bytes, b, m->stage);
		}
	sort_candidates(s);
	for (size_t k = 0; k < s->cand.len; k++) {
		const Candidate *c = &s->cand.at[k];
		int32_t i = find_mark(&s->s->buf[c->buf], c->stage);

		if (i >= 0 && i + 1 < s->s->buf[c->buf].n)
			any |= hold_if_good(s, c->buf, i);
	}
	return any;
}

static void restore(Search *s)
{
	for (int k = 0; k < 8 && restore_some(s); k++)
		;
}

/* ---- the trajectory ---- */

/* Leaves out the steps whose results nobody reads, such as an operation that is replayed before each of its uses: it first runs there.
 * Backwards over the plan, as ir_dce does over the function. */
static void drop_unread(const Timeline *t, TPlan *p, Arena *scratch)
{
	bool *wanted = ARENA_ARRAY(scratch, t->nbufs, bool), *idle = ARENA_ARRAY(scratch, t->nbufs, bool);
	int32_t kept = p->nsteps;

	for (int32_t i = p->nsteps - 1; i >= 0; i--) {
		TStep step = p->step[i];
		const TOp *op = &t->op[step.op];
		bool live = !op->node || !op->replayable;

		if (step.move) {
			if (step.move == MOVE_FETCHED)
				idle[step.buf] = !wanted[step.buf]; /* nobody reads what comes back: it need not go */
			if (!idle[step.buf])
				p->step[--kept] = step;
			wanted[step.buf] = step.move == MOVE_SEND ? !idle[step.buf] : step.move == MOVE_FETCH ? false : wanted[step.buf];
			continue;
		}
		for (int32_t k = 0; k < op->ndef && op->replayable; k++)
			if ((step.wanted >> (k & 31)) & 1) {
				live |= wanted[op->def[k]];
				wanted[op->def[k]] = false;
			}
		if (!live)
			continue;
		p->step[--kept] = step;
		for (int32_t k = 0; k < op->nuse && op->node; k++) /* a loop's end reads nothing: what is in the loop does */
			wanted[op->use[k]] = true;
	}
	p->nsteps -= kept;
	p->step += kept;
}

/* The trajectory of all plans that were met. What the search does not know of, steps that nobody reads, is left out of them first. */
static Trajectory pool(Search *s)
{
	Trajectory tr = { .t = s->t };

	refine_undominated(&s->plans);
	tr.plan = s->plans.at;
	tr.n = (int32_t)s->plans.len;
	for (int32_t k = 0; k < tr.n; k++) {
		TPlan plan;

		arena_reset(s->scratch);
		plan = recompute_plan(&tr, k, s->scratch);
		if (plan.nsteps == s->t->nops + tr.plan[k].n)
			continue;
		timeline_lives(s->t, s->scratch, &plan, NULL);
		tr.plan[k].seconds = plan.seconds;
		tr.plan[k].live_bytes = plan.live_bytes;
	}
	refine_undominated(&s->plans);
	tr.n = (int32_t)s->plans.len;
	tr.looks = s->looks;
	tr.spared = s->spared;
	return tr;
}

static Search begin(const Timeline *t, Arena *a, Arena *scratch, double max_seconds)
{
	Search s = { .t = t, .arena = a, .scratch = scratch };
	TPlan plain = timeline_plain(t, scratch);

	timeline_lives(t, scratch, &plain, NULL);
	s.limit = max_seconds - plain.seconds;
	s.kept = find_kept(t, a);
	vec_push(a, &s.plans, ((Sketch){ .seconds = plain.seconds, .live_bytes = plain.live_bytes }));
	return s;
}

/* The work of one descent: less for each operation beyond those of LARGE_OPS. */
static int64_t enough_work(int32_t nops)
{
	int64_t more = nops > LARGE_OPS ? nops - LARGE_OPS : 0;

	return RECOMPUTE_WORK / 2 + WORK_AN_OP * (nops - more) + WORK_AN_OP_MORE * more;
}

/* How many times longer strides are the nearer the limit of work is: to get far is worth more than to note all. */
static double haste(const Search *s)
{
	double tired = (double)s->s->work / (double)s->enough;

	return 1 + (s->t->nops > LARGE_OPS ? TIRED_OF_MANY : TIRED) * tired;
}

/* Begins at a plan; NULL: the one without replays. */
static void begin_at(Search *s, const Sketch *p)
{
	arena_reset(s->scratch);
	s->cand.at = NULL;
	s->cand.len = s->cand.cap = 0;
	s->made.at = NULL;
	s->made.len = s->made.cap = 0;
	s->s = p ? refine_state(s->t, s->scratch, p) : stages_new(s->t, s->scratch);
	s->live = ARENA_ARRAY(s->scratch, s->t->nops, int64_t);
	s->noted = ARENA_ARRAY(s->scratch, s->t->nbufs, int32_t);
	s->stamp = 0;
	if (s->alike) {
		for (s->nshared = SHARED_A_CLASS; s->nshared < SHARED_A_CLASS * (uint64_t)s->alike->nbufs; s->nshared *= 2)
			;
		s->shared = ARENA_ARRAY(s->scratch, s->nshared, Shared);
		s->end = ARENA_ARRAY(s->scratch, s->t->nops, uint64_t);
		s->end_version = ARENA_ARRAY(s->scratch, s->t->nops, int32_t);
	}
	s->above = ARENA_ARRAY(s->scratch, s->t->nops + 1, double);
	s->work += 16 * ((int64_t)s->t->nops + s->t->nbufs);
}

/* Descends from the plan without replays to the smallest that can be reached, each target a little below the last peak. */
static void descend(Search *s, double stride)
{
	s->enough = enough_work(s->t->nops);
	begin_at(s, NULL);
	do {
		s->target = (int64_t)((double)(stages_peak(s->s) + s->t->var_bytes) * (1 - stride * haste(s))) - s->t->var_bytes;
		if (s->target > 0 && evict(s))
			restore(s);
		vec_push(s->arena, &s->plans, refine_sketch(s->s, s->arena));
		stages_keep(s->s);
	} while (s->target > 0 && stages_peak(s->s) <= s->target && s->s->work < s->enough);
	s->work += s->s->work;
}

/* The smallest plan is one that fell short of its target, and in which nothing has been held again. With a little more room much of it can be:
 * a plan that is worth placing where it saves as much as EASED. */
static void ease_smallest(Search *s)
{
	Sketch plan = s->plans.at[s->plans.len - 1], eased;

	begin_at(s, &plan);
	s->target = plan.live_bytes + (plan.live_bytes + s->t->var_bytes) / EASE;
	restore(s);
	eased = refine_sketch(s->s, s->arena);
	if (eased.seconds <= EASED * plan.seconds)
		vec_push(s->arena, &s->plans, eased);
}

/* How far below the last peak the next target is, as a share of it. */
static double stride(int32_t nops)
{
	return nops < 600 ? 0.01 : nops < 6000 ? 0.03 : nops < 30000 ? 0.04 : 0.06;
}

Trajectory recompute_trajectory(const Timeline *t, Arena *a, double max_seconds, int64_t work)
{
	static const double biases[] = { 0, 0.5, 2, 8 };
	Arena *scratch = arena_new();
	Search s = begin(t, a, scratch, max_seconds);
	Trajectory tr;

	s.alike = alike_find(t, a);
	do { /* of three descents the second and the third take longer strides */
		s.bias = biases[s.descent % 4];
		descend(&s, stride(t->nops) * (1 + s.descent % 3));
		s.descent++;
	} while (s.work + s.work / s.descent < work && s.descent < MOST_DESCENTS && s.plans.len > 2);
	refine_undominated(&s.plans);
	if (t->nops <= REFINED_OPS)
		refine_plans(t, a, &s.plans, s.limit, work);
	else if (t->nops <= LARGE_OPS)
		ease_smallest(&s);
	tr = pool(&s);
	arena_free(scratch);
	return tr;
}

Trajectory recompute_nothing(const Timeline *t, Arena *a)
{
	Arena *scratch = arena_new();
	Search s = begin(t, a, scratch, INFINITY);
	Trajectory tr = pool(&s);

	arena_free(scratch);
	return tr;
}

/* A step of a copy, on its way to its place among the others. */
typedef struct MoveStep {
	int32_t before, rank, due;
	TStep step;
} MoveStep;

static int compare_move_steps(const void *pa, const void *pb)
{
	const MoveStep *a = pa, *b = pb;

	if (a->before != b->before)
		return a->before < b->before ? -1 : 1;
	if (a->rank != b->rank)
		return a->rank - b->rank;
	if (a->due != b->due)
		return a->due < b->due ? -1 : 1;
	return a->step.buf < b->step.buf ? -1 : a->step.buf > b->step.buf;
}

/* All steps of a plan's copies, in order. Where several come before one operation, those go first that give bytes back; what is needed
 * first is fetched first. */
static MoveStep *move_steps(const Timeline *t, const Sketch *p, Arena *a)
{
	MoveStep *s = ARENA_ARRAY(a, 4 * p->nmoves, MoveStep), *at = s;

	for (int32_t i = 0; i < p->nmoves; i++) {
		const Move *m = &p->move[i];
		TStep step = { .op = t->buf[m->buf].op, .buf = m->buf };

		step.move = MOVE_FETCHED;
		*at++ = (MoveStep){ m->fetched, 0, m->send, step };
		step.move = MOVE_SENT;
		*at++ = (MoveStep){ m->sent, 1, m->send, step };
		step.move = MOVE_FETCH;
		*at++ = (MoveStep){ m->fetch, 2, m->fetched, step };
		step.move = MOVE_SEND;
		*at++ = (MoveStep){ m->send, 3, m->send, step };
	}
	if (p->nmoves)
		qsort(s, (size_t)(at - s), sizeof *s, compare_move_steps);
	return s;
}

TPlan recompute_steps(const Timeline *t, const Sketch *p, Arena *a)
{
	TPlan plan = { .step = ARENA_ARRAY(a, t->nops + p->n + 4 * p->nmoves, TStep), .seconds = p->seconds, .live_bytes = p->live_bytes };
	const MoveStep *move = move_steps(t, p, a), *end = move + 4 * p->nmoves;

	for (int32_t i = 0, r = 0; i < t->nops; i++) {
		for (; move < end && move->before == i; move++)
			plan.step[plan.nsteps++] = move->step;
		for (; r < p->n && p->replay[r].before == i; r++)
			plan.step[plan.nsteps++] = p->replay[r].step;
		plan.step[plan.nsteps++] = (TStep){ .op = i, .wanted = UINT32_MAX };
	}
	drop_unread(t, &plan, a);
	return plan;
}

TPlan recompute_plan(const Trajectory *tr, int32_t k, Arena *a)
{
	return recompute_steps(tr->t, &tr->plan[k], a);
}

bool recompute_moves(const Trajectory *tr, int32_t k)
{
	Arena *scratch = arena_new();
	const Sketch *p = &tr->plan[k];
	bool moves = recompute_plan(tr, k, scratch).nsteps < tr->t->nops + p->n + 4 * p->nmoves;

	arena_free(scratch);
	return moves;
}

PassResult pass_recompute(Module *m, PassCtx *cx)
{
	Func *f = ir_find_func(m, "step");
	Arena *a;
	Timeline *t;
	Trajectory tr;
	TPlan plan;
	int32_t best = 0;

	if (!f || !cx->recompute)
		return PASS_SAME;
	if (!timeline_plannable(f))
		return PASS_FAILED;
	a = arena_new();
	t = timeline_build(a, f, cx);
	tr = recompute_trajectory(t, a, INFINITY, RECOMPUTE_WORK);
	while (best + 1 < tr.n && t->var_bytes + tr.plan[best].live_bytes > cx->budget)
		best++;
	plan = recompute_plan(&tr, best, a);
	recompute_apply(t, a, &plan);
	arena_free(a);
	return best > 0 ? PASS_CHANGED : PASS_SAME;
}

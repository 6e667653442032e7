/* Exact search for a placement of a given height (see pack_parts.h).
 *
 * Every placement can be let sink until each buffer rests on the ground or on another, so only such placements are
 * searched. Each unplaced buffer has a lower bound of its offset, `low`; where that is the top of what is placed under it
 * (`rest`), it can be put there. A decision is binary: buffer c lies at low[c], or it does not, and then it rests on a buffer
 * that is not placed yet, so that low[c] rises to the lowest top which one of those can have. c is taken only where
 * no unplaced buffer that it meets fits under it; the two branches are disjoint and no placement is met twice.
 *
 * Bounds after every decision, to a fixpoint, for each section with a sum S of unplaced sizes:
 *     low + S(low) <= capacity for each, S(low) the sum of those that lie at `low` or above (else the branch is dead);
 *     one with low + S > capacity is not the lowest there, so it lies above the lowest possible top of those that may be.
 *
 * After Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning" (ASPLOS 2023), for
 * canonical placements, section inference, hatless pruning and the portfolio of orders with restarts.
 *
 * Invariant: between decisions low[c] > rest[c] only where low[c] is at least the lowest possible top of c's
 * unplaced neighbours; so the unplaced buffer with the smallest `low` can always be put down. */
#include "pack_parts.h"

#include <stdlib.h>

typedef enum TrailKind { TRAIL_LOW, TRAIL_REST, TRAIL_PLACED } TrailKind;

typedef struct Trail {
	int64_t old;
	int32_t buffer;
	TrailKind kind;
} Trail;

typedef struct Decision {
	size_t trail;
	int32_t buffer;
} Decision;

/* Work of the shortest restarts, by buffer: of the many short ones and of the few long ones. */
enum { SHORT_SLICE = 12288, LONG_SLICE = 196608 };

/* An unplaced buffer of a section: its lower bound and size. */
typedef struct Release {
	int64_t low, size;
} Release;

typedef struct Rank {
	double key, area;
	int32_t buffer;
} Rank;

struct PackExact {
	const PackProblem *p;
	Arena *arena;
	int64_t work;                /* left */
	int64_t capacity;
	int64_t *low, *rest, *total; /* total by section: unplaced sizes */
	bool *placed;
	int32_t *rank;               /* by buffer: the order at work, small first */
	int64_t *blame;              /* by section: dead branches that it showed */
	Trail *trail;
	size_t ntrail, trail_room;
	Decision *decision;
	int32_t ndecision;
	int32_t *section, nsection;  /* to look at */
	bool *waiting;
	int32_t *floating, nfloating;
	bool *floats_waiting;
	int32_t left;                /* unplaced buffers */
	Rank *ranks;
	Release *release;            /* scratch of check_section */
	bool tightest;               /* the way to branch */
	int64_t rounds, long_rounds; /* restarts so far */
	int64_t short_work, long_work; /* and what they spent */
	uint64_t random;
};

static void remember(PackExact *x, TrailKind kind, int32_t buffer, int64_t old)
{
	if (x->ntrail == x->trail_room)
		x->trail = vec_grow(x->arena, x->trail, x->ntrail, &x->trail_room, sizeof *x->trail);
	x->trail[x->ntrail++] = (Trail){ old, buffer, kind };
}

static void look_at_sections(PackExact *x, int32_t i)
{
	for (int32_t s = x->p->lo[i]; s < x->p->hi[i]; s++) {
		if (x->waiting[s])
			continue;
		x->waiting[s] = true;
		x->section[x->nsection++] = s;
	}
}

static void look_at_floating(PackExact *x, int32_t i)
{
	for (int32_t k = 0; k < x->p->nnear[i]; k++) {
		int32_t j = x->p->near[i][k];

		if (x->placed[j] || x->low[j] == x->rest[j] || x->floats_waiting[j])
			continue;
		x->floats_waiting[j] = true;
		x->floating[x->nfloating++] = j;
	}
	x->work -= x->p->nnear[i];
}

/* False where buffer i no longer fits. */
static bool raise_low(PackExact *x, int32_t i, int64_t low)
{
	if (low <= x->low[i])
		return true;
	remember(x, TRAIL_LOW, i, x->low[i]);
	x->low[i] = low;
	if (low + x->p->size[i] > x->capacity)
		return false;
	look_at_sections(x, i);
	look_at_floating(x, i);
	return true;
}

/* The lowest top that an unplaced buffer beside i can have; INT64_MAX where there is none. */
static int64_t lowest_top(PackExact *x, int32_t i)
{
	int64_t best = INT64_MAX;

	for (int32_t k = 0; k < x->p->nnear[i]; k++) {
		int32_t j = x->p->near[i][k];

		if (!x->placed[j] && x->low[j] + x->p->size[j] < best)
			best = x->low[j] + x->p->size[j];
	}
	x->work -= x->p->nnear[i];
	return best;
}

/* Buffer i does not rest on what is placed. */
static bool float_up(PackExact *x, int32_t i)
{
	int64_t top = lowest_top(x, i);

	return top != INT64_MAX && raise_low(x, i, top);
}

/* The unplaced buffers of section s by falling `low`, into x->release. */
static int32_t list_releases(PackExact *x, int32_t s)
{
	const int32_t *live = x->p->live[s];
	Release *r = x->release;
	int32_t n = 0;

	for (int32_t k = 0; k < x->p->nlive[s]; k++) {
		int32_t j = live[k], at = n;

		if (x->placed[j])
			continue;
		n++;
		for (; at > 0 && r[at - 1].low < x->low[j]; at--)
			r[at] = r[at - 1];
		r[at] = (Release){ x->low[j], x->p->size[j] };
	}
	x->work -= 2 * x->p->nlive[s];
	return n;
}

static bool check_section(PackExact *x, int32_t s)
{
	const int32_t *live = x->p->live[s];
	int64_t latest = x->capacity - x->total[s]; /* of the lowest one */
	int64_t top = INT64_MAX, sum = 0;
	int32_t n = list_releases(x, s), k;

	for (k = 0; k < n; k++) { /* those from here up need `sum` above `low` */
		sum += x->release[k].size;
		if (x->release[k].low + sum > x->capacity)
			return false;
	}
	for (k = n; k > 0 && x->release[k - 1].low <= latest; k--)
		if (x->release[k - 1].low + x->release[k - 1].size < top)
			top = x->release[k - 1].low + x->release[k - 1].size;
	if (k == 0)
		return true;
	for (k = 0; k < x->p->nlive[s]; k++)
		if (!x->placed[live[k]] && x->low[live[k]] > latest && !raise_low(x, live[k], top))
			return false;
	return true;
}

static void forget_waiting(PackExact *x)
{
	while (x->nsection > 0)
		x->waiting[x->section[--x->nsection]] = false;
	while (x->nfloating > 0)
		x->floats_waiting[x->floating[--x->nfloating]] = false;
}

static bool propagate(PackExact *x)
{
	while (x->nsection > 0 || x->nfloating > 0) {
		if (x->nsection > 0) {
			int32_t s = x->section[--x->nsection];

			x->waiting[s] = false;
			if (!check_section(x, s)) {
				x->blame[s]++;
				return false;
			}
		} else {
			int32_t i = x->floating[--x->nfloating];

			x->floats_waiting[i] = false;
			if (x->low[i] > x->rest[i] && !float_up(x, i))
				return false;
		}
	}
	return true;
}

static bool put_down(PackExact *x, int32_t c)
{
	int64_t top = x->low[c] + x->p->size[c];
	bool sound = true;

	remember(x, TRAIL_PLACED, c, 0);
	x->placed[c] = true;
	x->left--;
	for (int32_t s = x->p->lo[c]; s < x->p->hi[c]; s++)
		x->total[s] -= x->p->size[c];
	look_at_sections(x, c);
	for (int32_t k = 0; k < x->p->nnear[c]; k++) {
		int32_t j = x->p->near[c][k];

		if (x->placed[j] || x->rest[j] >= top)
			continue;
		remember(x, TRAIL_REST, j, x->rest[j]);
		x->rest[j] = top;
		sound = raise_low(x, j, top) && sound;
	}
	look_at_floating(x, c);
	return sound && propagate(x);
}

static void undo_to(PackExact *x, size_t length)
{
	while (x->ntrail > length) {
		Trail t = x->trail[--x->ntrail];

		if (t.kind == TRAIL_LOW) {
			x->low[t.buffer] = t.old;
		} else if (t.kind == TRAIL_REST) {
			x->rest[t.buffer] = t.old;
		} else {
			x->placed[t.buffer] = false;
			x->left++;
			for (int32_t s = x->p->lo[t.buffer]; s < x->p->hi[t.buffer]; s++)
				x->total[s] += x->p->size[t.buffer];
		}
	}
	forget_waiting(x);
}

/* The lowest of all, first in the order. */
static int32_t choose_lowest(PackExact *x)
{
	int32_t best = -1;

	for (int32_t i = 0; i < x->p->n; i++)
		if (!x->placed[i] && (best < 0 || x->low[i] < x->low[best] ||
		                      (x->low[i] == x->low[best] && x->rank[i] < x->rank[best])))
			best = i;
	x->work -= x->p->n;
	return best;
}

/* The lowest in the section with the least room, or what may have to go under it. */
static int32_t choose_tightest(PackExact *x)
{
	int32_t best = -1, tightest = -1;
	double least = 0;

	for (int32_t s = 0; s < x->p->m; s++) {
		int64_t low = INT64_MAX;
		double room;

		if (x->total[s] == 0)
			continue;
		for (int32_t k = 0; k < x->p->nlive[s]; k++)
			if (!x->placed[x->p->live[s][k]] && x->low[x->p->live[s][k]] < low)
				low = x->low[x->p->live[s][k]];
		x->work -= x->p->nlive[s];
		room = (double)(x->capacity - low - x->total[s] + 1) / (double)(x->blame[s] + 1);
		if (tightest < 0 || room < least) {
			tightest = s;
			least = room;
		}
	}
	if (tightest < 0)
		return -1;
	for (int32_t k = 0; k < x->p->nlive[tightest]; k++) {
		int32_t i = x->p->live[tightest][k];

		if (!x->placed[i] && (best < 0 || x->low[i] < x->low[best] ||
		                      (x->low[i] == x->low[best] && x->rank[i] < x->rank[best])))
			best = i;
	}
	for (;;) {
		int32_t under = -1;

		for (int32_t k = 0; k < x->p->nnear[best]; k++) {
			int32_t j = x->p->near[best][k];

			if (!x->placed[j] && x->low[j] + x->p->size[j] <= x->low[best] &&
			    (under < 0 || x->low[j] < x->low[under] ||
			     (x->low[j] == x->low[under] && x->rank[j] < x->rank[under])))
				under = j;
		}
		x->work -= x->p->nnear[best];
		if (under < 0)
			return best;
		best = under;
	}
}

static PackAnswer search(PackExact *x)
{
	bool sound = true;

	for (int32_t s = 0; s < x->p->m; s++) {
		x->waiting[s] = true;
		x->section[x->nsection++] = s;
	}
	sound = propagate(x);
	for (;;) {
		if (!sound) {
			Decision d;

			if (x->ndecision == 0)
				return PACK_IMPOSSIBLE;
			if (x->work <= 0)
				return PACK_GAVE_UP;
			d = x->decision[--x->ndecision];
			undo_to(x, d.trail);
			sound = float_up(x, d.buffer) && propagate(x);
			continue;
		}
		if (x->left == 0)
			return PACK_FOUND;
		x->decision[x->ndecision] = (Decision){ x->ntrail, x->tightest ? choose_tightest(x) : choose_lowest(x) };
		sound = put_down(x, x->decision[x->ndecision++].buffer);
	}
}

/* ---- orders ---- */

static int compare_ranks(const void *pa, const void *pb)
{
	const Rank *a = pa, *b = pb;

	if (a->key != b->key)
		return a->key > b->key ? -1 : 1;
	if (a->area != b->area)
		return a->area > b->area ? -1 : 1;
	return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

/* The largest sum of a section that buffer i lives in. */
static double fullest_section(const PackExact *x, int32_t i)
{
	int64_t most = 0;

	for (int32_t s = x->p->lo[i]; s < x->p->hi[i]; s++)
		if (x->total[s] > most)
			most = x->total[s];
	return (double)most;
}

static uint32_t draw(PackExact *x)
{
	x->random = x->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(x->random >> 33);
}

/* The ways to branch, in turn. */
typedef struct Style {
	bool tightest; /* in the tightest section, else the lowest of all */
	bool area;     /* large areas first, else long lives */
	bool full;     /* and those in full sections first: times a high power of the sum there */
} Style;

static const Style styles[] = {
	{ .full = true }, { .tightest = true, .full = true }, { .area = true }, { .tightest = true },
};

enum { STYLES = sizeof styles / sizeof *styles };

/* The order in which equally low buffers are tried: by a key, from the second time on times a random factor up to 1.5. A
 * search that fails mostly fails for its first choices, so many short searches find more than a long one. Products and
 * quotients alone, so that every machine computes the same. */
static void rank_buffers(PackExact *x, int64_t round)
{
	const Style *style = &styles[round % STYLES];
	Rank *rank = x->ranks;

	for (int32_t i = 0; i < x->p->n; i++) {
		double width = (double)(x->p->hi[i] - x->p->lo[i]), area = width * (double)x->p->size[i];
		double key = style->area ? area : width;

		if (style->full) {
			double fill = fullest_section(x, i) / (double)x->p->bound;

			for (int k = 0; k < 4; k++)
				fill *= fill;
			key *= fill;
		}
		if (round >= STYLES)
			key *= (double)(UINT32_C(0x80000000) + draw(x) / 2);
		rank[i] = (Rank){ key, area, i };
	}
	qsort(rank, (size_t)x->p->n, sizeof *rank, compare_ranks);
	for (int32_t k = 0; k < x->p->n; k++)
		x->rank[rank[k].buffer] = k;
	x->tightest = style->tightest;
	memset(x->blame, 0, (size_t)x->p->m * sizeof *x->blame);
}

static void sum_sections(PackExact *x)
{
	const PackProblem *p = x->p;

	for (int32_t s = 0; s < p->m; s++)
		for (int32_t k = 0; k < p->nlive[s]; k++)
			x->total[s] += p->size[p->live[s][k]];
	x->left = p->n;
}

PackExact *pack_exact(Arena *a, const PackProblem *p)
{
	PackExact *x = ARENA_NEW(a, PackExact);

	x->p = p;
	x->arena = a;
	x->low = ARENA_ARRAY(a, p->n, int64_t);
	x->rest = ARENA_ARRAY(a, p->n, int64_t);
	x->total = ARENA_ARRAY(a, p->m, int64_t);
	x->placed = ARENA_ARRAY(a, p->n, bool);
	x->rank = ARENA_ARRAY(a, p->n, int32_t);
	x->ranks = ARENA_ARRAY(a, p->n, Rank);
	x->blame = ARENA_ARRAY(a, p->m, int64_t);
	x->decision = ARENA_ARRAY(a, p->n, Decision);
	x->section = ARENA_ARRAY(a, p->m, int32_t);
	x->waiting = ARENA_ARRAY(a, p->m, bool);
	x->floating = ARENA_ARRAY(a, p->n, int32_t);
	x->release = ARENA_ARRAY(a, p->n, Release);
	x->floats_waiting = ARENA_ARRAY(a, p->n, bool);
	sum_sections(x);
	return x;
}

/* 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..., from k = 1 (Luby, Sinclair and Zuckerman, 1993). */
static int64_t luby(int64_t k)
{
	int64_t size = 1;

	while (size < k)
		size = 2 * size + 1;
	for (; size != k; size /= 2)
		if (k > size / 2)
			k -= size / 2;
	return (size + 1) / 2;
}

/* One restart, of `slice` at most; *spent counts its work. */
static PackAnswer restart(PackExact *x, int64_t round, int64_t slice, PackWork *work, int64_t *spent)
{
	PackAnswer answer;
	int64_t used;

	x->work = slice = slice < work->left ? slice : work->left;
	rank_buffers(x, round);
	answer = search(x);
	used = slice - x->work + 1;
	*spent += used;
	work->left -= used;
	return answer;
}

PackAnswer pack_exact_run(PackExact *x, int64_t capacity, int64_t slice, PackWork *work, int64_t *offset)
{
	PackAnswer answer = PACK_GAVE_UP;
	int64_t end = work->left - slice;

	if (capacity < x->p->bound)
		return PACK_IMPOSSIBLE;
	x->capacity = capacity;
	while (answer == PACK_GAVE_UP && work->left > 0 && work->left > end) {
		int64_t k = x->rounds / STYLES, doublings = x->long_rounds / STYLES;
		int64_t next = x->p->n * LONG_SLICE << (doublings < 24 ? doublings : 24);

		if (x->long_work + next / 2 <= x->short_work)
			answer = restart(x, x->long_rounds++, next, work, &x->long_work);
		else
			answer = restart(x, x->rounds++, x->p->n * SHORT_SLICE * luby(k + 1), work, &x->short_work);
		if (answer == PACK_FOUND)
			memcpy(offset, x->low, (size_t)x->p->n * sizeof *offset);
		undo_to(x, 0);
		x->ndecision = 0;
	}
	return answer;
}

/* Local search for a lower placement (see pack_parts.h).
 *
 * Method: the ceiling goes below the best height, and what reaches above it is taken out. Then one buffer after another,
 * the largest first, goes back in at the offset where the buffers that it overlaps weigh least; those are taken out in
 * turn. A buffer weighs more each time it is taken out, so what is hard to place ends up placed. When all are in, the
 * placement sinks, its height becomes the best, and the ceiling goes down again. Where that takes too many moves, the
 * search starts again from the best with a smaller step of the ceiling.
 * Offsets worth trying lie against a neighbour: its top, or its bottom less the size; the ground; the ceiling.
 *
 * Invariant: buffers that are in do not overlap and do not reach above the ceiling. */
#include "pack_parts.h"

#include <stdlib.h>

enum {
	OUT = -1,
	FIRST_STEP = 8, /* the ceiling falls by this part of the gap above the target */
	LAST_STEP = 64,
	STUCK = 16,     /* moves per buffer without success */
};

/* One end of a buffer that is in, in a list sorted by `key`, then by buffer. */
typedef struct End {
	int64_t key;
	int32_t lo, hi;
	int64_t weight;
	int32_t buffer;
} End;

typedef struct Ends {
	End *at;
	int32_t n;
} Ends;

typedef struct Sinking {
	int64_t at;
	int32_t buffer;
} Sinking;

struct PackEvict {
	const PackProblem *p;
	PackWork *work;
	int64_t ceiling;
	int64_t *at;          /* by buffer: offset, or OUT */
	int64_t *weight;
	int32_t *queue;       /* those that are out, in the order in which they came out */
	int32_t waiting;
	int64_t step, moves;  /* moves since the ceiling fell */
	Ends bottoms, tops;   /* of those that are in */
	Ends near_bottoms, near_tops; /* of those beside the buffer at work */
	Sinking *sinking;
	int64_t *skyline;     /* by section */
	uint64_t random;
};

static uint32_t draw(PackEvict *e)
{
	e->random = e->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(e->random >> 33);
}

/* The first end that is not before (key, buffer). */
static int32_t find_end(const Ends *ends, int64_t key, int32_t buffer)
{
	int32_t lo = 0, hi = ends->n;

	while (lo < hi) {
		int32_t mid = (lo + hi) / 2;
		const End *e = &ends->at[mid];

		if (e->key < key || (e->key == key && e->buffer < buffer))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void add_end(PackEvict *e, Ends *ends, int64_t key, int32_t i)
{
	int32_t k = find_end(ends, key, i);

	memmove(&ends->at[k + 1], &ends->at[k], (size_t)(ends->n - k) * sizeof *ends->at);
	ends->at[k] = (End){ key, e->p->lo[i], e->p->hi[i], e->weight[i], i };
	ends->n++;
}

static void drop_end(Ends *ends, int64_t key, int32_t i)
{
	int32_t k = find_end(ends, key, i);

	ends->n--;
	memmove(&ends->at[k], &ends->at[k + 1], (size_t)(ends->n - k) * sizeof *ends->at);
}

static void take_out(PackEvict *e, int32_t i)
{
	drop_end(&e->bottoms, e->at[i], i);
	drop_end(&e->tops, e->at[i] + e->p->size[i], i);
	e->at[i] = OUT;
	e->queue[e->waiting++] = i;
}

/* The largest of those that are out, the first such one. */
static int32_t next_out(PackEvict *e)
{
	int32_t best = 0, i;

	for (int32_t k = 1; k < e->waiting; k++)
		if (e->p->size[e->queue[k]] > e->p->size[e->queue[best]])
			best = k;
	i = e->queue[best];
	e->waiting--;
	memmove(&e->queue[best], &e->queue[best + 1], (size_t)(e->waiting - best) * sizeof *e->queue);
	e->work->left -= e->waiting;
	return i;
}

/* Puts buffer i in. */
static void lay(PackEvict *e, int32_t i, int64_t at)
{
	e->at[i] = at;
	add_end(e, &e->bottoms, at, i);
	add_end(e, &e->tops, at + e->p->size[i], i);
}

static void select_near(PackEvict *e, const Ends *all, Ends *near, int32_t i)
{
	int32_t lo = e->p->lo[i], hi = e->p->hi[i], n = 0;

	for (int32_t k = 0; k < all->n; k++) {
		near->at[n] = all->at[k];
		n += (all->at[k].lo < hi) & (lo < all->at[k].hi);
	}
	near->n = n;
	e->work->left -= all->n;
}

/* The offset for buffer i where what it would overlap weighs least. */
static int64_t cheapest_offset(PackEvict *e, int32_t i)
{
	const Ends *bottoms = &e->near_bottoms, *tops = &e->near_tops;
	int64_t size = e->p->size[i], last = e->ceiling - size, sum = 0, best = 0, least = INT64_MAX;
	int32_t b = 0, t = 0;
	uint32_t ties = 1;

	select_near(e, &e->bottoms, &e->near_bottoms, i);
	select_near(e, &e->tops, &e->near_tops, i);
	for (int64_t at = 0; at <= last;) { /* the ground, then each top */
		while (b < bottoms->n && bottoms->at[b].key < at + size)
			sum += bottoms->at[b++].weight;
		if (sum < least || (sum == least && draw(e) % ++ties == 0)) {
			ties = sum < least ? 1 : ties;
			least = sum;
			best = at;
			if (draw(e) % 2 == 0) { /* against the bottom of what comes next */
				int64_t end = b < bottoms->n ? bottoms->at[b].key - size : last;

				end = end < last ? end : last;
				if (t == tops->n || end < tops->at[t].key)
					best = end;
			}
		}
		if (t == tops->n)
			break;
		for (at = tops->at[t].key; t < tops->n && tops->at[t].key == at; t++)
			sum -= tops->at[t].weight;
	}
	return best;
}

static void put_in(PackEvict *e, int32_t i)
{
	const Ends *bottoms = &e->near_bottoms;
	int64_t at = cheapest_offset(e, i), top = at + e->p->size[i];

	for (int32_t k = 0; k < bottoms->n && bottoms->at[k].key < top; k++) {
		int32_t j = bottoms->at[k].buffer;

		if (e->at[j] + e->p->size[j] <= at)
			continue;
		take_out(e, j);
		e->weight[j] += e->weight[j] / 8 + 1;
		if (e->weight[j] > INT64_MAX / 65536)
			e->weight[j] = INT64_MAX / 65536;
	}
	lay(e, i, at);
}

static int compare_sinking(const void *pa, const void *pb)
{
	const Sinking *a = pa, *b = pb;

	if (a->at != b->at)
		return a->at < b->at ? -1 : 1;
	return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

/* Lets every buffer fall onto those under it; returns the height. */
static int64_t sink(PackEvict *e)
{
	const PackProblem *p = e->p;
	int64_t height = 0;

	for (int32_t i = 0; i < p->n; i++)
		e->sinking[i] = (Sinking){ e->at[i], i };
	qsort(e->sinking, (size_t)p->n, sizeof *e->sinking, compare_sinking);
	memset(e->skyline, 0, (size_t)p->m * sizeof *e->skyline);
	for (int32_t k = 0; k < p->n; k++) {
		int32_t i = e->sinking[k].buffer;
		int64_t rest = 0;

		for (int32_t s = p->lo[i]; s < p->hi[i]; s++)
			if (e->skyline[s] > rest)
				rest = e->skyline[s];
		e->at[i] = rest;
		rest += p->size[i];
		for (int32_t s = p->lo[i]; s < p->hi[i]; s++)
			e->skyline[s] = rest;
		if (rest > height)
			height = rest;
		e->work->left -= 2 * (p->hi[i] - p->lo[i]);
	}
	return height;
}

/* Lists the ends of all buffers afresh: all are in. */
static void list_ends(PackEvict *e)
{
	e->bottoms.n = e->tops.n = 0;
	for (int32_t i = 0; i < e->p->n; i++)
		lay(e, i, e->at[i]);
}

static void lower_ceiling(PackEvict *e, int64_t ceiling)
{
	e->ceiling = ceiling;
	for (int32_t i = 0; i < e->p->n; i++)
		if (e->at[i] != OUT && e->at[i] + e->p->size[i] > ceiling)
			take_out(e, i);
}

PackEvict *pack_evict(Arena *a, const PackProblem *p)
{
	PackEvict *e = ARENA_NEW(a, PackEvict);

	e->p = p;
	e->random = 1;
	e->step = FIRST_STEP;
	e->at = ARENA_ARRAY(a, p->n, int64_t);
	e->weight = ARENA_ARRAY(a, p->n, int64_t);
	e->queue = ARENA_ARRAY(a, p->n, int32_t);
	e->sinking = ARENA_ARRAY(a, p->n, Sinking);
	e->skyline = ARENA_ARRAY(a, p->m, int64_t);
	e->bottoms.at = ARENA_ARRAY(a, p->n + 1, End);
	e->tops.at = ARENA_ARRAY(a, p->n + 1, End);
	e->near_bottoms.at = ARENA_ARRAY(a, p->n + 1, End);
	e->near_tops.at = ARENA_ARRAY(a, p->n + 1, End);
	return e;
}

void pack_evict_start(PackEvict *e, const int64_t *offset)
{
	memcpy(e->at, offset, (size_t)e->p->n * sizeof *offset);
	for (int32_t i = 0; i < e->p->n; i++)
		e->weight[i] = 16;
	e->waiting = 0;
	e->ceiling = INT64_MAX;
	list_ends(e);
}

int64_t pack_evict_run(PackEvict *e, int64_t height, int64_t target, PackWork *work, int64_t *offset)
{
	const PackProblem *p = e->p;

	e->work = work;
	while (height > target && work->left > 0) {
		int64_t gap = height - target;

		if (e->ceiling >= height)
			lower_ceiling(e, height - (gap / e->step > 1 ? gap / e->step : 1));
		while (e->waiting > 0 && work->left > 0 && e->moves < STUCK * (int64_t)p->n) {
			put_in(e, next_out(e));
			e->moves++;
		}
		if (e->waiting > 0 && work->left <= 0)
			break;
		e->moves = 0;
		if (e->waiting > 0) { /* stuck: the same again with other weights, and a smaller step */
			pack_evict_start(e, offset);
			e->step = e->step < LAST_STEP ? 2 * e->step : FIRST_STEP;
			continue;
		}
		e->step = FIRST_STEP;
		height = sink(e);
		list_ends(e);
		memcpy(offset, e->at, (size_t)p->n * sizeof *offset);
	}
	return height;
}

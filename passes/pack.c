/* Placement of live ranges (see pack.h).
 *
 * Method: place rectangles one by one, each at the lowest (or the tightest) free offset among those already placed that it
 * meets in time. The order decides. Kept activations form a stack over time, so "longest life first" packs a
 * training graph with no hole in most cases; other orders follow where it does not. Then escalation: the rectangles that
 * reach above the target, and those they stand on, move to the front of the order, and all are placed again
 * (after Imanishi and Xu, "A Heuristic for Periodic Memory Allocation with Little Fragmentation", 2024, in spirit).
 *
 * What is free at a rectangle's time is known without a look at all that it meets (pack_space.c), so that an order of many rectangles takes
 * little more than sorting them. An order that can no longer be the best is given up.
 *
 * Invariant: every candidate placement is complete, so the best one so far can always be returned. */
#include "pack_parts.h"

#include <stdlib.h>

static const double ESCALATION_WORK = 2e7; /* pairs */
static const int64_t ORDERS_WORK = 1500000; /* in units of pack_space_work: no further order after so many */

/* Of very many rectangles gaps below such a part of the height are not worth knowing. */
enum { SMALL_GAP = 65536 };

/* What is higher by such a part than it may be is left as it is: escalation gains a few hundredths at most. */
enum { HOPELESS = 16 };

typedef struct Packer {
	const PackRect *r;
	size_t n;
	int64_t *offset;     /* of the placement at work */
	int64_t *best;
	int64_t best_height;
	int64_t *priority;   /* escalation: higher goes first */
	uint32_t *order, *base, *spare; /* `base`: by key alone */
	int64_t *key;
	int32_t *lo, *hi;    /* lives, counted in distinct starts: half-open, and met by the same others */
	PackSpace *space;
} Packer;

typedef int64_t (*Key)(const PackRect *r);

static int64_t key_life(const PackRect *r)
{
	return r->upper - r->lower;
}

static int64_t key_size(const PackRect *r)
{
	return r->size;
}

static int64_t key_area(const PackRect *r)
{
	return (r->upper - r->lower) * (r->size / 64 + 1);
}

static int64_t key_early(const PackRect *r)
{
	return -r->lower;
}

static int64_t key_late(const PackRect *r)
{
	return r->upper;
}

enum { NKEYS = 5, MANY_RECTS = 2000, VERY_MANY = 8000 };

/* The best orders first; of many rectangles the size says more than the life. */
static const Key keys[NKEYS] = { key_life, key_area, key_size, key_early, key_late };
static const Key keys_of_many[NKEYS] = { key_size, key_life, key_area, key_late, key_early };

/* Sorts `order` by the keys of what it lists, largest first; those of equal keys stay as they are. By so many bits at a time, from the lowest
 * to the highest in which keys differ (radix sort). */
static void sort_down(uint32_t *order, uint32_t *spare, const int64_t *key, size_t n)
{
	enum { BITS = 11, DIGITS = 1 << BITS };
	int64_t least = INT64_MAX, most = INT64_MIN;

	for (size_t k = 0; k < n; k++) {
		least = key[order[k]] < least ? key[order[k]] : least;
		most = key[order[k]] > most ? key[order[k]] : most;
	}
	for (int shift = 0; shift < 64 && n > 0 && ((uint64_t)(most - least) >> shift) > 0; shift += BITS) {
		uint32_t at[DIGITS] = { 0 }, before = 0;

		for (size_t k = 0; k < n; k++)
			at[((uint64_t)(most - key[order[k]]) >> shift) % DIGITS]++;
		for (size_t d = 0; d < DIGITS; d++) {
			uint32_t here = at[d];

			at[d] = before;
			before += here;
		}
		for (size_t k = 0; k < n; k++)
			spare[at[((uint64_t)(most - key[order[k]]) >> shift) % DIGITS]++] = order[k];
		memcpy(order, spare, n * sizeof *order);
	}
}

/* Orders by key, then size, then index: total, so the result is the same everywhere. */
static void sort_by(Packer *p, Key key)
{
	for (size_t i = 0; i < p->n; i++) {
		p->base[i] = (uint32_t)i;
		p->key[i] = p->r[i].size;
	}
	sort_down(p->base, p->spare, p->key, p->n);
	for (size_t i = 0; i < p->n; i++)
		p->key[i] = key(&p->r[i]);
	sort_down(p->base, p->spare, p->key, p->n);
	memcpy(p->order, p->base, p->n * sizeof *p->order);
}

/* The same, but those of the highest priority first: few have any. */
static void prefer(Packer *p)
{
	size_t preferred = 0, n;

	for (size_t k = 0; k < p->n; k++)
		if (p->priority[p->base[k]] > 0)
			p->order[preferred++] = p->base[k];
	sort_down(p->order, p->spare, p->priority, preferred);
	n = preferred;
	for (size_t k = 0; k < p->n; k++)
		if (p->priority[p->base[k]] == 0)
			p->order[n++] = p->base[k];
}

static bool meet(const PackRect *a, const PackRect *b)
{
	return a->lower < b->upper && b->lower < a->upper;
}

/* Two lives meet if and only if one's start lies in the other: so positions between two starts are as one. */
static int32_t number_lives(Packer *p, Arena *scratch)
{
	int64_t end = 1;
	int32_t *starts, n = 0; /* by position: distinct starts before it */

	for (size_t i = 0; i < p->n; i++)
		if (p->r[i].upper > end)
			end = p->r[i].upper;
	starts = ARENA_ARRAY(scratch, end + 1, int32_t);
	for (size_t i = 0; i < p->n; i++)
		starts[p->r[i].lower] = 1;
	for (int64_t t = 0; t <= end; t++) {
		int32_t here = starts[t];

		starts[t] = n;
		n += here;
	}
	p->lo = ARENA_ARRAY(scratch, p->n, int32_t);
	p->hi = ARENA_ARRAY(scratch, p->n, int32_t);
	for (size_t i = 0; i < p->n; i++) {
		p->lo[i] = starts[p->r[i].lower];
		p->hi[i] = starts[p->r[i].upper];
	}
	return n;
}

static PackSpace *make_space(Packer *p, Arena *scratch, int64_t floor)
{
	int32_t positions = number_lives(p, scratch);
	int64_t least = INT64_MAX;

	for (size_t i = 0; i < p->n; i++)
		if (p->r[i].size < least)
			least = p->r[i].size;
	if (p->n > VERY_MANY && least < floor / SMALL_GAP)
		least = floor / SMALL_GAP;
	return pack_space(scratch, p->lo, p->hi, p->n, positions, least);
}

/* Whether so much more is worth doing. A complete placement there must be. */
static bool may_go_on(const Packer *p, int64_t more)
{
	return p->best_height == INT64_MAX || pack_space_work(p->space) + more < ORDERS_WORK;
}

/* Places all in p->order and keeps the result if it is the lowest so far; else, unless it must be complete, it may stop half-way. */
static void place_in_order(Packer *p, bool tightest, bool complete)
{
	int64_t height = 0;

	pack_space_clear(p->space);
	for (size_t k = 0; k < p->n; k++) {
		uint32_t i = p->order[k];

		if (!complete && (height >= p->best_height || !may_go_on(p, 0)))
			return;
		p->offset[i] = pack_space_find(p->space, p->lo[i], p->hi[i], p->r[i].size, tightest);
		pack_space_take(p->space, p->lo[i], p->hi[i], p->offset[i], p->r[i].size);
		if (p->offset[i] + p->r[i].size > height)
			height = p->offset[i] + p->r[i].size;
	}
	if (height < p->best_height) {
		p->best_height = height;
		memcpy(p->best, p->offset, p->n * sizeof *p->best);
	}
}

/* What reaches above `target` in the placement at work goes to the front, what it stands on behind it. */
static void escalate(Packer *p, int64_t target, int round)
{
	for (size_t i = 0; i < p->n; i++) {
		if (p->offset[i] + p->r[i].size <= target)
			continue;
		p->priority[i] += 2 + round % 3;
		for (size_t j = 0; j < p->n; j++)
			if (p->offset[j] + p->r[j].size == p->offset[i] && meet(&p->r[i], &p->r[j]))
				p->priority[j] += 1;
	}
}

int64_t pack_lower_bound(Arena *scratch, const PackRect *r, size_t n)
{
	int64_t end = 0, live = 0, best = 0;
	int64_t *delta;

	for (size_t i = 0; i < n; i++)
		if (r[i].upper > end)
			end = r[i].upper;
	delta = ARENA_ARRAY(scratch, end + 1, int64_t);
	for (size_t i = 0; i < n; i++) {
		delta[r[i].lower] += r[i].size;
		delta[r[i].upper] -= r[i].size;
	}
	for (int64_t t = 0; t < end; t++) {
		live += delta[t];
		if (live > best)
			best = live;
	}
	return best;
}

int64_t pack_place(Arena *scratch, PackRect *r, size_t n, int64_t target, int rounds)
{
	Packer p = { .r = r, .n = n, .best_height = INT64_MAX };
	int64_t floor = pack_lower_bound(scratch, r, n), whole = 0;

	if (n == 0)
		return 0;
	p.offset = ARENA_ARRAY(scratch, n, int64_t);
	p.best = ARENA_ARRAY(scratch, n, int64_t);
	p.priority = ARENA_ARRAY(scratch, n, int64_t);
	p.order = ARENA_ARRAY(scratch, n, uint32_t);
	p.base = ARENA_ARRAY(scratch, n, uint32_t);
	p.spare = ARENA_ARRAY(scratch, n, uint32_t);
	p.key = ARENA_ARRAY(scratch, n, int64_t);
	p.space = make_space(&p, scratch, floor);
	floor += floor >> (n > VERY_MANY ? 10 : 11); /* within 0.1 % or 0.05 % of the bound is good enough to stop */
	if (target < floor)
		target = floor;
	for (int k = 0; k < 2 * NKEYS && p.best_height > target && may_go_on(&p, whole); k++) {
		if (k % 2 == 0)
			sort_by(&p, (n > MANY_RECTS ? keys_of_many : keys)[k / 2]);
		place_in_order(&p, k % 2 == 1, false);
		if (k == 0)
			whole = pack_space_work(p.space) / 2; /* an order that may win takes about as much as the first, perhaps less */
	}
	/* Each round looks at every pair: fewer of them where there are many rectangles. */
	if ((double)n * (double)n * rounds > ESCALATION_WORK)
		rounds = (int)(ESCALATION_WORK / ((double)n * (double)n));
	if (p.best_height - target > target / HOPELESS)
		rounds = 0;
	for (int round = 0; round < rounds && p.best_height > target; round++) {
		Key key = keys[round / 16 % 3];

		if (round % 16 == 0) {
			memset(p.priority, 0, n * sizeof *p.priority);
			sort_by(&p, key);
		}
		prefer(&p);
		place_in_order(&p, round % 2 == 1, true);
		escalate(&p, target, round);
	}
	for (size_t i = 0; i < n; i++)
		r[i].offset = p.best[i];
	return p.best_height;
}

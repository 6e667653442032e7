/* Placement of live ranges (see pack.h).
 *
 * Method: place rectangles one by one, each at the lowest (or the tightest) free offset among those already placed that it
 * meets in time. The order decides. Kept activations form a stack over time, so "longest life first" packs a
 * training graph with no hole in most cases; other orders follow where it does not. Then escalation: the rectangles that
 * reach above the target, and those they stand on, move to the front of the order, and all are placed again
 * (after Imanishi and Xu, "A Heuristic for Periodic Memory Allocation with Little Fragmentation", 2024, in spirit).
 *
 * Time is cut into buckets, each with the placed rectangles that live in it by ascending offset: a rectangle of a short life looks
 * only at those of its few buckets, one of a long life at all. An order that can no longer be the best is given up.
 *
 * Invariant: every candidate placement is complete, so the best one so far can always be returned. */
#include "pack.h"

#include <stdbool.h>
#include <stdlib.h>

static const double ESCALATION_WORK = 1e8; /* pairs */
static const int64_t ORDERS_WORK = 120000000; /* pairs: no order is begun after so many */

/* A stretch of offsets that is taken while the rectangle at work lives. */
typedef struct Span64 {
	int64_t from, to;
} Span64;

/* Buckets are no narrower than so many positions, and hold no more than so many entries a rectangle. */
enum { BUCKET_WIDTH = 16, BUCKET_ENTRIES = 32 };

typedef struct Packer {
	const PackRect *r;
	size_t n;
	int64_t work;        /* pairs looked at so far */
	int64_t *offset;     /* of the placement at work */
	int64_t *best;
	int64_t best_height;
	int64_t *priority;   /* escalation: higher goes first */
	uint32_t *order;
	uint32_t *placed;    /* indices by ascending offset */
	size_t nplaced;
	int64_t width;       /* positions of one bucket */
	int64_t nbuckets;
	uint32_t **bucket;   /* by time: placed rectangles that live in it, as many as nbucket, by ascending offset */
	uint32_t *nbucket;
	Span64 *taken;       /* of the search at work */
	Span64 *fresh;       /* of its bucket at work */
} Packer;

/* A walk over what is taken, by ascending offset. */
typedef struct Fit {
	int64_t size;
	bool tightest;
	int64_t top;               /* all before it is known */
	int64_t best, best_slack;  /* -1: none yet */
} Fit;

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

enum { NKEYS = 5, MANY_RECTS = 2000 };

/* The best orders first; of many rectangles the size says more than the life. */
static const Key keys[NKEYS] = { key_life, key_area, key_size, key_early, key_late };
static const Key keys_of_many[NKEYS] = { key_size, key_life, key_area, key_late, key_early };

typedef struct SortItem {
	int64_t priority, key, tie;
	uint32_t index;
} SortItem;

static int compare_items(const void *pa, const void *pb)
{
	const SortItem *a = pa, *b = pb;

	if (a->priority != b->priority)
		return a->priority > b->priority ? -1 : 1;
	if (a->key != b->key)
		return a->key > b->key ? -1 : 1;
	if (a->tie != b->tie)
		return a->tie > b->tie ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

/* Orders by priority, then key, then size, then index: total, so the result is the same everywhere. */
static void sort_by(Packer *p, Key key, SortItem *items)
{
	for (size_t i = 0; i < p->n; i++)
		items[i] = (SortItem){ p->priority[i], key(&p->r[i]), p->r[i].size, (uint32_t)i };
	qsort(items, p->n, sizeof *items, compare_items);
	for (size_t i = 0; i < p->n; i++)
		p->order[i] = items[i].index;
}

static bool meet(const PackRect *a, const PackRect *b)
{
	return a->lower < b->upper && b->lower < a->upper;
}

/* True when the place is found and what follows does not matter. */
static bool fit_before(Fit *f, Span64 taken)
{
	int64_t slack = taken.from - f->top - f->size;

	if (slack >= 0 && slack < f->best_slack) {
		f->best = f->top;
		f->best_slack = slack;
	}
	if (taken.to > f->top)
		f->top = taken.to;
	return f->best >= 0 && !f->tightest;
}

static int64_t first_bucket(const Packer *p, const PackRect *r)
{
	return r->lower / p->width;
}

static int64_t last_bucket(const Packer *p, const PackRect *r)
{
	return (r->upper - 1) / p->width;
}

static Span64 span_of(const Packer *p, uint32_t i)
{
	return (Span64){ p->offset[i], p->offset[i] + p->r[i].size };
}

/* Over all that are placed: best where most of them meet rectangle i. */
static void walk_placed(const Packer *p, uint32_t i, Fit *fit)
{
	const PackRect *r = &p->r[i];

	for (size_t k = 0; k < p->nplaced; k++)
		if (meet(r, &p->r[p->placed[k]]) && fit_before(fit, span_of(p, p->placed[k])))
			return;
}

/* Adds p->fresh to p->taken, both by ascending offset. */
static void merge_fresh(Packer *p, size_t n, size_t fresh)
{
	while (fresh > 0) {
		if (n > 0 && p->taken[n - 1].from > p->fresh[fresh - 1].from) {
			p->taken[n + fresh - 1] = p->taken[n - 1];
			n--;
		} else {
			p->taken[n + fresh - 1] = p->fresh[fresh - 1];
			fresh--;
		}
	}
}

/* Over those in the buckets of its life: best where few meet it. */
static void walk_buckets(Packer *p, uint32_t i, Fit *fit)
{
	const PackRect *r = &p->r[i];
	int64_t first = first_bucket(p, r), last = last_bucket(p, r);
	size_t n = 0;

	for (int64_t b = first; b <= last; b++) {
		size_t fresh = 0;

		for (uint32_t k = 0; k < p->nbucket[b]; k++) {
			uint32_t j = p->bucket[b][k];

			if (meet(r, &p->r[j]) && (b == first || p->r[j].lower >= b * p->width)) /* not in an earlier one too */
				p->fresh[fresh++] = span_of(p, j);
		}
		merge_fresh(p, n, fresh);
		n += fresh;
	}
	for (size_t k = 0; k < n && !fit_before(fit, p->taken[k]); k++)
		;
}

/* The lowest free offset for rectangle i, or the one that leaves the smallest hole. */
static int64_t find_offset(Packer *p, uint32_t i, bool tightest)
{
	Fit fit = { .size = p->r[i].size, .tightest = tightest, .best = -1, .best_slack = INT64_MAX };
	size_t near = 0;

	for (int64_t b = first_bucket(p, &p->r[i]); b <= last_bucket(p, &p->r[i]); b++)
		near += p->nbucket[b];
	if (2 * near < p->nplaced) {
		p->work += (int64_t)(2 * near);
		walk_buckets(p, i, &fit);
	} else {
		p->work += (int64_t)p->nplaced;
		walk_placed(p, i, &fit);
	}
	return fit.best >= 0 ? fit.best : fit.top;
}

/* Adds rectangle i to a list by ascending offset, behind those of the same. */
static void insert(const Packer *p, uint32_t *list, size_t n, uint32_t i)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (p->offset[list[mid]] <= p->offset[i])
			lo = mid + 1;
		else
			hi = mid;
	}
	memmove(&list[lo + 1], &list[lo], (n - lo) * sizeof *list);
	list[lo] = i;
}

static void add_placed(Packer *p, uint32_t i)
{
	insert(p, p->placed, p->nplaced++, i);
	for (int64_t b = first_bucket(p, &p->r[i]); b <= last_bucket(p, &p->r[i]); b++)
		insert(p, p->bucket[b], p->nbucket[b]++, i);
}

static double count_entries(const Packer *p)
{
	double sum = 0;

	for (size_t i = 0; i < p->n; i++)
		sum += (double)(last_bucket(p, &p->r[i]) - first_bucket(p, &p->r[i]) + 1);
	return sum;
}

/* Room in each bucket for every rectangle that lives in it. */
static void make_buckets(Packer *p, Arena *scratch)
{
	int64_t end = 1;

	for (size_t i = 0; i < p->n; i++)
		if (p->r[i].upper > end)
			end = p->r[i].upper;
	for (p->width = BUCKET_WIDTH; p->width < end && count_entries(p) > BUCKET_ENTRIES * (double)p->n; p->width *= 2)
		;
	p->nbuckets = (end - 1) / p->width + 1;
	p->bucket = ARENA_ARRAY(scratch, p->nbuckets, uint32_t *);
	p->nbucket = ARENA_ARRAY(scratch, p->nbuckets, uint32_t);
	for (size_t i = 0; i < p->n; i++)
		for (int64_t b = first_bucket(p, &p->r[i]); b <= last_bucket(p, &p->r[i]); b++)
			p->nbucket[b]++;
	for (int64_t b = 0; b < p->nbuckets; b++)
		p->bucket[b] = ARENA_ARRAY(scratch, p->nbucket[b], uint32_t);
}

/* Places all in p->order and keeps the result if it is the lowest so far; else, unless it must be complete, it may stop half-way. */
static void place_in_order(Packer *p, bool tightest, bool complete)
{
	int64_t height = 0;

	p->nplaced = 0;
	memset(p->nbucket, 0, (size_t)p->nbuckets * sizeof *p->nbucket);
	for (size_t k = 0; k < p->n && (complete || height < p->best_height); k++) {
		uint32_t i = p->order[k];

		p->offset[i] = find_offset(p, i, tightest);
		add_placed(p, i);
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
	SortItem *items = ARENA_ARRAY(scratch, n + 1, SortItem);
	int64_t floor = pack_lower_bound(scratch, r, n);

	if (n == 0)
		return 0;
	p.offset = ARENA_ARRAY(scratch, n, int64_t);
	p.best = ARENA_ARRAY(scratch, n, int64_t);
	p.priority = ARENA_ARRAY(scratch, n, int64_t);
	p.order = ARENA_ARRAY(scratch, n, uint32_t);
	p.placed = ARENA_ARRAY(scratch, n + 1, uint32_t);
	p.taken = ARENA_ARRAY(scratch, n, Span64);
	p.fresh = ARENA_ARRAY(scratch, n, Span64);
	make_buckets(&p, scratch);
	floor += floor >> 11; /* within 0.05 % of the bound is good enough to stop */
	if (target < floor)
		target = floor;
	for (int k = 0; k < 2 * NKEYS && p.best_height > target && p.work < ORDERS_WORK; k++) {
		if (k % 2 == 0)
			sort_by(&p, (n > MANY_RECTS ? keys_of_many : keys)[k / 2], items);
		place_in_order(&p, k % 2 == 1, false);
	}
	/* Each round looks at every pair: fewer of them where there are many rectangles. */
	if ((double)n * (double)n * rounds > ESCALATION_WORK)
		rounds = (int)(ESCALATION_WORK / ((double)n * (double)n));
	for (int round = 0; round < rounds && p.best_height > target; round++) {
		Key key = keys[round / 16 % 3];

		if (round % 16 == 0)
			memset(p.priority, 0, n * sizeof *p.priority);
		sort_by(&p, key, items);
		place_in_order(&p, round % 2 == 1, true);
		escalate(&p, target, round);
	}
	for (size_t i = 0; i < n; i++)
		r[i].offset = p.best[i];
	return p.best_height;
}

/* Placement of live ranges (see pack.h).
 *
 * Method: place rectangles one by one, each at the lowest (or the tightest) free offset among those already placed that it
 * meets in time. The order decides. Kept activations form a stack over time, so "longest life first" packs a
 * training graph with no hole in most cases; other orders follow where it does not. Then escalation: the rectangles that
 * reach above the target, and those they stand on, move to the front of the order, and all are placed again
 * (after Imanishi and Xu, "A Heuristic for Periodic Memory Allocation with Little Fragmentation", 2024, in spirit).
 *
 * Invariant: every candidate placement is complete, so the best one so far can always be returned. */
#include "pack.h"

#include <stdbool.h>
#include <stdlib.h>

static const double ESCALATION_WORK = 1e8; /* pairs */

/* A stretch of offsets that is taken while the rectangle at work lives. */
typedef struct Span64 {
	int64_t from, to;
} Span64;

enum { BUCKETS = 256 };

typedef struct Packer {
	const PackRect *r;
	size_t n;
	int64_t *offset;     /* of the placement at work */
	int64_t *best;
	int64_t best_height;
	int64_t *priority;   /* escalation: higher goes first */
	uint32_t *order;
	uint32_t *placed;    /* indices by ascending offset */
	size_t nplaced;
	int64_t width;       /* positions of one bucket */
	uint32_t **bucket;   /* by time: placed rectangles that live in it, first as many as nbucket */
	uint32_t *nbucket;
	uint32_t *seen;      /* by rectangle: the search that met it last */
	uint32_t search;
	Span64 *taken;       /* of the search at work */
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

static const Key keys[] = { key_life, key_area, key_size, key_early, key_late };

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

static int compare_spans(const void *pa, const void *pb)
{
	const Span64 *a = pa, *b = pb;

	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	return a->to < b->to ? -1 : a->to > b->to;
}

/* All placed rectangles are by offset already: best where most of them meet rectangle i. */
static size_t scan_placed(Packer *p, uint32_t i)
{
	size_t n = 0;

	for (size_t k = 0; k < p->nplaced; k++) {
		uint32_t j = p->placed[k];

		if (meet(&p->r[i], &p->r[j]))
			p->taken[n++] = (Span64){ p->offset[j], p->offset[j] + p->r[j].size };
	}
	return n;
}

/* Those in the buckets of its life, sorted: best where few meet it. */
static size_t scan_buckets(Packer *p, uint32_t i)
{
	const PackRect *r = &p->r[i];
	size_t n = 0;

	p->search++;
	for (int64_t b = r->lower / p->width; b <= (r->upper - 1) / p->width; b++)
		for (uint32_t k = 0; k < p->nbucket[b]; k++) {
			uint32_t j = p->bucket[b][k];

			if (p->seen[j] == p->search || !meet(r, &p->r[j]))
				continue;
			p->seen[j] = p->search;
			p->taken[n++] = (Span64){ p->offset[j], p->offset[j] + p->r[j].size };
		}
	qsort(p->taken, n, sizeof *p->taken, compare_spans);
	return n;
}

/* What is taken beside rectangle i, by ascending offset, into p->taken; returns how many. */
static size_t gather_taken(Packer *p, uint32_t i)
{
	size_t near = 0;

	for (int64_t b = p->r[i].lower / p->width; b <= (p->r[i].upper - 1) / p->width; b++)
		near += p->nbucket[b];
	return 32 * near < p->nplaced ? scan_buckets(p, i) : scan_placed(p, i);
}

/* The lowest free offset for rectangle i, or the one that leaves the smallest hole. */
static int64_t find_offset(Packer *p, uint32_t i, bool tightest)
{
	size_t n = gather_taken(p, i);
	int64_t top = 0, best = -1, best_slack = INT64_MAX;

	for (size_t k = 0; k < n; k++) {
		int64_t slack = p->taken[k].from - top - p->r[i].size;

		if (slack >= 0 && slack < best_slack) {
			best = top;
			best_slack = slack;
			if (!tightest)
				return best;
		}
		if (p->taken[k].to > top)
			top = p->taken[k].to;
	}
	return best >= 0 ? best : top;
}

static void add_placed(Packer *p, uint32_t i)
{
	size_t lo = 0, hi = p->nplaced;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (p->offset[p->placed[mid]] <= p->offset[i])
			lo = mid + 1;
		else
			hi = mid;
	}
	memmove(&p->placed[lo + 1], &p->placed[lo], (p->nplaced - lo) * sizeof *p->placed);
	p->placed[lo] = i;
	p->nplaced++;
	for (int64_t b = p->r[i].lower / p->width; b <= (p->r[i].upper - 1) / p->width; b++)
		p->bucket[b][p->nbucket[b]++] = i;
}

/* Room in each bucket for every rectangle that lives in it. */
static void make_buckets(Packer *p, Arena *scratch)
{
	int64_t end = 1;

	for (size_t i = 0; i < p->n; i++)
		if (p->r[i].upper > end)
			end = p->r[i].upper;
	p->width = (end + BUCKETS - 1) / BUCKETS;
	p->bucket = ARENA_ARRAY(scratch, BUCKETS, uint32_t *);
	p->nbucket = ARENA_ARRAY(scratch, BUCKETS, uint32_t);
	for (size_t i = 0; i < p->n; i++)
		for (int64_t b = p->r[i].lower / p->width; b <= (p->r[i].upper - 1) / p->width; b++)
			p->nbucket[b]++;
	for (int b = 0; b < BUCKETS; b++)
		p->bucket[b] = ARENA_ARRAY(scratch, p->nbucket[b], uint32_t);
}

/* Places all in p->order and keeps the result if it is the lowest so far. */
static int64_t place_in_order(Packer *p, bool tightest)
{
	int64_t height = 0;

	p->nplaced = 0;
	memset(p->nbucket, 0, BUCKETS * sizeof *p->nbucket);
	for (size_t k = 0; k < p->n; k++) {
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
	return height;
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
	p.seen = ARENA_ARRAY(scratch, n, uint32_t);
	p.taken = ARENA_ARRAY(scratch, n, Span64);
	make_buckets(&p, scratch);
	floor += floor >> 11; /* within 0.05 % of the bound is good enough to stop */
	if (target < floor)
		target = floor;
	for (size_t k = 0; k < sizeof keys / sizeof *keys && p.best_height > target; k++) {
		sort_by(&p, keys[k], items);
		place_in_order(&p, false);
		if (p.best_height > target)
			place_in_order(&p, true);
	}
	/* Each round looks at every pair: fewer of them where there are many rectangles. */
	if ((double)n * (double)n * rounds > ESCALATION_WORK)
		rounds = (int)(ESCALATION_WORK / ((double)n * (double)n));
	for (int round = 0; round < rounds && p.best_height > target; round++) {
		Key key = keys[round / 16 % 3];

		if (round % 16 == 0)
			memset(p.priority, 0, n * sizeof *p.priority);
		sort_by(&p, key, items);
		place_in_order(&p, round % 2 == 1);
		escalate(&p, target, round);
	}
	for (size_t i = 0; i < n; i++)
		r[i].offset = p.best[i];
	return p.best_height;
}

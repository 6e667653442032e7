/* The lowest placement that a limit of work allows (see pack.h).
 *
 * Method: split where no buffer is live, so that each part can be placed alone; place each greedily; then slices of local and
 * exact search in turn, each round twice as long as the one before, on every part that is above the goal. The goal is the
 * target, or the highest bound of any part where that is higher: nothing lower could lower the whole.
 *
 * Without a target the exact search asks for heights between the bound and the best so far, and each answer "impossible" raises
 * the bound.
 *
 * Invariant: each part has a complete placement at all times. */
#include "pack_parts.h"

#include <stdlib.h>

enum {
	GREEDY_ROUNDS = 4,
	FIRST_SLICE = 1 << 23,
	EXACT_MOST = 1024,     /* buffers: beyond this the exact search is not tried */
	EXACT_BEST = 400,      /* up to this it gets most of the work */
	ASKS = 8,              /* heights that the exact search is asked for, before it is asked for the goal again */
	LISTS_MOST = 20000000, /* entries */
};

typedef struct Part {
	PackProblem *p;
	PackEvict *evict;
	PackExact *exact;
	uint32_t *member;  /* index of its rectangles */
	int64_t *offset;   /* units */
	int64_t height, bound; /* units */
	int misses;        /* answers of the exact search that gave up */
} Part;

typedef struct Parts {
	Part *at;
	size_t n;
} Parts;

/* ---- parts ---- */

typedef struct Start {
	int64_t lower;
	uint32_t index;
} Start;

static int compare_starts(const void *pa, const void *pb)
{
	const Start *a = pa, *b = pb;

	if (a->lower != b->lower)
		return a->lower < b->lower ? -1 : 1;
	return a->index < b->index ? -1 : a->index > b->index;
}

/* Greedy placement in sections instead of positions, which may be far apart. */
static void place_greedily(Arena *a, Part *part, int64_t target)
{
	const PackProblem *p = part->p;
	PackRect *r = ARENA_ARRAY(a, p->n, PackRect);

	for (int32_t i = 0; i < p->n; i++)
		r[i] = (PackRect){ p->lo[i], p->hi[i], p->size[i], 0 };
	part->height = pack_place(a, r, (size_t)p->n, target / p->unit, GREEDY_ROUNDS);
	for (int32_t i = 0; i < p->n; i++)
		part->offset[i] = r[i].offset;
}

static Part make_part(Arena *a, const PackRect *all, const Start *start, size_t n, int64_t target)
{
	PackRect *r = ARENA_ARRAY(a, n, PackRect);
	Part part = { .member = ARENA_ARRAY(a, n, uint32_t), .offset = ARENA_ARRAY(a, n, int64_t) };

	for (size_t i = 0; i < n; i++) {
		part.member[i] = start[i].index;
		r[i] = all[start[i].index];
	}
	part.p = pack_problem(a, r, n, LISTS_MOST);
	part.bound = part.p->bound;
	place_greedily(a, &part, target);
	return part;
}

static Parts split(Arena *a, const PackRect *r, size_t n, int64_t target)
{
	Start *start = ARENA_ARRAY(a, n, Start);
	Parts parts = { .at = ARENA_ARRAY(a, n, Part) };
	size_t first = 0;
	int64_t end = 0;

	for (size_t i = 0; i < n; i++)
		start[i] = (Start){ r[i].lower, (uint32_t)i };
	qsort(start, n, sizeof *start, compare_starts);
	for (size_t i = 0; i < n; i++) {
		if (i > first && start[i].lower >= end) {
			parts.at[parts.n++] = make_part(a, r, start + first, i - first, target);
			first = i;
		}
		if (r[start[i].index].upper > end)
			end = r[start[i].index].upper;
	}
	parts.at[parts.n++] = make_part(a, r, start + first, n - first, target);
	return parts;
}

/* ---- search ---- */

/* A height to ask the exact search for, in units: the goal; without a target also others up to the best so far, nearer
 * to that after each answer that gave up. */
static int64_t ask(const Part *part, int64_t goal, bool lowest)
{
	int64_t gap = part->height - 1 - goal;

	return lowest && part->misses % ASKS > 0 ? goal + gap - (gap >> part->misses % ASKS) : goal;
}

static void search_exactly(Arena *a, Part *part, int64_t goal, bool lowest, int64_t slice, PackWork *work)
{
	int64_t capacity = ask(part, goal, lowest);
	PackAnswer answer;

	if (!part->exact)
		part->exact = pack_exact(a, part->p);
	answer = pack_exact_run(part->exact, capacity, slice, work, part->offset);
	if (answer == PACK_IMPOSSIBLE)
		part->bound = capacity + 1;
	if (answer == PACK_GAVE_UP)
		part->misses++;
	if (answer != PACK_FOUND)
		return;
	part->misses -= part->misses % ASKS > 1;
	part->height = 0;
	for (int32_t i = 0; i < part->p->n; i++)
		if (part->offset[i] + part->p->size[i] > part->height)
			part->height = part->offset[i] + part->p->size[i];
	if (part->evict)
		pack_evict_start(part->evict, part->offset);
}

static void search_locally(Arena *a, Part *part, int64_t goal, int64_t slice, PackWork *work)
{
	PackWork own = { slice < work->left ? slice : work->left };

	if (!part->evict) {
		part->evict = pack_evict(a, part->p);
		pack_evict_start(part->evict, part->offset);
	}
	work->left -= own.left;
	part->height = pack_evict_run(part->evict, part->height, goal, &own, part->offset);
	work->left += own.left;
}

/* One slice of work on a part that is above the goal (bytes). */
static void improve(Arena *a, Part *part, int64_t goal, bool lowest, int64_t slice, PackWork *work)
{
	int64_t units = goal / part->p->unit;
	int asks = 1;
	int64_t exact = part->p->live && part->p->n <= EXACT_MOST ? slice / 8 : 0;

	if (exact > 0 && part->p->n <= EXACT_BEST) {
		exact = slice - exact;
		asks = 4;
	}
	search_locally(a, part, units, slice - exact, work);
	for (int k = 0; k < asks && exact > 0 && part->height > units && part->bound <= units && work->left > 0; k++)
		search_exactly(a, part, units, lowest, exact / asks, work);
}

static PackResult measure(const Parts *parts)
{
	PackResult result = { 0 };

	for (size_t k = 0; k < parts->n; k++) {
		int64_t unit = parts->at[k].p->unit;

		if (parts->at[k].height * unit > result.height)
			result.height = parts->at[k].height * unit;
		if (parts->at[k].bound * unit > result.bound)
			result.bound = parts->at[k].bound * unit;
	}
	return result;
}

PackResult pack_search(Arena *scratch, PackRect *r, size_t n, int64_t target, int64_t limit)
{
	PackWork work = { limit };
	Parts parts;
	PackResult result = { 0 };
	int64_t slice = FIRST_SLICE;

	if (n == 0)
		return result;
	parts = split(scratch, r, n, target);
	result = measure(&parts);
	while (work.left > 0 && result.height > target && result.height > result.bound) {
		int64_t goal;

		if (result.bound > target) /* proved impossible: then as low as it goes */
			target = 0;
		goal = result.bound > target ? result.bound : target;

		for (size_t k = 0; k < parts.n && work.left > 0; k++) {
			Part *part = &parts.at[k];

			if (part->height * part->p->unit > goal)
				improve(scratch, part, goal, target == 0, slice, &work);
		}
		slice *= 2;
		result = measure(&parts);
	}
	for (size_t k = 0; k < parts.n; k++)
		for (int32_t i = 0; i < parts.at[k].p->n; i++)
			r[parts.at[k].member[i]].offset = parts.at[k].offset[i] * parts.at[k].p->unit;
	return result;
}

/* Rectangles as a problem in sections (see pack_parts.h).
 *
 * Method: sort the starts and ends; a section ends where an end follows a start. Before the first such end everything that
 * started is live, so that section is a maximal clique of the interval graph, and all maximal cliques come out so. */
#include "pack_parts.h"

#include <assert.h>
#include <stdlib.h>

typedef struct Edge {
	int64_t at;
	int32_t buffer;
	bool start;
} Edge;

static int compare_edges(const void *pa, const void *pb)
{
	const Edge *a = pa, *b = pb;

	if (a->at != b->at)
		return a->at < b->at ? -1 : 1;
	if (a->start != b->start)
		return a->start ? 1 : -1; /* lives are half-open: ends come first */
	return a->buffer < b->buffer ? -1 : a->buffer > b->buffer;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
	while (b != 0) {
		int64_t rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static void find_sections(Arena *a, PackProblem *p, const PackRect *r)
{
	size_t n = (size_t)p->n;
	Edge *e = ARENA_ARRAY(a, 2 * n, Edge);
	bool started = false;

	for (size_t i = 0; i < n; i++) {
		e[2 * i] = (Edge){ r[i].lower, (int32_t)i, true };
		e[2 * i + 1] = (Edge){ r[i].upper, (int32_t)i, false };
	}
	qsort(e, 2 * n, sizeof *e, compare_edges);
	for (size_t k = 0; k < 2 * n; k++) {
		if (e[k].start) {
			p->lo[e[k].buffer] = p->m;
			started = true;
			continue;
		}
		if (started)
			p->m++;
		started = false;
		p->hi[e[k].buffer] = p->m;
	}
}

/* The largest sum of a section; pairs that meet (each counted at the start of the later one) into *pairs. */
static int64_t sweep(Arena *a, const PackProblem *p, int64_t *pairs)
{
	int64_t *bytes = ARENA_ARRAY(a, p->m + 1, int64_t), *ends = ARENA_ARRAY(a, p->m + 1, int64_t);
	int64_t *starts = ARENA_ARRAY(a, p->m + 1, int64_t);
	int64_t sum = 0, live = 0, most = 0;

	for (int32_t i = 0; i < p->n; i++) {
		bytes[p->lo[i]] += p->size[i];
		bytes[p->hi[i]] -= p->size[i];
		starts[p->lo[i]]++;
		ends[p->hi[i]]++;
	}
	*pairs = 0;
	for (int32_t s = 0; s < p->m; s++) {
		sum += bytes[s];
		live -= ends[s];
		*pairs += starts[s] * live + starts[s] * (starts[s] - 1) / 2;
		live += starts[s];
		if (sum > most)
			most = sum;
	}
	return most;
}

static int64_t count_incidences(const PackProblem *p)
{
	int64_t sum = 0;

	for (int32_t i = 0; i < p->n; i++)
		sum += p->hi[i] - p->lo[i];
	return sum;
}

static void list_live(Arena *a, PackProblem *p)
{
	p->live = ARENA_ARRAY(a, p->m, int32_t *);
	p->nlive = ARENA_ARRAY(a, p->m, int32_t);
	for (int32_t i = 0; i < p->n; i++)
		for (int32_t s = p->lo[i]; s < p->hi[i]; s++)
			p->nlive[s]++;
	for (int32_t s = 0; s < p->m; s++) {
		p->live[s] = ARENA_ARRAY(a, p->nlive[s], int32_t);
		p->nlive[s] = 0;
	}
	for (int32_t i = 0; i < p->n; i++)
		for (int32_t s = p->lo[i]; s < p->hi[i]; s++)
			p->live[s][p->nlive[s]++] = i;
}

/* Counts in the first call, fills in the second. */
static void note_near(PackProblem *p, int32_t i, int32_t j, bool fill)
{
	if (fill) {
		p->near[i][p->nnear[i]] = j;
		p->near[j][p->nnear[j]] = i;
	}
	p->nnear[i]++;
	p->nnear[j]++;
}

static void list_near(Arena *a, PackProblem *p)
{
	p->near = ARENA_ARRAY(a, p->n, int32_t *);
	p->nnear = ARENA_ARRAY(a, p->n, int32_t);
	for (int fill = 0; fill < 2; fill++) {
		for (int32_t i = 0; i < p->n && fill; i++) {
			p->near[i] = ARENA_ARRAY(a, p->nnear[i], int32_t);
			p->nnear[i] = 0;
		}
		for (int32_t i = 0; i < p->n; i++) {
			int32_t s = p->lo[i];

			for (int32_t k = 0; k < p->nlive[s]; k++) {
				int32_t j = p->live[s][k];

				if (p->lo[j] < s || j < i)
					note_near(p, i, j, fill);
			}
		}
	}
}

PackProblem *pack_problem(Arena *a, const PackRect *r, size_t n, int64_t most)
{
	PackProblem *p = ARENA_NEW(a, PackProblem);
	int64_t pairs;

	assert(n > 0 && n < INT32_MAX / 4);
	p->n = (int32_t)n;
	p->lo = ARENA_ARRAY(a, n, int32_t);
	p->hi = ARENA_ARRAY(a, n, int32_t);
	p->size = ARENA_ARRAY(a, n, int64_t);
	find_sections(a, p, r);
	for (size_t i = 0; i < n; i++)
		p->unit = common_divisor(p->unit, r[i].size);
	for (size_t i = 0; i < n; i++)
		p->size[i] = r[i].size / p->unit;
	p->bound = sweep(a, p, &pairs);
	if (pairs <= most && count_incidences(p) <= most) {
		list_live(a, p);
		list_near(a, p);
	}
	return p;
}

/* Properties of placements: no overlap, a height that holds, a bound that holds; on small instances the exact height.
 *
 *     pack [INSTANCES] [SEED]
 *
 * Instances are random in number, lives and sizes; the small ones are also placed by trying every order. Two large ones, a stack
 * of nested lives and one at random, must be placed quickly (TIME_SLACK times the limit, by default twice: others may use the processors). */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../passes/pack.h"
#include "random.h"

enum { MOST = 60, FEW = 6, WORK = 4000000, LARGE = 100000, LARGE_SECONDS = 4, SAMPLES = 200 };

static size_t make_instance(Random *r, size_t most, PackRect *rect)
{
	size_t n = 1 + (size_t)pick_long(r, (int64_t)most);
	int64_t end = 2 + pick_long(r, 30), unit = pick_long(r, 2) ? 64 : 1, sizes = 1 + pick_long(r, pick_long(r, 2) ? 6 : 1000);
	int64_t shift = pick_long(r, 2) ? 0 : INT64_C(1) << 50; /* positions may be large */

	for (size_t i = 0; i < n; i++) {
		int64_t lower = pick_long(r, end - 1), life = 1 + pick_long(r, pick_long(r, 3) ? 4 : end - lower);

		if (lower + life > end)
			life = end - lower;
		rect[i] = (PackRect){ shift + lower, shift + lower + life, unit * (1 + pick_long(r, sizes)), 0 };
	}
	return n;
}

static bool live_together(const PackRect *a, const PackRect *b)
{
	return a->lower < b->upper && b->lower < a->upper;
}

static int64_t height_of(const PackRect *r, size_t n)
{
	int64_t height = 0;

	for (size_t i = 0; i < n; i++)
		if (r[i].offset + r[i].size > height)
			height = r[i].offset + r[i].size;
	return height;
}

static bool sound(const PackRect *r, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (r[i].offset < 0)
			return false;
		for (size_t j = 0; j < i; j++)
			if (live_together(&r[i], &r[j]) && r[i].offset < r[j].offset + r[j].size &&
			    r[j].offset < r[i].offset + r[i].size)
				return false;
	}
	return true;
}

static int64_t largest_sum(const PackRect *r, size_t n)
{
	int64_t best = 0;

	for (size_t i = 0; i < n; i++) {
		int64_t sum = 0;

		for (size_t j = 0; j < n; j++)
			if (r[j].lower <= r[i].lower && r[i].lower < r[j].upper)
				sum += r[j].size;
		best = sum > best ? sum : best;
	}
	return best;
}

/* The lowest height over every order, each buffer put on top of those before it that it meets: a placement that cannot sink
 * comes out when its buffers are taken by offset. */
static int64_t try_orders(PackRect *r, size_t n, unsigned done, int64_t height, int64_t best)
{
	if (height >= best)
		return best;
	if (done == (1U << n) - 1)
		return height;
	for (size_t i = 0; i < n; i++) {
		int64_t top;

		if (done >> i & 1)
			continue;
		r[i].offset = 0;
		for (size_t j = 0; j < n; j++)
			if ((done >> j & 1) && live_together(&r[i], &r[j]) && r[j].offset + r[j].size > r[i].offset)
				r[i].offset = r[j].offset + r[j].size;
		top = r[i].offset + r[i].size;
		best = try_orders(r, n, done | 1U << i, top > height ? top : height, best);
	}
	return best;
}

typedef struct Case {
	PackRect *rect;
	size_t n;
	int64_t exact; /* -1: not known */
} Case;

static const char *check_search(Arena *a, const Case *c, int64_t target)
{
	PackResult found = pack_search(a, c->rect, c->n, target, WORK);

	if (!sound(c->rect, c->n))
		return "search: an overlap";
	if (height_of(c->rect, c->n) != found.height)
		return "search: the height is another";
	if (found.bound > found.height || found.bound < largest_sum(c->rect, c->n))
		return "search: the bound is wrong";
	if (c->exact < 0)
		return NULL;
	if (found.bound > c->exact)
		return "search: the bound is above the optimum";
	if (target == 0 && (found.height != c->exact || found.bound != c->exact))
		return "search: not the optimum";
	if (target > 0 && (found.height <= target) != (c->exact <= target))
		return "search: missed what can be reached";
	if (target > 0 && target < c->exact && found.bound <= target)
		return "search: did not prove that the target is too low";
	if (target > 0 && target < c->exact && found.height != c->exact)
		return "search: not the optimum where the target is too low";
	return NULL;
}

static const char *check_place(Arena *a, const Case *c)
{
	int64_t low = c->rect[0].lower >= INT64_C(1) << 50 ? INT64_C(1) << 50 : 0, height;

	for (size_t i = 0; i < c->n; i++) { /* the planner's positions are steps */
		c->rect[i].lower -= low;
		c->rect[i].upper -= low;
	}
	if (pack_lower_bound(a, c->rect, c->n) != largest_sum(c->rect, c->n))
		return "bound: not the largest sum";
	height = pack_place(a, c->rect, c->n, 0, 8);
	if (!sound(c->rect, c->n))
		return "place: an overlap";
	return height == height_of(c->rect, c->n) ? NULL : "place: the height is another";
}

static const char *check(Arena *a, Random *r, bool small)
{
	PackRect rect[MOST];
	Case c = { rect, make_instance(r, small ? FEW : MOST, rect), -1 };
	const char *fault;

	if (small)
		c.exact = try_orders(rect, c.n, 0, 0, INT64_MAX);
	fault = check_search(a, &c, 0);
	if (!fault)
		fault = check_search(a, &c, 1 + pick_long(r, 2 * largest_sum(rect, c.n)));
	return fault ? fault : check_place(a, &c);
}

/* ---- many rectangles ---- */

/* As a training step: buffer i of the forward pass lives until its turn in the backward pass; beside it, what lives for a moment. */
static void make_stack(Random *r, PackRect *rect)
{
	int64_t end = LARGE;

	for (int64_t i = 0; i < LARGE; i++)
		rect[i] = i % 2 ? (PackRect){ i, end + end - i, 64 * (1 + pick_long(r, 1000)), 0 }
		                : (PackRect){ 2 * i, 2 * i + 1 + pick_long(r, 3), 64 * (1 + pick_long(r, 1000)), 0 };
}

/* Lives of any length, short ones more often, sizes over four decades. */
static void make_tangle(Random *r, PackRect *rect)
{
	for (int64_t i = 0; i < LARGE; i++) {
		int64_t life = 1 + pick_long(r, 1 + (LARGE >> pick_long(r, 16)));

		rect[i] = (PackRect){ i, i + life, 64 * (1 + pick_long(r, 1 << pick_long(r, 14))), 0 };
	}
}

static int compare_offsets(const void *pa, const void *pb)
{
	const PackRect *a = *(const PackRect *const *)pa, *b = *(const PackRect *const *)pb;

	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Whether what lives at some positions, all over time, lies apart. */
static bool sound_at_samples(Arena *a, const PackRect *r, size_t n)
{
	const PackRect **live = ARENA_ARRAY(a, n, const PackRect *);

	for (int64_t k = 0; k < SAMPLES; k++) {
		int64_t at = 2 * LARGE * k / SAMPLES;
		size_t m = 0;

		for (size_t i = 0; i < n; i++)
			if (r[i].lower <= at && at < r[i].upper)
				live[m++] = &r[i];
		if (m)
			qsort(live, m, sizeof *live, compare_offsets);
		for (size_t i = 0; i + 1 < m; i++)
			if (live[i]->offset < 0 || live[i]->offset + live[i]->size > live[i + 1]->offset)
				return false;
	}
	return true;
}

/* `loose`: how far above the bound, in percent. */
static const char *check_large(Arena *a, void (*make)(Random *, PackRect *), int64_t loose)
{
	const char *slack = getenv("TIME_SLACK");
	PackRect *rect = ARENA_ARRAY(a, LARGE, PackRect);
	Random r = { 1 };
	int64_t height, bound;
	clock_t start;

	make(&r, rect);
	bound = pack_lower_bound(a, rect, LARGE);
	start = clock();
	height = pack_place(a, rect, LARGE, 0, 32);
	if ((double)(clock() - start) / CLOCKS_PER_SEC > LARGE_SECONDS * (slack ? atof(slack) : 2))
		return "large: too slow";
	if (!sound_at_samples(a, rect, LARGE))
		return "large: an overlap";
	if (height != height_of(rect, LARGE))
		return "large: the height is another";
	return height > bound + bound / 100 * loose ? "large: too high" : NULL;
}

static void count(const char *fault, const char *what, long *passed, long *failed)
{
	if (fault)
		printf("FAIL %s: %s\n", what, fault);
	++*(fault ? failed : passed);
}

int main(int argc, char **argv)
{
	long instances = argc > 1 ? atol(argv[1]) : 2000, passed = 0, failed = 0;
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	Arena *a = arena_new();

	for (long k = 0; k < instances; k++) {
		Random r = { seed + (uint64_t)k };
		const char *fault;

		for (int i = 0; i < 4; i++)
			pick_long(&r, 2);
		fault = check(a, &r, k % 2 == 0);
		if (fault) {
			printf("FAIL instance %ld (seed %llu): %s\n", k, (unsigned long long)(seed + (uint64_t)k), fault);
			failed++;
		} else {
			passed++;
		}
		arena_reset(a);
	}
	count(check_large(a, make_stack, 1), "stack", &passed, &failed);
	arena_reset(a);
	count(check_large(a, make_tangle, 5), "tangle", &passed, &failed);
	arena_free(a);
	printf("%ld passed, %ld failed\n", passed, failed);
	return failed > 0;
}

/* A segment tree with range add and maximum (see peaks.h). Nodes are numbered as in a heap: the children of i are 2i and
 * 2i + 1, the leaves follow from `size` on. What is added to a whole subtree stays at its root, never pushed down:
 *
 *     top[i] = max(top[2i], top[2i+1]) + add[i]
 *
 * Position k is leaf k + 1: a range has a leaf outside on both sides. Those leaves hold a value far below any other. */
#include "peaks.h"

#include <assert.h>

static const int64_t NOTHING = INT64_MIN / 4;

Peaks peaks_new(Arena *a, int32_t n)
{
	Peaks p = { .n = n, .size = 2 };

	while (p.size < n + 2)
		p.size *= 2;
	p.top = ARENA_ARRAY(a, 2 * p.size, int64_t);
	p.add = ARENA_ARRAY(a, p.size, int64_t);
	p.top[p.size] = NOTHING;
	for (int32_t k = n + 1; k < p.size; k++)
		p.top[p.size + k] = NOTHING;
	for (int32_t i = p.size - 1; i > 0; i--)
		p.top[i] = p.top[2 * i] > p.top[2 * i + 1] ? p.top[2 * i] : p.top[2 * i + 1];
	return p;
}

static void add_at(Peaks *p, int32_t i, int64_t bytes)
{
	p->top[i] += bytes;
	if (i < p->size)
		p->add[i] += bytes;
}

static void refresh_above(Peaks *p, int32_t i)
{
	for (i /= 2; i > 0; i /= 2) {
		int64_t l = p->top[2 * i], r = p->top[2 * i + 1];

		p->top[i] = (l > r ? l : r) + p->add[i];
	}
}

void peaks_add(Peaks *p, int32_t from, int32_t to, int64_t bytes)
{
	if (from >= to || bytes == 0)
		return;
	assert(from >= 0 && to <= p->n);
	for (int32_t l = from + 1 + p->size, r = to + 1 + p->size; l < r; l /= 2, r /= 2) {
		if (l & 1)
			add_at(p, l++, bytes);
		if (r & 1)
			add_at(p, --r, bytes);
	}
	refresh_above(p, from + 1 + p->size);
	refresh_above(p, to + p->size);
}

int64_t peaks_at(const Peaks *p, int32_t i)
{
	int64_t sum = p->top[p->size + i + 1];

	for (i = (p->size + i + 1) / 2; i > 0; i /= 2)
		sum += p->add[i];
	return sum;
}

int64_t peaks_over(const Peaks *p, int32_t from, int32_t to)
{
	int64_t left = NOTHING, right = NOTHING;
	int32_t l = from + p->size, r = to + p->size + 1; /* leaves just outside */

	if (from >= to)
		return INT64_MIN;
	for (; (l ^ r) != 1; l /= 2, r /= 2) {
		if (!(l & 1) && p->top[l ^ 1] > left)
			left = p->top[l ^ 1];
		if ((r & 1) && p->top[r ^ 1] > right)
			right = p->top[r ^ 1];
		left += p->add[l / 2];
		right += p->add[r / 2];
	}
	if (right > left)
		left = right;
	for (l /= 2; l > 0; l /= 2)
		left += p->add[l];
	return left;
}

int64_t peaks_top(const Peaks *p)
{
	return p->top[1];
}

int32_t peaks_where(const Peaks *p)
{
	int32_t i = 1;

	while (i < p->size)
		i = p->top[2 * i] >= p->top[2 * i + 1] ? 2 * i : 2 * i + 1;
	return i - p->size - 1;
}

/* Leaf by leaf: of the path to the next one only what lies below a common ancestor is walked again. */
void peaks_read(const Peaks *p, int64_t *out)
{
	int64_t above[32]; /* by level, the leaves' parents being 0: what is added from the root down to there */
	int32_t levels = 0;

	for (int32_t i = p->size; i > 1; i /= 2)
		levels++;
	for (int32_t leaf = p->size; leaf <= p->size + p->n; leaf += 2) {
		int32_t from = 0; /* the level whose node is new */

		while (from < levels - 1 && ((leaf >> (from + 1)) & 1) == 0)
			from++;
		for (int32_t level = from; level >= 0; level--)
			above[level] = p->add[leaf >> (level + 1)] + (level + 1 < levels ? above[level + 1] : 0);
		if (leaf > p->size)
			out[leaf - p->size - 1] = p->top[leaf] + above[0];
		if (leaf < p->size + p->n)
			out[leaf - p->size] = p->top[leaf + 1] + above[0];
	}
}

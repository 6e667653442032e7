/* Who wrote each byte of the arena last: a segment tree over the addresses at which any range begins or ends.
 *
 * A node of the tree holds the writer of its whole range, or MIXED where its children differ. Writing a range touches
 * O(log n) nodes; a range with one writer is recognised in O(log n) as well, since equal children are joined on the
 * way up. Leaf i stands for the bytes [bound[i], bound[i+1]). */
#include <assert.h>
#include <stdlib.h>

#include "check_parts.h"

enum { MIXED = -1 };

struct ByteMap {
	const int64_t *bound;
	size_t n;        /* bounds; n - 1 leaves */
	int32_t *writer; /* nodes, root at 1, children of i at 2i and 2i+1 */
};

static int compare_int64(const void *x, const void *y)
{
	int64_t a, b;

	memcpy(&a, x, sizeof a);
	memcpy(&b, y, sizeof b);
	return a < b ? -1 : a > b;
}

ByteMap *bytes_map(Arena *a, int64_t *bounds, size_t n)
{
	ByteMap *m = ARENA_NEW(a, ByteMap);
	size_t unique = 0, nodes = 1;

	if (n > 0)
		qsort(bounds, n, sizeof *bounds, compare_int64);
	for (size_t i = 0; i < n; i++)
		if (unique == 0 || bounds[unique - 1] != bounds[i])
			bounds[unique++] = bounds[i];
	while (nodes < unique)
		nodes *= 2;
	m->bound = bounds;
	m->n = unique;
	m->writer = ARENA_ARRAY(a, 2 * nodes, int32_t);
	return m;
}

/* Number of the last bound at or below x (for a range's begin), or of the first at or above it (for its end). */
static size_t bound_index(const ByteMap *m, int64_t x, bool end)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) { /* the first bound >= x */
		size_t mid = lo + (hi - lo) / 2;

		if (m->bound[mid] < x)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == m->n)
		return m->n - 1;
	return end || m->bound[lo] == x || lo == 0 ? lo : lo - 1;
}

/* The subtree `node` covers leaves [lo,hi). */
static void write_leaves(ByteMap *m, size_t node, size_t lo, size_t hi, size_t from, size_t to, int32_t writer)
{
	size_t mid = lo + (hi - lo) / 2;

	if (from <= lo && hi <= to) {
		m->writer[node] = writer;
		return;
	}
	if (m->writer[node] != MIXED)
		m->writer[2 * node] = m->writer[2 * node + 1] = m->writer[node];
	if (from < mid)
		write_leaves(m, 2 * node, lo, mid, from, to, writer);
	if (to > mid)
		write_leaves(m, 2 * node + 1, mid, hi, from, to, writer);
	m->writer[node] = m->writer[2 * node] == m->writer[2 * node + 1] ? m->writer[2 * node] : MIXED;
}

/* The first leaf of [from,to) that is not `writer`'s, or `to`. */
static size_t first_other(const ByteMap *m, size_t node, size_t lo, size_t hi, size_t from, size_t to,
			  int32_t writer, int32_t *other)
{
	size_t mid = lo + (hi - lo) / 2, at = to;

	if (to <= lo || hi <= from)
		return to;
	if (m->writer[node] != MIXED) {
		*other = m->writer[node];
		return m->writer[node] == writer ? to : lo > from ? lo : from;
	}
	at = first_other(m, 2 * node, lo, mid, from, to, writer, other);
	return at < to ? at : first_other(m, 2 * node + 1, mid, hi, from, to, writer, other);
}

void bytes_write(ByteMap *m, int64_t from, int64_t to, int32_t writer)
{
	size_t first, end;

	assert(writer > 0);
	if (m->n < 2 || from >= to)
		return;
	first = bound_index(m, from, false);
	end = bound_index(m, to, true);
	if (first < end)
		write_leaves(m, 1, 0, m->n - 1, first, end, writer);
}

bool bytes_intact(const ByteMap *m, int64_t from, int64_t to, int32_t writer, int32_t *other, int64_t *at)
{
	size_t end, leaf;

	*other = 0;
	*at = from;
	if (m->n < 2 || from >= to)
		return true;
	end = bound_index(m, to, true);
	leaf = first_other(m, 1, 0, m->n - 1, bound_index(m, from, false), end, writer, other);
	if (leaf == end)
		return true;
	*at = m->bound[leaf] > from ? m->bound[leaf] : from;
	return false;
}

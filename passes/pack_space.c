/* What is taken of the arena, over time (see pack_parts.h).
 *
 * Time is a binary tree over positions, with a cut at the nodes whose times are `width` positions. A rectangle is noted at the nodes
 * that its life is made of, none of them above the cut, and at all that are above those:
 *
 *     over[v]    from the cut down: spans of rectangles that live through the whole of v's time, noted at v itself
 *     touch[v]   spans of rectangles that live at any time of v, noted at v or below (down to the cut: all of them)
 *
 * So what meets a life is touch[] of the nodes that the life is made of, and over[] of those above them. Spans of a node are kept as a
 * union: sorted, apart, and gaps too small to be of use closed. Over a long time nearly all is taken at some time, so the unions
 * have few spans, whereas a long life meets half of all rectangles. The cut gives what lives long to a short time as one union.
 *
 * A search walks up the offsets: `top` jumps over every span that leaves less than `size` above it, until no union has one.
 *
 * Up to a few thousand rectangles one list of all, by ascending offset, is quicker than any tree. */
#include "pack_parts.h"

#include <assert.h>
#include <endian.h>

typedef struct Span64 {
	int64_t from, to;
} Span64;

typedef struct Union {
	Span64 *at;
	int32_t n, cap;
} Union;

/* A union under search: the spans from `i` on end above all that is known. */
typedef struct Walk {
	const Span64 *at;
	int32_t i, n;
} Walk;

enum { LISTED_AT_ONCE = 64, MOST_LISTED = INT16_MAX };
enum { FEW_WORK = 16 }; /* so many of the list are passed by in the time of a union */
enum { WALKS = 4 * 32 }; /* two paths down the tree, and a node beside each of theirs */

struct PackSpace {
	Arena *arena;
	Span64 *all;        /* NULL: there is a tree */
	int16_t *lo, *hi;   /* the life of each in `all`; behind the last, as many as are looked at at once meet nothing */
	int32_t nall;
	int32_t leaves;     /* a power of two; node i has the children 2i and 2i + 1 */
	int32_t cut;        /* the first node of those on the cut */
	int64_t least;      /* gaps below are closed */
	Union *over, *touch;
	Walk *walk;         /* of the search at work */
	int32_t nwalks;
	int64_t work;
};

PackSpace *pack_space_few(Arena *a, size_t most)
{
	PackSpace *s = ARENA_NEW(a, PackSpace);

	assert(most <= MOST_LISTED);
	s->all = ARENA_ARRAY(a, most + 1, Span64);
	s->lo = ARENA_ARRAY(a, most + LISTED_AT_ONCE, int16_t);
	s->hi = ARENA_ARRAY(a, most + LISTED_AT_ONCE, int16_t);
	return s;
}

PackSpace *pack_space(Arena *a, int32_t positions, int32_t width, int64_t least)
{
	PackSpace *s = ARENA_NEW(a, PackSpace);

	s->arena = a;
	s->least = least;
	for (s->leaves = 1; s->leaves < positions; s->leaves *= 2)
		;
	for (s->cut = 1; s->leaves / s->cut > width; s->cut *= 2)
		;
	s->over = ARENA_ARRAY(a, 2 * s->leaves, Union);
	s->touch = ARENA_ARRAY(a, 2 * s->leaves, Union);
	s->walk = ARENA_ARRAY(a, WALKS, Walk);
	return s;
}

void pack_space_clear(PackSpace *s)
{
	if (s->all) {
		memset(s->lo, 0, (size_t)s->nall * sizeof *s->lo);
		memset(s->hi, 0, (size_t)s->nall * sizeof *s->hi);
	}
	s->nall = 0;
	for (int32_t i = 0; i < 2 * s->leaves; i++)
		s->over[i].n = s->touch[i].n = 0;
}

int64_t pack_space_work(const PackSpace *s)
{
	return s->work;
}

/* The first span from i on that ends above `at`. */
static int32_t first_above(const Span64 *span, int32_t i, int32_t n, int64_t at)
{
	int32_t step = 1;

	while (i + step < n && span[i + step].to <= at) { /* most often near */
		i += step;
		step *= 2;
	}
	n = i + step < n ? i + step : n;
	while (i < n) {
		int32_t mid = i + (n - i) / 2;

		if (span[mid].to <= at)
			i = mid + 1;
		else
			n = mid;
	}
	return i;
}

static void add_span(PackSpace *s, Union *u, Span64 span)
{
	int32_t lo = 0, hi = u->n;

	while (lo < hi) { /* the first that reaches it, but for a gap that is too small */
		int32_t mid = (lo + hi) / 2;

		if (span.from - u->at[mid].to >= s->least)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (hi = lo; hi < u->n && u->at[hi].from - span.to < s->least; hi++) {
		if (u->at[hi].from < span.from)
			span.from = u->at[hi].from;
		if (u->at[hi].to > span.to)
			span.to = u->at[hi].to;
	}
	if (u->n == u->cap) {
		Span64 *at = ARENA_ARRAY(s->arena, 2 * u->cap + 2, Span64);

		if (u->n)
			memcpy(at, u->at, (size_t)u->n * sizeof *at);
		u->at = at;
		u->cap = 2 * u->cap + 2;
	}
	if (hi != lo + 1)
		memmove(&u->at[lo + 1], &u->at[hi], (size_t)(u->n - hi) * sizeof *u->at);
	u->n -= hi - lo - 1;
	u->at[lo] = span;
	s->work++;
}

/* The part of [lo, hi) below node v, whose time is [from, to). */
static void take_below(PackSpace *s, int32_t v, int32_t from, int32_t to, int32_t lo, int32_t hi, Span64 span)
{
	int32_t mid = from + (to - from) / 2;

	add_span(s, &s->touch[v], span);
	if (v >= s->cut && lo <= from && to <= hi) {
		add_span(s, &s->over[v], span);
		return;
	}
	if (lo < mid)
		take_below(s, 2 * v, from, mid, lo, hi, span);
	if (hi > mid)
		take_below(s, 2 * v + 1, mid, to, lo, hi, span);
}

/* Into the list, behind those of the same offset. */
static void list(PackSpace *s, Span64 span, int32_t lo, int32_t hi)
{
	int32_t at = 0, end = s->nall;
	size_t behind;

	while (at < end) {
		int32_t mid = (at + end) / 2;

		if (s->all[mid].from <= span.from)
			at = mid + 1;
		else
			end = mid;
	}
	behind = (size_t)(s->nall++ - at);
	memmove(&s->all[at + 1], &s->all[at], behind * sizeof *s->all);
	memmove(&s->lo[at + 1], &s->lo[at], behind * sizeof *s->lo);
	memmove(&s->hi[at + 1], &s->hi[at], behind * sizeof *s->hi);
	s->all[at] = span;
	s->lo[at] = (int16_t)lo;
	s->hi[at] = (int16_t)hi;
}

void pack_space_take(PackSpace *s, int32_t lo, int32_t hi, int64_t offset, int64_t size)
{
	if (s->all) {
		list(s, (Span64){ offset, offset + size }, lo, hi);
		return;
	}
	take_below(s, 1, 0, s->leaves, lo, hi, (Span64){ offset, offset + size });
}

static void collect(PackSpace *s, int32_t v, int32_t from, int32_t to, int32_t lo, int32_t hi)
{
	int32_t mid = from + (to - from) / 2;
	bool whole = lo <= from && to <= hi;
	const Union *u = whole ? &s->touch[v] : &s->over[v];

	if (u->n)
		s->walk[s->nwalks++] = (Walk){ u->at, 0, u->n };
	if (whole)
		return;
	if (lo < mid)
		collect(s, 2 * v, from, mid, lo, hi);
	if (hi > mid)
		collect(s, 2 * v + 1, mid, to, lo, hi);
}

/* Moves `top` above the spans of one union that leave less than `size`; false where it has none above. */
static bool climb(Walk *w, int64_t *top, int64_t size)
{
	w->i = first_above(w->at, w->i, w->n, *top);
	while (w->i < w->n && w->at[w->i].from - *top < size)
		*top = w->at[w->i++].to;
	return w->i < w->n;
}

/* The lowest offset from `top` on that is free for `size`; where what is free there ends into *end. */
static int64_t next_free(PackSpace *s, int64_t top, int64_t size, int64_t *end)
{
	int64_t before;

	do {
		int32_t n = 0;

		before = top;
		*end = INT64_MAX;
		s->work += s->nwalks;
		for (int32_t k = 0; k < s->nwalks; k++) {
			if (!climb(&s->walk[k], &top, size))
				continue;
			s->walk[n] = s->walk[k];
			if (s->walk[n].at[s->walk[n].i].from < *end)
				*end = s->walk[n].at[s->walk[n].i].from;
			n++;
		}
		s->nwalks = n;
	} while (top > before);
	return top;
}

/* Which of LISTED_AT_ONCE listed ones from `from` on have lives that meet [lo, hi), as bits. Sixteen bits a life and no branch for each:
 * the processor then compares many at once. */
static uint64_t find_met(const PackSpace *s, int32_t from, int16_t lo, int16_t hi)
{
	const int16_t *first = &s->lo[from], *end = &s->hi[from];
	uint8_t meets[LISTED_AT_ONCE];
	uint64_t bits = 0;

	for (int32_t k = 0; k < LISTED_AT_ONCE; k++)
		meets[k] = (first[k] < hi) & (end[k] > lo);
	for (int32_t k = 0; k < LISTED_AT_ONCE; k += 8) {
		uint64_t eight;

		memcpy(&eight, &meets[k], sizeof eight);
		bits |= (le64toh(eight) * UINT64_C(0x0102040810204080) >> 56) << k; /* the lowest bits of eight bytes, side by side */
	}
	return bits;
}

static int64_t find_listed(PackSpace *s, int32_t lo, int32_t hi, int64_t size, bool tightest)
{
	int64_t best = 0, slack = INT64_MAX, top = 0;

	s->work += s->nall / FEW_WORK;
	for (int32_t from = 0; from < s->nall; from += LISTED_AT_ONCE)
		for (uint64_t met = find_met(s, from, (int16_t)lo, (int16_t)hi); met; met &= met - 1) {
			Span64 span = s->all[from + __builtin_ctzll(met)];

			if (span.from - top >= size && span.from - top - size < slack) {
				best = top;
				slack = span.from - top - size;
				if (!tightest)
					return best;
			}
			if (span.to > top)
				top = span.to;
		}
	return slack < INT64_MAX ? best : top;
}

int64_t pack_space_find(PackSpace *s, int32_t lo, int32_t hi, int64_t size, bool tightest)
{
	int64_t best = 0, slack = INT64_MAX, top = 0, end;

	if (s->all)
		return find_listed(s, lo, hi, size, tightest);
	s->nwalks = 0;
	collect(s, 1, 0, s->leaves, lo, hi);
	do {
		top = next_free(s, top, size, &end);
		if (end == INT64_MAX)
			return slack < INT64_MAX ? best : top;
		if (end - top - size < slack) {
			best = top;
			slack = end - top - size;
		}
		top = end;
	} while (tightest && slack > 0);
	return best;
}

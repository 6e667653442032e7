/* What is taken of the arena, over time (see pack_parts.h).
 *
 * Time is cut into windows, the leaves of a binary tree. A rectangle is noted at the nodes that its life is made of, none of them above
 * the cut (the nodes whose times are so long that a long life is noted in some places, not in very many), and where it lives in a part of a
 * window alone, in that window's list:
 *
 *     over[v]    from the cut down: spans of rectangles that live through the whole of v's time, noted at v itself
 *     list[w]    rectangles that live in a part of window w, by ascending offset
 *     touch[v]   spans of rectangles that live at any time of v, noted at v or below (down to the cut: all of them)
 *
 * So what meets a life is touch[] of the nodes that the life is made of, over[] of those above them, and the lists of the windows in which
 * it begins and ends. Most lives are short: they meet one list and few unions. Spans of a node are kept as a
 * union: sorted, apart, and gaps too small to be of use closed. Over a long time nearly all is taken at some time, so the unions
 * have few spans, whereas a long life meets half of all rectangles; and what adds nothing to the union of a node adds nothing to those above.
 *
 * A search walks up the offsets: `top` jumps over every span that leaves less than `size` above it, until no union or list has one. */
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

/* Rectangles of a window with their lives, counted from its start; room for a multiple of AT_ONCE. */
typedef struct List {
	Span64 *at;
	int16_t *lo, *hi;
	int32_t n, cap;
} List;

/* A union or a list under search. */
typedef struct Walk {
	const Span64 *at;
	int64_t next;       /* where the first that is not behind begins; -1: not known yet */
	int32_t i, n;       /* union: the spans from i on end above all that is known; list: those before i are behind it */
	const List *list;   /* NULL: a union */
	int16_t lo, hi;     /* list: the life that is asked for */
	uint64_t met;       /* list: of AT_ONCE from i on those that meet it and are not behind, as bits */
} Walk;

enum { AT_ONCE = 64 };
enum { LISTED = 200, PLACES = 4, MORE_PLACES = 20000 }; /* rectangles to a window; nodes to a rectangle, one more for so many rectangles */
enum { WALKS = 4 * 32 + 4 }; /* two paths down the tree, a node beside each of theirs, a list at the end of each */

struct PackSpace {
	Arena *arena;
	int32_t width;      /* positions of a window */
	int32_t leaves;     /* windows: a power of two; node i has the children 2i and 2i + 1 */
	int32_t cut;        /* the first node of those on the cut */
	int64_t least;      /* gaps below are closed */
	Union *over, *touch;
	List *list;         /* by window */
	Walk *walk;         /* of the search at work */
	int32_t nwalks;
	int64_t work;
};

PackSpace *pack_space(Arena *a, const int32_t *lo, const int32_t *hi, size_t n, int32_t positions, int64_t least)
{
	PackSpace *s = ARENA_NEW(a, PackSpace);
	double lives = 0, noted = (double)n * (PLACES + (double)n / MORE_PLACES);
	int64_t across; /* positions of a node on the cut */

	s->arena = a;
	s->least = least;
	for (s->leaves = 1; s->leaves < positions && (double)s->leaves * LISTED < (double)n; s->leaves *= 2)
		;
	s->width = (positions + s->leaves - 1) / s->leaves;
	assert(s->width <= INT16_MAX);
	for (size_t i = 0; i < n; i++)
		lives += hi[i] - lo[i];
	for (s->cut = s->leaves, across = s->width; s->cut > 1 && lives > noted * (double)across; s->cut /= 2)
		across *= 2;
	s->over = ARENA_ARRAY(a, 2 * s->leaves, Union);
	s->touch = ARENA_ARRAY(a, 2 * s->leaves, Union);
	s->list = ARENA_ARRAY(a, s->leaves, List);
	s->walk = ARENA_ARRAY(a, WALKS, Walk);
	return s;
}

void pack_space_clear(PackSpace *s)
{
	for (int32_t i = 0; i < 2 * s->leaves; i++)
		s->over[i].n = s->touch[i].n = 0;
	for (int32_t i = 0; i < s->leaves; i++)
		s->list[i].n = 0;
}

int64_t pack_space_work(const PackSpace *s)
{
	return s->work;
}

/* ---- taking ---- */

/* False where the union has it all already. */
static bool add_span(PackSpace *s, Union *u, Span64 span)
{
	int32_t lo = 0, hi = u->n;

	s->work++;
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
	if (hi == lo + 1 && span.from == u->at[lo].from && span.to == u->at[lo].to)
		return false;
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
	return true;
}

static void grow_list(PackSpace *s, List *l)
{
	int32_t cap = 2 * l->cap + AT_ONCE;
	List more = { ARENA_ARRAY(s->arena, cap, Span64), ARENA_ARRAY(s->arena, cap, int16_t), ARENA_ARRAY(s->arena, cap, int16_t), l->n, cap };

	if (l->n) {
		memcpy(more.at, l->at, (size_t)l->n * sizeof *l->at);
		memcpy(more.lo, l->lo, (size_t)l->n * sizeof *l->lo);
		memcpy(more.hi, l->hi, (size_t)l->n * sizeof *l->hi);
	}
	*l = more;
}

/* Behind those of the same offset. */
static void add_listed(PackSpace *s, List *l, Span64 span, int32_t lo, int32_t hi)
{
	int32_t at = 0, end = l->n;
	size_t behind;

	while (at < end) {
		int32_t mid = (at + end) / 2;

		if (l->at[mid].from <= span.from)
			at = mid + 1;
		else
			end = mid;
	}
	if (l->n == l->cap)
		grow_list(s, l);
	behind = (size_t)(l->n++ - at);
	memmove(&l->at[at + 1], &l->at[at], behind * sizeof *l->at);
	memmove(&l->lo[at + 1], &l->lo[at], behind * sizeof *l->lo);
	memmove(&l->hi[at + 1], &l->hi[at], behind * sizeof *l->hi);
	l->at[at] = span;
	l->lo[at] = (int16_t)lo;
	l->hi[at] = (int16_t)hi;
	s->work++;
}

/* The part of a life within [from, to), counted from there. */
static int32_t within(int32_t at, int32_t from, int32_t to)
{
	return (at < from ? from : at > to ? to : at) - from;
}

/* The part of [lo, hi) below node v, whose time is [from, to). False where nothing is new at v. */
static bool take_below(PackSpace *s, int32_t v, int32_t from, int32_t to, int32_t lo, int32_t hi, Span64 span)
{
	int32_t mid = from + (to - from) / 2;
	bool more = false;

	if (v >= s->cut && lo <= from && to <= hi) {
		add_span(s, &s->over[v], span);
		return add_span(s, &s->touch[v], span);
	}
	if (v >= s->leaves) {
		add_listed(s, &s->list[v - s->leaves], span, within(lo, from, to), within(hi, from, to));
		return add_span(s, &s->touch[v], span);
	}
	if (lo < mid)
		more |= take_below(s, 2 * v, from, mid, lo, hi, span);
	if (hi > mid)
		more |= take_below(s, 2 * v + 1, mid, to, lo, hi, span);
	return more && add_span(s, &s->touch[v], span);
}

void pack_space_take(PackSpace *s, int32_t lo, int32_t hi, int64_t offset, int64_t size)
{
	Span64 span = { offset, offset + size };
	int32_t window = lo / s->width, from = window * s->width, v = s->leaves + window;

	if (hi > from + s->width || (lo == from && hi == from + s->width)) {
		take_below(s, 1, 0, s->leaves * s->width, lo, hi, span);
		return;
	}
	add_listed(s, &s->list[window], span, lo - from, hi - from);
	while (v > 0 && add_span(s, &s->touch[v], span))
		v /= 2;
}

/* ---- searching ---- */

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

static void add_list_walk(PackSpace *s, int32_t window, int32_t lo, int32_t hi)
{
	const List *l = &s->list[window];

	if (l->n)
		s->walk[s->nwalks++] = (Walk){ .next = -1, .at = l->at, .i = -AT_ONCE, .n = l->n, .list = l, .lo = (int16_t)lo, .hi = (int16_t)hi };
}

static void collect(PackSpace *s, int32_t v, int32_t from, int32_t to, int32_t lo, int32_t hi)
{
	int32_t mid = from + (to - from) / 2;
	bool whole = lo <= from && to <= hi;
	const Union *u = whole ? &s->touch[v] : &s->over[v];

	if (u->n)
		s->walk[s->nwalks++] = (Walk){ .next = -1, .at = u->at, .n = u->n };
	if (whole)
		return;
	if (v >= s->leaves) {
		add_list_walk(s, v - s->leaves, within(lo, from, to), within(hi, from, to));
		return;
	}
	if (lo < mid)
		collect(s, 2 * v, from, mid, lo, hi);
	if (hi > mid)
		collect(s, 2 * v + 1, mid, to, lo, hi);
}

/* The same for a life in a part of one window. */
static void collect_short(PackSpace *s, int32_t window, int32_t lo, int32_t hi)
{
	for (int32_t v = s->leaves + window; v >= s->cut; v /= 2)
		if (s->over[v].n)
			s->walk[s->nwalks++] = (Walk){ .next = -1, .at = s->over[v].at, .n = s->over[v].n };
	add_list_walk(s, window, lo, hi);
}

/* Which of AT_ONCE listed ones from `from` on have lives that meet [lo, hi), as bits. Sixteen bits a life and no branch for each:
 * the processor then compares many at once. */
static uint64_t find_met(const List *l, int32_t from, int16_t lo, int16_t hi)
{
	const int16_t *first = &l->lo[from], *end = &l->hi[from];
	uint8_t meets[AT_ONCE];
	uint64_t bits = 0;

	for (int32_t k = 0; k < AT_ONCE; k++)
		meets[k] = (first[k] < hi) & (end[k] > lo);
	for (int32_t k = 0; k < AT_ONCE; k += 8) {
		uint64_t eight;

		memcpy(&eight, &meets[k], sizeof eight);
		bits |= (le64toh(eight) * UINT64_C(0x0102040810204080) >> 56) << k; /* the lowest bits of eight bytes, side by side */
	}
	return l->n - from < AT_ONCE ? bits & ((UINT64_C(1) << (l->n - from)) - 1) : bits;
}

/* Moves `top` above what the list has with less than `size` below it; where the next one begins, INT64_MAX where there is none. */
static int64_t climb_list(PackSpace *s, Walk *w, int64_t *top, int64_t size)
{
	for (;;) {
		for (; w->met; w->met &= w->met - 1) {
			Span64 span = w->at[w->i + __builtin_ctzll(w->met)];

			if (span.from - *top >= size)
				return span.from;
			if (span.to > *top)
				*top = span.to;
		}
		w->i += AT_ONCE;
		if (w->i >= w->n)
			return INT64_MAX;
		w->met = find_met(w->list, w->i, w->lo, w->hi);
		s->work++;
	}
}

/* The same for a union. */
static int64_t climb(Walk *w, int64_t *top, int64_t size)
{
	w->i = first_above(w->at, w->i, w->n, *top);
	while (w->i < w->n && w->at[w->i].from - *top < size)
		*top = w->at[w->i++].to;
	return w->i < w->n ? w->at[w->i].from : INT64_MAX;
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
			Walk *w = &s->walk[k];

			if (w->next < top + size) {
				w->next = w->list ? climb_list(s, w, &top, size) : climb(w, &top, size);
				if (w->next == INT64_MAX)
					continue;
			}
			if (w->next < *end)
				*end = w->next;
			if (n < k)
				s->walk[n] = *w;
			n++;
		}
		s->nwalks = n;
	} while (top > before);
	return top;
}

int64_t pack_space_find(PackSpace *s, int32_t lo, int32_t hi, int64_t size, bool tightest)
{
	int64_t best = 0, slack = INT64_MAX, top = 0, end;
	int32_t window = lo / s->width, from = window * s->width;

	s->nwalks = 0;
	if (hi > from + s->width || (lo == from && hi == from + s->width))
		collect(s, 1, 0, s->leaves * s->width, lo, hi);
	else
		collect_short(s, window, lo - from, hi - from);
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

/* alike: equal layers are recognised (see alike.h).
 *
 *     layer 1   a -> b -> c        a2 ~ a3: the same costs and sizes, and so have what they read and
 *     layer 2   a -> b -> c        what reads them, their operands' operands, .., DEPTH edges far
 *     layer 3   a -> b -> c
 *
 * Colour refinement (Weisfeiler and Leman, 1968), a few rounds of it: the colour of an operation is first a hash of what the planner sees of
 * it alone, then, round after round, one of its colour, of the makers of what it reads, in order, and of the readers of what it makes, in
 * order. Names and places do not enter, nor how far apart the operations are: a value of the first layer waits longer for
 * its gradient than one of the last. Layers that are nearer than DEPTH edges to the first or the last operation may be of classes of their own.
 *
 * Rounds only split classes. So where the buffers are all different before the first of them, there is nothing to look for. */
#include "alike.h"

enum { DEPTH = 4 };

typedef struct Readers {
	int32_t *from;   /* by buffer, and one more: where its readers begin in ... */
	int32_t *op;     /* ... these */
} Readers;

static uint64_t bits(double x)
{
	uint64_t u;

	memcpy(&u, &x, sizeof u);
	return u;
}

/* What the planner sees of one operation. */
static uint64_t local_colour(const Timeline *t, const TOp *op)
{
	uint64_t h = alike_mix(op->node ? (uint64_t)op->node->op : OP_COUNT, bits(op->seconds));

	h = alike_mix(h, bits(op->trips));
	h = alike_mix(h, (uint64_t)op->work_bytes);
	h = alike_mix(h, (uint64_t)op->replayable + 2 * (uint64_t)op->backward + 4 * (uint64_t)op->closed + 8 * (uint64_t)op->npair);
	h = alike_mix(h, (uint64_t)op->nvar);
	for (int32_t k = 0; k < op->nuse; k++)
		h = alike_mix(h, (uint64_t)t->buf[op->use[k]].bytes);
	h = alike_mix(h, (uint64_t)op->nuse);
	for (int32_t k = 0; k < op->ndef; k++)
		h = alike_mix(h, (uint64_t)t->buf[op->def[k]].bytes);
	return h;
}

static Readers find_readers(const Timeline *t, Arena *a)
{
	Readers r = { .from = ARENA_ARRAY(a, t->nbufs + 2, int32_t) };

	for (int32_t i = 0; i < t->nops; i++)
		for (int32_t k = 0; k < t->op[i].nuse; k++)
			r.from[t->op[i].use[k] + 2]++;
	for (int32_t b = 0; b < t->nbufs; b++)
		r.from[b + 2] += r.from[b + 1];
	r.op = ARENA_ARRAY(a, r.from[t->nbufs + 1], int32_t);
	for (int32_t i = 0; i < t->nops; i++)
		for (int32_t k = 0; k < t->op[i].nuse; k++)
			r.op[r.from[t->op[i].use[k] + 1]++] = i;
	return r;
}

/* Buffers are told apart by their makers and by which result they are. */
static void colour_buffers(const Timeline *t, Alike *c)
{
	for (int32_t i = 0; i < t->nops; i++)
		for (int32_t k = 0; k < t->op[i].ndef; k++)
			c->buf[t->op[i].def[k]] = alike_mix(c->op[i], (uint64_t)k);
}

static void refine_colours(const Timeline *t, const Readers *r, Alike *c, uint64_t *next)
{
	for (int32_t i = 0; i < t->nops; i++) {
		const TOp *op = &t->op[i];
		uint64_t h = c->op[i];

		for (int32_t k = 0; k < op->nuse; k++)
			h = alike_mix(h, c->buf[op->use[k]]);
		for (int32_t k = 0; k < op->ndef; k++)
			for (int32_t at = r->from[op->def[k]]; at < r->from[op->def[k] + 1]; at++)
				h = alike_mix(h, c->op[r->op[at]]);
		next[i] = h;
	}
	memcpy(c->op, next, (size_t)t->nops * sizeof *next);
	colour_buffers(t, c);
}

/* How many different numbers there are. */
static int32_t count_classes(const uint64_t *number, int32_t n, Arena *a)
{
	int32_t count = 0;
	size_t size = 16;
	uint64_t *seen;

	while (size < 2 * (size_t)n)
		size *= 2;
	seen = ARENA_ARRAY(a, size, uint64_t);
	for (int32_t i = 0; i < n; i++) {
		uint64_t x = number[i] ? number[i] : 1; /* 0 is an empty place */
		size_t at = (size_t)x & (size - 1);

		while (seen[at] && seen[at] != x)
			at = (at + 1) & (size - 1);
		count += !seen[at];
		seen[at] = x;
	}
	return count;
}

static bool hardly_any(const Timeline *t, const Alike *c)
{
	return c->nbufs > t->nbufs - t->nbufs / 4;
}

const Alike *alike_find(const Timeline *t, Arena *a)
{
	Arena *scratch = arena_new();
	Alike *c = ARENA_NEW(a, Alike);

	c->op = ARENA_ARRAY(a, t->nops, uint64_t);
	c->buf = ARENA_ARRAY(a, t->nbufs, uint64_t);
	for (int32_t i = 0; i < t->nops; i++)
		c->op[i] = local_colour(t, &t->op[i]);
	colour_buffers(t, c);
	c->nbufs = count_classes(c->buf, t->nbufs, scratch);
	if (!hardly_any(t, c)) {
		Readers r = find_readers(t, scratch);
		uint64_t *next = ARENA_ARRAY(scratch, t->nops, uint64_t);

		for (int round = 0; round < DEPTH; round++)
			refine_colours(t, &r, c, next);
		c->nbufs = count_classes(c->buf, t->nbufs, scratch);
	}
	arena_free(scratch);
	return hardly_any(t, c) ? NULL : c;
}

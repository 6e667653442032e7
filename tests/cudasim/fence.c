/* What a block knows of others of its launch: the pattern "write, barrier, fence, atomic" of one and "atomic, fence, barrier, read" of another.
 *
 * An atomic operation of a thread that has called __threadfence in this epoch publishes what its block did before the epoch, and what the block
 * itself had learned by then; the counter keeps that until the end of the launch. A later atomic operation on the same counter takes it up, the
 * thread's next fence makes it known, and behind the next barrier it is known to all threads of the block. What the fencing thread alone
 * did in the epoch of its fence is not counted: kernels have a barrier there.
 *
 * Epochs (shadow.c) of blocks are spans of numbers, which is what is kept: sorted, so that one is found by bisection. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

typedef struct Span {
	uint32_t lo, hi; /* epochs, both inclusive */
} Span;

typedef struct Spans {
	Span *at;
	size_t n, room;
} Spans;

typedef struct Counter {
	uintptr_t address;
	Spans published;
} Counter;

static struct {
	Counter *counter;
	size_t ncounters;
	Spans taken, fenced, known; /* of the running block: by an atomic; and a fence; and a barrier */
	int thread;                 /* that fenced last, */
	uint32_t epoch;             /* and when */
} fence;

static int by_start(const void *a, const void *b)
{
	const Span *x = a, *y = b;
	return x->lo != y->lo ? (x->lo < y->lo ? -1 : 1) : x->hi != y->hi ? (x->hi < y->hi ? -1 : 1) : 0;
}

static void add(Spans *to, const Span *from, size_t n)
{
	if (n == 0)
		return;
	if (to->n + n > to->room) {
		size_t room = (to->n + n) * 2;
		Span *at = realloc(to->at, room * sizeof *at);
		if (!at)
			abort();
		to->at = at;
		to->room = room;
	}
	memcpy(to->at + to->n, from, n * sizeof *from);
	to->n += n;
	qsort(to->at, to->n, sizeof *to->at, by_start);
	size_t kept = 0;
	for (size_t i = 0; i < to->n; i++) { /* of spans that begin together the longest, which is the last */
		if (kept > 0 && to->at[kept - 1].lo == to->at[i].lo)
			kept--;
		to->at[kept++] = to->at[i];
	}
	to->n = kept;
}

void fence_launch(void)
{
	for (size_t i = 0; i < fence.ncounters; i++)
		free(fence.counter[i].published.at);
	free(fence.counter);
	fence.counter = NULL;
	fence.ncounters = 0;
}

void fence_block(void)
{
	fence.taken.n = fence.fenced.n = fence.known.n = 0;
	fence.thread = -1;
}

void fence_barrier(void)
{
	add(&fence.known, fence.fenced.at, fence.fenced.n);
	fence.fenced.n = 0;
}

static Counter *counter_at(uintptr_t a)
{
	for (size_t i = 0; i < fence.ncounters; i++)
		if (fence.counter[i].address == a)
			return &fence.counter[i];
	Counter *c = realloc(fence.counter, (fence.ncounters + 1) * sizeof *c);
	if (!c)
		abort();
	fence.counter = c;
	c += fence.ncounters++;
	*c = (Counter){.address = a};
	return c;
}

void dl_sim_fence(void)
{
	Exec *x = &sim_exec;
	add(&fence.fenced, fence.taken.at, fence.taken.n);
	fence.taken.n = 0;
	fence.thread = x->current;
	fence.epoch = x->stamp;
}

void fence_atomic(uintptr_t a)
{
	Exec *x = &sim_exec;
	Counter *c = counter_at(a);
	add(&fence.taken, c->published.at, c->published.n);
	if (fence.thread != x->current || fence.epoch != x->stamp || x->stamp == x->block_first)
		return;
	Span own = {x->block_first, x->stamp - 1};
	add(&c->published, &own, 1);
	add(&c->published, fence.known.at, fence.known.n);
}

bool fence_orders(uint32_t epoch)
{
	size_t lo = 0, hi = fence.known.n; /* the last span that begins at or before it */
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (fence.known.at[mid].lo <= epoch)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo > 0 && epoch <= fence.known.at[lo - 1].hi;
}

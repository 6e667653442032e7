/* Three queues (see links.h).
 *
 * The times of a loop are those of all of its trips: what is begun in a trip ends in it, so that each of them looks like the first, and
 * all take as long as one in which everything, copies too, takes as many times as long.
 *
 * Invariant: where nothing is waited for, `now` is the sum of the kernels' seconds in their order, to the last bit. */
#include "links.h"

Links links_of(const Machine *m)
{
	return (Links){ .machine = m };
}

double links_seconds(const Machine *m, bool in, int64_t bytes)
{
	double rate = in ? m->link_in : m->link_out;

	return rate > 0 ? 1e-9 * m->link_delay + (double)bytes / rate : 0;
}

void links_run(Links *l, double seconds)
{
	l->now += seconds;
}

double links_begin(Links *l, bool in, int64_t bytes, double trips)
{
	double begin = l->free[in] > l->now ? l->free[in] : l->now;

	return l->free[in] = begin + trips * links_seconds(l->machine, in, bytes);
}

double links_wait(Links *l, double ready)
{
	double waited = ready - l->now;

	if (!(waited > 0))
		return 0;
	l->now = ready;
	return waited;
}

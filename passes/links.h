/* When copies between the device's memory and the host's begin and end, and how long kernels wait for them.
 *
 * Kernels are one queue, copies out and copies in two more: each does one thing after another, and the three go on beside each other.
 * A copy begins once all kernels before it are done, and the one before it in its queue. */
#ifndef DLC_PASSES_LINKS_H
#define DLC_PASSES_LINKS_H

#include "machine.h"

typedef struct Links {
	const Machine *machine;
	double now;     /* seconds: when the kernels so far are done, waits included */
	double free[2]; /* out, in: when the last copy is */
} Links;

Links links_of(const Machine *m);

/* Seconds of one copy, in the way given; 0 where the machine has no link. */
double links_seconds(const Machine *m, bool in, int64_t bytes);

/* Kernels of so many seconds. */
void links_run(Links *l, double seconds);

/* Begins a copy, of each of so many trips at once; returns when it will be done. */
double links_begin(Links *l, bool in, int64_t bytes, double trips);

/* Waits until then; returns the seconds for which no kernel runs. */
double links_wait(Links *l, double ready);

#endif

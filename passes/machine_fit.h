/* A profile's costs out of measured times. */
#ifndef DLC_PASSES_MACHINE_FIT_H
#define DLC_PASSES_MACHINE_FIT_H

#include "machine.h"

/* A node that was timed, as cost_units counts it. */
typedef struct MachineSample {
	double unit[MACHINE_COSTS];
	double seconds;
	double weight; /* of its relative error, squared */
} MachineSample;

/* Sets m->ns so that predictions come near to the samples, in relative terms; what m->ns held before is where
 * costs stay that the samples say nothing about (m->kept). Returns the weighted mean of the
 * squared relative errors (far ones count linearly). */
double machine_fit(Arena *a, Machine *m, const MachineSample *s, int n);

/* A copy between the device's memory and the host's that was timed. */
typedef struct LinkSample {
	double bytes, seconds;
	bool in;
} LinkSample;

/* Sets m->link_out, link_in and link_delay so that delay + bytes / rate comes near to the samples in relative terms. Each way has samples of two
 * sizes at least. False where none does (larger copies took no longer); nothing is set then. */
bool machine_fit_links(Machine *m, const LinkSample *s, int n);

#endif

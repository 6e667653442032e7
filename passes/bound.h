/* A lower bound on the time of a step within a budget (see bound.c). */
#ifndef DLC_PASSES_BOUND_H
#define DLC_PASSES_BOUND_H

#include "timeline.h"

/* Seconds of replays that no plan avoids which runs every operation where it stands in the timeline and whose live bytes (without
 * variables) stay within `bytes`; INFINITY where the operations alone need more. `known`: seconds of replays of some such
 * plan, or INFINITY; it only steers the search for a good bound. */
double bound_replay_seconds(const Timeline *t, Arena *scratch, int64_t bytes, double known);

#endif

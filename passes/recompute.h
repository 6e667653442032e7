/* Rematerialization: trajectories of plans from no replay at all to the smallest that can be reached (see recompute.c). */
#ifndef DLC_PASSES_RECOMPUTE_H
#define DLC_PASSES_RECOMPUTE_H

#include "timeline.h"

typedef struct Trajectory {
	TPlan *plan; /* ascending seconds, descending live_bytes; plan[0] has no replays */
	int32_t n;
} Trajectory;

/* The trajectory up to max_seconds of predicted time. It does not depend on any budget. */
Trajectory recompute_trajectory(const Timeline *t, Arena *a, double max_seconds);

/* Writes a plan into the function: replays become cloned nodes just before their uses, the order follows the plan. */
void recompute_apply(const Timeline *t, Arena *scratch, const TPlan *p);

#endif

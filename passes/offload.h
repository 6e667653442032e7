/* Host offload: plans in which values wait in host memory instead of being replayed (see offload.c). */
#ifndef DLC_PASSES_OFFLOAD_H
#define DLC_PASSES_OFFLOAD_H

#include "recompute.h"

/* Whether values can wait in host memory: the back end can, the machine has a link. */
bool offload_possible(const PassCtx *cx);

/* Adds plans with copies to host memory and back, of at most so many bytes there, wherever they are faster than a plan of the trajectory
 * that needs as much memory; looks at those that are `worth` it (by plan). plan[0] stays, and so do all others. Does not depend on any
 * budget. Limited by work, as in recompute.h. */
void offload_trajectory(Trajectory *tr, Arena *a, const bool *worth, int64_t host_bytes, int64_t work);

/* Where moved values wait: the offset in host memory for each MOVE_SEND, by step; returns the bytes that all of them take. `offset` may be
 * NULL. */
int64_t offload_host(const Timeline *t, const TPlan *p, Arena *scratch, int64_t *offset);

#endif

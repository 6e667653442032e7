/* Plans made better by local search (see refine.c). */
#ifndef DLC_PASSES_REFINE_H
#define DLC_PASSES_REFINE_H

#include "recompute.h"
#include "stages.h"

typedef VEC(Sketch) Sketches;

/* The plan that a state stands for. */
Sketch refine_sketch(const Stages *s, Arena *a);

/* And back. */
Stages *refine_state(const Timeline *t, Arena *a, const Sketch *p);

/* Sorts plans and moves those that no other beats in bytes and seconds to the front, fastest first; drops the rest. */
void refine_undominated(Sketches *plans);

/* Adds plans, of up to `limit` seconds, that beat some of these; undominated before and after. `work` as in recompute.h. */
void refine_plans(const Timeline *t, Arena *a, Sketches *plans, double limit, int64_t work);

#endif

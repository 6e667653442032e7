/* Variables that each micro-batch brings up to date and a condition on the whole batch keeps or drops. */
#ifndef DLC_PASSES_CARRY_H
#define DLC_PASSES_CARRY_H

#include "pass.h"

/* Of `assign v, select(ok, next, v)`: what the loop carries from one micro-batch to the next. */
typedef struct CarryState {
	Node *sum;    /* a batch_sum that stands for `next` behind the last micro-batch, though it adds up nothing */
	Value *var;   /* v */
	Value *inner; /* v, as `next` reads it: what the micro-batch before has left */
} CarryState;

typedef VEC(CarryState) CarryStates;

/* Finds the updates of a function in whole-batch form that can be carried, and puts a batch_sum and a `var` node of its own into each.
 * The function is numbered anew. */
CarryStates carry_states(Func *f, Arena *a);

#endif

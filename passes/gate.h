/* Conditions on the updates of a step.
 *
 * A pass that finds out whether a step may update anything leaves `output %c {name = "gate:WHY"}`
 * in @step, %c a bool[] that depends on the whole batch. The optimizer takes these outputs: where
 * one of them is false, every variable that it assigns keeps its value, its own counter too, running
 * statistics keep theirs, and the step's output `skipped` is true. */
#ifndef DLC_PASSES_GATE_H
#define DLC_PASSES_GATE_H

#include "pass.h"

/* A gate of this name, made of `condition`. */
void gate_add(Builder *b, const char *why, Value *condition);
/* All gates of a function as one bool[], in b; their outputs are removed. NULL where there are
 * none. */
Value *gate_take(Builder *b, Func *f);
/* Every assign from `first` on (to the end of the block) keeps the variable's value where ok is
 * false. */
void gate_assigns(Module *m, Node *first, Value *ok);

/* Every assign of a running statistic goes to the end of the function, and keeps the statistic where ok is false. */
void gate_statistics(Builder *b, Func *f, Value *ok);

#endif

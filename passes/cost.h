/* Predicted times: how much of each cost of a machine profile a node is. */
#ifndef DLC_PASSES_COST_H
#define DLC_PASSES_COST_H

#include "machine.h"

/* The machine while it runs a function (before or after replays and copies to host memory: they count once): its variables and what lives long in it are
 * as far away as all of its values take. cost_seconds without it takes everything for near. */
Machine machine_running(const Machine *m, const Func *f);

/* Seconds of one execution of a node (one trip, for nodes in a loop). Views and variables cost nothing. */
double cost_seconds(const Node *n, const Machine *m);

/* An element-wise op of additions, products, comparisons and the like: no quotient, no function. */
bool cost_is_simple(OpCode op);

/* Units of each cost in one execution, of the thread that has the most to do; the seconds are the sum of units times
 * nanoseconds, FIXED + max(WORK, BYTES) + (1 - overlap) * min(WORK, BYTES). False: the node costs nothing, or names its
 * seconds itself (`opaque`). */
bool cost_units(const Node *n, const Machine *m, double unit[MACHINE_COSTS]);

/* The same of a copy of so many bytes within a card's memory, one of a row of equal ones. */
void cost_copy_units(const Machine *m, double bytes, double unit[MACHINE_COSTS]);

#endif

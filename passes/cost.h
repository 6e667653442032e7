/* Predicted times: a roofline over the machine profile. */
#ifndef DLC_PASSES_COST_H
#define DLC_PASSES_COST_H

#include "pass.h"

/* A built-in profile by name ("generic-cpu", ...); NULL when unknown. NULL gives the default. */
const Machine *machine_find(const char *name);
/* All their names, "a, b, c"; in the arena. */
const char *machine_names(Arena *a);

/* Seconds of one execution of a node (one trip, for nodes in a loop). Views and variables cost nothing. */
double cost_seconds(const Node *n, const Machine *m);

/* Floating-point operations and bytes moved of one execution. */
double cost_flops(const Node *n);
double cost_bytes(const Node *n);

#endif

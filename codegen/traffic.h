/* What the launches of a function move: bytes of memory that generated loop nests read and write. */
#ifndef DLC_CODEGEN_TRAFFIC_H
#define DLC_CODEGEN_TRAFFIC_H

#include "emit.h"

typedef struct Traffic {
	int64_t moved; /* by one call of the function */
	int64_t floor; /* the least that the same arithmetic between the same products must move (traffic.c) */
} Traffic;

/* Bytes that one run of a step reads and writes: each operand, result and assigned variable once, partial results twice. 0 for what
 * is no loop nest: products, convolutions, attention, embeddings, pools move what they must. */
int64_t traffic_step(const EmitStep *s);
Traffic traffic_func(Arena *a, const EmitFunc *f);
/* The table of --emit=launches: a line for each step that starts something, and sums. */
void traffic_print(FILE *out, const Emit *e);

#endif

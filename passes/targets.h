/* Batches without a single valid target. */
#ifndef DLC_PASSES_TARGETS_H
#define DLC_PASSES_TARGETS_H

#include "pass.h"

/* Where the loss of `step`, which still has its macros, may be one of a batch without any valid target: adds the gate
 * "targets" (gate.h) and the output `empty`, true for such a batch. */
void targets_gate(Func *step);

#endif

/* Execution order (see schedule.c). */
#ifndef DLC_PASSES_SCHEDULE_H
#define DLC_PASSES_SCHEDULE_H

#include "pass.h"

/* Reorders the nodes of f's body and of its loops. early_updates: optimizer nodes run as soon as what they need is final
 * (never before the last reader of the variable that they overwrite). */
void schedule_func(Func *f, Arena *scratch, bool early_updates);

/* The variables' values that n overwrites (an assign, or assigns in a fused body): calls visit for each. */
void schedule_overwrites(const Node *n, void (*visit)(Value *var, void *ctx), void *ctx);

#endif

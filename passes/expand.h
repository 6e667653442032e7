/* Macro expansion and initial values, for the passes that make macros or variables of their own. */
#ifndef DLC_PASSES_EXPAND_H
#define DLC_PASSES_EXPAND_H

#include "pass.h"

/* Replaces every macro of the function by its expansion. False after diagnostics. */
bool expand_func(Func *f, bool training);
/* Appends the assignment of v's initial value to `init`. */
void expand_init(Func *init, Var *v);

#endif

/* Macro expansion and initial values, for the passes that make macros or variables of their own. */
#ifndef DLC_PASSES_EXPAND_H
#define DLC_PASSES_EXPAND_H

#include "pass.h"

/* Replaces every macro of the function by its expansion. False after diagnostics. */
bool expand_func(Func *f, bool training);
/* Appends to `init` the assignments of the initial values of `first` and of the variables made
 * after it. */
void expand_init(Func *init, Var *first);
/* The first node of a function that is no `var` node: new `var` nodes go in front of it. */
Node *expand_front(const Func *f);

#endif

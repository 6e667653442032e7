/* Variables by name, and their `var` nodes in one function: for passes that look up each of many.
 */
#ifndef DLC_PASSES_VAR_INDEX_H
#define DLC_PASSES_VAR_INDEX_H

#include "pass.h"

typedef struct VarEntry {
	Var *var;
	Value *read; /* the first `var` node's value in the function, NULL where there is none */
	bool mark;   /* for the pass at work */
} VarEntry;

typedef struct VarIndex {
	VarEntry *at; /* by name */
	size_t count;
} VarIndex;

/* The variables that the module has now; f may be NULL. */
VarIndex var_index(Arena *a, const Module *m, const Func *f);
/* NULL where no variable had the name. */
VarEntry *var_index_find(const VarIndex *x, const char *name);

#endif

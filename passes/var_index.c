/* Variables by name: a sorted array. See var_index.h. */
#include "var_index.h"

#include <stdlib.h>

static int by_name(const void *x, const void *y)
{
	const VarEntry *a = x, *b = y;
	return strcmp(a->var->name, b->var->name);
}

VarIndex var_index(Arena *a, const Module *m, const Func *f)
{
	VarIndex x = { 0 };
	for (Var *v = m->vars; v; v = v->next)
		x.count++;
	x.at = ARENA_ARRAY(a, x.count, VarEntry);
	size_t i = 0;
	for (Var *v = m->vars; v; v = v->next)
		x.at[i++].var = v;
	if (x.count)
		qsort(x.at, x.count, sizeof *x.at, by_name);
	for (const Node *n = f ? f->body->first : NULL; n; n = n->next) {
		VarEntry *e = n->op == OP_var ? var_index_find(&x, ir_str(n, "name")) : NULL;
		if (e && !e->read)
			e->read = n->res[0];
	}
	return x;
}

VarEntry *var_index_find(const VarIndex *x, const char *name)
{
	Var key = { .name = name };
	VarEntry entry = { .var = &key };
	return x->count ? bsearch(&entry, x->at, x->count, sizeof *x->at, by_name) : NULL;
}

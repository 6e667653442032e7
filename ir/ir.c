/* Modules: variables, functions and sections, found by name. */
#include "ir.h"

#include <assert.h>

Module *ir_module(Arena *a, Diag *d, const char *name, int64_t batch)
{
	Module *m = ARENA_NEW(a, Module);
	m->arena = a;
	m->diag = d;
	m->name = arena_strdup(a, name);
	m->batch = batch;
	m->var_names.arena = m->var_by_name.arena = a;
	return m;
}

Func *ir_func(Module *m, const char *name)
{
	Func *f = ARENA_NEW(m->arena, Func);
	f->name = arena_strdup(m->arena, name);
	f->module = m;
	f->batch = m->batch;
	f->body = ARENA_NEW(m->arena, Block);
	Func **at = &m->funcs;
	while (*at)
		at = &(*at)->next;
	*at = f;
	return f;
}

Func *ir_find_func(const Module *m, const char *name)
{
	for (Func *f = m->funcs; f; f = f->next)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

void ir_remove_func(Module *m, const char *name)
{
	for (Func **at = &m->funcs; *at; at = &(*at)->next)
		if (strcmp((*at)->name, name) == 0) {
			*at = (*at)->next;
			return;
		}
}

Var *ir_var_new(Module *m, const char *name, Type t, VarRole role)
{
	Var *v = ARENA_NEW(m->arena, Var);
	v->name = intern(&m->var_names, name, strlen(name));
	v->type = t;
	v->role = role;
	v->decay = -1;
	v->span = NO_SPAN;
	v->offset = -1;
	bool fresh = map_set(&m->var_by_name, v->name, (int64_t)(intptr_t)v);
	assert(fresh && "variables have different names");
	(void)fresh;
	if (m->last_var)
		m->last_var->next = v;
	else
		m->vars = v;
	m->last_var = v;
	return v;
}

Var *ir_find_var(const Module *m, const char *name)
{
	const char *known = intern_find(&m->var_names, name, strlen(name));
	int64_t at;
	return known && map_get(&m->var_by_name, known, &at) ? (Var *)(intptr_t)at : NULL;
}

/* ---- sections ---- */

Section *ir_find_section(const Module *m, const char *kind, const char *name)
{
	for (Section *s = m->sections; s; s = s->next)
		if (strcmp(s->kind, kind) == 0 && strcmp(s->name, name) == 0)
			return s;
	return NULL;
}

Section *ir_section(Module *m, const char *kind, const char *name, const char *type)
{
	Section *s = ir_find_section(m, kind, name);
	if (s)
		return s;
	s = ARENA_NEW(m->arena, Section);
	s->kind = arena_strdup(m->arena, kind);
	s->name = arena_strdup(m->arena, name);
	s->type = arena_strdup(m->arena, type);
	s->span = NO_SPAN;
	Section **at = &m->sections;
	while (*at)
		at = &(*at)->next;
	*at = s;
	return s;
}

Setting *ir_set(Module *m, Section *s, const char *key, AttrKind kind, Attr value)
{
	Setting **at = &s->first;
	while (*at && strcmp((*at)->key, key) != 0)
		at = &(*at)->next;
	if (!*at) {
		*at = ARENA_NEW(m->arena, Setting);
		(*at)->key = arena_strdup(m->arena, key);
		(*at)->span = NO_SPAN;
	}
	(*at)->kind = kind;
	(*at)->value = value;
	if (kind == A_STR)
		(*at)->value.s = arena_strdup(m->arena, value.s ? value.s : "");
	return *at;
}

const Setting *ir_setting(const Section *s, const char *key)
{
	for (const Setting *x = s ? s->first : NULL; x; x = x->next)
		if (strcmp(x->key, key) == 0)
			return x;
	return NULL;
}

double ir_setting_num(const Section *s, const char *key, double dflt)
{
	const Setting *x = ir_setting(s, key);
	if (!x)
		return dflt;
	if (x->kind == A_FLOAT)
		return x->value.f;
	return x->kind == A_INT || x->kind == A_BOOL ? (double)x->value.i : dflt;
}

const char *ir_setting_str(const Section *s, const char *key, const char *dflt)
{
	const Setting *x = ir_setting(s, key);
	return x && x->kind == A_STR ? x->value.s : dflt;
}

/* What `train` says of parameters by name: groups with settings of their own, frozen parameters,
 * adapters.
 *
 *     groups = [group("*.bias", weight_decay = 0), group("head.*", lr = 1e-2)]
 *     freeze = ["wte.*", "wpe.*"]     trainable = "head.*"     lora = lora("*.c_attn", rank = 8)
 *
 * They are read with the settings, before the model is evaluated, and applied when its parameters
 * are known: adapters first, as they are parameters too. What comes out: Var.frozen; Var.group and
 * the sections "group gN" that it counts; frozen tensors of 16 bits.
 *
 * Groups merge: a parameter takes each setting from the last group that matches it and has that
 * setting. So every set of groups that some parameter matches becomes one section. */
#include "settings.h"

enum { MAX_GROUPS = 64 };

typedef struct Group {
	Pattern *on;
	Section settings; /* of this group alone; not the module's */
} Group;

struct Tuning {
	Group group[MAX_GROUPS];
	int ngroups;
	Pattern *freeze, *trainable;
	DType stored; /* of frozen tensors of two or more dimensions */
	Lora lora;
	VEC(uint64_t) sets; /* of groups: set i is section g(i + 1) */
};

typedef struct Tuning Tuning;

static const char *const settings[] = { "groups", "freeze", "trainable", "lora", "freeze_dtype" };
enum { NSETTINGS = sizeof settings / sizeof *settings };

bool tuning_has(const char *key)
{
	for (size_t i = 0; i < NSETTINGS; i++)
		if (!strcmp(settings[i], key))
			return true;
	return false;
}

void tuning_suggest(Suggest *s)
{
	for (size_t i = 0; i < NSETTINGS; i++)
		suggest_try(s, settings[i]);
}

/* ---- patterns ---- */

/* `*` is any text, also none, also with dots. */
static bool matches(const char *p, const char *s)
{
	const char *star = NULL, *from = NULL;

	while (*s) {
		if (*p == '*') {
			star = ++p;
			from = s;
		} else if (*p == *s) {
			p++;
			s++;
		} else if (star) {
			p = star;
			s = ++from;
		} else {
			return false;
		}
	}
	while (*p == '*')
		p++;
	return !*p;
}

Pattern *pattern_match(Pattern *list, const char *name)
{
	Pattern *first = NULL;

	for (Pattern *p = list; p; p = p->next)
		if (matches(p->text, name)) {
			p->used = true;
			first = first ? first : p;
		}
	return first;
}

Pattern *patterns_of(Train *t, const Expr *e, Val v, const char *what)
{
	Pattern *first = NULL, **end = &first;
	Val *at = v.kind == V_LIST ? v.at : &v;
	int32_t n = v.kind == V_LIST ? v.n : 1;

	if (v.kind == V_POISON || v.kind == V_NONE)
		return NULL;
	for (int32_t i = 0; i < n; i++) {
		if (at[i].kind != V_STR) {
			if (at[i].kind != V_POISON &&
			    front_error(t->f, &t->frame, e->span,
					"'%s' must be a name or a list of names, got %s", what,
					val_describe(t->f->arena, at[i])))
				diag_hint(t->f->diag, "such as \"*.bias\": * stands for any text");
			return NULL;
		}
		*end = ARENA_NEW(t->f->arena, Pattern);
		**end = (Pattern){ .text = at[i].s, .span = e->span };
		end = &(*end)->next;
	}
	return first;
}

/* A pattern that nothing matches is a misspelt one: near names, and near "*.last" of names. */
void patterns_check(Front *f, const Pattern *list, const char *of, const NameMap *names)
{
	for (const Pattern *p = list; p; p = p->next) {
		Suggest s = suggest_start(p->text);
		if (p->used)
			continue;
		for (size_t i = 0; i < names->cap; i++) {
			const char *key = names->slot[i].key;
			const char *dot = key ? strrchr(key, '.') : NULL;
			if (key)
				suggest_try(&s, key);
			if (dot)
				suggest_try(&s, arena_printf(f->arena, "*%s", dot));
		}
		if (front_error(f, NULL, p->span, "no %s has a name like '%s'", of, p->text))
			suggest_hint(&s, f->diag);
	}
}

/* ---- reading ---- */

static void read_group(Train *t, Tuning *x, const Expr *e)
{
	Front *f = t->f;
	Group *g = &x->group[x->ngroups];
	Train own = { .f = f, .frame = t->frame, .optimizer = t->optimizer, .group = true,
		      .out = &g->settings };

	if (e->kind == E_POISON)
		return;
	if (e->kind != E_CALL || e->call.primitive || strcmp(e->call.name, "group") != 0) {
		if (front_error(f, &t->frame, e->span, "expected a group of parameters"))
			diag_hint(f->diag, "such as group(\"*.bias\", weight_decay = 0)");
		return;
	}
	const Arg *a = e->call.args;
	if (!a || a->name) {
		front_error(f, &t->frame, e->span, "a group begins with the name of its parameters");
		return;
	}
	for (const Arg *b = a->next; b; b = b->next)
		if (!b->name) {
			front_error(f, &t->frame, b->span,
				    "an argument of a group needs a name, such as lr_scale = 0.1");
			return;
		}
	if (x->ngroups == MAX_GROUPS - 1) {
		front_error(f, &t->frame, e->span, "there are more than %d groups", MAX_GROUPS - 1);
		return;
	}
	g->settings.span = e->span;
	g->on = patterns_of(t, a->value, settings_constant(t, a->value), "group");
	own.arguments = a->next;
	settings_group(&own);
	x->ngroups++;
}

static void read_groups(Train *t, Tuning *x)
{
	const Expr *e = settings_source(t, "groups", false);

	if (!e)
		return;
	if (e->kind != E_LIST) {
		read_group(t, x, e);
		return;
	}
	for (const Arg *a = e->list; a; a = a->next)
		read_group(t, x, a->value);
}

/* On the command line the text itself is the pattern, unless it is a list. */
static Pattern *read_names(Train *t, const char *key)
{
	const Override *o = override_find(t->f, "train", key);
	Expr *e = settings_source(t, key, o && !strchr("[(", o->text[0]));

	return e && e->kind != E_POISON ? patterns_of(t, e, settings_constant(t, e), key)
					    : NULL;
}

/* A 16-bit type in which frozen tensors are stored; as the precision of the run, unless it is said. */
static DType read_stored(Train *t)
{
	static const struct {
		const char *name, *same;
		DType type;
	} types[] = { { "fp32", "f32", DT_F32 },
		      { "fp64", "f64", DT_F64 },
		      { "bf16", "bf16", DT_BF16 },
		      { "fp16", "f16", DT_F16 } };
	Expr *e = settings_source(t, "freeze_dtype", true);
	const char *run = settings_precision(t->f), *name = strcmp(run, "tf32") ? run : "fp32";

	if (e && e->kind != E_POISON)
		name = e->kind == E_NAME || e->kind == E_STR ? e->s : "?";
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		bool wide = types[i].type == DT_F64 && strcmp(run, "fp64") != 0;
		if (!wide && (!strcmp(name, types[i].name) || !strcmp(name, types[i].same)))
			return types[i].type;
	}
	if (front_error(t->f, &t->frame, e->span, "unknown type '%s' of frozen parameters", name))
		diag_hint(t->f->diag, "there are fp32, bf16 and fp16");
	return DT_F32;
}

void tuning_read(Train *t)
{
	Tuning *x = ARENA_NEW(t->f->arena, Tuning);
	Expr *e = settings_source(t, "lora", false);

	t->f->tuning = x;
	read_groups(t, x);
	x->freeze = read_names(t, "freeze");
	x->trainable = read_names(t, "trainable");
	x->stored = read_stored(t);
	if (e && e->kind != E_POISON)
		lora_read(t, e, &x->lora);
}

/* ---- applying ---- */

/* With adapters, or where it is said what trains, everything else is frozen. */
static void freeze(Front *f, Tuning *x, const Var *first_adapter)
{
	bool all = !x->freeze && (x->trainable || x->lora.on), trains = false;

	for (Var *v = f->module->vars; v && v != first_adapter; v = v->next) {
		bool frozen = pattern_match(x->freeze, v->name) != NULL;
		bool kept = pattern_match(x->trainable, v->name) != NULL;
		v->frozen = (frozen || all) && !kept;
		trains |= v->role == VAR_PARAM && !v->frozen;
	}
	int errors = diag_errors(f->diag);
	patterns_check(f, x->freeze, "parameter", &f->vars);
	patterns_check(f, x->trainable, "parameter", &f->vars);
	if (!trains && !first_adapter && !x->lora.on && diag_errors(f->diag) == errors)
		diag_error(f->diag, x->freeze ? x->freeze->span : NO_SPAN,
			   "every parameter is frozen, so there is nothing to train");
}

/* A table of 16 bits is read row by row, and the rows are widened. */
static void look_up_low(Builder *b, Node *n)
{
	Value *rows = ir_value(b, n->op, n->nargs, n->arg, n->attr, NULL);

	ir_replace_uses(b->block, n->res[0], ir_cast(b, rows, DT_F32));
	ir_unlink(n);
}

/* Each reader of a stored tensor widens it for itself, so that no wide copy waits for the next; in a
 * run of this precision `autocast` takes the cast away again. */
static void widen_readers(Front *f)
{
	for (Node *n = f->func->body->first, *next; n; n = next) {
		Builder b = ir_builder(f->module, f->func->body);
		next = n->next;
		b.before = n;
		b.span = n->span;
		for (int i = 0; i < n->nargs; i++) {
			Value *w = n->arg[i];
			if (!w->def || w->def->op != OP_var || dtype_bytes(w->type.dtype) != 2 ||
			    !dtype_is_float(w->type.dtype))
				continue;
			if (n->op == OP_embedding && i == 0) {
				look_up_low(&b, n);
				break;
			}
			n->arg[i] = ir_cast(&b, w, DT_F32);
		}
	}
}

/* Vectors are few bytes, and what reads them (norms, biases) computes in f32. */
static void store_low(Front *f, DType t)
{
	bool any = false;

	for (Var *v = f->module->vars; v; v = v->next) {
		const VarUse *u = name_get(&f->vars, v->name);
		if (!v->frozen || v->role != VAR_PARAM || v->type.ndim < 2 || v->type.dtype != DT_F32)
			continue;
		v->type.dtype = u->value->type.dtype = t;
		any = true;
	}
	if (any)
		widen_readers(f);
}

/* The number of the section with the settings of these groups; made where there is none. */
static int32_t section_of(Front *f, Tuning *x, uint64_t set)
{
	for (size_t i = 0; i < x->sets.len; i++)
		if (x->sets.at[i] == set)
			return (int32_t)i + 1;
	vec_push(f->arena, &x->sets, set);
	Section *s = ir_section(f->module, "group", arena_printf(f->arena, "g%zu", x->sets.len), "");
	for (int i = 0; i < x->ngroups; i++) {
		if (!(set >> i & 1))
			continue;
		s->span = x->group[i].settings.span;
		for (const Setting *k = x->group[i].settings.first; k; k = k->next)
			ir_set(f->module, s, k->key, k->kind, k->value)->span = k->span;
	}
	return (int32_t)x->sets.len;
}

static void put_groups(Front *f, Tuning *x)
{
	for (Var *v = f->module->vars; v; v = v->next) {
		uint64_t set = 0;
		for (int i = 0; i < x->ngroups && v->role == VAR_PARAM; i++)
			if (pattern_match(x->group[i].on, v->name))
				set |= (uint64_t)1 << i;
		if (set && !v->frozen)
			v->group = section_of(f, x, set);
	}
	for (int i = 0; i < x->ngroups; i++)
		patterns_check(f, x->group[i].on, "parameter", &f->vars);
}

void tuning_apply(Front *f)
{
	Tuning *x = f->tuning;
	Var *last = f->module->last_var;

	if (!x)
		return;
	if (x->lora.on)
		lora_apply(f, &x->lora);
	if (x->freeze || x->trainable || x->lora.on)
		freeze(f, x, last ? last->next : NULL);
	if (dtype_bytes(x->stored) == 2)
		store_low(f, x->stored);
	put_groups(f, x);
}

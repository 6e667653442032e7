/* Parameters and their names.
 *
 * A parameter is made by param("weight", ...) inside a block; its full name is the path of the
 * block's instance, a dot and that name. A path is made of the parts of the calls and loops around:
 *
 *   - a call with name = "c_attn" adds `c_attn`; name = "" adds nothing; name = "/h.0.attn" is the
 * whole path by itself;
 *   - a call without it adds the block's name; the second such call under the same path adds
 * `linear_1`, the third `linear_2`, ...
 *   - a loop `for h in ...` adds `h.0`, `h.1`, ...; `for _ in ...` adds `0`, `1`, ...
 *
 * The same full name twice is one parameter, used twice (tied); it must have one shape. */
#include "front.h"

#include <inttypes.h>

/* What stands behind a path: the call that took it first. */
typedef struct Instance {
	Span span;
	bool chosen;  /* named by the author */
	int32_t next; /* number of the next automatic one */
} Instance;

static const char *join(Front *f, const char *path, const char *part)
{
	return *path && *part ? arena_printf(f->arena, "%s.%s", path, part) : *path ? path : part;
}

/* Names go into checkpoints and IR text: printable, no quotes, no white space, no empty parts. */
static bool good_name(const char *s)
{
	for (size_t i = 0; s[i]; i++)
		if ((unsigned char)s[i] <= ' ' || s[i] == '"' || s[i] == '\\' || s[i] == 127 ||
		    (s[i] == '.' && (i == 0 || s[i + 1] == '.' || !s[i + 1])))
			return false;
	return strlen(s) <= 512;
}

static bool check_name(Front *f, const Frame *fr, const Expr *e, const char *s)
{
	if (good_name(s) && strncmp(s, "dlc.", 4) != 0)
		return true;
	front_error(f, fr, e->span, "'%.80s' is not a good name for a parameter", s);
	return false;
}

static Instance *take(Front *f, const char *path, Span s, bool chosen)
{
	Instance *x = ARENA_NEW(f->arena, Instance);

	*x = (Instance){ s, chosen, 1 };
	name_put(f->arena, &f->instances, path, x);
	return x;
}

const char *param_path(Front *f, const Frame *fr, const Expr *call, const char *block,
		       const char *name)
{
	Span user = front_span(f, fr, call->span);
	const char *base, *path;
	Instance *x;

	if (name) {
		path = *name == '/' ? name + 1 : join(f, fr->path, name);
		if (!check_name(f, fr, call, path))
			return NULL;
		x = *name ? name_get(&f->instances, path) : NULL;
		if (x && !x->chosen) {
			if (front_error(f, fr, call->span, "the name '%s' is taken already", path))
				diag_note(f->diag, x->span,
					  "this call got it, as it has no name of its own");
			return NULL;
		}
		if (*name && !x)
			take(f, path, user, true);
		return path;
	}
	path = base = join(f, fr->path, block);
	x = name_get(&f->instances, base);
	Instance *counter = x;
	while (x) {
		path = arena_printf(f->arena, "%s_%d", base, (int)counter->next++);
		x = name_get(&f->instances, path);
	}
	take(f, path, user, false);
	return path;
}

/* The node that reads a new variable, behind those of the older ones. */
static Value *var_node(Front *f, const Var *v)
{
	Builder b = f->b;

	b.before = f->last_var ? f->last_var->next : f->func->body->first;
	b.span = v->span;
	f->last_var = ir_node(&b, OP_var, 0, NULL, &(Attr){ .s = v->name }, &v->type);
	f->nodes++;
	return f->last_var->res[0];
}

/* The random stream of a variable's initial values, by its name: other parts of the model do not
 * change them. Streams below 2^30 are for the operations. */
static int32_t stream_of(Front *f, const char *name)
{
	const uint32_t mask = (1u << 30) - 1;
	uint32_t h = 2166136261u; /* FNV-1a */

	for (const char *s = name; *s; s++)
		h = (h ^ (unsigned char)*s) * 16777619u;
	for (h ^= h >> 15;; h++) { /* until it is free */
		const char *key = arena_printf(f->arena, "%" PRIu32, h & mask);
		if (name_get(&f->streams, key))
			continue;
		name_put(f->arena, &f->streams, key, f);
		return (int32_t)((h & mask) | (1u << 30));
	}
}

static Val use_again(Front *f, const Frame *fr, const Expr *e, const VarUse *u, const Type *t,
		     VarRole role)
{
	const Var *v = u->var;

	if (role == VAR_STAT || v->role != role) {
		if (front_error(f, fr, e->span, "'%s' is a running statistic and cannot be shared",
				v->name))
			diag_note(f->diag, v->span, "it is made here");
	} else if (!type_equal(&v->type, t)) {
		if (front_error(f, fr, e->span, "parameter '%s' is used with two shapes, %s and %s",
				v->name, type_text(f->arena, &v->type, false),
				type_text(f->arena, t, false)))
			diag_note(f->diag, v->span, "'%s' is made here, %s", v->name,
				  type_text(f->arena, &v->type, false));
	} else {
		return val_tensor(u->value);
	}
	return POISON;
}

/* A new variable and the node that reads it. */
static VarUse *make(Front *f, const char *full, const Type *t, VarRole role, const InitVal *init,
		    int decay, Span at)
{
	VarUse *u = ARENA_NEW(f->arena, VarUse);
	Var *v = ir_var_new(f->module, full, *t, role);

	v->init = init->kind;
	v->a = init->a;
	v->b = init->b;
	v->stream = stream_of(f, full);
	v->decay = (int8_t)decay;
	v->span = at;
	*u = (VarUse){ v, var_node(f, v) };
	name_put(f->arena, &f->vars, full, u);
	return u;
}

Val param_use(Front *f, const Frame *fr, const Expr *e, const char *name, const Type *t,
	      VarRole role, const InitVal *init, int decay)
{
	const char *full = *name == '/' ? name + 1 : join(f, fr->path, name);
	Span user = front_span(f, fr, e->span);
	VarUse *u;

	if (!*full || !check_name(f, fr, e, full) || f->stop)
		return POISON;
	u = name_get(&f->vars, full);
	if (u)
		return use_again(f, fr, e, u, t, role);
	if (front_reported(f, user))
		return POISON;
	if (!type_check(t)) {
		front_error(f, fr, e->span, "parameter '%s' of shape %s is too large", full,
			    type_text(f->arena, t, false));
		return POISON;
	}
	if (f->nvars++ >= FRONT_MAX_VARS) {
		front_limit(f, fr, e->span, "the model has more than %d parameters and statistics",
			    FRONT_MAX_VARS);
		return POISON;
	}
	return val_tensor(make(f, full, t, role, init, decay, user)->value);
}

VarUse *param_add(Front *f, const char *full, const Type *t, const InitVal *init, Span at)
{
	if (name_get(&f->vars, full))
		return NULL;
	return make(f, full, t, VAR_PARAM, init, -1, at);
}

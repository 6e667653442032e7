/* Calls of blocks: arguments meet parameters, the body is evaluated in a frame of its own, its
 * value comes back.
 *
 * Every block has two arguments that it does not declare: `name` sets the instance's part of parameter
 * names (param.c has the rule); `precision` says in which type its ops compute, those of the blocks
 * that it calls too, unless they say otherwise. A block may declare `precision` as well, to give it a
 * default. */
#include "front.h"

/* "linear(x, out, bias = true)" */
static const char *usage(Front *f, const BlockDef *b)
{
	const char *s = arena_printf(f->arena, "%s(", b->name);

	for (const Param *p = b->params; p; p = p->next) {
		const Expr *d = p->dflt;
		const char *dflt = "";
		if (d)
			dflt = d->kind == E_NONE   ? " = none"
			       : d->kind == E_BOOL ? (d->b ? " = true" : " = false")
			       : d->kind == E_INT
				       ? arena_printf(f->arena, " = %lld", (long long)d->i)
			       : d->kind == E_FLOAT ? arena_printf(f->arena, " = %g", d->f)
						    : " = ...";
		s = arena_printf(f->arena, "%s%s%s%s", s, p == b->params ? "" : ", ", p->name,
				 dflt);
	}
	return arena_printf(f->arena, "%s)", s);
}

static const Param *find_param(const BlockDef *b, const char *name)
{
	for (const Param *p = b->params; p; p = p->next)
		if (!strcmp(p->name, name))
			return p;
	return NULL;
}

/* ---- types of arguments ---- */

static bool kind_matches(const char *want, Val v)
{
	if (!strcmp(want, "int"))
		return v.kind == V_INT;
	if (!strcmp(want, "number"))
		return val_is_number(v);
	if (!strcmp(want, "bool"))
		return v.kind == V_BOOL;
	if (!strcmp(want, "string"))
		return v.kind == V_STR;
	if (!strcmp(want, "list"))
		return v.kind == V_LIST;
	if (!strcmp(want, "init"))
		return v.kind == V_INIT || val_is_number(v);
	return v.kind == V_TENSOR &&
	       (!strcmp(want, "tensor") || !strcmp(want, dtype_name(v.t->type.dtype)));
}

static const char *want_text(Front *f, const TypeExpr *t)
{
	if (!strcmp(t->name, "init"))
		return "initial values such as normal(0.02)";
	if (!strcmp(t->name, "int"))
		return "a whole number";
	if (!strcmp(t->name, "bool"))
		return "true or false";
	if (dtype_from_name(t->name, strlen(t->name)) != DT_NONE)
		return arena_printf(f->arena, "a tensor of %s", t->name);
	return arena_printf(f->arena, "a %s", t->name);
}

/* The dims of a typed argument, evaluated among the arguments before it. */
static bool shape_matches(Front *f, Frame *in, const TypeExpr *t, const Type *have,
			  const char **want)
{
	const char *s = "";
	bool good = true;
	int i = 0;

	for (const Arg *a = t->dims; a; a = a->next, i++) {
		bool any = a->value->kind == E_NAME && !strcmp(a->value->s, "_");
		Val v = any ? NONE_VAL : eval_expr(f, in, a->value);
		if (!any && v.kind != V_INT) {
			if (v.kind != V_POISON)
				front_error(f, in, a->span,
					    "a dimension must be a whole number, got %s",
					    val_describe(f->arena, v));
			return true;
		}
		good &= i < have->ndim && (any || have->dim[i] == v.i);
		s = arena_printf(f->arena, "%s%s%s", s, i ? "," : "",
				 any ? "_" : val_text(f->arena, v));
	}
	*want = arena_printf(f->arena, "%s[%s]", t->name, s);
	return good && i == have->ndim;
}

static bool check_type(Front *f, Frame *caller, Frame *in, const Param *p, const Actual *x)
{
	const TypeExpr *t = p->type;
	const char *want;
	Val v = x ? x->v : POISON;

	if (!t || !x || v.kind == V_POISON ||
	    (v.kind == V_NONE && p->dflt && p->dflt->kind == E_NONE))
		return true;
	if (!kind_matches(t->name, v)) {
		front_error(f, caller, x->expr->span, "%s: argument '%s' must be %s, got %s",
			    in->block->name, p->name, want_text(f, t), val_describe(f->arena, v));
		return false;
	}
	if (t->shaped && !shape_matches(f, in, t, &v.t->type, &want)) {
		front_error(f, caller, x->expr->span, "%s: argument '%s' must be %s, got %s",
			    in->block->name, p->name, want, val_text(f->arena, v));
		return false;
	}
	return true;
}

/* ---- binding ---- */

static bool check_names(Front *f, Frame *caller, const BlockDef *b, Actuals *args)
{
	int n = 0;

	for (const Param *p = b->params; p; p = p->next)
		n++;
	if (args->npos > n) {
		if (front_error(f, caller, args->at[n].span,
				"block '%s' takes at most %d argument%s, got %d", b->name, n,
				n == 1 ? "" : "s", args->npos))
			diag_hint(f->diag, "it is called as %s", usage(f, b));
		return false;
	}
	for (int i = args->npos; i < args->n; i++) {
		const char *name = args->at[i].name;
		if (!strcmp(name, "name") || !strcmp(name, "precision") || find_param(b, name))
			continue;
		Suggest s = suggest_start(name);
		for (const Param *p = b->params; p; p = p->next)
			suggest_try(&s, p->name);
		suggest_try(&s, "name");
		suggest_try(&s, "precision");
		if (front_error(f, caller, args->at[i].span, "block '%s' has no argument '%s'",
				b->name, name)) {
			suggest_hint(&s, f->diag);
			if (!s.best)
				diag_hint(f->diag, "it is called as %s", usage(f, b));
		}
		return false;
	}
	return true;
}

static bool bind(Front *f, Frame *caller, Frame *in, const Expr *e, Actuals *args)
{
	int i = 0;

	for (const Param *p = in->block->params; p; p = p->next, i++) {
		Actual *named = actual_named(args, p->name),
		       *x = i < args->npos ? &args->at[i] : named;
		Local *l = ARENA_NEW(f->arena, Local);
		if (named && x != named) {
			front_error(f, caller, named->span, "argument '%s' is given twice",
				    p->name);
			return false;
		}
		if (!x && !p->dflt) {
			if (front_error(f, caller, e->span, "block '%s' needs an argument '%s'",
					in->block->name, p->name))
				diag_hint(f->diag, "it is called as %s", usage(f, in->block));
			return false;
		}
		if (!check_type(f, caller, in, p, x))
			return false;
		*l = (Local){ x ? x->v : eval_expr(f, in, p->dflt), x ? x->expr->span : p->span,
			      x ? x->expr : NULL };
		name_put(f->arena, &in->locals, p->name, l);
	}
	return true;
}

/* The `name` argument; false after an error. */
static bool instance_name(Front *f, Frame *caller, Actuals *args, const char **name)
{
	const Actual *x = actual_named(args, "name");

	*name = NULL;
	if (!x || x->v.kind == V_NONE)
		return true;
	if (x->v.kind == V_STR)
		*name = x->v.s;
	else if (x->v.kind != V_POISON)
		front_error(f, caller, x->expr->span, "'name' must be a string, got %s",
			    val_describe(f->arena, x->v));
	return x->v.kind == V_STR;
}

/* Sets f->precision to what the block asks for; false after an error. */
static bool set_precision(Front *f, Frame *caller, Frame *in, Actuals *args)
{
	static const struct {
		const char *name;
		int32_t flag;
	} names[] = { { "fp32", NF_IN_F32 }, { "f32", NF_IN_F32 }, { "bf16", NF_IN_BF16 }, { "fp16", NF_IN_F16 }, { "f16", NF_IN_F16 } };
	const Local *declared = name_get(&in->locals, "precision");
	const Actual *x = actual_named(args, "precision");
	bool given = x || (declared && declared->from);
	Span at = x ? x->expr->span : declared ? declared->span : NO_SPAN;
	Val v = declared ? declared->value : x ? x->v : NONE_VAL;

	if (v.kind == V_NONE || v.kind == V_POISON)
		return true;
	for (size_t i = 0; v.kind == V_STR && i < sizeof names / sizeof *names; i++) {
		if (strcmp(v.s, names[i].name) != 0)
			continue;
		if (f->real != DT_F64) /* there everything is in f64, to be compared with */
			f->precision = names[i].flag;
		return true;
	}
	if (front_error(f, given ? caller : in, at, "a block's precision is \"fp32\", \"bf16\" or \"fp16\", got %s",
			val_describe(f->arena, v)) &&
	    v.kind == V_STR && (!strcmp(v.s, "fp64") || !strcmp(v.s, "f64")))
		diag_hint(f->diag, "fp64 is for a whole run: train { precision = fp64 }");
	return false;
}

Val call_block(Front *f, Frame *fr, const Expr *e)
{
	const BlockDef *b = e->call.block;
	Span user = front_span(f, fr, e->span);
	Frame in = { .block = b, .standard = b->standard, .user = user, .call = e->span, .up = fr };
	const char *name;
	Actuals args;

	if (fr->constant) {
		front_error(f, fr, e->span, "a constant cannot call block '%s'", b->name);
		return POISON;
	}
	if (!eval_args(f, fr, e->call.args, &args) || !check_names(f, fr, b, &args) ||
	    !instance_name(f, fr, &args, &name))
		return POISON;
	if (args.poison && b->standard)
		return POISON;
	if (f->calls >= FRONT_MAX_CALLS) {
		front_limit(f, fr, e->span, "blocks are called within blocks more than %d deep",
			    FRONT_MAX_CALLS);
		return POISON;
	}
	if (!(in.path = param_path(f, fr, e, b->name, name)) || !bind(f, fr, &in, e, &args))
		return POISON;
	int32_t outside = f->precision;
	if (!set_precision(f, fr, &in, &args))
		return POISON;
	f->calls++;
	if (!eval_stmts(f, &in, b->body) && in.result.kind == V_POISON && !f->stop)
		front_error(f, fr, e->span, "block '%s' ended without 'return'", b->name);
	f->calls--;
	f->precision = outside;
	return in.result;
}

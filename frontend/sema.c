/* Checks that need no evaluation, so that also blocks that nobody calls are checked:
 * names defined twice, unknown names, blocks that call themselves, the shape of a block's body.
 *
 * Values and callees are two name spaces: a const `dropout` and a block `dropout` live side by
 * side. A callee is looked for among the user's blocks, the standard blocks, the functions of the
 * language and the ops, in this order; inside std.dl the user's blocks are left out, and `op.NAME`
 * is always the op. */
#include "front.h"

#include <strings.h>

typedef struct Check {
	Front *f;
	bool standard;
	const NameMap *scope;  /* names with a value in this body; NULL: constants only */
	const BlockDef *block; /* NULL: not in a block */
	int loops;
} Check;

static const char *const predefined[] = { "batch", "pi", "zeros", "ones" };

static bool is_predefined(const char *s)
{
	for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++)
		if (!strcmp(s, predefined[i]))
			return true;
	return false;
}

/* ---- names ---- */

/* `field`: the one that is taken of it, or NULL. */
static void check_name(Check *c, Expr *e, const char *field)
{
	static const char *const words[] = { "true", "false", "none" };
	Front *f = c->f;

	if ((c->scope && name_get(c->scope, e->s)) || is_predefined(e->s) ||
	    (!c->standard && (name_get(&f->consts, e->s) || name_get(&f->datasets, e->s))))
		return;
	diag_error(f->diag, e->span, "unknown name '%s'", e->s);
	e->kind = E_POISON;
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (!strcasecmp(e->s, words[i])) {
			diag_hint(f->diag, "write '%s'", words[i]);
			return;
		}
	Suggest s = suggest_start(e->s);
	if (c->scope)
		suggest_map(&s, c->scope);
	for (size_t i = 0; i < sizeof predefined / sizeof *predefined; i++)
		suggest_try(&s, predefined[i]);
	if (!c->standard) {
		suggest_map(&s, &f->consts);
		suggest_map(&s, &f->datasets);
	}
	if (s.best)
		suggest_hint(&s, f->diag);
	else if (field && dataset_example(field))
		diag_hint(f->diag, "declare it: data %s = %s", e->s, dataset_example(field));
	else if (name_get(&f->user_blocks, e->s) || name_get(&f->std_blocks, e->s))
		diag_hint(f->diag, "'%s' is a block: call it, %s(...)", e->s, e->s);
}

static void check_callee(Check *c, Expr *e)
{
	Front *f = c->f;
	const char *name = e->call.name;
	BlockDef *b = NULL;
	OpCode op;

	if (!e->call.primitive) {
		if (!c->standard)
			b = name_get(&f->user_blocks, name);
		if (!b)
			b = name_get(&f->std_blocks, name);
		if (b) {
			e->call.target = T_BLOCK;
			e->call.block = b;
			return;
		}
		if ((e->call.index = builtin_find(name)) >= 0) {
			e->call.target = T_BUILTIN;
			return;
		}
	}
	if ((op = prim_find(name)) != OP_COUNT) {
		e->call.target = T_OP;
		e->call.index = (int32_t)op;
		return;
	}
	diag_error(f->diag, e->call.name_span, "unknown %s '%s'",
		   e->call.primitive ? "op" : "block or function", name);
	Suggest s = suggest_start(name);
	prim_suggest(&s);
	if (!e->call.primitive) {
		builtin_suggest(&s);
		suggest_map(&s, &f->std_blocks);
		if (!c->standard)
			suggest_map(&s, &f->user_blocks);
	}
	suggest_hint(&s, f->diag);
	e->kind = E_POISON;
}

static void check_expr(Check *c, Expr *e);

static void check_args(Check *c, Arg *a)
{
	for (; a; a = a->next)
		check_expr(c, a->value);
}

/* Depth is bounded by AST_MAX_DEPTH. */
static void check_expr(Check *c, Expr *e)
{
	switch (e->kind) {
	case E_NAME: check_name(c, e, NULL); break;
	case E_LIST: check_args(c, e->list); break;
	case E_UNARY: check_expr(c, e->op.a); break;
	case E_BINARY:
		check_expr(c, e->op.a);
		check_expr(c, e->op.b);
		break;
	case E_COND:
		check_expr(c, e->cond.c);
		check_expr(c, e->cond.a);
		check_expr(c, e->cond.b);
		break;
	case E_CALL: {
		Arg *args = e->call.args;
		check_callee(c, e);
		check_args(c, args);
		break;
	}
	case E_FIELD:
		if (e->field.base->kind == E_NAME)
			check_name(c, e->field.base, e->field.name);
		else
			check_expr(c, e->field.base);
		break;
	case E_INDEX:
		check_expr(c, e->index.base);
		check_expr(c, e->index.at);
		break;
	default: break;
	}
}

/* ---- statements ---- */

/* Every name that a body gives a value to, so that order and branches are left to the evaluation.
 */
static void collect(Front *f, NameMap *scope, Stmt *s)
{
	for (; s; s = s->next) {
		for (Name *n = s->targets; n; n = n->next)
			name_put(f->arena, scope, n->s, s);
		collect(f, scope, s->body);
		collect(f, scope, s->orelse);
	}
}

static void check_target(Check *c, const Name *n)
{
	Front *f = c->f;
	const ConstVal *k = c->standard ? NULL : name_get(&f->consts, n->s);

	if (k && k->def) {
		diag_error(f->diag, n->span, "'%s' is a const and cannot get another value", n->s);
		diag_note(f->diag, k->def->span, "'%s' is defined here", n->s);
	} else if (!c->standard && name_get(&f->datasets, n->s)) {
		diag_error(f->diag, n->span, "'%s' is a data set and cannot get another value",
			   n->s);
	} else if (is_predefined(n->s)) {
		diag_error(f->diag, n->span, "'%s' is predefined and cannot get another value",
			   n->s);
	}
}

static void check_stmts(Check *c, Stmt *s)
{
	Front *f = c->f;

	for (; s; s = s->next) {
		for (const Name *n = s->targets; n; n = n->next)
			check_target(c, n);
		if (s->a)
			check_expr(c, s->a);
		if (s->b)
			check_expr(c, s->b);
		check_args(c, s->values);
		if ((s->kind == S_LOSS || s->kind == S_PREDICT) && c->block)
			diag_error(f->diag, s->span,
				   "'%s' belongs into the model, not into block '%s'",
				   s->kind == S_LOSS ? "loss" : "predict", c->block->name);
		if (s->kind == S_RETURN && !c->block)
			diag_error(f->diag, s->span,
				   "'return' belongs into a block; the model ends with 'loss'");
		if (s->kind == S_RETURN && s->next)
			diag_error(f->diag, s->next->span,
				   "this comes after 'return' and is never reached");
		check_stmts(c, s->body);
		check_stmts(c, s->orelse);
	}
}

static bool returns(const Stmt *s)
{
	for (; s; s = s->next)
		if (s->kind == S_RETURN || returns(s->body) || returns(s->orelse))
			return true;
	return false;
}

/* ---- blocks ---- */

static void check_type(Check *c, TypeExpr *t)
{
	static const char *const kinds[] = { "int",  "number", "bool",  "string",
					     "list", "init",   "tensor" };
	Front *f = c->f;

	if (!t)
		return;
	bool tensor = !strcmp(t->name, "tensor") ||
		      dtype_from_name(t->name, strlen(t->name)) != DT_NONE;
	bool known = tensor;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		known |= !strcmp(t->name, kinds[i]);
	if (!known) {
		Suggest s = suggest_start(t->name);
		for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
			suggest_try(&s, kinds[i]);
		for (int i = DT_BOOL; i < DT_COUNT; i++)
			suggest_try(&s, dtype_name((DType)i));
		diag_error(f->diag, t->span, "unknown type '%s'", t->name);
		suggest_hint(&s, f->diag);
	} else if (t->shaped && !tensor) {
		diag_error(f->diag, t->span, "'%s' has no shape; only tensors have", t->name);
	}
	for (Arg *a = t->dims; a; a = a->next)
		if (a->value->kind != E_NAME || strcmp(a->value->s, "_") != 0)
			check_expr(c, a->value);
}

static void check_block(Front *f, BlockDef *b)
{
	NameMap scope = { 0 };
	Check c = { .f = f, .standard = b->standard, .scope = &scope, .block = b };

	for (Param *p = b->params; p; p = p->next) { /* a default sees the parameters before it */
		if (p->dflt)
			check_expr(&c, p->dflt);
		check_type(&c, p->type);
		if (!strcmp(p->name, "name"))
			diag_error(
				f->diag, p->span,
				"every block has an argument 'name' already; it names its parameters");
		else if (name_put(f->arena, &scope, p->name, p))
			diag_error(f->diag, p->span, "argument '%s' is there twice", p->name);
	}
	collect(f, &scope, b->body);
	check_stmts(&c, b->body);
	if (!returns(b->body))
		diag_error(f->diag, b->span, "block '%s' returns nothing", b->name);
}

/* ---- recursion ---- */

typedef struct Walk {
	Front *f;
	const BlockDef *path[FRONT_MAX_CALLS];
	int n;
	int depth; /* of this recursion, kept below WALK_MAX_DEPTH: what lies deeper is refused when
		      it is evaluated */
} Walk;

enum { WALK_MAX_DEPTH = 10000 };

static void walk_stmts(Walk *w, Stmt *s);

static void walk_block(Walk *w, BlockDef *b, const Expr *call)
{
	if (b->state == 2 || w->n == FRONT_MAX_CALLS)
		return;
	if (b->state == 1) {
		const char *cycle = "";
		int i = w->n;
		while (i > 0 && w->path[i - 1] != b)
			i--;
		for (i = i > 0 ? i - 1 : 0; i < w->n; i++)
			cycle = arena_printf(w->f->arena, "%s%s -> ", cycle, w->path[i]->name);
		diag_error(w->f->diag, call->span, "block '%s' calls itself: %s%s", b->name, cycle,
			   b->name);
		diag_note(w->f->diag, b->span, "'%s' is defined here", b->name);
		diag_hint(w->f->diag, "blocks are written out where they are called; use a loop");
		w->f->recursive = true;
		return;
	}
	b->state = 1;
	w->path[w->n++] = b;
	for (Param *p = b->params; p; p = p->next) {
		Stmt s = { .kind = S_ASSIGN, .a = p->dflt };
		walk_stmts(w, &s);
	}
	walk_stmts(w, b->body);
	w->n--;
	b->state = 2;
}

static void walk_expr(Walk *w, Expr *e)
{
	if (!e || w->depth == WALK_MAX_DEPTH)
		return;
	w->depth++;
	switch (e->kind) {
	case E_LIST:
		for (Arg *a = e->list; a; a = a->next)
			walk_expr(w, a->value);
		break;
	case E_UNARY:
	case E_BINARY:
		walk_expr(w, e->op.a);
		walk_expr(w, e->op.b);
		break;
	case E_COND:
		walk_expr(w, e->cond.c);
		walk_expr(w, e->cond.a);
		walk_expr(w, e->cond.b);
		break;
	case E_CALL:
		for (Arg *a = e->call.args; a; a = a->next)
			walk_expr(w, a->value);
		if (e->call.target == T_BLOCK)
			walk_block(w, e->call.block, e);
		break;
	case E_FIELD: walk_expr(w, e->field.base); break;
	case E_INDEX:
		walk_expr(w, e->index.base);
		walk_expr(w, e->index.at);
		break;
	default: break;
	}
	w->depth--;
}

static void walk_stmts(Walk *w, Stmt *s)
{
	if (w->depth == WALK_MAX_DEPTH)
		return;
	w->depth++;
	for (; s; s = s->next) {
		walk_expr(w, s->a);
		walk_expr(w, s->b);
		for (Arg *a = s->values; a; a = a->next)
			walk_expr(w, a->value);
		walk_stmts(w, s->body);
		walk_stmts(w, s->orelse);
	}
	w->depth--;
}

/* ---- the whole ---- */

static void define_const(Front *f, const ConstDef *d)
{
	ConstVal *k = ARENA_NEW(f->arena, ConstVal), *old = name_get(&f->consts, d->name);

	if (is_predefined(d->name)) {
		diag_error(f->diag, d->span, "'%s' is predefined", d->name);
		if (!strcmp(d->name, "batch"))
			diag_hint(f->diag, "set it in the train block: train { batch = 64 }");
		return;
	}
	if (old) {
		diag_error(f->diag, d->span, "const '%s' is defined twice", d->name);
		diag_note(f->diag, old->def->span, "first here");
		return;
	}
	*k = (ConstVal){ .def = d, .expr = d->value };
	name_put(f->arena, &f->consts, d->name, k);
}

static void define_data(Front *f, const DataDef *d)
{
	const ConstVal *k = name_get(&f->consts, d->name);
	const Dataset *old = name_get(&f->datasets, d->name);

	if (k || old) {
		diag_error(f->diag, d->span, "'%s' is defined twice", d->name);
		diag_note(f->diag, k ? k->def->span : old->def->span, "first here");
	} else if (is_predefined(d->name) || !strcmp(d->name, "train")) {
		diag_error(f->diag, d->span, "'%s' is predefined", d->name);
	} else {
		Dataset *s = ARENA_NEW(f->arena, Dataset);
		s->def = d;
		name_put(f->arena, &f->datasets, d->name, s);
	}
}

static void define_blocks(Front *f, NameMap *m, BlockDef *b, bool standard)
{
	for (; b; b = b->next) {
		const BlockDef *old = name_get(m, b->name);
		b->standard = standard;
		if (!old) {
			name_put(f->arena, m, b->name, b);
			continue;
		}
		diag_error(f->diag, b->span, "block '%s' is defined twice", b->name);
		diag_note(f->diag, old->span, "first here");
	}
}

static void twice(Front *f, const AstSection *s, const char *what)
{
	const AstSection *first = s;

	for (; first && (s = s->next);) {
		diag_error(f->diag, s->span, "a second %s block", what);
		diag_note(f->diag, first->span, "the first is here");
	}
}

static void walk_all(Front *f, BlockDef *b)
{
	Walk w = { .f = f };

	for (; b; b = b->next)
		walk_block(&w, b, NULL);
}

void sema_constant(Front *f, Expr *e)
{
	Check c = { .f = f };

	check_expr(&c, e);
}

void sema_check(Front *f)
{
	NameMap scope = { 0 };
	Check constant = { .f = f };
	Check model = { .f = f, .scope = &scope };

	for (const ConstDef *c = f->user->consts; c; c = c->next)
		define_const(f, c);
	for (const DataDef *d = f->user->data; d; d = d->next)
		define_data(f, d);
	define_blocks(f, &f->std_blocks, f->std->blocks, true);
	define_blocks(f, &f->user_blocks, f->user->blocks, false);
	twice(f, f->user->models, "model");
	twice(f, f->user->trains, "train");
	for (BlockDef *b = f->std->blocks; b; b = b->next)
		check_block(f, b);
	for (ConstDef *c = f->user->consts; c; c = c->next)
		check_expr(&constant, c->value);
	for (BlockDef *b = f->user->blocks; b; b = b->next)
		check_block(f, b);
	if (f->user->models) {
		collect(f, &scope, f->user->models->body);
		check_stmts(&model, f->user->models->body);
	}
	walk_all(f, f->std->blocks);
	walk_all(f, f->user->blocks);
}

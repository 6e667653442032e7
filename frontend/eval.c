/* The evaluation of expressions and statements, which is what builds the graph.
 *
 * A body is run as it is written: a `for` repeats its body, an `if` chooses by a constant, an
 * assignment binds a name to a value (a tensor of the graph, a number, ...). What is evaluated is
 * counted, and so is how deep, so that no text can keep the compiler busy for ever or exhaust its
 * stack. */
#include "front.h"

/* ---- names ---- */

Val eval_const(Front *f, const char *name, Span at)
{
	ConstVal *k = name_get(&f->consts, name);
	Frame fr = { .constant = true, .path = "", .user = NO_SPAN, .call = NO_SPAN };

	if (!k)
		return POISON;
	if (k->state == 1) {
		if (front_error(f, NULL, at, "const '%s' depends on itself", name))
			diag_note(f->diag, k->def->span, "'%s' is defined here", name);
		return POISON;
	}
	if (k->state == 0) {
		k->state = 1;
		Override *o = override_find(f, NULL, name);
		Expr *over = o ? override_expr(f, o, k->expr->kind == E_STR) : NULL;
		if (over)
			sema_constant(f, over);
		k->value = o && !over ? POISON : eval_expr(f, &fr, over ? over : k->expr);
		k->state = 2;
	}
	return k->value;
}

static bool predefined(Front *f, const Frame *fr, const char *name, Span at, Val *out)
{
	static const InitVal zeros = { INIT_CONST, 0, 0 }, ones = { INIT_CONST, 1, 0 };

	if (!strcmp(name, "batch")) {
		*out = (Val){ .kind = V_INT, .i = f->module->batch, .mark = BM_MULTIPLE };
		if (f->batch_state != 2) {
			front_error(f, fr, at, "the batch size depends on itself");
			*out = POISON;
		}
	} else if (!strcmp(name, "pi")) {
		*out = val_float(3.14159265358979323846);
	} else if (!strcmp(name, "zeros")) {
		*out = (Val){ .kind = V_INIT, .init = &zeros };
	} else if (!strcmp(name, "ones")) {
		*out = (Val){ .kind = V_INIT, .init = &ones };
	} else {
		return false;
	}
	return true;
}

static Val eval_name(Front *f, Frame *fr, const char *name, Span at)
{
	const Local *local = name_get(&fr->locals, name);
	Dataset *d;
	Val v;

	if (local)
		return local->value;
	if (!fr->standard && name_get(&f->consts, name))
		return eval_const(f, name, at);
	if (!fr->standard && (d = name_get(&f->datasets, name)))
		return (Val){ .kind = V_DATA, .data = d };
	if (predefined(f, fr, name, at, &v))
		return v;
	front_error(f, fr, at, fr->constant ? "unknown name '%s'" : "'%s' has no value here", name);
	return POISON;
}

/* "h.{i}.attn" with the values of the names in braces. */
static Val eval_string(Front *f, Frame *fr, const Expr *e)
{
	const char *s = e->s;
	char *out;
	size_t n = 0;

	if (!strchr(s, '{') && !strchr(s, '\\') && !strchr(s, '}'))
		return (Val){ .kind = V_STR, .s = s };
	out = arena_alloc(f->arena, FRONT_MAX_STRING + 1);
	for (; *s; s++) {
		const char *piece = s, *end;
		size_t len = 1;
		if (s[0] == '\\' && (s[1] == '{' || s[1] == '}')) {
			piece = ++s;
		} else if (*s == '{') {
			end = strchr(s, '}');
			if (!end) {
				front_error(
					f, fr, e->span,
					"'{' without '}' in a string; write \\{ for the character");
				return POISON;
			}
			Val v = eval_name(f, fr,
					  arena_strndup(f->arena, s + 1, (size_t)(end - s - 1)),
					  e->span);
			if (v.kind == V_POISON)
				return POISON;
			piece = val_text(f->arena, v);
			len = strlen(piece);
			s = end;
		}
		if (n + len > FRONT_MAX_STRING) {
			front_error(f, fr, e->span, "the string grows beyond %d bytes",
				    FRONT_MAX_STRING);
			return POISON;
		}
		memcpy(out + n, piece, len);
		n += len;
	}
	return (Val){ .kind = V_STR, .s = arena_strdup(f->arena, out) };
}

/* ---- conversions ---- */

bool eval_int(Front *f, const Frame *fr, Span s, Val v, const char *what, int64_t *out)
{
	if (v.kind == V_POISON)
		return false;
	if (v.kind != V_INT) {
		front_error(f, fr, s, "%s must be a whole number, got %s", what,
			    val_describe(f->arena, v));
		return false;
	}
	if (v.mark) {
		front_error(f, fr, s, "%s cannot depend on the batch size", what);
		return false;
	}
	*out = v.i;
	return true;
}

bool eval_shape(Front *f, const Frame *fr, Span s, Val v, bool minus_one, Type *out)
{
	bool open = false;

	if (v.kind == V_POISON)
		return false;
	if (v.kind != V_LIST) {
		front_error(f, fr, s, "a shape is a list of dimensions such as [batch, 10], got %s",
			    val_describe(f->arena, v));
		return false;
	}
	if (v.n > IR_MAX_DIMS) {
		front_error(f, fr, s, "a shape has at most %d dimensions, got %d", IR_MAX_DIMS,
			    (int)v.n);
		return false;
	}
	*out = (Type){ .ndim = (uint8_t)v.n };
	int64_t elems = 1;
	for (int32_t i = 0; i < v.n; i++) {
		Val d = v.at[i];
		if (d.kind == V_POISON)
			return false;
		if (d.kind != V_INT || (d.i < 1 && !(minus_one && !open && d.i == -1))) {
			front_error(
				f, fr, s,
				"dimension %d of %s is %s, expected a whole number of at least 1",
				(int)i, val_text(f->arena, v), val_text(f->arena, d));
			return false;
		}
		if (d.i > 0 && __builtin_mul_overflow(elems, d.i, &elems)) {
			front_error(f, fr, s, "the shape %s has more than 2^63 elements",
				    val_text(f->arena, v));
			return false;
		}
		if (d.mark == BM_OTHER) {
			front_error(
				f, fr, s,
				"dimension %d of %s depends on the batch size but is not a multiple of it",
				(int)i, val_text(f->arena, v));
			return false;
		}
		open |= d.i == -1;
		out->dim[i] = d.i;
		if (d.mark == BM_MULTIPLE)
			out->batch |= (uint16_t)(1u << i);
	}
	return true;
}

/* ---- arguments ---- */

bool eval_args(Front *f, Frame *fr, const Arg *args, Actuals *out)
{
	bool good = true;
	int n = 0;

	for (const Arg *a = args; a; a = a->next)
		n++;
	*out = (Actuals){ .at = ARENA_ARRAY(f->arena, n, Actual) };
	for (const Arg *a = args; a; a = a->next) {
		Actual *x = &out->at[out->n];
		if (!a->name && out->npos < out->n) {
			front_error(f, fr, a->span,
				    "an argument without a name comes after one with a name");
			good = false;
		}
		if (a->name && actual_named(out, a->name)) {
			front_error(f, fr, a->span, "argument '%s' is given twice", a->name);
			good = false;
		}
		*x = (Actual){ .name = a->name, .span = a->span, .expr = a->value };
		x->v = eval_expr(f, fr, a->value);
		if (x->v.kind == V_TUPLE) {
			front_error(f, fr, a->value->span,
				    "one value is wanted here, the call gives %d", (int)x->v.n);
			x->v = POISON;
		}
		out->poison |= x->v.kind == V_POISON;
		out->n++;
		out->npos += !a->name;
	}
	return good;
}

Actual *actual_named(Actuals *a, const char *name)
{
	for (int i = a->npos; i < a->n; i++)
		if (a->at[i].name && !strcmp(a->at[i].name, name))
			return &a->at[i];
	return NULL;
}

Actual *actual_take(Actuals *a, int i, const char *name)
{
	Actual *x = i >= 0 && i < a->npos && !a->at[i].used ? &a->at[i]
		    : name                                  ? actual_named(a, name)
							    : NULL;

	if (x)
		x->used = true;
	return x;
}

bool actuals_done(Front *f, const Frame *fr, Actuals *a, const char *callee, const char *usage)
{
	for (int i = 0; i < a->n; i++) {
		const Actual *x = &a->at[i];
		if (x->used)
			continue;
		bool said = x->name ? front_error(f, fr, x->span, "%s has no argument '%s'", callee,
						  x->name)
				    : front_error(f, fr, x->span, "%s takes fewer arguments",
						  callee);
		if (said)
			diag_hint(f->diag, "it is called as %s", usage);
		return false;
	}
	return true;
}

/* ---- expressions ---- */

static Val eval_list(Front *f, Frame *fr, const Expr *e)
{
	Val v = { .kind = V_LIST };
	int32_t n = 0;

	for (const Arg *a = e->list; a; a = a->next)
		n++;
	v.at = ARENA_ARRAY(f->arena, n, Val);
	for (const Arg *a = e->list; a; a = a->next) {
		Val x = eval_expr(f, fr, a->value);
		if (x.kind == V_TUPLE) {
			front_error(f, fr, a->value->span,
				    "one value is wanted here, the call gives %d", (int)x.n);
			x = POISON;
		}
		v.at[v.n++] = x;
	}
	return v;
}

static Val eval_binary(Front *f, Frame *fr, const Expr *e)
{
	Operator op = e->op.op;
	Val a = eval_expr(f, fr, e->op.a), b;

	if ((op == O_AND || op == O_OR) && a.kind == V_BOOL && a.b == (op == O_OR))
		return a;
	b = eval_expr(f, fr, e->op.b);
	if (a.kind == V_POISON || b.kind == V_POISON)
		return POISON;
	if ((a.kind == V_NONE || b.kind == V_NONE) &&
	    (op == O_EQ || op == O_NE)) /* also beside a tensor */
		return (Val){ .kind = V_BOOL, .b = (a.kind == b.kind) == (op == O_EQ) };
	if (a.kind == V_TENSOR || b.kind == V_TENSOR)
		return prim_binary(f, fr, e, op, a, b);
	if (op == O_AND || op == O_OR) {
		if (a.kind == V_BOOL && b.kind == V_BOOL)
			return b;
		front_error(f, fr, e->span, "'%s' takes bools, got %s and %s",
			    ast_operator_text(op), val_describe(f->arena, a),
			    val_describe(f->arena, b));
		return POISON;
	}
	return value_binary(f, fr, e->span, op, a, b);
}

static bool eval_bool(Front *f, Frame *fr, const Expr *e, const char *what, bool *out)
{
	Val v = eval_expr(f, fr, e);

	if (v.kind == V_BOOL) {
		*out = v.b;
		return true;
	}
	if (v.kind != V_POISON &&
	    front_error(f, fr, e->span, "%s must be true or false, got %s", what,
			val_describe(f->arena, v)) &&
	    v.kind == V_TENSOR)
		diag_hint(f->diag, "select(condition, a, b) chooses by element");
	return false;
}

static Val tensor_field(Front *f, Frame *fr, const Expr *e, const Type *t)
{
	const char *name = e->field.name;

	if (!strcmp(name, "rank"))
		return val_int(t->ndim);
	if (!strcmp(name, "dtype"))
		return (Val){ .kind = V_STR, .s = dtype_name(t->dtype) };
	if (!strcmp(name, "shape")) {
		Val v = { .kind = V_LIST, .n = t->ndim, .at = ARENA_ARRAY(f->arena, t->ndim, Val) };
		for (int i = 0; i < t->ndim; i++) {
			v.at[i] = val_int(t->dim[i]);
			v.at[i].mark = t->batch >> i & 1 ? BM_MULTIPLE : BM_NONE;
		}
		return v;
	}
	if (front_error(f, fr, e->field.name_span, "a tensor has no field '%s'", name))
		diag_hint(f->diag, "it has shape, rank and dtype");
	return POISON;
}

static Val eval_field(Front *f, Frame *fr, const Expr *e)
{
	Val v = eval_expr(f, fr, e->field.base);

	if (v.kind == V_DATA)
		return dataset_field(f, fr, e, v.data);
	if (v.kind == V_TENSOR)
		return tensor_field(f, fr, e, &v.t->type);
	if (v.kind != V_POISON)
		front_error(f, fr, e->field.name_span, "%s has no field '%s'",
			    val_describe(f->arena, v), e->field.name);
	return POISON;
}

static Val eval_index(Front *f, Frame *fr, const Expr *e)
{
	Val v = eval_expr(f, fr, e->index.base), at = eval_expr(f, fr, e->index.at);
	int64_t i;

	if (v.kind == V_POISON || !eval_int(f, fr, e->index.at->span, at, "an index", &i))
		return POISON;
	if (v.kind != V_LIST) {
		if (front_error(f, fr, e->span, "only lists are indexed, got %s",
				val_describe(f->arena, v)) &&
		    v.kind == V_TENSOR)
			diag_hint(
				f->diag,
				"slice(x, axis, start, stop) takes a part of a tensor; x.shape[0] is a dimension");
		return POISON;
	}
	if (i < -v.n || i >= v.n) {
		front_error(f, fr, e->index.at->span, "index %lld is outside a list of %d",
			    (long long)i, (int)v.n);
		return POISON;
	}
	return v.at[i < 0 ? i + v.n : i];
}

static Val eval_call(Front *f, Frame *fr, const Expr *e)
{
	switch (e->call.target) {
	case T_BLOCK: return call_block(f, fr, e);
	case T_BUILTIN: return builtin_call(f, fr, e, e->call.index);
	case T_OP: return prim_call(f, fr, e, (OpCode)e->call.index);
	default: return POISON;
	}
}

static Val eval_inner(Front *f, Frame *fr, const Expr *e)
{
	bool choice;
	Val v;

	switch (e->kind) {
	case E_INT: return val_int(e->i);
	case E_FLOAT: return val_float(e->f);
	case E_BOOL: return (Val){ .kind = V_BOOL, .b = e->b };
	case E_NONE: return NONE_VAL;
	case E_STR: return eval_string(f, fr, e);
	case E_NAME: return eval_name(f, fr, e->s, e->span);
	case E_LIST: return eval_list(f, fr, e);
	case E_UNARY:
		v = eval_expr(f, fr, e->op.a);
		return v.kind == V_TENSOR ? prim_unary(f, fr, e, e->op.op, v)
					  : value_unary(f, fr, e->span, e->op.op, v);
	case E_BINARY: return eval_binary(f, fr, e);
	case E_COND:
		if (!eval_bool(f, fr, e->cond.c, "a condition", &choice))
			return POISON;
		return eval_expr(f, fr, choice ? e->cond.a : e->cond.b);
	case E_CALL: return eval_call(f, fr, e);
	case E_FIELD: return eval_field(f, fr, e);
	case E_INDEX: return eval_index(f, fr, e);
	default: return POISON;
	}
}

/* Counts one unit of work; false when evaluation is over. */
static bool work(Front *f, const Frame *fr, Span s)
{
	if (f->work++ >= FRONT_MAX_WORK)
		front_limit(f, fr, s, "the model takes more than %d evaluations to build",
			    FRONT_MAX_WORK);
	else if (f->depth >= FRONT_MAX_DEPTH)
		front_limit(f, fr, s, "the model nests more than %d evaluations", FRONT_MAX_DEPTH);
	return !f->stop;
}

Val eval_expr(Front *f, Frame *fr, const Expr *e)
{
	Val v;

	if (!work(f, fr, e->span))
		return POISON;
	f->depth++;
	v = eval_inner(f, fr, e);
	f->depth--;
	return v;
}

/* ---- statements ---- */

static void set_local(Front *f, Frame *fr, const char *name, Val v, Span s)
{
	Local *l = name_get(&fr->locals, name);

	if (!l) {
		l = ARENA_NEW(f->arena, Local);
		name_put(f->arena, &fr->locals, name, l);
	}
	*l = (Local){ v, s, NULL };
}

static void run_assign(Front *f, Frame *fr, const Stmt *s)
{
	Val v = eval_expr(f, fr, s->a);
	int32_t n = 0, i = 0;

	for (const Name *t = s->targets; t; t = t->next)
		n++;
	bool several = v.kind == V_TUPLE || (v.kind == V_LIST && n > 1);
	if (v.kind != V_POISON && (several ? v.n : 1) != n) {
		front_error(f, fr, s->span, "%d name%s for %d value%s", (int)n, n == 1 ? "" : "s",
			    several ? (int)v.n : 1, several && v.n != 1 ? "s" : "");
		v = POISON;
	}
	for (const Name *t = s->targets; t; t = t->next, i++)
		set_local(f, fr, t->s, v.kind != V_POISON && several ? v.at[i] : v, t->span);
}

/* What an undecided statement would have set stays silent. */
static void poison_targets(Front *f, Frame *fr, const Stmt *s)
{
	for (; s; s = s->next) {
		for (const Name *t = s->targets; t; t = t->next)
			set_local(f, fr, t->s, POISON, t->span);
		poison_targets(f, fr, s->body);
		poison_targets(f, fr, s->orelse);
	}
}

static bool run_for(Front *f, Frame *fr, const Stmt *s)
{
	Val a = eval_expr(f, fr, s->a), b = eval_expr(f, fr, s->b);
	const char *path = fr->path, *var = s->targets->s;
	int64_t lo, hi;
	bool returned = false;

	if (!eval_int(f, fr, s->a->span, a, "a loop's first index", &lo) ||
	    !eval_int(f, fr, s->b->span, b, "a loop's end", &hi)) {
		poison_targets(f, fr, s->body);
		return false;
	}
	for (int64_t i = lo; i < hi && !returned && work(f, fr, s->span); i++) {
		fr->path = arena_printf(f->arena, "%s%s%s%s%lld", path, *path ? "." : "",
					strcmp(var, "_") ? var : "", strcmp(var, "_") ? "." : "",
					(long long)i);
		set_local(f, fr, var, val_int(i), s->targets->span);
		returned = eval_stmts(f, fr, s->body);
	}
	fr->path = path;
	return returned;
}

static void run_loss(Front *f, Frame *fr, const Stmt *s)
{
	Val v = eval_expr(f, fr, s->a);
	bool loss = s->kind == S_LOSS;
	Span *first = loss ? &f->loss_span : &f->predict_span;

	if (first->source >= 0) {
		if (front_error(f, fr, s->span, "a second '%s'", loss ? "loss" : "predict"))
			diag_note(f->diag, *first, "the first is here");
		return;
	}
	*first = s->span;
	if (v.kind == V_POISON)
		return;
	if (v.kind != V_TENSOR) {
		front_error(f, fr, s->a->span, "'%s' takes a tensor, got %s",
			    loss ? "loss" : "predict", val_describe(f->arena, v));
	} else if (loss && (v.t->type.ndim > 0 || !dtype_is_float(v.t->type.dtype))) {
		if (front_error(f, fr, s->a->span, "the loss must be a scalar, got %s",
				val_text(f->arena, v)))
			diag_hint(f->diag, "mean(...) makes it one");
	}
	if (v.kind == V_TENSOR)
		*(loss ? &f->loss : &f->predict) = v.t;
}

static void run_require(Front *f, Frame *fr, const Stmt *s)
{
	bool holds;

	if (!eval_bool(f, fr, s->a, "a requirement", &holds) || holds)
		return;
	Val v = eval_expr(f, fr, s->b);
	if (v.kind != V_POISON)
		front_error(f, fr, front_span(f, fr, s->span), "%s%s%s",
			    fr->block ? fr->block->name : "", fr->block ? ": " : "",
			    val_text(f->arena, v));
}

static bool run_return(Front *f, Frame *fr, const Stmt *s)
{
	Expr list = { .kind = E_LIST, .span = s->span, .list = s->values };

	if (!s->values->next) {
		fr->result = eval_expr(f, fr, s->values->value);
	} else {
		fr->result = eval_list(f, fr, &list);
		fr->result.kind = V_TUPLE;
	}
	return true;
}

bool eval_stmts(Front *f, Frame *fr, const Stmt *s)
{
	bool returned = false, choice;

	f->depth++;
	while (s && !returned && work(f, fr, s->span)) {
		const Stmt *next = s->next;
		switch (s->kind) {
		case S_ASSIGN: run_assign(f, fr, s); break;
		case S_FOR: returned = run_for(f, fr, s); break;
		case S_IF:
			if (eval_bool(f, fr, s->a, "the condition of 'if'", &choice)) {
				returned = eval_stmts(f, fr, choice ? s->body : s->orelse);
			} else {
				poison_targets(f, fr, s->body);
				poison_targets(f, fr, s->orelse);
			}
			break;
		case S_LOSS:
		case S_PREDICT: run_loss(f, fr, s); break;
		case S_REQUIRE: run_require(f, fr, s); break;
		case S_RETURN: returned = run_return(f, fr, s); break;
		}
		s = next;
	}
	f->depth--;
	return returned;
}

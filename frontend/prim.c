/* Calls of ops by name, and operators on tensors.
 *
 * Any op of the table that computes something is callable: positional arguments are its operands,
 * then its attributes in the order of its row; attributes may also be named. A number among the
 * operands becomes a constant of the dtype beside it; an axis may count from the end; `stream` is
 * given by the compiler. Ops whose result type is not derived from operands, and reductions, are in
 * tensor.c. */
#include "front.h"

#include <float.h>
#include <math.h>

/* ---- which ops ---- */

static bool has_attr(const OpInfo *o, const char *name)
{
	for (int i = 0; i < 8 && o->attrs[i].name; i++)
		if (!strcmp(o->attrs[i].name, name))
			return true;
	return false;
}

/* What computes a tensor from tensors: not gradients, updates, structure, nor what the compiler
 * places itself. */
static bool callable(OpCode op)
{
	const OpInfo *o = &ir_ops[op];

	if (o->nres < 1)
		return false;
	switch (o->kind) {
	case K_LEAF: return !has_attr(o, "name");
	case K_EWISE:
	case K_SHAPE: return o->remat != RM_NEVER;
	case K_MATRIX:
	case K_KERNEL: return !(o->flags & (OPF_NOGRAD | OPF_TYPED));
	case K_REDUCE:
	case K_MACRO: return true;
	default: return false;
	}
}

OpCode prim_find(const char *name)
{
	OpCode op = op_from_name(name, strlen(name));

	return op != OP_COUNT && callable(op) ? op : OP_COUNT;
}

void prim_suggest(Suggest *s)
{
	for (int op = 0; op < OP_COUNT; op++)
		if (callable((OpCode)op))
			suggest_try(s, ir_ops[op].name);
}

const char *prim_usage(Front *f, OpCode op)
{
	static const char *const operand[] = { "x", "y", "z", "u", "v", "w" };
	const OpInfo *o = &ir_ops[op];
	const char *s = arena_printf(f->arena, "%s(%s", o->name, o->kind == K_LEAF ? "shape" : "");

	for (int i = 0; i < o->nargs && i < 6; i++)
		s = arena_printf(f->arena, "%s%s%s", s, i ? ", " : "", operand[i]);
	if (o->flags & OPF_VARARGS)
		s = arena_printf(f->arena, "%s, ...", s);
	if ((o->flags & OPF_TYPED) && o->kind != K_LEAF)
		s = arena_printf(f->arena, "%s, shape", s);
	for (int i = 0; i < 8 && o->attrs[i].name; i++)
		if (strcmp(o->attrs[i].name, "stream") != 0 && !o->attrs[i].optional)
			s = arena_printf(f->arena, "%s, %s", s, o->attrs[i].name);
	return arena_printf(f->arena, "%s%s)", s, o->kind == K_LEAF ? ", dtype" : "");
}

/* ---- nodes ---- */

/* Where the value of a name was made: the assignment, also when it came here as an argument of
 * blocks. `seen` are the names of this error that have their note, the last of them NULL. */
static void note_origin(Front *f, const Frame *fr, const Expr *e, Span error, const Local **seen)
{
	const Local *l = NULL;

	while (fr && e && e->kind == E_NAME && (l = name_get(&fr->locals, e->s)) && l->from) {
		e = l->from;
		fr = fr->up;
	}
	if (!fr || fr->standard || !l || l->from || !e || e->kind != E_NAME ||
	    l->value.kind != V_TENSOR ||
	    (l->span.begin >= error.begin && l->span.begin < error.end))
		return;
	for (; *seen; seen++)
		if (*seen == l)
			return;
	*seen = l;
	diag_note(f->diag, l->span, "'%s' is made here, %s", e->s, val_text(f->arena, l->value));
}

static void note_operands(Front *f, const Frame *fr, const Expr *e, Span error)
{
	const Local *seen[4] = { NULL };

	if (e->kind == E_BINARY) {
		note_origin(f, fr, e->op.a, error, seen);
		note_origin(f, fr, e->op.b, error, seen);
	} else if (e->kind == E_CALL) {
		int n = 0;
		for (const Arg *a = e->call.args; a && n < 3; a = a->next, n++)
			note_origin(f, fr, a->value, error, seen);
	}
}

/* ---- the batch ---- */

/* A type with its batch dimensions scaled by k; k = 0: without their marks. */
static Type scaled(Type t, int64_t k)
{
	for (int i = 0; k && i < t.ndim; i++)
		if (tensor_is_batch(&t, i) && __builtin_mul_overflow(t.dim[i], k, &t.dim[i]))
			t.dim[i] = INT64_MAX;
	if (!k)
		t.batch = 0;
	return t;
}

/* The results that an op's type rule gives when all types are scaled; false where it refuses. */
static bool rule_gives(Front *f, OpCode op, int nargs, Value *const *args, const Attr *attrs,
		       const Type *given, int64_t k, Type *res)
{
	const OpInfo *o = &ir_ops[op];
	Value *arg = ARENA_ARRAY(f->arena, nargs, Value),
	      *out = ARENA_ARRAY(f->arena, o->nres, Value);
	Attr *attr = ARENA_ARRAY(f->arena, 8, Attr);
	Node n = { .op = op, .nargs = nargs, .nres = o->nres, .attr = attr };
	char why[256];

	if (attrs)
		for (int i = 0; i < 8 && o->attrs[i].name; i++)
			attr[i] = attrs[i];
	n.arg = ARENA_ARRAY(f->arena, nargs, Value *);
	n.res = ARENA_ARRAY(f->arena, o->nres, Value *);
	for (int i = 0; i < nargs; i++) {
		arg[i] = *args[i];
		arg[i].type = scaled(arg[i].type, k);
		n.arg[i] = &arg[i];
	}
	for (int i = 0; i < o->nres; i++) {
		res[i] = out[i].type = given ? scaled(given[i], k) : (Type){ 0 };
		n.res[i] = &out[i];
	}
	return o->type(&n, res, why);
}

/* Whether a node would keep its meaning at another batch size: with every batch dimension doubled,
 * its type rule must give the doubled results. Else a fixed size meets the batch somewhere. True as
 * well for what is wrong at any size. */
static bool fits_batch(Front *f, OpCode op, int nargs, Value *const *args, const Attr *attrs,
		       const Type *given)
{
	Type res[8] = { { 0 } }, twice[8] = { { 0 } };
	bool good;

	if (!rule_gives(f, op, nargs, args, attrs, given, 1, res))
		return !rule_gives(f, op, nargs, args, attrs, given, 0, res);
	good = rule_gives(f, op, nargs, args, attrs, given, 2, twice);
	for (int i = 0; good && i < ir_ops[op].nres; i++) {
		Type want = scaled(res[i], 2);
		good = type_equal(&twice[i], &want);
	}
	return good;
}

static bool check_batch(Front *f, const Frame *fr, const Expr *e, OpCode op, int nargs,
			Value *const *args, const Attr *attrs, const Type *given)
{
	const char *types = "";
	uint16_t marks = 0;

	for (int i = 0; i < nargs; i++)
		marks |= args[i]->type.batch;
	if (!marks || nargs > IR_MAX_ARGS || fits_batch(f, op, nargs, args, attrs, given))
		return true;
	for (int i = 0; i < nargs && i < 4; i++)
		types = arena_printf(f->arena, "%s%s%s", types, i ? " with " : "",
				     type_text(f->arena, &args[i]->type, true));
	if (front_error(f, fr, e->span,
			"%s: the batch (marked ') meets a fixed size or another axis, %s",
			ir_ops[op].name, types))
		diag_hint(
			f->diag,
			"only at batch = %lld would this fit; write 'batch' where the batch is meant",
			(long long)f->module->batch);
	return false;
}

Node *prim_node(Front *f, const Frame *fr, const Expr *e, OpCode op, int nargs, Value *const *args,
		const Attr *attrs, const Type *given, int32_t flags)
{
	Span user = front_span(f, fr, e->span);
	Node *n;

	if (front_reported(f, user))
		return NULL;
	if (fr->constant) {
		front_error(f, fr, e->span, "a constant cannot hold a tensor");
		return NULL;
	}
	if (f->nodes++ >= FRONT_MAX_NODES) {
		front_limit(f, fr, e->span, "the model has more than %d operations",
			    FRONT_MAX_NODES);
		return NULL;
	}
	if (!check_batch(f, fr, e, op, nargs, args, attrs, given))
		return NULL;
	f->b.span = user;
	f->b.flags = flags | (ir_ops[op].kind == K_LEAF ? 0 : f->precision);
	f->b.failed = false;
	n = ir_node(&f->b, op, nargs, args, attrs, given);
	f->b.flags = 0;
	if (!f->b.failed)
		return n;
	note_operands(f, fr, e, user);
	front_trace(f, fr, e->span);
	return NULL;
}

Val prim_results(Front *f, const Frame *fr, const Expr *e, Node *n)
{
	uint16_t marks = 0;
	Val v;

	if (!n)
		return POISON;
	for (int i = 0; i < n->nargs; i++)
		marks |= n->arg[i]->type.batch;
	if ((ir_ops[n->op].flags & OPF_BATCH_LINEAR) && marks && !n->res[0]->type.batch)
		n = prim_node(f, fr, e, OP_batch_sum, 1, &n->res[0], NULL, NULL, 0);
	if (!n)
		return POISON;
	if (n->nres == 1)
		return val_tensor(n->res[0]);
	v = (Val){ .kind = V_TUPLE, .n = n->nres, .at = ARENA_ARRAY(f->arena, n->nres, Val) };
	for (int i = 0; i < n->nres; i++)
		v.at[i] = val_tensor(n->res[i]);
	return v;
}

/* ---- numbers as operands ---- */

bool prim_holds(DType t, double v)
{
	static const double top[DT_COUNT] = { [DT_BOOL] = 1,
					      [DT_U8] = 255,
					      [DT_U16] = 65535,
					      [DT_I32] = 2147483647,
					      [DT_I64] = 9223372036854775807.0,
					      [DT_F16] = 65504,
					      [DT_BF16] = 3.3895313892515355e38,
					      [DT_F32] = FLT_MAX,
					      [DT_F64] = DBL_MAX };
	bool is_signed = dtype_is_float(t) || t == DT_I32 || t == DT_I64;

	return fabs(v) <= top[t] && (v >= 0 || is_signed) && (dtype_is_float(t) || v == floor(v));
}

Value *prim_operand(Front *f, const Frame *fr, const Expr *e, Val v, const Type *like)
{
	DType t = like && like->dtype != DT_BOOL ? like->dtype : f->real;
	double x = v.kind == V_BOOL ? v.b : val_number(v);
	Type scalar;
	Node *n;

	if (v.mark == BM_MULTIPLE && dtype_is_float(t))
		return tensor_batch_count(f, fr, e, x / (double)f->module->batch);
	if (v.mark) {
		if (front_error(
			    f, fr, e->span,
			    "a number that depends on the batch size cannot be part of the model's arithmetic"))
			diag_hint(f->diag, "mean(x) divides by the whole batch; so does x / batch");
		return NULL;
	}
	if (v.kind == V_BOOL)
		t = DT_BOOL;
	if (!prim_holds(t, x)) {
		front_error(f, fr, e->span, "%s does not fit beside %s", val_text(f->arena, v),
			    like ? type_text(f->arena, like, false) : dtype_name(t));
		return NULL;
	}
	scalar = type_scalar(t);
	n = prim_node(f, fr, e, OP_const, 0, NULL, &(Attr){ .f = x }, &scalar, 0);
	return n ? n->res[0] : NULL;
}

/* ---- attributes ---- */

static bool attr_ints(Front *f, Frame *fr, const OpInfo *o, const AttrSpec *a, const Actual *x,
		      IntList *out)
{
	/* A window: one number serves both directions. */
	bool pair = o->kind == K_MATRIX || o->kind == K_KERNEL || o->kind == K_MACRO;
	int64_t i;

	*out = (IntList){ 0 };
	if (x->v.kind == V_INT) {
		if (!eval_int(f, fr, x->expr->span, x->v, a->name, &i))
			return false;
		*out = (IntList){ .n = pair ? 2 : 1, .v = { i, i } };
		return true;
	}
	if (x->v.kind != V_LIST || x->v.n > IR_MAX_DIMS) {
		front_error(f, fr, x->expr->span,
			    "%s: '%s' must be a list of at most %d whole numbers, got %s", o->name,
			    a->name, IR_MAX_DIMS, val_describe(f->arena, x->v));
		return false;
	}
	for (int32_t k = 0; k < x->v.n; k++, out->n++)
		if (!eval_int(f, fr, x->expr->span, x->v.at[k], a->name, &out->v[k]))
			return false;
	if (pair && out->n != 2) {
		front_error(f, fr, x->expr->span, "%s: '%s' must have 2 elements, got %d", o->name,
			    a->name, (int)out->n);
		return false;
	}
	return true;
}

static bool attr_convert(Front *f, Frame *fr, OpCode op, const AttrSpec *a, const Actual *x,
			 Attr *out)
{
	const OpInfo *o = &ir_ops[op];
	const char *want = NULL;

	switch (a->kind) {
	case A_INT: return eval_int(f, fr, x->expr->span, x->v, a->name, &out->i);
	case A_INTS: return attr_ints(f, fr, o, a, x, &out->ints);
	case A_BOOL:
		want = x->v.kind == V_BOOL ? NULL : "true or false";
		out->i = x->v.kind == V_BOOL && x->v.b;
		break;
	case A_FLOAT:
		want = val_is_number(x->v) && !x->v.mark
			       ? NULL
			       : "a number that does not depend on the batch size";
		out->f = want ? 0 : val_number(x->v);
		break;
	default:
		want = x->v.kind == V_STR ? NULL : "a string";
		out->s = want ? "" : x->v.s;
		break;
	}
	if (want)
		front_error(f, fr, x->expr->span, "%s: '%s' must be %s, got %s", o->name, a->name,
			    want, val_describe(f->arena, x->v));
	return !want;
}

bool prim_attr(Front *f, Frame *fr, const Expr *e, OpCode op, int i, int position, Actuals *args,
	       Attr *out)
{
	const AttrSpec *a = &ir_ops[op].attrs[i];
	Actual *x;

	*out = (Attr){ 0 };
	if (!strcmp(a->name, "stream")) {
		out->i = f->module->streams++;
		return true;
	}
	if (a->optional) { /* passes set it */
		out->s = "";
		return true;
	}
	x = actual_take(args, position, a->name);
	if (x && x->v.kind != V_NONE)
		return attr_convert(f, fr, op, a, x, out);
	if (a->kind == A_FLOAT)
		out->f = a->dflt;
	else if (a->kind == A_INT || a->kind == A_BOOL)
		out->i = (int64_t)a->dflt;
	else if (front_error(f, fr, e->span, "%s needs '%s'", ir_ops[op].name, a->name))
		diag_hint(f->diag, "it is called as %s", prim_usage(f, op));
	return a->kind == A_FLOAT || a->kind == A_INT || a->kind == A_BOOL;
}

/* The axes of a permutation, counted from the front. */
static bool settle_perm(Front *f, Frame *fr, const Expr *e, const Type *t, IntList *perm)
{
	for (int32_t i = 0; i < perm->n; i++)
		if (!tensor_axis(f, fr, e->span, val_int(perm->v[i]), t, &perm->v[i]))
			return false;
	return true;
}

/* Counts axes from the front; decides what an op along the batch means: false after an error. */
static bool settle_axis(Front *f, Frame *fr, const Expr *e, OpCode op, const Type *t, Attr *a,
			int32_t *flags)
{
	const OpInfo *o = &ir_ops[op];

	if (!tensor_axis(f, fr, e->span, val_int(a->i), t, &a->i))
		return false;
	if (!tensor_is_batch(t, a->i))
		return true;
	if (o->kind == K_MACRO && op != OP_split) {
		/* Softmax over samples is a statistic of the micro-batch. */
		*flags |= NF_BATCH_STATS;
		return true;
	}
	front_error(f, fr, e->span,
		    "%s: axis %lld of %s is the batch, which cannot be cut or joined", o->name,
		    (long long)a->i, type_text(f->arena, t, false));
	return false;
}

/* ---- calls ---- */

/* Takes the operands; their number, or -1 after an error. */
static int operands(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args, Value **out)
{
	const OpInfo *o = &ir_ops[op];
	const Type *like = NULL;
	int n = o->nargs;

	while ((o->flags & OPF_VARARGS) && n < args->npos && args->at[n].v.kind == V_TENSOR)
		n++;
	if (args->npos < n || n > IR_MAX_ARGS) {
		if (front_error(f, fr, e->span, "%s takes %s %d operand%s, got %d", o->name,
				n > IR_MAX_ARGS ? "at most" : "at least",
				n > IR_MAX_ARGS ? IR_MAX_ARGS : n, n == 1 ? "" : "s", args->npos))
			diag_hint(f->diag, "it is called as %s", prim_usage(f, op));
		return -1;
	}
	for (int i = 0; i < n; i++)
		if (args->at[i].v.kind == V_TENSOR && (!like || like->dtype == DT_BOOL))
			like = &args->at[i].v.t->type;
	for (int i = 0; i < n; i++) {
		Actual *x = &args->at[i];
		x->used = true;
		if (x->v.kind == V_TENSOR) {
			out[i] = x->v.t;
		} else if (val_is_number(x->v) && like && o->kind == K_EWISE) {
			if (!(out[i] = prim_operand(f, fr, x->expr, x->v, like)))
				return -1;
		} else {
			front_error(f, fr, x->expr->span, "%s: operand %d must be a tensor, got %s",
				    o->name, i + 1, val_describe(f->arena, x->v));
			return -1;
		}
	}
	return n;
}

Val prim_apply(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args)
{
	const OpInfo *o = &ir_ops[op];
	Value *in[IR_MAX_ARGS];
	Attr attr[8];
	int32_t flags = 0;
	int n;

	if (fr->constant) {
		front_error(f, fr, e->span, "a constant cannot use '%s'", o->name);
		return POISON;
	}
	if (o->kind == K_LEAF)
		return tensor_leaf(f, fr, e, op, args);
	if (o->flags & OPF_TYPED)
		return tensor_reshape(f, fr, e, op, args);
	if (o->kind == K_REDUCE)
		return tensor_reduce(f, fr, e, op, args);
	n = operands(f, fr, e, op, args, in);
	if (n < 0)
		return POISON;
	for (int i = 0; i < 8 && o->attrs[i].name; i++) {
		if (!prim_attr(f, fr, e, op, i, n + i, args, &attr[i]))
			return POISON;
		if (!strcmp(o->attrs[i].name, "axis") &&
		    !settle_axis(f, fr, e, op, &in[0]->type, &attr[i], &flags))
			return POISON;
		if (!strcmp(o->attrs[i].name, "perm") &&
		    !settle_perm(f, fr, e, &in[0]->type, &attr[i].ints))
			return POISON;
	}
	if (!actuals_done(f, fr, args, o->name, prim_usage(f, op)))
		return POISON;
	return prim_results(f, fr, e, prim_node(f, fr, e, op, n, in, attr, NULL, flags));
}

Val prim_call(Front *f, Frame *fr, const Expr *e, OpCode op)
{
	Actuals args;

	if (!eval_args(f, fr, e->call.args, &args) || args.poison)
		return POISON;
	return prim_apply(f, fr, e, op, &args);
}

/* ---- operators ---- */

Val prim_binary(Front *f, Frame *fr, const Expr *e, Operator op, Val a, Val b)
{
	static const OpCode table[] = {
		[O_ADD] = OP_add,       [O_SUB] = OP_sub, [O_MUL] = OP_mul, [O_DIV] = OP_div,
		[O_MATMUL] = OP_matmul, [O_EQ] = OP_eq,   [O_NE] = OP_ne,   [O_LT] = OP_lt,
		[O_LE] = OP_le,         [O_GT] = OP_gt,   [O_GE] = OP_ge,   [O_AND] = OP_and,
		[O_OR] = OP_or
	};
	Actual at[2] = { { .expr = e->op.a, .span = e->op.a->span, .v = a },
			 { .expr = e->op.b, .span = e->op.b->span, .v = b } };
	Actuals args = { .at = at, .n = 2, .npos = 2 };

	if (op == O_FLOORDIV || op == O_MOD) {
		front_error(f, fr, e->span, "'%s' is for constants; on tensors use '/' and floor",
			    ast_operator_text(op));
		return POISON;
	}
	return prim_apply(f, fr, e, table[op], &args);
}

Val prim_unary(Front *f, Frame *fr, const Expr *e, Operator op, Val a)
{
	Actual at = { .expr = e->op.a, .span = e->op.a->span, .v = a };
	Actuals args = { .at = &at, .n = 1, .npos = 1 };

	return prim_apply(f, fr, e, op == O_NOT ? OP_not : OP_neg, &args);
}

/* Ops whose result type the caller gives, and what needs to know the batch.
 *
 * The compiler may run a batch as several micro-batches, and evaluates at other batch sizes: it
 * re-types the graph by scaling the dimensions that carry the batch mark. So a reshape must keep
 * the batch in its place (the product of the dimensions before it), or samples of one micro-batch
 * would mix; a sum over the batch is marked as a sum over the whole batch (batch_sum); a mean over
 * it divides by the whole batch's count; and the batch size enters arithmetic only as such a count.
 *
 * concat and stack of a list are trees of the op concat, which takes IR_MAX_ARGS operands. */
#include "front.h"

bool tensor_axis(Front *f, const Frame *fr, Span s, Val v, const Type *t, int64_t *out)
{
	int64_t i;

	if (!eval_int(f, fr, s, v, "an axis", &i))
		return false;
	if (i < -(int64_t)t->ndim || i >= t->ndim) {
		front_error(f, fr, s, "axis %lld of %s, which has %d dimension%s", (long long)i,
			    type_text(f->arena, t, false), t->ndim, t->ndim == 1 ? "" : "s");
		return false;
	}
	*out = i < 0 ? i + t->ndim : i;
	return true;
}

bool tensor_is_batch(const Type *t, int64_t axis)
{
	return t->batch >> axis & 1;
}

Value *tensor_batch_count(Front *f, const Frame *fr, const Expr *e, double k)
{
	Type ones = { .dtype = f->real, .ndim = 1, .batch = 1, .dim = { f->module->batch } };
	Attr sum[2] = { { .ints = { .n = 1 } }, { .i = 0 } };
	Node *n = prim_node(f, fr, e, OP_const, 0, NULL, &(Attr){ .f = k }, &ones, 0);

	if (n)
		n = prim_node(f, fr, e, OP_sum, 1, &n->res[0], sum, NULL, 0);
	if (n)
		n = prim_node(f, fr, e, OP_batch_sum, 1, &n->res[0], NULL, NULL, 0);
	return n ? n->res[0] : NULL;
}

/* The first argument as a tensor. */
static Value *subject(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args)
{
	Actual *x = actual_take(args, 0, NULL);

	if (x && x->v.kind == V_TENSOR)
		return x->v.t;
	if (x)
		front_error(f, fr, x->expr->span, "%s: operand 1 must be a tensor, got %s",
			    ir_ops[op].name, val_describe(f->arena, x->v));
	else if (front_error(f, fr, e->span, "%s takes at least 1 operand, got 0", ir_ops[op].name))
		diag_hint(f->diag, "it is called as %s", prim_usage(f, op));
	return NULL;
}

/* The shape argument. */
static Actual *shape_argument(Front *f, Frame *fr, const Expr *e, OpCode op, int i, Actuals *args)
{
	Actual *x = actual_take(args, i, "shape");

	if (!x && front_error(f, fr, e->span, "%s needs a shape", ir_ops[op].name))
		diag_hint(f->diag, "it is called as %s", prim_usage(f, op));
	return x;
}

/* ---- reshape and broadcast ---- */

/* Replaces -1 by what is left of `elems`. */
static bool fill_open(Front *f, const Frame *fr, const Expr *e, const Type *from, Type *to)
{
	int64_t known = 1, elems = type_elems(from);
	int open = -1;

	for (int i = 0; i < to->ndim; i++) {
		if (to->dim[i] == -1)
			open = i;
		else if (__builtin_mul_overflow(known, to->dim[i], &known))
			known = INT64_MAX;
	}
	if (open < 0)
		return true;
	if (known > elems || elems % known != 0) {
		front_error(
			f, fr, e->span,
			"reshape: the %lld elements of %s are not a multiple of %lld, so -1 has no value",
			(long long)elems, type_text(f->arena, from, false), (long long)known);
		return false;
	}
	to->dim[open] = elems / known;
	return true;
}

static int64_t product_before(const Type *t, int axis)
{
	int64_t p = 1;

	for (int i = 0; i < axis; i++)
		if (__builtin_mul_overflow(p, t->dim[i], &p))
			return -1;
	return p;
}

/* A dimension written as a number that is the batch only at the size of today: told once. */
static void warn_literal(Front *f, const Frame *fr, const Expr *e, const Type *to, int axis)
{
	Span user = front_span(f, fr, e->span);
	const char *key = arena_printf(f->arena, "literal:%d:%d", user.source, user.begin);

	if (name_put(f->arena, &f->reported, key, f))
		return;
	diag_warning(f->diag, user, "reshape: %lld is taken for the batch, and fits batch = %lld only",
		     (long long)to->dim[axis], (long long)f->module->batch);
	diag_hint(f->diag, "write 'batch' where the batch is meant");
}

/* Finds the batch of `from` in `to`; the marks that `to` has as written decide between equals.
 * `open` is the axis that was -1, or -1. */
static bool carry_batch(Front *f, const Frame *fr, const Expr *e, const Type *from, Type *to,
			int open)
{
	uint16_t written = to->batch, marks = 0;

	for (int p = 0; p < from->ndim; p++) {
		int found = -1;
		if (!tensor_is_batch(from, p))
			continue;
		for (int q = 0; q < to->ndim; q++) {
			bool fits = product_before(to, q) == product_before(from, p) &&
				    to->dim[q] % f->module->batch == 0 && !(marks >> q & 1);
			if (fits && (found < 0 || (written >> q & 1)))
				found = q;
		}
		if (found < 0) {
			if (front_error(
				    f, fr, e->span,
				    "reshape: %s to %s would mix samples; the batch must stay in its place",
				    type_text(f->arena, from, false),
				    type_text(f->arena, to, false)))
				diag_hint(
					f->diag,
					"axis %d of the operand is the batch; keep it and what is before it",
					p);
			return false;
		}
		marks |= (uint16_t)(1u << found);
		if (!(written >> found & 1) && found != open && to->dim[found] > 1)
			warn_literal(f, fr, e, to, found);
	}
	if (written & ~marks) {
		front_error(f, fr, e->span, "reshape: %s has no batch where %s wants it",
			    type_text(f->arena, from, false), type_text(f->arena, to, false));
		return false;
	}
	to->batch = marks;
	return true;
}

Val tensor_reshape(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args)
{
	Value *x = subject(f, fr, e, op, args);
	Actual *s = x ? shape_argument(f, fr, e, op, 1, args) : NULL;
	Type to;
	int open = -1;

	if (!s || !actuals_done(f, fr, args, ir_ops[op].name, prim_usage(f, op)) ||
	    !eval_shape(f, fr, s->expr->span, s->v, op == OP_reshape, &to))
		return POISON;
	to.dtype = x->type.dtype;
	for (int i = 0; i < to.ndim; i++)
		if (to.dim[i] == -1)
			open = i;
	if (op == OP_reshape) {
		if (!fill_open(f, fr, e, &x->type, &to))
			return POISON;
		/* Another number of elements is for the op's own rule to say. */
		if (type_check(&to) && type_elems(&to) == type_elems(&x->type) &&
		    !carry_batch(f, fr, e, &x->type, &to, open))
			return POISON;
	} else {
		for (int i = 0; i < x->type.ndim && i < to.ndim; i++)
			if (tensor_is_batch(&x->type, x->type.ndim - 1 - i))
				to.batch |= (uint16_t)(1u << (to.ndim - 1 - i));
	}
	return prim_results(f, fr, e, prim_node(f, fr, e, op, 1, &x, NULL, &to, 0));
}

/* ---- leaves ---- */

static bool leaf_dtype(Front *f, Frame *fr, const Actual *x, DType *out)
{
	if (!x)
		return true;
	*out = x->v.kind == V_STR ? dtype_from_name(x->v.s, strlen(x->v.s)) : DT_NONE;
	if (*out == DT_NONE)
		front_error(f, fr, x->expr->span,
			    "'dtype' must be a name such as \"f32\" or \"i32\", got %s",
			    val_describe(f->arena, x->v));
	return *out != DT_NONE;
}

Val tensor_leaf(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args)
{
	const OpInfo *o = &ir_ops[op];
	Actual *s = shape_argument(f, fr, e, op, 0, args);
	DType dtype = op == OP_iota ? DT_I32 : f->real;
	Attr attr[8];
	Type t;

	if (!s || !eval_shape(f, fr, s->expr->span, s->v, false, &t) ||
	    !leaf_dtype(f, fr, actual_take(args, -1, "dtype"), &dtype))
		return POISON;
	t.dtype = dtype;
	for (int i = 0; i < 8 && o->attrs[i].name; i++) {
		if (!prim_attr(f, fr, e, op, i, 1 + i, args, &attr[i]))
			return POISON;
		if (strcmp(o->attrs[i].name, "axis") != 0)
			continue;
		if (!tensor_axis(f, fr, e->span, val_int(attr[i].i), &t, &attr[i].i))
			return POISON;
		if (tensor_is_batch(&t, attr[i].i)) {
			front_error(f, fr, e->span,
				    "%s: axis %lld is the batch, whose samples have no number",
				    o->name, (long long)attr[i].i);
			return POISON;
		}
	}
	if (op == OP_const && !prim_holds(dtype, attr[0].f)) {
		front_error(f, fr, e->span, "%s is no %s", val_text(f->arena, val_float(attr[0].f)),
			    dtype_name(dtype));
		return POISON;
	}
	if (!actuals_done(f, fr, args, o->name, prim_usage(f, op)))
		return POISON;
	return prim_results(f, fr, e, prim_node(f, fr, e, op, 0, NULL, attr, &t, 0));
}

/* ---- reductions ---- */

/* The axes of a reduction in rising order: all of them when none are given. */
static bool reduce_axes(Front *f, Frame *fr, const Actual *x, const Type *t, IntList *out)
{
	Val one, list = x && x->v.kind != V_NONE ? x->v : POISON;
	bool seen[IR_MAX_DIMS] = { false };
	int64_t axis;

	*out = (IntList){ 0 };
	if (x && x->v.kind == V_INT) {
		one = x->v;
		list = (Val){ .kind = V_LIST, .n = 1, .at = &one };
	}
	if (x && x->v.kind != V_NONE && list.kind != V_LIST) {
		front_error(f, fr, x->expr->span,
			    "'axes' must be a whole number or a list of them, got %s",
			    val_describe(f->arena, x->v));
		return false;
	}
	for (int32_t i = 0; list.kind == V_LIST && i < list.n; i++) {
		if (!tensor_axis(f, fr, x->expr->span, list.at[i], t, &axis))
			return false;
		if (seen[axis]) {
			front_error(f, fr, x->expr->span, "axis %lld is there twice",
				    (long long)axis);
			return false;
		}
		seen[axis] = true;
	}
	for (int i = 0; i < t->ndim; i++)
		if (list.kind != V_LIST || seen[i])
			out->v[out->n++] = i;
	return true;
}

/* The mean over axes with the batch among them: sum over the whole batch / count over the whole
 * batch. */
static Val whole_mean(Front *f, Frame *fr, const Expr *e, Value *x, const Attr *attr)
{
	Value *part[2];
	Node *n;

	if (attr[0].ints.n == x->type.ndim && !attr[1].i)
		return prim_results(f, fr, e,
				    prim_node(f, fr, e, OP_batch_mean, 1, &x, NULL, NULL, 0));
	n = prim_node(f, fr, e, OP_const, 0, NULL, &(Attr){ .f = 1 }, &x->type, 0);
	for (int i = 0; i < 2; i++) {
		n = n ? prim_node(f, fr, e, OP_sum, 1, i ? &x : &n->res[0], attr, NULL, 0) : NULL;
		n = n ? prim_node(f, fr, e, OP_batch_sum, 1, &n->res[0], NULL, NULL, 0) : NULL;
		if (!n)
			return POISON;
		part[1 - i] = n->res[0];
	}
	return prim_results(f, fr, e, prim_node(f, fr, e, OP_div, 2, part, NULL, NULL, 0));
}

Val tensor_reduce(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args)
{
	const OpInfo *o = &ir_ops[op];
	Value *x = subject(f, fr, e, op, args);
	Attr attr[2];
	bool over_batch = false;

	if (!x || !reduce_axes(f, fr, actual_take(args, 1, "axes"), &x->type, &attr[0].ints) ||
	    !prim_attr(f, fr, e, op, 1, 2, args, &attr[1]) ||
	    !actuals_done(f, fr, args, o->name, prim_usage(f, op)))
		return POISON;
	for (int i = 0; i < attr[0].ints.n; i++)
		over_batch |= tensor_is_batch(&x->type, attr[0].ints.v[i]);
	if (over_batch && op == OP_mean && dtype_is_float(x->type.dtype))
		return whole_mean(f, fr, e, x, attr);
	/* What is neither a sum nor a mean is a statistic of the micro-batch. */
	int32_t flags = over_batch && !(o->flags & OPF_BATCH_LINEAR) ? NF_BATCH_STATS : 0;
	return prim_results(f, fr, e, prim_node(f, fr, e, op, 1, &x, attr, NULL, flags));
}

/* ---- concat and stack of a list ---- */

/* Inserts a dimension of 1 before `axis`. */
static Val with_axis(Front *f, const Frame *fr, const Expr *e, Value *x, int64_t axis)
{
	Type t = x->type;

	for (int i = t.ndim++; i > axis; i--)
		t.dim[i] = t.dim[i - 1];
	t.dim[axis] = 1;
	uint16_t low = (uint16_t)((1u << axis) - 1);
	t.batch = (uint16_t)((t.batch & low) | (t.batch & ~low) << 1);
	return prim_results(f, fr, e, prim_node(f, fr, e, OP_reshape, 1, &x, NULL, &t, 0));
}

/* Joins of at most IR_MAX_ARGS parts, until one is left. */
static Val join_tree(Front *f, Frame *fr, const Expr *e, Actual *parts, int n, int64_t axis)
{
	while (n > 1) {
		int made = 0;
		for (int i = 0; i < n; i += IR_MAX_ARGS) {
			int here = n - i < IR_MAX_ARGS ? n - i : IR_MAX_ARGS;
			Actual at[IR_MAX_ARGS + 1];
			for (int k = 0; k < here; k++)
				at[k] = parts[i + k];
			at[here] = (Actual){ .name = "axis", .span = e->span, .expr = e, .v = val_int(axis) };
			Actuals args = { .at = at, .n = here + 1, .npos = here };
			parts[made] = parts[i];
			if (here > 1)
				parts[made].v = prim_apply(f, fr, e, OP_concat, &args);
			if (parts[made++].v.kind == V_POISON)
				return POISON;
		}
		n = made;
	}
	return parts[0].v;
}

Val tensor_join(Front *f, Frame *fr, const Expr *e, Actuals *args, bool stack)
{
	const char *name = stack ? "stack" : "concat";
	const Actual *list = args->npos == 1 && args->at[0].v.kind == V_LIST ? &args->at[0] : NULL;
	int n = list ? list->v.n : args->npos;
	Actual *parts = ARENA_ARRAY(f->arena, n + 1, Actual);
	const Actual *at = actual_take(args, list ? 1 : -1, "axis");
	int64_t axis;

	for (int i = 0; i < n; i++) {
		parts[i] = list ? (Actual){ .expr = list->expr, .span = list->span, .v = list->v.at[i] } : args->at[i];
		if (parts[i].v.kind != V_TENSOR) {
			front_error(f, fr, parts[i].span, "%s: part %d must be a tensor, got %s", name, i,
				    val_describe(f->arena, parts[i].v));
			return POISON;
		}
	}
	for (int i = 0; i < args->npos; i++)
		args->at[i].used = true;
	if (n == 0) {
		front_error(f, fr, e->span, "%s of nothing has no shape", name);
		return POISON;
	}
	Type first = parts[0].v.t->type;
	if (stack && first.ndim == IR_MAX_DIMS) {
		front_error(f, fr, e->span, "stack: %s has %d dimensions already",
			    type_text(f->arena, &first, false), IR_MAX_DIMS);
		return POISON;
	}
	if (stack) /* an axis of stack counts in the result */
		first.dim[first.ndim++] = 1;
	if (!tensor_axis(f, fr, at ? at->expr->span : e->span, at ? at->v : val_int(0), &first, &axis))
		return POISON;
	for (int i = 0; stack && i < n; i++) {
		if (parts[i].v.t->type.ndim + 1 != first.ndim) {
			front_error(f, fr, parts[i].span, "stack: shapes differ, %s and %s",
				    type_text(f->arena, &parts[0].v.t->type, false),
				    type_text(f->arena, &parts[i].v.t->type, false));
			return POISON;
		}
		parts[i].v = with_axis(f, fr, e, parts[i].v.t, axis);
		if (parts[i].v.kind == V_POISON)
			return POISON;
	}
	return join_tree(f, fr, e, parts, n, axis);
}

Val tensor_vector(Front *f, Frame *fr, const Expr *e, const double *v, int32_t n)
{
	Val parts = { .kind = V_LIST, .at = ARENA_ARRAY(f->arena, n, Val) };

	for (int32_t i = 0, same; i < n; i += same) { /* equal neighbours are one constant */
		for (same = 1; i + same < n && v[i] == v[i + same]; same++)
			;
		Type t = { .dtype = f->real, .ndim = 1, .dim = { same } };
		Node *c = prim_node(f, fr, e, OP_const, 0, NULL, &(Attr){ .f = v[i] }, &t, 0);
		if (!c)
			return POISON;
		parts.at[parts.n++] = val_tensor(c->res[0]);
	}
	if (parts.n == 1)
		return parts.at[0];
	Actual list = { .expr = e, .span = e->span, .v = parts };
	return tensor_join(f, fr, e, &(Actuals){ .at = &list, .n = 1, .npos = 1 }, false);
}

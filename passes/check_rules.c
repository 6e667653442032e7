/* Rules of the plan checker that look at one node: views, storing over an operand, replays. */
#include <assert.h>

#include "check_parts.h"

/* ---- places ---- */

Range range_make(int64_t from, int64_t bytes)
{
	return (Range){ from, from > INT64_MAX - bytes ? INT64_MAX : from + bytes };
}

Range range_of(const Value *v)
{
	int64_t elem = dtype_bytes(v->type.dtype), cols, rows;

	if (v->ld == 0 || v->type.ndim == 0)
		return range_make(v->offset, type_bytes(&v->type));
	cols = v->type.dim[v->type.ndim - 1];
	rows = type_elems(&v->type) / cols;
	return range_make(v->offset, ((rows - 1) * v->ld + cols) * elem);
}

Range range_of_var(const Var *v)
{
	return range_make(v->offset, type_bytes(&v->type));
}

Range range_of_work(const Node *n)
{
	return range_make(n->work_offset, n->work_bytes);
}

bool range_overlap(Range a, Range b)
{
	return a.from < b.to && b.from < a.to;
}

/* ---- views ---- */

/* Elements of one step along `axis`. */
static int64_t axis_stride(const Type *t, int axis)
{
	int64_t stride = 1;

	for (int i = axis + 1; i < t->ndim; i++)
		stride *= t->dim[i];
	return stride;
}

bool rule_view(const Node *n, int64_t *delta)
{
	const Type *t;
	int axis;
	bool contiguous = true;

	*delta = 0;
	if (n->nargs != 1 || n->nres != 1 || n->arg[0]->ld != 0)
		return false; /* rows that lie apart are gathered by a kernel */
	if (ir_ops[n->op].flags & OPF_VIEW)
		return true;
	if (n->op != OP_slice)
		return false;
	t = &n->arg[0]->type;
	axis = (int)ir_int(n, "axis");
	axis = axis < 0 ? axis + t->ndim : axis;
	for (int i = 0; i < axis; i++)
		contiguous = contiguous && t->dim[i] == 1;
	if (n->res[0]->ld != 0 ? axis != t->ndim - 1 : !contiguous)
		return false;
	*delta = ir_int(n, "start") * axis_stride(t, axis) * dtype_bytes(t->dtype);
	return true;
}

/* ---- storing over an operand ----
 *
 * A kernel walks its elements in passes: each reduction ends one, and what reads the reduction's value belongs to a later
 * one. A pass evaluates again what it needs from the operands, and loads an element before it stores that element; a result
 * is stored in the last pass that evaluates anything from it. So a store over an operand is sound where the operand is read
 * in step (element i for element i) and in no pass after the store's:
 *
 *     y = exp(x - max(x))              over x: read in pass 0 (max) and pass 1 (exp), stored in pass 1
 *     y = relu(x), z = x - mean(x)     not y over x: stored in pass 0, read for z in pass 1
 *     y = relu(x), z = y - mean(y)     y over x: read in pass 0 (mean) and pass 1 (z), stored in pass 1 */

/* How a body value reads the parameter whose bytes are stored over, not counting what a reduction has read. */
typedef enum Reach {
	REACH_NONE,
	REACH_STEP, /* element i reads element i alone */
	REACH_OTHER /* element i reads other elements */
} Reach;

typedef struct Reading {
	Reach reach;
	int pass; /* the first one in which the value can be known */
	int last; /* the last one that evaluates anything from it */
} Reading;

static bool same_elements(const Value *a, const Value *b)
{
	return type_elems(&a->type) == type_elems(&b->type);
}

/* Of the result of `n`, given its operands' in `of` (by id). */
static Reading read_node(const Node *n, const Value *param, const Reading *of)
{
	Reading r = { REACH_NONE, 0, 0 };
	bool in_step = ir_ops[n->op].kind == K_EWISE || (ir_ops[n->op].flags & OPF_VIEW);

	for (int i = 0; i < n->nargs; i++) {
		const Reading *x = &of[n->arg[i]->id];

		r.pass = x->pass > r.pass ? x->pass : r.pass;
		if (x->reach == REACH_NONE)
			continue;
		if (x->reach == REACH_STEP && in_step && same_elements(n->res[0], param))
			r.reach = r.reach == REACH_NONE ? REACH_STEP : r.reach;
		else
			r.reach = REACH_OTHER;
	}
	return r;
}

/* Ids of a fused body's values run from 0; this many there are. */
static int32_t body_values(const Block *b)
{
	int32_t n = 0;

	for (int32_t i = 0; i < b->nparam; i++)
		n = b->param[i]->id >= n ? b->param[i]->id + 1 : n;
	for (const Node *k = b->first; k; k = k->next)
		for (int i = 0; i < k->nres; i++)
			n = k->res[i]->id >= n ? k->res[i]->id + 1 : n;
	return n;
}

static const char *check_body(Arena *a, const Block *b, const Value *param, const Value *stored)
{
	Reading *of = ARENA_ARRAY(a, body_values(b), Reading);
	bool out_of_step = false;

	of[param->id].reach = REACH_STEP;
	for (const Node *k = b->first; k; k = k->next) {
		Reading r = read_node(k, param, of);

		if (ir_ops[k->op].kind == K_REDUCE)
			r = (Reading){ REACH_NONE, r.pass + 1, 0 };
		for (int i = 0; i < k->nres; i++)
			of[k->res[i]->id] = r;
	}
	for (const Node *k = b->last; k; k = k->prev) {
		bool reduces = ir_ops[k->op].kind == K_REDUCE;
		bool sink = k->op == OP_yield || k->op == OP_assign || reduces;

		for (int i = 0; i < k->nargs; i++) {
			Reading *x = &of[k->arg[i]->id];
			int seen = reduces ? of[k->res[0]->id].pass - 1 : k->nres ? of[k->res[0]->id].last : x->pass;

			x->last = x->pass > x->last ? x->pass : x->last;
			x->last = seen > x->last ? seen : x->last;
			out_of_step |= sink && x->reach == REACH_OTHER && (k->op != OP_assign || i == 1);
		}
	}
	if (out_of_step)
		return "the kernel reads it out of step (broadcast or another order)";
	if (of[param->id].last > of[stored->id].last)
		return "the kernel reads it again in a later pass";
	return NULL;
}

const char *rule_inplace(const Node *n, int i, const Value *stored)
{
	const Value *arg = n->arg[i];
	const char *why;
	Arena *a;

	if (arg->ld != 0 || stored->ld != 0)
		return "its rows are strided";
	if (ir_ops[n->op].flags & OPF_ACC && i == ir_ops[n->op].nargs) /* the sum that the result goes on with */
		return same_elements(arg, stored) && arg->type.dtype == stored->type.dtype ? NULL : "it is no such sum";
	if (!same_elements(arg, stored))
		return "the numbers of elements differ";
	if (dtype_bytes(arg->type.dtype) != dtype_bytes(stored->type.dtype))
		return "the sizes of an element differ";
	if (n->op != OP_fused)
		return ir_ops[n->op].kind == K_EWISE ? NULL : "the op does not work element by element";
	a = arena_new();
	why = check_body(a, n->body, n->body->param[i], stored);
	arena_free(a);
	return why;
}

/* ---- replays ---- */

/* The value that `v` repeats, through replays of replays and copies of copies. */
static const Value *origin(const Value *v)
{
	while (v->def && (v->def->replay_of || v->def->op == OP_fetch))
		v = v->def->replay_of ? v->def->replay_of->res[v->index] : v->def->arg[0]->def->arg[0];
	return v;
}

static bool attr_equal(AttrKind kind, const Attr *x, const Attr *y)
{
	switch (kind) {
	case A_FLOAT:
		return memcmp(&x->f, &y->f, sizeof x->f) == 0;
	case A_STR:
		return (x->s == NULL) == (y->s == NULL) && (x->s == NULL || strcmp(x->s, y->s) == 0);
	case A_INTS:
		return x->ints.n == y->ints.n &&
		       memcmp(x->ints.v, y->ints.v, (size_t)x->ints.n * sizeof x->ints.v[0]) == 0;
	default:
		return x->i == y->i;
	}
}

/* Op, attributes, counts and result types. */
static const char *node_differs(Arena *a, const Node *x, const Node *y)
{
	const OpInfo *op = &ir_ops[x->op];

	if (x->op != y->op)
		return arena_printf(a, "expected op '%s', found '%s'", ir_ops[y->op].name, op->name);
	if (x->nargs != y->nargs || x->nres != y->nres)
		return arena_printf(a, "expected %d operands and %d results, found %d and %d", (int)y->nargs,
				    (int)y->nres, (int)x->nargs, (int)x->nres);
	for (int i = 0; i < 8 && op->attrs[i].kind != A_END; i++)
		if (!attr_equal(op->attrs[i].kind, &x->attr[i], &y->attr[i]))
			return arena_printf(a, "attribute '%s' of '%s' differs", op->attrs[i].name, op->name);
	for (int i = 0; i < x->nres; i++)
		if (!type_equal(&x->res[i]->type, &y->res[i]->type))
			return arena_printf(a, "expected type %s of result %d, found %s",
					    type_text(a, &y->res[i]->type, true), i,
					    type_text(a, &x->res[i]->type, true));
	return NULL;
}

/* Bodies of kernels: the same ops on the same values, which have equal ids. */
static const char *body_differs(Arena *a, const Block *x, const Block *y)
{
	const Node *p = x->first, *q = y->first;

	if (x->nparam != y->nparam)
		return "the kernels have different parameters";
	for (; p && q; p = p->next, q = q->next) {
		const char *why = node_differs(a, p, q);

		if (why)
			return why;
		for (int i = 0; i < p->nargs; i++)
			if (p->arg[i]->id != q->arg[i]->id)
				return arena_printf(a, "operand %d of '%s' in the kernel differs", i,
						    ir_ops[p->op].name);
	}
	return p || q ? "the kernels have different lengths" : NULL;
}

const char *rule_replay(Arena *a, const Node *n)
{
	const Node *of = n->replay_of;
	const char *why;
	bool assigns = false;

	for (const Node *k = of->op == OP_fused ? of->body->first : NULL; k; k = k->next)
		assigns = assigns || k->op == OP_assign;
	if (assigns)
		return "a kernel that assigns a variable cannot run again";

	if (ir_ops[n->op].kind == K_EFFECT || n->op == OP_var || n->op == OP_loop || n->op == OP_yield)
		return arena_printf(a, "'%s' has a state or an effect and cannot run again", ir_ops[n->op].name);
	if (of->parent != n->parent)
		return "it repeats a node of another block, which sees another micro-batch";
	if (of->pos >= n->pos)
		return arena_printf(a, "it comes before what it repeats, node %d", (int)of->pos);
	why = node_differs(a, n, of);
	if (why)
		return why;
	for (int i = 0; i < n->nargs; i++)
		if (origin(n->arg[i]) != origin(of->arg[i]))
			return arena_printf(a, "operand %d is not what node %d read", i, (int)of->pos);
	return n->body ? body_differs(a, n->body, of->body) : NULL;
}

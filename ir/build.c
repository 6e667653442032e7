/* The builder: nodes are made here and nowhere else, with their types derived by the op's rule. */
#include "internal.h"

#include <assert.h>

Builder ir_builder(Module *m, Block *b)
{
	return (Builder){ .m = m, .block = b, .span = NO_SPAN };
}

/* ---- nodes ---- */

static void link_node(Builder *b, Node *n)
{
	Block *block = b->block;
	n->parent = block;
	n->next = b->before;
	n->prev = b->before ? b->before->prev : block->last;
	assert(!b->before || b->before->parent == block);
	*(n->prev ? &n->prev->next : &block->first) = n;
	*(n->next ? &n->next->prev : &block->last) = n;
}

static Value *new_value(Module *m, Type t)
{
	Value *v = ARENA_NEW(m->arena, Value);
	v->type = t;
	v->offset = -1;
	v->id = -1;
	return v;
}

Node *ir_raw_node(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, int nres, const Type *types)
{
	Arena *a = b->m->arena;
	Node *n = ARENA_NEW(a, Node);
	n->op = op;
	n->nargs = nargs;
	n->nres = nres;
	n->arg = ARENA_ARRAY(a, nargs, Value *);
	for (int i = 0; i < nargs; i++)
		n->arg[i] = args[i];
	n->res = ARENA_ARRAY(a, nres, Value *);
	for (int i = 0; i < nres; i++) {
		n->res[i] = new_value(b->m, types ? types[i] : type_scalar(DT_NONE));
		n->res[i]->def = n;
		n->res[i]->index = i;
	}
	int nattrs = op_attr_count(op);
	n->attr = ARENA_ARRAY(a, nattrs, Attr);
	for (int i = 0; i < nattrs; i++)
		n->attr[i] = attrs[i];
	if (op == OP_loop || op == OP_fused) {
		n->body = ARENA_NEW(a, Block);
		n->body->owner = n;
	}
	n->span = b->span;
	n->flags = b->flags;
	n->work_offset = -1;
	link_node(b, n);
	return n;
}

/* The same with the caller's attributes (NULL: defaults), copied. */
static Node *new_node(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, int nres,
		      const Type *types)
{
	Attr own[8];
	int nattrs = op_attr_count(op);
	op_attr_defaults(op, own);
	for (int i = 0; attrs && i < nattrs; i++) {
		own[i] = attrs[i];
		if (ir_ops[op].attrs[i].kind == A_STR)
			own[i].s = arena_strdup(b->m->arena, attrs[i].s ? attrs[i].s : "");
	}
	return ir_raw_node(b, op, nargs, args, own, nres, types);
}

Node *ir_node(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, const Type *given)
{
	const OpInfo *o = &ir_ops[op];
	assert(op != OP_loop && op != OP_fused && op != OP_opaque && "ir_region makes these");
	assert(nargs == o->nargs || (nargs > o->nargs && op_most_args(op) > o->nargs));
	assert((given != NULL) == ((o->flags & OPF_TYPED) != 0));
	Node *n = new_node(b, op, nargs, args, attrs, o->nres, NULL);
	for (int i = 0; i < nargs; i++)
		if (args[i]->type.dtype == DT_NONE) {
			b->failed = true;
			return n;
		}
	Type res[8] = { { 0 } };
	for (int i = 0; given && i < o->nres; i++)
		res[i] = n->res[i]->type = given[i];
	char why[256] = "";
	bool many = nargs > IR_MAX_ARGS && op != OP_yield, good = !many && o->type(n, res, why);
	if (many)
		snprintf(why, sizeof why, "%d operands, at most %d are possible", nargs, IR_MAX_ARGS);
	for (int i = 0; good && i < o->nres; i++)
		if (!type_check(&res[i])) {
			snprintf(why, sizeof why, "the result %s is empty or too large",
				 type_text(b->m->arena, &res[i], false));
			good = false;
		}
	for (int i = 0; i < o->nres; i++)
		n->res[i]->type = good ? res[i] : type_scalar(DT_NONE);
	if (!good) {
		diag_error(b->m->diag, b->span, "%s: %s", o->name, why);
		b->failed = true;
	}
	return n;
}

Value *ir_value(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, const Type *given)
{
	return ir_node(b, op, nargs, args, attrs, given)->res[0];
}

bool ir_is_attention_grad(OpCode op)
{
	return op == OP_attention_grad || op == OP_attention_grad_qkv;
}

bool ir_is_product(OpCode op)
{
	return op == OP_matmul || op == OP_matmul_bias || op == OP_matmul_gelu_grad || op == OP_matmul_sums;
}

int ir_part_operand(const Node *n)
{
	return ir_int(n, "scaled") != 0;
}

int64_t ir_parts(const Type *t)
{
	int64_t n = type_elems(t);
	return n / IR_PART + (n % IR_PART != 0);
}

Value *ir_acc(const Node *n)
{
	const OpInfo *o = &ir_ops[n->op];
	return o->flags & OPF_ACC && n->nargs > o->nargs ? n->arg[o->nargs] : NULL;
}

void ir_set_acc(Module *m, Node *n, Value *acc)
{
	assert(ir_ops[n->op].flags & OPF_ACC && !ir_acc(n) && type_equal(&acc->type, &n->res[0]->type));
	Value **wider = ARENA_ARRAY(m->arena, n->nargs + 1, Value *);
	memcpy(wider, n->arg, (size_t)n->nargs * sizeof *wider);
	wider[n->nargs++] = acc;
	n->arg = wider;
}

Node *ir_region(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, int nres, const Type *res)
{
	assert(ir_ops[op].kind == K_REGION || ir_ops[op].kind == K_OPAQUE);
	return new_node(b, op, nargs, args, attrs, nres, res);
}

Value *ir_block_param(Module *m, Block *b, Type t)
{
	int32_t n = b->nparam;
	if ((n & (n - 1)) == 0) { /* full at powers of two */
		Value **wider = ARENA_ARRAY(m->arena, n ? 2 * n : 1, Value *);
		if (n)
			memcpy(wider, b->param, (size_t)n * sizeof *wider);
		b->param = wider;
	}
	Value *v = new_value(m, t);
	v->block = b;
	v->index = n;
	b->param[b->nparam++] = v;
	return v;
}

/* ---- short forms ---- */

Value *ir_const(Builder *b, Type t, double v)
{
	return ir_value(b, OP_const, 0, NULL, &(Attr){ .f = v }, &t);
}

Value *ir_scalar(Builder *b, DType t, double v)
{
	return ir_const(b, type_scalar(t), v);
}

static bool is_var_node(const Node *n, const char *name)
{
	return n->op == OP_var && strcmp(n->attr[0].s, name) == 0;
}

/* `var` nodes stand at the front of the function's own block, so that one serves every reader. */
Value *ir_var(Builder *b, Var *v)
{
	Block *top = b->block;
	while (top->owner)
		top = top->owner->parent;
	Node *end = top->first;
	for (; end && end->op == OP_var; end = end->next)
		if (is_var_node(end, v->name))
			return end->res[0];
	for (Node *n = end; n; n = n->next)
		if (is_var_node(n, v->name)) {
			ir_move_before(n, end);
			return n->res[0];
		}
	Builder front = *b;
	front.block = top;
	front.before = end;
	front.flags = 0;
	return ir_value(&front, OP_var, 0, NULL, &(Attr){ .s = v->name }, &v->type);
}

Value *ir_input(Builder *b, const char *name, Type t)
{
	return ir_value(b, OP_input, 0, NULL, &(Attr){ .s = name }, &t);
}

Value *ir_unary(Builder *b, OpCode op, Value *x)
{
	return ir_value(b, op, 1, &x, NULL, NULL);
}

Value *ir_binary(Builder *b, OpCode op, Value *x, Value *y)
{
	return ir_value(b, op, 2, (Value *[]){ x, y }, NULL, NULL);
}

Value *ir_binary_c(Builder *b, OpCode op, Value *x, double c)
{
	if (x->type.dtype == DT_NONE)
		return x;
	return ir_binary(b, op, x, ir_scalar(b, x->type.dtype, c));
}

Value *ir_select(Builder *b, Value *cond, Value *x, Value *y)
{
	return ir_value(b, OP_select, 3, (Value *[]){ cond, x, y }, NULL, NULL);
}

Value *ir_cast(Builder *b, Value *x, DType t)
{
	if (x->type.dtype == t || x->type.dtype == DT_NONE)
		return x;
	return ir_value(b, OP_cast, 1, &x, &(Attr){ .s = dtype_name(t) }, NULL);
}

Value *ir_reduce(Builder *b, OpCode op, Value *x, const IntList *axes, bool keep)
{
	return ir_value(b, op, 1, &x, (Attr[]){ { .ints = *axes }, { .i = keep } }, NULL);
}

Value *ir_reduce_last(Builder *b, OpCode op, Value *x, bool keep)
{
	IntList axes = { .n = 1, .v = { x->type.ndim - 1 } };
	return ir_reduce(b, op, x, &axes, keep);
}

Value *ir_reduce_all(Builder *b, OpCode op, Value *x)
{
	IntList axes = { .n = x->type.ndim };
	for (int i = 0; i < x->type.ndim; i++)
		axes.v[i] = i;
	return ir_reduce(b, op, x, &axes, false);
}

Value *ir_reshape(Builder *b, Value *x, Type shape)
{
	shape.dtype = x->type.dtype;
	if (type_equal(&shape, &x->type))
		return x;
	return ir_value(b, OP_reshape, 1, &x, NULL, &shape);
}

Value *ir_transpose(Builder *b, Value *x, const IntList *perm)
{
	return ir_value(b, OP_transpose, 1, &x, &(Attr){ .ints = *perm }, NULL);
}

Value *ir_transpose2(Builder *b, Value *x)
{
	int n = x->type.ndim;
	IntList perm = { .n = n };
	for (int i = 0; i < n; i++)
		perm.v[i] = i;
	if (n >= 2) {
		perm.v[n - 2] = n - 1;
		perm.v[n - 1] = n - 2;
	}
	return ir_transpose(b, x, &perm);
}

Value *ir_broadcast(Builder *b, Value *x, Type shape)
{
	shape.dtype = x->type.dtype;
	if (type_equal(&shape, &x->type))
		return x;
	return ir_value(b, OP_broadcast, 1, &x, NULL, &shape);
}

Value *ir_slice(Builder *b, Value *x, int axis, int64_t start, int64_t stop)
{
	return ir_value(b, OP_slice, 1, &x, (Attr[]){ { .i = axis }, { .i = start }, { .i = stop } }, NULL);
}

Value *ir_pad(Builder *b, Value *x, int axis, int64_t before, int64_t after)
{
	return ir_value(b, OP_pad, 1, &x, (Attr[]){ { .i = axis }, { .i = before }, { .i = after } }, NULL);
}

Value *ir_concat(Builder *b, int n, Value *const *xs, int axis)
{
	return ir_value(b, OP_concat, n, xs, &(Attr){ .i = axis }, NULL);
}

Value *ir_matmul(Builder *b, Value *x, Value *y, bool ta, bool tb)
{
	return ir_value(b, OP_matmul, 2, (Value *[]){ x, y }, (Attr[]){ { .i = ta }, { .i = tb }, { .s = "" } },
			NULL);
}

void ir_assign(Builder *b, Value *var, Value *v)
{
	ir_node(b, OP_assign, 2, (Value *[]){ var, v }, NULL, NULL);
}

void ir_output(Builder *b, const char *name, Value *v)
{
	ir_node(b, OP_output, 1, &v, &(Attr){ .s = name }, NULL);
}

IntList ir_list(int n, const int64_t *v)
{
	assert(n >= 0 && n <= IR_MAX_DIMS);
	IntList list = { .n = n };
	for (int i = 0; i < n; i++)
		list.v[i] = v[i];
	return list;
}

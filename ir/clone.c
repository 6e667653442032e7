/* Copies of nodes, blocks and functions, under another batch size where asked.
 *
 * `map`, indexed by Value.id of the source function, says what stands for a source value in the copy; a value
 * without an entry stands for itself (a replay within one function reads the very values of the original). The body
 * of a fused kernel has numbers of its own and so gets a map of its own. A dimension that is marked as scaling with
 * the batch becomes dim * to / from, and so do a loop's `batch` and `base`; every other dimension and every attribute stays.
 * Parts of a batch axis, and what makes a batch axis of them, hold for one batch only and are not re-typed. */
#include "internal.h"

typedef struct Cloner {
	Module *m;
	Arena *scratch;
	Value **map;
	int64_t from, to;
	bool good;
} Cloner;

static int64_t scaled(Cloner *c, int64_t samples)
{
	int64_t product;
	if (c->from == c->to)
		return samples;
	if (__builtin_mul_overflow(samples, c->to, &product) || product % c->from != 0) {
		c->good = false;
		return samples;
	}
	return product / c->from;
}

static Type rescale(Cloner *c, Type t)
{
	for (int i = 0; i < t.ndim && c->good; i++)
		if (t.batch >> i & 1)
			t.dim[i] = scaled(c, t.dim[i]);
	if (c->from != c->to)
		c->good &= type_check(&t);
	return t;
}

static void rescale_loop(Cloner *c, Node *loop)
{
	Attr *batch = ir_attr(loop, "batch"), *base = ir_attr(loop, "base");
	batch->i = scaled(c, batch->i);
	base->i = scaled(c, base->i);
}

/* A slice along the batch, or a reshape that gives the mark back (op_shape.c). */
static bool holds_for_one_batch(const Node *n)
{
	if (n->op == OP_slice)
		return n->res[0]->type.batch != n->arg[0]->type.batch;
	return n->op == OP_reshape && n->res[0]->type.batch && !n->arg[0]->type.batch;
}

static Value *look_up(const Cloner *c, Value *v)
{
	return v->id >= 0 && c->map[v->id] ? c->map[v->id] : v;
}

static void copy_value(Cloner *c, const Value *from, Value *to)
{
	to->name = from->name;
	to->ld = from->ld;
	c->map[from->id] = to;
}

static Node *clone_one(Cloner *c, const Node *n, Builder *to);

static void clone_body(Cloner *c, const Block *from, Block *into)
{
	Builder to = ir_builder(c->m, into);
	for (int i = 0; i < from->nparam; i++)
		copy_value(c, from->param[i], ir_block_param(c->m, into, rescale(c, from->param[i]->type)));
	for (const Node *n = from->first; n; n = n->next)
		clone_one(c, n, &to);
}

/* The body of a kernel reads its parameters alone, and is numbered from 0. */
static void clone_fused_body(Cloner *c, Block *from, Block *into)
{
	Value **outer = c->map;
	c->map = ARENA_ARRAY(c->scratch, ir_number_fused(from), Value *);
	clone_body(c, from, into);
	c->map = outer;
	arena_reset(c->scratch);
}

static Node *clone_one(Cloner *c, const Node *n, Builder *to)
{
	Builder b = *to;
	b.span = n->span;
	b.flags = n->flags | to->flags;
	c->good &= c->from == c->to || !holds_for_one_batch(n);
	Node *copy = ir_raw_node(&b, n->op, n->nargs, n->arg, n->attr, n->nres, NULL);
	for (int i = 0; i < n->nargs; i++)
		copy->arg[i] = look_up(c, n->arg[i]);
	for (int i = 0; i < n->nres; i++) {
		copy->res[i]->type = rescale(c, n->res[i]->type);
		copy_value(c, n->res[i], copy->res[i]);
	}
	copy->replay_of = n->replay_of;
	if (n->replay_of && n->replay_of->nres) {
		Node *mapped = look_up(c, n->replay_of->res[0])->def;
		if (mapped)
			copy->replay_of = mapped;
	}
	copy->work_bytes = n->work_bytes;
	if (n->op == OP_loop)
		rescale_loop(c, copy);
	if (n->op == OP_fused)
		clone_fused_body(c, n->body, copy->body);
	else if (n->body)
		clone_body(c, n->body, copy->body);
	return copy;
}

bool ir_clone_block(Builder *to, const Block *from, Value **map, int64_t from_batch, int64_t to_batch)
{
	Cloner c = { to->m, arena_new(), map, from_batch, to_batch, true };
	const Node *last = from->last; /* the copies may go into the same block */
	for (const Node *n = from->first; n; n = n == last ? NULL : n->next)
		clone_one(&c, n, to);
	arena_free(c.scratch);
	return c.good;
}

Node *ir_clone_node(Builder *to, const Node *n, Value **map, int64_t from_batch, int64_t to_batch)
{
	Cloner c = { to->m, arena_new(), map, from_batch, to_batch, true };
	Node *copy = clone_one(&c, n, to);
	arena_free(c.scratch);
	return c.good ? copy : NULL;
}

Func *ir_clone_func(Module *m, const Func *f, const char *name, int64_t batch)
{
	int32_t values;
	ir_number(f, &values);
	Arena *scratch = arena_new();
	Func *copy = ir_func(m, name);
	copy->batch = batch;
	Builder to = ir_builder(m, copy->body);
	bool good = ir_clone_block(&to, f->body, ARENA_ARRAY(scratch, values, Value *), f->batch, batch);
	arena_free(scratch);
	if (!good)
		ir_remove_func(m, name);
	return good ? copy : NULL;
}

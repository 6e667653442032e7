/* Walking and changing graphs: numbers, links, uses, dead code, views. */
#include "ir.h"

/* ---- numbers ---- */

static void number_values(Value *const *v, int32_t n, int32_t *next)
{
	for (int32_t i = 0; i < n; i++)
		v[i]->id = (*next)++;
}

static void number_block(Block *b, int32_t *pos, int32_t *next)
{
	number_values(b->param, b->nparam, next);
	for (Node *n = b->first; n; n = n->next) {
		n->pos = (*pos)++;
		number_values(n->res, n->nres, next);
		if (n->op == OP_fused)
			ir_number_fused(n->body);
		else if (n->body)
			number_block(n->body, pos, next);
	}
}

int32_t ir_number_fused(Block *b)
{
	int32_t pos = 0, values = 0;
	number_block(b, &pos, &values);
	return values;
}

int32_t ir_number(const Func *f, int32_t *nvalues)
{
	int32_t pos = 0, values = 0;
	number_block(f->body, &pos, &values);
	if (nvalues)
		*nvalues = values;
	return pos;
}

/* ---- links ---- */

void ir_unlink(Node *n)
{
	*(n->prev ? &n->prev->next : &n->parent->first) = n->next;
	*(n->next ? &n->next->prev : &n->parent->last) = n->prev;
	n->prev = n->next = NULL;
	n->parent = NULL;
}

void ir_move_before(Node *n, Node *before)
{
	if (n == before || n->next == before)
		return;
	ir_unlink(n);
	n->parent = before->parent;
	n->prev = before->prev;
	n->next = before;
	*(n->prev ? &n->prev->next : &n->parent->first) = n;
	before->prev = n;
}

void ir_replace_uses(Block *b, Value *from, Value *to)
{
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			if (n->arg[i] == from)
				n->arg[i] = to;
		if (n->op == OP_loop)
			ir_replace_uses(n->body, from, to);
	}
}

Value *ir_stands_for(Value *v, Value *const *now, int32_t values)
{
	while (v->id >= 0 && v->id < values && now[v->id])
		v = now[v->id];
	return v;
}

void ir_replace_all(Block *b, Value *const *now, int32_t values)
{
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			n->arg[i] = ir_stands_for(n->arg[i], now, values);
		if (n->op == OP_loop)
			ir_replace_all(n->body, now, values);
	}
}

/* ---- dead code ---- */

static bool has_effect(const Node *n)
{
	if (n->nres == 0 && n->op != OP_fused && n->op != OP_loop)
		return true;
	if (n->body)
		for (const Node *x = n->body->first; x; x = x->next)
			if (x->op != OP_yield && has_effect(x))
				return true;
	return false;
}

static bool is_used(const Node *n, const bool *used)
{
	for (int i = 0; i < n->nres; i++)
		if (used[n->res[i]->id])
			return true;
	return false;
}

static int sweep_fused(Block *b, Arena *scratch);

/* Backwards over the block: what is used below is marked before what makes it is reached. */
static int sweep(Block *b, bool *used, Arena *scratch)
{
	int removed = 0;
	for (Node *n = b->last, *prev; n; n = prev) {
		prev = n->prev;
		if (!has_effect(n) && !is_used(n, used)) {
			ir_unlink(n);
			removed++;
			continue;
		}
		if (n->op == OP_fused)
			removed += sweep_fused(n->body, scratch);
		else if (n->body)
			removed += sweep(n->body, used, scratch);
		for (int i = 0; i < n->nargs; i++)
			used[n->arg[i]->id] = true;
	}
	return removed;
}

static int sweep_fused(Block *b, Arena *scratch)
{
	int32_t values = ir_number_fused(b);
	return sweep(b, ARENA_ARRAY(scratch, values, bool), scratch);
}

/* The first replay of a removed node stands for it: it is no replay any more, and those behind it in its block are
 * replays of it. The removed node's own link says who that is. */
static void replace_removed(Block *b)
{
	for (Node *n = b->first; n; n = n->next) {
		bool moved = false;
		while (n->replay_of && !n->replay_of->parent) {
			Node *gone = n->replay_of;
			n->replay_of = gone->replay_of;
			if (!gone->replay_of)
				gone->replay_of = n;
			moved = true;
		}
		if (moved && n->replay_of && n->replay_of->parent != b)
			n->replay_of = NULL;
		if (n->op == OP_loop)
			replace_removed(n->body);
	}
}

int ir_dce(Func *f)
{
	int32_t values;
	ir_number(f, &values);
	Arena *scratch = arena_new();
	int removed = sweep(f->body, ARENA_ARRAY(scratch, values, bool), scratch);
	arena_free(scratch);
	if (removed)
		replace_removed(f->body);
	ir_number(f, NULL);
	return removed;
}

/* ---- views ---- */

static bool is_contiguous_slice(const Node *n)
{
	const Type *x = &n->arg[0]->type;
	int64_t axis = n->attr[0].i;
	for (int64_t i = 0; i < axis; i++)
		if (x->dim[i] != 1)
			return false;
	return true;
}

bool ir_is_view(const Node *n)
{
	if (n->op == OP_slice)
		return n->arg[0]->ld == 0 && (n->res[0]->ld != 0 || is_contiguous_slice(n));
	return (ir_ops[n->op].flags & OPF_VIEW) && n->arg[0]->ld == 0;
}

bool ir_in_host(const Value *v)
{
	return v->def && v->def->op == OP_send;
}

/* Byte offset of a view into its operand. */
static int64_t view_offset(const Node *n)
{
	if (n->op != OP_slice)
		return 0;
	const Type *x = &n->arg[0]->type;
	int64_t inner = dtype_bytes(x->dtype);
	for (int64_t i = n->attr[0].i + 1; i < x->ndim; i++)
		inner *= x->dim[i];
	return n->attr[1].i * inner; /* of a strided slice the axis is the last, and inner one element */
}

Value *ir_view_root(Value *v, int64_t *bytes)
{
	int64_t offset = 0;
	while (v->def && ir_is_view(v->def)) {
		offset += view_offset(v->def);
		v = v->def->arg[0];
	}
	if (bytes)
		*bytes = offset;
	return v;
}

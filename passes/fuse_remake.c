/* A kernel's result that its readers make for themselves.
 *
 * Reductions over different axes are different kernels, and what both reduce would be made by one and stored for the other:
 *
 *     %4, %5 = fused %x, %mean, %dy {                  %4 = fused %x, %mean, %dy { .. }
 *       %b0 = sub %a0, %a1                             %6 = fused %x, %mean, .. {
 *       %b1 = mul %a2, %b0      sum over rows     =>     %b0 = sub %a0, %a1
 *       yield %b1', %b0 }                                ...
 *     %6 = fused %5, .. { ... sum along rows }
 *
 * Here %5 is as large as %x, which the second kernel could read instead of it: so the write is saved.
 *
 * A result is made again where every reader is a kernel of the same block and kind (forward, backward: what is kept from one to the
 * other is the planner's choice) that uses it element by element; where it is a few simple operations on operands of its kernel; and where
 * those operands, as far as a reader does not read them anyway, are not larger than the result, so that no reader reads more, and no
 * more bytes live on than before. Variables are no such operands: an update may come in between, or be the reader's.
 *
 * Rounding: the same operations on the same operands give the same bits. */
#include "fuse_remake.h"

#include "cost.h"
#include "fuse_parts.h"

enum { MOST_REMADE = 4 };

typedef struct Remake {
	Arena *a;
	Module *m;
	VEC(Node *) *readers; /* by Value.id; a node once for each operand */
	bool *kept_out;	      /* by Value.id: read by something that is no kernel of its block */
} Remake;

static Node *yield_of(const Node *fused) { return fused->body->last; }

/* What makes a body's value from parameters. */
typedef struct Recipe {
	const Node *op[MOST_REMADE]; /* without leaves; operands before what reads them */
	Value *again[MOST_REMADE];   /* their values in the reader at hand */
	int n;			     /* more than MOST_REMADE: it is not to be made again */
	bool *used;		     /* parameters */
} Recipe;

static int place_of(const Recipe *c, const Node *n)
{
	for (int i = 0; i < c->n && i < MOST_REMADE; i++)
		if (c->op[i] == n)
			return i;
	return -1;
}

static void find_recipe(Recipe *c, const Value *v)
{
	const Node *d = v->def;
	if (!d) {
		c->used[v->index] = true;
		return;
	}
	const OpInfo *op = &ir_ops[d->op];
	bool leaf = fuse_is_leaf(d);
	if (place_of(c, d) >= 0 || (leaf && !(op->flags & OPF_RANDOM)))
		return;
	if (leaf || op->remat != RM_CHEAP || !cost_is_simple(d->op)) {
		c->n = MOST_REMADE + 1;
		return;
	}
	for (int i = 0; i < d->nargs && c->n <= MOST_REMADE; i++)
		find_recipe(c, d->arg[i]);
	if (c->n < MOST_REMADE)
		c->op[c->n] = d;
	c->n += c->n <= MOST_REMADE;
}

static int find_arg(const Node *n, const Value *v)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i] == v)
			return i;
	return -1;
}

/* A value that is made in this block, by something that is not changed in place later on. */
static bool may_read_later(const Node *maker, const Value *v)
{
	const Value *root = ir_view_root((Value *)(uintptr_t)v, NULL);
	return root->def && root->def->parent == maker->parent && root->def->op != OP_var;
}

static int body_ops(const Node *fused)
{
	int count = 0;
	for (const Node *n = fused->body->first; n; n = n->next)
		count++;
	return count;
}

/* Whether a reader uses operand `arg` at the element that it computes. */
static bool used_in_place(const Node *reader, int arg)
{
	const Value *p = reader->body->param[arg];
	for (const Node *n = reader->body->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++) {
			OpKind kind = ir_ops[n->op].kind;
			if (n->arg[i] != p)
				continue;
			if (kind != K_REDUCE && !(kind == K_EWISE && type_same_shape(&n->res[0]->type, &p->type) &&
						  n->res[0]->type.ndim == p->type.ndim))
				return false;
		}
	return true;
}

/* Whether an element of v belongs to each of the kernel's domain: what is made of such elements fits its loop nest. */
static bool spans_domain(const Node *reader, const Value *v)
{
	const Type *domain = NULL;
	for (const Node *n = reader->body->first; n; n = n->next) {
		const Type *t = ir_ops[n->op].kind == K_REDUCE || n->op == OP_assign ? &n->arg[0]->type : n->nres ? &n->res[0]->type : NULL;
		if (t && (!domain || type_elems(t) > type_elems(domain)))
			domain = t;
	}
	return domain && domain->ndim == v->type.ndim && type_same_shape(domain, &v->type);
}

/* Whether `reader` can make result `v` of `maker` from the operands that are `used`. */
static bool can_remake(const Node *maker, const Value *v, const Node *reader, const bool *used, int ops)
{
	int64_t more = 0, bytes = type_bytes(&v->type);
	int args = reader->nargs - 1;
	if (reader->op != OP_fused || reader->parent != maker->parent || reader->flags != maker->flags ||
	    body_ops(reader) + ops + maker->nargs > FUSE_MAX_OPS || !spans_domain(reader, v) || !used_in_place(reader, find_arg(reader, v)))
		return false;
	for (int i = 0; i < maker->nargs; i++) {
		if (!used[i])
			continue;
		if (!may_read_later(maker, maker->arg[i]))
			return false;
		if (find_arg(reader, maker->arg[i]) >= 0)
			continue;
		more += type_bytes(&maker->arg[i]->type);
		args++;
	}
	return args <= FUSE_MAX_OPERANDS && more <= bytes + bytes / 8;
}

static Value *param_for(Remake *r, Node *reader, Value *v)
{
	int at = find_arg(reader, v);
	if (at >= 0)
		return reader->body->param[at];
	Value **args = ARENA_ARRAY(r->m->arena, reader->nargs + 1, Value *);
	memcpy(args, reader->arg, (size_t)reader->nargs * sizeof *args);
	args[reader->nargs++] = v;
	reader->arg = args;
	return ir_block_param(r->m, reader->body, v->type);
}

static Value *made_again(Remake *r, Builder *b, Recipe *c, const Node *maker, Node *reader, const Value *v)
{
	const Node *d = v->def;
	Value *arg[3] = { NULL };
	int at = d ? place_of(c, d) : -1;
	if (!d)
		return param_for(r, reader, maker->arg[v->index]);
	if (at >= 0 && c->again[at])
		return c->again[at];
	for (int i = 0; i < d->nargs; i++)
		arg[i] = made_again(r, b, c, maker, reader, d->arg[i]);
	b->span = d->span;
	b->flags = d->flags;
	Value *again = ir_value(b, d->op, d->nargs, arg, d->attr, ir_ops[d->op].flags & OPF_TYPED ? &v->type : NULL);
	if (at >= 0)
		c->again[at] = again;
	return again;
}

/* The reader makes it at the start of its body; the operand itself is dropped. */
static void remake_in(Remake *r, Recipe *c, const Node *maker, int res, Node *reader)
{
	int at = find_arg(reader, maker->res[res]);
	Value *param = reader->body->param[at];
	Builder b = ir_builder(r->m, reader->body);
	b.before = reader->body->first;
	memset(c->again, 0, sizeof c->again);
	Value *again = made_again(r, &b, c, maker, reader, yield_of(maker)->arg[res]);
	ir_replace_uses(reader->body, param, again);
	bool *keep = ARENA_ARRAY(r->a, reader->nres + 1, bool);
	for (int i = 0; i < reader->nres; i++)
		keep[i] = true;
	fuse_trim(r->m, reader, keep);
}

static bool try_result(Remake *r, Node *maker, int res)
{
	const Value *v = maker->res[res], *made = yield_of(maker)->arg[res];
	Recipe c = { .used = ARENA_ARRAY(r->a, maker->nargs + 1, bool) };
	find_recipe(&c, made);
	size_t n = r->readers[v->id].len, reading = 0;
	if (c.n > MOST_REMADE || c.n == 0 || r->kept_out[v->id])
		return false;
	for (size_t i = 0; i < n; i++) {
		const Node *reader = r->readers[v->id].at[i];
		if (find_arg(reader, v) < 0) /* no longer */
			continue;
		reading++;
		if (!can_remake(maker, v, reader, c.used, c.n))
			return false;
	}
	for (size_t i = 0; i < n; i++) {
		Node *reader = r->readers[v->id].at[i];
		if (find_arg(reader, v) < 0)
			continue;
		remake_in(r, &c, maker, res, reader);
		for (int k = 0; k < maker->nargs; k++)
			if (c.used[k])
				vec_push(r->a, &r->readers[maker->arg[k]->id], reader);
	}
	return reading > 0;
}

static void note_readers(Remake *r, const Block *b)
{
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++) {
			const Value *v = n->arg[i];
			if (n->op == OP_fused && v->def && v->def->parent == b && find_arg(n, v) == i)
				vec_push(r->a, &r->readers[v->id], n);
			else if (n->op != OP_fused || find_arg(n, v) == i)
				r->kept_out[v->id] = true;
		}
		if (n->op == OP_loop)
			note_readers(r, n->body);
	}
}

/* From the last kernel to the first, so that what a kernel makes again has its own operands made again there. */
static void remake_block(Remake *r, Block *b)
{
	for (Node *n = b->last; n; n = n->prev) {
		if (n->op == OP_loop)
			remake_block(r, n->body);
		if (n->op != OP_fused || n->nres < 2)
			continue;
		bool *keep = ARENA_ARRAY(r->a, n->nres, bool), changed = false;
		for (int i = 0; i < n->nres; i++) {
			keep[i] = !try_result(r, n, i);
			changed = changed || !keep[i];
		}
		if (changed)
			fuse_trim(r->m, n, keep);
	}
}

void fuse_remake(Func *f)
{
	Remake r = { .a = arena_new(), .m = f->module };
	int32_t values;
	ir_number(f, &values);
	r.readers = arena_alloc(r.a, (size_t)(values + 1) * sizeof *r.readers);
	memset(r.readers, 0, (size_t)(values + 1) * sizeof *r.readers);
	r.kept_out = ARENA_ARRAY(r.a, values + 1, bool);
	note_readers(&r, f->body);
	remake_block(&r, f->body);
	arena_free(r.a);
}

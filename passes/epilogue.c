/* epilogue: what a library can do while it has a product's elements, or its operands, at hand (Capabilities.epilogue).
 *
 *     %3 = matmul %x, %w                      =>   %4 = matmul_bias %x, %w, %b          where only such additions read %3
 *     %4 = add %3, %b                              ... {relu = true}                where only relu reads %4
 *
 *     %3 = matmul %dy, %w {tb}                =>   %5 = matmul_gelu_grad %dy, %w, %z    where only %5 reads %3 and %4
 *     %4 = gelu_grad %z
 *     %5 = mul %3, %4
 *
 *     %3 = matmul %x, %d {ta, out = "f32"}    =>   %3, %6 = matmul_sums %x, %d {ta}     %d, %5: %dy in another shape or type
 *     %6 = sum %5 {axes = all but the last}
 *
 * Each saves a pass over memory. Elements are rounded once, behind the epilogue, where the separate ops would round each by itself: so a step in 16
 * bits is not that of a back end without, bit for bit. The sum is that of the product's operand, in the type of the product. The rewrite
 * depends on the graph alone, and is the same in every plan of a micro-batch and a number of chunks.
 *
 * gelu in its other form (gelu_erf) and what does not fit stay as they are. gelu itself does too: fused with its product it would have to be
 * replayed with it.
 *
 * Invariant: the order of nodes stays topological; a new node stands where the product stood. */
#include "epilogue.h"

#include <assert.h>

typedef struct Epilogue {
	const Capabilities *caps;
	Arena *arena;
	Module *m;
	int32_t values;
	VEC(Node *) *readers; /* by Value.id; a node once for each operand */
	Value **now;	      /* by Value.id: what stands for it from now on */
	bool changed;
} Epilogue;

static void note_readers(Epilogue *e, const Block *b)
{
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			vec_push(e->arena, &e->readers[n->arg[i]->id], n);
		if (n->op == OP_loop)
			note_readers(e, n->body);
	}
}

static bool is_old(const Epilogue *e, const Value *v) { return v->id >= 0 && v->id < e->values; }

/* Whether a value is there before node n of the same block runs; a cast of a variable is brought forward for that. */
static bool is_before(Value *v, Node *n)
{
	Node *d = v->def;
	if (!d || d->parent != n->parent || d->pos < n->pos)
		return true;
	if (d->op != OP_cast || !d->arg[0]->def || d->arg[0]->def->op != OP_var ||
	    (d->arg[0]->def->parent == n->parent && d->arg[0]->def->pos > n->pos))
		return false;
	ir_move_before(d, n);
	d->pos = n->pos; /* between the nodes around it */
	return true;
}

/* A node before n, of what stands for the operands by now. */
static Node *put(Epilogue *e, Node *n, OpCode op, int nargs, Value *const *old, const Attr *attr)
{
	Builder b = ir_builder(e->m, n->parent);
	Value *args[3];
	assert(nargs <= 3);
	for (int i = 0; i < nargs; i++)
		args[i] = ir_stands_for(old[i], e->now, e->values);
	b.before = n;
	b.span = n->span;
	b.flags = n->flags;
	Node *made = ir_node(&b, op, nargs, args, attr, NULL);
	for (int i = 0; i < made->nres; i++)
		made->res[i]->id = -1; /* it has no number */
	made->pos = n->pos;
	e->changed = true;
	return made;
}

static bool is_plain(const Node *n)
{
	return n->op == OP_matmul && !ir_acc(n);
}

/* ---- bias ---- */

/* The bias that every reader of the product adds; NULL. */
static Value *added_bias(const Epilogue *e, const Value *v)
{
	Value *bias = NULL;
	for (size_t i = 0; i < e->readers[v->id].len; i++) {
		const Node *r = e->readers[v->id].at[i];
		if (r->op != OP_add || r->parent != v->def->parent || !type_equal(&r->res[0]->type, &v->type))
			return NULL;
		Value *other = r->arg[0] == v ? r->arg[1] : r->arg[0];
		if (other == v || (bias && other != bias))
			return NULL;
		bias = other;
	}
	return bias;
}

/* Whether each reader of each reader of the product is a relu: of rounded numbers or rounded behind it, it is the same. */
static bool feeds_relu(const Epilogue *e, const Value *v)
{
	for (size_t i = 0; i < e->readers[v->id].len; i++) {
		const Value *sum = e->readers[v->id].at[i]->res[0];
		for (size_t k = 0; k < e->readers[sum->id].len; k++)
			if (e->readers[sum->id].at[k]->op != OP_relu || e->readers[sum->id].at[k]->parent != v->def->parent)
				return false;
		if (e->readers[sum->id].len == 0)
			return false;
	}
	return true;
}

static bool add_bias(Epilogue *e, Node *n)
{
	const Value *v = n->res[0];
	Value *bias = added_bias(e, v);
	const char *out = ir_str(n, "out");
	if (!bias || (out && *out) || bias->type.ndim != 1 || bias->type.dtype != v->type.dtype || bias->type.batch ||
	    bias->type.dim[0] != v->type.dim[v->type.ndim - 1] || !e->caps->epilogue(n, OP_matmul_bias) || !is_before(bias, n))
		return false;
	bool relu = feeds_relu(e, v);
	Value *args[] = { n->arg[0], n->arg[1], bias };
	const Attr attr[] = { { .i = ir_int(n, "ta") }, { .i = ir_int(n, "tb") }, { .i = relu } };
	Node *made = put(e, n, OP_matmul_bias, 3, args, attr);
	for (size_t i = 0; i < e->readers[v->id].len; i++) {
		const Value *sum = e->readers[v->id].at[i]->res[0];
		e->now[sum->id] = made->res[0];
		for (size_t k = 0; relu && k < e->readers[sum->id].len; k++)
			e->now[e->readers[sum->id].at[k]->res[0]->id] = made->res[0];
	}
	return true;
}

/* ---- derivative of gelu ---- */

static bool multiply_gelu_grad(Epilogue *e, Node *n)
{
	Value *v = n->res[0];
	Node *mul = e->readers[v->id].len == 1 ? e->readers[v->id].at[0] : NULL;
	if (!mul || mul->op != OP_mul || mul->parent != n->parent || !type_equal(&mul->res[0]->type, &v->type))
		return false;
	const Value *other = mul->arg[0] == v ? mul->arg[1] : mul->arg[0];
	const Node *grad = other->def;
	if (!grad || grad->op != OP_gelu_grad || e->readers[other->id].len != 1 || !type_equal(&grad->arg[0]->type, &v->type))
		return false;
	Value *z = grad->arg[0];
	if (!e->caps->epilogue(n, OP_matmul_gelu_grad) || !is_before(ir_stands_for(z, e->now, e->values), n))
		return false;
	Value *args[] = { n->arg[0], n->arg[1], z };
	e->now[mul->res[0]->id] = put(e, n, OP_matmul_gelu_grad, 3, args, n->attr)->res[0];
	return true;
}

/* ---- sums of an operand ---- */

/* The value behind reshapes and casts between floating-point types. */
static Value *source(Value *v)
{
	while (v->def && (v->def->op == OP_reshape || (v->def->op == OP_cast && dtype_is_float(v->def->arg[0]->type.dtype))))
		v = v->def->arg[0];
	return v;
}

static bool sums_rows(const Node *n)
{
	const Type *t = &n->arg[0]->type;
	const IntList *axes = n->op == OP_sum ? ir_ints(n, "axes") : NULL;
	if (!axes || ir_int(n, "keep") || t->ndim < 2 || axes->n != t->ndim - 1)
		return false;
	for (int i = 0; i < axes->n; i++)
		if (axes->v[i] == t->ndim - 1 || axes->v[i] == -1)
			return false;
	return true;
}

/* The readers of a sum all stand behind node n. */
static bool wanted_behind(const Epilogue *e, const Node *sum, const Node *n)
{
	const Value *s = sum->res[0];
	for (size_t i = 0; i < e->readers[s->id].len; i++) {
		const Node *r = e->readers[s->id].at[i];
		if (r->parent != n->parent || r->pos <= n->pos)
			return false;
	}
	return e->readers[s->id].len > 0;
}

/* A sum over the rows of v, or of v in another shape or type, whose result is `like`; NULL. */
static Node *find_sum(const Epilogue *e, const Value *v, const Type *like, const Node *n, int depth)
{
	for (size_t i = 0; is_old(e, v) && i < e->readers[v->id].len; i++) {
		Node *r = e->readers[v->id].at[i];
		if (r->parent != n->parent)
			continue;
		if (sums_rows(r) && type_equal(&r->res[0]->type, like) && !e->now[r->res[0]->id] && wanted_behind(e, r, n))
			return r;
		bool same = r->op == OP_reshape || (r->op == OP_cast && dtype_is_float(r->res[0]->type.dtype));
		Node *found = same && depth < 3 ? find_sum(e, r->res[0], like, n, depth + 1) : NULL;
		if (found)
			return found;
	}
	return NULL;
}

static bool sum_operand(Epilogue *e, Node *n)
{
	const Type *c = &n->res[0]->type;
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;
	if (n->op != OP_matmul || c->ndim != 2 || c->dtype != DT_F32 || c->batch || n->arg[0]->type.ndim != 2 ||
	    n->arg[1]->type.ndim != 2 || !e->caps->epilogue(n, OP_matmul_sums))
		return false;
	for (int of = 1; of >= 0; of--) {
		if (of ? tb : !ta) /* the inner axis must be the rows */
			continue;
		Type like = type_scalar(DT_F32);
		like.ndim = 1;
		like.dim[0] = c->dim[of];
		Node *sum = find_sum(e, source(n->arg[of]), &like, n, 0);
		if (!sum)
			continue;
		const Attr attr[] = { { .i = ta }, { .i = tb }, { .i = of } };
		Node *made = put(e, n, OP_matmul_sums, n->nargs, n->arg, attr);
		e->now[n->res[0]->id] = made->res[0];
		e->now[sum->res[0]->id] = made->res[1];
		return true;
	}
	return false;
}

/* ---- the pass ---- */

static void rewrite(Epilogue *e, Block *b)
{
	for (Node *n = b->first, *next; n; n = next) {
		next = n->next;
		if (n->op == OP_loop)
			rewrite(e, n->body);
		if (n->op != OP_matmul)
			continue;
		if (!(is_plain(n) && (add_bias(e, n) || multiply_gelu_grad(e, n))))
			sum_operand(e, n);
	}
}

bool epilogue_func(Func *f, const Capabilities *caps)
{
	Epilogue e = { .caps = caps, .arena = arena_new(), .m = f->module };

	if (caps->epilogue) {
		ir_number(f, &e.values);
		e.readers = arena_array(e.arena, (size_t)e.values + 1, sizeof *e.readers);
		e.now = ARENA_ARRAY(e.arena, e.values + 1, Value *);
		note_readers(&e, f->body);
		rewrite(&e, f->body);
	}
	if (e.changed)
		ir_replace_all(f->body, e.now, e.values);
	arena_free(e.arena);
	if (e.changed)
		ir_dce(f);
	return e.changed;
}

PassResult pass_epilogue(Module *m, PassCtx *cx)
{
	return pass_each(m, cx, epilogue_func);
}

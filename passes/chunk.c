/* chunk: heads in parts, so that a wide value never exists as a whole.
 *
 * A linear layer with a loss behind it makes the widest values of a model: logits [tokens, vocabulary], and as much again for their
 * gradient. Each row of them is computed from one row of x, and all that leaves is narrow or a sum over rows. So the rows are cut,
 * and forward and backward pass of one part follow each other before the next part begins:
 *
 *     z    = matmul x, w {tb}                 for each part i of the rows of x:
 *     m    = reduce_max z                         z    = matmul x[i], w {tb}
 *     e    = exp (sub z, m)                       m[i] = reduce_max z
 *     s    = sum e                                ...
 *     ...                              =>         dz   = ...
 *     dz   = mul (div g, s), e ...                dw   = dw + matmul dz, x[i] {ta}
 *     dx   = matmul dz, w                         dx[i] = matmul dz, w
 *     dw   = matmul dz, x {ta}                dx = concat dx[0], dx[1], ...
 *
 * Which nodes are cut is found by chunk_find.c, from the graph alone; what they leave that is narrow (m, s, dx) is put together again, so that
 * whatever reads it, the sum of the loss among it, computes the same as before. Sums over the rows (dw) are added up part by part, in order,
 * in f32 where they have 16 bits. x[i] is a view. All rows' axes become one, so that one sample's rows can be cut as well.
 *
 * Another number of parts changes only the order of those sums. Parts have a fixed size, so they carry no batch marks: the
 * pass runs once the micro-batch is settled, and before `fuse`, for which the parts are ordinary nodes.
 *
 * Invariant: nodes outside of the head keep their order, but for those that the head reads and that stood behind its first reader. */
#include "chunk_parts.h"

#include <assert.h>

/* The same for all parts: an operand of the head with the rows as its first axis. */
typedef struct Flat {
	Value *v;
	Reads how;
	int lead;
} Flat;

typedef struct Cut {
	Head *h;
	Builder b;
	ChunkNodes nodes;      /* of the head, in order */
	int64_t chunks;
	int64_t from, to;      /* the rows of the part at hand */
	Flat *flat;            /* by value */
	Value **now;           /* by value: the part at hand of what the head makes ... */
	Flat *slice;           /* ... or reads */
	Value ***parts;        /* by value: of rows that leave the head, each part */
	Value **sum;           /* by value: of sums, what has been added up */
} Cut;

/* ---- types ---- */

/* The rows' axes of t as one axis of `rows`; marks only where the batch is still whole. */
static Type flat_type(const Type *t, int lead, int64_t rows, bool marks)
{
	Type flat = { .dtype = t->dtype, .ndim = (uint8_t)(t->ndim - lead + 1) };

	flat.dim[0] = rows;
	flat.batch = marks && t->batch ? 1 : 0;
	for (int i = lead; i < t->ndim; i++)
		flat.dim[i - lead + 1] = t->dim[i];
	return flat;
}

/* t without its leading axes. */
static Type inner_type(const Type *t, int lead)
{
	Type inner = { .dtype = t->dtype, .ndim = (uint8_t)(t->ndim - lead) };

	for (int i = lead; i < t->ndim; i++)
		inner.dim[i - lead] = t->dim[i];
	return inner;
}

/* The rows' axes of `res`, then the inner ones of t. */
static Type spread_type(const Type *t, int lead, const Type *res, int res_lead)
{
	Type wide = *res;

	wide.dtype = t->dtype;
	wide.ndim = (uint8_t)(res_lead + t->ndim - lead);
	for (int i = lead; i < t->ndim; i++)
		wide.dim[res_lead + i - lead] = t->dim[i];
	return wide;
}

/* ---- operands ---- */

static Value *flatten(Cut *c, const Node *n, const Roles *r, int i)
{
	Value *v = n->arg[i];
	Type wide;

	switch (r->arg[i].how) {
	case READS_WHOLE:
		if (v->type.batch) /* of one sample: the slice takes the mark off */
			return ir_slice(&c->b, ir_reshape(&c->b, v, flat_type(&v->type, r->arg[i].lead, 1, true)), 0, 0, 1);
		return ir_reshape(&c->b, v, inner_type(&v->type, r->arg[i].lead));
	case READS_ROWS:
		return ir_reshape(&c->b, v, flat_type(&v->type, r->arg[i].lead, c->h->rows, true));
	default:
		wide = spread_type(&v->type, r->arg[i].lead, &n->res[0]->type, r->lead);
		return ir_reshape(&c->b, ir_broadcast(&c->b, v, wide), flat_type(&wide, r->lead, c->h->rows, true));
	}
}

/* A constant or an index, of as many rows as the part has. */
static Value *leaf(Cut *c, const Value *v, int lead)
{
	Type t = flat_type(&v->type, lead, c->to - c->from, false);
	Attr a = v->def->attr[0];

	if (v->def->op == OP_iota)
		a.i += 1 - lead;
	return ir_value(&c->b, v->def->op, 0, NULL, &a, &t);
}

/* What stands for operand i of n in the part at hand. Views get the flags of what they are views of. */
static Value *operand(Cut *c, const Node *n, const Roles *r, int i)
{
	Value *v = n->arg[i];
	Flat *flat = &c->flat[v->id], *slice = &c->slice[v->id];
	Reads how = r->arg[i].how;
	int lead = r->arg[i].lead;
	int32_t flags = c->b.flags;

	if (chunk_is_inside(c->h, v))
		return c->now[v->id];
	if (how == READS_ROWS && chunk_is_leaf(v, lead))
		return leaf(c, v, lead);
	if (how == READS_WHOLE && lead == 0)
		return v;
	c->b.flags = v->def ? v->def->flags & NF_BACKWARD : 0;
	if (!flat->v || flat->how != how || flat->lead != lead) {
		*flat = (Flat){ flatten(c, n, r, i), how, lead };
		slice->v = NULL;
	}
	if (how != READS_WHOLE && !slice->v)
		slice->v = ir_slice(&c->b, flat->v, 0, c->from, c->to);
	c->b.flags = flags;
	return how == READS_WHOLE ? flat->v : slice->v;
}

/* ---- nodes ---- */

/* Axes of a reduction once the rows' axes are one, which a sum over rows reduces too. */
static IntList reduced_axes(const Node *n, const Roles *r)
{
	const IntList *axes = ir_ints(n, "axes");
	int nd = n->arg[0]->type.ndim, lead = r->arg[0].lead;
	IntList out = { .n = 0 };

	if (r->role == ROLE_SUM)
		out.v[out.n++] = 0;
	for (int d = lead; d < nd; d++) {
		bool on = axes->n == 0;

		for (int i = 0; i < axes->n; i++)
			on = on || axes->v[i] == d || axes->v[i] + nd == d;
		if (on)
			out.v[out.n++] = d - lead + 1;
	}
	return out;
}

/* Attributes of n for one axis of rows instead of several. */
static void flat_attrs(const Node *n, const Roles *r, Attr *a)
{
	int nd = n->res[0]->type.ndim, lead = r->arg[0].lead;

	for (int i = 0; i < op_attr_count(n->op); i++)
		a[i] = n->attr[i];
	if (ir_ops[n->op].kind == K_REDUCE) {
		a[0].ints = reduced_axes(n, r);
		a[1].i = a[1].i && r->role == ROLE_ROWS;
	} else if (n->op == OP_transpose) {
		a[0].ints = (IntList){ .n = nd - lead + 1 };
		for (int i = lead; i < nd; i++)
			a[0].ints.v[i - lead + 1] = n->attr[0].ints.v[i] - lead + 1;
	} else if (ir_ops[n->op].kind == K_SHAPE && !(ir_ops[n->op].flags & OPF_TYPED)) {
		a[0].i = (a[0].i < 0 ? a[0].i + nd : a[0].i) - lead + 1;
	}
}

/* n for the part at hand. A mean over rows is a sum here and is divided in the end. */
static Value *compute(Cut *c, const Node *n, const Roles *r)
{
	Value *arg[IR_MAX_ARGS], *v;
	Attr attr[8] = { 0 };
	Type t = flat_type(&n->res[0]->type, r->lead, c->to - c->from, false);
	OpCode op = n->op == OP_mean && r->role == ROLE_SUM ? OP_sum : n->op;

	c->b.span = n->span;
	c->b.flags = n->flags;
	for (int i = 0; i < n->nargs; i++)
		arg[i] = operand(c, n, r, i);
	if (n->op == OP_reshape)
		return ir_reshape(&c->b, arg[0], t);
	flat_attrs(n, r, attr);
	v = ir_value(&c->b, op, n->nargs, arg, attr, ir_ops[op].flags & OPF_TYPED ? &t : NULL);
	assert(r->role == ROLE_SUM || (type_same_shape(&v->type, &t) && v->type.dtype == t.dtype));
	return v;
}

static void add_up(Cut *c, const Node *n, Value *part)
{
	Value **sum = &c->sum[n->res[0]->id];
	DType d = part->type.dtype;

	if (d == DT_F16 || d == DT_BF16)
		part = ir_cast(&c->b, part, DT_F32);
	*sum = *sum ? ir_binary(&c->b, n->op == OP_reduce_max ? OP_max : OP_add, *sum, part) : part;
}

/* Readers of v inside of the head, and outside. */
static void count_readers(const Head *h, const Value *v, int *inside, int *outside)
{
	*inside = *outside = 0;
	for (int32_t u = h->first_user[v->id]; u < h->first_user[v->id + 1]; u++)
		++*(h->role[h->users[u]] == ROLE_NONE ? outside : inside);
}

static void compute_node(Cut *c, const Node *n, int64_t k)
{
	const Value *v = n->res[0];
	int inside, outside;
	Value *part;
	Roles r;

	chunk_roles(c->h, n, &r);
	part = compute(c, n, &r);
	if (r.role == ROLE_SUM) {
		add_up(c, n, part);
		return;
	}
	c->now[v->id] = part;
	count_readers(c->h, v, &inside, &outside);
	if (!outside)
		return;
	if (!c->parts[v->id])
		c->parts[v->id] = ARENA_ARRAY(c->h->a, c->chunks, Value *);
	c->parts[v->id][k] = part;
}

/* Gradients that leave come last: a sum that is due should not wait for what goes on from them (dx, the rest of the backward pass). */
static bool comes_last(const Head *h, const Node *n)
{
	int inside, outside;

	count_readers(h, n->res[0], &inside, &outside);
	return h->role[n->pos] == ROLE_ROWS && inside == 0 && n->flags & NF_BACKWARD;
}

static void compute_part(Cut *c, int64_t k)
{
	c->from = c->h->rows * k / c->chunks;
	c->to = c->h->rows * (k + 1) / c->chunks;
	memset(c->slice, 0, (size_t)c->h->nvalues * sizeof *c->slice);
	for (int last = 0; last <= 1; last++)
		for (size_t i = 0; i < c->nodes.len; i++)
			if (comes_last(c->h, c->nodes.at[i]) == last)
				compute_node(c, c->nodes.at[i], k);
}

/* ---- what leaves the head ---- */

/* Readers that only want a 16-bit sum in f32 get it as it was added up. */
static void widen_readers(Cut *c, const Value *v, Value *sum)
{
	const Head *h = c->h;

	for (int32_t u = h->first_user[v->id]; u < h->first_user[v->id + 1]; u++) {
		Node *n = h->node[h->users[u]];

		if (n->op == OP_cast && n->res[0]->type.dtype == sum->type.dtype && n->parent)
			ir_replace_uses(h->block, n->res[0], sum);
	}
}

static Value *total(Cut *c, const Node *n)
{
	Value *v = n->res[0], *sum = c->sum[v->id];
	double count = (double)type_elems(&n->arg[0]->type) / (double)type_elems(&v->type);

	if (n->op == OP_mean)
		sum = ir_binary_c(&c->b, OP_div, sum, count);
	sum = ir_reshape(&c->b, sum, v->type);
	if (sum->type.dtype != v->type.dtype)
		widen_readers(c, v, sum);
	return ir_cast(&c->b, sum, v->type.dtype);
}

static void put_together(Cut *c)
{
	for (size_t i = 0; i < c->nodes.len; i++) {
		const Node *n = c->nodes.at[i];
		Value *v = n->res[0], *whole = NULL;

		c->b.span = n->span;
		c->b.flags = n->flags;
		if (c->sum[v->id])
			whole = total(c, n);
		else if (c->parts[v->id])
			whole = ir_reshape(&c->b, ir_concat(&c->b, (int)c->chunks, c->parts[v->id], 0), v->type);
		if (whole)
			ir_replace_uses(c->h->block, v, whole);
	}
}

/* ---- the cut ---- */

/* The first node that waits for the head; what the head waits for goes before it. */
static Node *make_room(const Head *h)
{
	Node *first = h->block->first, *next;

	while (first && !(h->role[first->pos] == ROLE_NONE && h->below[first->pos]))
		first = first->next;
	for (Node *n = first; n; n = next) {
		next = n->next;
		if (h->role[n->pos] == ROLE_NONE && h->above[n->pos])
			ir_move_before(n, first);
	}
	return first;
}

static void cut(Func *f, Head *h, int64_t chunks)
{
	Cut c = { .h = h, .chunks = chunks, .b = ir_builder(f->module, h->block) };

	c.b.before = make_room(h);
	for (Node *n = h->block->first; n; n = n->next)
		if (h->role[n->pos] != ROLE_NONE)
			vec_push(h->a, &c.nodes, n);
	c.flat = ARENA_ARRAY(h->a, h->nvalues, Flat);
	c.slice = ARENA_ARRAY(h->a, h->nvalues, Flat);
	c.now = ARENA_ARRAY(h->a, h->nvalues, Value *);
	c.sum = ARENA_ARRAY(h->a, h->nvalues, Value *);
	c.parts = ARENA_ARRAY(h->a, h->nvalues, Value **);
	for (int64_t k = 0; k < chunks; k++)
		compute_part(&c, k);
	put_together(&c);
	for (size_t i = 0; i < c.nodes.len; i++)
		ir_unlink(c.nodes.at[i]);
}

/* ---- a function's heads ---- */

static int64_t rows_of(const Node *seed)
{
	const Type *t = &seed->res[0]->type;

	return type_elems(t) / t->dim[t->ndim - 1];
}

static int64_t bytes_of(const Node *seed)
{
	return type_bytes(&seed->res[0]->type);
}

typedef VEC(Block *) Blocks;

/* Where the samples are: in the loops, where the function has any. */
static Blocks sample_blocks(Arena *a, Func *f)
{
	Blocks all = { 0 };

	for (Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_loop)
			vec_push(a, &all, n->body);
	if (all.len == 0)
		vec_push(a, &all, f->body);
	return all;
}

static Node *widest_of(const ChunkNodes *seeds)
{
	Node *most = NULL;

	for (size_t i = 0; i < seeds->len; i++)
		if (!most || bytes_of(seeds->at[i]) > bytes_of(most))
			most = seeds->at[i];
	return most;
}

static Node *widest(Arena *a, Func *f)
{
	Blocks blocks = sample_blocks(a, f);
	ChunkNodes most = { 0 };

	for (size_t i = 0; i < blocks.len; i++) {
		ChunkNodes seeds = chunk_seeds(a, f, blocks.at[i]);

		if (seeds.len)
			vec_push(a, &most, widest_of(&seeds));
	}
	return widest_of(&most);
}

bool chunk_head(Func *f, ChunkHead *head)
{
	Arena *scratch = arena_new();
	const Node *most = widest(scratch, f);

	if (most)
		*head = (ChunkHead){ .rows = rows_of(most), .bytes = bytes_of(most), .span = most->span };
	arena_free(scratch);
	return most != NULL;
}

/* As many chunks of `own` rows as make them as small as `chunks` of `rows`. */
static int64_t chunks_of(int64_t own, int64_t chunks, int64_t rows)
{
	int64_t n = own / rows * chunks + (own % rows * chunks + rows - 1) / rows;

	n = n < own ? n : own;
	return n < CHUNK_MOST ? n : CHUNK_MOST;
}

/* Heads at least half as wide as the block's widest; `chunks` of `rows`, and as many of others as that gives, rounded up. */
static void cut_block(Func *f, Block *b, int64_t chunks, int64_t rows)
{
	Arena *a = arena_new();
	ChunkNodes seeds = chunk_seeds(a, f, b);
	int64_t least = seeds.len ? bytes_of(widest_of(&seeds)) / 2 : 0;

	for (size_t i = 0; i < seeds.len; i++) {
		Node *seed = seeds.at[i];
		int64_t own = chunks_of(rows_of(seed), chunks, rows);
		Head *h;

		if (!seed->parent || bytes_of(seed) < least || own == 1)
			continue; /* cut with another head, or not worth it */
		h = chunk_head_at(a, f, b, seed);
		if (h)
			cut(f, h, own);
	}
	arena_free(a);
}

/* The widest head gets as many chunks as were asked for; others, that of a smaller last micro-batch among them, chunks of as many rows. */
static bool cut_all(Func *f, Diag *d, const Node *most, const Blocks *blocks, int64_t chunks)
{
	int64_t rows = rows_of(most);

	if (rows < chunks) {
		diag_error(d, most->span, "%lld rows cannot be computed in %lld chunks", (long long)rows, (long long)chunks);
		return false;
	}
	for (size_t i = 0; i < blocks->len; i++)
		cut_block(f, blocks->at[i], chunks, rows);
	ir_dce(f);
	return true;
}

bool chunk_func(Func *f, PassCtx *cx, int64_t chunks)
{
	Arena *scratch;
	const Node *most;
	Blocks blocks;
	bool good = false;

	if (chunks <= 1)
		return true;
	scratch = arena_new();
	most = widest(scratch, f);
	blocks = sample_blocks(scratch, f);
	if (most) {
		good = cut_all(f, cx->diag, most, &blocks, chunks);
	} else {
		diag_error(cx->diag, NO_SPAN, "nothing can be computed in %lld chunks", (long long)chunks);
		diag_hint(cx->diag, "chunks are of a head: a linear layer at least twice as wide as what it reads, with a loss that is "
		                    "computed row by row");
	}
	arena_free(scratch);
	return good;
}

PassResult pass_chunk(Module *m, PassCtx *cx)
{
	Func *step = ir_find_func(m, "step");

	if (!step || cx->chunks <= 1)
		return PASS_SAME;
	return chunk_func(step, cx, cx->chunks) ? PASS_CHANGED : PASS_FAILED;
}

/* chunk_find: which nodes are computed row by row around a wide value (a part of the pass chunk).
 *
 * Method. A seed is a product x [rows,C] by a matrix whose result is at least twice as wide as x. Its rows are all axes but the last.
 * From there what is more than half as wide as the result (the head's wide values) pulls in its maker and all its users, and whatever
 * lies on a path between nodes of the head belongs to it too. How each node works on rows follows from its op: element-wise ops,
 * reductions and shape ops within a row, products of rows by a matrix give rows; reductions over the rows and products that sum over them
 * give sums. The attempt fails where a node does neither, where a row would depend on a sum over rows, or where nothing wide is reduced.
 *
 * Invariants of a head: no wide value leaves it; no path leaves it and comes back. */
#include "chunk_parts.h"

enum { MOST_SEEDS = 16, MOST_ROUNDS = 8 };

static bool is_wide(const Head *h, const Value *v)
{
	return 2 * type_elems(&v->type) > type_elems(&h->seed->res[0]->type);
}

/* Whether an operand is wide once it has been broadcast along all rows. */
static bool is_wide_along_rows(const Head *h, const Type *t, int lead)
{
	int64_t elems = h->rows;

	for (int i = lead; i < t->ndim; i++)
		elems *= t->dim[i];
	return 2 * elems > type_elems(&h->seed->res[0]->type);
}

static int axis_of(const Node *n, int ndim)
{
	int64_t axis = ir_int(n, "axis");

	return (int)(axis < 0 ? axis + ndim : axis);
}

bool chunk_is_inside(const Head *h, const Value *v)
{
	return v->def && v->def->parent == h->block && h->role[v->def->pos] != ROLE_NONE;
}

bool chunk_is_leaf(const Value *v, int lead)
{
	if (!v->def)
		return false;
	return v->def->op == OP_const || (v->def->op == OP_iota && axis_of(v->def, v->type.ndim) >= lead);
}

/* ---- how a node works on rows ---- */

/* Leading axes whose product is the number of rows; 0 where there are none. */
static int lead_of(const Head *h, const Type *t)
{
	int64_t rows = 1;

	for (int i = 0; i < t->ndim; i++) {
		rows *= t->dim[i];
		if (rows == h->rows)
			return i + 1;
	}
	return 0;
}

/* The operand of n from which the rows are known, and how many of its axes they are; -1: none. */
static int known_operand(const Head *h, const Node *n, int *lead)
{
	for (int i = 0; i < n->nargs; i++)
		if (chunk_is_inside(h, n->arg[i]) && h->lead[n->arg[i]->id]) {
			*lead = h->lead[n->arg[i]->id];
			return i;
		}
	return -1;
}

/* An operand of a broadcasting node whose result has `lead` axes of rows. */
static void aligned_operand(const Type *t, const Type *res, int lead, Reads *how, int *own)
{
	int off = res->ndim - t->ndim;
	bool all = true, none = true;

	*own = lead > off ? lead - off : 0;
	for (int i = 0; i < lead; i++) {
		int64_t dim = i < off ? 1 : t->dim[i - off];

		all = all && dim == res->dim[i];
		none = none && dim == 1;
	}
	*how = all ? READS_ROWS : none ? READS_WHOLE : READS_SPREAD;
}

/* Element-wise ops and broadcasts. */
static bool broadcasting_roles(const Node *n, int known, int lead, Roles *r)
{
	const Type *t = &n->res[0]->type;

	if (known >= 0)
		lead += t->ndim - n->arg[known]->type.ndim;
	r->lead = lead;
	for (int i = 0; i < n->nargs; i++)
		aligned_operand(&n->arg[i]->type, t, lead, &r->arg[i].how, &r->arg[i].lead);
	return known < 0 || r->arg[known].how == READS_ROWS;
}

static bool reduce_roles(const Node *n, int known, int lead, Roles *r)
{
	const IntList *axes = ir_ints(n, "axes");
	const Type *t = &n->arg[0]->type;
	unsigned on = axes->n ? 0 : (1u << t->ndim) - 1, rows = (1u << lead) - 1, ones = 0;

	for (int i = 0; i < axes->n; i++)
		on |= 1u << (axes->v[i] < 0 ? axes->v[i] + t->ndim : axes->v[i]);
	for (int i = 0; i < lead; i++)
		ones |= t->dim[i] == 1 ? 1u << i : 0;
	r->arg[0].how = READS_ROWS;
	r->arg[0].lead = lead;
	r->lead = lead;
	if (!(on & rows))
		return true;
	r->role = ROLE_SUM;
	r->lead = 0;
	return known >= 0 && ((on | ones) & rows) == rows &&
	       (n->op == OP_sum || n->op == OP_mean || n->op == OP_reduce_max);
}

static bool reshape_roles(const Head *h, const Node *n, int known, int lead, Roles *r)
{
	r->arg[0].how = READS_ROWS;
	r->arg[0].lead = known >= 0 ? lead : lead_of(h, &n->arg[0]->type);
	r->lead = known >= 0 ? lead_of(h, &n->res[0]->type) : lead;
	return r->lead > 0 && r->arg[0].lead > 0;
}

/* Transposes that leave the rows' axes in place; cuts and joins along others. */
static bool shape_roles(const Node *n, int lead, Roles *r)
{
	bool good = true;

	for (int i = 0; i < lead && n->op == OP_transpose; i++)
		good = good && ir_ints(n, "perm")->v[i] == i;
	if (n->op != OP_transpose)
		good = axis_of(n, n->res[0]->type.ndim) >= lead;
	r->lead = lead;
	for (int i = 0; i < n->nargs; i++) {
		r->arg[i].how = READS_ROWS;
		r->arg[i].lead = lead;
	}
	return good;
}

/* x [rows,K] by a matrix gives rows; x [rows,M] and y [rows,N], the first transposed, a sum. */
static bool matmul_roles(const Head *h, const Node *n, int known, int lead, Roles *r)
{
	const Type *x = &n->arg[0]->type, *y = &n->arg[1]->type;

	if (y->ndim != 2 || ir_acc(n))
		return false;
	r->arg[0].how = READS_ROWS;
	if (!ir_int(n, "ta")) {
		r->lead = r->arg[0].lead = lead;
		r->arg[1].how = READS_WHOLE;
		return known <= 0 && lead == x->ndim - 1 && y->batch == 0;
	}
	r->role = ROLE_SUM;
	r->arg[1].how = READS_ROWS;
	r->arg[0].lead = r->arg[1].lead = 1;
	return known >= 0 && lead == 1 && x->ndim == 2 && !ir_int(n, "tb") && y->dim[0] == h->rows;
}

bool chunk_roles(const Head *h, const Node *n, Roles *r)
{
	int lead = h->lead[n->res[0]->id], known = -1;
	OpKind kind = ir_ops[n->op].kind;

	*r = (Roles){ .role = ROLE_ROWS };
	if (!lead && (known = known_operand(h, n, &lead)) < 0)
		return false;
	if (kind == K_EWISE || n->op == OP_broadcast)
		return broadcasting_roles(n, known, lead, r);
	if (kind == K_REDUCE)
		return reduce_roles(n, known, lead, r);
	switch ((int)n->op) {
	case OP_reshape: return reshape_roles(h, n, known, lead, r);
	case OP_matmul: return matmul_roles(h, n, known, lead, r);
	case OP_transpose:
	case OP_slice:
	case OP_pad:
	case OP_concat: return shape_roles(n, lead, r);
	default: return false;
	}
}

/* ---- growing ---- */

static bool add(Head *h, Node *n)
{
	Roles r;

	if (n->parent == h->block && h->role[n->pos] != ROLE_NONE)
		return true;
	if (n->parent != h->block || n->nres != 1 || n->flags & NF_BATCH_STATS || !chunk_roles(h, n, &r))
		return false;
	h->role[n->pos] = (uint8_t)r.role;
	h->lead[n->res[0]->id] = (uint8_t)r.lead;
	h->reduces = h->reduces || ir_ops[n->op].kind == K_REDUCE;
	vec_push(h->a, &h->todo, n);
	return true;
}

/* A wide operand is made by the head, unless it comes with the data or is a variable. */
static bool grow_up(Head *h, Value *v, Reads how, int lead)
{
	if (how == READS_SPREAD)
		return !is_wide_along_rows(h, &v->type, lead);
	if (!is_wide(h, v) || how == READS_WHOLE || chunk_is_inside(h, v) || chunk_is_leaf(v, lead))
		return true;
	if (!v->def || v->def->op == OP_input || v->def->op == OP_var)
		return true;
	h->lead[v->id] = (uint8_t)lead;
	return add(h, v->def);
}

static bool grow(Head *h)
{
	while (h->todo.len > 0) {
		Node *n = h->todo.at[--h->todo.len];
		const Value *v = n->res[0];
		Roles r;

		if (!chunk_roles(h, n, &r))
			return false;
		for (int i = 0; i < n->nargs; i++)
			if (!grow_up(h, n->arg[i], r.arg[i].how, r.arg[i].lead))
				return false;
		if (r.role == ROLE_SUM || !is_wide(h, v))
			continue;
		for (int32_t u = h->first_user[v->id]; u < h->first_user[v->id + 1]; u++)
			if (!add(h, h->node[h->users[u]]))
				return false;
	}
	return true;
}

/* ---- paths ---- */

static bool is_between(const Head *h, const Node *n)
{
	return h->role[n->pos] == ROLE_NONE && h->below[n->pos] && h->above[n->pos];
}

static void find_below(Head *h)
{
	for (const Node *n = h->block->first; n; n = n->next) {
		h->below[n->pos] = false;
		for (int i = 0; i < n->nargs; i++) {
			const Node *d = n->arg[i]->def;

			h->below[n->pos] |= d && d->parent == h->block &&
			                    (h->role[d->pos] != ROLE_NONE || h->below[d->pos]);
		}
	}
}

static void find_above(Head *h)
{
	for (const Node *n = h->block->last; n; n = n->prev) {
		h->above[n->pos] = false;
		for (int k = 0; k < n->nres; k++) {
			int32_t v = n->res[k]->id;

			for (int32_t u = h->first_user[v]; u < h->first_user[v + 1]; u++)
				h->above[n->pos] |= h->role[h->users[u]] != ROLE_NONE || h->above[h->users[u]];
		}
	}
}

/* Takes in what lies between nodes of the head. */
static bool close_paths(Head *h)
{
	for (int round = 0; round < MOST_ROUNDS; round++) {
		bool more = false;

		find_below(h);
		find_above(h);
		for (Node *n = h->block->first; n; n = n->next) {
			if (!is_between(h, n))
				continue;
			if (!add(h, n))
				return false;
			more = true;
		}
		if (!more)
			return true;
		if (!grow(h))
			return false;
	}
	return false;
}

/* Rows are read as rows and depend on no sum; nothing that all rows read is made inside, or differs between samples. */
static bool is_sound(const Head *h)
{
	for (const Node *n = h->block->first; n; n = n->next) {
		Roles r;

		if (h->role[n->pos] == ROLE_NONE)
			continue;
		if (!chunk_roles(h, n, &r))
			return false;
		for (int i = 0; i < n->nargs; i++) {
			const Value *v = n->arg[i];

			if (chunk_is_inside(h, v) &&
			    (h->role[v->def->pos] != ROLE_ROWS || r.arg[i].how != READS_ROWS || r.arg[i].lead != h->lead[v->id]))
				return false;
			if (!chunk_is_inside(h, v) && r.arg[i].how == READS_WHOLE && v->type.batch && !r.arg[i].lead)
				return false;
		}
	}
	return h->reduces;
}

/* ---- seeds ---- */

static bool is_seed(const Node *n)
{
	if (n->op != OP_matmul || n->flags & (NF_BACKWARD | NF_OPTIMIZER) || ir_int(n, "ta") || n->arg[1]->type.ndim != 2 || ir_acc(n))
		return false;
	const Type *t = &n->res[0]->type;
	int64_t rows = type_elems(t) / t->dim[t->ndim - 1];

	return rows >= 2 && type_elems(t) >= 2 * type_elems(&n->arg[0]->type);
}

static void count_users(Head *h)
{
	int32_t *fill;

	h->first_user = ARENA_ARRAY(h->a, h->nvalues + 2, int32_t);
	for (const Node *n = h->block->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++)
			h->first_user[n->arg[i]->id + 1]++;
	for (int32_t v = 0; v < h->nvalues; v++)
		h->first_user[v + 1] += h->first_user[v];
	h->users = ARENA_ARRAY(h->a, h->first_user[h->nvalues] + 1, int32_t);
	fill = ARENA_ARRAY(h->a, h->nvalues + 1, int32_t);
	memcpy(fill, h->first_user, (size_t)h->nvalues * sizeof *fill);
	for (const Node *n = h->block->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++)
			h->users[fill[n->arg[i]->id]++] = n->pos;
}

/* What heads of a block share: its nodes by position, its values' users. Numbers the function anew. */
static Head index_block(Arena *a, Func *f, Block *b)
{
	Head h = { .a = a, .block = b };

	h.nnodes = ir_number(f, &h.nvalues);
	h.node = ARENA_ARRAY(a, h.nnodes, Node *);
	for (Node *n = b->first; n; n = n->next)
		h.node[n->pos] = n;
	count_users(&h);
	return h;
}

static Head *head_of(const Head *indexed, Node *seed)
{
	Arena *a = indexed->a;
	Head *h = ARENA_NEW(a, Head);
	const Type *t = &seed->res[0]->type;

	*h = *indexed;
	h->seed = seed;
	h->rows = type_elems(t) / t->dim[t->ndim - 1];
	h->role = ARENA_ARRAY(a, h->nnodes, uint8_t);
	h->below = ARENA_ARRAY(a, h->nnodes, bool);
	h->above = ARENA_ARRAY(a, h->nnodes, bool);
	h->lead = ARENA_ARRAY(a, h->nvalues, uint8_t);
	h->lead[seed->res[0]->id] = (uint8_t)(t->ndim - 1);
	return add(h, seed) && grow(h) && close_paths(h) && is_sound(h) ? h : NULL;
}

Head *chunk_head_at(Arena *a, Func *f, Block *b, Node *seed)
{
	Head indexed = index_block(a, f, b);

	return head_of(&indexed, seed);
}

ChunkNodes chunk_seeds(Arena *a, Func *f, Block *b)
{
	ChunkNodes seeds = { 0 };
	Head indexed = { 0 };
	int tries = 0;

	for (Node *n = b->last; n && tries < MOST_SEEDS; n = n->prev) {
		if (!is_seed(n))
			continue;
		if (tries++ == 0)
			indexed = index_block(a, f, b);
		if (head_of(&indexed, n))
			vec_push(a, &seeds, n);
	}
	return seeds;
}

/* Groups made into fused nodes, and what a planner does with those: trimming results, sharing
 * storage.
 *
 * Members move into the body as they are; operands become parameters, leaves are copied in, values
 * that are read outside become results. Blocks are relaid in a topological order (groups as units)
 * that stays close to the old one: among the units whose operands are made, the one that could run
 * first by the old positions. */
#include "fuse_parts.h"

#include <assert.h>

typedef struct Unit {
	Group *group; /* or NULL: */
	Node *node;
	int32_t key;   /* position from which it can run */
	int32_t waits; /* units that must come before */
	VEC(int32_t) next;
	int32_t seen; /* the last unit that counted this one, to count once */
} Unit;

typedef struct Layout {
	Fuse *f;
	Unit *unit;
	int32_t nunits;
	int32_t *unit_of; /* by position */
	int32_t at;	  /* unit at hand */
} Layout;

/* ---- order ---- */

static void link_before(void *ctx, Node *before)
{
	Layout *l = ctx;
	int32_t from = l->unit_of[before->pos];
	if (from == l->at || from < 0 || l->unit[from].seen == l->at)
		return;
	l->unit[from].seen = l->at;
	vec_push(l->f->a, &l->unit[from].next, l->at);
	l->unit[l->at].waits++;
}

static void make_units(Layout *l)
{
	Fuse *f = l->f;
	int32_t *of_group = ARENA_ARRAY(f->a, f->groups.len + 1, int32_t);
	for (const Node *n = f->block->first; n; n = n->next) {
		Group *g = f->group[n->pos];
		if (g && g->members.at[0] != n)
			continue;
		Unit *u = &l->unit[l->nunits];
		*u = (Unit){ .group = g, .node = f->node[n->pos], .key = n->pos, .seen = -1 };
		if (g) {
			int32_t ready = fuse_ready(f, g, NULL);
			u->key = fuse_floats(g) ? -1 : ready > g->first ? ready : g->first;
			of_group[g->id] = l->nunits;
		}
		l->unit_of[n->pos] = l->nunits++;
	}
	for (const Node *n = f->block->first; n; n = n->next)
		if (f->group[n->pos])
			l->unit_of[n->pos] = of_group[f->group[n->pos]->id];
	for (l->at = 0; l->at < l->nunits; l->at++) {
		const Unit *u = &l->unit[l->at];
		if (!u->group)
			fuse_before(f, u->node, link_before, l);
		for (size_t i = 0; u->group && i < u->group->members.len; i++)
			fuse_before(f, u->group->members.at[i], link_before, l);
	}
}

/* A binary heap of units, smallest key first. */
typedef struct Heap {
	const Unit *unit;
	int32_t *at;
	int32_t n;
} Heap;

static void heap_push(Heap *h, int32_t x)
{
	int32_t i = h->n++;
	while (i > 0 && h->unit[h->at[(i - 1) / 2]].key > h->unit[x].key) {
		h->at[i] = h->at[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	h->at[i] = x;
}

static int32_t heap_pop(Heap *h)
{
	int32_t top = h->at[0], x = h->at[--h->n], i = 0;
	for (;;) {
		int32_t c = 2 * i + 1;
		if (c >= h->n)
			break;
		if (c + 1 < h->n && h->unit[h->at[c + 1]].key < h->unit[h->at[c]].key)
			c++;
		if (h->unit[x].key <= h->unit[h->at[c]].key)
			break;
		h->at[i] = h->at[c];
		i = c;
	}
	h->at[i] = x;
	return top;
}

/* ---- bodies ---- */

void fuse_append(Block *b, Node *n)
{
	n->parent = b;
	n->next = NULL;
	n->prev = b->last;
	*(b->last ? &b->last->next : &b->first) = n;
	b->last = n;
}

static Value *mapped(const Fuse *f, Value *v) { return f->map[v->id] ? f->map[v->id] : v; }

static void map_args(const Fuse *f, Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		n->arg[i] = mapped(f, n->arg[i]);
	if (n->op != OP_loop)
		return;
	for (Node *x = n->body->first; x; x = x->next) {
		if (x->op == OP_fused) {
			for (int i = 0; i < x->nargs; i++)
				x->arg[i] = mapped(f, x->arg[i]);
		} else {
			map_args(f, x);
		}
	}
}

typedef struct Body {
	const Fuse *f;
	Group *g;
	Node *fused;
	Builder in;
	ValueVec leaf, leaf_copy;
	ValueVec param_of; /* operand behind each parameter */
} Body;

static Value *leaf_copy(Body *b, Value *v)
{
	for (size_t i = 0; i < b->leaf.len; i++)
		if (b->leaf.at[i] == v)
			return b->leaf_copy.at[i];
	Value *c = ir_value(&b->in, v->def->op, 0, NULL, v->def->attr, &v->type);
	vec_push(b->f->a, &b->leaf, v);
	vec_push(b->f->a, &b->leaf_copy, c);
	return c;
}

static bool is_member(const Body *b, const Node *n)
{
	return n->parent == b->f->block ? b->f->group[n->pos] == b->g : n->parent == b->fused->body;
}

static Value *inside(Body *b, Value *v)
{
	if (v->def && is_member(b, v->def))
		return v;
	if (v->def && fuse_is_leaf(v->def))
		return leaf_copy(b, v);
	for (size_t i = 0; i < b->param_of.len; i++)
		if (b->param_of.at[i] == v)
			return b->fused->body->param[i];
	assert(!"a member reads operands of its group");
	return v;
}

static bool read_outside(const Fuse *f, const Value *v, const Group *g)
{
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++)
		if (f->group[f->users[u]] != g)
			return true;
	return false;
}

static Span group_span(const Group *g)
{
	for (size_t i = g->members.len; i-- > 0;)
		if (g->members.at[i]->span.source >= 0)
			return g->members.at[i]->span;
	return NO_SPAN;
}

/* Operands in order of first use, results in order of making. */
static void build_fused(Fuse *f, Group *g)
{
	ValueVec args = { 0 }, results = { 0 }, outer = { 0 };
	VEC(Type) types = { 0 };
	for (size_t i = 0; i < g->members.len; i++) {
		const Node *n = g->members.at[i];
		for (int k = 0; k < n->nargs; k++) {
			Value *v = n->arg[k];
			bool own = v->def && v->def->parent == f->block &&
				   f->group[v->def->pos] == g,
			     seen = false;
			for (size_t j = 0; j < outer.len; j++)
				seen = seen || outer.at[j] == v;
			if (own || seen || (v->def && fuse_is_leaf(v->def)))
				continue;
			vec_push(f->a, &outer, v);
			vec_push(f->a, &args, mapped(f, v));
		}
		for (int k = 0; k < n->nres; k++)
			if (read_outside(f, n->res[k], g)) {
				vec_push(f->a, &results, n->res[k]);
				vec_push(f->a, &types, n->res[k]->type);
			}
	}
	Builder out = ir_builder(f->m, f->block);
	out.span = group_span(g);
	out.flags = g->key;
	Body b = { .f = f, .g = g, .param_of = outer };
	b.fused =
		ir_region(&out, OP_fused, (int)args.len, args.at, NULL, (int)results.len, types.at);
	for (size_t i = 0; i < args.len; i++)
		ir_block_param(f->m, b.fused->body, args.at[i]->type);
	b.in = ir_builder(f->m, b.fused->body);
	b.in.flags = g->key;
	for (size_t i = 0; i < g->members.len; i++) {
		Node *n = g->members.at[i];
		b.in.span = n->span;
		for (int k = 0; k < n->nargs; k++)
			n->arg[k] = inside(&b, n->arg[k]);
		fuse_append(b.fused->body, n);
	}
	ir_node(&b.in, OP_yield, (int)results.len, results.at, NULL, NULL);
	for (size_t i = 0; i < results.len; i++) {
		b.fused->res[i]->name = results.at[i]->name;
		f->map[results.at[i]->id] = b.fused->res[i];
	}
}

/* A leaf that something other than a kernel reads is stored: it becomes a kernel of its own. */
static void build_leaf(Fuse *f, Node *n)
{
	bool stored = false;
	for (int32_t u = f->first_user[n->res[0]->id]; u < f->first_user[n->res[0]->id + 1]; u++)
		stored = stored || !f->group[f->users[u]];
	if (!stored) {
		fuse_append(f->block,
		       n); /* swept away after the pass, once the last kernel has its copy */
		return;
	}
	Builder out = ir_builder(f->m, f->block);
	out.span = n->span;
	out.flags = n->flags;
	Node *fused = ir_region(&out, OP_fused, 0, NULL, NULL, 1, &n->res[0]->type);
	Builder in = ir_builder(f->m, fused->body);
	in.span = n->span;
	in.flags = n->flags;
	Value *copy = ir_value(&in, n->op, 0, NULL, n->attr, &n->res[0]->type);
	ir_node(&in, OP_yield, 1, &copy, NULL, NULL);
	fused->res[0]->name = n->res[0]->name;
	f->map[n->res[0]->id] = fused->res[0];
	fuse_append(f->block, n);
}

void fuse_materialise(Fuse *f)
{
	Layout l = { .f = f };
	int32_t count = 0;
	for (const Node *n = f->block->first; n; n = n->next)
		count++;
	l.unit = ARENA_ARRAY(f->a, count + 1, Unit);
	l.unit_of = ARENA_ARRAY(f->a, f->nnodes + 1, int32_t);
	for (int32_t i = 0; i < f->nnodes; i++)
		l.unit_of[i] = -1;
	make_units(&l);
	Heap h = { .unit = l.unit, .at = ARENA_ARRAY(f->a, l.nunits + 1, int32_t) };
	for (int32_t i = 0; i < l.nunits; i++)
		if (l.unit[i].waits == 0)
			heap_push(&h, i);
	f->block->first = f->block->last = NULL;
	int32_t done = 0;
	while (h.n > 0) {
		Unit *u = &l.unit[heap_pop(&h)];
		done++;
		if (u->group) {
			build_fused(f, u->group);
		} else if (fuse_is_leaf(u->node)) {
			build_leaf(f, u->node);
		} else {
			map_args(f, u->node);
			fuse_append(f->block, u->node);
		}
		for (size_t i = 0; i < u->next.len; i++)
			if (--l.unit[u->next.at[i]].waits == 0)
				heap_push(&h, u->next.at[i]);
	}
	assert(done == l.nunits && "groups are convex");
	(void)done;
}

/* ---- trimming ---- */

static Node *yield_of(const Node *fused)
{
	assert(fused->body->last && fused->body->last->op == OP_yield);
	return fused->body->last;
}

static bool any_result_read(const Node *n, const bool *used)
{
	for (int i = 0; i < n->nres; i++)
		if (used[n->res[i]->id])
			return true;
	return false;
}

static bool along_rows(const Node *n)
{
	bool on[IR_MAX_DIMS] = { false };
	int last = n->arg[0]->type.ndim - 1;
	fuse_axes(n, on);
	while (last > 0 && n->arg[0]->type.dim[last] == 1)
		last--;
	return last < 0 || on[last];
}

/* Whether rows are reduced and added up beside (fuse_columns.c): the loop nest then stays one of rows, in which sums over them have an order of
 * their own. */
static bool sums_beside_rows(const Block *body)
{
	bool rows = false, columns = false;
	for (const Node *n = body->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_REDUCE)
			*(along_rows(n) ? &rows : &columns) = true;
	return rows && columns;
}

static void drop_dead_ops(Block *body, bool *used)
{
	bool beside = sums_beside_rows(body);
	for (Node *n = body->last, *prev; n; n = prev) {
		prev = n->prev;
		bool stays = beside && ir_ops[n->op].kind == K_REDUCE && along_rows(n);
		if (n->nres > 0 && !stays && !any_result_read(n, used)) {
			ir_unlink(n);
			continue;
		}
		for (int i = 0; i < n->nargs; i++)
			used[n->arg[i]->id] = true;
	}
}

Node *fuse_trim(Module *m, Node *fused, const bool *keep)
{
	(void)m;
	assert(fused->op == OP_fused);
	Node *y = yield_of(fused);
	int kept = 0;
	for (int i = 0; i < fused->nres; i++) {
		if (!keep[i])
			continue;
		fused->res[kept] = fused->res[i];
		fused->res[kept]->index = kept;
		y->arg[kept++] = y->arg[i];
	}
	fused->nres = y->nargs = kept;
	int32_t pos = 0, values = 0;
	Block *b = fused->body;
	for (int i = 0; i < b->nparam; i++)
		b->param[i]->id = values++;
	for (Node *n = b->first; n; n = n->next) {
		n->pos = pos++;
		for (int i = 0; i < n->nres; i++)
			n->res[i]->id = values++;
	}
	Arena *scratch = arena_new();
	bool *used = ARENA_ARRAY(scratch, values, bool);
	drop_dead_ops(b, used);
	int n = 0;
	for (int i = 0; i < b->nparam; i++) {
		if (!used[b->param[i]->id])
			continue;
		b->param[n] = b->param[i];
		b->param[n]->index = n;
		fused->arg[n++] = fused->arg[i];
	}
	b->nparam = fused->nargs = n;
	arena_free(scratch);
	return fused;
}

/* ---- sharing storage ---- */

enum { ALIAS_VALUES = 512 };

/* For each value of the body, the first phase that can make it and the last that makes something
 * from it (codegen/loop.c stores a value in its last phase). */
typedef struct Phases {
	int first[ALIAS_VALUES], last[ALIAS_VALUES];
} Phases;

static bool find_phases(const Block *b, Phases *p)
{
	int values = 0;
	for (int i = 0; i < b->nparam; i++)
		b->param[i]->id = values++;
	for (const Node *n = b->first; n; n = n->next)
		for (int i = 0; i < n->nres; i++)
			n->res[i]->id = values++;
	if (values > ALIAS_VALUES)
		return false;
	*p = (Phases){ 0 };
	for (const Node *n = b->first; n; n = n->next) {
		int at = 0;
		for (int i = 0; i < n->nargs; i++)
			at = p->first[n->arg[i]->id] > at ? p->first[n->arg[i]->id] : at;
		bool ends = ir_ops[n->op].kind == K_REDUCE;
		for (int i = 0; i < n->nres; i++)
			p->first[n->res[i]->id] = p->last[n->res[i]->id] = at + ends;
	}
	for (const Node *n = b->last; n; n = n->prev) {
		if (n->op == OP_yield || n->nres == 0)
			continue;
		bool ends = ir_ops[n->op].kind == K_REDUCE;
		int seen = ends ? p->first[n->res[0]->id] - 1 : p->last[n->res[0]->id];
		for (int i = 0; i < n->nargs; i++)
			if (p->last[n->arg[i]->id] < seen)
				p->last[n->arg[i]->id] = seen;
	}
	return true;
}

static const Type *domain_of(const Node *fused)
{
	for (const Node *n = fused->body->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_REDUCE)
			return &n->arg[0]->type;
	return fused->nres ? &fused->res[0]->type : NULL;
}

/* Every path from the parameter, up to a reduction, keeps its element in place: no shape op on it, no broadcast to another
 * shape. Values have the ids of find_phases. */
static bool read_in_place(const Block *b, const Value *param)
{
	bool made_of[ALIAS_VALUES] = { false };
	made_of[param->id] = true;
	for (const Node *n = b->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++) {
			OpKind kind = ir_ops[n->op].kind;
			if (!made_of[n->arg[i]->id] || n->op == OP_yield)
				continue;
			if (n->arg[i] == param && (n->op == OP_assign || kind == K_SHAPE))
				return false;
			if (kind == K_EWISE && !type_same_shape(&n->res[0]->type, &n->arg[i]->type))
				return false;
			if (kind == K_EWISE || kind == K_SHAPE)
				made_of[n->res[0]->id] = true;
		}
	return true;
}

/* A value that a shape op moves later on is made at another element than its own. */
static bool moved_later(const Block *b)
{
	for (const Node *n = b->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_SHAPE && n->op != OP_reshape && n->arg[0]->def)
			return true;
	return false;
}

bool fuse_may_alias(const Node *fused, int arg, int res)
{
	const Type *a = &fused->arg[arg]->type, *r = &fused->res[res]->type, *d = domain_of(fused);
	if (fused->op != OP_fused || !d || a->dtype != r->dtype || a->ndim != r->ndim ||
	    !type_same_shape(a, r))
		return false;
	/* Either along the whole domain, or a row's value beside another: [B,T,1] in a domain of as
	 * many axes. A squeezed shape could also be a broadcast one, and is left alone. */
	if (a->ndim != d->ndim)
		return false;
	Phases p;
	const Block *b = fused->body;
	if (!find_phases(b, &p) || moved_later(b) || !read_in_place(b, b->param[arg]))
		return false;
	return p.last[b->param[arg]->id] <= p.last[yield_of(fused)->arg[res]->id];
}

/* fuse: joins element-wise chains, reductions and shape ops into kernels.
 *
 *     %5 = add %3, %4            %7 = fused %3, %4 : f32[64,10] {
 *     %6 = exp %5                  (%a0 : f32[64,10], %a1 : f32[10])
 *     %7 = sum %6 {axes=[1]} ->    %b0 = add %a0, %a1   %b1 = exp %b0
 *     %8 = div %6, %7              %b2 = sum %b1 {...}   %b3 = div %b1, %b2   yield %b3 }
 *
 * Method. Nodes are taken in order; each joins the latest group among its operands' makers where
 * the rules allow it, else it starts a group; the groups of its other operands are merged in where
 * that is legal too. A group is one loop nest (codegen/loop.h): a map over a domain; rows
 * (reductions over axes that include the last one, followed by whatever reads the row's value); or
 * columns (reductions over leading axes, which end the kernel).
 *
 * Rules. One block and one kind of node (forward, backward, optimizer, batch statistics) a group,
 * so that replays carry no foreign work. No path from a group through outside nodes back into it. A
 * group is not delayed behind later nodes where that would keep more bytes alive than it saves.
 * Bounded ops and operands. Only leaves are copied.
 *
 * Decisions depend on the graph alone. Each join walks backwards over a bounded number of nodes, so
 * the pass is near-linear. */
#include "fuse_columns.h"
#include "fuse_parts.h"
#include "fuse_remake.h"

#include <assert.h>

enum { WALK_LIMIT = 400, SMALL_BYTES = 4096 };

bool fuse_is_leaf(const Node *n)
{
	return n->op != OP_var && n->op != OP_input && ir_ops[n->op].kind == K_LEAF;
}

void fuse_axes(const Node *reduce, bool *on)
{
	const IntList *axes = ir_ints(reduce, "axes");
	int nd = reduce->arg[0]->type.ndim;
	for (int i = 0; i < nd; i++)
		on[i] = axes->n == 0;
	for (int i = 0; i < axes->n; i++)
		on[axes->v[i] < 0 ? axes->v[i] + nd : axes->v[i]] = true;
}

static bool same_dims(const Type *a, const Type *b)
{
	return a->ndim == b->ndim && type_same_shape(a, b);
}

static bool is_reduce(const Node *n) { return ir_ops[n->op].kind == K_REDUCE; }

/* The shape that a node's element-wise work covers. */
static const Type *node_shape(const Node *n)
{
	return n->op == OP_assign || is_reduce(n) ? &n->arg[0]->type : &n->res[0]->type;
}

/* ---- groups ---- */

static Group *group_of(const Fuse *f, const Value *v)
{
	return v->def && v->def->parent == f->block ? f->group[v->def->pos] : NULL;
}

static int32_t node_key(const Node *n)
{
	return n->flags & (NF_BACKWARD | NF_OPTIMIZER | NF_BATCH_STATS);
}

static bool vec_has(const ValueVec *v, const Value *x)
{
	for (size_t i = 0; i < v->len; i++)
		if (v->at[i] == x)
			return true;
	return false;
}

static bool is_operand(const Fuse *f, const Value *v, const Group *g)
{
	return !(v->def && fuse_is_leaf(v->def)) && group_of(f, v) != g;
}

static GroupKind reduce_kind(const Node *n, const bool *on)
{
	const Type *t = &n->arg[0]->type;
	int last = -1;
	for (int d = 0; d < t->ndim; d++)
		if (t->dim[d] > 1)
			last = d;
	return last < 0 || on[last] || n->op == OP_argmax ? GROUP_ROW : GROUP_COLUMN;
}

/* Whether a member's value is squeezed: made from a reduction without `keep`. */
static bool is_squeezed(const Fuse *f, const Group *g, const Value *v)
{
	return group_of(f, v) == g && v->type.ndim > 0 && f->squeezed[v->def->pos];
}

static bool squeezes(const Fuse *f, const Group *g, const Node *n)
{
	if (is_reduce(n))
		return !ir_int(n, "keep");
	for (int i = 0; i < n->nargs && ir_ops[n->op].kind == K_EWISE; i++)
		if (is_squeezed(f, g, n->arg[i]))
			return true;
	return false;
}

static void add_member(Fuse *f, Group *g, Node *n)
{
	vec_push(f->a, &g->members, n);
	f->group[n->pos] = g;
	g->last = n->pos > g->last ? n->pos : g->last;
	g->first = n->pos < g->first ? n->pos : g->first;
	g->has_assign = g->has_assign || n->op == OP_assign;
	g->has_shape = g->has_shape || ir_ops[n->op].kind == K_SHAPE;
	if (is_reduce(n) && g->kind == GROUP_MAP) {
		fuse_axes(n, g->reduced);
		g->kind = reduce_kind(n, g->reduced);
	}
	f->squeezed[n->pos] = squeezes(f, g, n);
	for (int i = 0; i < n->nargs; i++)
		if (is_operand(f, n->arg[i], g)) {
			if (!vec_has(&g->operands, n->arg[i]))
				vec_push(f->a, &g->operands, n->arg[i]);
			f->last_reader[n->arg[i]->id] = g->id;
		}
}

static Group *start_group(Fuse *f, Node *n)
{
	Group *g = ARENA_NEW(f->a, Group);
	g->id = (int32_t)f->groups.len;
	g->key = node_key(n);
	g->domain = *node_shape(n);
	g->first = g->last = g->reach = n->pos;
	vec_push(f->a, &f->groups, g);
	add_member(f, g, n);
	return g;
}

/* ---- order ----
 *
 * A group runs as a whole: so what reads one of its early members waits for all that its late members wait for. Group.reach bounds
 * that, and is carried on to those behind whenever a group comes to wait for more. */

static void outer_reads(const Fuse *f, const Block *body, void (*fn)(void *ctx, Node *before),
			void *ctx)
{
	for (const Node *n = body->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			if (n->arg[i]->def && n->arg[i]->def->parent == f->block)
				fn(ctx, n->arg[i]->def);
		if (n->op == OP_loop)
			outer_reads(f, n->body, fn, ctx);
	}
}

/* The readers of v's bytes but for `except`, views apart, through which they are read too. */
static void readers(const Fuse *f, const Value *v, const Node *except, void (*fn)(void *ctx, Node *reader), void *ctx)
{
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++) {
		Node *user = f->node[f->users[u]];
		if (user == except)
			continue;
		fn(ctx, user);
		if (user->nargs == 1 && user->nres == 1 && ir_is_view(user))
			readers(f, user->res[0], except, fn, ctx);
	}
}

void fuse_before(const Fuse *f, const Node *n, void (*fn)(void *ctx, Node *before), void *ctx)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->def && n->arg[i]->def->parent == f->block)
			fn(ctx, n->arg[i]->def);
	if (n->op == OP_loop)
		outer_reads(f, n->body, fn, ctx);
	if (n->op == OP_assign)
		readers(f, n->arg[0], n, fn, ctx);
}

static int32_t *reach_of(Fuse *f, const Node *n)
{
	return f->group[n->pos] ? &f->group[n->pos]->reach : &f->reach[n->pos];
}

typedef struct Reach {
	Fuse *f;
	int32_t most;
} Reach;

static void reach_visit(void *ctx, Node *before)
{
	Reach *r = ctx;
	int32_t x = *reach_of(r->f, before);
	r->most = x > r->most ? x : r->most;
}

/* The reach of what n waits for. */
static int32_t reach_before(Fuse *f, const Node *n)
{
	Reach r = { f, -1 };
	fuse_before(f, n, reach_visit, &r);
	return r.most;
}

static void raise_users(Fuse *f, const Value *v, bool assigns_only, int32_t reach, NodeVec *todo)
{
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1] && f->users[u] < f->at; u++) {
		Node *user = f->node[f->users[u]];
		bool waits = !assigns_only || (user->op == OP_assign && user->arg[0] == v);
		if (!waits || *reach_of(f, user) >= reach)
			continue;
		*reach_of(f, user) = reach;
		vec_push(f->a, todo, user);
	}
}

/* What waits for n: readers of its results, assigns of variables that it reads. */
static void raise_behind(Fuse *f, const Node *n, int32_t reach, NodeVec *todo)
{
	for (int i = 0; i < n->nres; i++)
		raise_users(f, n->res[i], false, reach, todo);
	for (int i = 0; i < n->nargs; i++) {
		const Value *v = ir_view_root(n->arg[i], NULL);
		if (v->def && v->def->op == OP_var)
			raise_users(f, v, true, reach, todo);
	}
}

/* A group waits for more: so does what waits for it. */
static void raise_reach(Fuse *f, Group *g, int32_t reach)
{
	NodeVec todo = { 0 };
	if (reach <= g->reach)
		return;
	g->reach = reach;
	vec_push(f->a, &todo, g->members.at[0]);
	while (todo.len > 0) {
		const Node *n = todo.at[--todo.len];
		const Group *of = f->group[n->pos];
		if (!of)
			raise_behind(f, n, reach, &todo);
		for (size_t i = 0; of && i < of->members.len; i++)
			raise_behind(f, of->members.at[i], reach, &todo);
	}
}

/* Moves b's members into a, in order of position. */
static void merge_groups(Fuse *f, Group *a, Group *b)
{
	NodeVec all = { 0 };
	size_t i = 0, k = 0;
	while (i < a->members.len || k < b->members.len) {
		bool from_a = k == b->members.len ||
			      (i < a->members.len && a->members.at[i]->pos < b->members.at[k]->pos);
		vec_push(f->a, &all, from_a ? a->members.at[i++] : b->members.at[k++]);
	}
	if (a->kind == GROUP_MAP && b->kind != GROUP_MAP) {
		a->kind = b->kind;
		memcpy(a->reduced, b->reduced, sizeof a->reduced);
	}
	a->members = (NodeVec){ 0 };
	a->operands = (ValueVec){ 0 };
	b->gone = true;
	for (size_t j = 0; j < all.len; j++)
		f->group[all.at[j]->pos] = a;
	for (size_t j = 0; j < all.len; j++)
		add_member(f, a, all.at[j]);
	int32_t reach = b->reach > a->reach ? b->reach : a->reach;
	a->reach = b->reach < a->reach ? b->reach : a->reach;
	raise_reach(f, a, reach);
}

typedef struct Walk {
	Fuse *f;
	const Group *a, *b; /* searched for */
	int32_t first;	    /* where the first of them begins */
	VEC(Node *) todo;
	int visited;
	bool direct; /* the nodes at hand are members or n itself: neighbours inside the groups are
			no detour */
	bool found;
} Walk;

static void walk_visit(void *ctx, Node *before)
{
	Walk *w = ctx;
	Group *g = w->f->group[before->pos];
	if (g && (g == w->a || g == w->b)) {
		w->found = w->found || !w->direct;
		return;
	}
	uint32_t *mark = g ? &g->mark : &w->f->mark[before->pos];
	if (*reach_of(w->f, before) < w->first || *mark == w->f->stamp)
		return;
	*mark = w->f->stamp;
	w->visited++;
	vec_push(w->f->a, &w->todo, before);
}

/* True where some node outside of a, b and n lies on a path from a or b to a, b or n. Answers true
 * when the search grows too long. */
static bool detour(Fuse *f, const Group *a, const Group *b, const Node *n)
{
	Walk w = { .f = f, .a = a, .b = b, .direct = true };
	w.first = a ? a->first : n->pos;
	if (b && b->first < w.first)
		w.first = b->first;
	f->stamp++;
	fuse_before(f, n, walk_visit, &w);
	for (int k = 0; k < 2; k++) {
		const Group *g = k ? b : a;
		for (size_t i = 0; g && i < g->members.len; i++)
			fuse_before(f, g->members.at[i], walk_visit, &w);
	}
	w.direct = false;
	while (w.todo.len > 0 && !w.found && w.visited < WALK_LIMIT) {
		Node *x = w.todo.at[--w.todo.len];
		Group *g = f->group[x->pos];
		if (!g)
			fuse_before(f, x, walk_visit, &w);
		for (size_t i = 0; g && i < g->members.len; i++)
			fuse_before(f, g->members.at[i], walk_visit, &w);
	}
	return w.found || w.visited >= WALK_LIMIT;
}

/* ---- domains ---- */

/* A kept reduction's shape: the domain with ones on the reduced axes. */
static bool is_keep_shape(const Group *g, const Type *t)
{
	if (t->ndim != g->domain.ndim)
		return false;
	for (int d = 0; d < t->ndim; d++)
		if (t->dim[d] != (g->reduced[d] ? 1 : g->domain.dim[d]))
			return false;
	return true;
}

/* The domain without its reduced axes. */
static bool is_squeezed_shape(const Group *g, const Type *t)
{
	int i = 0;
	for (int d = 0; d < g->domain.ndim; d++)
		if (!g->reduced[d] && (i >= t->ndim || t->dim[i++] != g->domain.dim[d]))
			return false;
	return i == t->ndim;
}

static bool reads_reduction(const Fuse *f, const Group *g, const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (group_of(f, n->arg[i]) == g && is_reduce(n->arg[i]->def))
			return true;
	return false;
}

/* An element-wise node (or a broadcast, or an assign) beside rows that have been reduced. */
static bool fits_rows(const Fuse *f, const Group *g, const Node *n)
{
	bool squeezed = false, along = false;
	for (int i = 0; i < n->nargs; i++) {
		if (group_of(f, n->arg[i]) != g || n->arg[i]->type.ndim == 0)
			continue;
		bool s = is_squeezed(f, g, n->arg[i]);
		squeezed = squeezed || s;
		along = along || !s;
	}
	const Type *t = node_shape(n);
	if (squeezed && along)
		return false;
	if (n->op == OP_assign)
		return !same_dims(t, &g->domain) || is_keep_shape(g, t);
	if (squeezed)
		return is_squeezed_shape(g, t);
	return same_dims(t, &g->domain) || is_keep_shape(g, t) ||
	       (t->ndim == 0 && is_squeezed_shape(g, t));
}

static bool only_last_squeeze(const Node *n)
{
	const Type *a = &n->arg[0]->type, *b = &n->res[0]->type;
	int i = 0;
	for (int o = 0; o < b->ndim; o++) {
		if (b->dim[o] == 1)
			continue;
		while (i < a->ndim && a->dim[i] == 1)
			i++;
		if (i == a->ndim || a->dim[i++] != b->dim[o])
			return false;
	}
	return true;
}

static bool fits_reduce(const Group *g, const Node *n)
{
	if (!same_dims(&n->arg[0]->type, &g->domain))
		return false;
	bool on[IR_MAX_DIMS] = { false };
	fuse_axes(n, on);
	/* An argmax over leading axes runs row by row, sums over them column by column. */
	return g->kind == GROUP_MAP ||
	       (memcmp(on, g->reduced, sizeof on) == 0 && reduce_kind(n, on) == g->kind);
}

/* Whether n's own shape suits the group's loop nest. */
static bool fits(const Fuse *f, const Group *g, const Node *n)
{
	if (is_reduce(n))
		return fits_reduce(g, n);
	if (n->op == OP_reshape) {
		return g->kind == GROUP_ROW && is_squeezed(f, g, n->arg[0]) &&
		       only_last_squeeze(n) && is_keep_shape(g, &n->res[0]->type);
	}
	if (ir_ops[n->op].kind == K_SHAPE)
		return n->op == OP_broadcast && g->kind == GROUP_ROW &&
		       group_of(f, n->arg[0]) == g && fits_rows(f, g, n);
	if (g->kind == GROUP_ROW)
		return fits_rows(f, g, n);
	if (g->kind == GROUP_COLUMN && reads_reduction(f, g, n))
		return false;
	return same_dims(node_shape(n), &g->domain);
}

/* ---- gains ---- */

static int32_t last_use(const Fuse *f, const Value *v)
{
	int32_t a = f->first_user[v->id], b = f->first_user[v->id + 1];
	return b > a ? f->users[b - 1] : -1;
}

static bool used_only_in(const Fuse *f, const Value *v, const Group *a, const Group *b, int32_t pos)
{
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++) {
		const Group *g = f->group[f->users[u]];
		if (f->users[u] != pos && !(g && (g == a || g == b)))
			return false;
	}
	return true;
}

bool fuse_floats(const Group *g)
{
	if (g->operands.len > 0 || g->has_assign)
		return false;
	for (size_t i = 0; i < g->members.len; i++)
		if (g->members.at[i]->nres && type_elems(&g->members.at[i]->res[0]->type) != 1)
			return false;
	return true;
}

/* The latest position that n waits for, group g and `other` apart. */
static int32_t waits_for(const Fuse *f, const Node *n, const Group *g, const Group *other)
{
	int32_t latest = -1;
	for (int i = 0; i < n->nargs; i++) {
		const Node *d = n->arg[i]->def;
		if (!d || d->parent != f->block || d->nargs == 0)
			continue; /* variables, inputs and leaves are there from the start */
		const Group *of = f->group[d->pos];
		int32_t at = of ? fuse_floats(of) ? -1 : of->last : d->pos;
		if (!(of && (of == g || of == other)) && at > latest)
			latest = at;
	}
	return latest;
}

int32_t fuse_ready(const Fuse *f, const Group *g, const Group *other)
{
	int32_t latest = -1;
	for (size_t i = 0; i < g->operands.len; i++) {
		const Node *d = g->operands.at[i]->def;
		if (!d || d->parent != f->block || d->nargs == 0)
			continue;
		const Group *of = f->group[d->pos];
		int32_t at = of ? fuse_floats(of) ? -1 : of->last : d->pos;
		if (!(of && (of == g || of == other)) && at > latest)
			latest = at;
	}
	return latest;
}

/* Whether a node outside of g, `other` and n reads a value of g and stands before `until`. */
static bool read_before(const Fuse *f, const Group *g, const Group *other, const Node *n,
			int32_t until)
{
	for (size_t i = 0; i < g->members.len; i++)
		for (int k = 0; k < g->members.at[i]->nres; k++) {
			int32_t v = g->members.at[i]->res[k]->id;
			for (int32_t u = f->first_user[v]; u < f->first_user[v + 1]; u++) {
				int32_t at = f->users[u];
				const Group *in = f->group[at];
				if (at >= until)
					break;
				if (at != n->pos && !(in && (in == g || in == other)))
					return true;
			}
		}
	return false;
}

/* True where delaying g up to n (and to what `other` waits for) keeps no more bytes alive than the
 * values that need no storage any more, and keeps no reader of g waiting. An update is always one
 * kernel: its parts stand together, and it runs where its gradient is final (schedule). */
static bool delay_pays(const Fuse *f, const Group *g, const Group *other, const Node *n)
{
	if (n->flags & NF_OPTIMIZER)
		return true;
	int32_t until = waits_for(f, n, g, other);
	if (other) {
		int32_t ready = fuse_ready(f, other, g);
		until = ready > until ? ready : until;
	}
	if (until <= g->last)
		return true;
	if (read_before(f, g, other, n, until))
		return false;
	int64_t held = 0, saved = 0;
	for (size_t i = 0; i < g->operands.len; i++) {
		const Value *v = g->operands.at[i];
		bool var = v->def && v->def->op == OP_var;
		if (!var && last_use(f, v) <= g->last)
			held += type_bytes(&v->type);
	}
	for (size_t i = 0; i < g->members.len; i++)
		for (int k = 0; k < g->members.at[i]->nres; k++) {
			const Value *v = g->members.at[i]->res[k];
			if (!used_only_in(f, v, g, NULL, -1) &&
			    used_only_in(f, v, g, other, n->pos))
				saved += type_bytes(&v->type);
		}
	return held <= saved + SMALL_BYTES;
}

/* ---- joining ---- */

static int count_new_operands(const Fuse *f, const Group *g, const Node *n)
{
	int count = 0;
	for (int i = 0; i < n->nargs; i++)
		count += is_operand(f, n->arg[i], g) && !vec_has(&g->operands, n->arg[i]);
	return count;
}

static int count_leaves(const Node *n)
{
	int count = 0;
	for (int i = 0; i < n->nargs; i++)
		count += n->arg[i]->def && fuse_is_leaf(n->arg[i]->def);
	return count;
}

/* Ops of a group, with the leaves that it will copy. */
static int group_ops(const Group *g)
{
	int count = (int)g->members.len;
	for (size_t i = 0; i < g->members.len; i++)
		count += count_leaves(g->members.at[i]);
	return count;
}

/* The reduction n would give a map its axes, but a value of the map is about to be reduced over
 * others. */
static bool members_conflict(const Fuse *f, const Group *g, const Node *n)
{
	bool on[IR_MAX_DIMS] = { false };
	fuse_axes(n, on);
	for (size_t i = 0; i < g->members.len; i++) {
		const Node *x = g->members.at[i];
		if (x->nres != 1 || x->res[0] == n->arg[0] ||
		    !same_dims(&x->res[0]->type, &g->domain))
			continue;
		int32_t v = x->res[0]->id;
		for (int32_t u = f->first_user[v]; u < f->first_user[v + 1]; u++) {
			const Node *user = f->node[f->users[u]];
			bool other[IR_MAX_DIMS] = { false };
			if (!user || !is_reduce(user) || node_key(user) != g->key)
				continue;
			fuse_axes(user, other);
			if (memcmp(on, other, sizeof on) != 0)
				return true;
		}
	}
	return false;
}

/* A large value of the group that n alone still reads: joining saves it. */
static bool saves_operand(const Fuse *f, const Group *g, const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (group_of(f, n->arg[i]) == g && same_dims(&n->arg[i]->type, &g->domain) &&
		    used_only_in(f, n->arg[i], g, NULL, n->pos))
			return true;
	return false;
}

/* A reduction over other axes reads n next: joining would tear that apart, and saves nothing. */
static bool users_conflict(const Fuse *f, const Group *g, const Node *n)
{
	if (is_reduce(n))
		return g->kind == GROUP_MAP && members_conflict(f, g, n);
	if (g->kind == GROUP_MAP || n->nres != 1 || n->op == OP_reshape || saves_operand(f, g, n))
		return false;
	const Value *v = n->res[0];
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++) {
		const Node *user = f->node[f->users[u]];
		if (user && is_reduce(user) && node_key(user) == g->key &&
		    same_dims(&v->type, &g->domain) && !fits_reduce(g, user))
			return true;
	}
	return false;
}

/* Whether rows take in all that is made of n, within a few ops: no result of it is stored. */
static bool ends_in_rows(const Fuse *f, const Group *g, const Node *n, int ops)
{
	const Value *v = n->nres == 1 && ops > 0 ? n->res[0] : NULL;
	for (int32_t u = v ? f->first_user[v->id] : 0; v && u < f->first_user[v->id + 1]; u++) {
		const Node *user = f->node[f->users[u]];
		bool reduces = is_reduce(user) && fits_reduce(g, user);
		if (node_key(user) != g->key || !(reduces || (ir_ops[user->op].kind == K_EWISE && ends_in_rows(f, g, user, ops - 1))))
			return false;
	}
	return v != NULL;
}

/* Part of an update, of as many elements as the rows, that could be in their kernel and saves nothing there: what it reads of theirs is one
 * number, the norm that it is clipped by, or is stored all the same. Its own result would have to be stored where the number is known, or
 * until all other gradients are. */
static bool joins_for_nothing(const Fuse *f, const Group *g, const Node *n)
{
	return g && g->kind == GROUP_ROW && (n->flags & NF_OPTIMIZER) && !is_reduce(n) && type_elems(node_shape(n)) > 1 &&
	       same_dims(node_shape(n), &g->domain) && !saves_operand(f, g, n) && !ends_in_rows(f, g, n, 4);
}

static bool can_join(Fuse *f, const Group *g, const Node *n)
{
	if (!g || g->gone || g->key != node_key(n) ||
	    group_ops(g) + 1 + count_leaves(n) > FUSE_MAX_OPS ||
	    (int)g->operands.len + count_new_operands(f, g, n) > FUSE_MAX_OPERANDS)
		return false;
	if (!fits(f, g, n) || users_conflict(f, g, n) || joins_for_nothing(f, g, n))
		return false;
	if (!fuse_assigns_hold(f, g, NULL, n))
		return false;
	return delay_pays(f, g, NULL, n) && !detour(f, g, NULL, n);
}

static bool all_used_by(const Fuse *f, const Group *g, const Node *n)
{
	for (size_t i = 0; i < g->members.len; i++)
		for (int k = 0; k < g->members.at[i]->nres; k++)
			if (!used_only_in(f, g->members.at[i]->res[k], g, NULL, n->pos))
				return false;
	return true;
}

/* Whether b's loop nest can be a's. */
static bool same_nest(const Group *a, const Group *b)
{
	if (!same_dims(&a->domain, &b->domain))
		return false;
	return a->kind == GROUP_MAP || b->kind == GROUP_MAP ||
	       memcmp(a->reduced, b->reduced, sizeof a->reduced) == 0;
}

/* A map over one value for each row of g, which the rows alone read. */
static bool is_of_rows(const Fuse *f, const Group *g, const Group *b, const Node *n)
{
	if (g->kind != GROUP_ROW || b->has_shape || !is_keep_shape(g, &b->domain))
		return false;
	for (size_t i = 0; i < b->members.len; i++)
		if (!used_only_in(f, b->members.at[i]->res[0], b, g, n->pos))
			return false;
	return true;
}

/* A map whose values n alone reads, at places that n's shape op or broadcast of a scalar chooses; or one of the rows of g.
 */
static bool absorbable(const Fuse *f, const Group *g, const Group *b, const Node *n)
{
	if (b->kind != GROUP_MAP || b->has_assign)
		return false;
	if (is_of_rows(f, g, b, n))
		return true;
	if (!all_used_by(f, b, n))
		return false;
	if (type_elems(&b->domain) == 1)
		return true;
	bool moves =
		n->op == OP_transpose || n->op == OP_pad || n->op == OP_slice || n->op == OP_concat;
	return moves && !b->has_shape && g->members.len == 1;
}

static bool limits_allow(const Group *a, const Group *b)
{
	size_t operands = a->operands.len;
	for (size_t i = 0; i < b->operands.len; i++)
		operands += !vec_has(&a->operands, b->operands.at[i]);
	return group_ops(a) + group_ops(b) <= FUSE_MAX_OPS && operands <= FUSE_MAX_OPERANDS;
}

/* Members of one group must not read the other's reductions in a way that its kind forbids. */
static bool kinds_allow(const Fuse *f, const Group *a, const Group *b)
{
	GroupKind kind = a->kind == GROUP_MAP ? b->kind : a->kind;
	if (kind == GROUP_MAP)
		return true;
	for (int k = 0; k < 2; k++) {
		const Group *g = k ? b : a, *o = k ? a : b;
		for (size_t i = 0; i < g->members.len; i++) {
			const Node *n = g->members.at[i];
			if (kind == GROUP_COLUMN && reads_reduction(f, o, n))
				return false;
			for (int j = 0; j < n->nargs; j++)
				if (is_squeezed(f, o, n->arg[j]))
					return false;
		}
	}
	return !(a->has_assign && b->kind == GROUP_ROW) && !(b->has_assign && a->kind == GROUP_ROW);
}

/* A value of the map is about to be reduced over other axes than the group's. */
static bool torn_apart(const Fuse *f, const Group *map, const Group *g)
{
	if (map->kind != GROUP_MAP || g->kind == GROUP_MAP)
		return false;
	for (size_t i = 0; i < map->members.len; i++) {
		const Node *x = map->members.at[i];
		if (x->nres != 1 || !same_dims(&x->res[0]->type, &g->domain))
			continue;
		int32_t v = x->res[0]->id;
		for (int32_t u = f->first_user[v]; u < f->first_user[v + 1]; u++) {
			const Node *user = f->node[f->users[u]];
			if (user && is_reduce(user) && node_key(user) == g->key &&
			    !fits_reduce(g, user))
				return true;
		}
	}
	return false;
}

/* Merges b into g, the group that n has just joined or started. */
static void try_merge(Fuse *f, Group *g, Group *b, const Node *n)
{
	if (!b || b == g || b->gone || b->key != g->key || !limits_allow(g, b))
		return;
	bool nest = same_nest(g, b) && kinds_allow(f, g, b) && !torn_apart(f, g, b) &&
		    !torn_apart(f, b, g);
	if (!nest && !absorbable(f, g, b, n))
		return;
	if (nest && !(delay_pays(f, b, g, n) && delay_pays(f, g, b, n)))
		return;
	if (!fuse_assigns_hold(f, g, b, NULL))
		return;
	if (!detour(f, g, b, n))
		merge_groups(f, g, b);
}

/* Two reductions of one value over the same axes read it once: the group of the reduction n takes
 * in the last one that reads an operand of its own, and is noted as the last. */
static void merge_siblings(Fuse *f, Group *g, const Node *n)
{
	for (size_t i = 0; i < g->operands.len; i++) {
		const Value *v = g->operands.at[i];
		int32_t other = f->reducer[v->id];
		if (!same_dims(&v->type, &g->domain))
			continue;
		Group *b = other >= 0 ? f->groups.at[other] : NULL;
		if (b && b->kind == g->kind && same_nest(g, b))
			try_merge(f, g, b, n);
		f->reducer[v->id] = g->id;
	}
}

/* The latest group that n may join: among its operands' makers; for a reduction also among readers
 * of its operand. */
static Group *best_group(Fuse *f, const Node *n)
{
	Group *best = NULL;
	for (int i = 0; i < n->nargs; i++) {
		Group *g = group_of(f, n->arg[i]);
		if (g && g != best && (!best || g->last > best->last) && can_join(f, g, n))
			best = g;
	}
	if (best || !is_reduce(n))
		return best;
	int32_t reader = f->last_reader[n->arg[0]->id];
	Group *g = reader >= 0 ? f->groups.at[reader] : NULL;
	return g && can_join(f, g, n) ? g : NULL;
}

static bool may_fuse(const Fuse *f, const Node *n)
{
	if (n->op == OP_assign)
		return n->arg[0]->def && n->arg[0]->def->op == OP_var;
	OpKind kind = ir_ops[n->op].kind;
	if (kind != K_EWISE && kind != K_REDUCE && kind != K_SHAPE)
		return false;
	if (n->op == OP_reshape || n->op == OP_stop_gradient)
		return true; /* a view; joins rows that it stays in */
	return !ir_is_view(n) && f->cx->caps->fusable(n);
}

static void visit(Fuse *f, Node *n)
{
	int32_t reach = reach_before(f, n);
	f->at = n->pos;
	f->reach[n->pos] = reach > n->pos ? reach : n->pos;
	if (!may_fuse(f, n))
		return;
	Group *g = best_group(f, n);
	if (!g && (n->op == OP_reshape || n->op == OP_stop_gradient))
		return; /* stays a view */
	if (g)
		add_member(f, g, n);
	else
		g = start_group(f, n);
	raise_reach(f, g, reach);
	for (int i = 0; i < n->nargs && n->op != OP_reshape; i++)
		if (!joins_for_nothing(f, group_of(f, n->arg[i]), n))
			try_merge(f, g, group_of(f, n->arg[i]), n);
	if (is_reduce(n))
		merge_siblings(f, g, n);
}

/* A view at the end of a group is better left outside, where it costs nothing. */
static void peel_views(Fuse *f, Group *g)
{
	NodeVec kept = { 0 };
	bool changed = false;
	for (size_t i = g->members.len; i-- > 0;) {
		Node *n = g->members.at[i];
		if (n->op != OP_reshape && n->op != OP_stop_gradient)
			continue;
		const Value *v = n->res[0];
		bool inside = false;
		for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++)
			inside = inside || f->group[f->users[u]] == g;
		if (!inside) {
			f->group[n->pos] = NULL;
			changed = true;
		}
	}
	for (size_t i = 0; changed && i < g->members.len; i++)
		if (f->group[g->members.at[i]->pos] == g)
			vec_push(f->a, &kept, g->members.at[i]);
	if (changed)
		g->members = kept;
}

/* ---- blocks ---- */

static void count_uses(Fuse *f, const Node *n, int32_t at, bool write, int32_t *fill)
{
	for (int i = 0; i < n->nargs; i++) {
		int32_t v = n->arg[i]->id;
		if (write)
			f->users[fill[v]++] = at;
		else
			f->first_user[v + 1]++;
	}
	if (n->op != OP_loop)
		return;
	for (const Node *x = n->body->first; x; x = x->next)
		count_uses(f, x, at, write, fill);
}

/* users[] in order of position; a loop counts as a user of what its body reads. */
static void index_users(Fuse *f)
{
	f->first_user = ARENA_ARRAY(f->a, f->nvalues + 1, int32_t);
	for (const Node *n = f->block->first; n; n = n->next)
		count_uses(f, n, n->pos, false, NULL);
	for (int32_t v = 0; v < f->nvalues; v++)
		f->first_user[v + 1] += f->first_user[v];
	f->users = ARENA_ARRAY(f->a, f->first_user[f->nvalues] + 1, int32_t);
	int32_t *fill = ARENA_ARRAY(f->a, f->nvalues + 1, int32_t);
	memcpy(fill, f->first_user, (size_t)f->nvalues * sizeof *fill);
	for (const Node *n = f->block->first; n; n = n->next)
		count_uses(f, n, n->pos, true, fill);
}

static bool has_backward(const Block *b)
{
	for (const Node *n = b->first; n; n = n->next)
		if (n->flags & NF_BACKWARD || (n->op == OP_loop && has_backward(n->body)))
			return true;
	return false;
}

/* Numbers the function anew: earlier blocks have new values. */
static void fuse_block(Func *fn, PassCtx *cx, Block *b)
{
	Arena *scratch = arena_new();
	Fuse f = { .m = fn->module, .cx = cx, .a = scratch, .block = b };
	f.replays = has_backward(fn->body);
	f.nnodes = ir_number(fn, &f.nvalues);
	f.node = ARENA_ARRAY(scratch, f.nnodes, Node *);
	f.group = ARENA_ARRAY(scratch, f.nnodes, Group *);
	f.squeezed = ARENA_ARRAY(scratch, f.nnodes, bool);
	f.mark = ARENA_ARRAY(scratch, f.nnodes, uint32_t);
	f.reach = ARENA_ARRAY(scratch, f.nnodes, int32_t);
	f.last_reader = ARENA_ARRAY(scratch, f.nvalues, int32_t);
	f.reducer = ARENA_ARRAY(scratch, f.nvalues, int32_t);
	f.map = ARENA_ARRAY(scratch, f.nvalues, Value *);
	index_users(&f);
	for (int32_t v = 0; v < f.nvalues; v++)
		f.last_reader[v] = f.reducer[v] = -1;
	for (Node *n = b->first; n; n = n->next)
		f.node[n->pos] = n;
	for (Node *n = b->first; n; n = n->next)
		visit(&f, n);
	for (size_t i = 0; i < f.groups.len; i++)
		if (!f.groups.at[i]->gone)
			peel_views(&f, f.groups.at[i]);
	fuse_materialise(&f);
	arena_free(scratch);
}

static void set_work(Block *b, const PassCtx *cx)
{
	for (Node *n = b->first; n; n = n->next) {
		if (n->op == OP_loop)
			set_work(n->body, cx);
		else
			n->work_bytes = cx->caps->workspace(n, cx->caps->threads);
	}
}

bool fuse_func(Func *fn, PassCtx *cx)
{
	fuse_block(fn, cx, fn->body);
	for (Node *n = fn->body->first; n; n = n->next)
		if (n->op == OP_loop)
			fuse_block(fn, cx, n->body);
	fuse_remake(fn);
	ir_dce(fn);
	fuse_columns(fn, cx->caps);
	set_work(fn->body, cx);
	return true;
}

PassResult pass_fuse(Module *m, PassCtx *cx)
{
	for (Func *f = m->funcs; f; f = f->next)
		if (!fuse_func(f, cx))
			return PASS_FAILED;
	return PASS_CHANGED;
}

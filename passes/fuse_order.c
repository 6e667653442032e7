/* What joining nodes does to the order of a block.
 *
 * A group runs as a whole: so what reads one of its early members waits for all that its late members wait for. Group.reach bounds
 * that, and is carried on to those behind whenever a group comes to wait for more. A join must leave no path out of a group and back
 * into it (detour), and must not keep more bytes alive by waiting than it saves (delay_pays). */
#include "fuse_parts.h"

enum { WALK_LIMIT = 400, SMALL_BYTES = 4096 };

/* ---- what waits for what ---- */

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
int32_t fuse_reach_before(Fuse *f, const Node *n)
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
void fuse_raise_reach(Fuse *f, Group *g, int32_t reach)
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

/* ---- paths ---- */

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
bool fuse_detour(Fuse *f, const Group *a, const Group *b, const Node *n)
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

/* ---- gains ---- */

static int32_t last_use(const Fuse *f, const Value *v)
{
	int32_t a = f->first_user[v->id], b = f->first_user[v->id + 1];
	return b > a ? f->users[b - 1] : -1;
}

bool fuse_used_only_in(const Fuse *f, const Value *v, const Group *a, const Group *b, int32_t pos)
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
bool fuse_delay_pays(const Fuse *f, const Group *g, const Group *other, const Node *n)
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
			if (!fuse_used_only_in(f, v, g, NULL, -1) &&
			    fuse_used_only_in(f, v, g, other, n->pos))
				saved += type_bytes(&v->type);
		}
	return held <= saved + SMALL_BYTES;
}

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

/* ---- joining ---- */

static int count_new_operands(const Fuse *f, const Group *g, const Node *n)
{
	int count = 0;
	for (int i = 0; i < n->nargs; i++)
		count += fuse_is_operand(f, n->arg[i], g) && !fuse_has(&g->operands, n->arg[i]);
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
		    !fuse_same_dims(&x->res[0]->type, &g->domain))
			continue;
		int32_t v = x->res[0]->id;
		for (int32_t u = f->first_user[v]; u < f->first_user[v + 1]; u++) {
			const Node *user = f->node[f->users[u]];
			bool other[IR_MAX_DIMS] = { false };
			if (!user || !fuse_is_reduce(user) || fuse_key(user) != g->key)
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
		if (fuse_group_of(f, n->arg[i]) == g && fuse_same_dims(&n->arg[i]->type, &g->domain) &&
		    fuse_used_only_in(f, n->arg[i], g, NULL, n->pos))
			return true;
	return false;
}

/* A reduction over other axes reads n next: joining would tear that apart, and saves nothing. */
static bool users_conflict(const Fuse *f, const Group *g, const Node *n)
{
	if (fuse_is_reduce(n))
		return g->kind == GROUP_MAP && members_conflict(f, g, n);
	if (g->kind == GROUP_MAP || n->nres != 1 || n->op == OP_reshape || saves_operand(f, g, n))
		return false;
	const Value *v = n->res[0];
	for (int32_t u = f->first_user[v->id]; u < f->first_user[v->id + 1]; u++) {
		const Node *user = f->node[f->users[u]];
		if (user && fuse_is_reduce(user) && fuse_key(user) == g->key &&
		    fuse_same_dims(&v->type, &g->domain) && !fuse_fits_reduce(g, user))
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
		bool reduces = fuse_is_reduce(user) && fuse_fits_reduce(g, user);
		if (fuse_key(user) != g->key || !(reduces || (ir_ops[user->op].kind == K_EWISE && ends_in_rows(f, g, user, ops - 1))))
			return false;
	}
	return v != NULL;
}

/* Part of an update, of as many elements as the rows, that could be in their kernel and saves nothing there: what it reads of theirs is one
 * number, the norm that it is clipped by, or is stored all the same. Its own result would have to be stored where the number is known, or
 * until all other gradients are. */
static bool joins_for_nothing(const Fuse *f, const Group *g, const Node *n)
{
	return g && g->kind == GROUP_ROW && (n->flags & NF_OPTIMIZER) && !fuse_is_reduce(n) && type_elems(fuse_shape(n)) > 1 &&
	       fuse_same_dims(fuse_shape(n), &g->domain) && !saves_operand(f, g, n) && !ends_in_rows(f, g, n, 4);
}

static bool can_join(Fuse *f, const Group *g, const Node *n)
{
	if (!g || g->gone || g->key != fuse_key(n) ||
	    group_ops(g) + 1 + count_leaves(n) > FUSE_MAX_OPS ||
	    (int)g->operands.len + count_new_operands(f, g, n) > FUSE_MAX_OPERANDS)
		return false;
	if (!fuse_fits(f, g, n) || users_conflict(f, g, n) || joins_for_nothing(f, g, n))
		return false;
	if (!fuse_assigns_hold(f, g, NULL, n))
		return false;
	return fuse_delay_pays(f, g, NULL, n) && !fuse_detour(f, g, NULL, n);
}

static bool all_used_by(const Fuse *f, const Group *g, const Node *n)
{
	for (size_t i = 0; i < g->members.len; i++)
		for (int k = 0; k < g->members.at[i]->nres; k++)
			if (!fuse_used_only_in(f, g->members.at[i]->res[k], g, NULL, n->pos))
				return false;
	return true;
}

/* Whether b's loop nest can be a's. */
static bool same_nest(const Group *a, const Group *b)
{
	if (!fuse_same_dims(&a->domain, &b->domain))
		return false;
	return a->kind == GROUP_MAP || b->kind == GROUP_MAP ||
	       memcmp(a->reduced, b->reduced, sizeof a->reduced) == 0;
}

/* A map over one value for each row of g, which the rows alone read. */
static bool is_of_rows(const Fuse *f, const Group *g, const Group *b, const Node *n)
{
	if (g->kind != GROUP_ROW || b->has_shape || !fuse_is_keep_shape(g, &b->domain))
		return false;
	for (size_t i = 0; i < b->members.len; i++)
		if (!fuse_used_only_in(f, b->members.at[i]->res[0], b, g, n->pos))
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
		operands += !fuse_has(&a->operands, b->operands.at[i]);
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
			if (kind == GROUP_COLUMN && fuse_reads_reduction(f, o, n))
				return false;
			for (int j = 0; j < n->nargs; j++)
				if (fuse_is_squeezed(f, o, n->arg[j]))
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
		if (x->nres != 1 || !fuse_same_dims(&x->res[0]->type, &g->domain))
			continue;
		int32_t v = x->res[0]->id;
		for (int32_t u = f->first_user[v]; u < f->first_user[v + 1]; u++) {
			const Node *user = f->node[f->users[u]];
			if (user && fuse_is_reduce(user) && fuse_key(user) == g->key &&
			    !fuse_fits_reduce(g, user))
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
	if (nest && !(fuse_delay_pays(f, b, g, n) && fuse_delay_pays(f, g, b, n)))
		return;
	if (!fuse_assigns_hold(f, g, b, NULL))
		return;
	if (!fuse_detour(f, g, b, n))
		fuse_merge(f, g, b);
}

/* Two reductions of one value over the same axes read it once: the group of the reduction n takes
 * in the last one that reads an operand of its own, and is noted as the last. */
static void merge_siblings(Fuse *f, Group *g, const Node *n)
{
	for (size_t i = 0; i < g->operands.len; i++) {
		const Value *v = g->operands.at[i];
		int32_t other = f->reducer[v->id];
		if (!fuse_same_dims(&v->type, &g->domain))
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
		Group *g = fuse_group_of(f, n->arg[i]);
		if (g && g != best && (!best || g->last > best->last) && can_join(f, g, n))
			best = g;
	}
	if (best || !fuse_is_reduce(n))
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
	int32_t reach = fuse_reach_before(f, n);
	f->at = n->pos;
	f->reach[n->pos] = reach > n->pos ? reach : n->pos;
	if (!may_fuse(f, n))
		return;
	Group *g = best_group(f, n);
	if (!g && (n->op == OP_reshape || n->op == OP_stop_gradient))
		return; /* stays a view */
	if (g)
		fuse_add(f, g, n);
	else
		g = fuse_start(f, n);
	fuse_raise_reach(f, g, reach);
	for (int i = 0; i < n->nargs && n->op != OP_reshape; i++)
		if (!joins_for_nothing(f, fuse_group_of(f, n->arg[i]), n))
			try_merge(f, g, fuse_group_of(f, n->arg[i]), n);
	if (fuse_is_reduce(n))
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

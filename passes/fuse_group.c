/* Groups of the pass fuse: their members and operands, and whether a node's own shape suits a group's loop nest. */
#include "fuse_parts.h"

/* ---- members ---- */

/* The shape that a node's element-wise work covers. */
const Type *fuse_shape(const Node *n)
{
	return n->op == OP_assign || fuse_is_reduce(n) ? &n->arg[0]->type : &n->res[0]->type;
}

int32_t fuse_key(const Node *n)
{
	return n->flags & (NF_BACKWARD | NF_OPTIMIZER | NF_BATCH_STATS);
}

bool fuse_has(const ValueVec *v, const Value *x)
{
	for (size_t i = 0; i < v->len; i++)
		if (v->at[i] == x)
			return true;
	return false;
}

bool fuse_is_operand(const Fuse *f, const Value *v, const Group *g)
{
	return !(v->def && fuse_is_leaf(v->def)) && fuse_group_of(f, v) != g;
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
bool fuse_is_squeezed(const Fuse *f, const Group *g, const Value *v)
{
	return fuse_group_of(f, v) == g && v->type.ndim > 0 && f->squeezed[v->def->pos];
}

static bool squeezes(const Fuse *f, const Group *g, const Node *n)
{
	if (fuse_is_reduce(n))
		return !ir_int(n, "keep");
	for (int i = 0; i < n->nargs && ir_ops[n->op].kind == K_EWISE; i++)
		if (fuse_is_squeezed(f, g, n->arg[i]))
			return true;
	return false;
}

void fuse_add(Fuse *f, Group *g, Node *n)
{
	vec_push(f->a, &g->members, n);
	f->group[n->pos] = g;
	g->last = n->pos > g->last ? n->pos : g->last;
	g->first = n->pos < g->first ? n->pos : g->first;
	g->has_assign = g->has_assign || n->op == OP_assign;
	g->has_shape = g->has_shape || ir_ops[n->op].kind == K_SHAPE;
	if (fuse_is_reduce(n) && g->kind == GROUP_MAP) {
		fuse_axes(n, g->reduced);
		g->kind = reduce_kind(n, g->reduced);
	}
	f->squeezed[n->pos] = squeezes(f, g, n);
	for (int i = 0; i < n->nargs; i++)
		if (fuse_is_operand(f, n->arg[i], g)) {
			if (!fuse_has(&g->operands, n->arg[i]))
				vec_push(f->a, &g->operands, n->arg[i]);
			f->last_reader[n->arg[i]->id] = g->id;
		}
}

Group *fuse_start(Fuse *f, Node *n)
{
	Group *g = ARENA_NEW(f->a, Group);
	g->id = (int32_t)f->groups.len;
	g->key = fuse_key(n);
	g->domain = *fuse_shape(n);
	g->first = g->last = g->reach = n->pos;
	vec_push(f->a, &f->groups, g);
	fuse_add(f, g, n);
	return g;
}

/* Moves b's members into a, in order of position. */
void fuse_merge(Fuse *f, Group *a, Group *b)
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
		fuse_add(f, a, all.at[j]);
	int32_t reach = b->reach > a->reach ? b->reach : a->reach;
	a->reach = b->reach < a->reach ? b->reach : a->reach;
	fuse_raise_reach(f, a, reach);
}

/* ---- domains ---- */

/* A kept reduction's shape: the domain with ones on the reduced axes. */
bool fuse_is_keep_shape(const Group *g, const Type *t)
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

bool fuse_reads_reduction(const Fuse *f, const Group *g, const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (fuse_group_of(f, n->arg[i]) == g && fuse_is_reduce(n->arg[i]->def))
			return true;
	return false;
}

/* An element-wise node (or a broadcast, or an assign) beside rows that have been reduced. */
static bool fits_rows(const Fuse *f, const Group *g, const Node *n)
{
	bool squeezed = false, along = false;
	for (int i = 0; i < n->nargs; i++) {
		if (fuse_group_of(f, n->arg[i]) != g || n->arg[i]->type.ndim == 0)
			continue;
		bool s = fuse_is_squeezed(f, g, n->arg[i]);
		squeezed = squeezed || s;
		along = along || !s;
	}
	const Type *t = fuse_shape(n);
	if (squeezed && along)
		return false;
	if (n->op == OP_assign)
		return !fuse_same_dims(t, &g->domain) || fuse_is_keep_shape(g, t);
	if (squeezed)
		return is_squeezed_shape(g, t);
	return fuse_same_dims(t, &g->domain) || fuse_is_keep_shape(g, t) ||
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

bool fuse_fits_reduce(const Group *g, const Node *n)
{
	if (!fuse_same_dims(&n->arg[0]->type, &g->domain))
		return false;
	bool on[IR_MAX_DIMS] = { false };
	fuse_axes(n, on);
	/* An argmax over leading axes runs row by row, sums over them column by column. */
	return g->kind == GROUP_MAP ||
	       (memcmp(on, g->reduced, sizeof on) == 0 && reduce_kind(n, on) == g->kind);
}

/* Whether n's own shape suits the group's loop nest. */
bool fuse_fits(const Fuse *f, const Group *g, const Node *n)
{
	if (fuse_is_reduce(n))
		return fuse_fits_reduce(g, n);
	if (n->op == OP_reshape) {
		return g->kind == GROUP_ROW && fuse_is_squeezed(f, g, n->arg[0]) &&
		       only_last_squeeze(n) && fuse_is_keep_shape(g, &n->res[0]->type);
	}
	if (ir_ops[n->op].kind == K_SHAPE)
		return n->op == OP_broadcast && g->kind == GROUP_ROW &&
		       fuse_group_of(f, n->arg[0]) == g && fits_rows(f, g, n);
	if (g->kind == GROUP_ROW)
		return fits_rows(f, g, n);
	if (g->kind == GROUP_COLUMN && fuse_reads_reduction(f, g, n))
		return false;
	return fuse_same_dims(fuse_shape(n), &g->domain);
}

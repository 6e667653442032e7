/* The loop form of a fused kernel.
 *
 * Method. The domain D is the shape that a reduction reads, or that the results have. Every value
 * of the body either lies along D (aligned right, as NumPy broadcasts) or is squeezed: a reduction
 * without `keep` has dropped its axes. From each result, assign and reduction we pull: eval() asks
 * for a value at an index tuple (one domain dimension and a shift for each axis, and the guards
 * under which it is wanted) and asks its operands in turn; shape ops only change the tuple. The
 * dimensions are then ordered outer, mid, inner and merged, instructions get the level and the
 * phase in which they run, and what later phases need again is evaluated again or, where it is
 * dear, kept in a row buffer.
 *
 * Invariants: instructions come after their arguments; a LI_REDUCE's argument lies at level <= 3 of
 * its phase; dimension numbers in indices are those of Loop.extent. */
#include "loop.h"

#include <assert.h>
#include <limits.h>
#include <math.h>

enum { ROW_BUFFER_BYTES = 16384, DEAR = 8 };

typedef enum Tag { TAG_NONE, TAG_FULL, TAG_SQUEEZED } Tag;

/* Where an element of a value lies: axis i is domain dimension dim[i] (or none, -1: size 1) plus
 * shift[i]. */
typedef struct Place {
	int ndim;
	int8_t dim[IR_MAX_DIMS];
	int64_t shift[IR_MAX_DIMS];
	int nguards;
	LoopGuard guard[LOOP_MAX_GUARDS];
} Place;

typedef struct Known {
	const Value *value;
	Place place;
	int instr;
} Known;

typedef struct Maker {
	Arena *a;
	const Node *fused;
	int64_t micro;
	Type domain;
	bool reduced[IR_MAX_DIMS]; /* of the domain's axes */
	bool any_reduction;
	Tag *tag; /* by place in the body */
	VEC(LoopInstr) instr;
	VEC(LoopStore) store;
	VEC(Known) known;
	bool failed;
} Maker;

int64_t loop_sample_elems(const Type *t, int64_t micro)
{
	if (!t->batch || micro < 1)
		return 0;
	int64_t elems = type_elems(t);
	return elems % micro == 0 ? elems / micro : 0;
}

/* ---- the domain ---- */

static bool same_dims(const Type *a, const Type *b)
{
	return a->ndim == b->ndim && type_same_shape(a, b);
}

/* Reduced axes as flags; negative axes count from the end, no axes means all. */
static void reduce_axes(const Node *n, bool *on)
{
	const IntList *axes = ir_ints(n, "axes");
	int nd = n->arg[0]->type.ndim;
	for (int i = 0; i < nd; i++)
		on[i] = axes->n == 0;
	for (int i = 0; i < axes->n; i++)
		on[axes->v[i] < 0 ? axes->v[i] + nd : axes->v[i]] = true;
}

static const Node *yield_of(const Node *fused)
{
	const Node *y = fused->body->last;
	assert(y && y->op == OP_yield);
	return y;
}

/* The last axis is among the reduced ones. */
static bool reduces_last(const Type *t, const bool *on)
{
	int last = t->ndim - 1;
	while (last > 0 && t->dim[last] == 1)
		last--;
	return last < 0 || on[last];
}

/* Whether n is an f32 sum over the rows of the domain, whose own reductions are along them: `on` has exactly the other axes, all of them
 * in front, so that the result lies along the domain. */
static bool over_rows(const Maker *m, const Node *n, const bool *on)
{
	bool behind = false;
	for (int d = 0; d < m->domain.ndim; d++) {
		if (m->domain.dim[d] > 1 && (on[d] == m->reduced[d] || (on[d] && behind)))
			return false;
		behind = behind || !on[d];
	}
	return n->op == OP_sum && n->res[0]->type.dtype == DT_F32 && reduces_last(&m->domain, m->reduced);
}

/* Sets domain and reduced axes, those of rows where there are any; false where the body mixes others. */
static bool find_domain(Maker *m)
{
	for (int round = 0; round < 2; round++)
		for (const Node *n = m->fused->body->first; n; n = n->next) {
			if (ir_ops[n->op].kind != K_REDUCE)
				continue;
			bool on[IR_MAX_DIMS] = { false };
			reduce_axes(n, on);
			if (!m->any_reduction && (round == 1 || reduces_last(&n->arg[0]->type, on))) {
				m->domain = n->arg[0]->type;
				memcpy(m->reduced, on, sizeof on);
				m->any_reduction = true;
			} else if (round == 1 && (!same_dims(&m->domain, &n->arg[0]->type) ||
						  (memcmp(m->reduced, on, sizeof on) != 0 && !over_rows(m, n, on)))) {
				return false;
			}
		}
	if (m->any_reduction)
		return true;
	const Node *y = yield_of(m->fused);
	if (y->nargs > 0) {
		m->domain = y->arg[0]->type;
		return true;
	}
	for (const Node *n = m->fused->body->first; n; n = n->next)
		if (n->op == OP_assign) {
			m->domain = n->arg[0]->type;
			return true;
		}
	return false;
}

/* Whether a value lies along the domain or is squeezed; NONE: either way, its users say. */
static Tag value_tag(const Maker *m, const Value *v)
{
	if (!v->def || v->type.ndim == 0)
		return TAG_NONE;
	int i = 0;
	for (const Node *n = m->fused->body->first; n != v->def; n = n->next)
		i++;
	return m->tag[i];
}

/* A sum over the rows of a loop nest of rows. */
static bool is_column(const Maker *m, const Node *n)
{
	bool on[IR_MAX_DIMS] = { false };
	reduce_axes(n, on);
	return memcmp(m->reduced, on, sizeof on) != 0;
}

/* In order of the body, so that arguments have theirs. */
static void find_tags(Maker *m)
{
	int count = 0, at = 0;
	for (const Node *n = m->fused->body->first; n; n = n->next)
		count++;
	m->tag = ARENA_ARRAY(m->a, count, Tag);
	for (const Node *n = m->fused->body->first; n; n = n->next, at++) {
		Tag t = TAG_NONE;
		for (int i = 0; i < n->nargs && t == TAG_NONE; i++)
			t = value_tag(m, n->arg[i]);
		if (n->op == OP_reshape && t == TAG_SQUEEZED)
			t = TAG_FULL;
		if (ir_ops[n->op].kind == K_REDUCE)
			t = ir_int(n, "keep") || is_column(m, n) ? TAG_FULL : TAG_SQUEEZED;
		m->tag[at] = t;
	}
}

/* The place of a whole value in the domain. */
static bool root_place(const Maker *m, const Type *t, Tag tag, Place *p)
{
	*p = (Place){ .ndim = t->ndim };
	if (tag == TAG_SQUEEZED) {
		int i = 0;
		for (int d = 0; d < m->domain.ndim; d++) {
			if (m->reduced[d])
				continue;
			if (i >= t->ndim || t->dim[i] != m->domain.dim[d])
				return false;
			p->dim[i] = (int8_t)(t->dim[i] == 1 ? -1 : d);
			i++;
		}
		return i == t->ndim;
	}
	if (t->ndim > m->domain.ndim)
		return false;
	for (int i = 0; i < t->ndim; i++) {
		int d = m->domain.ndim - t->ndim + i;
		if (t->dim[i] != 1 && t->dim[i] != m->domain.dim[d])
			return false;
		p->dim[i] = (int8_t)(t->dim[i] == 1 ? -1 : d);
	}
	return true;
}

/* ---- pulling values ---- */

static bool same_place(const Place *a, const Place *b)
{
	if (a->ndim != b->ndim || a->nguards != b->nguards)
		return false;
	for (int i = 0; i < a->ndim; i++)
		if (a->dim[i] != b->dim[i] || a->shift[i] != b->shift[i])
			return false;
	for (int i = 0; i < a->nguards; i++)
		if (a->guard[i].dim != b->guard[i].dim || a->guard[i].lo != b->guard[i].lo ||
		    a->guard[i].hi != b->guard[i].hi)
			return false;
	return true;
}

/* The index of a dense array of type t at a place. */
static LoopIndex dense_index(const Type *t, const Place *p)
{
	LoopIndex x = { .nguards = p->nguards };
	memcpy(x.guard, p->guard, sizeof x.guard);
	int64_t stride = 1;
	for (int i = t->ndim - 1; i >= 0; i--) {
		x.base += p->shift[i] * stride;
		if (p->dim[i] >= 0)
			x.coef[p->dim[i]] += stride;
		stride *= t->dim[i];
	}
	return x;
}

static int add_instr(Maker *m, LoopInstr i)
{
	vec_push(m->a, &m->instr, i);
	return (int)m->instr.len - 1;
}

static bool add_guard(Maker *m, Place *p, LoopGuard g)
{
	if (p->nguards == LOOP_MAX_GUARDS) {
		m->failed = true;
		return false;
	}
	p->guard[p->nguards++] = g;
	return true;
}

static int eval(Maker *m, const Value *v, const Place *p);

/* An operand of an element-wise op or a broadcast: aligned right, size-1 axes stand still. */
static Place broadcast_place(const Type *from, const Type *to, const Place *p)
{
	Place q = *p;
	q.ndim = from->ndim;
	for (int i = 0; i < from->ndim; i++) {
		int o = to->ndim - from->ndim + i;
		bool one = from->dim[i] == 1;
		q.dim[i] = one ? -1 : p->dim[o];
		q.shift[i] = one ? 0 : p->shift[o];
	}
	return q;
}

static int eval_ewise(Maker *m, const Node *n, const Place *p)
{
	LoopInstr x = {
		.op = LI_EWISE, .node = n, .dtype = n->res[0]->type.dtype, .narg = n->nargs
	};
	for (int i = 0; i < n->nargs; i++) {
		Place q = broadcast_place(&n->arg[i]->type, &n->res[0]->type, p);
		x.arg[i] = eval(m, n->arg[i], &q);
		if (m->failed)
			return -1;
	}
	return add_instr(m, x);
}

/* A piece of a larger axis, at [lo,hi) of it: the value where the index falls inside, else
 * `otherwise`. */
static int eval_piece(Maker *m, const Value *v, const Place *p, int axis, int64_t lo, int64_t hi,
		      int otherwise)
{
	Place q = *p;
	q.shift[axis] -= lo;
	int dim = p->dim[axis];
	if (dim < 0) {
		bool inside = p->shift[axis] >= lo && p->shift[axis] < hi;
		if (inside)
			return eval(m, v, &q);
		return otherwise >= 0
			       ? otherwise
			       : add_instr(m, (LoopInstr){ .op = LI_LEAF, .dtype = v->type.dtype });
	}
	LoopGuard g = { dim, lo - p->shift[axis], hi - p->shift[axis] };
	if (!add_guard(m, &q, g))
		return -1;
	if (v->type.dim[axis] == 1) {
		q.dim[axis] = -1;
		q.shift[axis] = 0;
	}
	LoopInstr x = { .op = LI_GUARD, .dtype = v->type.dtype, .narg = otherwise >= 0 ? 2 : 1 };
	x.node = v->def;
	x.arg[0] = eval(m, v, &q);
	x.arg[1] = otherwise;
	x.index.nguards = 1;
	x.index.guard[0] = g;
	return m->failed ? -1 : add_instr(m, x);
}

static int eval_concat(Maker *m, const Node *n, const Place *p, int axis)
{
	int64_t hi = n->res[0]->type.dim[axis];
	int otherwise = -1;
	for (int i = n->nargs - 1; i >= 0 && !m->failed; i--) {
		int64_t lo = hi - n->arg[i]->type.dim[axis];
		otherwise = eval_piece(m, n->arg[i], p, axis, lo, hi, otherwise);
		hi = lo;
	}
	return otherwise;
}

static int norm_axis(const Node *n)
{
	int64_t axis = ir_int(n, "axis");
	return (int)(axis < 0 ? axis + n->res[0]->type.ndim : axis);
}

/* Size-1 axes come and go; the others keep their order. */
static bool reshape_place(const Type *from, const Type *to, const Place *p, Place *q)
{
	*q = *p;
	q->ndim = from->ndim;
	int o = 0;
	for (int i = 0; i < from->ndim; i++) {
		q->dim[i] = -1;
		q->shift[i] = 0;
		if (from->dim[i] == 1)
			continue;
		while (o < to->ndim && to->dim[o] == 1)
			o++;
		if (o == to->ndim || to->dim[o] != from->dim[i])
			return false;
		q->dim[i] = p->dim[o];
		q->shift[i] = p->shift[o];
		o++;
	}
	return true;
}

static int eval_shape(Maker *m, const Node *n, const Place *p)
{
	const Value *x = n->arg[0];
	Place q = *p;
	switch (n->op) {
	case OP_transpose: {
		const IntList *perm = ir_ints(n, "perm");
		for (int i = 0; i < perm->n; i++) {
			q.dim[perm->v[i]] = p->dim[i];
			q.shift[perm->v[i]] = p->shift[i];
		}
		return eval(m, x, &q);
	}
	case OP_broadcast:
		q = broadcast_place(&x->type, &n->res[0]->type, p);
		return eval(m, x, &q);
	case OP_slice: {
		int axis = norm_axis(n);
		q.shift[axis] += ir_int(n, "start");
		return eval(m, x, &q);
	}
	case OP_pad: {
		int axis = norm_axis(n);
		int64_t lo = ir_int(n, "before");
		return eval_piece(m, x, p, axis, lo, lo + x->type.dim[axis], -1);
	}
	case OP_concat:
		return eval_concat(m, n, p, norm_axis(n));
	case OP_reshape:
		if (!reshape_place(&x->type, &n->res[0]->type, p, &q))
			break;
		return eval(m, x, &q);
	case OP_batch_sum:
	case OP_stop_gradient:
		return eval(m, x, p);
	default:
		break;
	}
	m->failed = true;
	return -1;
}

/* The input of a reduction runs over the whole domain; the reduction's own place must be the kept
 * part of it. */
static int eval_reduce(Maker *m, const Node *n, const Place *p)
{
	const Type *t = &n->arg[0]->type;
	Place q = { .ndim = t->ndim };
	int o = 0;
	bool keep = ir_int(n, "keep") != 0, on[IR_MAX_DIMS] = { false };
	reduce_axes(n, on);
	for (int i = 0; i < t->ndim; i++) {
		q.dim[i] = (int8_t)(t->dim[i] == 1 ? -1 : i);
		if (!on[i] || keep) {
			if (!on[i] && t->dim[i] != 1 &&
			    (p->dim[o] != i || p->shift[o] != 0))
				m->failed = true;
			o++;
		}
	}
	if (m->failed || p->nguards > 0) {
		m->failed = true;
		return -1;
	}
	LoopInstr x = { .op = LI_REDUCE, .node = n, .dtype = n->res[0]->type.dtype, .narg = 1, .column = is_column(m, n) };
	x.arg[0] = eval(m, n->arg[0], &q);
	return m->failed ? -1 : add_instr(m, x);
}

static int eval_leaf(Maker *m, const Node *n, const Place *p)
{
	LoopInstr x = { .op = LI_LEAF, .node = n, .dtype = n->res[0]->type.dtype };
	if (n->op == OP_iota) {
		int axis = norm_axis(n);
		x.index.base = p->shift[axis];
		if (p->dim[axis] >= 0)
			x.index.coef[p->dim[axis]] = 1;
	} else if (n->op != OP_const) {
		x.index = dense_index(&n->res[0]->type, p);
		x.index.nguards = 0;
	}
	return add_instr(m, x);
}

static int eval_new(Maker *m, const Value *v, const Place *p)
{
	const Node *n = v->def;
	if (!n) {
		LoopInstr x = { .op = LI_LOAD, .dtype = v->type.dtype, .operand = v->index };
		x.index = dense_index(&v->type, p);
		return add_instr(m, x);
	}
	switch (ir_ops[n->op].kind) {
	case K_LEAF:
		return eval_leaf(m, n, p);
	case K_EWISE:
		return n->op == OP_stop_gradient ? eval_shape(m, n, p) : eval_ewise(m, n, p);
	case K_SHAPE:
		return eval_shape(m, n, p);
	case K_REDUCE:
		return eval_reduce(m, n, p);
	default:
		m->failed = true;
		return -1;
	}
}

static int eval(Maker *m, const Value *v, const Place *p)
{
	if (m->failed)
		return -1;
	for (size_t i = 0; i < m->known.len; i++)
		if (m->known.at[i].value == v && same_place(&m->known.at[i].place, p))
			return m->known.at[i].instr;
	int instr = eval_new(m, v, p);
	Known k = { v, *p, instr };
	if (!m->failed)
		vec_push(m->a, &m->known, k);
	return instr;
}

/* Pulls a result (result >= 0) or the new value of an assign's target. */
static void pull_store(Maker *m, const Value *v, int result, const Value *target)
{
	Place p;
	const Type *t = target ? &target->type : &v->type;
	Tag tag = value_tag(m, v);
	if (!root_place(m, t, tag, &p)) {
		m->failed = true;
		return;
	}
	Place q = broadcast_place(&v->type, t, &p);
	LoopStore s = { .result = result, .operand = target ? target->index : -1 };
	s.instr = eval(m, v, &q);
	s.index = dense_index(t, &p);
	vec_push(m->a, &m->store, s);
}

/* ---- dimensions ---- */

typedef struct Order {
	int n;
	int from[IR_MAX_DIMS]; /* domain axis of new dimension i */
	int kind[IR_MAX_DIMS]; /* 0 outer, 1 mid, 2 inner */
} Order;

static void order_add(Order *o, int axis, int kind)
{
	o->from[o->n] = axis;
	o->kind[o->n++] = kind;
}

/* Axes longer than one, ordered outer, mid, inner. */
static Order order_dims(const Maker *m, LoopKind kind)
{
	Order o = { 0 };
	int last = -1,
	    run = -1; /* the last axis of the inner kind, and where its run of neighbours starts */
	bool inner_reduced = kind == LOOP_ROW;
	for (int d = 0; d < m->domain.ndim; d++)
		if (m->domain.dim[d] > 1 && (kind == LOOP_MAP || m->reduced[d] == inner_reduced))
			last = d;
	run = last;
	for (int d = last - 1; d >= 0 && kind == LOOP_ROW; d--) {
		if (m->domain.dim[d] == 1)
			continue;
		if (!m->reduced[d])
			break;
		run = d;
	}
	for (int pass = 0; pass < 3; pass++)
		for (int d = 0; d < m->domain.ndim; d++) {
			bool in = d >= run && d <= last &&
				  (kind == LOOP_ROW ? m->reduced[d] : d == last);
			int k = in ? 2 : m->reduced[d] ? 1 : 0;
			if (m->domain.dim[d] > 1 && k == pass)
				order_add(&o, d, k);
		}
	return o;
}

static bool mergeable(const LoopIndex *x, int p, int q, int64_t q_extent)
{
	for (int i = 0; i < x->nguards; i++)
		if (x->guard[i].dim == p || x->guard[i].dim == q)
			return false;
	return x->coef[p] == x->coef[q] * q_extent;
}

static void index_permute(LoopIndex *x, const Order *o)
{
	LoopIndex y = *x;
	for (int i = 0; i < IR_MAX_DIMS; i++)
		x->coef[i] = i < o->n ? y.coef[o->from[i]] : 0;
	for (int g = 0; g < x->nguards; g++)
		for (int i = 0; i < o->n; i++)
			if (o->from[i] == y.guard[g].dim)
				x->guard[g].dim = i;
}

/* Dimension q goes into p = q-1. */
static void index_merge(LoopIndex *x, int q, int n)
{
	x->coef[q - 1] = x->coef[q];
	for (int i = q; i + 1 < n; i++)
		x->coef[i] = x->coef[i + 1];
	x->coef[n - 1] = 0;
	for (int g = 0; g < x->nguards; g++)
		if (x->guard[g].dim >= q)
			x->guard[g].dim--;
}

/* Neighbours in the domain once size-1 axes are gone. */
static bool adjacent(const Maker *m, int p, int q)
{
	if (p >= q)
		return false;
	for (int d = p + 1; d < q; d++)
		if (m->domain.dim[d] > 1)
			return false;
	return true;
}

static bool all_mergeable(const Loop *l, int p, int q)
{
	for (int i = 0; i < l->ninstrs; i++)
		if (!mergeable(&l->instr[i].index, p, q, l->extent[q]))
			return false;
	for (int i = 0; i < l->nstores; i++)
		if (!mergeable(&l->store[i].index, p, q, l->extent[q]))
			return false;
	return true;
}

static void merge_dims(const Maker *m, Loop *l, Order *o)
{
	for (int q = 1; q < o->n;) {
		int p = q - 1;
		/* A map may merge its inner axis with outer ones; a column kernel its kept axes
		 * where they are neighbours. */
		bool same = o->kind[p] == o->kind[q] || (l->kind == LOOP_MAP && o->kind[q] == 2) ||
			    (l->kind == LOOP_COLUMN && o->kind[p] == 0 && o->kind[q] == 2);
		if (!same || !adjacent(m, o->from[p], o->from[q]) || !all_mergeable(l, p, q)) {
			q++;
			continue;
		}
		for (int i = 0; i < l->ninstrs; i++)
			index_merge(&l->instr[i].index, q, o->n);
		for (int i = 0; i < l->nstores; i++)
			index_merge(&l->store[i].index, q, o->n);
		l->extent[p] *= l->extent[q];
		o->kind[p] = o->kind[q];
		o->from[p] = o->from[q];
		for (int i = q; i + 1 < o->n; i++) {
			l->extent[i] = l->extent[i + 1];
			o->kind[i] = o->kind[i + 1];
			o->from[i] = o->from[i + 1];
		}
		o->n--;
	}
}

static void set_dims(const Maker *m, Loop *l)
{
	Order o = order_dims(m, l->kind);
	for (int i = 0; i < o.n; i++)
		l->extent[i] = m->domain.dim[o.from[i]];
	for (int i = 0; i < l->ninstrs; i++)
		index_permute(&l->instr[i].index, &o);
	for (int i = 0; i < l->nstores; i++)
		index_permute(&l->store[i].index, &o);
	merge_dims(m, l, &o);
	l->ndims = o.n;
	l->outer = l->mid = l->inner = 1;
	for (int i = 0; i < o.n; i++) {
		l->nouter += o.kind[i] == 0;
		l->nmid += o.kind[i] == 1;
		*(o.kind[i] == 0   ? &l->outer
		  : o.kind[i] == 1 ? &l->mid
				   : &l->inner) *= l->extent[i];
	}
	l->flat = o.n - l->nouter - l->nmid > 1;
	l->elems = l->outer * l->mid * l->inner;
}

/* ---- levels, phases, what to keep ---- */

static int index_level(const Loop *l, const LoopIndex *x)
{
	int level = 0;
	for (int d = 0; d < l->ndims; d++) {
		bool used = x->coef[d] != 0;
		for (int g = 0; g < x->nguards; g++)
			used = used || x->guard[g].dim == d;
		int at = d < l->nouter ? 1 : d < l->nouter + l->nmid ? 2 : 3;
		if (used && at > level)
			level = at;
	}
	return level;
}

static void set_levels(Loop *l)
{
	for (int i = 0; i < l->ninstrs; i++) {
		LoopInstr *x = &l->instr[i];
		int level = index_level(l, &x->index), phase = 0;
		for (int k = 0; k < x->narg; k++) {
			const LoopInstr *y = &l->instr[x->arg[k]];
			int ready = y->phase + (y->op == LI_REDUCE);
			phase = ready > phase ? ready : phase;
			level = y->level > level ? y->level : level;
		}
		if (x->op == LI_REDUCE) {
			level = 1;
			l->nreduce++;
			l->ncolumns += x->column;
		}
		x->level = level;
		x->phase = phase;
		int last = phase + (x->op == LI_REDUCE);
		l->phases = last + 1 > l->phases ? last + 1 : l->phases;
	}
	l->phases = l->phases ? l->phases : 1;
}

/* A value is stored in the last phase that evaluates anything from it, so that it may take the
 * place of an operand that those phases read (fuse_may_alias relies on this rule). */
static void set_store_phases(Arena *a, Loop *l)
{
	int *last = ARENA_ARRAY(a, l->ninstrs, int);
	for (int i = l->ninstrs - 1; i >= 0; i--) {
		const LoopInstr *x = &l->instr[i];
		int own = x->phase + (x->op == LI_REDUCE);
		last[i] = last[i] > own ? last[i] : own;
		int seen = x->op == LI_REDUCE ? x->phase : last[i];
		for (int k = 0; k < x->narg; k++)
			if (x->arg[k] >= 0 && last[x->arg[k]] < seen)
				last[x->arg[k]] = seen;
	}
	for (int i = 0; i < l->nstores; i++)
		l->store[i].phase = last[l->store[i].instr];
}

/* Rough operations of an expression: a call of a transcendental function counts ten, a division
 * four. */
static double instr_cost(const LoopInstr *x)
{
	if (x->op == LI_LOAD)
		return 1;
	if (x->op == LI_LEAF && !x->node)
		return 0;
	if (x->op == LI_LEAF)
		return x->node->op == OP_random_normal			   ? 60
		       : x->node->op == OP_const || x->node->op == OP_iota ? 0
									   : 25;
	if (x->op != LI_EWISE)
		return 1;
	static const char *const light[] = {
		"max(", "min(", "abs(", "sign(", "floor(", "is_finite("
	};
	double cost = 1;
	for (const char *s = ir_ops[x->node->op].expr; s && *s; s++) {
		if (*s == '/')
			cost += 4;
		if (*s != '#')
			continue;
		double call = 10;
		for (size_t i = 0; i < sizeof light / sizeof *light; i++)
			if (strncmp(s + 1, light[i], strlen(light[i])) == 0)
				call = 1;
		cost += call;
	}
	return x->dtype == DT_F64 ? cost * 4 : cost;
}

static void set_needs(Arena *a, Loop *l)
{
	double *cost = ARENA_ARRAY(a, l->ninstrs, double);
	for (int i = 0; i < l->ninstrs; i++) {
		const LoopInstr *x = &l->instr[i];
		double own = instr_cost(x);
		l->cost += x->level == 3 ? own : 0;
		cost[i] = x->level == 3 ? own : 0;
		for (int k = 0; k < x->narg; k++)
			cost[i] += cost[x->arg[k]];
		if (x->op == LI_REDUCE)
			cost[i] = 0;
	}
	for (int i = 0; i < l->nstores; i++)
		l->instr[l->store[i].instr].needed |= 1u << l->store[i].phase;
	int64_t room = ROW_BUFFER_BYTES;
	for (int i = l->ninstrs - 1; i >= 0; i--) {
		LoopInstr *x = &l->instr[i];
		int64_t bytes =
			l->mid * l->inner * (dtype_bytes(x->dtype) < 4 ? 4 : dtype_bytes(x->dtype));
		bool again = (x->needed >> x->phase) > 1;
		if (x->op == LI_REDUCE)
			x->needed = 1u << x->phase;
		else if (x->level == 3 && again && cost[i] >= DEAR && l->kind == LOOP_ROW &&
			 bytes <= room) {
			x->buffered = true;
			x->needed |= 1u << x->phase;
			room -= bytes;
		}
		unsigned want = x->buffered || x->level <= 1 ? 1u << x->phase : x->needed;
		for (int k = 0; k < x->narg; k++) {
			LoopInstr *y = &l->instr[x->arg[k]];
			y->needed |= y->op == LI_REDUCE ? 1u << y->phase : want;
		}
	}
}

/* How a reduction is split is a matter of its shape alone. */
static void set_chunks(Loop *l)
{
	l->chunks = 1;
	int64_t width = 0, kept = l->outer * l->inner;
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE)
			width += l->instr[i].node->op == OP_argmax ? 16 : 8;
	if (l->kind == LOOP_ROW && l->outer == 1 && l->mid == 1 && l->inner > LOOP_CHUNK) {
		l->chunks = (l->inner + LOOP_CHUNK - 1) / LOOP_CHUNK;
		l->work_bytes = l->chunks * width;
	} else if (l->kind == LOOP_COLUMN && kept < 8192) {
		int64_t chunks = l->mid / 32;
		l->chunks = chunks < 1			  ? 1
			    : chunks > LOOP_COLUMN_CHUNKS ? LOOP_COLUMN_CHUNKS
							  : chunks;
		l->work_bytes = l->chunks > 1 ? l->chunks * kept * width : 0;
	}
}

static LoopKind loop_kind(const Maker *m)
{
	if (!m->any_reduction)
		return LOOP_MAP;
	int last = -1;
	for (int d = 0; d < m->domain.ndim; d++)
		if (m->domain.dim[d] > 1)
			last = d;
	if (last < 0 || m->reduced[last])
		return LOOP_ROW;
	for (const Node *n = m->fused->body->first; n; n = n->next)
		if (n->op == OP_argmax)
			return LOOP_ROW;
	return LOOP_COLUMN;
}

Loop *loop_build(Arena *a, const Node *fused, int64_t micro)
{
	assert(fused->op == OP_fused);
	Maker m = { .a = a, .fused = fused, .micro = micro };
	if (!find_domain(&m))
		return NULL;
	find_tags(&m);
	const Node *y = yield_of(fused);
	for (int i = 0; i < y->nargs; i++)
		pull_store(&m, y->arg[i], i, NULL);
	for (const Node *n = fused->body->first; n; n = n->next)
		if (n->op == OP_assign) {
			assert(!n->arg[0]->def);
			pull_store(&m, n->arg[1], -1, n->arg[0]);
		}
	if (m.failed)
		return NULL;
	Loop *l = ARENA_NEW(a, Loop);
	l->kind = loop_kind(&m);
	l->instr = m.instr.at;
	l->ninstrs = (int)m.instr.len;
	l->store = m.store.at;
	l->nstores = (int)m.store.len;
	set_dims(&m, l);
	set_levels(l);
	set_store_phases(a, l);
	if (l->phases > 30)
		return NULL;
	for (int i = 0; i < l->ninstrs; i++)
		for (int k = 0; k < l->instr[i].narg; k++)
			if (l->instr[i].arg[k] >= 0 && l->instr[l->instr[i].arg[k]].column)
				return NULL; /* a column's reduction ends its kernel */
	for (int i = 0; i < l->ninstrs; i++)
		if (l->kind == LOOP_COLUMN && l->instr[i].phase > 0)
			return NULL;
	set_needs(a, l);
	set_chunks(l);
	return l;
}

/* Two kernels that read the same rows: one reduces along them, the other over all of them.
 *
 * Reductions over different axes are different loop nests. Where the back end can add up columns while it goes through rows
 * (Capabilities.sums_beside_rows), one kernel does both, and what both read is read once:
 *
 *     %4 = fused %dy, %x {                               %4, %5 = fused %dy, %x {
 *       %b0 = mul %a0, %a1                                 %b0 = mul %a0, %a1
 *       %b1 = sum %b0 {axes=[0]}   yield %b1 }      =>     %b1 = sum %b0 {axes=[0]}
 *     %5 = fused %x, %dy {                                 %b2 = sum %b0 {axes=[1]}
 *       %b0 = mul %a1, %a0                                 %b3 = sub %a1, %b2
 *       %b1 = sum %b0 {axes=[1]}                           yield %b1, %b3 }
 *       %b2 = sub %a0, %b1         yield %b2 }
 *
 * That is the backward pass of every norm with a scale or a shift. A kernel of column sums joins one of rows of the same block and kind, near it,
 * that reads (or makes) every large operand of it: so nothing is read that was not, and no operand lives longer. One of them moves
 * to the other, past nodes that neither read what it makes nor make what it reads.
 *
 * Decisions depend on the graph alone. A sum's order is another than in a kernel of its own; so whoever drops results of such a kernel leaves its loop nest
 * one of rows (fuse_trim). */
#include "fuse_columns.h"

#include "fuse_parts.h"
#include "simplify.h"

enum { NEAR = 24 }; /* nodes between the two, at most */

typedef struct Joiner {
	Arena *a;
	Module *m;
	const Capabilities *caps;
	VEC(Value *) now; /* by Value.id: what stands for it from now on */
	bool changed;
} Joiner;

/* What a kernel reduces. */
typedef struct Shape {
	const Type *domain;
	bool along[IR_MAX_DIMS], over[IR_MAX_DIMS]; /* reduced axes of rows; of column sums */
	int nalong, nover;			    /* reductions */
	int64_t rows, length;			    /* of a kernel with column sums: elements of the reduced, of the kept axes */
	bool plain;				    /* nothing but element-wise ops and sums over rows */
	bool fixed;				    /* assigns variables, or has reductions of other kinds */
} Shape;

static Value *now(const Joiner *j, Value *v) { return ir_stands_for(v, j->now.at, (int32_t)j->now.len); }

static bool is_last(const Type *t, const bool *on)
{
	int last = t->ndim - 1;
	while (last > 0 && t->dim[last] == 1)
		last--;
	return last < 0 || on[last];
}

static void note_reduction(Shape *s, const Node *n)
{
	bool on[IR_MAX_DIMS] = { false };
	const Type *t = &n->arg[0]->type;
	fuse_axes(n, on);
	bool row = is_last(t, on) || n->op == OP_argmax, *seen = row ? s->along : s->over;
	int *count = row ? &s->nalong : &s->nover;
	if ((s->domain && !(t->ndim == s->domain->ndim && type_same_shape(t, s->domain))) ||
	    (*count > 0 && memcmp(seen, on, sizeof on) != 0))
		s->fixed = true;
	memcpy(seen, on, sizeof on);
	s->domain = t;
	(*count)++;
	if (!row && (n->op != OP_sum || n->res[0]->type.dtype != DT_F32))
		s->fixed = true;
}

/* A sum over rows ends its kernel: none of its ops reads one. */
static bool reads_column_sum(const Node *n)
{
	for (int i = 0; i < n->nargs && n->op != OP_yield; i++) {
		const Node *d = n->arg[i]->def;
		bool on[IR_MAX_DIMS] = { false };
		if (!d || ir_ops[d->op].kind != K_REDUCE)
			continue;
		fuse_axes(d, on);
		if (!is_last(&d->arg[0]->type, on))
			return true;
	}
	return false;
}

static Shape shape_of(const Node *fused)
{
	Shape s = { .rows = 1, .length = 1, .plain = true };
	for (const Node *n = fused->body->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_REDUCE)
			note_reduction(&s, n);
	for (const Node *n = fused->body->first; n && s.domain; n = n->next) {
		const Type *t = n->nres ? &n->res[0]->type : NULL;
		OpKind kind = ir_ops[n->op].kind;
		bool whole = t && t->ndim == s.domain->ndim && type_same_shape(t, s.domain);
		s.fixed = s.fixed || n->op == OP_assign || reads_column_sum(n);
		s.plain = s.plain && kind != K_SHAPE && (kind != K_EWISE || whole || type_elems(t) == 1);
	}
	for (int d = 0; s.domain && d < s.domain->ndim; d++)
		*(s.over[d] ? &s.rows : &s.length) *= s.domain->dim[d];
	return s;
}

/* Rows and sums over them: of each axis that is longer than one, one of both, those of the sums in front. */
static bool are_of_rows(const Shape *column, const Shape *row)
{
	const Type *t = column->domain;
	bool behind = false;
	if (t->ndim != row->domain->ndim || !type_same_shape(t, row->domain))
		return false;
	for (int d = 0; d < t->ndim; d++) {
		if (t->dim[d] > 1 && (column->over[d] == row->along[d] || (column->over[d] && behind)))
			return false;
		behind = behind || (t->dim[d] > 1 && row->along[d]);
	}
	return true;
}

static bool is_operand(const Joiner *j, const Node *n, Value *v)
{
	for (int i = 0; i < n->nargs; i++)
		if (now(j, n->arg[i]) == now(j, v))
			return true;
	return false;
}

static int made_by(const Joiner *j, const Node *n, Value *v)
{
	for (int i = 0; i < n->nres; i++)
		if (n->res[i] == now(j, v))
			return i;
	return -1;
}

/* Whether `row` has all that `column` reads, but for a little. */
static bool has_operands(const Joiner *j, const Node *row, const Node *column, const Shape *s)
{
	bool shared = false;
	for (int i = 0; i < column->nargs; i++) {
		Value *v = column->arg[i];
		bool has = is_operand(j, row, v) || made_by(j, row, v) >= 0, large = type_elems(&v->type) > s->length && type_elems(&v->type) > s->rows;
		if (large && !has)
			return false;
		shared = shared || (large && has);
	}
	return shared;
}

/* Nothing moves past it: what it does may be to a variable. */
static bool stays(const Node *n)
{
	for (const Node *k = n->op == OP_fused ? n->body->first : NULL; k; k = k->next)
		if (k->op == OP_assign)
			return true;
	return n->op == OP_loop || n->op == OP_assign;
}

/* Whether the two, in this order, may become one at the place of the second; of the first. */
static bool may_sink(const Joiner *j, const Node *first, const Node *second)
{
	for (const Node *n = first->next; n != second; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			if (made_by(j, first, n->arg[i]) >= 0)
				return false;
		if (stays(n))
			return false;
	}
	return true;
}

static bool may_rise(const Joiner *j, const Node *first, const Node *second)
{
	for (const Node *n = first->next; n != second; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			if (is_operand(j, second, n->res[i]))
				return false;
		if (stays(n))
			return false;
	}
	return true;
}

static int body_ops(const Node *fused)
{
	int count = 0;
	for (const Node *n = fused->body->first; n; n = n->next)
		count++;
	return count - 1;
}

static bool limits_allow(const Joiner *j, const Node *a, const Node *b)
{
	int operands = a->nargs;
	for (int i = 0; i < b->nargs; i++)
		operands += !is_operand(j, a, b->arg[i]);
	return body_ops(a) + body_ops(b) <= FUSE_MAX_OPS && operands <= FUSE_MAX_OPERANDS && a->nres + b->nres <= FUSE_MAX_RESULTS;
}

/* Whether `row`, which stands before or behind it, can take in `column`; *at: where the two are to be. */
static bool can_join(const Joiner *j, Node *row, Node *column, const Shape *s, bool before, Node **at)
{
	if (row->op != OP_fused || row->flags != column->flags || row->replay_of || !limits_allow(j, row, column))
		return false;
	Shape r = shape_of(row);
	if (r.nalong == 0 || r.fixed || !are_of_rows(s, &r) || !has_operands(j, row, column, s) ||
	    !j->caps->sums_beside_rows(s->rows, s->length, s->nover + r.nover))
		return false;
	for (int i = 0; i < row->nargs; i++) { /* what it makes of a sum it cannot make before the last row */
		int res = made_by(j, column, row->arg[i]);
		if (res >= 0 && type_elems(&column->res[res]->type) != type_elems(s->domain))
			return false;
	}
	const Node *first = before ? row : column, *second = before ? column : row;
	bool sinks = may_sink(j, first, second), rises = may_rise(j, first, second);
	*at = (before ? rises : !sinks) ? (Node *)(uintptr_t)first : (Node *)(uintptr_t)second;
	return sinks || rises;
}

static Node *find_rows(const Joiner *j, Node *column, const Shape *s, bool *before, Node **at)
{
	Node *up = column->prev, *down = column->next;
	for (int i = 0; i < NEAR && (up || down); i++) {
		if (down && can_join(j, down, column, s, false, at)) {
			*before = false;
			return down;
		}
		if (up && can_join(j, up, column, s, true, at)) {
			*before = true;
			return up;
		}
		up = up ? up->prev : NULL;
		down = down ? down->next : NULL;
	}
	return NULL;
}

/* ---- one kernel ---- */

/* Moves the body of `from` to that of `to`, whose operands `arg` are; nodes that are there already are left out. Values of the old body are
 * mapped through their aux. */
static void move_body(const Joiner *j, Node *from, const Node *earlier, Value *const *made, Node *to)
{
	for (int i = 0; i < from->nargs; i++) {
		Value *v = now(j, from->arg[i]);
		int res = earlier ? made_by(j, earlier, v) : -1;
		for (int k = 0; k < to->nargs && res < 0; k++)
			if (to->arg[k] == v)
				from->body->param[i]->aux = to->body->param[k];
		if (res >= 0)
			from->body->param[i]->aux = made[res];
	}
	for (Node *n = from->body->first, *next; n; n = next) {
		next = n->next;
		for (int i = 0; i < n->nargs; i++)
			n->arg[i] = n->arg[i]->aux;
		Node *same = to->body->first;
		while (same && !(same->nres == 1 && simplify_equal(same, n)))
			same = same->next;
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = same ? same->res[i] : n->res[i];
		if (!same && n->op != OP_yield)
			fuse_append(to->body, n);
	}
}

/* first: of the two kernels, which may be read by the second. */
static void join(Joiner *j, Node *first, Node *second, Node *at)
{
	int nargs = 0, nres = first->nres + second->nres;
	Value **args = ARENA_ARRAY(j->a, first->nargs + second->nargs + 1, Value *), **yields = ARENA_ARRAY(j->a, nres, Value *);
	Type *types = ARENA_ARRAY(j->a, nres, Type);
	for (int k = 0; k < 2; k++) {
		const Node *n = k ? second : first;
		for (int i = 0; i < n->nargs; i++) {
			Value *v = now(j, n->arg[i]);
			bool seen = k && made_by(j, first, v) >= 0;
			for (int x = 0; x < nargs; x++)
				seen = seen || args[x] == v;
			if (!seen)
				args[nargs++] = v;
		}
		for (int i = 0; i < n->nres; i++)
			types[k * first->nres + i] = n->res[i]->type;
	}
	Builder b = ir_builder(j->m, at->parent);
	b.before = at;
	b.span = second->span.source >= 0 ? second->span : first->span;
	b.flags = at->flags;
	Node *made = ir_region(&b, OP_fused, nargs, args, NULL, nres, types);
	for (int i = 0; i < nargs; i++)
		ir_block_param(j->m, made->body, args[i]->type);
	for (int k = 0; k < 2; k++) {
		Node *n = k ? second : first, *yield = n->body->last;
		move_body(j, n, k ? first : NULL, yields, made);
		for (int i = 0; i < n->nres; i++)
			yields[k * first->nres + i] = yield->arg[i];
	}
	for (int k = 0; k < 2; k++) {
		const Node *n = k ? second : first;
		for (int i = 0; i < n->nres; i++) {
			Value *r = made->res[k * first->nres + i];
			r->name = n->res[i]->name;
			r->id = (int32_t)j->now.len;
			vec_push(j->a, &j->now, NULL);
			j->now.at[n->res[i]->id] = r;
		}
	}
	Builder in = ir_builder(j->m, made->body);
	in.flags = at->flags;
	ir_node(&in, OP_yield, nres, yields, NULL, NULL);
	ir_unlink(first);
	ir_unlink(second);
	j->changed = true;
}

static void join_block(Joiner *j, Block *b)
{
	for (Node *n = b->first, *next; n; n = next) {
		bool before;
		Node *at;
		next = n->next;
		if (n->op == OP_loop)
			join_block(j, n->body);
		if (n->op != OP_fused || n->replay_of || n->nres == 0)
			continue;
		Shape s = shape_of(n);
		if (s.nover == 0 || s.nalong > 0 || s.fixed || !s.plain)
			continue;
		Node *row = find_rows(j, n, &s, &before, &at);
		if (!row)
			continue;
		if (next == row)
			next = row->next;
		join(j, before ? row : n, before ? n : row, at);
	}
}

void fuse_columns(Func *f, const Capabilities *caps)
{
	Joiner j = { .a = arena_new(), .m = f->module, .caps = caps };
	if (caps->sums_beside_rows) {
		int32_t values;
		ir_number(f, &values);
		for (int32_t i = 0; i < values; i++)
			vec_push(j.a, &j.now, NULL);
		join_block(&j, f->body);
	}
	if (j.changed) {
		ir_replace_all(f->body, j.now.at, (int32_t)j.now.len);
		ir_number(f, NULL);
	}
	arena_free(j.a);
}

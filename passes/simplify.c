/* simplify: fewer nodes, the same numbers.
 *
 * One walk over the nodes in order. A node's operands are first replaced by what stands for them
 * (Value.aux), then one local rule may reshape the node or name a value that equals its result,
 * then the table of nodes seen so far may know an equal one. Linear in nodes. Dead code goes at the
 * end.
 *
 * No rule changes a floating-point result: 0*x and x+0 stay (NaN, infinity, -0), sums keep their
 * order, and only what IEEE rounds exactly is folded at compile time, never exp or log. Forward and
 * backward nodes are not merged with each other, leaves apart: a backward pass that computes a
 * cheap value again must not be made to keep it. */
#include "simplify.h"

#include <math.h>

/* ---- equal nodes ---- */

typedef struct Table {
	Node **slot; /* open addressing */
	size_t mask;
} Table;

static uint64_t mix(uint64_t h, uint64_t x)
{
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint64_t hash_type(uint64_t h, const Type *t)
{
	h = mix(h, (uint64_t)t->dtype << 32 | (uint64_t)t->batch << 8 | t->ndim);
	for (int i = 0; i < t->ndim; i++)
		h = mix(h, (uint64_t)t->dim[i]);
	return h;
}

static uint64_t hash_attr(uint64_t h, AttrKind kind, const Attr *a)
{
	if (kind == A_STR) {
		for (const char *s = a->s ? a->s : ""; *s; s++)
			h = mix(h, (unsigned char)*s);
	} else if (kind == A_INTS) {
		for (int i = 0; i < a->ints.n; i++)
			h = mix(h, (uint64_t)a->ints.v[i]);
	} else {
		uint64_t bits; /* of a float as well: 0 and -0 are different constants */
		memcpy(&bits, &a->i, sizeof bits);
		h = mix(h, bits);
	}
	return h;
}

static bool equal_attr(AttrKind kind, const Attr *a, const Attr *b)
{
	if (kind == A_STR)
		return !strcmp(a->s ? a->s : "", b->s ? b->s : "");
	if (kind == A_INTS)
		return a->ints.n == b->ints.n &&
		       !memcmp(a->ints.v, b->ints.v, (size_t)a->ints.n * sizeof *a->ints.v);
	return a->i == b->i;
}

/* Leaves cost nothing, so one serves forward and backward pass. */
static int merge_flags(const Node *n)
{
	return ir_ops[n->op].kind == K_LEAF ? 0 : n->flags;
}

static uint64_t hash_node(const Node *n)
{
	uint64_t h = mix((uint64_t)n->op, (uint64_t)merge_flags(n));
	for (int i = 0; i < n->nargs; i++)
		h = mix(h, (uint64_t)(uintptr_t)n->arg[i]);
	const AttrSpec *spec = ir_ops[n->op].attrs;
	for (int i = 0; i < 8 && spec[i].kind != A_END; i++)
		h = hash_attr(h, spec[i].kind, &n->attr[i]);
	return hash_type(h, &n->res[0]->type);
}

bool simplify_equal(const Node *a, const Node *b)
{
	if (a->op != b->op || merge_flags(a) != merge_flags(b) || a->nargs != b->nargs ||
	    a->nres != b->nres)
		return false;
	for (int i = 0; i < a->nargs; i++)
		if (a->arg[i] != b->arg[i])
			return false;
	const AttrSpec *spec = ir_ops[a->op].attrs;
	for (int i = 0; i < 8 && spec[i].kind != A_END; i++)
		if (!equal_attr(spec[i].kind, &a->attr[i], &b->attr[i]))
			return false;
	for (int i = 0; i < a->nres; i++)
		if (!type_equal(&a->res[i]->type, &b->res[i]->type))
			return false;
	return true;
}

/* An equal node seen before; else n is entered and NULL comes back. */
static Node *find_equal(Table *t, Node *n)
{
	size_t i = hash_node(n) & t->mask;
	for (; t->slot[i]; i = (i + 1) & t->mask)
		if (simplify_equal(t->slot[i], n))
			return t->slot[i];
	t->slot[i] = n;
	return NULL;
}

/* ---- constants ---- */

static bool is_const(const Value *v, double *c)
{
	if (!v->def || v->def->op != OP_const)
		return false;
	*c = ir_float(v->def, "value");
	return true;
}

static bool is_number(const Value *v, double c)
{
	double is;
	return is_const(v, &is) && is == c && signbit(is) == signbit(c);
}

/* v rounded to t; false where that is not a plain, exact matter. */
static bool round_to(DType t, double v, double *out)
{
	const double exact = 9007199254740992.0; /* 2^53 */
	if (!isfinite(v))
		return false;
	*out = t == DT_F32 ? (double)(float)v : v;
	if (t == DT_F64 || t == DT_F32)
		return isfinite(*out);
	if (t == DT_BOOL)
		return v == 0 || v == 1;
	if (v != trunc(v) || fabs(v) > exact)
		return false;
	return t == DT_I64 || (t == DT_I32 && v >= INT32_MIN && v <= INT32_MAX) ||
	       (t == DT_U16 && v >= 0 && v <= 65535) || (t == DT_U8 && v >= 0 && v <= 255);
}

/* The result of `op` in f64: with operands of 24 bits a second rounding to f32 gives what f32
 * arithmetic gives. */
static bool fold_op(OpCode op, bool integers, double x, double y, double *r)
{
	switch ((int)op) {
	case OP_add: *r = x + y; return true;
	case OP_sub: *r = x - y; return true;
	case OP_mul: *r = x * y; return true;
	case OP_div: *r = x / y; return !integers;
	case OP_max: *r = x > y ? x : y; return x != y;
	case OP_min: *r = x < y ? x : y; return x != y;
	case OP_neg: *r = -x; return !integers || x != 0;
	case OP_abs: *r = fabs(x); return true;
	case OP_sqrt: *r = sqrt(x); return true;
	case OP_cast:
	case OP_stop_gradient: *r = x; return true;
	case OP_eq: *r = x == y; return true;
	case OP_ne: *r = x != y; return true;
	case OP_lt: *r = x < y; return true;
	case OP_le: *r = x <= y; return true;
	case OP_gt: *r = x > y; return true;
	case OP_ge: *r = x >= y; return true;
	default: return false;
	}
}

/* An op on constants of one dtype, as a constant. */
static bool fold(const Node *n, double *r)
{
	double v[2] = { 0, 0 };
	if (ir_ops[n->op].kind != K_EWISE || n->nargs > 2)
		return false;
	DType d = n->arg[0]->type.dtype;
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->type.dtype != d || !is_const(n->arg[i], &v[i]) ||
		    !round_to(d, v[i], &v[i]))
			return false;
	DType to = n->res[0]->type.dtype;
	if (n->op == OP_cast && !dtype_is_float(to) && dtype_is_float(d))
		return false;
	return fold_op(n->op, !dtype_is_float(d), v[0], v[1], r) && round_to(to, *r, r);
}

/* ---- local rules: each gives a value that equals the node's result, or NULL; some change the node
 * in place ---- */

typedef struct Simplifier {
	Module *m;
	bool drop_stops, changed;
} Simplifier;

static Builder before(const Simplifier *s, Node *n)
{
	Builder b = ir_builder(s->m, n->parent);
	b.before = n;
	b.span = n->span;
	b.flags = n->flags;
	return b;
}

static Value *new_const(const Simplifier *s, Node *n, double v)
{
	Builder b = before(s, n);
	return ir_const(&b, n->res[0]->type, v);
}

/* The node's defining operation of arg i, where it is `op`. */
static Node *made_by(const Node *n, int i, OpCode op)
{
	Node *def = n->arg[i]->def;
	return def && def->op == op ? def : NULL;
}

/* True where every value of dtype `from` exists in `to`. */
static bool widens(DType from, DType to)
{
	if (from == to || from == DT_BOOL)
		return true;
	switch ((int)from) {
	case DT_U8: return to != DT_BOOL;
	case DT_U16: return to == DT_I32 || to == DT_I64 || to == DT_F32 || to == DT_F64;
	case DT_I32: return to == DT_I64 || to == DT_F64;
	case DT_F16:
	case DT_BF16: return to == DT_F32 || to == DT_F64;
	case DT_F32: return to == DT_F64;
	default: return false;
	}
}

static Value *rule_arithmetic(Simplifier *s, Node *n)
{
	Value *x = n->arg[0], *y = n->nargs > 1 ? n->arg[1] : NULL;
	const Type *t = &n->res[0]->type;
	bool like_x = type_equal(&x->type, t), like_y = y && type_equal(&y->type, t);
	Node *negated;
	switch ((int)n->op) {
	case OP_mul:
		if (like_x && is_number(y, 1))
			return x;
		return like_y && is_number(x, 1) ? y : NULL;
	case OP_div: return like_x && is_number(y, 1) ? x : NULL;
	case OP_sub:
		if (like_x && is_number(y, 0))
			return x;
		negated = made_by(n, 1, OP_neg);
		if (negated) { /* x - (-y) = x + y */
			n->op = OP_add;
			n->arg[1] = negated->arg[0];
			s->changed = true;
		}
		return NULL;
	case OP_add:
		if (like_x && is_number(y, -0.0))
			return x;
		negated = made_by(n, 1, OP_neg);
		if (negated) { /* x + (-y) = x - y */
			n->op = OP_sub;
			n->arg[1] = negated->arg[0];
			s->changed = true;
		} else if ((negated = made_by(n, 0, OP_neg)) != NULL) { /* (-x) + y = y - x */
			n->op = OP_sub;
			n->arg[0] = y;
			n->arg[1] = negated->arg[0];
			s->changed = true;
		}
		return NULL;
	case OP_neg:
	case OP_not: negated = made_by(n, 0, n->op); return negated ? negated->arg[0] : NULL;
	case OP_select:
		if (n->arg[1] == n->arg[2] && type_equal(&n->arg[1]->type, t))
			return n->arg[1];
		if (is_number(x, 1) && type_equal(&n->arg[1]->type, t))
			return n->arg[1];
		return is_number(x, 0) && type_equal(&n->arg[2]->type, t) ? n->arg[2] : NULL;
	case OP_stop_gradient: return s->drop_stops ? x : NULL;
	default: return NULL;
	}
}

static Value *rule_cast(Simplifier *s, Node *n)
{
	DType to = n->res[0]->type.dtype;
	Node *inner = made_by(n, 0, OP_cast);
	if (inner && widens(inner->arg[0]->type.dtype, inner->res[0]->type.dtype)) {
		n->arg[0] = inner->arg[0];
		s->changed = true;
	}
	return n->arg[0]->type.dtype == to ? n->arg[0] : NULL;
}

static bool is_identity(const IntList *perm)
{
	for (int i = 0; i < perm->n; i++)
		if (perm->v[i] != i)
			return false;
	return true;
}

static Value *rule_transpose(Simplifier *s, Node *n)
{
	Node *inner = made_by(n, 0, OP_transpose);
	IntList *perm = &ir_attr(n, "perm")->ints;
	if (inner) {
		const IntList *first = ir_ints(inner, "perm");
		for (int i = 0; i < perm->n; i++)
			perm->v[i] = first->v[perm->v[i]];
		n->arg[0] = inner->arg[0];
		s->changed = true;
	}
	return is_identity(perm) ? n->arg[0] : NULL;
}

static Value *rule_slice(Simplifier *s, Node *n)
{
	Node *inner = made_by(n, 0, OP_slice);
	if (inner && ir_int(inner, "axis") == ir_int(n, "axis")) {
		ir_attr(n, "start")->i += ir_int(inner, "start");
		ir_attr(n, "stop")->i += ir_int(inner, "start");
		n->arg[0] = inner->arg[0];
		s->changed = true;
	}
	return type_equal(&n->arg[0]->type, &n->res[0]->type) ? n->arg[0] : NULL;
}

static Value *rule_shape(Simplifier *s, Node *n)
{
	double c;
	Node *inner;
	if (is_const(n->arg[0], &c) && n->op != OP_concat && n->op != OP_pad &&
	    n->op != OP_batch_sum)
		return new_const(s, n, c);
	switch ((int)n->op) {
	case OP_reshape:
	case OP_broadcast:
		/* A reshape of a reshape; a broadcast of a broadcast. */
		inner = made_by(n, 0, n->op);
		if (inner) {
			n->arg[0] = inner->arg[0];
			s->changed = true;
		}
		return type_equal(&n->arg[0]->type, &n->res[0]->type) ? n->arg[0] : NULL;
	case OP_transpose: return rule_transpose(s, n);
	case OP_slice: return rule_slice(s, n);
	case OP_concat: return n->nargs == 1 ? n->arg[0] : NULL;
	case OP_pad: return ir_int(n, "before") || ir_int(n, "after") ? NULL : n->arg[0];
	default: return NULL;
	}
}

/* sum(-x) = -sum(x): rounding is symmetric, and the smaller tensor is negated. */
static Value *rule_reduce(Simplifier *s, Node *n)
{
	Node *negated = made_by(n, 0, OP_neg);
	if (n->op == OP_argmax)
		return NULL;
	if (ir_ints(n, "axes")->n == 0)
		return n->arg[0];
	if (!negated || n->op == OP_reduce_max)
		return NULL;
	Builder b = before(s, n);
	s->changed = true;
	return ir_unary(&b, OP_neg, ir_value(&b, n->op, 1, &negated->arg[0], n->attr, NULL));
}

/* A product reads a matrix that is stored transposed with a flag. */
static Value *rule_matmul(Simplifier *s, Node *n)
{
	for (int i = 0; i < 2; i++) {
		Node *t = made_by(n, i, OP_transpose);
		IntList perm;
		if (!t || (perm = *ir_ints(t, "perm")).n < 2)
			continue;
		int64_t last = perm.v[perm.n - 1];
		perm.v[perm.n - 1] = perm.v[perm.n - 2];
		perm.v[perm.n - 2] = last;
		if (!is_identity(&perm))
			continue;
		Attr *flag = ir_attr(n, i ? "tb" : "ta");
		flag->i = !flag->i;
		n->arg[i] = t->arg[0];
		s->changed = true;
	}
	return NULL;
}

static bool is_only_reader(const Node *n, const Value *v)
{
	int reads = 0;
	for (const Node *x = v->def->next; x; x = x->next) {
		if (x->op == OP_loop)
			return false;
		for (int i = 0; i < x->nargs; i++)
			reads += x->arg[i] == v;
	}
	return reads == 1 && n->parent == v->def->parent;
}

/* max_pool2d(relu(x)) = relu(max_pool2d(x)), NaN included, and so are the gradients: a window without a positive element gives
 * none either way. relu then has fewer elements, and its wide result need not exist. */
static Value *rule_max_pool2d(Simplifier *s, Node *n)
{
	Node *relu = made_by(n, 0, OP_relu);
	if (!relu || relu->replay_of || relu->flags != n->flags || !is_only_reader(n, relu->res[0]))
		return NULL;
	Builder b = before(s, n);
	s->changed = true;
	return ir_unary(&b, OP_relu, ir_value(&b, n->op, 1, relu->arg, n->attr, NULL));
}

/* True where a reshape only puts axes of size 1 in front. */
static bool adds_leading_ones(const Node *n)
{
	const Type *x = &n->arg[0]->type, *y = &n->res[0]->type;
	int more = y->ndim - x->ndim;
	if (more < 0 || y->batch != x->batch << more)
		return false;
	for (int i = 0; i < y->ndim; i++)
		if (y->dim[i] != (i < more ? 1 : x->dim[i - more]))
			return false;
	return true;
}

/* Element-wise ops broadcast by themselves: a broadcast operand is read as it was, where the result
 * stays the same. */
static void drop_broadcasts(Simplifier *s, Node *n)
{
	for (int i = 0; i < n->nargs; i++) {
		Node *wide = n->arg[i]->def;
		Type t;
		char why[256];
		if (!wide || (wide->op != OP_broadcast &&
			      !(wide->op == OP_reshape && adds_leading_ones(wide))))
			continue;
		n->arg[i] = wide->arg[0];
		if (ir_ops[n->op].type(n, &t, why) && type_equal(&t, &n->res[0]->type))
			s->changed = true;
		else
			n->arg[i] = wide->res[0];
	}
}

static Value *apply_rules(Simplifier *s, Node *n)
{
	double c;
	switch ((int)ir_ops[n->op].kind) {
	case K_EWISE:
		drop_broadcasts(s, n);
		if (fold(n, &c))
			return new_const(s, n, c);
		return n->op == OP_cast ? rule_cast(s, n) : rule_arithmetic(s, n);
	case K_SHAPE: return rule_shape(s, n);
	case K_REDUCE: return rule_reduce(s, n);
	case K_MATRIX: return n->op == OP_matmul ? rule_matmul(s, n) : NULL;
	case K_KERNEL: return n->op == OP_max_pool2d ? rule_max_pool2d(s, n) : NULL;
	default: return NULL;
	}
}

/* ---- the walk ---- */

static bool may_merge(const Node *n)
{
	OpKind k = ir_ops[n->op].kind;
	return n->nres > 0 && !n->replay_of && k != K_EFFECT && k != K_REGION && k != K_OPAQUE &&
	       k != K_MACRO && k != K_MOVE;
}

/* 16-bit numbers are widened where they are read: one wide copy for several kernels would have to
 * be stored. */
static bool is_widening(const Node *n)
{
	return n->op == OP_cast && dtype_bytes(n->arg[0]->type.dtype) == 2 &&
	       dtype_is_float(n->arg[0]->type.dtype) && dtype_bytes(n->res[0]->type.dtype) > 2;
}

static void map_args(Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->aux)
			n->arg[i] = n->arg[i]->aux;
}

static size_t count_nodes(const Block *b)
{
	size_t n = 0;
	for (const Node *x = b->first; x; x = x->next)
		n++;
	return n;
}

static void clear_aux(const Block *b)
{
	for (int i = 0; i < b->nparam; i++)
		b->param[i]->aux = NULL;
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = NULL;
		if (n->op == OP_loop)
			clear_aux(n->body);
	}
}

/* A loop's body has a table of its own: what it computes, it computes each trip. */
static void simplify_block(Simplifier *s, Block *block, Arena *scratch)
{
	Table t = { .mask = 16 };
	while (t.mask < 4 * count_nodes(block)) /* rules add constants: at most one a node */
		t.mask *= 2;
	t.slot = ARENA_ARRAY(scratch, t.mask, Node *);
	t.mask--;
	for (Node *n = block->first, *next; n; n = next) {
		next = n->next;
		map_args(n);
		if (n->op == OP_loop)
			simplify_block(s, n->body, scratch);
		if (!may_merge(n))
			continue;
		Value *same = n->replay_of ? NULL : apply_rules(s, n);
		if (same && same->def && same->def->op == OP_const) {
			Node *first = find_equal(&t, same->def);
			same = first ? first->res[0] : same;
		}
		Node *equal = same || is_widening(n) ? NULL : find_equal(&t, n);
		if (!same && (!equal || equal == n))
			continue;
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = equal ? equal->res[i] : same;
		ir_unlink(n);
		s->changed = true;
	}
}

/* Kernels and replays are decided on the graph as it was; what is left then is not to be moved. */
static bool is_scheduled(const Block *b)
{
	for (const Node *n = b->first; n; n = n->next)
		if (n->op == OP_fused || n->replay_of || (n->op == OP_loop && is_scheduled(n->body)))
			return true;
	return false;
}

bool simplify_func(Func *f, bool drop_stops)
{
	if (is_scheduled(f->body))
		return false;
	Simplifier s = { .m = f->module, .drop_stops = drop_stops };
	Arena *scratch = arena_new();
	clear_aux(f->body);
	simplify_block(&s, f->body, scratch);
	arena_free(scratch);
	return ir_dce(f) > 0 || s.changed;
}

PassResult pass_simplify(Module *m, PassCtx *cx)
{
	bool changed = false;
	for (Func *f = m->funcs; f; f = f->next) {
		bool trains = !strcmp(f->name, "step") || !strcmp(f->name, "forward");
		changed |= simplify_func(f, !trains || (cx->facts & FACT_BACKWARD) != 0);
	}
	return changed ? PASS_CHANGED : PASS_SAME;
}

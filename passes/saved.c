/* Fewer kept tensors, at no cost: a part of autodiff.
 *
 * Gradient rules read forward values as they find them. A normalisation reads x - mean and
 * (x - mean)*rstd, a loss exp(logits - max): as large as x or the logits, and computed from them
 * in one or two element-wise steps inside a kernel that would have to store them.
 *
 *     forward   d = sub x, mean     h = mul d, rstd         the same
 *     backward  .. mul g, h ..  mul s, d ..            =>   d' = sub x, mean   h' = mul d', rstd
 *                                                           .. mul g, h' ..  mul s, d' ..
 *     kept      d, h                                        x, and the small mean and rstd
 *
 * Before that, what a gradient only finds its way by is kept instead of what it was found in:
 *
 *     forward   y = max_pool2d x                            y, p = max_pool2d_index x
 *     backward  .. max_pool2d_grad x, dy ..             =>  .. max_pool2d_index_grad p, dy ..
 *     kept      x                                           p, 8 bits for each window
 *
 *     forward   y = relu x                                  y = relu x    m = gt y, 0
 *     backward  .. select (gt y, 0), dy ..              =>  .. select m, dy ..
 *     kept      y                                           m, 8 bits for each element
 *
 * where no other backward node wants x or y and nothing that is kept anyway gives them.
 *
 * A forward value that only element-wise and reducing backward nodes read is traced through
 * element-wise ops to what is small, a leaf or a variable, and to large tensors. Without a large
 * one it is computed again in any case; with one, its base, when the base is kept anyway, serves
 * two such values, or is the stored result of a product; with more it is left alone. The copies run
 * inside the kernels that read them. Planning against a budget is `recompute`'s matter. */
#include "saved.h"

typedef struct Facts {
	bool backward; /* made by autodiff */
	bool stored;   /* a backward node that is no kernel code reads it: it is kept whole */
	bool wanted;   /* kernel code of the backward pass reads it */
	int readers;   /* backward nodes' operands that it is */
	int compared;  /* of those, by comparisons with a constant */
	Node *pool;    /* a max_pool2d of it */
	int pools;     /* how many there are, and gradients of them */
	bool traced;   /* base is known */
	bool again;    /* to be computed again */
	bool marked;   /* comparisons of it are kept instead */
	Value *base;   /* itself: not to be traced further; NULL: nothing large below */
	int serves;    /* of a base: values that could be computed from it */
	Value *copy;   /* the value, computed in the backward pass */
} Facts;

enum { DEPTH = 8 }; /* steps from a value to its base */

static Facts *facts(const Value *v)
{
	return v->aux;
}

static bool is_kernel_code(const Node *n)
{
	OpKind k = ir_ops[n->op].kind;
	return k == K_EWISE || k == K_REDUCE;
}

/* Free to read again anywhere: a variable, a leaf, or at most a quarter of v's size. */
static bool is_small(const Value *x, const Value *v)
{
	if (x->def && ir_ops[x->def->op].kind == K_LEAF && x->def->op != OP_input)
		return true;
	return type_elems(&x->type) <= type_elems(&v->type) / 4;
}

static bool is_cheap(const Node *n)
{
	return n && ir_ops[n->op].kind == K_EWISE && ir_ops[n->op].remat == RM_CHEAP &&
	       !(n->flags & NF_BACKWARD);
}

static Value *trace(Value *v, int depth);

/* The one large tensor below v's element-wise ops; NULL where there is none; v itself where v is
 * kept or not cheap, or where there are several. */
static Value *base_of(Value *v, int depth)
{
	Value *base = NULL;
	if (facts(v)->stored || !is_cheap(v->def) || depth == 0)
		return v;
	for (int i = 0; i < v->def->nargs; i++) {
		Value *x = v->def->arg[i];
		Value *below = is_small(x, v) ? NULL : trace(x, depth - 1);
		if (base && below && below != base)
			return v;
		base = below ? below : base;
	}
	return base;
}

/* The same, once for each value. */
static Value *trace(Value *v, int depth)
{
	Facts *f = facts(v);
	if (!f->traced) {
		f->base = base_of(v, depth);
		f->traced = true;
	}
	return f->base;
}

/* v compared with a constant, element by element. */
static bool compares(const Node *n, const Value *v)
{
	const Node *with = n->nargs == 2 && ir_ops[n->op].kind == K_EWISE ? n->arg[n->arg[0] == v]->def : NULL;
	return with && with->op == OP_const && n->res[0]->type.dtype == DT_BOOL &&
	       type_elems(&n->res[0]->type) == type_elems(&v->type);
}

static void note_uses(Node *n)
{
	for (int i = 0; i < n->nargs; i++) {
		Facts *f = facts(n->arg[i]);
		bool of_pool = n->op == OP_max_pool2d || (n->op == OP_max_pool2d_grad && i == 0);
		f->pools += of_pool;
		if (n->op == OP_max_pool2d)
			f->pool = n;
		if (!(n->flags & NF_BACKWARD))
			continue;
		f->readers++;
		f->compared += compares(n, n->arg[i]);
		if (is_kernel_code(n))
			f->wanted = true;
		else
			f->stored = true;
	}
}

static bool is_candidate(const Value *v)
{
	const Facts *f = facts(v);
	return !f->backward && f->wanted && !f->stored && is_cheap(v->def);
}

/* v in the backward pass, in front of its first reader there; the chain from the base is copied
 * once. */
static Value *copy_of(Builder *b, Value *v, const Value *base, const Value *of)
{
	Facts *f = facts(v);
	if (v == base || (v != of && is_small(v, of)))
		return v;
	if (f->copy)
		return f->copy;
	Value *arg[4];
	Node *n = v->def;
	for (int i = 0; i < n->nargs; i++)
		arg[i] = copy_of(b, n->arg[i], base, v);
	b->span = n->span;
	b->flags = NF_BACKWARD | (n->flags & NF_PRECISION);
	f->copy = ir_value(b, n->op, n->nargs, arg, n->attr, NULL);
	return f->copy;
}

static void give_facts(Arena *a, const Block *body)
{
	for (const Node *n = body->first; n; n = n->next)
		for (int i = 0; i < n->nres; i++) {
			Facts *f = ARENA_NEW(a, Facts);
			f->backward = (n->flags & NF_BACKWARD) != 0;
			n->res[i]->aux = f;
		}
	for (Node *n = body->first; n; n = n->next)
		note_uses(n);
}

/* ---- marks ---- */

/* One max_pool2d of x and its gradient, and comparisons besides: nothing else of the backward pass reads x. */
static bool needs_places(const Node *grad)
{
	const Facts *f = facts(grad->arg[0]);
	const Node *x = grad->arg[0]->def;
	const IntList *kernel = ir_ints(grad, "kernel");
	return !f->backward && f->pools == 2 && f->pool && f->readers == f->compared + 1 && kernel->v[0] <= 256 / kernel->v[1] &&
	       type_elems(&grad->arg[1]->type) < type_bytes(&grad->arg[0]->type) && x && ir_ops[x->op].kind != K_LEAF;
}

static void keep_places(Func *step, Node *grad)
{
	Node *pool = facts(grad->arg[0])->pool;
	Builder b = ir_builder(step->module, step->body);
	b.before = pool;
	b.span = pool->span;
	b.flags = pool->flags;
	const Node *now = ir_node(&b, OP_max_pool2d_index, 1, pool->arg, pool->attr, NULL);
	b.before = grad;
	b.span = grad->span;
	b.flags = grad->flags;
	Value *arg[] = { now->res[1], grad->arg[1] };
	Value *dx = ir_value(&b, OP_max_pool2d_index_grad, 2, arg, grad->attr, &grad->res[0]->type);
	ir_replace_uses(step->body, pool->res[0], now->res[0]);
	ir_replace_uses(step->body, grad->res[0], dx);
	ir_unlink(pool);
	ir_unlink(grad);
}

static bool keep_all_places(Func *step)
{
	bool any = false;
	for (Node *n = step->body->first, *next; n; n = next) {
		next = n->next;
		if (n->op != OP_max_pool2d_grad || !needs_places(n))
			continue;
		keep_places(step, n);
		any = true;
	}
	return any;
}

/* A comparison of the backward pass, made where the forward pass has the value. */
static void keep_mark(Func *step, Node *n, const Value *v)
{
	int other = n->arg[0] == v;
	Builder b = ir_builder(step->module, step->body);
	b.before = v->def->next;
	b.span = n->span;
	b.flags = n->flags & ~NF_BACKWARD;
	Value *arg[2] = { n->arg[0], n->arg[1] };
	arg[other] = ir_const(&b, n->arg[other]->type, ir_float(n->arg[other]->def, "value"));
	Value *mark = ir_value(&b, n->op, 2, arg, n->attr, NULL);
	ir_replace_uses(step->body, n->res[0], mark);
	ir_unlink(n);
}

static bool is_worth_it(const Value *base)
{
	const Facts *f = facts(base);
	bool whole =
		base->def && !is_kernel_code(base->def) && ir_ops[base->def->op].kind != K_SHAPE;
	return f->stored || f->wanted || f->serves > 1 || whole;
}

/* All that reads it in the backward pass are comparisons, whose results together are smaller. */
static bool can_be_marked(const Value *v)
{
	const Facts *f = facts(v);
	return !f->backward && f->readers > 0 && f->readers == f->compared && f->serves == 0 &&
	       f->compared * type_elems(&v->type) < type_bytes(&v->type) && v->def && ir_ops[v->def->op].kind != K_LEAF;
}

/* The base is not kept for anything else. */
static bool is_own(const Value *base)
{
	const Facts *f = facts(base);
	return !f->stored && !f->wanted && f->serves <= 1;
}

static void decide(const Block *body)
{
	for (Node *n = body->first; n; n = n->next) {
		Value *v = n->nres == 1 ? n->res[0] : NULL;
		if (v && is_candidate(v) && trace(v, DEPTH) && trace(v, DEPTH) != v)
			facts(facts(v)->base)->serves++;
	}
	for (Node *n = body->first; n; n = n->next) {
		Value *v = n->nres == 1 ? n->res[0] : NULL;
		Value *base = v && is_candidate(v) ? facts(v)->base : v;
		if (v && base != v)
			facts(v)->again = !base || is_worth_it(base);
		if (v && can_be_marked(v) && base && (base == v || is_own(base)))
			facts(v)->marked = true;
	}
}

void saved_reduce(Func *step)
{
	Arena *scratch = arena_new();
	Block *body = step->body;
	give_facts(scratch, body);
	if (keep_all_places(step))
		give_facts(scratch, body);
	decide(body);
	for (Node *n = body->first, *next; n; n = next) {
		next = n->next;
		if (!(n->flags & NF_BACKWARD) || !is_kernel_code(n))
			continue;
		Builder b = ir_builder(step->module, body);
		b.before = n;
		for (int i = 0; i < n->nargs; i++) {
			Value *v = n->arg[i];
			if (facts(v) && facts(v)->marked) {
				keep_mark(step, n, v);
				break;
			}
			if (facts(v) && facts(v)->again)
				n->arg[i] = copy_of(&b, v, facts(v)->base, v);
		}
	}
	arena_free(scratch);
}

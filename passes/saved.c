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
	bool traced;   /* base is known */
	bool again;    /* to be computed again */
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

static void note_uses(const Node *n)
{
	for (int i = 0; i < n->nargs && (n->flags & NF_BACKWARD); i++) {
		Facts *f = facts(n->arg[i]);
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
	for (const Node *n = body->first; n; n = n->next)
		note_uses(n);
}

static bool is_worth_it(const Value *base)
{
	const Facts *f = facts(base);
	bool whole =
		base->def && !is_kernel_code(base->def) && ir_ops[base->def->op].kind != K_SHAPE;
	return f->stored || f->wanted || f->serves > 1 || whole;
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
		if (v && is_candidate(v))
			facts(v)->again = !facts(v)->base ||
					  (facts(v)->base != v && is_worth_it(facts(v)->base));
	}
}

void saved_reduce(Func *step)
{
	Arena *scratch = arena_new();
	Block *body = step->body;
	give_facts(scratch, body);
	decide(body);
	for (Node *n = body->first; n; n = n->next) {
		if (!(n->flags & NF_BACKWARD) || !is_kernel_code(n))
			continue;
		Builder b = ir_builder(step->module, body);
		b.before = n;
		for (int i = 0; i < n->nargs; i++) {
			Value *v = n->arg[i];
			if (facts(v) && facts(v)->again)
				n->arg[i] = copy_of(&b, v, facts(v)->base, v);
		}
	}
	arena_free(scratch);
}

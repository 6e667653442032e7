/* fold_sums: products add to the sum of gradients that they go into.
 *
 * A loop over micro-batches carries sums of gradients, a head in chunks adds up its parts, a tied parameter has a gradient of two
 * products. Each product would get a buffer of its own, as large as the sum, for a kernel to add up. Instead the ops that have an
 * operand to add to (OPF_ACC) go on with the sum, in its bytes:
 *
 *     %g = embedding_grad %at, %dx                 %s = matmul %z, %dz, %param {ta}
 *     %h = matmul %z, %dz {ta}              =>     %t = embedding_grad %at, %dx, %s
 *     %t = add %param, (add %g, %h)
 *
 * A sum is a tree of `add`s of f32 values, each but the last with the next one as its only reader, perhaps behind reshapes. Its terms
 * are taken in the order in which they are made, so that nothing has to move: what is there before comes first. A term that is no
 * product, or one that something else reads, is added by an `add` as before. The chain begins with a value whose bytes it may have:
 * made in this block or a carried one, with no other reader; terms that are not so (variables, values from outside a loop) come last.
 *
 * This changes the order of sums, and so is done the same way in every plan of a micro-batch and a number of chunks.
 *
 * Invariant: the order of nodes stays topological. */
#include "fold_sums.h"

#include <stdlib.h>

typedef struct Term {
	Value *v;       /* of the sum's elements, perhaps in another shape */
	Node *product;  /* that makes it, where the sum may go through it; else NULL */
	int32_t pos;    /* of what makes it; -1: it is there before the block begins */
	int32_t number; /* among the terms as they are added up */
	bool owned;     /* the sum may have its bytes */
} Term;

typedef struct Fold {
	const Capabilities *caps;
	Arena *arena;
	Module *m;
	int32_t *reads; /* by Value.id: how often it is an operand, views included */
	bool *part;     /* by position: an `add` within a larger sum */
	Value **now;    /* by Value.id: what stands for a sum that has been rewritten, which its readers learn at the end; NULL: itself */
	VEC(Term) term;
	VEC(Value *) todo;
	bool changed;
} Fold;

static void count_reads(Fold *f, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++)
			f->reads[n->arg[i]->id]++;
		if (n->op == OP_loop)
			count_reads(f, n->body);
	}
}

/* ---- terms ---- */

/* An element by element sum of gradients in f32. Values of samples are not meant: their sums go into larger kernels. */
static bool is_sum(const Node *n)
{
	const Type *t = n->op == OP_add ? &n->res[0]->type : NULL;

	return t && t->dtype == DT_F32 && t->ndim > 0 && t->batch == 0 && n->flags & NF_BACKWARD && type_equal(t, &n->arg[0]->type) &&
	       type_equal(t, &n->arg[1]->type);
}

static bool is_product(const Fold *f, const Node *n)
{
	return ir_ops[n->op].flags & OPF_ACC && !ir_acc(n) && n->res[0]->type.dtype == DT_F32 && n->res[0]->type.batch == 0 &&
	       f->caps->accumulates(n);
}

static Term term_of(const Fold *f, const Block *b, Value *v, int32_t number)
{
	Node *def = v->def && v->def->parent == b ? v->def : NULL;
	const Value *root = ir_view_root(v, NULL);
	const Node *made = root->def;
	bool alone = f->reads[v->id] == 1 && (root == v || f->reads[root->id] == 1);
	Term t = { .v = v, .pos = def ? def->pos : -1, .number = number };

	t.owned = alone && (made ? made->parent == b && ir_ops[made->op].kind != K_LEAF : root->block == b);
	if (def && alone && is_product(f, def))
		t.product = def;
	return t;
}

static int compare_terms(const void *pa, const void *pb)
{
	const Term *a = pa, *b = pb;

	if (a->owned != b->owned)
		return a->owned ? -1 : 1;
	if (a->pos != b->pos)
		return a->pos < b->pos ? -1 : 1;
	return a->number - b->number;
}

/* Fills f->term with what `sum` adds up. */
static void collect(Fold *f, const Node *sum)
{
	const Block *b = sum->parent;

	f->term.len = 0;
	vec_push(f->arena, &f->todo, sum->arg[1]);
	vec_push(f->arena, &f->todo, sum->arg[0]);
	while (f->todo.len > 0) {
		Value *v = f->todo.at[--f->todo.len];

		while (f->reads[v->id] == 1 && v->def && v->def->op == OP_reshape && v->def->parent == b)
			v = v->def->arg[0];
		if (f->reads[v->id] == 1 && v->def && v->def->parent == b && is_sum(v->def)) {
			f->part[v->def->pos] = true;
			vec_push(f->arena, &f->todo, v->def->arg[1]);
			vec_push(f->arena, &f->todo, v->def->arg[0]);
		} else {
			Term t = term_of(f, b, v, (int32_t)f->term.len);

			vec_push(f->arena, &f->term, t);
		}
	}
	qsort(f->term.at, f->term.len, sizeof *f->term.at, compare_terms);
}

/* ---- the rewrite ---- */

/* Where what is added up behind term i stands: before the next product that goes on with it, else before the whole sum. */
static Node *place_behind(const Fold *f, size_t i, Node *sum)
{
	for (size_t k = i + 1; k < f->term.len; k++)
		if (f->term.at[k].product)
			return f->term.at[k].product;
	return sum;
}

static void rewrite(Fold *f, Node *sum)
{
	const Type *type = &sum->res[0]->type;
	Builder b = ir_builder(f->m, sum->parent);
	Value *v = f->term.at[0].v;

	b.span = sum->span;
	b.flags = sum->flags;
	for (size_t i = 1; i < f->term.len; i++) {
		const Term *t = &f->term.at[i];

		if (t->product) {
			b.before = t->product;
			ir_set_acc(f->m, t->product, ir_reshape(&b, v, t->v->type));
			v = t->v;
			continue;
		}
		b.before = place_behind(f, i, sum);
		v = ir_binary(&b, OP_add, ir_reshape(&b, v, *type), ir_reshape(&b, t->v, *type));
	}
	b.before = sum;
	f->now[sum->res[0]->id] = ir_reshape(&b, v, *type);
	f->changed = true;
}

/* A sum of equal terms (x + x) reads one value twice, and so owns it not. A single product must come behind something that is owned. */
static bool is_worth_it(const Fold *f)
{
	if (!f->term.at[0].owned)
		return false;
	for (size_t i = 1; i < f->term.len; i++)
		if (f->term.at[i].product)
			return true;
	return false;
}

/* The largest sums first; what the rewrite makes is not looked at again. */
static void fold_block(Fold *f, Block *b)
{
	VEC(Node *) sums = { 0 };

	for (Node *n = b->last; n; n = n->prev) {
		if (n->op == OP_loop)
			fold_block(f, n->body);
		if (is_sum(n))
			vec_push(f->arena, &sums, n);
	}
	for (size_t i = 0; i < sums.len; i++) {
		if (f->part[sums.at[i]->pos])
			continue;
		collect(f, sums.at[i]);
		if (is_worth_it(f))
			rewrite(f, sums.at[i]);
	}
}

bool fold_sums_func(Func *func, const Capabilities *caps)
{
	Fold f = { .caps = caps, .arena = arena_new(), .m = func->module };
	int32_t values, nodes = ir_number(func, &values);

	if (caps->accumulates) {
		f.reads = ARENA_ARRAY(f.arena, values, int32_t);
		f.part = ARENA_ARRAY(f.arena, nodes, bool);
		count_reads(&f, func->body);
		f.now = ARENA_ARRAY(f.arena, values, Value *);
		fold_block(&f, func->body);
	}
	if (f.changed)
		ir_replace_all(func->body, f.now, values);
	arena_free(f.arena);
	if (f.changed)
		ir_dce(func);
	return f.changed;
}

PassResult pass_fold_sums(Module *m, PassCtx *cx)
{
	return pass_each(m, cx, fold_sums_func);
}

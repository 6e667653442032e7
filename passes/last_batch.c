/* Smaller last batches; see last_batch.h.
 *
 * Shapes are fixed, and so the trainer fills up a smaller batch with samples that the epoch has had already, and says which
 * samples are none. They are computed, and count nowhere: neither in a sum over samples nor in the number that it is divided by.
 *
 *     %m = input {name = "batch.valid"} : bool[B']
 *     sum x (over samples)     =>   sum (select %m, x, 0)                      matmul, over samples: the same of its left operand
 *     batch_mean x             =>   batch_sum(sum (select %m, x, 0)) / batch_sum(sum (select %m, elements of a sample, 0))
 *     mse x, y                 =>   batch_mean (x - y)^2, as above
 *     cross_entropy x, t       =>   cross_entropy x, (select %m, t, ignore)
 *     batch_norm x, ..         =>   batch_norm x, .., %m                       (op_nn.c)
 *
 * So gradients, which come behind this, are those of the samples that there are: what is filled up has zeros. In a whole batch
 * every sample is one, in the same kernels and the same plan. What is filled up are samples of the data, so that nothing
 * is computed there that would not be computed anyway: no number that is infinite but for them.
 *
 * A value may have samples on one axis, in rows of a fixed number each. What else brings samples together, a maximum over the batch or
 * similarities of all with all, is refused. */
#include "last_batch.h"

#include "expand.h"

typedef struct Mask {
	Func *f;
	Builder b;
	Value *valid; /* NULL: not needed yet */
	bool failed;
} Mask;

/* ---- the mask beside a value ---- */

static int marks(const Type *t)
{
	return __builtin_popcount(t->batch);
}

static int marked_axis(const Type *t)
{
	return t->batch ? __builtin_ctz(t->batch) : -1;
}

static Value *valid_samples(Mask *m)
{
	if (!m->valid) {
		Builder front = m->b;
		Type t = type_scalar(DT_BOOL);
		t.ndim = 1;
		t.batch = 1;
		t.dim[0] = m->f->batch;
		front.before = expand_front(m->f);
		front.span = NO_SPAN;
		front.flags = 0;
		m->valid = ir_input(&front, LAST_BATCH_INPUT, t);
		ir_section(m->f->module, "data", "batch", "batch");
	}
	return m->valid;
}

/* bool, of one element for each index of x's axis of samples: [1,..,k*B',..,1], rows of a sample behind one another. */
static Value *valid_beside(Mask *m, const Type *x)
{
	Value *v = valid_samples(m);
	int axis = marked_axis(x);
	int64_t rows = x->dim[axis] / m->f->batch;
	Type t = { .dtype = DT_BOOL, .ndim = 2, .batch = 1, .dim = { m->f->batch, 1 } };
	if (rows > 1) {
		v = ir_reshape(&m->b, v, t);
		t.dim[1] = rows;
		v = ir_broadcast(&m->b, v, t);
	}
	t = (Type){ .dtype = DT_BOOL, .ndim = x->ndim, .batch = x->batch };
	for (int i = 0; i < x->ndim; i++)
		t.dim[i] = i == axis ? x->dim[i] : 1;
	return ir_reshape(&m->b, v, t);
}

/* x where there is a sample, else `other`. */
static Value *masked(Mask *m, Value *x, double other)
{
	return ir_select(&m->b, valid_beside(m, &x->type), x, ir_scalar(&m->b, x->type.dtype, other));
}

/* ---- what brings samples together ---- */

static Value *whole_sum(Mask *m, Value *x)
{
	return ir_unary(&m->b, OP_batch_sum, ir_reduce_all(&m->b, OP_sum, x));
}

/* The mean of all elements of x over the samples that there are. */
static Value *mean(Mask *m, Value *x)
{
	Type samples = { .dtype = x->type.dtype, .ndim = 1, .batch = 1, .dim = { m->f->batch } };
	double each = (double)type_elems(&x->type) / (double)m->f->batch;
	Value *count = whole_sum(m, masked(m, ir_const(&m->b, samples, each), 0));
	return ir_binary(&m->b, OP_div, whole_sum(m, masked(m, x, 0)), count);
}

static void replace(Mask *m, Node *n, Value *by)
{
	ir_replace_uses(m->f->body, n->res[0], by);
	ir_unlink(n);
}

static void mask_targets(Mask *m, Node *n)
{
	DType t = n->arg[1]->type.dtype;
	Value *target = t == DT_I64 ? n->arg[1] : ir_cast(&m->b, n->arg[1], DT_I32); /* an unsigned one may not hold `ignore` */
	n->arg[1] = masked(m, target, (double)ir_int(n, "ignore"));
}

static void add_operand(Mask *m, Node *n, Value *v)
{
	Value **arg = ARENA_ARRAY(m->f->module->arena, n->nargs + 1, Value *);
	for (int i = 0; i < n->nargs; i++)
		arg[i] = n->arg[i];
	arg[n->nargs++] = v;
	n->arg = arg;
}

/* ---- what can be told ---- */

static bool reads_samples(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->type.batch)
			return true;
	return false;
}

/* Axes that a reduction or an op along an axis goes over. */
static unsigned axes_over(const Node *n)
{
	unsigned axes = 0;
	if (ir_ops[n->op].kind == K_REDUCE) {
		const IntList *l = ir_ints(n, "axes");
		for (int i = 0; i < l->n; i++)
			axes |= 1u << l->v[i];
	} else if (ir_ops[n->op].kind == K_MACRO && op_attr_find(n->op, "axis", 4) >= 0) {
		int64_t axis = ir_int(n, "axis");
		axes = 1u << (axis < 0 ? axis + n->arg[0]->type.ndim : axis);
	}
	return axes;
}

/* Samples meet in n, in another way than as a sum of theirs. */
static bool mixes(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (marks(&n->arg[i]->type) > 1)
			return true;
	bool sum = n->op == OP_sum || n->op == OP_matmul || n->op == OP_batch_norm || n->op == OP_batch_mean ||
		   n->op == OP_mse || n->op == OP_cross_entropy;
	bool lost = n->nres > 0 && !n->res[0]->type.batch;
	return !sum && (lost || axes_over(n) & n->arg[0]->type.batch);
}

/* Told where it begins: what follows from values of two axes of samples is silent. */
static void refuse(Mask *m, const Node *n)
{
	Diag *d = m->f->module->diag;
	for (int i = 0; i < n->nargs && m->failed; i++)
		if (marks(&n->arg[i]->type) > 1)
			return;
	m->failed = true;
	diag_error(d, n->span, "%s brings the samples of a batch together, not as a sum or mean over them: with drop_last = false it would see samples that are none",
		   ir_ops[n->op].name);
	diag_hint(d, "drop_last = true leaves the last samples of an epoch out");
}

static void mask_node(Mask *m, Node *n)
{
	m->b.before = n;
	m->b.span = n->span;
	m->b.flags = n->flags;
	if (mixes(n)) {
		refuse(m, n);
		return;
	}
	bool lost = n->nres > 0 && !n->res[0]->type.batch;
	switch ((int)n->op) {
	case OP_cross_entropy: mask_targets(m, n); break;
	case OP_batch_mean: replace(m, n, mean(m, n->arg[0])); break;
	case OP_mse: {
		Value *d = ir_binary(&m->b, OP_sub, n->arg[0], n->arg[1]);
		replace(m, n, mean(m, ir_binary(&m->b, OP_mul, d, d)));
		break;
	}
	case OP_batch_norm: add_operand(m, n, valid_samples(m)); break;
	case OP_sum:
	case OP_matmul:
		if (lost)
			n->arg[0] = masked(m, n->arg[0], 0);
		break;
	default: break;
	}
}

bool last_batch_mask(Func *step)
{
	Mask m = { .f = step, .b = ir_builder(step->module, step->body) };
	if (ir_setting_num(ir_find_section(step->module, "train", ""), "drop_last", 1) != 0)
		return true;
	ir_dce(step); /* what only `predict` reads is no matter here */
	Node *last = step->body->last;
	for (Node *n = step->body->first, *next; n; n = next) {
		next = n == last ? NULL : n->next;
		if (reads_samples(n))
			mask_node(&m, n);
	}
	return !m.failed && !m.b.failed;
}

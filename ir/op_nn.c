/* Network ops: pools, embedding, attention, and the macros that expand into primitives.
 *
 * An expansion is written for what its gradient has to keep. Maxima that only guard against
 * overflow sit behind stop_gradient; losses are sums wrapped in batch_sum over counts wrapped in
 * batch_sum (ARCHITECTURE.md, "The whole batch"), in evaluation plain means, so that an evaluation
 * can be re-typed for another batch. */
#include "op_util.h"

/* ---- pools ---- */

static bool pool_type(const Node *n, const Type *x, Type *y, char why[256])
{
	int64_t kernel[2], stride[2], pad[2];
	if (!op_pair(n, "kernel", 1, kernel, why) || !op_pair(n, "stride", 1, stride, why) ||
	    !op_pair(n, "pad", 0, pad, why))
		return false;
	if (x->ndim != 4 || !dtype_is_float(x->dtype))
		return op_fail(why, "needs floating-point images [N,C,H,W], got %s", TYPE_TEXT(x));
	*y = *x;
	for (int i = 0; i < 2; i++) {
		if (type_marked(x, 2 + i))
			return op_fail(why, "the batch must be axis 0 or 1 of the images, got %s",
				       TYPE_TEXT(x));
		if (2 * pad[i] > kernel[i])
			return op_fail(why, "padding %lld is more than half the window of %lld",
				       (long long)pad[i], (long long)kernel[i]);
		if (x->dim[2 + i] > INT64_MAX / 4 || x->dim[2 + i] + 2 * pad[i] < kernel[i])
			return op_fail(why,
				       "the window of %lld does not fit the padded image of %s",
				       (long long)kernel[i], TYPE_TEXT(x));
		y->dim[2 + i] = (x->dim[2 + i] + 2 * pad[i] - kernel[i]) / stride[i] + 1;
	}
	if (!type_check(y))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(y));
	return true;
}

bool t_pool2d(const Node *n, Type *res, char why[256])
{
	return pool_type(n, op_arg(n, 0), res, why);
}

static bool pool_grad_type(const Node *n, const Type *x, const Type *dy, char why[256])
{
	Type y;
	if (!pool_type(n, x, &y, why))
		return false;
	if (!type_equal(&y, dy))
		return op_fail(why, "expected a gradient of type %s, got %s", TYPE_TEXT(&y),
			       TYPE_TEXT(dy));
	return true;
}

bool t_max_pool2d_grad(const Node *n, Type *res, char why[256])
{
	*res = *op_arg(n, 0);
	return pool_grad_type(n, res, op_arg(n, 1), why);
}

bool t_max_pool2d_index(const Node *n, Type *res, char why[256])
{
	const IntList *kernel = ir_ints(n, "kernel");
	if (!pool_type(n, op_arg(n, 0), &res[0], why))
		return false;
	if (kernel->v[0] > 256 / kernel->v[1])
		return op_fail(why, "the places in a window of %lld x %lld do not fit 8 bits",
			       (long long)kernel->v[0], (long long)kernel->v[1]);
	res[1] = res[0];
	res[1].dtype = DT_U8;
	return true;
}

bool t_max_pool2d_index_grad(const Node *n, Type *res, char why[256])
{
	Type place = *op_arg(n, 1);
	place.dtype = DT_U8;
	if (!type_equal(&place, op_arg(n, 0)))
		return op_fail(why, "expected places of type %s, got %s", TYPE_TEXT(&place),
			       TYPE_TEXT(op_arg(n, 0)));
	*res = n->res[0]->type;
	if (!type_check(res))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(res));
	return pool_grad_type(n, res, op_arg(n, 1), why);
}

bool t_avg_pool2d_grad(const Node *n, Type *res, char why[256])
{
	*res = n->res[0]->type;
	if (!type_check(res))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(res));
	return pool_grad_type(n, res, op_arg(n, 0), why);
}

bool g_max_pool2d(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *args[] = { n->arg[0], dy[0] };
	dx[0] = ir_value(b, OP_max_pool2d_grad, 2, args, n->attr, NULL);
	return true;
}

bool g_avg_pool2d(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	dx[0] = ir_value(b, OP_avg_pool2d_grad, 1, dy, n->attr, op_arg(n, 0));
	return true;
}

/* ---- embedding ---- */

static bool is_index(const Type *t)
{
	return t->dtype == DT_U8 || t->dtype == DT_U16 || t->dtype == DT_I32 || t->dtype == DT_I64;
}

bool t_embedding(const Node *n, Type *res, char why[256])
{
	const Type *table = op_arg(n, 0), *at = op_arg(n, 1);
	if (table->ndim != 2 || !dtype_is_float(table->dtype) || table->batch)
		return op_fail(why, "needs a table [rows,C] of floating-point numbers, got %s",
			       TYPE_TEXT(table));
	if (!is_index(at))
		return op_fail(why, "indices must be integers, got %s", TYPE_TEXT(at));
	if (at->ndim == IR_MAX_DIMS)
		return op_fail(why, "too many axes, %s", TYPE_TEXT(at));
	Type t = *at;
	t.dtype = table->dtype;
	type_append(&t, table, 1, 2);
	if (!type_check(&t))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(&t));
	*res = t;
	return true;
}

bool t_part_sums(const Node *n, Type *res, char why[256])
{
	const char *of = ir_str(n, "of");
	int first = ir_part_operand(n);
	DType d = op_arg(n, 0)->dtype;
	bool squares = of && strcmp(of, "squares") == 0;
	if (!squares && !(of && strcmp(of, "not_finite") == 0))
		return op_fail(why, "of: expected \"squares\" or \"not_finite\", got \"%s\"", of ? of : "");
	if (n->nargs <= first || (first && op_arg(n, 0)->ndim > 0))
		return op_fail(why, "needs %s", first ? "a scalar and tensors" : "tensors");
	for (int i = 0; i < n->nargs; i++)
		if (op_arg(n, i)->dtype != d || !dtype_is_float(d) || op_arg(n, i)->batch)
			return op_fail(why, "operands must be floating-point tensors of one type that do not scale with the batch, got %s",
				       TYPE_TEXT(op_arg(n, i)));
	/* Sums of 16-bit numbers are f32. */
	*res = type_scalar(!squares ? DT_I32 : dtype_bytes(d) == 2 ? DT_F32 : d);
	res->ndim = 1;
	for (int i = first; i < n->nargs; i++)
		res->dim[0] += ir_parts(op_arg(n, i));
	return true;
}

bool t_embedding_grad(const Node *n, Type *res, char why[256])
{
	const Type *at = op_arg(n, 0), *dy = op_arg(n, 1);
	int64_t rows = ir_int(n, "rows");
	Type lead = *dy;
	if (!is_index(at) || !dtype_is_float(dy->dtype) || dy->ndim != at->ndim + 1)
		return op_fail(why, "needs indices [...] and a gradient [...,C], got %s and %s",
			       TYPE_TEXT(at), TYPE_TEXT(dy));
	lead.ndim--;
	if (!type_same_shape(&lead, at) || dy->batch != at->batch)
		return op_fail(why, "indices %s do not match the gradient %s", TYPE_TEXT(at),
			       TYPE_TEXT(dy));
	/* A parameter's gradient: sums of 16-bit numbers stay f32. */
	Type t = type_scalar(dtype_bytes(dy->dtype) == 2 ? DT_F32 : dy->dtype);
	t.ndim = 1;
	t.dim[0] = rows;
	type_append(&t, dy, dy->ndim - 1, dy->ndim);
	if (!type_check(&t))
		return op_fail(why, "%lld rows do not make a table", (long long)rows);
	*res = t;
	return op_acc_arg(n, res, why);
}

bool g_embedding(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *args[] = { n->arg[1], dy[0] };
	Attr rows = { .i = op_arg(n, 0)->dim[0] };
	dx[0] = ir_value(b, OP_embedding_grad, 2, args, &rows, NULL);
	return true;
}

/* ---- attention ---- */

/* The mask, where there is one: bool[B,TK] with the batch of k. */
static bool attention_mask(const Node *n, int operands, char why[256])
{
	const Type *k = op_arg(n, 1);
	if (n->nargs == operands)
		return true;
	if (n->nargs > operands + 1)
		return op_fail(why, "takes at most %d operands, got %d", operands + 1,
			       (int)n->nargs);
	const Type *mask = op_arg(n, operands);
	if (mask->dtype != DT_BOOL || mask->ndim != 2 || mask->dim[0] != k->dim[0] ||
	    mask->dim[1] != k->dim[1] || mask->batch != k->batch)
		return op_fail(why, "the mask of keys %s must be bool[%lld,%lld], got %s",
			       TYPE_TEXT(k), (long long)k->dim[0], (long long)k->dim[1],
			       TYPE_TEXT(mask));
	return true;
}

/* Heads of q and of k and v: whole numbers of q's channels, and of the groups that share a head. */
static bool attention_heads(const Node *n, char why[256])
{
	const Type *q = op_arg(n, 0), *k = op_arg(n, 1);
	int64_t heads = ir_int(n, "heads"), kv = ir_int(n, "kv_heads");
	if (heads < 1 || q->dim[2] % heads)
		return op_fail(why, "%lld heads do not divide %lld channels", (long long)heads,
			       (long long)q->dim[2]);
	if (kv < 0 || (kv > 0 && heads % kv))
		return op_fail(why, "%lld heads of k and v do not divide %lld heads", (long long)kv,
			       (long long)heads);
	if (k->dim[2] != q->dim[2] / heads * (kv ? kv : heads))
		return op_fail(why, "batch and channels of q and k must agree, got %s and %s",
			       TYPE_TEXT(q), TYPE_TEXT(k));
	return true;
}

/* Checks q, k, v and the mask behind `operands`; gives the type of the log-sum-exp rows. */
static bool attention_type(const Node *n, int operands, Type *lse, char why[256])
{
	const Type *q = op_arg(n, 0), *k = op_arg(n, 1), *v = op_arg(n, 2);
	int64_t window = ir_int(n, "window");
	if (q->ndim != 3 || k->ndim != 3 || !type_equal(k, v))
		return op_fail(why, "needs q, k, v of [B,T,C], k like v; got %s, %s, %s",
			       TYPE_TEXT(q), TYPE_TEXT(k), TYPE_TEXT(v));
	if (!dtype_is_float(q->dtype) || q->dtype != k->dtype)
		return op_fail(why, "needs floating-point numbers of one type, got %s, %s",
			       TYPE_TEXT(q), TYPE_TEXT(k));
	if (q->dim[0] != k->dim[0] || q->batch != k->batch || q->batch & ~1u)
		return op_fail(why, "batch and channels of q and k must agree, got %s and %s",
			       TYPE_TEXT(q), TYPE_TEXT(k));
	if (!attention_heads(n, why) || !attention_mask(n, operands, why))
		return false;
	if ((ir_int(n, "causal") || window) && q->dim[1] != k->dim[1])
		return op_fail(why, "%s attention needs as many keys as queries, got %s and %s",
			       ir_int(n, "causal") ? "causal" : "windowed", TYPE_TEXT(q),
			       TYPE_TEXT(k));
	if (window < 0 || window > INT64_MAX / 4)
		return op_fail(why, "the window must be at least 0, got %lld", (long long)window);
	*lse = *q;
	lse->dim[1] = ir_int(n, "heads");
	lse->dim[2] = q->dim[1];
	lse->dtype = q->dtype == DT_F64 ? DT_F64 : DT_F32;
	if (!type_check(lse))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(lse));
	return true;
}

bool t_attention(const Node *n, Type *res, char why[256])
{
	res[0] = *op_arg(n, 0);
	return attention_type(n, 3, &res[1], why);
}

bool t_attention_grad(const Node *n, Type *res, char why[256])
{
	Type lse;
	if (!attention_type(n, 6, &lse, why))
		return false;
	if (!type_equal(op_arg(n, 3), op_arg(n, 0)) || !type_equal(op_arg(n, 5), op_arg(n, 0)))
		return op_fail(why, "output and gradient must be like q, %s; got %s and %s",
			       TYPE_TEXT(op_arg(n, 0)), TYPE_TEXT(op_arg(n, 3)),
			       TYPE_TEXT(op_arg(n, 5)));
	if (!type_equal(op_arg(n, 4), &lse))
		return op_fail(why, "expected row sums of type %s, got %s", TYPE_TEXT(&lse),
			       TYPE_TEXT(op_arg(n, 4)));
	for (int i = 0; i < 3; i++)
		res[i] = *op_arg(n, i);
	return true;
}

bool t_attention_grad_qkv(const Node *n, Type *res, char why[256])
{
	Type part[3];
	if (!t_attention_grad(n, part, why))
		return false;
	if (part[0].dim[1] != part[1].dim[1])
		return op_fail(why, "needs as many keys as queries, got %s and %s", TYPE_TEXT(&part[0]), TYPE_TEXT(&part[1]));
	*res = part[0];
	if (part[1].dim[2] > (INT64_MAX - res->dim[2]) / 2)
		return op_fail(why, "the result is too large");
	res->dim[2] += 2 * part[1].dim[2];
	return type_check(res) || op_fail(why, "the result is too large");
}

bool g_attention(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	if (dy[1]) {
		diag_error(b->m->diag, n->span,
			   "attention: the row sums (result 1) have no gradient");
		return false;
	}
	Value *args[] = { n->arg[0],
			  n->arg[1],
			  n->arg[2],
			  n->res[0],
			  n->res[1],
			  dy[0],
			  n->nargs > 3 ? n->arg[3] : NULL };
	Node *g = ir_node(b, OP_attention_grad, n->nargs > 3 ? 7 : 6, args, n->attr, NULL);
	for (int i = 0; i < 3; i++)
		dx[i] = g->res[i];
	return true;
}

/* Two products of [T,D] by [D,K] and [T,K] by [K,D] a head, K the keys that a query meets: half of
 * them under the causal mask, no more than the window. */
double f_attention(const Node *n)
{
	bool causal = ir_int(n, "causal") != 0;
	double keys = (double)op_arg(n, 1)->dim[1], window = (double)ir_int(n, "window");
	double met = causal ? keys / 2 : keys;
	if (window > 0 && (causal ? window : 2 * window) < met)
		met = causal ? window : 2 * window;
	return 4.0 * (double)type_elems(op_arg(n, 0)) * met;
}

/* Five products instead of two: the scores again, dv, dp, dq, dk. */
double f_attention_grad(const Node *n)
{
	return 2.5 * f_attention(n);
}

/* ---- macros: shape and norms ---- */

bool t_split(const Node *n, Type *res, char why[256])
{
	int axis;
	int64_t parts = ir_int(n, "parts"), index = ir_int(n, "index");
	*res = *op_arg(n, 0);
	if (!op_axis(res, ir_int(n, "axis"), &axis, why))
		return false;
	if (type_marked(res, axis))
		return op_fail(why, "axis %d of %s is the batch and cannot be cut", axis,
			       TYPE_TEXT(res));
	if (parts < 1 || res->dim[axis] % parts)
		return op_fail(why, "axis %d of %s does not split into %lld equal parts", axis,
			       TYPE_TEXT(res), (long long)parts);
	if (index < 0 || index >= parts)
		return op_fail(why, "part %lld of %lld does not exist", (long long)index,
			       (long long)parts);
	res->dim[axis] /= parts;
	return true;
}

/* The type rules have seen the axis of a macro. */
static int macro_axis(const Node *n)
{
	int64_t axis = ir_int(n, "axis");
	return (int)(axis < 0 ? axis + op_arg(n, 0)->ndim : axis);
}

bool x_split(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	int axis = macro_axis(n);
	int64_t part = n->res[0]->type.dim[axis], index = ir_int(n, "index");
	res[0] = ir_slice(b, n->arg[0], axis, index * part, (index + 1) * part);
	return true;
}

bool t_softmax(const Node *n, Type *res, char why[256])
{
	int axis;
	*res = *op_arg(n, 0);
	return op_float_arg(n, 0, why) && op_axis(res, ir_int(n, "axis"), &axis, why);
}

/* x - max(x) along `axis`: the shift changes nothing mathematically, so no gradient flows through
 * it. */
static Value *shifted(Builder *b, Value *x, const IntList *axis)
{
	Value *most = ir_reduce(b, OP_reduce_max, x, axis, true);
	return ir_binary(b, OP_sub, x, ir_unary(b, OP_stop_gradient, most));
}

bool x_softmax(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	IntList axis = ir_list(1, &(int64_t){ macro_axis(n) });
	Value *e = ir_unary(b, OP_exp, shifted(b, n->arg[0], &axis));
	res[0] = ir_binary(b, OP_div, e, ir_reduce(b, OP_sum, e, &axis, true));
	return true;
}

bool x_log_softmax(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	IntList axis = ir_list(1, &(int64_t){ macro_axis(n) });
	Value *z = shifted(b, n->arg[0], &axis);
	Value *sum = ir_reduce(b, OP_sum, ir_unary(b, OP_exp, z), &axis, true);
	res[0] = ir_binary(b, OP_sub, z, ir_unary(b, OP_log, sum));
	return true;
}

bool op_channel_arg(const Node *n, int i, int64_t channels, char why[256])
{
	const Type *x = op_arg(n, 0), *t = op_arg(n, i);
	if (t->ndim == 1 && t->dim[0] == channels && t->dtype == x->dtype && !t->batch)
		return true;
	return op_fail(why, "expected %s[%lld] for %s, got %s", dtype_name(x->dtype),
		       (long long)channels, TYPE_TEXT(x), TYPE_TEXT(t));
}

bool t_layer_norm(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	*res = *x;
	if (!op_float_arg(n, 0, why))
		return false;
	if (x->ndim < 1 || type_marked(x, x->ndim - 1))
		return op_fail(why, "needs a last axis that is not the batch, got %s",
			       TYPE_TEXT(x));
	return op_channel_arg(n, 1, x->dim[x->ndim - 1], why) &&
	       op_channel_arg(n, 2, x->dim[x->ndim - 1], why);
}

/* The variance does not change with the mean that is subtracted (its derivative is the sum of x -
 * mean, which is 0), so no gradient is asked for there. */
Value *op_inverse_deviation(Builder *b, Value *x, Value *mean, const IntList *axes, double eps,
			    Value **var)
{
	Value *off = ir_binary(b, OP_sub, x, ir_unary(b, OP_stop_gradient, mean));
	*var = ir_reduce(b, OP_mean, ir_binary(b, OP_mul, off, off), axes, true);
	return ir_unary(b, OP_rsqrt, ir_binary_c(b, OP_add, *var, eps));
}

bool x_layer_norm(Builder *b, Node *n, bool training, Value **res)
{
	(void)training;
	Value *x = n->arg[0], *var;
	IntList last = ir_list(1, &(int64_t){ x->type.ndim - 1 });
	Value *mean = ir_reduce(b, OP_mean, x, &last, true);
	Value *rstd = op_inverse_deviation(b, x, mean, &last, ir_float(n, "eps"), &var);
	Value *y = ir_binary(b, OP_mul, ir_binary(b, OP_sub, x, mean), rstd);
	res[0] = ir_binary(b, OP_add, ir_binary(b, OP_mul, y, n->arg[1]), n->arg[2]);
	return true;
}

bool t_batch_norm(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0);
	*res = *x;
	if (!op_float_arg(n, 0, why))
		return false;
	if (x->ndim < 2 || type_marked(x, 1))
		return op_fail(why, "needs [N,C,...], got %s", TYPE_TEXT(x));
	if (n->nargs > 6)
		return op_fail(why, "takes at most 6 operands, got %d", (int)n->nargs);
	if (n->nargs == 6) {
		const Type *valid = op_arg(n, 5);
		if (valid->dtype != DT_BOOL || valid->ndim != 1 || valid->dim[0] != x->dim[0] || valid->batch != (x->batch & 1))
			return op_fail(why, "expected bool[%lld] for the samples of %s, got %s", (long long)x->dim[0], TYPE_TEXT(x),
				       TYPE_TEXT(valid));
	}
	for (int i = 1; i < 5; i++)
		if (!op_channel_arg(n, i, x->dim[1], why))
			return false;
	for (int i = 3; i < 5; i++)
		if (!n->arg[i]->def || n->arg[i]->def->op != OP_var)
			return op_fail(why, "running statistics must be variables");
	return true;
}

/* [C] as [C,1,1], to stand beside [N,C,H,W] */
static Value *per_channel(Builder *b, Value *v, const Type *x)
{
	Type t = v->type;
	while (t.ndim < x->ndim - 1)
		t.dim[t.ndim++] = 1;
	return t.ndim == 1 ? v : ir_reshape(b, v, t);
}

/* running = (1-m)*running + m*stat, `when` that holds (NULL: always). A layer that is applied twice goes on from its first update.
 * The assign goes to the end of the block: what else reads the variable must come before it. */
static void update_running(Builder *b, Value *running, Value *stat, double m, Value *when)
{
	Value *before = running;
	for (Node *p = b->block->last; p; p = p->prev) {
		if (p->op == OP_assign && p->arg[0] == running) {
			before = p->arg[1];
			ir_unlink(p);
			break;
		}
	}
	Value *now = ir_reshape(b, ir_unary(b, OP_stop_gradient, stat), running->type);
	Value *kept = ir_binary_c(b, OP_mul, before, 1 - m);
	Builder end = *b;
	end.before = NULL;
	Value *next = ir_binary(b, OP_add, kept, ir_binary_c(b, OP_mul, now, m));
	ir_assign(&end, running, when ? ir_select(b, when, next, before) : next);
}

/* Statistics of the samples that count, and of how many: [N,1,..] says which do. */
typedef struct SomeSamples {
	Value *valid, *count; /* count: values of a channel, at least 1 */
	const IntList *axes;
} SomeSamples;

static Value *mean_of_some(Builder *b, Value *x, const SomeSamples *s)
{
	Value *some = ir_select(b, s->valid, x, ir_scalar(b, x->type.dtype, 0));
	return ir_binary(b, OP_div, ir_reduce(b, OP_sum, some, s->axes, true), s->count);
}

static SomeSamples some_samples(Builder *b, const Node *n, const IntList *axes)
{
	const Type *x = op_arg(n, 0);
	DType d = x->dtype;
	Type column = op_kept_type(x, axes);
	double each = (double)type_elems(x) / (double)(x->dim[0] * x->dim[1]);
	column.dim[0] = x->dim[0];
	column.dim[1] = 1;
	column.batch = x->batch & 1;
	Value *samples = ir_reduce_all(b, OP_sum, ir_cast(b, n->arg[5], d));
	return (SomeSamples){ .valid = ir_reshape(b, n->arg[5], column),
			      .count = ir_binary_c(b, OP_max, ir_binary_c(b, OP_mul, samples, each), 1),
			      .axes = axes };
}

/* As batch_norm_training, below. One value alone has no variance and says nothing to the running statistics. */
static Value *batch_norm_of_some(Builder *b, Node *n, const IntList *axes)
{
	Value *x = n->arg[0];
	double m = ir_float(n, "momentum");
	int flags = b->flags;
	b->flags |= x->type.batch ? NF_BATCH_STATS : 0;
	SomeSamples s = some_samples(b, n, axes);
	Value *mean = mean_of_some(b, x, &s);
	Value *off = ir_binary(b, OP_sub, x, ir_unary(b, OP_stop_gradient, mean));
	Value *var = mean_of_some(b, ir_binary(b, OP_mul, off, off), &s);
	Value *rstd = ir_unary(b, OP_rsqrt, ir_binary_c(b, OP_add, var, ir_float(n, "eps")));
	Value *several = ir_binary_c(b, OP_gt, s.count, 1);
	Value *fix = ir_binary(b, OP_div, s.count, ir_binary_c(b, OP_max, ir_binary_c(b, OP_sub, s.count, 1), 1));
	update_running(b, n->arg[3], mean, m, several);
	update_running(b, n->arg[4], ir_binary(b, OP_mul, var, fix), m, several);
	b->flags = flags;
	return ir_binary(b, OP_mul, ir_binary(b, OP_sub, x, mean), rstd);
}

/* The statistics are nodes of their own kind, which a split batch would change; what is normalised
 * is not, and so computes x - mean for itself: in one kernel with what follows it. */
static Value *batch_norm_training(Builder *b, Node *n)
{
	Value *x = n->arg[0], *var;
	double m = ir_float(n, "momentum");
	DType d = x->type.dtype;
	IntList axes = { .n = 0 };
	for (int i = 0; i < x->type.ndim; i++)
		if (i != 1)
			axes.v[axes.n++] = i;
	if (n->nargs == 6)
		return batch_norm_of_some(b, n, &axes);
	int flags = b->flags;
	b->flags |= x->type.batch ? NF_BATCH_STATS : 0;
	Value *mean = ir_reduce(b, OP_mean, x, &axes, true);
	Value *rstd = op_inverse_deviation(b, x, mean, &axes, ir_float(n, "eps"), &var);
	/* The running variance is the unbiased one. */
	Value *count = op_count(b, &x->type, &axes, d);
	Value *fix = ir_binary(b, OP_div, count, ir_binary_c(b, OP_sub, count, 1));
	update_running(b, n->arg[3], mean, m, NULL);
	update_running(b, n->arg[4], ir_binary(b, OP_mul, var, fix), m, NULL);
	b->flags = flags;
	return ir_binary(b, OP_mul, ir_binary(b, OP_sub, x, mean), rstd);
}

static bool is_frozen(const Builder *b, const Value *v)
{
	const Var *var = v->def && v->def->op == OP_var ? ir_find_var(b->m, ir_str(v->def, "name")) : NULL;
	return var && var->frozen;
}

/* With frozen statistics training normalises as evaluation does. */
bool x_batch_norm(Builder *b, Node *n, bool training, Value **res)
{
	const Type *x = op_arg(n, 0);
	Value *y;
	training = training && !is_frozen(b, n->arg[3]) && !is_frozen(b, n->arg[4]);
	if (training && type_elems(x) == x->dim[1]) {
		diag_error(b->m->diag, n->span,
			   "batch_norm: %s has one value per channel, which has no variance",
			   TYPE_TEXT(x));
		return false;
	}
	if (training) {
		y = batch_norm_training(b, n);
	} else {
		Value *rstd = ir_unary(b, OP_rsqrt,
				       ir_binary_c(b, OP_add, n->arg[4], ir_float(n, "eps")));
		Value *d = ir_binary(b, OP_sub, n->arg[0], per_channel(b, n->arg[3], x));
		y = ir_binary(b, OP_mul, d, per_channel(b, rstd, x));
	}
	y = ir_binary(b, OP_mul, y, per_channel(b, n->arg[1], x));
	y = ir_binary(b, OP_add, y, per_channel(b, n->arg[2], x));
	/* Computed in f32, it goes on in the type that its input will have. */
	res[0] = b->flags & NF_F32 ? ir_binary(b, OP_cast_like, y, n->arg[0]) : y;
	return true;
}

bool t_dropout(const Node *n, Type *res, char why[256])
{
	double p = ir_float(n, "p");
	*res = *op_arg(n, 0);
	if (!(p >= 0 && p < 1))
		return op_fail(why, "the probability must lie in [0,1), got %g", p);
	return op_float_arg(n, 0, why);
}

bool x_dropout(Builder *b, Node *n, bool training, Value **res)
{
	res[0] = n->arg[0];
	if (training && ir_float(n, "p") > 0) {
		Attr a[] = { { .f = ir_float(n, "p") }, { .i = ir_int(n, "stream") } };
		Value *scale = ir_value(b, OP_dropout_scale, 0, NULL, a, op_arg(n, 0));
		res[0] = ir_binary(b, OP_mul, n->arg[0], scale);
	}
	return true;
}

/* ---- macros: losses ---- */

bool t_batch_mean(const Node *n, Type *res, char why[256])
{
	*res = type_scalar(op_arg(n, 0)->dtype);
	return op_float_arg(n, 0, why);
}

bool t_mse(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *y = op_arg(n, 1);
	if (!op_float_arg(n, 0, why) || !op_float_arg(n, 1, why))
		return false;
	if (!type_same_shape(x, y) || x->batch != y->batch)
		return op_fail(why, "shapes must be equal, got %s and %s", TYPE_TEXT(x),
			       TYPE_TEXT(y));
	*res = type_scalar(dtype_promote(x->dtype, y->dtype));
	return true;
}

/* The sum over the whole batch of x, which is a sum over samples where `samples` says so. */
static Value *whole(Builder *b, Value *x, bool samples)
{
	return samples ? ir_unary(b, OP_batch_sum, x) : x;
}

/* The mean of all elements of x over the whole batch, whose number of elements is a constant of the
 * step. In evaluation the plain mean, which holds for any batch. */
static Value *mean_of_batch(Builder *b, Value *x, bool training)
{
	if (!training || !x->type.batch)
		return ir_reduce_all(b, OP_mean, x);
	Value *sum = whole(b, ir_reduce_all(b, OP_sum, x), true);
	return ir_binary_c(b, OP_mul, sum, 1.0 / (double)type_elems(&x->type));
}

bool x_batch_mean(Builder *b, Node *n, bool training, Value **res)
{
	res[0] = mean_of_batch(b, n->arg[0], training);
	return true;
}

bool x_mse(Builder *b, Node *n, bool training, Value **res)
{
	Value *d = ir_binary(b, OP_sub, n->arg[0], n->arg[1]);
	res[0] = mean_of_batch(b, ir_binary(b, OP_mul, d, d), training);
	return true;
}

bool t_cross_entropy(const Node *n, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *t = op_arg(n, 1);
	double e = ir_float(n, "smoothing");
	if (!op_float_arg(n, 0, why))
		return false;
	if (!is_index(t))
		return op_fail(why, "targets must be integers, got %s", TYPE_TEXT(t));
	Type lead = *x;
	if (x->ndim >= 1)
		lead.ndim--;
	if (x->ndim != t->ndim + 1 || !type_same_shape(&lead, t) || x->batch != t->batch)
		return op_fail(why, "expected logits [...,C] and targets [...], got %s and %s",
			       TYPE_TEXT(x), TYPE_TEXT(t));
	if (!(e >= 0 && e <= 1))
		return op_fail(why, "smoothing must lie in [0,1], got %g", e);
	if (n->nargs > 3)
		return op_fail(why, "takes logits, targets and weights, got %d operands", (int)n->nargs);
	if (n->nargs == 3 && !op_channel_arg(n, 2, x->dim[x->ndim - 1], why))
		return false;
	*res = type_scalar(x->dtype);
	return true;
}

/* Targets beside their logits, [...,1] of a signed type: an unsigned one cannot hold `ignore`. */
static Value *target_column(Builder *b, Value *targets)
{
	Type t = targets->type;
	t.dim[t.ndim++] = 1;
	Value *column = ir_reshape(b, targets, t);
	return t.dtype == DT_I64 || t.dtype == DT_I32 ? column : ir_cast(b, column, DT_I32);
}

/* Of each row, [...,1]: the weight of its target's class. */
static Value *target_weight(Builder *b, Value *weights, Value *target)
{
	Type column = weights->type;
	column.dim[column.ndim++] = 1;
	return ir_value(b, OP_embedding, 2, (Value *[]){ ir_reshape(b, weights, column), target }, NULL, NULL);
}

static Value *is_valid(Builder *b, const Node *n, Value *target)
{
	return ir_binary_c(b, OP_ne, target, (double)ir_int(n, "ignore"));
}

/* Of each row, [...,1]; NULL where no class has a weight. */
static Value *row_weight(Builder *b, const Node *n, Value *target)
{
	if (n->nargs < 3)
		return NULL;
	Type row = target->type;
	row.dtype = n->arg[0]->type.dtype;
	return ir_reshape(b, target_weight(b, n->arg[2], n->arg[1]), row);
}

static Value *count_valid(Builder *b, const Node *n, Value *valid, Value *weight, bool training)
{
	Value *each = weight ? ir_select(b, valid, weight, ir_scalar(b, weight->type.dtype, 0)) : ir_cast(b, valid, DT_I32);
	return whole(b, ir_reduce_all(b, OP_sum, each), training && n->arg[0]->type.batch);
}

Value *op_target_count(Builder *b, const Node *n, bool training)
{
	Value *target = target_column(b, n->arg[1]), *valid = is_valid(b, n, target);
	return count_valid(b, n, valid, row_weight(b, n, target), training);
}

/* What the smoothed part of a row's loss is: the mean over classes c of -log p_c, each times its
 * weight where there are weights. lse - z is -log p. */
static Value *smooth_loss(Builder *b, Value *z, Value *lse, Value *weights, const IntList *axis)
{
	if (!weights)
		return ir_binary(b, OP_sub, lse, ir_reduce(b, OP_mean, z, axis, true));
	Value *each = ir_binary(b, OP_mul, ir_binary(b, OP_sub, lse, z), weights);
	return ir_reduce(b, OP_mean, each, axis, true);
}

/* A row's loss is log(sum exp(z)) - z[target], z = x - max: nothing of the size of the logits but
 * they themselves is needed for its gradient. Rows whose target is `ignore` count neither in the
 * sum nor in the number of rows. With weights a row counts as its target's class weighs. */
bool x_cross_entropy(Builder *b, Node *n, bool training, Value **res)
{
	Value *x = n->arg[0];
	DType d = x->type.dtype;
	int last = x->type.ndim - 1;
	double e = ir_float(n, "smoothing");
	IntList axis = ir_list(1, &(int64_t){ last });

	Value *target = target_column(b, n->arg[1]);
	Value *valid = is_valid(b, n, target);
	Type row = type_scalar(DT_I32);
	type_append(&row, &x->type, last, last + 1);
	Value *classes = ir_value(b, OP_iota, 0, NULL, NULL, &row);
	Value *hit = ir_binary(b, OP_eq, classes, target);

	Value *z = shifted(b, x, &axis);
	Value *lse = ir_unary(b, OP_log, ir_reduce(b, OP_sum, ir_unary(b, OP_exp, z), &axis, true));
	Value *zt = ir_reduce(b, OP_sum, ir_select(b, hit, z, ir_scalar(b, d, 0)), &axis, true);
	Value *loss = ir_binary(b, OP_sub, lse, zt);
	Value *weights = n->nargs == 3 ? n->arg[2] : NULL, *weight = row_weight(b, n, target);
	if (weight)
		loss = ir_binary(b, OP_mul, loss, weight);
	if (e > 0)
		loss = ir_binary(b, OP_add, ir_binary_c(b, OP_mul, loss, 1 - e),
				 ir_binary_c(b, OP_mul, smooth_loss(b, z, lse, weights, &axis), e));
	bool samples = training && x->type.batch;
	Value *sum = ir_reduce_all(b, OP_sum, ir_select(b, valid, loss, ir_scalar(b, d, 0)));
	Value *count = ir_cast(b, count_valid(b, n, valid, weight, training), d);
	/* A batch without a valid target has loss 0, not NaN. */
	count = weight ? ir_select(b, ir_binary_c(b, OP_gt, count, 0), count, ir_scalar(b, d, 1))
		       : ir_binary_c(b, OP_max, count, 1);
	res[0] = ir_binary(b, OP_div, whole(b, sum, samples), count);
	return true;
}

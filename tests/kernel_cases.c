/* The cases of kernels.h: examples and composites, what they should give, and how that is compared. */
#include "kernels.h"

#include <math.h>
#include <stdlib.h>

#include "passes/fuse.h"

void fault(Test *t, const char *name, const char *fmt, ...)
{
	va_list ap;
	t->failed++;
	if (t->planted)
		return;
	va_start(ap, fmt);
	printf("FAIL %s: ", name);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
}

/* ---- one kernel an op ---- */

static Value *copy_in(Builder *in, Node *fused, Value *v)
{
	if (v->def && v->def->op != OP_var && v->def->op != OP_input &&
	    ir_ops[v->def->op].kind == K_LEAF)
		return ir_value(in, v->def->op, 0, NULL, v->def->attr, &v->type);
	for (int i = 0; i < fused->nargs; i++)
		if (fused->arg[i] == v)
			return fused->body->param[i];
	abort();
}

static bool is_leaf(const Value *v)
{
	return v->def && v->def->op != OP_var && v->def->op != OP_input &&
	       ir_ops[v->def->op].kind == K_LEAF;
}

/* Puts a kernel around n. */
static void wrap(Module *m, Node *n)
{
	Value *args[IR_MAX_ARGS];
	int nargs = 0;
	for (int i = 0; i < n->nargs; i++) {
		bool seen = is_leaf(n->arg[i]);
		for (int k = 0; k < nargs; k++)
			seen = seen || args[k] == n->arg[i];
		if (!seen)
			args[nargs++] = n->arg[i];
	}
	Builder out = ir_builder(m, n->parent);
	out.before = n;
	Node *fused = ir_region(&out, OP_fused, nargs, args, NULL, n->nres,
				n->nres ? &n->res[0]->type : NULL);
	for (int i = 0; i < nargs; i++)
		ir_block_param(m, fused->body, args[i]->type);
	if (n->nres)
		ir_replace_uses(n->parent, n->res[0], fused->res[0]);
	Builder in = ir_builder(m, fused->body);
	for (int i = 0; i < n->nargs; i++)
		n->arg[i] = copy_in(&in, fused, n->arg[i]);
	Node *y = ir_node(&in, OP_yield, n->nres, n->res, NULL, NULL);
	ir_move_before(n, y);
}

static void wrap_all(Test *t, Func *f)
{
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n->next;
		OpKind kind = ir_ops[n->op].kind;
		bool ewise = kind == K_EWISE || kind == K_REDUCE || kind == K_SHAPE ||
			     n->op == OP_assign;
		bool stored_leaf = is_leaf(n->nres ? n->res[0] : &(Value){ 0 });
		for (Node *u = n->next; stored_leaf && u; u = u->next)
			for (int i = 0; i < u->nargs; i++)
				if (u->op == OP_output && u->arg[i] == n->res[0])
					ewise = true;
		if (ewise && !ir_is_view(n))
			wrap(t->m, n);
	}
	ir_dce(f);
}

/* ---- cases ---- */

typedef Value *(*Make)(Builder *b, DType d);

/* Two copies of what `make` builds; its result is output r0 (or none, when it assigns). */
static Builder start(Test *t, const char *name, int copy)
{
	Func *f = ir_func(t->m, arena_printf(t->a, "%s.%s", name, copy ? "fused" : "plain"));
	f->batch = 4;
	Case *c = &t->at[t->ncases];
	c->name = name;
	*(copy ? &c->fused : &c->plain) = f;
	return ir_builder(t->m, f->body);
}

static void finish(Test *t)
{
	Case *c = &t->at[t->ncases];
	wrap_all(t, c->plain);
	fuse_func(c->fused, &t->cx);
	for (int k = 0; k < 2; k++)
		for (Node *n = (k ? c->fused : c->plain)->body->first; n; n = n->next)
			n->work_bytes = t->caps.workspace(n, THREADS);
	t->ncases++;
}

void add_made(Test *t, const char *name, MakeWith make, const void *with, DType d)
{
	name = arena_printf(t->a, "%s/%s", name, dtype_name(d));
	for (int copy = 0; copy < 2; copy++) {
		Builder b = start(t, name, copy);
		Value *v = make(&b, d, with);
		if (v)
			ir_output(&b, "r0", v);
		if (b.failed) {
			fault(t, name, "cannot be built");
			return;
		}
	}
	finish(t);
}

typedef struct Plain {
	Make make;
} Plain;

static Value *make_plain(Builder *b, DType d, const void *with) { return ((const Plain *)with)->make(b, d); }

static void add_case(Test *t, const char *name, Make make, DType d)
{
	add_made(t, name, make_plain, &(Plain){ make }, d);
}

static Value *in(Builder *b, const char *name, DType d, int n, const int64_t *dims)
{
	return ir_input(b, name, type_make(d, n, dims));
}
#define IN(name, d, ...)                                                            \
	in(b, name, d, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
	   (int64_t[]){ __VA_ARGS__ })

static IntList axes1(int64_t x) { return ir_list(1, &x); }

static Value *expand(Builder *b, OpCode op, int n, Value *const *args, const Attr *attr)
{
	Value *r[4];
	Node *x = ir_node(b, op, n, args, attr, NULL);
	ir_ops[op].expand(b, x, false, r);
	ir_unlink(x);
	return r[0];
}

static Value *softmax(Builder *b, DType d)
{
	return expand(b, OP_softmax, 1, (Value *[]){ IN("x", d, 300, 257) }, &(Attr){ .i = -1 });
}

static Value *long_softmax(Builder *b, DType d)
{
	return expand(b, OP_log_softmax, 1, (Value *[]){ IN("x", d, 3, 9000) }, &(Attr){ .i = -1 });
}

static Value *layer_norm(Builder *b, DType d)
{
	Value *x = ir_binary(b, OP_add, IN("x", d, 12, 64, 128), IN("bias", d, 128));
	x = ir_binary(b, OP_add, x, IN("residual", d, 12, 64, 128));
	Value *y = expand(b, OP_layer_norm, 3,
			  (Value *[]){ x, IN("gain", d, 128), IN("shift", d, 128) },
			  &(Attr){ .f = 1e-5 });
	ir_output(b, "sum", x);
	return y;
}

static Value *cross_entropy(Builder *b, DType d)
{
	Attr attr[2] = { { .i = -100 }, { .f = 0.1 } };
	Value *x = ir_binary(b, OP_add, IN("x", d, 700, 10), IN("bias", d, 10));
	return expand(b, OP_cross_entropy, 2, (Value *[]){ x, IN("index", DT_I32, 700) }, attr);
}

/* Statistics and normalisation over all axes but the channel's. */
static Value *batch_norm(Builder *b, DType d)
{
	Value *x = IN("x", d, 8, 6, 9, 7);
	IntList axes = ir_list(3, (int64_t[]){ 0, 2, 3 });
	Value *mean = ir_reduce(b, OP_mean, x, &axes, true), *c = ir_binary(b, OP_sub, x, mean);
	Value *var = ir_reduce(b, OP_mean, ir_binary(b, OP_mul, c, c), &axes, true);
	Value *r = ir_unary(b, OP_rsqrt, ir_binary_c(b, OP_add, var, 1e-5));
	ir_output(b, "mean", mean);
	return ir_binary(b, OP_mul, ir_binary(b, OP_mul, c, r), IN("gain", d, 6, 1, 1));
}

static Value *columns(Builder *b, DType d)
{
	Value *x = IN("x", d, 1000, 96), *y = ir_binary(b, OP_mul, x, IN("y", d, 1000, 96));
	IntList rows = axes1(0);
	ir_output(b, "product", y);
	ir_output(b, "bias", ir_reduce(b, OP_sum, x, &rows, false));
	return ir_reduce(b, OP_sum, y, &rows, false);
}

static Value *wide_columns(Builder *b, DType d)
{
	return ir_reduce(b, OP_mean, ir_unary(b, OP_exp, IN("x", d, 12, 64, 130)),
			 &(IntList){ 1, { 0 } }, true);
}

static Value *middle(Builder *b, DType d)
{
	Value *x = IN("x", d, 5, 200, 33);
	IntList axis = axes1(1);
	ir_output(b, "max", ir_reduce(b, OP_reduce_max, x, &axis, false));
	ir_output(b, "argmax", ir_reduce(b, OP_argmax, x, &axis, false));
	return ir_reduce(b, OP_sum, x, &axis, true);
}

static Value *outer_inner(Builder *b, DType d)
{
	IntList axes = ir_list(2, (int64_t[]){ 0, 2 });
	return ir_reduce(b, OP_sum, ir_unary(b, OP_tanh, IN("x", d, 40, 7, 19)), &axes, false);
}

static Value *whole(Builder *b, DType d)
{
	Value *x = IN("x", d, 300, 401),
	      *sum = ir_reduce_all(b, OP_sum, ir_binary(b, OP_mul, x, x));
	ir_output(b, "max", ir_reduce_all(b, OP_reduce_max, x));
	return ir_binary_c(b, OP_min,
			   ir_binary(b, OP_div, ir_scalar(b, d, 1), ir_unary(b, OP_sqrt, sum)),
			   1.0);
}

static Value *uneven(Builder *b, DType d)
{
	return ir_reduce_all(b, OP_sum, ir_binary(b, OP_mul, IN("x", d, 700, 10), IN("w", d, 10)));
}

static Value *squeezed(Builder *b, DType d)
{
	Value *x = IN("x", d, 40, 40);
	IntList last = axes1(1);
	Value *row = ir_unary(b, OP_sqrt,
			      ir_reduce(b, OP_sum, ir_binary(b, OP_mul, x, x), &last, false));
	ir_output(b, "norm", ir_binary(b, OP_add, row, IN("r", d, 40)));
	int64_t column[2] = { 40, 1 };
	return ir_binary(b, OP_div, x, ir_reshape(b, row, type_make(d, 2, column)));
}

static Value *joined(Builder *b, DType d)
{
	Value *dq = IN("dq", d, 6, 20), *dk = IN("dk", d, 6, 30), *dv = IN("dv", d, 6, 10);
	Value *q = ir_pad(b, dq, 1, 0, 40), *k = ir_pad(b, dk, 1, 20, 10),
	      *v = ir_pad(b, dv, 1, 50, 0);
	Value *all = ir_binary(b, OP_add, ir_binary(b, OP_add, q, k), v);
	ir_output(b, "concat", ir_concat(b, 3, (Value *[]){ dq, dk, dv }, 1));
	ir_output(b, "rows", ir_concat(b, 2, (Value *[]){ dq, ir_unary(b, OP_neg, dq) }, 0));
	return ir_binary_c(b, OP_mul, all, 2);
}

static Value *moved(Builder *b, DType d)
{
	Value *x = ir_unary(b, OP_exp, IN("x", d, 17, 5, 33));
	IntList perm = ir_list(3, (int64_t[]){ 2, 0, 1 });
	Value *y = ir_transpose(b, x, &perm); /* 33, 17, 5 */
	Value *z = ir_slice(b, ir_slice(b, y, 0, 3, 30), 2, 1, 4);
	int64_t shape[4] = { 2, 27, 17, 3 };
	return ir_binary_c(b, OP_add, ir_broadcast(b, z, type_make(d, 4, shape)), 1);
}

/* Two random ops, and one of them again. */
static Value *drop(Builder *b, DType d, int64_t stream, int64_t again)
{
	int64_t dims[2] = { 4, 5000 };
	Type t = type_make(d, 2, dims);
	t.batch = 1;
	Attr drop[2] = { { .f = 0.3 }, { .i = stream } },
	     normal[3] = { { .f = 1 }, { .f = 2 }, { .i = again } };
	Value *x = ir_input(b, "x", t), *scale = ir_value(b, OP_dropout_scale, 0, NULL, drop, &t);
	Value *noise = ir_value(b, OP_random_normal, 0, NULL, normal, &t);
	Value *twice = ir_value(b, OP_dropout_scale, 0, NULL, drop, &t);
	ir_output(b, "noise", noise);
	return ir_binary(b, OP_mul, ir_binary(b, OP_mul, x, scale), twice);
}

static Value *dropped(Builder *b, DType d) { return drop(b, d, 5, 6); }
static Value *dropped_otherwise(Builder *b, DType d) { return drop(b, d, 2147483647, 0); }

/* Adam: three variables written in place. */
static Value *update(Builder *b, DType d)
{
	int64_t dims[2] = { 130, 70 };
	Type t = type_make(d, 2, dims);
	Value *s[3];
	b->flags = NF_OPTIMIZER;
	for (int i = 0; i < 3; i++) {
		const char *name = arena_printf(b->m->arena, "%s%d", dtype_name(d), i);
		Var *v = ir_find_var(b->m, name);
		s[i] = ir_var(b, v ? v : ir_var_new(b->m, name, t, VAR_PARAM));
	}
	Value *g = IN("g", d, 130, 70), *lr = ir_cast(b, IN("lr", DT_F64, 1), d);
	Value *m = ir_binary(b, OP_add, ir_binary_c(b, OP_mul, s[1], 0.9),
			     ir_binary_c(b, OP_mul, g, 0.1));
	Value *v = ir_binary(b, OP_add, ir_binary_c(b, OP_mul, s[2], 0.99),
			     ir_binary_c(b, OP_mul, ir_binary(b, OP_mul, g, g), 0.01));
	Value *d1 = ir_binary(
		b, OP_div, m,
		ir_binary_c(b, OP_add, ir_unary(b, OP_sqrt, ir_unary(b, OP_abs, v)), 1e-8));
	Value *p = ir_binary(b, OP_sub, s[0], ir_binary(b, OP_mul, lr, d1));
	ir_assign(b, s[1], m);
	ir_assign(b, s[2], v);
	ir_assign(b, s[0], p);
	return NULL;
}

static Value *attend(Builder *b, DType d, int64_t T, int64_t C, int64_t heads, bool causal,
		     bool strided)
{
	Attr attr[5] = { { .i = heads }, { .i = causal }, { .f = 0 }, { .i = 0 }, { .i = 0 } };
	Value *x = IN("qkv", d, 2, T, 3 * C), *q[6];
	for (int i = 0; i < 3; i++) {
		q[i] = ir_slice(b, x, 2, i * C, (i + 1) * C);
		if (strided)
			q[i]->ld = 3 * C;
	}
	Node *n = ir_node(b, OP_attention, 3, q, attr, NULL);
	ir_output(b, "lse", n->res[1]);
	q[3] = n->res[0];
	q[4] = n->res[1];
	q[5] = IN("dy", d, 2, T, C);
	Node *g = ir_node(b, strided ? OP_attention_grad_qkv : OP_attention_grad, 6, q, attr, NULL);
	static const char *const name[] = { "dq", "dk", "dv" };
	for (int i = 0; i < g->nres; i++)
		ir_output(b, g->nres > 1 ? name[i] : "dqkv", g->res[i]);
	return n->res[0];
}
static Value *attend_strided(Builder *b, DType d) { return attend(b, d, 70, 64, 2, true, true); }
static Value *attend_long(Builder *b, DType d) { return attend(b, d, 131, 40, 1, true, false); }
static Value *attend_all(Builder *b, DType d) { return attend(b, d, 65, 36, 3, false, true); }

static Value *attend_cross(Builder *b, DType d)
{
	Attr attr[5] = { { .i = 2 }, { .i = 0 }, { .f = 0.2 }, { .i = 0 }, { .i = 0 } };
	Value *q[6] = { IN("q", d, 2, 37, 32), IN("k", d, 2, 90, 32), IN("v", d, 2, 90, 32) };
	Node *n = ir_node(b, OP_attention, 3, q, attr, NULL);
	q[3] = n->res[0];
	q[4] = n->res[1];
	q[5] = IN("dy", d, 2, 37, 32);
	Node *g = ir_node(b, OP_attention_grad, 6, q, attr, NULL);
	ir_output(b, "dq", g->res[0]);
	ir_output(b, "dk", g->res[1]);
	ir_output(b, "dv", g->res[2]);
	return n->res[0];
}

/* Six heads on two heads of keys; keys masked at random, in the second sample all of them. */
static Value *attend_grouped(Builder *b, DType d, int64_t T, bool causal, int64_t window)
{
	Attr attr[5] = { { .i = 6 }, { .i = causal }, { .f = 0 }, { .i = 2 }, { .i = window } };
	Value *q[7] = { IN("q", d, 2, T, 120), IN("k", d, 2, T, 40), IN("v", d, 2, T, 40) };
	Type t = type_make(DT_I32, 2, (int64_t[]){ 2, T });
	Value *sample = ir_value(b, OP_iota, 0, NULL, &(Attr){ .i = 0 }, &t);
	q[3] = ir_binary(b, OP_and, ir_binary_c(b, OP_ne, IN("keep", DT_I32, 2, T), 0),
			 ir_binary_c(b, OP_eq, sample, 0));
	Node *n = ir_node(b, OP_attention, 4, q, attr, NULL);
	q[6] = q[3];
	q[3] = n->res[0];
	q[4] = n->res[1];
	q[5] = IN("dy", d, 2, T, 120);
	Node *g = ir_node(b, OP_attention_grad, 7, q, attr, NULL);
	ir_output(b, "lse", n->res[1]);
	ir_output(b, "dq", g->res[0]);
	ir_output(b, "dk", g->res[1]);
	ir_output(b, "dv", g->res[2]);
	return n->res[0];
}
static Value *attend_masked(Builder *b, DType d) { return attend_grouped(b, d, 70, false, 0); }
static Value *attend_near(Builder *b, DType d) { return attend_grouped(b, d, 200, false, 33); }
static Value *attend_sliding(Builder *b, DType d) { return attend_grouped(b, d, 200, true, 70); }
static Value *attend_pairs(Builder *b, DType d) { return attend_grouped(b, d, 35, true, 2); }

/* Products as training makes them: a layer, and the gradients of both operands, one of which is a sum
 * that stays wide. Sizes that fill no tile. */
static Value *product(Builder *b, DType d, int64_t n, int64_t in_, int64_t out)
{
	Value *x = IN("x", d, 2, n, in_), *w = IN("w", d, out, in_), *dy = IN("dy", d, 2, n, out);
	Type rows = type_make(d, 2, (int64_t[]){ 2 * n, in_ }),
	     drows = type_make(d, 2, (int64_t[]){ 2 * n, out });
	Attr attr[3] = { { .i = true }, { .i = false }, { .s = dtype_bytes(d) == 2 ? "f32" : "" } };
	Value *args[] = { ir_reshape(b, dy, drows), ir_reshape(b, x, rows) };
	ir_output(b, "dw", ir_value(b, OP_matmul, 2, args, attr, NULL));
	ir_output(b, "dx", ir_matmul(b, dy, w, false, false));
	ir_output(b, "xx", ir_matmul(b, x, x, true, false));
	return ir_matmul(b, x, w, false, true);
}
static Value *product_small(Builder *b, DType d) { return product(b, d, 3, 5, 7); }
static Value *product_large(Builder *b, DType d) { return product(b, d, 150, 130, 270); }
static Value *product_deep(Builder *b, DType d) { return product(b, d, 17, 1030, 9); }

/* A convolution, whose gradient by the weights stays wide, in slices of the batch. */
static Value *convolution(Builder *b, DType d)
{
	Value *x = IN("x", d, 48, 12, 14, 14), *w = IN("w", d, 20, 12, 3, 3),
	      *dy = IN("dy", d, 48, 20, 14, 14);
	Attr attr[4] = { { .ints = ir_list(2, (int64_t[]){ 1, 1 }) },
			 { .ints = ir_list(2, (int64_t[]){ 1, 1 }) },
			 { .ints = ir_list(2, (int64_t[]){ 1, 1 }) },
			 { .i = 1 } };
	Type dw = w->type;
	dw.dtype = dtype_bytes(d) == 2 ? DT_F32 : d;
	ir_output(b, "dx", ir_value(b, OP_conv2d_grad_x, 2, (Value *[]){ dy, w }, attr, &x->type));
	ir_output(b, "dw", ir_value(b, OP_conv2d_grad_w, 2, (Value *[]){ x, dy }, attr, &dw));
	return ir_value(b, OP_conv2d, 2, (Value *[]){ x, w }, attr, NULL);
}

/* Products that go on with a sum, one after the other: rows, a tall product, filters in slices of the batch. */
static Value *sums(Builder *b, DType d)
{
	DType wide = d == DT_F64 ? d : DT_F32;
	Value *x = IN("x", d, 300, 130), *dy = IN("dy", d, 300, 70), *start = IN("start", wide, 70, 130);
	Value *index = IN("index", DT_I32, 60), *rows = IN("rows", d, 60, 130);
	Value *image = IN("image", d, 48, 12, 14, 14), *dz = IN("dz", d, 48, 20, 14, 14), *filters = IN("filters", wide, 20, 12, 3, 3);
	IntList one = ir_list(2, (int64_t[]){ 1, 1 });
	Attr product[3] = { { .i = true }, { .i = false }, { .s = d == wide ? "" : "f32" } };
	Attr conv[4] = { { .ints = one }, { .ints = one }, { .ints = one }, { .i = 1 } };
	Value *s = ir_value(b, OP_matmul, 3, (Value *[]){ dy, x, start }, product, NULL);
	s = ir_value(b, OP_embedding_grad, 3, (Value *[]){ index, rows, s }, &(Attr){ .i = 70 }, NULL);
	s = ir_value(b, OP_matmul, 3, (Value *[]){ dy, x, s }, product, NULL);
	ir_output(b, "filter", ir_value(b, OP_conv2d_grad_w, 3, (Value *[]){ image, dz, filters }, conv, &filters->type));
	return s;
}

/* Overlapping windows: an element adds up several gradients. */
static Value *pools(Builder *b, DType d)
{
	Value *x = IN("x", d, 2, 3, 9, 9), *dy = IN("dy", d, 2, 3, 4, 4);
	Attr attr[3] = { { .ints = ir_list(2, (int64_t[]){ 3, 3 }) },
			 { .ints = ir_list(2, (int64_t[]){ 2, 2 }) },
			 { .ints = ir_list(2, (int64_t[]){ 0, 0 }) } };
	Value *top[] = { x, dy };
	ir_output(b, "max", ir_value(b, OP_max_pool2d_grad, 2, top, attr, NULL));
	Node *placed = ir_node(b, OP_max_pool2d_index, 1, &x, attr, NULL);
	Value *from[] = { placed->res[1], dy };
	ir_output(b, "placed", placed->res[0]);
	ir_output(b, "from_places", ir_value(b, OP_max_pool2d_index_grad, 2, from, attr, &x->type));
	return ir_value(b, OP_avg_pool2d_grad, 1, &dy, attr, &x->type);
}

/* Every 16-bit number, and what is rounded to each. */
static Value *conversions(Builder *b, DType d)
{
	DType t = d == DT_F32 || d == DT_F64 ? DT_F16 : d;
	const char *name = arena_printf(b->m->arena, "every %s", dtype_name(t));
	Value *x = IN(name, DT_F32, 4 << 16), *h = ir_cast(b, x, t);
	ir_output(b, "rounded", h);
	name = arena_printf(b->m->arena, "every bit of %s", dtype_name(t));
	return ir_cast(b, ir_unary(b, OP_neg, IN(name, t, 1 << 16)), d);
}

/* What autocast makes: 16-bit operands, a bias, an f32 constant, a function, back to f32 sums. */
static Value *mixed(Builder *b, DType d)
{
	DType real = d == DT_F64 ? d : DT_F32;
	Value *x = ir_binary(b, OP_add, IN("x", d, 33, 100), IN("bias", d, 100));
	Value *scaled = ir_cast(b, ir_binary(b, OP_mul, x, ir_scalar(b, real, 0.1)), d);
	Value *g = ir_unary(b, OP_gelu, scaled), *wide = ir_cast(b, g, real);
	Value *sum = ir_reduce_last(b, OP_sum, wide, true);
	ir_output(b, "g", g);
	ir_output(b, "sum", sum);
	return ir_cast(b, ir_binary(b, OP_sub, g, sum), d);
}

static Value *lookup(Builder *b, DType d)
{
	Value *at = IN("index", DT_I32, 60, 50), *dy = IN("dy", d, 60, 50, 100);
	ir_output(
		b, "grad",
		ir_value(b, OP_embedding_grad, 2, (Value *[]){ at, dy }, &(Attr){ .i = 11 }, NULL));
	return ir_value(b, OP_embedding, 2, (Value *[]){ IN("table", d, 11, 100), at }, NULL, NULL);
}

static const struct {
	const char *name;
	Make make;
} composites[] = {
	{ "softmax", softmax },
	{ "long_softmax", long_softmax },
	{ "layer_norm", layer_norm },
	{ "cross_entropy", cross_entropy },
	{ "batch_norm", batch_norm },
	{ "columns", columns },
	{ "wide_columns", wide_columns },
	{ "middle", middle },
	{ "outer_inner", outer_inner },
	{ "whole", whole },
	{ "uneven", uneven },
	{ "squeezed", squeezed },
	{ "joined", joined },
	{ "moved", moved },
	{ "dropped", dropped },
	{ "dropped_otherwise", dropped_otherwise },
	{ "update", update },
	{ "attend_strided", attend_strided },
	{ "attend_long", attend_long },
	{ "attend_all", attend_all },
	{ "attend_cross", attend_cross },
	{ "attend_masked", attend_masked },
	{ "attend_near", attend_near },
	{ "attend_sliding", attend_sliding },
	{ "attend_pairs", attend_pairs },
	{ "lookup", lookup },
	{ "product_small", product_small },
	{ "product_large", product_large },
	{ "product_deep", product_deep },
	{ "convolution", convolution },
	{ "sums", sums },
	{ "pools", pools },
	{ "conversions", conversions },
	{ "mixed", mixed },
};

/* ---- examples of the op table ---- */

static const char *read_type(const char *s, Type *t)
{
	size_t n = strcspn(s, "[");
	*t = type_scalar(dtype_from_name(s, n));
	for (s += n + 1; *s != ']'; s += *s == ',') {
		char *end;
		t->dim[t->ndim++] = strtoll(s, &end, 10);
		s = end;
	}
	return s + 1;
}

static const char *read_attr(Test *t, OpCode op, const char *s, Attr *attr)
{
	size_t n = strcspn(s, " =");
	int i = 0;
	while (strncmp(ir_ops[op].attrs[i].name, s, n) != 0 || ir_ops[op].attrs[i].name[n])
		i++;
	s += n + strspn(s + n, " =");
	char *end = NULL;
	attr[i] = (Attr){ 0 };
	switch (ir_ops[op].attrs[i].kind) {
	case A_STR:
		n = strcspn(s + 1, "\"");
		attr[i].s = arena_strndup(t->a, s + 1, n);
		return s + n + 2;
	case A_INTS:
		for (s++; *s != ']'; s = end + (*end == ','))
			attr[i].ints.v[attr[i].ints.n++] = strtoll(s, &end, 10);
		return s + 1;
	case A_BOOL:
		attr[i].i = *s == 't';
		return s + (attr[i].i ? 4 : 5);
	case A_FLOAT:
		attr[i].f = strtod(s, &end);
		return end;
	default:
		attr[i].i = strtoll(s, &end, 10);
		return end;
	}
}

static void add_example(Test *t, OpCode op, const char *text)
{
	Type arg[8], res[4];
	Attr attr[8] = { 0 };
	int nargs = 0, nres = 0;
	for (int i = 0; i < 8 && ir_ops[op].attrs[i].kind != A_END; i++) {
		if (ir_ops[op].attrs[i].kind == A_FLOAT)
			attr[i].f = ir_ops[op].attrs[i].dflt;
		else if (ir_ops[op].attrs[i].kind != A_STR && ir_ops[op].attrs[i].kind != A_INTS)
			attr[i].i = (int64_t)ir_ops[op].attrs[i].dflt;
	}
	bool results = false;
	for (const char *s = text; *s; s += strspn(s, " ,}")) {
		if (strncmp(s, "->", 2) == 0) {
			results = true;
			s += 2;
		} else if (*s == '{') {
			for (s++; *s && *s != '}'; s += strspn(s, " ,"))
				s = read_attr(t, op, s, attr);
		} else {
			s = read_type(s, results ? &res[nres++] : &arg[nargs++]);
		}
	}
	for (int i = 0; i < nargs; i++)
		if (ir_ops[op].f32_args >> i & 1 && dtype_bytes(arg[i].dtype) == 2)
			arg[i].dtype = DT_F32;
	if (ir_ops[op].flags & OPF_ACC && nargs > ir_ops[op].nargs && !t->caps.accumulates)
		return;
	if (ir_is_product(op) && op != OP_matmul && !t->caps.epilogue) /* of products that do more */
		return;
	if (ir_ops[op].flags & OPF_ACC && nargs > ir_ops[op].nargs && dtype_bytes(arg[0].dtype) == 2) { /* such sums are wide */
		res[0].dtype = DT_F32;
		if (op_attr_find(op, "out", 3) >= 0)
			attr[op_attr_find(op, "out", 3)].s = "f32";
	}
	const char *name = arena_printf(t->a, "%s %s", ir_ops[op].name, text);
	for (int copy = 0; copy < 2; copy++) {
		Builder b = start(t, name, copy);
		Value *args[8];
		for (int i = 0; i < nargs; i++) {
			bool index = (op == OP_embedding && i == 1) ||
				     (op == OP_embedding_grad && i == 0);
			args[i] = ir_input(&b, arena_printf(t->a, index ? "index%d" : "a%d", i),
					   arg[i]);
		}
		Node *n = ir_node(&b, op, nargs, args, attr,
				  ir_ops[op].flags & OPF_TYPED ? res : NULL);
		for (int i = 0; i < n->nres; i++)
			ir_output(&b, arena_printf(t->a, "r%d", i), n->res[i]);
		if (b.failed) {
			fault(t, name, "cannot be built");
			return;
		}
	}
	finish(t);
}

/* An example, written in f64, in another type. */
static const char *in_type(Arena *a, const char *text, const char *type)
{
	const char *s = "", *p;
	for (; (p = strstr(text, "f64")); text = p + 3)
		s = arena_printf(a, "%s%.*s%s", s, (int)(p - text), text, type);
	return arena_printf(a, "%s%s", s, text);
}

static void add_examples(Test *t)
{
	for (int op = 0; op < OP_COUNT; op++) {
		OpKind kind = ir_ops[op].kind;
		if (kind == K_MACRO || kind == K_REGION || kind == K_OPAQUE || kind == K_EFFECT)
			continue;
		for (const char *s = ir_ops[op].ex; s && *s;) {
			size_t n = strcspn(s, ";");
			const char *text = arena_strndup(t->a, s, n);
			add_example(t, (OpCode)op, text);
			if (strstr(text, "f64")) {
				add_example(t, (OpCode)op, in_type(t->a, text, "f32"));
				add_example(t, (OpCode)op, in_type(t->a, text, "bf16"));
				add_example(t, (OpCode)op, in_type(t->a, text, "f16"));
			}
			s += n + (s[n] == ';');
			s += strspn(s, " ");
		}
	}
}

/* ---- running ---- */

typedef struct Places {
	int64_t at;
} Places;

static int64_t place(Places *p, int64_t bytes)
{
	int64_t at = p->at + GUARD;
	p->at = (at + bytes + GUARD + 63) / 64 * 64;
	return at;
}

/* The operand that n goes on with, in whose place its result may lie: nothing else reads it. */
static const Value *taken_over(const Func *f, const Node *n)
{
	const Value *acc = ir_acc(n);
	int readers = 0;
	for (const Node *u = f->body->first; u; u = u->next)
		for (int i = 0; i < u->nargs; i++)
			readers += u->arg[i] == acc;
	return acc && acc->def && !ir_is_view(acc->def) && acc->def->op != OP_var && readers == 1 ? acc : NULL;
}

/* In the fused one sums go on in place, in the plain one elsewhere. */
int64_t place_case(Test *t, Func *f)
{
	bool in_place = strstr(f->name, ".fused") != NULL;
	Places p = { 0 };
	for (Var *v = t->m->vars; v; v = v->next)
		v->offset = place(&p, type_bytes(&v->type));
	for (Node *n = f->body->first; n; n = n->next) {
		for (int i = 0; i < n->nres && n->op != OP_var && !ir_is_view(n); i++)
			n->res[i]->offset = in_place && taken_over(f, n) ? ir_acc(n)->offset : place(&p, type_bytes(&n->res[i]->type));
		if (n->work_bytes > 0)
			n->work_offset = place(&p, n->work_bytes);
	}
	return p.at;
}

static uint32_t next_random(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*s >> 33);
}

static void store(DType t, unsigned char *p, int64_t i, double v)
{
	switch (t) {
	case DT_BOOL:
	case DT_U8:
		p[i] = (unsigned char)v;
		break;
	case DT_U16:
		((uint16_t *)(void *)p)[i] = (uint16_t)v;
		break;
	case DT_I32:
		((int32_t *)(void *)p)[i] = (int32_t)v;
		break;
	case DT_I64:
		((int64_t *)(void *)p)[i] = (int64_t)v;
		break;
	case DT_F32:
		((float *)(void *)p)[i] = (float)v;
		break;
	case DT_F16:
	case DT_BF16:
		((uint16_t *)(void *)p)[i] = interp_bits(t, v);
		break;
	default:
		((double *)(void *)p)[i] = v;
		break;
	}
}

static double load(DType t, const unsigned char *p, int64_t i)
{
	switch (t) {
	case DT_BOOL:
	case DT_U8:
		return p[i];
	case DT_U16:
		return ((const uint16_t *)(const void *)p)[i];
	case DT_I32:
		return ((const int32_t *)(const void *)p)[i];
	case DT_I64:
		return (double)((const int64_t *)(const void *)p)[i];
	case DT_F32:
		return (double)((const float *)(const void *)p)[i];
	case DT_F16:
	case DT_BF16:
		return interp_value(t, ((const uint16_t *)(const void *)p)[i]);
	default:
		return ((const double *)(const void *)p)[i];
	}
}

/* All numbers of the 16-bit type that the name ends in; behind them what lies in the middle between
 * each and the next, and f32's neighbours of that. */
static double every(const char *name, int64_t i)
{
	DType t = strstr(name, "bf16") ? DT_BF16 : DT_F16;
	float v = (float)interp_value(t, (uint16_t)i),
	      next = (float)interp_value(t, (uint16_t)(i + 1)), middle = v + (next - v) / 2;
	switch (i >> 16) {
	case 0: return (double)v;
	case 1: return (double)middle;
	case 2: return (double)nextafterf(middle, INFINITY);
	default: return (double)nextafterf(middle, -INFINITY);
	}
}

/* Elements of an input: the same under the same name; indices lie in [-1, 11), where -1 stands for
 * -100. */
static double element(const char *name, DType t, int64_t i)
{
	uint64_t s = (uint64_t)i * 2654435761u + 12345;
	for (const char *c = name; *c; c++)
		s = s * 31 + (unsigned char)*c;
	next_random(&s);
	if (strncmp(name, "every", 5) == 0)
		return every(name, i);
	double u = (double)next_random(&s) / 2147483648.0;
	if (strncmp(name, "index", 5) == 0)
		return floor(u * 5);
	if (t == DT_BOOL)
		return u < 0.5;
	return dtype_is_float(t) ? interp_round(t, 3 * u - 1.5) : floor(u * 7);
}

/* Inputs and variables in, pattern everywhere else. */
void fill_arena(const Test *t, const Func *f, unsigned char *arena, int64_t bytes)
{
	memset(arena, PATTERN, (size_t)bytes);
	for (const Var *v = t->m->vars; v; v = v->next)
		for (int64_t i = 0; i < type_elems(&v->type); i++)
			store(v->type.dtype, arena + v->offset, i,
			      element(v->name, v->type.dtype, i));
	for (const Node *n = f->body->first; n; n = n->next)
		for (int64_t i = 0; n->op == OP_input && i < type_elems(&n->res[0]->type); i++)
			store(n->res[0]->type.dtype, arena + n->res[0]->offset, i,
			      element(ir_str(n, "name"), n->res[0]->type.dtype, i));
}

static bool guard_holds(const unsigned char *arena, int64_t at, int64_t bytes)
{
	for (int64_t i = 1; i <= GUARD; i++)
		if (arena[at - i] != PATTERN || arena[at + bytes + i - 1] != PATTERN)
			return false;
	return true;
}

bool guards_hold(const Test *t, const Func *f, const unsigned char *arena)
{
	for (const Var *v = t->m->vars; v; v = v->next)
		if (!guard_holds(arena, v->offset, type_bytes(&v->type)))
			return false;
	for (const Node *n = f->body->first; n; n = n->next) {
		for (int i = 0; i < n->nres && n->op != OP_var && !ir_is_view(n); i++)
			if (!guard_holds(arena, n->res[i]->offset, type_bytes(&n->res[i]->type)))
				return false;
		if (n->work_bytes > 0 && !guard_holds(arena, n->work_offset, n->work_bytes))
			return false;
	}
	return true;
}

const EmitFunc *find_func(const Test *t, const Func *f)
{
	for (size_t i = 0; i < t->e->funcs.len; i++)
		if (t->e->funcs.at[i].func == f)
			return &t->e->funcs.at[i];
	abort();
}

const PlanEnv moment = { .seed = 0x123456789abcdefu, .step = 3, .base = 8, .threads = 1 };

/* Whether a 16-bit case is made of nothing but ops that both sides compute exactly and round once. */
static bool is_exact(const Func *f)
{
	for (const Node *n = f->body->first; n; n = n->next) {
		for (const Node *x = n->body ? n->body->first : NULL; x; x = x->next)
			switch ((int)x->op) {
			case OP_add: case OP_sub: case OP_mul: case OP_div: case OP_max: case OP_min:
			case OP_neg: case OP_abs: case OP_sign: case OP_sqrt: case OP_relu: case OP_floor:
			case OP_cast: case OP_cast_like: case OP_select: case OP_reduce_max: case OP_const:
			case OP_yield: break;
			default:
				if (ir_ops[x->op].kind != K_SHAPE)
					return false;
			}
		if (n->op != OP_fused && n->op != OP_input && n->op != OP_output &&
		    n->op != OP_max_pool2d && n->op != OP_max_pool2d_index && n->op != OP_embedding && !ir_is_view(n))
			return false;
	}
	return true;
}

/* Shares of an element, of the largest element, and of the magnitudes of an element's terms. */
typedef struct Tolerance {
	double own, whole, terms;
} Tolerance;

/* Where ops of 16-bit results follow each other, a difference of one unit goes on.
 *
 * Sums whose terms have a factor rounded to 16 bits (attention: exp(score - max) times v, as tensor cores take it; the gradients alike): rounding
 * to nearest changes a factor by at most half a unit of itself, so the sum by half a unit of the sum of |term|, which is
 * more than any share of the sum itself where terms cancel. Storing the sum, and the interpreter's own, are half a unit of the
 * element each. What f32 loses is the f32 tolerance. */
static Tolerance tolerances(const Case *c, DType d, bool terms)
{
	bool narrow = strstr(c->name, "f16") != NULL; /* of bf16 too */
	double unit = strstr(c->name, "bf16") ? 0x1p-7 : 0x1p-10, f32 = d == DT_F64 ? 1e-11 : dtype_is_float(d) ? 2e-5 : 0;
	if (!narrow || !dtype_is_float(d))
		return (Tolerance){ f32, f32, 0 };
	if (is_exact(c->plain))
		return (Tolerance){ 0, 0, 0 };
	if (strchr(c->name, '/')) /* a composite */
		return (Tolerance){ 4 * unit, 4 * unit, 0 };
	return (Tolerance){ dtype_bytes(d) == 2 ? unit : f32, f32, terms && dtype_bytes(d) == 2 ? unit / 2 : 0 };
}

void compare(Test *t, const Case *c, const char *what, DType d, const unsigned char *got,
		    const double *want, const double *terms, int64_t n)
{
	double largest = 0;
	Tolerance x = tolerances(c, d, terms != NULL);
	for (int64_t i = 0; i < n; i++)
		if (isfinite(want[i]) && fabs(want[i]) > largest)
			largest = fabs(want[i]);
	for (int64_t i = 0; i < n; i++) {
		double g = load(d, got, i);
		if ((isnan(g) && isnan(want[i])) || g == want[i] ||
		    fabs(g - want[i]) <= x.own * fabs(want[i]) + x.whole * largest + (terms ? x.terms * terms[i] : 0))
			continue;
		fault(t, c->name, "%s[%lld]: expected %.17g, got %.17g", what, (long long)i,
		      want[i], g);
		return;
	}
	t->passed++;
}

bool reference(Test *t, const Case *c, InterpEnv *env, Func *f, bool magnitudes)
{
	*env = (InterpEnv){ .arena = t->a, .seed = moment.seed, .step = moment.step, .base = moment.base, .magnitudes = magnitudes };
	for (const Var *v = t->m->vars; v; v = v->next) {
		InterpSlot *s = interp_slot(env, &env->vars, v->name, &v->type);
		for (int64_t i = 0; i < type_elems(&v->type); i++)
			s->v[i] = element(v->name, v->type.dtype, i);
	}
	for (const Node *n = f->body->first; n; n = n->next) {
		if (n->op != OP_input)
			continue;
		InterpSlot *s = interp_slot(env, &env->inputs, ir_str(n, "name"), &n->res[0]->type);
		for (int64_t i = 0; i < type_elems(&s->type); i++)
			s->v[i] = element(s->name, s->type.dtype, i);
	}
	if (interp_func(f, env))
		return true;
	fault(t, c->name, "the interpreter: %s", env->error);
	return false;
}

void same_bytes(Test *t, const Case *c, const char *what, const unsigned char *a,
		       const unsigned char *b, int64_t bytes)
{
	if (memcmp(a, b, (size_t)bytes) == 0)
		t->passed++;
	else
		fault(t, c->name, "%s differs", what);
}

/* What a function leaves: outputs in order, then variables. */
unsigned char *results(Test *t, const Func *f, const unsigned char *arena, int64_t *bytes)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	for (const Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_output)
			fwrite(arena + emit_offset(t->m, n->arg[0]), 1,
			       (size_t)type_bytes(&n->arg[0]->type), out);
	for (const Var *v = t->m->vars; v; v = v->next)
		fwrite(arena + v->offset, 1, (size_t)type_bytes(&v->type), out);
	fclose(out);
	*bytes = (int64_t)len;
	return (unsigned char *)text;
}

void make_cases(Test *t, const char *target)
{
	const Backend *b = backend_find(target);
	t->a = arena_new();
	Diag *diag = diag_new(t->a, stdout, 0);
	t->m = ir_module(t->a, diag, "kernels", 4);
	t->caps = (Capabilities){ THREADS, b->tf32, b->offload, b->strided_attention, b->workspace, b->fusable, b->accumulates, b->epilogue, b->sums_beside_rows };
	t->cx = (PassCtx){ .arena = t->a, .diag = diag, .caps = &t->caps };
	for (size_t i = 0; i < sizeof composites / sizeof *composites; i++) {
		if (composites[i].make == sums && !b->accumulates)
			continue;
		add_case(t, composites[i].name, composites[i].make, DT_F64);
		add_case(t, composites[i].name, composites[i].make, DT_F32);
		add_case(t, composites[i].name, composites[i].make, DT_BF16);
		add_case(t, composites[i].name, composites[i].make, DT_F16);
	}
	add_examples(t);
}

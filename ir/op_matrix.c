/* Matrix products and convolutions: type rules, gradients, costs. */
#include "op_util.h"

/* ---- matmul ---- */

typedef struct Product {
	int m, k, n;      /* axes: m and k of the first operand, n of the second */
	int k2;           /* k of the second operand */
	int lead1, lead2; /* number of leading axes */
} Product;

static Product product_of(const Node *n)
{
	int lead1 = op_arg(n, 0)->ndim - 2, lead2 = op_arg(n, 1)->ndim - 2;
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;
	return (Product){ .lead1 = lead1,
			  .lead2 = lead2,
			  .m = lead1 + ta,
			  .k = lead1 + !ta,
			  .k2 = lead2 + tb,
			  .n = lead2 + !tb };
}

/* What `out` says, where it says something. */
static bool product_dtype(const Node *n, DType *t, char why[256])
{
	const char *out = ir_str(n, "out");
	if (!out || !*out)
		return true;
	if (strcmp(out, "f32") || dtype_bytes(*t) != 2)
		return op_fail(why, "out = \"%s\" of operands %s: only f32 of a 16-bit type", out,
			       TYPE_TEXT(op_arg(n, 0)));
	*t = DT_F32;
	return true;
}

/* The type of a product whose elements are of `dtype` (DT_NONE: of the operands'). */
static bool product_type(const Node *n, DType dtype, Type *res, char why[256])
{
	const Type *x = op_arg(n, 0), *y = op_arg(n, 1);
	if (x->ndim < 2 || y->ndim < 2)
		return op_fail(why, "needs two matrices, got %s by %s", TYPE_TEXT(x), TYPE_TEXT(y));
	if (x->dtype != y->dtype || !dtype_is_float(x->dtype))
		return op_fail(why, "needs floating-point numbers of one type, got %s by %s",
			       TYPE_TEXT(x), TYPE_TEXT(y));
	Product p = product_of(n);
	if (x->dim[p.k] != y->dim[p.k2])
		return op_fail(why, "inner sizes differ, %s by %s", TYPE_TEXT(x), TYPE_TEXT(y));
	if (type_marked(x, p.k) != type_marked(y, p.k2))
		return op_fail(why, "only one inner size scales with the batch, %s by %s",
			       TYPE_TEXT(x), TYPE_TEXT(y));
	DType own = dtype ? dtype : x->dtype;
	Type t = type_scalar(own);
	type_append(&t, x, 0, p.lead1);
	if (p.lead1 && p.lead2) {
		Type other = type_scalar(own);
		type_append(&other, y, 0, p.lead2);
		if (!type_equal(&t, &other))
			return op_fail(why, "leading axes differ, %s by %s", TYPE_TEXT(x),
				       TYPE_TEXT(y));
	} else {
		type_append(&t, y, 0, p.lead2);
	}
	type_append(&t, x, p.m, p.m + 1);
	type_append(&t, y, p.n, p.n + 1);
	if (!type_check(&t))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(&t));
	*res = t;
	return true;
}

bool t_matmul(const Node *n, Type *res, char why[256])
{
	DType t = op_arg(n, 0)->dtype;
	return product_dtype(n, &t, why) && product_type(n, t, res, why) && op_acc_arg(n, res, why);
}

/* ---- products with an epilogue ---- */

bool t_matmul_bias(const Node *n, Type *res, char why[256])
{
	if (!product_type(n, DT_NONE, res, why))
		return false;
	Type bias = type_scalar(res->dtype);
	type_append(&bias, res, res->ndim - 1, res->ndim);
	if (!type_equal(op_arg(n, 2), &bias))
		return op_fail(why, "expected a bias of type %s, got %s", TYPE_TEXT(&bias), TYPE_TEXT(op_arg(n, 2)));
	return true;
}

bool t_matmul_gelu_grad(const Node *n, Type *res, char why[256])
{
	if (!product_type(n, DT_NONE, res, why))
		return false;
	if (!type_equal(op_arg(n, 2), res))
		return op_fail(why, "a product %s does not match %s", TYPE_TEXT(res), TYPE_TEXT(op_arg(n, 2)));
	return true;
}

bool t_matmul_sums(const Node *n, Type *res, char why[256])
{
	int64_t of = ir_int(n, "of");
	DType d = op_arg(n, 0)->dtype;
	if (op_arg(n, 0)->ndim != 2 || op_arg(n, 1)->ndim != 2 || of < 0 || of > 1)
		return op_fail(why, "needs two matrices and of = 0 or 1");
	if (!product_type(n, dtype_bytes(d) == 2 ? DT_F32 : d, res, why))
		return false;
	res[1] = type_scalar(res->dtype);
	type_append(&res[1], res, (int)of, (int)of + 1);
	return op_acc_arg(n, res, why);
}

/* x [.., M, K] as [..*M, K] */
static Value *flatten(Builder *b, Value *x)
{
	const Type *t = &x->type;
	if (t->ndim == 2)
		return x;
	Type flat = type_scalar(t->dtype);
	type_append(&flat, t, t->ndim - 2, t->ndim);
	for (int i = 0; i < t->ndim - 2; i++)
		flat.dim[0] *= t->dim[i];
	if (t->batch & ~(1u << (t->ndim - 1)))
		flat.batch |= 1;
	return ir_reshape(b, x, flat);
}

/* dA = dy op(B)^T and dB = op(A)^T dy, each stored as its operand is. A weight (the operand without
 * leading axes) gets its gradient as one product over all rows; where its partner is transposed the
 * walker sums the leading axes. What the product is added to gets dy. */
bool g_matmul(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *x = n->arg[0], *y = n->arg[1], *d = ir_cast(b, dy[0], x->type.dtype);
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;
	dx[0] = ta ? ir_matmul(b, y, d, tb, true) : ir_matmul(b, d, y, false, !tb);
	Value *rows = x, *drows = d;
	if (x->type.ndim > 2 && y->type.ndim == 2 && !ta) {
		rows = flatten(b, x);
		drows = flatten(b, d);
	}
	dx[1] = tb ? ir_matmul(b, drows, rows, true, ta) : ir_matmul(b, rows, drows, !ta, false);
	if (ir_acc(n))
		dx[2] = dy[0];
	return true;
}

double f_matmul(const Node *n)
{
	Product p = product_of(n);
	return 2.0 * (double)type_elems(&n->res[0]->type) * (double)op_arg(n, 0)->dim[p.k];
}

/* ---- conv2d ---- */

/* The result type of a convolution of x by w with n's attributes. */
static bool conv_type(const Node *n, const Type *x, const Type *w, Type *y, char why[256])
{
	int64_t stride[2], pad[2], dilation[2], groups = ir_int(n, "groups");
	if (!op_pair(n, "stride", 1, stride, why) || !op_pair(n, "pad", 0, pad, why) ||
	    !op_pair(n, "dilation", 1, dilation, why))
		return false;
	if (x->ndim != 4 || w->ndim != 4)
		return op_fail(why, "needs [N,C,H,W] and [O,C,h,w], got %s and %s", TYPE_TEXT(x),
			       TYPE_TEXT(w));
	if (x->dtype != w->dtype || !dtype_is_float(x->dtype))
		return op_fail(why, "needs floating-point numbers of one type, got %s and %s",
			       TYPE_TEXT(x), TYPE_TEXT(w));
	if (groups < 1 || x->dim[1] % groups || w->dim[0] % groups)
		return op_fail(why, "%lld groups do not divide the channels of %s and %s",
			       (long long)groups, TYPE_TEXT(x), TYPE_TEXT(w));
	if (x->dim[1] / groups != w->dim[1])
		return op_fail(why, "channels differ, %s by %s in %lld groups", TYPE_TEXT(x),
			       TYPE_TEXT(w), (long long)groups);
	if (x->batch & ~1u || w->batch)
		return op_fail(why, "the batch must be axis 0 of the images, got %s by %s",
			       TYPE_TEXT(x), TYPE_TEXT(w));
	*y = *x;
	y->dim[1] = w->dim[0];
	for (int i = 0; i < 2; i++) {
		int64_t in = x->dim[2 + i], k = w->dim[2 + i];
		if (in > INT64_MAX / 4 || k - 1 > (INT64_MAX / 4) / dilation[i])
			return op_fail(why, "sizes are too large, %s by %s", TYPE_TEXT(x),
				       TYPE_TEXT(w));
		int64_t room = in + 2 * pad[i] - (dilation[i] * (k - 1) + 1);
		if (room < 0)
			return op_fail(why,
				       "the kernel of %s is larger than the padded image of %s",
				       TYPE_TEXT(w), TYPE_TEXT(x));
		y->dim[2 + i] = room / stride[i] + 1;
	}
	if (!type_check(y))
		return op_fail(why, "the result %s is too large", TYPE_TEXT(y));
	return true;
}

bool t_conv2d(const Node *n, Type *res, char why[256])
{
	return conv_type(n, op_arg(n, 0), op_arg(n, 1), res, why);
}

/* dy of a gradient op must be what the convolution of x by w gives. */
static bool conv_grad_type(const Node *n, const Type *x, const Type *w, const Type *dy,
			   char why[256])
{
	Type y;
	if (!type_check(&n->res[0]->type))
		return op_fail(why, "%s is not a valid type", TYPE_TEXT(&n->res[0]->type));
	if (!conv_type(n, x, w, &y, why))
		return false;
	if (!type_equal(&y, dy))
		return op_fail(why, "expected a gradient of type %s, got %s", TYPE_TEXT(&y),
			       TYPE_TEXT(dy));
	return true;
}

bool t_conv2d_grad_x(const Node *n, Type *res, char why[256])
{
	*res = n->res[0]->type;
	return conv_grad_type(n, res, op_arg(n, 1), op_arg(n, 0), why);
}

/* Of 16-bit operands the gradient may be f32: the sums, not rounded. */
bool t_conv2d_grad_w(const Node *n, Type *res, char why[256])
{
	*res = n->res[0]->type;
	Type like = *res;
	if (like.dtype == DT_F32 && dtype_bytes(op_arg(n, 0)->dtype) == 2)
		like.dtype = op_arg(n, 0)->dtype;
	return conv_grad_type(n, op_arg(n, 0), &like, op_arg(n, 1), why) && op_acc_arg(n, res, why);
}

/* The three rows have the same attributes. */
bool g_conv2d(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *for_x[] = { dy[0], n->arg[1] }, *for_w[] = { n->arg[0], dy[0] };
	dx[0] = ir_value(b, OP_conv2d_grad_x, 2, for_x, n->attr, op_arg(n, 0));
	dx[1] = ir_value(b, OP_conv2d_grad_w, 2, for_w, n->attr, op_arg(n, 1));
	return true;
}

/* A convolution backwards is linear in dy and w: its gradients are the convolution of what comes back, and the
 * gradient by w with x and dy in each other's place. */
bool g_conv2d_grad_x(Builder *b, Node *n, Value *const *dy, Value **dx)
{
	Value *for_y[] = { dy[0], n->arg[1] }, *for_w[] = { dy[0], n->arg[0] };
	dx[0] = ir_value(b, OP_conv2d, 2, for_y, n->attr, NULL);
	dx[1] = ir_value(b, OP_conv2d_grad_w, 2, for_w, n->attr, op_arg(n, 1));
	return true;
}

/* Each result pixel of each image meets one group's input channels under the kernel. */
static double conv_flops(const Type *w, const Type *y)
{
	return 2.0 * (double)type_elems(y) * (double)(w->dim[1] * w->dim[2] * w->dim[3]);
}

double f_conv2d(const Node *n)
{
	return conv_flops(op_arg(n, 1), &n->res[0]->type);
}

double f_conv2d_grad_x(const Node *n)
{
	return conv_flops(op_arg(n, 1), op_arg(n, 0));
}

double f_conv2d_grad_w(const Node *n)
{
	return conv_flops(&n->res[0]->type, op_arg(n, 1));
}

/* Matrix products and convolutions as calls of a library (library.h). Leading axes of a product are one batch axis, or
 * rows where the other operand has none. */
#include "library.h"

int64_t library_pair(const Node *n, const char *name, int i, int64_t dflt)
{
	const IntList *l = ir_ints(n, name);
	return l->n == 0 ? dflt : l->v[i < l->n ? i : l->n - 1];
}

/* Row-major strides; t: the last two axes are stored the other way round. */
static void matmul_operand(PlanPrim *p, int role, const int64_t *dims, bool t, bool broadcast)
{
	int n = p->ndim;
	memcpy(p->dims[role], dims, sizeof *dims * (size_t)n);
	int64_t rows = dims[n - 2], cols = dims[n - 1];
	p->strides[role][n - 2] = t ? 1 : cols;
	p->strides[role][n - 1] = t ? rows : 1;
	if (n == 3)
		p->strides[role][0] = broadcast ? 0 : rows * cols;
}

static int64_t leading(const Type *t)
{
	int64_t n = 1;
	for (int i = 0; i + 2 < t->ndim; i++)
		n *= t->dim[i];
	return n;
}

static void describe_matmul(const Node *n, PlanPrim *p)
{
	const Type *x = &n->arg[0]->type, *y = &n->arg[1]->type;
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;
	int64_t M = x->dim[x->ndim - (ta ? 1 : 2)], K = x->dim[x->ndim - (ta ? 2 : 1)];
	int64_t N = y->dim[y->ndim - (tb ? 2 : 1)], xb = leading(x), yb = leading(y);
	bool x_whole = x->ndim == 2 || xb == 1, y_whole = y->ndim == 2 || yb == 1;
	p->kind = PRIM_MATMUL;
	if (y_whole && !ta) { /* [B,T,C] x [C,O]: one product of B*T rows */
		M *= xb;
		xb = 1;
	}
	int64_t batch = xb > yb ? xb : yb;
	p->ndim = batch > 1 ? 3 : 2;
	int64_t a[3] = { batch, M, K }, b[3] = { batch, K, N }, c[3] = { batch, M, N };
	int skip = 3 - p->ndim;
	matmul_operand(p, 0, a + skip, ta, x_whole && batch > 1);
	matmul_operand(p, 1, b + skip, tb, y_whole && batch > 1);
	matmul_operand(p, 2, c + skip, false, false);
}

static void describe_conv(const Node *n, PlanPrim *p)
{
	const Value *x = n->arg[0], *w = n->arg[1], *y = n->res[0];
	p->kind = PRIM_CONV;
	if (n->op == OP_conv2d_grad_x) {
		p->kind = PRIM_CONV_GRAD_X;
		x = n->res[0];
		y = n->arg[0];
	} else if (n->op == OP_conv2d_grad_w) {
		p->kind = PRIM_CONV_GRAD_W;
		w = n->res[0];
		y = n->arg[1];
	}
	const Value *role[] = { x, w, y };
	p->ndim = 4;
	for (int i = 0; i < 3; i++)
		memcpy(p->dims[i], role[i]->type.dim, 4 * sizeof p->dims[i][0]);
	for (int i = 0; i < 2; i++) {
		p->stride[i] = library_pair(n, "stride", i, 1);
		p->pad[i] = library_pair(n, "pad", i, 0);
		p->dilation[i] = library_pair(n, "dilation", i, 1);
	}
	p->groups = ir_int(n, "groups");
}

static PlanEpilogue epilogue_of(const Node *n)
{
	switch ((int)n->op) {
	case OP_matmul_bias: return ir_int(n, "relu") ? EPILOGUE_BIAS_RELU : EPILOGUE_BIAS;
	case OP_matmul_gelu_grad: return EPILOGUE_GELU_GRAD;
	case OP_matmul_sums: return ir_int(n, "of") ? EPILOGUE_SUMS_B : EPILOGUE_SUMS_A;
	default: return EPILOGUE_NONE;
	}
}

bool library_call(const Node *n, PlanPrim *p)
{
	if (ir_ops[n->op].kind != K_MATRIX)
		return false;
	*p = (PlanPrim){ .groups = 1, .acc = ir_acc(n) != NULL };
	if (ir_is_product(n->op))
		describe_matmul(n, p);
	else
		describe_conv(n, p);
	p->epilogue = epilogue_of(n);
	p->tf32 = (n->flags & NF_TF32) != 0;
	p->dtype = (PlanDType)n->arg[0]->type.dtype;
	if (n->res[0]->type.dtype != n->arg[0]->type.dtype)
		p->out = (PlanDType)n->res[0]->type.dtype;
	return true;
}

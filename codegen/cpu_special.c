/* Nodes that are no loop nest: pools, embedding, attention, and products.
 *
 * Products in f32 are calls of the library (cpu_prim describes them). Everything else is a call of a function of special.h
 * with this node's sizes as constants, or, for the row copies of an embedding, text made here. */
#include "cpu.h"

#include <assert.h>

enum { EMBED_COLUMNS = 64 }; /* columns that one thread adds up at a time */

static int64_t dim(const Value *v, int i)
{
	return v->type.dim[i];
}

static int64_t list2(const Node *n, const char *name, int i, int64_t dflt)
{
	const IntList *l = ir_ints(n, name);
	return l->n == 0 ? dflt : l->v[i < l->n ? i : l->n - 1];
}

/* ---- library calls ---- */

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
		p->stride[i] = list2(n, "stride", i, 1);
		p->pad[i] = list2(n, "pad", i, 0);
		p->dilation[i] = list2(n, "dilation", i, 1);
	}
	p->groups = ir_int(n, "groups");
}

static void describe(const Node *n, PlanPrim *p)
{
	*p = (PlanPrim){ .groups = 1 };
	if (n->op == OP_matmul)
		describe_matmul(n, p);
	else
		describe_conv(n, p);
	p->dtype = (PlanDType)n->res[0]->type.dtype;
}

bool cpu_prim(const Node *n, PlanPrim *p)
{
	if (ir_ops[n->op].kind != K_MATRIX)
		return false;
	describe(n, p);
	return p->dtype == PD_F32;
}

/* ---- text ---- */

static const char *pointer(Arena *a, const Node *n, int i)
{
	bool out = i >= n->nargs;
	DType t = out ? n->res[i - n->nargs]->type.dtype : n->arg[i]->type.dtype;
	return arena_printf(a, "(%s%s *)(arena + off[%d])", out ? "" : "const ", cpu_ctype(t), i);
}

/* Every operand and result, by commas. */
static const char *pointers(Arena *a, const Node *n)
{
	const char *s = "";
	for (int i = 0; i < n->nargs + n->nres; i++)
		s = arena_printf(a, "%s%s%s", s, i ? ", " : "", pointer(a, n, i));
	return s;
}

static const char *suffix(const Node *n)
{
	return n->res[0]->type.dtype == DT_F64 ? "f64" : "f32";
}

static const char *wrap(Arena *a, const char *body)
{
	return arena_printf(a, "(unsigned char *arena, const int64_t *off, const PlanEnv *env)\n{\n%s}\n", body);
}

static const char *pool_text(Arena *a, const Node *n)
{
	bool grad = n->op == OP_max_pool2d_grad || n->op == OP_avg_pool2d_grad;
	const Value *x = grad ? n->res[0] : n->arg[0], *y = grad ? n->arg[n->nargs - 1] : n->res[0];
	const char *sizes = arena_printf(a, "%lld, %lld, %lld, %lld, %lld", (long long)(dim(x, 0) * dim(x, 1)),
					 (long long)dim(x, 2), (long long)dim(x, 3), (long long)dim(y, 2), (long long)dim(y, 3));
	for (int i = 0; i < 6; i++) {
		static const char *const name[] = { "kernel", "stride", "pad" };
		sizes = arena_printf(a, "%s, %lld", sizes, (long long)list2(n, name[i / 2], i % 2, i < 4));
	}
	return wrap(a, arena_printf(a, "\tdl_%s_%s(%s, %s, env->threads);\n", ir_ops[n->op].name, suffix(n), pointers(a, n), sizes));
}

/* Indices outside of the table read zeros and add nowhere: data are checked before the first step, a replay of garbage must
 * still stay inside the arena. */
static const char *embedding_text(Arena *a, const Node *n)
{
	const char *t = cpu_ctype(n->res[0]->type.dtype), *it = cpu_ctype(n->arg[1]->type.dtype);
	long long rows = (long long)type_elems(&n->arg[1]->type), V = (long long)dim(n->arg[0], 0), C = (long long)dim(n->arg[0], 1);
	const char *s = arena_printf(a, "\tconst %s *const w = %s;\n\tconst %s *const at = %s;\n\t%s *const y = %s;\n", t,
				     pointer(a, n, 0), it, pointer(a, n, 1), t, pointer(a, n, 2));
	s = arena_printf(a, "%s#pragma omp parallel for num_threads(env->threads) schedule(static) if (%lld > 65536)\n", s, rows * C);
	s = arena_printf(a,
			 "%s\tfor (int64_t i = 0; i < %lld; i++) {\n"
			 "\t\tconst int64_t r = (int64_t)at[i];\n"
			 "\t\tif (r >= 0 && r < %lld)\n"
			 "\t\t\tmemcpy(y + i * %lld, w + r * %lld, sizeof(%s) * %lld);\n"
			 "\t\telse\n"
			 "\t\t\tmemset(y + i * %lld, 0, sizeof(%s) * %lld);\n"
			 "\t}\n",
			 s, rows, V, C, C, t, C, C, t, C);
	return wrap(a, s);
}

/* Threads take blocks of columns, so every sum adds up in order of position. */
static const char *embedding_grad_text(Arena *a, const Node *n)
{
	const char *t = cpu_ctype(n->res[0]->type.dtype), *it = cpu_ctype(n->arg[0]->type.dtype);
	long long rows = (long long)type_elems(&n->arg[0]->type), V = (long long)dim(n->res[0], 0), C = (long long)dim(n->res[0], 1);
	long long blocks = (C + EMBED_COLUMNS - 1) / EMBED_COLUMNS;
	const char *s = arena_printf(a, "\tconst %s *const at = %s;\n\tconst %s *const g = %s;\n\t%s *const dw = %s;\n", it,
				     pointer(a, n, 0), t, pointer(a, n, 1), t, pointer(a, n, 2));
	s = arena_printf(a, "%s#pragma omp parallel for num_threads(env->threads) schedule(static) if (%lld > 65536)\n", s,
			 (rows + V) * C);
	s = arena_printf(a,
			 "%s\tfor (int64_t b = 0; b < %lld; b++) {\n"
			 "\t\tconst int c0 = (int)b * %d, c1 = c0 + %d < %lld ? c0 + %d : %lld;\n"
			 "\t\tfor (int64_t r = 0; r < %lld; r++)\n"
			 "\t\t\tmemset(dw + r * %lld + c0, 0, sizeof(%s) * (size_t)(c1 - c0));\n"
			 "\t\tfor (int64_t i = 0; i < %lld; i++) {\n"
			 "\t\t\tconst int64_t r = (int64_t)at[i];\n"
			 "\t\t\tif (r < 0 || r >= %lld)\n"
			 "\t\t\t\tcontinue;\n"
			 "#pragma omp simd\n"
			 "\t\t\tfor (int c = c0; c < c1; c++)\n"
			 "\t\t\t\tdw[r * %lld + c] += g[i * %lld + c];\n"
			 "\t\t}\n"
			 "\t}\n",
			 s, blocks, EMBED_COLUMNS, EMBED_COLUMNS, C, EMBED_COLUMNS, C, V, C, t, rows, V, C, C);
	return wrap(a, s);
}

static int64_t padded(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

/* The same numbers as DL_ATTENTION_SCRATCH and DL_ATTENTION_GRAD_SCRATCH of special.h, in bytes. */
static int64_t attention_scratch(const Node *n)
{
	int64_t D = dim(n->arg[0], 2) / ir_int(n, "heads"), Dp = padded(D, 16);
	int64_t T = padded(dim(n->arg[0], 1), 64), K = padded(dim(n->arg[1], 1), 64);
	int64_t elems = n->op == OP_attention ? K * Dp * 2 + 32 * 64 + 32 * Dp * 2 : T * (Dp * 3 + 1) + 32 * 64 * 2 + 64 * Dp * 6;
	return elems * dtype_bytes(n->res[0]->type.dtype);
}

static const char *attention_text(Arena *a, const Node *n)
{
	const Value *q = n->arg[0];
	int64_t heads = ir_int(n, "heads"), D = dim(q, 2) / heads;
	double scale = ir_float(n, "scale");
	const char *s = "";
	for (int i = 0; i < 3; i++)
		s = arena_printf(a, "%s%s, %lld, ", s, pointer(a, n, i), (long long)(n->arg[i]->ld ? n->arg[i]->ld : dim(q, 2)));
	for (int i = 3; i < n->nargs + n->nres; i++)
		s = arena_printf(a, "%s%s, ", s, pointer(a, n, i));
	const char *real = cpu_ctype(n->res[0]->type.dtype);
	const char *by = scale == 0 ? arena_printf(a, "1 / __builtin_sqrt(%lld)", (long long)D) : cpu_literal(a, DT_F64, scale);
	s = arena_printf(a, "%s(%s *)(arena + off[%d]), %lld, %lld, %lld, %lld, %lld, %d, (%s)(%s), env->threads", s, real,
			 n->nargs + n->nres, (long long)dim(q, 0), (long long)dim(q, 1), (long long)dim(n->arg[1], 1), (long long)heads,
			 (long long)D, ir_int(n, "causal") != 0, real, by);
	return wrap(a, arena_printf(a, "\tdl_%s_%s(%s);\n", ir_ops[n->op].name, suffix(n), s));
}

static const char *matrix_text(Arena *a, const Node *n)
{
	PlanPrim p;
	describe(n, &p);
	const char *s = arena_printf(a, "\tdl_%s_%s(%s", ir_ops[n->op].name, suffix(n), pointers(a, n));
	if (n->op == OP_matmul) {
		int r = p.ndim - 2;
		int64_t sizes[] = { p.ndim == 3 ? p.dims[0][0] : 1, p.dims[0][r], p.dims[1][r + 1], p.dims[0][r + 1],
				    p.ndim == 3 ? p.strides[0][0] : 0, p.strides[0][r], p.strides[0][r + 1],
				    p.ndim == 3 ? p.strides[1][0] : 0, p.strides[1][r], p.strides[1][r + 1] };
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
			s = arena_printf(a, "%s, %lld", s, (long long)sizes[i]);
	} else {
		const int64_t *x = p.dims[0], *w = p.dims[1], *y = p.dims[2];
		int64_t sizes[] = { x[0], x[1], x[2], x[3], w[0], p.groups, w[2], w[3], y[2], y[3], p.stride[0], p.stride[1],
				    p.pad[0], p.pad[1], p.dilation[0], p.dilation[1] };
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
			s = arena_printf(a, "%s, %lld", s, (long long)sizes[i]);
	}
	return wrap(a, arena_printf(a, "%s, env->threads);\n", s));
}

const char *cpu_special_text(Arena *a, const Node *n, int64_t micro)
{
	(void)micro;
	switch (n->op) {
	case OP_max_pool2d:
	case OP_max_pool2d_grad:
	case OP_avg_pool2d:
	case OP_avg_pool2d_grad:
		return pool_text(a, n);
	case OP_embedding:
		return embedding_text(a, n);
	case OP_embedding_grad:
		return embedding_grad_text(a, n);
	case OP_attention:
	case OP_attention_grad:
		return attention_text(a, n);
	default:
		return ir_ops[n->op].kind == K_MATRIX ? matrix_text(a, n) : NULL;
	}
}

int64_t cpu_special_workspace(const Node *n, int threads)
{
	if (n->op == OP_attention || n->op == OP_attention_grad)
		return attention_scratch(n) * threads;
	return 0;
}

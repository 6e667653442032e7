/* Nodes that are no loop nest: pools, embedding, attention, and products.
 *
 * Products in f32, and convolutions in 16 bits, are calls of the library (cpu_prim describes them);
 * so are products in bf16 where the processor has instructions for them. Everything else is a call
 * of a function of special.h with this node's sizes as constants, or, for the row copies of an
 * embedding, text made here. */
#include "cpu.h"

#include <assert.h>

#include "library.h"
#include "print.h"

enum { EMBED_COLUMNS = 64 };	/* columns that one thread adds up at a time */
enum { PARALLEL_COST = 60000 }; /* operations below which one thread is faster */

static int64_t dim(const Value *v, int i) { return v->type.dim[i]; }

/* ---- library calls ---- */

static void describe(const Node *n, PlanPrim *p)
{
	library_call(n, p);
	if (plan_prim_compute(p->dtype) != p->dtype)
		p->compute = plan_prim_compute(p->dtype);
}

/* Passes make none of these for this back end (Capabilities.epilogue). */
static bool has_epilogue(const Node *n) { return ir_is_product(n->op) && n->op != OP_matmul; }

bool cpu_prim(const Node *n, PlanPrim *p)
{
	if (ir_ops[n->op].kind != K_MATRIX || has_epilogue(n))
		return false;
	describe(n, p);
	if (dtype_bytes(n->arg[0]->type.dtype) == 2 && n->op == OP_matmul)
		return !p->compute; /* as it is, or by special.h */
	return p->dtype == PD_F32 || p->compute == PD_F32 || p->dtype == PD_BF16;
}

/* ---- text ---- */

/* A node's floating-point type: that of the first operand with one. */
static DType stored_type(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (dtype_is_float(n->arg[i]->type.dtype))
			return n->arg[i]->type.dtype;
	return n->arg[0]->type.dtype;
}

static bool is_narrow(const Node *n)
{
	DType t = stored_type(n);
	return t == DT_F16 || t == DT_BF16;
}

/* What it computes in. */
static DType real_type(const Node *n)
{
	return is_narrow(n) ? DT_F32 : stored_type(n);
}

/* "\tconst float *const a0 = ...;\n" for each operand, r0.. for results, `work` where there is one.
 */
static const char *declare(Arena *a, const Node *n)
{
	const char *s = "";
	for (int i = 0; i < n->nargs; i++) {
		const char *t = print_ctype(n->arg[i]->type.dtype);
		s = arena_printf(a, "%s\tconst %s *const a%d = (const %s *)(arena + off[%d]);\n", s,
				 t, i, t, i);
	}
	for (int i = 0; i < n->nres; i++) {
		const char *t = print_ctype(n->res[i]->type.dtype);
		s = arena_printf(a, "%s\t%s *const r%d = (%s *)(arena + off[%d]);\n", s, t, i, t,
				 n->nargs + i);
	}
	if (cpu_special_workspace(n, 1) > 0) {
		const char *t = print_ctype(real_type(n));
		s = arena_printf(a, "%s\t%s *const work = (%s *)(arena + off[%d]);\n", s, t, t,
				 n->nargs + n->nres);
	}
	return s;
}

/* Every operand and result, by commas; NULL for the sum that a product could go on with, where there is none. */
static const char *names(Arena *a, const Node *n)
{
	const char *s = "";
	bool fresh = ir_ops[n->op].flags & OPF_ACC && !ir_acc(n);
	for (int i = 0; i < n->nargs; i++)
		s = arena_printf(a, "%s%sa%d", s, i ? ", " : "", i);
	for (int i = 0; i < n->nres; i++)
		s = arena_printf(a, "%s%s%sr%d", s, n->nargs || i ? ", " : "", fresh ? "NULL, " : "", i);
	return s;
}

/* A kernel that does `units` units by `statement` (a C statement over u), in parallel where `work`
 * operations are worth it. */
static KernelText loop_text(Arena *a, const Node *n, int64_t units, double work, const char *statement)
{
	double each = work / (double)units;
	const char *text = arena_printf(
		a,
		"(unsigned char *arena, const int64_t *off, const PlanEnv *env)\n{\n%s"
		"\tconst int64_t N = off[%d];\n"
		"#pragma omp parallel for num_threads(env->threads) schedule(static) if (N > "
		"%lld)\n"
		"\tfor (int64_t u = 0; u < N; u++) {\n%s\t}\n}\n",
		declare(a, n), kernel_own_numbers(n), (long long)(PARALLEL_COST / (each > 1 ? each : 1)), statement);
	return (KernelText){ .text = text, .n = units };
}

static const char *suffix(const Node *n) { return dtype_name(stored_type(n)); }

static bool is_pool_grad(const Node *n)
{
	return n->op == OP_max_pool2d_grad || n->op == OP_max_pool2d_index_grad || n->op == OP_avg_pool2d_grad;
}

static KernelText pool_text(Arena *a, const Node *n)
{
	bool grad = is_pool_grad(n);
	const Value *x = grad ? n->res[0] : n->arg[0], *y = grad ? n->arg[n->nargs - 1] : n->res[0];
	const char *sizes =
		arena_printf(a, "%lld, %lld, %lld, %lld", (long long)dim(x, 2),
			     (long long)dim(x, 3), (long long)dim(y, 2), (long long)dim(y, 3));
	for (int i = 0; i < 6; i++) {
		static const char *const name[] = { "kernel", "stride", "pad" };
		sizes = arena_printf(a, "%s, %lld", sizes,
				     (long long)library_pair(n, name[i / 2], i % 2, i < 4));
	}
	const char *sums = !grad ? "" : is_narrow(n)
				    ? arena_printf(a, ", work + omp_get_thread_num() * %lldLL",
						   (long long)(dim(x, 2) * dim(x, 3)))
				    : ", NULL";
	const char *call = arena_printf(a, "\t\tdl_%s_%s(u, %s%s, %s);\n", ir_ops[n->op].name,
					suffix(n), names(a, n), sums, sizes);
	return loop_text(a, n, dim(x, 0) * dim(x, 1), 4.0 * (double)type_elems(&x->type), call);
}

/* Indices outside of the table read zeros and add nowhere: data are checked before the first step,
 * and what is computed from them must stay inside the arena whatever it is. */
static KernelText embedding_text(Arena *a, const Node *n)
{
	const char *t = print_ctype(n->res[0]->type.dtype);
	long long rows = (long long)type_elems(&n->arg[1]->type), V = (long long)dim(n->arg[0], 0),
		  C = (long long)dim(n->arg[0], 1);
	const char *body =
		arena_printf(a,
			     "\t\tconst int64_t r = (int64_t)a1[u];\n"
			     "\t\tif (r >= 0 && r < %lld)\n"
			     "\t\t\tmemcpy(r0 + u * %lld, a0 + r * %lld, sizeof(%s) * %lld);\n"
			     "\t\telse\n"
			     "\t\t\tmemset(r0 + u * %lld, 0, sizeof(%s) * %lld);\n",
			     V, C, C, t, C, C, t, C);
	return loop_text(a, n, rows, (double)rows * (double)C, body);
}

/* Threads take blocks of columns, so every sum adds up in order of position, from 0 or from what it goes on with, which may lie
 * in the same place. */
static KernelText embedding_grad_text(Arena *a, const Node *n)
{
	const char *t = print_ctype(n->res[0]->type.dtype), *get = "";
	DType from = n->arg[1]->type.dtype;
	if (from == DT_BF16 || from == DT_F16)
		get = arena_printf(a, "dl_load_%s", dtype_name(from));
	long long rows = (long long)type_elems(&n->arg[0]->type), V = (long long)dim(n->res[0], 0),
		  C = (long long)dim(n->res[0], 1);
	long long blocks = (C + EMBED_COLUMNS - 1) / EMBED_COLUMNS;
	const char *start = arena_printf(a, ir_acc(n) ? "memcpy(r0 + r * %lld + c0, a2 + r * %lld + c0, " : "memset(r0 + r * %lld + c0, 0, ", C, C);
	const char *body = arena_printf(
		a,
		"\t\tconst int c0 = (int)u * %d, c1 = c0 + %d < %lld ? c0 + %d : %lld;\n"
		"\t\tfor (int64_t r = 0; r < %s; r++)\n"
		"\t\t\t%ssizeof(%s) * (size_t)(c1 - c0));\n"
		"\t\tfor (int64_t i = 0; i < %lld; i++) {\n"
		"\t\t\tconst int64_t r = (int64_t)a0[i];\n"
		"\t\t\tif (r < 0 || r >= %lld)\n"
		"\t\t\t\tcontinue;\n"
		"\t\t\t#pragma omp simd\n"
		"\t\t\tfor (int c = c0; c < c1; c++)\n"
		"\t\t\t\tr0[r * %lld + c] += %s(a1[i * %lld + c]);\n"
		"\t\t}\n",
		EMBED_COLUMNS, EMBED_COLUMNS, C, EMBED_COLUMNS, C,
		ir_acc(n) ? arena_printf(a, "(r0 == a2 ? 0 : %lld)", V) : arena_printf(a, "%lld", V), start, t, rows, V, C, get, C);
	return loop_text(a, n, blocks, (double)(rows + (ir_acc(n) ? 0 : V)) * (double)C, body);
}

/* A unit is a part. */
static KernelText part_sums_text(Arena *a, const Node *n)
{
	int first = ir_part_operand(n);
	int64_t part = 0, elems = 0;
	const char *firsts = "", *sizes = "", *tensors = "", *t = print_ctype(n->arg[first]->type.dtype);
	for (int i = first; i < n->nargs; i++) {
		const char *comma = i > first ? ", " : "";
		firsts = arena_printf(a, "%s%s%lld", firsts, comma, (long long)part);
		sizes = arena_printf(a, "%s%s%lld", sizes, comma, (long long)type_elems(&n->arg[i]->type));
		tensors = arena_printf(a, "%s%sa%d", tensors, comma, i);
		part += ir_parts(&n->arg[i]->type);
		elems += type_elems(&n->arg[i]->type);
	}
	const char *by = !first ? "1" : is_narrow(n) ? arena_printf(a, "dl_load_%s(a0[0])", suffix(n)) : "a0[0]";
	const char *body = arena_printf(
		a,
		"\t\tstatic const int64_t first[] = { %s }, elems[] = { %s };\n"
		"\t\tconst %s *const x[] = { %s };\n"
		"\t\tdl_part_%s_%s(u, x, first, elems, %d, %s, r0);\n",
		firsts, sizes, t, tensors, ir_str(n, "of"), suffix(n), n->nargs - first, by);
	return loop_text(a, n, part, 2.0 * (double)elems, body);
}

static int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The same numbers as DL_ATTENTION_SCRATCH and DL_ATTENTION_GRAD_SCRATCH of special.h, in bytes;
 * in 16 bits with the sums dk and dv of a head. */
static int64_t attention_scratch(const Node *n)
{
	int64_t D = dim(n->arg[0], 2) / ir_int(n, "heads"), Dp = padded(D, 16);
	int64_t T = padded(dim(n->arg[0], 1), 64), K = padded(dim(n->arg[1], 1), 64);
	int64_t elems = n->op == OP_attention ? K * Dp * 2 + 32 * 64 + 32 * Dp * 2
					      : T * (Dp * 3 + 1) + 32 * 64 * 2 + 64 * Dp * 6;
	if (n->op != OP_attention && is_narrow(n))
		elems += 2 * dim(n->arg[1], 1) * D;
	return elems * dtype_bytes(real_type(n));
}

static KernelText attention_text(Arena *a, const Node *n)
{
	const Value *q = n->arg[0];
	bool grad = n->op != OP_attention;
	int64_t heads = ir_int(n, "heads"), D = dim(q, 2) / heads, T = dim(q, 1),
		K = dim(n->arg[1], 1), kv = dim(n->arg[1], 2) / D;
	double scale = ir_float(n, "scale");
	int operands = grad ? 6 : 3; /* the mask, or NULL, comes behind them */
	const char *s = "";
	for (int i = 0; i < 3; i++)
		s = arena_printf(a, "%sa%d, %lld, ", s, i,
				 (long long)(n->arg[i]->ld ? n->arg[i]->ld : dim(n->arg[i], 2)));
	for (int i = 3; i < operands; i++)
		s = arena_printf(a, "%sa%d, ", s, i);
	s = n->nargs > operands ? arena_printf(a, "%s(const unsigned char *)a%d, ", s, operands)
				: arena_printf(a, "%sNULL, ", s);
	long long wide = dim(q, 2), narrow = dim(n->arg[1], 2), all = wide + 2 * narrow;
	if (n->op == OP_attention)
		s = arena_printf(a, "%sr0, r1, ", s);
	else if (n->op == OP_attention_grad)
		s = arena_printf(a, "%sr0, %lld, r1, r2, %lld, ", s, wide, narrow);
	else
		s = arena_printf(a, "%sr0, %lld, r0 + %lld, r0 + %lld, %lld, ", s, all, wide, wide + narrow, all);
	const char *by = scale == 0 ? arena_printf(a, "1 / __builtin_sqrt(%lld)", (long long)D)
				    : print_literal(a, DT_F64, scale);
	const char *call = arena_printf(
		a, "\t\tdl_%s_%s(u, %swork, %lld, %lld, %lld, %lld, %lld, %d, %lld, (%s)(%s));\n",
		grad ? "attention_grad" : "attention", suffix(n), s, (long long)T, (long long)K, (long long)heads,
		(long long)kv, (long long)D, ir_int(n, "causal") != 0,
		(long long)ir_int(n, "window"), print_ctype(real_type(n)), by);
	return loop_text(a, n, dim(q, 0) * (grad ? kv : heads),
			 (double)type_elems(&q->type) * (double)K, call);
}

static const char *with_sizes(Arena *a, const char *s, const int64_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		s = arena_printf(a, "%s, %lld", s, (long long)v[i]);
	return arena_printf(a, "%s);\n", s);
}

/* Tiles of a 16-bit product: as large as the scratch is worth, as small as gives each thread some.
 * Results do not depend on it. */
static void tile_sizes(const PlanPrim *p, int *tm, int *tn)
{
	int r = p->ndim - 2;
	int64_t batch = r ? p->dims[0][0] : 1, M = p->dims[0][r], N = p->dims[1][r + 1];
	*tm = *tn = 128;
	while (*tm > 32 || *tn > 32) {
		int64_t tiles = (M + *tm - 1) / *tm * ((N + *tn - 1) / *tn) * batch;
		if (tiles >= 16)
			break;
		*(*tm >= *tn ? tm : tn) /= 2;
	}
}

/* DL_PRODUCT_SCRATCH of product.h, in bytes. */
static int64_t product_scratch(const Node *n)
{
	PlanPrim p;
	int tm, tn;
	describe(n, &p);
	tile_sizes(&p, &tm, &tn);
	return ((tm + tn) * (int64_t)256 + tm * tn) * dtype_bytes(DT_F32);
}

/* A product of 16-bit matrices, by product.h. */
static KernelText product_text(Arena *a, const Node *n)
{
	PlanPrim p;
	int tm, tn;
	describe(n, &p);
	tile_sizes(&p, &tm, &tn);
	int r = p.ndim - 2;
	int64_t batch = r ? p.dims[0][0] : 1, M = p.dims[0][r], K = p.dims[0][r + 1],
		N = p.dims[1][r + 1];
	int64_t sizes[] = { M,
			    N,
			    K,
			    r ? p.strides[0][0] : 0,
			    p.strides[0][r],
			    p.strides[0][r + 1],
			    r ? p.strides[1][0] : 0,
			    p.strides[1][r],
			    p.strides[1][r + 1],
			    tm,
			    tn };
	const char *s = arena_printf(a, "\t\tdl_matmul_%s(u, %s, work, %d", suffix(n), names(a, n),
				     n->res[0]->type.dtype == DT_F32);
	return loop_text(a, n, batch * ((M + tm - 1) / tm) * ((N + tn - 1) / tn),
			 (double)batch * (double)M * (double)N * (double)K,
			 with_sizes(a, s, sizes, sizeof sizes / sizeof *sizes));
}

static KernelText matrix_text(Arena *a, const Node *n)
{
	PlanPrim p;
	if (is_narrow(n))
		return product_text(a, n);
	describe(n, &p);
	const char *s =
		arena_printf(a, "\t\tdl_%s_%s(u, %s", ir_ops[n->op].name, suffix(n), names(a, n));
	if (n->op == OP_matmul) {
		int r = p.ndim - 2;
		int64_t batch = r ? p.dims[0][0] : 1, M = p.dims[0][r], K = p.dims[0][r + 1];
		int64_t sizes[] = { M,
				    p.dims[1][r + 1],
				    K,
				    r ? p.strides[0][0] : 0,
				    p.strides[0][r],
				    p.strides[0][r + 1],
				    r ? p.strides[1][0] : 0,
				    p.strides[1][r],
				    p.strides[1][r + 1] };
		return loop_text(a, n, batch * M, (double)type_elems(&n->res[0]->type) * (double)K,
				 with_sizes(a, s, sizes, sizeof sizes / sizeof *sizes));
	}
	const int64_t *x = p.dims[0], *w = p.dims[1], *y = p.dims[2];
	int64_t sizes[] = { x[0],     x[1],	x[2],	       x[3],
			    w[0],     p.groups, w[2],	       w[3],
			    y[2],     y[3],	p.stride[0],   p.stride[1],
			    p.pad[0], p.pad[1], p.dilation[0], p.dilation[1] };
	int64_t units = n->op == OP_conv2d	    ? x[0] * w[0]
			: n->op == OP_conv2d_grad_x ? x[0] * x[1]
						    : w[0] * w[1];
	double work = (double)y[0] * (double)y[1] * (double)y[2] * (double)y[3] * (double)w[1] *
		      (double)w[2] * (double)w[3];
	return loop_text(a, n, units, work, with_sizes(a, s, sizes, sizeof sizes / sizeof *sizes));
}

KernelText cpu_special_text(Arena *a, const Node *n, const char *arch)
{
	(void)arch;
	switch (n->op) {
	case OP_max_pool2d:
	case OP_max_pool2d_grad:
	case OP_max_pool2d_index:
	case OP_max_pool2d_index_grad:
	case OP_avg_pool2d:
	case OP_avg_pool2d_grad:
		return pool_text(a, n);
	case OP_embedding:
		return embedding_text(a, n);
	case OP_embedding_grad:
		return embedding_grad_text(a, n);
	case OP_part_sums:
		return part_sums_text(a, n);
	case OP_attention:
	case OP_attention_grad:
	case OP_attention_grad_qkv:
		return attention_text(a, n);
	default:
		return ir_ops[n->op].kind == K_MATRIX && !has_epilogue(n) ? matrix_text(a, n) : (KernelText){ 0 };
	}
}

int64_t cpu_special_workspace(const Node *n, int threads)
{
	if (n->op == OP_attention || ir_is_attention_grad(n->op))
		return attention_scratch(n) * threads;
	if (!n->nargs || !is_narrow(n))
		return 0;
	if (n->op == OP_matmul)
		return product_scratch(n) * threads;
	if (is_pool_grad(n))
		return dim(n->res[0], 2) * dim(n->res[0], 3) * dtype_bytes(DT_F32) * threads;
	return 0;
}

/* ---- files ---- */

/* Whether a special kernel calls a function of a type. */
static bool calls_type(const Emit *e, const char *type)
{
	const char *call = arena_printf(e->a, "_%s(u", type);
	for (size_t i = 0; i < e->kernels.len; i++)
		if (e->kernels.at[i].special && strstr(e->kernels.at[i].text, call))
			return true;
	return false;
}

static void special_prelude(FILE *out, const Emit *e)
{
	static const char *const narrow[] = { "bf16", "f16" };
	fputs("#include \"kernel.h\"\n#include <omp.h>\n", out);
	fputs("#define REAL float\n#define S f32\n#include \"special.h\"\n#undef S\n", out);
	for (int i = 0; i < 2; i++) {
		const char *t = narrow[i];
		if (calls_type(e, t))
			fprintf(out,
				"#define S %s\n#define R f32\n#define STORED uint16_t\n"
				"#define GET dl_load_%s\n#define PUT dl_store_%s\n"
				"#include \"special.h\"\n#undef S\n",
				t, t, t);
	}
	fputs("#undef REAL\n", out);
	if (calls_type(e, "f64"))
		fputs("#define REAL double\n#define S f64\n#include \"special.h\"\n#undef "
		      "REAL\n#undef S\n",
		      out);
}

static void prelude(FILE *out, const Emit *e, bool special)
{
	if (special)
		special_prelude(out, e);
	else
		fputs("#include \"kernel.h\"\n", out);
}

static void print(FILE *out, const Emit *e, int number)
{
	fprintf(out, "void k%d%s", number, e->kernels.at[number].text);
}

const KernelPrinter cpu_printer = { cpu_fused_text, NULL, cpu_special_text, cpu_prim, prelude, print };

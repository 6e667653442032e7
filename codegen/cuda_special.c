/* What is no loop nest, in CUDA: products as calls of cuBLASLt, pools and embeddings by cuda_special.h with a node's sizes as
 * constants, attention and convolutions by cuda_tensor.c; and how files of kernels begin. */
#include "cuda.h"
#include "cuda_tensor.h"
#include "library.h"
#include "print.h"

extern const char cuda_types_h[], scalar_h[], cuda_kernel_h[], cuda_special_h[];

/* ---- library calls ---- */

/* The workspace that a product may use. cuBLASLt chooses among more kernels the more it is offered; what it can use is room
 * for partial sums where a result has too few tiles of 128 x 128 to occupy a GPU of TILES half-occupied multiprocessors, and
 * a little for its own bookkeeping. A function of the shape alone, so that plans are the same everywhere. */
static int64_t product_workspace(const PlanPrim *p)
{
	enum { TILE = 128, TILES = 264, SPLITS = 8, LITTLE = 1 << 20, MOST = 32 << 20 };
	int r = p->ndim - 2;
	int64_t batch = r ? p->dims[2][0] : 1, M = p->dims[2][r], N = p->dims[2][r + 1], K = p->dims[0][r + 1];
	int64_t tiles = (M + TILE - 1) / TILE * ((N + TILE - 1) / TILE) * batch, splits = TILES / tiles;
	splits = splits > SPLITS ? SPLITS : splits;
	splits = splits > K / TILE ? K / TILE : splits;
	int64_t bytes = splits > 1 ? splits * batch * M * N * 4 : 0, little = batch * M * N * K < 1 << 24 ? 0 : LITTLE;
	bytes = (bytes > little ? bytes : little) / 256 * 256;
	return bytes > MOST ? MOST : bytes;
}

bool cuda_library(const Node *n, PlanPrim *p) { return ir_is_product(n->op) && library_call(n, p); }

/* ---- kernels ---- */

enum { BLOCK = 256, MOST_COLUMNS = 256 };

static int64_t dim(const Value *v, int i) { return v->type.dim[i]; }
static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static const char *type_name(DType t)
{
	return t == DT_F64 ? "DlF64" : t == DT_BF16 ? "DlBf16" : t == DT_F16 ? "DlF16" : "DlF32";
}

/* The head of launch number `launch`, its operands and N. */
static const char *open_launch(Arena *a, const Node *n, int launch, int block)
{
	const char *s = "";
	if (launch == 0)
		s = arena_printf(a, "typedef struct { int64_t at[%d]; } $_off;\n", kernel_own_numbers(n) + 1);
	const char *suffix = launch ? arena_printf(a, "_%d", launch) : "";
	s = arena_printf(a, "%sextern \"C\" __global__ void __launch_bounds__(%d) $%s(unsigned char *const arena, const $_off off, "
			    "const PlanEnv *const env)\n{\n", s, block, suffix);
	for (int i = 0; i < n->nargs; i++) {
		const char *t = print_ctype(n->arg[i]->type.dtype);
		s = arena_printf(a, "%s\tconst %s *const a%d = (const %s *)(arena + off.at[%d]);\n", s, t, i, t, i);
	}
	for (int i = 0; i < n->nres; i++) {
		const char *t = print_ctype(n->res[i]->type.dtype);
		s = arena_printf(a, "%s\t%s *const r%d = (%s *)(arena + off.at[%d]);\n", s, t, i, t, n->nargs + i);
	}
	if (cuda_special_workspace(n) > 0)
		s = arena_printf(a, "%s\tunsigned char *const work = arena + off.at[%d];\n", s, n->nargs + n->nres);
	return arena_printf(a, "%s\tconst int64_t N = off.at[%d];\n", s, kernel_own_numbers(n));
}

/* One thread each of N * each elements: `call` is a C statement over t. */
static KernelText element_text(Arena *a, const Node *n, int64_t units, int64_t each, const char *call)
{
	const char *s = open_launch(a, n, 0, BLOCK);
	s = arena_printf(a, "%s\tconst int64_t t = (int64_t)blockIdx.x * %d + threadIdx.x;\n\tif (t >= N * %lld)\n\t\treturn;\n\t%s\n}\n",
			 s, BLOCK, (long long)each, call);
	PlanLaunch *l = ARENA_NEW(a, PlanLaunch);
	*l = (PlanLaunch){ .grid = { (uint32_t)ceil_div(units * each, BLOCK), 1, 1 }, .block = BLOCK };
	return (KernelText){ .text = s, .n = units, .launch = l, .nlaunch = 1 };
}

static KernelText pool_text(Arena *a, const Node *n)
{
	bool grad = n->op == OP_max_pool2d_grad || n->op == OP_max_pool2d_index_grad || n->op == OP_avg_pool2d_grad;
	const Value *x = grad ? n->res[0] : n->arg[0], *y = grad ? n->arg[n->nargs - 1] : n->res[0];
	const char *sizes = arena_printf(a, "%lld, %lld, %lld, %lld", (long long)dim(x, 2), (long long)dim(x, 3),
					 (long long)dim(y, 2), (long long)dim(y, 3));
	static const char *const name[] = { "kernel", "stride", "pad" };
	for (int i = 0; i < 6; i++)
		sizes = arena_printf(a, "%s, %lld", sizes, (long long)library_pair(n, name[i / 2], i % 2, i < 4));
	const char *call = arena_printf(a, "dl_%s<%s>(t, %s, %s, %s);", ir_ops[n->op].name, type_name(x->type.dtype),
					n->nargs == 2 ? "a0, a1" : "a0", n->nres == 2 ? "r0, r1" : "r0", sizes);
	return element_text(a, n, dim(x, 0) * dim(x, 1), dim(grad ? x : y, 2) * dim(grad ? x : y, 3), call);
}

static KernelText embedding_text(Arena *a, const Node *n)
{
	int64_t V = dim(n->arg[0], 0), bytes = dim(n->arg[0], 1) * dtype_bytes(n->arg[0]->type.dtype), word = 16;
	while (bytes % word != 0)
		word /= 2;
	const char *call = arena_printf(a, "dl_embedding<%d>(t, a0, a1, r0, %lld, %lld);", (int)word, (long long)V,
					(long long)(bytes / word));
	return element_text(a, n, type_elems(&n->arg[1]->type), bytes / word, call);
}

/* Workspace of an embedding's gradient: order and key of each position, the start of each row and of what is behind them. */
static int64_t embedding_work(const Node *n) { return (2 * type_elems(&n->arg[0]->type) + dim(n->res[0], 0) + 1) * 4; }

static KernelText embedding_grad_text(Arena *a, const Node *n)
{
	int64_t T = type_elems(&n->arg[0]->type), V = dim(n->res[0], 0), C = dim(n->res[0], 1), x = 1;
	while (x < C && x < MOST_COLUMNS)
		x *= 2;
	DType from = n->arg[1]->type.dtype, to = n->res[0]->type.dtype;
	const char *parts = arena_printf(a, "\tint32_t *const order = (int32_t *)work, *const key = order + N, *const start = key + N;\n");
	const char *s = arena_printf(a, "%s%s\t__shared__ int32_t tile[DL_EMBED_TILE];\n"
					"\tdl_embed_order(a0, N, %lld, order, key, tile);\n}\n",
				     open_launch(a, n, 0, BLOCK), parts, (long long)V);
	s = arena_printf(a, "%s%s%s\tconst int64_t t = (int64_t)blockIdx.x * %d + threadIdx.x;\n"
			    "\tif (t <= N)\n\t\tdl_embed_starts(t, key, N, %lld, start);\n}\n",
			 s, open_launch(a, n, 1, BLOCK), parts, BLOCK, (long long)V);
	s = arena_printf(a, "%s%s%s\t__shared__ %s sums[DL_EMBED_BLOCK];\n"
			    "\tdl_embed_sum<%lld, %s, %s>(a1, order, start, %s, r0, %lld, sums);\n}\n",
			 s, open_launch(a, n, 2, BLOCK), parts, from == DT_F64 ? "double" : "float", (long long)x,
			 type_name(from), type_name(to), ir_acc(n) ? "a2" : "nullptr", (long long)C);
	PlanLaunch *l = ARENA_ARRAY(a, 3, PlanLaunch);
	l[0] = (PlanLaunch){ .grid = { (uint32_t)ceil_div(T, BLOCK), 1, 1 }, .block = BLOCK };
	l[1] = (PlanLaunch){ .grid = { (uint32_t)ceil_div(T + 1, BLOCK), 1, 1 }, .block = BLOCK };
	l[2] = (PlanLaunch){ .grid = { (uint32_t)V, (uint32_t)ceil_div(C, x), 1 }, .block = BLOCK };
	return (KernelText){ .text = s, .n = T, .launch = l, .nlaunch = 3 };
}

/* Whether all tensors can be read in words of 16 bytes. */
static bool by_words(const Node *n)
{
	bool all = n->arg[0]->type.dtype == DT_F32;
	for (int i = 0; i < n->nargs && all; i++) {
		int64_t bytes = 0;
		const Value *root = ir_view_root(n->arg[i], &bytes);
		all = (bytes + (root->def && root->def->op == OP_var ? 0 : root->offset)) % 16 == 0;
	}
	return all;
}

/* A block is a part. */
static KernelText part_sums_text(Arena *a, const Node *n)
{
	int first = ir_part_operand(n);
	bool squares = strcmp(ir_str(n, "of"), "squares") == 0;
	const char *type = type_name(n->arg[0]->type.dtype), *s = open_launch(a, n, 0, BLOCK);
	int64_t part = 0;
	for (int i = first; i < n->nargs; i++) {
		long long elems = (long long)type_elems(&n->arg[i]->type);
		s = i == first ? arena_printf(a, "%s\tint64_t from = 0, elems = %lld;\n\tconst %s::S *x = a%d;\n", s, elems, type, i)
			       : arena_printf(a, "%s\tif (blockIdx.x >= %lld)\n\t\tfrom = %lld, elems = %lld, x = a%d;\n", s,
					      (long long)part, (long long)part, elems, i);
		part += ir_parts(&n->arg[i]->type);
	}
	const char *out = print_ctype(n->res[0]->type.dtype);
	s = arena_printf(a, "%s\t__shared__ %s warp[DL_PART_BLOCK / 32];\n\tif (blockIdx.x < N)\n"
			    "\t\tdl_part_sum<%s, %s, %d, %d>(x, elems, blockIdx.x - from, %s, warp, r0);\n}\n",
			 s, out, type, out, !squares, by_words(n), first ? arena_printf(a, "%s::get(a0[0])", type) : "1");
	PlanLaunch *l = ARENA_NEW(a, PlanLaunch);
	*l = (PlanLaunch){ .grid = { (uint32_t)part, 1, 1 }, .block = BLOCK };
	return (KernelText){ .text = s, .n = part, .launch = l, .nlaunch = 1 };
}

/* Attention and convolutions. */
static KernelText tensor_text(Arena *a, const Node *n, const char *arch)
{
	CudaTensor t;
	if (!cuda_tensor_text(a, n, cuda_shared_limit(arch), &t))
		return (KernelText){ 0 };
	PlanLaunch *l = ARENA_ARRAY(a, t.nlaunch, PlanLaunch);
	memcpy(l, t.launch, (size_t)t.nlaunch * sizeof *l);
	return (KernelText){ .text = t.text, .n = 1, .launch = l, .nlaunch = t.nlaunch };
}

KernelText cuda_special_text(Arena *a, const Node *n, const char *arch)
{
	switch (n->op) {
	case OP_max_pool2d:
	case OP_max_pool2d_grad:
	case OP_max_pool2d_index:
	case OP_max_pool2d_index_grad:
	case OP_avg_pool2d:
	case OP_avg_pool2d_grad: return pool_text(a, n);
	case OP_embedding: return embedding_text(a, n);
	case OP_embedding_grad: return embedding_grad_text(a, n);
	case OP_part_sums: return part_sums_text(a, n);
	case OP_attention:
	case OP_attention_grad:
	case OP_attention_grad_qkv:
	case OP_conv2d:
	case OP_conv2d_grad_x:
	case OP_conv2d_grad_w: return tensor_text(a, n, arch);
	default: return (KernelText){ 0 };
	}
}

int64_t cuda_special_workspace(const Node *n)
{
	PlanPrim p;
	if (n->op == OP_embedding_grad)
		return embedding_work(n);
	if (n->op == OP_attention || ir_is_attention_grad(n->op) || (ir_ops[n->op].kind == K_MATRIX && !ir_is_product(n->op)))
		return cuda_tensor_workspace(n);
	return cuda_library(n, &p) ? product_workspace(&p) : 0;
}

/* ---- files ---- */

static void prelude(FILE *out, const Emit *e, bool special)
{
	(void)e;
	fputs(special ? "#include \"cuda_special.h\"\n#include \"mma.cuh\"\n#include \"tiles.cuh\"\n#include \"attention.cuh\"\n#include \"conv.cuh\"\n"
		      : "#include \"cuda_types.h\"\n#include \"scalar.h\"\n#include \"cuda_kernel.h\"\n", out);
}

void cuda_print_unit_head(FILE *out, bool special)
{
	fputs(cuda_types_h, out);
	fputs(scalar_h, out);
	fputs(cuda_kernel_h, out);
	if (!special)
		return;
	fputs(cuda_special_h, out);
	cuda_tensor_prelude(out);
}

/* The lines of the model that a kernel comes from, each with its ops: "mlp.dl:14: add relu". */
static void print_sources(FILE *out, const Emit *e, const Node *n)
{
	const char *last = NULL;
	for (const Node *x = n->body ? n->body->first : n; x; x = n->body ? x->next : NULL) {
		if (x->op == OP_yield || x->op == OP_const || x->span.source < 0)
			continue;
		const char *where = diag_where(e->m->diag, e->a, x->span);
		if (last && strcmp(where, last) == 0) {
			fprintf(out, " %s", ir_ops[x->op].name);
			continue;
		}
		fprintf(out, "%s/* %s: %s", last ? " */\n" : "", where, ir_ops[x->op].name);
		last = where;
	}
	fputs(last ? " */\n" : "", out);
}

static void print(FILE *out, const Emit *e, int number)
{
	const EmitKernel *k = &e->kernels.at[number];
	print_sources(out, e, k->node);
	for (const char *s = k->text; *s; s++)
		if (*s == '$')
			fprintf(out, "k%d", number);
		else
			fputc(*s, out);
}

const KernelPrinter cuda_printer = { cuda_fused_text, cuda_group_text, cuda_special_text, cuda_library, prelude, print };

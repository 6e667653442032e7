/* Attention and convolutions on CUDA (cuda_tensor.h).
 *
 * A kernel's text is a call of a template of attention.cuh or conv.cuh with the node's sizes as constants. The tiles of attention come
 * from tables: the first row whose shared memory fits, rows being ordered by how much each copied byte is used; they were
 * chosen with the compiler's report at hand, so that no row spills registers. */
#include "cuda_tensor.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "library.h"
#include "print.h"

extern const char mma_cuh[], tiles_cuh[], attention_cuh[], conv_cuh[];

static int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t blocks(int64_t n, int64_t of) { return (n + of - 1) / of; }

static DType type_of(const Node *n) { return n->arg[0]->type.dtype; }
static bool narrow(const Node *n) { return type_of(n) == DT_BF16 || type_of(n) == DT_F16; }

static const char *element(DType t) { return t == DT_BF16 ? "DlElementBf16" : t == DT_F16 ? "DlElementF16" : "DlElementF32"; }

static bool has_kernels(DType t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

/* Whether an operand begins at a multiple of 16 bytes. */
static bool aligned(Value *v)
{
	int64_t bytes = 0;
	const Value *root = ir_view_root(v, &bytes);
	bool var = root->def && root->def->op == OP_var;
	return (bytes + (var || root->offset < 0 ? 0 : root->offset)) % 16 == 0;
}

static bool all_aligned(const Node *n)
{
	bool all = true;
	for (int i = 0; i < n->nargs; i++)
		all = all && (n->arg[i]->type.dtype == DT_BOOL || aligned(n->arg[i]));
	for (int i = 0; i < n->nres; i++)
		all = all && aligned(n->res[i]);
	return all;
}

void cuda_tensor_prelude(FILE *out)
{
	fputs(mma_cuh, out);
	fputs(tiles_cuh, out);
	fputs(attention_cuh, out);
	fputs(conv_cuh, out);
}

int64_t cuda_shared_limit(const char *arch)
{
	int sm = atoi(arch + strcspn(arch, "0123456789"));
	return sm == 80 || sm == 87 ? 163 << 10 : sm == 90 || sm == 100 || sm == 103 ? 227 << 10 : CUDA_SHARED_LEAST;
}

/* ---- launches ---- */

/* Adds a function of `body` to the text; `bounds`: threads of a block, and what else the compiler is told of registers. False where there would
 * be too many blocks. */
static bool add_bounded(Arena *a, CudaTensor *t, const Node *n, int64_t grid, int64_t block, int64_t shared, const char *bounds, const char *body)
{
	assert(t->nlaunch < CUDA_TENSOR_LAUNCHES && grid > 0);
	if (grid > INT32_MAX)
		return false;
	if (t->nlaunch == 0)
		t->text = arena_printf(a, "typedef struct { int64_t at[%d]; } $_off;\n",
				       n->nargs + n->nres + (cuda_tensor_workspace(n) > 0) + 1);
	const char *suffix = t->nlaunch ? arena_printf(a, "_%d", t->nlaunch) : "";
	t->text = arena_printf(a,
			       "%sextern \"C\" __global__ void __launch_bounds__(%s) $%s(unsigned char *const arena, const $_off off, "
			       "const PlanEnv *const env)\n{\n%s}\n",
			       t->text, bounds, suffix, body);
	t->launch[t->nlaunch++] = (PlanLaunch){ .grid = { (uint32_t)grid, 1, 1 }, .block = (uint32_t)block, .shared_bytes = (uint32_t)shared };
	return true;
}

static bool add_launch(Arena *a, CudaTensor *t, const Node *n, int64_t grid, int64_t block, int64_t shared, const char *body)
{
	return add_bounded(a, t, n, grid, block, shared, arena_printf(a, "%lld", (long long)block), body);
}

/* "(const uint16_t *)(arena + off.at[0])" */
static const char *place(Arena *a, const char *type, int i) { return arena_printf(a, "(%s *)(arena + off.at[%d])", type, i); }

static const char *operand(Arena *a, const Node *n, int i)
{
	const Value *v = i < n->nargs ? n->arg[i] : n->res[i - n->nargs];
	return place(a, arena_printf(a, "%s%s", i < n->nargs ? "const " : "", print_ctype(v->type.dtype)), i);
}

static const char *operands(Arena *a, const Node *n, int first, int count)
{
	const char *s = "";
	for (int i = first; i < first + count; i++)
		s = arena_printf(a, "%s%s, ", s, operand(a, n, i));
	return s;
}

/* ---- attention ---- */

typedef struct Heads {
	int64_t B, T, TK, H, KV, D, window, ld[3];
	int64_t lddq, lddk; /* rows of dq; of dk and dv */
	bool causal, mask, wide;
	float scale;
} Heads;

static bool describe_heads(const Node *n, Heads *h)
{
	bool grad = n->op != OP_attention;
	const Type *q = &n->arg[0]->type, *k = &n->arg[1]->type;
	*h = (Heads){ .B = q->dim[0], .T = q->dim[1], .TK = k->dim[1], .H = ir_int(n, "heads"), .window = ir_int(n, "window") };
	h->D = q->dim[2] / h->H;
	h->KV = k->dim[2] / h->D;
	h->causal = ir_int(n, "causal") != 0;
	h->mask = n->nargs > (grad ? 6 : 3);
	h->wide = all_aligned(n);
	int64_t per = 16 / dtype_bytes(type_of(n));
	for (int i = 0; i < 3; i++) {
		h->ld[i] = n->arg[i]->ld ? n->arg[i]->ld : n->arg[i]->type.dim[2];
		h->wide = h->wide && h->ld[i] % per == 0;
		if (h->ld[i] > INT_MAX)
			return false;
	}
	h->wide = h->wide && h->D % per == 0;
	h->lddq = n->op == OP_attention_grad_qkv ? n->res[0]->type.dim[2] : q->dim[2];
	h->lddk = n->op == OP_attention_grad_qkv ? h->lddq : k->dim[2];
	if (h->lddq > INT_MAX || h->lddk > INT_MAX)
		return false;
	double scale = ir_float(n, "scale");
	h->scale = (float)(scale == 0 ? 1 / sqrt((double)h->D) : scale);
	if (h->window > h->T + h->TK) /* reaches everything */
		h->window = h->T + h->TK;
	return has_kernels(type_of(n)) && h->D <= 256 && h->T < 1 << 28 && h->TK < 1 << 28 && h->H <= INT_MAX;
}

/* Rows of a block are 16 * rows * warps (16 bits) or 2 * rows * warps (f32); the other side comes in `stages` tiles of n rows. keep: the
 * block's own rows stay in registers. parts: of the columns of the results. plain: neither mask nor window (the registers just suffice). For
 * heads padded to at most `width`. */
typedef struct Tiles {
	int width, rows, warps, n, stages, keep, parts, plain;
} Tiles;

typedef enum Product { FORWARD, GRAD_Q, GRAD_KV, PRODUCTS } Product;

static const Tiles narrow_tiles[PRODUCTS][8] = {
	[FORWARD] = { { 64, 2, 4, 64, 2, 1, 1, 0 },
		      { 128, 2, 4, 32, 2, 0, 1, 1 },
		      { 128, 1, 4, 32, 2, 0, 1, 0 },
		      { 256, 1, 4, 32, 2, 0, 1, 0 },
		      { 256, 1, 4, 16, 2, 0, 1, 0 } },
	[GRAD_Q] = { { 32, 2, 4, 64, 2, 1, 1, 0 },
		     { 64, 2, 4, 32, 2, 1, 1, 0 },
		     { 128, 1, 4, 64, 2, 0, 1, 0 },
		     { 128, 1, 4, 32, 2, 0, 1, 0 },
		     { 256, 1, 4, 16, 2, 0, 1, 0 },
		     { 256, 1, 2, 16, 2, 0, 1, 0 } },
	[GRAD_KV] = { { 32, 2, 4, 32, 2, 1, 1, 0 },
		      { 64, 2, 4, 32, 2, 0, 1, 1 },
		      { 64, 2, 4, 16, 2, 0, 1, 0 },
		      { 128, 1, 4, 32, 2, 0, 1, 0 },
		      { 256, 1, 4, 16, 2, 0, 2, 0 },
		      { 256, 1, 2, 16, 2, 0, 2, 0 } },
};

static const Tiles wide_tiles[PRODUCTS][8] = {
	[FORWARD] = { { 64, 4, 8, 32, 2, 0, 1, 0 }, { 128, 4, 8, 16, 2, 0, 1, 0 }, { 256, 2, 8, 16, 1, 0, 1, 0 } },
	[GRAD_Q] = { { 64, 4, 8, 32, 2, 0, 1, 0 }, { 128, 2, 8, 16, 2, 0, 1, 0 }, { 256, 1, 8, 16, 1, 0, 1, 0 } },
	[GRAD_KV] = { { 64, 4, 8, 32, 2, 0, 1, 0 }, { 128, 2, 8, 16, 2, 0, 1, 0 }, { 256, 1, 8, 16, 1, 0, 1, 0 } },
};

/* The block's own rows. */
static int64_t block_rows(const Node *n, const Tiles *t) { return (narrow(n) ? 16 : 2) * t->rows * t->warps; }

static int64_t head_width(const Heads *h, const Tiles *t) { return padded(h->D, 16 * t->parts); }

/* Shared memory, as each kernel lays it out. */
static int64_t attention_shared(const Node *n, const Heads *h, Product p, const Tiles *t)
{
	int64_t size = dtype_bytes(type_of(n)), row = head_width(h, t) * size + 16;
	int64_t own = block_rows(n, t) * row * (p == FORWARD ? 1 : 2), stages = (int64_t)t->stages * 2 * t->n * row;
	int64_t scratch = narrow(n) ? 0 : block_rows(n, t) * (t->n + 4) * 4;
	return own + stages + scratch + (p == GRAD_KV ? 4 * t->n * 4 : h->mask ? 2 * t->n : 0);
}

/* warps: that it must have; 0: any. NULL: no row fits. */
static const Tiles *choose_tiles(const Node *n, const Heads *h, Product p, int64_t shared, int warps)
{
	const Tiles *t = narrow(n) ? narrow_tiles[p] : wide_tiles[p];
	bool plain = !h->mask && !h->window;
	while (t->width && (t->width < h->D || (t->plain && !plain) || (warps && t->warps != warps) || attention_shared(n, h, p, t) > shared))
		t++;
	return t->width ? t : NULL;
}

static const char *engine(Arena *a, const Node *n, const Heads *h, const Tiles *t)
{
	long long w = (long long)head_width(h, t);
	if (!narrow(n))
		return arena_printf(a, "DlFma<%d, %lld, %d, %lld>", t->rows, w, t->n, w / t->parts);
	return arena_printf(a, "DlMma<%s, %d, %lld, %d, %lld, %s>", element(type_of(n)), t->rows, w, t->n, w / t->parts,
			    t->keep ? "true" : "false");
}

static const char *heads_text(Arena *a, const Heads *h)
{
	return arena_printf(a, "DlHeads<%lld, %lld, %lld, %lld, %lld, %d, %lld, %d, %lld, %lld, %lld, %lld, %lld, %d>", (long long)h->T, (long long)h->TK,
			    (long long)h->H, (long long)h->KV, (long long)h->D, h->causal, (long long)h->window, h->mask, (long long)h->ld[0],
			    (long long)h->ld[1], (long long)h->ld[2], (long long)h->lddq, (long long)h->lddk, h->wide);
}

static int64_t attention_grid(const Node *n, const Heads *h, Product p, const Tiles *t)
{
	return h->B * (p == GRAD_KV ? h->KV : h->H) * blocks(p == GRAD_KV ? h->TK : h->T, block_rows(n, t)) * t->parts;
}

/* The call of a kernel over its operands, which end in the scale. */
static const char *attention_call(Arena *a, const Node *n, const Heads *h, Product p, const Tiles *t, const char *args)
{
	static const char *const name[] = { "dl_attention", "dl_attention_grad_q", "dl_attention_grad_kv" };
	return arena_printf(a, "\t%s<%s,\n\t\t%s, %d, %d>(\n\t\t%s%s);\n", name[p], engine(a, n, h, t), heads_text(a, h), t->warps, t->stages, args,
			    print_literal(a, DT_F32, (double)h->scale));
}

static bool attention_launch(Arena *a, const Node *n, const Tiles *t, int64_t grid, int64_t shared, const char *body, CudaTensor *out)
{
	/* Blocks of a processor that are enough: the compiler else spills a little to fit more of them. */
	const char *bounds = arena_printf(a, "%d, %d", t->warps * 32, narrow(n) ? 2 : 1);
	return add_bounded(a, out, n, grid, t->warps * 32, shared, bounds, body);
}

/* dk and dv, whose blocks take longer, and then dq in one grid. */
static bool attention_grad_text(Arena *a, const Node *n, const Heads *h, int64_t shared, CudaTensor *out)
{
	const Tiles *q = NULL, *kv = NULL;
	for (int warps = 8; warps > 0 && !(q && kv); warps /= 2) {
		q = choose_tiles(n, h, GRAD_Q, shared, warps);
		kv = choose_tiles(n, h, GRAD_KV, shared, warps);
	}
	assert(q && kv && "the last rows fit everywhere");
	int64_t first = attention_grid(n, h, GRAD_KV, kv), grid = first + attention_grid(n, h, GRAD_Q, q);
	int64_t shared_q = attention_shared(n, h, GRAD_Q, q), shared_kv = attention_shared(n, h, GRAD_KV, kv);
	const char *mask = h->mask ? operands(a, n, 6, 1) : "nullptr, ", *from = arena_printf(a, "%s%s%s", operands(a, n, 0, 3), operands(a, n, 3, 3), mask);
	const char *dq = operands(a, n, n->nargs, 1), *dkdv;
	if (n->nres == 3) {
		dkdv = operands(a, n, n->nargs + 1, 2);
	} else {
		const char *all = operand(a, n, n->nargs);
		long long k = (long long)(h->H * h->D), v = k + (long long)(h->KV * h->D);
		dkdv = arena_printf(a, "%s + %lld, %s + %lld, ", all, k, all, v);
	}
	if (grid > INT_MAX)
		return false;
	const char *of_kv = attention_call(a, n, h, GRAD_KV, kv, arena_printf(a, "(int)blockIdx.x, %s%s", from, dkdv));
	const char *of_q = attention_call(a, n, h, GRAD_Q, q, arena_printf(a, "(int)blockIdx.x - %lld, %s%s", (long long)first, from, dq));
	return attention_launch(a, n, q, grid, shared_q > shared_kv ? shared_q : shared_kv,
				arena_printf(a, "\tif (blockIdx.x < %lld)\n%s\telse\n%s", (long long)first, of_kv, of_q), out);
}

static bool attention_text(Arena *a, const Node *n, int64_t shared, CudaTensor *out)
{
	Heads h;
	if (!describe_heads(n, &h))
		return false;
	if (n->op != OP_attention)
		return attention_grad_text(a, n, &h, shared, out);
	const Tiles *t = choose_tiles(n, &h, FORWARD, shared, 0);
	assert(t && "the last row fits everywhere");
	const char *mask = h.mask ? operands(a, n, 3, 1) : "nullptr, ";
	const char *args = arena_printf(a, "%s%s%s", operands(a, n, 0, 3), mask, operands(a, n, n->nargs, 2));
	return attention_launch(a, n, t, attention_grid(n, &h, FORWARD, t), attention_shared(n, &h, FORWARD, t),
				attention_call(a, n, &h, FORWARD, t, args), out);
}

/* ---- convolutions ---- */

enum { FILL = 264, SUM_BLOCK = 256, COLUMNS = 128 }; /* blocks that fill a large processor twice; columns of a tile */

/* A convolution as conv.cuh has it: from `in` channels of a group to `out`. */
typedef struct Conv {
	PlanPrim p;
	bool back;	    /* gradient by x */
	int64_t in, out;    /* channels of a group */
	int64_t tile, depth; /* rows of a tile; channels or pixels of a stage */
	int64_t channels;   /* `in`, with the zeros behind them */
	int64_t packed;	    /* elements of a row of packed weights */
} Conv;

static bool depthwise(const Conv *c) { return c->p.dims[1][1] == 1; }

static bool describe(const Node *n, Conv *c)
{
	if (!library_call(n, &c->p) || !has_kernels(type_of(n)))
		return false;
	const int64_t *x = c->p.dims[0], *w = c->p.dims[1], *y = c->p.dims[2];
	c->back = n->op == OP_conv2d_grad_x;
	c->in = c->back ? w[0] / c->p.groups : w[1];
	c->out = c->back ? w[1] : w[0] / c->p.groups;
	c->depth = narrow(n) ? 32 : 16;
	c->tile = c->out > 64 && padded(c->out, 128) == padded(c->out, 64) ? 128 : c->out > 32 ? 64 : c->out > 16 ? 32 : 16;
	/* Whole tiles of channels where that adds at most a third. */
	c->channels = padded(c->in, c->depth) * 3 <= c->in * 4 ? padded(c->in, c->depth) : c->in;
	c->packed = padded(c->channels * w[2] * w[3], c->depth);
	bool small = x[2] < 1 << 14 && x[3] < 1 << 14 && x[1] * x[2] * x[3] < INT_MAX / 2 && y[1] * y[2] * y[3] < INT_MAX / 2 &&
		     w[0] * c->packed < INT_MAX / 2 && w[1] * w[2] * w[3] < INT_MAX / 2;
	for (int i = 0; i < 2; i++)
		small = small && (w[2 + i] - 1) * c->p.dilation[i] < 1 << 14 && c->p.stride[i] < 1 << 10 && c->p.pad[i] < 1 << 14;
	int64_t result = x[0] * (c->back ? (x[2] + c->p.stride[0]) * (x[3] + c->p.stride[1]) : y[2] * y[3]);
	return small && result < INT_MAX / 2 && (n->op == OP_conv2d_grad_w || n->res[0]->type.dtype == type_of(n));
}

/* The geometry; y's for the gradient of w. */
static const char *conv_geometry(Arena *a, const Node *n, const Conv *c)
{
	const PlanPrim *p = &c->p;
	const int64_t *from = p->dims[c->back ? 2 : 0], *to = p->dims[c->back ? 0 : 2], *w = p->dims[1];
	int64_t v[] = { from[0],      p->groups,    c->out,    c->in,	  c->channels,	  from[2],	  from[3],
			to[2],	      to[3],	    w[2],      w[3],	  p->stride[0],	  p->stride[1],	  p->pad[0],
			p->pad[1],    p->dilation[0], p->dilation[1] };
	const char *s = "DlConv<";
	for (size_t i = 0; i < sizeof v / sizeof *v; i++)
		s = arena_printf(a, "%s%lld, ", s, (long long)v[i]);
	return arena_printf(a, "%s%d, %d>", s, c->back, all_aligned(n));
}

static const char *conv_engine(Arena *a, const Node *n, const Conv *c)
{
	if (!narrow(n))
		return arena_printf(a, "DlTileFma<%lld, %d>", (long long)c->tile, COLUMNS);
	return arena_printf(a, "DlTileMma<%s, %lld, %d, %d, %d>", element(type_of(n)), (long long)c->tile, COLUMNS,
			    c->tile == 128 ? 4 : c->tile == 64 ? 2 : 1, c->tile >= 64 ? 2 : 4);
}

static int64_t conv_threads(const Node *n, const Conv *c) { return !narrow(n) || c->tile == 128 ? 256 : 128; }

/* Large geometries need up to 161 registers, which is too many for two blocks of 256 threads a processor: none are forced. */
static const char *conv_bounds(Arena *a, const Node *n, const Conv *c)
{
	return arena_printf(a, "%lld, 1", (long long)conv_threads(n, c));
}

/* How the gradient of w is split: ranges of pixels. */
static void split(const Conv *c, int64_t *parts, int64_t *range)
{
	const int64_t *w = c->p.dims[1], *y = c->p.dims[2];
	int64_t pixels = y[0] * y[2] * y[3], unit = depthwise(c) ? 256 : c->depth;
	int64_t tiles = depthwise(c) ? w[0] * blocks(w[2] * w[3], 9)
				     : c->p.groups * blocks(c->out, c->tile) * blocks(c->in * w[2] * w[3], COLUMNS);
	int64_t most = blocks(pixels, unit * 8), want = blocks(FILL, tiles);
	*range = padded(blocks(pixels, want < most ? want : most), unit);
	*parts = blocks(pixels, *range);
}

static int64_t conv_workspace(const Node *n)
{
	Conv c;
	int64_t parts, range;
	if (!describe(n, &c))
		return 0;
	const int64_t *w = c.p.dims[1];
	if (n->op == OP_conv2d_grad_w) {
		split(&c, &parts, &range);
		return parts > 1 ? parts * w[0] * w[1] * w[2] * w[3] * dtype_bytes(DT_F32) : 0;
	}
	return depthwise(&c) ? 0 : c.p.groups * c.out * c.packed * dtype_bytes(type_of(n));
}

/* y or dx: operands 0 (x or dy) and 1 (w). */
static bool conv_text(Arena *a, const Node *n, const Conv *c, CudaTensor *out)
{
	const char *geometry = conv_geometry(a, n, c), *type = print_ctype(type_of(n));
	int64_t size = dtype_bytes(type_of(n)), row = c->depth + 16 / size, column = COLUMNS + 16 / size;
	const int64_t *to = c->p.dims[c->back ? 0 : 2];
	if (depthwise(c)) {
		int64_t plane = to[2] * to[3], threads = plane <= 64 ? 64 : plane <= 128 ? 128 : 256;
		return add_launch(a, out, n, to[0] * to[1] * blocks(plane, threads), threads, 0,
				  arena_printf(a, "\tdl_conv_depthwise<%s, %s, %lld>(\n\t\t%s%s);\n", element(type_of(n)), geometry,
					       (long long)threads, operands(a, n, 0, 2), operand(a, n, 2)));
	}
	int64_t classes[2] = { c->back ? c->p.stride[0] : 1, c->back ? c->p.stride[1] : 1 };
	int64_t pixels = to[0] * blocks(to[2], classes[0]) * blocks(to[3], classes[1]);
	int64_t grid = blocks(c->out, c->tile) * blocks(pixels, COLUMNS) * c->p.groups * classes[0] * classes[1];
	int64_t stages = 2 * (c->tile * row + c->depth * column), results = c->tile * column;
	return add_launch(a, out, n, blocks(c->p.groups * c->out * c->packed, SUM_BLOCK), SUM_BLOCK, 0,
			  arena_printf(a, "\tdl_conv_pack<%s, %s, %lld>(\n\t\t%s, %s);\n", type, geometry, (long long)c->packed,
				       operand(a, n, 1), place(a, type, 3))) &&
	       add_bounded(a, out, n, grid, conv_threads(n, c), (stages > results ? stages : results) * size,
			   conv_bounds(a, n, c),
			   arena_printf(a, "\tdl_conv_gather<%s,\n\t\t%s, %lld>(\n\t\t%s, %s, %s);\n", conv_engine(a, n, c), geometry,
				       (long long)c->packed, operand(a, n, 0), place(a, arena_printf(a, "const %s", type), 3),
				       operand(a, n, 2)));
}

/* dw: operands x and dy, and what it is added to. */
static bool conv_weight_text(Arena *a, const Node *n, const Conv *c, CudaTensor *out)
{
	const char *geometry = conv_geometry(a, n, c), *result = element(n->res[0]->type.dtype);
	int64_t parts, range, size = dtype_bytes(type_of(n)), row = c->depth + 16 / size;
	split(c, &parts, &range);
	const int64_t *w = c->p.dims[1];
	int64_t count = w[0] * w[1] * w[2] * w[3];
	const char *before = ir_acc(n) ? operand(a, n, 2) : "nullptr", *last = operand(a, n, n->nargs);
	const char *to = parts > 1 ? arena_printf(a, "nullptr, %s", place(a, "float", n->nargs + 1)) : arena_printf(a, "%s, %s", before, last);
	const char *type = parts > 1 ? "DlElementF32" : result;
	bool fits = depthwise(c)
			    ? add_launch(a, out, n, w[0] * blocks(w[2] * w[3], 9) * parts, 256, 8 * 9 * 4,
					 arena_printf(a, "\tdl_conv_depthwise_weight<%s, %s, %s, %lld, %lld>(\n\t\t%s%s);\n",
						      element(type_of(n)), geometry, type, (long long)parts, (long long)range,
						      operands(a, n, 0, 2), to))
			    : add_bounded(a, out, n,
					 c->p.groups * blocks(c->out, c->tile) * blocks(c->in * w[2] * w[3], COLUMNS) * parts,
					 conv_threads(n, c), 2 * (c->tile + COLUMNS) * row * size + COLUMNS * 8, conv_bounds(a, n, c),
					 arena_printf(a, "\tdl_conv_weight<%s,\n\t\t%s, %s, %lld, %lld>(\n\t\t%s%s);\n",
						      conv_engine(a, n, c), geometry, type, (long long)parts, (long long)range,
						      operands(a, n, 0, 2), to));
	return fits && (parts == 1 ||
			add_launch(a, out, n, blocks(count, SUM_BLOCK), SUM_BLOCK, 0,
				   arena_printf(a, "\tdl_conv_sum<%s, %lld>(%s, %s, %s, %lld);\n", result, (long long)parts,
						place(a, "const float", n->nargs + 1), before, last, (long long)count)));
}

bool cuda_tensor_text(Arena *a, const Node *n, int64_t shared, CudaTensor *out)
{
	Conv c;
	*out = (CudaTensor){ 0 };
	if (n->op == OP_attention || ir_is_attention_grad(n->op))
		return attention_text(a, n, shared, out);
	if (n->op != OP_conv2d && n->op != OP_conv2d_grad_x && n->op != OP_conv2d_grad_w)
		return false;
	if (!describe(n, &c))
		return false;
	return n->op == OP_conv2d_grad_w ? conv_weight_text(a, n, &c, out) : conv_text(a, n, &c, out);
}

int64_t cuda_tensor_workspace(const Node *n)
{
	bool conv = n->op == OP_conv2d || n->op == OP_conv2d_grad_x || n->op == OP_conv2d_grad_w;
	return conv ? conv_workspace(n) : 0;
}

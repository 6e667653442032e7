/* Prints fused kernels as CUDA C: the frame of a launch, the text of one thread's elements, and maps.
 *
 * Before:  %b0 = add %a0, %a1   %b1 = relu %b0     (bf16[64,128], bf16[128])
 * After:   const int t = blockIdx.x * 256 + threadIdx.x;
 *          const int o = t / 16, b = t % 16 * 8;           8 elements: 16 bytes of the narrowest operand
 *          dl_move<16>(x0, a0 + 128 * i0 + b);  ...
 *          for (int e = 0; e < 8; e++) {                   unrolled: x0 and y0 are registers
 *                  const float v0 = dl_load_bf16(x0[e]), ...
 *                  y0[e] = dl_pack_bf16(v3);
 *          dl_move<16>(r0 + 128 * i0 + b, y0);
 *
 * One multiplication or addition of the source is one rounding (-fmad=false). A thread loads all of its
 * elements before it stores any, and no other thread touches them; so results may take over the storage of
 * operands element by element (fuse_may_alias). Indices are 32 bits wide where every index fits. The order of
 * sums is that of cuda_rows.c and cuda_columns.c. */
#include <assert.h>
#include <stdlib.h>

#include "cuda_parts.h"

enum { MOST_WIDE = 8, MAP_OPERATIONS = 4000 };

/* ---- launches ---- */

/* Index into off[]: number k of the `each` that every member of a group has from `first` (of one member) on. */
static const char *number(const CudaPrinter *c, int first, int each, int k)
{
	if (c->members == 1)
		return arena_printf(c->p.a, "%d", first + k);
	return arena_printf(c->p.a, "%d + m * %d", first * c->members + k, each);
}

/* m: the member of a group that a block works for; block: its number there. */
static void print_member(CudaPrinter *c, int first)
{
	Printer *p = &c->p;
	print_line(p, "int m = 0;");
	print_line(p, "for (int end = %d; end - m > 1;) {", c->members);
	print_line(p, "const int middle = (m + end) / 2;");
	print_line(p, "if (off.at[%d + middle] <= blockIdx.x)", first);
	print_line(p, "\tm = middle;");
	print_line(p, "else");
	print_line(p, "\tend = middle;");
	print_line(p, "}");
	print_line(p, "const int block = (int)(blockIdx.x - off.at[%d + m]);", first);
}

static void print_operands(CudaPrinter *c)
{
	Printer *p = &c->p;
	const Node *n = p->fused;
	int own = kernel_own_numbers(n), nstreams = kernel_streams(p->a, n, &p->stream);
	if (c->members > 1)
		print_member(c, (own + 1 + nstreams) * c->members);
	for (int i = 0; i < n->nargs; i++) {
		const char *t = print_ctype(n->arg[i]->type.dtype),
			   *k = loop_assigns(p->l, i) ? "" : "const ";
		print_line(p, "%s%s *const a%d = (%s%s *)(arena + off.at[%s]);", k, t, i, k, t, number(c, 0, n->nargs, i));
	}
	for (int i = 0; i < n->nres; i++) {
		const char *t = print_ctype(n->res[i]->type.dtype);
		print_line(p, "%s *const r%d = (%s *)(arena + off.at[%s]);", t, i, t, number(c, n->nargs, n->nres, i));
	}
	if (cuda_fused_workspace(p->l) > 0)
		print_line(p, "unsigned char *const work = arena + off.at[%d];", n->nargs + n->nres);
	print_line(p, "const int64_t N = off.at[%s];", number(c, own, 1 + nstreams, 0));
	for (int i = 0; i < nstreams; i++)
		print_line(p, "const int32_t z%d = (int32_t)off.at[%s];", i, number(c, own, 1 + nstreams, 1 + i));
}

void cuda_open(CudaPrinter *c, int64_t gx, int64_t gy, int block)
{
	Printer *p = &c->p;
	int64_t *stream = NULL;
	int numbers = kernel_own_numbers(p->fused) + 1 + kernel_streams(p->a, p->fused, &stream);
	assert(c->nlaunch < CUDA_MAX_LAUNCHES && gx > 0 && gx <= INT32_MAX && gy > 0 && gy <= 65535);
	if (c->nlaunch == 0)
		print_line(p, "typedef struct { int64_t at[%d]; } $_off;", c->members == 1 ? numbers : c->members * (numbers + 1));
	if (c->nlaunch == 0 && c->counters > 0)
		print_line(p, "__device__ unsigned $_arrived[%lld];", (long long)c->counters);
	const char *suffix = c->nlaunch ? arena_printf(p->a, "_%d", c->nlaunch) : "";
	/* With one block a processor named as enough, ptxas does not spill to have more of them. */
	print_line(p, "extern \"C\" __global__ void __launch_bounds__(%d, 1) $%s(unsigned char *const arena, const %s$_off off, "
		      "const PlanEnv *const env)", block, suffix, c->members > 1 ? "DL_IN_PLACE " : "");
	print_line(p, "{");
	print_operands(c);
	c->launch[c->nlaunch++] = (PlanLaunch){ .grid = { (uint32_t)gx, (uint32_t)gy, 1 }, .block = (uint32_t)block };
}

void cuda_close(CudaPrinter *c)
{
	print_line(&c->p, "}");
}

/* ---- elements side by side ---- */

static bool has_last(const Loop *l) { return l->ndims > l->nouter + l->nmid; }

/* The place of a value in the arena, as far as it bears on alignment: variables begin at a multiple of
 * PLAN_ALIGN. */
static int64_t place_of(Value *v)
{
	int64_t bytes = 0;
	const Value *root = ir_view_root(v, &bytes);
	return bytes + (root->def && root->def->op == OP_var ? 0 : root->offset);
}

bool cuda_side_by_side(const CudaPrinter *c, const LoopIndex *x, Value *v, int width)
{
	const Loop *l = c->p.l;
	int last = l->ndims - 1;
	if (width == 1 || !has_last(l) || x->coef[last] != 1)
		return false;
	if (x->base % width != 0 || place_of(v) % (width * dtype_bytes(v->type.dtype)) != 0)
		return false;
	if (l->ndims > 1 && l->extent[last] % width != 0)
		return false;
	for (int d = 0; d < last; d++)
		if (x->coef[d] % width != 0)
			return false;
	for (int g = 0; g < x->nguards; g++) {
		const LoopGuard *k = &x->guard[g];
		if (k->dim == last && (k->lo % width != 0 || (k->hi % width != 0 && k->hi < l->extent[last])))
			return false;
	}
	return true;
}

bool cuda_side_by_side_running(const CudaPrinter *c, const LoopIndex *x, Value *v, int width)
{
	const Loop *l = c->p.l;
	int64_t stride = 1;
	if (width == 1 || l->ndims != l->nouter + 1 || x->nguards > 0 || x->base % width != 0 ||
	    place_of(v) % (width * dtype_bytes(v->type.dtype)) != 0)
		return false;
	for (int d = l->ndims - 1; d >= 0; d--) {
		if (x->coef[d] != stride)
			return false;
		stride *= l->extent[d];
	}
	return true;
}

static Value *target_of(const CudaPrinter *c, const LoopStore *s)
{
	const Node *n = c->p.fused;
	return s->result >= 0 ? n->res[s->result] : n->arg[s->operand];
}

static bool by_words(const CudaPrinter *c, const LoopIndex *x, Value *v)
{
	return c->running ? cuda_side_by_side_running(c, x, v, c->width) : cuda_side_by_side(c, x, v, c->width);
}

static bool store_by_words(const CudaPrinter *c, const LoopStore *s) { return by_words(c, &s->index, target_of(c, s)); }

void cuda_set_width(CudaPrinter *c, int width, bool running)
{
	c->width = width;
	c->running = running;
	for (int i = 0; i < c->p.l->ninstrs; i++) {
		const LoopInstr *x = &c->p.l->instr[i];
		bool words = x->op == LI_LOAD && x->level >= 2 && by_words(c, &x->index, c->p.fused->arg[x->operand]);
		c->stage[i] = words ? i : -1;
	}
}

/* ---- what is evaluated when ---- */

static bool in_row(const LoopInstr *x) { return x->op != LI_REDUCE && x->level >= 2; }

static unsigned lowest_bit(unsigned v) { return v & (~v + 1u); }

/* Whether no element has both. */
static bool exclude(const LoopIndex *x, const LoopIndex *y)
{
	for (int i = 0; i < x->nguards; i++)
		for (int k = 0; k < y->nguards; k++) {
			const LoopGuard *g = &x->guard[i], *h = &y->guard[k];
			if (g->dim == h->dim && (g->hi <= h->lo || h->hi <= g->lo))
				return true;
		}
	return false;
}

/* Loads that exclude one another (a concatenation's pieces, up to 64 of them) share registers: what a load holds where its guard
 * fails is never read. */
static void share_registers(CudaPrinter *c)
{
	const Loop *l = c->p.l;
	for (int i = 0; i < l->ninstrs; i++) {
		c->stage[i] = c->stage[i] < 0 ? -1 : i;
		for (int first = 0; c->stage[i] == i && first < i; first++) {
			const LoopInstr *x = &l->instr[i], *y = &l->instr[first];
			bool fits = c->stage[first] == first && x->dtype == y->dtype && c->want[i] == c->want[first] &&
				    c->keep[i] == c->keep[first];
			for (int k = first; k < i && fits; k++)
				fits = c->stage[k] != first || exclude(&x->index, &l->instr[k].index);
			if (fits)
				c->stage[i] = first;
		}
	}
}

void cuda_set_wants(CudaPrinter *c)
{
	const Loop *l = c->p.l;
	memset(c->want, 0, (size_t)l->ninstrs * sizeof *c->want);
	for (int i = 0; i < l->nstores; i++)
		if (loop_store_is_inner(l, &l->store[i]))
			c->want[l->store[i].instr] |= 1u << l->store[i].phase;
	for (int i = l->ninstrs - 1; i >= 0; i--) {
		const LoopInstr *x = &l->instr[i];
		unsigned at = x->op == LI_REDUCE ? 1u << x->phase : c->keep[i] ? lowest_bit(c->want[i]) : c->want[i];
		for (int k = 0; k < x->narg && (x->op == LI_REDUCE || in_row(x)); k++)
			if (x->arg[k] >= 0)
				c->want[x->arg[k]] |= at;
	}
	share_registers(c);
}

/* Whether instruction i is evaluated in a phase, and not read from where it was kept. */
static bool evaluates(const CudaPrinter *c, int i, int phase)
{
	unsigned at = c->keep[i] ? lowest_bit(c->want[i]) : c->want[i];
	return in_row(&c->p.l->instr[i]) && (at >> phase & 1);
}

static void declare(CudaPrinter *c, int i)
{
	const LoopInstr *x = &c->p.l->instr[i];
	print_line(&c->p, "const %s v%d = %s;", print_vtype(x->dtype), i, print_instr(&c->p, x));
}

void cuda_print_top(CudaPrinter *c)
{
	for (int i = 0; i < c->p.l->ninstrs; i++) {
		const LoopInstr *x = &c->p.l->instr[i];
		if (x->op != LI_REDUCE && x->level == 0 && x->phase == 0)
			declare(c, i);
	}
}

void cuda_print_row_level(CudaPrinter *c, int phase)
{
	for (int i = 0; i < c->p.l->ninstrs; i++) {
		const LoopInstr *x = &c->p.l->instr[i];
		if (x->op != LI_REDUCE && x->phase == phase && (x->level == 1 || (x->level == 0 && phase > 0)))
			declare(c, i);
	}
}

/* ---- one unit: `width` elements ---- */

/* Moves between x<i> or y<i> and memory: in words, or where some elements may not exist, element by element. */
static void print_move(CudaPrinter *c, const char *reg, const char *memory, const LoopIndex *x, DType t, bool load,
		       const CudaUnit *u)
{
	Printer *p = &c->p;
	int bytes = c->width * (int)dtype_bytes(t);
	p->last = "b";
	const char *index = c->running && p->l->kind == LOOP_MAP ? "b" : print_index(p, x);
	const char *at = arena_printf(p->a, "%s + %s", memory, index), *guard = print_guard(p, x);
	if (*guard)
		print_line(p, "if (%s) {", guard);
	if (u->whole)
		print_line(p, "if (%s)", u->whole);
	print_line(p, "%sdl_move<%d>(%s, %s);", u->whole ? "\t" : "", bytes, load ? reg : at, load ? at : reg);
	if (*guard && !u->whole)
		print_line(p, "}");
	if (!u->whole)
		return;
	const char *element = arena_printf(p->a, "(%s)[e]", at), *own = arena_printf(p->a, "%s[e]", reg);
	print_line(p, "else {");
	print_line(p, "#pragma unroll");
	print_line(p, "for (int e = 0; e < %d; e++)", c->width);
	print_line(p, "\tif (%s)", u->inside);
	print_line(p, "\t\t%s = %s;", load ? own : element, load ? element : own);
	print_line(p, "}");
	if (*guard)
		print_line(p, "}");
}

static void print_loads(CudaPrinter *c, const CudaUnit *u)
{
	for (int i = 0; i < c->p.l->ninstrs; i++) {
		const LoopInstr *x = &c->p.l->instr[i];
		if (c->stage[i] < 0 || !evaluates(c, i, u->phase))
			continue;
		bool part = u->whole || x->index.nguards > 0;
		if (c->stage[i] == i)
			print_line(&c->p, "__align__(16) %s x%d[%d]%s;", print_ctype(x->dtype), i, c->width, part ? " = { 0 }" : "");
		print_move(c, arena_printf(c->p.a, "x%d", c->stage[i]), arena_printf(c->p.a, "a%d", x->operand), &x->index, x->dtype,
			   true, u);
	}
}

static void print_elements(CudaPrinter *c, const CudaUnit *u)
{
	Printer *p = &c->p;
	print_line(p, "#pragma unroll");
	print_line(p, "for (int e = 0; e < %d; e++) {", c->width);
	p->last = "j";
	if (u->decode)
		u->decode(c);
	else if (has_last(p->l))
		print_line(p, "const %s j = b + e;", c->itype);
	if (u->inside)
		print_line(p, "if (%s) {", u->inside);
	if (c->running && p->l->kind == LOOP_MAP)
		cuda_print_row_level(c, 0);
	for (int i = 0; i < p->l->ninstrs; i++) {
		const char *vt = print_vtype(p->l->instr[i].dtype);
		if (evaluates(c, i, u->phase)) {
			declare(c, i);
			if (c->keep[i])
				print_line(p, "q%d[%s] = v%d;", i, c->lane, i);
		} else if (c->keep[i] && (c->want[i] >> u->phase & 1)) {
			print_line(p, "const %s v%d = q%d[%s];", vt, i, i, c->lane);
		}
	}
	if (u->accumulate)
		u->accumulate(c, u->phase);
	for (int i = 0; i < p->l->nstores; i++) {
		const LoopStore *s = &p->l->store[i];
		if (s->phase != u->phase || !loop_store_is_inner(p->l, s))
			continue;
		if (store_by_words(c, s))
			print_line(p, "y%d[e] = %s;", i, print_stored(p, s));
		else
			print_store(p, s);
	}
	if (u->inside)
		print_line(p, "}");
	print_line(p, "}");
}

void cuda_print_unit(CudaPrinter *c, const CudaUnit *u)
{
	Printer *p = &c->p;
	print_loads(c, u);
	for (int i = 0; i < p->l->nstores; i++) {
		const LoopStore *s = &p->l->store[i];
		if (s->phase == u->phase && loop_store_is_inner(p->l, s) && store_by_words(c, s))
			print_line(p, "__align__(16) %s y%d[%d];", print_ctype(print_stored_type(p, s)), i, c->width);
	}
	print_elements(c, u);
	for (int i = 0; i < p->l->nstores; i++) {
		const LoopStore *s = &p->l->store[i];
		if (s->phase == u->phase && loop_store_is_inner(p->l, s) && store_by_words(c, s))
			print_move(c, arena_printf(p->a, "y%d", i), print_target(p, s), &s->index,
				   print_stored_type(p, s), false, u);
	}
	p->last = "j";
}

void cuda_print_row_stores(CudaPrinter *c)
{
	for (int i = 0; i < c->p.l->nstores; i++)
		if (!loop_store_is_inner(c->p.l, &c->p.l->store[i]) && !loop_store_is_column(c->p.l, &c->p.l->store[i]))
			print_store(&c->p, &c->p.l->store[i]);
}

/* ---- partial results ---- */

int64_t cuda_partial_bytes(const Loop *l)
{
	int64_t bytes = 0;
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE)
			bytes += l->instr[i].node->op == OP_argmax ? 16 : 8;
	return bytes;
}

void cuda_print_partials(CudaPrinter *c, int64_t count)
{
	Printer *p = &c->p;
	int64_t at = 0;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		const char *t = print_reducer(loop_reduce_dtype(p->l, x));
		print_line(p, "%s *const p%d = (%s *)(work + %lld);", t, i, t, (long long)at);
		at += count * 8;
		if (x->node->op != OP_argmax)
			continue;
		print_line(p, "int32_t *const w%d = (int32_t *)(work + %lld);", i, (long long)at);
		at += count * 8;
	}
}

/* ---- maps ---- */

/* One dimension: N elements, so that arrays of every size share the text. */
static bool is_flat(const Loop *l) { return l->ndims == 1 && l->nouter == 0; }

static bool is_vector(const Loop *l, const LoopInstr *x)
{
	return x->op == LI_LOAD && x->level >= 2 && x->index.coef[l->ndims - 1] == 1;
}

/* Whether all arrays of the map can be moved in words of `width` elements. */
static bool all_by_words(CudaPrinter *c, int width, bool running)
{
	const Loop *l = c->p.l;
	bool all = true;
	c->width = width;
	c->running = running;
	for (int i = 0; i < l->nstores && all; i++)
		all = store_by_words(c, &l->store[i]);
	for (int i = 0; i < l->ninstrs && all; i++)
		if (is_vector(l, &l->instr[i]))
			all = by_words(c, &l->instr[i].index, c->p.fused->arg[l->instr[i].operand]);
	return all;
}

/* As many elements as make 16 bytes of the narrowest array, but not more than a thread should have to do (the text is
 * unrolled). Where rows are no multiple of it, units run over their ends, if all arrays are dense; else there are fewer. */
static void choose_map_width(CudaPrinter *c)
{
	const Loop *l = c->p.l;
	int width = 1;
	for (int i = 0; i < l->nstores; i++) {
		int fit = 16 / (int)dtype_bytes(target_of(c, &l->store[i])->type.dtype);
		width = fit > width ? fit : width;
	}
	for (int i = 0; i < l->ninstrs; i++)
		if (is_vector(l, &l->instr[i])) {
			int fit = 16 / (int)dtype_bytes(l->instr[i].dtype);
			width = fit > width ? fit : width;
		}
	width = width > MOST_WIDE ? MOST_WIDE : width;
	while (width > 1 && l->cost * width > MAP_OPERATIONS)
		width /= 2;
	int most = width;
	while (width > 1 && !all_by_words(c, width, false))
		width /= 2;
	bool running = width < most && l->nouter > 0 && l->inner >= most && all_by_words(c, most, true);
	cuda_set_width(c, running ? most : width, running);
}

/* Element e of a unit that may reach into the next row, its row's indices and what depends on them. */
static void decode_running(CudaPrinter *c)
{
	Printer *p = &c->p;
	long long inner = (long long)p->l->inner;
	print_line(p, "const bool over = j0 + e >= %lld;", inner);
	print_line(p, "const %s o = o0 + over, j = over ? j0 + e - %lld : j0 + e;", c->itype, inner);
	print_decode(p, c->itype, "o", 0, p->l->nouter);
}

static void print_map_start(CudaPrinter *c, int64_t each)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	print_line(p, "const %s t = (%s)%s * %d + (%s)threadIdx.x;", c->itype, c->itype, c->members > 1 ? "block" : "blockIdx.x",
		   CUDA_BLOCK, c->itype);
	if (is_flat(l) || c->running) {
		const char *end = is_flat(l) ? "N" : arena_printf(p->a, "N * %lld", (long long)l->inner);
		print_line(p, "const %s b = t * %d;", c->itype, c->width);
		print_line(p, "if (b >= %s)", end);
		print_line(p, "\treturn;");
		if (c->running)
			print_line(p, "const %s o0 = b / %lld, j0 = b %% %lld;", c->itype, (long long)l->inner, (long long)l->inner);
		return;
	}
	if (each > 1)
		print_line(p, "if (t >= N * %lld)", (long long)each);
	else
		print_line(p, "if (t >= N)");
	print_line(p, "\treturn;");
	if (each > 1)
		print_line(p, "const %s o = t / %lld, b = t %% %lld * %d;", c->itype, (long long)each, (long long)each, c->width);
	else
		print_line(p, "const %s o = t, b = 0;", c->itype);
	print_decode(p, c->itype, "o", 0, l->nouter);
}

static void print_map(CudaPrinter *c)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	if (has_last(l))
		choose_map_width(c);
	else
		cuda_set_width(c, 1, false);
	cuda_set_wants(c);
	int64_t each = (l->inner + c->width - 1) / c->width;
	int64_t units = c->running ? (l->elems + c->width - 1) / c->width : l->outer * each;
	CudaUnit u = { .decode = c->running ? decode_running : NULL };
	if (c->running ? l->elems % c->width != 0 : is_flat(l) && l->inner % c->width != 0) {
		const char *end = c->running ? arena_printf(p->a, "N * %lld", (long long)l->inner) : "N";
		u.whole = arena_printf(p->a, "b + %d <= %s", c->width, end);
		u.inside = arena_printf(p->a, "b + e < %s", end);
	}
	cuda_open(c, (units + CUDA_BLOCK - 1) / CUDA_BLOCK, 1, CUDA_BLOCK);
	print_map_start(c, each);
	cuda_print_top(c);
	if (!c->running)
		cuda_print_row_level(c, 0);
	cuda_print_unit(c, &u);
	cuda_close(c);
}

/* ---- a kernel ---- */

static int64_t reach(const Loop *l, const LoopIndex *x)
{
	int64_t most = x->base < 0 ? -x->base : x->base;
	for (int d = 0; d < l->ndims; d++)
		most += (x->coef[d] < 0 ? -x->coef[d] : x->coef[d]) * l->extent[d];
	return most;
}

/* Whether every index, and every thread's number times what it does, is below 2^31. */
static bool fits_32_bits(const Loop *l)
{
	const int64_t most = INT32_MAX - 65536;
	bool fits = l->elems < most;
	for (int i = 0; i < l->ninstrs; i++)
		fits = fits && reach(l, &l->instr[i].index) < most;
	for (int i = 0; i < l->nstores; i++)
		fits = fits && reach(l, &l->store[i].index) < most;
	return fits;
}

int64_t cuda_fused_workspace(const Loop *l)
{
	return l->kind == LOOP_ROW ? cuda_rows_workspace(l) : l->kind == LOOP_COLUMN ? cuda_columns_workspace(l) : 0;
}

KernelText cuda_group_text(Arena *a, const Node *fused, const Loop *l, int64_t micro, int members)
{
	char *text = NULL;
	size_t len = 0;
	CudaPrinter c = {
		.turn = "",
		.p = { .a = a, .out = open_memstream(&text, &len), .fused = fused, .l = l, .micro = micro, .last = "j" },
		.itype = fits_32_bits(l) ? "int" : "int64_t",
		.members = members,
	};
	c.stage = ARENA_ARRAY(a, l->ninstrs, int);
	c.keep = ARENA_ARRAY(a, l->ninstrs, bool);
	c.want = ARENA_ARRAY(a, l->ninstrs, unsigned);
	c.p.stage = c.stage;
	if (l->kind == LOOP_MAP)
		print_map(&c);
	else if (l->kind == LOOP_ROW)
		cuda_print_rows(&c);
	else
		cuda_print_columns(&c);
	fclose(c.p.out);
	KernelText r = { .text = arena_strndup(a, text, len), .n = is_flat(l) && l->kind == LOOP_MAP ? l->elems : l->outer };
	PlanLaunch *launch = ARENA_ARRAY(a, c.nlaunch, PlanLaunch);
	memcpy(launch, c.launch, (size_t)c.nlaunch * sizeof *launch);
	r.launch = launch;
	r.nlaunch = c.nlaunch;
	r.joins = l->kind == LOOP_MAP;
	free(text);
	return r;
}

KernelText cuda_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro)
{
	if (l->ncolumns > 0 && !cuda_sums_beside_rows(l->outer, l->mid * l->inner, l->ncolumns))
		return (KernelText){ 0 };
	return cuda_group_text(a, fused, l, micro, 1);
}

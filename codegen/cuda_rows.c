/* Rows in CUDA C: reductions over axes that include the last one.
 *
 * The order of a sum over row o of R elements depends on R and o alone (and, for R > 16384, on whether there are fewer
 * than 256 rows):
 *
 *   - Elements form units of W: 8 where R is above 2048, else 4, or 1 where 4 does not divide R. Where 8 does not divide R, units
 *     begin at multiples of 8 from the first row's start: row o's first one is short by o * R mod 8 elements, so that units lie
 *     in memory as words do. A row has a team of threads: 1 to 32 where there are at most 128 units, else whole warps, up to
 *     16. Unit k belongs to thread k mod team.
 *   - A thread adds element e of its units to its sum e, in order; then sums 4 apart, 2 apart, 1 apart.
 *   - The lanes of a warp are added 16, 8, 4, 2, 1 apart, then the warps in order.
 *   - Long rows, few of them: chunks of a multiple of 2048 elements, each as above by 256 threads; thread t adds chunks
 *     t, t + 256, .. in order, and lanes and warps are added as above.
 *
 * An argmax takes the first of equals wherever it stands, so it has no order.
 *
 * What several phases read is kept in registers where a thread's share of the row is small: the row is then read once. A
 * chunked row has one launch a phase and one for what is stored once a row; each adds up what earlier phases have left. */
#include "cuda_parts.h"

enum {
	WIDE_ROW = 2048,     /* elements, above which units are of 8 */
	LONG_ROW = 16384,    /* above which few rows are cut into chunks */
	FEW_ROWS = 256,      /* fewer than this */
	CHUNKS = 512,        /* at most, or so */
	CHUNK_STEP = 2048,
	SMALL_BLOCK = 128,   /* threads of a block whose teams are parts of warps */
	KEPT = 96,           /* registers of a thread that hold elements from phase to phase */
	KEPT_OF_128 = 64,    /* the same in blocks of more than 256 threads, which have 128 registers each */
	UNROLLED = 32        /* elements of a thread in an unrolled loop */
};

typedef struct Rows {
	int64_t length, units; /* of a row */
	int width, team;
	bool shifted;          /* units of a row need not begin where it does; the first and the last may be short */
	int64_t per;           /* units of a thread, at most */
	int64_t chunks, chunk; /* chunk: elements of one */
} Rows;

static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static Rows rows_of(const Loop *l)
{
	Rows r = { .length = l->mid * l->inner, .chunks = 1 };
	r.width = r.length > WIDE_ROW ? 8 : r.length % 4 == 0 ? 4 : 1;
	r.shifted = r.length % r.width != 0;
	r.units = r.shifted ? (r.length + 2 * r.width - 2) / r.width : r.length / r.width;
	if (r.length > LONG_ROW && l->outer < FEW_ROWS) {
		int64_t least = ceil_div(r.length, CHUNKS);
		r.chunk = ceil_div(least > 4 * CHUNK_STEP ? least : 4 * CHUNK_STEP, CHUNK_STEP) * CHUNK_STEP;
		r.chunks = ceil_div(r.length, r.chunk);
		r.team = CUDA_BLOCK;
	} else if (r.units <= 128) {
		for (r.team = 1; r.team < CUDA_WARP && r.team * 4 < r.units;)
			r.team *= 2;
	} else {
		int64_t team = ceil_div(ceil_div(r.units, r.width == 8 || r.units <= 256 ? 2 : 4), CUDA_WARP) * CUDA_WARP;
		r.team = team > 512 ? 512 : (int)team;
	}
	r.per = ceil_div(r.units, r.team);
	return r;
}

int64_t cuda_rows_workspace(const Loop *l)
{
	Rows r = rows_of(l);
	return r.chunks > 1 ? l->outer * r.chunks * cuda_partial_bytes(l) : 0;
}

/* ---- what is kept ---- */

static bool is_again(const CudaPrinter *c, int i)
{
	return c->want[i] & (c->want[i] - 1);
}

/* Of the row itself, not of a vector that all rows share. */
static bool reads_row(const Loop *l, const LoopInstr *x)
{
	for (int d = 0; d < l->nouter; d++)
		if (x->index.coef[d] != 0)
			return true;
	return l->nouter == 0;
}

/* The most registers that hold kept values at the end of any phase. */
static int64_t kept_registers(const CudaPrinter *c, const Rows *r)
{
	const Loop *l = c->p.l;
	int64_t most = 0;
	for (int phase = 0; phase + 1 < l->phases; phase++) {
		int64_t all = 0;
		for (int i = 0; i < l->ninstrs; i++) {
			unsigned w = c->want[i];
			if (c->keep[i] && (w & ((2u << phase) - 1)) && w >> (phase + 1))
				all += r->per * r->width * (dtype_bytes(l->instr[i].dtype) > 4 ? 2 : 1);
		}
		most = all > most ? all : most;
	}
	return most;
}

/* Keeps loads that several phases read, and what is dear (loop.h's `buffered`), as far as there are registers for it.
 * Whether anything is kept. */
static bool choose_kept(CudaPrinter *c, const Rows *r)
{
	const Loop *l = c->p.l;
	for (int round = 0; round < 2; round++) {
		bool any = false;
		cuda_set_wants(c);
		for (int i = 0; i < l->ninstrs; i++) {
			const LoopInstr *x = &l->instr[i];
			bool load = x->op == LI_LOAD && reads_row(l, x), dear = round == 0 && x->buffered;
			c->keep[i] = x->level >= 2 && is_again(c, i) && (load || dear);
			any = any || c->keep[i];
		}
		cuda_set_wants(c);
		for (int i = 0; i < l->ninstrs; i++) /* once what reads it is kept, a load may be wanted once */
			c->keep[i] = c->keep[i] && is_again(c, i);
		cuda_set_wants(c);
		if (any && r->per * r->width <= UNROLLED && kept_registers(c, r) <= (r->team > 256 ? KEPT_OF_128 : KEPT))
			return true;
		memset(c->keep, 0, (size_t)l->ninstrs * sizeof *c->keep);
	}
	cuda_set_wants(c);
	return false;
}

/* ---- reductions ---- */

static bool reduces(const CudaPrinter *c, int i, int phase)
{
	const LoopInstr *x = &c->p.l->instr[i];
	return x->op == LI_REDUCE && x->phase == phase;
}

static bool is_argmax(const LoopInstr *x) { return x->node->op == OP_argmax; }

static const char *reducer(const CudaPrinter *c, int i)
{
	return print_reducer(loop_reduce_dtype(c->p.l, &c->p.l->instr[i]));
}

static const char *start_value(const CudaPrinter *c, int i)
{
	const LoopInstr *x = &c->p.l->instr[i];
	bool max = loop_is_max(x) || is_argmax(x);
	return max ? print_lowest(loop_reduce_dtype(c->p.l, x)) : "0";
}

static void print_start(CudaPrinter *c, int phase, int width)
{
	Printer *p = &c->p;
	for (int i = 0; i < p->l->ninstrs; i++) {
		if (!reduces(c, i, phase))
			continue;
		const char *t = reducer(c, i), *v = start_value(c, i), *all = v;
		if (is_argmax(&p->l->instr[i])) {
			print_line(p, "%s m%d = %s;", t, i, v);
			print_line(p, "int32_t s%d = 2147483647;", i);
			continue;
		}
		for (int e = 1; e < width; e++)
			all = arena_printf(p->a, "%s, %s", all, v);
		print_line(p, "%s s%d[%d] = { %s };", t, i, width, all);
	}
}

/* One element, in the loop over e. */
static void print_accumulate(CudaPrinter *c, int phase)
{
	Printer *p = &c->p;
	for (int i = 0; i < p->l->ninstrs; i++) {
		if (!reduces(c, i, phase))
			continue;
		const LoopInstr *x = &p->l->instr[i];
		const char *t = reducer(c, i);
		int v = x->arg[0];
		if (is_argmax(x))
			print_line(p, "dl_take(m%d, s%d, (%s)v%d, (int32_t)(u + e));", i, i, t, v);
		else if (loop_is_max(x))
			print_line(p, "s%d[e] = dl_larger(s%d[e], (%s)v%d);", i, i, t, v);
		else
			print_line(p, "s%d[e] = s%d[e] + (%s)v%d;", i, i, t, v);
	}
}

/* The sums of one thread as one: those that are `apart` from `first`. */
static const char *own_sum(const CudaPrinter *c, int i, int width, int first, int apart)
{
	Arena *a = c->p.a;
	if (apart == width)
		return arena_printf(a, "s%d[%d]", i, first);
	const char *x = own_sum(c, i, width, first, apart * 2), *y = own_sum(c, i, width, first + apart, apart * 2);
	return arena_printf(a, loop_is_max(&c->p.l->instr[i]) ? "dl_larger(%s, %s)" : "(%s + %s)", x, y);
}

/* Of a team inside of a warp: d<i>, in every lane. */
static void print_warp_end(CudaPrinter *c, int i, int width, int lanes, const char *mask)
{
	Printer *p = &c->p;
	const LoopInstr *x = &p->l->instr[i];
	const char *t = reducer(c, i);
	if (is_argmax(x)) {
		print_line(p, "dl_team_argmax<%d>(%s, m%d, s%d);", lanes, mask, i, i);
		print_line(p, "int32_t d%d = s%d;", i, i);
	} else {
		print_line(p, "%s d%d = dl_team_%s<%d, %s>(%s, %s);", t, i, loop_is_max(x) ? "max" : "sum", lanes, t, mask,
			   own_sum(c, i, width, 0, 1));
	}
}

static void print_warps_in_order(CudaPrinter *c, int i, int warps)
{
	Printer *p = &c->p;
	const LoopInstr *x = &p->l->instr[i];
	bool arg = is_argmax(x);
	print_line(p, arg ? "m%d = zm%d[0];" : "d%d = zd%d[0];", i, i);
	if (arg)
		print_line(p, "d%d = zd%d[0];", i, i);
	print_line(p, "#pragma unroll");
	print_line(p, "for (int w = 1; w < %d; w++)", warps);
	if (arg)
		print_line(p, "\tdl_take(m%d, d%d, zm%d[w], zd%d[w]);", i, i, i, i);
	else if (loop_is_max(x))
		print_line(p, "\td%d = dl_larger(d%d, zd%d[w]);", i, i, i);
	else
		print_line(p, "\td%d = d%d + zd%d[w];", i, i, i);
}

/* d<i> of each reduction of a phase, in every thread of the team (m<i>: an argmax's value). Shared arrays are used once in
 * a launch, so one barrier does. */
static void print_end(CudaPrinter *c, int phase, int width, int team, const char *mask)
{
	Printer *p = &c->p;
	bool any = false;
	for (int i = 0; i < p->l->ninstrs; i++) {
		if (!reduces(c, i, phase))
			continue;
		any = true;
		print_warp_end(c, i, width, team < CUDA_WARP ? team : CUDA_WARP, mask);
		if (team <= CUDA_WARP)
			continue;
		bool arg = is_argmax(&p->l->instr[i]);
		print_line(p, "__shared__ %s zd%d[%d];", arg ? "int32_t" : reducer(c, i), i, team / CUDA_WARP);
		if (arg)
			print_line(p, "__shared__ %s zm%d[%d];", reducer(c, i), i, team / CUDA_WARP);
		print_line(p, "if (lane %% 32 == 0)");
		print_line(p, "\tzd%d[lane / 32] = d%d;", i, i);
		if (arg) {
			print_line(p, "if (lane %% 32 == 0)");
			print_line(p, "\tzm%d[lane / 32] = m%d;", i, i);
		}
	}
	if (!any || team <= CUDA_WARP)
		return;
	print_line(p, "__syncthreads();");
	for (int i = 0; i < p->l->ninstrs; i++)
		if (reduces(c, i, phase))
			print_warps_in_order(c, i, team / CUDA_WARP);
}

static void print_reduced_all(CudaPrinter *c, int phase)
{
	for (int i = 0; i < c->p.l->ninstrs; i++)
		if (reduces(c, i, phase))
			print_reduced(&c->p, i, arena_printf(c->p.a, "d%d", i));
}

/* ---- elements of a row ---- */

/* Indices of element u + e, where the last dimension is no multiple of the width. */
static void decode_element(CudaPrinter *c)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	int last = l->ndims - 1;
	print_line(p, "const %s j = (u + e) %% %lld, q = (u + e) / %lld;", c->itype, (long long)l->extent[last],
		   (long long)l->extent[last]);
	print_decode(p, c->itype, "q", l->nouter, last - l->nouter);
}

/* One unit: k is its number. */
static void print_unit(CudaPrinter *c, const Rows *r, int phase)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	int last = l->ndims - 1, reduced = l->ndims - l->nouter;
	CudaUnit u = { .phase = phase, .accumulate = print_accumulate };
	print_line(p, r->shifted ? "const %s u = k * %d - shift;" : "const %s u = k * %d;", c->itype, c->width);
	if (r->shifted) {
		u.whole = arena_printf(p->a, "u >= 0 && u + %d <= %lld", c->width, (long long)r->length);
		u.inside = arena_printf(p->a, "u + e >= 0 && u + e < %lld", (long long)r->length);
	}
	if (reduced == 1) {
		print_line(p, "const %s b = u;", c->itype);
	} else if (reduced > 1 && !r->shifted && l->extent[last] % c->width == 0) {
		print_line(p, "const %s b = u %% %lld, q = u / %lld;", c->itype, (long long)l->extent[last],
			   (long long)l->extent[last]);
		print_decode(p, c->itype, "q", l->nouter, last - l->nouter);
	} else if (reduced > 1) {
		u.decode = decode_element;
	}
	cuda_print_unit(c, &u);
}

/* How far the first unit reaches before the row. */
static void print_shift(CudaPrinter *c, const Rows *r)
{
	if (r->shifted)
		print_line(&c->p, "const int shift = (int)(o %% %d * %lld %% %d);", r->width, (long long)(r->length % r->width),
			   r->width);
}

static void print_phase(CudaPrinter *c, const Rows *r, int phase, bool kept, const char *mask)
{
	Printer *p = &c->p;
	cuda_print_row_level(c, phase);
	if (!loop_phase_has_inner(p->l, phase))
		return;
	print_start(c, phase, r->width);
	if (kept) {
		print_line(p, "#pragma unroll");
		print_line(p, "for (int i = 0; i < %lld; i++) {", (long long)r->per);
		print_line(p, "const int k = i * %d + lane;", r->team);
		if (r->units % r->team != 0)
			print_line(p, "if (k >= %lld)", (long long)r->units), print_line(p, "\tbreak;");
		c->lane = r->width == 1 ? "i" : arena_printf(p->a, "i * %d + e", r->width);
	} else {
		print_line(p, "for (%s k = lane; k < %lld; k += %d) {", c->itype, (long long)r->units, r->team);
	}
	print_unit(c, r, phase);
	print_line(p, "}");
	print_end(c, phase, r->width, r->team, mask);
	print_reduced_all(c, phase);
}

static bool has_row_stores(const Loop *l)
{
	for (int i = 0; i < l->nstores; i++)
		if (!loop_store_is_inner(l, &l->store[i]))
			return true;
	return false;
}

static void print_whole_rows(CudaPrinter *c, const Rows *r)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	bool kept = choose_kept(c, r), warp = r->team <= CUDA_WARP;
	const char *mask = warp ? "mask" : "0xffffffffu";
	int each = warp ? SMALL_BLOCK / r->team : 1;
	cuda_open(c, ceil_div(l->outer, each), 1, warp ? SMALL_BLOCK : r->team);
	if (warp) {
		print_line(p, "const int lane = threadIdx.x %% %d;", r->team);
		print_line(p, "const %s o = (%s)blockIdx.x * %d + (%s)threadIdx.x / %d;", c->itype, c->itype, each, c->itype,
			   r->team);
		print_line(p, "const unsigned mask = __ballot_sync(0xffffffffu, o < N);");
		print_line(p, "if (o >= N)");
		print_line(p, "\treturn;");
	} else {
		print_line(p, "const int lane = threadIdx.x;");
		print_line(p, "const %s o = blockIdx.x;", c->itype);
	}
	print_shift(c, r);
	print_decode(p, c->itype, "o", 0, l->nouter);
	for (int i = 0; i < l->ninstrs; i++)
		if (c->keep[i])
			print_line(p, "%s q%d[%lld];", print_vtype(l->instr[i].dtype), i, (long long)(r->per * r->width));
	cuda_print_top(c);
	for (int phase = 0; phase < l->phases; phase++)
		print_phase(c, r, phase, kept, mask);
	if (has_row_stores(l)) { /* a result of a row may lie where threads of the row have read */
		print_line(p, warp ? "__syncwarp(mask);" : "__syncthreads();");
		print_line(p, "if (lane == 0) {");
		cuda_print_row_stores(c);
		print_line(p, "}");
	}
	cuda_close(c);
}

/* ---- chunks ---- */

/* Adds up the partial results of a phase: every thread of the block gets them. */
static void print_combine(CudaPrinter *c, const Rows *r, int phase)
{
	Printer *p = &c->p;
	bool any = false;
	for (int i = 0; i < p->l->ninstrs; i++)
		any = any || reduces(c, i, phase);
	if (!any)
		return;
	print_start(c, phase, 1);
	print_line(p, "for (int g = lane; g < %lld; g += %d) {", (long long)r->chunks, r->team);
	for (int i = 0; i < p->l->ninstrs; i++) {
		if (!reduces(c, i, phase))
			continue;
		const char *at = arena_printf(p->a, "(int64_t)o * %lld + g", (long long)r->chunks);
		if (is_argmax(&p->l->instr[i]))
			print_line(p, "dl_take(m%d, s%d, p%d[%s], w%d[%s]);", i, i, i, at, i, at);
		else if (loop_is_max(&p->l->instr[i]))
			print_line(p, "s%d[0] = dl_larger(s%d[0], p%d[%s]);", i, i, i, at);
		else
			print_line(p, "s%d[0] = s%d[0] + p%d[%s];", i, i, i, at);
	}
	print_line(p, "}");
	print_end(c, phase, 1, r->team, "0xffffffffu");
	print_reduced_all(c, phase);
}

static void open_chunked(CudaPrinter *c, const Rows *r, int64_t blocks, const char *o)
{
	Printer *p = &c->p;
	cuda_open(c, blocks, 1, r->team);
	cuda_print_partials(c, p->l->outer * r->chunks);
	print_line(p, "const int lane = threadIdx.x;");
	print_line(p, "const %s o = %s;", c->itype, o);
	print_shift(c, r);
	print_decode(p, c->itype, "o", 0, p->l->nouter);
	cuda_print_top(c);
}

static void print_chunks(CudaPrinter *c, const Rows *r, int phase)
{
	Printer *p = &c->p;
	open_chunked(c, r, p->l->outer * r->chunks, arena_printf(p->a, "blockIdx.x / %lld", (long long)r->chunks));
	print_line(p, "const int g = blockIdx.x %% %lld;", (long long)r->chunks);
	for (int before = 0; before < phase; before++) {
		cuda_print_row_level(c, before);
		print_line(p, "/* phase %d */", before);
		print_combine(c, r, before);
	}
	cuda_print_row_level(c, phase);
	print_start(c, phase, r->width);
	long long units = (long long)(r->chunk / r->width);
	print_line(p, "const %s from = (%s)g * %lld, end = from + %lld;", c->itype, c->itype, units, units);
	print_line(p, "const %s to = end < %lld ? end : %lld;", c->itype, (long long)r->units, (long long)r->units);
	print_line(p, "for (%s k = from + lane; k < to; k += %d) {", c->itype, r->team);
	print_unit(c, r, phase);
	print_line(p, "}");
	print_end(c, phase, r->width, r->team, "0xffffffffu");
	for (int i = 0; i < p->l->ninstrs; i++) {
		if (!reduces(c, i, phase))
			continue;
		bool arg = is_argmax(&p->l->instr[i]);
		print_line(p, "if (lane == 0)");
		print_line(p, "\tp%d[blockIdx.x] = %c%d;", i, arg ? 'm' : 'd', i);
		if (arg) {
			print_line(p, "if (lane == 0)");
			print_line(p, "\tw%d[blockIdx.x] = d%d;", i, i);
		}
	}
	cuda_close(c);
}

static void print_chunked_rows(CudaPrinter *c, const Rows *r)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	cuda_set_wants(c);
	for (int phase = 0; phase < l->phases; phase++)
		if (loop_phase_has_inner(l, phase))
			print_chunks(c, r, phase);
	if (!has_row_stores(l))
		return;
	open_chunked(c, r, l->outer, "blockIdx.x");
	for (int phase = 0; phase < l->phases; phase++) {
		cuda_print_row_level(c, phase);
		print_combine(c, r, phase);
	}
	print_line(p, "__syncthreads();");
	print_line(p, "if (lane == 0) {");
	cuda_print_row_stores(c);
	print_line(p, "}");
	cuda_close(c);
}

void cuda_print_rows(CudaPrinter *c)
{
	Rows r = rows_of(c->p.l);
	cuda_set_width(c, r.width, r.shifted);
	if (r.chunks > 1)
		print_chunked_rows(c, &r);
	else
		print_whole_rows(c, &r);
}

/* Columns in CUDA C: reductions over leading or middle axes, the last one being kept.
 *
 * The order of the sum of a column of M elements depends on the shape [outer, M, inner] alone: the M rows are cut into
 * chunks of equal length; row r of a chunk goes to strip r mod S, which adds its rows in order; the strips are added in
 * order; chunk c goes to strip c mod 8 of the chunks, and these are added in the same way. S is 8, and more where inner is
 * less than 32, so that a block has 256 threads' worth of rows to read.
 *
 * A block has a tile of columns and one chunk: thread (x, y) adds up the columns of x over strip y. Strips meet in shared
 * memory, chunks in the workspace, which a second launch adds up. */
#include "cuda_parts.h"

enum { BLOCKS = 1024, TILE = 128, COMBINE_STRIPS = 8, MOST_CHUNKS = 256 };

typedef struct Columns {
	int strips;
	int64_t chunks, rows; /* rows: of a chunk */
} Columns;

static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static int power_of_two(int64_t least)
{
	int n = 1;
	while (n < least && n < CUDA_WARP)
		n *= 2;
	return n;
}

static Columns columns_of(const Loop *l)
{
	Columns k = { .strips = CUDA_BLOCK / power_of_two(l->inner) };
	int64_t blocks = l->outer * ceil_div(l->inner, TILE), chunks = ceil_div(BLOCKS, blocks);
	int64_t most = l->mid / (k.strips * 4);
	chunks = chunks > most ? most : chunks;
	chunks = chunks > MOST_CHUNKS ? MOST_CHUNKS : chunks < 1 ? 1 : chunks;
	k.rows = ceil_div(l->mid, chunks);
	k.chunks = ceil_div(l->mid, k.rows);
	return k;
}

int64_t cuda_columns_workspace(const Loop *l)
{
	Columns k = columns_of(l);
	return k.chunks > 1 ? k.chunks * l->outer * l->inner * cuda_partial_bytes(l) : 0;
}

static const char *start_value(const LoopInstr *x) { return loop_is_max(x) ? print_lowest(x->dtype) : "0"; }

/* acc = acc (+) value */
static void print_add(CudaPrinter *c, const LoopInstr *x, const char *acc, const char *value)
{
	if (loop_is_max(x))
		print_line(&c->p, "%s = dl_larger(%s, %s);", acc, acc, value);
	else
		print_line(&c->p, "%s = %s + %s;", acc, acc, value);
}

static void print_accumulate(CudaPrinter *c, int phase)
{
	Printer *p = &c->p;
	(void)phase;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE)
			print_add(c, x, arena_printf(p->a, "s%d[e]", i),
				  arena_printf(p->a, "(%s)v%d", print_reducer(x->dtype), x->arg[0]));
	}
}

/* The reductions of column j, from d<i>. */
static void print_results(CudaPrinter *c, int i)
{
	print_reduced(&c->p, i, arena_printf(c->p.a, "d%d", i));
	for (int s = 0; s < c->p.l->nstores; s++)
		if (c->p.l->store[s].instr == i)
			print_store(&c->p, &c->p.l->store[s]);
}

/* Adds up the strips of `columns` columns, `strips` of them, through shared memory: thread (x, 0) has d<i> of element e
 * of s<i>, between the braces that are opened. */
static void open_strips(CudaPrinter *c, int i, int width, int x_threads, int strips)
{
	Printer *p = &c->p;
	const LoopInstr *x = &p->l->instr[i];
	int columns = x_threads * width;
	print_line(p, "{");
	print_line(p, "__shared__ %s z%d[%d];", print_reducer(x->dtype), i, columns * strips);
	print_line(p, "#pragma unroll");
	print_line(p, "for (int e = 0; e < %d; e++)", width);
	print_line(p, "\tz%d[(y * %d + x) * %d + e] = s%d[e];", i, x_threads, width, i);
	print_line(p, "__syncthreads();");
	print_line(p, "if (y == 0 && b < %lld) {", (long long)p->l->inner);
	print_line(p, "#pragma unroll");
	print_line(p, "for (int e = 0; e < %d; e++) {", width);
	print_line(p, "const %s j = b + e;", c->itype);
	print_line(p, "%s d%d = z%d[x * %d + e];", print_reducer(x->dtype), i, i, width);
	print_line(p, "for (int g = 1; g < %d; g++)", strips);
	fputc('\t', p->out);
	print_add(c, x, arena_printf(p->a, "d%d", i), arena_printf(p->a, "z%d[(g * %d + x) * %d + e]", i, x_threads, width));
}

static void close_strips(CudaPrinter *c)
{
	for (int i = 0; i < 3; i++)
		print_line(&c->p, "}");
}

static void print_starts(CudaPrinter *c, int width)
{
	Printer *p = &c->p;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		const char *v = start_value(x), *all = v;
		for (int e = 1; e < width; e++)
			all = arena_printf(p->a, "%s, %s", all, v);
		print_line(p, "%s s%d[%d] = { %s };", print_reducer(x->dtype), i, width, all);
	}
}

/* The widest that lets all arrays be read and written in words, and leaves a block its shared memory. */
static int column_width(CudaPrinter *c)
{
	const Loop *l = c->p.l;
	int width = l->inner >= TILE ? 4 : 1;
	while (width > 1 && l->inner % width != 0)
		width /= 2;
	for (; width > 1; width /= 2) {
		bool all = true;
		for (int i = 0; i < l->ninstrs; i++) {
			const LoopInstr *x = &l->instr[i];
			if (x->op == LI_LOAD && x->level >= 2 && x->index.coef[l->ndims - 1] == 1)
				all = all && cuda_side_by_side(c, &x->index, c->p.fused->arg[x->operand], width);
		}
		if (all)
			break;
	}
	return width;
}

static void print_pass(CudaPrinter *c, const Columns *k)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	int width = column_width(c), x_threads = power_of_two(ceil_div(l->inner, width));
	long long tiles = (long long)ceil_div(l->inner, x_threads * width);
	cuda_set_width(c, width, false);
	cuda_set_wants(c);
	cuda_open(c, l->outer * tiles, k->chunks, x_threads * k->strips);
	if (k->chunks > 1)
		cuda_print_partials(c, k->chunks * l->outer * l->inner);
	print_line(p, "const int x = threadIdx.x %% %d, y = threadIdx.x / %d, g0 = blockIdx.y;", x_threads, x_threads);
	print_line(p, "const %s o = blockIdx.x / %lld, b = ((%s)(blockIdx.x %% %lld) * %d + x) * %d;", c->itype, tiles, c->itype,
		   tiles, x_threads, width);
	print_decode(p, c->itype, "o", 0, l->nouter);
	cuda_print_top(c);
	cuda_print_row_level(c, 0);
	print_starts(c, width);
	print_line(p, "const %s end = ((%s)g0 + 1) * %lld, to = end < %lld ? end : %lld;", c->itype, c->itype,
		   (long long)k->rows, (long long)l->mid, (long long)l->mid);
	print_line(p, "if (b < %lld) {", (long long)l->inner);
	print_line(p, "for (%s r = (%s)g0 * %lld + y; r < to; r += %d) {", c->itype, c->itype, (long long)k->rows, k->strips);
	print_decode(p, c->itype, "r", l->nouter, l->nmid);
	CudaUnit u = { .accumulate = print_accumulate };
	cuda_print_unit(c, &u);
	print_line(p, "}");
	print_line(p, "}");
	for (int i = 0; i < l->ninstrs; i++) {
		if (l->instr[i].op != LI_REDUCE)
			continue;
		open_strips(c, i, width, x_threads, k->strips);
		if (k->chunks > 1)
			print_line(p, "p%d[((int64_t)g0 * %lld + o) * %lld + j] = d%d;", i, (long long)l->outer,
				   (long long)l->inner, i);
		else
			print_results(c, i);
		close_strips(c);
	}
	cuda_close(c);
}

static void print_chunk_sums(CudaPrinter *c, const Columns *k)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	long long tiles = (long long)ceil_div(l->inner, CUDA_WARP);
	cuda_open(c, l->outer * tiles, 1, CUDA_WARP * COMBINE_STRIPS);
	cuda_print_partials(c, k->chunks * l->outer * l->inner);
	print_line(p, "const int x = threadIdx.x %% 32, y = threadIdx.x / 32;");
	print_line(p, "const %s o = blockIdx.x / %lld, b = (%s)(blockIdx.x %% %lld) * 32 + x;", c->itype, tiles, c->itype, tiles);
	print_decode(p, c->itype, "o", 0, l->nouter);
	print_starts(c, 1);
	print_line(p, "if (b < %lld)", (long long)l->inner);
	print_line(p, "for (int g = y; g < %lld; g += %d) {", (long long)k->chunks, COMBINE_STRIPS);
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE)
			print_add(c, &l->instr[i], arena_printf(p->a, "s%d[0]", i),
				  arena_printf(p->a, "p%d[((int64_t)g * %lld + o) * %lld + b]", i, (long long)l->outer,
					       (long long)l->inner));
	print_line(p, "}");
	for (int i = 0; i < l->ninstrs; i++) {
		if (l->instr[i].op != LI_REDUCE)
			continue;
		open_strips(c, i, 1, CUDA_WARP, COMBINE_STRIPS);
		print_results(c, i);
		close_strips(c);
	}
	cuda_close(c);
}

void cuda_print_columns(CudaPrinter *c)
{
	Columns k = columns_of(c->p.l);
	print_pass(c, &k);
	if (k.chunks > 1)
		print_chunk_sums(c, &k);
}

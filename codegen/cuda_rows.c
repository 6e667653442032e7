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
 * Sums over all rows that stand beside (LoopInstr.column): units of 8 rows, or more (Columns below) where there are above 16384; a team
 * adds up the rows of a unit in order, each thread its own elements, and leaves a part in the workspace. The block that is the last of a
 * group adds up the group's parts in order, the last of those the groups in order: whichever block that is, it adds the same numbers.
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
	UNROLLED = 32,       /* elements of a thread in an unrolled loop */
	UNIT_ROWS = 8,       /* of a team that sums over rows, and more where there would be above UNITS teams */
	MOST_UNIT_ROWS = 64,
	UNITS = 2048,
	ONE_GROUP = 16       /* blocks that are no more than this are one group */
};

typedef struct Rows {
	int64_t length, units; /* of a row */
	int width, team;
	bool shifted;          /* units of a row need not begin where it does; the first and the last may be short */
	int64_t per;           /* units of a thread, at most */
	int64_t chunks, chunk; /* chunk: elements of one */
} Rows;

/* How sums over rows are divided: each team has a unit of rows, blocks are in groups. */
typedef struct Columns {
	int64_t rows, units;          /* rows: of a unit */
	int64_t each, blocks;         /* each: units of a block */
	int64_t of_group, groups;     /* of_group: blocks */
} Columns;

static int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }

static Rows rows_of_length(int64_t length, int64_t rows)
{
	Rows r = { .length = length, .chunks = 1 };
	r.width = r.length > WIDE_ROW ? 8 : r.length % 4 == 0 ? 4 : 1;
	r.shifted = r.length % r.width != 0;
	r.units = r.shifted ? (r.length + 2 * r.width - 2) / r.width : r.length / r.width;
	if (r.length > LONG_ROW && rows < FEW_ROWS) {
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

static Rows rows_of(const Loop *l) { return rows_of_length(l->mid * l->inner, l->outer); }

static Columns columns_of(const Rows *r, int64_t rows)
{
	Columns k = { .rows = UNIT_ROWS, .each = r->team < CUDA_WARP ? SMALL_BLOCK / r->team : r->team == CUDA_WARP ? SMALL_BLOCK / CUDA_WARP : 1 };
	while (rows > k.rows * UNITS && k.rows < MOST_UNIT_ROWS)
		k.rows *= 2;
	k.units = ceil_div(rows, k.rows);
	k.blocks = ceil_div(k.units, k.each);
	k.of_group = ONE_GROUP;
	while (k.of_group * k.of_group < k.blocks)
		k.of_group *= 2;
	k.groups = ceil_div(k.blocks, k.of_group);
	return k;
}

bool cuda_sums_beside_rows(int64_t rows, int64_t length, int sums)
{
	Rows r = rows_of_length(length, rows);
	return rows > 1 && length > 1 && r.chunks == 1 && !r.shifted && r.per * r.width * sums <= UNROLLED;
}

/* Of a sum, which is f32. */
static int64_t part_bytes(const Columns *k, const Rows *r) { return (k->units + (k->groups > 1 ? k->groups : 0)) * r->length * 4; }

int64_t cuda_rows_workspace(const Loop *l)
{
	Rows r = rows_of(l);
	Columns k = columns_of(&r, l->outer);
	if (l->ncolumns > 0)
		return l->ncolumns * part_bytes(&k, &r);
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
		int64_t sums = l->ncolumns * r->per * r->width;
		if (any && r->per * r->width <= UNROLLED && kept_registers(c, r) + sums <= (r->team > 256 ? KEPT_OF_128 : KEPT))
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
	return x->op == LI_REDUCE && x->phase == phase && !x->column;
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
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->column && x->phase == phase)
			print_line(p, "c%d[%s] = c%d[%s] + (%s)v%d;", i, c->lane, i, c->lane, print_reducer(x->dtype), x->arg[0]);
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
	print_line(p, arg ? "m%d = zm%d[%s0];" : "d%d = zd%d[%s0];", i, i, c->turn);
	if (arg)
		print_line(p, "d%d = zd%d[%s0];", i, i, c->turn);
	print_line(p, "#pragma unroll");
	print_line(p, "for (int w = 1; w < %d; w++)", warps);
	if (arg)
		print_line(p, "\tdl_take(m%d, d%d, zm%d[%sw], zd%d[%sw]);", i, i, i, c->turn, i, c->turn);
	else if (loop_is_max(x))
		print_line(p, "\td%d = dl_larger(d%d, zd%d[%sw]);", i, i, i, c->turn);
	else
		print_line(p, "\td%d = d%d + zd%d[%sw];", i, i, i, c->turn);
}

/* d<i> of each reduction of a phase, in every thread of the team (m<i>: an argmax's value). Shared arrays are used once in
 * a launch, or by turns from row to row, so one barrier does. */
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
		int size = team / CUDA_WARP * (*c->turn ? 2 : 1);
		print_line(p, "__shared__ %s zd%d[%d];", arg ? "int32_t" : reducer(c, i), i, size);
		if (arg)
			print_line(p, "__shared__ %s zm%d[%d];", reducer(c, i), i, size);
		print_line(p, "if (lane %% 32 == 0)");
		print_line(p, "\tzd%d[%slane / 32] = d%d;", i, c->turn, i);
		if (arg) {
			print_line(p, "if (lane %% 32 == 0)");
			print_line(p, "\tzm%d[%slane / 32] = m%d;", i, c->turn, i);
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
	if (kept || p->l->ncolumns > 0) {
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
		if (!loop_store_is_inner(l, &l->store[i]) && !loop_store_is_column(l, &l->store[i]))
			return true;
	return false;
}

/* What is kept of a row, and its phases and results. */
static void print_row(CudaPrinter *c, const Rows *r, bool kept, const char *mask)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	for (int i = 0; i < l->ninstrs; i++)
		if (c->keep[i])
			print_line(p, "%s q%d[%lld];", print_vtype(l->instr[i].dtype), i, (long long)(r->per * r->width));
	for (int phase = 0; phase < l->phases; phase++)
		print_phase(c, r, phase, kept, mask);
	if (!has_row_stores(l))
		return;
	/* a result of a row may lie where threads of the row have read */
	print_line(p, r->team <= CUDA_WARP ? "__syncwarp(mask);" : "__syncthreads();");
	print_line(p, "if (lane == 0) {");
	cuda_print_row_stores(c);
	print_line(p, "}");
}

/* ---- sums over rows ---- */

/* Parts of column sum number `n`, those of groups behind those of units. */
static void print_parts(CudaPrinter *c, const Rows *r, const Columns *k, int i, int n)
{
	const char *t = print_reducer(c->p.l->instr[i].dtype);
	print_line(&c->p, "%s *const p%d = (%s *)(work + %lld);", t, i, t, (long long)(n * part_bytes(k, r)));
}

/* The sums of this team's rows, one thread's elements after the other. */
static void print_leave_parts(CudaPrinter *c, const Rows *r)
{
	Printer *p = &c->p;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (!x->column)
			continue;
		print_line(p, "#pragma unroll");
		print_line(p, "for (int i = 0; i < %lld; i++) {", (long long)r->per);
		print_line(p, "const int k = i * %d + lane;", r->team);
		print_line(p, "if (k < %lld)", (long long)r->units);
		print_line(p, "\tdl_move<%d>(p%d + (int64_t)unit * %lld + k * %d, c%d + i * %d);", r->width * (int)dtype_bytes(x->dtype), i,
			   (long long)r->length, r->width, i, r->width);
		print_line(p, "}");
	}
}

/* `first`, `count`: parts that are added up to `to`, of each sum. */
static void print_add_parts(CudaPrinter *c, const Rows *r, const char *first, const char *count, const char *to)
{
	Printer *p = &c->p;
	for (int s = 0; s < p->l->nstores; s++) {
		const LoopStore *x = &p->l->store[s];
		if (!loop_store_is_column(p->l, x))
			continue;
		const char *at = *to ? arena_printf(p->a, "p%d + (int64_t)(%s) * %lld", x->instr, to, (long long)r->length) : print_target(p, x);
		print_line(p, "dl_add_parts(p%d + (int64_t)(%s) * %lld, %s, %lld, %s);", x->instr, first, (long long)r->length, count,
			   (long long)r->length, at);
	}
}

static void print_finish(CudaPrinter *c, const Rows *r, const Columns *k)
{
	Printer *p = &c->p;
	const long long units = (long long)(k->of_group * k->each), all = (long long)k->units;
	if (k->groups == 1) {
		print_line(p, "if (!dl_last_block($_arrived, %lld))", (long long)k->blocks);
		print_line(p, "\treturn;");
		print_add_parts(c, r, "0", print_number(p, k->units), "");
		return;
	}
	print_line(p, "const int group = (int)(blockIdx.x / %lld);", (long long)k->of_group);
	print_line(p, "const int blocks = group < %lld ? %lld : %lld;", (long long)(k->groups - 1), (long long)k->of_group,
		   (long long)(k->blocks - (k->groups - 1) * k->of_group));
	print_line(p, "if (!dl_last_block($_arrived + 1 + group, blocks))");
	print_line(p, "\treturn;");
	print_line(p, "const int parts = group < %lld ? %lld : %lld;", (long long)(k->groups - 1), units, all - (long long)(k->groups - 1) * units);
	print_add_parts(c, r, arena_printf(p->a, "group * %lld", units), "parts", arena_printf(p->a, "%lld + group", all));
	print_line(p, "if (!dl_last_block($_arrived, %lld))", (long long)k->groups);
	print_line(p, "\treturn;");
	print_add_parts(c, r, print_number(p, all), print_number(p, k->groups), "");
}

/* Rows one after another in each team. */
static void print_rows_and_columns(CudaPrinter *c, const Rows *r)
{
	Printer *p = &c->p;
	const Loop *l = p->l;
	Columns k = columns_of(r, l->outer);
	bool kept = choose_kept(c, r), warp = r->team <= CUDA_WARP;
	int n = 0;
	c->counters = k.groups > 1 ? k.groups + 1 : 1;
	cuda_open(c, k.blocks, 1, (int)k.each * r->team);
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].column)
			print_parts(c, r, &k, i, n++);
	if (warp) {
		print_line(p, "const int lane = threadIdx.x %% %d;", r->team);
		print_line(p, "const int unit = (int)blockIdx.x * %lld + (int)threadIdx.x / %d;", (long long)k.each, r->team);
	} else {
		print_line(p, "const int lane = threadIdx.x, unit = blockIdx.x;");
		c->turn = arena_printf(p->a, "(row & 1) * %d + ", r->team / CUDA_WARP);
	}
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].column)
			print_line(p, "__align__(16) %s c%d[%lld] = { 0 };", print_reducer(l->instr[i].dtype), i, (long long)(r->per * r->width));
	cuda_print_top(c);
	print_line(p, "#pragma unroll 1");
	print_line(p, "for (int row = 0; row < %lld; row++) {", (long long)k.rows);
	print_line(p, "const %s o = (%s)unit * %lld + row;", c->itype, c->itype, (long long)k.rows);
	if (warp)
		print_line(p, "const unsigned mask = __ballot_sync(0xffffffffu, o < N);");
	print_line(p, "if (o < N) {");
	print_decode(p, c->itype, "o", 0, l->nouter);
	print_row(c, r, kept, warp ? "mask" : "0xffffffffu");
	print_line(p, "}");
	print_line(p, "}");
	print_line(p, "if (unit < %lld) {", (long long)k.units);
	print_leave_parts(c, r);
	print_line(p, "}");
	print_finish(c, r, &k);
	cuda_close(c);
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
	cuda_print_top(c);
	print_row(c, r, kept, mask);
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
	if (c->p.l->ncolumns > 0)
		print_rows_and_columns(c, &r);
	else if (r.chunks > 1)
		print_chunked_rows(c, &r);
	else
		print_whole_rows(c, &r);
}

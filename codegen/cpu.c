/* Prints fused kernels as C for the CPU.
 *
 * Before:  %b0 = add %a0, %a1   %b1 = relu %b0     (f32[64,128], f32[128])
 * After:   for (o...) {                            rows, in parallel where it pays
 *                  for (j...) {                    vectorised by the C compiler
 *                          const float v0 = a0[128 * i0 + j], v1 = a1[j];
 *                          const float v2 = v0 + v1, v3 = dl_max_f32(v2, 0.0f);
 *                          r0[128 * i0 + j] = v3;
 *
 * Elements of a reduction go to a block buffer, which kernel.h's lanes add up in an order of their
 * own; so how the C compiler vectorises the loop has no bearing on the result. One multiplication
 * or addition of the source is one rounding (no contraction). Operands and results may share
 * storage element by element (fuse_may_alias). */
#include "cpu.h"

#include <stdlib.h>

#include "print.h"

enum { MAP_BLOCK = 4096, COLUMN_BLOCK = 1024 };
static const double parallel_cost = 60000; /* element operations below which one thread is faster */

/* Declares instruction i as seen in a phase. */
static void emit_instr(Printer *p, int i, int phase)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *vt = print_vtype(x->dtype);
	if (x->buffered && phase > x->phase) {
		const char *q = p->l->mid > 1
				    ? arena_printf(p->a, "%lld * q + j", (long long)p->l->inner)
				    : "j";
		print_line(p, "const %s v%d = w%d[%s];", vt, i, i, q);
		return;
	}
	print_line(p, "const %s v%d = %s;", vt, i, print_instr(p, x));
	if (x->buffered) {
		const char *q = p->l->mid > 1
				    ? arena_printf(p->a, "%lld * q + j", (long long)p->l->inner)
				    : "j";
		print_line(p, "w%d[%s] = v%d;", i, q, i);
	}
}

static void emit_level(Printer *p, int level, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->level == level && (x->needed >> phase & 1))
			emit_instr(p, i, phase);
	}
}

/* Instructions outside of all loops. */
static void emit_top(Printer *p)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->level == 0 && x->phase == 0)
			emit_instr(p, i, 0);
	}
}

/* Instructions outside of the inner loops: of a phase, each once. */
static void emit_row_level(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE && x->phase == phase &&
		    (x->level == 1 || (x->level == 0 && phase > 0)))
			emit_instr(p, i, phase);
	}
}

static void emit_inner_stores(Printer *p, int phase)
{
	for (int i = 0; i < p->l->nstores; i++)
		if (p->l->store[i].phase == phase && loop_store_is_inner(p->l, &p->l->store[i]))
			print_store(p, &p->l->store[i]);
}

/* Before a loop over units; where their number is N, whether it is worth threads is seen when the
 * kernel runs. */
static void open_parallel(Printer *p, int64_t units, bool over_n)
{
	double work = (double)p->l->elems * (p->l->cost + p->l->nstores);
	if (over_n) {
		double each = work / (double)units;
		print_line(
		    p,
		    "#pragma omp parallel for num_threads(env->threads) schedule(static) if (N > "
		    "%lld)",
		    (long long)(parallel_cost / (each > 1 ? each : 1)));
	} else if (units > 1 && work >= parallel_cost) {
		print_line(p,
			   "#pragma omp parallel for num_threads(env->threads) schedule(static)");
	}
}

/* Opens `for (int j = from; j < to; j++)` with its indices. */
static void open_inner(Printer *p, const char *from, const char *to)
{
	print_line(p, "#pragma omp simd");
	print_line(p, "for (int j = %s; j < %s; j++) {", from, to);
	int first = p->l->nouter + p->l->nmid;
	if (p->l->flat)
		print_decode(p, "int", "j", first, p->l->ndims - first);
}

/* ---- maps ---- */

/* One dimension: N elements in blocks, so that arrays of every size share the text (an optimizer's
 * update of each parameter). */
static bool is_flat(const Loop *l)
{
	return l->kind == LOOP_MAP && l->ndims == 1 && l->inner > 1;
}

static void print_flat_map(Printer *p)
{
	double worth = parallel_cost / (p->l->cost + p->l->nstores);
	print_line(
	    p, "#pragma omp parallel for num_threads(env->threads) schedule(static) if (N > %lld)",
	    worth > MAP_BLOCK ? (long long)worth : (long long)MAP_BLOCK);
	print_line(p, "for (int64_t from = 0; from < N; from += %d) {", MAP_BLOCK);
	print_line(p, "const int64_t to = from + %d < N ? from + %d : N;", MAP_BLOCK, MAP_BLOCK);
	emit_row_level(p, 0);
	open_inner(p, "(int)from", "(int)to");
	emit_level(p, 3, 0);
	emit_inner_stores(p, 0);
	print_line(p, "}");
	print_line(p, "}");
}

static void print_map(Printer *p)
{
	const Loop *l = p->l;
	bool split = l->outer < 16 && l->inner > MAP_BLOCK;
	int64_t blocks = split ? (l->inner + MAP_BLOCK - 1) / MAP_BLOCK : 1,
		units = l->outer * blocks;
	const char *from = "0", *to = print_number(p, l->inner);
	if (units > 1) {
		open_parallel(p, units, blocks == 1);
		print_line(p, "for (int64_t u = 0; u < %s; u++) {",
			   blocks == 1 ? "N" : print_number(p, units));
		const char *o = blocks == 1 ? "u" : "o";
		if (blocks > 1 && l->outer > 1)
			print_line(p, "const int64_t o = u / %lld;", (long long)blocks);
		if (blocks > 1) {
			const char *b = l->outer > 1
					    ? arena_printf(p->a, "(u %% %lld)", (long long)blocks)
					    : "u";
			print_line(p, "const int64_t from = %s * %d, end = from + %d;", b,
				   MAP_BLOCK, MAP_BLOCK);
			print_line(p, "const int64_t to = end < %lld ? end : %lld;",
				   (long long)l->inner, (long long)l->inner);
			from = "(int)from";
			to = "(int)to";
		}
		print_decode(p, "int64_t", o, 0, l->nouter);
	}
	emit_row_level(p, 0);
	open_inner(p, from, to);
	emit_level(p, 3, 0);
	emit_inner_stores(p, 0);
	print_line(p, "}");
	if (units > 1)
		print_line(p, "}");
}

/* An array of one constant or of random numbers as they come: a call of kernel.h for N elements. */
static bool print_fill(Printer *p)
{
	const Loop *l = p->l;
	const LoopInstr *x = &l->instr[0];
	if (l->kind != LOOP_MAP || l->ninstrs != 1 || l->nstores != 1 || x->op != LI_LEAF ||
	    !x->node || l->ndims > 1)
		return false;
	DType t = x->dtype;
	if (t != DT_F32 && t != DT_F64 && t != DT_I32 && t != DT_I64)
		return false;
	const Node *n = x->node;
	const char *to = l->store[0].result >= 0 ? arena_printf(p->a, "r%d", l->store[0].result)
						 : arena_printf(p->a, "a%d", l->store[0].operand);
	if (n->op == OP_const) {
		print_line(p, "dl_fill_const_%s(%s, N, 0, %s, env);", print_suffix(t), to,
			   print_literal(p->a, t, ir_float(n, "value")));
		return true;
	}
	bool normal = n->op == OP_random_normal;
	if (!normal && n->op != OP_random_uniform)
		return false;
	int64_t sample = loop_sample_elems(&n->res[0]->type, p->micro);
	const char *first =
	    sample > 0 ? arena_printf(p->a, "env->base * %lld", (long long)sample) : "0";
	DType d = normal ? t : DT_F64;
	print_line(p, "dl_fill_%s_%s(%s, N, %s, %s, %s, %s, env);", normal ? "normal" : "uniform",
		   print_suffix(t), to, first, print_stream(p, n),
		   print_literal(p->a, d, ir_float(n, normal ? "mean" : "lo")),
		   print_literal(p->a, d, ir_float(n, normal ? "std" : "hi")));
	return true;
}

/* ---- rows ---- */

static void emit_reduce_start(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		DType t = loop_reduce_dtype(p->l, x);
		const char *s = print_suffix(t);
		if (x->node->op == OP_argmax) {
			print_line(p, "%s m%d = 0;", print_reducer(t), i);
			print_line(p, "int32_t s%d = -1;", i);
		} else {
			print_line(p, "dl_v_%s s%d = dl_fill_%s(%s);", s, i, s,
				   loop_is_max(x) ? print_lowest(t) : "0");
		}
	}
}

static void emit_block_start(Printer *p, int phase, int64_t room)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			print_line(p, "%s t%d[%lld];", print_reducer(loop_reduce_dtype(p->l, x)), i,
				   (long long)room);
	}
}

static void emit_block_fill(Printer *p, int phase, const char *at)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			print_line(p, "t%d[%s] = (%s)v%d;", i, at,
				   print_reducer(loop_reduce_dtype(p->l, x)), x->arg[0]);
	}
}

/* first: the position of the block's first element in the whole reduction. */
static void emit_block_end(Printer *p, int phase, const char *n, const char *first)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		const char *s = print_suffix(loop_reduce_dtype(p->l, x));
		if (x->node->op == OP_argmax)
			print_line(p, "dl_argmax_%s(t%d, %s, %s, &m%d, &s%d);", s, i, n, first, i,
				   i);
		else if (loop_is_max(x))
			print_line(p, "s%d = dl_pick_%s(s%d, dl_lanes_max_%s(t%d, %s));", i, s, i,
				   s, i, n);
		else
			print_line(p, "s%d += dl_lanes_sum_%s(t%d, %s);", i, s, i, n);
	}
}

/* The reduced value of one row (or of one chunk: without the division of a mean). */
static const char *reduce_value(const Printer *p, int i)
{
	const LoopInstr *x = &p->l->instr[i];
	const char *s = print_suffix(loop_reduce_dtype(p->l, x));
	if (x->node->op == OP_argmax)
		return arena_printf(p->a, "s%d", i);
	return arena_printf(p->a, "dl_tree_%s_%s(s%d)", loop_is_max(x) ? "max" : "sum", s, i);
}

static void emit_reduce_end(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op == LI_REDUCE && x->phase == phase)
			print_reduced(p, i, reduce_value(p, i));
	}
}

/* Inner loops of one phase over elements [from,to) of the inner dimension. */
static void emit_row_blocks(Printer *p, int phase, const char *from, const char *to,
			    int64_t longest, const char *base)
{
	bool blocked = longest > 1024;
	if (blocked) {
		print_line(p, "for (int b = %s; b < %s; b += DL_BLOCK) {", from, to);
		print_line(p, "const int e = b + DL_BLOCK < %s ? b + DL_BLOCK : %s;", to, to);
		from = "b";
		to = "e";
	}
	emit_block_start(p, phase, blocked ? 1024 : longest);
	open_inner(p, from, to);
	emit_level(p, 3, phase);
	emit_block_fill(p, phase, blocked ? "j - b" : "j");
	emit_inner_stores(p, phase);
	print_line(p, "}");
	const char *first =
	    blocked ? arena_printf(p->a, "%sb", base) : arena_printf(p->a, "%s0", base);
	emit_block_end(p, phase, blocked ? "e - b" : to, first);
	if (blocked)
		print_line(p, "}");
}

static void emit_row_phase(Printer *p, int phase)
{
	const Loop *l = p->l;
	emit_row_level(p, phase);
	if (!loop_phase_has_inner(l, phase))
		return;
	emit_reduce_start(p, phase);
	const char *base = "";
	if (l->mid > 1) {
		print_line(p, "for (int64_t q = 0; q < %lld; q++) {", (long long)l->mid);
		print_decode(p, "int64_t", "q", l->nouter, l->nmid);
		emit_level(p, 2, phase);
		base = arena_printf(p->a, "q * %lld + ", (long long)l->inner);
	} else {
		print_line(p, "{");
	}
	emit_row_blocks(p, phase, "0", print_number(p, l->inner), l->inner, base);
	print_line(p, "}");
	emit_reduce_end(p, phase);
}

static void emit_row_stores(Printer *p)
{
	for (int i = 0; i < p->l->nstores; i++)
		if (!loop_store_is_inner(p->l, &p->l->store[i]))
			print_store(p, &p->l->store[i]);
}

static void print_rows(Printer *p)
{
	const Loop *l = p->l;
	if (l->outer > 1) {
		open_parallel(p, l->outer, true);
		print_line(p, "for (int64_t o = 0; o < N; o++) {");
		print_decode(p, "int64_t", "o", 0, l->nouter);
	}
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].buffered)
			print_line(p, "%s w%d[%lld];", print_vtype(l->instr[i].dtype), i,
				   (long long)(l->mid * l->inner));
	for (int phase = 0; phase < l->phases; phase++)
		emit_row_phase(p, phase);
	emit_row_stores(p);
	if (l->outer > 1)
		print_line(p, "}");
}

/* ---- one long row: in chunks ---- */

static void emit_partials(Printer *p)
{
	int64_t at = 0;
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		const char *t = print_reducer(loop_reduce_dtype(p->l, x));
		int64_t kept = p->l->kind == LOOP_COLUMN ? p->l->outer * p->l->inner : 1;
		print_line(p, "%s *const p%d = (%s *)(work + %lld);", t, i, t, (long long)at);
		at += p->l->chunks * kept * 8;
		if (x->node->op == OP_argmax) {
			print_line(p, "int32_t *const q%d = (int32_t *)(work + %lld);", i,
				   (long long)at);
			at += p->l->chunks * 8;
		}
	}
}

static void emit_chunk_combine(Printer *p, int phase)
{
	for (int i = 0; i < p->l->ninstrs; i++) {
		const LoopInstr *x = &p->l->instr[i];
		if (x->op != LI_REDUCE || x->phase != phase)
			continue;
		const char *t = print_reducer(loop_reduce_dtype(p->l, x));
		bool arg = x->node->op == OP_argmax;
		print_line(p, "%s c%d = p%d[0];", t, i, i);
		if (arg)
			print_line(p, "int32_t d%d = q%d[0];", i, i);
		print_line(p, "for (int c = 1; c < %lld; c++) {", (long long)p->l->chunks);
		if (arg)
			print_line(
			    p,
			    "d%d = p%d[c] > c%d || (p%d[c] != p%d[c] && c%d == c%d) ? q%d[c] : "
			    "d%d;",
			    i, i, i, i, i, i, i, i, i);
		if (arg || loop_is_max(x))
			print_line(p, "c%d = p%d[c] > c%d || p%d[c] != p%d[c] ? p%d[c] : c%d;", i,
				   i, i, i, i, i, i);
		else
			print_line(p, "c%d += p%d[c];", i, i);
		print_line(p, "}");
		print_reduced(p, i, arena_printf(p->a, "%c%d", arg ? 'd' : 'c', i));
	}
}

static void print_chunked_row(Printer *p)
{
	const Loop *l = p->l;
	emit_partials(p);
	for (int phase = 0; phase < l->phases; phase++) {
		emit_row_level(p, phase);
		if (!loop_phase_has_inner(l, phase))
			continue;
		open_parallel(p, l->chunks, false);
		print_line(p, "for (int64_t c = 0; c < %lld; c++) {", (long long)l->chunks);
		print_line(p, "const int64_t from = c * %d, end = from + %d;", LOOP_CHUNK,
			   LOOP_CHUNK);
		print_line(p, "const int64_t to = end < %lld ? end : %lld;", (long long)l->inner,
			   (long long)l->inner);
		emit_reduce_start(p, phase);
		emit_row_blocks(p, phase, "(int)from", "(int)to", l->inner, "");
		for (int i = 0; i < l->ninstrs; i++) {
			const LoopInstr *x = &l->instr[i];
			if (x->op != LI_REDUCE || x->phase != phase)
				continue;
			bool arg = x->node->op == OP_argmax;
			print_line(p, "p%d[c] = %s;", i,
				   arg ? arena_printf(p->a, "m%d", i) : reduce_value(p, i));
			if (arg)
				print_line(p, "q%d[c] = s%d;", i, i);
		}
		print_line(p, "}");
		emit_chunk_combine(p, phase);
	}
	emit_row_stores(p);
}

/* ---- columns ---- */

/* Adds one element into an accumulator. */
static void emit_accumulate(Printer *p, const LoopInstr *x, const char *acc, const char *value)
{
	if (loop_is_max(x))
		print_line(p, "%s = %s > %s || %s != %s ? %s : %s;", acc, value, acc, value, value,
			   value, acc);
	else
		print_line(p, "%s += %s;", acc, value);
}

static void emit_column_result(Printer *p, int i, const char *acc)
{
	print_reduced(p, i, acc);
	for (int s = 0; s < p->l->nstores; s++)
		if (p->l->store[s].instr == i)
			print_store(p, &p->l->store[s]);
}

static void print_column_pass(Printer *p, int64_t blocks)
{
	const Loop *l = p->l;
	int64_t per = (l->mid + l->chunks - 1) / l->chunks;
	print_line(
	    p,
	    "for (int64_t r = c * %lld; r < ((c + 1) * %lld < %lld ? (c + 1) * %lld : %lld); r++) "
	    "{",
	    (long long)per, (long long)per, (long long)l->mid, (long long)per, (long long)l->mid);
	print_decode(p, "int64_t", "r", l->nouter, l->nmid);
	emit_level(p, 2, 0);
	open_inner(p, blocks > 1 ? "b" : "0", blocks > 1 ? "e" : print_number(p, l->inner));
	emit_level(p, 3, 0);
	for (int i = 0; i < l->ninstrs; i++)
		if (l->instr[i].op == LI_REDUCE) {
			const char *t = print_reducer(l->instr[i].dtype);
			print_line(p, "const %s x%d = (%s)v%d;", t, i, t, l->instr[i].arg[0]);
			emit_accumulate(p, &l->instr[i],
					arena_printf(p->a, blocks > 1 ? "s%d[j - b]" : "s%d[j]", i),
					arena_printf(p->a, "x%d", i));
		}
	emit_inner_stores(p, 0);
	print_line(p, "}");
	print_line(p, "}");
}

static void print_column_combine(Printer *p)
{
	const Loop *l = p->l;
	print_line(p, "for (int64_t o = 0; o < %lld; o++) {", (long long)l->outer);
	print_decode(p, "int64_t", "o", 0, l->nouter);
	open_inner(p, "0", print_number(p, l->inner));
	for (int i = 0; i < l->ninstrs; i++) {
		const LoopInstr *x = &l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		int64_t kept = l->outer * l->inner;
		print_line(p, "%s c%d = p%d[o * %lld + j];", print_reducer(x->dtype), i, i,
			   (long long)l->inner);
		for (int64_t c = 1; c < l->chunks; c++)
			emit_accumulate(p, x, arena_printf(p->a, "c%d", i),
					arena_printf(p->a, "p%d[%lld + o * %lld + j]", i,
						     (long long)(c * kept), (long long)l->inner));
		emit_column_result(p, i, arena_printf(p->a, "c%d", i));
	}
	print_line(p, "}");
	print_line(p, "}");
}

static void print_columns(Printer *p)
{
	const Loop *l = p->l;
	int64_t blocks = (l->inner + COLUMN_BLOCK - 1) / COLUMN_BLOCK,
		units = l->outer * l->chunks * blocks;
	if (l->chunks > 1)
		emit_partials(p);
	open_parallel(p, units, false);
	print_line(p, "for (int64_t u = 0; u < %lld; u++) {", (long long)units);
	print_line(p, "const int64_t o = u / %lld, c = u / %lld %% %lld;",
		   (long long)(l->chunks * blocks), (long long)blocks, (long long)l->chunks);
	const char *room = print_number(p, blocks > 1 ? COLUMN_BLOCK : l->inner),
		   *n = print_number(p, l->inner);
	if (blocks > 1) {
		print_line(p, "const int b = (int)(u %% %lld) * %d;", (long long)blocks,
			   COLUMN_BLOCK);
		print_line(p, "const int e = b + %d < %s ? b + %d : %s;", COLUMN_BLOCK, n,
			   COLUMN_BLOCK, n);
		n = "e - b";
	}
	print_decode(p, "int64_t", "o", 0, l->nouter);
	emit_row_level(p, 0);
	for (int i = 0; i < l->ninstrs; i++) {
		const LoopInstr *x = &l->instr[i];
		if (x->op != LI_REDUCE)
			continue;
		print_line(p, "%s s%d[%s];", print_reducer(x->dtype), i, room);
		print_line(p, "for (int j = 0; j < %s; j++)", n);
		print_line(p, "\ts%d[j] = %s;", i, loop_is_max(x) ? print_lowest(x->dtype) : "0");
	}
	print_column_pass(p, blocks);
	open_inner(p, blocks > 1 ? "b" : "0", blocks > 1 ? "e" : n);
	for (int i = 0; i < l->ninstrs; i++) {
		if (l->instr[i].op != LI_REDUCE)
			continue;
		const char *acc = arena_printf(p->a, blocks > 1 ? "s%d[j - b]" : "s%d[j]", i);
		if (l->chunks > 1)
			print_line(p, "p%d[(c * %lld + o) * %lld + j] = %s;", i,
				   (long long)l->outer, (long long)l->inner, acc);
		else
			emit_column_result(p, i, acc);
	}
	print_line(p, "}");
	print_line(p, "}");
	if (l->chunks > 1)
		print_column_combine(p);
}

/* ---- a kernel ---- */

static void print_operands(Printer *p)
{
	const Node *n = p->fused;
	for (int i = 0; i < n->nargs; i++) {
		const char *t = print_ctype(n->arg[i]->type.dtype),
			   *c = loop_assigns(p->l, i) ? "" : "const ";
		print_line(p, "%s%s *const a%d = (%s%s *)(arena + off[%d]);", c, t, i, c, t, i);
	}
	for (int i = 0; i < n->nres; i++) {
		const char *t = print_ctype(n->res[i]->type.dtype);
		print_line(p, "%s *const r%d = (%s *)(arena + off[%d]);", t, i, t, n->nargs + i);
	}
	if (p->l->work_bytes > 0)
		print_line(p, "unsigned char *const work = arena + off[%d];", n->nargs + n->nres);
	int own = kernel_own_numbers(n), nstreams = kernel_streams(p->a, n, &p->stream);
	print_line(p, "const int64_t N = off[%d];", own);
	for (int i = 0; i < nstreams; i++)
		print_line(p, "const int32_t z%d = (int32_t)off[%d];", i, own + 1 + i);
}

static void print_loops(Printer *p)
{
	emit_top(p);
	if (is_flat(p->l))
		print_flat_map(p);
	else if (p->l->kind == LOOP_MAP)
		print_map(p);
	else if (p->l->kind == LOOP_COLUMN)
		print_columns(p);
	else if (p->l->chunks > 1)
		print_chunked_row(p);
	else
		print_rows(p);
}

KernelText cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro)
{
	if (l->ncolumns > 0)
		return (KernelText){ 0 };
	char *text = NULL;
	size_t len = 0;
	Printer p = {
		.a = a, .out = open_memstream(&text, &len), .fused = fused, .l = l, .micro = micro
	};
	print_line(&p, "(unsigned char *arena, const int64_t *off, const PlanEnv *env)");
	print_line(&p, "{");
	print_operands(&p);
	bool fill = print_fill(&p);
	if (!fill)
		print_loops(&p);
	print_line(&p, "}");
	fclose(p.out);
	KernelText r = { .text = arena_strndup(a, text, len),
			 .n = fill || is_flat(l) ? l->elems : l->outer };
	free(text);
	return r;
}

/* Predicted time of a node: fixed costs of its launch, arithmetic of each kind, and traffic, in the units of machine.def
 * (after Williams, Waterman and Patterson, "Roofline", 2009, with a rate for each kind of work).
 *
 * Method. What the back ends do with a node decides what is counted: a fused kernel evaluates each body op once an
 * element; a product touches each operand's element a few times to pack it, which is what makes narrow products slow;
 * attention works in blocks. All of it is divided among the threads that the kernel can use, by the thread that has the most.
 *
 * Traffic counts each operand and result once, at the level where it is found: near where all that was touched since the last
 * time fits in there. For activations that is taken to be what the node itself touches, since neighbours make and
 * read them; for variables, and for what the forward pass left to the backward pass, all that a step touches. */
#include "cost.h"

#include <string.h>

/* Threads that share `units` equal pieces of work: the busiest of them does units / this. */
static double share(double units, const Machine *m)
{
	double t = m->threads, rounds;

	if (units <= 1 || t <= 1)
		return 1;
	rounds = units < 1e6 ? (double)(((int64_t)units + m->threads - 1) / m->threads) : units / t;
	return units / rounds;
}

/* ---- traffic ---- */

/* How much of something that needs `bytes` stays in a cache: all of it in half of the cache, nothing in the double. */
static double stays(double bytes, double cache)
{
	if (bytes <= cache / 2)
		return 1;
	return bytes >= 2 * cache ? 0 : (2 * cache - bytes) / (1.5 * cache);
}

/* The value that v is a view or a copy of: one that comes back from host memory is as old as the one that went there. */
static const Value *source_of(const Value *v)
{
	while (v->def && (ir_is_view(v->def) || v->def->op == OP_fetch))
		v = v->def->op == OP_fetch ? v->def->arg[0]->def->arg[0] : v->def->arg[0];
	return v;
}

/* Whether what was touched last before `n` reads (writes: made false) or writes `v` lies far back: variables and sums over
 * micro-batches, and what the forward pass left for the backward pass. */
static bool is_old(const Node *n, const Value *v)
{
	v = source_of(v);
	if (!v->def)
		return v->block->owner && v->block->owner->op == OP_loop;
	return v->def->op == OP_var || ((n->flags & NF_BACKWARD) && !(v->def->flags & NF_BACKWARD));
}

/* Adds bytes that `threads` threads touch once, having touched `since` bytes after the last time. */
static void add_bytes(double *unit, const Machine *m, double bytes, double since, double threads)
{
	double limit = m->measured_threads < m->threads ? m->measured_threads : m->threads;
	double near = stays(since, m->own_cache * threads);
	double shared = m->shared_cache > 0 ? stays(since, m->shared_cache) * (1 - near) : 0;

	unit[COST_near] += bytes / threads;
	unit[COST_shared] += bytes * (1 - near) / threads;
	unit[COST_far] += bytes * (1 - near - shared) / (threads < limit ? threads : limit);
}

static double value_bytes(const Value *v)
{
	return (double)type_bytes(&v->type);
}

/* Every operand and result once. */
static void add_traffic(const Node *n, const Machine *m, double threads, double *unit)
{
	double all = 0;

	for (int i = 0; i < n->nargs; i++)
		all += value_bytes(n->arg[i]);
	for (int i = 0; i < n->nres; i++)
		all += value_bytes(n->res[i]);
	for (int i = 0; i < n->nargs; i++)
		add_bytes(unit, m, value_bytes(n->arg[i]), is_old(n, n->arg[i]) && m->touched > all ? m->touched : all, threads);
	for (int i = 0; i < n->nres; i++)
		add_bytes(unit, m, value_bytes(n->res[i]), all, threads);
}

/* ---- generated kernels ---- */

/* One thread fills an input while the others fall asleep: who reads it wakes them. */
static void add_launch(const Node *n, double threads, double *unit)
{
	bool input = false;

	for (int i = 0; i < n->nargs; i++) {
		const Value *v = source_of(n->arg[i]);

		input |= v->def && v->def->op == OP_input;
	}
	unit[COST_kernel] = 1;
	unit[COST_fork] = threads > 1;
	unit[COST_wake] = threads > 1 && input;
}

/* Operations of one element of an op, by kind; functions in units of one polynomial with its reduction of range. */
typedef struct ElementWork {
	double simple, divide, function;
} ElementWork;

typedef struct FunctionWork {
	const char *name;
	ElementWork work;
} FunctionWork;

/* The functions of generated kernels, as an op's expression names them; others count as one. */
static const FunctionWork functions[] = {
	{ "max(", { 1, 0, 0 } }, { "min(", { 1, 0, 0 } }, { "abs(", { 1, 0, 0 } }, { "sign(", { 2, 0, 0 } },
	{ "floor(", { 1, 0, 0 } }, { "is_finite(", { 2, 0, 0 } }, { "sqrt(", { 0, 1, 0 } }, { "pow(", { 0, 1, 4 } },
	{ "sigmoid(", { 2, 1, 1 } }, { "tanh(", { 8, 1, 1 } }, { "erf(", { 10, 0, 2 } }, { "gelu_tanh(", { 7, 1, 1 } },
	{ "gelu_tanh_grad(", { 14, 1, 1 } },
};

static ElementWork function_work(const char *name)
{
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
		if (strncmp(name, functions[i].name, strlen(functions[i].name)) == 0)
			return functions[i].work;
	return (ElementWork){ 0, 0, 1 };
}

static ElementWork expression_work(const char *expr)
{
	ElementWork w = { 1, 0, 0 }, f;

	for (const char *s = expr; *s; s++) {
		w.divide += *s == '/';
		if (*s != '#')
			continue;
		f = function_work(s + 1);
		w.simple += f.simple;
		w.divide += f.divide;
		w.function += f.function;
	}
	return w;
}

bool cost_is_simple(OpCode op)
{
	const OpInfo *o = &ir_ops[op];
	ElementWork w = { 0, 1, 1 };

	if (o->kind == K_EWISE && o->expr)
		w = expression_work(o->expr);
	return w.divide <= 0 && w.function <= 0;
}

enum { LONG_ROW = 16384 }; /* bytes of a row that does not stay at hand for a second pass, and is computed again */

/* What a fused kernel is made of. */
typedef struct Body {
	double unit[MACHINE_COSTS]; /* of one thread alone */
	double elems;               /* of the domain */
	double rough;               /* operations, as the back end counts them to decide about threads */
	double rows;                /* that end in a reduction along them */
	double row_elems;
	bool columns;
	bool wide;                  /* f64 */
} Body;

static bool reduces_last(const Node *n)
{
	const Type *t = &n->arg[0]->type;
	const IntList *axes = ir_ints(n, "axes");
	int last = t->ndim - 1;

	while (last > 0 && t->dim[last] == 1)
		last--;
	for (int i = 0; i < axes->n; i++)
		if (axes->v[i] == last || axes->v[i] + t->ndim == last)
			return true;
	return axes->n == 0 || n->op == OP_argmax;
}

static void add_reduction(const Node *n, Body *b)
{
	double elems = (double)type_elems(&n->arg[0]->type), kept = (double)type_elems(&n->res[0]->type);

	b->elems = elems > b->elems ? elems : b->elems;
	b->rough += elems;
	if (reduces_last(n)) {
		b->unit[COST_row_sum] += elems;
		b->unit[COST_row] += kept;
		b->rows = kept > b->rows ? kept : b->rows;
		b->row_elems = elems / kept;
	} else {
		b->unit[COST_column_sum] += elems;
		b->columns = true;
	}
}

static void add_element_op(const Node *n, Body *b)
{
	const OpInfo *op = &ir_ops[n->op];
	double elems = (double)type_elems(&n->res[0]->type), times = n->res[0]->type.dtype == DT_F64 ? 4 : 1;
	ElementWork w;

	b->elems = elems > b->elems ? elems : b->elems;
	if (op->flags & OPF_RANDOM) {
		b->unit[COST_random] += elems;
		b->rough += 25 * elems;
	} else if (op->kind == K_SHAPE && !(op->flags & OPF_VIEW)) {
		b->unit[COST_move] += elems;
		b->rough += elems;
	} else if (op->kind == K_EWISE && op->expr) {
		w = expression_work(op->expr);
		b->unit[COST_simple] += times * w.simple * elems;
		b->unit[COST_divide] += times * w.divide * elems;
		b->unit[COST_function] += times * w.function * elems;
		b->rough += times * (1 + 4 * w.divide + 10 * w.function) * elems;
	}
}

static Body read_body(const Node *fused)
{
	Body b = { .elems = 1 };
	double stores = 0;

	for (const Node *n = fused->body->first; n; n = n->next) {
		if (ir_ops[n->op].kind == K_REDUCE)
			add_reduction(n, &b);
		else if (n->nres > 0)
			add_element_op(n, &b);
		else if (n->op == OP_assign)
			stores += (double)type_elems(&n->arg[0]->type);
	}
	for (int i = 0; i < fused->nargs; i++)
		b.rough += (double)type_elems(&fused->arg[i]->type);
	for (int i = 0; i < fused->nres; i++)
		stores += (double)type_elems(&fused->res[i]->type);
	b.rough += stores;
	return b;
}

/* Whether a result has an element for each of the domain. */
static bool reduces_nothing(const Node *fused, int result)
{
	for (const Node *n = fused->body->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_REDUCE)
			return type_elems(&fused->res[result]->type) >= type_elems(&n->arg[0]->type);
	return true;
}

/* How often a row kernel goes through its rows: once for each reduction that needs another's result, and once more where
 * elements are stored that need one. */
static int passes(const Node *fused)
{
	enum { MOST = 64 };
	const Node *node[MOST];
	int ready[MOST], n = 0, most = 1; /* ready: the pass from which on a node's value is there */

	for (const Node *x = fused->body->first; x && n < MOST; x = x->next) {
		int pass = 0;

		for (int i = 0; i < x->nargs; i++)
			for (int k = n - 1; k >= 0 && x->arg[i]->def; k--)
				if (node[k] == x->arg[i]->def) {
					pass = ready[k] > pass ? ready[k] : pass;
					break;
				}
		pass += ir_ops[x->op].kind == K_REDUCE;
		most = ir_ops[x->op].kind == K_REDUCE && pass > most ? pass : most;
		if (x->op == OP_yield)
			for (int i = 0; i < fused->nres; i++)
				most = pass >= most && reduces_nothing(fused, i) ? pass + 1 : most;
		node[n] = x;
		ready[n++] = pass;
	}
	return most;
}

/* A map's blocks, a row kernel's rows; a column kernel has a few pieces for each block of columns. */
static double kernel_pieces(const Body *b)
{
	if (b->columns && b->rows <= 1)
		return 16;
	return b->rows > 1 ? b->rows : b->elems / 4096;
}

static void fused_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	Body b = read_body(n);
	double again = 0, threads = b.rough >= m->fork_work ? share(kernel_pieces(&b), m) : 1;

	(void)kind;
	add_launch(n, threads, unit);
	if (4 * b.row_elems > LONG_ROW)
		again = passes(n) - 1;
	for (int i = 0; i < MACHINE_COSTS; i++)
		unit[i] += b.unit[i] * (1 + again / 2) / threads;
	add_traffic(n, m, threads, unit);
	unit[COST_near] *= 1 + again;
}

/* ---- library calls ---- */

static MachineCost product_cost(DType t)
{
	return t == DT_F64 ? COST_product_f64 : t == DT_F32 ? COST_product_f32 : COST_product_16;
}

/* Convolutions and attention have rates in f32; in other types they differ as products do. */
static double type_factor(const Node *n, const Machine *m)
{
	double whole = m->ns[COST_product_f32];

	return whole > 0 ? m->ns[product_cost(n->arg[0]->type.dtype)] / whole : 1;
}

static void matmul_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	double t = m->threads, c = (double)type_elems(&n->res[0]->type);
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;

	(void)kind;
	unit[COST_call] = 1;
	if (n->flags & NF_TF32) /* at half the rate of 16 bits, on every chip that has it */
		unit[COST_product_16] = 2 * ir_ops[n->op].flops(n) / t;
	else
		unit[product_cost(n->arg[0]->type.dtype)] = ir_ops[n->op].flops(n) / t;
	unit[ta ? COST_product_at : COST_product_a] += (double)type_elems(&n->arg[0]->type) / t;
	unit[tb ? COST_product_bt : COST_product_b] += (double)type_elems(&n->arg[1]->type) / t;
	unit[COST_product_c] = c / t;
	add_traffic(n, m, t, unit);
}

static double round_up(double n, double to)
{
	double whole = (double)(int64_t)(n / to);

	return (whole * to < n ? whole + 1 : whole) * to;
}

/* Channels are computed sixteen at a time. */
static void conv_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	const Value *w = kind == COST_conv_w ? n->res[0] : n->arg[1];
	const Value *x = kind == COST_conv_x ? n->res[0] : n->arg[0];
	const Value *y = kind == COST_conv ? n->res[0] : kind == COST_conv_x ? n->arg[0] : n->arg[1];
	double t = m->threads, in = (double)w->type.dim[1], out = (double)w->type.dim[0] / (double)ir_int(n, "groups");
	double flops = ir_ops[n->op].flops(n) * type_factor(n, m);
	bool thin = in < 8 || out < 8;

	if (!thin)
		flops *= round_up(in, 16) / in * round_up(out, 16) / out;
	unit[COST_call] = 1;
	unit[thin ? COST_conv_thin : kind] = flops / t;
	unit[COST_conv_image] = (double)type_elems(&x->type) / t;
	unit[COST_conv_result] = (double)type_elems(&y->type) / t;
	add_traffic(n, m, t, unit);
}

/* ---- kernels of a shape of their own ---- */

enum { QUERIES = 32, KEYS = 64 }; /* of a block of attention */

/* Scores of one head that are computed, in whole blocks; blocks that a causal mask or a window hides are left out. */
static double scores(const Node *n)
{
	int64_t q = n->arg[0]->type.dim[1], k = n->arg[1]->type.dim[1], window = ir_int(n, "window"), sum = 0;
	bool causal = ir_int(n, "causal") != 0;

	for (int64_t i = 0; i < q; i += QUERIES) {
		int64_t first = window > 0 && i >= window ? i - window + 1 : 0, end = k;

		if (causal && i + QUERIES < k)
			end = i + QUERIES;
		else if (!causal && window > 0 && i + QUERIES - 1 + window < k)
			end = i + QUERIES - 1 + window;
		if (first < end)
			sum += (end + KEYS - 1) / KEYS - first / KEYS;
	}
	return (double)sum * QUERIES * KEYS;
}

static void attention_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	const Type *q = &n->arg[0]->type;
	double heads = (double)ir_int(n, "heads"), width = round_up((double)q->dim[2] / heads, 16);
	double planes = heads * (double)q->dim[0], threads = share(planes, m), all = planes * scores(n);

	add_launch(n, threads, unit);
	unit[kind] = all * width * (kind == COST_attention ? 4 : 10) * type_factor(n, m) / threads;
	unit[COST_score] = all / threads;
	unit[COST_head] = planes / threads;
	add_traffic(n, m, threads, unit);
}

static void pool_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	const Type *y = kind == COST_pool ? &n->res[0]->type : &n->arg[n->nargs - 1]->type;
	const IntList *kernel = ir_ints(n, "kernel");
	double elems = (double)type_elems(y), threads;

	for (int i = 0; i < 2; i++)
		elems *= kernel->n > 0 ? (double)kernel->v[i < kernel->n ? i : kernel->n - 1] : 1;
	threads = 4 * elems >= m->fork_work ? share((double)(y->dim[0] * y->dim[1]), m) : 1;
	add_launch(n, threads, unit);
	unit[kind] = elems / threads;
	add_traffic(n, m, threads, unit);
}

/* Reads the chosen rows alone. */
static void embedding_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	double bytes = value_bytes(n->res[0]), threads = (double)type_elems(&n->res[0]->type) >= m->fork_work ?
	                                                         share((double)type_elems(&n->arg[1]->type), m) : 1;

	(void)kind;
	add_launch(n, threads, unit);
	add_bytes(unit, m, bytes, m->touched > 2 * bytes ? m->touched : 2 * bytes, threads);
	add_bytes(unit, m, bytes + value_bytes(n->arg[1]), 2 * bytes, threads);
}

/* Clears the table, then adds a row for each index; threads share the columns. */
static void embedding_grad_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	const Value *acc = ir_acc(n);
	double added = (double)type_elems(&n->arg[1]->type), all = added + (acc ? added : (double)type_elems(&n->res[0]->type));
	double threads = all >= m->fork_work ? share((double)((n->res[0]->type.dim[1] + 63) / 64), m) : 1;

	(void)kind;
	add_launch(n, threads, unit);
	unit[COST_row_add] = added / threads;
	if (!acc) {
		add_traffic(n, m, threads, unit);
		return;
	}
	/* Of a sum that goes on only the rows that are added to are touched. */
	add_bytes(unit, m, value_bytes(n->arg[0]) + value_bytes(n->arg[1]), value_bytes(n->arg[1]), threads);
	add_bytes(unit, m, 2 * added * (double)dtype_bytes(acc->type.dtype), m->touched, threads);
}

/* One read of all operands. */
static void part_sums_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	double elems = 0, threads;

	(void)kind;
	for (int i = ir_part_operand(n); i < n->nargs; i++)
		elems += (double)type_elems(&n->arg[i]->type);
	threads = elems >= m->fork_work ? share((double)type_elems(&n->res[0]->type), m) : 1;
	add_launch(n, threads, unit);
	unit[COST_simple] = elems / threads;
	unit[COST_row_sum] = elems / threads;
	unit[COST_row] = (double)type_elems(&n->res[0]->type) / threads;
	add_traffic(n, m, threads, unit);
}

static void input_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	double bytes = value_bytes(n->res[0]);

	(void)m;
	(void)kind;
	unit[COST_input] = 1;
	unit[COST_sample] = n->res[0]->type.ndim > 0 ? (double)n->res[0]->type.dim[0] : 1;
	unit[COST_input_byte] = bytes;
}

/* A node without a rule: a product of some kind, or a kernel that does one simple thing for each element. */
static void other_units(const Node *n, const Machine *m, MachineCost kind, double *unit)
{
	Body b = { .elems = 1 };
	double threads;

	(void)kind;
	if (ir_ops[n->op].flops && n->nargs > 0) {
		unit[COST_call] = 1;
		unit[product_cost(n->arg[0]->type.dtype)] = ir_ops[n->op].flops(n) / m->threads;
		add_traffic(n, m, m->threads, unit);
		return;
	}
	if (ir_ops[n->op].kind == K_REDUCE)
		add_reduction(n, &b);
	else if (n->nres > 0)
		add_element_op(n, &b);
	threads = b.rough >= m->fork_work ? share(kernel_pieces(&b), m) : 1;
	add_launch(n, threads, unit);
	for (int i = 0; i < MACHINE_COSTS; i++)
		unit[i] += b.unit[i] / threads;
	add_traffic(n, m, threads, unit);
}

/* Who counts which op; what is not here was left out of kernels by the pass fuse, or is simple. */
static const struct {
	void (*count)(const Node *n, const Machine *m, MachineCost kind, double *unit);
	MachineCost kind;
} rules[OP_COUNT] = {
	[OP_fused] = { fused_units, 0 },
	[OP_input] = { input_units, 0 },
	[OP_matmul] = { matmul_units, 0 },
	[OP_matmul_bias] = { matmul_units, 0 },
	[OP_matmul_gelu_grad] = { matmul_units, 0 },
	[OP_matmul_sums] = { matmul_units, 0 },
	[OP_conv2d] = { conv_units, COST_conv },
	[OP_conv2d_grad_x] = { conv_units, COST_conv_x },
	[OP_conv2d_grad_w] = { conv_units, COST_conv_w },
	[OP_attention] = { attention_units, COST_attention },
	[OP_attention_grad] = { attention_units, COST_attention_grad },
	[OP_attention_grad_qkv] = { attention_units, COST_attention_grad },
	[OP_max_pool2d] = { pool_units, COST_pool },
	[OP_avg_pool2d] = { pool_units, COST_pool },
	[OP_max_pool2d_grad] = { pool_units, COST_pool_grad },
	[OP_max_pool2d_index] = { pool_units, COST_pool },
	[OP_max_pool2d_index_grad] = { pool_units, COST_pool_grad },
	[OP_avg_pool2d_grad] = { pool_units, COST_pool_grad },
	[OP_embedding] = { embedding_units, 0 },
	[OP_part_sums] = { part_sums_units, 0 },
	[OP_embedding_grad] = { embedding_grad_units, 0 },
};

bool cost_units(const Node *n, const Machine *m, double unit[MACHINE_COSTS])
{
	memset(unit, 0, MACHINE_COSTS * sizeof *unit);
	if (n->op == OP_opaque || n->op == OP_var || n->op == OP_loop || n->op == OP_yield || n->op == OP_output ||
	    ir_ops[n->op].kind == K_MOVE || ir_is_view(n))
		return false;
	if (rules[n->op].count)
		rules[n->op].count(n, m, rules[n->op].kind, unit);
	else
		other_units(n, m, 0, unit);
	return true;
}

void cost_copy_units(const Machine *m, double bytes, double unit[MACHINE_COSTS])
{
	memset(unit, 0, MACHINE_COSTS * sizeof *unit);
	unit[COST_kernel] = 1;
	add_bytes(unit, m, 2 * bytes, 2 * bytes, m->threads);
}

double cost_seconds(const Node *n, const Machine *m)
{
	double unit[MACHINE_COSTS], sum[3] = { 0 };
	double more, less;

	if (n->op == OP_opaque)
		return ir_float(n, "seconds");
	if (!cost_units(n, m, unit))
		return 0;
	for (int i = 0; i < MACHINE_COSTS; i++)
		sum[machine_rows[i].group] += unit[i] * m->ns[i];
	more = sum[COST_WORK] > sum[COST_BYTES] ? sum[COST_WORK] : sum[COST_BYTES];
	less = sum[COST_WORK] + sum[COST_BYTES] - more;
	return 1e-9 * (sum[COST_FIXED] + more + (1 - m->overlap) * less);
}

static double result_bytes(const Block *b)
{
	double sum = 0;

	for (const Node *n = b->first; n; n = n->next) {
		if (n->op == OP_loop)
			sum += result_bytes(n->body);
		for (int i = 0; i < n->nres && ir_ops[n->op].kind != K_MOVE && !n->replay_of && !ir_is_view(n); i++)
			sum += value_bytes(n->res[i]);
	}
	return sum;
}

Machine machine_running(const Machine *m, const Func *f)
{
	Machine copy = *m;

	copy.touched = result_bytes(f->body);
	return copy;
}

/* Cases by shape: rows, columns and maps of lengths around what printers treat differently; and random bodies. */
#include "kernels.h"

typedef struct Shape {
	int64_t n, dim[4];
} Shape;

static Value *input(Builder *b, const char *name, DType d, const Shape *s)
{
	return ir_input(b, name, type_make(d, (int)s->n, s->dim));
}

static IntList one_axis(int64_t axis) { return ir_list(1, &axis); }

/* A softmax, the moments and the largest's place of each row. */
static Value *rows(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Shape gain = { 1, { s->dim[s->n - 1] } };
	Value *x = input(b, "x", d, s), *y = ir_binary(b, OP_mul, x, input(b, "gain", d, &gain));
	Value *e = ir_unary(b, OP_exp, ir_binary(b, OP_sub, y, ir_reduce_last(b, OP_reduce_max, y, true)));
	ir_output(b, "at", ir_reduce_last(b, OP_argmax, y, false));
	ir_output(b, "mean", ir_reduce_last(b, OP_mean, ir_binary(b, OP_mul, y, y), true));
	return ir_binary(b, OP_div, e, ir_reduce_last(b, OP_sum, e, true));
}

/* Four rows, all of which two phases read. */
static Value *many_rows(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Value *x[4], *sum = NULL, *all = NULL;
	for (int i = 0; i < 4; i++) {
		x[i] = input(b, arena_printf(b->m->arena, "x%d", i), d, s);
		sum = i ? ir_binary(b, OP_add, sum, x[i]) : x[i];
		all = i ? ir_binary(b, OP_mul, all, x[i]) : x[i];
	}
	Value *mean = ir_reduce_last(b, OP_mean, all, true);
	return ir_binary(b, OP_sub, ir_binary(b, OP_mul, all, sum), mean);
}

/* Over the axis before the last: sum and largest, beside what they are of. */
static Value *columns(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	IntList axis = one_axis(s->n - 2);
	Value *x = ir_binary(b, OP_mul, input(b, "x", d, s), input(b, "y", d, s));
	ir_output(b, "x", x);
	ir_output(b, "max", ir_reduce(b, OP_reduce_max, x, &axis, false));
	return ir_reduce(b, OP_mean, x, &axis, true);
}

static Value *maps(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Value *x = input(b, "x", d, s), *m = input(b, "mask", DT_BOOL, s);
	ir_output(b, "bits", ir_binary(b, OP_gt, x, ir_scalar(b, d, 0.25)));
	return ir_select(b, m, ir_unary(b, OP_tanh, x), ir_binary(b, OP_add, x, x));
}

/* Rows that are no multiple of a word, beside numbers of a row and of a column. */
static Value *uneven_maps(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Shape row = *s, column = { 1, { s->dim[s->n - 1] } };
	row.dim[row.n - 1] = 1;
	Value *r = ir_unary(b, OP_tanh, input(b, "row", d, &row));
	return ir_binary(b, OP_sub, ir_binary(b, OP_mul, input(b, "x", d, s), r), input(b, "column", d, &column));
}

/* From a view that begins where no word does. */
static Value *views(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Value *x = ir_slice(b, input(b, "x", d, s), 0, 1, s->dim[0]);
	return ir_binary(b, OP_mul, x, ir_unary(b, OP_sigmoid, x));
}

/* As a norm's backward pass: reductions along rows, what is made of them, a value of each row; and sums over the rows. */
static Value *beside(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	IntList along = one_axis(s->n - 1), over = ir_list((int)s->n - 1, (int64_t[]){ 0, 1 });
	Shape last = { 1, { s->dim[s->n - 1] } };
	Value *x = input(b, "x", DT_F32, s), *dy = input(b, "dy", d, s), *wide = ir_cast(b, dy, DT_F32);
	Value *y = ir_binary(b, OP_mul, wide, input(b, "gain", DT_F32, &last));
	Value *mean = ir_reduce(b, OP_mean, ir_binary(b, OP_mul, y, x), &along, true);
	Value *dx = ir_binary(b, OP_sub, y, ir_binary(b, OP_mul, x, mean));
	ir_output(b, "gain", ir_reduce(b, OP_sum, ir_binary(b, OP_mul, wide, x), &over, false));
	ir_output(b, "shift", ir_reduce(b, OP_sum, wide, &over, s->n == 3));
	ir_output(b, "row", mean);
	if (s->n == 2) /* a sum of what waits for the row's */
		ir_output(b, "bias", ir_reduce(b, OP_sum, dx, &over, false));
	return ir_cast(b, dx, d);
}

/* One after another: two in one dimension, else as many as there may be; the last one is longer. */
static Value *pieces(Builder *b, DType d, const void *with)
{
	const Shape *s = with;
	Value *x[IR_MAX_ARGS];
	int count = s->n == 1 ? 2 : IR_MAX_ARGS;
	for (int i = 0; i < count; i++) {
		Shape piece = *s;
		piece.dim[0] += i == count - 1;
		x[i] = input(b, arena_printf(b->m->arena, "x%d", i), d, &piece);
	}
	return ir_unary(b, OP_neg, ir_concat(b, count, x, 0));
}

static void add_list(Test *t, const char *name, MakeWith make, const Shape *s, size_t n)
{
	static const DType type[] = { DT_F32, DT_BF16 };
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < 2; k++)
			add_made(t, arena_printf(t->a, "%s%zu", name, i), make, &s[i], type[k]);
}

void add_shapes(Test *t)
{
	static const Shape row[] = {
		{ 2, { 5, 1 } },    { 2, { 70, 3 } },	{ 2, { 33, 10 } },   { 2, { 9, 64 } },	  { 2, { 5, 100 } },
		{ 2, { 3, 513 } },  { 2, { 3, 768 } },	{ 2, { 2, 1600 } },  { 2, { 2, 2053 } },  { 2, { 2, 5000 } },
		{ 2, { 5, 2049 } }, { 2, { 2, 4096 } }, { 2, { 1, 16380 } }, { 2, { 3, 20000 } }, { 2, { 3, 33001 } },
	};
	static const Shape many[] = { { 2, { 3, 300 } }, { 2, { 2, 16380 } } };
	static const Shape column[] = {
		{ 2, { 1000, 5 } },    { 2, { 3001, 33 } },   { 2, { 40, 130 } },    { 2, { 5, 1000 } }, { 2, { 70, 4 } },
		{ 3, { 3, 50, 7 } },   { 3, { 2, 300, 64 } }, { 3, { 2, 517, 128 } },
	};
	static const Shape map[] = {
		{ 1, { 1 } }, { 1, { 7 } }, { 1, { 8 } }, { 1, { 1003 } }, { 2, { 13, 24 } }, { 3, { 3, 1, 6 } },
	};
	static const Shape uneven[] = { { 2, { 9, 33 } }, { 2, { 16, 257 } }, { 3, { 3, 5, 11 } }, { 2, { 7, 9 } } };
	static const Shape view[] = { { 2, { 4, 7 } }, { 2, { 4, 4 } }, { 2, { 3, 64 } } };
	static const Shape piece[] = { { 1, { 64 } }, { 1, { 5 } }, { 2, { 1, 96 } }, { 3, { 2, 3, 8 } } };
	static const Shape both[] = {
		{ 2, { 2, 8 } },    { 2, { 5, 3 } },	{ 2, { 70, 12 } },  { 2, { 64, 128 } }, { 3, { 3, 41, 100 } },
		{ 2, { 33, 257 } }, { 2, { 150, 520 } }, { 2, { 9, 4096 } }, { 2, { 17000, 4 } }, { 2, { 2300, 40 } },
	};
	add_list(t, "beside", beside, both, sizeof both / sizeof *both);
	add_list(t, "pieces", pieces, piece, sizeof piece / sizeof *piece);
	add_list(t, "rows", rows, row, sizeof row / sizeof *row);
	add_list(t, "many", many_rows, many, sizeof many / sizeof *many);
	add_list(t, "columns", columns, column, sizeof column / sizeof *column);
	add_list(t, "maps", maps, map, sizeof map / sizeof *map);
	add_list(t, "uneven", uneven_maps, uneven, sizeof uneven / sizeof *uneven);
	add_list(t, "views", views, view, sizeof view / sizeof *view);
}

/* ---- random bodies ---- */

static uint64_t next(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return *s >> 33;
}

enum { POOL = 24 };

/* A value of the pool; the last ones are likelier. */
static Value *pick(Value *const *pool, int n, uint64_t *s)
{
	int back = (int)(next(s) % 4 ? next(s) % 3 : next(s) % (uint64_t)n);
	return pool[back < n ? n - 1 - back : 0];
}

/* An input that broadcasts against the shape: some of its axes are 1, or missing. */
static Value *broadcast_input(Builder *b, DType d, const Shape *s, int number, uint64_t *seed)
{
	Shape x = *s;
	int skip = next(seed) % 3 == 0 ? (int)(next(seed) % (uint64_t)s->n) : 0;
	x.n -= skip;
	for (int i = 0; i < x.n; i++)
		x.dim[i] = next(seed) % 3 == 0 ? 1 : s->dim[i + skip];
	return input(b, arena_printf(b->m->arena, "in%d", number), d, &x);
}

static Value *random_op(Builder *b, Value *const *pool, int n, uint64_t *seed)
{
	static const OpCode unary[] = { OP_tanh, OP_sigmoid, OP_neg, OP_abs, OP_relu, OP_gelu };
	static const OpCode binary[] = { OP_add, OP_sub, OP_mul, OP_max, OP_min };
	Value *x = pick(pool, n, seed);
	switch (next(seed) % 4) {
	case 0: return ir_unary(b, unary[next(seed) % 6], x);
	case 1: return ir_select(b, ir_binary(b, OP_lt, x, pick(pool, n, seed)), x, pick(pool, n, seed));
	default: return ir_binary(b, binary[next(seed) % 5], x, pick(pool, n, seed));
	}
}

/* Element-wise ops on inputs that broadcast; then perhaps a reduction over the last, the first or all axes, and, of rows,
 * more ops on its result. Bounded, so that errors do not grow. */
static Value *random_body(Builder *b, DType d, const void *with)
{
	static const int64_t size[] = { 1, 2, 3, 5, 8, 12, 20, 33, 64, 130 };
	uint64_t s = *(const uint64_t *)with * 7919 + 3;
	Shape shape = { 1 + (int64_t)(next(&s) % 3), { 0 } };
	for (int i = 0; i < shape.n; i++)
		shape.dim[i] = size[next(&s) % (sizeof size / sizeof *size)];
	Value *pool[POOL];
	int n = 0, ops = 3 + (int)(next(&s) % 8);
	pool[n++] = input(b, "whole", d, &shape);
	for (int i = (int)(next(&s) % 3); i >= 0; i--, n++)
		pool[n] = ir_binary(b, OP_mul, pool[0], broadcast_input(b, d, &shape, n, &s));
	for (int i = 0; i < ops; i++, n++)
		pool[n] = random_op(b, pool, n, &s);
	Value *last = ir_unary(b, OP_tanh, pool[n - 1]);
	static const OpCode reduce[] = { OP_sum, OP_mean, OP_reduce_max };
	OpCode op = reduce[next(&s) % 3];
	IntList first = one_axis(0);
	switch (next(&s) % 5) {
	case 0: return ir_reduce_all(b, op, last);
	case 1: return ir_reduce(b, op, last, &first, next(&s) % 2);
	case 2: return ir_binary(b, OP_mul, last, ir_unary(b, OP_tanh, ir_reduce_last(b, op, last, true)));
	case 3: ir_output(b, "rows", ir_reduce_last(b, op, last, false)); return last;
	default: return last;
	}
}

void add_random(Test *t, int count, uint64_t seed)
{
	for (int i = 0; i < count; i++) {
		uint64_t with = seed * 1000 + (uint64_t)i;
		add_made(t, arena_printf(t->a, "random%llu", (unsigned long long)with), random_body, &with, DT_F32);
	}
}

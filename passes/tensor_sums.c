/* Sums over all gradients (tensor_sums.h).
 *
 *     %5 = part_sums %g0, %g1, ..  : f32[2400]      as many tensors at a time as a node may have operands
 *     %6 = concat %5, %4 {axis = 0}                 where there are more
 *     %7 = sum %6                                   : f32[]
 *
 * So a step has two stages over all gradients, and not two for each of them. */
#include "tensor_sums.h"

/* All parts of tensors of one type. */
static Value *parts(Builder *b, int n, Value *const *x, Value *by, const char *of)
{
	const Attr attr[] = { { .s = of }, { .i = by != NULL } };
	int most = IR_MAX_ARGS - (by != NULL), pieces = 0;
	Value *piece[IR_MAX_ARGS];

	for (int i = 0; i < n; i += most) {
		Value *arg[IR_MAX_ARGS];
		int here = n - i < most ? n - i : most, at = 0;

		if (by)
			arg[at++] = by;
		for (int k = 0; k < here; k++)
			arg[at++] = x[i + k];
		if (pieces == IR_MAX_ARGS) {
			piece[0] = ir_concat(b, pieces, piece, 0);
			pieces = 1;
		}
		piece[pieces++] = ir_value(b, OP_part_sums, at, arg, attr, NULL);
	}
	return pieces > 1 ? ir_concat(b, pieces, piece, 0) : piece[0];
}

static Value *sums(Builder *b, int n, Value *const *x, Value *by, const char *of, DType to)
{
	Value *sum = NULL;
	Value **same = ARENA_ARRAY(b->m->arena, n, Value *);

	for (DType d = DT_NONE; d < DT_COUNT; d++) {
		int count = 0;

		for (int i = 0; i < n; i++)
			if (x[i]->type.dtype == d)
				same[count++] = x[i];
		if (count == 0)
			continue;
		Value *p = parts(b, count, same, by ? ir_cast(b, by, d) : NULL, of);
		Value *one = ir_cast(b, ir_reduce_all(b, OP_sum, p), to);
		sum = sum ? ir_binary(b, OP_add, sum, one) : one;
	}
	return sum;
}

Value *tensor_squares(Builder *b, int n, Value *const *x, Value *by)
{
	DType to = x[0]->type.dtype;

	for (int i = 1; i < n; i++)
		to = x[i]->type.dtype == to ? to : DT_F64;
	return sums(b, n, x, by, "squares", to);
}

Value *tensor_not_finite(Builder *b, int n, Value *const *x, Value *by)
{
	return sums(b, n, x, by, "not_finite", DT_I32);
}

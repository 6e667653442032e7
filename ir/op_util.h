/* Small helpers shared by the rule files op_*.c: how a type rule says what is wrong, and axes.
 * Private to ir/. */
#ifndef DLC_IR_OP_UTIL_H
#define DLC_IR_OP_UTIL_H

#include "op_rules.h"

/* Writes the sentence and returns false, so that a type rule can `return op_fail(why, ...)`. */
bool op_fail(char why[256], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

typedef struct TypeText {
	char s[160];
} TypeText;

/* The type for people, "f32[64,128]", in the caller's buffer; TYPE_TEXT(t) makes one for the
 * enclosing block. */
const char *op_type_text(TypeText *buf, const Type *t);
#define TYPE_TEXT(t) op_type_text(&(TypeText){ { 0 } }, (t))

/* The type of argument i. */
static inline const Type *op_arg(const Node *n, int i)
{
	return &n->arg[i]->type;
}

/* True where dim[axis] of t scales with the batch. */
static inline bool type_marked(const Type *t, int axis)
{
	return (t->batch >> axis & 1) != 0;
}

/* t with one more or another axis appended: dims and marks of [from,to) of s. */
void type_append(Type *t, const Type *s, int from, int to);
/* An axis counted from the end where negative; false (and `why`) where t has no such axis. */
bool op_axis(const Type *t, int64_t axis, int *out, char why[256]);
/* The two numbers of an attribute such as stride, each at least `low`. */
bool op_pair(const Node *n, const char *name, int64_t low, int64_t out[2], char why[256]);
/* Checks the operand that an OPF_ACC op adds to, where there is one, against the result's type. */
bool op_acc_arg(const Node *n, const Type *res, char why[256]);
/* Checks that argument i has a float type. */
bool op_float_arg(const Node *n, int i, char why[256]);
/* The same for ops that passes and back ends read: from 0, never negative. */
bool op_prim_axis(const Type *t, int64_t axis, int *out, char why[256]);
/* Number of axes that are marked. */
int type_marks(const Type *t);
/* The number of elements along `axes` of t, as a scalar of dtype d: a constant, except where an
 * axis scales with the batch: then it is counted, so that the same graph holds for another
 * micro-batch. */
Value *op_count(Builder *b, const Type *t, const IntList *axes, DType d);
/* 1/sqrt(variance + eps) of x over `axes`, kept; biased. *var: the variance. */
Value *op_inverse_deviation(Builder *b, Value *x, Value *mean, const IntList *axes, double eps,
			    Value **var);
/* What a cross_entropy's valid targets count for, over the whole batch where `training`: their number, i32[], or the
 * weights of their classes added up. */
Value *op_target_count(Builder *b, const Node *n, bool training);
/* Checks that argument i holds one number a channel: [channels] of argument 0's dtype. */
bool op_channel_arg(const Node *n, int i, int64_t channels, char why[256]);
/* x's type with `axes` made 1. */
Type op_kept_type(const Type *x, const IntList *axes);

#endif

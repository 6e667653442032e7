/* Constants: their text and their arithmetic.
 *
 * Integers are 64-bit and never wrap: an overflow is an error. `/` of two ints is an int where it
 * is exact, else a float, so that 3*C/2 can be a dimension when it is whole and is refused as one
 * when it is not. A number remembers how it depends on `batch` (BatchMark), so that shapes can be
 * re-typed for another batch. */
#include "front.h"

#include <math.h>
#include <stdlib.h>

Val val_int(int64_t i)
{
	return (Val){ .kind = V_INT, .i = i };
}

Val val_float(double f)
{
	return (Val){ .kind = V_FLOAT, .f = f };
}

Val val_tensor(Value *t)
{
	return (Val){ .kind = V_TENSOR, .t = t };
}

static Val val_bool(bool b, BatchMark mark)
{
	return (Val){ .kind = V_BOOL, .b = b, .mark = mark };
}

bool val_is_number(Val v)
{
	return v.kind == V_INT || v.kind == V_FLOAT;
}

double val_number(Val v)
{
	return v.kind == V_INT ? (double)v.i : v.f;
}

bool val_equal(Val a, Val b)
{
	if (val_is_number(a) && val_is_number(b))
		return a.kind == V_INT && b.kind == V_INT ? a.i == b.i
							  : val_number(a) == val_number(b);
	if (a.kind != b.kind)
		return false;
	switch (a.kind) {
	case V_NONE: return true;
	case V_BOOL: return a.b == b.b;
	case V_STR: return !strcmp(a.s, b.s);
	case V_LIST:
		for (int32_t i = 0; i < a.n && a.n == b.n; i++)
			if (!val_equal(a.at[i], b.at[i]))
				return false;
		return a.n == b.n;
	case V_TENSOR: return a.t == b.t;
	default: return false;
	}
}

/* ---- text ---- */

const char *val_kind_text(ValKind k)
{
	static const char *const text[] = {
		[V_POISON] = "an error", [V_NONE] = "none",           [V_BOOL] = "a bool",
		[V_INT] = "an int",      [V_FLOAT] = "a number",      [V_STR] = "a string",
		[V_LIST] = "a list",     [V_TENSOR] = "a tensor",     [V_TUPLE] = "several values",
		[V_DATA] = "a data set", [V_INIT] = "initial values",
	};
	return text[k];
}

static const char *float_text(Arena *a, double v)
{
	char s[40];

	for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back */
		snprintf(s, sizeof s, "%.*g", digits, v);
		if (strtod(s, NULL) == v)
			break;
	}
	return arena_strdup(a, s);
}

const char *val_text(Arena *a, Val v)
{
	const char *s = "[";

	switch (v.kind) {
	case V_BOOL: return v.b ? "true" : "false";
	case V_INT: return arena_printf(a, "%lld", (long long)v.i);
	case V_FLOAT: return float_text(a, v.f);
	case V_STR: return v.s;
	case V_LIST:
		for (int32_t i = 0; i < v.n && strlen(s) < 200; i++)
			s = arena_printf(a, "%s%s%s", s, i ? ", " : "",
					 i == 20 ? "..." : val_text(a, v.at[i]));
		return arena_printf(a, "%s]", s);
	case V_TENSOR: return type_text(a, &v.t->type, false);
	default: return val_kind_text(v.kind);
	}
}

const char *val_describe(Arena *a, Val v)
{
	switch (v.kind) {
	case V_INT:
	case V_FLOAT: return arena_printf(a, "the number %s", val_text(a, v));
	case V_STR: return arena_printf(a, "the string \"%.40s\"", v.s);
	case V_BOOL: return val_text(a, v);
	case V_LIST:
	case V_TENSOR: return arena_printf(a, "%s %s", val_kind_text(v.kind), val_text(a, v));
	default: return val_kind_text(v.kind);
	}
}

/* ---- arithmetic ---- */

Val value_finite(Front *f, const Frame *fr, Span s, const char *what, double v, BatchMark mark)
{
	if (!isfinite(v)) {
		front_error(f, fr, s, "%s is not a finite number", what);
		return POISON;
	}
	return (Val){ .kind = V_FLOAT, .f = v, .mark = mark };
}

/* How a op b depends on the batch; `batch` divides a marked operand. */
static BatchMark mark_of(Operator op, Val a, Val b, bool exact)
{
	if (a.mark == BM_NONE && b.mark == BM_NONE)
		return BM_NONE;
	if (a.mark == BM_OTHER || b.mark == BM_OTHER || a.kind != V_INT || b.kind != V_INT)
		return BM_OTHER;
	switch (op) {
	case O_ADD:
	case O_SUB: return a.mark == b.mark || (a.mark ? b.i : a.i) == 0 ? BM_MULTIPLE : BM_OTHER;
	case O_MUL: return a.mark == b.mark ? BM_OTHER : BM_MULTIPLE;
	case O_DIV:
	case O_FLOORDIV:
		if (a.mark == b.mark && exact)
			return BM_NONE;
		return exact && a.mark
			       ? BM_MULTIPLE
			       : BM_OTHER; /* value_binary checks that batch still divides it */
	default: return BM_OTHER;
	}
}

static int64_t floor_div(int64_t a, int64_t b)
{
	int64_t q = a / b;

	return q - (a % b != 0 && (a < 0) != (b < 0));
}

static Val int_binary(Front *f, const Frame *fr, Span s, Operator op, Val a, Val b)
{
	int64_t r = 0;
	bool over = false, exact = false;

	switch (op) {
	case O_ADD: over = __builtin_add_overflow(a.i, b.i, &r); break;
	case O_SUB: over = __builtin_sub_overflow(a.i, b.i, &r); break;
	case O_MUL: over = __builtin_mul_overflow(a.i, b.i, &r); break;
	default:
		if (b.i == 0) {
			front_error(f, fr, s, "division of %lld by zero", (long long)a.i);
			return POISON;
		}
		over = a.i == INT64_MIN && b.i == -1;
		exact = !over && a.i % b.i == 0;
		if (op == O_DIV && !exact && !over)
			return (Val){ .kind = V_FLOAT,
				      .f = (double)a.i / (double)b.i,
				      .mark = mark_of(op, a, b, false) };
		if (!over)
			r = op == O_MOD ? a.i - floor_div(a.i, b.i) * b.i : floor_div(a.i, b.i);
	}
	if (over) {
		front_error(f, fr, s, "integer overflow: %lld %s %lld does not fit in 64 bits",
			    (long long)a.i, ast_operator_text(op), (long long)b.i);
		return POISON;
	}
	BatchMark mark = mark_of(op, a, b, exact);
	if (mark == BM_MULTIPLE && r % f->module->batch != 0) /* 64*3 / 128 */
		mark = BM_OTHER;
	return (Val){ .kind = V_INT, .i = r, .mark = mark };
}

static Val float_binary(Front *f, const Frame *fr, Span s, Operator op, Val a, Val b)
{
	double x = val_number(a), y = val_number(b), r = 0;

	if ((op == O_DIV || op == O_FLOORDIV || op == O_MOD) && y == 0) {
		front_error(f, fr, s, "division of %s by zero", val_text(f->arena, a));
		return POISON;
	}
	switch (op) {
	case O_ADD: r = x + y; break;
	case O_SUB: r = x - y; break;
	case O_MUL: r = x * y; break;
	case O_DIV: r = x / y; break;
	case O_FLOORDIV: r = floor(x / y); break;
	default: r = x - floor(x / y) * y; break;
	}
	return value_finite(f, fr, s,
			    arena_printf(f->arena, "%s %s %s", val_text(f->arena, a),
					 ast_operator_text(op), val_text(f->arena, b)),
			    r, mark_of(op, a, b, false));
}

static Val compare(Front *f, const Frame *fr, Span s, Operator op, Val a, Val b)
{
	BatchMark mark = a.mark || b.mark ? BM_OTHER : BM_NONE;
	int c;

	if (op == O_EQ || op == O_NE)
		return val_bool(val_equal(a, b) == (op == O_EQ), mark);
	if (a.kind == V_INT && b.kind == V_INT)
		c = (a.i > b.i) - (a.i < b.i);
	else if (val_is_number(a) && val_is_number(b))
		c = (val_number(a) > val_number(b)) - (val_number(a) < val_number(b));
	else {
		front_error(f, fr, s, "'%s' compares numbers, got %s and %s", ast_operator_text(op),
			    val_describe(f->arena, a), val_describe(f->arena, b));
		return POISON;
	}
	return val_bool(op == O_LT   ? c < 0
			: op == O_LE ? c <= 0
			: op == O_GT ? c > 0
				     : c >= 0,
			mark);
}

/* One list behind the other. What is copied counts as work, so that no loop of joins runs away. */
static Val join_lists(Front *f, const Frame *fr, Span s, Val a, Val b)
{
	Val v = { .kind = V_LIST };

	f->work += (a.n + b.n) / 8;
	if (a.n + (int64_t)b.n > FRONT_MAX_LIST) {
		front_error(f, fr, s, "the list grows beyond %d elements", FRONT_MAX_LIST);
		return POISON;
	}
	v.at = ARENA_ARRAY(f->arena, a.n + b.n, Val);
	for (int32_t i = 0; i < a.n + b.n; i++)
		v.at[v.n++] = i < a.n ? a.at[i] : b.at[i - a.n];
	return v;
}

Val value_binary(Front *f, const Frame *fr, Span s, Operator op, Val a, Val b)
{
	if (a.kind == V_POISON || b.kind == V_POISON)
		return POISON;
	if (op >= O_EQ && op <= O_GE)
		return compare(f, fr, s, op, a, b);
	if (op == O_ADD && a.kind == V_LIST && b.kind == V_LIST)
		return join_lists(f, fr, s, a, b);
	if (op == O_MATMUL || !val_is_number(a) || !val_is_number(b)) {
		front_error(f, fr, s, "'%s' takes %s, got %s and %s", ast_operator_text(op),
			    op == O_MATMUL ? "tensors" : "numbers or tensors",
			    val_describe(f->arena, a), val_describe(f->arena, b));
		return POISON;
	}
	return a.kind == V_INT && b.kind == V_INT ? int_binary(f, fr, s, op, a, b)
						  : float_binary(f, fr, s, op, a, b);
}

Val value_unary(Front *f, const Frame *fr, Span s, Operator op, Val a)
{
	if (a.kind == V_POISON)
		return POISON;
	if (op == O_NOT && a.kind == V_BOOL)
		return val_bool(!a.b, a.mark);
	if (op == O_NEG && a.kind == V_FLOAT)
		return (Val){ .kind = V_FLOAT, .f = -a.f, .mark = a.mark };
	if (op == O_NEG && a.kind == V_INT) {
		Val r = value_binary(f, fr, s, O_SUB, val_int(0), a);
		return r;
	}
	front_error(f, fr, s, "'%s' takes %s, got %s", ast_operator_text(op),
		    op == O_NOT ? "a bool" : "a number or a tensor", val_describe(f->arena, a));
	return POISON;
}

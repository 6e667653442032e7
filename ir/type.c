/* Types of tensors: dtype, static shape, and which dimensions scale with the batch. */
#include "ir.h"

#include <assert.h>

typedef struct DTypeInfo {
	const char *name;
	int bytes;
	bool is_float;
} DTypeInfo;

static const DTypeInfo dtypes[DT_COUNT] = {
	[DT_NONE] = { "none", 0, false }, [DT_BOOL] = { "bool", 1, false }, [DT_U8] = { "u8", 1, false },
	[DT_U16] = { "u16", 2, false },   [DT_I32] = { "i32", 4, false },   [DT_I64] = { "i64", 8, false },
	[DT_F16] = { "f16", 2, true },    [DT_BF16] = { "bf16", 2, true },  [DT_F32] = { "f32", 4, true },
	[DT_F64] = { "f64", 8, true },
};

const char *dtype_name(DType t)
{
	return dtypes[t].name;
}

DType dtype_from_name(const char *s, size_t n)
{
	for (int t = DT_BOOL; t < DT_COUNT; t++)
		if (strlen(dtypes[t].name) == n && memcmp(dtypes[t].name, s, n) == 0)
			return (DType)t;
	return DT_NONE;
}

int64_t dtype_bytes(DType t)
{
	return dtypes[t].bytes;
}

bool dtype_is_float(DType t)
{
	return dtypes[t].is_float;
}

DType dtype_promote(DType a, DType b)
{
	if (a == DT_NONE || b == DT_NONE)
		return DT_NONE;
	if ((a == DT_F16 && b == DT_BF16) || (a == DT_BF16 && b == DT_F16))
		return DT_F32;
	return a > b ? a : b;
}

Type type_make(DType t, int ndim, const int64_t *dim)
{
	assert(ndim >= 0 && ndim <= IR_MAX_DIMS);
	Type type = { .dtype = t, .ndim = (uint8_t)ndim };
	for (int i = 0; i < ndim; i++)
		type.dim[i] = dim[i];
	return type;
}

Type type_scalar(DType t)
{
	return (Type){ .dtype = t };
}

int64_t type_elems(const Type *t)
{
	int64_t n = 1;
	for (int i = 0; i < t->ndim; i++)
		n *= t->dim[i];
	return n;
}

int64_t type_bytes(const Type *t)
{
	return type_elems(t) * dtype_bytes(t->dtype);
}

bool type_check(const Type *t)
{
	if (t->dtype <= DT_NONE || t->dtype >= DT_COUNT || t->ndim > IR_MAX_DIMS || t->batch >> t->ndim)
		return false;
	int64_t bytes = dtype_bytes(t->dtype);
	for (int i = 0; i < t->ndim; i++)
		if (t->dim[i] < 1 || __builtin_mul_overflow(bytes, t->dim[i], &bytes))
			return false;
	return true;
}

bool type_same_shape(const Type *a, const Type *b)
{
	if (a->ndim != b->ndim)
		return false;
	for (int i = 0; i < a->ndim; i++)
		if (a->dim[i] != b->dim[i])
			return false;
	return true;
}

bool type_equal(const Type *a, const Type *b)
{
	return a->dtype == b->dtype && a->batch == b->batch && type_same_shape(a, b);
}

bool type_broadcast(const Type *a, const Type *b, Type *out)
{
	int n = a->ndim > b->ndim ? a->ndim : b->ndim;
	Type t = { .dtype = dtype_promote(a->dtype, b->dtype), .ndim = (uint8_t)n };
	for (int i = 0; i < n; i++) {
		int ia = i - (n - a->ndim), ib = i - (n - b->ndim);
		int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
		bool ma = ia >= 0 && (a->batch >> ia & 1), mb = ib >= 0 && (b->batch >> ib & 1);
		if (ma == mb ? da != db && (ma || (da != 1 && db != 1)) : (ma ? db : da) != 1)
			return false;
		t.dim[i] = ma || db == 1 ? da : db;
		if (ma || mb) {
			t.dim[i] = ma ? da : db;
			t.batch = (uint16_t)(t.batch | 1u << i);
		}
	}
	*out = t;
	return true;
}

const char *type_text(Arena *a, const Type *t, bool marks)
{
	char text[16 + IR_MAX_DIMS * 24];
	int n = snprintf(text, sizeof text, "%s[", dtype_name(t->dtype));
	for (int i = 0; i < t->ndim; i++)
		n += snprintf(text + n, sizeof text - (size_t)n, "%s%lld%s", i ? "," : "", (long long)t->dim[i],
			      marks && (t->batch >> i & 1) ? "'" : "");
	snprintf(text + n, sizeof text - (size_t)n, "]");
	return arena_strdup(a, text);
}

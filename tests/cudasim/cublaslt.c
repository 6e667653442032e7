/* libcublasLt.so of the simulator: descriptors, and cublasLtMatmul as plain loops over what the descriptors say, queued on the stream.
 *
 * It refuses what the library refuses (types, leading dimensions, batches), and reports what the library would not see: operands out of
 * bounds or never written, a result that overlaps an operand, a workspace smaller than the algorithm's, an alignment below what the
 * preference promised. The workspace is overwritten with a pattern first. Sums are taken in f32 (f64 for f64), in the order of k. */
#include "cublaslt.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { PATTERN = 0xcb, ALGO_MAGIC = 0x5d17 };

typedef struct SimHandle {
	int unused;
} SimHandle;

typedef struct SimLayout {
	int type, order, batch;
	uint64_t rows, cols;
	int64_t ld, stride;
} SimLayout;

typedef struct SimMatmulDesc {
	int compute, scale, pointer_mode, trans[2], epilogue, bias_type, aux_type;
	uint64_t bias, aux;
	int64_t aux_ld, aux_stride, bias_stride;
} SimMatmulDesc;

typedef struct SimPreference {
	uint64_t workspace;
	uint32_t align[4]; /* a b c d */
} SimPreference;

typedef struct Matmul {
	SimMatmulDesc d;
	SimLayout l[4]; /* a b c d */
	uint64_t p[4], workspace;
	size_t workspace_bytes;
	double alpha, beta;
} Matmul;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	*h = calloc(1, sizeof **h);
	return *h ? CUBLAS_STATUS_SUCCESS : 3;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
	free(h);
	return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
	return 130000;
}

size_t cublasLtGetCudartVersion(void)
{
	return 13000;
}

const char *cublasLtGetStatusName(cublasStatus_t s)
{
	switch (s) {
	case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
	case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
	case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
	case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
	default: return "CUBLAS_STATUS_INTERNAL_ERROR";
	}
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
	return cublasLtGetStatusName(s);
}

/* ---- descriptors ---- */

/* Stores an attribute of the size that it has; false: another size was given. */
static bool take(void *to, size_t size, const void *value, size_t bytes)
{
	if (bytes != size)
		return false;
	memcpy(to, value, size);
	return true;
}

static cublasStatus_t unknown(const char *what, int attribute)
{
	char text[160];
	snprintf(text, sizeof text, "%s: attribute %d is not simulated, or its value has another size", what, attribute);
	dl_sim_violation(CUDA_ERROR_INVALID_VALUE, text);
	return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, int compute, int scale)
{
	*d = calloc(1, sizeof **d);
	if (!*d)
		return 3;
	**d = (SimMatmulDesc){.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1, .aux_type = -1};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
	free(d);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, int attribute, const void *value, size_t bytes)
{
	int ignored;
	const struct {
		int attribute;
		void *to;
		size_t size;
	} table[] = {
		{CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &d->compute, 4}, {CUBLASLT_MATMUL_DESC_SCALE_TYPE, &d->scale, 4},
		{CUBLASLT_MATMUL_DESC_POINTER_MODE, &d->pointer_mode, 4}, {CUBLASLT_MATMUL_DESC_TRANSA, &d->trans[0], 4},
		{CUBLASLT_MATMUL_DESC_TRANSB, &d->trans[1], 4}, {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, 4},
		{CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, 8}, {CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &d->bias_stride, 8},
		{CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d->aux, 8}, {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d->aux_ld, 8},
		{CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, &d->aux_stride, 8}, {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &ignored, 4},
		{CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &d->aux_type, 4}, {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &d->bias_type, 4},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (table[i].attribute == attribute && take(table[i].to, table[i].size, value, bytes))
			return CUBLAS_STATUS_SUCCESS;
	return unknown("cublasLtMatmulDescSetAttribute", attribute);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
	*l = calloc(1, sizeof **l);
	if (!*l)
		return 3;
	**l = (SimLayout){.type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
	free(l);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, int attribute, const void *value, size_t bytes)
{
	const struct {
		int attribute;
		void *to;
		size_t size;
	} table[] = {
		{CUBLASLT_MATRIX_LAYOUT_TYPE, &l->type, 4}, {CUBLASLT_MATRIX_LAYOUT_ORDER, &l->order, 4}, {CUBLASLT_MATRIX_LAYOUT_ROWS, &l->rows, 8},
		{CUBLASLT_MATRIX_LAYOUT_COLS, &l->cols, 8}, {CUBLASLT_MATRIX_LAYOUT_LD, &l->ld, 8}, {CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &l->batch, 4},
		{CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &l->stride, 8},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (table[i].attribute == attribute && take(table[i].to, table[i].size, value, bytes))
			return CUBLAS_STATUS_SUCCESS;
	return unknown("cublasLtMatrixLayoutSetAttribute", attribute);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
	*p = calloc(1, sizeof **p);
	if (!*p)
		return 3;
	**p = (SimPreference){.align = {256, 256, 256, 256}};
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
	free(p);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, int attribute, const void *value, size_t bytes)
{
	if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && take(&p->workspace, 8, value, bytes))
		return CUBLAS_STATUS_SUCCESS;
	if (attribute >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES &&
	    take(&p->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], 4, value, bytes))
		return CUBLAS_STATUS_SUCCESS;
	if (attribute == CUBLASLT_MATMUL_PREF_SEARCH_MODE || attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ||
	    attribute == CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT || attribute == CUBLASLT_MATMUL_PREF_IMPL_MASK)
		return CUBLAS_STATUS_SUCCESS;
	return unknown("cublasLtMatmulPreferenceSetAttribute", attribute);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *a, int attribute, void *value, size_t bytes, size_t *written)
{
	uint32_t v = attribute == 0 ? (uint32_t)a->data[1] : attribute == 2 ? 1 : 0; /* the algorithm's number; split of k */
	if (bytes < sizeof v)
		return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(value, &v, sizeof v);
	if (written)
		*written = sizeof v;
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- what is legal ---- */

static size_t type_size(int type)
{
	return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

static bool types_fit(const SimMatmulDesc *d, const SimLayout *l)
{
	int a = l[0].type, c = l[3].type;
	if (a != l[1].type || l[2].type != c || d->pointer_mode != CUBLASLT_POINTER_MODE_HOST)
		return false;
	switch (d->compute) {
	case CUBLAS_COMPUTE_64F: return a == CUDA_R_64F && c == CUDA_R_64F && d->scale == CUDA_R_64F;
	case CUBLAS_COMPUTE_32F_FAST_TF32: return a == CUDA_R_32F && c == CUDA_R_32F && d->scale == CUDA_R_32F;
	case CUBLAS_COMPUTE_32F:
	case CUBLAS_COMPUTE_32F_PEDANTIC:
		return d->scale == CUDA_R_32F && (a == CUDA_R_32F ? c == CUDA_R_32F : (a == CUDA_R_16F || a == CUDA_R_16BF) && (c == a || c == CUDA_R_32F));
	default: return false;
	}
}

static bool epilogue_fits(const SimMatmulDesc *d, const SimLayout *l)
{
	bool known = false, aux = d->epilogue & 128;
	static const int all[] = {1, 2, 4, 6, 32, 36, 160, 164, 192, 208, 256, 512};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		known |= all[i] == d->epilogue;
	if (!known || (d->epilogue != 1 && l[3].order != CUBLASLT_ORDER_COL))
		return false;
	return !aux || (d->aux_ld % 8 == 0 && d->aux_ld >= (int64_t)l[3].rows);
}

/* NULL: legal; else why not. */
static const char *illegal(const SimMatmulDesc *d, const SimLayout *l)
{
	uint64_t m = d->trans[0] ? l[0].cols : l[0].rows, k = d->trans[0] ? l[0].rows : l[0].cols;
	uint64_t kb = d->trans[1] ? l[1].cols : l[1].rows, n = d->trans[1] ? l[1].rows : l[1].cols;
	if (k != kb || l[3].rows != m || l[3].cols != n || l[2].rows != m || l[2].cols != n)
		return "the sizes of the matrices do not agree";
	for (int i = 0; i < 4; i++) {
		uint64_t least = l[i].order == CUBLASLT_ORDER_COL ? l[i].rows : l[i].cols;
		if (l[i].order != CUBLASLT_ORDER_COL && l[i].order != CUBLASLT_ORDER_ROW)
			return "an order that is neither column nor row";
		if (l[i].rows == 0 || l[i].cols == 0)
			return "an empty matrix";
		if (l[i].ld < (int64_t)least)
			return "a leading dimension below the size of a column (or row)";
		if (l[i].batch != l[0].batch || l[i].batch < 1)
			return "batch counts differ";
	}
	if (!types_fit(d, l))
		return "types that do not go together";
	if (!epilogue_fits(d, l))
		return "an epilogue that is not simulated with these layouts";
	return NULL;
}

static cublasStatus_t refuse(const char *what, const char *why, cublasStatus_t s)
{
	char text[200];
	snprintf(text, sizeof text, "%s: %s", what, why);
	dl_sim_violation(CUDA_ERROR_INVALID_VALUE, text);
	return s;
}

/* Two algorithms: one with a workspace, where one is allowed, and one without. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t dd, cublasLtMatmulPreference_t p, int requested,
					      cublasLtMatmulHeuristicResult_t *results, int *returned)
{
	(void)h;
	const SimLayout l[4] = {*a, *b, *c, *dd};
	*returned = 0;
	if (illegal(d, l))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	uint64_t wanted = (dd->rows * dd->cols * 4 + 255) & ~(uint64_t)255, work = wanted < p->workspace ? wanted : p->workspace & ~(uint64_t)255;
	for (int i = work ? 0 : 1; i < 2 && *returned < requested; i++) {
		cublasLtMatmulHeuristicResult_t *r = &results[(*returned)++];
		memset(r, 0, sizeof *r);
		r->workspaceSize = i == 0 ? (size_t)work : 0;
		r->wavesCount = 1.0f;
		r->algo.data[0] = ALGO_MAGIC;
		r->algo.data[1] = (uint64_t)i;
		r->algo.data[2] = r->workspaceSize;
		for (int k = 0; k < 4; k++)
			r->algo.data[3 + k] = p->align[k];
	}
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

static float half_to_float(uint16_t h)
{
	uint32_t e = (h >> 10) & 31u, m = h & 1023u;
	float v = e == 0 ? ldexpf((float)m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexpf((float)(m | 1024u), (int)e - 25);
	return h & 0x8000u ? -v : v;
}

/* Round to nearest even, by way of a sum that pushes out the bits below. */
static uint16_t float_to_half(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
	u &= 0x7fffffffu;
	if (u > 0x7f800000u)
		return sign | 0x7e00u;
	if (u >= 0x477ff000u)
		return sign | 0x7c00u;
	if (u < 0x38800000u) { /* subnormal */
		float a;
		memcpy(&a, &u, 4);
		return sign | (uint16_t)lrintf(a * 16777216.0f);
	}
	u += 0xc8000fffu + ((u >> 13) & 1u);
	return sign | (uint16_t)(u >> 13);
}

static uint16_t float_to_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16) | 0x40u;
	return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static double load(uint64_t p, int type, int64_t i)
{
	const unsigned char *at = (const unsigned char *)p + (size_t)i * type_size(type);
	double d;
	float f;
	uint16_t h;
	uint32_t u;
	switch (type) {
	case CUDA_R_64F: memcpy(&d, at, 8); return d;
	case CUDA_R_32F: memcpy(&f, at, 4); return (double)f;
	case CUDA_R_16F: memcpy(&h, at, 2); return (double)half_to_float(h);
	default:
		memcpy(&h, at, 2);
		u = (uint32_t)h << 16;
		memcpy(&f, &u, 4);
		return (double)f;
	}
}

static void store(uint64_t p, int type, int64_t i, double v)
{
	unsigned char *at = (unsigned char *)p + (size_t)i * type_size(type);
	float f = (float)v;
	uint16_t h = type == CUDA_R_16F ? float_to_half(f) : float_to_bf16(f);
	switch (type) {
	case CUDA_R_64F: memcpy(at, &v, 8); break;
	case CUDA_R_32F: memcpy(at, &f, 4); break;
	default: memcpy(at, &h, 2);
	}
}

static int64_t place(const SimLayout *l, int64_t batch, int64_t row, int64_t col)
{
	return batch * l->stride + (l->order == CUBLASLT_ORDER_COL ? col * l->ld + row : row * l->ld + col);
}

static double to_tf32(double v)
{
	float f = (float)v;
	uint32_t u;
	memcpy(&u, &f, 4);
	if ((u & 0x7f800000u) != 0x7f800000u)
		u += 0xfffu + ((u >> 13) & 1u);
	u &= 0xffffe000u;
	memcpy(&f, &u, 4);
	return (double)f;
}

/* op(X) of one batch, row after row: floats, or doubles for f64. */
static void unpack(const Matmul *x, int which, int64_t batch, void *to)
{
	const SimLayout *l = &x->l[which];
	bool t = x->d.trans[which] != 0, tf32 = x->d.compute == CUBLAS_COMPUTE_32F_FAST_TF32, wide = x->d.compute == CUBLAS_COMPUTE_64F;
	int64_t rows = (int64_t)(t ? l->cols : l->rows), cols = (int64_t)(t ? l->rows : l->cols);
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < cols; j++) {
			double v = load(x->p[which], l->type, t ? place(l, batch, j, i) : place(l, batch, i, j));
			v = tf32 ? to_tf32(v) : v;
			if (wide)
				((double *)to)[i * cols + j] = v;
			else
				((float *)to)[i * cols + j] = (float)v;
		}
}

#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define CLONES
#endif

/* c [m,n] = a [m,k] b [k,n], each sum in the order of k. */
#define PRODUCT(name, T) \
	static CLONES void name(int64_t m, int64_t n, int64_t k, const T *restrict a, const T *restrict b, T *restrict c) \
	{ \
		memset(c, 0, (size_t)(m * n) * sizeof *c); \
		for (int64_t i = 0; i < m; i += 4) \
			for (int64_t p = 0; p < k; p++) \
				for (int64_t r = i; r < m && r < i + 4; r++) { \
					T f = a[r * k + p]; \
					for (int64_t j = 0; j < n; j++) \
						c[r * n + j] += f * b[p * n + j]; \
				} \
	}
PRODUCT(product_f32, float)
PRODUCT(product_f64, double)

static double gelu(double x)
{
	return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
	double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
	return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
}

static int bias_type(const Matmul *x)
{
	return x->d.bias_type >= 0 ? x->d.bias_type : x->l[3].type;
}

static int aux_type(const Matmul *x)
{
	return x->d.aux_type >= 0 ? x->d.aux_type : x->l[3].type;
}

static double finish(const Matmul *x, int64_t batch, int64_t i, int64_t j, double v)
{
	int e = x->d.epilogue;
	int64_t aux = batch * x->d.aux_stride + j * x->d.aux_ld + i;
	if (e & CUBLASLT_EPILOGUE_BIAS)
		v += load(x->d.bias, bias_type(x), batch * x->d.bias_stride + i);
	if (e & 64)
		return v * gelu_slope(load(x->d.aux, aux_type(x), aux));
	if (e & 128)
		store(x->d.aux, aux_type(x), aux, v);
	if (e & CUBLASLT_EPILOGUE_RELU)
		v = v > 0.0 ? v : 0.0;
	return e & CUBLASLT_EPILOGUE_GELU ? gelu(v) : v;
}

typedef struct Sums {
	int64_t m, n, k;
	void *a, *b, *c; /* floats, or doubles for f64 */
	bool wide;
} Sums;

static double at(const Sums *s, const void *v, int64_t i)
{
	return s->wide ? ((const double *)v)[i] : (double)((const float *)v)[i];
}

static void bias_gradient_of_operand(const Matmul *x, int64_t batch, const Sums *s)
{
	bool first = x->d.epilogue == CUBLASLT_EPILOGUE_BGRADA;
	for (int64_t i = 0; i < (first ? s->m : s->n); i++) {
		double sum = 0;
		for (int64_t p = 0; p < s->k; p++)
			sum += first ? at(s, s->a, i * s->k + p) : at(s, s->b, p * s->n + i);
		store(x->d.bias, bias_type(x), batch * x->d.bias_stride + i, sum);
	}
}

static void multiply(const Matmul *x, int64_t batch, const Sums *s)
{
	unpack(x, 0, batch, s->a);
	unpack(x, 1, batch, s->b);
	if (s->wide)
		product_f64(s->m, s->n, s->k, s->a, s->b, s->c);
	else
		product_f32(s->m, s->n, s->k, s->a, s->b, s->c);
	for (int64_t i = 0; i < s->m; i++) {
		double sum = 0;
		for (int64_t j = 0; j < s->n; j++) {
			double v = x->alpha * at(s, s->c, i * s->n + j);
			if (x->beta != 0.0)
				v += x->beta * load(x->p[2], x->l[2].type, place(&x->l[2], batch, i, j));
			v = finish(x, batch, i, j, v);
			store(x->p[3], x->l[3].type, place(&x->l[3], batch, i, j), v);
			sum += v;
		}
		if (x->d.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
			store(x->d.bias, bias_type(x), batch * x->d.bias_stride + i, sum);
	}
	if (x->d.epilogue == CUBLASLT_EPILOGUE_BGRADA || x->d.epilogue == CUBLASLT_EPILOGUE_BGRADB)
		bias_gradient_of_operand(x, batch, s);
}

/* ---- what it reads and writes ---- */

/* Each column (row) of each batch, so that gaps between them stay untouched. */
static CUresult check_matrix(const Matmul *x, int which, int how, const char *what)
{
	const SimLayout *l = &x->l[which];
	size_t size = type_size(l->type);
	bool col = l->order == CUBLASLT_ORDER_COL;
	int64_t lines = (int64_t)(col ? l->cols : l->rows), len = (int64_t)(col ? l->rows : l->cols);
	CUresult e = CUDA_SUCCESS;
	for (int64_t b = 0; b < l->batch && e == CUDA_SUCCESS; b++)
		for (int64_t i = 0; i < lines && e == CUDA_SUCCESS; i++)
			e = dl_sim_check_range(x->p[which] + (uint64_t)(b * l->stride + i * l->ld) * size, (size_t)len * size, how, what);
	return e;
}

static void extent(const Matmul *x, int which, uint64_t *lo, uint64_t *hi)
{
	const SimLayout *l = &x->l[which];
	int64_t lines = (int64_t)(l->order == CUBLASLT_ORDER_COL ? l->cols : l->rows), len = (int64_t)(l->order == CUBLASLT_ORDER_COL ? l->rows : l->cols);
	*lo = x->p[which];
	*hi = *lo + (uint64_t)((l->batch - 1) * l->stride + (lines - 1) * l->ld + len) * type_size(l->type);
}

static CUresult check_bias(const Matmul *x)
{
	int e = x->d.epilogue;
	bool reads = e & CUBLASLT_EPILOGUE_BIAS, writes = e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB || e == CUBLASLT_EPILOGUE_DGELU_BGRAD;
	size_t n = e == CUBLASLT_EPILOGUE_BGRADB ? x->l[3].cols : x->l[3].rows, size = type_size(bias_type(x));
	CUresult r = CUDA_SUCCESS;
	for (int64_t b = 0; b < x->l[3].batch && r == CUDA_SUCCESS && (reads || writes); b++)
		r = dl_sim_check_range(x->d.bias + (uint64_t)(b * x->d.bias_stride) * size, n * size, reads ? ACCESS_READ : ACCESS_WRITE, "cublasLtMatmul, bias");
	for (int64_t b = 0; b < x->l[3].batch && (e & 128); b++)
		for (int64_t j = 0; j < (int64_t)x->l[3].cols && r == CUDA_SUCCESS; j++)
			r = dl_sim_check_range(x->d.aux + (uint64_t)(b * x->d.aux_stride + j * x->d.aux_ld) * type_size(aux_type(x)),
					       x->l[3].rows * type_size(aux_type(x)), e & 64 ? ACCESS_READ : ACCESS_WRITE, "cublasLtMatmul, aux");
	return r;
}

/* The result and the workspace must not reach into an operand; C may be D. */
static CUresult check_overlap(const Matmul *x)
{
	uint64_t lo[4], hi[4];
	for (int i = 0; i < 4; i++)
		extent(x, i, &lo[i], &hi[i]);
	for (int i = 0; i < 3; i++) {
		bool in_place = i == 2 && x->p[2] == x->p[3] && memcmp(&x->l[2], &x->l[3], sizeof x->l[2]) == 0;
		if (i == 2 && x->beta == 0.0)
			continue;
		if (!in_place && lo[i] < hi[3] && lo[3] < hi[i])
			return dl_sim_violation(CUDA_ERROR_LAUNCH_FAILED, "cublasLtMatmul: the result overlaps an operand");
	}
	for (int i = 0; i < 4 && x->workspace_bytes; i++)
		if (lo[i] < x->workspace + x->workspace_bytes && x->workspace < hi[i])
			return dl_sim_violation(CUDA_ERROR_LAUNCH_FAILED, "cublasLtMatmul: the workspace overlaps an operand or the result");
	return CUDA_SUCCESS;
}

static CUresult run(const void *ctx)
{
	const Matmul *x = ctx;
	CUresult e = check_overlap(x);
	if (e == CUDA_SUCCESS && x->workspace_bytes)
		e = dl_sim_check_range(x->workspace, x->workspace_bytes, ACCESS_WRITE, "cublasLtMatmul, workspace");
	if (e == CUDA_SUCCESS && x->workspace_bytes)
		memset((void *)x->workspace, PATTERN, x->workspace_bytes);
	if (e == CUDA_SUCCESS)
		e = check_matrix(x, 0, ACCESS_READ, "cublasLtMatmul, A");
	if (e == CUDA_SUCCESS)
		e = check_matrix(x, 1, ACCESS_READ, "cublasLtMatmul, B");
	if (e == CUDA_SUCCESS && x->beta != 0.0)
		e = check_matrix(x, 2, ACCESS_READ, "cublasLtMatmul, C");
	if (e == CUDA_SUCCESS)
		e = check_matrix(x, 3, ACCESS_WRITE, "cublasLtMatmul, D");
	if (e == CUDA_SUCCESS)
		e = check_bias(x);
	if (e != CUDA_SUCCESS)
		return e;
	Sums s = {.m = (int64_t)x->l[3].rows, .n = (int64_t)x->l[3].cols, .k = (int64_t)(x->d.trans[0] ? x->l[0].rows : x->l[0].cols),
		  .wide = x->d.compute == CUBLAS_COMPUTE_64F};
	size_t size = s.wide ? sizeof(double) : sizeof(float);
	s.a = malloc((size_t)(s.m * s.k) * size);
	s.b = malloc((size_t)(s.k * s.n) * size);
	s.c = malloc((size_t)(s.m * s.n) * size);
	bool room = s.a && s.b && s.c;
	for (int64_t b = 0; b < x->l[3].batch && room; b++)
		multiply(x, b, &s);
	free(s.a);
	free(s.b);
	free(s.c);
	return room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a, cublasLtMatrixLayout_t la, const void *b,
			      cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *out, cublasLtMatrixLayout_t lo,
			      const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes, void *stream)
{
	(void)h;
	Matmul x = {.d = *d, .l = {*la, *lb, *lc, *lo}, .p = {(uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)out}, .workspace = (uint64_t)workspace};
	const char *why = illegal(d, x.l);
	if (why)
		return refuse("cublasLtMatmul", why, CUBLAS_STATUS_INVALID_VALUE);
	float f[2];
	double w[2];
	memcpy(&f[0], alpha, 4), memcpy(&f[1], beta, 4);
	if (d->scale == CUDA_R_64F)
		memcpy(&w[0], alpha, 8), memcpy(&w[1], beta, 8);
	x.alpha = d->scale == CUDA_R_64F ? w[0] : (double)f[0];
	x.beta = d->scale == CUDA_R_64F ? w[1] : (double)f[1];
	for (int i = 0; i < 4; i++)
		if (x.p[i] % type_size(x.l[i].type) != 0)
			return refuse("cublasLtMatmul", "an operand is not aligned to its type", CUBLAS_STATUS_INVALID_VALUE);
	if (algo) {
		if (algo->data[0] != ALGO_MAGIC)
			return refuse("cublasLtMatmul", "the algorithm is not one of cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_INVALID_VALUE);
		if (algo->data[2] > workspace_bytes)
			return refuse("cublasLtMatmul", "the workspace is smaller than the algorithm's", CUBLAS_STATUS_INVALID_VALUE);
		x.workspace_bytes = (size_t)algo->data[2];
		for (int i = 0; i < 4; i++)
			if (x.p[i] % algo->data[3 + i] != 0 && !(i == 2 && x.beta == 0.0))
				return refuse("cublasLtMatmul", "an operand is not aligned as the preference promised (256 bytes where nothing was set)", CUBLAS_STATUS_INVALID_VALUE);
	}
	if (x.workspace_bytes && x.workspace % 16 != 0)
		return refuse("cublasLtMatmul", "the workspace is no multiple of 16", CUBLAS_STATUS_INVALID_VALUE);
	return dl_sim_enqueue(stream, run, &x, sizeof x) == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

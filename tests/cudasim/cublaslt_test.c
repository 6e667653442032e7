/* cublasLtMatmul of the simulator against plain loops over all of its layouts, and what it refuses or finds out. */
#include <math.h>

#include "check.h"
#include "cublaslt.h"

enum { SPACE = 1 << 16, A_AT = 0, B_AT = SPACE, C_AT = 2 * SPACE, D_AT = 3 * SPACE, BIAS_AT = 4 * SPACE, AUX_AT = 5 * SPACE, WORK_AT = 6 * SPACE, ALL = 7 * SPACE };

typedef struct Problem {
	int type, out, compute, ta, tb, row, batch, epilogue;
	int64_t m, n, k, pad; /* pad: how much leading dimensions are longer */
	float alpha, beta;
	bool in_place, broadcast; /* C is D; B is the same for all batches */
	/* faults */
	int64_t ld_less, shift_a, short_work, no_b, overlap, unaligned;
} Problem;

typedef struct Layout {
	int64_t rows, cols, ld, stride;
} Layout;

static uint16_t narrow(float f, int type)
{
	uint32_t u;
	memcpy(&u, &f, 4);
	if (type == CUDA_R_16BF)
		return (uint16_t)(u >> 16); /* values here fit */
	return f == 0.0f ? 0 : (uint16_t)(((u >> 16) & 0x8000u) | ((((u >> 23) & 255u) - 112u) << 10) | ((u >> 13) & 1023u));
}

static double widen(uint16_t h, int type)
{
	uint32_t u = (uint32_t)h << 16;
	float f;
	memcpy(&f, &u, 4);
	if (type == CUDA_R_16BF)
		return (double)f;
	int e = (h >> 10) & 31;
	double v = e ? ldexp(1024 + (h & 1023), e - 25) : ldexp(h & 1023, -24);
	return h & 0x8000 ? -v : v;
}

static size_t size_of(int type)
{
	return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static void put(unsigned char *to, int type, double v)
{
	float f = (float)v;
	uint16_t h = narrow(f, type);
	memcpy(to, type == CUDA_R_64F ? (void *)&v : type == CUDA_R_32F ? (void *)&f : (void *)&h, size_of(type));
}

static double get(const unsigned char *from, int type)
{
	double d;
	float f;
	uint16_t h;
	switch (type) {
	case CUDA_R_64F: memcpy(&d, from, 8); return d;
	case CUDA_R_32F: memcpy(&f, from, 4); return (double)f;
	default: memcpy(&h, from, 2); return widen(h, type);
	}
}

static double small(int64_t i)
{
	return (double)((i * 7 + 3) % 11 - 5);
}

static Layout layout(const Problem *p, int64_t rows, int64_t cols)
{
	int64_t ld = (p->row ? cols : rows) + p->pad;
	return (Layout){rows, cols, ld, ld * (p->row ? rows : cols)};
}

static int64_t at(const Problem *p, const Layout *l, int64_t b, int64_t r, int64_t c)
{
	return b * l->stride + (p->row ? r * l->ld + c : c * l->ld + r);
}

static cublasLtMatrixLayout_t make(const Problem *p, const Layout *l, int type, int64_t stride, int64_t less)
{
	cublasLtMatrixLayout_t x;
	int order = p->row ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
	cublasLtMatrixLayoutCreate(&x, type, (uint64_t)l->rows, (uint64_t)l->cols, l->ld - less);
	cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
	cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &p->batch, sizeof p->batch);
	cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride);
	return x;
}

static double gelu(double x)
{
	return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* What the epilogue makes of a value; aux and bias are functions of the place. */
static double finish_value(const Problem *p, int64_t i, double v)
{
	int e = p->epilogue;
	if (e & CUBLASLT_EPILOGUE_BIAS)
		v += small(i + 5);
	if (e == CUBLASLT_EPILOGUE_DGELU || e == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
		double x = 0.25 * small(i), h = 1e-5;
		return v * (gelu(x + h) - gelu(x - h)) / (2 * h);
	}
	if (e & CUBLASLT_EPILOGUE_RELU)
		v = v > 0 ? v : 0;
	return e & CUBLASLT_EPILOGUE_GELU ? gelu(v) : v;
}

#define MUST(x) \
	do { \
		int must = (int)(x); \
		if (must) { \
			fprintf(stderr, "line %d: %s: %d\n", __LINE__, #x, must); \
			return 1; \
		} \
	} while (0)

static int set_desc(const Problem *p, cublasLtMatmulDesc_t d, CUdeviceptr base)
{
	int64_t ld = (p->m + 7) / 8 * 8, zero = 0;
	uint64_t bias = base + BIAS_AT, aux = base + AUX_AT;
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSA, &p->ta, 4));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_TRANSB, &p->tb, 4));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, 4));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, 8));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, &zero, 8));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, 8));
	MUST(cublasLtMatmulDescSetAttribute(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, 8));
	return 0;
}

static int compare(const Problem *p, const unsigned char *h, const Layout *la, const Layout *lb, const Layout *ld)
{
	size_t out = size_of(p->out);
	int64_t ldaux = (p->m + 7) / 8 * 8;
	double bound = p->out == CUDA_R_16BF ? 1.0 / 256 : p->out == CUDA_R_16F ? 1.0 / 2048 : p->type == CUDA_R_64F ? 1e-9 : 2e-5;
	for (int64_t b = 0; b < p->batch; b++)
		for (int64_t i = 0; i < p->m; i++) {
			double row_sum = 0, a_sum = 0;
			for (int64_t j = 0; j < p->n; j++) {
				double v = 0;
				for (int64_t k = 0; k < p->k; k++)
					v += small(at(p, la, b, p->ta ? k : i, p->ta ? i : k)) * small(1 + at(p, lb, p->broadcast ? 0 : b, p->tb ? j : k, p->tb ? k : j));
				v = (double)p->alpha * v + (double)p->beta * small(2 + at(p, ld, b, i, j));
				double pre = v + (p->epilogue & CUBLASLT_EPILOGUE_BIAS ? small(i + 5) : 0), got = get(h + D_AT + (size_t)at(p, ld, b, i, j) * out, p->out);
				v = finish_value(p, i, v);
				row_sum += v;
				if (fabs(got - v) > bound * (1 + fabs(v))) {
					fprintf(stderr, "[%d,%d,%d] is %g, not %g\n", (int)b, (int)i, (int)j, got, v);
					return 1;
				}
				if (p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX && fabs(get(h + AUX_AT + (size_t)(j * ldaux + i) * out, p->out) - pre) > bound * (1 + fabs(pre)))
					return fprintf(stderr, "aux\n"), 1;
			}
			for (int64_t k = 0; k < p->k; k++)
				a_sum += small(at(p, la, b, p->ta ? k : i, p->ta ? i : k));
			double want = p->epilogue == CUBLASLT_EPILOGUE_BGRADA ? a_sum : row_sum;
			if ((p->epilogue == CUBLASLT_EPILOGUE_BGRADA || p->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) &&
			    fabs(get(h + BIAS_AT + (size_t)i * out, p->out) - want) > 1e-4 * (1 + fabs(want)))
				return fprintf(stderr, "bias gradient %d\n", (int)i), 1;
		}
	for (int64_t j = 0; j < p->n && p->epilogue == CUBLASLT_EPILOGUE_BGRADB; j++) {
		double want = 0;
		for (int64_t k = 0; k < p->k; k++)
			want += small(1 + at(p, lb, 0, p->tb ? j : k, p->tb ? k : j));
		if (fabs(get(h + BIAS_AT + (size_t)j * out, p->out) - want) > 1e-4 * (1 + fabs(want)))
			return fprintf(stderr, "bias gradient %d\n", (int)j), 1;
	}
	return 0;
}

/* 0: right; the status of what was refused, or the error of the run, plus 1000. */
static int multiply(const Problem *p)
{
	static unsigned char h[ALL];
	Layout la = p->ta ? layout(p, p->k, p->m) : layout(p, p->m, p->k), lb = p->tb ? layout(p, p->n, p->k) : layout(p, p->k, p->n), ld = layout(p, p->m, p->n);
	size_t in = size_of(p->type), out = size_of(p->out);
	CUdeviceptr base;
	start();
	MUST(cuMemAlloc_v2(&base, ALL));
	for (int64_t i = 0; i < la.stride * p->batch; i++)
		put(h + A_AT + (size_t)i * in, p->type, small(i));
	for (int64_t i = 0; i < lb.stride * p->batch; i++)
		put(h + B_AT + (size_t)i * in, p->type, small(i + 1));
	for (int64_t i = 0; i < ld.stride * p->batch; i++)
		put(h + (p->in_place ? D_AT : C_AT) + (size_t)i * out, p->out, small(i + 2));
	for (int64_t i = 0; i < p->m; i++) {
		put(h + BIAS_AT + (size_t)i * out, p->out, small(i + 5));
		for (int64_t j = 0; j < p->n; j++)
			put(h + AUX_AT + (size_t)(j * ((p->m + 7) / 8 * 8) + i) * out, p->out, 0.25 * small(i));
	}
	for (int which = 0; which < 6; which++)
		if (!(p->no_b && which == 1) && !(which == 3 && !p->in_place))
			MUST(cuMemcpyHtoD_v2(base + (unsigned)which * SPACE, h + which * SPACE, SPACE));
	cublasLtHandle_t lt;
	cublasLtMatmulDesc_t d;
	cublasLtMatmulPreference_t pref;
	MUST(cublasLtCreate(&lt));
	MUST(cublasLtMatmulDescCreate(&d, p->compute, p->compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F));
	MUST(set_desc(p, d, base));
	cublasLtMatrixLayout_t a = make(p, &la, p->type, la.stride, p->ld_less), b = make(p, &lb, p->type, p->broadcast ? 0 : lb.stride, 0), c = make(p, &ld, p->out, ld.stride, 0),
			       dd = make(p, &ld, p->out, ld.stride, 0);
	uint64_t most = 4096;
	uint32_t align = 64;
	cublasLtMatmulHeuristicResult_t found[2];
	int n = 0;
	MUST(cublasLtMatmulPreferenceCreate(&pref));
	MUST(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, 8));
	for (int i = 0; i < 4 && !p->unaligned; i++)
		MUST(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, &align, 4));
	cublasStatus_t s = cublasLtMatmulAlgoGetHeuristic(lt, d, a, b, c, dd, pref, 2, found, &n);
	if (s)
		return 1000 + s;
	MUST(n != 2 || found[0].workspaceSize == 0 || found[0].workspaceSize > most || found[1].workspaceSize != 0);
	double one[2] = {(double)p->alpha, (double)p->beta};
	bool wide = p->compute == CUBLAS_COMPUTE_64F;
	CUdeviceptr pd = base + (p->overlap ? A_AT + (CUdeviceptr)p->overlap : D_AT), pc = p->in_place ? pd : base + C_AT;
	s = cublasLtMatmul(lt, d, wide ? (void *)&one[0] : (void *)(uintptr_t)&p->alpha, (void *)(base + A_AT + (CUdeviceptr)p->shift_a + (p->unaligned ? 64 : 0)), a, (void *)(base + B_AT), b,
			   wide ? (void *)&one[1] : (void *)(uintptr_t)&p->beta, (void *)pc, c, (void *)pd, dd, &found[0].algo, (void *)(base + WORK_AT),
			   found[0].workspaceSize - (size_t)p->short_work, NULL);
	if (s)
		return 1000 + s;
	CUresult e = cuCtxSynchronize();
	if (e)
		return 1000 + e;
	MUST(cuMemcpyDtoH_v2(h, base, ALL));
	for (size_t i = 0; i < found[0].workspaceSize; i++)
		MUST(h[WORK_AT + i] != 0xcb); /* all of what was asked for is overwritten */
	MUST(h[WORK_AT + found[0].workspaceSize] == 0xcb);
	return compare(p, h, &la, &lb, &ld);
}

typedef struct Planted {
	Problem p;
	int code;
	const char *name, *says;
} Planted;

static int body(const void *ctx)
{
	const Planted *x = ctx;
	int got = multiply(&x->p);
	if (got != x->code)
		fprintf(stderr, "result %d, not %d\n", got, x->code);
	return got != x->code;
}

static Problem plain(void)
{
	return (Problem){.type = CUDA_R_32F, .out = CUDA_R_32F, .compute = CUBLAS_COMPUTE_32F, .batch = 1, .epilogue = 1, .m = 13, .n = 9, .k = 21, .alpha = 1.0f};
}

static void layouts(void)
{
	static const int types[][3] = {{CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F}, {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F}, {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
				       {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F}, {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F}, {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F},
				       {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32}};
	for (int i = 0; i < 28; i++) {
		Planted x = {.p = plain(), .says = ""};
		char name[80];
		x.p.ta = i & 1;
		x.p.tb = (i >> 1) & 1;
		x.p.type = types[i / 4][0];
		x.p.out = types[i / 4][1];
		x.p.compute = types[i / 4][2];
		x.p.row = i % 3 == 2;
		x.p.batch = i % 4 == 3 ? 3 : 1;
		x.p.broadcast = x.p.batch > 1;
		x.p.pad = i % 5;
		x.p.beta = i % 2 ? 0.5f : 0.0f;
		x.p.alpha = i % 3 ? 1.0f : 2.0f;
		x.p.in_place = i % 4 == 1;
		snprintf(name, sizeof name, "types %d %d, ta %d, tb %d, row %d, batch %d", x.p.type, x.p.out, x.p.ta, x.p.tb, x.p.row, x.p.batch);
		apart(name, body, &x, 0, "");
	}
	static const int epilogues[] = {2, 4, 6, 32, 36, 160, 192, 208, 256, 512};
	for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++) {
		Planted x = {.p = plain(), .says = ""};
		char name[40];
		x.p.epilogue = epilogues[i];
		x.p.alpha = 0.03125f;
		snprintf(name, sizeof name, "epilogue %d", epilogues[i]);
		apart(name, body, &x, 0, "");
	}
}

static void faults(void)
{
	Planted v[9] = {{.code = 1000 + CUBLAS_STATUS_NOT_SUPPORTED, .name = "a leading dimension that is too small", .says = ""},
			{.code = 1700, .name = "an operand out of bounds", .says = "cublasLtMatmul, A: 52 bytes at allocation 1 + 0x70000, 0 bytes behind its end (458752 bytes), out of bounds"},
			{.code = 1000 + CUBLAS_STATUS_INVALID_VALUE, .name = "a short workspace", .says = "the workspace is smaller than the algorithm's"},
			{.code = 1700, .name = "an operand never written", .says = "cublasLtMatmul, B: reads memory never written, at allocation 1 + 0x10000"},
			{.code = 1719, .name = "a result over an operand", .says = "the result overlaps an operand"},
			{.code = 1000 + CUBLAS_STATUS_INVALID_VALUE, .name = "an alignment below the promised", .says = "an operand is not aligned as the preference promised"},
			{.code = 1000 + CUBLAS_STATUS_NOT_SUPPORTED, .name = "types that do not go together", .says = ""},
			{.code = 1000 + CUBLAS_STATUS_INVALID_VALUE, .name = "an operand between elements", .says = "an operand is not aligned to its type"},
			{.code = 1000 + CUBLAS_STATUS_NOT_SUPPORTED, .name = "a bias with rows in order", .says = ""}};
	for (size_t i = 0; i < sizeof v / sizeof *v; i++)
		v[i].p = plain();
	v[0].p.ld_less = 1;
	v[1].p.shift_a = ALL;
	v[2].p.short_work = 1;
	v[3].p.no_b = 1;
	v[4].p.overlap = 64;
	v[5].p.unaligned = 1;
	v[6].p.out = CUDA_R_16BF;
	v[7].p.shift_a = 2;
	v[8].p.row = 1;
	v[8].p.epilogue = CUBLASLT_EPILOGUE_BIAS;
	for (size_t i = 0; i < sizeof v / sizeof *v; i++)
		apart(v[i].name, body, &v[i], 0, v[i].says);
}

int main(void)
{
	layouts();
	faults();
	return finish();
}

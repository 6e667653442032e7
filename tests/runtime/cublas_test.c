/* Matrix products on a card against direct loops in f64: types, transposes, batches that join and that do
 * not, shared operands, sizes of one; with guard bytes around the result. Prints "N passed, N failed". */
#include "runtime/prim_cublas.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = 8 << 20, WORK = 1 << 20, GUARD = 64, PLACE = 1 << 20, DIMS = PLAN_MAX_DIMS };

typedef struct Test {
	CudaApi cuda;
	CublasLib *lib;
	CuStream stream;
	CuPtr arena;
	unsigned char *host; /* the arena, on the host */
	unsigned state;
	int passed, failed;
} Test;

/* A product by its shape: [batch.., m, k] x [batch.., k, n]. */
typedef struct Case {
	const char *name;
	PlanDType dtype, out;
	int nbatch;
	int64_t batch[2], m, k, n;
	bool transposed_a, transposed_b;
	bool shared_b;    /* stride 0 on the batch axes */
	bool interleaved; /* the last batch axis lies within the rows, as the heads of attention do */
	enum { NO_SUM, SUM_APART, SUM_IN_PLACE } sum;
	PlanEpilogue epilogue;
} Case;

static const Case cases[] = {
	{ "plain", PD_F32, PD_NONE, 0, { 0 }, 7, 5, 9, false, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "a transposed", PD_F32, PD_NONE, 0, { 0 }, 7, 5, 9, true, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "b transposed", PD_F32, PD_NONE, 0, { 0 }, 7, 5, 9, false, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "both transposed", PD_F32, PD_NONE, 0, { 0 }, 16, 32, 24, true, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "f64", PD_F64, PD_NONE, 0, { 0 }, 6, 11, 4, false, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "bf16", PD_BF16, PD_NONE, 0, { 0 }, 16, 64, 32, false, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "f16", PD_F16, PD_NONE, 0, { 0 }, 16, 64, 32, true, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "bf16 to f32", PD_BF16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "f16 to f32", PD_F16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "a batch", PD_F32, PD_NONE, 1, { 3 }, 4, 6, 5, false, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "two batch axes that join", PD_F32, PD_NONE, 2, { 2, 3 }, 4, 6, 5, true, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "a shared operand", PD_F32, PD_NONE, 2, { 2, 3 }, 4, 6, 5, false, false, true, false, NO_SUM, EPILOGUE_NONE },
	{ "heads within rows", PD_F32, PD_NONE, 2, { 3, 2 }, 4, 8, 5, false, false, false, true, NO_SUM, EPILOGUE_NONE },
	{ "heads within rows, transposed", PD_BF16, PD_NONE, 2, { 3, 2 }, 8, 16, 8, true, true, false, true, NO_SUM, EPILOGUE_NONE },
	{ "one row", PD_F32, PD_NONE, 0, { 0 }, 1, 8, 4, false, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "one column", PD_F32, PD_NONE, 0, { 0 }, 6, 8, 1, false, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "one column, transposed", PD_F32, PD_NONE, 0, { 0 }, 6, 8, 1, true, true, false, false, NO_SUM, EPILOGUE_NONE },
	{ "an outer product", PD_F32, PD_NONE, 0, { 0 }, 6, 1, 8, false, false, false, false, NO_SUM, EPILOGUE_NONE },
	{ "added to a sum", PD_F32, PD_NONE, 0, { 0 }, 7, 5, 9, true, false, false, false, SUM_APART, EPILOGUE_NONE },
	{ "added in place", PD_F32, PD_NONE, 0, { 0 }, 7, 5, 9, true, false, false, false, SUM_IN_PLACE, EPILOGUE_NONE },
	{ "bf16 added in place", PD_BF16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, SUM_IN_PLACE, EPILOGUE_NONE },
	{ "f16 added to a sum", PD_F16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, SUM_APART, EPILOGUE_NONE },
	{ "a batch added to a sum", PD_F32, PD_NONE, 2, { 2, 3 }, 4, 6, 5, true, false, false, false, SUM_APART, EPILOGUE_NONE },
	{ "a bias", PD_F32, PD_NONE, 0, { 0 }, 16, 24, 8, false, true, false, false, NO_SUM, EPILOGUE_BIAS },
	{ "a bias in bf16", PD_BF16, PD_NONE, 0, { 0 }, 16, 24, 8, false, false, false, false, NO_SUM, EPILOGUE_BIAS },
	{ "a derivative of gelu", PD_F32, PD_NONE, 0, { 0 }, 16, 24, 8, false, true, false, false, NO_SUM, EPILOGUE_GELU_GRAD },
	{ "a derivative of gelu in f16", PD_F16, PD_NONE, 0, { 0 }, 16, 24, 8, false, false, false, false, NO_SUM, EPILOGUE_GELU_GRAD },
	{ "sums of a", PD_F32, PD_NONE, 0, { 0 }, 16, 24, 8, true, false, false, false, NO_SUM, EPILOGUE_SUMS_A },
	{ "sums of b", PD_F32, PD_NONE, 0, { 0 }, 16, 24, 8, true, false, false, false, NO_SUM, EPILOGUE_SUMS_B },
	{ "sums of a, f16 to f32, added in place", PD_F16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, SUM_IN_PLACE, EPILOGUE_SUMS_A },
	{ "sums of b, bf16 to f32, added to a sum", PD_BF16, PD_F32, 0, { 0 }, 24, 40, 8, true, false, false, false, SUM_APART, EPILOGUE_SUMS_B },
	{ "one number", PD_F32, PD_NONE, 1, { 1 }, 1, 1, 1, false, false, false, false, NO_SUM, EPILOGUE_NONE },
};

static int64_t type_size(PlanDType t)
{
	return t == PD_F64 ? 8 : t == PD_F32 ? 4 : 2;
}

/* Small multiples of 1/16 are exact in every type. */
static double next(Test *t)
{
	t->state = t->state * 1664525u + 1013904223u;
	return ((int)(t->state >> 24) % 33 - 16) / 16.0;
}

static void store(unsigned char *p, PlanDType t, double v)
{
	float f = (float)v;
	uint32_t bits;
	memcpy(&bits, &f, 4);
	uint16_t half = (uint16_t)(bits >> 16);
	if (t == PD_F16)
		half = v == 0 ? 0
			      : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 127 + 15) << 10 |
					   (bits >> 13 & 1023));
	if (t == PD_F64)
		memcpy(p, &v, 8);
	else if (t == PD_F32)
		memcpy(p, &f, 4);
	else
		memcpy(p, &half, 2);
}

static double load(const unsigned char *p, PlanDType t)
{
	double v;
	float f;
	uint16_t half;
	memcpy(&half, p, 2);
	if (t == PD_F64) {
		memcpy(&v, p, 8);
		return v;
	}
	if (t == PD_F16) {
		int e = half >> 10 & 31;
		v = e ? ldexp(1024 + (half & 1023), e - 25) : ldexp(half & 1023, -24);
		return half & 0x8000 ? -v : v;
	}
	uint32_t bits = (uint32_t)half << 16;
	memcpy(&f, t == PD_F32 ? (const void *)p : &bits, 4);
	return (double)f;
}

/* The strides of a matrix of rows x columns behind the case's batch axes. */
static void set_operand(PlanPrim *p, int role, const Case *c, int64_t rows, int64_t columns, bool transposed,
			bool shared)
{
	int64_t *dim = p->dims[role], *stride = p->strides[role];
	int b = c->nbatch;
	int64_t heads = c->interleaved ? c->batch[b - 1] : 1;
	for (int i = 0; i < b; i++)
		dim[i] = c->batch[i];
	dim[b] = rows;
	dim[b + 1] = columns;
	int64_t inner = transposed ? rows : columns, outer = transposed ? columns : rows;
	stride[transposed ? b : b + 1] = 1;
	stride[transposed ? b + 1 : b] = inner * heads;
	int64_t next_stride = inner * heads * outer;
	for (int i = b - 1; i >= 0; i--) {
		bool within = c->interleaved && i == b - 1;
		stride[i] = shared ? 0 : within ? inner : next_stride;
		next_stride *= within ? 1 : dim[i];
	}
}

static PlanPrim prim_of(const Case *c)
{
	PlanPrim p = { .kind = PRIM_MATMUL, .dtype = c->dtype, .out = c->out, .ndim = c->nbatch + 2,
		       .acc = c->sum != NO_SUM, .epilogue = c->epilogue, .work_bytes = WORK };
	set_operand(&p, 0, c, c->m, c->k, c->transposed_a, false);
	set_operand(&p, 1, c, c->k, c->n, c->transposed_b, c->shared_b);
	set_operand(&p, 2, c, c->m, c->n, false, false);
	return p;
}

/* The element of an operand at batch places i0, i1, row r and column s. */
static int64_t at(const PlanPrim *p, int role, int64_t i0, int64_t i1, int64_t r, int64_t s)
{
	int b = p->ndim - 2;
	const int64_t *stride = p->strides[role];
	return (b > 0 ? i0 * stride[0] : 0) + (b > 1 ? i1 * stride[1] : 0) + r * stride[b] +
	       s * stride[b + 1];
}

static bool copy(Test *t, bool in, Fail *f)
{
	CuResult e = in ? t->cuda.MemcpyHtoDAsync(t->arena, t->host, ARENA, t->stream)
			: t->cuda.MemcpyDtoHAsync(t->host, t->arena, ARENA, t->stream);
	return cuda_ok(&t->cuda, e, "copy", "the arena", f) &&
	       cuda_ok(&t->cuda, t->cuda.StreamSynchronize(t->stream), "wait", "the arena", f);
}

static double gelu_grad(double x)
{
	double c = sqrt(2 / M_PI), t = tanh(c * (x + 0.044715 * x * x * x));
	return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

static bool leaves_sums(const Case *c) { return c->epilogue == EPILOGUE_SUMS_A || c->epilogue == EPILOGUE_SUMS_B; }

/* Largest error of the sums of an operand, relative to the largest of them. */
static double compare_sums(const Test *t, const Case *c, const PlanPrim *p, const int64_t *off)
{
	bool of_a = c->epilogue == EPILOGUE_SUMS_A;
	double error = 0, most = 1e-30;
	for (int64_t i = 0; leaves_sums(c) && i < (of_a ? c->m : c->n); i++) {
		double want = 0, got = load(t->host + off[5] + i * 4, PD_F32);
		for (int64_t k = 0; k < c->k; k++)
			want += load(t->host + off[!of_a] + at(p, !of_a, 0, 0, of_a ? i : k, of_a ? k : i) * type_size(c->dtype), c->dtype);
		error = fabs(got - want) <= error ? error : fabs(got - want);
		most = fabs(want) > most ? fabs(want) : most;
	}
	return error / most;
}

/* Largest error against the loops, relative to the largest result; `start` is what the result's elements
 * were added to. */
static double compare(const Test *t, const Case *c, const PlanPrim *p, const int64_t *off, const float *start)
{
	int64_t size = type_size(c->dtype), n0 = c->nbatch > 0 ? c->batch[0] : 1;
	int64_t n1 = c->nbatch > 1 ? c->batch[1] : 1;
	PlanDType out = c->out ? c->out : c->dtype;
	double error = 0, most = 1e-30;
	for (int64_t i = 0; i < n0 * n1 * c->m * c->n; i++) {
		int64_t s = i % c->n, r = i / c->n % c->m, i1 = i / c->n / c->m % n1, i0 = i / c->n / c->m / n1;
		int64_t place = at(p, 2, i0, i1, r, s);
		double want = c->sum ? (double)start[place] : 0;
		for (int64_t k = 0; k < c->k; k++)
			want += load(t->host + off[0] + at(p, 0, i0, i1, r, k) * size, c->dtype) *
				load(t->host + off[1] + at(p, 1, i0, i1, k, s) * size, c->dtype);
		if (c->epilogue == EPILOGUE_BIAS)
			want += load(t->host + off[5] + s * size, c->dtype);
		if (c->epilogue == EPILOGUE_GELU_GRAD)
			want *= gelu_grad(load(t->host + off[5] + place * size, c->dtype));
		double got = load(t->host + off[2] + place * type_size(out), out);
		double d = fabs(got - want);
		error = d <= error ? error : d;
		most = fabs(want) > most ? fabs(want) : most;
	}
	return error / most;
}

static void run_case(Test *t, const Case *c)
{
	Fail f = { 0 };
	PlanPrim p = prim_of(c);
	PlanDType out = c->out ? c->out : c->dtype;
	/* a, b, result, workspace, sum, what the epilogue reads or leaves; and as the plan has them */
	int64_t n = 1, off[6] = { GUARD, PLACE + GUARD, 2 * PLACE + GUARD, 3 * PLACE, 5 * PLACE, 6 * PLACE };
	int64_t plan_off[6] = { off[0], off[1] }, start_at = c->sum == SUM_APART ? off[4] : off[2];
	float start[1024];
	int place = 2;
	if (c->epilogue && !leaves_sums(c))
		plan_off[place++] = off[5];
	if (c->sum)
		plan_off[place++] = start_at;
	plan_off[place++] = off[2];
	if (leaves_sums(c))
		plan_off[place++] = off[5];
	plan_off[place] = off[3];
	for (int i = 0; i < p.ndim; i++)
		n *= p.dims[2][i];
	memset(t->host, 0xff, ARENA);
	for (int role = 0; role < 2; role++)
		for (int64_t i = 0; i < PLACE / 16; i++)
			store(t->host + off[role] + i * type_size(c->dtype), c->dtype, next(t));
	for (int i = 0; c->sum && i < n; i++) {
		start[i] = (float)next(t);
		memcpy(t->host + start_at + i * 4, &start[i], 4);
	}
	for (int i = 0; c->epilogue && !leaves_sums(c) && i < n; i++)
		store(t->host + off[5] + i * type_size(c->dtype), c->dtype, next(t));
	bool ok = copy(t, true, &f);
	const CublasCall *call = ok ? cublas_bind(t->lib, &p, t->arena, plan_off, &f) : NULL;
	for (int run = 0; call && ok && run < (c->sum == SUM_IN_PLACE ? 1 : 2); run++) {
		LtStatus e = cublas_run(t->lib, call, t->stream);
		ok = !e || fail(&f, EXIT_BUG, "%s", cublas_error(e));
	}
	ok = ok && call && copy(t, false, &f);
	double error = ok ? compare(t, c, &p, off, start) : 1;
	int64_t end = off[2] + n * type_size(out);
	for (int i = 0; ok && i < GUARD; i++)
		ok = t->host[off[2] - 1 - i] == 0xff && t->host[end + i] == 0xff;
	ok = ok && error <= (type_size(out) == 2 ? 4e-3 : 1e-6) && compare_sums(t, c, &p, off) <= 1e-6;
	t->passed += ok;
	t->failed += !ok;
	if (!ok)
		printf("FAIL  %s: error %g, %s\n", c->name, error, f.text);
}

static void refused(Test *t, const char *name, PlanPrim p, const char *text)
{
	Fail f = { 0 };
	int64_t off[5] = { 0, PLACE, 2 * PLACE, 3 * PLACE, 4 * PLACE };
	bool ok = !cublas_bind(t->lib, &p, t->arena, off, &f) && strstr(f.text, text);
	t->passed += ok;
	t->failed += !ok;
	if (!ok)
		printf("FAIL  %s: %s\n", name, f.text);
}

int main(void)
{
	Fail f = { 0 };
	Test t = { .host = malloc(ARENA), .state = 1 };
	CuDevice card;
	CuContext context;
	if (!t.host || !cuda_open(&t.cuda, &f) ||
	    !cuda_ok(&t.cuda, t.cuda.DeviceGet(&card, 0), "card", "0", &f) ||
	    !cuda_ok(&t.cuda, t.cuda.DevicePrimaryCtxRetain(&context, card), "context", "", &f) ||
	    !cuda_ok(&t.cuda, t.cuda.CtxSetCurrent(context), "context", "", &f) ||
	    !cuda_ok(&t.cuda, t.cuda.StreamCreate(&t.stream, CU_STREAM_APART), "stream", "", &f) ||
	    !cuda_ok(&t.cuda, t.cuda.MemAlloc(&t.arena, ARENA), "memory", "", &f) ||
	    !(t.lib = cublas_lib_open(&f))) {
		printf("FAIL  open: %s\n0 passed, 1 failed\n", f.text);
		return 1;
	}
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		run_case(&t, &cases[i]);
	PlanPrim p = prim_of(&cases[0]);
	p.kind = PRIM_CONV;
	refused(&t, "a convolution", p, "matrix products alone");
	p = prim_of(&cases[0]);
	p.strides[2][0] = 1;
	p.strides[2][1] = p.dims[2][0];
	refused(&t, "a transposed result", p, "transposed result");
	p = prim_of(&cases[0]);
	p = prim_of(&cases[5]);
	p.acc = true;
	refused(&t, "a sum of 16 bits", p, "to a sum of f32");
	p = prim_of(&cases[0]);
	p.strides[0][1] = 2;
	refused(&t, "strides that no library takes", p, "strides of a matrix");
	cublas_lib_close(t.lib);
	t.cuda.MemFree(t.arena);
	t.cuda.StreamDestroy(t.stream);
	t.cuda.DevicePrimaryCtxRelease(card);
	free(t.host);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed != 0;
}

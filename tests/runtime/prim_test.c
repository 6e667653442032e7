/* Library calls against direct loops in f64: every kind, strides, groups, dilation, broadcasting,
 * slices of the batch; with guard bytes behind the workspace. Prints "N passed, N failed". */
#include "runtime/prim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = 192 << 20, GUARD = 64 };

typedef struct Test {
	PrimLib *lib;
	unsigned char *arena;
	unsigned state;
	int passed, failed;
} Test;

static float next(Test *t)
{
	t->state = t->state * 1664525u + 1013904223u;
	return (float)(t->state >> 8) / (1 << 24) - 0.5f;
}

static int64_t fill(Test *t, int64_t at, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		((float *)(void *)(t->arena + at))[i] = next(t);
	return (at + n * 4 + 127) / 64 * 64;
}

/* Runs the call twice (a second run must not depend on the first's scratch) and compares its result
 * with `want`. */
static void check_call(Test *t, PlanPrim *p, const int64_t *off, int64_t result, const double *want,
		       int64_t n, const char *name)
{
	int work_at = p->acc ? 4 : 3;
	bool in_place = p->acc && off[2] == off[3];
	float *copy = calloc((size_t)n, sizeof *copy);
	if (!copy)
		exit(2);
	memcpy(copy, t->arena + result, (size_t)n * sizeof *copy);
	char why[PRIM_WHY], info[PRIM_WHY];
	p->work_bytes = plan_prim_workspace(p, 2);
	prim_describe(p, 2, info);
	PrimCall *c = p->work_bytes < 0 ? NULL : prim_bind(t->lib, p, t->arena, off, why);
	int ok = c != NULL;
	for (int run = 0; ok && run < 2; run++) {
		memset(t->arena + off[work_at], 0xff, (size_t)p->work_bytes + GUARD);
		if (in_place)
			memcpy(t->arena + result, copy, (size_t)n * sizeof *copy);
		ok = prim_run(c);
	}
	double error = 0, most = 0;
	const float *got = (const float *)(const void *)(t->arena + result);
	for (int64_t i = 0; ok && i < n; i++) {
		double d = fabs((double)got[i] - want[i]);
		error = d <= error ? error : d;
		most = fabs(want[i]) > most ? fabs(want[i]) : most;
	}
	for (int i = 0; i < GUARD && ok; i++)
		ok = t->arena[off[work_at] + p->work_bytes + i] == 0xff;
	free(copy);
	ok = ok && error <= 1e-4 * most;
	t->passed += ok;
	t->failed += !ok;
	if (!ok)
		printf("FAIL  %s: error %g of %g, workspace %lld, %s %s\n", name, error, most,
		       (long long)p->work_bytes, info, c ? "" : "unbound");
}

/* The call as it is, and where the result can be added to a sum: to one that lies elsewhere, and in place. `off` ends with the
 * workspace, behind which the sum is put. */
static void check(Test *t, PlanPrim *p, const int64_t off[4], int64_t result, double *want, int64_t n,
		  const char *name)
{
	char text[160];
	check_call(t, p, off, result, want, n, name);
	if (p->kind != PRIM_MATMUL && p->kind != PRIM_CONV_GRAD_W)
		return;
	int64_t sum = off[3], work = fill(t, sum, n);
	const float *start = (const float *)(const void *)(t->arena + sum);
	for (int64_t i = 0; i < n; i++)
		want[i] += (double)start[i];
	p->acc = true;
	snprintf(text, sizeof text, "%s, added to a sum", name);
	check_call(t, p, (int64_t[]){ off[0], off[1], sum, result, work }, result, want, n, text);
	snprintf(text, sizeof text, "%s, added in place", name);
	check_call(t, p, (int64_t[]){ off[0], off[1], sum, sum, work }, sum, want, n, text);
}

typedef struct Conv {
	int64_t n, c, h, w, o, kh, kw, stride, pad, dilation, groups;
} Conv;

/* Adds each product of one tap to the result that `kind` asks for. */
static void direct(PlanPrimKind kind, const Conv *v, int64_t ho, int64_t wo, const float *x,
		   const float *w, const float *y, double *r)
{
	int64_t cg = v->c / v->groups, og = v->o / v->groups;
	for (int64_t n = 0; n < v->n; n++)
		for (int64_t o = 0; o < v->o; o++)
			for (int64_t c = 0; c < cg; c++)
				for (int64_t tap = 0; tap < v->kh * v->kw; tap++)
					for (int64_t at = 0; at < ho * wo; at++) {
						int64_t i = at / wo, j = at % wo, a = tap / v->kw,
							b = tap % v->kw;
						int64_t row = i * v->stride + a * v->dilation -
							      v->pad,
							col = j * v->stride + b * v->dilation -
							      v->pad;
						if (row < 0 || row >= v->h || col < 0 ||
						    col >= v->w)
							continue;
						int64_t xi = ((n * v->c + o / og * cg + c) * v->h +
							      row) * v->w +
							     col;
						int64_t wi = (o * cg + c) * v->kh * v->kw + tap,
							yi = (n * v->o + o) * ho * wo + at;
						if (kind == PRIM_CONV)
							r[yi] += (double)x[xi] * (double)w[wi];
						else if (kind == PRIM_CONV_GRAD_X)
							r[xi] += (double)y[yi] * (double)w[wi];
						else
							r[wi] += (double)y[yi] * (double)x[xi];
					}
}

static void conv(Test *t, PlanPrimKind kind, Conv v)
{
	int64_t ho = (v.h + 2 * v.pad - (v.kh - 1) * v.dilation - 1) / v.stride + 1;
	int64_t wo = (v.w + 2 * v.pad - (v.kw - 1) * v.dilation - 1) / v.stride + 1;
	PlanPrim p = { .kind = kind,
		       .dtype = PD_F32,
		       .ndim = 4,
		       .groups = v.groups,
		       .dims = { { v.n, v.c, v.h, v.w },
				 { v.o, v.c / v.groups, v.kh, v.kw },
				 { v.n, v.o, ho, wo } },
		       .stride = { v.stride, v.stride },
		       .pad = { v.pad, v.pad },
		       .dilation = { v.dilation, v.dilation } };
	int64_t nx = v.n * v.c * v.h * v.w, nw = v.o * (v.c / v.groups) * v.kh * v.kw,
		ny = v.n * v.o * ho * wo;
	int64_t x = 64, w = fill(t, x, nx), y = fill(t, w, nw), work = fill(t, y, ny);
	int64_t off[3][4] = { { x, w, y, work }, { y, w, x, work }, { x, y, w, work } };
	int64_t result[3] = { y, x, w }, count[3] = { ny, nx, nw };
	int k = kind == PRIM_CONV ? 0 : kind == PRIM_CONV_GRAD_X ? 1 : 2;
	char name[128];
	double *want = calloc((size_t)count[k], sizeof *want);
	if (!want)
		exit(2);
	direct(kind, &v, ho, wo, (float *)(void *)(t->arena + x), (float *)(void *)(t->arena + w),
	       (float *)(void *)(t->arena + y), want);
	snprintf(name, sizeof name, "conv kind %d: n %lld c %lld %lldx%lld o %lld k %lldx%lld", k,
		 (long long)v.n, (long long)v.c, (long long)v.h, (long long)v.w, (long long)v.o,
		 (long long)v.kh, (long long)v.kw);
	check(t, &p, off[k], result[k], want, count[k], name);
	free(want);
}

/* batch: leading dims, 0-terminated; bit 0 of `flags`: a transposed, 1: b transposed, 2: a
 * broadcast, 3: b broadcast */
static void matmul(Test *t, const int64_t *batch, int64_t m, int64_t k, int64_t n, int flags)
{
	PlanPrim p = { .kind = PRIM_MATMUL, .dtype = PD_F32 };
	int64_t rows[3] = { m, k, m }, columns[3] = { k, n, n }, total = 1;
	int nb = 0;
	while (batch[nb])
		total *= batch[nb++];
	p.ndim = nb + 2;
	for (int i = 0; i < 3; i++) {
		bool transposed = i < 2 && flags >> i & 1,
		     broadcast = i < 2 && flags >> (i + 2) & 1;
		int64_t stride = rows[i] * columns[i];
		p.dims[i][nb] = rows[i];
		p.dims[i][nb + 1] = columns[i];
		p.strides[i][nb] = transposed ? 1 : columns[i];
		p.strides[i][nb + 1] = transposed ? rows[i] : 1;
		for (int d = nb - 1; d >= 0; d--) {
			p.dims[i][d] = batch[d];
			p.strides[i][d] = broadcast ? 0 : stride;
			stride *= batch[d];
		}
	}
	int64_t a = 64, b = fill(t, a, total * m * k), c = fill(t, b, total * k * n),
		work = fill(t, c, total * m * n);
	const float *x = (float *)(void *)(t->arena + a), *y = (float *)(void *)(t->arena + b);
	double *want = calloc((size_t)(total * m * n), sizeof *want);
	char name[128];
	if (!want)
		exit(2);
	for (int64_t q = 0; q < total; q++)
		for (int64_t i = 0; i < m; i++)
			for (int64_t j = 0; j < n; j++)
				for (int64_t l = 0; l < k; l++)
					want[(q * m + i) * n + j] +=
						(double)x[(flags & 4 ? 0 : q * m * k) +
							  i * p.strides[0][nb] +
							  l * p.strides[0][nb + 1]] *
						(double)y[(flags & 8 ? 0 : q * k * n) +
							  l * p.strides[1][nb] +
							  j * p.strides[1][nb + 1]];
	snprintf(name, sizeof name, "matmul %lldx%lldx%lldx%lld flags %d", (long long)total,
		 (long long)m, (long long)k, (long long)n, flags);
	check(t, &p, (int64_t[]){ a, b, c, work }, c, want, total * m * n, name);
	free(want);
}

int main(void)
{
	static const Conv convs[] = {
		{ 64, 1, 14, 14, 32, 3, 3, 1, 1, 1, 1 },   { 32, 16, 28, 28, 32, 3, 3, 1, 1, 1, 1 },
		{ 6, 3, 9, 11, 5, 3, 2, 2, 1, 1, 1 },      { 4, 6, 9, 9, 10, 3, 3, 1, 2, 2, 2 },
		{ 64, 32, 14, 14, 32, 3, 3, 1, 1, 1, 32 }, { 17, 20, 7, 7, 20, 5, 5, 1, 2, 1, 1 },
		{ 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1 },       { 48, 24, 14, 14, 24, 1, 1, 1, 0, 1, 1 },
		{ 8, 8, 9, 9, 16, 2, 2, 2, 0, 1, 1 },      { 2, 4, 8, 8, 4, 3, 3, 3, 0, 1, 1 },
	};
	static const int64_t none[] = { 0 }, one[] = { 12, 0 }, two[] = { 3, 4, 0 };
	char why[PRIM_WHY];
	Test t = { .lib = prim_open(2, why), .arena = aligned_alloc(64, ARENA), .state = 1 };
	if (!t.lib || !t.arena)
		return 2;
	for (PlanPrimKind k = PRIM_CONV; k <= PRIM_CONV_GRAD_W; k++)
		for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
			conv(&t, k, convs[i]);
	for (int flags = 0; flags < 4; flags++) {
		matmul(&t, none, 64, 784, 128, flags);
		matmul(&t, none, 1, 5, 1, flags);
		matmul(&t, none, 7, 1, 9, flags);
		matmul(&t, one, 64, 32, 64, flags);
		matmul(&t, one, 1, 32, 10, flags);
		matmul(&t, one, 33, 65, 38, flags | 8);
		matmul(&t, one, 33, 65, 38, flags | 4);
		matmul(&t, two, 16, 8, 9, flags);
		matmul(&t, two, 16, 8, 9, flags | 8);
	}
	PlanPrim f64 = { .kind = PRIM_MATMUL,
			 .dtype = PD_F64,
			 .ndim = 2,
			 .dims = { { 2, 3 }, { 3, 4 }, { 2, 4 } },
			 .strides = { { 3, 1 }, { 4, 1 }, { 4, 1 } } };
	int offered = plan_prim_workspace(&f64, 2) != -1; /* oneDNN has no f64 on processors */
	t.passed += !offered;
	t.failed += offered;
	prim_close(t.lib);
	free(t.arena);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed != 0;
}

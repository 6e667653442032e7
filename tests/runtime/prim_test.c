/* Library calls against direct loops in f64: every kind, strides, groups, dilation, broadcasting,
 * slices of the batch; with guard bytes behind the workspace. Prints "N passed, N failed".
 *
 * In 16 bits, operands are small multiples of a power of two, so that f32 holds every sum exactly, in any order: the result
 * must be the sum rounded once, bit for bit, whether it comes out normal, subnormal, infinite or NaN. */
#include "runtime/narrow.h"
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

/* Adds to the result that `kind` asks for each product of one tap, of one channel of x and one of y: planes and the tap's weight
 * and gradient. */
static void direct_tap(PlanPrimKind kind, const Conv *v, const int64_t size[2], const int64_t tap[2], const float *x, float w,
		       const float *y, double *r, double *rw)
{
	for (int64_t i = 0; i < size[0]; i++) {
		int64_t row = i * v->stride + tap[0] * v->dilation - v->pad;
		if (row < 0 || row >= v->h)
			continue;
		for (int64_t j = 0; j < size[1]; j++) {
			int64_t col = j * v->stride + tap[1] * v->dilation - v->pad;
			int64_t xi = row * v->w + col, yi = i * size[1] + j;
			if (col < 0 || col >= v->w)
				continue;
			if (kind == PRIM_CONV)
				r[yi] += (double)x[xi] * (double)w;
			else if (kind == PRIM_CONV_GRAD_X)
				r[xi] += (double)y[yi] * (double)w;
			else
				*rw += (double)y[yi] * (double)x[xi];
		}
	}
}

static void direct(PlanPrimKind kind, const Conv *v, int64_t ho, int64_t wo, const float *x,
		   const float *w, const float *y, double *r)
{
	int64_t cg = v->c / v->groups, og = v->o / v->groups;
	for (int64_t n = 0; n < v->n; n++)
		for (int64_t o = 0; o < v->o; o++)
			for (int64_t c = 0; c < cg; c++)
				for (int64_t tap = 0; tap < v->kh * v->kw; tap++) {
					int64_t xi = (n * v->c + o / og * cg + c) * v->h * v->w, yi = (n * v->o + o) * ho * wo;
					int64_t wi = (o * cg + c) * v->kh * v->kw + tap;
					direct_tap(kind, v, (int64_t[]){ ho, wo }, (int64_t[]){ tap / v->kw, tap % v->kw }, x + xi,
						   w[wi], y + yi, r + (kind == PRIM_CONV ? yi : kind == PRIM_CONV_GRAD_X ? xi : 0),
						   r + (kind == PRIM_CONV_GRAD_W ? wi : 0));
				}
}

static PlanPrim conv_call(PlanPrimKind kind, Conv v, PlanDType type)
{
	int64_t ho = (v.h + 2 * v.pad - (v.kh - 1) * v.dilation - 1) / v.stride + 1;
	int64_t wo = (v.w + 2 * v.pad - (v.kw - 1) * v.dilation - 1) / v.stride + 1;
	PlanDType compute = plan_prim_compute(type);
	return (PlanPrim){ .kind = kind,
			   .dtype = type,
			   .compute = compute == type ? PD_NONE : compute,
			   .ndim = 4,
			   .groups = v.groups,
			   .dims = { { v.n, v.c, v.h, v.w },
				     { v.o, v.c / v.groups, v.kh, v.kw },
				     { v.n, v.o, ho, wo } },
			   .stride = { v.stride, v.stride },
			   .pad = { v.pad, v.pad },
			   .dilation = { v.dilation, v.dilation } };
}

static int64_t role_elems(const PlanPrim *p, int role)
{
	const int64_t *d = p->dims[role];
	return d[0] * d[1] * d[2] * d[3];
}

static void conv(Test *t, PlanPrimKind kind, Conv v)
{
	PlanPrim p = conv_call(kind, v, PD_F32);
	int64_t nx = role_elems(&p, 0), nw = role_elems(&p, 1), ny = role_elems(&p, 2);
	int64_t ho = p.dims[2][2], wo = p.dims[2][3];
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

/* ---- 16 bits ---- */

/* The nearest number of a 16-bit type, ties to even. */
static uint16_t nearest(PlanDType t, double v)
{
	int digits = t == PD_F16 ? 10 : 7, bias = t == PD_F16 ? 15 : 127;
	uint32_t sign = signbit(v) ? 0x8000 : 0, inf = (2 * (uint32_t)bias + 1) << digits;
	if (isnan(v))
		return (uint16_t)(sign | inf | 1);
	int e = isinf(v) ? bias + 1 : v == 0 ? 1 - bias : ilogb(v);
	e = e < 1 - bias ? 1 - bias : e;
	if (e > bias)
		return (uint16_t)(sign | inf);
	uint32_t bits = (uint32_t)nearbyint(ldexp(fabs(v), digits - e)) + ((uint32_t)(e + bias - 1) << digits);
	return (uint16_t)(sign | (bits < inf ? bits : inf));
}

static double number(PlanDType t, uint16_t h)
{
	int digits = t == PD_F16 ? 10 : 7, bias = t == PD_F16 ? 15 : 127, e = (h & 0x7fff) >> digits,
	    fraction = h & ((1 << digits) - 1);
	double v = e == 2 * bias + 1 ? (fraction ? (double)NAN : (double)INFINITY)
		   : e == 0	     ? ldexp(fraction, 1 - bias - digits)
				     : ldexp(fraction + (1 << digits), e - bias - digits);
	return h & 0x8000 ? -v : v;
}

static bool same(PlanDType t, uint16_t got, uint16_t want)
{
	return got == want || (isnan(number(t, got)) && isnan(number(t, want)));
}

static void count(Test *t, bool ok, const char *name, const char *what)
{
	t->passed += ok;
	t->failed += !ok;
	if (!ok)
		printf("FAIL  %s: %s\n", name, what);
}

/* Every number of the type, by itself and in the middle between it and the next, and one unit of f32 to either side; in
 * lengths around those of vectors and of what threads take. */
static void narrow(Test *t, PlanDType type)
{
	enum { ALL = 1 << 16, CASES = 4 * ALL };
	static const int64_t lengths[] = { 1, 2, 15, 17, 31, 33, 63, 4097, 16385, CASES - 1, CASES };
	uint16_t *all = malloc(CASES * sizeof *all), *got = malloc((CASES + 1) * sizeof *got);
	float *x = malloc((CASES + 1) * sizeof *x);
	char name[64];
	if (!all || !got || !x)
		exit(2);
	for (int i = 0; i < CASES; i++)
		all[i] = (uint16_t)((uint32_t)i * 40503);
	for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		int64_t n = lengths[l];
		bool ok = true;
		x[n] = 7;
		narrow_widen(type, all, x, n);
		for (int64_t i = 0; i < n; i++) {
			double want = number(type, all[i]);
			ok = ok && (isnan(want) ? isnan(x[i]) : (double)x[i] == want) && !signbit(x[i]) == !(all[i] & 0x8000);
		}
		snprintf(name, sizeof name, "%lld of type %d", (long long)n, type);
		count(t, ok && x[n] == 7, name, "widened");
	}
	for (int i = 0; i < ALL; i++) {
		uint16_t h = (uint16_t)((uint32_t)i * 40503);
		float at = (float)number(type, h), after = (float)number(type, (uint16_t)(h + 1));
		float middle = isinf(after) ? (float)(1.5 * (double)at - 0.5 * number(type, (uint16_t)(h - 1))) : at + (after - at) / 2;
		x[4 * i] = at;
		x[4 * i + 1] = middle;
		x[4 * i + 2] = nextafterf(middle, INFINITY);
		x[4 * i + 3] = nextafterf(middle, -INFINITY);
	}
	for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		int64_t n = lengths[l];
		bool ok = true;
		got[n] = 7;
		narrow_round(type, x, got, n);
		for (int64_t i = 0; i < n; i++)
			ok = ok && same(type, got[i], nearest(type, (double)x[i]));
		snprintf(name, sizeof name, "%lld of type %d", (long long)n, type);
		count(t, ok && got[n] == 7, name, "rounded");
	}
	free(all);
	free(got);
	free(x);
}

/* n multiples of `unit` in the arena, and in f32 at *copy; with a NaN and an infinity among them where asked. */
static int64_t fill_narrow(Test *t, PlanDType type, int64_t at, int64_t n, double unit, bool odd, float **copy)
{
	uint16_t *to = (uint16_t *)(void *)(t->arena + at);
	*copy = calloc((size_t)n, sizeof **copy);
	if (!*copy)
		exit(2);
	for (int64_t i = 0; i < n; i++) {
		double v = floor((double)next(t) * 80) * unit;
		v = odd && i == n / 3 ? (double)NAN : odd && i == n / 5 ? (double)INFINITY : v;
		to[i] = nearest(type, v);
		(*copy)[i] = (float)v;
	}
	return (at + n * 2 + 127) / 64 * 64;
}

/* Runs the call twice; its result must be `want`, rounded once. */
static void check_exact(Test *t, PlanPrim *p, const int64_t *off, int64_t result, const double *want, int64_t n, const char *name)
{
	int work_at = p->acc ? 4 : 3;
	char why[PRIM_WHY] = "not offered";
	unsigned char *const work = t->arena + off[work_at];
	p->work_bytes = plan_prim_workspace(p, 2);
	PrimCall *c = p->work_bytes < 0 ? NULL : prim_bind(t->lib, p, t->arena, off, why);
	bool ok = c != NULL;
	for (int run = 0; ok && run < 2; run++) {
		memset(work, 0xff, (size_t)p->work_bytes + GUARD);
		ok = prim_run(c);
	}
	const void *got = t->arena + result;
	int64_t bad = -1;
	for (int64_t i = 0; ok && bad < 0 && i < n; i++) {
		double wide = (double)((const float *)got)[p->out ? i : 0];
		bool fits = p->out ? wide == want[i] || (isnan(wide) && isnan(want[i]))
				   : same(p->dtype, ((const uint16_t *)got)[i], nearest(p->dtype, want[i]));
		bad = fits ? -1 : i;
	}
	if (bad >= 0)
		snprintf(why, sizeof why, "element %lld is not %g", (long long)bad, want[bad]);
	for (int i = 0; i < GUARD && ok && bad < 0; i++)
		if (work[p->work_bytes + i] != 0xff)
			ok = (snprintf(why, sizeof why, "byte %d behind the workspace is written", i), false);
	count(t, ok && bad < 0, name, why);
}

/* Products of two numbers are multiples of 2^-unit. */
static void conv_narrow(Test *t, PlanPrimKind kind, Conv v, PlanDType type, int unit, bool odd)
{
	PlanPrim p = conv_call(kind, v, type);
	int k = kind == PRIM_CONV ? 0 : kind == PRIM_CONV_GRAD_X ? 1 : 2, result = k == 0 ? 2 : k - 1;
	int64_t at[5] = { 64 }, n[3];
	float *copy[3];
	char name[160];
	for (int i = 0; i < 3; i++) {
		n[i] = role_elems(&p, i);
		at[i + 1] = fill_narrow(t, type, at[i], n[i], ldexp(1, i == 1 ? -unit / 4 : -(unit - unit / 4)),
					odd && i == (result == 0 ? 2 : 0), &copy[i]);
	}
	if (k == 2) { /* of x and y: together the unit as well */
		free(copy[2]);
		fill_narrow(t, type, at[2], n[2], ldexp(1, -unit / 4), false, &copy[2]);
	}
	double *want = calloc((size_t)n[result], sizeof *want);
	if (!want)
		exit(2);
	direct(kind, &v, p.dims[2][2], p.dims[2][3], copy[0], copy[1], copy[2], want);
	snprintf(name, sizeof name, "type %d unit 2^-%d, conv kind %d: n %lld c %lld %lldx%lld o %lld k %lldx%lld", type, unit, k,
		 (long long)v.n, (long long)v.c, (long long)v.h, (long long)v.w, (long long)v.o, (long long)v.kh, (long long)v.kw);
	int64_t from[3][2] = { { at[0], at[1] }, { at[2], at[1] }, { at[0], at[2] } };
	check_exact(t, &p, (int64_t[]){ from[k][0], from[k][1], at[result], at[3] }, at[result], want, n[result], name);
	if (k == 2) { /* as the sum of gradients wants it: in f32, alone and added to what is there */
		int64_t wide = at[3], work = (wide + n[1] * 4 + 127) / 64 * 64, work_of_sum = (work + n[1] * 4 + 127) / 64 * 64;
		float *sum = (float *)(void *)(t->arena + work);
		p.out = PD_F32;
		check_exact(t, &p, (int64_t[]){ at[0], at[2], wide, work }, wide, want, n[1], name);
		for (int64_t i = 0; i < n[1]; i++) {
			sum[i] = (float)(floor((double)next(t) * 80) * ldexp(1, -unit));
			want[i] += (double)sum[i];
		}
		p.acc = true;
		check_exact(t, &p, (int64_t[]){ at[0], at[2], work, wide, work_of_sum }, wide, want, n[1], name);
	}
	for (int i = 0; i < 3; i++)
		free(copy[i]);
	free(want);
}

/* ---- products ---- */

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
	/* Packed and not, in slices, grouped, depthwise, of odd sizes. */
	static const Conv narrow_convs[] = {
		{ 8, 1, 14, 14, 16, 3, 3, 1, 1, 1, 1 }, { 6, 3, 9, 11, 5, 3, 2, 2, 1, 1, 1 },  { 4, 6, 9, 9, 10, 3, 3, 1, 2, 2, 2 },
		{ 16, 32, 7, 7, 32, 3, 3, 1, 1, 1, 32 }, { 3, 20, 7, 7, 20, 5, 5, 1, 2, 1, 1 }, { 192, 8, 14, 14, 8, 1, 1, 1, 0, 1, 1 },
		{ 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1 },     { 5, 32, 9, 9, 16, 2, 2, 2, 0, 1, 1 },
	};
	static const int64_t none[] = { 0 }, one[] = { 12, 0 }, two[] = { 3, 4, 0 };
	char why[PRIM_WHY];
	Test t = { .lib = prim_open(2, why), .arena = aligned_alloc(64, ARENA), .state = 1 };
	if (!t.lib || !t.arena)
		return 2;
	for (PlanPrimKind k = PRIM_CONV; k <= PRIM_CONV_GRAD_W; k++)
		for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
			conv(&t, k, convs[i]);
	for (PlanDType type = PD_F16; type <= PD_BF16; type++) {
		static const int units[] = { -4, 26 }; /* in f16 some are infinite; many are subnormal */
		narrow(&t, type);
		for (PlanPrimKind k = PRIM_CONV; k <= PRIM_CONV_GRAD_W; k++)
			for (size_t i = 0; i < sizeof narrow_convs / sizeof *narrow_convs; i++)
				for (int u = 0; u < 2; u++)
					conv_narrow(&t, k, narrow_convs[i], type, units[u], u == 1 && i % 2);
	}
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

/* Kernels of a shape of their own, over one floating-point type: included with REAL float, S f32, and
 * for the types at hand with double, f64, or with REAL float, R f32 (the suffix of its functions)
 * and STORED, GET and PUT of a 16-bit type, bf16 or f16, whose numbers are computed with in f32. A
 * function does one unit of work (its first argument: a plane, a
 * row, a head); the kernel's text calls it in a parallel loop with literal sizes, into which it is
 * inlined, so the compiler specialises it.
 *
 * This file is compiled apart, with contraction on: each kernel is one op, which may use
 * multiply-add inside. Work is divided by shape, never by threads, wherever a sum could notice:
 * equal results for any number of threads. */

#define DL_CAT2(a, b) a##_##b
#define DL_CAT(a, b) DL_CAT2(a, b)
#define FN(name) DL_CAT(dl_##name, S)
#ifdef STORED
#define NARROW 1
#else
#define NARROW 0
#define R S
#define STORED REAL
#define GET(x) (x)
#define PUT(x) (x)
#endif
#define FR(name) DL_CAT(dl_##name, R)
#define VEC DL_CAT(dl_v, R)
#define VECU DL_CAT(dl_u, R)
/* Where sums into `to` are added up: 16-bit numbers in `work`, to be rounded once. */
#define DL_SUMS(to, work) (NARROW ? (REAL *)(work) : (REAL *)(void *)(to))

/* ---- parts of sums over tensors (part_sums) ---- */

/* Part u: of tensor k, whose parts begin with number first[k]. Element j goes to lane j % 16, the lanes are added as a tree. */
DL_INLINE const STORED *FN(part)(const int64_t u, const STORED *const *x, const int64_t *first, const int64_t *elems, int n,
				 int *count)
{
	int k = 0;
	while (k + 1 < n && first[k + 1] <= u)
		k++;
	const int64_t from = (u - first[k]) * 16384, left = elems[k] - from;
	*count = left < 16384 ? (int)left : 16384;
	return x[k] + from;
}

DL_INLINE void FN(part_squares)(const int64_t u, const STORED *const *x, const int64_t *first, const int64_t *elems, int n,
				const REAL by, REAL *r)
{
	int count, j = 0;
	const STORED *v = FN(part)(u, x, first, elems, n, &count);
	REAL lane[16] = { 0 };
	for (; j + 16 <= count; j += 16)
#pragma omp simd
		for (int l = 0; l < 16; l++) {
			const REAL s = GET(v[j + l]) * by;
			lane[l] += s * s;
		}
	for (int l = 0; j + l < count; l++) {
		const REAL s = GET(v[j + l]) * by;
		lane[l] += s * s;
	}
	for (int d = 8; d > 0; d /= 2)
		for (int l = 0; l < d; l++)
			lane[l] += lane[l + d];
	r[u] = lane[0];
}

DL_INLINE void FN(part_not_finite)(const int64_t u, const STORED *const *x, const int64_t *first, const int64_t *elems, int n,
				   const REAL by, int32_t *r)
{
	int count;
	const STORED *v = FN(part)(u, x, first, elems, n, &count);
	int32_t bad = 0;
#pragma omp simd reduction(+ : bad)
	for (int j = 0; j < count; j++) {
		const REAL s = GET(v[j]) * by;
		bad += !(s - s == 0);
	}
	r[u] = bad;
}

/* ---- pools: x [planes,H,W], y [planes,OH,OW] ---- */

#define DL_POOL_SIZES int H, int W, int OH, int OW, int kh, int kw, int sh, int sw, int ph, int pw

DL_INLINE int FN(inside)(int i, int n) { return i >= 0 && i < n; }

DL_INLINE void FN(max_pool2d)(const int64_t p, const STORED *x, STORED *y, DL_POOL_SIZES)
{
	const int whole = ph == 0 && pw == 0 && (OH - 1) * sh + kh <= H && (OW - 1) * sw + kw <= W;
	const STORED *xp = x + p * H * W;
	STORED *yp = y + p * OH * OW;
	for (int oh = 0; oh < OH; oh++)
#pragma omp simd
		for (int ow = 0; ow < OW; ow++) {
			REAL m = -INFINITY;
			for (int a = 0; a < kh; a++)
				for (int b = 0; b < kw; b++) {
					const int h = oh * sh - ph + a, w = ow * sw - pw + b;
					const int in =
						whole || (FN(inside)(h, H) & FN(inside)(w, W));
					const REAL v = in ? GET(xp[h * W + w]) : -INFINITY;
					m = (v > m) | (v != v) ? v : m;
				}
			yp[oh * OW + ow] = PUT(m);
		}
}

/* Where in the window that begins at (h0, w0) the first of its largest elements stands, a number that is none being larger than all, and in *m what it is;
 * -1: the window lies outside. `whole`: none of it does. */
DL_INLINE int FN(largest)(const STORED *xp, int h0, int w0, int whole, int H, int W, int kh, int kw, REAL *m)
{
	int best = -1;
	*m = -INFINITY;
	for (int a = 0; a < kh; a++)
		for (int b = 0; b < kw; b++) {
			const int h = h0 + a, w = w0 + b;
			const int in = whole || (FN(inside)(h, H) & FN(inside)(w, W));
			const REAL v = in ? GET(xp[h * W + w]) : -INFINITY;
			const int more = in & ((best < 0) | (v > *m) | ((v != v) & (*m == *m)));
			*m = more ? v : *m;
			best = more ? a * kw + b : best;
		}
	return best;
}

/* The same as max_pool2d, and where in its window each stands: for a gradient that does not find x again. */
DL_INLINE void FN(max_pool2d_index)(const int64_t p, const STORED *x, STORED *y, uint8_t *place, DL_POOL_SIZES)
{
	const int whole = ph == 0 && pw == 0 && (OH - 1) * sh + kh <= H && (OW - 1) * sw + kw <= W;
	const STORED *xp = x + p * H * W;
	STORED *yp = y + p * OH * OW;
	uint8_t *at = place + p * OH * OW;
	for (int oh = 0; oh < OH; oh++)
#pragma omp simd
		for (int ow = 0; ow < OW; ow++) {
			REAL m;
			at[oh * OW + ow] = (uint8_t)FN(largest)(xp, oh * sh - ph, ow * sw - pw, whole, H, W, kh, kw, &m);
			yp[oh * OW + ow] = PUT(m);
		}
}

/* Each window's gradient goes to the element at its place, which is found in x where `place` is NULL; one outside adds nowhere. */
DL_INLINE void FN(max_pool2d_scatter)(const int64_t p, const STORED *x, const uint8_t *place, const STORED *dy, STORED *dx, REAL *work,
				      DL_POOL_SIZES)
{
	const int whole = ph == 0 && pw == 0 && (OH - 1) * sh + kh <= H && (OW - 1) * sw + kw <= W;
	const int apart = whole && sh >= kh && sw >= kw;
	const int exact = apart && sh == kh && sw == kw && OH * kh == H && OW * kw == W;
	const STORED *xp = place ? NULL : x + p * H * W, *gp = dy + p * OH * OW;
	const uint8_t *at = place ? place + p * OH * OW : NULL;
	STORED *dp = dx + p * H * W;
	REAL *const sums = DL_SUMS(dp, work);
	if (!exact)
		memset(dp, 0, sizeof(STORED) * (size_t)(H * W));
	if (NARROW && !apart)
		memset(sums, 0, sizeof(REAL) * (size_t)(H * W));
	for (int oh = 0; oh < OH && apart; oh++)
#pragma omp simd
		for (int ow = 0; ow < OW; ow++) {
			REAL m;
			const int best = place ? at[oh * OW + ow] : FN(largest)(xp, oh * sh, ow * sw, 1, H, W, kh, kw, &m);
			STORED *to = dp + oh * sh * W + ow * sw;
			for (int a = 0; a < kh; a++)
				for (int b = 0; b < kw; b++)
					to[a * W + b] = best == a * kw + b ? gp[oh * OW + ow] : 0;
		}
	for (int i = 0; i < OH * OW && !apart; i++) {
		REAL m;
		const int h0 = i / OW * sh - ph, w0 = i % OW * sw - pw;
		const int best = place ? at[i] : FN(largest)(xp, h0, w0, 0, H, W, kh, kw, &m);
		const int h = h0 + best / kw, w = w0 + best % kw;
		if (best >= 0 && best < kh * kw && FN(inside)(h, H) && FN(inside)(w, W))
			sums[h * W + w] += GET(gp[i]);
	}
	for (int i = 0; NARROW && !apart && i < H * W; i++)
		dp[i] = PUT(sums[i]);
}

DL_INLINE void FN(max_pool2d_index_grad)(const int64_t p, const uint8_t *place, const STORED *dy, STORED *dx, REAL *work,
					 DL_POOL_SIZES)
{
	FN(max_pool2d_scatter)(p, NULL, place, dy, dx, work, H, W, OH, OW, kh, kw, sh, sw, ph, pw);
}

DL_INLINE void FN(max_pool2d_grad)(const int64_t p, const STORED *x, const STORED *dy, STORED *dx, REAL *work, DL_POOL_SIZES)
{
	FN(max_pool2d_scatter)(p, x, NULL, dy, dx, work, H, W, OH, OW, kh, kw, sh, sw, ph, pw);
}

DL_INLINE void FN(avg_pool2d)(const int64_t p, const STORED *x, STORED *y, DL_POOL_SIZES)
{
	const int whole = ph == 0 && pw == 0 && (OH - 1) * sh + kh <= H && (OW - 1) * sw + kw <= W;
	const STORED *xp = x + p * H * W;
	STORED *yp = y + p * OH * OW;
	for (int oh = 0; oh < OH; oh++)
#pragma omp simd
		for (int ow = 0; ow < OW; ow++) {
			REAL sum = 0;
			for (int a = 0; a < kh; a++)
				for (int b = 0; b < kw; b++) {
					const int h = oh * sh - ph + a, w = ow * sw - pw + b;
					const int in =
						whole || (FN(inside)(h, H) & FN(inside)(w, W));
					sum += in ? GET(xp[h * W + w]) : 0;
				}
			yp[oh * OW + ow] = PUT(sum / (REAL)(kh * kw));
		}
}

DL_INLINE void FN(avg_pool2d_grad)(const int64_t p, const STORED *dy, STORED *dx, REAL *work,
				   DL_POOL_SIZES)
{
	const STORED *gp = dy + p * OH * OW;
	STORED *dp = dx + p * H * W;
	REAL *const sums = DL_SUMS(dp, work);
	memset(sums, 0, sizeof(REAL) * (size_t)(H * W));
	for (int oh = 0; oh < OH; oh++)
		for (int ow = 0; ow < OW; ow++) {
			const REAL g = GET(gp[oh * OW + ow]) / (REAL)(kh * kw);
			for (int a = 0; a < kh; a++)
				for (int b = 0; b < kw; b++) {
					const int h = oh * sh - ph + a, w = ow * sw - pw + b;
					if (FN(inside)(h, H) && FN(inside)(w, W))
						sums[h * W + w] += g;
				}
		}
	for (int i = 0; NARROW && i < H * W; i++)
		dp[i] = PUT(sums[i]);
}

#if NARROW
#include "product.h"
#else
/* ---- products that the library does not offer (f64) ---- */

/* c [batch,M,N] = a b; as, bs: strides of a's and b's batch, row and column. */
DL_INLINE void FN(matmul)(const int64_t i, const REAL *a, const REAL *b, const REAL *sum, REAL *c, int64_t M,
			  int64_t N, int64_t K, int64_t ab, int64_t ar, int64_t ac, int64_t bb,
			  int64_t br, int64_t bc)
{
	const REAL *ai = a + i / M * ab + i % M * ar, *bi = b + i / M * bb;
	REAL *ci = c + i * N;
	for (int64_t j = 0; j < N; j++)
		ci[j] = sum ? sum[i * N + j] : 0;
	for (int64_t k = 0; k < K; k++)
#pragma omp simd
		for (int64_t j = 0; j < N; j++)
			ci[j] += ai[k * ac] * bi[k * br + j * bc];
}

/* x [N,C,H,W], w [O,C/G,kh,kw], y [N,O,OH,OW]; s, p, d: stride, padding, dilation. */
#define DL_CONV_SIZES                                                                             \
	int N, int C, int H, int W, int O, int G, int kh, int kw, int OH, int OW, int sh, int sw, \
		int ph, int pw, int dh, int dw

DL_INLINE void FN(conv2d)(const int64_t no, const REAL *x, const REAL *w, REAL *y, DL_CONV_SIZES)
{
	const int cg = C / G, og = O / G;
	const int n = (int)(no / O), o = (int)(no % O);
	for (int64_t i = 0; i < (int64_t)OH * OW; i++) {
		const int h0 = (int)(i / OW) * sh - ph, w0 = (int)(i % OW) * sw - pw;
		REAL sum = 0;
		for (int c = 0; c < cg; c++)
			for (int a = 0; a < kh; a++)
				for (int b = 0; b < kw; b++) {
					const int h = h0 + a * dh, v = w0 + b * dw;
					if (FN(inside)(h, H) && FN(inside)(v, W))
						sum += x[(((int64_t)n * C + o / og * cg + c) * H +
							  h) * W +
							 v] *
						       w[(((int64_t)o * cg + c) * kh + a) * kw + b];
				}
		y[no * OH * OW + i] = sum;
	}
}

DL_INLINE void FN(conv2d_grad_x)(const int64_t nc, const REAL *dy, const REAL *w, REAL *dx,
				 DL_CONV_SIZES)
{
	const int cg = C / G, og = O / G;
	const int n = (int)(nc / C), c = (int)(nc % C), g = c / cg;
	REAL *d = dx + nc * H * W;
	memset(d, 0, sizeof(REAL) * (size_t)H * (size_t)W);
	for (int o = g * og; o < (g + 1) * og; o++)
		for (int a = 0; a < kh; a++)
			for (int b = 0; b < kw; b++) {
				const REAL f = w[(((int64_t)o * cg + c % cg) * kh + a) * kw + b];
				const REAL *q = dy + ((int64_t)n * O + o) * OH * OW;
				for (int oh = 0; oh < OH; oh++)
					for (int ow = 0; ow < OW; ow++) {
						const int h = oh * sh - ph + a * dh,
							  v = ow * sw - pw + b * dw;
						if (FN(inside)(h, H) && FN(inside)(v, W))
							d[h * W + v] += q[oh * OW + ow] * f;
					}
			}
}

DL_INLINE void FN(conv2d_grad_w)(const int64_t oc, const REAL *x, const REAL *dy, const REAL *acc,
				 REAL *dw_, DL_CONV_SIZES)
{
	const int cg = C / G, og = O / G;
	const int o = (int)(oc / cg), c = (int)(oc % cg) + o / og * cg;
	for (int a = 0; a < kh; a++)
		for (int b = 0; b < kw; b++) {
			REAL sum = 0;
			for (int n = 0; n < N; n++)
				for (int oh = 0; oh < OH; oh++)
					for (int ow = 0; ow < OW; ow++) {
						const int h = oh * sh - ph + a * dh,
							  v = ow * sw - pw + b * dw;
						if (FN(inside)(h, H) && FN(inside)(v, W))
							sum += x[(((int64_t)n * C + c) * H + h) *
									 W +
								 v] *
							       dy[(((int64_t)n * O + o) * OH + oh) *
									  OW +
								  ow];
					}
			const int64_t at = (oc * kh + a) * kw + b;
			dw_[at] = acc ? acc[at] + sum : sum;
		}
}

/* ---- attention ---- */

/* c [8 x 16*V] = (add ? c : 0) + a b over K; element (i,k) of a is a[i*ar + k*ac]; b and c have
 * 16*V wide rows. */
#define DL_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

DL_INLINE void FN(tile2)(REAL *c, int64_t ldc, const REAL *a, int64_t ar, int64_t ac, const REAL *b,
			 int64_t ldb, int64_t K, int add)
{
#define X(i) VEC c##i = { 0 }, d##i = { 0 };
	DL_ROWS(X)
#undef X
	for (int64_t k = 0; k < K; k++) {
		const VEC b0 = *(const VECU *)(b + k * ldb), b1 = *(const VECU *)(b + k * ldb + 16);
		const REAL *ak = a + k * ac;
#define X(i)                     \
	c##i += ak[i * ar] * b0; \
	d##i += ak[i * ar] * b1;
		DL_ROWS(X)
#undef X
	}
#define X(i)                                               \
	if (add) {                                         \
		c##i += *(const VECU *)(c + i * ldc);      \
		d##i += *(const VECU *)(c + i * ldc + 16); \
	}                                                  \
	*(VECU *)(c + i * ldc) = c##i;                     \
	*(VECU *)(c + i * ldc + 16) = d##i;
	DL_ROWS(X)
#undef X
}

DL_INLINE void FN(tile1)(REAL *c, int64_t ldc, const REAL *a, int64_t ar, int64_t ac, const REAL *b,
			 int64_t ldb, int64_t K, int add)
{
#define X(i) VEC c##i = { 0 };
	DL_ROWS(X)
#undef X
	for (int64_t k = 0; k < K; k++) {
		const VEC b0 = *(const VECU *)(b + k * ldb);
		const REAL *ak = a + k * ac;
#define X(i) c##i += ak[i * ar] * b0;
		DL_ROWS(X)
#undef X
	}
#define X(i)                                          \
	if (add)                                      \
		c##i += *(const VECU *)(c + i * ldc); \
	*(VECU *)(c + i * ldc) = c##i;
	DL_ROWS(X)
#undef X
}

/* M a multiple of 8, N of 16. */
static __attribute__((noinline, unused)) void FN(mm)(REAL *c, int64_t ldc, const REAL *a,
						     int64_t ar, int64_t ac, const REAL *b,
						     int64_t ldb, int64_t M, int64_t N, int64_t K,
						     int add)
{
	for (int64_t j = 0; j + 32 <= N; j += 32)
		for (int64_t i = 0; i < M; i += 8)
			FN(tile2)(c + i * ldc + j, ldc, a + i * ar, ar, ac, b + j, ldb, K, add);
	if (N % 32)
		for (int64_t i = 0; i < M; i += 8)
			FN(tile1)
			(c + i * ldc + N - 16, ldc, a + i * ar, ar, ac, b + N - 16, ldb, K, add);
}

/* The transpose of packed rows: [Dp][n], for n = KB keys. */
DL_INLINE void FN(pack_columns)(REAL *to, const REAL *rows, int n, int Dp)
{
	for (int d = 0; d < Dp; d++)
		for (int i = 0; i < n; i++)
			to[d * n + i] = rows[i * Dp + d];
}

#endif

enum { FN(QB) = 32, FN(KB) = 64 };

/* Rows [r0, r0+n) of a head, times `by`, to [n][Dp], zeros beyond row T and column D. */
DL_INLINE void FN(pack_rows)(REAL *to, const STORED *from, int64_t ld, int64_t r0, int n, int64_t T,
			     int D, int Dp, REAL by)
{
	for (int i = 0; i < n; i++) {
		const STORED *f = from + (r0 + i) * ld;
		REAL *const to_i = to + (int64_t)i * Dp;
		if (r0 + i >= T) {
			memset(to_i, 0, sizeof(REAL) * (size_t)Dp);
			continue;
		}
#pragma omp simd
		for (int d = 0; d < D; d++)
			to_i[d] = GET(f[d]) * by;
		for (int d = D; d < Dp; d++)
			to_i[d] = 0;
	}
}

/* Elements of one thread's scratch. */
#define DL_ATTENTION_SCRATCH(T, Dp) ((((T) + 63) / 64 * 64) * (Dp)*2 + 32 * 64 + 32 * (Dp)*2)
#define DL_ATTENTION_GRAD_SCRATCH(T, Dp) \
	((((T) + 63) / 64 * 64) * ((Dp)*3 + 1) + 32 * 64 * 2 + 64 * (Dp)*6)

/* KV: heads of k and v, each of which serves H / KV heads of q; window 0: none. */
#define DL_ATTENTION_SIZES                                                             \
	int64_t T, int64_t TK, int H, int KV, int D, int causal, int64_t window, REAL scale

/* Query i meets the keys [first_key, last_key). */
DL_INLINE int64_t FN(first_key)(int64_t i, int64_t window)
{
	return window && i + 1 > window ? i + 1 - window : 0;
}

DL_INLINE int64_t FN(last_key)(int64_t i, int64_t TK, int causal, int64_t window)
{
	const int64_t end = causal ? i + 1 : window ? i + window : TK;
	return end < TK ? end : TK;
}

/* FlashAttention-2's forward pass: blocks of 32 queries against blocks of 64 keys, running maximum
 * and sum. A row whose keys are all masked gives zeros. */
DL_INLINE void FN(attention)(const int64_t bh, const STORED *q, int64_t ldq, const STORED *k,
			     int64_t ldk, const STORED *v, int64_t ldv, const unsigned char *mask,
			     STORED *y, REAL *lse, REAL *work, DL_ATTENTION_SIZES)
{
	enum { QB = FN(QB), KB = FN(KB) };
	const int Dp = (D + 15) / 16 * 16;
	const int64_t Tp = (TK + KB - 1) / KB * KB, each = DL_ATTENTION_SCRATCH(TK, Dp);
	const int64_t b = bh / H, h = bh % H, g = h / (H / KV);
	REAL *kt = work + each * omp_get_thread_num(), *vs = kt + Tp * Dp, *s = vs + Tp * Dp,
	     *o = s + QB * KB, *qs = o + QB * Dp;
	const STORED *kh = k + b * TK * ldk + g * D, *vh = v + b * TK * ldv + g * D,
		     *qh = q + b * T * ldq + h * D;
	const unsigned char *const valid = mask ? mask + b * TK : NULL;
	for (int64_t j = 0; j < Tp; j += KB) { /* vs holds the block's rows of k for a moment */
		FN(pack_rows)(vs, kh, ldk, j, KB, TK, D, Dp, 1);
		FR(pack_columns)(kt + j * Dp, vs, KB, Dp);
	}
	FN(pack_rows)(vs, vh, ldv, 0, (int)Tp, TK, D, Dp, 1);
	for (int64_t i0 = 0; i0 < T; i0 += QB) {
		REAL m[QB], l[QB];
		const int rows = T - i0 < QB ? (int)(T - i0) : QB;
		for (int i = 0; i < QB; i++) {
			m[i] = -INFINITY;
			l[i] = 0;
		}
		FN(pack_rows)(qs, qh, ldq, i0, QB, T, D, Dp, scale);
		const int64_t end = FN(last_key)(i0 + rows - 1, TK, causal, window);
		const int64_t begin = FN(first_key)(i0, window) / KB * KB;
		for (int64_t j0 = begin; j0 < end; j0 += KB) {
			FR(mm)(s, KB, qs, Dp, 1, kt + j0 * Dp, KB, QB, KB, D, 0);
			for (int i = 0; i < rows; i++) {
				REAL *si = s + i * KB;
				const int64_t stop = FN(last_key)(i0 + i, TK, causal, window);
				const int64_t first = FN(first_key)(i0 + i, window);
				const int n = stop - j0 < KB ? (int)(stop - j0) : KB;
				for (int j = n > 0 ? n : 0; j < KB; j++)
					si[j] = -INFINITY;
				for (int j = 0; j < KB && j0 + j < first; j++)
					si[j] = -INFINITY;
				for (int j = 0; valid && j < n; j++)
					si[j] = valid[j0 + j] ? si[j] : -INFINITY;
				const REAL top =
					FR(tree_max)(FR(lanes_max)(si, KB));
				const REAL max = top > m[i] || top != top ? top : m[i];
				const REAL base = max == -INFINITY ? 0 : max;
				const REAL fix = FR(exp)(m[i] - base);
#pragma omp simd
				for (int j = 0; j < KB; j++)
					si[j] = FR(exp)(si[j] - base);
				l[i] = l[i] * fix +
				       FR(tree_sum)(FR(lanes_sum)(si, KB));
				m[i] = max;
				if (j0 > begin)
					for (int d = 0; d < Dp; d++)
						o[i * Dp + d] *= fix;
			}
			const int64_t keys = end - j0 < KB ? end - j0 : KB;
			FR(mm)(o, Dp, s, KB, 1, vs + j0 * Dp, Dp, QB, Dp, keys, j0 > begin);
		}
		for (int i = 0; i < rows; i++) {
			STORED *yi = y + (b * T + i0 + i) * (int64_t)H * D + h * D;
			for (int d = 0; d < D; d++)
				yi[d] = l[i] == 0 ? 0 : PUT(o[i * Dp + d] / l[i]);
			lse[bh * T + i0 + i] = l[i] == 0 ? 0 : m[i] + FR(log)(l[i]);
		}
	}
}

/* FlashAttention-2's backward pass: P from the log-sum-exp, D = rowsum(dO * O); key blocks outside,
 * so that dK and dV are final after one sweep over the queries, and dQ adds up in order of the
 * keys. */
DL_INLINE void FN(attention_grad_head)(const int64_t b, const int64_t h, const STORED *q,
				       int64_t ldq, const STORED *k, int64_t ldk, const STORED *v,
				       int64_t ldv, const STORED *y, const REAL *lse,
				       const STORED *dy, const unsigned char *mask, STORED *dq,
				       int64_t lddq, REAL *sk, REAL *sv, int64_t lds, REAL *work,
				       DL_ATTENTION_SIZES)
{
	enum { QB = FN(QB), KB = FN(KB) };
	const int Dp = (D + 15) / 16 * 16;
	const int64_t Tp = (T + KB - 1) / KB * KB, ldo = (int64_t)H * D;
	const int64_t bh = b * H + h, g = h / (H / KV);
	const int more = h % (H / KV) > 0; /* sk and sv hold what the group's first heads gave */
	REAL *qs = work, *go = qs + Tp * Dp, *gq = go + Tp * Dp,
	     *dot = gq + Tp * Dp;
	REAL *s = dot + Tp, *p = s + QB * KB, *ks = p + QB * KB, *kt = ks + KB * Dp,
	     *vs = kt + KB * Dp;
	REAL *vt = vs + KB * Dp, *gk = vt + KB * Dp, *gv = gk + KB * Dp;
	const STORED *kh = k + b * TK * ldk + g * D, *vh = v + b * TK * ldv + g * D,
		     *qh = q + b * T * ldq + h * D;
	const unsigned char *const valid = mask ? mask + b * TK : NULL;
	const STORED *yh = y + b * T * ldo + h * D, *gh = dy + b * T * ldo + h * D;
	FN(pack_rows)(qs, qh, ldq, 0, (int)Tp, T, D, Dp, scale);
	FN(pack_rows)(go, gh, ldo, 0, (int)Tp, T, D, Dp, 1);
	for (int64_t i = 0; i < T; i++) {
		REAL sum = 0;
		for (int d = 0; d < D; d++)
			sum += GET(yh[i * ldo + d]) * GET(gh[i * ldo + d]);
		dot[i] = sum;
	}
	memset(gq, 0, sizeof(REAL) * (size_t)(Tp * Dp));
	for (int64_t j0 = 0; j0 < TK; j0 += KB) {
		const int keys = TK - j0 < KB ? (int)(TK - j0) : KB;
		FN(pack_rows)(ks, kh, ldk, j0, KB, TK, D, Dp, 1);
		FN(pack_rows)(vs, vh, ldv, j0, KB, TK, D, Dp, 1);
		FR(pack_columns)(kt, ks, KB, Dp);
		FR(pack_columns)(vt, vs, KB, Dp);
		memset(gk, 0, sizeof(REAL) * (size_t)(KB * Dp * 2));
		const int64_t begin = causal ? j0 : FN(first_key)(j0, window) / QB * QB;
		const int64_t end = FN(last_key)(j0 + KB - 1, T, 0, window);
		for (int64_t i0 = begin; i0 < end; i0 += QB) {
			const int rows = T - i0 < QB ? (int)(T - i0) : QB;
			FR(mm)(s, KB, qs + i0 * Dp, Dp, 1, kt, KB, QB, KB, D, 0);
			FR(mm)(p, KB, go + i0 * Dp, Dp, 1, vt, KB, QB, KB, D, 0);
			for (int i = 0; i < QB; i++) {
				const int64_t stop =
					i >= rows ? j0 : FN(last_key)(i0 + i, TK, causal, window);
				const int64_t first = FN(first_key)(i0 + i, window) - j0;
				const int n = stop - j0 < KB ? (int)(stop - j0) : KB;
				const REAL base = i < rows ? lse[bh * T + i0 + i] : 0,
					   sub = i < rows ? dot[i0 + i] : 0;
				REAL *si = s + i * KB, *pi = p + i * KB;
#pragma omp simd
				for (int j = 0; j < KB; j++) {
					const REAL e = FR(exp)(si[j] - base),
						   w = (j < n) & (j >= first) ? e : 0;
					si[j] = w;
					pi[j] = w * (pi[j] - sub);
				}
				for (int j = 0; valid && j < n; j++)
					if (!valid[j0 + j])
						si[j] = pi[j] = 0;
			}
			FR(mm)(gv, Dp, s, 1, KB, go + i0 * Dp, Dp, KB, Dp, QB, 1);
			FR(mm)(gk, Dp, p, 1, KB, qs + i0 * Dp, Dp, KB, Dp, QB, 1);
			FR(mm)(gq + i0 * Dp, Dp, p, KB, 1, ks, Dp, QB, Dp, KB, 1);
		}
		for (int j = 0; j < keys; j++)
			for (int d = 0; d < D; d++) {
				const int64_t at = (j0 + j) * lds + d;
				sk[at] = more ? sk[at] + gk[j * Dp + d] : gk[j * Dp + d];
				sv[at] = more ? sv[at] + gv[j * Dp + d] : gv[j * Dp + d];
			}
	}
	for (int64_t i = 0; i < T; i++)
		for (int d = 0; d < D; d++)
			dq[(b * T + i) * lddq + h * D + d] = PUT(gq[i * Dp + d] * scale);
}

/* The heads of q that share head bg of k and v, in order. dk and dv, whose rows are lddk apart, are sums over
 * them, in their places, or in 16 bits in the scratch. */
DL_INLINE void FN(attention_grad)(const int64_t bg, const STORED *q, int64_t ldq, const STORED *k,
				  int64_t ldk, const STORED *v, int64_t ldv, const STORED *y,
				  const REAL *lse, const STORED *dy, const unsigned char *mask,
				  STORED *dq, int64_t lddq, STORED *dk, STORED *dv, int64_t lddk,
				  REAL *work, DL_ATTENTION_SIZES)
{
	const int64_t heads = H / KV, b = bg / KV, g = bg % KV;
	const int64_t own = DL_ATTENTION_GRAD_SCRATCH(T, (D + 15) / 16 * 16),
		      each = own + (NARROW ? 2 * TK * D : 0), first = b * TK * lddk + g * D;
	REAL *const mine = work + each * omp_get_thread_num();
	REAL *const sk = DL_SUMS(dk + first, mine + own),
		    *const sv = DL_SUMS(dv + first, mine + own + TK * D);
	for (int64_t h = g * heads; h < (g + 1) * heads; h++)
		FN(attention_grad_head)
		(b, h, q, ldq, k, ldk, v, ldv, y, lse, dy, mask, dq, lddq, sk, sv, NARROW ? D : lddk,
		 mine, T, TK, H, KV, D, causal, window, scale);
	for (int64_t j = 0; NARROW && j < TK; j++)
		for (int d = 0; d < D; d++) {
			dk[first + j * lddk + d] = PUT(sk[j * D + d]);
			dv[first + j * lddk + d] = PUT(sv[j * D + d]);
		}
}

#undef FN
#undef FR
#undef R
#undef STORED
#undef GET
#undef PUT
#undef NARROW
#undef DL_SUMS
#undef VEC
#undef VECU
#undef DL_CAT
#undef DL_CAT2
#undef DL_POOL_SIZES
#undef DL_CONV_SIZES
#undef DL_ATTENTION_SIZES
#undef DL_ROWS

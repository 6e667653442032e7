/* Products of 16-bit matrices, in f32: a part of special.h, for a type STORED with GET and PUT.
 *
 * Method. The result is cut into tiles, each one unit of work. A tile's operands are widened a slab
 * of DL_SLAB inner elements at a time, into scratch of the thread's own: rows of a as they are
 * stored (tile2 reads either order), columns of b in panels of 32, so that the inner loop reads
 * both from the first cache; sums stay in f32 in the scratch until the tile is done.
 *
 * The order of a sum depends on its length alone: within a slab from its first element on, then
 * slab after slab. */

enum { FN(SLAB) = 256 };

/* Floats of one thread's scratch. */
#define DL_PRODUCT_SCRATCH(TM, TN) ((TM)*256 + (TN)*256 + (TM) * (TN))

/* n numbers, each `step` behind the one before. */
DL_INLINE void FN(widen_run)(REAL *to, const STORED *from, int64_t step, int n)
{
	if (step == 1) {
		FN(widen)(to, from, n);
		return;
	}
#pragma omp simd
	for (int i = 0; i < n; i++)
		to[i] = GET(from[i * step]);
}

/* n rows and kn columns of a, element (i,k) at a[i*ar + k*ac], to `to`, element (i,k) at to[i*SLAB
 * + k], or, where the rows are the ones that lie together, to[k*np + i]; zeros up to np rows. */
DL_INLINE void FN(widen_rows)(REAL *to, const STORED *a, int64_t ar, int64_t ac, int n, int np,
			      int kn)
{
	enum { SLAB = FN(SLAB) };
	if (ar == 1) {
		for (int k = 0; k < kn; k++) {
			FN(widen)(to + k * np, a + k * ac, n);
			for (int i = n; i < np; i++)
				to[k * np + i] = 0;
		}
		return;
	}
	for (int i = 0; i < n; i++)
		FN(widen_run)(to + i * SLAB, a + i * ar, ac, kn);
	for (int i = n; i < np; i++)
		memset(to + i * SLAB, 0, sizeof(REAL) * (size_t)kn);
}

/* kn rows and n columns of b, element (k,j) at b[k*br + j*bc], to panels of 32 columns. */
DL_INLINE void FN(widen_columns)(REAL *to, const STORED *b, int64_t br, int64_t bc, int n, int np,
				 int kn)
{
	enum { SLAB = FN(SLAB) };
	for (int j0 = 0; j0 < np; j0 += 32) {
		REAL *const panel = to + j0 * SLAB;
		const int w = n - j0 < 32 ? n - j0 : 32;
		if (w < 32)
			memset(panel, 0, sizeof(REAL) * (size_t)(32 * kn));
		if (bc == 1) {
			for (int k = 0; k < kn; k++)
				FN(widen)(panel + k * 32, b + k * br + j0, w);
			continue;
		}
		for (int j = 0; j < w; j++) {
			REAL run[SLAB];
			FN(widen_run)(run, b + (j0 + j) * bc, br, kn);
			for (int k = 0; k < kn; k++)
				panel[k * 32 + j] = run[k];
		}
	}
}

/* Tile u of c [batch,M,N] = a b, of TM by TN elements (multiples of 8 and 32); ab.. bc: strides of
 * batch, row and column. c is of the stored type, or f32 where `wide`; then it is sum + a b where there
 * is a sum, which may be c. */
static __attribute__((noinline, unused)) void
FN(matmul)(const int64_t u, const STORED *a, const STORED *b, const float *sum, void *c, REAL *work, int wide,
	   int64_t M, int64_t N, int64_t K, int64_t ab, int64_t ar, int64_t ac, int64_t bb,
	   int64_t br, int64_t bc, int TM, int TN)
{
	enum { SLAB = FN(SLAB) };
	const int64_t mt = (M + TM - 1) / TM, nt = (N + TN - 1) / TN;
	const int64_t g = u / (mt * nt), m0 = u / nt % mt * TM, n0 = u % nt * TN;
	const int m = M - m0 < TM ? (int)(M - m0) : TM, n = N - n0 < TN ? (int)(N - n0) : TN;
	const int mp = (m + 7) / 8 * 8, np = (n + 31) / 32 * 32;
	REAL *const wa = work + DL_PRODUCT_SCRATCH(TM, TN) * omp_get_thread_num(),
		    *const wb = wa + TM * SLAB, *const wc = wb + TN * SLAB;
	const STORED *const ag = a + g * ab + m0 * ar, *const bg = b + g * bb + n0 * bc;
	const int64_t to_row = ar == 1 ? 1 : SLAB, to_column = ar == 1 ? mp : 1;
	for (int64_t k0 = 0; k0 < K; k0 += SLAB) {
		const int kn = K - k0 < SLAB ? (int)(K - k0) : SLAB;
		FN(widen_rows)(wa, ag + k0 * ac, ar, ac, m, mp, kn);
		FN(widen_columns)(wb, bg + k0 * br, br, bc, n, np, kn);
		for (int j = 0; j < np; j += 32)
			for (int i = 0; i < mp; i += 8)
				FR(tile2)
				(wc + i * TN + j, TN, wa + i * to_row, to_row, to_column,
				 wb + j * SLAB, 32, kn, k0 > 0);
	}
	for (int i = 0; i < m; i++) {
		const int64_t at = (g * M + m0 + i) * N + n0;
		const REAL *const row = wc + i * TN;
		if (wide && sum) {
			float *const to = (float *)c + at;
#pragma omp simd
			for (int j = 0; j < n; j++)
				to[j] = sum[at + j] + row[j];
			continue;
		}
		if (wide) {
			memcpy((float *)c + at, row, sizeof(float) * (size_t)n);
			continue;
		}
		STORED *const to = (STORED *)c + at;
#pragma omp simd
		for (int j = 0; j < n; j++)
			to[j] = PUT(row[j]);
	}
}

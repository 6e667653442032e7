/* CUDA kernels of a shape of their own: pools and embeddings. Every function does one thread's part; sums are taken in f32
 * (f64 of f64) in a fixed order and rounded once. Nothing is added up atomically. */
#ifndef DL_CUDA_SPECIAL_H
#define DL_CUDA_SPECIAL_H

/* How a type is stored, and what it computes in. */
struct DlF32 {
	typedef float S;
	typedef float R;
	static DL_INLINE_MEMBER R get(S x) { return x; }
	static DL_INLINE_MEMBER S put(R x) { return x; }
};
struct DlF64 {
	typedef double S;
	typedef double R;
	static DL_INLINE_MEMBER R get(S x) { return x; }
	static DL_INLINE_MEMBER S put(R x) { return x; }
};
struct DlBf16 {
	typedef uint16_t S;
	typedef float R;
	static DL_INLINE_MEMBER R get(S x) { return dl_load_bf16(x); }
	static DL_INLINE_MEMBER S put(R x) { return dl_store_bf16(x); }
};
struct DlF16 {
	typedef uint16_t S;
	typedef float R;
	static DL_INLINE_MEMBER R get(S x) { return dl_load_f16(x); }
	static DL_INLINE_MEMBER S put(R x) { return dl_store_f16(x); }
};

/* ---- pools: x [planes,H,W], y [planes,OH,OW] ---- */

#define DL_POOL_SIZES int H, int W, int OH, int OW, int kh, int kw, int sh, int sw, int ph, int pw

/* The element of window (h0, w0) that a gradient goes to: the first of its largest. */
template <typename T> DL_INLINE int dl_pool_best(const typename T::S *xp, int h0, int w0, int H, int W, int kh, int kw)
{
	typename T::R m = -INFINITY;
	int best = -1;
	for (int h = h0; h < h0 + kh; h++)
		for (int w = w0; w < w0 + kw; w++) {
			if (h < 0 || h >= H || w < 0 || w >= W)
				continue;
			const typename T::R v = T::get(xp[h * W + w]);
			if (best < 0 || v > m || (v != v && m == m)) {
				m = v;
				best = h * W + w;
			}
		}
	return best;
}

/* Element t of y. */
template <typename T> DL_INLINE void dl_max_pool2d(int64_t t, const typename T::S *x, typename T::S *y, DL_POOL_SIZES)
{
	const int i = (int)(t % (OH * OW)), h0 = i / OW * sh - ph, w0 = i % OW * sw - pw;
	const typename T::S *xp = x + t / (OH * OW) * ((int64_t)H * W);
	typename T::R m = -INFINITY;
	for (int h = h0; h < h0 + kh; h++)
		for (int w = w0; w < w0 + kw; w++)
			if (h >= 0 && h < H && w >= 0 && w < W)
				m = dl_larger(m, T::get(xp[h * W + w]));
	y[t] = T::put(m);
}

/* The same, and where in its window it stands. */
template <typename T>
DL_INLINE void dl_max_pool2d_index(int64_t t, const typename T::S *x, typename T::S *y, uint8_t *place, DL_POOL_SIZES)
{
	const int i = (int)(t % (OH * OW)), h0 = i / OW * sh - ph, w0 = i % OW * sw - pw;
	const typename T::S *xp = x + t / (OH * OW) * ((int64_t)H * W);
	const int best = dl_pool_best<T>(xp, h0, w0, H, W, kh, kw);
	y[t] = T::put(T::get(xp[best]));
	place[t] = (uint8_t)((best / W - h0) * kw + best % W - w0);
}

template <typename T> DL_INLINE void dl_avg_pool2d(int64_t t, const typename T::S *x, typename T::S *y, DL_POOL_SIZES)
{
	const int i = (int)(t % (OH * OW)), h0 = i / OW * sh - ph, w0 = i % OW * sw - pw;
	const typename T::S *xp = x + t / (OH * OW) * ((int64_t)H * W);
	typename T::R sum = 0;
	for (int h = h0; h < h0 + kh; h++)
		for (int w = w0; w < w0 + kw; w++)
			if (h >= 0 && h < H && w >= 0 && w < W)
				sum = sum + T::get(xp[h * W + w]);
	y[t] = T::put(sum / (typename T::R)(kh * kw));
}

/* Windows [first, last] of one axis that hold element i. */
DL_INLINE int dl_first_window(int i, int k, int s, int p) { return i + p < k ? 0 : (i + p - k) / s + 1; }
DL_INLINE int dl_last_window(int i, int n, int s, int p)
{
	const int last = (i + p) / s;
	return last < n ? last : n - 1;
}

/* Element t of dx: the windows that hold it, in order. */
template <typename T>
DL_INLINE void dl_max_pool2d_grad(int64_t t, const typename T::S *x, const typename T::S *dy, typename T::S *dx, DL_POOL_SIZES)
{
	const int i = (int)(t % (H * W)), h = i / W, w = i % W;
	const int64_t plane = t / (H * W);
	const typename T::S *xp = x + plane * H * W, *gp = dy + plane * OH * OW;
	typename T::R sum = 0;
	const int first = dl_first_window(w, kw, sw, pw), last = dl_last_window(w, OW, sw, pw);
	for (int a = dl_first_window(h, kh, sh, ph); a <= dl_last_window(h, OH, sh, ph); a++)
		for (int b = first; b <= last; b++)
			if (dl_pool_best<T>(xp, a * sh - ph, b * sw - pw, H, W, kh, kw) == i)
				sum = sum + T::get(gp[a * OW + b]);
	dx[t] = T::put(sum);
}

/* The same from the places in the windows. */
template <typename T>
DL_INLINE void dl_max_pool2d_index_grad(int64_t t, const uint8_t *place, const typename T::S *dy, typename T::S *dx, DL_POOL_SIZES)
{
	const int i = (int)(t % (H * W)), h = i / W, w = i % W;
	const int64_t before = t / (H * W) * ((int64_t)OH * OW);
	typename T::R sum = 0;
	const int first = dl_first_window(w, kw, sw, pw), last = dl_last_window(w, OW, sw, pw);
	for (int a = dl_first_window(h, kh, sh, ph); a <= dl_last_window(h, OH, sh, ph); a++)
		for (int b = first; b <= last; b++)
			if (place[before + a * OW + b] == (h - a * sh + ph) * kw + w - b * sw + pw)
				sum = sum + T::get(dy[before + a * OW + b]);
	dx[t] = T::put(sum);
}

template <typename T>
DL_INLINE void dl_avg_pool2d_grad(int64_t t, const typename T::S *dy, typename T::S *dx, DL_POOL_SIZES)
{
	const int i = (int)(t % (H * W)), h = i / W, w = i % W;
	const typename T::S *gp = dy + t / (H * W) * ((int64_t)OH * OW);
	typename T::R sum = 0;
	const int first = dl_first_window(w, kw, sw, pw), last = dl_last_window(w, OW, sw, pw);
	for (int a = dl_first_window(h, kh, sh, ph); a <= dl_last_window(h, OH, sh, ph); a++)
		for (int b = first; b <= last; b++)
			sum = sum + T::get(gp[a * OW + b]) / (typename T::R)(kh * kw);
	dx[t] = T::put(sum);
}

/* ---- embeddings ----
 *
 * Indices outside of the table read zeros and add nowhere: what is computed from data must stay inside the arena whatever it
 * is. */

/* Word t of the result: rows of `per` words of BYTES. */
template <int BYTES, typename I>
DL_INLINE void dl_embedding(int64_t t, const void *table, const I *index, void *y, int64_t V, int per)
{
	typedef typename DlWord<BYTES>::T Word;
	const int64_t row = (int64_t)index[t / per];
	Word v = {};
	if (row >= 0 && row < V)
		v = ((const Word *)table)[row * per + t % per];
	((Word *)y)[t] = v;
}

/* The gradient: positions are put in order of the row that they chose, and of position within a row (a position's place is
 * the number of positions that come before it: T*T comparisons, which for a GPU is less than the traffic of the sums up to
 * some 10^5 positions). Then each row adds up its own. */

enum { DL_EMBED_BLOCK = 256, DL_EMBED_TILE = 1024 };

template <typename I> DL_INLINE int32_t dl_embed_key(const I *index, int64_t i, int64_t n, int64_t V)
{
	const int64_t row = i < n ? (int64_t)index[i] : V;
	return (int32_t)(row >= 0 && row < V ? row : V);
}

/* Position blockIdx.x * 256 + threadIdx.x: order[place] = position, key[place] = its row (V: none). */
template <typename I>
DL_INLINE void dl_embed_order(const I *index, int64_t n, int64_t V, int32_t *order, int32_t *key, int32_t *tile)
{
	const int64_t first = (int64_t)blockIdx.x * DL_EMBED_BLOCK, i = first + threadIdx.x;
	const int32_t own = dl_embed_key(index, i, n, V);
	int32_t place = 0;
	for (int64_t from = 0; from < n; from += DL_EMBED_TILE) {
		const int count = n - from < DL_EMBED_TILE ? (int)(n - from) : DL_EMBED_TILE;
		__syncthreads();
		for (int k = threadIdx.x; k < count; k += DL_EMBED_BLOCK)
			tile[k] = dl_embed_key(index, from + k, n, V);
		__syncthreads();
		for (int k = 0; k < count; k++)
			place += tile[k] < own || (tile[k] == own && from + k < i);
	}
	if (i < n) {
		order[place] = (int32_t)i;
		key[place] = own;
	}
}

/* start[r]: the first place of row r or a later one. Thread p of n + 1 writes those of rows up to its own, from the one
 * behind its predecessor's. */
DL_INLINE void dl_embed_starts(int64_t p, const int32_t *key, int64_t n, int64_t V, int32_t *start)
{
	const int64_t from = p > 0 ? (int64_t)key[p - 1] + 1 : 0, to = p < n ? (int64_t)key[p] : V;
	for (int64_t r = from; r <= to && r <= V; r++)
		start[r] = (int32_t)p;
}

/* Row blockIdx.x: X threads for columns, 256 / X strips. Place k of a row goes to strip k mod strips, which adds in order;
 * then the strips in order. The whole is added to `before`, which may be y, unless that is null. `sums`: 256 shared numbers. */
template <int X, typename T, typename To>
DL_INLINE void dl_embed_sum(const typename T::S *dy, const int32_t *order, const int32_t *start, const typename To::S *before,
			    typename To::S *y, int C, typename T::R *sums)
{
	const int strips = DL_EMBED_BLOCK / X, x = threadIdx.x % X, strip = threadIdx.x / X;
	const int64_t row = blockIdx.x;
	const int32_t from = start[row], to = start[row + 1];
	const int c = (int)blockIdx.y * X + x;
	typename T::R sum = 0;
	if (c < C)
#pragma unroll 4
		for (int32_t k = from + strip; k < to; k += strips)
			sum = sum + T::get(dy[(int64_t)order[k] * C + c]);
	if (strips > 1) {
		sums[threadIdx.x] = sum;
		__syncthreads();
		for (int s = 1; s < strips && strip == 0; s++)
			sum = sum + sums[s * X + x];
	}
	if (strip == 0 && c < C)
		y[row * C + c] = To::put(before ? To::get(before[row * C + c]) + sum : sum);
}

/* ---- parts of sums over tensors (part_sums) ---- */

enum { DL_PART_BLOCK = 256, DL_PART = 16384 };

/* Part `p` of a tensor, to r of the block: the sum of squares, or (BAD) how many are not finite. Units of 4 elements belong to the
 * threads in turn; a thread adds element e of its units to its sum e, then sums 2 and 1 apart; then lanes of a warp, then warps in
 * order. WORDS: units are read in words of 16 bytes. `warp`: shared by the block, one for each warp. */
template <typename T, typename Out, int BAD, int WORDS>
DL_INLINE void dl_part_sum(const typename T::S *x, int64_t elems, int64_t p, typename T::R by, Out *warp, Out *r)
{
	const int64_t left = elems - p * DL_PART;
	const int n = left < DL_PART ? (int)left : DL_PART;
	Out s[4] = { 0, 0, 0, 0 };
	x += p * DL_PART;
#pragma unroll 4
	for (int u = threadIdx.x * 4; u < n; u += DL_PART_BLOCK * 4) {
		__align__(16) typename T::S v[4];
		if (WORDS && u + 4 <= n) {
			dl_move<4 * sizeof(v[0])>(v, x + u);
		} else {
#pragma unroll
			for (int e = 0; e < 4; e++)
				v[e] = u + e < n ? x[u + e] : 0;
		}
#pragma unroll
		for (int e = 0; e < 4; e++) {
			const typename T::R y = T::get(v[e]) * by;
			s[e] += BAD ? u + e < n && !(y - y == 0) : y * y;
		}
	}
	Out d = dl_team_sum<32, Out>(0xffffffffu, (s[0] + s[2]) + (s[1] + s[3]));
	if (threadIdx.x % 32 == 0)
		warp[threadIdx.x / 32] = d;
	__syncthreads();
	if (threadIdx.x != 0)
		return;
	for (int w = 1; w < DL_PART_BLOCK / 32; w++)
		d = d + warp[w];
	r[blockIdx.x] = d;
}

#endif

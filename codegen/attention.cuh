/* Attention on CUDA, forward and backward, without the matrix of scores: CUDA C++ text behind scalar.h, mma.cuh and
 * tiles.cuh, whose engines do the products: tensor cores for 16 bits, multiply-add for f32.
 *
 * Method: online softmax (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018) over tiles as in
 * FlashAttention-2 (Dao, 2023). A thread block owns M rows (queries, or keys for dk and dv) and streams tiles of N rows of the other
 * side through shared memory, two stages deep where there is room: copies of the next tile run behind the products of this one,
 * with one barrier a tile. Each warp owns WARP_ROWS of the M rows, so everything but the streamed tiles is the warp's own. Tiles
 * that causality or the window rule out are never loaded; a warp skips those that are ruled out for its rows alone, and all where it has no row.
 *
 *     forward     S = q k'; P = exp(S - max) (f32); y += P v (P in 16 bits); y / sum
 *     grad_q      S, P = exp(S - lse); dP = dy v'; dS = P (dP - D); dq += dS k; D = rowsum(dy * y)
 *     grad_kv     the same transposed, over the queries of the group's heads in order: dv += P' dy, dk += dS' q; D of a tile is
 *                 computed while the one before is at work
 *
 * Both are one launch, so that no processor waits for the last blocks of the first.
 *
 * Backward computes S twice (7 products where one kernel with atomic sums into dq needs 5): so no atomics, and results do not depend on
 * scheduling. All sums have a fixed order.
 *
 * gpt2 124M, 16 bits, B 64, T 1024, 12 heads of 64 (a layer): forward reads q, k, v and writes y: 4 x 96 MiB and 3 MiB of lse, 206 GFLOP
 * of products halved by causality (103, and 6 % for the tiles on the diagonal); k and v come from L2 for all but the first of a head's
 * 8 blocks. Backward: grad_q reads q k v y dy, writes dq: 6 x 96 MiB, 155 GFLOP; grad_kv reads q k v y dy, writes dk dv: 7 x 96 MiB, 206 GFLOP. */
#ifndef DL_ATTENTION_CUH
#define DL_ATTENTION_CUH

/* ---- which keys a query meets ---- */

/* q [B,T,H*D], k and v [B,TK,KV*D] with rows LDQ, LDK, LDV apart; mask [B,TK]. WINDOW 0: none. Rows of dq are LDDQ apart, of dk and dv LDDK. */
template <int T_, int TK_, int H_, int KV_, int D_, bool CAUSAL_, int WINDOW_, bool MASK_, int LDQ_, int LDK_, int LDV_, int LDDQ_, int LDDK_,
	  bool WIDE_>
struct DlHeads {
	static constexpr int T = T_, TK = TK_, H = H_, KV = KV_, D = D_, WINDOW = WINDOW_;
	static constexpr bool CAUSAL = CAUSAL_, MASK = MASK_, WIDE = WIDE_;
	static constexpr int64_t LDQ = LDQ_, LDK = LDK_, LDV = LDV_, LDY = (int64_t)H_ * D_, LDDQ = LDDQ_, LDDK = LDDK_;

	/* Query i meets the keys [first, last). */
	static __device__ __forceinline__ int first_key(int i) { return WINDOW && i + 1 > WINDOW ? i + 1 - WINDOW : 0; }
	static __device__ __forceinline__ int last_key(int i)
	{
		const int end = CAUSAL ? i + 1 : WINDOW && WINDOW < TK - i ? i + WINDOW : TK;
		return end < TK ? end : TK;
	}
	/* Key j is met by the queries [first, last). */
	static __device__ __forceinline__ int first_query(int j) { return CAUSAL ? j : first_key(j); }
	static __device__ __forceinline__ int last_query(int j) { return WINDOW && WINDOW < T - j ? j + WINDOW : T; }
	static __device__ __forceinline__ bool meets(int i, int j) { return j >= first_key(i) && j < last_key(i); }
	/* Queries [i0, i1] and keys [j0, j1]: all meet; none does. */
	static __device__ __forceinline__ bool all_meet(int i0, int i1, int j0, int j1)
	{
		return j0 >= first_key(i1) && j1 < last_key(i0);
	}
	static __device__ __forceinline__ bool none_meets(int i0, int i1, int j0, int j1)
	{
		return j1 < first_key(i0) || j0 >= last_key(i1);
	}
};

#define DL_LOG2E 1.44269504f
#define DL_LN2 0.693147181f

/* ---- forward ---- */

/* One block: M queries of a head, the last ones first, since causal ones take longest.
 * Shared memory: q [M], then k and v [STAGES][N] each, rows of X::ROW; scratch of each warp; with a mask which keys count, [2][N] bytes. */
template <class X, class A, int WARPS, int STAGES>
DL_INLINE void dl_attention(const typename X::S *q, const typename X::S *k, const typename X::S *v, const unsigned char *mask,
			    typename X::S *y, float *lse, float scale)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int M = X::WARP_ROWS * WARPS, N = X::N, THREADS = WARPS * 32, BLOCKS = (A::T + M - 1) / M;
	const int tid = (int)threadIdx.x, warp = tid / 32;
	const int bh = (int)blockIdx.x / BLOCKS, i0 = (BLOCKS - 1 - (int)blockIdx.x % BLOCKS) * M;
	const int b = bh / A::H, h = bh % A::H, g = h / (A::H / A::KV);
	S *const qs = (S *)dl_shared, *const ks = qs + M * X::ROW, *const vs = ks + STAGES * N * X::ROW;
	float *const scratch = (float *)(vs + STAGES * N * X::ROW) + warp * X::SCRATCH;
	unsigned char *const valid = (unsigned char *)((float *)(vs + STAGES * N * X::ROW) + WARPS * X::SCRATCH);
	const S *const qh = q + (b * (int64_t)A::T + i0) * A::LDQ + h * A::D;
	const S *const kh = k + b * A::TK * A::LDK + g * A::D, *const vh = v + b * A::TK * A::LDV + g * A::D;
	S *const own = qs + warp * X::WARP_ROWS * X::ROW;
	const int w0 = i0 + warp * X::WARP_ROWS, w1 = w0 + X::WARP_ROWS - 1;
	const int end = A::last_key((i0 + M < A::T ? i0 + M : A::T) - 1), begin = A::first_key(i0) / N * N;

	const auto fetch = [&](int stage, int j0) {
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(ks + stage * N * X::ROW, kh + j0 * A::LDK, A::LDK, A::TK - j0);
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(vs + stage * N * X::ROW, vh + j0 * A::LDV, A::LDV, A::TK - j0);
		dl_copy_commit();
	};
	const auto counts = [&](int j) { return A::MASK && tid < N && j + tid < A::TK ? mask[b * (int64_t)A::TK + j + tid] : 0; };

	float m[X::R], l[X::R], o[X::R * X::OC];
	DL_UNROLL
	for (int r = 0; r < X::R; r++) {
		m[r] = -INFINITY;
		l[r] = 0.0f;
	}
	DL_UNROLL
	for (int i = 0; i < X::R * X::OC; i++)
		o[i] = 0.0f;
	const float sign = scale < 0.0f ? -1.0f : 1.0f, by = scale * sign * DL_LOG2E;

	dl_load_rows<E, M, X::W, A::D, THREADS, A::WIDE>(qs, qh, A::LDQ, A::T - i0);
	fetch(0, begin);
	if (A::MASK && tid < N)
		valid[tid] = (unsigned char)counts(begin);
	dl_copy_wait();
	__syncthreads();
	typename X::Held held;
	X::hold(held, own);
	int stage = 0;
	DL_ROLLED
	for (int j0 = begin; j0 < end; j0 += N) {
		const bool more = j0 + N < end;
		if (STAGES == 2 && more)
			fetch(stage ^ 1, j0 + N);
		const unsigned char next = (unsigned char)counts(j0 + N);
		const int at = STAGES == 2 ? stage * N * X::ROW : 0;
		if ((A::T % M == 0 || w0 < A::T) && !A::none_meets(w0, w1, j0, j0 + N - 1)) {
			float s[X::R * X::C];
			X::scores(s, held, own, ks + at);
			if (scale < 0.0f)
				DL_UNROLL
				for (int i = 0; i < X::R * X::C; i++)
					s[i] = -s[i];
			if (A::MASK || !A::all_meet(w0, w1, j0, j0 + N - 1))
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					DL_UNROLL
					for (int c = 0; c < X::C; c++)
						if (!A::meets(w0 + X::row(r), j0 + X::col(c)) ||
						    (A::MASK && !valid[stage * N + X::col(c)]))
							X::score(s, r, c) = -INFINITY;
			float fix[X::R];
			bool raised = false;
			DL_UNROLL
			for (int r = 0; r < X::R; r++) {
				float top = m[r];
				DL_UNROLL
				for (int c = 0; c < X::C; c++)
					top = fmaxf(top, X::score(s, r, c));
				top = dl_lanes_max<X::LANES>(top);
				const float base = top == -INFINITY ? 0.0f : top * by;
				fix[r] = dl_exp2(fmaf(m[r], by, -base));
				raised = raised || top != m[r];
				m[r] = top;
				float sum = 0.0f;
				DL_UNROLL
				for (int c = 0; c < X::C; c++) {
					float &p = X::score(s, r, c);
					p = dl_exp2(fmaf(p, by, -base));
					sum += p;
				}
				l[r] = fmaf(l[r], fix[r], sum);
			}
			if (__any_sync(0xffffffffu, raised)) /* seldom, after the first tiles; else every fix is 1 */
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					DL_UNROLL
					for (int c = 0; c < X::OC; c++)
						X::out(o, r, c) *= fix[r];
			X::add(o, s, vs + at, scratch);
		}
		if (STAGES == 1) {
			__syncthreads();
			if (more)
				fetch(0, j0 + N);
		}
		stage ^= 1;
		if (A::MASK && tid < N)
			valid[stage * N + tid] = next;
		dl_copy_wait();
		__syncthreads();
	}
	DL_UNROLL
	for (int r = 0; r < X::R; r++) {
		const float sum = dl_lanes_sum<X::LANES>(l[r]), inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
		DL_UNROLL
		for (int c = 0; c < X::OC; c++)
			X::out(o, r, c) *= inverse;
		const int i = w0 + X::row(r);
		if ((tid & (X::LANES - 1)) == 0 && i < A::T)
			lse[bh * (int64_t)A::T + i] = sum == 0.0f ? 0.0f : fmaf(m[r], by, dl_log2(sum)) * DL_LN2;
	}
	dl_store_rows<X, A::D, A::WIDE>(own, o, y + (b * (int64_t)A::T + w0) * A::LDY + h * A::D, A::LDY, A::T - w0, A::D);
}

/* ---- backward ---- */

/* rowsum(dy * y) of one row by LANES lanes, in all of them. */
template <class X, class A, int LANES> DL_INLINE float dl_row_dot(const typename X::S *y, const typename X::S *dy, bool there)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int PER = A::WIDE ? 16 / (int)sizeof(S) : 1;
	float sum = 0.0f;
	if (there)
		for (int c = ((int)threadIdx.x & (LANES - 1)) * PER; c < A::D; c += LANES * PER) {
			__align__(16) S a[PER], g[PER];
			if (A::WIDE) {
				*(uint4 *)(void *)a = *(const uint4 *)(y + c);
				*(uint4 *)(void *)g = *(const uint4 *)(dy + c);
			} else {
				a[0] = y[c];
				g[0] = dy[c];
			}
			DL_UNROLL
			for (int e = 0; e < PER; e++)
				sum = fmaf(E::load(a[e]), E::load(g[e]), sum);
		}
	return dl_lanes_sum<LANES>(sum);
}

/* dq. Block number `block`: M queries of a head.
 * Shared memory: q and dy [M] each, k and v [STAGES][N] each; scratch; which keys count. */
template <class X, class A, int WARPS, int STAGES>
DL_INLINE void dl_attention_grad_q(int block, const typename X::S *q, const typename X::S *k, const typename X::S *v, const typename X::S *y,
				   const float *lse, const typename X::S *dy, const unsigned char *mask, typename X::S *dq, float scale)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int M = X::WARP_ROWS * WARPS, N = X::N, THREADS = WARPS * 32, BLOCKS = (A::T + M - 1) / M;
	const int tid = (int)threadIdx.x, warp = tid / 32;
	const int bh = block / BLOCKS, i0 = (BLOCKS - 1 - block % BLOCKS) * M;
	const int b = bh / A::H, h = bh % A::H, g = h / (A::H / A::KV);
	S *const qs = (S *)dl_shared, *const gs = qs + M * X::ROW, *const ks = gs + M * X::ROW, *const vs = ks + STAGES * N * X::ROW;
	float *const scratch = (float *)(vs + STAGES * N * X::ROW) + warp * X::SCRATCH;
	unsigned char *const valid = (unsigned char *)((float *)(vs + STAGES * N * X::ROW) + WARPS * X::SCRATCH);
	const S *const kh = k + b * A::TK * A::LDK + g * A::D, *const vh = v + b * A::TK * A::LDV + g * A::D;
	const int w0 = i0 + warp * X::WARP_ROWS, w1 = w0 + X::WARP_ROWS - 1;
	const int end = A::last_key((i0 + M < A::T ? i0 + M : A::T) - 1), begin = A::first_key(i0) / N * N;
	const int64_t first = b * (int64_t)A::T * A::LDY + h * A::D;

	const auto fetch = [&](int stage, int j0) {
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(ks + stage * N * X::ROW, kh + j0 * A::LDK, A::LDK, A::TK - j0);
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(vs + stage * N * X::ROW, vh + j0 * A::LDV, A::LDV, A::TK - j0);
		dl_copy_commit();
	};
	const auto counts = [&](int j) { return A::MASK && tid < N && j + tid < A::TK ? mask[b * (int64_t)A::TK + j + tid] : 0; };

	dl_load_rows<E, M, X::W, A::D, THREADS, A::WIDE>(qs, q + (b * (int64_t)A::T + i0) * A::LDQ + h * A::D, A::LDQ, A::T - i0);
	dl_load_rows<E, M, X::W, A::D, THREADS, A::WIDE>(gs, dy + first + i0 * A::LDY, A::LDY, A::T - i0);
	fetch(0, begin);
	if (A::MASK && tid < N)
		valid[tid] = (unsigned char)counts(begin);
	float top[X::R], sub[X::R], o[X::R * X::OC];
	DL_UNROLL
	for (int i = 0; i < X::R * X::OC; i++)
		o[i] = 0.0f;
	DL_UNROLL
	for (int r = 0; r < X::R; r++) {
		const int i = w0 + X::row(r);
		const bool there = i < A::T;
		top[r] = there ? lse[bh * (int64_t)A::T + i] * DL_LOG2E : 0.0f;
		sub[r] = dl_row_dot<X, A, X::LANES>(y + first + i * A::LDY, dy + first + i * A::LDY, there);
	}
	const float by = scale * DL_LOG2E;
	S *const own = qs + warp * X::WARP_ROWS * X::ROW, *const own_g = gs + warp * X::WARP_ROWS * X::ROW;
	dl_copy_wait();
	__syncthreads();
	typename X::Held held, held_g;
	X::hold(held, own);
	X::hold(held_g, own_g);
	int stage = 0;
	DL_ROLLED
	for (int j0 = begin; j0 < end; j0 += N) {
		const bool more = j0 + N < end;
		if (STAGES == 2 && more)
			fetch(stage ^ 1, j0 + N);
		const unsigned char next = (unsigned char)counts(j0 + N);
		const int at = STAGES == 2 ? stage * N * X::ROW : 0;
		if ((A::T % M == 0 || w0 < A::T) && !A::none_meets(w0, w1, j0, j0 + N - 1)) {
			float s[X::R * X::C], p[X::R * X::C];
			X::scores(s, held, own, ks + at);
			DL_UNROLL
			for (int r = 0; r < X::R; r++)
				DL_UNROLL
				for (int c = 0; c < X::C; c++)
					X::score(s, r, c) = dl_exp2(fmaf(X::score(s, r, c), by, -top[r]));
			if (A::MASK || !A::all_meet(w0, w1, j0, j0 + N - 1))
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					DL_UNROLL
					for (int c = 0; c < X::C; c++)
						if (!A::meets(w0 + X::row(r), j0 + X::col(c)) ||
						    (A::MASK && !valid[stage * N + X::col(c)]))
							X::score(s, r, c) = 0.0f;
			X::scores(p, held_g, own_g, vs + at);
			DL_UNROLL
			for (int r = 0; r < X::R; r++)
				DL_UNROLL
				for (int c = 0; c < X::C; c++)
					X::score(s, r, c) *= X::score(p, r, c) - sub[r];
			X::add(o, s, ks + at, scratch);
		}
		if (STAGES == 1) {
			__syncthreads();
			if (more)
				fetch(0, j0 + N);
		}
		stage ^= 1;
		if (A::MASK && tid < N)
			valid[stage * N + tid] = next;
		dl_copy_wait();
		__syncthreads();
	}
	DL_UNROLL
	for (int i = 0; i < X::R * X::OC; i++)
		o[i] *= scale;
	dl_store_rows<X, A::D, A::WIDE>(own, o, dq + (b * (int64_t)A::T + w0) * A::LDDQ + h * A::D, A::LDDQ, A::T - w0, A::D);
}

/* dk and dv. Block number `number`: M keys of a head of k and v, and one of W / OW parts of their columns (what a lane can add up in registers);
 * the queries of the heads that share it, one head after another.
 * Shared memory: k and v [M] each, q and dy [STAGES][N] each; scratch; lse and D, [2][N] each. */
template <class X, class A, int WARPS, int STAGES>
DL_INLINE void dl_attention_grad_kv(int number, const typename X::S *q, const typename X::S *k, const typename X::S *v,
				    const typename X::S *y, const float *lse, const typename X::S *dy, const unsigned char *mask,
				    typename X::S *dk, typename X::S *dv, float scale)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int M = X::WARP_ROWS * WARPS, N = X::N, THREADS = WARPS * 32, BLOCKS = (A::TK + M - 1) / M;
	constexpr int PARTS = X::W / X::OW, HEADS = A::H / A::KV, DOTS = THREADS / N; /* DOTS: threads for D of a query */
	const int tid = (int)threadIdx.x, warp = tid / 32, part = number % PARTS;
	const int block = number / PARTS, bg = block / BLOCKS, j0 = block % BLOCKS * M;
	const int b = bg / A::KV, g = bg % A::KV;
	S *const ks = (S *)dl_shared, *const vs = ks + M * X::ROW, *const qs = vs + M * X::ROW, *const gs = qs + STAGES * N * X::ROW;
	float *const scratch = (float *)(gs + STAGES * N * X::ROW) + warp * X::SCRATCH;
	float *const tops = (float *)(gs + STAGES * N * X::ROW) + WARPS * X::SCRATCH, *const subs = tops + 2 * N;
	const int w0 = j0 + warp * X::WARP_ROWS, w1 = w0 + X::WARP_ROWS - 1;
	const int begin = A::first_query(j0) / N * N, end = A::last_query((j0 + M < A::TK ? j0 + M : A::TK) - 1);
	const float by = scale * DL_LOG2E;

	/* The tile of queries from i on of head h of the group. */
	const auto fetch = [&](int stage, int h, int i) {
		const int64_t at = b * (int64_t)A::T + i;
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(qs + stage * N * X::ROW, q + at * A::LDQ + h * A::D, A::LDQ, A::T - i);
		dl_load_rows<E, N, X::W, A::D, THREADS, A::WIDE>(gs + stage * N * X::ROW, dy + at * A::LDY + h * A::D, A::LDY, A::T - i);
		dl_copy_commit();
	};
	const auto top_of = [&](int h, int i) {
		return tid < N && i + tid < A::T ? lse[(b * (int64_t)A::H + h) * A::T + i + tid] : 0.0f;
	};
	const auto sub_of = [&](int h, int i) {
		const int row = i + dl_thread_again() / DOTS;
		const int64_t at = (b * (int64_t)A::T + row) * A::LDY + h * A::D;
		return dl_row_dot<X, A, DOTS>(y + at, dy + at, row < A::T);
	};

	float ok[X::R * X::OC], ov[X::R * X::OC];
	unsigned valid = 0; /* a bit a row: which keys count */
	DL_UNROLL
	for (int i = 0; i < X::R * X::OC; i++)
		ok[i] = ov[i] = 0.0f;
	DL_UNROLL
	for (int r = 0; r < X::R; r++) {
		const int j = w0 + X::row(r);
		valid |= (unsigned)(A::MASK && j < A::TK && mask[b * (int64_t)A::TK + j]) << r;
	}
	dl_load_rows<E, M, X::W, A::D, THREADS, A::WIDE>(ks, k + (b * (int64_t)A::TK + j0) * A::LDK + g * A::D, A::LDK, A::TK - j0);
	dl_load_rows<E, M, X::W, A::D, THREADS, A::WIDE>(vs, v + (b * (int64_t)A::TK + j0) * A::LDV + g * A::D, A::LDV, A::TK - j0);
	int h = g * HEADS, i0 = begin, stage = 0; /* the tile at hand */
	if (begin < end) {
		fetch(0, h, begin);
		const float sub = sub_of(h, begin);
		if (tid < N)
			tops[tid] = top_of(h, begin) * DL_LOG2E;
		if (tid % DOTS == 0)
			subs[tid / DOTS] = sub;
	}
	S *const own_k = ks + warp * X::WARP_ROWS * X::ROW, *const own_v = vs + warp * X::WARP_ROWS * X::ROW;
	dl_copy_wait();
	__syncthreads();
	typename X::Held held_k, held_v;
	X::hold(held_k, own_k);
	X::hold(held_v, own_v);
	DL_ROLLED
	for (bool more = begin < end; more;) {
		const bool last = i0 + N >= end;
		const int next_h = last ? h + 1 : h, next_i = last ? begin : i0 + N, at = STAGES == 2 ? stage * N * X::ROW : 0;
		more = next_h < (g + 1) * HEADS;
		if (STAGES == 2 && more)
			fetch(stage ^ 1, next_h, next_i);
		const float next_top = more ? top_of(next_h, next_i) : 0.0f, next_sub = more ? sub_of(next_h, next_i) : 0.0f;
		if ((A::TK % M == 0 || w0 < A::TK) && !A::none_meets(i0, i0 + N - 1, w0, w1)) {
			float s[X::R * X::C], p[X::R * X::C];
			X::scores(s, held_k, own_k, qs + at);
			DL_UNROLL
			for (int c = 0; c < X::C; c++) {
				const float top = tops[stage * N + X::col(c)];
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					X::score(s, r, c) = dl_exp2(fmaf(X::score(s, r, c), by, -top));
			}
			if (A::MASK || !A::all_meet(i0, i0 + N - 1, w0, w1))
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					DL_UNROLL
					for (int c = 0; c < X::C; c++)
						if (!A::meets(i0 + X::col(c), w0 + X::row(r)) ||
						    (A::MASK && !(valid >> r & 1)))
							X::score(s, r, c) = 0.0f;
			X::add(ov, s, gs + at + part * X::OW, scratch);
			X::scores(p, held_v, own_v, gs + at);
			DL_UNROLL
			for (int c = 0; c < X::C; c++) {
				const float sub = subs[stage * N + X::col(c)];
				DL_UNROLL
				for (int r = 0; r < X::R; r++)
					X::score(p, r, c) = X::score(s, r, c) * (X::score(p, r, c) - sub);
			}
			X::add(ok, p, qs + at + part * X::OW, scratch);
		}
		if (STAGES == 1) {
			__syncthreads();
			if (more)
				fetch(0, next_h, next_i);
		}
		h = next_h;
		i0 = next_i;
		stage ^= 1;
		if (tid < N)
			tops[stage * N + tid] = next_top * DL_LOG2E;
		if (tid % DOTS == 0)
			subs[stage * N + tid / DOTS] = next_sub;
		dl_copy_wait();
		__syncthreads();
	}
	DL_UNROLL
	for (int i = 0; i < X::R * X::OC; i++)
		ok[i] *= scale;
	/* Where the warp's rows are is found anew, not held through the loop, unless that needs it for its masks. */
	const int own = (A::MASK || A::WINDOW ? warp : dl_thread_again() / 32) * X::WARP_ROWS, row0 = j0 + own;
	const int64_t to = (b * (int64_t)A::TK + row0) * A::LDDK + g * A::D + part * X::OW;
	const int columns = A::D - part * X::OW;
	dl_store_rows<X, A::D, A::WIDE>(ks + own * X::ROW + part * X::OW, ok, dk + to, A::LDDK, A::TK - row0, columns);
	dl_store_rows<X, A::D, A::WIDE>(vs + own * X::ROW + part * X::OW, ov, dv + to, A::LDDK, A::TK - row0, columns);
}

#endif

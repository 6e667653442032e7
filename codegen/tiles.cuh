/* Tiles of rows in shared memory and their products, for attention.cuh and conv.cuh: CUDA C++ text behind scalar.h and mma.cuh.
 *
 * A tile's rows are padded by 16 bytes: W elements are an even number of 16-byte chunks, so the eight rows that one phase of
 * ldmatrix (or of 16-byte loads) reads, an odd number of chunks apart, lie in different banks.
 *
 * Products are an engine's: DlMma (16 bits: tensor cores, f32 sums; the sums of one product become the operand of the next in
 * registers), DlFma (f32: multiply-add, a microtile a thread; sums go through shared memory between the 16 lanes that share rows).
 * An engine has for each warp WARP_ROWS rows of its own: s = a b' over rows of W elements, and o += s b. */
#ifndef DL_TILES_CUH
#define DL_TILES_CUH

/* ROWS rows of W elements to shared memory, ROW apart; zeros beyond `rows` rows and D columns. WIDE: rows and bases are multiples of 16
 * bytes, as D is. */
template <class E, int ROWS, int W, int D, int THREADS, bool WIDE>
DL_INLINE void dl_load_rows(typename E::Stored *to, const typename E::Stored *from, int64_t ld, int rows)
{
	typedef typename E::Stored S;
	constexpr int PER = 16 / (int)sizeof(S), CHUNKS = W / PER, ROW = W + PER, ALL = ROWS * CHUNKS;
	DL_UNROLL
	for (int k = 0; k < (ALL + THREADS - 1) / THREADS; k++) {
		const int i = (int)threadIdx.x + k * THREADS;
		if (ALL % THREADS != 0 && i >= ALL)
			break;
		const int r = i / CHUNKS, c = i % CHUNKS * PER;
		S *const at = to + r * ROW + c;
		if (WIDE) {
			const bool there = r < rows && c < D;
			dl_copy16(at, there ? from + r * ld + c : from, there ? 16 : 0);
		} else {
			DL_UNROLL
			for (int e = 0; e < PER; e++)
				at[e] = r < rows && c + e < D ? from[r * ld + c + e] : (S)0;
		}
	}
}

/* ---- products on tensor cores ----
 *
 * Of a warp's 16*MT rows a lane has R = 2*MT, each with C of the N scores, and OC of the OW columns of results.
 * KEEP: the rows' own fragments stay in registers. */
template <class Element, int MT, int W_, int N_, int OW_, bool KEEP>
struct DlMma {
	typedef Element E;
	typedef typename E::Stored S;
	static constexpr int W = W_, N = N_, OW = OW_, WARP_ROWS = 16 * MT, LANES = 4, ROW = W + 8;
	static constexpr int R = 2 * MT, C = N / 4, OC = OW / 4, SCRATCH = 0;

	struct Held {
		uint32_t a[KEEP ? MT * (W / 16) * 4 : 1];
	};

	static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
	static __device__ __forceinline__ int row(int r) { return r / 2 * 16 + r % 2 * 8 + lane() / 4; }
	static __device__ __forceinline__ int col(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
	static __device__ __forceinline__ int out_col(int c) { return col(c); }
	static __device__ __forceinline__ float &score(float *s, int r, int c)
	{
		return s[(r / 2 * (N / 8) + c / 2) * 4 + r % 2 * 2 + c % 2];
	}
	static __device__ __forceinline__ float &out(float *o, int r, int c)
	{
		return o[(r / 2 * (OW / 8) + c / 2) * 4 + r % 2 * 2 + c % 2];
	}

	static __device__ __forceinline__ void fragment(uint32_t *a, const S *rows, int m, int k)
	{
		dl_ldmatrix(a, rows + (m * 16 + lane() % 16) * ROW + k * 16 + lane() / 16 * 8);
	}
	static __device__ __forceinline__ void hold(Held &held, const S *rows)
	{
		DL_UNROLL
		for (int i = 0; KEEP && i < MT * (W / 16); i++)
			fragment(held.a + i * 4, rows, i / (W / 16), i % (W / 16));
	}
	/* s = a b', a: the warp's rows, b: N rows. */
	static __device__ __forceinline__ void scores(float *s, const Held &held, const S *a, const S *b)
	{
		const S *const at = b + (lane() % 8 + lane() / 16 * 8) * ROW + lane() / 8 % 2 * 8;
		DL_UNROLL
		for (int i = 0; i < R * C; i++)
			s[i] = 0.0f;
		DL_UNROLL
		for (int k = 0; k < W / 16; k++) {
			uint32_t fa[MT][4];
			DL_UNROLL
			for (int m = 0; m < MT; m++)
				if (KEEP)
					for (int e = 0; e < 4; e++)
						fa[m][e] = held.a[(m * (W / 16) + k) * 4 + e];
				else
					fragment(fa[m], a, m, k);
			DL_UNROLL
			for (int n = 0; n < N / 16; n++) {
				uint32_t fb[4];
				dl_ldmatrix(fb, at + n * 16 * ROW + k * 16);
				DL_UNROLL
				for (int m = 0; m < MT; m++) {
					E::mma(s + (m * (N / 8) + n * 2) * 4, fa[m], fb);
					E::mma(s + (m * (N / 8) + n * 2 + 1) * 4, fa[m], fb + 2);
				}
			}
		}
	}
	/* o += s b, b: N rows, of which OW columns count. */
	static __device__ __forceinline__ void add(float *o, float *s, const S *b, float *)
	{
		const S *const at = b + lane() % 16 * ROW + lane() / 16 * 8;
		DL_UNROLL
		for (int k = 0; k < N / 16; k++) {
			uint32_t fa[MT][4];
			DL_UNROLL
			for (int m = 0; m < MT; m++) {
				const float *const t = s + (m * (N / 8) + k * 2) * 4;
				DL_UNROLL
				for (int e = 0; e < 4; e++)
					fa[m][e] = E::pack2(t[e * 2], t[e * 2 + 1]);
			}
			DL_UNROLL
			for (int n = 0; n < OW / 16; n++) {
				uint32_t fb[4];
				dl_ldmatrix_trans(fb, at + k * 16 * ROW + n * 16);
				DL_UNROLL
				for (int m = 0; m < MT; m++) {
					E::mma(o + (m * (OW / 8) + n * 2) * 4, fa[m], fb);
					E::mma(o + (m * (OW / 8) + n * 2 + 1) * 4, fa[m], fb + 2);
				}
			}
		}
	}
};

/* ---- products by multiply-add ----
 *
 * 16 lanes share R rows; a lane has the scores of columns lane, lane + 16, .. and results in groups of V neighbouring columns. */
template <int R_, int W_, int N_, int OW_>
struct DlFma {
	typedef DlElementF32 E;
	typedef float S;
	static constexpr int W = W_, N = N_, OW = OW_, R = R_, WARP_ROWS = 2 * R, LANES = 16, ROW = W + 4;
	static constexpr int C = N / 16, OC = OW / 16, V = OW % 64 == 0 ? 4 : OW % 32 == 0 ? 2 : 1, WIDTH = N + 4;
	static constexpr int SCRATCH = WARP_ROWS * WIDTH; /* floats of a warp */

	struct Held {
	};

	static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 15; }
	static __device__ __forceinline__ int half() { return ((int)threadIdx.x >> 4 & 1) * R; }
	static __device__ __forceinline__ int row(int r) { return half() + r; }
	static __device__ __forceinline__ int col(int c) { return c * 16 + lane(); }
	static __device__ __forceinline__ int out_col(int c) { return (c / V * 16 + lane()) * V + c % V; }
	static __device__ __forceinline__ float &score(float *s, int r, int c) { return s[r * C + c]; }
	static __device__ __forceinline__ float &out(float *o, int r, int c) { return o[r * OC + c]; }

	static __device__ __forceinline__ void hold(Held &, const float *) {}
	static __device__ __forceinline__ void scores(float *s, const Held &, const float *a, const float *b)
	{
		const float *const ar = a + half() * ROW, *const br = b + lane() * ROW;
		DL_UNROLL
		for (int i = 0; i < R * C; i++)
			s[i] = 0.0f;
		DL_ROLLED
		for (int k = 0; k < W; k += 4) {
			float4 x[R];
			DL_UNROLL
			for (int r = 0; r < R; r++)
				x[r] = *(const float4 *)(ar + r * ROW + k);
			DL_UNROLL
			for (int c = 0; c < C; c++) {
				const float4 y = *(const float4 *)(br + c * 16 * ROW + k);
				DL_UNROLL
				for (int r = 0; r < R; r++) {
					float t = s[r * C + c];
					t = fmaf(x[r].x, y.x, t);
					t = fmaf(x[r].y, y.y, t);
					t = fmaf(x[r].z, y.z, t);
					s[r * C + c] = fmaf(x[r].w, y.w, t);
				}
			}
		}
	}
	static __device__ __forceinline__ void add(float *o, float *s, const float *b, float *scratch)
	{
		float *const mine = scratch + half() * WIDTH;
		__syncwarp();
		DL_UNROLL
		for (int i = 0; i < R * C; i++)
			mine[i / C * WIDTH + col(i % C)] = s[i];
		__syncwarp();
		DL_ROLLED
		for (int k = 0; k < N; k += 4) {
			float p[R][4];
			DL_UNROLL
			for (int r = 0; r < R; r++) {
				const float4 x = *(const float4 *)(mine + r * WIDTH + k);
				p[r][0] = x.x;
				p[r][1] = x.y;
				p[r][2] = x.z;
				p[r][3] = x.w;
			}
			DL_UNROLL
			for (int e = 0; e < 4; e++)
				DL_UNROLL
				for (int c = 0; c < OC; c += V) {
					const float *const y = b + (k + e) * ROW + out_col(c);
					float v[V];
					if (V == 4) {
						const float4 x = *(const float4 *)y;
						v[0] = x.x;
						v[V > 1 ? 1 : 0] = x.y;
						v[V > 2 ? 2 : 0] = x.z;
						v[V > 3 ? 3 : 0] = x.w;
					} else {
						DL_UNROLL
						for (int i = 0; i < V; i++)
							v[i] = y[i];
					}
					DL_UNROLL
					for (int r = 0; r < R; r++)
						DL_UNROLL
						for (int i = 0; i < V; i++)
							o[r * OC + c + i] = fmaf(p[r][e], v[i], o[r * OC + c + i]);
				}
		}
	}
};

/* A warp's results, through its own rows of shared memory (`own`: beginning at the columns that count), to `rows` rows of D
 * columns in global memory. */
template <class X, int D, bool WIDE>
DL_INLINE void dl_store_rows(typename X::S *own, float *o, typename X::S *to, int64_t ld, int rows, int columns)
{
	typedef typename X::S S;
	constexpr int PER = WIDE ? 16 / (int)sizeof(S) : 1, CHUNKS = X::OW / PER;
	__syncwarp();
	DL_UNROLL
	for (int r = 0; r < X::R; r++)
		DL_UNROLL
		for (int c = 0; c < X::OC; c++)
			own[X::row(r) * X::ROW + X::out_col(c)] = X::E::store(X::out(o, r, c));
	__syncwarp();
	DL_ROLLED
	for (int i = (int)threadIdx.x & 31; i < X::WARP_ROWS * CHUNKS; i += 32) {
		const int r = i / CHUNKS, c = i % CHUNKS * PER;
		if (r >= rows || c >= columns)
			continue;
		if (WIDE)
			*(uint4 *)(to + r * ld + c) = *(const uint4 *)(own + r * X::ROW + c);
		else
			to[r * ld + c] = own[r * X::ROW + c];
	}
}

template <int LANES> DL_INLINE float dl_lanes_max(float x)
{
	DL_UNROLL
	for (int d = 1; d < LANES; d *= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
	return x;
}
template <int LANES> DL_INLINE float dl_lanes_sum(float x)
{
	DL_UNROLL
	for (int d = 1; d < LANES; d *= 2)
		x += __shfl_xor_sync(0xffffffffu, x, d);
	return x;
}

#endif

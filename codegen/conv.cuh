/* Convolution on CUDA and its two gradients as implicit matrix products: CUDA C++ text behind scalar.h, mma.cuh and
 * tiles.cuh. Tensors are NCHW, x [B,C,H,W], w [O,C/G,KH,KW], y [B,O,OH,OW].
 *
 *     y    dl_conv_gather    y [o, pixel]  = sum over (tap, c)  w [o, (tap, c)]  x [c, pixel moved by tap]
 *     dx   the same kernel   dx [c, pixel] = sum over (tap, o)  w'[c, (tap, o)] dy [o, pixel moved back by tap]
 *     dw   dl_conv_weight    dw [o, (c, tap)] = sum over pixels  dy [o, pixel]  x [c, pixel moved by tap]
 *
 * Neither side of a product is ever written out: a tile of the moved pixels is gathered into shared memory, where the borders become
 * zeros. dl_conv_pack first lays the weights out with the channels innermost (w is small beside x), so that their tiles are 16-byte
 * copies and, where the channels fill tiles, all of a tile belongs to one tap: its position is checked once a tile and the gather walks
 * down channels. A 1 x 1 convolution without stride copies 16 bytes at a time.
 *
 * With a stride, dx falls apart into SH x SW classes of pixels, each of which meets only the taps that land on it: blocks work
 * within a class and pass over the other taps, so that no product is with an inserted zero.
 *
 * dw adds up over all pixels of all samples: in PARTS ranges of them, as many as fill the processor, a number that
 * depends on the shape alone; dl_conv_sum adds the parts in order. Depthwise convolutions (C = G) do not fill tensor cores and have
 * direct kernels, one thread a pixel; their dw one block for a channel, some taps and a range of pixels.
 *
 * Tiles: BM x BN of results, two stages of BK in shared memory, one barrier a stage; the gather of the next stage waits in registers while
 * this stage is multiplied (a first round only gathers, so that its code, most of the kernel, is there once). 16 bits: tensor cores, f32 sums, a warp has 32 x 64 where M allows: 6 ldmatrix for 16 products. f32:
 * multiply-add, 8 x 8 a thread. Every sum has a fixed order.
 *
 * Expected traffic: y: x from memory once for each O / BM tile of channels (neighbouring blocks share it in L2), y once; operations
 * 2 B OH OW O C/G KH KW. resnet18's 64-channel 3 x 3 layer at 56 x 56, B 64: x and y 25.7 MB each, 14.8 GFLOP. */
#ifndef DL_CONV_CUH
#define DL_CONV_CUH

/* ---- products of tiles ---- */

/* On tensor cores: WM x WN warps over BM x BN. a [BM][BK] with rows A_ROW apart; b [BK][BN], rows B_ROW apart, or [BN][BK] like a. */
template <class Element, int BM_, int BN_, int WM, int WN>
struct DlTileMma {
	typedef Element E;
	typedef typename E::Stored S;
	static constexpr int BM = BM_, BN = BN_, BK = 32, THREADS = 32 * WM * WN, A_ROW = BK + 8, B_ROW = BN + 8;
	static constexpr int MT = BM / WM / 16, NT = BN / WN / 8, ACC = MT * NT * 4;

	static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 31; }
	static __device__ __forceinline__ int first_row() { return (int)threadIdx.x / 32 / WN * (BM / WM); }
	static __device__ __forceinline__ int first_col() { return (int)threadIdx.x / 32 % WN * (BN / WN); }
	/* Where sum i belongs; neighbours 2j, 2j+1 are in neighbouring columns. */
	static __device__ __forceinline__ int row(int i) { return first_row() + i / 4 / NT * 16 + i % 4 / 2 * 8 + lane() / 4; }
	static __device__ __forceinline__ int col(int i) { return first_col() + i / 4 % NT * 8 + lane() % 4 * 2 + i % 2; }
	static __device__ __forceinline__ int col_of_rows(int i) { return col(i); }

	static __device__ __forceinline__ void left(uint32_t (*fa)[4], const S *a, int k)
	{
		DL_UNROLL
		for (int m = 0; m < MT; m++)
			dl_ldmatrix(fa[m], a + (first_row() + m * 16 + lane() % 16) * A_ROW + k * 16 + lane() / 16 * 8);
	}
	static __device__ __forceinline__ void products(float *acc, const uint32_t (*fa)[4], const uint32_t *fb, int n)
	{
		DL_UNROLL
		for (int m = 0; m < MT; m++) {
			E::mma(acc + (m * NT + n) * 4, fa[m], fb);
			E::mma(acc + (m * NT + n + 1) * 4, fa[m], fb + 2);
		}
	}
	static __device__ __forceinline__ void step(float *acc, const S *a, const S *b)
	{
		DL_UNROLL
		for (int k = 0; k < BK / 16; k++) {
			uint32_t fa[MT][4];
			left(fa, a, k);
			DL_UNROLL
			for (int n = 0; n < NT; n += 2) {
				uint32_t fb[4];
				dl_ldmatrix_trans(fb, b + (k * 16 + lane() % 16) * B_ROW + first_col() + n * 8 + lane() / 16 * 8);
				products(acc, fa, fb, n);
			}
		}
	}
	static __device__ __forceinline__ void step_of_rows(float *acc, const S *a, const S *b)
	{
		DL_UNROLL
		for (int k = 0; k < BK / 16; k++) {
			uint32_t fa[MT][4];
			left(fa, a, k);
			DL_UNROLL
			for (int n = 0; n < NT; n += 2) {
				uint32_t fb[4];
				dl_ldmatrix(fb, b + (first_col() + n * 8 + lane() % 8 + lane() / 16 * 8) * A_ROW + k * 16 +
							lane() / 8 % 2 * 8);
				products(acc, fa, fb, n);
			}
		}
	}
};

/* By multiply-add: 16 x 16 threads, R x C sums each. */
template <int BM_, int BN_>
struct DlTileFma {
	typedef DlElementF32 E;
	typedef float S;
	static constexpr int BM = BM_, BN = BN_, BK = 16, THREADS = 256, A_ROW = BK + 4, B_ROW = BN + 4;
	static constexpr int R = BM / 16, C = BN / 16, ACC = R * C;

	static __device__ __forceinline__ int lane() { return (int)threadIdx.x & 15; }
	static __device__ __forceinline__ int first_row() { return (int)threadIdx.x / 16 * R; }
	static __device__ __forceinline__ int row(int i) { return first_row() + i / C; }
	static __device__ __forceinline__ int col(int i) { return (i % C / 4 * 16 + lane()) * 4 + i % 4; }
	static __device__ __forceinline__ int col_of_rows(int i) { return i % C * 16 + lane(); }

	static __device__ __forceinline__ void step(float *acc, const float *a, const float *b)
	{
		DL_ROLLED
		for (int k = 0; k < BK; k += 4) {
			float x[R][4];
			DL_UNROLL
			for (int r = 0; r < R; r++) {
				const float4 t = *(const float4 *)(a + (first_row() + r) * A_ROW + k);
				x[r][0] = t.x;
				x[r][1] = t.y;
				x[r][2] = t.z;
				x[r][3] = t.w;
			}
			DL_UNROLL
			for (int e = 0; e < 4; e++)
				DL_UNROLL
				for (int c = 0; c < C; c += 4) {
					const float4 y = *(const float4 *)(b + (k + e) * B_ROW + (c / 4 * 16 + lane()) * 4);
					DL_UNROLL
					for (int r = 0; r < R; r++) {
						float *const t = acc + r * C + c;
						t[0] = fmaf(x[r][e], y.x, t[0]);
						t[1] = fmaf(x[r][e], y.y, t[1]);
						t[2] = fmaf(x[r][e], y.z, t[2]);
						t[3] = fmaf(x[r][e], y.w, t[3]);
					}
				}
		}
	}
	static __device__ __forceinline__ void step_of_rows(float *acc, const float *a, const float *b)
	{
		DL_ROLLED
		for (int k = 0; k < BK; k += 4) {
			float4 x[R];
			DL_UNROLL
			for (int r = 0; r < R; r++)
				x[r] = *(const float4 *)(a + (first_row() + r) * A_ROW + k);
			DL_UNROLL
			for (int c = 0; c < C; c++) {
				const float4 y = *(const float4 *)(b + (c * 16 + lane()) * A_ROW + k);
				DL_UNROLL
				for (int r = 0; r < R; r++) {
					float t = acc[r * C + c];
					t = fmaf(x[r].x, y.x, t);
					t = fmaf(x[r].y, y.y, t);
					t = fmaf(x[r].z, y.z, t);
					acc[r * C + c] = fmaf(x[r].w, y.w, t);
				}
			}
		}
	}
};

/* Two neighbours in shared memory, at an even place. */
DL_INLINE void dl_put2(uint16_t *to, uint16_t a, uint16_t b) { *(uint32_t *)(void *)to = (uint32_t)a | (uint32_t)b << 16; }
DL_INLINE void dl_put2(float *to, float a, float b)
{
	to[0] = a;
	to[1] = b;
}

/* ---- y and dx ---- */

/* From src [B,G*CI,HS,WS] to dst [B,G*M,HO,WO]; BACK: the gradient by x. CP: channels with the zeros behind them (packed weights are
 * [G][M][KP], tap by tap): of whole tiles, or CI. */
template <int B_, int G_, int M_, int CI_, int CP_, int HS_, int WS_, int HO_, int WO_, int KH_, int KW_, int SH_, int SW_, int PH_, int PW_,
	  int DH_, int DW_, bool BACK_, bool WIDE_>
struct DlConv {
	static constexpr int B = B_, G = G_, M = M_, CI = CI_, CP = CP_, HS = HS_, WS = WS_, HO = HO_, WO = WO_, KH = KH_, KW = KW_;
	static constexpr int SH = SH_, SW = SW_, PH = PH_, PW = PW_, DH = DH_, DW = DW_, TAPS = KH * KW;
	static constexpr bool BACK = BACK_, WIDE = WIDE_;
	/* Classes of result pixels, and their pixels. */
	static constexpr int CH = BACK ? SH : 1, CW = BACK ? SW : 1, HI = (HO + CH - 1) / CH, WI = (WO + CW - 1) / CW;
	static constexpr int PIXELS = B * HI * WI;
	static constexpr bool PLAIN = TAPS == 1 && SH == 1 && SW == 1 && PH == 0 && PW == 0;

	/* Where row i of class c finds the tap's row: hs; false where the tap never lands on the class. */
	static __device__ __forceinline__ bool lands(int a, int c, int b, int d)
	{
		return !BACK || ((c + PH - a * DH) % SH == 0 && (d + PW - b * DW) % SW == 0);
	}
	static __device__ __forceinline__ int hs(int i, int c, int a) { return BACK ? i + (c + PH - a * DH) / SH : i * SH - PH + a * DH; }
	static __device__ __forceinline__ int ws(int j, int d, int b) { return BACK ? j + (d + PW - b * DW) / SW : j * SW - PW + b * DW; }
};

/* packed [G][M][KP] from w: [G*M][CI][TAPS], or, for dx, [G*CI][M][TAPS]. */
template <class S, class A, int KP> DL_INLINE void dl_conv_pack(const S *w, S *packed)
{
	const int64_t i = (int64_t)blockIdx.x * 256 + (int)threadIdx.x;
	if (i >= (int64_t)A::G * A::M * KP)
		return;
	const int k = (int)(i % KP), gm = (int)(i / KP), g = gm / A::M, m = gm % A::M, tap = k / A::CP, c = k % A::CP;
	const bool there = tap < A::TAPS && c < A::CI;
	const int64_t at = A::BACK ? ((int64_t)(g * A::CI + c) * A::M + m) * A::TAPS + tap : ((int64_t)gm * A::CI + c) * A::TAPS + tap;
	packed[i] = there ? w[at] : (S)0;
}

/* One block: BM channels by BN pixels of a class and group. Shared memory: [2][BM][A_ROW] and [2][BK][B_ROW], then, in their place,
 * [BM][B_ROW] of results. */
template <class X, class A, int KP> DL_INLINE void dl_conv_gather(const typename X::S *src, const typename X::S *packed, typename X::S *dst)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int BM = X::BM, BN = X::BN, BK = X::BK, PER = 16 / (int)sizeof(S), TILES = KP / BK;
	constexpr int MB = (A::M + BM - 1) / BM, PB = (A::PIXELS + BN - 1) / BN, AREA = A::HS * A::WS, OUT = A::HO * A::WO;
	constexpr int PAIRS = BN / 2, ROWS = X::THREADS / PAIRS, EACH = BK / ROWS;
	constexpr int EACH_TAP = A::CP < BK ? 1 : A::CP / BK;
	constexpr bool UNIFORM = A::CP % BK == 0, COPY = A::PLAIN && A::WIDE && AREA % PER == 0;
	constexpr bool WIDE_OUT = A::CH * A::CW == 1 && A::WIDE && OUT % PER == 0;
	const int tid = (int)threadIdx.x;
	const int m0 = (int)blockIdx.x % MB * BM, group = (int)blockIdx.x / MB / PB, p0 = (int)blockIdx.x / MB % PB * BN;
	const int g = A::G == 1 ? 0 : group % A::G, ch = A::CH == 1 ? 0 : group / A::G / A::CW, cw = A::CW == 1 ? 0 : group / A::G % A::CW;
	S *const as = (S *)dl_shared, *const bs = as + 2 * BM * X::A_ROW;
	const S *const from = src + (int64_t)g * A::CI * AREA, *const left = packed + ((int64_t)g * A::M + m0) * KP;

	/* This thread gathers a pair of pixels of every ROWS-th row. */
	const int pair = tid % PAIRS * 2, row0 = tid / PAIRS;
	int pi[2], pj[2];
	const S *at[2];
	DL_UNROLL
	for (int e = 0; e < 2; e++) {
		const int p = p0 + pair + e, n = p / (A::HI * A::WI);
		pi[e] = p < A::PIXELS ? p / A::WI % A::HI : -(1 << 20);
		pj[e] = p % A::WI;
		at[e] = from + (p < A::PIXELS ? n : 0) * (int64_t)(A::G * A::CI) * AREA;
	}
	S kept[EACH][2];
	const auto gather = [&](int t) {
		if (UNIFORM) {
			const int tap = t * BK / A::CP, c0 = t * BK % A::CP + row0, a = tap / A::KW, b = tap % A::KW;
			DL_UNROLL
			for (int e = 0; e < 2; e++) {
				const int y = A::hs(pi[e], ch, a), x = A::ws(pj[e], cw, b);
				const bool in = (unsigned)y < (unsigned)A::HS && (unsigned)x < (unsigned)A::WS;
				const S *const q = at[e] + (in ? (int64_t)c0 * AREA + y * A::WS + x : 0);
				DL_UNROLL
				for (int i = 0; i < EACH; i++)
					kept[i][e] = in && (A::CI % BK == 0 || c0 + i * ROWS < A::CI) ? q[(int64_t)(i * ROWS) * AREA] : (S)0;
			}
		} else {
			DL_UNROLL
			for (int i = 0; i < EACH; i++) {
				const int k = t * BK + row0 + i * ROWS, tap = k / A::CP, c = k % A::CP, a = tap / A::KW, b = tap % A::KW;
				const bool there = tap < A::TAPS && A::lands(a, ch, b, cw);
				DL_UNROLL
				for (int e = 0; e < 2; e++) {
					const int y = A::hs(pi[e], ch, a), x = A::ws(pj[e], cw, b);
					const bool in = there && (unsigned)y < (unsigned)A::HS && (unsigned)x < (unsigned)A::WS;
					kept[i][e] = in ? at[e][(int64_t)c * AREA + y * A::WS + x] : (S)0;
				}
			}
		}
	};
	const auto fetch = [&](int stage, int t) {
		dl_load_rows<E, BM, BK, BK, X::THREADS, true>(as + stage * BM * X::A_ROW, left + t * BK, KP, A::M - m0);
		if (COPY)
			DL_UNROLL
			for (int i = tid; i < BK * (BN / PER); i += X::THREADS) {
				const int r = i / (BN / PER), p = p0 + i % (BN / PER) * PER, n = p / AREA, c = t * BK + r;
				const bool in = p < A::PIXELS && c < A::CI;
				dl_copy16(bs + (stage * BK + r) * X::B_ROW + p - p0,
					  in ? from + (n * (int64_t)(A::G * A::CI) + c) * AREA + (p - n * AREA) : from, in ? 16 : 0);
			}
		else
			gather(t);
		dl_copy_commit();
	};
	const auto put = [&](int stage) {
		if (!COPY)
			DL_UNROLL
			for (int i = 0; i < EACH; i++)
				dl_put2(bs + (stage * BK + row0 + i * ROWS) * X::B_ROW + pair, kept[i][0], kept[i][1]);
	};
	/* The next tile from t on that the class meets. */
	const auto next = [&](int t) {
		while (UNIFORM && A::BACK && t < TILES && !A::lands(t * BK / A::CP / A::KW, ch, t * BK / A::CP % A::KW, cw))
			t += EACH_TAP - t % EACH_TAP;
		return t;
	};

	float acc[X::ACC];
	DL_UNROLL
	for (int i = 0; i < X::ACC; i++)
		acc[i] = 0.0f;
	/* Tile `now` is multiplied while `soon` is fetched; the first round only fetches. */
	int now = -1, soon = next(0), stage = 1;
	DL_ROLLED
	while (now < TILES) {
		if (soon < TILES)
			fetch(stage ^ 1, soon);
		if (now >= 0)
			X::step(acc, as + stage * BM * X::A_ROW, bs + stage * BK * X::B_ROW);
		stage ^= 1;
		if (soon < TILES)
			put(stage);
		dl_copy_wait();
		__syncthreads();
		now = soon;
		soon = next(soon + 1);
	}
	S *const cs = as;
	DL_UNROLL
	for (int i = 0; i < X::ACC; i += 2)
		dl_put2(cs + X::row(i) * X::B_ROW + X::col(i), E::store(acc[i]), E::store(acc[i + 1]));
	__syncthreads();
	S *const to = dst + ((int64_t)g * A::M + m0) * OUT;
	if (WIDE_OUT) {
		DL_ROLLED
		for (int i = tid; i < BM * (BN / PER); i += X::THREADS) {
			const int r = i / (BN / PER), p = p0 + i % (BN / PER) * PER, n = p / OUT;
			if (m0 + r < A::M && p < A::PIXELS)
				*(uint4 *)(void *)(to + (n * (int64_t)(A::G * A::M) + r) * OUT + (p - n * OUT)) =
					*(const uint4 *)(const void *)(cs + r * X::B_ROW + p - p0);
		}
		return;
	}
	const int q = p0 + tid % BN, n = q / (A::HI * A::WI), y = q / A::WI % A::HI * A::CH + ch, x = q % A::WI * A::CW + cw;
	if (q < A::PIXELS && y < A::HO && x < A::WO)
		DL_ROLLED
		for (int r = tid / BN; r < BM && m0 + r < A::M; r += X::THREADS / BN)
			to[(n * (int64_t)(A::G * A::M) + r) * OUT + y * A::WO + x] = cs[r * X::B_ROW + tid % BN];
}

/* ---- dw ---- */

/* Element i of a result: v, or what was there before and v. */
template <class Out>
DL_INLINE void dl_conv_put(typename Out::Stored *to, const typename Out::Stored *before, int64_t i, float v)
{
	to[i] = Out::store(before ? Out::load(before[i]) + v : v);
}

/* One block: BM channels o by BN of (c, tap), of one of PARTS ranges of EACH pixels (a multiple of BK). A is y's geometry. Out: f32 parts, one after
 * another, or, of one part, the result, added to `before` unless that is null (it may lie where the result does). Shared memory: [2][BM][A_ROW], [2][BN][A_ROW], and where column j of the product lies: [BN] of 8
 * bytes. */
template <class X, class A, class Out, int PARTS, int RANGE>
DL_INLINE void dl_conv_weight(const typename X::S *x, const typename X::S *dy, const typename Out::Stored *before, typename Out::Stored *dw)
{
	typedef typename X::S S;
	typedef typename X::E E;
	constexpr int BM = X::BM, BN = X::BN, BK = X::BK, PER = 16 / (int)sizeof(S), N = A::CI * A::TAPS;
	constexpr int MB = (A::M + BM - 1) / BM, NB = (N + BN - 1) / BN, AREA = A::HS * A::WS, OUT = A::HO * A::WO;
	constexpr int PAIRS = BK / 2, ROWS = X::THREADS / PAIRS, B_EACH = BN / ROWS, A_EACH = (BM + ROWS - 1) / ROWS;
	constexpr bool COPY = A::WIDE && OUT % PER == 0;
	const int tid = (int)threadIdx.x;
	const int m0 = (int)blockIdx.x % MB * BM, n0 = (int)blockIdx.x / MB % NB * BN;
	const int part = (int)blockIdx.x / MB / NB % PARTS, g = (int)blockIdx.x / MB / NB / PARTS;
	const int begin = part * RANGE, end = begin + RANGE < A::PIXELS ? begin + RANGE : A::PIXELS;
	S *const as = (S *)dl_shared, *const bs = as + 2 * BM * X::A_ROW;
	uint2 *const place = (uint2 *)(void *)(bs + 2 * BN * X::A_ROW); /* offset; rows and columns of the tap, 16 bits each */
	const S *const left = dy + ((int64_t)g * A::M + m0) * OUT, *const from = x + (int64_t)g * A::CI * AREA;
	const int pair = tid % PAIRS * 2, row0 = tid / PAIRS;

	for (int j = tid; j < BN; j += X::THREADS) {
		const int c = (n0 + j) / A::TAPS, tap = (n0 + j) % A::TAPS, a = tap / A::KW * A::DH, b = tap % A::KW * A::DW;
		uint2 v;
		v.x = (unsigned)(c * AREA + a * A::WS + b);
		v.y = (unsigned)(n0 + j < N ? a << 16 | b : 0x7fff << 16);
		place[j] = v;
	}
	S kept[B_EACH][2], kept_a[COPY ? 1 : A_EACH][2];
	const auto fetch = [&](int stage, int k0) {
		if (COPY)
			DL_UNROLL
			for (int i = tid; i < BM * (BK / PER); i += X::THREADS) {
				const int r = i / (BK / PER), p = k0 + i % (BK / PER) * PER, n = p / OUT;
				const bool in = p < end && m0 + r < A::M;
				dl_copy16(as + (stage * BM + r) * X::A_ROW + p - k0,
					  in ? left + (n * (int64_t)(A::G * A::M) + r) * OUT + (p - n * OUT) : left, in ? 16 : 0);
			}
		DL_UNROLL
		for (int e = 0; e < 2; e++) {
			const int p = k0 + pair + e, n = p / OUT, i = p / A::WO % A::HO * A::SH - A::PH, j = p % A::WO * A::SW - A::PW;
			const bool there = p < end;
			const S *const q = from + n * (int64_t)(A::G * A::CI) * AREA + i * A::WS + j;
			DL_UNROLL
			for (int r = 0; r < B_EACH; r++) {
				const uint2 v = place[row0 + r * ROWS];
				const bool in = there && (unsigned)i + (v.y >> 16) < (unsigned)A::HS &&
						(unsigned)j + (v.y & 0xffffu) < (unsigned)A::WS;
				kept[r][e] = in ? q[(int)v.x] : (S)0;
			}
			if (!COPY)
				DL_UNROLL
				for (int r = 0; r < A_EACH; r++) {
					const bool in = there && row0 + r * ROWS < BM && m0 + row0 + r * ROWS < A::M;
					kept_a[COPY ? 0 : r][e] =
						in ? left[(n * (int64_t)(A::G * A::M) + row0 + r * ROWS) * OUT + (p - n * OUT)] : (S)0;
				}
		}
		dl_copy_commit();
	};
	const auto put = [&](int stage) {
		DL_UNROLL
		for (int r = 0; r < B_EACH; r++)
			dl_put2(bs + (stage * BN + row0 + r * ROWS) * X::A_ROW + pair, kept[r][0], kept[r][1]);
		if (!COPY)
			DL_UNROLL
			for (int r = 0; r < A_EACH; r++)
				if (row0 + r * ROWS < BM)
					dl_put2(as + (stage * BM + row0 + r * ROWS) * X::A_ROW + pair, kept_a[COPY ? 0 : r][0],
						kept_a[COPY ? 0 : r][1]);
	};

	float acc[X::ACC];
	DL_UNROLL
	for (int i = 0; i < X::ACC; i++)
		acc[i] = 0.0f;
	__syncthreads();
	int stage = 1;
	DL_ROLLED
	for (int k0 = begin - BK; k0 < end; k0 += BK) { /* the first round only fetches */
		const bool more = k0 + BK < end;
		if (more)
			fetch(stage ^ 1, k0 + BK);
		if (k0 >= begin)
			X::step_of_rows(acc, as + stage * BM * X::A_ROW, bs + stage * BN * X::A_ROW);
		stage ^= 1;
		if (more)
			put(stage);
		dl_copy_wait();
		__syncthreads();
	}
	const int64_t at = (((int64_t)part * A::G + g) * A::M + m0) * N + n0;
	DL_UNROLL
	for (int i = 0; i < X::ACC; i++)
		if (m0 + X::row(i) < A::M && n0 + X::col_of_rows(i) < N)
			dl_conv_put<Out>(dw, before, at + (int64_t)X::row(i) * N + X::col_of_rows(i), acc[i]);
}

/* Parts added in order, and their sum to `before`: COUNT results of PARTS numbers. */
template <class Out, int PARTS>
DL_INLINE void dl_conv_sum(const float *parts, const typename Out::Stored *before, typename Out::Stored *to, int64_t count)
{
	const int64_t i = (int64_t)blockIdx.x * 256 + (int)threadIdx.x;
	if (i >= count)
		return;
	float sum = parts[i];
	DL_ROLLED
	for (int p = 1; p < PARTS; p++)
		sum += parts[p * count + i];
	dl_conv_put<Out>(to, before, i, sum);
}

/* ---- depthwise: one input channel a group ---- */

/* One thread a pixel of y or dx; THREADS pixels of a plane a block. */
template <class E, class A, int THREADS> DL_INLINE void dl_conv_depthwise(const typename E::Stored *src, const typename E::Stored *w, typename E::Stored *dst)
{
	constexpr int OUT = A::HO * A::WO, BLOCKS = (OUT + THREADS - 1) / THREADS;
	const int p = (int)blockIdx.x % BLOCKS * THREADS + (int)threadIdx.x, i = p / A::WO, j = p % A::WO;
	const int64_t plane = blockIdx.x / BLOCKS, n = plane / (A::G * A::M);
	const int m = (int)(plane % (A::G * A::M)), g = m / A::M;
	if (p >= OUT)
		return;
	float sum = 0.0f;
	for (int c = 0; c < A::CI; c++) {
		const typename E::Stored *const from = src + (n * (A::G * A::CI) + g * A::CI + c) * (int64_t)(A::HS * A::WS);
		const typename E::Stored *const f = w + (A::BACK ? g * A::CI + c : m) * A::TAPS;
		DL_UNROLL
		for (int t = 0; t < A::TAPS; t++) {
			const int a = t / A::KW, b = t % A::KW;
			const int y = A::BACK ? A::hs(i / A::SH, i % A::SH, a) : A::hs(i, 0, a);
			const int x = A::BACK ? A::ws(j / A::SW, j % A::SW, b) : A::ws(j, 0, b);
			const bool in = A::lands(a, A::BACK ? i % A::SH : 0, b, A::BACK ? j % A::SW : 0) && (unsigned)y < (unsigned)A::HS &&
					(unsigned)x < (unsigned)A::WS;
			sum = fmaf(in ? E::load(from[y * A::WS + x]) : 0.0f, E::load(f[t]), sum);
		}
	}
	dst[plane * OUT + p] = E::store(sum);
}

/* dw: one block for a channel o, up to 9 taps, a range of pixels; 256 threads, their sums added as a tree. Shared memory: [8][9] floats. */
template <class E, class A, class Out, int PARTS, int RANGE>
DL_INLINE void dl_conv_depthwise_weight(const typename E::Stored *x, const typename E::Stored *dy, const typename Out::Stored *before,
					typename Out::Stored *dw)
{
	constexpr int OUT = A::HO * A::WO, AREA = A::HS * A::WS, EACH = A::TAPS < 9 ? A::TAPS : 9, TB = (A::TAPS + EACH - 1) / EACH;
	const int tid = (int)threadIdx.x, t0 = (int)blockIdx.x % TB * EACH;
	const int part = (int)blockIdx.x / TB % PARTS, o = (int)blockIdx.x / TB / PARTS, g = o / A::M;
	const int begin = part * RANGE, end = begin + RANGE < A::PIXELS ? begin + RANGE : A::PIXELS;
	float *const sums = (float *)(void *)dl_shared;
	float acc[EACH];
	DL_UNROLL
	for (int t = 0; t < EACH; t++)
		acc[t] = 0.0f;
	for (int p = begin + tid; p < end; p += 256) {
		const int n = p / OUT, i = p / A::WO % A::HO, j = p % A::WO;
		const float d = E::load(dy[(n * (int64_t)(A::G * A::M) + o) * OUT + (p - n * OUT)]);
		const typename E::Stored *const from = x + (n * (int64_t)A::G + g) * AREA;
		DL_UNROLL
		for (int t = 0; t < EACH; t++) {
			const int r = A::hs(i, 0, (t0 + t) / A::KW), c = A::ws(j, 0, (t0 + t) % A::KW);
			const bool in = t0 + t < A::TAPS && (unsigned)r < (unsigned)A::HS && (unsigned)c < (unsigned)A::WS;
			acc[t] = fmaf(in ? E::load(from[r * A::WS + c]) : 0.0f, d, acc[t]);
		}
	}
	DL_UNROLL
	for (int t = 0; t < EACH; t++) {
		const float sum = dl_lanes_sum<32>(acc[t]);
		if (tid % 32 == 0)
			sums[tid / 32 * EACH + t] = sum;
	}
	__syncthreads();
	if (tid >= EACH || t0 + tid >= A::TAPS)
		return;
	float sum = 0.0f;
	DL_UNROLL
	for (int warp = 0; warp < 8; warp++)
		sum += sums[warp * EACH + tid];
	dl_conv_put<Out>(dw, before, ((int64_t)part * A::G * A::M + o) * A::TAPS + t0 + tid, sum);
}

#endif

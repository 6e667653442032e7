/* Behind scalar.h in every unit of CUDA C: moves of several elements, and reductions over a team of threads.
 *
 * A team is the threads that share a row: part of a warp, a warp, or a whole block of warps. */
#ifndef DL_CUDA_KERNEL_H
#define DL_CUDA_KERNEL_H

/* ---- several elements at a time ---- */

template <int BYTES> struct DlWord;
template <> struct DlWord<16> {
	typedef uint4 T;
};
template <> struct DlWord<8> {
	typedef uint2 T;
};
template <> struct DlWord<4> {
	typedef uint32_t T;
};
template <> struct DlWord<2> {
	typedef uint16_t T;
};
template <> struct DlWord<1> {
	typedef uint8_t T;
};

/* BYTES, a power of two; both addresses are multiples of it, or of 16. */
template <int BYTES> DL_INLINE void dl_move(void *to, const void *from)
{
	typedef typename DlWord<(BYTES > 16 ? 16 : BYTES)>::T T;
#pragma unroll
	for (int i = 0; i < BYTES / (int)sizeof(T); i++)
		((T *)to)[i] = ((const T *)from)[i];
}

/* ---- reductions over a team of N threads, a power of two up to a warp: every lane gets the result.
 * Lanes are added 16, 8, 4, 2, 1 apart. `mask`: the lanes of the warp that have not returned. ---- */

/* The larger, b where it is NaN. */
template <typename T> DL_INLINE T dl_larger(T a, T b) { return b > a || b != b ? b : a; }

template <int N, typename T> DL_INLINE T dl_team_sum(unsigned mask, T v)
{
#pragma unroll
	for (int d = N / 2; d > 0; d /= 2)
		v = v + __shfl_xor_sync(mask, v, d, N);
	return v;
}

template <int N, typename T> DL_INLINE T dl_team_max(unsigned mask, T v)
{
#pragma unroll
	for (int d = N / 2; d > 0; d /= 2)
		v = dl_larger(v, __shfl_xor_sync(mask, v, d, N));
	return N > 1 ? __shfl_sync(mask, v, 0, N) : v;
}

/* Takes element `at` for the largest where it is larger, or as large and earlier. A NaN is larger than
 * any number. */
template <typename T> DL_INLINE void dl_take(T &best, int32_t &where, T v, int32_t at)
{
	const bool same = v == best || (v != v && best != best);
	const bool more = v > best || (v != v && best == best);
	if (more || (same && at < where)) {
		best = v;
		where = at;
	}
}

template <int N, typename T> DL_INLINE void dl_team_argmax(unsigned mask, T &best, int32_t &where)
{
#pragma unroll
	for (int d = N / 2; d > 0; d /= 2) {
		const T v = __shfl_xor_sync(mask, best, d, N);
		const int32_t at = __shfl_xor_sync(mask, where, d, N);
		dl_take(best, where, v, at);
	}
}

/* ---- what blocks leave for one another ---- */

/* Whether this block is the last of `of` blocks to come here, for all of its threads: what any of them has written before is there for it. The counter
 * begins and ends at 0. */
DL_INLINE bool dl_last_block(unsigned *arrived, unsigned of)
{
	bool last = false;
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		last = atomicInc(arrived, of - 1) == of - 1;
		__threadfence();
	}
	return __syncthreads_or(last) != 0;
}

/* to[j] = parts[j] + parts[columns + j] + .., `count` of them in order. By all threads of a block. */
template <typename T> DL_INLINE void dl_add_parts(const T *parts, int count, int columns, T *to)
{
	for (int j = (int)threadIdx.x; j < columns; j += (int)blockDim.x) {
		T sum = parts[j];
#pragma unroll 8
		for (int i = 1; i < count; i++)
			sum = sum + parts[(int64_t)i * columns + j];
		to[j] = sum;
	}
}

#endif

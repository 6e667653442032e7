/* What every generated kernel file of the CPU starts with: scalar.h, whole arrays, reductions.
 *
 * Reductions: element j of a run goes to lane j % 16; the lanes of a block of DL_BLOCK elements are
 * added to the run's lanes, and at the end the lanes are added as a tree (8, 4, 2, 1 apart). So the
 * order of a sum depends on its shape alone: not on threads, tails, vector width or what else the
 * kernel does. */
#ifndef DL_KERNEL_H
#define DL_KERNEL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "plan.h"
#include "scalar.h"

enum { DL_BLOCK = 1024, DL_LANES = 16 };
/* Whole arrays, out of line: initial values differ in length and stream alone, and compile once.
 * Blocks of one length, of which the last is copied in part, take half the code of a loop to n. */
#define DL_FILL(NAME, T, PARAMS, VALUE)                                                       \
	static __attribute__((noinline, noclone, unused)) void NAME(                          \
		T *to, int64_t n, int64_t first, PARAMS, const PlanEnv *env)                  \
	{                                                                                     \
		_Pragma("omp parallel for num_threads(env->threads) if (n > 16384)")          \
		for (int64_t b = 0; b < n; b += 256) {                                        \
			T x[256];                                                             \
			_Pragma("omp simd")                                                   \
			for (int64_t j = b; j < b + 256; j++)                                 \
				x[j - b] = VALUE;                                             \
			memcpy(to + b, x, sizeof *to * (size_t)(n - b < 256 ? n - b : 256)); \
		}                                                                             \
	}
#define DL_PAIR(T) int32_t stream, T p, T q
#define DL_ONE(T) T p
DL_FILL(dl_fill_normal_f32, float, DL_PAIR(float),
	p + q * dl_normal_f32(DL_RANDOM(first + j, stream)))
DL_FILL(dl_fill_normal_f64, double, DL_PAIR(double),
	p + q * dl_normal_f64(DL_RANDOM(first + j, stream)))
DL_FILL(dl_fill_uniform_f32, float, DL_PAIR(double), DL_UNIFORM(float, first + j, stream, p, q))
DL_FILL(dl_fill_uniform_f64, double, DL_PAIR(double), DL_UNIFORM(double, first + j, stream, p, q))
DL_FILL(dl_fill_const_f32, float, DL_ONE(float), p)
DL_FILL(dl_fill_const_f64, double, DL_ONE(double), p)
DL_FILL(dl_fill_const_i32, int32_t, DL_ONE(int32_t), p)
DL_FILL(dl_fill_const_i64, int64_t, DL_ONE(int64_t), p)

/* ---- 16-bit numbers that lie together, widened ---- */

DL_INLINE void dl_widen_bf16(float *to, const uint16_t *from, int n)
{
#pragma omp simd
	for (int i = 0; i < n; i++)
		to[i] = dl_load_bf16(from[i]);
}

/* By the processor's own instruction, which the compiler does not find behind dl_load_f16. */
DL_INLINE void dl_widen_f16(float *to, const uint16_t *from, int n)
{
	int i = 0;
#if defined __AVX512F__ || defined __F16C__
#ifdef __AVX512F__
	enum { LANES = 16 };
#else
	enum { LANES = 8 };
#endif
	typedef short halves __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
	typedef float floats __attribute__((vector_size(4 * LANES)));
	typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
	for (; i + LANES <= n; i += LANES) {
		const halves h = *(const halves *)(from + i);
#ifdef __AVX512F__
		const floats f = __builtin_ia32_vcvtph2ps512_mask(h, (floats){ 0 }, -1, 4);
#else
		const floats f = __builtin_ia32_vcvtph2ps256(h);
#endif
		*(unaligned *)(to + i) = f;
	}
#endif
#pragma omp simd
	for (int j = i; j < n; j++)
		to[j] = dl_load_f16(from[j]);
}

/* ---- reductions ---- */

/* Half of a vector of 2n elements. */
#define DL_INDEX_4 0, 1, 2, 3
#define DL_INDEX_8 0, 1, 2, 3, 4, 5, 6, 7
#define DL_UPPER_4 4, 5, 6, 7
#define DL_UPPER_8 8, 9, 10, 11, 12, 13, 14, 15
#define DL_LOW(v, n) __builtin_shufflevector(v, v, DL_INDEX_##n)
#define DL_HIGH(v, n) __builtin_shufflevector(v, v, DL_UPPER_##n)

/* The larger, b where it is NaN. */
#define DL_PICK(NAME, V, M)                           \
	DL_INLINE V NAME(V a, V b)                    \
	{                                             \
		const M m = (M)(b > a) | (M)(b != b); \
		return (V)(((M)b & m) | ((M)a & ~m)); \
	}

/* Lanes of 16 elements (the compiler splits them where registers are shorter); sum, largest, and
 * where it is. A NaN counts as the largest. */
#define DL_REDUCERS(T, I, S, LOWEST)                                                         \
	typedef T dl_v_##S __attribute__((vector_size(16 * sizeof(T))));                     \
	typedef T dl_u_##S                                                                   \
		__attribute__((vector_size(16 * sizeof(T)), aligned(sizeof(T)), may_alias)); \
	typedef I dl_m_##S __attribute__((vector_size(16 * sizeof(T))));                     \
	typedef T dl_v8_##S __attribute__((vector_size(8 * sizeof(T))));                     \
	typedef T dl_v4_##S __attribute__((vector_size(4 * sizeof(T))));                     \
	typedef I dl_m8_##S __attribute__((vector_size(8 * sizeof(T))));                     \
	typedef I dl_m4_##S __attribute__((vector_size(4 * sizeof(T))));                     \
	DL_PICK(dl_pick_##S, dl_v_##S, dl_m_##S)                                             \
	DL_PICK(dl_pick8_##S, dl_v8_##S, dl_m8_##S)                                          \
	DL_PICK(dl_pick4_##S, dl_v4_##S, dl_m4_##S)                                          \
	DL_INLINE dl_v_##S dl_fill_##S(T x)                                                  \
	{                                                                                    \
		return (dl_v_##S){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };         \
	}                                                                                    \
	DL_INLINE dl_v_##S dl_lanes_sum_##S(const T *b, int n)                               \
	{                                                                                    \
		dl_v_##S a = dl_fill_##S(0);                                                 \
		int j = 0;                                                                   \
		for (; j + DL_LANES <= n; j += DL_LANES)                                     \
			a += *(const dl_u_##S *)(b + j);                                     \
		for (int l = 0; j + l < n; l++)                                              \
			a[l] += b[j + l];                                                    \
		return a;                                                                    \
	}                                                                                    \
	DL_INLINE dl_v_##S dl_lanes_max_##S(const T *b, int n)                               \
	{                                                                                    \
		dl_v_##S a = dl_fill_##S(LOWEST);                                            \
		int j = 0;                                                                   \
		for (; j + DL_LANES <= n; j += DL_LANES)                                     \
			a = dl_pick_##S(a, *(const dl_u_##S *)(b + j));                      \
		for (int l = 0; j + l < n; l++)                                              \
			a[l] = b[j + l] > a[l] || b[j + l] != b[j + l] ? b[j + l] : a[l];    \
		return a;                                                                    \
	}                                                                                    \
	DL_INLINE T dl_tree_sum_##S(dl_v_##S v)                                              \
	{                                                                                    \
		const dl_v8_##S a = DL_LOW(v, 8) + DL_HIGH(v, 8);                            \
		const dl_v4_##S b = DL_LOW(a, 4) + DL_HIGH(a, 4);                            \
		return (b[0] + b[2]) + (b[1] + b[3]);                                        \
	}                                                                                    \
	DL_INLINE T dl_tree_max_##S(dl_v_##S v)                                              \
	{                                                                                    \
		const dl_v8_##S a = dl_pick8_##S(DL_LOW(v, 8), DL_HIGH(v, 8));               \
		const dl_v4_##S b = dl_pick4_##S(DL_LOW(a, 4), DL_HIGH(a, 4));               \
		const T c = b[2] > b[0] || b[2] != b[2] ? b[2] : b[0];                       \
		const T d = b[3] > b[1] || b[3] != b[3] ? b[3] : b[1];                       \
		return d > c || d != d ? d : c;                                              \
	}                                                                                    \
	DL_INLINE void dl_argmax_##S(const T *b, int n, int64_t first, T *best, int32_t *at) \
	{                                                                                    \
		const T m = dl_tree_max_##S(dl_lanes_max_##S(b, n));                         \
		if (*at >= 0 && !(m > *best || (m != m && *best == *best)))                  \
			return;                                                              \
		int j = 0;                                                                   \
		while (j + 1 < n && !(b[j] == m || b[j] != b[j]))                            \
			j++;                                                                 \
		*best = m;                                                                   \
		*at = (int32_t)(first + j);                                                  \
	}
DL_REDUCERS(float, int32_t, f32, -INFINITY)
DL_REDUCERS(double, int64_t, f64, -INFINITY)
DL_REDUCERS(int32_t, int32_t, i32, INT32_MIN)
DL_REDUCERS(int64_t, int64_t, i64, INT64_MIN)

#endif

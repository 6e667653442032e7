/* Arrays of 16-bit numbers (narrow.h).
 *
 * Method. One number's conversion is scalar.h's, the text that generated kernels are compiled with, so that both give the
 * same bits. Here it stands in loops without branches, compiled once for each width of vectors, as the runtime is built
 * for any processor of its family; which of them runs is oneDNN's answer, so that its DNNL_MAX_CPU_ISA holds here too.
 * Blocks of BLOCK numbers go to threads. */
#include "narrow.h"

#include <dnnl.h>
#include <math.h>
#include <string.h>

/* As generated kernels are compiled: else branches would be kept that guard additions. */
#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("O3", "no-trapping-math", "no-math-errno")
#endif
#include "../codegen/scalar.h"

enum { BLOCK = 4096, PARALLEL = 16384 };

typedef struct Loops {
	void (*widen)(const uint16_t *restrict from, float *restrict to, int64_t n);
	void (*round)(const float *restrict from, uint16_t *restrict to, int64_t n);
} Loops;

#define LOOPS(TYPE, NAME, TARGET)                                                                       \
	TARGET static void widen_##TYPE##_##NAME(const uint16_t *restrict from, float *restrict to, int64_t n) \
	{                                                                                               \
		_Pragma("omp simd")                                                                     \
		for (int64_t i = 0; i < n; i++)                                                         \
			to[i] = dl_load_##TYPE(from[i]);                                                \
	}                                                                                               \
	TARGET static void round_##TYPE##_##NAME(const float *restrict from, uint16_t *restrict to, int64_t n) \
	{                                                                                               \
		_Pragma("omp simd")                                                                     \
		for (int64_t i = 0; i < n; i++)                                                         \
			to[i] = dl_store_##TYPE(from[i]);                                               \
	}
#define BOTH(NAME, TARGET) LOOPS(f16, NAME, TARGET) LOOPS(bf16, NAME, TARGET)
#define PAIR(TYPE, NAME) (Loops){ widen_##TYPE##_##NAME, round_##TYPE##_##NAME }
#define CHOOSE(T, NAME) ((T) == PD_F16 ? PAIR(f16, NAME) : PAIR(bf16, NAME))

BOTH(any, )
#if defined __x86_64__
BOTH(avx2, __attribute__((target("avx2"))))
BOTH(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))
#endif

static Loops loops_for(PlanDType t)
{
#if defined __x86_64__
	dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
	if ((isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core)
		return CHOOSE(t, avx512);
	if ((isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2)
		return CHOOSE(t, avx2);
#endif
	return CHOOSE(t, any);
}

static int64_t block_size(int64_t at, int64_t n)
{
	return n - at < BLOCK ? n - at : BLOCK;
}

void narrow_widen(PlanDType t, const uint16_t *from, float *to, int64_t n)
{
	const Loops l = loops_for(t);
#pragma omp parallel for if (n > PARALLEL)
	for (int64_t at = 0; at < n; at += BLOCK)
		l.widen(from + at, to + at, block_size(at, n));
}

void narrow_round(PlanDType t, const float *from, uint16_t *to, int64_t n)
{
	const Loops l = loops_for(t);
#pragma omp parallel for if (n > PARALLEL)
	for (int64_t at = 0; at < n; at += BLOCK)
		l.round(from + at, to + at, block_size(at, n));
}

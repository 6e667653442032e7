/* Instructions that CUDA C has no words for, as functions: tensor-core products of a warp, loads of their fragments from shared
 * memory, copies from global to shared memory that nobody waits for until he says so, 2^x and log2 x by the special-function unit.
 * CUDA C++ text behind scalar.h; where DL_SIM is defined, calls of the simulator that runs kernels on the host (tests/cudasim).
 *
 * Fragments of mma.sync.m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"), for lane l, r = l / 4, q = l % 4 * 2; 32-bit
 * registers hold two neighbouring 16-bit numbers, the first in the low half:
 *
 *     a [16 x 16]   a0: (r, q..q+1)  a1: (r+8, q..)  a2: (r, q+8..)  a3: (r+8, q+8..)
 *     b [16 x 8]    b0: (q..q+1, r)  b1: (q+8.., r)
 *     c [16 x 8]    c0 c1: (r, q..q+1)  c2 c3: (r+8, q..q+1)
 *
 * so the sums c of one product, packed, are the operand a of the next. ldmatrix gives lane l the words (r, q..q+1) of 8 x 8
 * matrices whose rows the lanes name: matrix i's row k by lane 8 i + k; .trans gives (q..q+1, r) instead. */
#ifndef DL_MMA_CUH
#define DL_MMA_CUH

extern __shared__ __align__(16) unsigned char dl_shared[];

/* Loops that must not be unrolled, which would only fill the instruction cache. */
#define DL_ROLLED _Pragma("unroll 1")

#ifdef DL_SIM

#define dl_mma_bf16 dl_sim_mma_bf16
#define dl_mma_f16 dl_sim_mma_f16
#define dl_ldmatrix dl_sim_ldmatrix_x4
#define dl_ldmatrix_trans dl_sim_ldmatrix_x4_trans
#define dl_copy16 dl_sim_cp_async16
#define dl_copy_commit dl_sim_cp_async_commit
#define dl_copy_wait() dl_sim_cp_async_wait(0)

DL_INLINE int dl_thread_again(void) { return (int)threadIdx.x; }
DL_INLINE float dl_exp2(float x) { return exp2f(x); }
DL_INLINE float dl_log2(float x) { return log2f(x); }
DL_INLINE uint32_t dl_pack2_bf16(float lo, float hi)
{
	return (uint32_t)dl_store_bf16(lo) | (uint32_t)dl_store_bf16(hi) << 16;
}
DL_INLINE uint32_t dl_pack2_f16(float lo, float hi)
{
	return (uint32_t)dl_store_f16(lo) | (uint32_t)dl_store_f16(hi) << 16;
}

#else

/* threadIdx.x, read where it stands: what is computed from it is not kept in registers from trip to trip of a loop. */
DL_INLINE int dl_thread_again(void)
{
	int t;
	asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
	return t;
}

/* d += a b, f32 sums. */
#define DL_MMA(name, type)                                                                                          \
	DL_INLINE void name(float *d, const uint32_t *a, const uint32_t *b)                                         \
	{                                                                                                           \
		asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                         \
			     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                \
			     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                       \
			     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
	}
DL_MMA(dl_mma_bf16, "bf16")
DL_MMA(dl_mma_f16, "f16")
#undef DL_MMA

DL_INLINE uint32_t dl_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Four 8 x 8 matrices of 16-bit numbers; `row`: 16 bytes of shared memory. */
#define DL_LDMATRIX(name, trans)                                                                                    \
	DL_INLINE void name(uint32_t *r, const void *row)                                                           \
	{                                                                                                           \
		asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];"               \
			     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                                       \
			     : "r"(dl_shared_address(row))                                                          \
			     : "memory");                                                                           \
	}
DL_LDMATRIX(dl_ldmatrix, "")
DL_LDMATRIX(dl_ldmatrix_trans, ".trans")
#undef DL_LDMATRIX

/* 16 bytes of shared memory from the first `valid` (0 or 16) of global memory, zeros behind them. */
DL_INLINE void dl_copy16(void *to, const void *from, int valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"(dl_shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(valid)
		     : "memory");
}
DL_INLINE void dl_copy_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until all of this thread's copies have landed; a barrier then shows them to the others. */
DL_INLINE void dl_copy_wait(void) { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

/* Within 2 units in the last place; 2^-inf = 0. */
DL_INLINE float dl_exp2(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
/* Within 2^-22 for x near 1, else of the result. */
DL_INLINE float dl_log2(float x)
{
	float y;
	asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
/* Two numbers, rounded to nearest even. */
DL_INLINE uint32_t dl_pack2_bf16(float lo, float hi)
{
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
DL_INLINE uint32_t dl_pack2_f16(float lo, float hi)
{
	uint32_t r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

#endif

/* Element types: bits in memory, f32 in registers. */
struct DlElementBf16 {
	typedef uint16_t Stored;
	static __device__ __forceinline__ float load(uint16_t x) { return dl_load_bf16(x); }
	static __device__ __forceinline__ uint16_t store(float x) { return (uint16_t)dl_pack2_bf16(x, 0.0f); }
	static __device__ __forceinline__ uint32_t pack2(float lo, float hi) { return dl_pack2_bf16(lo, hi); }
	static __device__ __forceinline__ void mma(float *d, const uint32_t *a, const uint32_t *b) { dl_mma_bf16(d, a, b); }
};
struct DlElementF16 {
	typedef uint16_t Stored;
	static __device__ __forceinline__ float load(uint16_t x) { return dl_load_f16(x); }
	static __device__ __forceinline__ uint16_t store(float x) { return (uint16_t)dl_pack2_f16(x, 0.0f); }
	static __device__ __forceinline__ uint32_t pack2(float lo, float hi) { return dl_pack2_f16(lo, hi); }
	static __device__ __forceinline__ void mma(float *d, const uint32_t *a, const uint32_t *b) { dl_mma_f16(d, a, b); }
};
struct DlElementF32 {
	typedef float Stored;
	static __device__ __forceinline__ float load(float x) { return x; }
	static __device__ __forceinline__ float store(float x) { return x; }
};

#endif

// The simulator's text in front of each kernel file: what NVRTC has built in, for g++.
//
// Every load and store of the kernel calls dl_sim_access (libcuda.so.1) through the hooks that g++ has for finding races; barriers, warp
// operations, tensor cores and asynchronous copies are calls. See entry.h for what follows once macros are expanded.
#define DL_SIM 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

#define DL_SIM_HIDDEN __attribute__((visibility("hidden")))
#define DL_SIM_PLAIN __attribute__((no_sanitize("thread,bounds,alignment")))
#define DL_SIM_AT int dl_line = __builtin_LINE(), const char *dl_file = __builtin_FILE()

typedef decltype(sizeof(0)) size_t;

// ---- what the compiler's hooks call ----
extern "C" {
void dl_sim_access(size_t a, size_t n, int how, const void *pc);
void dl_sim_index(size_t index, const void *pc);
void dl_sim_misaligned(const void *site, size_t a, const void *pc);
void *dl_sim_memcpy(void *to, const void *from, size_t n, const void *pc);
void *dl_sim_memset(void *to, int value, size_t n, const void *pc);
#define DL_SIM_HOOK(name, how) \
	DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_##name##1(size_t a) { dl_sim_access(a, 1, how, __builtin_return_address(0)); } \
	DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_##name##2(size_t a) { dl_sim_access(a, 2, how, __builtin_return_address(0)); } \
	DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_##name##4(size_t a) { dl_sim_access(a, 4, how, __builtin_return_address(0)); } \
	DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_##name##8(size_t a) { dl_sim_access(a, 8, how, __builtin_return_address(0)); } \
	DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_##name##16(size_t a) { dl_sim_access(a, 16, how, __builtin_return_address(0)); }
DL_SIM_HOOK(read, 0)
DL_SIM_HOOK(write, 1)
DL_SIM_HOOK(unaligned_read, 4)
DL_SIM_HOOK(unaligned_write, 5)
#undef DL_SIM_HOOK
DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_read_range(size_t a, size_t n) { dl_sim_access(a, n, 4, __builtin_return_address(0)); }
DL_SIM_HIDDEN DL_SIM_PLAIN void __tsan_write_range(size_t a, size_t n) { dl_sim_access(a, n, 5, __builtin_return_address(0)); }
DL_SIM_HIDDEN void __tsan_init(void) {}
DL_SIM_HIDDEN void __ubsan_handle_out_of_bounds(void *, size_t index) { dl_sim_index(index, __builtin_return_address(0)); }
DL_SIM_HIDDEN void __ubsan_handle_type_mismatch_v1(void *site, size_t a) { dl_sim_misaligned(site, a, __builtin_return_address(0)); }
DL_SIM_HIDDEN DL_SIM_PLAIN void *memcpy(void *to, const void *from, size_t n) { return dl_sim_memcpy(to, from, n, __builtin_return_address(0)); }
DL_SIM_HIDDEN DL_SIM_PLAIN void *memmove(void *to, const void *from, size_t n) { return dl_sim_memcpy(to, from, n, __builtin_return_address(0)); }
DL_SIM_HIDDEN DL_SIM_PLAIN void *memset(void *to, int value, size_t n) { return dl_sim_memset(to, value, n, __builtin_return_address(0)); }
}

// ---- shared memory ----
template <class T, size_t A> struct alignas(128) dl_sim_padded {
	unsigned char front[A];
	T v;
	unsigned char back[64];
};
template <class T> static inline __attribute__((always_inline)) T &dl_sim_opaque(T &v)
{
	T *p = &v;
	__asm__("" : "+r"(p));
	return *p;
}

// ---- vector types ----
#define DL_SIM_VECTOR(t, name, a2, a4) \
	struct name##1 { t x; }; \
	struct __attribute__((aligned(a2))) name##2 { t x, y; }; \
	struct name##3 { t x, y, z; }; \
	struct __attribute__((aligned(a4))) name##4 { t x, y, z, w; }; \
	static inline name##1 make_##name##1(t x) { return name##1{x}; } \
	static inline name##2 make_##name##2(t x, t y) { return name##2{x, y}; } \
	static inline name##3 make_##name##3(t x, t y, t z) { return name##3{x, y, z}; } \
	static inline name##4 make_##name##4(t x, t y, t z, t w) { return name##4{x, y, z, w}; }
DL_SIM_VECTOR(signed char, char, 2, 4)
DL_SIM_VECTOR(unsigned char, uchar, 2, 4)
DL_SIM_VECTOR(short, short, 4, 8)
DL_SIM_VECTOR(unsigned short, ushort, 4, 8)
DL_SIM_VECTOR(int, int, 8, 16)
DL_SIM_VECTOR(unsigned, uint, 8, 16)
DL_SIM_VECTOR(long long, longlong, 16, 16)
DL_SIM_VECTOR(unsigned long long, ulonglong, 16, 16)
DL_SIM_VECTOR(float, float, 8, 16)
DL_SIM_VECTOR(double, double, 16, 16)
#undef DL_SIM_VECTOR
struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- who a thread is ----
struct dl_sim_now_t { uint3 thread, block, block_dim, grid_dim; };
DL_SIM_HIDDEN dl_sim_now_t dl_sim_now;
#define threadIdx (const_cast<const uint3 &>(dl_sim_now.thread))
#define blockIdx (const_cast<const uint3 &>(dl_sim_now.block))
#define blockDim (const_cast<const uint3 &>(dl_sim_now.block_dim))
#define gridDim (const_cast<const uint3 &>(dl_sim_now.grid_dim))
#define warpSize 32

// ---- barriers, warps ----
extern "C" {
int dl_sim_barrier(int how, int pred, int line, const char *file);
void dl_sim_syncwarp(unsigned mask, int line, const char *file);
unsigned long long dl_sim_shfl(int how, unsigned mask, unsigned long long v, int source, int width, int line, const char *file);
unsigned dl_sim_vote(int how, unsigned mask, int pred, int line, const char *file);
int dl_sim_reduce(int how, unsigned mask, int v, int line, const char *file);
void dl_sim_mma(int how, float *d, const unsigned *a, const unsigned *b, int line, const char *file);
void dl_sim_ldmatrix(int n, int trans, unsigned *r, const void *row, int line, const char *file);
void dl_sim_async16(void *shared, const void *global, int valid, int line, const char *file);
void dl_sim_async_commit(void);
void dl_sim_async_wait(int n);
void dl_sim_trap(int line, const char *file);
void dl_sim_fence(void);
int printf(const char *, ...);
}
static inline void __syncthreads(DL_SIM_AT) { dl_sim_barrier(0, 0, dl_line, dl_file); }
static inline int __syncthreads_count(int p, DL_SIM_AT) { return dl_sim_barrier(1, p, dl_line, dl_file); }
static inline int __syncthreads_and(int p, DL_SIM_AT) { return dl_sim_barrier(2, p, dl_line, dl_file); }
static inline int __syncthreads_or(int p, DL_SIM_AT) { return dl_sim_barrier(3, p, dl_line, dl_file); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, DL_SIM_AT) { dl_sim_syncwarp(mask, dl_line, dl_file); }
static inline unsigned __ballot_sync(unsigned mask, int p, DL_SIM_AT) { return dl_sim_vote(0, mask, p, dl_line, dl_file); }
static inline int __any_sync(unsigned mask, int p, DL_SIM_AT) { return (int)dl_sim_vote(1, mask, p, dl_line, dl_file); }
static inline int __all_sync(unsigned mask, int p, DL_SIM_AT) { return (int)dl_sim_vote(2, mask, p, dl_line, dl_file); }
static inline int __reduce_add_sync(unsigned mask, int v, DL_SIM_AT) { return dl_sim_reduce(0, mask, v, dl_line, dl_file); }
static inline unsigned __reduce_add_sync(unsigned mask, unsigned v, DL_SIM_AT) { return (unsigned)dl_sim_reduce(0, mask, (int)v, dl_line, dl_file); }
static inline int __reduce_min_sync(unsigned mask, int v, DL_SIM_AT) { return dl_sim_reduce(1, mask, v, dl_line, dl_file); }
static inline int __reduce_max_sync(unsigned mask, int v, DL_SIM_AT) { return dl_sim_reduce(2, mask, v, dl_line, dl_file); }
static inline void __threadfence() { dl_sim_fence(); }
static inline void __threadfence_block() {}
static inline void __trap(DL_SIM_AT) { dl_sim_trap(dl_line, dl_file); }

template <class T> static inline unsigned long long dl_sim_bits(T v)
{
	unsigned long long b = 0;
	__builtin_memcpy(&b, &v, sizeof v);
	return b;
}
template <class T> static inline T dl_sim_value(unsigned long long b)
{
	T v;
	__builtin_memcpy(&v, &b, sizeof v);
	return v;
}
#define DL_SIM_SHFL(T) \
	static inline T __shfl_sync(unsigned m, T v, int lane, int width = 32, DL_SIM_AT) \
	{ return dl_sim_value<T>(dl_sim_shfl(0, m, dl_sim_bits(v), lane, width, dl_line, dl_file)); } \
	static inline T __shfl_up_sync(unsigned m, T v, unsigned by, int width = 32, DL_SIM_AT) \
	{ return dl_sim_value<T>(dl_sim_shfl(1, m, dl_sim_bits(v), (int)by, width, dl_line, dl_file)); } \
	static inline T __shfl_down_sync(unsigned m, T v, unsigned by, int width = 32, DL_SIM_AT) \
	{ return dl_sim_value<T>(dl_sim_shfl(2, m, dl_sim_bits(v), (int)by, width, dl_line, dl_file)); } \
	static inline T __shfl_xor_sync(unsigned m, T v, int by, int width = 32, DL_SIM_AT) \
	{ return dl_sim_value<T>(dl_sim_shfl(3, m, dl_sim_bits(v), by, width, dl_line, dl_file)); }
DL_SIM_SHFL(int)
DL_SIM_SHFL(unsigned)
DL_SIM_SHFL(long)
DL_SIM_SHFL(unsigned long)
DL_SIM_SHFL(long long)
DL_SIM_SHFL(unsigned long long)
DL_SIM_SHFL(float)
DL_SIM_SHFL(double)
#undef DL_SIM_SHFL

// ---- tensor cores and asynchronous copies: what codegen's device text calls in place of PTX ----
static inline void dl_sim_mma_bf16(float *d, const unsigned *a, const unsigned *b, DL_SIM_AT) { dl_sim_mma(0, d, a, b, dl_line, dl_file); }
static inline void dl_sim_mma_f16(float *d, const unsigned *a, const unsigned *b, DL_SIM_AT) { dl_sim_mma(1, d, a, b, dl_line, dl_file); }
static inline void dl_sim_mma_tf32(float *d, const unsigned *a, const unsigned *b, DL_SIM_AT) { dl_sim_mma(2, d, a, b, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x1(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(1, 0, r, row, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x2(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(2, 0, r, row, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x4(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(4, 0, r, row, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x1_trans(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(1, 1, r, row, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x2_trans(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(2, 1, r, row, dl_line, dl_file); }
static inline void dl_sim_ldmatrix_x4_trans(unsigned *r, const void *row, DL_SIM_AT) { dl_sim_ldmatrix(4, 1, r, row, dl_line, dl_file); }
static inline void dl_sim_cp_async16(void *shared, const void *global, int valid = 16, DL_SIM_AT)
{ dl_sim_async16(shared, global, valid, dl_line, dl_file); }
static inline void dl_sim_cp_async_commit() { dl_sim_async_commit(); }
static inline void dl_sim_cp_async_wait(int n) { dl_sim_async_wait(n); }

// ---- atomics on integers ----
#define DL_SIM_ATOMIC(T, name, expr) \
	static __noinline__ DL_SIM_PLAIN T name(T *p, T v) \
	{ \
		dl_sim_access((size_t)p, sizeof *p, 2, __builtin_return_address(0)); \
		T old = *p; \
		*p = expr; \
		return old; \
	}
#define DL_SIM_ATOMICS(T) \
	DL_SIM_ATOMIC(T, atomicAdd, old + v) \
	DL_SIM_ATOMIC(T, atomicMax, old > v ? old : v) \
	DL_SIM_ATOMIC(T, atomicMin, old < v ? old : v) \
	DL_SIM_ATOMIC(T, atomicExch, v) \
	DL_SIM_ATOMIC(T, atomicOr, old | v) \
	DL_SIM_ATOMIC(T, atomicAnd, old & v) \
	static __noinline__ DL_SIM_PLAIN T atomicCAS(T *p, T expected, T v) \
	{ \
		dl_sim_access((size_t)p, sizeof *p, 2, __builtin_return_address(0)); \
		T old = *p; \
		if (old == expected) *p = v; \
		return old; \
	}
DL_SIM_ATOMICS(int)
DL_SIM_ATOMICS(unsigned)
DL_SIM_ATOMICS(unsigned long long)
DL_SIM_ATOMIC(unsigned, atomicInc, old >= v ? 0 : old + 1)
DL_SIM_ATOMIC(unsigned, atomicDec, old == 0 || old > v ? v : old - 1)
#undef DL_SIM_ATOMIC
#undef DL_SIM_ATOMICS

// ---- arithmetic ----
extern "C" {
#define DL_SIM_F1(n) float n##f(float) noexcept; double n(double) noexcept;
#define DL_SIM_F2(n) float n##f(float, float) noexcept; double n(double, double) noexcept;
DL_SIM_F1(exp) DL_SIM_F1(exp2) DL_SIM_F1(expm1) DL_SIM_F1(log) DL_SIM_F1(log2) DL_SIM_F1(log10) DL_SIM_F1(log1p) DL_SIM_F1(sqrt) DL_SIM_F1(cbrt)
DL_SIM_F1(sin) DL_SIM_F1(cos) DL_SIM_F1(tan) DL_SIM_F1(asin) DL_SIM_F1(acos) DL_SIM_F1(atan) DL_SIM_F1(sinh) DL_SIM_F1(cosh) DL_SIM_F1(tanh)
DL_SIM_F1(asinh) DL_SIM_F1(acosh) DL_SIM_F1(atanh) DL_SIM_F1(erf) DL_SIM_F1(erfc) DL_SIM_F1(fabs) DL_SIM_F1(floor) DL_SIM_F1(ceil) DL_SIM_F1(trunc)
DL_SIM_F1(round) DL_SIM_F1(rint) DL_SIM_F1(nearbyint) DL_SIM_F1(lgamma) DL_SIM_F1(tgamma)
DL_SIM_F2(pow) DL_SIM_F2(fmod) DL_SIM_F2(fmin) DL_SIM_F2(fmax) DL_SIM_F2(atan2) DL_SIM_F2(copysign) DL_SIM_F2(hypot)
#undef DL_SIM_F1
#undef DL_SIM_F2
float fmaf(float, float, float) noexcept;
double fma(double, double, double) noexcept;
float ldexpf(float, int) noexcept;
double ldexp(double, int) noexcept;
long lrintf(float) noexcept;
int abs(int) noexcept;
}
#define DL_SIM_O(n) static inline float n(float x) { return n##f(x); }
DL_SIM_O(exp) DL_SIM_O(exp2) DL_SIM_O(log) DL_SIM_O(log2) DL_SIM_O(log1p) DL_SIM_O(sqrt) DL_SIM_O(sin) DL_SIM_O(cos) DL_SIM_O(tan) DL_SIM_O(tanh)
DL_SIM_O(erf) DL_SIM_O(fabs) DL_SIM_O(floor) DL_SIM_O(ceil) DL_SIM_O(trunc) DL_SIM_O(round) DL_SIM_O(rint)
#undef DL_SIM_O
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }
static inline float pow(float x, float y) { return powf(x, y); }
static inline float fmin(float x, float y) { return fminf(x, y); }
static inline float fmax(float x, float y) { return fmaxf(x, y); }
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
#define DL_SIM_MINMAX(T) \
	static inline T min(T a, T b) { return a < b ? a : b; } \
	static inline T max(T a, T b) { return a > b ? a : b; }
DL_SIM_MINMAX(int)
DL_SIM_MINMAX(unsigned)
DL_SIM_MINMAX(long)
DL_SIM_MINMAX(unsigned long)
DL_SIM_MINMAX(long long)
DL_SIM_MINMAX(unsigned long long)
#undef DL_SIM_MINMAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline int isnan(float x) { return __builtin_isnan(x); }
static inline int isnan(double x) { return __builtin_isnan(x); }
static inline int isinf(float x) { return __builtin_isinf(x) != 0; }
static inline int isinf(double x) { return __builtin_isinf(x) != 0; }
static inline int isfinite(float x) { return __builtin_isfinite(x); }
static inline int isfinite(double x) { return __builtin_isfinite(x); }
static inline int signbit(float x) { return __builtin_signbit(x) != 0; }
static inline int signbit(double x) { return __builtin_signbit(x) != 0; }

static inline unsigned __float_as_uint(float x) { return dl_sim_value<unsigned>(dl_sim_bits(x)); }
static inline int __float_as_int(float x) { return dl_sim_value<int>(dl_sim_bits(x)); }
static inline float __uint_as_float(unsigned x) { return dl_sim_value<float>(x); }
static inline float __int_as_float(int x) { return dl_sim_value<float>((unsigned)x); }
static inline long long __double_as_longlong(double x) { return (long long)dl_sim_bits(x); }
static inline double __longlong_as_double(long long x) { return dl_sim_value<double>((unsigned long long)x); }
static inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
static inline float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
static inline float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
static inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __expf(float x) { return expf(x); }
static inline float __exp2f(float x) { return exp2f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __brev(unsigned x)
{
	unsigned r = 0;
	for (int i = 0; i < 32; i++)
		r |= ((x >> i) & 1u) << (31 - i);
	return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)(((unsigned __int128)a * b) >> 64); }
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
	unsigned long long v = ((unsigned long long)b << 32) | a;
	unsigned r = 0;
	for (int i = 0; i < 4; i++) {
		unsigned pick = (s >> (4 * i)) & 15u, byte = (unsigned)(v >> (8 * (pick & 7u))) & 255u;
		r |= ((pick & 8u) ? (byte & 128u ? 255u : 0u) : byte) << (8 * i);
	}
	return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { s &= 31; return s ? (hi << s) | (lo >> (32 - s)) : hi; }
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { s &= 31; return s ? (lo >> s) | (hi << (32 - s)) : lo; }
static inline int __float2int_rn(float x) { return (int)lrintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }

// ---- entries: parameters are unpacked here ----
struct dl_sim_kernel_t { void (*call)(void *const *); const unsigned *sizes; unsigned nparams, max_threads; };
struct dl_sim_module_t { unsigned abi, arch; dl_sim_now_t *now; unsigned char *dynamic; };
template <size_t... I> struct dl_sim_index_list {};
template <class... A> struct dl_sim_entry {
	static constexpr unsigned sizes[sizeof...(A) + 1] = {(unsigned)sizeof(A)..., 0u};
	template <void (*F)(A...), size_t... I> static DL_SIM_PLAIN void unpack(void *const *p, dl_sim_index_list<I...>) { F(*(A *)p[I]...); }
	template <void (*F)(A...)> static DL_SIM_PLAIN void call(void *const *p) { unpack<F>(p, dl_sim_index_list<__integer_pack(sizeof...(A))...>()); }
};
template <class... A> static constexpr dl_sim_entry<A...> dl_sim_entry_of(void (*)(A...)) { return dl_sim_entry<A...>(); }
#define alignas(n) __attribute__((aligned(n)))

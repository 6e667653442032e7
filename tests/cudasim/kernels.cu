// Kernels of tests/cudasim/sim_test.c. x: 256 floats 0, 1, ..; y: 1024 floats, never written; n: a number of the case.
// A kernel bad_NAME has the fault that its name says, ok_NAME is its twin without it.
#include "part.h"

typedef unsigned int u32;
typedef unsigned short u16;
#define K extern "C" __global__ void
#define T threadIdx.x
#define ALL 0xffffffffu

// ---- bounds, alignment, freed memory ----
K ok_bounds(float *x, float *y, int n) { y[T + n] = x[T]; }
K bad_bounds_null(float *x, float *y, int n) { ((float *)0)[n] = x[T]; }
K bad_index(float *x, float *y, int n)
{
	float a[4];
	for (int i = 0; i < 4; i++)
		a[i] = x[i];
	y[T] = a[(T + n) & 7];
}
K ok_index(float *x, float *y, int n)
{
	float a[4];
	for (int i = 0; i < 4; i++)
		a[i] = x[i];
	y[T] = a[(T + n) & 3];
}
K ok_align(float *x, float *y, int n) { ((float2 *)(y + n))[T] = make_float2(x[T], 0.0f); }
K bad_align_shared(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncthreads();
	float4 v = ((float4 *)s)[T & 15];
	y[T] = v.x + v.w;
}
K ok_align_shared(float *x, float *y, int n)
{
	__shared__ __align__(16) float s[64];
	s[T] = x[T];
	__syncthreads();
	float4 v = ((float4 *)s)[T & 15];
	y[T] = v.x + v.w;
}
K bad_bounds_shared(float *x, float *y, int n)
{
	__shared__ float s[32], other[32];
	other[T] = 0.0f;
	float *p = s;
	p[T + n] = x[T]; // n = 1: one beyond the end
	y[T] = other[T];
}
K ok_dynamic(float *x, float *y, int n)
{
	extern __shared__ __align__(16) unsigned char dl_shared[];
	float *s = (float *)dl_shared;
	s[T] = x[T];
	__syncthreads();
	y[T] = s[T ^ 1];
}
K bad_local_of_other(float *x, float *y, int n)
{
	__shared__ float *p;
	float mine[4] = {x[T], 1.0f, 2.0f, 3.0f};
	if (T == 0)
		p = mine;
	__syncthreads();
	y[T] = p[n] + mine[n + 1];
}

// ---- memory never written ----
K bad_unwritten(float *x, float *y, int n) { x[T] = y[T + n]; }
K ok_unwritten(float *x, float *y, int n)
{
	y[T + n] = 1.0f;
	x[T] = y[T + n];
}
K bad_unwritten_shared(float *x, float *y, int n)
{
	__shared__ float s[64];
	if ((int)T != n)
		s[T] = x[T];
	__syncthreads();
	y[T] = s[T ^ 1];
}
K bad_unwritten_block(float *x, float *y, int n) // the other block's shared memory is not this one's
{
	__shared__ float s;
	if (blockIdx.x == 0 && T == 0)
		s = x[0];
	__syncthreads();
	y[blockIdx.x * blockDim.x + T] = s;
}

// ---- races ----
K bad_race_shared(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = 0.0f;
	__syncthreads();
	s[T] = x[T];
	y[T] = s[63 - T];
}
K ok_race_shared(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncthreads();
	y[T] = s[63 - T];
}
K bad_race_warp(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = x[T];
	float v = __shfl_xor_sync(ALL, x[T], 1); // orders nothing
	y[T] = s[T ^ 1] + v;
}
K ok_race_warp(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncwarp();
	float v = s[T ^ 1];
	__syncwarp();
	s[T] = v;
	y[T] = s[T];
}
K bad_race_after(float *x, float *y, int n) // a write that does not wait for the readers
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncthreads();
	float v = s[63 - T];
	s[T] = v;
	y[T] = v;
}
K ok_race_after(float *x, float *y, int n)
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncthreads();
	float v = s[63 - T];
	__syncthreads();
	s[T] = v;
	y[T] = v;
}
K bad_race_twice(float *x, float *y, int n) // reads and writes one element: both count
{
	__shared__ float s[64];
	s[T] = x[T];
	__syncthreads();
	s[T] += 1.0f;
	y[T] = s[T ^ n];
}
K bad_race_both(float *x, float *y, int n)
{
	__shared__ float s;
	s = x[0];
	__syncthreads();
	y[T] = s;
}
K bad_race_half(float *x, float *y, int n) // half of a warp is synchronised, the other half is read
{
	__shared__ float s[32];
	u32 half = T < 16 ? 0xffffu : 0xffff0000u;
	s[T] = 0.0f;
	__syncwarp();
	s[T] = x[T];
	__syncwarp(half);
	y[T] = s[T ^ 16];
}
K ok_race_half(float *x, float *y, int n)
{
	__shared__ float s[32];
	u32 half = T < 16 ? 0xffffu : 0xffff0000u;
	s[T] = x[T];
	__syncwarp(half);
	y[T] = s[T ^ 8];
}
K bad_race_global(float *x, float *y, int n)
{
	y[T] = 0.0f;
	__syncthreads();
	y[T] = x[T];
	y[T + 64] = y[63 - T];
}
K ok_race_global(float *x, float *y, int n)
{
	y[T] = x[T];
	__syncthreads();
	y[T + 64] = y[63 - T];
}
K bad_race_blocks(float *x, float *y, int n) { y[T] = x[T]; }
K ok_race_blocks(float *x, float *y, int n) { y[blockIdx.x * blockDim.x + T] = x[T]; }
K bad_race_blocks_read(float *x, float *y, int n) // each block adds to what all blocks read
{
	float v = x[T];
	__syncthreads();
	if ((int)blockIdx.x == n)
		x[T] = v + 1.0f;
}
K bad_race_bytes(float *x, float *y, int n) { ((u16 *)y)[T] = 1; if (T == 0) y[n] = 0.0f; }
K ok_race_bytes(float *x, float *y, int n) { ((u16 *)y)[T] = 1; }
K ok_atomics(float *x, float *y, int n)
{
	int *c = (int *)(y + 512);
	if (T == 0)
		*c = 0;
	__syncthreads();
	atomicAdd(c, 2);
	__syncthreads();
	y[T] = (float)*c;
}
K bad_atomics(float *x, float *y, int n)
{
	int *c = (int *)(y + 512);
	if (T == 0)
		*c = 0;
	__syncthreads();
	atomicAdd(c, 2);
	y[T] = (float)*c;
}

// The block that comes last reads what all have written.
__device__ unsigned arrived[2];
K ok_last_block(float *x, float *y, int n)
{
	bool last = false;
	y[512 + blockIdx.x * 32 + T] = (float)T;
	__syncthreads();
	if (T == 0) {
		__threadfence();
		last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
		__threadfence();
	}
	if (!__syncthreads_or(last))
		return;
	float sum = 0.0f;
	for (int b = 0; b < (int)gridDim.x; b++)
		sum += y[512 + b * 32 + T];
	y[T] = sum / (float)gridDim.x;
}
// n: what is left out: the fence before the atomic operation, that behind it, the barrier before the fence, the one behind.
K bad_last_block(float *x, float *y, int n)
{
	bool last = false;
	y[512 + blockIdx.x * 32 + T] = (float)T;
	if (n != 2)
		__syncthreads();
	if (T == 0) {
		if (n != 0)
			__threadfence();
		last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
		if (n != 1)
			__threadfence();
	}
	if (n == 3) {
		if (last)
			y[1] = y[512];
		return;
	}
	if (!__syncthreads_or(last))
		return;
	float sum = 0.0f;
	for (int b = 0; b < (int)gridDim.x; b++)
		sum += y[512 + b * 32 + T];
	y[T] = sum / (float)gridDim.x;
}
// Another block's counter says nothing of this one's.
K bad_last_other(float *x, float *y, int n)
{
	y[512 + blockIdx.x * 32 + T] = (float)T;
	__syncthreads();
	if (T == 0) {
		__threadfence();
		atomicInc(arrived + blockIdx.x % 2, gridDim.x - 1);
		__threadfence();
	}
	__syncthreads();
	if (blockIdx.x == gridDim.x - 1)
		y[T] = y[512 + T + 32 * (blockIdx.x - 1)];
}

// ---- barriers and warps ----
K bad_barrier_exit(float *x, float *y, int n)
{
	if ((int)T >= n)
		return;
	__syncthreads();
	y[T] = x[T];
}
K bad_barrier_two(float *x, float *y, int n)
{
	if ((int)T < n) {
		y[T] = x[T];
		__syncthreads();
	} else {
		__syncthreads();
	}
}
K ok_barrier(float *x, float *y, int n)
{
	if ((int)T < n)
		y[T] = x[T];
	__syncthreads();
	if ((int)T >= n)
		return;
}
K bad_lanes_exit(float *x, float *y, int n)
{
	if ((int)T >= n)
		return;
	y[T] = __shfl_down_sync(ALL, x[T], 1);
}
K bad_lanes_barrier(float *x, float *y, int n)
{
	if ((int)T < n)
		y[T] = __shfl_down_sync(ALL, x[T], 1);
	__syncthreads();
}
K bad_lanes_mixed(float *x, float *y, int n)
{
	if ((int)T < n)
		y[T] = __shfl_down_sync(ALL, x[T], 1);
	else
		y[T] = (float)__ballot_sync(ALL, 1);
}
K ok_lanes(float *x, float *y, int n)
{
	if ((int)T < n)
		y[T] = __shfl_down_sync(0xffffu, x[T], 1, 16);
}
K bad_lanes_mask(float *x, float *y, int n) { y[T] = __shfl_sync(0xffffu, x[T], 0); }
K bad_lanes_source(float *x, float *y, int n)
{
	if ((int)T < n)
		y[T] = __shfl_sync(0xffffu, x[T], 20);
}
K bad_trap(float *x, float *y, int n) { if ((int)T == n) __trap(); }

// ---- launches ----
extern "C" __global__ void __launch_bounds__(2 * 32, 1) bounded(float *x, float *y, int n) { y[T] = x[T]; }
K bad_static_shared(float *x, float *y, int n)
{
	__shared__ float a[8192], b[8192];
	a[T] = x[T];
	b[T] = x[T];
	y[T] = a[T] + b[T];
}
struct Off { long long at[4]; };
extern "C" __global__ void __launch_bounds__(256) offsets(unsigned char *const arena, const Off off, const float *const env)
{
	((float *)(arena + off.at[1]))[T] = ((const float *)(arena + off.at[0]))[T] + *env;
}

// ---- what results must be ----
K shuffles(float *x, float *y, int n)
{
	float v = x[T];
	y[T] = __shfl_sync(ALL, v, (T + 5) & 31);
	y[32 + T] = __shfl_up_sync(ALL, v, 3);
	y[64 + T] = __shfl_down_sync(ALL, v, 3, 8);
	y[96 + T] = __shfl_xor_sync(ALL, v, 9);
	y[128 + T] = (float)__shfl_xor_sync(ALL, (double)v, 1);
	y[160 + T] = (float)__popc(__ballot_sync(ALL, T % 3 == 0));
	y[192 + T] = (float)(__any_sync(ALL, T == 31) * 2 + __all_sync(ALL, T < 31));
	y[224 + T] = (float)__reduce_add_sync(ALL, (int)T - 7);
	y[256 + T] = (float)__reduce_max_sync(ALL, (int)T - 7);
	y[288 + T] = __shfl_sync(ALL, v, 1, 4);
}
K barriers(float *x, float *y, int n)
{
	y[T] = (float)__syncthreads_count(T < 40);
	y[64 + T] = (float)__syncthreads_and(T < 64);
	y[128 + T] = (float)__syncthreads_or(T == 64);
}
template <int N> static __device__ float block_sum(float v)
{
	__shared__ float part[N], total;
	for (int k = 16; k; k >>= 1)
		v += __shfl_xor_sync(ALL, v, k);
	if (T % 32 == 0)
		part[T / 32] = v;
	__syncthreads();
	if (T == 0) {
		float t = 0.0f;
		for (int i = 0; i < N; i++)
			t += part[i];
		total = t;
	}
	__syncthreads();
	return total;
}
K sums(float *x, float *y, int n) { y[blockIdx.x * 64 + T] = block_sum<2>(x[T]) + part_of_header(n); }
K places(float *x, float *y, int n)
{
	u32 t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
	u32 b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
	y[b * 24 + t] = (float)(b * 100 + t);
}
K bits(float *x, float *y, int n)
{
	y[0] = (float)__popc(0xf0f0u) + (float)__ffs(8) * 100.0f + (float)__clz(1) * 10000.0f;
	y[1] = __uint_as_float(0x40490fdbu);
	y[2] = (float)__float_as_uint(1.0f);
	y[3] = (float)__umulhi(0x80000000u, 6u) + (float)(__brev(1u) >> 31);
	y[4] = (float)__byte_perm(0x03020100u, 0x07060504u, 0x5410u);
	y[5] = fmaf(1.0000001f, 1.0000001f, -1.0f);
	y[6] = min(3, 4) + max(2.5f, 1.0f) + fminf(7.0f, 8.0f);
	y[7] = rsqrtf(4.0f) + (float)VALUE;
	float4 v = make_float4(1, 2, 3, 4);
	y[8] = v.x + v.y * v.z + v.w;
	y[9] = (float)sizeof(float4) + (float)alignof(uint2);
}
__constant__ float table[4] = {1.0f, 2.0f, 3.0f, 5.0f};
__device__ int counter;
__device__ unsigned char dl_env[64];
K variables(float *x, float *y, int n)
{
	y[T] = table[T & 3] + (float)*(int *)(dl_env + 8);
	if (T == 0)
		counter += n;
}

template <class A, class B> struct Pair { A a; B b; };
#define TILE(name, n) __shared__ float name[n][n + 1]
K declarations(float *x, float *y, int n)
{
	TILE(tile, 8);
	__shared__ Pair<int, Pair<float, short>> pairs[2], one;
	__shared__ alignas(16) unsigned char raw[sizeof(float) * (4 + 4)];
	__shared__ volatile int *where, /* a comment; with a semicolon, and [brackets] */ count;
	extern __shared__ float dynamic[];
	if (T < 8)
		tile[T][8] = x[T];
	if (T == 0) {
		pairs[1].b.a = 5.0f;
		one.a = 7;
		where = &count;
		*where = 9;
		((float4 *)raw)[1] = make_float4(1, 2, 3, 4);
	}
	dynamic[T] = x[T];
	__syncthreads();
	y[T] = tile[T & 7][8] + pairs[1].b.a + (float)one.a + (float)count + ((float *)raw)[4 + (T & 3)] + dynamic[T ^ 1];
	if (n)
		tile[0][T + n] = 0.0f; // n = 33: another row, not out of the variable
}
K order(float *x, float *y, int n) // the last block to run wins
{
	if (T == 0)
		y[n] = (float)blockIdx.x;
}

// D = A x B of 16 x 8 x 16 (8 for tf32) integers; A in x[0..], B behind it
static __device__ u32 pack(float a, float b, int how)
{
	u32 u = __float_as_uint(a), v = __float_as_uint(b);
	if (how == 0)
		return (u >> 16) | (v & 0xffff0000u);
	u32 h[2] = {u, v};
	for (int i = 0; i < 2; i++) // small integers only
		h[i] = h[i] << 1 == 0 ? 0u : ((h[i] >> 16) & 0x8000u) | ((((h[i] >> 23) & 255u) - 112u) << 10) | ((h[i] >> 13) & 1023u);
	return h[0] | (h[1] << 16);
}
static __device__ float small(int i) { return (float)((i * 7 + 3) % 11 - 5); }
K products(float *x, float *y, int n)
{
	u32 g = T / 4, t = T % 4, a[4], b[2];
	float d[4];
	for (int i = 0; i < 4; i++)
		d[i] = 100.0f;
	for (int r = 0; r < 4; r++) {
		int row = (int)(g + 8 * (r & 1)), col = n == 2 ? (int)(t + 4 * (r >> 1)) : (int)(2 * t + 8 * (r >> 1)), k = n == 2 ? 8 : 16;
		a[r] = n == 2 ? __float_as_uint(small(row * k + col)) : pack(small(row * k + col), small(row * k + col + 1), n);
		if (r < 2) {
			int kr = n == 2 ? (int)(t + 4 * r) : (int)(2 * t + 8 * r);
			b[r] = n == 2 ? __float_as_uint(small(1000 + kr * 8 + (int)g)) : pack(small(1000 + kr * 8 + (int)g), small(1000 + (kr + 1) * 8 + (int)g), n);
		}
	}
	if (n == 0)
		dl_sim_mma_bf16(d, a, b);
	else if (n == 1)
		dl_sim_mma_f16(d, a, b);
	else
		dl_sim_mma_tf32(d, a, b);
	for (int i = 0; i < 4; i++)
		y[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = d[i];
}
K matrices(float *x, float *y, int n)
{
	__shared__ __align__(16) u16 m[4 * 64];
	for (int i = (int)T; i < 256; i += 32)
		m[i] = (u16)i;
	__syncwarp();
	u32 r[4];
	if (n)
		dl_sim_ldmatrix_x4_trans(r, m + 8 * T);
	else
		dl_sim_ldmatrix_x4(r, m + 8 * T);
	for (int i = 0; i < 4; i++) {
		y[64 * i + 2 * T] = (float)(r[i] & 0xffffu);
		y[64 * i + 2 * T + 1] = (float)(r[i] >> 16);
	}
}
K ok_async(float *x, float *y, int n)
{
	__shared__ __align__(16) float s[2][128];
	dl_sim_cp_async16(&s[0][4 * T], x + 4 * T, 16);
	dl_sim_cp_async_commit();
	dl_sim_cp_async16(&s[1][4 * T], x + 4 * T, 4 * (int)(T & 3));
	dl_sim_cp_async_commit();
	dl_sim_cp_async_wait(1);
	__syncthreads();
	y[T] = s[0][127 - T];
	dl_sim_cp_async_wait(0);
	__syncthreads();
	y[32 + T] = s[1][127 - T];
}
K bad_async_early(float *x, float *y, int n)
{
	__shared__ __align__(16) float s[128];
	dl_sim_cp_async16(&s[4 * T], x + 4 * T, 16);
	dl_sim_cp_async_commit();
	dl_sim_cp_async_wait(n);
	y[T] = s[4 * T];
}
K bad_async_race(float *x, float *y, int n)
{
	__shared__ __align__(16) float s[128];
	for (int i = 0; i < 4; i++)
		s[4 * T + i] = 0.0f;
	__syncthreads();
	dl_sim_cp_async16(&s[4 * T], x + 4 * T, 16);
	dl_sim_cp_async_commit();
	dl_sim_cp_async_wait(0);
	y[T] = s[127 - T];
}
K bad_async_align(float *x, float *y, int n)
{
	__shared__ __align__(16) float s[128];
	dl_sim_cp_async16(&s[4 * T], x + 4 * T + n, 16);
	dl_sim_cp_async_commit();
	dl_sim_cp_async_wait(0);
}

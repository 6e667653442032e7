/* The simulator's own tests: kernels with planted faults and their twins, arithmetic of warp operations and tensor cores, compilation. Each
 * case runs in a process of its own, since a fault ends the context. Run by tests/cudasim/run. */
#include <math.h>

#include "check.h"

enum { NX = 256, NY = 1024 };

typedef struct Case {
	const char *kernel;
	unsigned grid, block, shared;
	int n;
	CUresult code;    /* of the synchronisation, or of the launch */
	const char *says; /* "": nothing is said */
	bool (*right)(const float *y, int n);
} Case;

static bool copied(const float *y, int n)
{
	for (int i = 0; i < 32; i++)
		if (y[n + i] != (float)i)
			return false;
	return true;
}

static bool first(const float *y, int n)
{
	(void)n;
	return copied(y, 0);
}

static bool reversed(const float *y, int n)
{
	(void)n;
	for (int i = 0; i < 64; i++)
		if (y[i] != (float)(63 - i))
			return false;
	return true;
}

static bool neighbours(const float *y, int n)
{
	(void)n;
	for (int i = 0; i < 32; i++)
		if (y[i] != (float)(i ^ 1))
			return false;
	return true;
}

static bool shuffles(const float *y, int n)
{
	(void)n;
	bool ok = true;
	for (int i = 0; i < 32; i++) {
		ok &= y[i] == (float)((i + 5) & 31);
		ok &= y[32 + i] == (float)(i < 3 ? i : i - 3);
		ok &= y[64 + i] == (float)(i % 8 < 5 ? i + 3 : i);
		ok &= y[96 + i] == (float)(i ^ 9);
		ok &= y[128 + i] == (float)(i ^ 1);
		ok &= y[160 + i] == 11.0f && y[192 + i] == 2.0f;
		ok &= y[224 + i] == 272.0f && y[256 + i] == 24.0f;
		ok &= y[288 + i] == (float)(i / 4 * 4 + 1);
	}
	return ok;
}

static bool barriers(const float *y, int n)
{
	(void)n;
	bool ok = true;
	for (int i = 0; i < 64; i++)
		ok &= y[i] == 40.0f && y[64 + i] == 1.0f && y[128 + i] == 0.0f;
	return ok;
}

static bool sums(const float *y, int n)
{
	bool ok = true;
	for (int i = 0; i < 192; i++)
		ok &= y[i] == 2016.0f + 2.0f * (float)n;
	return ok;
}

static bool bits(const float *y, int n)
{
	(void)n;
	return y[0] == 8.0f + 400.0f + 310000.0f && fabsf(y[1] - 3.14159274f) == 0.0f && y[2] == 1065353216.0f && y[3] == 4.0f && y[4] == (float)0x05040100 &&
	       y[5] == fmaf(1.0000001f, 1.0000001f, -1.0f) && y[6] == 12.5f && y[7] == 42.5f && y[8] == 11.0f && y[9] == 24.0f;
}

static float small(int i)
{
	return (float)((i * 7 + 3) % 11 - 5);
}

static bool products(const float *y, int n)
{
	int depth = n == 2 ? 8 : 16;
	bool ok = true;
	for (int i = 0; i < 16; i++)
		for (int j = 0; j < 8; j++) {
			float want = 100.0f;
			for (int k = 0; k < depth; k++)
				want += small(i * depth + k) * small(1000 + k * 8 + j);
			ok &= y[i * 8 + j] == want;
		}
	return ok;
}

static bool matrices(const float *y, int n)
{
	bool ok = true;
	for (int m = 0; m < 4; m++)
		for (int l = 0; l < 32; l++)
			for (int h = 0; h < 2; h++) {
				int row = n ? 2 * (l % 4) + h : l / 4, col = n ? l / 4 : 2 * (l % 4) + h;
				ok &= y[64 * m + 2 * l + h] == (float)(64 * m + 8 * row + col);
			}
	return ok;
}

static bool async(const float *y, int n)
{
	(void)n;
	bool ok = true;
	for (int i = 0; i < 32; i++) {
		int at = 127 - i; /* thread at / 4 copied as many of its four floats as its number modulo 4 */
		ok &= y[i] == (float)at;
		ok &= y[32 + i] == (at % 4 < at / 4 % 4 ? (float)at : 0.0f);
	}
	return ok;
}

static bool atomics(const float *y, int n)
{
	(void)n;
	for (int i = 0; i < 64; i++)
		if (y[i] != 128.0f)
			return false;
	return true;
}

static bool declarations(const float *y, int n)
{
	(void)n;
	for (int i = 0; i < 32; i++)
		if (y[i] != (float)(i & 7) + 5.0f + 7.0f + 9.0f + (float)(1 + (i & 3)) + (float)(i ^ 1))
			return false;
	return true;
}

static const Case cases[] = {
	{"ok_bounds", 1, 32, 0, NY - 32, 0, "", copied},
	{"ok_bounds", 1, 32, 0, NY - 31, 700, "ok_bounds at kernels.cu:12: block (0,0,0) thread (31,0,0): writes 4 bytes out of bounds, at allocation 2 + 0x1000, 0 bytes behind its end", NULL},
	{"ok_bounds", 1, 32, 0, -1, 700, "thread (0,0,0): writes 4 bytes out of bounds", NULL},
	{"bad_bounds_null", 1, 32, 0, 0, 700, "writes 4 bytes out of bounds, at 0, in no allocation", NULL},
	{"ok_index", 1, 32, 0, 0, 0, "", NULL},
	{"bad_index", 1, 32, 0, 0, 700, "index 4 out of bounds of its array", NULL},
	{"ok_align", 1, 32, 0, 2, 0, "", NULL},
	{"ok_align", 1, 32, 0, 1, 716, "ok_align at kernels.cu:28: block (0,0,0) thread (0,0,0): misaligned: writes 'struct float2' at allocation 2 + 0x4, which is no multiple of 8", NULL},
	{"ok_align_shared", 1, 64, 0, 0, 0, "", NULL},
	{"bad_align_shared", 1, 64, 0, 0, 716, "misaligned: ", NULL},
	{"bad_bounds_shared", 1, 32, 0, 0, 0, "", NULL},
	{"bad_bounds_shared", 1, 32, 0, 1, 700, "writes 4 bytes out of bounds, at shared 's' + 0x80, 0 bytes behind its end (128 bytes)", NULL},
	{"ok_dynamic", 1, 32, 128, 0, 0, "", neighbours},
	{"ok_dynamic", 1, 32, 124, 0, 700, "thread (31,0,0): writes 4 bytes out of bounds, at dynamic shared memory + 0x7c, 0 bytes behind its end (124 bytes)", NULL},
	{"bad_local_of_other", 1, 32, 0, 0, 700, "out of bounds: another thread's local memory", NULL},
	{"ok_unwritten", 1, 32, 0, 8, 0, "", NULL},
	{"bad_unwritten", 1, 32, 0, 8, 700, "bad_unwritten at kernels.cu:72: block (0,0,0) thread (0,0,0): reads 4 bytes of global memory at allocation 2 + 0x20, never written", NULL},
	{"bad_unwritten_shared", 1, 64, 0, 64, 0, "", NULL},
	{"bad_unwritten_shared", 1, 64, 0, 7, 700, "thread (6,0,0): reads 4 bytes of shared memory at shared 's' + 0x1c, never written", NULL},
	{"bad_unwritten_block", 1, 32, 0, 0, 0, "", NULL},
	{"bad_unwritten_block", 2, 32, 0, 0, 700, "reads 4 bytes of shared memory at shared 's' + 0, never written", NULL},
	{"ok_race_shared", 1, 64, 0, 0, 0, "", reversed},
	{"bad_race_shared", 1, 64, 0, 0, 719, "bad_race_shared at kernels.cu:101: block (0,0,0) thread (32,0,0): race in shared memory: writes 4 bytes at shared 's' + 0x80, which thread 31 read with no barrier between", NULL},
	{"ok_race_warp", 1, 64, 0, 0, 0, "", neighbours},
	{"bad_race_warp", 1, 64, 0, 0, 719, "race in shared memory: reads 4 bytes at shared 's'", NULL},
	{"ok_race_after", 1, 64, 0, 0, 0, "", reversed},
	{"bad_race_after", 1, 64, 0, 0, 719, "race in shared memory: ", NULL},
	{"bad_race_twice", 1, 64, 0, 0, 0, "", NULL},
	{"bad_race_twice", 1, 64, 0, 1, 719, "race in shared memory: ", NULL},
	{"bad_race_both", 1, 1, 0, 0, 0, "", NULL},
	{"bad_race_both", 1, 2, 0, 0, 719, "race in shared memory: writes 4 bytes at shared 's' + 0, which thread 0 wrote with no barrier between", NULL},
	{"ok_race_half", 1, 32, 0, 0, 0, "", NULL},
	{"bad_race_half", 1, 32, 0, 0, 719, "race in shared memory: reads 4 bytes at shared 's'", NULL},
	{"ok_race_global", 1, 64, 0, 0, 0, "", NULL},
	{"bad_race_global", 1, 64, 0, 0, 719, "race in global memory: writes 4 bytes at allocation 2 + 0x80, which thread 31 read with no barrier between", NULL},
	{"ok_race_blocks", 3, 32, 0, 0, 0, "", copied},
	{"bad_race_blocks", 3, 32, 0, 0, 719, "race in global memory: writes 4 bytes at allocation 2 + 0, which another block wrote", NULL},
	{"bad_race_blocks_read", 3, 32, 0, 9, 0, "", NULL},
	{"bad_race_blocks_read", 3, 32, 0, 1, 719, "race in global memory: ", NULL},
	{"ok_race_bytes", 1, 64, 0, 0, 0, "", NULL},
	{"bad_race_bytes", 1, 64, 0, 0, 719, "race in global memory: writes", NULL},
	{"bad_race_bytes", 1, 64, 0, 40, 0, "", NULL},
	{"ok_atomics", 1, 64, 0, 0, 0, "", atomics},
	{"bad_atomics", 1, 64, 0, 0, 719, "race in global memory: ", NULL},
	{"ok_last_block", 4, 32, 0, 0, 0, "", first},
	{"ok_last_block", 1, 32, 0, 0, 0, "", first},
	{"bad_last_block", 4, 32, 0, 4, 0, "", first},
	{"bad_last_block", 4, 32, 0, 0, 719, "race in global memory: reads 4 bytes at allocation 2 + 0x800, which another block wrote with no barrier between", NULL},
	{"bad_last_block", 4, 32, 0, 1, 719, "race in global memory: reads 4 bytes at allocation 2 + 0x800, which another block wrote with no barrier between", NULL},
	{"bad_last_block", 4, 32, 0, 2, 719, "race in global memory: reads 4 bytes at allocation 2 + 0x800, which another block wrote with no barrier between", NULL},
	{"bad_last_block", 4, 32, 0, 3, 719, "race in global memory: reads 4 bytes at allocation 2 + 0x800, which another block wrote with no barrier between", NULL},
	{"bad_last_other", 4, 32, 0, 0, 719, "race in global memory: reads 4 bytes at allocation 2 + 0x900, which another block wrote with no barrier between", NULL},
	{"ok_barrier", 1, 64, 0, 32, 0, "", first},
	{"bad_barrier_exit", 1, 64, 0, 64, 0, "", first},
	{"bad_barrier_exit", 1, 64, 0, 40, 719, "divergent barrier: thread 0 waits at __syncthreads, but thread 63 has ended", NULL},
	{"bad_barrier_two", 1, 64, 0, 64, 0, "", first},
	{"bad_barrier_two", 1, 64, 0, 40, 719, "divergent barrier: thread 40 waits at another __syncthreads, kernels.cu:", NULL},
	{"ok_lanes", 1, 32, 0, 16, 0, "", NULL},
	{"bad_lanes_exit", 1, 32, 0, 32, 0, "", NULL},
	{"bad_lanes_exit", 1, 32, 0, 31, 719, "warp operation with lanes missing: lanes 0x80000000 of mask 0xffffffff do not come; thread 31 has ended", NULL},
	{"bad_lanes_exit", 1, 24, 0, 32, 719, "lane 24 of the mask 0xffffffff of a shuffle does not exist", NULL},
	{"bad_lanes_barrier", 1, 32, 0, 32, 0, "", NULL},
	{"bad_lanes_barrier", 1, 32, 0, 16, 719, "warp operation with lanes missing: lanes 0xffff0000 of mask 0xffffffff do not come; thread 16 waits at", NULL},
	{"bad_lanes_mixed", 1, 32, 0, 32, 0, "", NULL},
	{"bad_lanes_mixed", 1, 32, 0, 16, 719, "warp operation with lanes missing: lane ", NULL},
	{"bad_lanes_mask", 1, 16, 0, 0, 0, "", NULL},
	{"bad_lanes_mask", 1, 32, 0, 0, 719, "is not in its own mask 0xffff", NULL},
	{"bad_lanes_source", 1, 32, 0, 16, 719, "shuffle reads lane 20, which is not in the mask 0xffff", NULL},
	{"bad_trap", 1, 32, 0, 3, 719, "thread (3,0,0): __trap", NULL},
	{"bounded", 1, 64, 0, 0, 0, "", copied},
	{"bounded", 1, 96, 0, 0, 701, "launch of bounded: a block of 96 threads, above its __launch_bounds__(64)", NULL},
	{"ok_bounds", 1, 1025, 0, 0, 1, "a block of 1025 threads, above 1024", NULL},
	{"ok_dynamic", 1, 32, 49152, 0, 0, "", NULL},
	{"ok_dynamic", 1, 32, 49168, 0, 1, "49168 bytes of dynamic shared memory, above the 49152 that cuFuncSetAttribute allowed", NULL},
	{"bad_static_shared", 1, 32, 0, 0, 1, "uses 65536 bytes of static shared memory, above 49152", NULL},
	{"declarations", 1, 32, 128, 0, 0, "", declarations},
	{"declarations", 1, 32, 128, 41, 700, "of its array", NULL},
	{"order", 4, 32, 0, 0, 719, "race in global memory: writes 4 bytes at allocation 2 + 0, which another block wrote", NULL},
	{"shuffles", 1, 32, 0, 0, 0, "", shuffles},
	{"barriers", 1, 64, 0, 0, 0, "", barriers},
	{"sums", 3, 64, 0, 5, 0, "", sums},
	{"bits", 1, 1, 0, 0, 0, "", bits},
	{"products", 1, 32, 0, 0, 0, "", products},
	{"products", 1, 32, 0, 1, 0, "", products},
	{"products", 1, 32, 0, 2, 0, "", products},
	{"products", 1, 31, 0, 0, 719, "warp operation with lanes missing: lane 31 of the mask 0xffffffff of a mma does not exist", NULL},
	{"matrices", 1, 32, 0, 0, 0, "", matrices},
	{"matrices", 1, 32, 0, 1, 0, "", matrices},
	{"ok_async", 1, 32, 0, 0, 0, "", async},
	{"bad_async_early", 1, 32, 0, 0, 0, "", NULL},
	{"bad_async_early", 1, 32, 0, 1, 719, "reads shared memory that a cp.async of thread ", NULL},
	{"bad_async_race", 1, 32, 0, 0, 719, "race in shared memory: ", NULL},
	{"bad_async_align", 1, 16, 0, 4, 0, "", NULL},
	{"bad_async_align", 1, 16, 0, 1, 716, "misaligned: cp.async of 16 bytes", NULL},
};

/* ---- compilation ---- */

static char *compile(const char *src, const char *const *options, int n, nvrtcResult *r, char **log, char **ptx)
{
	static const char *const header[] = {"static __device__ float part_of_header(int n) { return (float)(2 * n); }\n"};
	static const char *const names[] = {"part.h"};
	nvrtcProgram p;
	size_t bytes = 0;
	nvrtcCreateProgram(&p, src, "kernels.cu", 1, header, names);
	*r = nvrtcCompileProgram(p, n, options);
	nvrtcGetProgramLogSize(p, &bytes);
	*log = malloc(bytes);
	nvrtcGetProgramLog(p, *log);
	char *cubin = NULL;
	if (ptx)
		*ptx = NULL;
	if (*r == NVRTC_SUCCESS) {
		nvrtcGetCUBINSize(p, &bytes);
		cubin = malloc(bytes + 1);
		nvrtcGetCUBIN(p, cubin);
		nvrtcGetPTXSize(p, &bytes);
		if (ptx && (*ptx = malloc(bytes)) != NULL)
			nvrtcGetPTX(p, *ptx);
	}
	nvrtcDestroyProgram(&p);
	return cubin;
}

typedef struct Run {
	const Case *c;
	const char *cubin, *order;
} Run;

static int run_case(const void *ctx)
{
	const Run *run = ctx;
	const Case *c = run->c;
	setenv("DL_SIM_ORDER", run->order, 1);
	CUmodule m;
	CUfunction f;
	CUdeviceptr x, y;
	float hx[NX], hy[NY];
	start();
	if (cuModuleLoadData(&m, run->cubin) || cuModuleGetFunction(&f, m, c->kernel) || cuMemAlloc_v2(&x, sizeof hx) || cuMemAlloc_v2(&y, sizeof hy))
		return 98;
	for (int i = 0; i < NX; i++)
		hx[i] = (float)i;
	if (cuMemcpyHtoD_v2(x, hx, sizeof hx))
		return 97;
	int n = c->n;
	void *args[] = {&x, &y, &n};
	CUresult e = cuLaunchKernel(f, c->grid, 1, 1, c->block, 1, 1, c->shared, NULL, args, NULL);
	if (e == CUDA_SUCCESS)
		e = cuCtxSynchronize();
	if (e != c->code) {
		fprintf(stderr, "error %d where %d was expected\n", e, c->code);
		return 1;
	}
	if (e >= CUDA_ERROR_ILLEGAL_ADDRESS && e != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES && cuMemcpyDtoH_v2(hy, y, 4) != e) {
		fprintf(stderr, "the error does not stay\n");
		return 1;
	}
	if (c->right) {
		if (cuMemcpyDtoH_v2(hy, y, sizeof hy) || !c->right(hy, n)) {
			fprintf(stderr, "wrong values, the first %g %g %g %g\n", (double)hy[0], (double)hy[1], (double)hy[2], (double)hy[3]);
			return 1;
		}
	}
	return 0;
}

static void all_cases(const char *cubin)
{
	static const char *const orders[] = {"forward", "reverse", "shuffle:3"};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int k = 0; k < (cases[i].code == 0 ? 3 : 1); k++) {
			const Case *c = &cases[i];
			char name[96];
			snprintf(name, sizeof name, "%s n=%d grid=%u block=%u %s", c->kernel, c->n, c->grid, c->block, orders[k]);
			apart(name, run_case, &(Run){c, cubin, orders[k]}, 0, c->says);
		}
}

/* ---- settings ---- */

typedef struct Setting {
	const char *name, *order, *checks, *arch, *says;
	int n, want; /* y[n] of the kernel `order` in four blocks; -1: out of bounds */
	const char *cubin;
} Setting;

static int set(const void *ctx)
{
	const Setting *x = ctx;
	CUmodule m;
	CUfunction f;
	CUdeviceptr y;
	float h = -1.0f;
	int n = x->n, optin = 0;
	setenv("DL_SIM_ORDER", x->order, 1);
	setenv("DL_SIM_CHECKS", x->checks, 1);
	start();
	if (cuModuleLoadData(&m, x->cubin) || cuModuleGetFunction(&f, m, "order") || cuMemAlloc_v2(&y, 4 * NY))
		return 98;
	void *args[] = {&y, &y, &n};
	CUresult e = cuLaunchKernel(f, 4, 1, 1, 32, 1, 1, 0, NULL, args, NULL);
	e = e ? e : cuCtxSynchronize();
	if (x->want < 0)
		return e != CUDA_ERROR_ILLEGAL_ADDRESS;
	setenv("DL_SIM_ARCH", x->arch, 1);
	if (e || cuMemcpyDtoH_v2(&h, y + 4 * (unsigned)n, 4) || cuDeviceGetAttribute(&optin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0))
		return 97;
	fprintf(stderr, "%g %d", (double)h, optin / 1024);
	return h != (float)x->want;
}

static void settings(const char *cubin)
{
	const Setting v[] = {
		{"blocks forward", "forward", "bounds", "sm_90", "3 227", 5, 3, cubin},
		{"blocks in reverse", "reverse", "bounds", "sm_86", "0 99", 5, 0, cubin},
		{"blocks shuffled", "shuffle:1", "bounds", "sm_80", "0 163", 5, 0, cubin},
		{"blocks shuffled in another way", "shuffle:2", "bounds", "sm_100", "1 227", 5, 1, cubin},
		{"bounds alone are still checked", "forward", "bounds", "sm_90", "out of bounds", NY, -1, cubin},
	};
	for (size_t i = 0; i < sizeof v / sizeof *v; i++)
		apart(v[i].name, set, &v[i], 0, v[i].says);
}

/* ---- what the compiler takes and refuses; which images load ---- */

static void compiler(const char *src)
{
	static const char *const good[] = {"--gpu-architecture=sm_90", "-DVALUE=42", "-fmad=false", "--ftz=false", "-std=c++17"};
	static const char *const arch[] = {"--gpu-architecture=sm_42"}, *const odd[] = {"--no-such-option"};
	static const char *const old[] = {"--gpu-architecture=sm_80", "-DVALUE=42"}, *const newer[] = {"--gpu-architecture=sm_100", "-DVALUE=42"};
	nvrtcResult r;
	char *log, *ptx;
	free(compile("extern \"C\" __global__ void k(float *x) { x[0] = nothing; }\n", good, 5, &r, &log, NULL));
	check(r == NVRTC_ERROR_COMPILATION && strstr(log, "kernels.cu:1") && strstr(log, "nothing"), "a wrong program", "result %d, log %s", r, log);
	free(log);
	free(compile("extern \"C\" __global__ void k(float *x) { __shared__ float s = 1.0f; x[0] = s; }\n", good, 5, &r, &log, NULL));
	check(r == NVRTC_ERROR_COMPILATION && strstr(log, "__shared__"), "an initialised shared variable", "result %d, log %s", r, log);
	free(log);
	free(compile("extern \"C\" __global__ void k(float *x) { atomicAdd(x, 1.0f); }\n", good, 5, &r, &log, NULL));
	check(r == NVRTC_ERROR_COMPILATION && strstr(log, "atomicAdd"), "an atomic sum of floats", "result %d, log %s", r, log);
	free(log);
	char *folder = getenv("TMPDIR"), *kept = folder ? strdup(folder) : NULL;
	setenv("TMPDIR", "/nonexistent", 1);
	free(compile(src, good, 5, &r, &log, NULL));
	check(r == NVRTC_ERROR_PROGRAM_CREATION_FAILURE && strstr(log, "temporary"), "no place for temporary files", "result %d, log %s", r, log);
	free(log);
	if (kept)
		setenv("TMPDIR", kept, 1);
	else
		unsetenv("TMPDIR");
	free(kept);
	free(compile(src, arch, 1, &r, &log, NULL));
	check(r == NVRTC_ERROR_INVALID_OPTION, "an unknown architecture", "result %d", r);
	free(log);
	free(compile(src, odd, 1, &r, &log, NULL));
	check(r == NVRTC_ERROR_INVALID_OPTION && strstr(log, "no-such-option"), "an unknown option", "result %d, log %s", r, log);
	free(log);
	char *one = compile(src, old, 2, &r, &log, &ptx), *two, *later;
	CUmodule m;
	start();
	char said[80] = "";
	const int jit[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *to[] = {said, (void *)(uintptr_t)sizeof said};
	check(cuModuleLoadDataEx(&m, one, 2, jit, to) == CUDA_ERROR_NO_BINARY_FOR_GPU && said[0], "a cubin of sm_80 on sm_90", "is not refused: %s", said);
	CUresult e = cuModuleLoadData(&m, ptx);
	check(e == CUDA_SUCCESS, "PTX of sm_80 on sm_90", "error %d", e);
	free(ptx);
	free(log);
	two = compile(src, newer, 2, &r, &log, &later);
	check(cuModuleLoadData(&m, two) == CUDA_ERROR_NO_BINARY_FOR_GPU && cuModuleLoadData(&m, later) == CUDA_ERROR_INVALID_PTX, "images of sm_100 on sm_90", "are not refused");
	check(cuModuleLoadData(&m, "nothing of the kind") != CUDA_SUCCESS, "an image that is none", "is not refused");
	free(one);
	free(two);
	free(later);
	free(log);
}

/* Parameters by value, three dimensions, variables of a module. */
static void calls(const char *cubin)
{
	CUmodule m;
	CUfunction offsets, places, variables;
	CUdeviceptr arena, env, counter, dl_env;
	size_t bytes;
	float h[1024];
	start();
	check(cuModuleLoadData(&m, cubin) == 0 && cuModuleGetFunction(&offsets, m, "offsets") == 0 && cuModuleGetFunction(&places, m, "places") == 0 &&
	      cuModuleGetFunction(&variables, m, "variables") == 0, "functions", "are not found");
	check(cuModuleGetFunction(&offsets, m, "no_such_kernel") == CUDA_ERROR_NOT_FOUND, "a kernel that is not there", "is found");
	check(cuModuleGetGlobal_v2(&dl_env, &bytes, m, "dl_env") == 0 && bytes == 64, "dl_env", "%zu bytes", bytes);
	check(cuModuleGetGlobal_v2(&counter, &bytes, m, "counter") == 0 && bytes == 4, "counter", "%zu bytes", bytes);
	cuModuleGetFunction(&offsets, m, "offsets");
	cuMemAlloc_v2(&arena, 4096);
	env = arena + 4000;
	for (int i = 0; i < 64; i++)
		h[i] = (float)i;
	cuMemcpyHtoD_v2(arena + 256, h, 256);
	cuMemcpyHtoD_v2(env, &h[7], 4);
	struct {
		int64_t at[4];
	} off = {{256, 1024, 0, 0}};
	void *args[] = {&arena, &off, &env};
	check(cuLaunchKernel(offsets, 1, 1, 1, 64, 1, 1, 0, NULL, args, NULL) == 0, "offsets", "launch");
	off.at[1] = 2048; /* parameters were copied */
	CUresult e = cuMemcpyDtoH_v2(h, arena + 1024, 256);
	check(e == 0 && h[63] == 70.0f && h[0] == 7.0f, "parameters by value", "error %d, %g", e, (double)h[63]);
	void *more[] = {&arena, &arena, &off};
	e = cuLaunchKernel(places, 2, 3, 2, 2, 3, 4, 0, NULL, more, NULL);
	check(e == 0 && cuMemcpyDtoH_v2(h, arena, 12 * 24 * 4) == 0 && h[11 * 24 + 23] == 1123.0f && h[25] == 101.0f, "three dimensions", "error %d, %g", e, (double)h[287]);
	int eleven = 11, n = 5, got = 0;
	cuMemcpyHtoD_v2(dl_env + 8, &eleven, 4);
	void *vars[] = {&arena, &arena, &n};
	cuLaunchKernel(variables, 1, 1, 1, 32, 1, 1, 0, NULL, vars, NULL);
	cuLaunchKernel(variables, 1, 1, 1, 32, 1, 1, 0, NULL, vars, NULL);
	e = cuMemcpyDtoH_v2(h, arena, 128);
	check(e == 0 && h[3] == 16.0f && cuMemcpyDtoH_v2(&got, counter, 4) == 0 && got == 10, "variables of a module", "error %d, %g, %d", e, (double)h[3], got);
	CUfunction dynamic;
	cuModuleGetFunction(&dynamic, m, "ok_dynamic");
	check(cuFuncSetAttribute(dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024) == 0, "227 KiB of shared memory", "are refused");
	check(cuFuncSetAttribute(dynamic, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024 + 1) != 0, "more than 227 KiB of shared memory", "are not refused");
	cuModuleGetFunction(&dynamic, m, "bad_static_shared");
	check(cuFuncGetAttribute(&got, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, dynamic) == 0 && got == 65536, "static shared memory", "is %d", got);
}

int main(int argc, char **argv)
{
	static const char *const options[] = {"--gpu-architecture=sm_90", "-DVALUE=42", "-fmad=false"};
	static char src[65536];
	FILE *f = fopen(argc > 1 ? argv[1] : "tests/cudasim/kernels.cu", "r");
	size_t n = f ? fread(src, 1, sizeof src - 1, f) : 0;
	if (f)
		fclose(f);
	nvrtcResult r;
	char *log;
	char *cubin = compile(src, options, 3, &r, &log, NULL);
	check(n > 0 && r == NVRTC_SUCCESS && *log == 0, "kernels.cu", "result %d: %s", r, log);
	if (r == NVRTC_SUCCESS) {
		all_cases(cubin);
		settings(cubin);
		calls(cubin);
		compiler(src);
	}
	free(cubin);
	free(log);
	return finish();
}

/* Streams, events, graphs, copies and memory of the simulated driver: what must come out, and what must be found out. */
#include <math.h>
#include <signal.h>

#include "check.h"

static const char kernels[] =
	"#define I (blockIdx.x * blockDim.x + threadIdx.x)\n"
	"extern \"C\" __global__ void twice(const float *x, float *y, int n) { if (I < n) y[I] = 2.0f * x[I]; }\n"
	"extern \"C\" __global__ void add(const float *x, float *y, int n) { if (I < n) y[I] += x[I]; }\n";

enum { N = 256, BYTES = 4 * N };

/* What every case starts with: two buffers on the device, two pinned ones, kernels, two streams. */
typedef struct Setup {
	CUfunction twice, add;
	CUdeviceptr x, y, z;
	float *in, *out;
	CUstream s, t;
	CUevent e;
} Setup;

static void set_up(Setup *u, const void *cubin)
{
	CUmodule m;
	void *in, *out;
	start();
	if (cuModuleLoadData(&m, cubin) || cuModuleGetFunction(&u->twice, m, "twice") || cuModuleGetFunction(&u->add, m, "add") || cuMemAlloc_v2(&u->x, BYTES) ||
	    cuMemAlloc_v2(&u->y, BYTES) || cuMemAlloc_v2(&u->z, BYTES) || cuMemHostAlloc(&in, BYTES, 0) || cuMemHostAlloc(&out, BYTES, 0) ||
	    cuStreamCreate(&u->s, CU_STREAM_NON_BLOCKING) || cuStreamCreate(&u->t, CU_STREAM_NON_BLOCKING) || cuEventCreate(&u->e, 0))
		exit(98);
	u->in = in;
	u->out = out;
	for (int i = 0; i < N; i++)
		u->in[i] = (float)i;
}

static CUresult launch(CUfunction f, CUdeviceptr x, CUdeviceptr y, CUstream s)
{
	int n = N;
	void *args[] = {&x, &y, &n};
	return cuLaunchKernel(f, 2, 1, 1, N / 2, 1, 1, 0, s, args, NULL);
}

/* Ends a case that went wrong, with the place where. */
#define MUST(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #x); \
			return 1; \
		} \
	} while (0)

static int in_order(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	u.out[3] = 77.0f;
	MUST(!cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s) && !cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.s));
	MUST(u.out[3] != 6.0f && u.out[3] != 77.0f); /* neither old nor new: the host has not waited */
	MUST(!cuStreamSynchronize(u.s) && u.out[3] == 6.0f && u.out[N - 1] == 2.0f * (N - 1));
	return 0;
}

static int overwritten(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s));
	u.in[5] = -1.0f;
	MUST(cuStreamSynchronize(u.s) == CUDA_ERROR_LAUNCH_FAILED && cuStreamQuery(u.s) == CUDA_ERROR_LAUNCH_FAILED);
	return 0;
}

static int overwritten_late(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !cuEventRecord(u.e, u.s) && !launch(u.twice, u.x, u.y, u.s));
	MUST(!cuEventSynchronize(u.e));
	u.in[5] = -1.0f; /* the copy is done, the kernel need not be */
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.s) && !cuStreamSynchronize(u.s) && u.out[5] == 10.0f);
	return 0;
}

static int pageable(const void *cubin)
{
	Setup u;
	float h[N];
	set_up(&u, cubin);
	memcpy(h, u.in, BYTES);
	MUST(!cuMemcpyHtoDAsync_v2(u.x, h, BYTES, u.s));
	h[5] = -1.0f; /* was staged */
	MUST(!launch(u.twice, u.x, u.y, u.s) && !cuMemcpyDtoHAsync_v2(h, u.y, BYTES, u.s) && h[5] == 10.0f); /* and this one waited */
	return 0;
}

static int events(const void *cubin)
{
	Setup u;
	CUevent e;
	float ms = -1.0f;
	set_up(&u, cubin);
	MUST(!cuEventCreate(&e, 0) && !cuEventRecord(e, u.s) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s) && !cuEventRecord(u.e, u.s));
	MUST(cuEventElapsedTime(&ms, e, u.e) == CUDA_ERROR_NOT_READY);
	int polls = 0;
	CUresult r;
	while ((r = cuEventQuery(u.e)) == CUDA_ERROR_NOT_READY)
		polls++;
	MUST(r == CUDA_SUCCESS && polls == 3);
	MUST(!cuEventElapsedTime(&ms, e, u.e) && ms >= 0.0f && ms < 10000.0f);
	MUST(cuStreamQuery(u.s) == CUDA_SUCCESS);
	return 0;
}

static int across(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !cuEventRecord(u.e, u.s) && !cuStreamWaitEvent(u.t, u.e, 0) && !launch(u.twice, u.x, u.y, u.t));
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.t) && !cuStreamSynchronize(u.t) && u.out[7] == 14.0f);
	return 0;
}

static int across_without(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.t));
	MUST(cuStreamSynchronize(u.t) == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

static int default_stream(const void *cubin)
{
	Setup u;
	CUstream blocking;
	float h[N];
	set_up(&u, cubin);
	MUST(!cuStreamCreate(&blocking, 0) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, blocking) && !launch(u.twice, u.x, u.y, blocking));
	MUST(!cuMemcpyDtoH_v2(h, u.y, BYTES) && h[9] == 18.0f);
	MUST(!cuMemcpyHtoD_v2(u.z, h, BYTES) && !launch(u.add, u.x, u.z, u.s)); /* a stream that is not ordered with the default one */
	MUST(!cuMemcpyDtoH_v2(h, u.z, BYTES) && h[9] == 18.0f);
	MUST(!cuStreamSynchronize(u.s) && !cuMemcpyDtoH_v2(h, u.z, BYTES) && h[9] == 27.0f);
	return 0;
}

static int graph(const void *cubin)
{
	Setup u;
	CUgraph g;
	CUgraphExec x;
	size_t n = 0;
	int status = -1;
	set_up(&u, cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s));
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.s) && !cuStreamIsCapturing(u.s, &status) && status == 1 && !cuStreamEndCapture(u.s, &g));
	MUST(!cuGraphGetNodes(g, NULL, &n) && n == 3 && !cuGraphInstantiateWithFlags(&x, g, 0) && !cuGraphDestroy(g));
	MUST(u.out[1] != 2.0f); /* nothing has run */
	for (int k = 0; k < 3; k++) {
		for (int i = 0; i < N; i++)
			u.in[i] = (float)(i + k);
		MUST(!cuGraphLaunch(x, u.s) && !cuStreamSynchronize(u.s) && u.out[1] == (float)(2 * (k + 1)));
	}
	MUST(!cuGraphExecDestroy(x));
	return 0;
}

static int graph_overwritten(const void *cubin)
{
	Setup u;
	CUgraph g;
	CUgraphExec x;
	set_up(&u, cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s) && !cuStreamEndCapture(u.s, &g));
	MUST(!cuGraphInstantiateWithFlags(&x, g, 0) && !cuGraphLaunch(x, u.s));
	u.in[0] = 9.0f;
	MUST(cuStreamSynchronize(u.s) == CUDA_ERROR_LAUNCH_FAILED);
	return 0;
}

/* x to y on one stream, x to z on another, then y + z. */
static int fork_join(const Setup *u, bool join, bool late, CUgraph *g)
{
	CUevent done;
	MUST(!cuMemcpyHtoDAsync_v2(u->x, u->in, BYTES, u->s) && !cuStreamSynchronize(u->s) && !cuEventCreate(&done, 0));
	MUST(!cuStreamBeginCapture_v2(u->s, 1) && !cuEventRecord(u->e, u->s) && !cuStreamWaitEvent(u->t, u->e, 0));
	MUST(!launch(u->twice, u->x, u->z, u->t) && !cuEventRecord(done, u->t));
	if (!late)
		MUST(!launch(u->twice, u->x, u->y, u->s));
	if (join && !late)
		MUST(!cuStreamWaitEvent(u->s, done, 0));
	MUST(!launch(u->twice, late ? u->z : u->x, u->y, u->s)); /* late: reads what the other stream writes, before the wait */
	if (!late)
		MUST(!launch(u->add, u->z, u->y, u->s));
	if (late)
		MUST(!cuStreamWaitEvent(u->s, done, 0));
	*g = NULL;
	CUresult e = cuStreamEndCapture(u->s, g);
	MUST(join ? e == CUDA_SUCCESS : e == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	return 0;
}

static int joined(const void *cubin)
{
	Setup u;
	CUgraph g;
	CUgraphExec x;
	set_up(&u, cubin);
	MUST(!fork_join(&u, true, false, &g) && !cuGraphInstantiateWithFlags(&x, g, 0) && !cuGraphLaunch(x, u.s));
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.s) && !cuStreamSynchronize(u.s) && u.out[3] == 12.0f);
	return 0;
}

static int joined_reverse(const void *cubin)
{
	setenv("DL_SIM_ORDER", "reverse", 1);
	return joined(cubin);
}

static int unjoined(const void *cubin)
{
	Setup u;
	CUgraph g;
	set_up(&u, cubin);
	return fork_join(&u, false, false, &g);
}

/* A dependency that was forgotten shows where the order is another one. */
static int forgotten(const void *cubin)
{
	Setup u;
	CUgraph g;
	CUgraphExec x;
	setenv("DL_SIM_ORDER", "reverse", 1);
	set_up(&u, cubin);
	MUST(!fork_join(&u, true, true, &g) && !cuGraphInstantiateWithFlags(&x, g, 0) && !cuGraphLaunch(x, u.s));
	MUST(cuStreamSynchronize(u.s) == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

/* What a value that waits in host memory needs, or all but one of it. */
typedef enum Missing { MISSING_NONE, MISSING_SENT, MISSING_FETCHED, MISSING_FETCH_BEHIND } Missing;

/* y = 2x goes to host memory; y = 4x takes its bytes, z = 8x; y comes back; z += y. */
static int offload(const void *cubin, Missing missing)
{
	Setup u;
	CUevent sent, back;
	CUgraph g;
	CUgraphExec x;
	set_up(&u, cubin);
	MUST(!cuEventCreate(&sent, 0) && !cuEventCreate(&back, 0) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !cuStreamSynchronize(u.s));
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && !launch(u.twice, u.x, u.y, u.s) && !cuEventRecord(u.e, u.s) && !cuStreamWaitEvent(u.t, u.e, 0));
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.t) && !cuEventRecord(sent, u.t));
	MUST(!launch(u.twice, u.y, u.z, u.s));
	if (missing != MISSING_SENT)
		MUST(!cuStreamWaitEvent(u.s, sent, 0));
	MUST(!launch(u.twice, u.z, u.y, u.s));
	if (missing != MISSING_FETCH_BEHIND)
		MUST(!cuEventRecord(u.e, u.s) && !cuStreamWaitEvent(u.t, u.e, 0));
	MUST(!cuMemcpyHtoDAsync_v2(u.y, u.out, BYTES, u.t) && !cuEventRecord(back, u.t));
	if (missing != MISSING_FETCHED)
		MUST(!cuStreamWaitEvent(u.s, back, 0));
	MUST(!launch(u.add, u.y, u.z, u.s) && !cuStreamWaitEvent(u.s, back, 0) && !cuStreamEndCapture(u.s, &g));
	MUST(!cuGraphInstantiateWithFlags(&x, g, 0) && !cuGraphLaunch(x, u.s));
	CUresult e = cuStreamSynchronize(u.s);
	if (missing)
		return e == CUDA_SUCCESS;
	float h[N];
	MUST(!e && !cuMemcpyDtoH_v2(h, u.z, BYTES) && h[5] == 4.0f * 5 + 2.0f * 5);
	return 0;
}

static int offload_whole(const void *cubin)
{
	return offload(cubin, MISSING_NONE);
}

static int offload_whole_reverse(const void *cubin)
{
	setenv("DL_SIM_ORDER", "reverse", 1);
	return offload(cubin, MISSING_NONE);
}

static int offload_unsent(const void *cubin)
{
	return offload(cubin, MISSING_SENT);
}

static int offload_unfetched(const void *cubin)
{
	return offload(cubin, MISSING_FETCHED);
}

static int offload_too_early(const void *cubin)
{
	return offload(cubin, MISSING_FETCH_BEHIND);
}

static int waits_in_capture(const void *cubin)
{
	Setup u;
	CUgraph g;
	set_up(&u, cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && cuStreamSynchronize(u.s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	MUST(launch(u.twice, u.x, u.y, u.s) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	MUST(cuStreamEndCapture(u.s, &g) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && g == NULL);
	return 0;
}

static int allocates_in_capture(const void *cubin)
{
	Setup u;
	CUdeviceptr p;
	set_up(&u, cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && cuMemAlloc_v2(&p, 256) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	return 0;
}

static int captured_event(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && !cuEventRecord(u.e, u.s) && cuEventQuery(u.e) == CUDA_ERROR_CAPTURED_EVENT);
	return 0;
}

static int freed(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoD_v2(u.x, u.in, BYTES) && !cuMemFree_v2(u.x) && !launch(u.twice, u.x, u.y, u.s));
	MUST(cuStreamSynchronize(u.s) == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

static int freed_twice(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemFree_v2(u.x) && cuMemFree_v2(u.x) == CUDA_ERROR_INVALID_VALUE && !cuMemFree_v2(0));
	return 0;
}

static int copy_bounds(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoD_v2(u.x + 4, u.in, BYTES - 4) && cuMemcpyHtoD_v2(u.x + 4, u.in, BYTES) == CUDA_ERROR_INVALID_VALUE);
	return 0;
}

static int touched_by_host(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	*(volatile float *)(uintptr_t)u.x = 1.0f;
	return 0;
}

/* Zeroing a whole allocation gives its bytes a value, but they have not been written; zeroing a part of it counts. */
static int zeroed(const void *cubin)
{
	Setup u;
	float h[N];
	set_up(&u, cubin);
	MUST(!cuMemsetD8_v2(u.x, 0, BYTES) && !cuMemsetD32_v2(u.y, 0x3f800000u, N - 1) && !cuMemsetD32_v2(u.y + BYTES - 4, 0x40000000u, 1));
	MUST(!cuCtxSynchronize() && !cuMemcpyDtoH_v2(h, u.x, BYTES) && h[0] == 0.0f && h[N - 1] == 0.0f);
	MUST(!launch(u.twice, u.y, u.z, NULL) && !cuMemcpyDtoH_v2(h, u.z, BYTES) && h[0] == 2.0f && h[N - 1] == 4.0f);
	MUST(!launch(u.twice, u.x, u.z, NULL) && cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
	return 0;
}

static int undefined(const void *cubin)
{
	Setup u;
	float h[N] = {0};
	set_up(&u, cubin);
	MUST(!cuMemcpyDtoH_v2(h, u.x, BYTES) && h[0] != 0.0f && u.x % 256 == 0 && u.x % 512 != 0);
	return 0;
}

static int copied_within(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	MUST(!cuMemcpyHtoD_v2(u.x, u.in, BYTES / 2) && !cuMemcpyDtoD_v2(u.y, u.x, BYTES) && !launch(u.twice, u.y, u.z, NULL));
	MUST(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS); /* the other half was unwritten, and its copy is */
	return 0;
}

static int small_card(const void *cubin)
{
	CUdeviceptr p;
	size_t unused, total;
	(void)cubin;
	setenv("DL_SIM_MEMORY", "1000000", 1);
	start();
	MUST(!cuMemGetInfo_v2(&unused, &total) && total == 1000000 && unused == total && cuMemAlloc_v2(&p, 1000001) == CUDA_ERROR_OUT_OF_MEMORY);
	MUST(!cuMemAlloc_v2(&p, 600000) && !cuMemGetInfo_v2(&unused, &total) && unused == 400000 && cuMemAlloc_v2(&p, 500000) == CUDA_ERROR_OUT_OF_MEMORY);
	return 0;
}

static int cards(const void *cubin)
{
	int n;
	CUdevice d;
	(void)cubin;
	setenv("DL_SIM_DEVICES", "2", 1);
	MUST(cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED && !cuInit(0) && !cuDeviceGetCount(&n) && n == 2 && !cuDeviceGet(&d, 1));
	MUST(cuDeviceGet(&d, 2) == CUDA_ERROR_INVALID_DEVICE);
	return 0;
}

static int no_card(const void *cubin)
{
	(void)cubin;
	setenv("DL_SIM_DEVICES", "0", 1);
	MUST(cuInit(0) == CUDA_ERROR_NO_DEVICE);
	return 0;
}

static int names(const void *cubin)
{
	const char *text;
	void *fn = NULL;
	(void)cubin;
	MUST(!cuGetErrorName(700, &text) && strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0 && !cuGetErrorString(2, &text) && strcmp(text, "out of memory") == 0);
	MUST(!cuGetProcAddress("cuMemAlloc", &fn, 12000, 0) && fn && cuGetProcAddress("cuNothing", &fn, 12000, 0) == CUDA_ERROR_NOT_FOUND);
	return 0;
}

static void note(void *data)
{
	*(float *)data = 42.0f;
}

static int host_function(const void *cubin)
{
	Setup u;
	set_up(&u, cubin);
	/* A function in the queue may fill what a copy behind it reads. */
	MUST(!cuLaunchHostFunc(u.s, note, u.in) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s));
	MUST(!cuMemcpyDtoHAsync_v2(u.out, u.y, BYTES, u.s) && !cuStreamSynchronize(u.s) && u.out[0] == 84.0f);
	return 0;
}

/* Three, then five launches of a graph: what a step does is the difference. */
static long counted(const char *path, const char *what)
{
	char name[64];
	long n, found = 0;
	FILE *f = fopen(path, "r");
	while (f && fscanf(f, "%63s %ld", name, &n) == 2)
		if (strcmp(name, what) == 0)
			found = n;
	if (f)
		fclose(f);
	return found;
}

typedef struct Counting {
	const void *cubin;
	int steps;
	char path[64];
} Counting;

static int count(const void *ctx)
{
	const Counting *c = ctx;
	Setup u;
	CUgraph g;
	CUgraphExec x;
	setenv("DL_SIM_REPORT", c->path, 1);
	set_up(&u, c->cubin);
	MUST(!cuStreamBeginCapture_v2(u.s, 1) && !cuMemcpyHtoDAsync_v2(u.x, u.in, BYTES, u.s) && !launch(u.twice, u.x, u.y, u.s) && !launch(u.add, u.x, u.y, u.s));
	MUST(!cuStreamEndCapture(u.s, &g) && !cuGraphInstantiateWithFlags(&x, g, 0));
	for (int i = 0; i < c->steps; i++)
		MUST(!cuGraphLaunch(x, u.s));
	MUST(!cuStreamSynchronize(u.s));
	return 0;
}

static void counters(const char *cubin)
{
	Counting a = {cubin, 3, "/tmp/cudasim-test-XXXXXX"}, b = {cubin, 5, "/tmp/cudasim-test-XXXXXX"};
	close(mkstemp(a.path));
	close(mkstemp(b.path));
	apart("three steps counted", count, &a, 0, "");
	apart("five steps counted", count, &b, 0, "");
	static const struct {
		const char *what;
		long more;
	} wants[] = {{"kernels", 4}, {"cuGraphLaunch", 2}, {"bytes_to_device", 2 * BYTES}, {"allocations", 0}, {"synchronisations", 0}, {"cuLaunchKernel", 0}, {"launches_captured", 0}};
	for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
		long more = counted(b.path, wants[i].what) - counted(a.path, wants[i].what);
		check(more == wants[i].more, "counters", "%s grows by %ld, not %ld, in two steps", wants[i].what, more, wants[i].more);
	}
	check(counted(a.path, "synchronisations") == 1 && counted(a.path, "allocations") == 6, "counters", "%ld synchronisations, %ld allocations", counted(a.path, "synchronisations"),
	      counted(a.path, "allocations"));
	unlink(a.path);
	unlink(b.path);
}

static const struct {
	const char *name;
	int (*body)(const void *cubin);
	int ends_by;
	const char *says;
} cases[] = {
	{"a stream's order", in_order, 0, ""},
	{"pinned memory overwritten too early", overwritten, 0, "copy of 1024 bytes to the device: the host has changed its source after the call and before the copy ran"},
	{"pinned memory overwritten behind an event", overwritten_late, 0, ""},
	{"pageable memory", pageable, 0, ""},
	{"events", events, 0, ""},
	{"a wait across streams", across, 0, ""},
	{"a wait across streams forgotten", across_without, 0, "twice at kernels.cu:2: block (0,0,0) thread (0,0,0): reads 4 bytes of global memory at arena + 0, never written"},
	{"the default stream", default_stream, 0, ""},
	{"a graph", graph, 0, ""},
	{"a graph's source overwritten too early", graph_overwritten, 0, "the host has changed its source"},
	{"a graph of two streams", joined, 0, ""},
	{"a graph of two streams, in another order", joined_reverse, 0, ""},
	{"a graph with a stream not joined", unjoined, 0, "capture ends while work of a joined stream is not waited for"},
	{"a graph with a dependency forgotten", forgotten, 0, "never written"},
	{"a value that waits in host memory", offload_whole, 0, ""},
	{"a value that waits in host memory, copies early", offload_whole_reverse, 0, ""},
	{"bytes taken before they have been sent", offload_unsent, 0, "copy of 1024 bytes to the host: a node that does not wait for it has changed its source"},
	{"bytes read before they have come back", offload_unfetched, 0, "never written"},
	{"bytes filled before they are free", offload_too_early, 0, "copy of 1024 bytes to the device: a node that does not wait for it has written there"},
	{"a wait while capturing", waits_in_capture, 0, "a call that waits or allocates while a stream captures"},
	{"an allocation while capturing", allocates_in_capture, 0, "a call that waits or allocates while a stream captures"},
	{"a query of a captured event", captured_event, 0, ""},
	{"memory that has been freed", freed, 0, "reads 4 bytes at allocation 1 + 0, which has been freed"},
	{"memory freed twice", freed_twice, 0, "is no allocation"},
	{"a copy out of bounds", copy_bounds, 0, "copy of 1024 bytes at allocation 1 + 0x4: out of bounds"},
	{"device memory touched by the host", touched_by_host, SIGSEGV, ""},
	{"a whole allocation zeroed", zeroed, 0, "never written (a memset of a whole allocation does not count)"},
	{"memory begins undefined", undefined, 0, ""},
	{"unwritten bytes copied", copied_within, 0, "at arena + 0x200"},
	{"a small card", small_card, 0, ""},
	{"two cards", cards, 0, ""},
	{"no card", no_card, 0, ""},
	{"names", names, 0, ""},
	{"a host function", host_function, 0, ""},
};

int main(void)
{
	static const char *const options[] = {"--gpu-architecture=sm_90"};
	char *cubin = must_compile(kernels, options, 1);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		apart(cases[i].name, cases[i].body, cubin, cases[i].ends_by, cases[i].says);
	counters(cubin);
	free(cubin);
	return finish();
}

/* The entry points of libcuda.so.1, under the names that the driver exports (plain and _v2). Each counts itself; each that waits or allocates
 * counts as that too, for tests that a step does neither. After a failed launch every call returns its error, as on a device. */
#include "queue.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Every call: CALL(name) ... return driver_leave(e). */
CUresult driver_enter(const char *name)
{
	pthread_mutex_lock(&lock);
	report_count(name, 1);
	return !sim_device.initialised ? CUDA_ERROR_NOT_INITIALIZED : sim_device.dead;
}

CUresult driver_leave(CUresult e)
{
	pthread_mutex_unlock(&lock);
	return e;
}

static CUresult waits(const char *what)
{
	report_count(what, 1);
	return capture_forbids();
}

static const struct {
	CUresult code;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	{CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
	{CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	{CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	{CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
	{CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	{CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
};

static CUresult error_text(CUresult e, const char **text, bool name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == e) {
			*text = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult e, const char **text)
{
	return error_text(e, text, true);
}

CUresult cuGetErrorString(CUresult e, const char **text)
{
	return error_text(e, text, false);
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags, int *status)
{
	char name[128];
	(void)version;
	(void)flags;
	Dl_info self;
	void *me = dladdr((const void *)&sim_device, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	snprintf(name, sizeof name, "%s_v2", symbol);
	*fn = me ? dlsym(me, name) : NULL;
	if (me && !*fn)
		*fn = dlsym(me, symbol);
	if (status)
		*status = *fn ? 0 : 1;
	return *fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **fn, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(symbol, fn, version, flags, NULL);
}

/* ---- the device and its context ---- */

CUresult cuInit(unsigned flags)
{
	driver_enter("cuInit");
	const char *none = getenv("DL_SIM_DEVICES");
	if (flags != 0)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (none && strcmp(none, "0") == 0)
		return driver_leave(CUDA_ERROR_NO_DEVICE);
	sim_device.initialised = true;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDriverGetVersion(int *version)
{
	const char *s = getenv("DL_SIM_DRIVER");
	*version = s ? atoi(s) : 13000;
	return CUDA_SUCCESS;
}

static int device_count(void)
{
	const char *s = getenv("DL_SIM_DEVICES");
	return s && *s ? atoi(s) : 1;
}

CUresult cuDeviceGetCount(int *n)
{
	CALL("cuDeviceGetCount");
	*n = device_count();
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
	CALL("cuDeviceGet");
	*d = ordinal;
	return driver_leave(ordinal >= 0 && ordinal < device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
}

CUresult cuDeviceGetName(char *name, int len, CUdevice d)
{
	CALL("cuDeviceGetName");
	(void)d;
	snprintf(name, (size_t)len, "Simulated GPU");
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *id, CUdevice d)
{
	memset(id, d + 1, sizeof *id);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice d)
{
	CALL("cuDeviceGetAttribute");
	(void)d;
	static const struct {
		int attribute, value;
	} table[] = {
		{1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 0x7fffffff}, {6, 65535}, {7, 65535}, {8, 48 * 1024}, {9, 64 * 1024}, {10, 32}, {12, 65536}, {13, 1980000},
		{16, 4}, {18, 0}, {19, 1}, {32, 1}, {36, 2619000}, {37, 5120}, {38, 50 << 20}, {39, 2048}, {40, 3}, {41, 1}, {82, 65536}, {95, 1}, {106, 32}, {115, 1},
	};
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (table[i].attribute == attribute) {
			*value = table[i].value;
			return driver_leave(CUDA_SUCCESS);
		}
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = sim_arch() / 10; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = sim_arch() % 10; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = sim_shared_optin(); break;
	case 81: *value = sim_shared_optin() + 1024; break;
	default: return driver_leave(violation_host(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: attribute %d is not simulated", attribute));
	}
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
	size_t unused;
	(void)d;
	CALL("cuDeviceTotalMem");
	memory_info(&unused, bytes);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d)
{
	CALL("cuDevicePrimaryCtxRetain");
	(void)d;
	sim_device.context.refs++;
	*c = &sim_device.context;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d)
{
	CALL("cuDevicePrimaryCtxRelease");
	(void)d;
	CUresult e = stream_run_all();
	sim_device.context.refs--;
	block_shut();
	return driver_leave(e);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice d, unsigned flags)
{
	(void)d;
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *c, unsigned flags, CUdevice d)
{
	(void)flags;
	return cuDevicePrimaryCtxRetain(c, d);
}

CUresult cuCtxDestroy_v2(CUcontext c)
{
	(void)c;
	return cuDevicePrimaryCtxRelease_v2(0);
}

CUresult cuCtxSetCurrent(CUcontext c)
{
	CALL("cuCtxSetCurrent");
	return driver_leave(c == NULL || c == &sim_device.context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxGetCurrent(CUcontext *c)
{
	CALL("cuCtxGetCurrent");
	*c = sim_device.context.refs ? &sim_device.context : NULL;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
	CALL("cuCtxSynchronize");
	CUresult e = waits("synchronisations");
	return driver_leave(e ? e : stream_run_all());
}

/* ---- memory ---- */

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CALL("cuMemGetInfo");
	memory_info(free_bytes, total);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
	CALL("cuMemAlloc");
	CUresult e = waits("allocations");
	return driver_leave(e ? e : memory_alloc(p, bytes));
}

CUresult cuMemFree_v2(CUdeviceptr p)
{
	CALL("cuMemFree");
	CUresult e = waits("allocations");
	if (e == CUDA_SUCCESS)
		e = stream_run_all();
	return driver_leave(e ? e : memory_free(p));
}

CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cuMemHostAlloc");
	CUresult e = waits("allocations");
	if (e)
		return driver_leave(e);
	const char *most = getenv("DL_SIM_PINNED"); /* bytes of one pinned allocation */
	if (most && bytes > strtoull(most, NULL, 10))
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	*p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
	if (!*p)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	memset(*p, 0x5a, bytes);
	return driver_leave(pinned_add(*p, bytes, true));
}

CUresult cuMemAllocHost_v2(void **p, size_t bytes)
{
	return cuMemHostAlloc(p, bytes, 0);
}

CUresult cuMemFreeHost(void *p)
{
	CALL("cuMemFreeHost");
	CUresult e = waits("allocations");
	if (e == CUDA_SUCCESS)
		e = stream_run_all();
	if (e == CUDA_SUCCESS)
		e = pinned_remove(p, true);
	if (e == CUDA_SUCCESS)
		free(p);
	return driver_leave(e);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
	(void)flags;
	CALL("cuMemHostRegister");
	return driver_leave(pinned_add(p, bytes, false));
}

CUresult cuMemHostUnregister(void *p)
{
	CALL("cuMemHostUnregister");
	CUresult e = stream_run_all();
	return driver_leave(e ? e : pinned_remove(p, false));
}

static CUresult copy(CopyKind kind, uintptr_t to, uintptr_t from, size_t bytes, SimStream *s, bool wait)
{
	if (bytes == 0)
		return CUDA_SUCCESS;
	uintptr_t there = kind == COPY_OUT ? from : to;
	char where[200];
	if ((kind != COPY_IN && !memory_range(from, bytes)) || (kind != COPY_OUT && !memory_range(to, bytes))) {
		describe_address(where, sizeof where, there);
		return violation_host(CUDA_ERROR_INVALID_VALUE, "copy of %zu bytes at %s: out of bounds", bytes, where);
	}
	const void *host = kind == COPY_IN ? (const void *)from : (const void *)to;
	bool pageable = kind != COPY_WITHIN && !pinned_has(host, bytes);
	if (pageable && !s->capture && kind == COPY_OUT && !wait) {
		report_count("synchronisations", 1); /* the driver waits: it has no place to copy to by itself */
		wait = true;
	}
	Op *op = op_new(OP_COPY);
	op->copy = kind;
	op->to = to;
	op->from = from;
	op->bytes = bytes;
	if (pageable && kind == COPY_IN && !s->capture) {
		op->staged = malloc(bytes);
		if (!op->staged)
			abort();
		memcpy(op->staged, host, bytes);
	}
	CUresult e = stream_add(s, op);
	return e || !wait ? e : stream_run(s, s->last);
}

static CUresult copy_now(CopyKind kind, uintptr_t to, uintptr_t from, size_t bytes)
{
	CUresult e = waits("synchronisations");
	return e ? e : copy(kind, to, from, bytes, &sim_device.null_stream, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	CALL("cuMemcpyHtoD");
	return driver_leave(copy_now(COPY_IN, to, (uintptr_t)from, bytes));
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	CALL("cuMemcpyDtoH");
	return driver_leave(copy_now(COPY_OUT, (uintptr_t)to, from, bytes));
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CALL("cuMemcpyDtoD");
	return driver_leave(copy(COPY_WITHIN, to, from, bytes, &sim_device.null_stream, false));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream s)
{
	CALL("cuMemcpyHtoDAsync");
	return driver_leave(copy(COPY_IN, to, (uintptr_t)from, bytes, stream_of(s), false));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream s)
{
	CALL("cuMemcpyDtoHAsync");
	return driver_leave(copy(COPY_OUT, (uintptr_t)to, from, bytes, stream_of(s), false));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
	CALL("cuMemcpyDtoDAsync");
	return driver_leave(copy(COPY_WITHIN, to, from, bytes, stream_of(s), false));
}

static CUresult fill(CUdeviceptr to, uint32_t value, int width, size_t n, SimStream *s)
{
	if (n == 0)
		return CUDA_SUCCESS;
	if (!memory_range(to, n * (size_t)width) || to % (unsigned)width != 0)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "memset of %zu bytes at %#llx: out of bounds or misaligned", n * (size_t)width, to);
	Op *op = op_new(OP_FILL);
	op->to = to;
	op->bytes = n * (size_t)width;
	op->value = value;
	op->width = width;
	return stream_add(s, op);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t n)
{
	CALL("cuMemsetD8");
	return driver_leave(fill(to, value, 1, n, &sim_device.null_stream));
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t n)
{
	CALL("cuMemsetD16");
	return driver_leave(fill(to, value, 2, n, &sim_device.null_stream));
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t n)
{
	CALL("cuMemsetD32");
	return driver_leave(fill(to, value, 4, n, &sim_device.null_stream));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream s)
{
	CALL("cuMemsetD8Async");
	return driver_leave(fill(to, value, 1, n, stream_of(s)));
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t n, CUstream s)
{
	CALL("cuMemsetD16Async");
	return driver_leave(fill(to, value, 2, n, stream_of(s)));
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream s)
{
	CALL("cuMemsetD32Async");
	return driver_leave(fill(to, value, 4, n, stream_of(s)));
}

/* ---- modules, launches ---- */

CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
	CALL("cuModuleLoadData");
	CUresult e = waits("allocations");
	return driver_leave(e ? e : module_load(m, image));
}

/* Of the options, the buffer for errors means something. */
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, const int *options, void **values)
{
	char *log = NULL;
	size_t bytes = 0;
	for (unsigned i = 0; i < n; i++) {
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
			log = values[i];
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			bytes = (size_t)(uintptr_t)values[i];
	}
	CUresult e = cuModuleLoadData(m, image);
	if (log && bytes)
		snprintf(log, bytes, "%s", e ? "cudasim: the image does not fit the simulated device" : "");
	return e;
}

CUresult cuModuleUnload(CUmodule m)
{
	CALL("cuModuleUnload");
	CUresult e = stream_run_all();
	module_unload(m);
	return driver_leave(e);
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name)
{
	CALL("cuModuleGetFunction");
	return driver_leave(module_function(m, name, f));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *p, size_t *bytes, CUmodule m, const char *name)
{
	CALL("cuModuleGetGlobal");
	return driver_leave(module_global(m, name, p, bytes));
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
	CALL("cuFuncGetAttribute");
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = f->kernel->max_threads ? (int)f->kernel->max_threads : SIM_MAX_THREADS; break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = f->static_shared; break;
	case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = 0; break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = (int)f->module->info->arch; break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->max_dynamic; break;
	default: return driver_leave(violation_host(CUDA_ERROR_INVALID_VALUE, "cuFuncGetAttribute: attribute %d is not simulated", attribute));
	}
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
	CALL("cuFuncSetAttribute");
	if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
		if (value < 0 || value + f->static_shared > sim_shared_optin())
			return driver_leave(violation_host(CUDA_ERROR_INVALID_VALUE, "cuFuncSetAttribute: %d bytes of dynamic and %d of static shared memory, above the %d of this chip", value,
						    f->static_shared, sim_shared_optin()));
		f->max_dynamic = value;
	}
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetCacheConfig(CUfunction f, int config)
{
	(void)f;
	(void)config;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s,
			void **params, void **extra)
{
	CALL("cuLaunchKernel");
	if (extra)
		return driver_leave(violation_host(CUDA_ERROR_NOT_SUPPORTED, "cuLaunchKernel: parameters by `extra` are not simulated"));
	Op *op = op_new(OP_LAUNCH);
	CUresult e = launch_make(&op->launch, f, (SimDim){gx, gy, gz}, (SimDim){bx, by, bz}, shared, params);
	if (e) {
		op_free(op);
		return driver_leave(e);
	}
	report_count(stream_of(s)->capture ? "launches_captured" : "launches", 1);
	return driver_leave(stream_add(stream_of(s), op));
}

CUresult cuLaunchHostFunc(CUstream s, CUhostFn fn, void *data)
{
	CALL("cuLaunchHostFunc");
	Op *op = op_new(OP_HOST);
	op->fn = fn;
	op->from = (uintptr_t)data;
	return driver_leave(stream_add(stream_of(s), op));
}

CUresult cuGraphUpload(CUgraphExec x, CUstream s)
{
	(void)x;
	(void)s;
	CALL("cuGraphUpload");
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphLaunch(CUgraphExec x, CUstream s)
{
	CALL("cuGraphLaunch");
	Op *op = op_new(OP_GRAPH);
	op->exec = x;
	x->refs++;
	return driver_leave(stream_add(stream_of(s), op));
}

/* ---- streams and events ---- */

CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	CALL("cuStreamCreate");
	*s = calloc(1, sizeof **s);
	if (!*s)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*s)->blocking = !(flags & CU_STREAM_NON_BLOCKING);
	(*s)->next = sim_device.streams;
	sim_device.streams = *s;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority)
{
	(void)priority;
	return cuStreamCreate(s, flags);
}

CUresult cuStreamDestroy_v2(CUstream s)
{
	CALL("cuStreamDestroy");
	if (stream_of(s) == &sim_device.null_stream || s->capture)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	CUresult e = stream_run_all();
	s->blocking = false; /* it stays: events may have been recorded in it */
	return driver_leave(e);
}

CUresult cuStreamSynchronize(CUstream s)
{
	CALL("cuStreamSynchronize");
	CUresult e = waits("synchronisations");
	return driver_leave(e ? e : stream_run(stream_of(s), stream_of(s)->last));
}

CUresult cuStreamQuery(CUstream s)
{
	CALL("cuStreamQuery");
	SimStream *t = stream_of(s);
	if (t->capture)
		return driver_leave(capture_forbids());
	return driver_leave(stream_step(t, t->last));
}

CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
	(void)flags;
	CALL("cuStreamWaitEvent");
	SimStream *t = stream_of(s);
	if (e->capture || t->capture)
		return driver_leave(capture_wait(t, e));
	if (e->seq == 0 || e->stream == t)
		return driver_leave(CUDA_SUCCESS);
	Op *op = op_new(OP_WAIT);
	op->stream = e->stream;
	op->seq = e->seq;
	return driver_leave(stream_add(t, op));
}

CUresult cuEventCreate(CUevent *e, unsigned flags)
{
	CALL("cuEventCreate");
	*e = calloc(1, sizeof **e);
	if (!*e)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*e)->timed = !(flags & CU_EVENT_DISABLE_TIMING);
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2(CUevent e)
{
	CALL("cuEventDestroy");
	CUresult r = stream_run_all();
	free(e->ends);
	free(e);
	return driver_leave(r);
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
	CALL("cuEventRecord");
	SimStream *t = stream_of(s);
	if (t->capture)
		return driver_leave(capture_record(e, t));
	Op *op = op_new(OP_RECORD);
	op->event = e;
	CUresult r = stream_add(t, op);
	e->stream = t;
	e->seq = t->last;
	e->capture = NULL;
	return driver_leave(r);
}

CUresult cuEventQuery(CUevent e)
{
	CALL("cuEventQuery");
	if (e->capture)
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	return driver_leave(e->seq == 0 ? CUDA_SUCCESS : stream_step(e->stream, e->seq));
}

CUresult cuEventSynchronize(CUevent e)
{
	CALL("cuEventSynchronize");
	if (e->capture)
		return driver_leave(CUDA_ERROR_CAPTURED_EVENT);
	CUresult r = waits("event_waits");
	return driver_leave(r || e->seq == 0 ? r : stream_run(e->stream, e->seq));
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	CALL("cuEventElapsedTime");
	if (!start->timed || !end->timed || start->seq == 0 || end->seq == 0)
		return driver_leave(CUDA_ERROR_INVALID_HANDLE);
	if (start->stream->done < start->seq || end->stream->done < end->seq)
		return driver_leave(CUDA_ERROR_NOT_READY);
	*ms = (float)(end->time - start->time);
	return driver_leave(CUDA_SUCCESS);
}

/* ---- the names of older interfaces, where the driver exports both ---- */

#define ALIAS(plain, version, args) CUresult plain args __attribute__((alias(#version)))
ALIAS(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr *, size_t));
ALIAS(cuMemFree, cuMemFree_v2, (CUdeviceptr));
ALIAS(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *));
ALIAS(cuMemcpyHtoD, cuMemcpyHtoD_v2, (CUdeviceptr, const void *, size_t));
ALIAS(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t));
ALIAS(cuMemcpyDtoD, cuMemcpyDtoD_v2, (CUdeviceptr, CUdeviceptr, size_t));
ALIAS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream));
ALIAS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream));
ALIAS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream));
ALIAS(cuMemsetD8, cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t));
ALIAS(cuMemsetD16, cuMemsetD16_v2, (CUdeviceptr, unsigned short, size_t));
ALIAS(cuMemsetD32, cuMemsetD32_v2, (CUdeviceptr, unsigned, size_t));
ALIAS(cuMemAllocHost, cuMemAllocHost_v2, (void **, size_t));
ALIAS(cuMemHostRegister, cuMemHostRegister_v2, (void *, size_t, unsigned));
ALIAS(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, CUdevice));
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (CUdevice));
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2, (CUdevice, unsigned));
ALIAS(cuCtxCreate, cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice));
ALIAS(cuCtxDestroy, cuCtxDestroy_v2, (CUcontext));
ALIAS(cuModuleGetGlobal, cuModuleGetGlobal_v2, (CUdeviceptr *, size_t *, CUmodule, const char *));
ALIAS(cuStreamDestroy, cuStreamDestroy_v2, (CUstream));
ALIAS(cuEventDestroy, cuEventDestroy_v2, (CUevent));
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime, (float *, CUevent, CUevent));

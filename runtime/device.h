/* The device that a trainer runs on: it holds the arena and runs the functions of the plan over it.
 *
 *     device_open -> device_prepare(each function wanted) -> device_call, device_wait ... -> device_close
 *
 * There is one implementation in each runtime library: dev_cpu.c in libdlrt.a, dev_cuda.c in
 * libdlrt-cuda.a; a trainer is linked with one of them. After device_prepare nothing here allocates.
 * Everything else in the runtime reaches the arena through device_view, device_read and device_write,
 * which wait for what runs. Offsets and sizes are bytes; failures fill Fail. */
#ifndef DLC_RUNTIME_DEVICE_H
#define DLC_RUNTIME_DEVICE_H

#include "fail.h"
#include "plan.h"

typedef struct Device Device;

typedef struct DeviceOptions {
	int threads;       /* CPU: 1..plan->threads; 0: OMP_NUM_THREADS, else the processors at hand */
	int number;        /* CUDA: which of several cards */
	bool check_memory; /* the arena starts as a pattern, for device_high_water */
	bool times;        /* calls may have RunCall.times */
} DeviceOptions;

enum {
	DEVICE_CALLS = 2,      /* DeviceInfo.calls is at most this */
	DEVICE_CHUNK = 1 << 20, /* most bytes that one device_view gives */
	DEVICE_TEXT = 256
};

typedef struct DeviceInfo {
	const Plan *plan;
	char name[128]; /* "2 threads", "NVIDIA H200, sm_90" */
	int threads;    /* that run the steps: CUDA 1 */
	int calls;      /* that may be under way at once, their outputs kept apart: CPU 1 */
	bool check_memory;
	int64_t host_bytes;    /* host memory that is the plan's: of the arena, CUDA: of values that wait there */
	int64_t cache_bytes;   /* CUDA: of the cache that the whole card shares; CPU 0 */
	int64_t context_bytes; /* in use on the card beside the arena once functions are prepared: context,
	                        * kernels, libraries, and what other programs hold there; CPU 0 */
} DeviceInfo;

/* Fills `dst` (host memory) with samples [first, first+n) of this call for plan->inputs[input]. */
typedef struct RunSource {
	void (*read)(void *ctx, int input, int64_t first, int64_t n, void *dst);
	void *ctx;
} RunSource;

/* The first result of a step that is not finite. */
typedef struct RunBad {
	const PlanStep *step;
	int64_t micro, element;
	int64_t base; /* samples before the micro-batch */
	double value;
} RunBad;

/* Where the time of a call goes: each run of a step adds to its entry. */
typedef struct RunTime {
	double seconds;
	int64_t runs;
} RunTime;

/* One run of a step: when it began, on a clock of the device's own, and in which micro-batch. */
typedef struct RunEvent {
	double start, seconds;
	int32_t step;
	int64_t micro;
} RunEvent;

/* What a call fills up to `room`; a device that has no such clock leaves it empty. */
typedef struct RunTrace {
	RunEvent *event;
	int64_t n, room;
} RunTrace;

typedef struct RunCall {
	uint64_t seed;
	int64_t step;     /* optimizer steps tried before this one */
	RunSource source; /* is not asked any more once device_call has returned */
	bool check_nan;   /* stops at the first result that is not finite and sets `bad` */
	RunTime *times;   /* one for each step of the function; NULL: no clock is read */
	RunTrace *trace;  /* beside times; NULL: not asked for */
	RunBad bad;       /* bad.step is NULL where all is finite or nothing was checked */
} RunCall;

/* A copy of so many bytes to pinned host memory, back, or within the device's memory; or so many bytes set to 0. */
typedef enum LinkKind { LINK_OUT, LINK_IN, LINK_WITHIN, LINK_FILL } LinkKind;

typedef struct LinkTime {
	LinkKind kind;
	int64_t bytes;
	double seconds; /* from what goes before it until what waits for it goes on */
} LinkTime;

/* Once, before anything else that a process does: may start the program again with another
 * environment. */
void device_process(char **argv);

/* The arena (plan->arena_bytes, zeroed) is the device's only allocation of memory that grows with the
 * model. */
bool device_open(Device **d, const Plan *plan, const DeviceOptions *o, Fail *f);
void device_close(Device *d); /* NULL is no device */
const DeviceInfo *device_info(const Device *d);

bool device_prepare(Device *d, const PlanFunc *func, Fail *f);
/* Begins a run of a prepared function; it may still be under way when this returns. */
bool device_call(Device *d, const PlanFunc *func, RunCall *call, Fail *f);
/* Waits until the call of `func` that was `back` calls of it ago (0: the last; below DeviceInfo.calls)
 * has ended; false where it failed. */
bool device_wait(Device *d, const PlanFunc *func, int back, Fail *f);
/* The bytes of a scalar output of that call, once waited for. */
const void *device_scalar(const Device *d, const PlanFunc *func, int back, int output);

/* At most DEVICE_CHUNK bytes of the arena, to be read at once: valid until the device is next used.
 * NULL after filling f. */
const void *device_view(Device *d, int64_t offset, int64_t bytes, Fail *f);
bool device_read(Device *d, int64_t offset, int64_t bytes, void *to, Fail *f);
bool device_write(Device *d, int64_t offset, int64_t bytes, const void *from, Fail *f);
/* Where the host can use the arena in place: CUDA NULL. */
void *device_host_pointer(const Device *d, int64_t offset);

/* End of the highest byte of the arena that has been written (check_memory only). */
bool device_high_water(Device *d, int64_t *bytes, Fail *f);
/* Which implementation the library chose for a step of a prepared function, for profiles; "" where it is
 * no library call. */
void device_describe(const Device *d, const PlanFunc *func, int step, char out[DEVICE_TEXT]);
/* Fills in the seconds of each copy, as it would run in a step; needs no prepared function. CPU: fails, its memory is the host's. */
bool device_time_links(Device *d, LinkTime *t, int n, Fail *f);
/* Bytes of the arena that are in memory. */
int64_t device_resident(const Device *d);

#endif

/* The device that a trainer runs on: it holds the arena and runs the functions of the plan over it.
 *
 *     device_open -> device_prepare(each function wanted) -> device_call ... -> device_close
 *
 * There is one implementation in each runtime library: dev_cpu.c in libdlrt.a, dev_cuda.c in libdlrt-cuda.a; a trainer is linked
 * with one of them. After device_prepare nothing here allocates. Everything else in the runtime reaches the arena through
 * device_read and device_write, which wait for what runs. Offsets and sizes are bytes; failures fill Fail. */
#ifndef DLC_RUNTIME_DEVICE_H
#define DLC_RUNTIME_DEVICE_H

#include "fail.h"
#include "plan.h"

typedef struct Device Device;

typedef struct DeviceOptions {
	int threads;       /* CPU: 1..plan->threads */
	int number;        /* CUDA: which of several cards */
	bool check_memory; /* the arena starts as a pattern, for device_high_water */
} DeviceOptions;

/* Fills `dst` (host memory) with samples [first, first+n) of this call for plan->inputs[input]. */
typedef struct RunSource {
	void (*read)(void *ctx, int input, int64_t first, int64_t n, void *dst);
	void *ctx;
} RunSource;

/* The first result of a step that is not finite. */
typedef struct RunBad {
	const PlanStep *step;
	int64_t micro, element;
	double value;
} RunBad;

/* Where the time of a call goes: each run of a step adds to its entry. */
typedef struct RunTime {
	double seconds;
	int64_t runs;
} RunTime;

typedef struct RunCall {
	uint64_t seed;
	int64_t step;    /* optimizer steps tried before this one */
	RunSource source;
	void *large;     /* receives the output that is not a scalar (predict), in full; may be NULL */
	bool check_nan;  /* stops at the first result that is not finite and sets `bad` */
	RunTime *times;  /* one for each step of the function; NULL: no clock is read */
	RunBad bad;      /* bad.step is NULL where all is finite or nothing was checked */
} RunCall;

/* The arena (plan->arena_bytes, zeroed) is the device's only allocation of memory that grows with the model. */
bool device_open(Device **d, const Plan *plan, const DeviceOptions *o, Fail *f);
void device_close(Device *d); /* NULL is no device */
bool device_prepare(Device *d, const PlanFunc *func, Fail *f);
/* Runs a prepared function. */
bool device_call(Device *d, const PlanFunc *func, RunCall *call, Fail *f);
/* The bytes of a scalar output of the function's last call; waits for it. */
bool device_output(Device *d, const PlanFunc *func, int output, void *to, Fail *f);

bool device_read(Device *d, int64_t offset, int64_t bytes, void *to, Fail *f);
bool device_write(Device *d, int64_t offset, int64_t bytes, const void *from, Fail *f);

/* End of the highest byte of the arena that has been written (check_memory only), and bytes of it that are in memory. */
bool device_high_water(Device *d, int64_t *bytes, Fail *f);
int64_t device_resident(const Device *d);
/* Host memory that the arena accounts for (CUDA: 0), to be taken off the process's own figure. */
int64_t device_host_bytes(const Device *d);
/* CUDA: what context and modules take on the card, beside the arena; CPU: 0. */
int64_t device_context_bytes(const Device *d);
/* "NVIDIA H200, sm_90", "12 threads" */
const char *device_name(const Device *d);

#endif

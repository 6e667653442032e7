/* The CPU as a device: the arena is one mapping, a kernel a C function, a library call one of oneDNN's.
 *
 * Method. The steps are interpreted in the plan's order. Kernels are called with the arena and their
 * offsets; library calls were bound to their addresses beforehand (one PrimCall a step); inputs are
 * asked from the caller's RunSource, straight into the arena. A scalar output is copied to the host
 * table at its place in the order, since its bytes may be reused by the next step.
 *
 * Invariants. device_call allocates nothing and has done everything when it returns. Results depend on
 * the plan, the seed, the step and the samples alone. With check_memory each workspace that is handed
 * out counts as written to its end: what the library does with it is the library's affair, the planner
 * has to grant it all. */
#include "memory.h"
#include "prim.h"
#include "run.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SCALAR_BYTES = 8 };

typedef struct CpuFunc {
	PrimCall **calls; /* one for each step; NULL where it is no library call */
	unsigned char (*scalars)[SCALAR_BYTES]; /* one for each output: the bytes of a scalar */
} CpuFunc;

struct Device {
	DeviceInfo info;
	ArenaMap arena;
	PrimLib *lib;
	CpuFunc *prepared; /* one for each plan function */
};

/* ---- opening -------------------------------------------------------------------------------- */

/* Threads that wait for each other spin for a while before they sleep. OpenMP's default is
 * milliseconds, which on a machine that does other work too makes every step wait for threads that
 * are not running. The library reads its environment before main: so it is set, and the program
 * started again. (Not under valgrind, which would not follow.) */
void device_process(char **argv)
{
	char path[4096];
	const char *preload = getenv("LD_PRELOAD");
	if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") ||
	    (preload && strstr(preload, "vgpreload")))
		return;
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
	if (n <= 0 || setenv("GOMP_SPINCOUNT", "1000", 1))
		return;
	path[n] = 0;
	execv(path, argv);
}

/* Whether this processor has a feature, by the compiler's name for it; unknown names are taken on
 * trust. */
static bool cpu_has(const char *feature)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
#define HAS(NAME)                       \
	if (strcmp(feature, NAME) == 0) \
	return __builtin_cpu_supports(NAME)
	HAS("sse4.2");
	HAS("avx");
	HAS("avx2");
	HAS("fma");
	HAS("avx512f");
	HAS("avx512vl");
	HAS("avx512bw");
	HAS("avx512dq");
	HAS("avx512cd");
	HAS("avx512vnni");
	HAS("avx512bf16");
#undef HAS
#endif
	return true;
}

/* Refuses processors that lack what the kernels were compiled for. */
static bool check_isa(const Plan *plan, Fail *f)
{
	char words[512];
	char *save = NULL;
	snprintf(words, sizeof words, "%s", plan->isa);
	for (char *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save))
		if (!cpu_has(w))
			return fail(
				f, EXIT_FILES,
				"this trainer was compiled for a processor with %s (%s), which this one has not",
				w, plan->isa);
	return true;
}

/* Asked for explicitly, too many threads are an error; the environment's wish is cut to what was
 * planned. */
static bool choose_threads(const Plan *plan, int asked, int *threads, Fail *f)
{
	int n = asked;
	if (n <= 0) {
		n = getenv("OMP_NUM_THREADS") ? omp_get_max_threads() : omp_get_num_procs();
		n = n < plan->threads ? n : plan->threads;
	}
	*threads = n;
	return (n >= 1 && n <= plan->threads) ||
	       fail(f, EXIT_FILES,
		    "%d threads asked for, but the plan's workspaces are for 1 to %d (compile with more: dlc --threads %d)",
		    n, plan->threads, n);
}

static bool open_parts(Device *d, const Plan *plan, const DeviceOptions *o, Fail *f)
{
	char why[PRIM_WHY];
	int threads;
	if (plan->version != PLAN_VERSION)
		return fail(f, EXIT_BUG, "the plan has version %d, this runtime reads %d",
			    plan->version, PLAN_VERSION);
	if (strcmp(plan->target, "cpu"))
		return fail(f, EXIT_BUG, "the plan is for '%s', this runtime is for the CPU", plan->target);
	if (!choose_threads(plan, o->threads, &threads, f) || !check_isa(plan, f))
		return false;
	d->info = (DeviceInfo){ .plan = plan,
				.threads = threads,
				.calls = 1,
				.check_memory = o->check_memory };
	snprintf(d->info.name, sizeof d->info.name, "%d thread%s", threads, threads == 1 ? "" : "s");
	if (!(d->lib = prim_open(threads, why)))
		return fail(f, EXIT_FILES, "%s", why);
	d->prepared = calloc((size_t)plan->nfuncs + 1, sizeof *d->prepared);
	if (!d->prepared)
		return fail(f, EXIT_FILES, "out of memory");
	if (!arena_map(&d->arena, plan->arena_bytes, o->check_memory, f))
		return false;
	d->info.host_bytes = d->arena.mapped;
	return true;
}

bool device_open(Device **out, const Plan *plan, const DeviceOptions *o, Fail *f)
{
	Device *d = calloc(1, sizeof *d);
	*out = NULL;
	if (!d)
		return fail(f, EXIT_FILES, "out of memory");
	if (!open_parts(d, plan, o, f)) {
		device_close(d);
		return false;
	}
	*out = d;
	return true;
}

void device_close(Device *d)
{
	if (!d)
		return;
	prim_close(d->lib);
	for (int i = 0; d->prepared && i < d->info.plan->nfuncs; i++) {
		free(d->prepared[i].calls);
		free(d->prepared[i].scalars);
	}
	free(d->prepared);
	arena_unmap(&d->arena);
	free(d);
}

const DeviceInfo *device_info(const Device *d)
{
	return &d->info;
}

static CpuFunc *prepared(const Device *d, const PlanFunc *func)
{
	return &d->prepared[func - d->info.plan->funcs];
}

bool device_prepare(Device *d, const PlanFunc *func, Fail *f)
{
	CpuFunc *p = prepared(d, func);
	if (p->calls)
		return true;
	p->calls = calloc((size_t)func->nsteps + 1, sizeof *p->calls);
	p->scalars = calloc((size_t)func->noutputs + 1, sizeof *p->scalars);
	if (!p->calls || !p->scalars)
		return fail(f, EXIT_FILES, "out of memory");
	for (int i = 0; i < func->nsteps; i++) {
		const PlanStep *s = &func->steps[i];
		char why[PRIM_WHY];
		if (s->kind != PLAN_PRIM)
			continue;
		p->calls[i] = prim_bind(d->lib, &d->info.plan->prims[s->index], d->arena.base,
					s->off, why);
		if (!p->calls[i])
			return fail(f, EXIT_FILES, "%s: %s (%s)", func->name, why, s->name);
	}
	return run_check(func, f);
}

/* ---- running -------------------------------------------------------------------------------- */

/* The last byte of a workspace that is handed out (it is scratch at this moment) counts as written. */
static void mark_workspace(Device *d, const PlanStep *s)
{
	int64_t bytes = s->kind == PLAN_PRIM && !s->work_bytes
				? d->info.plan->prims[s->index].work_bytes
				: s->work_bytes;
	if (s->nwork && bytes > 0)
		arena_mark(&d->arena, s->off[s->noff - 1] + bytes - 1);
}

static void copy_scalar(Device *d, const PlanFunc *func, const PlanStep *s)
{
	const PlanOutput *o = &func->outputs[s->index];
	if (o->ndim == 0)
		memcpy(prepared(d, func)->scalars[s->index], d->arena.base + s->off[0],
		       (size_t)plan_output_bytes(o));
}

static bool run_step(Device *d, const RunAt *at, const RunCall *call, Fail *f)
{
	const PlanStep *s = &at->func->steps[at->step];
	if (d->info.check_memory)
		mark_workspace(d, s);
	switch (s->kind) {
	case PLAN_KERNEL: s->fn(d->arena.base, s->off, &at->env); break;
	case PLAN_PRIM:
		if (!prim_run(prepared(d, at->func)->calls[at->step]))
			return fail(f, EXIT_BUG, "oneDNN failed in %s (%s)", s->name, s->source);
		break;
	case PLAN_INPUT:
		call->source.read(call->source.ctx, s->index, at->env.base, at->samples,
				  d->arena.base + s->off[0]);
		break;
	case PLAN_OUTPUT: copy_scalar(d, at->func, s); break;
	default: break;
	}
	return true;
}

static double clock_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* run_step, and how long it took where that is asked for. */
static bool run_timed(Device *d, const RunAt *at, const RunCall *call, Fail *f)
{
	if (!call->times)
		return run_step(d, at, call, f);
	double start = clock_seconds();
	bool ok = run_step(d, at, call, f);
	double seconds = clock_seconds() - start;
	call->times[at->step].seconds += seconds;
	call->times[at->step].runs++;
	RunTrace *trace = call->trace;
	if (trace && trace->n < trace->room)
		trace->event[trace->n++] = (RunEvent){ start, seconds, at->step, at->env.micro };
	return ok;
}

bool device_call(Device *d, const PlanFunc *func, RunCall *call, Fail *f)
{
	RunAt at;
	call->bad.step = NULL;
	run_begin(&at, func, call, d->info.threads);
	while (run_next(&at)) {
		if (!run_timed(d, &at, call, f))
			return false;
		if (call->check_nan && !run_check_result(d, &at, call, f))
			return false;
		if (call->bad.step)
			return true;
	}
	return true;
}

bool device_wait(Device *d, const PlanFunc *func, int back, Fail *f)
{
	(void)d, (void)func, (void)back, (void)f;
	return true;
}

const void *device_scalar(const Device *d, const PlanFunc *func, int back, int output)
{
	(void)back;
	return prepared(d, func)->scalars[output];
}

/* ---- the arena ------------------------------------------------------------------------------ */

const void *device_view(Device *d, int64_t offset, int64_t bytes, Fail *f)
{
	(void)bytes, (void)f;
	return d->arena.base + offset;
}

bool device_read(Device *d, int64_t offset, int64_t bytes, void *to, Fail *f)
{
	(void)f;
	memcpy(to, d->arena.base + offset, (size_t)bytes);
	return true;
}

bool device_write(Device *d, int64_t offset, int64_t bytes, const void *from, Fail *f)
{
	(void)f;
	memcpy(d->arena.base + offset, from, (size_t)bytes);
	return true;
}

void *device_host_pointer(const Device *d, int64_t offset)
{
	return d->arena.base + offset;
}

bool device_high_water(Device *d, int64_t *bytes, Fail *f)
{
	(void)f;
	*bytes = arena_high_water(&d->arena);
	return true;
}

void device_describe(const Device *d, const PlanFunc *func, int step, char out[DEVICE_TEXT])
{
	const PlanStep *s = &func->steps[step];
	_Static_assert((int)DEVICE_TEXT >= (int)PRIM_WHY, "the library's text fits");
	out[0] = 0;
	if (s->kind == PLAN_PRIM)
		prim_describe(&d->info.plan->prims[s->index], d->info.threads, out);
}

bool device_time_links(Device *d, LinkTime *t, int n, Fail *f)
{
	(void)d, (void)t, (void)n;
	return fail(f, EXIT_FILES, "a processor's memory is the host's: there are no copies between them to time");
}

int64_t device_resident(const Device *d)
{
	return arena_resident(&d->arena);
}

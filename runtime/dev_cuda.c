/* An NVIDIA card as a device: opening, the arena, modules. Functions and calls are in dev_cuda_run.c.
 *
 * Method. The card's primary context is used, since cuBLAS works in it. The order of opening is that of
 * what can be wrong: driver, card, architecture, kernels, memory. One cuMemAlloc holds the arena and,
 * behind it, the env that kernels read. A cubin runs on its architecture and on later ones of the same
 * generation; on any other card the driver compiles the module's PTX.
 *
 * Invariants. After device_prepare nothing allocates, on the host or on the card. */
#include "dev_cuda.h"

#include "memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

void device_process(char **argv)
{
	(void)argv;
}

/* ---- the card --------------------------------------------------------------------------------- */

static bool choose_card(Device *d, int number, Fail *f)
{
	int cards = 0;
	char name[100] = "";
	if (!CUDA(d, f, "counting cards", DeviceGetCount, &cards))
		return false;
	if (cards == 0)
		return fail(f, EXIT_FILES, "the NVIDIA driver finds no card");
	if (number >= cards)
		return fail(f, EXIT_FILES, "--device %d: there %s %d card%s here, counted from 0", number,
			    cards == 1 ? "is" : "are", cards, cards == 1 ? "" : "s");
	int major = 0, minor = 0, cache = 0;
	if (!CUDA(d, f, "the card", DeviceGet, &d->card, number) ||
	    !CUDA(d, f, "the card's name", DeviceGetName, name, (int)sizeof name, d->card) ||
	    !CUDA(d, f, "the card's architecture", DeviceGetAttribute, &major, CU_CAPABILITY_MAJOR,
		  d->card) ||
	    !CUDA(d, f, "the card's architecture", DeviceGetAttribute, &minor, CU_CAPABILITY_MINOR, d->card) ||
	    !CUDA(d, f, "the card's cache", DeviceGetAttribute, &cache, CU_CACHE_BYTES, d->card))
		return false;
	d->info.cache_bytes = cache;
	snprintf(d->info.name, sizeof d->info.name, "%s, sm_%d%d", name, major, minor);
	return true;
}

/* "sm_90" as 90; 0 where it is none. */
static int arch_number(const char *arch)
{
	return arch && !strncmp(arch, "sm_", 3) ? atoi(arch + 3) : 0;
}

/* ---- kernels ---------------------------------------------------------------------------------- */

static bool cannot_load(Device *d, const char *what, CuResult e, const char *log, Fail *f)
{
	char text[160];
	const char *arch = d->info.plan->arch;
	fail(f, EXIT_FILES, "the kernels cannot be loaded (%s for %s, on %s): cuModuleLoadDataEx: %s", what,
	     arch, d->info.name, cuda_error(&d->api, e, text));
	if (e == CU_UNSUPPORTED_PTX)
		fail_add(f, "; the driver is older than the CUDA that compiled them: install a later driver");
	if (log[0])
		fail_add(f, "\n%s", log);
	return false;
}

/* The PTX of a module as text: its own, or from malloc. */
static const char *unpack(const PlanModule *m, Fail *f)
{
	uLongf bytes = (uLongf)m->ptx_bytes;
	if (m->ptx_packed_bytes == 0)
		return (const char *)m->ptx;
	unsigned char *text = calloc((size_t)m->ptx_bytes + 1, 1);
	if (!text) {
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	if (uncompress(text, &bytes, m->ptx, (uLong)m->ptx_packed_bytes) != Z_OK || bytes != (uLongf)m->ptx_bytes) {
		fail(f, EXIT_FILES, "the kernels' PTX is damaged: this trainer is not as dlc wrote it");
		free(text);
		return NULL;
	}
	return (const char *)text;
}

static bool load_module(Device *d, const PlanModule *m, bool fits, CuModule *out, Fail *f)
{
	char log[1024] = "";
	int option[] = { CU_JIT_LOG, CU_JIT_LOG_BYTES };
	void *value[] = { log, (void *)(uintptr_t)(sizeof log - 1) };
	const char *arch = d->info.plan->arch;
	const char *head = strrchr(d->info.name, ' ') + 1;
	if (!fits && !m->ptx)
		return fail(f, EXIT_FILES,
			    "this trainer was compiled for %s, the card is %s: compile with dlc --arch %s",
			    arch, d->info.name, head);
	const char *text = fits ? NULL : unpack(m, f);
	if (!fits && !text)
		return false;
	CuResult e = d->api.ModuleLoadDataEx(out, fits ? (const void *)m->cubin : text, 2, option, value);
	if (text && m->ptx_packed_bytes)
		free((void *)(uintptr_t)text);
	return !e || cannot_load(d, fits ? "a cubin" : "PTX", e, log, f);
}

static bool load_modules(Device *d, Fail *f)
{
	const Plan *plan = d->info.plan;
	int arch = arch_number(plan->arch), card = arch_number(strrchr(d->info.name, ' ') + 1);
	if (arch == 0)
		return fail(f, EXIT_BUG, "the plan names no architecture");
	if (card < arch)
		return fail(f, EXIT_FILES,
			    "this trainer was compiled for %s, the card is %s: compile with dlc --arch sm_%d",
			    plan->arch, d->info.name, card);
	d->module = calloc((size_t)plan->nmodules + 1, sizeof(CuModule));
	if (!d->module)
		return fail(f, EXIT_FILES, "out of memory");
	/* sm_90a runs on 9.0 alone. */
	bool exact = plan->arch[strlen(plan->arch) - 1] > '9';
	bool fits = exact ? arch == card : arch / 10 == card / 10;
	for (int i = 0; i < plan->nmodules; i++)
		if (!load_module(d, &plan->modules[i], fits, &d->module[i], f))
			return false;
	return true;
}

/* ---- memory ----------------------------------------------------------------------------------- */

bool cuda_measure(Device *d, Fail *f)
{
	size_t free_bytes = 0, total = 0;
	if (!CUDA(d, f, "the card's memory", MemGetInfo, &free_bytes, &total))
		return false;
	int64_t arena = d->arena ? d->info.plan->arena_bytes : 0;
	int64_t beside = (int64_t)(total - free_bytes) - arena;
	d->info.context_bytes = beside > 0 ? beside : 0;
	return true;
}

static bool fill_pattern(Device *d, Fail *f)
{
	int64_t bytes = d->info.plan->arena_bytes;
	for (int64_t at = 0; at < bytes; at += DEVICE_CHUNK) {
		int64_t n = bytes - at < DEVICE_CHUNK ? bytes - at : DEVICE_CHUNK;
		pattern_fill(d->piece, at, n);
		if (!CUDA(d, f, "the pattern", MemcpyHtoDAsync, d->arena + (CuPtr)at, d->piece, (size_t)n,
			  d->stream) ||
		    !CUDA(d, f, "the pattern", StreamSynchronize, d->stream))
			return false;
	}
	return true;
}

/* Values that wait in host memory, and the streams of their copies. Pinned pages are there from now on: all can be had, or none. */
static bool get_host(Device *d, Fail *f)
{
	size_t bytes = (size_t)d->info.plan->host_bytes;
	void *host = NULL;
	char text[32];
	if (bytes == 0)
		return true;
	CuResult e = d->api.MemHostAlloc(&host, bytes, 0);
	if (e == CU_OUT_OF_MEMORY)
		return fail(f, EXIT_FILES,
			    "the %s (%zu bytes) of pinned host memory where values wait cannot be had; compile with a smaller "
			    "--host-mem, or --no-offload", memory_text((int64_t)bytes, text), bytes);
	if (!cuda_ok(&d->api, e, "cuMemHostAlloc", "host memory where values wait", f))
		return false;
	d->host = host;
	d->info.host_bytes = (int64_t)bytes;
	return CUDA(d, f, "the stream of copies", StreamCreate, &d->link[0], CU_STREAM_APART) &&
	       CUDA(d, f, "the stream of copies", StreamCreate, &d->link[1], CU_STREAM_APART) &&
	       CUDA(d, f, "an event", EventCreate, &d->reached, CU_EVENT_UNTIMED);
}

static bool get_arena(Device *d, Fail *f)
{
	size_t free_bytes = 0, total = 0, bytes = (size_t)d->info.plan->arena_bytes;
	size_t whole = (bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
	char text[3][32];
	if (!CUDA(d, f, "the card's memory", MemGetInfo, &free_bytes, &total))
		return false;
	if (whole + CUDA_ENV_BYTES > free_bytes)
		return fail(f, EXIT_FILES,
			    "the arena of %s (%" PRId64 " bytes) does not fit: %s has %s (%zu bytes) free of %s; "
			    "compile with a smaller --mem-budget, or free the card of other programs",
			    memory_text((int64_t)bytes, text[0]), (int64_t)bytes, d->info.name,
			    memory_text((int64_t)free_bytes, text[1]), free_bytes,
			    memory_text((int64_t)total, text[2]));
	if (!CUDA(d, f, "the arena", MemAlloc, &d->arena, whole + CUDA_ENV_BYTES))
		return false;
	d->env = d->arena + whole;
	void *piece = NULL;
	if (!CUDA(d, f, "host memory for copies", MemHostAlloc, &piece, DEVICE_CHUNK, 0))
		return false;
	d->piece = piece;
	if (!CUDA(d, f, "the arena", MemsetD8Async, d->arena, 0, whole + CUDA_ENV_BYTES, d->stream) ||
	    !CUDA(d, f, "the arena", StreamSynchronize, d->stream))
		return false;
	return !d->info.check_memory || fill_pattern(d, f);
}

/* ---- opening ---------------------------------------------------------------------------------- */

static bool open_parts(Device *d, const Plan *plan, const DeviceOptions *o, Fail *f)
{
	d->info = (DeviceInfo){ .plan = plan,
				.threads = 1,
				.calls = DEVICE_CALLS,
				.check_memory = o->check_memory };
	d->times = o->times;
	if (plan->version != PLAN_VERSION)
		return fail(f, EXIT_BUG, "the plan has version %d, this runtime reads %d",
			    plan->version, PLAN_VERSION);
	if (strcmp(plan->target, "cuda"))
		return fail(f, EXIT_BUG, "the plan is for '%s', this runtime is for CUDA", plan->target);
	d->func = calloc((size_t)plan->nfuncs + 1, sizeof *d->func);
	if (!d->func)
		return fail(f, EXIT_FILES, "out of memory");
	return cuda_open(&d->api, f) && choose_card(d, o->number, f) &&
	       CUDA(d, f, "the card's context", DevicePrimaryCtxRetain, &d->context, d->card) &&
	       CUDA(d, f, "the card's context", CtxSetCurrent, d->context) &&
	       CUDA(d, f, "the stream", StreamCreate, &d->stream, CU_STREAM_APART) &&
	       load_modules(d, f) && get_arena(d, f) && get_host(d, f) && cuda_measure(d, f);
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

static void close_context(Device *d)
{
	const CudaApi *api = &d->api;
	if (d->stream)
		api->StreamSynchronize(d->stream);
	for (int i = 0; i < d->info.plan->nfuncs; i++)
		cuda_func_free(d, &d->func[i]);
	cublas_lib_close(d->cublas);
	for (int i = 0; d->module && i < d->info.plan->nmodules; i++)
		if (d->module[i])
			api->ModuleUnload(d->module[i]);
	if (d->piece)
		api->MemFreeHost(d->piece);
	if (d->host)
		api->MemFreeHost(d->host);
	for (int i = 0; i < 2; i++)
		if (d->link[i])
			api->StreamDestroy(d->link[i]);
	if (d->reached)
		api->EventDestroy(d->reached);
	if (d->arena)
		api->MemFree(d->arena);
	if (d->stream)
		api->StreamDestroy(d->stream);
	api->DevicePrimaryCtxRelease(d->card);
}

void device_close(Device *d)
{
	if (!d)
		return;
	if (d->context)
		close_context(d);
	free(d->module);
	free(d->func);
	free(d);
}

const DeviceInfo *device_info(const Device *d)
{
	return &d->info;
}

/* ---- the arena -------------------------------------------------------------------------------- */

const void *device_view(Device *d, int64_t offset, int64_t bytes, Fail *f)
{
	if (!CUDA(d, f, "reading the arena", MemcpyDtoHAsync, d->piece, d->arena + (CuPtr)offset,
		  (size_t)bytes, d->stream) ||
	    !CUDA(d, f, "reading the arena", StreamSynchronize, d->stream))
		return NULL;
	return d->piece;
}

bool device_read(Device *d, int64_t offset, int64_t bytes, void *to, Fail *f)
{
	for (int64_t at = 0; at < bytes; at += DEVICE_CHUNK) {
		int64_t n = bytes - at < DEVICE_CHUNK ? bytes - at : DEVICE_CHUNK;
		const void *p = device_view(d, offset + at, n, f);
		if (!p)
			return false;
		memcpy((char *)to + at, p, (size_t)n);
	}
	return true;
}

bool device_write(Device *d, int64_t offset, int64_t bytes, const void *from, Fail *f)
{
	for (int64_t at = 0; at < bytes; at += DEVICE_CHUNK) {
		int64_t n = bytes - at < DEVICE_CHUNK ? bytes - at : DEVICE_CHUNK;
		memcpy(d->piece, (const char *)from + at, (size_t)n);
		if (!CUDA(d, f, "writing the arena", MemcpyHtoDAsync, d->arena + (CuPtr)(offset + at),
			  d->piece, (size_t)n, d->stream) ||
		    !CUDA(d, f, "writing the arena", StreamSynchronize, d->stream))
			return false;
	}
	return true;
}

void *device_host_pointer(const Device *d, int64_t offset)
{
	(void)d, (void)offset;
	return NULL;
}

/* From the end down: the highest piece that has changed is as a rule the first one looked at. */
bool device_high_water(Device *d, int64_t *bytes, Fail *f)
{
	int64_t whole = d->info.plan->arena_bytes;
	*bytes = 0;
	for (int64_t at = (whole - 1) / DEVICE_CHUNK * DEVICE_CHUNK; at >= 0; at -= DEVICE_CHUNK) {
		int64_t n = whole - at < DEVICE_CHUNK ? whole - at : DEVICE_CHUNK;
		const void *p = device_view(d, at, n, f);
		if (!p)
			return false;
		int64_t end = pattern_end(p, at, n);
		if (end > 0) {
			*bytes = at + end;
			return true;
		}
	}
	return true;
}

int64_t device_resident(const Device *d)
{
	return d->info.plan->arena_bytes;
}

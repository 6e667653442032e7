/* Operations: made at a call, done later.
 *
 * Nothing runs before someone waits for it, so that a host that does not wait is found out: the source of a copy from pinned memory must
 * be the same when the copy runs as at the call, and pinned memory that a copy will fill holds a pattern until then. Copies from
 * pageable memory are staged at the call, as drivers do. */
#include "queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PATTERN = 0xa5 };

Device sim_device = {.null_stream = {.blocking = true}};

Op *op_new(OpKind kind)
{
	Op *op = calloc(1, sizeof *op);
	if (!op)
		abort();
	op->kind = kind;
	return op;
}

void op_free(Op *op)
{
	if (op->kind == OP_LAUNCH)
		launch_free(&op->launch);
	if (op->exec)
		graph_exec_release(op->exec);
	free(op->staged);
	free(op->ctx);
	free(op->hashes);
	free(op->deps);
	free(op);
}

uint64_t hash_of(uintptr_t p, size_t n)
{
	const unsigned char *b = (const unsigned char *)p;
	uint64_t h = 1469598103934665603u, word;
	for (; n >= 8; n -= 8, b += 8) {
		memcpy(&word, b, 8);
		h = (h ^ word) * 1099511628211u;
		h ^= h >> 29;
	}
	while (n--)
		h = (h ^ *b++) * 1099511628211u;
	return h;
}

/* Is [p, p+n) read by a copy that waits? */
static bool awaited(uintptr_t p, size_t n)
{
	for (const SimStream *s = &sim_device.null_stream; s; s = s == &sim_device.null_stream ? sim_device.streams : s->next)
		for (const Op *o = s->head; o; o = o->next) {
			if (o->kind == OP_COPY && o->copy == COPY_IN && !o->staged && o->from < p + n && p < o->from + o->bytes)
				return true;
			for (int i = 0; o->kind == OP_GRAPH && i < o->exec->graph->n; i++) {
				const Op *c = o->exec->graph->nodes[i];
				if (c->kind == OP_COPY && c->copy == COPY_IN && c->from < p + n && p < c->from + c->bytes)
					return true;
			}
		}
	return false;
}

void op_announce(Op *op)
{
	if (op->kind == OP_GRAPH) {
		graph_announce(op);
		return;
	}
	if (op->kind != OP_COPY)
		return;
	op->writes = sim_device.host_writes;
	if (op->copy == COPY_IN && !op->staged) {
		op->hash = hash_of(op->from, op->bytes);
		op->hashed = true;
	}
	if (op->copy == COPY_OUT && pinned_has((const void *)op->to, op->bytes) && !awaited(op->to, op->bytes))
		memset((void *)op->to, PATTERN, op->bytes);
}

/* DL_SIM_LINK=OUT,IN,DELAY[,WITHIN]: events read a clock that stands still but for copies, which take DELAY nanoseconds and their bytes at a
 * rate in bytes a second each way (within the device: no delay), and one microsecond for any other operation. */
static double made_up_seconds(const Op *op, const char *link)
{
	double out = 0, in = 0, delay = 0, within = 0;
	sscanf(link, "%lf,%lf,%lf,%lf", &out, &in, &delay, &within);
	double rate = op->copy == COPY_OUT ? out : op->copy == COPY_IN ? in : within;
	if (op->kind == OP_RECORD || op->kind == OP_WAIT || op->kind == OP_GRAPH)
		return 0;
	if (op->kind != OP_COPY || rate <= 0)
		return 1e-6;
	return (op->copy == COPY_WITHIN ? 0 : 1e-9 * delay) + (double)op->bytes / rate;
}

/* Seconds on the clock of events. */
static double clock_now(void)
{
	struct timespec t;
	if (getenv("DL_SIM_LINK"))
		return sim_device.clock;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static CUresult run_copy(const Op *op)
{
	report_count(op->copy == COPY_IN ? "bytes_to_device" : op->copy == COPY_OUT ? "bytes_to_host" : "bytes_within_device", op->bytes);
	if (op->hashed && op->writes == sim_device.host_writes && hash_of(op->from, op->bytes) != op->hash)
		return violation_host(CUDA_ERROR_LAUNCH_FAILED, "copy of %zu bytes to the device: the host has changed its source after the call and before the copy ran", op->bytes);
	if (op->copy != COPY_OUT && !memory_range(op->to, op->bytes))
		return violation_host(CUDA_ERROR_ILLEGAL_ADDRESS, "copy of %zu bytes to memory that has been freed", op->bytes);
	if (op->copy != COPY_IN && !memory_range(op->from, op->bytes))
		return violation_host(CUDA_ERROR_ILLEGAL_ADDRESS, "copy of %zu bytes from memory that has been freed", op->bytes);
	memmove((void *)op->to, op->staged ? op->staged : (const unsigned char *)op->from, op->bytes);
	if (op->copy == COPY_OUT) {
		sim_device.host_writes++;
		return CUDA_SUCCESS;
	}
	Region *g = memory_range(op->to, op->bytes);
	if (op->copy == COPY_WITHIN) {
		const Region *from = memory_range(op->from, op->bytes);
		memmove(g->written + (op->to - g->base), from->written + (op->from - from->base), op->bytes);
	} else {
		memory_mark(g, op->to, op->bytes);
	}
	return CUDA_SUCCESS;
}

static CUresult run_fill(const Op *op)
{
	Region *g = memory_range(op->to, op->bytes);
	if (!g)
		return violation_host(CUDA_ERROR_ILLEGAL_ADDRESS, "memset of %zu bytes of memory that has been freed", op->bytes);
	for (size_t i = 0; i < op->bytes; i += (size_t)op->width)
		memcpy((unsigned char *)op->to + i, &op->value, (size_t)op->width);
	/* Zeroing all of the arena at the start is no write, or nothing unwritten could be found in it. */
	if (op->to != g->base || op->bytes != g->bytes || g->kind != RG_DEVICE)
		memory_mark(g, op->to, op->bytes);
	return CUDA_SUCCESS;
}

CUresult op_run(Op *op)
{
	const char *link = getenv("DL_SIM_LINK");
	if (link)
		sim_device.clock += made_up_seconds(op, link);
	switch (op->kind) {
	case OP_LAUNCH:
		report_count("kernels", 1);
		return launch_run(&op->launch);
	case OP_COPY: return run_copy(op);
	case OP_FILL: return run_fill(op);
	case OP_WORK:
		report_count("library_calls", 1);
		return op->work(op->ctx);
	case OP_HOST:
		op->fn((void *)op->from);
		sim_device.host_writes++;
		return CUDA_SUCCESS;
	case OP_RECORD:
		op->event->time = 1e3 * clock_now();
		return CUDA_SUCCESS;
	case OP_WAIT: return stream_run(op->stream, op->seq);
	case OP_GRAPH: return graph_run(op);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- for libraries that queue work of their own ---- */

CUresult dl_sim_enqueue(CUstream s, SimWork work, const void *ctx, size_t bytes)
{
	Op *op = op_new(OP_WORK);
	op->work = work;
	op->ctx = malloc(bytes);
	if (!op->ctx)
		abort();
	memcpy(op->ctx, ctx, bytes);
	if (sim_device.dead) {
		op_free(op);
		return sim_device.dead;
	}
	return stream_add(stream_of(s), op);
}

CUresult dl_sim_violation(CUresult code, const char *text)
{
	return violation_host(code, "%s", text);
}

CUresult dl_sim_check_range(CUdeviceptr p, size_t bytes, int how, const char *what)
{
	char where[200];
	Region *g = memory_range(p, bytes);
	if (!g) {
		describe_address(where, sizeof where, p);
		return violation_host(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: %zu bytes at %s, out of bounds", what, bytes, where);
	}
	if (how == ACCESS_WRITE) {
		memory_mark(g, p, bytes);
		return CUDA_SUCCESS;
	}
	int64_t at = sim_checks_all() ? memory_unwritten(g, p, bytes) : -1;
	if (at < 0)
		return CUDA_SUCCESS;
	describe_address(where, sizeof where, p + (uint64_t)at);
	return violation_host(CUDA_ERROR_ILLEGAL_ADDRESS, "%s: reads memory never written, at %s (a memset of a whole allocation does not count)", what, where);
}

/* Functions on an NVIDIA card: their graphs, and calls.
 *
 * Method. The steps of a function are cut into segments: what lies before, between and behind loops, and
 * the bodies of loops. A run of a segment is
 *
 *     env: host -> card | inputs: host -> card | kernels, products ... | scalar outputs: card -> host
 *
 * all on one stream. It takes its env and inputs from a slot of pinned host memory and leaves its scalar
 * outputs there. Copies of values that wait in host memory are on two more streams, one each way: a copy is
 * behind all that the first one has been given when it begins, and the first one waits for it where it
 * ends; the steps between go on beside it. Each segment has two slots, each with a CUDA graph, captured once by device_prepare; so a
 * call fills a slot while the card still works on the other, and issues one graph a segment, one a trip.
 * It waits only for a slot that is still in use: that of two runs ago. Nothing else in a call
 * synchronises, allocates or asks the card anything.
 *
 * With check_nan the same steps are issued one by one, each waited for and its result looked at; with
 * times they are issued with an event between each two.
 *
 * Invariants. What a call does depends on plan, seed, step and samples alone. Results of check_nan and of
 * times are those of the graphs: the same kernels in the same order. Outputs are outside loops, so a
 * slot of such a segment belongs to one call. */
#include "dev_cuda.h"

#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t aligned(int64_t n)
{
	return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

/* What failed in a step, with the line that it is from. */
static bool step_failed(const Device *d, const PlanStep *s, const char *call, CuResult e, Fail *f)
{
	char text[160];
	return fail(f, EXIT_BUG, "%s failed in '%s'%s%s%s: %s: this is a bug in dlc", call, s->name,
		    s->source[0] ? " (" : "", s->source, s->source[0] ? ")" : "",
		    cuda_error(&d->api, e, text));
}

/* ---- segments --------------------------------------------------------------------------------- */

static bool in_segment(const PlanStep *s)
{
	return s->kind != PLAN_LOOP && s->kind != PLAN_END;
}

/* Calls of this with segment NULL count. */
static int cut_segments(const PlanFunc *func, CudaSegment *segment)
{
	int n = 0, depth = 0;
	for (int i = 0; i < func->nsteps; i++) {
		const PlanStep *s = &func->steps[i];
		depth += s->kind == PLAN_LOOP;
		depth -= s->kind == PLAN_END;
		if (!in_segment(s))
			continue;
		if (i == 0 || !in_segment(s - 1)) {
			if (segment)
				segment[n] = (CudaSegment){ .first = i, .in_loop = depth > 0 };
			n++;
		}
		if (segment)
			segment[n - 1].count++;
	}
	return n;
}

/* The segment that begins with a step. */
static CudaSegment *segment_at(const CudaFunc *p, int step)
{
	int i = 0;
	while (p->segment[i].first != step)
		i++;
	return &p->segment[i];
}

/* Most samples that a step sees. */
static int64_t most_samples(const PlanFunc *func, int step)
{
	int64_t samples[RUN_LOOP_DEPTH + 1] = { func->batch };
	int depth = 0;
	for (int i = 0; i < step; i++)
		if (func->steps[i].kind == PLAN_LOOP)
			samples[++depth] = func->loops[func->steps[i].index].batch;
		else if (func->steps[i].kind == PLAN_END)
			depth--;
	return samples[depth];
}

static int64_t transfer_bytes(const Device *d, const PlanFunc *func, int step)
{
	const PlanStep *s = &func->steps[step];
	if (s->kind == PLAN_INPUT)
		return plan_input_sample_bytes(&d->info.plan->inputs[s->index]) *
		       most_samples(func, step);
	if (s->kind == PLAN_OUTPUT && func->outputs[s->index].ndim == 0)
		return plan_output_bytes(&func->outputs[s->index]);
	return 0;
}

/* Places of inputs and outputs in the slots of each segment, and the host memory of all. */
static bool make_slots(Device *d, const PlanFunc *func, CudaFunc *p, Fail *f)
{
	int64_t all = 0;
	for (int i = 0; i < func->nsteps; i++)
		p->place[i] = -1;
	for (int pass = 0; pass < 2; pass++) { /* sizes, then addresses */
		int64_t at = 0;
		for (int i = 0; i < p->nsegments; i++) {
			CudaSegment *g = &p->segment[i];
			int64_t bytes = CUDA_ENV_BYTES;
			for (int k = g->first; k < g->first + g->count; k++) {
				int64_t n = transfer_bytes(d, func, k);
				if (n > 0)
					p->place[k] = bytes;
				bytes += aligned(n);
			}
			for (int s = 0; s < DEVICE_CALLS; s++, at += bytes)
				g->slot[s].host = pass ? p->host + at : NULL;
		}
		all = at;
		void *host = NULL;
		if (pass == 0 && !CUDA(d, f, "host memory for inputs and outputs", MemHostAlloc, &host,
				       (size_t)all + 1, 0))
			return false;
		p->host = pass == 0 ? host : p->host;
	}
	return true;
}

/* ---- issuing ---------------------------------------------------------------------------------- */

static bool issue_kernels(Device *d, const PlanFunc *func, const CudaFunc *p, int step, Fail *f)
{
	const PlanStep *s = &func->steps[step];
	CuPtr arena = d->arena, env = d->env;
	/* The driver copies what these point to; it writes to none of them. */
	void *arguments[] = { &arena, (void *)(uintptr_t)s->off, &env };
	for (int i = 0; i < s->nlaunch; i++) {
		const PlanLaunch *l = &s->launch[i];
		CuResult e = d->api.LaunchKernel(p->kernel[p->first_kernel[step] + i], l->grid[0],
						 l->grid[1], l->grid[2], l->block, 1, 1,
						 l->shared_bytes, d->stream, arguments, NULL);
		if (e)
			return step_failed(d, s, "cuLaunchKernel", e, f);
	}
	return true;
}

/* The last byte of a workspace counts as written: what a library does with it is the library's affair. */
static bool mark_workspace(Device *d, const PlanStep *s, Fail *f)
{
	int64_t bytes = s->kind == PLAN_PRIM && !s->work_bytes ? d->info.plan->prims[s->index].work_bytes
							       : s->work_bytes;
	if (!d->info.check_memory || !s->nwork || bytes <= 0)
		return true;
	int64_t last = s->off[s->noff - 1] + bytes - 1;
	return CUDA(d, f, "the mark of a workspace", MemsetD8Async, d->arena + (CuPtr)last,
		    (unsigned char)~pattern_byte(last), 1, d->stream);
}

/* A copy on a stream of its own, behind the steps so far. */
static bool begin_copy(Device *d, const CudaFunc *p, const PlanStep *s, Fail *f)
{
	bool in = s->kind == PLAN_FETCH;
	CuStream link = d->link[in];
	CuPtr at = d->arena + (CuPtr)s->off[0];
	unsigned char *host = d->host + s->off[1];
	size_t n = (size_t)s->copy_bytes;
	return CUDA(d, f, s->name, EventRecord, d->reached, d->stream) &&
	       CUDA(d, f, s->name, StreamWaitEvent, link, d->reached, 0) &&
	       (in ? CUDA(d, f, s->name, MemcpyHtoDAsync, at, host, n, link)
		   : CUDA(d, f, s->name, MemcpyDtoHAsync, host, at, n, link)) &&
	       CUDA(d, f, s->name, EventRecord, p->copied[s->index], link);
}

static bool issue_step(Device *d, const PlanFunc *func, const CudaFunc *p, int step, const CudaSlot *slot,
		       int64_t samples, Fail *f)
{
	const PlanStep *s = &func->steps[step];
	LtStatus e;
	if (!mark_workspace(d, s, f))
		return false;
	switch (s->kind) {
	case PLAN_KERNEL: return issue_kernels(d, func, p, step, f);
	case PLAN_PRIM:
		e = cublas_run(d->cublas, p->product[step], d->stream);
		return !e || fail(f, EXIT_BUG, "cublasLtMatmul failed in '%s' (%s): %s, %s", s->name,
				  s->source, cublas_error(e), cublas_describe(p->product[step]));
	case PLAN_INPUT:
		return CUDA(d, f, s->name, MemcpyHtoDAsync, d->arena + (CuPtr)s->off[0],
			    slot->host + p->place[step],
			    (size_t)(plan_input_sample_bytes(&d->info.plan->inputs[s->index]) * samples),
			    d->stream);
	case PLAN_OUTPUT:
		return p->place[step] < 0 ||
		       CUDA(d, f, s->name, MemcpyDtoHAsync, slot->host + p->place[step],
			    d->arena + (CuPtr)s->off[0],
			    (size_t)plan_output_bytes(&func->outputs[s->index]), d->stream);
	case PLAN_SEND:
	case PLAN_FETCH: return begin_copy(d, p, s, f);
	case PLAN_SENT:
	case PLAN_FETCHED: return CUDA(d, f, s->name, StreamWaitEvent, d->stream, p->copied[s->index], 0);
	default: return true;
	}
}

static bool issue_env(Device *d, const CudaSlot *slot, Fail *f)
{
	return CUDA(d, f, "the env of kernels", MemcpyHtoDAsync, d->env, slot->host, sizeof(PlanEnv),
		    d->stream);
}

/* ---- preparing -------------------------------------------------------------------------------- */

static bool find_kernel(Device *d, const PlanStep *s, const PlanLaunch *l, CuFunction *out, Fail *f)
{
	int most = 0, registers;
	CuResult e = d->api.ModuleGetFunction(out, d->module[l->module], l->symbol);
	if (e)
		return step_failed(d, s, "cuModuleGetFunction", e, f);
	/* Loads it now: drivers put that off until its first launch. */
	e = d->api.FuncGetAttribute(&registers, CU_FUNC_REGISTERS, *out);
	if (e)
		return step_failed(d, s, "cuFuncGetAttribute", e, f);
	if (l->shared_bytes <= 48 << 10)
		return true;
	if (!CUDA(d, f, "shared memory", DeviceGetAttribute, &most, CU_SHARED_OPTIN, d->card))
		return false;
	if (l->shared_bytes > (uint32_t)most)
		return fail(f, EXIT_FILES, "'%s' needs %u bytes of shared memory, %s has %d", s->name,
			    l->shared_bytes, d->info.name, most);
	e = d->api.FuncSetAttribute(*out, CU_FUNC_DYNAMIC_SHARED, (int)l->shared_bytes);
	return !e || step_failed(d, s, "cuFuncSetAttribute", e, f);
}

static bool find_kernels(Device *d, const PlanFunc *func, CudaFunc *p, Fail *f)
{
	int n = 0;
	for (int i = 0; i < func->nsteps; i++)
		for (int k = 0; k < func->steps[i].nlaunch; k++) {
			if (k == 0)
				p->first_kernel[i] = n;
			if (!find_kernel(d, &func->steps[i], &func->steps[i].launch[k], &p->kernel[n++], f))
				return false;
		}
	return true;
}

static bool bind_products(Device *d, const PlanFunc *func, CudaFunc *p, Fail *f)
{
	for (int i = 0; i < func->nsteps; i++) {
		const PlanStep *s = &func->steps[i];
		if (s->kind != PLAN_PRIM)
			continue;
		if (!d->cublas && !(d->cublas = cublas_lib_open(f)))
			return false;
		p->product[i] = cublas_bind(d->cublas, &d->info.plan->prims[s->index], d->arena, s->off, f);
		if (!p->product[i]) {
			fail_add(f, " ('%s', %s)", s->name, s->source);
			return false;
		}
	}
	return true;
}

/* Relaxed: what the library loads of itself while its first product is captured is allowed. */
static bool capture(Device *d, const PlanFunc *func, const CudaFunc *p, const CudaSegment *g, CudaSlot *slot,
		    Fail *f)
{
	CuGraph graph = NULL;
	int64_t samples = most_samples(func, g->first);
	if (!CUDA(d, f, func->name, StreamBeginCapture, d->stream, CU_CAPTURE_RELAXED))
		return false;
	bool ok = issue_env(d, slot, f);
	for (int i = g->first; ok && i < g->first + g->count; i++)
		ok = issue_step(d, func, p, i, slot, samples, f);
	Fail *ending = f;
	Fail second = { 0 };
	if (!ok)
		ending = &second; /* the capture is ended, but the first failure is told */
	ok = CUDA(d, ending, func->name, StreamEndCapture, d->stream, &graph) && ok;
	ok = ok && CUDA(d, f, func->name, GraphInstantiate, &slot->graph, graph, 0) &&
	     CUDA(d, f, func->name, GraphUpload, slot->graph, d->stream);
	if (graph)
		d->api.GraphDestroy(graph);
	return ok;
}

static bool make_graphs(Device *d, const PlanFunc *func, CudaFunc *p, Fail *f)
{
	for (; p->ncopies < func->ncopies; p->ncopies++)
		if (!CUDA(d, f, "an event", EventCreate, &p->copied[p->ncopies], CU_EVENT_UNTIMED))
			return false;
	for (int i = 0; i < p->nsegments; i++)
		for (int k = 0; k < DEVICE_CALLS; k++) {
			CudaSlot *slot = &p->segment[i].slot[k];
			if (!CUDA(d, f, "an event", EventCreate, &slot->done, CU_EVENT_UNTIMED) ||
			    !capture(d, func, p, &p->segment[i], slot, f))
				return false;
		}
	for (int k = 0; k < DEVICE_CALLS; k++)
		if (!CUDA(d, f, "an event", EventCreate, &p->ended[k], CU_EVENT_UNTIMED))
			return false;
	for (; p->mark && p->nmarks <= func->nsteps; p->nmarks++)
		if (!CUDA(d, f, "an event", EventCreate, &p->mark[p->nmarks], CU_EVENT_TIMED))
			return false;
	return CUDA(d, f, "graphs", StreamSynchronize, d->stream);
}

/* Outputs outside loops: see the invariants. */
static bool check_outputs(const PlanFunc *func, Fail *f)
{
	for (int i = 0, depth = 0; i < func->nsteps; i++) {
		depth += func->steps[i].kind == PLAN_LOOP;
		depth -= func->steps[i].kind == PLAN_END;
		if (depth > 0 && func->steps[i].kind == PLAN_OUTPUT)
			return fail(f, EXIT_BUG, "%s: an output in a loop", func->name);
	}
	return true;
}

bool device_prepare(Device *d, const PlanFunc *func, Fail *f)
{
	CudaFunc *p = &d->func[func - d->info.plan->funcs];
	size_t n = (size_t)func->nsteps + 1, launches = 1;
	if (p->segment)
		return true;
	if (!run_check(func, f) || !check_outputs(func, f))
		return false;
	for (int i = 0; i < func->nsteps; i++)
		launches += (size_t)func->steps[i].nlaunch;
	p->nsegments = cut_segments(func, NULL);
	p->segment = calloc((size_t)p->nsegments + 1, sizeof *p->segment);
	p->kernel = calloc(launches, sizeof(CuFunction));
	p->first_kernel = calloc(n, sizeof *p->first_kernel);
	p->product = calloc(n, sizeof(CublasCall *));
	p->place = calloc(n, sizeof *p->place);
	p->copied = calloc((size_t)func->ncopies + 1, sizeof(CuEvent));
	p->mark = d->times ? calloc(n, sizeof(CuEvent)) : NULL;
	if (!p->segment || !p->kernel || !p->first_kernel || !p->product || !p->place || !p->copied ||
	    (d->times && !p->mark))
		return fail(f, EXIT_FILES, "out of memory");
	cut_segments(func, p->segment);
	return find_kernels(d, func, p, f) && bind_products(d, func, p, f) && make_slots(d, func, p, f) &&
	       make_graphs(d, func, p, f) && cuda_measure(d, f);
}

void cuda_func_free(Device *d, CudaFunc *p)
{
	for (int i = 0; p->segment && i < p->nsegments; i++)
		for (int k = 0; k < DEVICE_CALLS; k++) {
			CudaSlot *slot = &p->segment[i].slot[k];
			if (slot->graph)
				d->api.GraphExecDestroy(slot->graph);
			if (slot->done)
				d->api.EventDestroy(slot->done);
		}
	for (int k = 0; k < DEVICE_CALLS; k++)
		if (p->ended[k])
			d->api.EventDestroy(p->ended[k]);
	for (int i = 0; i < p->ncopies; i++)
		d->api.EventDestroy(p->copied[i]);
	for (int i = 0; i < p->nmarks; i++)
		d->api.EventDestroy(p->mark[i]);
	if (p->host)
		d->api.MemFreeHost(p->host);
	free(p->segment);
	free(p->kernel);
	free(p->first_kernel);
	free(p->product);
	free(p->place);
	free(p->copied);
	free(p->mark);
	*p = (CudaFunc){ 0 };
}

/* ---- calls ------------------------------------------------------------------------------------ */

/* Waits for the slot's last run and fills it for this one. */
static bool fill_slot(Device *d, const CudaFunc *p, const CudaSegment *g, CudaSlot *slot, const RunAt *at,
		      const RunCall *call, Fail *f)
{
	if (slot->used && !CUDA(d, f, at->func->name, EventSynchronize, slot->done))
		return false;
	memcpy(slot->host, &at->env, sizeof at->env);
	for (int i = g->first; i < g->first + g->count; i++)
		if (at->func->steps[i].kind == PLAN_INPUT)
			call->source.read(call->source.ctx, at->func->steps[i].index, at->env.base,
					  at->samples, slot->host + p->place[i]);
	slot->used = true;
	return true;
}

/* Steps one by one, up to the first result that is not finite. */
static bool run_checked(Device *d, const CudaFunc *p, const CudaSegment *g, const CudaSlot *slot, RunAt *at,
			RunCall *call, Fail *f)
{
	if (!issue_env(d, slot, f))
		return false;
	for (at->step = g->first; at->step < g->first + g->count; at->step++) {
		const PlanStep *s = &at->func->steps[at->step];
		if (!issue_step(d, at->func, p, at->step, slot, at->samples, f))
			return false;
		CuResult e = d->api.StreamSynchronize(d->stream);
		if (e)
			return step_failed(d, s, s->nlaunch ? s->launch[0].symbol : "cuStreamSynchronize", e, f);
		if (!run_check_result(d, at, call, f))
			return false;
		if (call->bad.step)
			return true;
	}
	return true;
}

/* Steps with an event between each two; their times are added up at the end of the segment. */
static bool run_timed(Device *d, const CudaFunc *p, const CudaSegment *g, const CudaSlot *slot,
		      const RunAt *at, RunCall *call, Fail *f)
{
	int end = g->first + g->count;
	bool ok = issue_env(d, slot, f);
	for (int i = g->first; ok && i < end; i++)
		ok = CUDA(d, f, "a step's time", EventRecord, p->mark[i], d->stream) &&
		     issue_step(d, at->func, p, i, slot, at->samples, f);
	ok = ok && CUDA(d, f, "a step's time", EventRecord, p->mark[end], d->stream) &&
	     CUDA(d, f, at->func->name, EventSynchronize, p->mark[end]);
	for (int i = g->first; ok && i < end; i++) {
		float milliseconds = 0;
		ok = CUDA(d, f, "a step's time", EventElapsedTime, &milliseconds, p->mark[i], p->mark[i + 1]);
		call->times[i].seconds += 1e-3 * (double)milliseconds;
		call->times[i].runs++;
	}
	return ok;
}

static bool run_segment(Device *d, CudaFunc *p, CudaSegment *g, RunAt *at, RunCall *call, Fail *f)
{
	CudaSlot *slot = &g->slot[(g->in_loop ? g->runs++ : p->calls) % DEVICE_CALLS];
	if (!fill_slot(d, p, g, slot, at, call, f))
		return false;
	bool ok = call->check_nan ? run_checked(d, p, g, slot, at, call, f)
		  : call->times   ? run_timed(d, p, g, slot, at, call, f)
				  : CUDA(d, f, at->func->name, GraphLaunch, slot->graph, d->stream);
	at->step = g->first + g->count - 1;
	return ok && CUDA(d, f, at->func->name, EventRecord, slot->done, d->stream);
}

bool device_call(Device *d, const PlanFunc *func, RunCall *call, Fail *f)
{
	CudaFunc *p = &d->func[func - d->info.plan->funcs];
	RunAt at;
	call->bad.step = NULL;
	run_begin(&at, func, call, d->info.threads);
	while (!call->bad.step && run_next(&at))
		if (!run_segment(d, p, segment_at(p, at.step), &at, call, f))
			return false;
	return CUDA(d, f, func->name, EventRecord, p->ended[p->calls++ % DEVICE_CALLS], d->stream);
}

bool device_wait(Device *d, const PlanFunc *func, int back, Fail *f)
{
	const CudaFunc *p = &d->func[func - d->info.plan->funcs];
	return CUDA(d, f, func->name, EventSynchronize, p->ended[(p->calls - 1 - back) % DEVICE_CALLS]);
}

const void *device_scalar(const Device *d, const PlanFunc *func, int back, int output)
{
	const CudaFunc *p = &d->func[func - d->info.plan->funcs];
	int64_t call = p->calls - 1 - back;
	for (int i = 0; i < p->nsegments; i++) {
		const CudaSegment *g = &p->segment[i];
		for (int k = g->first; k < g->first + g->count; k++)
			if (func->steps[k].kind == PLAN_OUTPUT && func->steps[k].index == output)
				return g->slot[call % DEVICE_CALLS].host + p->place[k];
	}
	return p->host; /* no step makes it: bytes that mean nothing */
}

void device_describe(const Device *d, const PlanFunc *func, int step, char out[DEVICE_TEXT])
{
	const CublasCall *c = d->func[func - d->info.plan->funcs].product[step];
	snprintf(out, DEVICE_TEXT, "%s", c ? cublas_describe(c) : "");
}

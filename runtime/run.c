/* The interpreter of a plan.
 *
 * Method. A function is a list of steps over one arena. Kernels are called with the arena and their
 * offsets; library calls were bound to their addresses beforehand (one PrimCall a step); inputs are
 * asked from the caller's RunSource. PLAN_LOOP repeats what follows up to its PLAN_END, once a
 * micro-batch; micro-batches of a step may differ in size. An output is copied to the host table at its place in the order, since its bytes may
 * be reused by the next step.
 *
 * Invariants. run_call allocates nothing. Results depend on the plan, the seed, the step and the
 * samples alone. With check_memory each workspace that is handed out counts as written to its end:
 * what the library does with it is the library's affair, the planner has to grant it all. */
#include "run.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SCALAR_BYTES = 8, LOOP_DEPTH = 8 };

struct RunFunc {
	PrimCall **calls; /* one for each step; NULL where it is no library call */
	unsigned char (*scalars)[SCALAR_BYTES]; /* one for each output: the bytes of a scalar */
};

/* ---- types of the plan ---------------------------------------------------------------------- */

int64_t plan_dtype_bytes(PlanDType t)
{
	static const int8_t bytes[] = {
		[PD_NONE] = 0, [PD_BOOL] = 1, [PD_U8] = 1,   [PD_U16] = 2, [PD_I32] = 4,
		[PD_I64] = 8,  [PD_F16] = 2,  [PD_BF16] = 2, [PD_F32] = 4, [PD_F64] = 8
	};
	return bytes[t];
}

const char *plan_dtype_name(PlanDType t)
{
	static const char *const name[] = {
		[PD_NONE] = "none", [PD_BOOL] = "bool", [PD_U8] = "u8",   [PD_U16] = "u16",
		[PD_I32] = "i32",   [PD_I64] = "i64",   [PD_F16] = "f16", [PD_BF16] = "bf16",
		[PD_F32] = "f32",   [PD_F64] = "f64"
	};
	return name[t];
}

static int64_t elems(int ndim, const int64_t *dim)
{
	int64_t n = 1;
	for (int i = 0; i < ndim; i++)
		n *= dim[i];
	return n;
}

int64_t plan_output_bytes(const PlanOutput *o)
{
	return elems(o->ndim, o->dim) * plan_dtype_bytes(o->dtype);
}

int64_t plan_input_sample_bytes(const PlanInput *in)
{
	return elems(in->ndim, in->dim) * plan_dtype_bytes(in->dtype);
}

static double half_value(uint16_t h)
{
	int exponent = h >> 10 & 31, fraction = h & 1023;
	double v = exponent == 31  ? (fraction ? NAN : INFINITY)
		   : exponent == 0 ? ldexp(fraction, -24)
				   : ldexp(1024 + fraction, exponent - 25);
	return h & 0x8000 ? -v : v;
}

static double bf16_value(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float v;
	memcpy(&v, &bits, 4);
	return (double)v;
}

double plan_element(PlanDType t, const void *p, int64_t i)
{
	switch (t) {
	case PD_BOOL:
	case PD_U8: return ((const uint8_t *)p)[i];
	case PD_U16: return ((const uint16_t *)p)[i];
	case PD_I32: return ((const int32_t *)p)[i];
	case PD_I64: return (double)((const int64_t *)p)[i];
	case PD_F16: return half_value(((const uint16_t *)p)[i]);
	case PD_BF16: return bf16_value(((const uint16_t *)p)[i]);
	case PD_F32: return (double)((const float *)p)[i];
	case PD_F64: return ((const double *)p)[i];
	default: return NAN;
	}
}

/* A float is not finite when its exponent bits are all ones. Blocks are tested without branches,
 * then searched. */
#define FIRST_WITH_EXPONENT(TYPE, MASK)                                       \
	do {                                                                  \
		const TYPE *x = p;                                            \
		for (int64_t at = 0; at < n; at += 4096) {                    \
			int64_t end = at + 4096 < n ? at + 4096 : n, bad = 0; \
			for (int64_t i = at; i < end; i++)                    \
				bad += (x[i] & (TYPE)(MASK)) == (TYPE)(MASK); \
			for (int64_t i = at; bad && i < end; i++)             \
				if ((x[i] & (TYPE)(MASK)) == (TYPE)(MASK))    \
					return i;                             \
		}                                                             \
		return -1;                                                    \
	} while (0)

int64_t plan_first_nonfinite(PlanDType t, const void *p, int64_t n)
{
	switch (t) {
	case PD_F16: FIRST_WITH_EXPONENT(uint16_t, 0x7c00u);
	case PD_BF16: FIRST_WITH_EXPONENT(uint16_t, 0x7f80u);
	case PD_F32: FIRST_WITH_EXPONENT(uint32_t, 0x7f800000u);
	case PD_F64: FIRST_WITH_EXPONENT(uint64_t, 0x7ff0000000000000u);
	default: return -1;
	}
}

const PlanSetting *plan_setting(const PlanSetting *s, int n, const char *key)
{
	for (int i = 0; i < n; i++)
		if (strcmp(s[i].key, key) == 0)
			return &s[i];
	return NULL;
}

/* ---- opening -------------------------------------------------------------------------------- */

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

bool run_open(Run *r, const Plan *plan, int threads, bool check_memory, Fail *f)
{
	*r = (Run){ .plan = plan, .threads = threads, .check_memory = check_memory };
	if (plan->version != PLAN_VERSION)
		return fail(f, EXIT_BUG, "the plan has version %d, this runtime reads %d",
			    plan->version, PLAN_VERSION);
	if (threads < 1 || threads > plan->threads)
		return fail(
			f, EXIT_FILES,
			"%d threads asked for, but the plan's workspaces are for 1 to %d (compile with more: dlc --threads %d)",
			threads, plan->threads, threads);
	if (!check_isa(plan, f))
		return false;
	char why[PRIM_WHY];
	if (!(r->lib = prim_open(threads, why)))
		return fail(f, EXIT_FILES, "%s", why);
	r->prepared = calloc((size_t)plan->nfuncs + 1, sizeof *r->prepared);
	if (!r->prepared || !arena_map(&r->arena, plan->arena_bytes, check_memory, f)) {
		run_close(r);
		return f->code ? false : fail(f, EXIT_FILES, "out of memory");
	}
	return true;
}

void run_close(Run *r)
{
	prim_close(r->lib);
	r->lib = NULL;
	for (int i = 0; r->prepared && i < r->plan->nfuncs; i++) {
		free(r->prepared[i].calls);
		free(r->prepared[i].scalars);
	}
	free(r->prepared);
	r->prepared = NULL;
	arena_unmap(&r->arena);
}

const PlanFunc *run_find(const Plan *plan, const char *name)
{
	for (int i = 0; i < plan->nfuncs; i++)
		if (strcmp(plan->funcs[i].name, name) == 0)
			return &plan->funcs[i];
	return NULL;
}

static RunFunc *prepared(const Run *r, const PlanFunc *func)
{
	return &r->prepared[func - r->plan->funcs];
}

bool run_prepare(Run *r, const PlanFunc *func, Fail *f)
{
	RunFunc *p = prepared(r, func);
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
		p->calls[i] =
			prim_bind(r->lib, &r->plan->prims[s->index], r->arena.base, s->off, why);
		if (!p->calls[i])
			return fail(f, EXIT_FILES, "%s: %s (%s)", func->name, why, s->name);
	}
	return true;
}

/* ---- running -------------------------------------------------------------------------------- */

static void copy_output(Run *r, const PlanFunc *func, const PlanStep *s, RunCall *call)
{
	const PlanOutput *o = &func->outputs[s->index];
	const unsigned char *from = r->arena.base + s->off[0];
	int64_t bytes = plan_output_bytes(o);
	if (o->ndim == 0)
		memcpy(prepared(r, func)->scalars[s->index], from, (size_t)bytes);
	else if (call->large && o == run_large_output(func))
		memcpy(call->large, from, (size_t)bytes);
}

/* The last byte of a workspace that is handed out (it is scratch at this moment) counts as written.
 */
static void mark_workspace(Run *r, const PlanStep *s)
{
	int64_t bytes = s->kind == PLAN_PRIM && !s->work_bytes ? r->plan->prims[s->index].work_bytes
							       : s->work_bytes;
	if (s->nwork && bytes > 0)
		arena_mark(&r->arena, s->off[s->noff - 1] + bytes - 1);
}

/* True while the step's first result is finite. */
static bool check_result(Run *r, const PlanStep *s, const PlanEnv *env, RunCall *call)
{
	int64_t size = plan_dtype_bytes(s->out_dtype);
	if (s->nout < 1 || !s->out_bytes || size == 0)
		return true;
	const void *p = r->arena.base + s->off[s->noff - s->nout - s->nwork];
	int64_t at = plan_first_nonfinite(s->out_dtype, p, s->out_bytes[0] / size);
	if (at < 0)
		return true;
	call->bad = (RunBad){ .step = s,
			      .micro = env->micro,
			      .element = at,
			      .value = plan_element(s->out_dtype, p, at) };
	return false;
}

/* One step that is not a loop, for `samples` samples; false after a failure. */
static bool run_step(Run *r, const PlanFunc *func, int index, const PlanEnv *env, int64_t samples,
		     RunCall *call, Fail *f)
{
	const PlanStep *s = &func->steps[index];
	if (r->check_memory)
		mark_workspace(r, s);
	switch (s->kind) {
	case PLAN_KERNEL: s->fn(r->arena.base, s->off, env); break;
	case PLAN_PRIM:
		if (!prim_run(prepared(r, func)->calls[index]))
			return fail(f, EXIT_BUG, "oneDNN failed in %s (%s)", s->name, s->source);
		break;
	case PLAN_INPUT:
		call->source.read(call->source.ctx, s->index, env->base, samples,
				  r->arena.base + s->off[0]);
		break;
	case PLAN_OUTPUT: copy_output(r, func, s, call); break;
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
static bool run_timed(Run *r, const PlanFunc *func, int index, const PlanEnv *env, int64_t samples,
		      RunCall *call, Fail *f)
{
	if (!r->times)
		return run_step(r, func, index, env, samples, call, f);
	double start = clock_seconds();
	bool ok = run_step(r, func, index, env, samples, call, f);
	r->times[index].seconds += clock_seconds() - start;
	r->times[index].runs++;
	return ok;
}

/* A loop that is being run. */
typedef struct LoopAt {
	const PlanLoop *loop;
	int step; /* its PLAN_LOOP */
	int64_t trip;
	int64_t base; /* samples before those that its surroundings see */
} LoopAt;

/* What a trip sees: the env's place in the step. */
static void begin_trip(const LoopAt *at, PlanEnv *env)
{
	env->micro = at->loop->first + at->trip;
	env->base = at->base + at->loop->base + at->trip * at->loop->batch;
}

bool run_call(Run *r, const PlanFunc *func, RunCall *call, Fail *f)
{
	LoopAt loop[LOOP_DEPTH], *at;
	int depth = 0;
	PlanEnv env = { .seed = call->seed, .step = call->step, .threads = r->threads };
	call->bad.step = NULL;
	for (int i = 0; i < func->nsteps; i++) {
		const PlanStep *s = &func->steps[i];
		if (s->kind == PLAN_LOOP) {
			if (depth == LOOP_DEPTH)
				return fail(f, EXIT_BUG, "%s: loops nest deeper than %d",
					    func->name, LOOP_DEPTH);
			at = &loop[depth++];
			*at = (LoopAt){ &func->loops[s->index], i, 0, env.base };
			begin_trip(at, &env);
		} else if (s->kind == PLAN_END) {
			at = &loop[depth - 1];
			if (++at->trip < at->loop->trips) {
				i = at->step;
				begin_trip(at, &env);
				continue;
			}
			env.base = at->base;
			env.micro = --depth ? loop[depth - 1].loop->first + loop[depth - 1].trip
					    : 0;
		} else if (!run_timed(r, func, i, &env,
				      depth ? loop[depth - 1].loop->batch : func->batch, call, f)) {
			return false;
		} else if (r->check_nan && !check_result(r, s, &env, call)) {
			return true;
		}
	}
	return true;
}

/* ---- outputs -------------------------------------------------------------------------------- */

const PlanOutput *run_find_output(const PlanFunc *func, const char *name)
{
	for (int i = 0; i < func->noutputs; i++)
		if (strcmp(func->outputs[i].name, name) == 0)
			return &func->outputs[i];
	return NULL;
}

const PlanOutput *run_large_output(const PlanFunc *func)
{
	for (int i = 0; i < func->noutputs; i++)
		if (func->outputs[i].ndim > 0)
			return &func->outputs[i];
	return NULL;
}

const void *run_output_place(const Run *r, const PlanFunc *func, const PlanOutput *o)
{
	for (int i = 0; i < func->nsteps; i++)
		if (func->steps[i].kind == PLAN_OUTPUT && &func->outputs[func->steps[i].index] == o)
			return r->arena.base + func->steps[i].off[0];
	return NULL;
}

bool run_output(const Run *r, const PlanFunc *func, const char *name, double *value)
{
	const PlanOutput *o = run_find_output(func, name);
	if (!o || o->ndim > 0)
		return false;
	*value = plan_element(o->dtype, prepared(r, func)->scalars[o - func->outputs], 0);
	return true;
}

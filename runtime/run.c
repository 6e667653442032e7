/* What holds for a plan on any device; see run.h.
 *
 * PLAN_LOOP repeats what follows up to its PLAN_END, once a micro-batch; micro-batches of a step may
 * differ in size, and loops may nest. RunAt keeps the open loops, so that a device only asks for the
 * next step. */
#include "run.h"

#include <math.h>
#include <string.h>

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

/* ---- the order of steps --------------------------------------------------------------------- */

const PlanFunc *run_find(const Plan *plan, const char *name)
{
	for (int i = 0; i < plan->nfuncs; i++)
		if (strcmp(plan->funcs[i].name, name) == 0)
			return &plan->funcs[i];
	return NULL;
}

bool run_check(const PlanFunc *func, Fail *f)
{
	int depth = 0;
	for (int i = 0; i < func->nsteps; i++) {
		depth += func->steps[i].kind == PLAN_LOOP;
		depth -= func->steps[i].kind == PLAN_END;
		if (depth > RUN_LOOP_DEPTH)
			return fail(f, EXIT_BUG, "%s: loops nest deeper than %d", func->name,
				    RUN_LOOP_DEPTH);
	}
	return true;
}

void run_begin(RunAt *at, const PlanFunc *func, const RunCall *call, int threads)
{
	*at = (RunAt){ .func = func, .step = -1, .samples = func->batch };
	at->env = (PlanEnv){ .seed = call->seed, .step = call->step, .threads = threads };
}

/* What a trip sees: the env's place in the step. */
static void begin_trip(RunAt *at)
{
	const RunLoop *l = &at->loop[at->depth - 1];
	at->env.micro = l->loop->first + l->trip;
	at->env.base = l->base + l->loop->base + l->trip * l->loop->batch;
	at->samples = l->loop->batch;
}

static void end_loop(RunAt *at)
{
	const RunLoop *l = &at->loop[--at->depth], *outer = l - 1;
	at->env.base = l->base;
	at->env.micro = at->depth ? outer->loop->first + outer->trip : 0;
	at->samples = at->depth ? outer->loop->batch : at->func->batch;
}

bool run_next(RunAt *at)
{
	for (int i = at->step + 1; i < at->func->nsteps; i++) {
		const PlanStep *s = &at->func->steps[i];
		if (s->kind == PLAN_LOOP) {
			at->loop[at->depth++] =
				(RunLoop){ &at->func->loops[s->index], i, 0, at->env.base };
			begin_trip(at);
		} else if (s->kind == PLAN_END) {
			RunLoop *l = &at->loop[at->depth - 1];
			if (++l->trip < l->loop->trips) {
				i = l->step;
				begin_trip(at);
			} else {
				end_loop(at);
			}
		} else {
			at->step = i;
			return true;
		}
	}
	return false;
}

/* Result number `result` of the step. */
static bool check_result(Device *d, const RunAt *at, RunCall *call, int result, Fail *f)
{
	const PlanStep *s = &at->func->steps[at->step];
	int64_t size = plan_dtype_bytes(s->out_dtype), bytes = s->out_bytes[result];
	int64_t offset = s->off[s->noff - s->nout - s->nwork + result];
	for (int64_t done = 0; done < bytes; done += DEVICE_CHUNK) {
		int64_t left = bytes - done, n = left < DEVICE_CHUNK ? left : DEVICE_CHUNK;
		const void *p = device_view(d, offset + done, n, f);
		if (!p)
			return false;
		int64_t i = plan_first_nonfinite(s->out_dtype, p, n / size);
		if (i < 0)
			continue;
		call->bad = (RunBad){ .step = s,
				      .micro = at->env.micro,
				      .base = at->env.base,
				      .element = done / size + i,
				      .value = plan_element(s->out_dtype, p, i) };
		return true;
	}
	return true;
}

/* The first result of each member. */
bool run_check_result(Device *d, const RunAt *at, RunCall *call, Fail *f)
{
	const PlanStep *s = &at->func->steps[at->step];
	if (s->nout < 1 || !s->out_bytes || plan_dtype_bytes(s->out_dtype) == 0)
		return true;
	int members = s->nmembers > 1 ? s->nmembers : 1;
	for (int i = 0; i < members && !call->bad.step; i++)
		if (!check_result(d, at, call, i * (s->nout / members), f))
			return false;
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

int64_t run_output_offset(const PlanFunc *func, const PlanOutput *o)
{
	for (int i = 0; i < func->nsteps; i++)
		if (func->steps[i].kind == PLAN_OUTPUT && &func->outputs[func->steps[i].index] == o)
			return func->steps[i].off[0];
	return 0;
}

bool run_output(const Device *d, const PlanFunc *func, int back, const char *name, double *value)
{
	const PlanOutput *o = run_find_output(func, name);
	if (!o || o->ndim > 0)
		return false;
	*value = plan_element(o->dtype, device_scalar(d, func, back, (int)(o - func->outputs)), 0);
	return true;
}

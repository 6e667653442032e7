/* The interpreter of a plan: one arena, the functions of plan.h over it.
 *
 *     run_open -> run_prepare(each function wanted) -> run_call ... -> run_close
 *
 * After run_prepare nothing here allocates. */
#ifndef DLC_RUNTIME_RUN_H
#define DLC_RUNTIME_RUN_H

#include "fail.h"
#include "memory.h"
#include "plan.h"
#include "prim.h"

typedef struct RunFunc RunFunc;

/* Where the time of a call goes: each run of a step adds to its entry. One entry for each step of
 * the function. */
typedef struct RunTime {
	double seconds;
	int64_t runs;
} RunTime;

typedef struct Run {
	const Plan *plan;
	ArenaMap arena;
	int threads;
	bool check_memory, check_nan;
	PrimLib *lib;
	RunFunc *prepared; /* one for each plan function */
	RunTime *times;    /* of the function that is called next; NULL: no clock is read */
} Run;

/* Fills `dst` with samples [first, first+n) of this call for plan->inputs[input]. */
typedef struct RunSource {
	void (*read)(void *ctx, int input, int64_t first, int64_t n, void *dst);
	void *ctx;
} RunSource;

/* The first result of a step that is not finite (Run.check_nan). */
typedef struct RunBad {
	const PlanStep *step;
	int64_t micro, element;
	double value;
} RunBad;

typedef struct RunCall {
	uint64_t seed;
	int64_t step; /* optimizer steps tried before this one */
	RunSource source;
	void *large; /* receives the output that is not a scalar (predict), in full; may be NULL */
	RunBad bad;  /* set by run_call: bad.step is NULL where all is finite or nothing was checked
		      */
} RunCall;

/* Threads: 1..plan->threads, as the workspaces were planned for those. */
bool run_open(Run *r, const Plan *plan, int threads, bool check_memory, Fail *f);
void run_close(Run *r);

const PlanFunc *run_find(const Plan *plan, const char *name); /* NULL when absent */
/* Makes the library's primitives for `func`. */
bool run_prepare(Run *r, const PlanFunc *func, Fail *f);
/* Runs a prepared function; with check_nan it stops at the first result that is not finite and sets
 * call->bad. */
bool run_call(Run *r, const PlanFunc *func, RunCall *call, Fail *f);

/* A scalar output of the last call of `func`; false when it has none of that name. */
bool run_output(const Run *r, const PlanFunc *func, const char *name, double *value);
/* The first output that is not a scalar, or NULL. */
const PlanOutput *run_large_output(const PlanFunc *func);
/* Where an output lies in the arena: its value until the next call. */
const void *run_output_place(const Run *r, const PlanFunc *func, const PlanOutput *o);
const PlanOutput *run_find_output(const PlanFunc *func, const char *name);

int64_t plan_dtype_bytes(PlanDType t);
const char *plan_dtype_name(PlanDType t); /* "f32" */
int64_t plan_output_bytes(const PlanOutput *o);
int64_t plan_input_sample_bytes(const PlanInput *in);
/* Index of the first of n elements that is not finite; -1 where all are, or where the type is not a
 * float. */
int64_t plan_first_nonfinite(PlanDType t, const void *p, int64_t n);
double plan_element(PlanDType t, const void *p, int64_t i);
const PlanSetting *plan_setting(const PlanSetting *s, int n,
				const char *key); /* NULL when absent */

#endif

/* What holds for a plan on any device: its types, its functions and their outputs, the order in which
 * the steps of a function run. */
#ifndef DLC_RUNTIME_RUN_H
#define DLC_RUNTIME_RUN_H

#include "device.h"

const PlanFunc *run_find(const Plan *plan, const char *name); /* NULL when absent */

/* ---- the order of steps ---- */

enum { RUN_LOOP_DEPTH = 8 };

/* A loop that is being run. */
typedef struct RunLoop {
	const PlanLoop *loop;
	int step; /* its PLAN_LOOP */
	int64_t trip;
	int64_t base; /* samples before those that its surroundings see */
} RunLoop;

/* A place in a run of a function. */
typedef struct RunAt {
	const PlanFunc *func;
	int step;        /* that is to run now: never PLAN_LOOP or PLAN_END */
	int64_t samples; /* that it sees */
	PlanEnv env;
	RunLoop loop[RUN_LOOP_DEPTH];
	int depth;
} RunAt;

/* Stands before the first step; run_next moves to the next one, trips included. False at the end. */
void run_begin(RunAt *at, const PlanFunc *func, const RunCall *call, int threads);
bool run_next(RunAt *at);
/* False after filling f where loops nest too deeply for RunAt. */
bool run_check(const PlanFunc *func, Fail *f);

/* Looks for the first element of the step's (each of its members') first result that is not finite; sets call->bad. */
bool run_check_result(Device *d, const RunAt *at, RunCall *call, Fail *f);

/* ---- outputs ---- */

const PlanOutput *run_find_output(const PlanFunc *func, const char *name);
/* A scalar output of the call of `func` that was `back` ago and waited for; false when it has none of
 * that name. */
bool run_output(const Device *d, const PlanFunc *func, int back, const char *name, double *value);
/* The first output that is not a scalar, or NULL. */
const PlanOutput *run_large_output(const PlanFunc *func);
/* Where an output lies in the arena: its value until the next call. */
int64_t run_output_offset(const PlanFunc *func, const PlanOutput *o);

/* ---- types ---- */

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

/* The planner: the fastest predicted plan whose placed arena fits a budget. See planner.c for the method. */
#ifndef DLC_PASSES_PLANNER_H
#define DLC_PASSES_PLANNER_H

#include "pass.h"

typedef struct PlanBytes {
	int64_t parameters, optimizer, gradients, activations, workspace, io;
} PlanBytes;

typedef struct PlanSummary {
	int64_t batch, micro_batch, accumulation_steps, chunks;
	int64_t parameters;            /* trained elements */
	int64_t budget_bytes;          /* INT64_MAX: unlimited */
	int64_t arena_bytes, lower_bound_bytes, unlimited_arena_bytes, min_budget_bytes;
	double step_seconds, unlimited_step_seconds;
	PlanBytes peak;                /* what is live at the peak, by kind; sums to the live bytes there */
	int64_t recompute_nodes, recompute_bytes_saved;
	double recompute_seconds;
} PlanSummary;

typedef struct PlannerOptions {
	int64_t budget;        /* bytes; INT64_MAX: unlimited */
	int64_t micro_batch;   /* 0: free */
	bool recompute;        /* false: --no-recompute */
	int optimizer_in_backward; /* 1 on, 0 off, -1 where exact */
	bool allow_microbatch_stats;
	double max_slowdown;   /* plans slower than this times the unlimited step are not considered; 10 */
} PlannerOptions;

typedef enum PlannerResult { PLAN_OK, PLAN_TOO_SMALL, PLAN_FAILED } PlannerResult;

/* Takes a module after `optimizer` and leaves it placed (all functions), with the summary filled. PLAN_TOO_SMALL
 * fills min_budget_bytes and peak for the smallest plan, and gives the diagnostic. */
PlannerResult planner_run(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary *out);

#endif

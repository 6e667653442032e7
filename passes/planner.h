/* The planner: the fastest predicted plan whose placed arena fits a budget. See planner.c for the method. */
#ifndef DLC_PASSES_PLANNER_H
#define DLC_PASSES_PLANNER_H

#include "pass.h"

typedef struct PlanBytes {
	int64_t parameters, optimizer, gradients, activations, workspace, input;
} PlanBytes;

typedef struct PlanSummary {
	int64_t batch, micro_batch;    /* the last micro-batch is smaller where that does not divide evenly */
	int64_t accumulation_steps, chunks;
	Span head;                     /* what the chunks are of: the product of a wide head (chunk.h) ... */
	int64_t head_rows, head_bytes; /* ... of so many rows and bytes in one micro-batch; 0 rows: there is none */
	int64_t parameters, trained;   /* elements: of all parameters; of those that are not frozen */
	int64_t budget_bytes;          /* INT64_MAX: unlimited */
	int64_t arena_bytes, lower_bound_bytes, unlimited_arena_bytes, min_budget_bytes;
	double step_seconds, unlimited_step_seconds;
	PlanBytes peak;                /* what is live at the peak, by kind; sums to the live bytes there */
	int64_t recompute_nodes, recompute_bytes_saved;
	double recompute_seconds;
	int64_t moved, moved_bytes;    /* values that wait in host memory, all micro-batches of a step together, and their bytes */
	int64_t host_bytes;            /* of host memory for them */
	double wait_seconds;           /* for copies, in which nothing else happens */
	double step_seconds_bound;     /* no plan of this micro-batch and order within the budget that only keeps and replays is faster (bound.h); 0: not asked */
} PlanSummary;

typedef struct PlannerOptions {
	int64_t budget;        /* bytes; INT64_MAX: unlimited */
	int64_t micro_batch;   /* 0: free */
	int64_t chunks;        /* of the head; 0: free, 1: whole */
	bool recompute;        /* false: --no-recompute */
	bool offload;          /* false: --no-offload */
	int64_t host_bytes;    /* of host memory at most; INT64_MAX: as many as are wanted */
	int optimizer_in_backward; /* 1 on, 0 off, -1 where exact */
	bool allow_microbatch_stats;
	double max_slowdown;   /* plans slower than this times the unlimited step are not considered; 10 */
} PlannerOptions;

/* The neighbourhood of an answer: the curve that it lies on, and what other choices would have needed.
 * A summary with batch 0 stands for "there is none". */
typedef struct PlanStudy {
	PlanSummary *point;    /* the trade-off: see planner_curve */
	int npoints;
	PlanSummary more, less; /* the answers with 10 % more and 10 % less than the budget (of an unlimited one: the arena) */
	/* Of the next larger micro-batch that was considered: its plan of the smallest arena; its fastest one within the
	 * budget; and of its plans at least as fast as the answer the one of the smallest arena. */
	PlanSummary larger_least, larger_within, larger_as_fast;
} PlanStudy;

typedef enum PlannerResult { PLAN_OK, PLAN_TOO_SMALL, PLAN_FAILED } PlannerResult;

/* Takes a module after `optimizer` and leaves it placed (all functions), with the summary filled. PLAN_TOO_SMALL
 * fills min_budget_bytes and peak for the smallest plan, and gives the diagnostic. */
PlannerResult planner_run(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary *out);

/* The same, and fills *study (points in m->arena) also where the budget is too small. */
PlannerResult planner_study(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary *out, PlanStudy *study);

enum { PLAN_CURVE_POINTS = 40 };

/* The trade-off alone: answers from the smallest feasible budget to the one above which more memory buys nothing, in that
 * order: arenas ascend and predicted seconds do not. All of them, or PLAN_CURVE_POINTS spread evenly in the
 * logarithm of the arena, both ends among them. Each has as its budget the smallest one that it answers. The budget
 * of the options is not asked. The module is left half lowered, with its variables and settings. False after diagnostics. */
bool planner_curve(Module *m, PassCtx *cx, const PlannerOptions *o, PlanSummary **points, int *n);

#endif

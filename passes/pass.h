/* The pass driver: passes are rows of passes.def, run by name over a Module, verified and dumped between.
 *
 * expand | simplify | autodiff | autocast | loss_scale | optimizer | accumulate | chunk | fold_sums | epilogue | inplace | fuse | schedule |
 * recompute | offsets. `budget` (planner.h) drives those from `accumulate` on for its candidates. */
#ifndef DLC_PASSES_PASS_H
#define DLC_PASSES_PASS_H

#include "../ir/ir.h"

/* The rows of passes.def, in order. */
typedef enum PassRow {
#define PASS(name, ...) PASS_ROW_##name,
#include "passes.def"
#undef PASS
	PASS_ROWS
} PassRow;

typedef enum PassResult { PASS_SAME, PASS_CHANGED, PASS_FAILED } PassResult;

/* Facts about a module: what a pass needs, gives and keeps. */
enum {
	FACT_EXPANDED = 1,   /* functions init, step, eval, predict exist; no macros left in them */
	FACT_BACKWARD = 2,   /* step holds the gradients of the loss */
	FACT_OPTIMIZER = 4,  /* step updates the variables */
	FACT_ACCUMULATED = 8, /* no batch_sum is left: loops are explicit */
	FACT_FUSED = 16,     /* every node is a kernel, a library call or a view */
	FACT_ORDERED = 32,   /* the node order is the execution order */
	FACT_RECOMPUTED = 64,
	FACT_INPLACE = 128,  /* strided views are decided */
	FACT_PLACED = 256    /* every stored value has an offset */
};

/* What the back end can do; passes ask this and never which back end it is. */
typedef struct Capabilities {
	int threads;               /* planned for at most this many */
	bool tf32;                 /* products of f32 by tensor cores (NF_TF32) */
	bool offload;              /* values can wait in host memory, with copies beside the kernels */
	bool strided_attention;    /* attention reads q, k, v with a row stride (slices need no copy) */
	/* Bytes of workspace of a node (after fuse); 0 for most. */
	int64_t (*workspace)(const Node *n, int threads);
	/* True where `n` may join a fused kernel at all (element-wise, reductions, most shape ops). */
	bool (*fusable)(const Node *n);
	/* True where the product `n` (OPF_ACC) can be added to a sum as it is computed, in place; NULL: none can. */
	bool (*accumulates)(const Node *n);
	/* True where the product `n` (matmul) can be computed as `op`, which does more (ir_is_product), and attention_grad as attention_grad_qkv;
	 * NULL: none can. */
	bool (*epilogue)(const Node *n, OpCode op);
	/* True where a kernel that reduces along rows, so many of a length, can also make so many f32 sums over them (fuse_columns.c); NULL: none
	 * can. */
	bool (*sums_beside_rows)(int64_t rows, int64_t length, int sums);
} Capabilities;

typedef struct Machine Machine; /* rates for predicted times: machine.h */

typedef struct PassCtx {
	Arena *arena;
	Diag *diag;
	const Capabilities *caps;
	const Machine *machine;
	unsigned facts;
	/* Options that passes read. */
	int64_t micro_batch;        /* accumulate: samples of one micro-batch; 0: the whole batch */
	int64_t chunks;             /* chunk: parts of a head; 0, 1: whole */
	bool allow_microbatch_stats;
	bool optimizer_in_backward; /* schedule: update a parameter as soon as its gradient is final */
	bool recompute;
	int64_t budget;             /* bytes; INT64_MAX: unlimited */
	const char *precision;      /* overrides train.precision, or NULL */
	/* Inspection. */
	const char *print_after;    /* pass name, or NULL */
	bool print_after_all, print_changed, time_passes;
	bool verify_each;           /* also: PASS_SAME left the text alone, and the text reads back */
	FILE *dump;
	double pass_seconds[PASS_ROWS]; /* summed over the runs of each row; see pass_print_times */
	int pass_runs[PASS_ROWS];
} PassCtx;

typedef PassResult (*PassFn)(Module *m, PassCtx *cx);

typedef struct PassInfo {
	const char *name, *doc;
	PassFn run;
	unsigned needs, gives, drops;
} PassInfo;

extern const PassInfo pass_table[];
extern const int pass_count;

/* False after a diagnostic where the graph holds copies to host memory, which the planner makes, at the end: nothing but `offsets` takes them. */
bool pass_without_moves(const Module *m);

/* For a pass over one function at a time, which says whether it has changed it. */
PassResult pass_each(Module *m, const PassCtx *cx, bool (*change)(Func *f, const Capabilities *caps));

const PassInfo *pass_find(const char *name);
/* The facts that hold for a module that was read as IR text, as far as its graph shows them. */
unsigned pass_facts(const Module *m);
/* The table of --time-passes. */
void pass_print_times(FILE *out, const PassCtx *cx);
/* Runs one pass: checks `needs`, runs, updates facts, verifies, dumps, times. A verifier failure writes the graph to
 * dlc-bug-PASS.ir and ends the program with exit code 3. */
PassResult pass_run(const PassInfo *p, Module *m, PassCtx *cx);
/* Whether any dump is asked for; prints the module where one is asked for after `name` (pass_run does this itself). */
bool pass_dumps(const PassCtx *cx);
void pass_dump(const char *name, const Module *m, const PassCtx *cx, bool changed);
/* Runs a comma-separated list; an unknown name is a usage error (message, PASS_FAILED). */
PassResult pass_run_list(const char *list, Module *m, PassCtx *cx);
/* Runs the table's rows from the first up to and including `stop` (NULL: all rows). */
PassResult pass_run_until(const char *stop, Module *m, PassCtx *cx);

#define PASS(name, ...) PassResult pass_##name(Module *m, PassCtx *cx);
#include "passes.def"
#undef PASS

#endif

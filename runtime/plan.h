/* The plan: what a compiled trainer is. dlc writes it as constant C tables; the runtime interprets it.
 *
 * This header is all that `codegen` and `runtime` share. Offsets count bytes from the start of the one arena (of host memory, where
 * a step says so); every kernel gets its operands as arena offsets, so that equal layers share one kernel. */
#ifndef DLC_RUNTIME_PLAN_H
#define DLC_RUNTIME_PLAN_H

#include <stdbool.h>
#include <stdint.h>

enum { PLAN_ALIGN = 64, PLAN_MAX_DIMS = 8, PLAN_VERSION = 9 };

/* Same order and values as ir/ir.h's DType (codegen asserts it). */
typedef enum PlanDType { PD_NONE, PD_BOOL, PD_U8, PD_U16, PD_I32, PD_I64, PD_F16, PD_BF16, PD_F32, PD_F64 } PlanDType;

/* What a kernel may know of the moment: random masks and initial values depend on these and on nothing else. */
typedef struct PlanEnv {
	uint64_t seed;
	int64_t step;  /* optimizer steps tried before this one */
	int64_t micro; /* micro-batch within the step */
	int64_t base;  /* samples of this step before this micro-batch: a sample's random numbers do not depend on the split */
	int32_t threads;
} PlanEnv;

/* off[]: operands, then results, then the workspace (if the kernel has one); then, beyond PlanStep.noff, what kernels
 * of one text differ in and is no place: how many rows or units it does, and the stream of each of its random ops (of steps done as one: these of each, then the first block of each). */
typedef void (*PlanKernel)(unsigned char *arena, const int64_t *off, const PlanEnv *env);

/* A library call. Matrix product: c = a x b, dims a [batch..,M,K], b [batch..,K,N], c [batch..,M,N]; strides in
 * elements (0 on a broadcast batch axis). Convolution: x [N,C,H,W], w [O,C/groups,kh,kw], y [N,O,H',W'], dense.
 * With `acc` the result, c or w, is added to a sum of f32, dense, which may lie in the result's place or apart from it. */
typedef enum PlanPrimKind { PRIM_MATMUL, PRIM_CONV, PRIM_CONV_GRAD_X, PRIM_CONV_GRAD_W } PlanPrimKind;

/* What a matrix product does besides: adds an operand bias [N] to each row; the same, and what is below 0 is 0; multiplies by the derivative of gelu (tanh form) at an operand
 * of the result's size; leaves the sums of op(a) over K [M], or of op(b) [N], of the result's type, as a second result. */
typedef enum PlanEpilogue { EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_BIAS_RELU, EPILOGUE_GELU_GRAD, EPILOGUE_SUMS_A, EPILOGUE_SUMS_B } PlanEpilogue;

typedef struct PlanPrim {
	PlanPrimKind kind;
	PlanDType dtype; /* of the operands */
	PlanDType out, compute; /* of the result; in which the library computes; PD_NONE: dtype */
	int32_t ndim;    /* matmul: of all three */
	int64_t dims[3][PLAN_MAX_DIMS];    /* matmul: a, b, c; convolution: x, w, y */
	int64_t strides[3][PLAN_MAX_DIMS]; /* matmul only */
	int64_t stride[2], pad[2], dilation[2], groups;
	bool acc;        /* of a product or a weight gradient */
	PlanEpilogue epilogue; /* CUDA */
	bool tf32;             /* CUDA: f32 operands are taken as tf32 */
	int64_t work_bytes; /* planned workspace (scratchpad and packed operands) */
} PlanPrim;

/* Bytes of workspace that the library needs for this call with this many threads; -1 where it does not offer it.
 * In runtime/prim_dnnl.c, which is linked into dlc as well: planning asks the library itself. */
int64_t plan_prim_workspace(const PlanPrim *p, int threads);
/* The type in which the library computes with operands of a type on this processor: bf16 where there are instructions
 * for it; 16-bit convolutions else in f32, packed operands being f32; PD_NONE: it does not take them. */
PlanDType plan_prim_compute(PlanDType t);

/* CUDA: a kernel is
 *
 *     extern "C" __global__ void SYMBOL(unsigned char *arena, const OFF off, const PlanEnv *env)
 *
 * OFF being a struct of one array, int64_t at[n], that holds all of the step's off[]. A step runs its launches one after another. */
typedef struct PlanLaunch {
	const char *symbol;    /* of a module's kernel; distinct over all modules */
	int32_t module;        /* index into Plan.modules */
	uint32_t grid[3], block; /* blocks; threads of each */
	uint32_t shared_bytes; /* dynamic shared memory */
} PlanLaunch;

/* Compiled kernels: a cubin for Plan.arch, and PTX for later processors. */
typedef struct PlanModule {
	const unsigned char *cubin;
	int64_t cubin_bytes;
	const unsigned char *ptx; /* zlib's form of it; NULL: none */
	int64_t ptx_packed_bytes; /* of that; 0: it is text, with a NUL behind it */
	int64_t ptx_bytes;	  /* of the text, without NUL */
} PlanModule;

typedef enum PlanStepKind {
	PLAN_KERNEL, /* fn(arena, off, env), or its launches */
	PLAN_PRIM,   /* prims[index]; off: operands in the op's order (conv_grad_x: dy, w; conv_grad_w: x, dy; then what the epilogue reads; then the sum, with acc), results, workspace */
	PLAN_INPUT,  /* inputs[index] of the samples at hand (the loop's micro-batch, else the function's batch) to off[0] */
	PLAN_OUTPUT, /* off[0] is outputs[index], to be read by the host once the function has run */
	PLAN_LOOP,   /* loops[index] of the function: trips of what follows, up to the matching PLAN_END */
	PLAN_END,
	/* Copies between the arena and pinned host memory, CUDA: index is the number of the copy in its function, off[0] the place in the
	 * arena, off[1] of the two that begin one that in host memory. They go on beside the steps between begin and end, and may be done at
	 * any moment there; both lie in one stretch of steps without a loop's start or end. */
	PLAN_SEND,   /* begins a copy to host memory, behind all steps before it */
	PLAN_SENT,   /* it has ended: steps behind this one may write its bytes */
	PLAN_FETCH,  /* begins a copy from host memory, behind all steps before it */
	PLAN_FETCHED /* it has ended: steps behind this one may read it */
} PlanStepKind;

typedef struct PlanStep {
	PlanStepKind kind;
	int32_t index;
	PlanKernel fn;
	const int64_t *off;
	int32_t noff;       /* places; the kernel's own numbers follow them */
	const char *name;   /* the op or kernel, for traces and messages */
	const char *source; /* "mlp.dl:14", or "" */
	const int64_t *out_bytes; /* bytes of each result, for --check-nan and the checkers; noff-aligned tail */
	int32_t nout;       /* results are off[noff - nout - nwork .. ) */
	int32_t nwork;      /* 0 or 1 */
	PlanDType out_dtype; /* of result 0 */
	double seconds;     /* predicted, of one run of this step: of each trip, in a loop */
	int64_t work_bytes; /* of the workspace, the last of off[], where nwork is 1; 0: see the primitive */
	const PlanLaunch *launch; /* CUDA */
	int32_t nlaunch;
	int32_t nmembers;   /* > 1: steps done as one. off[] has all of their operands, then all results, one member after the other */
	int64_t moved_bytes; /* by a kernel that is a loop nest: operands, results and what it stores in place, each once, partial results twice; 0: not told */
	int64_t copy_bytes;  /* of PLAN_SEND and PLAN_FETCH */
} PlanStep;

typedef struct PlanOutput {
	const char *name; /* loss weight correct correct_top counted grad_norm lr predict */
	PlanDType dtype;
	int32_t ndim;
	int64_t dim[PLAN_MAX_DIMS];
} PlanOutput;

/* Trip i sees `batch` samples from base + i * batch on (of those that the surroundings see), as micro-batch first + i. */
typedef struct PlanLoop {
	int64_t trips, batch, base, first;
} PlanLoop;

typedef struct PlanFunc {
	const char *name;      /* init step eval eval1 predict predict1 */
	int64_t batch;         /* samples of one call */
	const PlanLoop *loops; /* in the order of their steps */
	int32_t nloops;
	const PlanStep *steps;
	int32_t nsteps;
	const PlanOutput *outputs;
	int32_t noutputs;
	int64_t arena_bytes;   /* end of its highest placed byte */
	int32_t ncopies;       /* to host memory and back, each way by itself */
} PlanFunc;

typedef enum PlanVarRole { PV_PARAM, PV_STAT, PV_OPT, PV_COUNTER } PlanVarRole;

typedef struct PlanVar {
	const char *name;
	PlanVarRole role;
	PlanDType dtype;
	int32_t ndim;
	int64_t dim[PLAN_MAX_DIMS];
	int64_t offset, bytes;
	bool frozen; /* parameter: not trained; statistic: not updated */
} PlanVar;

/* An adapter of low rank (LoRA): a layer multiplies by weight + scale * (B A), a [rank,in], b [out,rank]. */
typedef struct PlanAdapter {
	int32_t weight, a, b; /* indices into Plan.vars */
	bool in_out;          /* the weight is [in,out], else [out,in] */
	double scale;
} PlanAdapter;

/* A setting of `data` or `train`. kind: 'i' integer or bool, 'f' number, 's' text, 'l' list of integers. */
typedef struct PlanSetting {
	const char *key;
	char kind;
	int64_t i;
	double f;
	const char *s;
	int32_t n;
	int64_t list[PLAN_MAX_DIMS];
} PlanSetting;

typedef struct PlanData {
	const char *name; /* "text" */
	const char *type; /* bytes tokens text idx npy raw csv */
	const PlanSetting *settings;
	int32_t nsettings;
} PlanData;

/* One field of one data set, as the graph reads it: one sample is dim[0..ndim) of dtype. */
typedef struct PlanInput {
	const char *name; /* "text.tokens" */
	int32_t data;     /* index into Plan.data */
	const char *field; /* "tokens" */
	PlanDType dtype;
	int32_t ndim;
	int64_t dim[PLAN_MAX_DIMS];
	int64_t limit; /* > 0: integer values must lie in [0, limit) (embedding rows, classes); checked before step 1 */
	int64_t ignore; /* the one value outside that range that is allowed (cross_entropy's ignore); -100 by default */
} PlanInput;

typedef struct Plan {
	int32_t version;
	const char *model;       /* "convnet" */
	const char *model_path;
	const char *target;      /* "cpu", "cuda" */
	const char *isa;         /* processor features that the kernels need, e.g. "avx512f avx2 fma" ("": none) */
	const char *fingerprint; /* of parameters and training state (names, types): a checkpoint must match */
	const char *json;        /* the object of `dlc --json` */
	int64_t arena_bytes, budget_bytes;
	int32_t threads;         /* at most this many; workspaces were planned for them */
	uint64_t seed;
	int64_t batch, micro_batch;
	const PlanVar *vars;       int32_t nvars;
	const PlanAdapter *adapters; int32_t nadapters;
	const PlanPrim *prims;     int32_t nprims;
	const PlanInput *inputs;   int32_t ninputs;
	const PlanData *data;      int32_t ndata;
	const PlanFunc *funcs;     int32_t nfuncs;
	const PlanSetting *train;  int32_t ntrain; /* settings of `train`: steps, batch, eval_every, ... */
	const char *arch;          /* CUDA: "sm_90"; NULL */
	const PlanModule *modules; int32_t nmodules;
	int64_t host_bytes;      /* CUDA: of pinned host memory, where values wait; 0: none do */
} Plan;

extern const Plan dl_plan; /* defined by the generated plan.c */

#endif

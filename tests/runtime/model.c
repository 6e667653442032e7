/* A trainer without a compiler: softmax regression as a hand-made plan, for the tests of the
 * runtime.
 *
 *     features f = input as 16 numbers      logits = f W' + b      loss = mean cross entropy,
 * momentum
 *
 * Compiled with -DDATA_IDX, _NPY, _CSV or _BYTES for the kind of data, and with
 *     MICRO   samples of a micro-batch (8 of the batch of 16)     LR   learning rate
 *     SHIFT   bytes by which everything lies higher in the arena  CLASSES   10
 *     AWAY    1: the features wait in host memory while the loss is computed, and come back to another place (on a card); 2, 3: so, but
 *             the plan does not say where the copy there, back ends
 *     POISON  step at which the logits become NaN        FAULT     step at which an update writes far off
 * and for a graphics card with -DCUDA=\"NAME\": its kernels are NAME.cubin and NAME.ptx, compiled by mkcubin for ARCH. */
#include "model_kernels.h"

#include <stddef.h>

/* ---- the plan ------------------------------------------------------------------------------- */

#ifdef CUDA
#ifndef ARCH
#define ARCH "sm_90"
#endif
#ifndef SHARED
#define SHARED 65536
#endif
#ifndef PTX
#define PTX ptx
#endif
#endif

#define OFF(...)            \
	(const int64_t[])   \
	{                   \
		__VA_ARGS__ \
	}
#define BYTES(...)          \
	(const int64_t[])   \
	{                   \
		__VA_ARGS__ \
	}

/* a [M,K] row-major or transposed by strides, b likewise */
#define MATMUL(M, K, N, SA0, SA1, SB0, SB1)                                             \
	{                                                                               \
		.kind = PRIM_MATMUL, .dtype = PD_F32, .ndim = 2,                        \
		.dims = { { M, K }, { K, N }, { M, N } },                               \
		.strides = { { SA0, SA1 }, { SB0, SB1 }, { N, 1 } }, .work_bytes = WORK \
	}

static const PlanPrim prims[] = {
	MATMUL(MICRO, F, CLASSES, F, 1, 1, F),       /* logits = feat W' */
	MATMUL(CLASSES, MICRO, F, 1, CLASSES, F, 1), /* dw = dlogits' feat */
	MATMUL(EVAL, F, CLASSES, F, 1, 1, F),
	MATMUL(1, F, CLASSES, F, 1, 1, F),
};

#ifdef CUDA
#define LAUNCH(FN) { .symbol = #FN, .grid = { 8, 1, 1 }, .block = 32, .shared_bytes = SHARED }
#define CODE(FN) .launch = (const PlanLaunch[]){ LAUNCH(FN) }, .nlaunch = 1
#else
#define CODE(FN) .fn = FN
#endif
#define STEP_OF(FN, NAME, OUT, NOUT, ...)                                                     \
	{                                                                             \
		.kind = PLAN_KERNEL, CODE(FN), .name = NAME, .source = "linear.dl:7", \
		.off = OFF(__VA_ARGS__), .noff = sizeof(OFF(__VA_ARGS__)) / 8,        \
		.out_bytes = BYTES(OUT), .nout = NOUT, .out_dtype = PD_F32            \
	}
#define PRIM(I, NAME, OUT, ...)                                                                \
	{                                                                                      \
		.kind = PLAN_PRIM, .index = I, .name = NAME, .source = "linear.dl:6",          \
		.off = OFF(__VA_ARGS__, SPACE), .noff = 4, .out_bytes = BYTES(OUT), .nout = 1, \
		.nwork = 1, .out_dtype = PD_F32                                                \
	}
#define INPUT(I, O)                                                                           \
	{                                                                                     \
		.kind = PLAN_INPUT, .index = I, .name = "input", .source = "", .off = OFF(O), \
		.noff = 1, .nout = 1                                                          \
	}
#define OUTPUT(I, O)                                                                            \
	{                                                                                       \
		.kind = PLAN_OUTPUT, .index = I, .name = "output", .source = "", .off = OFF(O), \
		.noff = 1                                                                       \
	}

#ifndef AWAY
#define AWAY 0
#endif
/* Where the features lie in the backward pass; the end of the arena. */
enum { BACK = AWAY ? END : FEAT, ARENA_END = AWAY ? END + 2048 : END };
#define COPY(KIND, I, NAME, AT)                                                                       \
	{                                                                                             \
		.kind = KIND, .index = I, .name = NAME, .source = "linear.dl:6", .off = OFF(AT, 1 << 21), \
		.noff = 2, .copy_bytes = MICRO * F * 4                                                \
	}

static const PlanStep init_steps[] = { STEP_OF(k_init, "init", CLASSES *F * 4, 1, W, WM, B, BM,
					      STEP) };
static const PlanStep step_steps[] = {
	STEP_OF(k_zero, "zero", 4, 1, GW, GB, LOSS),
	{ .kind = PLAN_LOOP, .index = 0, .name = "loop", .source = "" },
	INPUT(0, X),
	INPUT(1, Y),
	STEP_OF(k_features, "features", MICRO *F * 4, 1, X, FEAT),
	PRIM(0, "matmul", MICRO *CLASSES * 4, FEAT, W, LOGITS),
#if AWAY
	COPY(PLAN_SEND, 0, "send", FEAT),
#endif
	STEP_OF(k_loss, "cross_entropy", 4, 1, LOGITS, B, Y, DLOGITS, LOSS),
#if AWAY && AWAY != 2
	COPY(PLAN_SENT, 0, "sent", FEAT),
#endif
#if AWAY
	COPY(PLAN_FETCH, 1, "fetch", BACK),
#endif
#if AWAY && AWAY != 3
	COPY(PLAN_FETCHED, 1, "fetched", BACK),
#endif
	PRIM(1, "matmul_grad", CLASSES *F * 4, DLOGITS, BACK, DW),
	STEP_OF(k_add, "accumulate", CLASSES * 4, 1, DW, DLOGITS, GW, GB),
	{ .kind = PLAN_END, .name = "end", .source = "" },
	STEP_OF(k_norm, "norm", 4, 1, GW, GB, NORM),
	STEP_OF(k_update, "update", 4, 1, GW, GB, W, WM, B, BM, STEP, RATE),
	OUTPUT(0, LOSS),
	OUTPUT(1, NORM),
	OUTPUT(2, RATE),
};
static const PlanStep eval_steps[] = {
	INPUT(0, X),
	INPUT(1, Y),
	STEP_OF(k_features_eval, "features", EVAL *F * 4, 1, X, FEAT),
	PRIM(2, "matmul", EVAL *CLASSES * 4, FEAT, W, LOGITS),
	STEP_OF(k_score, "score", 4, 1, LOGITS, B, Y, LOSS, WEIGHT, CORRECT, COUNTED),
	OUTPUT(0, LOSS),
	OUTPUT(1, WEIGHT),
	OUTPUT(2, CORRECT),
	OUTPUT(3, COUNTED),
};
static const PlanStep eval1_steps[] = {
	INPUT(0, X),
	INPUT(1, Y),
	STEP_OF(k_features_one, "features", F * 4, 1, X, FEAT),
	PRIM(3, "matmul", CLASSES * 4, FEAT, W, LOGITS),
	STEP_OF(k_score_one, "score", 4, 1, LOGITS, B, Y, LOSS, WEIGHT, CORRECT, COUNTED),
	OUTPUT(0, LOSS),
	OUTPUT(1, WEIGHT),
	OUTPUT(2, CORRECT),
	OUTPUT(3, COUNTED),
};
static const PlanStep predict_steps[] = {
	INPUT(0, X),
	STEP_OF(k_features_eval, "features", EVAL *F * 4, 1, X, FEAT),
	PRIM(2, "matmul", EVAL *CLASSES * 4, FEAT, W, LOGITS),
	OUTPUT(0, LOGITS),
};
static const PlanStep predict1_steps[] = {
	INPUT(0, X),
	STEP_OF(k_features_one, "features", F * 4, 1, X, FEAT),
	PRIM(3, "matmul", CLASSES * 4, FEAT, W, LOGITS),
	OUTPUT(0, LOGITS),
};

#define SCALAR(NAME)                          \
	{                                     \
		.name = NAME, .dtype = PD_F32 \
	}
static const PlanOutput step_outputs[] = { SCALAR("loss"), SCALAR("grad_norm"), SCALAR("lr") };
static const PlanOutput eval_outputs[] = { SCALAR("loss"), SCALAR("weight"), SCALAR("correct"),
					   SCALAR("counted") };
static const PlanOutput predict_outputs[] = {
	{ .name = "predict", .dtype = PD_F32, .ndim = 2, .dim = { EVAL, CLASSES } }
};
static const PlanOutput predict1_outputs[] = {
	{ .name = "predict", .dtype = PD_F32, .ndim = 2, .dim = { 1, CLASSES } }
};

#define COUNT(A) ((int32_t)(sizeof(A) / sizeof *(A)))
static const PlanLoop step_loops[] = { { .trips = TRIPS, .batch = MICRO } };
#define FUNC(NAME, N, LOOPS, NLOOPS, STEPS, OUTPUTS, NOUT)                                      \
	{                                                                                       \
		.name = NAME, .batch = N, .loops = LOOPS, .nloops = NLOOPS, .steps = STEPS,     \
		.nsteps = COUNT(STEPS), .outputs = OUTPUTS, .noutputs = NOUT, .arena_bytes = ARENA_END, .ncopies = AWAY ? 2 : 0 \
	}
static const PlanFunc funcs[] = {
	FUNC("init", 1, NULL, 0, init_steps, NULL, 0),
	FUNC("step", BATCH, step_loops, 1, step_steps, step_outputs, 3),
	FUNC("eval", EVAL, NULL, 0, eval_steps, eval_outputs, 4),
	FUNC("eval1", 1, NULL, 0, eval1_steps, eval_outputs, 4),
	FUNC("predict", EVAL, NULL, 0, predict_steps, predict_outputs, 1),
	FUNC("predict1", 1, NULL, 0, predict1_steps, predict1_outputs, 1),
};

static const PlanVar vars[] = {
	{ .name = "fc.weight",
	  .role = PV_PARAM,
	  .dtype = PD_F32,
	  .ndim = 2,
	  .dim = { CLASSES, F },
	  .offset = W,
	  .bytes = CLASSES * F * 4 },
	{ .name = "fc.bias",
	  .role = PV_PARAM,
	  .dtype = PD_F32,
	  .ndim = 1,
	  .dim = { CLASSES },
	  .offset = B,
	  .bytes = CLASSES * 4 },
	{ .name = "dlc.momentum.fc.weight",
	  .role = PV_OPT,
	  .dtype = PD_F32,
	  .ndim = 2,
	  .dim = { CLASSES, F },
	  .offset = WM,
	  .bytes = CLASSES * F * 4 },
	{ .name = "dlc.momentum.fc.bias",
	  .role = PV_OPT,
	  .dtype = PD_F32,
	  .ndim = 1,
	  .dim = { CLASSES },
	  .offset = BM,
	  .bytes = CLASSES * 4 },
	{ .name = "dlc.step", .role = PV_COUNTER, .dtype = PD_I64, .offset = STEP, .bytes = 8 },
};

#define TEXT(K, V)                            \
	{                                     \
		.key = K, .kind = 's', .s = V \
	}
#define NUMBER(K, V)                          \
	{                                     \
		.key = K, .kind = 'f', .f = V \
	}
#define WHOLE(K, V)                           \
	{                                     \
		.key = K, .kind = 'i', .i = V \
	}
#if defined(DATA_BYTES) || defined(DATA_TOKENS)
#if defined(DATA_BYTES)
#define TYPE "bytes"
#define MORE
#elif defined(DATA_TEXT)
#define TYPE "text"
#define MORE , TEXT("vocab", ""), TEXT("merges", "")
#else
#define TYPE "tokens"
#define MORE , WHOLE("bits", 0)
#endif
static const PlanSetting settings[] = { TEXT("file", ""), TEXT("test_file", ""), WHOLE("window", F),
					NUMBER("validation", 0.1) MORE };
static const PlanInput inputs[] = {
	{ .name = "d.tokens",
	  .field = "tokens",
	  .dtype = PD_I32,
	  .ndim = 1,
	  .dim = { F },
	  .limit = 200,
	  .ignore = -100 },
	{ .name = "d.targets",
	  .field = "targets",
	  .dtype = PD_I32,
	  .ndim = 1,
	  .dim = { F },
	  .limit = 200,
	  .ignore = -100 },
};
#else
#if defined(DATA_IDX)
#define TYPE "idx"
#define X_DIMS .ndim = 2, .dim = { 4, 4 }
static const PlanSetting settings[] = { TEXT("dir", ""), TEXT("x", ""), TEXT("y", ""),
					TEXT("test_x", ""), TEXT("test_y", "") };
#elif defined(DATA_NPY)
#define TYPE "npy"
#define X_DIMS .ndim = 1, .dim = { F }
static const PlanSetting settings[] = { TEXT("dir", ""),    TEXT("x", ""),
					TEXT("y", ""),      TEXT("test_x", ""),
					TEXT("test_y", ""), NUMBER("validation", 0) };
#else
#define TYPE "csv"
#define X_DIMS .ndim = 1, .dim = { F }
static const PlanSetting settings[] = { TEXT("file", ""), TEXT("test_file", ""),
					WHOLE("features", F), WHOLE("header", 1),
					NUMBER("validation", 0.25) };
#endif
static const PlanInput inputs[] = {
	{ .name = "d.x", .field = "x", .dtype = X_TYPE, X_DIMS },
	{ .name = "d.y", .field = "y", .dtype = PD_I32, .limit = CLASSES, .ignore = -100 },
};
#endif
static const PlanData data[] = {
	{ .name = "d", .type = TYPE, .settings = settings, .nsettings = COUNT(settings) }
};
static const PlanSetting train[] = { WHOLE("steps", 60), WHOLE("batch", BATCH) };

#ifdef CUDA
extern const unsigned char cubin[];
extern const unsigned char ptx[];
__asm__(".section .rodata\n.balign 64\ncubin: .incbin \"" CUDA ".cubin\"\n"
	".balign 8\nptx: .incbin \"" CUDA ".ptx\"\n.byte 0\n.text\n");
static const PlanModule modules[] = { { .cubin = cubin, .cubin_bytes = 0, .ptx = PTX } };
#endif

const Plan dl_plan = {
	.version = PLAN_VERSION,
	.model = "linear",
	.model_path = "linear.dl",
#ifdef CUDA
	.target = "cuda",
	.arch = ARCH,
	.modules = modules,
	.nmodules = COUNT(modules),
#else
	.target = "cpu",
#endif
	.isa = "",
	.fingerprint = "5eed0001",
	.json = "{\"model\":\"linear\"}",
	.arena_bytes = ARENA_END,
	.host_bytes = AWAY ? (1 << 21) + MICRO * F * 4 : 0,
	.budget_bytes = INT64_MAX,
	.threads = 2,
	.seed = 7,
	.batch = BATCH,
	.micro_batch = MICRO,
	.vars = vars,
	.nvars = COUNT(vars),
	.prims = prims,
	.nprims = COUNT(prims),
	.inputs = inputs,
	.ninputs = COUNT(inputs),
	.data = data,
	.ndata = 1,
	.funcs = funcs,
	.nfuncs = COUNT(funcs),
	.train = train,
	.ntrain = COUNT(train),
};

/* A trainer without a compiler: softmax regression as a hand-made plan, for the tests of the
 * runtime.
 *
 *     features f = input as 16 numbers      logits = f W' + b      loss = mean cross entropy,
 * momentum
 *
 * Compiled with -DDATA_IDX, _NPY, _CSV or _BYTES for the kind of data, and with
 *     MICRO   samples of a micro-batch (8 of the batch of 16)     LR   learning rate
 *     SHIFT   bytes by which everything lies higher in the arena  CLASSES   10
 *     POISON  step at which the logits become NaN */
#include "runtime/plan.h"

#include <math.h>
#include <string.h>

#ifndef MICRO
#define MICRO 8
#endif
#ifndef SHIFT
#define SHIFT 0
#endif
#ifndef LR
#define LR 0.1f
#endif
#ifndef CLASSES
#define CLASSES 10
#endif
#ifndef POISON
#define POISON -1
#endif
#ifndef WORK
#define WORK 262144
#endif

enum { BATCH = 16, TRIPS = BATCH / MICRO, F = 16, EVAL = 8, MOMENTUM_NUM = 9 };

/* Offsets; every value has its own place. */
enum {
	W = SHIFT,
	WM = W + 1024,
	B = WM + 1024,
	BM = B + 64,
	STEP = BM + 64, /* variables */
	X = STEP + 64,
	Y = X + 2048,
	FEAT = Y + 2048,
	LOGITS = FEAT + 2048,
	DLOGITS = LOGITS + 1024,
	DW = DLOGITS + 1024,
	GW = DW + 1024,
	GB = GW + 1024,
	LOSS = GB + 64,
	NORM = LOSS + 64,
	RATE = NORM + 64,
	WEIGHT = RATE + 64,
	CORRECT = WEIGHT + 64,
	COUNTED = CORRECT + 64,
	SPACE = COUNTED + 64,
	END = SPACE + WORK
};

#if defined(DATA_IDX)
typedef uint8_t Pixel;
#define X_TYPE PD_U8
#define X_SCALE (1.0f / 255)
#elif defined(DATA_BYTES) || defined(DATA_TOKENS)
typedef int32_t Pixel;
#define X_TYPE PD_I32
#define X_SCALE (1.0f / 256)
#else
typedef float Pixel;
#define X_TYPE PD_F32
#define X_SCALE 1.0f
#endif

static float *at(unsigned char *arena, int64_t off)
{
	return (float *)(void *)(arena + off);
}

static int target(const unsigned char *arena, int64_t off, int i)
{
#if defined(DATA_BYTES) || defined(DATA_TOKENS)
	return ((const int32_t *)(const void *)(arena + off))[i * F + F - 1] % CLASSES;
#else
	return ((const int32_t *)(const void *)(arena + off))[i];
#endif
}

/* ---- kernels -------------------------------------------------------------------------------- */

static void k_init(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	uint64_t s = env->seed * 2654435761u + 1;
	for (int i = 0; i < CLASSES * F; i++) {
		s = s * 6364136223846793005u + 1442695040888963407u;
		at(arena, off[0])[i] = (float)((double)(s >> 40) / (1 << 24) - 0.5) * 0.1f;
	}
	memset(arena + off[1], 0, CLASSES * F * 4);
	memset(arena + off[2], 0, CLASSES * 4);
	memset(arena + off[3], 0, CLASSES * 4);
	memset(arena + off[4], 0, 8);
}

static void k_zero(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	(void)env;
	memset(arena + off[0], 0, CLASSES * F * 4);
	memset(arena + off[1], 0, CLASSES * 4);
	memset(arena + off[2], 0, 4);
}

#define FEATURES(NAME, N)                                                              \
	static void NAME(unsigned char *arena, const int64_t *off, const PlanEnv *env) \
	{                                                                              \
		const Pixel *x = (const Pixel *)(const void *)(arena + off[0]);        \
		(void)env;                                                             \
		for (int i = 0; i < (N)*F; i++)                                        \
			at(arena, off[1])[i] = (float)x[i] * X_SCALE;                  \
	}
FEATURES(k_features, MICRO)
FEATURES(k_features_eval, EVAL)
FEATURES(k_features_one, 1)

/* logits, b -> log-probabilities and the loss of one row; adds b to the row */
static float row_loss(float *row, const float *b, int y, float *p)
{
	float top = -INFINITY, sum = 0;
	for (int c = 0; c < CLASSES; c++)
		if ((row[c] += b[c]) > top || row[c] != row[c])
			top = row[c];
	for (int c = 0; c < CLASSES; c++)
		sum += p[c] = expf(row[c] - top);
	for (int c = 0; c < CLASSES; c++)
		p[c] /= sum;
	return logf(sum) + top - row[y];
}

/* logits, b, y -> dlogits; loss += */
static void k_loss(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	float *logits = at(arena, off[0]), *d = at(arena, off[3]);
	if (env->step == POISON)
		logits[3] = NAN;
	for (int i = 0; i < MICRO; i++) {
		int y = target(arena, off[2], i);
		at(arena, off[4])[0] +=
			row_loss(logits + i * CLASSES, at(arena, off[1]), y, d + i * CLASSES) /
			BATCH;
		d[i * CLASSES + y] -= 1;
		for (int c = 0; c < CLASSES; c++)
			d[i * CLASSES + c] /= BATCH;
	}
}

/* dw, dlogits -> gw +=, gb += */
static void k_add(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	(void)env;
	for (int i = 0; i < CLASSES * F; i++)
		at(arena, off[2])[i] += at(arena, off[0])[i];
	for (int i = 0; i < MICRO; i++)
		for (int c = 0; c < CLASSES; c++)
			at(arena, off[3])[c] += at(arena, off[1])[i * CLASSES + c];
}

/* gw, gb -> norm */
static void k_norm(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	float sum = 0;
	(void)env;
	for (int i = 0; i < CLASSES * F; i++)
		sum += at(arena, off[0])[i] * at(arena, off[0])[i];
	for (int c = 0; c < CLASSES; c++)
		sum += at(arena, off[1])[c] * at(arena, off[1])[c];
	at(arena, off[2])[0] = sqrtf(sum);
}

static void momentum(float *p, float *m, const float *g, int n)
{
	for (int i = 0; i < n; i++) {
		m[i] = m[i] * MOMENTUM_NUM / 10 + g[i];
		p[i] -= LR * m[i];
	}
}

/* gw, gb -> w, wm, b, bm, step, rate */
static void k_update(unsigned char *arena, const int64_t *off, const PlanEnv *env)
{
	(void)env;
	momentum(at(arena, off[2]), at(arena, off[3]), at(arena, off[0]), CLASSES * F);
	momentum(at(arena, off[4]), at(arena, off[5]), at(arena, off[1]), CLASSES);
	++*(int64_t *)(void *)(arena + off[6]);
	at(arena, off[7])[0] = LR;
}

/* logits, b, y -> loss, weight, correct, counted */
#define SCORE(NAME, N)                                                                          \
	static void NAME(unsigned char *arena, const int64_t *off, const PlanEnv *env)          \
	{                                                                                       \
		float p[CLASSES], loss = 0, correct = 0;                                        \
		(void)env;                                                                      \
		for (int i = 0; i < (N); i++) {                                                 \
			int y = target(arena, off[2], i), best = 0;                             \
			loss += row_loss(at(arena, off[0]) + i * CLASSES, at(arena, off[1]), y, \
					 p);                                                    \
			for (int c = 1; c < CLASSES; c++)                                       \
				best = p[c] > p[best] ? c : best;                               \
			correct += best == y;                                                   \
		}                                                                               \
		at(arena, off[3])[0] = loss / (N);                                              \
		at(arena, off[4])[0] = at(arena, off[6])[0] = (N);                              \
		at(arena, off[5])[0] = correct;                                                 \
	}
SCORE(k_score, EVAL)
SCORE(k_score_one, 1)

/* ---- the plan ------------------------------------------------------------------------------- */

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

#define KERNEL(FN, NAME, OUT, NOUT, ...)                                              \
	{                                                                             \
		.kind = PLAN_KERNEL, .fn = FN, .name = NAME, .source = "linear.dl:7", \
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

static const PlanStep init_steps[] = { KERNEL(k_init, "init", CLASSES *F * 4, 1, W, WM, B, BM,
					      STEP) };
static const PlanStep step_steps[] = {
	KERNEL(k_zero, "zero", 4, 1, GW, GB, LOSS),
	{ .kind = PLAN_LOOP, .index = 0, .name = "loop", .source = "" },
	INPUT(0, X),
	INPUT(1, Y),
	KERNEL(k_features, "features", MICRO *F * 4, 1, X, FEAT),
	PRIM(0, "matmul", MICRO *CLASSES * 4, FEAT, W, LOGITS),
	KERNEL(k_loss, "cross_entropy", 4, 1, LOGITS, B, Y, DLOGITS, LOSS),
	PRIM(1, "matmul_grad", CLASSES *F * 4, DLOGITS, FEAT, DW),
	KERNEL(k_add, "accumulate", CLASSES * 4, 1, DW, DLOGITS, GW, GB),
	{ .kind = PLAN_END, .name = "end", .source = "" },
	KERNEL(k_norm, "norm", 4, 1, GW, GB, NORM),
	KERNEL(k_update, "update", 4, 1, GW, GB, W, WM, B, BM, STEP, RATE),
	OUTPUT(0, LOSS),
	OUTPUT(1, NORM),
	OUTPUT(2, RATE),
};
static const PlanStep eval_steps[] = {
	INPUT(0, X),
	INPUT(1, Y),
	KERNEL(k_features_eval, "features", EVAL *F * 4, 1, X, FEAT),
	PRIM(2, "matmul", EVAL *CLASSES * 4, FEAT, W, LOGITS),
	KERNEL(k_score, "score", 4, 1, LOGITS, B, Y, LOSS, WEIGHT, CORRECT, COUNTED),
	OUTPUT(0, LOSS),
	OUTPUT(1, WEIGHT),
	OUTPUT(2, CORRECT),
	OUTPUT(3, COUNTED),
};
static const PlanStep eval1_steps[] = {
	INPUT(0, X),
	INPUT(1, Y),
	KERNEL(k_features_one, "features", F * 4, 1, X, FEAT),
	PRIM(3, "matmul", CLASSES * 4, FEAT, W, LOGITS),
	KERNEL(k_score_one, "score", 4, 1, LOGITS, B, Y, LOSS, WEIGHT, CORRECT, COUNTED),
	OUTPUT(0, LOSS),
	OUTPUT(1, WEIGHT),
	OUTPUT(2, CORRECT),
	OUTPUT(3, COUNTED),
};
static const PlanStep predict_steps[] = {
	INPUT(0, X),
	KERNEL(k_features_eval, "features", EVAL *F * 4, 1, X, FEAT),
	PRIM(2, "matmul", EVAL *CLASSES * 4, FEAT, W, LOGITS),
	OUTPUT(0, LOGITS),
};
static const PlanStep predict1_steps[] = {
	INPUT(0, X),
	KERNEL(k_features_one, "features", F * 4, 1, X, FEAT),
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
		.nsteps = COUNT(STEPS), .outputs = OUTPUTS, .noutputs = NOUT, .arena_bytes = END \
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
#ifdef DATA_BYTES
#define TYPE "bytes"
#else
#define TYPE "tokens"
#endif
static const PlanSetting settings[] = { TEXT("file", ""), TEXT("test_file", ""), WHOLE("window", F),
					NUMBER("validation", 0.1) };
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

const Plan dl_plan = {
	.version = PLAN_VERSION,
	.model = "linear",
	.model_path = "linear.dl",
	.target = "cpu",
	.isa = "",
	.fingerprint = "5eed0001",
	.json = "{\"model\":\"linear\"}",
	.arena_bytes = END,
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

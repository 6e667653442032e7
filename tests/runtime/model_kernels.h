/* The kernels of the hand-made trainer (model.c): for the CPU as C, and for CUDA (-DMODEL_CUDA) as the text
 * that `cc -E -P` makes of this file. One thread does all of it, but for `features`, so that both compute the same. */
#ifndef MODEL_KERNELS_H
#define MODEL_KERNELS_H

#ifdef MODEL_CUDA
typedef signed char int8_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef struct PlanEnv {
	uint64_t seed;
	int64_t step, micro, base;
	int32_t threads;
} PlanEnv;
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#define DEVICE static __device__
/* N: how many offsets there are, the numbers behind the places included. */
#define KERNEL(NAME, N)                                                                                  \
	typedef struct NAME##_off {                                                                       \
		int64_t at[N];                                                                            \
	} NAME##_off;                                                                                     \
	extern "C" __global__ void __launch_bounds__(32)                                                  \
		NAME(unsigned char *arena, const NAME##_off offsets, const PlanEnv *const env)
#define OFFSETS                          \
	const int64_t *off = offsets.at; \
	(void)env
#define SERIAL                           \
	OFFSETS;                         \
	if (blockIdx.x || threadIdx.x)   \
	return
#define EACH(I, COUNT) int I = (int)(blockIdx.x * blockDim.x + threadIdx.x); I < (COUNT); I += (int)(gridDim.x * blockDim.x)
#else
#include "runtime/plan.h"

#include <math.h>
#define DEVICE static
#define KERNEL(NAME, N) static void NAME(unsigned char *arena, const int64_t *off, const PlanEnv *env)
#define OFFSETS (void)env
#define SERIAL (void)env
#define EACH(I, COUNT) int I = 0; I < (COUNT); I++
#endif

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
#ifndef FAULT
#define FAULT -1
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

DEVICE float *at(unsigned char *arena, int64_t off)
{
	return (float *)(void *)(arena + off);
}

DEVICE void zero(float *p, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = 0;
}

DEVICE int target(const unsigned char *arena, int64_t off, int i)
{
#if defined(DATA_BYTES) || defined(DATA_TOKENS)
	return ((const int32_t *)(const void *)(arena + off))[i * F + F - 1] % CLASSES;
#else
	return ((const int32_t *)(const void *)(arena + off))[i];
#endif
}

/* ---- kernels -------------------------------------------------------------------------------- */

KERNEL(k_init, 5)
{
	SERIAL;
	uint64_t s = env->seed * 2654435761u + 1;
	for (int i = 0; i < CLASSES * F; i++) {
		s = s * 6364136223846793005u + 1442695040888963407u;
		at(arena, off[0])[i] = (float)((double)(s >> 40) / (1 << 24) - 0.5) * 0.1f;
	}
	zero(at(arena, off[1]), CLASSES * F);
	zero(at(arena, off[2]), CLASSES);
	zero(at(arena, off[3]), CLASSES);
	*(int64_t *)(void *)(arena + off[4]) = 0;
}

KERNEL(k_zero, 3)
{
	SERIAL;
	zero(at(arena, off[0]), CLASSES * F);
	zero(at(arena, off[1]), CLASSES);
	at(arena, off[2])[0] = 0;
}

#define FEATURES(NAME, N)                                                        \
	KERNEL(NAME, 2)                                                          \
	{                                                                        \
		OFFSETS;                                                         \
		const Pixel *x = (const Pixel *)(const void *)(arena + off[0]);  \
		for (EACH(i, (N)*F))                                             \
			at(arena, off[1])[i] = (float)x[i] * X_SCALE;            \
	}
FEATURES(k_features, MICRO)
FEATURES(k_features_eval, EVAL)
FEATURES(k_features_one, 1)

/* logits, b -> log-probabilities and the loss of one row; adds b to the row */
DEVICE float row_loss(float *row, const float *b, int y, float *p)
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
KERNEL(k_loss, 5)
{
	SERIAL;
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
KERNEL(k_add, 4)
{
	SERIAL;
	for (int i = 0; i < CLASSES * F; i++)
		at(arena, off[2])[i] += at(arena, off[0])[i];
	for (int i = 0; i < MICRO; i++)
		for (int c = 0; c < CLASSES; c++)
			at(arena, off[3])[c] += at(arena, off[1])[i * CLASSES + c];
}

/* gw, gb -> norm */
KERNEL(k_norm, 3)
{
	SERIAL;
	float sum = 0;
	for (int i = 0; i < CLASSES * F; i++)
		sum += at(arena, off[0])[i] * at(arena, off[0])[i];
	for (int c = 0; c < CLASSES; c++)
		sum += at(arena, off[1])[c] * at(arena, off[1])[c];
	at(arena, off[2])[0] = sqrtf(sum);
}

DEVICE void momentum(float *p, float *m, const float *g, int n)
{
	for (int i = 0; i < n; i++) {
		m[i] = m[i] * MOMENTUM_NUM / 10 + g[i];
		p[i] -= LR * m[i];
	}
}

/* gw, gb -> w, wm, b, bm, step, rate */
KERNEL(k_update, 8)
{
	SERIAL;
	if (env->step == FAULT)
		arena += (int64_t)1 << 40;
	momentum(at(arena, off[2]), at(arena, off[3]), at(arena, off[0]), CLASSES * F);
	momentum(at(arena, off[4]), at(arena, off[5]), at(arena, off[1]), CLASSES);
	++*(int64_t *)(void *)(arena + off[6]);
	at(arena, off[7])[0] = LR;
}

/* logits, b, y -> loss, weight, correct, counted */
#define SCORE(NAME, N)                                                                          \
	KERNEL(NAME, 7)                                                                         \
	{                                                                                       \
		SERIAL;                                                                         \
		float p[CLASSES], loss = 0, correct = 0;                                        \
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

#endif

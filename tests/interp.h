/* A reference interpreter of the IR: every primitive op, written for plainness alone.
 *
 * Elements are held as doubles and rounded to their dtype after every op, so f32 arithmetic (+ - *
 * / sqrt) is exact f32 arithmetic, functions are correctly rounded but for rare ties, and a
 * reduction is summed in f64 and rounded once. 16-bit numbers are rounded to f32 first, as an op
 * that computes in f32 does. Integers are exact up to 2^53. Macros and opaque nodes are not run. */
#ifndef DLC_TESTS_INTERP_H
#define DLC_TESTS_INTERP_H

#include "ir/ir.h"

/* A tensor under a name: a variable, an input of the whole batch, or an output. */
typedef struct InterpSlot {
	const char *name;
	Type type;
	double *v;
	struct InterpSlot *next;
} InterpSlot;

typedef struct InterpEnv {
	Arena *arena; /* slots and their elements */
	uint64_t seed;
	int64_t step;
	int64_t base; /* samples before the first one of the function's batch */
	InterpSlot *vars, *inputs, *outputs;
	/* Results of attention and its gradient are the sums of the magnitudes of their last sums' terms: what rounding
	 * one factor of each term can cost is a share of that. */
	bool magnitudes;
	char error[256]; /* why interp_func returned false */
} InterpEnv;

/* The slot of a name in one of the lists, made with zeros where there is none yet. */
InterpSlot *interp_slot(InterpEnv *env, InterpSlot **list, const char *name, const Type *type);
/* NULL where there is none. */
InterpSlot *interp_find(InterpSlot *list, const char *name);

/* Runs a function, at any stage of the pipeline: reads inputs (all of the function's batch), reads
 * and writes variables, fills outputs. False and env->error where something is missing or not to be
 * run. Uses Value.aux. */
bool interp_func(const Func *f, InterpEnv *env);

double interp_gelu_grad(double x);
/* v rounded to a dtype. */
double interp_round(DType t, double v);
/* The bits of a 16-bit float, and the number of these bits. */
uint16_t interp_bits(DType t, double v);
double interp_value(DType t, uint16_t bits);
/* The first two words of Philox 4x32-10 for one element. */
void interp_philox(uint64_t element, uint32_t stream, uint32_t step, uint64_t seed,
		   uint32_t out[2]);

/* For the interpreter's own files: K_MATRIX and K_KERNEL ops; false where the op is unknown.
 * Operands and results are in Value.aux; results are zeroed. magnitudes: as in InterpEnv. */
bool interp_kernel(const Node *n, bool magnitudes);

#endif

/* A planned module as lists: the steps of each function, the distinct kernels and library calls
 * that they use.
 *
 * emit.c makes it, cpu.c/cpu_special.c print the kernels, plan_write.c prints the tables, build.c
 * compiles both. */
#ifndef DLC_CODEGEN_EMIT_H
#define DLC_CODEGEN_EMIT_H

#include "backend.h"
#include "cpu.h"

typedef struct EmitKernel {
	const char *text;    /* without a name; equal text, one kernel */
	const char *comment; /* "add relu -> f32[64,128]" of the first node that uses it */
	bool special;	     /* goes to the file of special kernels */
	double weight;	     /* length, for dividing files */
} EmitKernel;

typedef struct EmitStep {
	PlanStepKind kind;
	const Node *node;
	int32_t index; /* kernel, library call, input, output or loop */
	int64_t n;     /* kernel: the number of its rows or units */
} EmitStep;

/* A step's off[], as PlanKernel documents it: noff places, the last nwork of them its workspace and
 * the nout before that its results; then `nown` numbers of a kernel's own. */
typedef struct EmitOffsets {
	int64_t *off;
	int noff, nout, nwork, nown;
} EmitOffsets;

typedef struct EmitFunc {
	const Func *func;
	VEC(EmitStep) steps;
	VEC(const Node *) outputs;
	VEC(PlanLoop) loops;
} EmitFunc;

typedef struct Emit {
	Arena *a;
	const Module *m;
	VEC(EmitKernel) kernels;
	VEC(PlanPrim) prims;
	VEC(const Node *) inputs; /* distinct by name */
	VEC(EmitFunc) funcs;	  /* all but forward */
	int32_t *table;		  /* open hash of kernels by text */
	int32_t table_size;
	bool failed;
} Emit;

/* Walks all functions but `forward`. NULL after a diagnostic (an op that cannot be run, a type
 * without kernels). */
Emit *emit_module(Arena *a, const Module *m);
/* The arena offset of a value: behind views, of a variable's storage. */
int64_t emit_offset(const Module *m, const Value *v);
EmitOffsets emit_offsets(Arena *a, const Module *m, const EmitStep *s);
/* Short name of a kernel or op: "add+relu", "matmul". */
const char *emit_name(Arena *a, const Node *n);

/* plan.c for a placed module; kernels are k0, k1, ... */
void plan_write(FILE *out, Emit *e, const BuildOptions *o);
/* One kernel as a C function. */
void kernel_print(FILE *out, const Emit *e, int kernel);
/* What the file of special kernels starts with. */
void special_prelude(FILE *out, const Emit *e);
/* All kernels as one text, special ones last. */
void kernels_write(FILE *out, const Emit *e);

bool cpu_build(const Module *m, const BuildOptions *o);
bool cpu_emit(FILE *out, const Module *m, const BuildOptions *o);

#endif

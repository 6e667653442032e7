/* A planned module as lists: the steps of each function, the distinct kernels and library calls
 * that they use.
 *
 * emit.c makes it and asks a KernelPrinter for the text of kernels; plan_write.c prints the tables,
 * a build of the back end's compiles both.
 *
 * A kernel's off[] holds the node's operands, then its results, then its workspace, then N, the
 * number of rows or units, then the streams of its random ops. N often is all that kernels for
 * different batches differ in, streams all that equal layers differ in; so they are no part of the
 * text, and nodes that are equal but for them share one kernel. */
#ifndef DLC_CODEGEN_EMIT_H
#define DLC_CODEGEN_EMIT_H

#include "../runtime/plan.h"
#include "backend.h"
#include "loop.h"

typedef struct EmitKernel {
	const char *text;    /* without a name; equal text, one kernel */
	const char *comment; /* "add relu -> f32[64,128]" of the first node that uses it */
	bool special;	     /* goes to the file of special kernels */
	double weight;	     /* length, for dividing files */
	const Node *node;    /* the first that uses it */
	int module;	     /* CUDA: index into the units it is compiled in */
} EmitKernel;

typedef struct KernelText {
	const char *text; /* NULL: no kernel */
	int64_t n;	  /* N */
	const PlanLaunch *launch; /* CUDA: what a step launches; names and modules are not known yet */
	int nlaunch;
	bool joins; /* CUDA: launches of equal kernels may become one (KernelPrinter.group) */
} KernelText;

typedef struct Emit Emit;

/* A back end's text of kernels. */
typedef struct KernelPrinter {
	/* A fused kernel; `micro` is the batch of the function or loop body that it is in. No text where it has sums over rows that cannot be. */
	KernelText (*fused)(Arena *a, const Node *fused, const Loop *l, int64_t micro);
	/* The kernel of `members` steps whose own kernels, which join, equal that of the node; its launch has the node's grid. off[]:
	 * operands of all members, one member after the other, results of all, numbers of all; then each member's
	 * first block. NULL: the back end has none. */
	KernelText (*group)(Arena *a, const Node *fused, const Loop *l, int64_t micro, int members);
	/* Any other node that is no library call. Goes to the file of special kernels. */
	KernelText (*special)(Arena *a, const Node *n, const char *arch);
	/* The library call of a node; false where the library does not offer it. */
	bool (*library)(const Node *n, PlanPrim *p);
	/* What files of kernels start with; what special kernels need besides. A kernel under its name. */
	void (*prelude)(FILE *out, const Emit *e, bool special);
	void (*print)(FILE *out, const Emit *e, int number);
} KernelPrinter;

typedef struct EmitStep {
	PlanStepKind kind;
	const Node *node;
	int32_t index; /* kernel, library call, input, output, loop or copy */
	int64_t n;     /* kernel: the number of its rows or units */
	int64_t micro; /* the batch of the function or loop body that it is in */
	bool joins;
	const PlanLaunch *launch; /* CUDA */
	int nlaunch;
	const struct EmitStep *member; /* of a group (group.h), whose node is the first one's; NULL */
	int nmembers;
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
	Map copies; /* to host memory and back: what each makes, by number */
	int32_t ncopies;
} EmitFunc;

struct Emit {
	Arena *a;
	const Module *m;
	const KernelPrinter *printer;
	const char *arch; /* NULL: the machine at hand */
	VEC(EmitKernel) kernels;
	VEC(PlanPrim) prims;
	VEC(const Node *) inputs; /* distinct by name */
	VEC(EmitFunc) funcs;	  /* all but forward */
	int32_t *table;		  /* open hash of kernels by text */
	int32_t table_size;
	bool failed;
};

/* Walks all functions but `forward`. NULL after a diagnostic (an op that cannot be run, a type
 * without kernels). */
Emit *emit_module(Arena *a, const Module *m, const KernelPrinter *printer, const char *arch);
/* The arena offset of a value: behind views, of a variable's storage. */
int64_t emit_offset(const Module *m, const Value *v);
EmitOffsets emit_offsets(Arena *a, const Module *m, const EmitStep *s);
/* Result number i of a step: of a group, those of its members one after another. */
const Value *emit_result(const EmitStep *s, int i);
/* The number of a kernel: a new one, unless there is one of this text. */
int32_t emit_kernel(Emit *e, const Node *n, const char *text, bool special);
/* What a device starts, kernels and library calls, as a JSON object by function: `call` in one call of it, `outside` of
 * that not in a loop, `trip` in one trip of each loop, in order; bytes that loop nests move in a call, and their floor (traffic.h).
 * {"step": {"call": 80, "outside": 20, "trip": [30], "moved_bytes": 4096, "floor_bytes": 4000}} */
const char *emit_launches(Arena *a, const Emit *e);
/* Short name of a kernel or op: "add+relu", "matmul". */
const char *emit_name(Arena *a, const Node *n);
/* Of a step; of a group "add+relu x12". */
const char *emit_step_name(Arena *a, const EmitStep *s);

/* Kernels compiled for a GPU: files of the assembler's `.incbin`. */
typedef struct PlanUnit {
	const char *cubin, *ptx; /* paths; the PTX is packed (zlib) */
	int64_t cubin_bytes, ptx_packed_bytes, ptx_bytes;
} PlanUnit;

/* plan.c for a placed module; kernels are k0, k1, ... On a GPU they are in `units`, else NULL. */
void plan_write(FILE *out, Emit *e, const BuildOptions *o, const PlanUnit *units, int nunits);
/* One kernel under its name, below a comment. */
void kernel_print(FILE *out, const Emit *e, int kernel);
/* All kernels as one text, special ones last, on a GPU with their launches. */
void kernels_write(FILE *out, const Emit *e);

#endif

/* Kernel text for the CPU: the parts of the back end `cpu` (backend.c puts them together).
 *
 * A kernel's text is a C function without its name: "(unsigned char *arena, const int64_t *off,
 * const PlanEnv *env)\n{...}". off[] holds the node's operands, then its results, then its
 * workspace, then N, the number of rows or units, then the streams of its random ops. N often is
 * all that kernels for different batches differ in, streams all that equal layers differ in; so
 * they are no part of the text, and nodes that are equal but for them share one function. */
#ifndef DLC_CODEGEN_CPU_H
#define DLC_CODEGEN_CPU_H

#include "../runtime/plan.h"
#include "loop.h"

/* C type of a stored element ("uint8_t" for bool) and of a value in a register ("int32_t" for
 * bool). */
const char *cpu_ctype(DType t);
const char *cpu_vtype(DType t);
/* A literal of the type, exact. */
const char *cpu_literal(Arena *a, DType t, double v);

typedef struct CpuText {
	const char *text; /* NULL: no kernel */
	int64_t n;	  /* N */
} CpuText;

/* Where N stands in off[]: behind the places. */
int cpu_own_numbers(const Node *n);
/* The streams of a kernel's random ops, each once, in order of first use; they follow N. Returns
 * how many. */
int cpu_streams(Arena *a, const Node *n, int64_t **stream);

/* A fused kernel. */
CpuText cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro);

/* A K_KERNEL node or a library call that the library does not offer (f64). Goes to the file of
 * special kernels. */
CpuText cpu_special_text(Arena *a, const Node *n);
int64_t cpu_special_workspace(const Node *n, int threads);

/* The library call of a K_MATRIX node; false where the library does not offer it (f64). */
bool cpu_prim(const Node *n, PlanPrim *p);

#endif

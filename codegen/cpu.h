/* Kernel text for the CPU: the parts of the back end `cpu` (backend.c puts them together).
 *
 * A kernel's text is a C function without its name: "(unsigned char *arena, const int64_t *off,
 * const PlanEnv *env, const int64_t N)\n{...}". off[] holds the node's operands, then its results,
 * then its workspace; N is the number of rows or units, which often is all that kernels for
 * different batches differ in. Equal nodes give equal text, so that equal layers share one
 * function. */
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

/* A fused kernel. */
CpuText cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro);

/* A K_KERNEL node or a library call that the library does not offer (f64). Goes to the file of
 * special kernels. */
CpuText cpu_special_text(Arena *a, const Node *n);
int64_t cpu_special_workspace(const Node *n, int threads);

/* The library call of a K_MATRIX node; false where the library does not offer it (f64). */
bool cpu_prim(const Node *n, PlanPrim *p);

#endif

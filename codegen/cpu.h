/* Kernel text for the CPU: the parts of the back end `cpu` (backend.c puts them together).
 *
 * A kernel's text is a C function without its name: "(unsigned char *arena, const int64_t *off, const PlanEnv *env)\n{...}".
 * off[] holds the node's operands, then its results, then its workspace. Equal nodes give equal text, so that equal
 * layers share one function. */
#ifndef DLC_CODEGEN_CPU_H
#define DLC_CODEGEN_CPU_H

#include "../runtime/plan.h"
#include "loop.h"

/* C type of a stored element ("uint8_t" for bool) and of a value in a register ("int32_t" for bool). */
const char *cpu_ctype(DType t);
const char *cpu_vtype(DType t);
/* A literal of the type, exact. */
const char *cpu_literal(Arena *a, DType t, double v);

/* A fused kernel. */
const char *cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro);

/* A K_KERNEL node, a library call that the library does not offer (f64), or a leaf that is stored by itself. NULL where
 * there is none. Goes to the file of special kernels. */
const char *cpu_special_text(Arena *a, const Node *n, int64_t micro);
int64_t cpu_special_workspace(const Node *n, int threads);

/* The library call of a K_MATRIX node; false where the library does not offer it (f64). */
bool cpu_prim(const Node *n, PlanPrim *p);

#endif

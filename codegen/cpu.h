/* The parts of the back end `cpu` (backend.c puts them together). A kernel's text is a C function
 * without its name: "(unsigned char *arena, const int64_t *off, const PlanEnv *env)\n{...}". */
#ifndef DLC_CODEGEN_CPU_H
#define DLC_CODEGEN_CPU_H

#include "emit.h"

extern const KernelPrinter cpu_printer;

/* A fused kernel. */
KernelText cpu_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro);
/* A K_KERNEL node, or a product that the library does not offer (f64, and 16 bits on some
 * processors). */
KernelText cpu_special_text(Arena *a, const Node *n, const char *arch);
int64_t cpu_special_workspace(const Node *n, int threads);
/* The library call of a K_MATRIX node; false where the library does not offer it. */
bool cpu_prim(const Node *n, PlanPrim *p);

bool cpu_build(const Module *m, const BuildOptions *o);
bool cpu_emit(FILE *out, const Module *m, const BuildOptions *o);

#endif

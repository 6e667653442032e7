/* The parts of the back end `cuda` (backend.c puts them together). A kernel's text is CUDA C with '$' for
 * its name: one `extern "C" __global__` function a launch, $, $_1, $_2, .., each as PlanLaunch
 * (runtime/plan.h) asks. */
#ifndef DLC_CODEGEN_CUDA_H
#define DLC_CODEGEN_CUDA_H

#include "emit.h"

extern const KernelPrinter cuda_printer;

KernelText cuda_fused_text(Arena *a, const Node *fused, const Loop *l, int64_t micro);
KernelText cuda_group_text(Arena *a, const Node *fused, const Loop *l, int64_t micro, int members);
/* A node that is no loop nest and no library call; no text where there is no kernel for it. */
KernelText cuda_special_text(Arena *a, const Node *n, const char *arch);
bool cuda_library(const Node *n, PlanPrim *p);

/* What a unit for NVRTC starts with: the text of all that kernels include. */
void cuda_print_unit_head(FILE *out, bool special);

/* Partial results of a loop nest; scratch of any other node. */
int64_t cuda_fused_workspace(const Loop *l);
int64_t cuda_special_workspace(const Node *n);

/* Whether so many f32 sums over rows, of a length, can be added up by a kernel that works row by row. */
bool cuda_sums_beside_rows(int64_t rows, int64_t length, int sums);

const char *cuda_launches(Arena *a, const Module *m, const char *arch);
bool cuda_print_launches(FILE *out, const Module *m, const char *arch);
/* backend.h */
bool cuda_card(BackendCard *card, int number, const char *what, Diag *diag);
bool cuda_build(const Module *m, const BuildOptions *o);
bool cuda_emit(FILE *out, const Module *m, const BuildOptions *o);

#endif

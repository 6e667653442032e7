/* Library calls (PlanPrim) on an NVIDIA card: matrix products by cuBLASLt.
 *
 * A CublasLib is made once, in the current context. cublas_bind describes one PlanStep to the library
 * and chooses its algorithm; afterwards cublas_run only enqueues. All scratch memory comes from the
 * step's workspace in the arena. */
#ifndef DLC_RUNTIME_PRIM_CUBLAS_H
#define DLC_RUNTIME_PRIM_CUBLAS_H

#include "cuda_api.h"
#include "plan.h"

typedef struct CublasLib CublasLib;
typedef struct CublasCall CublasCall;

enum { CUBLAS_WHY = 128 };

CublasLib *cublas_lib_open(Fail *f); /* NULL after filling f */
void cublas_lib_close(CublasLib *lib); /* frees the calls too; NULL is none */
/* The call of one step: off as in PlanStep for PLAN_PRIM, counted from `arena`. NULL after filling f. */
CublasCall *cublas_bind(CublasLib *lib, const PlanPrim *p, CuPtr arena, const int64_t *off, Fail *f);
LtStatus cublas_run(const CublasLib *lib, const CublasCall *c, CuStream s);
/* The chosen algorithm, for profiles: "cublasLt algorithm 66, tile 20, stages 35". */
const char *cublas_describe(const CublasCall *c);

#endif

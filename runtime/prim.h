/* Library calls (PlanPrim) on the CPU: matrix products and convolutions by oneDNN.
 *
 * A PrimLib is made once. prim_bind prepares one PlanStep: afterwards prim_run only executes. All
 * scratch memory comes from the step's workspace in the arena, whose size plan_prim_workspace tells
 * the planner (plan.h). */
#ifndef DLC_RUNTIME_PRIM_H
#define DLC_RUNTIME_PRIM_H

#include "plan.h"

typedef struct PrimLib PrimLib;
typedef struct PrimCall PrimCall;

enum { PRIM_WHY = 256 };

/* The library with at most `threads` threads (it sets OpenMP's number for the process); NULL after
 * filling `why`. */
PrimLib *prim_open(int threads, char why[PRIM_WHY]);
/* The call of one step: off as in PlanStep for PLAN_PRIM, counted from `arena`. NULL after filling
 * `why`: the library does not offer the call here, or needs more than p->work_bytes (a plan made
 * for another processor). */
PrimCall *prim_bind(PrimLib *lib, const PlanPrim *p, unsigned char *arena, const int64_t *off,
		    char why[PRIM_WHY]);
/* Runs it to its end; false where the library reports a failure. */
bool prim_run(PrimCall *c);
/* Frees the calls too. */
void prim_close(PrimLib *lib);

/* The library's name for the implementation chosen for `p`, for profiles; "" where there is none.
 */
void prim_describe(const PlanPrim *p, int threads, char out[PRIM_WHY]);

#endif

/* In place of prim_dnnl.c where tests of the back end `cuda` are linked for machines without oneDNN: its products and
 * convolutions are the CPU's, and are not there. */
#include "runtime/prim.h"

int64_t plan_prim_workspace(const PlanPrim *p, int threads)
{
	(void)p, (void)threads;
	return -1;
}

PlanDType plan_prim_compute(PlanDType t)
{
	return t;
}

/* Texts that NVRTC compiles side by side, each in a process of its own, or that the cache has. */
#ifndef DLC_CODEGEN_CUDA_UNIT_H
#define DLC_CODEGEN_CUDA_UNIT_H

#include "jobs.h"
#include "nvrtc.h"

typedef struct CudaUnit {
	Nvrtc *lib;
	const char *text, *arch;
	const char *path; /* of the result, while it is on its way; what the compiler says goes to PATH.log */
	bool report_only; /* the result is to have its log alone */
	bool cached;      /* set by cuda_units_start */
	NvrtcResult result;
} CudaUnit;

/* Looks each unit up, and starts a job for those that the cache has not; at most MAX_JOBS of them. False where there can be no process
 * (errno). */
bool cuda_units_start(Arena *a, Jobs *jobs, CudaUnit *unit, int n, const char *tmp);

/* Behind jobs_wait: reads the results of the jobs, and keeps them in the cache. Returns the first unit without a result, NULL where all have
 * theirs. */
const CudaUnit *cuda_units_finish(Arena *a, CudaUnit *unit, int n);

#endif

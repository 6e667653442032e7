/* Units of CUDA C, from text to results (see cuda_unit.h). A result comes back from its process as a file. */
#include "cuda_unit.h"

#include <stdio.h>

static int compile(void *ctx)
{
	CudaUnit *u = ctx;

	if (!nvrtc_compile(u->lib, u->text, u->arch, &u->result)) {
		puts(u->result.log);
		return 1;
	}
	if (u->report_only)
		u->result.cubin_bytes = u->result.ptx_packed_bytes = u->result.ptx_bytes = 0;
	return nvrtc_write(u->path, &u->result) ? 0 : 1;
}

bool cuda_units_start(Arena *a, Jobs *jobs, CudaUnit *unit, int n, const char *tmp)
{
	for (int i = 0; i < n; i++) {
		CudaUnit *u = &unit[i];

		u->cached = nvrtc_cached(u->lib, u->text, u->arch, &u->result);
		if (!u->cached && !jobs_call(jobs, compile, u, arena_printf(a, "%s.log", u->path), tmp))
			return false;
	}
	return true;
}

const CudaUnit *cuda_units_finish(Arena *a, CudaUnit *unit, int n)
{
	for (int i = 0; i < n; i++) {
		CudaUnit *u = &unit[i];

		if (u->cached)
			continue;
		if (!nvrtc_read(a, u->path, &u->result))
			return u;
		nvrtc_keep(u->lib, u->text, u->arch, &u->result);
	}
	return NULL;
}

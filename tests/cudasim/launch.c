/* One launch: what the driver would refuse, then its blocks, one after the other, in the order that DL_SIM_ORDER names. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { STATIC_MAX = 48 * 1024, DROP_SHADOW = 64 << 20 };

CUresult launch_make(Launch *l, SimFunction *f, SimDim grid, SimDim block, uint32_t shared, void *const *params)
{
	const SimKernel *k = f->kernel;
	uint64_t threads = (uint64_t)block.x * block.y * block.z;
	*l = (Launch){.f = f, .grid = grid, .block = block, .shared = shared};
	if (threads == 0 || (uint64_t)grid.x * grid.y * grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "launch of %s: grid %u x %u x %u, block %u x %u x %u", f->name, grid.x, grid.y, grid.z, block.x, block.y, block.z);
	if (threads > SIM_MAX_THREADS || block.z > 64)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "launch of %s: a block of %llu threads, above 1024", f->name, (unsigned long long)threads);
	if (k->max_threads && threads > k->max_threads)
		return violation_host(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "launch of %s: a block of %llu threads, above its __launch_bounds__(%u)", f->name,
				      (unsigned long long)threads, k->max_threads);
	if (shared > (uint32_t)f->max_dynamic)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "launch of %s: %u bytes of dynamic shared memory, above the %d that cuFuncSetAttribute allowed", f->name, shared,
				      f->max_dynamic);
	uint32_t at = 0;
	l->arg_at = calloc(k->nparams + 1, sizeof *l->arg_at);
	for (uint32_t i = 0; i < k->nparams; i++) {
		l->arg_at[i] = at;
		at += (k->sizes[i] + 15u) & ~15u;
	}
	if (at > SIM_MAX_PARAMS)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "launch of %s: %u bytes of parameters, above %d", f->name, at, SIM_MAX_PARAMS);
	l->args = aligned_alloc(16, (at + 16u) & ~15u);
	if (!l->args || !l->arg_at || (k->nparams && !params))
		return CUDA_ERROR_INVALID_VALUE;
	for (uint32_t i = 0; i < k->nparams; i++)
		memcpy(l->args + l->arg_at[i], params[i], k->sizes[i]);
	if (k->nparams > 0 && k->sizes[0] == sizeof l->arena)
		memcpy(&l->arena, l->args, sizeof l->arena);
	plan_extents(l);
	return CUDA_SUCCESS;
}

void launch_free(Launch *l)
{
	free(l->args);
	free(l->arg_at);
	free(l->extents);
}

/* Static shared memory that the blocks have touched, and dynamic: within the chip's limits. */
static CUresult shared_used(const Launch *l)
{
	size_t bytes = 0;
	for (int i = 0; region_at(i); i++)
		if (region_at(i)->kind == RG_SHARED && region_at(i)->used)
			bytes += region_at(i)->bytes;
	if (bytes > STATIC_MAX)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "%s uses %zu bytes of static shared memory, above 49152", l->f->name, bytes);
	if (bytes + l->shared > (size_t)sim_shared_optin())
		return violation_host(CUDA_ERROR_INVALID_VALUE, "%s uses %zu bytes of shared memory, above the %d of this chip", l->f->name, bytes + l->shared,
				      sim_shared_optin());
	return CUDA_SUCCESS;
}

CUresult launch_run(const Launch *l)
{
	Exec *x = &sim_exec;
	uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
	void **args = calloc(l->f->kernel->nparams + 1, sizeof *args);
	uint32_t *order = malloc(n * sizeof *order);
	if (!args || !order) {
		free(args);
		free(order);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (uint32_t i = 0; i < l->f->kernel->nparams; i++)
		args[i] = l->args + l->arg_at[i];
	for (int i = 0; region_at(i); i++)
		region_at(i)->used = false;
	if (l->extents)
		plan_forget(l);
	x->launch = l;
	x->failed = CUDA_SUCCESS;
	x->launch_first = x->stamp + 1;
	fence_launch();
	SimNow *now = l->f->module->info->now;
	now->block_dim = l->block;
	now->grid_dim = l->grid;
	sim_permute(order, (uint32_t)n, x->stamp);
	CUresult e = CUDA_SUCCESS;
	for (uint64_t i = 0; i < n && e == CUDA_SUCCESS; i++) {
		uint32_t b = order[i];
		now->block = (SimDim){b % l->grid.x, b / l->grid.x % l->grid.y, b / (l->grid.x * l->grid.y)};
		e = block_run(l->block, args);
	}
	if (e == CUDA_SUCCESS)
		e = shared_used(l);
	x->launch = NULL;
	x->stack_lo = x->stack_hi = 0;
	free(args);
	free(order);
	if (x->touched > DROP_SHADOW) {
		memory_drop_shadow();
		x->touched = 0;
	}
	return e;
}

/* The back ends by name, and what the embedded one, `cpu`, can do. */
#include "backend.h"

#include <string.h>

#include "cpu.h"

/* Element-wise ops, reductions and moves of elements; views stay outside. */
static bool cpu_fusable(const Node *n)
{
	OpKind kind = ir_ops[n->op].kind;
	return kind == K_EWISE || kind == K_REDUCE || (kind == K_SHAPE && n->op != OP_batch_sum);
}

/* A library that cannot do a call has no workspace for it; building says so. */
static int64_t prim_workspace(const PlanPrim *p, int threads)
{
	int64_t bytes = plan_prim_workspace(p, threads);
	return bytes < 0 ? 0 : bytes;
}

static int64_t cpu_workspace(const Node *n, int threads)
{
	PlanPrim p;
	if (cpu_prim(n, &p))
		return prim_workspace(&p, threads);
	if (n->op == OP_opaque)
		return ir_int(n, "workspace");
	if (n->op != OP_fused)
		return cpu_special_workspace(n, threads);
	Arena *scratch = arena_new();
	const Loop *l = loop_build(scratch, n, 0);
	int64_t bytes = l ? l->work_bytes : 0;
	arena_free(scratch);
	return bytes;
}

static const Backend backends[] = {
	{ "cpu", "generated C, compiled by the system's compiler; products by oneDNN", cpu_fusable,
	  cpu_workspace, true, cpu_emit, cpu_build },
};

const Backend *backend_find(const char *name)
{
	for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
		if (strcmp(backends[i].name, name) == 0)
			return &backends[i];
	return NULL;
}

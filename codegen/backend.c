/* The back ends by name, and what they can do. */
#include "backend.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "cuda.h"

/* Element-wise ops, reductions and moves of elements; views stay outside. */
static bool fusable(const Node *n)
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

static int64_t cuda_workspace(const Node *n, int threads)
{
	(void)threads;
	if (n->op == OP_opaque)
		return ir_int(n, "workspace");
	if (n->op != OP_fused)
		return cuda_special_workspace(n);
	Arena *scratch = arena_new();
	const Loop *l = loop_build(scratch, n, 0);
	int64_t bytes = l ? cuda_fused_workspace(l) : 0;
	arena_free(scratch);
	return bytes;
}

/* The libraries add to sums (prim_dnnl.c, prim_cublas.c), and so do the kernels of special.h and conv.cuh and the generated ones of
 * embedding_grad. */
static bool accumulates(const Node *n)
{
	return (ir_ops[n->op].flags & OPF_ACC) != 0;
}

/* cuBLASLt, for matrices that are no batch. Sizes that are multiples of 8 are those for which its tensor-core kernels are made, and its
 * second result or operand needs rows of such a size. */
static bool cuda_epilogue(const Node *n, OpCode op)
{
	PlanPrim p;
	if (op == OP_attention_grad_qkv)
		return true;
	if (!cuda_library(n, &p) || p.ndim != 2 || p.dtype == PD_F64)
		return false;
	if (op == OP_matmul_sums && p.dtype != PD_F32 && p.out != PD_F32)
		return false;
	return p.dims[2][0] % 8 == 0 && p.dims[2][1] % 8 == 0 && p.dims[0][1] % 8 == 0;
}

static const Backend backends[] = {
	{ "cpu", "generated C, compiled by the system's compiler; products by oneDNN", fusable,
	  cpu_workspace, accumulates, NULL, NULL, true, false, false, NULL, NULL, "c", cpu_emit, NULL, NULL, NULL, cpu_build },
	{ "cuda", "generated CUDA C, compiled by NVRTC; products by cuBLASLt", fusable, cuda_workspace, accumulates, cuda_epilogue, cuda_sums_beside_rows, true, true, true,
	  "sm_90, sm_80, sm_86, sm_89, sm_100, sm_120", "h200, a100, rtx4090, rtx4090, h200, rtx4090", "cuda", cuda_emit,
	  cuda_launches, cuda_print_launches, cuda_card, cuda_build },
};

const Backend *backend_find(const char *name)
{
	for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
		if (strcmp(backends[i].name, name) == 0)
			return &backends[i];
	return NULL;
}

const char *backend_names(void) { return "cpu, cuda"; }

/* Entry number i of a list by commas; NULL behind its end. */
static const char *entry(Arena *a, const char *list, int i)
{
	while (i-- > 0 && list)
		list = strchr(list, ',') ? strchr(list, ',') + 2 : NULL;
	return list ? arena_strndup(a, list, strcspn(list, ",")) : NULL;
}

const char *backend_machine(Arena *a, const Backend *b, const char *arch)
{
	const char *x;
	for (int i = 0; b->archs && (x = entry(a, b->archs, i)); i++)
		if (strcmp(x, arch) == 0)
			return entry(a, b->machines, i);
	return NULL;
}

/* "sm_90" as 90; 0 where it is none. */
static int arch_number(const char *arch)
{
	return strncmp(arch, "sm_", 3) == 0 ? atoi(arch + 3) : 0;
}

const char *backend_arch_for(Arena *a, const Backend *b, const char *card)
{
	const char *best = NULL, *x;
	for (int i = 0; b->archs && (x = entry(a, b->archs, i)); i++)
		if (arch_number(x) <= arch_number(card) && (!best || arch_number(x) > arch_number(best)))
			best = x;
	return best;
}

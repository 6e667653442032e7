/* Attention and convolutions on CUDA: which of the kernels in attention.cuh and conv.cuh a node is, with which tiles, how they are
 * launched, and what workspace they need.
 *
 * Tiles depend on the node's shape and on the shared memory that a block may have on the processor; results are bitwise
 * repeatable, and the split of sums (gradient of w) depends on the shape alone. Not taken: f64; heads of more than 256; sizes that do not
 * fit 32-bit indices within a sample. */
#ifndef DLC_CODEGEN_CUDA_TENSOR_H
#define DLC_CODEGEN_CUDA_TENSOR_H

#include "../ir/ir.h"
#include "../runtime/plan.h"

enum {
	CUDA_SHARED_LEAST = 99 << 10, /* bytes of shared memory that a block may have on every processor from sm_80 on */
	CUDA_TENSOR_LAUNCHES = 2
};

/* Text as cuda.h describes it ('$' is the name) behind cuda_tensor_prelude; modules of the launches are the caller's. */
typedef struct CudaTensor {
	const char *text;
	PlanLaunch launch[CUDA_TENSOR_LAUNCHES];
	int nlaunch;
} CudaTensor;

/* False: there is no kernel for the node. `shared`: bytes of shared memory that a block may have. */
bool cuda_tensor_text(Arena *a, const Node *n, int64_t shared, CudaTensor *out);
/* Bytes; 0 for none. */
int64_t cuda_tensor_workspace(const Node *n);
/* Bytes of shared memory of a block on an architecture ("sm_90"). */
int64_t cuda_shared_limit(const char *arch);
/* What the text stands behind, itself behind cuda_types.h and scalar.h. */
void cuda_tensor_prelude(FILE *out);

#endif

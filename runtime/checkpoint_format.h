/* What writing and reading checkpoints share. */
#ifndef DLC_RUNTIME_CHECKPOINT_FORMAT_H
#define DLC_RUNTIME_CHECKPOINT_FORMAT_H

#include "plan.h"

#include <stddef.h>

#define DATA_HASH_START 0x9ae16a3b2f90404fu

/* A 64-bit hash of the tensors' bytes, continued from h; it finds damage, it is no protection
 * against intent. */
uint64_t data_hash(uint64_t h, const void *p, size_t n);

const char *safetensors_dtype(PlanDType t);         /* "F32" */
PlanDType safetensors_dtype_from(const char *name); /* PD_NONE when unknown */

#endif

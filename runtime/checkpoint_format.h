/* What writing and reading checkpoints share. */
#ifndef DLC_RUNTIME_CHECKPOINT_FORMAT_H
#define DLC_RUNTIME_CHECKPOINT_FORMAT_H

#include "plan.h"

#include <stddef.h>

#define DATA_HASH_START 0x9ae16a3b2f90404fu

/* A 64-bit hash of the tensors' bytes, continued from h; it finds damage, it is no protection
 * against intent. */
uint64_t data_hash(uint64_t h, const void *p, size_t n);
/* The same in pieces, of which all but the last have a multiple of 32 bytes. */
typedef struct DataHash {
	uint64_t lane[4], n;
	unsigned char rest[32];
} DataHash;
void data_hash_begin(DataHash *d, uint64_t h);
void data_hash_add(DataHash *d, const void *p, size_t n);
uint64_t data_hash_end(const DataHash *d);

const char *safetensors_dtype(PlanDType t);         /* "F32" */
PlanDType safetensors_dtype_from(const char *name); /* PD_NONE when unknown */

#endif

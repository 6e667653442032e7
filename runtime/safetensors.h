/* Reading safetensors: the file is mapped, its header checked as a whole, and only then copied from.
 *
 * Offsets are checked against the file's size and against each other, so that a damaged header cannot
 * make a read leave the mapping. */
#ifndef DLC_RUNTIME_SAFETENSORS_H
#define DLC_RUNTIME_SAFETENSORS_H

#include "fail.h"
#include "plan.h"

#include <jansson.h>

typedef struct Tensor {
	const char *name; /* within the JSON object */
	const char *as;   /* the name that it is looked for by (weights.c) */
	PlanDType dtype;
	int ndim;
	int64_t dim[PLAN_MAX_DIMS];
	const unsigned char *data;
	int64_t begin, end; /* of its bytes within the data */
	bool used;
} Tensor;

typedef struct TensorFile {
	char path[4096];
	const unsigned char *bytes;
	int64_t size, data_at;
	json_t *header;
	Tensor *tensor; /* sorted by begin */
	int ntensors;
} TensorFile;

/* A file, or a folder's last.safetensors. */
bool tensors_open(TensorFile *x, const char *path, Fail *f);
void tensors_close(TensorFile *x);
Tensor *tensors_find(const TensorFile *x, const char *name); /* by `name`; NULL when absent */
const char *tensors_metadata(const TensorFile *x, const char *key);

/* "f32[10,16]" */
void tensor_shape_text(PlanDType t, int ndim, const int64_t *dim, char out[128]);
bool tensor_like(const Tensor *t, const PlanVar *v); /* of the same shape */

/* Counts and lists what does not fit; the text is complete when `faults_finish` was called, which is
 * true, and clears it, where nothing was added. */
typedef struct Faults {
	Fail *f;
	int n;
} Faults;

void fault(Faults *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool faults_finish(Faults *x);

#endif

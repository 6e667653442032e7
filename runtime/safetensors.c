/* Reading safetensors; see safetensors.h. */
#include "safetensors.h"

#include "checkpoint_format.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MAX = 100000000, LISTED = 20 };

static const char *const dtype_names[] = { [PD_BOOL] = "BOOL", [PD_U8] = "U8",   [PD_U16] = "U16",
					   [PD_I32] = "I32",   [PD_I64] = "I64", [PD_F16] = "F16",
					   [PD_BF16] = "BF16", [PD_F32] = "F32", [PD_F64] = "F64" };

const char *safetensors_dtype(PlanDType t)
{
	return dtype_names[t];
}

PlanDType safetensors_dtype_from(const char *name)
{
	for (PlanDType t = PD_BOOL; t <= PD_F64; t++)
		if (strcmp(dtype_names[t], name) == 0)
			return t;
	return PD_NONE;
}

void data_hash_begin(DataHash *d, uint64_t h)
{
	*d = (DataHash){ .lane = { h, h ^ 1, h ^ 2, h ^ 3 } };
}

void data_hash_add(DataHash *d, const void *p, size_t n)
{
	const unsigned char *b = p;
	uint64_t word;
	size_t i = 0;
	for (; i + 32 <= n; i += 32)
		for (size_t k = 0; k < 4; k++) {
			memcpy(&word, b + i + 8 * k, 8);
			d->lane[k] = (d->lane[k] ^ word) * 0x9fb21c651e98df25u;
			d->lane[k] ^= d->lane[k] >> 32;
		}
	memcpy(d->rest, b + i, n - i);
	d->n += n;
}

uint64_t data_hash_end(const DataHash *d)
{
	uint64_t h = d->n;
	for (size_t k = 0; k < 4; k++)
		h = (h ^ d->lane[k]) * 0x9fb21c651e98df25u;
	for (size_t i = 0; i < d->n % 32; i++)
		h = (h ^ d->rest[i]) * 0x100000001b3u;
	return h ^ h >> 29;
}

uint64_t data_hash(uint64_t h, const void *p, size_t n)
{
	DataHash d;
	data_hash_begin(&d, h);
	data_hash_add(&d, p, n);
	return data_hash_end(&d);
}

/* ---- the header ----------------------------------------------------------------------------- */

void tensors_close(TensorFile *x)
{
	if (x->bytes)
		munmap((void *)(uintptr_t)x->bytes, (size_t)x->size);
	json_decref(x->header);
	free(x->tensor);
}

static bool damaged(const TensorFile *x, Fail *f, const char *what)
{
	return fail(f, EXIT_INPUT, "%s: not a whole safetensors file: %s", x->path, what);
}

static bool map_file(TensorFile *x, const char *path, Fail *f)
{
	struct stat st;
	*x = (TensorFile){ 0 };
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		snprintf(x->path, sizeof x->path, "%s/last.safetensors", path);
	else
		snprintf(x->path, sizeof x->path, "%s", path);
	int fd = open(x->path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		fail(f, EXIT_FILES, "%s: %s", x->path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	x->size = st.st_size;
	void *p = x->size > 0 ? mmap(NULL, (size_t)x->size, PROT_READ, MAP_PRIVATE, fd, 0)
			      : MAP_FAILED;
	close(fd);
	if (p == MAP_FAILED)
		return damaged(x, f, "the file is empty");
	x->bytes = p;
	return true;
}

static bool whole_number(const json_t *j, int64_t *out)
{
	*out = json_is_integer(j) ? json_integer_value(j) : -1;
	return *out >= 0;
}

/* One entry of the header; bytes of its elements must match its range. */
static bool read_tensor(const TensorFile *x, const char *name, const json_t *j, Tensor *t, Fail *f)
{
	const json_t *shape = json_object_get(j, "shape"),
		     *range = json_object_get(j, "data_offsets");
	const char *dtype = json_string_value(json_object_get(j, "dtype"));
	char what[256];
	snprintf(what, sizeof what, "tensor '%.100s' has no sound dtype, shape and data_offsets",
		 name);
	*t = (Tensor){ .name = name };
	if (!dtype || !json_is_array(shape) || json_array_size(shape) > PLAN_MAX_DIMS ||
	    json_array_size(range) != 2 || !whole_number(json_array_get(range, 0), &t->begin) ||
	    !whole_number(json_array_get(range, 1), &t->end))
		return damaged(x, f, what);
	t->dtype = safetensors_dtype_from(dtype);
	t->ndim = (int)json_array_size(shape);
	int64_t bytes = t->dtype == PD_NONE ? 0 : plan_dtype_bytes(t->dtype);
	for (int i = 0; i < t->ndim; i++)
		if (!whole_number(json_array_get(shape, (size_t)i), &t->dim[i]) ||
		    (t->dim[i] && bytes > INT64_MAX / t->dim[i]))
			return damaged(x, f, what);
		else
			bytes *= t->dim[i];
	if (t->begin > t->end || t->end > x->size - x->data_at) {
		snprintf(what, sizeof what,
			 "tensor '%.100s' lies at bytes %" PRId64 "..%" PRId64
			 " of the data, which end at %" PRId64,
			 name, t->begin, t->end, x->size - x->data_at);
		return damaged(x, f, what);
	}
	if (t->dtype != PD_NONE && t->end - t->begin != bytes) {
		snprintf(what, sizeof what,
			 "tensor '%.100s' needs %" PRId64 " bytes and has %" PRId64, name, bytes,
			 t->end - t->begin);
		return damaged(x, f, what);
	}
	t->data = x->bytes + x->data_at + t->begin;
	return true;
}

static int by_begin(const void *a, const void *b)
{
	const Tensor *x = a, *y = b;
	return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1)
				    : (x->end > y->end) - (x->end < y->end);
}

/* Tensors, in order, take all of the data and no byte twice. */
static bool check_whole(const TensorFile *x, Fail *f)
{
	char what[512];
	int64_t at = 0, end = x->size - x->data_at;
	for (int i = 0; i < x->ntensors; at = x->tensor[i++].end) {
		if (x->tensor[i].begin == at)
			continue;
		if (x->tensor[i].begin < at)
			snprintf(what, sizeof what, "tensors '%.100s' and '%.100s' overlap",
				 x->tensor[i - 1].name, x->tensor[i].name);
		else
			snprintf(what, sizeof what, "bytes %" PRId64 "..%" PRId64 " of the data are no tensor's", at,
				 x->tensor[i].begin);
		return damaged(x, f, what);
	}
	if (at == end)
		return true;
	snprintf(what, sizeof what, "%" PRId64 " bytes stand behind the last tensor", end - at);
	return damaged(x, f, what);
}

static bool read_header(TensorFile *x, Fail *f)
{
	uint64_t length = 0;
	char what[512];
	for (int i = 0; i < 8 && x->size >= 8; i++)
		length |= (uint64_t)x->bytes[i] << (8 * i);
	if (x->size < 8 || length < 2 || length > HEADER_MAX || (int64_t)length > x->size - 8) {
		snprintf(what, sizeof what,
			 "the header is to have %" PRIu64 " bytes, the file has %" PRId64, length,
			 x->size);
		return damaged(x, f, what);
	}
	x->data_at = 8 + (int64_t)length;
	json_error_t e;
	x->header =
		json_loadb((const char *)x->bytes + 8, (size_t)length, JSON_REJECT_DUPLICATES, &e);
	if (!json_is_object(x->header)) {
		snprintf(what, sizeof what, "the header is no JSON object (%s)",
			 x->header ? "another kind" : e.text);
		return damaged(x, f, what);
	}
	x->tensor = calloc(json_object_size(x->header) + 1, sizeof *x->tensor);
	if (!x->tensor)
		return fail(f, EXIT_FILES, "out of memory");
	const char *name;
	json_t *j;
	json_object_foreach(x->header, name, j)
	{
		if (strcmp(name, "__metadata__") == 0)
			continue;
		if (!read_tensor(x, name, j, &x->tensor[x->ntensors++], f))
			return false;
	}
	qsort(x->tensor, (size_t)x->ntensors, sizeof *x->tensor, by_begin);
	return check_whole(x, f);
}

const char *tensors_metadata(const TensorFile *x, const char *key)
{
	return json_string_value(json_object_get(json_object_get(x->header, "__metadata__"), key));
}

/* Where the file carries a hash of its data, they must still match. */
static bool check_hash(const TensorFile *x, Fail *f)
{
	const json_t *given = json_object_get(json_object_get(x->header, "__metadata__"), "data_hash");
	const char *text = json_string_value(given);
	uint64_t h = DATA_HASH_START;
	if (!given)
		return true;
	if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
		return damaged(x, f, "its 'data_hash' is no hash");
	for (int i = 0; i < x->ntensors; i++)
		h = data_hash(h, x->tensor[i].data,
			      (size_t)(x->tensor[i].end - x->tensor[i].begin));
	return strtoull(text, NULL, 16) == h || damaged(x, f, "the data do not match their hash");
}

bool tensors_open(TensorFile *x, const char *path, Fail *f)
{
	if (map_file(x, path, f) && read_header(x, f) && check_hash(x, f))
		return true;
	tensors_close(x);
	return false;
}

Tensor *tensors_find(const TensorFile *x, const char *name)
{
	for (int i = 0; i < x->ntensors; i++)
		if (strcmp(x->tensor[i].name, name) == 0)
			return &x->tensor[i];
	return NULL;
}

/* ---- against the plan ------------------------------------------------------------------------ */

void tensor_shape_text(PlanDType t, int ndim, const int64_t *dim, char out[128])
{
	size_t n = (size_t)snprintf(out, 128, "%s[", t == PD_NONE ? "?" : plan_dtype_name(t));
	for (int i = 0; i < ndim && n < 100; i++)
		n += (size_t)snprintf(out + n, 128 - n, "%s%" PRId64, i ? "," : "", dim[i]);
	snprintf(out + n, 128 - n, "]");
}

bool tensor_like(const Tensor *t, const PlanVar *v)
{
	return t->ndim == v->ndim && memcmp(t->dim, v->dim, (size_t)v->ndim * sizeof *v->dim) == 0;
}

void fault(Faults *x, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (x->n++ < LISTED)
		fail_add(x->f, "\n  %s", text);
}

bool faults_finish(Faults *x)
{
	if (x->n > LISTED)
		fail_add(x->f, "\n  and %d more", x->n - LISTED);
	if (x->n)
		return false;
	x->f->code = 0;
	x->f->text[0] = 0;
	return true;
}

/* NumPy's .npy, versions 1 to 3: magic "\x93NUMPY", a version, the header's length and a Python
 * dictionary as text:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
 *
 *     x, y ...         one file a field; axis 0 counts samples
 *     test_x, test_y   the test split; without them the last `validation` of the samples
 *     dir              a folder that holds x.npy, y.npy, ..., where no files are given
 *
 * The dictionary is read as far as its three keys; anything else in it is an error. */
#include "data_format.h"

#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_MAX = 1 << 16 };

static PlanDType dtype_of(const char *descr)
{
	static const struct {
		const char *descr;
		PlanDType dtype;
	} types[] = { { "<f4", PD_F32 }, { "<f8", PD_F64 }, { "<f2", PD_F16 },
		      { "|u1", PD_U8 },  { "<u1", PD_U8 },  { "<u2", PD_U16 },
		      { "<i4", PD_I32 }, { "<i8", PD_I64 }, { "|b1", PD_BOOL } };
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].descr, descr) == 0)
			return types[i].dtype;
	return PD_NONE;
}

/* The text after 'key':, or NULL. */
static const char *value_of(const char *header, const char *key)
{
	char quoted[32];
	snprintf(quoted, sizeof quoted, "'%s'", key);
	const char *p = strstr(header, quoted);
	if (!p)
		return NULL;
	p += strlen(quoted);
	p += strspn(p, " ");
	if (*p++ != ':')
		return NULL;
	return p + strspn(p, " ");
}

static bool parse_shape(const char *p, DataField *d)
{
	int n = 0;
	int64_t dim[PLAN_MAX_DIMS + 1];
	if (!p || *p++ != '(')
		return false;
	while (*(p += strspn(p, " ,")) != ')') {
		char *end;
		long long v = strtoll(p, &end, 10);
		if (end == p || v < 0 || n > PLAN_MAX_DIMS)
			return false;
		dim[n++] = v;
		p = end;
	}
	if (n == 0)
		return false;
	d->samples = dim[0];
	d->ndim = n - 1;
	d->elems = 1;
	for (int i = 1; i < n; i++) {
		d->dim[i - 1] = dim[i];
		if (dim[i] > 0 && d->elems > INT64_MAX / 64 / dim[i])
			return false;
		d->elems *= dim[i];
	}
	return true;
}

static bool parse(const DataMap *map, DataField *d, Fail *f)
{
	const unsigned char *p = map->bytes;
	if (map->size < 12 || memcmp(p, "\x93NUMPY", 6) || p[6] < 1 || p[6] > 3)
		return fail(
			f, EXIT_INPUT,
			"%s: not a .npy file: expected it to start with \\x93NUMPY and a version of 1 to 3",
			map->path);
	int64_t before = p[6] == 1 ? 10 : 12;
	int64_t length = p[8] | p[9] << 8;
	if (p[6] > 1)
		length |= (int64_t)p[10] << 16 | (int64_t)p[11] << 24;
	if (length > HEADER_MAX || map->size < before + length)
		return fail(f, EXIT_INPUT,
			    "%s: cut off in the header, %" PRId64 " bytes of %" PRId64, map->path,
			    map->size, before + length);
	char header[HEADER_MAX + 1], descr[16] = "";
	memcpy(header, p + before, (size_t)length);
	header[length] = 0;

	const char *at = value_of(header, "descr"), *fortran = value_of(header, "fortran_order");
	if (at && (*at == '\'' || *at == '"'))
		snprintf(descr, sizeof descr, "%.*s", (int)strcspn(at + 1, "'\""), at + 1);
	*d = (DataField){ .map = map, .base = p + before + length, .dtype = dtype_of(descr) };
	if (d->dtype == PD_NONE)
		return fail(
			f, EXIT_INPUT,
			"%s: elements of type '%s', expected one of <f4 <f8 <f2 |u1 <u2 <i4 <i8 |b1",
			map->path, descr);
	if (!fortran || strncmp(fortran, "False", 5))
		return fail(f, EXIT_INPUT, "%s: expected C order ('fortran_order': False)",
			    map->path);
	if (!parse_shape(value_of(header, "shape"), d))
		return fail(f, EXIT_INPUT,
			    "%s: expected a shape of 1 to %d dimensions with the samples first",
			    map->path, PLAN_MAX_DIMS + 1);
	d->stride = d->elems * plan_dtype_bytes(d->dtype);
	return data_holds(d, before + length, f);
}

/* Where a field's file is: its own setting, or FIELD.npy in `dir`. */
static bool find(const DataSet *s, const PlanInput *in, DataSplit split, char *out, size_t size)
{
	char key[128];
	const char *path = data_field_file(s, in, split, key), *dir = data_text(s, "dir");
	if (path) {
		snprintf(out, size, "%s", path);
		return true;
	}
	if (!dir)
		return false;
	snprintf(out, size, "%s/%s.npy", dir, key);
	return split == SPLIT_TRAIN || access(out, F_OK) == 0;
}

bool data_open_npy(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	char path[4096];
	double validation;
	if (!data_number(s, "validation", 0, &validation, f) ||
	    (!strcmp(in->field, "x") && !data_augment(s, in, f)))
		return false;
	for (DataSplit split = SPLIT_TRAIN; split < SPLITS; split++) {
		if (!find(s, in, split, path, sizeof path)) {
			if (split == SPLIT_TEST)
				return data_hold_out(both, validation, s->decl->name, f);
			return fail(
				f, EXIT_FILES,
				"data '%s' has no file for '%s': give one with --data %s.%s=FILE.npy",
				s->decl->name, in->field, s->decl->name, in->field);
		}
		const DataMap *map = data_map(s, path, path, f);
		if (!map || !parse(map, &both[split], f))
			return false;
	}
	return true;
}

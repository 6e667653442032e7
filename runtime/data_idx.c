/* IDX, the format of MNIST and its successors: big-endian magic 0x00 0x00 type ndim, the dims, then
 * the elements.
 *
 *     x, y             training images and labels; a `.gz` is unpacked into the cache
 *     test_x, test_y   the test split
 *     dir              a folder with the usual names, where the four are not given
 *
 * Elements are unsigned bytes (type 0x08). */
#include "data_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int64_t big_endian(const unsigned char *p)
{
	return (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}

static bool parse(const DataMap *map, DataField *d, Fail *f)
{
	const unsigned char *p = map->bytes;
	if (map->size < 8 || p[0] || p[1])
		return fail(
			f, EXIT_INPUT,
			"%s: not an IDX file: expected it to start with 00 00 08, found %02x %02x %02x",
			map->path, p[0], map->size > 1 ? p[1] : 0, map->size > 2 ? p[2] : 0);
	if (p[2] != 0x08)
		return fail(f, EXIT_INPUT,
			    "%s: IDX elements of type 0x%02x, expected 0x08 (unsigned bytes)",
			    map->path, p[2]);
	int ndim = p[3];
	if (ndim < 1 || ndim > PLAN_MAX_DIMS)
		return fail(f, EXIT_INPUT, "%s: IDX with %d dimensions, expected 1 to %d",
			    map->path, ndim, PLAN_MAX_DIMS);
	int64_t header = 4 + 4 * ndim, elems = 1;
	if (map->size < header)
		return fail(f, EXIT_INPUT,
			    "%s: cut off in the header, %" PRId64 " bytes of %" PRId64, map->path,
			    map->size, header);
	*d = (DataField){ .map = map,
			  .base = p + header,
			  .dtype = PD_U8,
			  .samples = big_endian(p + 4),
			  .ndim = ndim - 1 };
	for (int i = 1; i < ndim; i++) {
		d->dim[i - 1] = big_endian(p + 4 + 4 * i);
		if (d->dim[i - 1] < 1 || elems > INT64_MAX / 4294967296 / d->dim[i - 1])
			return fail(f, EXIT_INPUT, "%s: IDX dimension %d is %" PRId64, map->path, i,
				    d->dim[i - 1]);
		elems *= d->dim[i - 1];
	}
	d->elems = d->stride = elems;
	return data_holds(d, header, f);
}

/* Where a field's file is: its own setting, or the usual name in `dir`, unpacked or not. */
static bool find(const DataSet *s, const PlanInput *in, DataSplit split, char *out, size_t size)
{
	static const char *const usual[SPLITS][2] = {
		{ "train-images-idx3-ubyte", "train-labels-idx1-ubyte" },
		{ "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" },
	};
	char key[128];
	const char *path = data_field_file(s, in, split, key), *dir = data_text(s, "dir");
	if (path) {
		snprintf(out, size, "%s", path);
		return true;
	}
	if (!dir)
		return false;
	const char *name = usual[split][strcmp(in->field, "y") == 0];
	snprintf(out, size, "%s/%s", dir, name);
	if (access(out, F_OK) == 0)
		return true;
	snprintf(out, size, "%s/%s.gz", dir, name);
	if (access(out, F_OK) == 0)
		return true;
	snprintf(out, size, "%s/%s", dir, name); /* neither is there, and this one is named */
	return split == SPLIT_TRAIN;
}

bool data_open_idx(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	char path[4096];
	if (!strcmp(in->field, "x") && !data_augment(s, in, f))
		return false;
	for (DataSplit split = SPLIT_TRAIN; split < SPLITS; split++) {
		if (!find(s, in, split, path, sizeof path)) {
			if (split == SPLIT_TEST)
				return true;
			return fail(
				f, EXIT_FILES,
				"data '%s' has no files: give a folder with --data %s=DIR, or --data %s.%s=FILE",
				s->decl->name, s->decl->name, s->decl->name, in->field);
		}
		const DataMap *map = data_map(s, path, path, f);
		if (!map || !parse(map, &both[split], f))
			return false;
	}
	return true;
}

/* Raw records, such as CIFAR's binary files: every sample takes `record` bytes, x and y at fixed places in them.
 *
 *     header | record: .. x .. y .. | record | ...
 *
 *     file, test_file   training and test samples; without test_file the last `validation` of the samples
 *     header            bytes before the first record
 *     record            bytes of one; 0: as far as x and y reach
 *     x_at, y_at        where they begin in a record; y_at = -1: right behind x
 *     x_type, y_type    of the elements, little-endian */
#include "data_format.h"

#include "run.h"

#include <inttypes.h>
#include <string.h>

typedef struct Layout {
	PlanDType dtype;
	int64_t elems, at, record, header;
} Layout;

static PlanDType dtype_named(const char *name)
{
	for (PlanDType t = PD_BOOL; t <= PD_F64; t++)
		if (name && !strcmp(name, plan_dtype_name(t)))
			return t;
	return PD_NONE;
}

static int64_t elements(const DataSet *s, const char *key)
{
	const PlanSetting *p = plan_setting(s->decl->settings, s->decl->nsettings, key);
	int64_t n = 1;
	for (int i = 0; p && i < p->n; i++)
		n *= p->list[i];
	return n;
}

static bool layout_of(const DataSet *s, const PlanInput *in, Layout *out, Fail *f)
{
	double header, record, x_at, y_at;
	if (!data_number(s, "header", 0, &header, f) || !data_number(s, "record", 0, &record, f) ||
	    !data_number(s, "x_at", 0, &x_at, f) || !data_number(s, "y_at", -1, &y_at, f))
		return false;
	if (header < 0 || record < 0 || x_at < 0)
		return fail(f, EXIT_FILES, "data '%s': header, record and x_at are bytes, 0 or more", s->decl->name);
	PlanDType xt = dtype_named(data_text(s, "x_type")), yt = dtype_named(data_text(s, "y_type"));
	int64_t nx = elements(s, "x_shape"), ny = elements(s, "y_shape");
	int64_t x_end = (int64_t)x_at + nx * plan_dtype_bytes(xt);
	int64_t at_y = y_at < 0 ? x_end : (int64_t)y_at, y_end = at_y + ny * plan_dtype_bytes(yt);
	int64_t reach = x_end > y_end ? x_end : y_end;
	if (record > 0 && record < (double)reach)
		return fail(f, EXIT_INPUT,
			    "data '%s': records of %.0f bytes, but x and y reach to byte %" PRId64,
			    s->decl->name, record, reach);
	bool y = !strcmp(in->field, "y");
	*out = (Layout){ .dtype = y ? yt : xt,
			 .elems = y ? ny : nx,
			 .at = y ? at_y : (int64_t)x_at,
			 .record = record > 0 ? (int64_t)record : reach,
			 .header = (int64_t)header };
	return true;
}

static bool open_split(DataSet *s, const char *path, const Layout *l, DataField *d, Fail *f)
{
	const DataMap *map = data_map(s, path, path, f);
	if (!map)
		return false;
	int64_t bytes = map->size - l->header;
	if (bytes < l->record || bytes % l->record)
		return fail(f, EXIT_INPUT,
			    "%s: %" PRId64 " bytes behind a header of %" PRId64
			    ", expected records of %" PRId64 " bytes each",
			    path, bytes < 0 ? 0 : bytes, l->header, l->record);
	*d = (DataField){ .map = map,
			  .base = map->bytes + l->header + l->at,
			  .dtype = l->dtype,
			  .elems = l->elems,
			  .stride = l->record,
			  .samples = bytes / l->record,
			  .ndim = -1 };
	return true;
}

bool data_open_raw(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	const char *path = data_text(s, "file"), *test = data_text(s, "test_file");
	double validation;
	Layout l;
	if (!path)
		return fail(f, EXIT_FILES, "data '%s' has no file: give one with --data %s=FILE",
			    s->decl->name, s->decl->name);
	if (!data_number(s, "validation", 0, &validation, f) || !layout_of(s, in, &l, f) ||
	    (!strcmp(in->field, "x") && !data_augment(s, in, f)))
		return false;
	if (!open_split(s, path, &l, &both[SPLIT_TRAIN], f))
		return false;
	return test ? open_split(s, test, &l, &both[SPLIT_TEST], f)
		    : data_hold_out(both, validation, s->decl->name, f);
}

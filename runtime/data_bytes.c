/* Text as bytes: sample i is the window of T bytes at i*T, its targets are the same bytes one
 * further on.
 *
 *     file      the text                    window       T
 *     validation   the last fraction of the text is the test split
 *
 * Windows do not overlap. In training all of them start up to T-1 bytes later, drawn anew each
 * epoch, so that over the epochs every position is predicted from every length of context; one
 * window is given up for that. */
#include "data_format.h"

#include <inttypes.h>
#include <string.h>

static DataField windows(const DataMap *map, int64_t from, int64_t bytes, int64_t window,
			 int64_t ahead)
{
	int64_t samples = bytes > window ? (bytes - 1) / window : 0;
	if (samples == 0)
		return (DataField){ 0 };
	return (DataField){ .map = map,
			    .base = map->bytes + from + ahead,
			    .dtype = PD_U8,
			    .elems = window,
			    .stride = window,
			    .samples = samples,
			    .ndim = -1 };
}

bool data_open_bytes(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	const char *path = data_text(s, "file");
	double validation;
	if (!path)
		return fail(f, EXIT_FILES, "data '%s' has no file: give one with --data %s=FILE",
			    s->decl->name, s->decl->name);
	if (!data_number(s, "validation", 0.1, &validation, f))
		return false;
	if (!(validation >= 0 && validation < 1))
		return fail(f, EXIT_INPUT,
			    "data '%s': validation is %g, expected a fraction in [0,1)",
			    s->decl->name, validation);
	int64_t ahead = strcmp(in->field, "targets") == 0, window = in->ndim ? in->dim[0] : 1;
	const DataMap *map = data_map(s, path, path, f);
	if (!map)
		return false;
	int64_t held = (int64_t)((double)map->size * validation), kept = map->size - held;
	both[SPLIT_TRAIN] = windows(map, 0, kept, window, ahead);
	both[SPLIT_TEST] = windows(map, kept, held, window, ahead);
	DataField *train = &both[SPLIT_TRAIN];
	if (!train->map)
		return fail(f, EXIT_INPUT,
			    "%s: %" PRId64 " bytes of text for training, expected at least %" PRId64
			    " (a window of %" PRId64 " and its target)",
			    path, kept, window + 1, window);
	if (train->samples > 1) {
		train->samples--;
		s->roam = window - 1;
	}
	return true;
}

/* Text as a stream of elements: sample i is the window of T elements at i*T, its targets are the
 * same elements one further on.
 *
 *     bytes     any file; an element is a byte
 *     tokens    u16 token ids, little-endian: headerless (nanoGPT's train.bin), or behind llm.c's
 *               header of 256 i32 (magic 20240520, version 1, number of tokens)
 *
 *     file      the text                    window       T
 *     test_file    (tokens) the test split; without it, or where it is none, as below
 *     validation   the last fraction of the text is the test split
 *
 * Windows do not overlap. In training all of them start up to T-1 elements later, drawn anew each
 * epoch, so that over the epochs every position is predicted from every length of context; one
 * window is given up for that. */
#include "data_format.h"

#include "run.h"

#include <inttypes.h>
#include <string.h>

/* A stretch of elements in a file. */
typedef struct Stream {
	const DataMap *map;
	const unsigned char *base;
	int64_t elems;
	PlanDType dtype;
} Stream;

typedef bool (*OpenStream)(DataSet *s, const char *path, Stream *out, Fail *f);

static bool open_bytes(DataSet *s, const char *path, Stream *out, Fail *f)
{
	const DataMap *map = data_map(s, path, path, f);
	if (!map)
		return false;
	*out = (Stream){ map, map->bytes, map->size, PD_U8 };
	return true;
}

static int64_t i32_at(const unsigned char *p, int i)
{
	p += (size_t)i * 4;
	return (int64_t)p[0] | (int64_t)p[1] << 8 | (int64_t)p[2] << 16 | (int64_t)p[3] << 24;
}

enum { HEADER_BYTES = 256 * 4, HEADER_MAGIC = 20240520, HEADER_VERSION = 1 };

static bool open_tokens(DataSet *s, const char *path, Stream *out, Fail *f)
{
	const DataMap *map = data_map(s, path, path, f);
	if (!map)
		return false;
	*out = (Stream){ map, map->bytes, map->size / 2, PD_U16 };
	if (map->size < 4 || i32_at(map->bytes, 0) != HEADER_MAGIC) {
		if (map->size % 2)
			return fail(f, EXIT_INPUT,
				    "%s: %" PRId64 " bytes, expected tokens of two bytes each", path,
				    map->size);
		return true;
	}
	if (map->size < HEADER_BYTES)
		return fail(f, EXIT_INPUT, "%s: cut off in the header, %" PRId64 " bytes of %d", path,
			    map->size, HEADER_BYTES);
	if (i32_at(map->bytes, 1) != HEADER_VERSION)
		return fail(f, EXIT_INPUT, "%s: a token file of version %" PRId64 ", expected %d", path,
			    i32_at(map->bytes, 1), HEADER_VERSION);
	out->base += HEADER_BYTES;
	out->elems = i32_at(map->bytes, 2);
	if (out->elems != (map->size - HEADER_BYTES) / 2 || map->size % 2)
		return fail(f, EXIT_INPUT,
			    "%s: the header says %" PRId64 " tokens, the file holds %" PRId64
			    " bytes of them",
			    path, out->elems, map->size - HEADER_BYTES);
	return true;
}

/* The windows of elements [from, from + elems), `ahead` elements further on. */
static DataField windows(const Stream *t, int64_t from, int64_t elems, int64_t window,
			 int64_t ahead)
{
	int64_t size = plan_dtype_bytes(t->dtype);
	int64_t samples = elems > window ? (elems - 1) / window : 0;
	if (samples == 0)
		return (DataField){ 0 };
	return (DataField){ .map = t->map,
			    .base = t->base + (from + ahead) * size,
			    .dtype = t->dtype,
			    .elems = window,
			    .stride = window * size,
			    .samples = samples,
			    .ndim = -1 };
}

static bool open_windows(DataSet *s, const PlanInput *in, DataField both[SPLITS],
			 OpenStream open_stream, const char *unit, Fail *f)
{
	const char *path = data_text(s, "file"), *test_path = data_text(s, "test_file");
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
	Stream text, test;
	if (!open_stream(s, path, &text, f) || (test_path && !open_stream(s, test_path, &test, f)))
		return false;
	int64_t held = test_path ? 0 : (int64_t)((double)text.elems * validation);
	int64_t kept = text.elems - held;
	both[SPLIT_TRAIN] = windows(&text, 0, kept, window, ahead);
	both[SPLIT_TEST] = test_path ? windows(&test, 0, test.elems, window, ahead)
				     : windows(&text, kept, held, window, ahead);
	const char *thin = !both[SPLIT_TRAIN].map               ? path
			   : test_path && !both[SPLIT_TEST].map ? test_path
								: NULL;
	if (thin)
		return fail(f, EXIT_INPUT,
			    "%s: %" PRId64 " %s of text for %s, expected at least %" PRId64
			    " (a window of %" PRId64 " and its target)",
			    thin, thin == path ? kept : test.elems, unit,
			    thin == path ? "training" : "evaluation", window + 1, window);
	if (both[SPLIT_TRAIN].samples > 1) {
		both[SPLIT_TRAIN].samples--;
		s->roam = window - 1;
	}
	return true;
}

bool data_open_bytes(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	return open_windows(s, in, both, open_bytes, "bytes", f);
}

bool data_open_tokens(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	return open_windows(s, in, both, open_tokens, "tokens", f);
}

/* Text as a stream of elements: sample i is the window of T elements at i*T, its targets are the
 * same elements one further on.
 *
 *     bytes     any file; an element is a byte
 *     text      any file; an element is a token of a byte-pair vocabulary (data_bpe.c)
 *     tokens    token ids of 16 or 32 bits, little-endian: headerless (nanoGPT's train.bin), or behind llm.c's
 *               header of 256 i32: magic, version, number of tokens. 20240520 with version 1 is of 16 bits, 20240801
 *               with version 7 of 32
 *
 *     file      the text                    window       T
 *     test_file    (tokens, text) the test split; without it, or where it is none, as below
 *     bits         (tokens) of a headerless file: 16 or 32; 0: as the vocabulary needs
 *     vocab, merges    (text) the vocabulary's files
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

static bool open_text(DataSet *s, const char *path, Stream *out, Fail *f)
{
	bool wide;
	const DataMap *map = data_encode(s, path, &wide, f);
	if (!map)
		return false;
	*out = (Stream){ map, map->bytes, map->size / (wide ? 4 : 2), wide ? PD_I32 : PD_U16 };
	return true;
}

static int64_t i32_at(const unsigned char *p, int i)
{
	p += (size_t)i * 4;
	return (int64_t)p[0] | (int64_t)p[1] << 8 | (int64_t)p[2] << 16 | (int64_t)p[3] << 24;
}

/* llm.c's headers. */
enum { HEADER_BYTES = 256 * 4 };
typedef struct Header {
	int64_t magic, version;
	PlanDType dtype;
} Header;

static const Header *header_of(const DataMap *map)
{
	static const Header known[] = { { 20240520, 1, PD_U16 }, { 20240801, 7, PD_I32 } };
	for (size_t i = 0; i < sizeof known / sizeof *known && map->size >= 4; i++)
		if (i32_at(map->bytes, 0) == known[i].magic)
			return &known[i];
	return NULL;
}

/* Ids alone, as wide as the settings say. */
static bool plain_tokens(DataSet *s, const char *path, Stream *out, Fail *f)
{
	double bits, vocab;
	if (!data_number(s, "bits", 0, &bits, f) || !data_number(s, "vocab", 0, &vocab, f))
		return false;
	if (bits != 0 && bits != 16 && bits != 32)
		return fail(f, EXIT_INPUT, "data '%s': bits is %g, expected 16 or 32", s->decl->name, bits);
	int size = bits == 32 || (bits == 0 && vocab > 65536) ? 4 : 2;
	*out = (Stream){ out->map, out->map->bytes, out->map->size / size, size == 4 ? PD_I32 : PD_U16 };
	return out->map->size % size == 0 ||
	       fail(f, EXIT_INPUT, "%s: %" PRId64 " bytes, expected tokens of %s bytes each", path, out->map->size,
		    size == 4 ? "four" : "two");
}

static bool open_tokens(DataSet *s, const char *path, Stream *out, Fail *f)
{
	const DataMap *map = data_map(s, path, path, f);
	const Header *h = map ? header_of(map) : NULL;
	*out = (Stream){ .map = map };
	if (!h)
		return map && plain_tokens(s, path, out, f);
	if (map->size < HEADER_BYTES)
		return fail(f, EXIT_INPUT, "%s: cut off in the header, %" PRId64 " bytes of %d", path,
			    map->size, HEADER_BYTES);
	if (i32_at(map->bytes, 1) != h->version)
		return fail(f, EXIT_INPUT, "%s: a token file of version %" PRId64 ", expected %" PRId64, path,
			    i32_at(map->bytes, 1), h->version);
	int64_t elems = i32_at(map->bytes, 2), held = map->size - HEADER_BYTES;
	if (elems * plan_dtype_bytes(h->dtype) != held)
		return fail(f, EXIT_INPUT,
			    "%s: the header says %" PRId64 " tokens, the file holds %" PRId64
			    " bytes of them",
			    path, elems, held);
	*out = (Stream){ map, map->bytes + HEADER_BYTES, elems, h->dtype };
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

bool data_open_text(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	return open_windows(s, in, both, open_text, "tokens", f);
}

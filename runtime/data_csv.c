/* CSV: a line is a sample, `features` numbers and then its target: a class, or `targets` values.
 *
 *     file, test_file   training and test samples; without test_file the last `validation` of the samples
 *     features          columns of x; those after them are y
 *     header            the first line holds names
 *
 * Text is converted once, into a cache file of f64 (which holds every f32 and every class exactly):
 *
 *     u64 columns | u64 rows | rows x columns of f64
 *
 * Columns are separated by commas, or by semicolons or tabs where the first line has those and no
 * comma; numbers may stand in double quotes. `.gz` is read as it is. */
#include "data_format.h"

#include "file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { HEAD = 16, FIELD_MAX = 64, BUFFER = 8192 };

/* The converter: characters in, doubles out. */
typedef struct Csv {
	const char *path;
	gzFile in;
	int fd;
	char separator;
	int64_t line, columns, rows; /* columns: of the first row; 0 before */
	double out[BUFFER];
	int n;
	Fail *f;
} Csv;

static bool flush(Csv *c)
{
	if (!write_all(c->fd, c->out, (size_t)c->n * sizeof *c->out))
		return fail(c->f, EXIT_FILES, "cannot convert %s into the cache: %s", c->path,
			    strerror(errno));
	c->n = 0;
	return true;
}

static bool put(Csv *c, const char *text, int64_t column)
{
	char *end;
	double v = strtod(text, &end);
	while (*end == ' ')
		end++;
	if (end == text || *end || !isfinite(v) || strpbrk(text, "xX")) { /* strtod takes hexadecimal numbers too */
		fail(c->f, EXIT_INPUT,
		     "%s:%" PRId64 ": column %" PRId64 ": expected a number, found '%s'", c->path,
		     c->line, column, text);
		if (c->rows == 0)
			fail_add(c->f, " (is this line a header? header = true passes over it)");
		return false;
	}
	c->out[c->n++] = v;
	return c->n < BUFFER || flush(c);
}

static bool end_row(Csv *c, int64_t columns)
{
	if (c->columns == 0)
		c->columns = columns;
	if (columns != c->columns)
		return fail(c->f, EXIT_INPUT,
			    "%s:%" PRId64 ": %" PRId64 " columns, expected %" PRId64
			    " as in the first row",
			    c->path, c->line, columns, c->columns);
	c->rows++;
	return true;
}

/* One line; *more is false at the end of the file. */
static bool read_line(Csv *c, bool *more)
{
	char field[FIELD_MAX + 1];
	int n = 0;
	int64_t column = 0;
	bool any = false;
	c->line++;
	for (;;) {
		int ch = gzgetc(c->in);
		if (ch == '\r' || ch == '"' || (ch == ' ' && n == 0))
			continue;
		bool end = ch == '\n' || ch < 0;
		if (end || ch == c->separator) {
			*more = ch >= 0;
			if (end && !any && n == 0)
				return true; /* an empty line */
			any = true;
			field[n] = 0;
			n = 0;
			column++; /* one too many is counted, whatever it holds */
			if ((c->columns == 0 || column <= c->columns) && !put(c, field, column))
				return false;
			if (end)
				return end_row(c, column);
			continue;
		}
		if (n == FIELD_MAX)
			return fail(c->f, EXIT_INPUT,
				    "%s:%" PRId64 ": column %" PRId64
				    " is longer than %d characters",
				    c->path, c->line, column + 1, FIELD_MAX);
		field[n++] = (char)ch;
	}
}

/* Reads the first line for its separator, and goes back unless it is a header. */
static void first_line(Csv *c, bool header)
{
	bool comma = false, semicolon = false, tab = false;
	int ch;
	while ((ch = gzgetc(c->in)) >= 0 && ch != '\n') {
		comma |= ch == ',';
		semicolon |= ch == ';';
		tab |= ch == '\t';
	}
	c->separator = comma ? ',' : semicolon ? ';' : tab ? '\t' : ',';
	if (header)
		c->line = 1;
	else
		gzrewind(c->in);
}

static bool convert(Csv *c, bool header)
{
	uint64_t head[2] = { 0, 0 };
	if (!write_all(c->fd, head, sizeof head))
		return fail(c->f, EXIT_FILES, "cannot convert %s into the cache: %s", c->path,
			    strerror(errno));
	first_line(c, header);
	for (bool more = true; more;)
		if (!read_line(c, &more))
			return false;
	int code = Z_OK;
	gzerror(c->in, &code);
	if (code != Z_OK && code != Z_STREAM_END)
		return fail(c->f, EXIT_INPUT, "%s: the gzip data are damaged or cut off", c->path);
	if (c->rows == 0)
		return fail(c->f, EXIT_INPUT, "%s: no rows of numbers", c->path);
	head[0] = (uint64_t)c->columns;
	head[1] = (uint64_t)c->rows;
	return flush(c) && (pwrite(c->fd, head, sizeof head, 0) == sizeof head ||
			    fail(c->f, EXIT_FILES, "cannot convert %s into the cache: %s", c->path,
				 strerror(errno)));
}

static bool convert_file(const char *path, int fd, bool header, Fail *f)
{
	Csv *c = calloc(1, sizeof *c);
	if (!c)
		return fail(f, EXIT_FILES, "out of memory");
	c->path = path;
	c->fd = fd;
	c->f = f;
	c->in = gzopen(path, "rb");
	bool ok = c->in ? convert(c, header) : fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	if (c->in)
		gzclose(c->in);
	free(c);
	return ok;
}

static bool convert_plain(const char *path, int fd, void *ctx, Fail *f)
{
	(void)ctx;
	return convert_file(path, fd, false, f);
}

static bool convert_headed(const char *path, int fd, void *ctx, Fail *f)
{
	(void)ctx;
	return convert_file(path, fd, true, f);
}

static bool open_split(DataSet *s, const PlanInput *in, const char *path, bool header,
		       int64_t features, int64_t targets, DataField *d, Fail *f)
{
	char cached[4096];
	uint64_t head[2];
	if (!cache_file(path, header ? "csvh" : "csv", header ? convert_headed : convert_plain,
			NULL, cached, sizeof cached, f))
		return false;
	const DataMap *map = data_map(s, cached, path, f);
	if (!map)
		return false;
	if (map->size >= HEAD)
		memcpy(head, map->bytes, sizeof head);
	if (map->size < HEAD || head[0] == 0 ||
	    (uint64_t)map->size != HEAD + head[0] * head[1] * sizeof(double))
		return fail(f, EXIT_FILES, "the cache file %s is damaged: remove it", cached);
	if (head[0] != (uint64_t)(features + targets)) {
		fail(f, EXIT_INPUT, "%s:%d: %" PRIu64 " columns, expected %" PRId64 " (%" PRId64
		     " features and ", path, header ? 2 : 1, head[0], features + targets, features);
		if (targets == 1)
			fail_add(f, "the target)");
		else
			fail_add(f, "%" PRId64 " targets)", targets);
		return false;
	}
	bool target = strcmp(in->field, "y") == 0;
	*d = (DataField){ .map = map,
			  .base = map->bytes + HEAD + (target ? features * 8 : 0),
			  .dtype = PD_F64,
			  .elems = target ? targets : features,
			  .stride = (features + targets) * 8,
			  .samples = (int64_t)head[1],
			  .ndim = 1,
			  .dim = { target ? targets : features } };
	return true;
}

bool data_open_csv(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f)
{
	const char *path = data_text(s, "file"), *test = data_text(s, "test_file");
	double features, targets, header, validation;
	if (!path)
		return fail(f, EXIT_FILES,
			    "data '%s' has no file: give one with --data %s=FILE.csv",
			    s->decl->name, s->decl->name);
	if (!data_number(s, "features", 0, &features, f) ||
	    !data_number(s, "targets", 1, &targets, f) ||
	    !data_number(s, "header", 1, &header, f) ||
	    !data_number(s, "validation", 0, &validation, f))
		return false;
	if (!open_split(s, in, path, header != 0, (int64_t)features, (int64_t)targets,
			&both[SPLIT_TRAIN], f))
		return false;
	if (test)
		return open_split(s, in, test, header != 0, (int64_t)features, (int64_t)targets,
				  &both[SPLIT_TEST], f);
	return data_hold_out(both, validation, s->decl->name, f);
}

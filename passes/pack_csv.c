/* Live ranges from a CSV file (see pack_csv.h).
 *
 * Method: the text is cut into lines and fields in place; what is not one of the four columns is copied as it stands. A field in
 * double quotes may hold commas. Every faulty field is reported; offsets are searched for only where there was none. */
#include "pack_csv.h"

#include <errno.h>
#include <stdlib.h>

#include "../ir/base/vec.h"
#include "pack.h"

enum { LOWER, UPPER, SIZE, ID, NEEDED, OFFSET = NEEDED, KNOWN };

static const char *const column_names[KNOWN] = { "lower", "upper", "size", "id", "offset" };

static const int64_t MOST_BYTES = INT64_C(1) << 62;

typedef struct Field {
	const char *at;
	size_t len;
} Field;

typedef VEC(Field) Fields;

typedef struct Row {
	const char *at; /* the line, without its end */
	size_t len;
	int64_t rect;   /* index of its rectangle; -1: a blank line or a comment, or no bytes */
} Row;

typedef struct Reader {
	Arena *arena;
	Diag *diag;
	int source;
	const char *text, *end, *next;
	Fields fields;
	size_t column[KNOWN]; /* SIZE_MAX: not there */
	size_t ncolumns;
	Row header;
	VEC(Row) rows;
	VEC(PackRect) rects;
	int64_t bytes;
} Reader;

static Span span_of(const Reader *r, const char *at, size_t len)
{
	return (Span){ r->source, (int32_t)(at - r->text), (int32_t)(at - r->text + (ptrdiff_t)len) };
}

/* The next line; false at the end of the text. */
static bool next_line(Reader *r, Row *line)
{
	const char *stop;

	if (r->next == r->end)
		return false;
	stop = memchr(r->next, '\n', (size_t)(r->end - r->next));
	*line = (Row){ r->next, (size_t)((stop ? stop : r->end) - r->next), -1 };
	r->next = stop ? stop + 1 : r->end;
	if (line->len > 0 && line->at[line->len - 1] == '\r')
		line->len--;
	return true;
}

static bool is_data(const Row *line)
{
	for (size_t i = 0; i < line->len; i++)
		if (line->at[i] != ' ' && line->at[i] != '\t')
			return line->at[i] != '#';
	return false;
}

/* Cuts a line at its commas; blanks around a field do not count. */
static void cut_fields(Reader *r, const Row *line)
{
	const char *at = line->at, *end = line->at + line->len;

	r->fields.len = 0;
	for (;;) {
		const char *stop = at, *first, *last;
		bool quoted = false;

		for (; stop < end && (quoted || *stop != ','); stop++)
			if (*stop == '"')
				quoted = !quoted;
		for (first = at; first < stop && (*first == ' ' || *first == '\t'); first++)
			;
		for (last = stop; last > first && (last[-1] == ' ' || last[-1] == '\t'); last--)
			;
		vec_push(r->arena, &r->fields, ((Field){ first, (size_t)(last - first) }));
		if (stop == end)
			return;
		at = stop + 1;
	}
}

static bool read_header(Reader *r)
{
	do {
		if (!next_line(r, &r->header)) {
			diag_error(r->diag, span_of(r, r->end, 0), "expected a line that names the columns, got an empty file");
			return false;
		}
		if (!is_data(&r->header))
			vec_push(r->arena, &r->rows, r->header);
	} while (!is_data(&r->header));
	cut_fields(r, &r->header);
	r->ncolumns = r->fields.len;
	for (int c = 0; c < KNOWN; c++) {
		size_t len = strlen(column_names[c]);

		r->column[c] = SIZE_MAX;
		for (size_t k = 0; k < r->ncolumns; k++) {
			Field f = r->fields.at[k];

			if (f.len != len || memcmp(f.at, column_names[c], len) != 0)
				continue;
			if (r->column[c] != SIZE_MAX)
				diag_error(r->diag, span_of(r, f.at, f.len), "a second column '%s'", column_names[c]);
			r->column[c] = k;
		}
		if (c < NEEDED && r->column[c] == SIZE_MAX)
			diag_error(r->diag, span_of(r, r->header.at, r->header.len), "there is no column '%s'", column_names[c]);
	}
	for (size_t k = 0; k < r->ncolumns; k++)
		if (r->fields.at[k].len == 9 && memcmp(r->fields.at[k].at, "alignment", 9) == 0)
			diag_error(r->diag, span_of(r, r->fields.at[k].at, 9), "a column 'alignment' is not understood");
	return diag_errors(r->diag) == 0;
}

/* A whole number from 0; false after a message. */
static bool read_number(Reader *r, int column, int64_t *out)
{
	Field f = r->fields.at[r->column[column]];
	bool negative = f.len > 0 && f.at[0] == '-', overflow = false;
	size_t k = negative || (f.len > 0 && f.at[0] == '+');
	bool good = k < f.len;
	int64_t n = 0;

	for (; k < f.len && good; k++) {
		int digit = f.at[k] - '0';

		good = digit >= 0 && digit <= 9;
		overflow |= good && (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, digit, &n));
	}
	*out = n;
	if (good && !overflow && (!negative || n == 0))
		return true;
	diag_error(r->diag, span_of(r, f.at, f.len),
	           !good    ? "%s: expected a whole number, got '%.*s'" :
	           negative ? "%s: expected a number from 0, got %.*s" :
	                      "%s: %.*s does not fit in 63 bits",
	           column_names[column], (int)(f.len < 40 ? f.len : 40), f.at);
	return false;
}

static void read_row(Reader *r, Row *row)
{
	int64_t value[3];
	bool good = true;

	cut_fields(r, row);
	if (r->fields.len != r->ncolumns) {
		diag_error(r->diag, span_of(r, row->at, row->len), "expected %zu columns, got %zu", r->ncolumns, r->fields.len);
		return;
	}
	for (int c = LOWER; c <= SIZE; c++)
		good = read_number(r, c, &value[c]) && good;
	if (!good)
		return;
	if (value[LOWER] >= value[UPPER]) {
		Field f = r->fields.at[r->column[UPPER]];

		diag_error(r->diag, span_of(r, f.at, f.len), "upper: expected more than lower, %lld, got %lld",
		           (long long)value[LOWER], (long long)value[UPPER]);
		return;
	}
	if (value[SIZE] > MOST_BYTES - r->bytes) {
		Field f = r->fields.at[r->column[SIZE]];

		diag_error(r->diag, span_of(r, f.at, f.len), "size: the sizes add up to more than 2^62 bytes");
		return;
	}
	r->bytes += value[SIZE];
	if (value[SIZE] == 0) /* lies anywhere */
		return;
	row->rect = (int64_t)r->rects.len;
	vec_push(r->arena, &r->rects, ((PackRect){ value[LOWER], value[UPPER], value[SIZE], 0 }));
}

static bool read_rows(Reader *r)
{
	Row row;

	if (!read_header(r))
		return false;
	while (next_line(r, &row)) {
		if (is_data(&row))
			read_row(r, &row);
		vec_push(r->arena, &r->rows, row);
	}
	return diag_errors(r->diag) == 0;
}

/* A line with its offset (a text) as the last field, or in its place where there was such a column. */
static void write_row(Reader *r, const Row *row, const char *offset, FILE *out)
{
	size_t k = r->column[OFFSET];
	const char *end = row->at + row->len, *rest;

	if (k == SIZE_MAX) {
		fwrite(row->at, 1, row->len, out);
		fprintf(out, ",%s\n", offset);
		return;
	}
	cut_fields(r, row);
	rest = r->fields.at[k].at + r->fields.at[k].len;
	fwrite(row->at, 1, (size_t)(r->fields.at[k].at - row->at), out);
	fputs(offset, out);
	fwrite(rest, 1, (size_t)(end - rest), out);
	fputc('\n', out);
}

static void write_rows(Reader *r, FILE *out)
{
	bool headed = false;

	for (size_t k = 0; k < r->rows.len; k++) {
		const Row *row = &r->rows.at[k];
		char offset[32];

		if (!headed && row->at > r->header.at) {
			write_row(r, &r->header, "offset", out);
			headed = true;
		}
		if (!is_data(row)) {
			fwrite(row->at, 1, row->len, out);
			fputc('\n', out);
			continue;
		}
		snprintf(offset, sizeof offset, "%lld", row->rect < 0 ? 0LL : (long long)r->rects.at[row->rect].offset);
		write_row(r, row, offset, out);
	}
	if (!headed)
		write_row(r, &r->header, "offset", out);
}

PackStatus pack_csv(Arena *a, Diag *d, const PackRequest *q, FILE *out, FILE *notes)
{
	Reader r = { .arena = a, .diag = d, .text = q->text, .end = q->text + q->len, .next = q->text };
	double work = q->seconds * PACK_WORK_PER_SECOND;
	PackResult result;
	bool reached;

	if (q->len > INT32_MAX) {
		diag_error(d, NO_SPAN, "%s: more than 2 GiB of text", q->path);
		return PACK_INVALID;
	}
	r.source = diag_source(d, q->path, q->text, q->len);
	if (q->len >= 3 && memcmp(q->text, "\xef\xbb\xbf", 3) == 0)
		r.next += 3; /* a byte order mark, as spreadsheets write it */
	if (!read_rows(&r))
		return PACK_INVALID;
	result = pack_search(a, r.rects.at, r.rects.len, q->capacity, work < 4e18 ? (int64_t)work : INT64_MAX / 2);
	write_rows(&r, out);
	reached = q->capacity == 0 || result.height <= q->capacity;
	fprintf(notes, "%s: height %lld, lower bound %lld", q->path, (long long)result.height, (long long)result.bound);
	if (!reached)
		fprintf(notes, "; capacity %lld not reached: %s", (long long)q->capacity,
		        result.bound > q->capacity ? "proved impossible" : "not proved, more --seconds may reach it");
	fputc('\n', notes);
	return reached ? PACK_DONE : PACK_MISSED;
}

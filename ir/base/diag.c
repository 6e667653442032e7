/* Diagnostics (diag.h): messages with the source line and a caret.
 *
 * A message is printed as soon as it is made. A span that covers several lines shows the first. The source line is
 * shown in display columns: tabs are expanded, control characters and broken UTF-8 are shown as '?', and a line
 * that is too long is clipped to a window around the caret. */
#include "diag.h"

#include <stdarg.h>
#include <stdlib.h>

typedef struct Source {
	const char *path, *text;
	size_t len;
} Source;

struct Diag {
	Arena *arena;
	FILE *out;
	int max_errors, errors;
	bool muted; /* the last error was over the limit: its notes and hints go too */
	Source *source;
	size_t nsources, cap;
};

enum { WINDOW = 120, TAB = 8 };

Diag *diag_new(Arena *a, FILE *out, int max_errors)
{
	Diag *d = ARENA_NEW(a, Diag);
	d->arena = a;
	d->out = out;
	d->max_errors = max_errors;
	return d;
}

int diag_source(Diag *d, const char *path, const char *text, size_t len)
{
	if (d->nsources == d->cap) {
		size_t cap = d->cap ? 2 * d->cap : 4;
		Source *wider = ARENA_ARRAY(d->arena, cap, Source);
		if (d->nsources)
			memcpy(wider, d->source, d->nsources * sizeof *wider);
		d->source = wider;
		d->cap = cap;
	}
	d->source[d->nsources] = (Source){ arena_strdup(d->arena, path), text, len };
	return (int)d->nsources++;
}

static const Source *find_source(const Diag *d, int source)
{
	return source >= 0 && (size_t)source < d->nsources ? &d->source[source] : NULL;
}

const char *diag_source_path(const Diag *d, int source)
{
	const Source *s = find_source(d, source);
	return s ? s->path : "?";
}

static size_t clamp_begin(const Source *s, Span span)
{
	size_t begin = span.begin < 0 ? 0 : (size_t)span.begin;
	return begin > s->len ? s->len : begin;
}

void diag_position(const Diag *d, Span span, int *line, int *column)
{
	const Source *s = find_source(d, span.source);
	*line = *column = 0;
	if (!s)
		return;
	size_t begin = clamp_begin(s, span), start = 0;
	int lines = 1;
	for (size_t i = 0; i < begin; i++)
		if (s->text[i] == '\n') {
			lines++;
			start = i + 1;
		}
	*line = lines;
	*column = (int)(begin - start) + 1;
}

const char *diag_where(const Diag *d, Arena *a, Span span)
{
	int line, column;
	diag_position(d, span, &line, &column);
	return line ? arena_printf(a, "%s:%d", diag_source_path(d, span.source), line) : "?";
}

/* ---- the source line ---- */

/* Bytes of the UTF-8 sequence at p (at most n), or 0 where it is none. */
static size_t utf8_length(const char *p, size_t n)
{
	unsigned char c = (unsigned char)p[0];
	size_t want = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
	if (want == 0 || want > n)
		return 0;
	for (size_t i = 1; i < want; i++)
		if (((unsigned char)p[i] & 0xc0) != 0x80)
			return 0;
	return want;
}

/* Walks the characters of a line: the bytes of the next one, and the columns that it takes when it starts at
 * display column `col`. */
static size_t next_char(const char *p, size_t n, size_t col, size_t *width)
{
	if (*p == '\t') {
		*width = TAB - col % TAB;
		return 1;
	}
	*width = 1;
	size_t len = utf8_length(p, n);
	return len ? len : 1;
}

/* Display column of byte `at` of the line. */
static size_t column_of(const char *line, size_t n, size_t at)
{
	size_t col = 0, width;
	for (size_t i = 0; i < n && i < at; col += width)
		i += next_char(line + i, n - i, col, &width);
	return col;
}

static void print_char(FILE *out, const char *p, size_t len, size_t width)
{
	if (*p == '\t')
		fprintf(out, "%*s", (int)width, "");
	else if (len == 1 && ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f))
		fputc('?', out);
	else
		fwrite(p, 1, len, out);
}

/* Prints the columns [from, from + WINDOW) of the line. */
static void print_window(FILE *out, const char *line, size_t n, size_t from)
{
	size_t col = 0, width, len;
	for (size_t i = 0; i < n && col < from + WINDOW; i += len, col += width) {
		len = next_char(line + i, n - i, col, &width);
		if (col >= from)
			print_char(out, line + i, len, width);
		else if (col + width > from)
			print_char(out, " ", 1, 1);
	}
}

static void print_line(const Diag *d, Span span)
{
	const Source *s = find_source(d, span.source);
	if (!s)
		return;
	size_t begin = clamp_begin(s, span), start = begin, stop = begin;
	while (start > 0 && s->text[start - 1] != '\n')
		start--;
	while (stop < s->len && s->text[stop] != '\n')
		stop++;
	size_t end = span.end > span.begin ? (size_t)span.end : begin + 1;
	if (end > stop)
		end = stop;
	if (stop > start && s->text[stop - 1] == '\r')
		stop--;
	const char *text = s->text + start;
	size_t n = stop - start;
	size_t caret = column_of(text, n, begin - start), last = column_of(text, n, end > start ? end - start : 0);
	size_t all = column_of(text, n, n), from = 0;
	if (all > WINDOW && caret > WINDOW * 2 / 3)
		from = caret - WINDOW / 2;
	int number, column;
	diag_position(d, span, &number, &column);
	fprintf(d->out, "%5d |%s%s", number, n ? " " : "", from ? "..." : "");
	print_window(d->out, text, n, from);
	fprintf(d->out, "%s\n      | %*s^", all > from + WINDOW ? "..." : "", (int)(caret - from) + (from ? 3 : 0), "");
	if (last > from + WINDOW)
		last = from + WINDOW;
	for (size_t i = caret + 1; i < last; i++)
		fputc('~', d->out);
	fputc('\n', d->out);
}

/* ---- messages ---- */

static void __attribute__((format(printf, 4, 0)))
message(Diag *d, Span span, const char *kind, const char *fmt, va_list ap)
{
	int line, column;
	diag_position(d, span, &line, &column);
	if (line)
		fprintf(d->out, "%s:%d:%d: ", diag_source_path(d, span.source), line, column);
	else
		fprintf(d->out, "dlc: ");
	fprintf(d->out, "%s: ", kind);
	vfprintf(d->out, fmt, ap);
	fputc('\n', d->out);
	if (line)
		print_line(d, span);
}

void diag_error(Diag *d, Span span, const char *fmt, ...)
{
	d->muted = d->max_errors > 0 && d->errors >= d->max_errors;
	d->errors++;
	if (d->muted)
		return;
	va_list ap;
	va_start(ap, fmt);
	message(d, span, "error", fmt, ap);
	va_end(ap);
}

void diag_warning(Diag *d, Span span, const char *fmt, ...)
{
	d->muted = false;
	va_list ap;
	va_start(ap, fmt);
	message(d, span, "warning", fmt, ap);
	va_end(ap);
}

void diag_note(Diag *d, Span span, const char *fmt, ...)
{
	if (d->muted)
		return;
	va_list ap;
	va_start(ap, fmt);
	message(d, span, "note", fmt, ap);
	va_end(ap);
}

void diag_hint(Diag *d, const char *fmt, ...)
{
	if (d->muted)
		return;
	va_list ap;
	va_start(ap, fmt);
	fprintf(d->out, "hint: ");
	vfprintf(d->out, fmt, ap);
	fputc('\n', d->out);
	va_end(ap);
}

int diag_errors(const Diag *d)
{
	return d->errors;
}

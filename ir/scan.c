/* The scanner of IR text: names, %values, texts in quotes, numbers, punctuation, and // comments. */
#include "scan.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static Span span_from(const Scanner *s, size_t begin)
{
	return (Span){ s->source, (int32_t)begin, (int32_t)s->at };
}

/* Skips blanks and comments; true when a line ended. */
static bool skip_blanks(Scanner *s)
{
	bool line = s->at == 0;
	for (; s->at < s->len; s->at++) {
		const char *p = s->text + s->at;
		if (*p == '/' && s->at + 1 < s->len && p[1] == '/')
			while (s->at + 1 < s->len && s->text[s->at + 1] != '\n')
				s->at++;
		else if (*p == '\n')
			line = true;
		else if (*p != ' ' && *p != '\t' && *p != '\r')
			break;
	}
	return line;
}

/* ---- kinds ---- */

static void scan_number(Scanner *s)
{
	Token *t = &s->token;
	size_t begin = s->at;
	bool hex = false, real = false;
	s->at += s->text[s->at] == '-';
	if (s->at + 1 < s->len && s->text[s->at] == '0' && (s->text[s->at + 1] == 'x' || s->text[s->at + 1] == 'X')) {
		hex = true;
		s->at += 2;
	}
	for (; s->at < s->len; s->at++) {
		char c = s->text[s->at];
		bool exponent = !hex && (c == 'e' || c == 'E');
		if (exponent && s->at + 1 < s->len && (s->text[s->at + 1] == '-' || s->text[s->at + 1] == '+'))
			s->at++;
		else if (!is_name_char(c) && c != '.')
			break;
		real |= exponent || c == '.';
	}
	char *text = arena_strndup(s->arena, s->text + begin, s->at - begin), *end;
	errno = 0;
	if (real) {
		t->kind = T_FLOAT;
		t->f = strtod(text, &end);
	} else {
		t->kind = T_INT;
		t->i = strtoll(text, &end, hex ? 16 : 10);
		t->f = (double)t->i;
		t->overflow = errno == ERANGE;
		if (t->overflow)
			diag_error(s->diag, span_from(s, begin), "%s does not fit in 64 bits", text);
	}
	if (end == text || *end)
		diag_error(s->diag, span_from(s, begin), "'%s' is not a number", text);
}

static int hex_digit(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The character behind a backslash at s->at, or -1. */
static int scan_escape(Scanner *s)
{
	static const char from[] = "\"\\nt", to[] = "\"\\\n\t";
	char c = s->at < s->len ? s->text[s->at++] : '\0';
	if (c == 'x' && s->at + 1 < s->len) {
		int high = hex_digit(s->text[s->at]), low = hex_digit(s->text[s->at + 1]);
		if (high < 0 || low < 0 || high + low == 0)
			return -1;
		s->at += 2;
		return high * 16 + low;
	}
	const char *known = c ? strchr(from, c) : NULL;
	return known ? to[known - from] : -1;
}

static void scan_string(Scanner *s)
{
	Token *t = &s->token;
	size_t begin = s->at++, n = 0, stop = s->at;
	while (stop < s->len && s->text[stop] != '"' && s->text[stop] != '\n')
		stop += s->text[stop] == '\\' && stop + 1 < s->len ? 2 : 1;
	char *text = arena_alloc(s->arena, stop - s->at + 1);
	while (s->at < s->len && s->text[s->at] != '"' && s->text[s->at] != '\n') {
		size_t from = s->at;
		int c = (unsigned char)s->text[s->at++];
		if (c == '\\')
			c = scan_escape(s);
		if (c <= 0)
			diag_error(s->diag, span_from(s, from), "no such character can be in a text");
		else
			text[n++] = (char)c;
	}
	if (s->at < s->len && s->text[s->at] == '"')
		s->at++;
	else
		diag_error(s->diag, span_from(s, begin), "expected a '\"' at the end of the text");
	t->kind = T_STRING;
	t->text = text;
	t->len = n;
}

static void scan_name(Scanner *s)
{
	size_t begin = s->at;
	while (s->at < s->len && is_name_char(s->text[s->at]))
		s->at++;
	s->token.text = s->text + begin;
	s->token.len = s->at - begin;
}

static void scan_one(Scanner *s)
{
	Token *t = &s->token;
	char c = s->text[s->at];
	if (isdigit((unsigned char)c) || (c == '-' && s->at + 1 < s->len && isdigit((unsigned char)s->text[s->at + 1]))) {
		scan_number(s);
	} else if (is_name_char(c)) {
		t->kind = T_NAME;
		scan_name(s);
	} else if (c == '%' && s->at + 1 < s->len && is_name_char(s->text[s->at + 1])) {
		t->kind = T_VALUE;
		s->at++;
		scan_name(s);
	} else if (c == '"') {
		scan_string(s);
	} else {
		t->kind = T_PUNCT;
		t->punct = c;
		s->at++;
	}
}

void scan_next(Scanner *s)
{
	bool first = false;
	for (;;) {
		size_t stop = s->at;
		first |= skip_blanks(s);
		size_t begin = s->at;
		if (begin == s->len) /* the text ends behind its last token, not behind comments */
			begin = stop;
		s->token = (Token){ .kind = T_END, .first = first, .text = "" };
		if (s->at < s->len)
			scan_one(s);
		s->token.span = span_from(s, begin);
		if (s->token.kind == T_END)
			s->token.span.end = s->token.span.begin;
		if (s->token.kind != T_PUNCT || (s->token.punct && strchr("{}()[],:=@'+-", s->token.punct)))
			return;
		unsigned char c = (unsigned char)s->token.punct;
		if (c > 0x20 && c < 0x7f)
			diag_error(s->diag, s->token.span, "no '%c' is expected anywhere", c);
		else
			diag_error(s->diag, s->token.span, "no byte 0x%02x is expected anywhere", c);
		/* one message for a run of such bytes */
		while (s->at < s->len && s->text[s->at] == (char)c)
			s->at++;
	}
}

char scan_peek(const Scanner *s)
{
	Scanner ahead = *s;
	skip_blanks(&ahead);
	return ahead.at < ahead.len ? ahead.text[ahead.at] : '\0';
}

bool scan_at(const Scanner *s, char punct)
{
	return s->token.kind == T_PUNCT && s->token.punct == punct;
}

bool scan_at_name(const Scanner *s, const char *name)
{
	const Token *t = &s->token;
	return t->kind == T_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

const char *scan_found(const Scanner *s)
{
	const Token *t = &s->token;
	if (t->kind == T_END)
		return "the end of the text";
	int n = t->span.end - t->span.begin;
	return arena_printf(s->arena, "'%.*s%s'", n > 40 ? 40 : n, s->text + t->span.begin, n > 40 ? "..." : "");
}

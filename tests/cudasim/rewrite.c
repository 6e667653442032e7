/* Turns the two things of CUDA C that no macro can express into C++: declarations of shared variables (see device.h), and kernels, whose
 * parameters are unpacked by an entry. Works on the text's tokens; lines stay where they are. */
#include "nvrtc.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Text {
	char *s;
	size_t n, cap;
} Text;

static void put(Text *t, const char *s, size_t n)
{
	if (t->n + n + 1 > t->cap) {
		t->cap = 2 * (t->n + n + 1);
		char *grown = realloc(t->s, t->cap);
		if (!grown)
			abort();
		t->s = grown;
	}
	memcpy(t->s + t->n, s, n);
	t->n += n;
	t->s[t->n] = 0;
}

static void putf(Text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void putf(Text *t, const char *fmt, ...)
{
	char b[512];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(b, sizeof b, fmt, ap);
	va_end(ap);
	put(t, b, (size_t)n < sizeof b ? (size_t)n : sizeof b - 1);
}

static bool word_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Behind a comment or a literal that starts at p; p where none does. */
static const char *skip_opaque(const char *p)
{
	if (p[0] == '/' && p[1] == '/') {
		while (*p && *p != '\n')
			p++;
	} else if (p[0] == '/' && p[1] == '*') {
		const char *end = strstr(p + 2, "*/");
		p = end ? end + 2 : p + strlen(p);
	} else if (*p == '"' || *p == '\'') {
		char quote = *p++;
		while (*p && *p != quote && *p != '\n')
			p += p[0] == '\\' && p[1] ? 2 : 1;
		p += *p == quote;
	}
	return p;
}

static const char *skip_space(const char *p)
{
	for (;;) {
		const char *q = p;
		while (isspace((unsigned char)*p))
			p++;
		if (*p == '/')
			p = skip_opaque(p);
		if (p == q)
			return p;
	}
}

static size_t word_at(const char *p)
{
	size_t n = 0;
	while (word_char(p[n]))
		n++;
	return n;
}

static bool is_word(const char *p, size_t n, const char *w)
{
	return n == strlen(w) && memcmp(p, w, n) == 0;
}

/* Behind the bracket that closes the one at p. */
static const char *skip_group(const char *p)
{
	int depth = 0;
	while (*p) {
		const char *q = skip_opaque(p);
		if (q != p) {
			p = q;
			continue;
		}
		if (strchr("([{", *p))
			depth++;
		if (strchr(")]}", *p) && --depth == 0)
			return p + 1;
		p++;
	}
	return p;
}

typedef struct Name {
	const char *at;
	size_t n;
} Name;

enum { MAX_NAMES = 32 };

/* The declarators between p and its ';': the last word before a '[', ',' or ';' that stands outside of brackets. NULL: not understood. */
static const char *declarators(const char *p, Name *names, int *n)
{
	Name last = {NULL, 0};
	bool taken = false; /* this declarator's name is known: dimensions follow */
	int angle = 0;
	*n = 0;
	while (*p) {
		const char *q = skip_opaque(p);
		if (q != p) {
			p = q;
			continue;
		}
		size_t len = word_at(p);
		if (len) {
			if (!taken && angle == 0)
				last = (Name){p, len};
			p += len;
			if (*p == '<' || (*skip_space(p) == '<' && !taken))
				angle++, p = skip_space(p) + 1;
			continue;
		}
		if (*p == '(') {
			p = skip_group(p);
			continue;
		}
		if (angle > 0) {
			angle += (*p == '<') - (*p == '>');
			p++;
			continue;
		}
		if (*p == '=' || *p == '{' || *p == '}')
			return NULL;
		if (*p == '[' || *p == ',' || *p == ';') {
			if (!taken) {
				if (!last.at || *n == MAX_NAMES)
					return NULL;
				names[(*n)++] = last;
				last = (Name){NULL, 0};
			}
			taken = *p == '[';
			if (*p == ';')
				return p;
			p = *p == '[' ? skip_group(p) : p + 1;
			/* behind dimensions the same declarator goes on until ',' or ';' */
			if (taken) {
				p = skip_space(p);
				while (*p == '[')
					p = skip_space(skip_group(p));
				if (*p == ';')
					return p;
				if (*p != ',')
					return NULL;
				taken = false;
				p++;
			}
			continue;
		}
		p++;
	}
	return NULL;
}

/* `__shared__ DECLARATION;` at p (behind the word). */
static const char *shared_variable(Text *out, const char *p, bool dynamic)
{
	Name names[MAX_NAMES];
	int n;
	const char *end = declarators(p, names, &n);
	if (!end || n == 0)
		return NULL;
	if (dynamic) {
		put(out, p, (size_t)(end - p));
		putf(out, " __asm__(\"dl_sim_dynamic\");");
		return end + 1;
	}
	putf(out, "typedef ");
	for (int i = 0; i < n; i++) {
		put(out, p, (size_t)(names[i].at - p));
		putf(out, "dl_sim_t_");
		p = names[i].at;
	}
	put(out, p, (size_t)(end - p));
	putf(out, ";");
	for (int i = 0; i < n; i++)
		putf(out, " DL_SIM_SHARED(%.*s)", (int)names[i].n, names[i].at);
	return end + 1;
}

/* `__global__` at p (behind the word): its name and bounds, where it is `extern "C"` and no template. */
static void kernel(Text *entries, const char *p)
{
	const char *bounds = "0", *name = NULL;
	size_t nbounds = 1, nname = 0;
	for (p = skip_space(p); *p && *p != ';' && *p != '{'; p = skip_space(p)) {
		size_t n = word_at(p);
		if (is_word(p, n, "__launch_bounds__")) {
			const char *open = skip_space(p + n), *end = skip_group(open);
			bounds = open + 1;
			int depth = 0;
			const char *q = bounds;
			while (q < end - 1 && (depth > 0 || *q != ',')) {
				depth += (*q == '(') - (*q == ')');
				q++;
			}
			nbounds = (size_t)(q - bounds);
			p = end;
		} else if (is_word(p, n, "__attribute__") || is_word(p, n, "__align__")) {
			p = skip_group(skip_space(p + n));
		} else if (n) {
			name = p;
			nname = n;
			p += n;
		} else if (*p == '(') {
			break;
		} else {
			p++;
		}
	}
	char line[512];
	snprintf(line, sizeof line, "DL_SIM_ENTRY(%.*s, ", (int)nname, name ? name : "");
	if (name && *p == '(' && (!entries->s || !strstr(entries->s, line))) {
		putf(entries, "%s%.*s)\n", line, (int)nbounds, bounds);
	}
}

char *rewrite_source(const char *text, char **entries, char **why)
{
	Text out = {0}, table = {0};
	bool line_start = true, after_extern = false, c_linkage = false;
	const char *file = ""; /* of the last line marker: # LINE "FILE" */
	int line = 1;
	put(&out, "", 0);
	put(&table, "", 0);
	*why = NULL;
	for (const char *p = text; *p;) {
		const char *q = skip_opaque(p);
		if (line_start && *skip_space(p) == '#' && !memchr(p, '\n', (size_t)(skip_space(p) - p))) {
			q = p + strcspn(p, "\n");
			file = skip_space(p) + 1;
			line = atoi(file + strspn(file, "line ")) - 1;
		}
		bool literal_c = q - p == 3 && memcmp(p, "\"C\"", 3) == 0;
		size_t n = q == p ? word_at(p) : 0;
		if (n && is_word(p, n, "__shared__")) {
			const char *end = shared_variable(&out, p + n, after_extern);
			if (!end) {
				Text w = {0};
				const char *name = strchr(file, '"');
				putf(&w, "%.*s:%d: error: a __shared__ declaration that the simulator does not understand (initialisers are not allowed)\n",
				     name ? (int)strcspn(name + 1, "\"\n") : 0, name ? name + 1 : "", line);
				*why = w.s;
				free(out.s);
				free(table.s);
				return NULL;
			}
			p = end;
			after_extern = false;
			line_start = false;
			continue;
		}
		if (n && is_word(p, n, "__global__") && c_linkage)
			kernel(&table, p + n);
		if (n) {
			after_extern = is_word(p, n, "extern");
			c_linkage = c_linkage && !after_extern && !is_word(p, n, "template");
			q = p + n;
		}
		if (literal_c)
			c_linkage = after_extern;
		if (q == p) {
			if (*p == ';' || *p == '}')
				c_linkage = false;
			q = p + 1;
		}
		for (const char *c = p; c < q; c++) {
			line += *c == '\n';
			line_start = *c == '\n' || (line_start && isspace((unsigned char)*c));
		}
		put(&out, p, (size_t)(q - p));
		p = q;
	}
	*entries = table.s;
	return out.s;
}

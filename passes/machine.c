/* Machine profiles as text, built in and stored (see machine.h).
 *
 *     dlc machine profile 1
 *     name workstation
 *     card NVIDIA H200, sm_90 # of a card that was measured
 *     threads 8
 *     own_cache 1310720
 *     ...
 *     simple 0.041        # 24.4 Gop/s: add, multiply, ...
 *
 * One `key value` a line, `#` starts a comment, each key once and none left out but the link's, so that a profile of another version of
 * the cost model is refused and not half understood. Built-in profiles are machines.txt, several such texts in one. */
#include "machine.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const char machines_txt[];

static const char header[] = "dlc machine profile 1";

const MachineRow machine_rows[MACHINE_COSTS] = {
#define COST(name, group, per, doc) { #name, per, doc, COST_##group },
#include "machine.def"
#undef COST
};

/* What a profile has besides costs. */
typedef struct Key {
	const char *name;
	double least, most;
	bool whole, optional; /* where it is left out it is 0 */
	const char *doc;
} Key;

enum { KEY_THREADS, KEY_OWN, KEY_SHARED, KEY_FORK, KEY_OVERLAP, KEY_LINK_OUT, KEY_LINK_IN, KEY_LINK_DELAY, KEYS };

static const Key keys[KEYS] = {
	{ "threads", 1, 1024, true, false, "that were at work when it was measured" },
	{ "own_cache", 1, 1e15, false, false, "bytes of a processor's own cache" },
	{ "shared_cache", 0, 1e15, false, false, "bytes of the cache that all share" },
	{ "fork_work", 0, 1e15, false, false, "operations below which a kernel stays on one thread" },
	{ "overlap", 0, 1, false, false, "1: arithmetic and traffic hide each other; 0: they add up" },
	{ "link_out", 0, 1e15, false, true, "bytes a second from the device's memory to pinned memory of the host; 0: no such link" },
	{ "link_in", 0, 1e15, false, true, "the same from there to the device" },
	{ "link_delay", 0, 1e12, false, true, "nanoseconds before such a copy begins, and before what waits for it goes on" },
};

/* ---- reading ---- */

typedef struct Reader {
	Arena *a;
	const char *path;
	FILE *err;
	int line;
	Machine *m;
	double key[KEYS];
	bool seen[KEYS + MACHINE_COSTS];
} Reader;

__attribute__((format(printf, 2, 3))) static bool fail(Reader *r, const char *fmt, ...)
{
	va_list ap;

	fprintf(r->err, "%s:%d: error: ", r->path, r->line);
	va_start(ap, fmt);
	vfprintf(r->err, fmt, ap);
	va_end(ap);
	fputc('\n', r->err);
	return false;
}

/* The index of a key, costs behind the others; -1 when unknown. */
static int find_key(const char *name)
{
	for (int i = 0; i < KEYS; i++)
		if (strcmp(keys[i].name, name) == 0)
			return i;
	for (int i = 0; i < MACHINE_COSTS; i++)
		if (strcmp(machine_rows[i].name, name) == 0)
			return KEYS + i;
	return -1;
}

static bool read_number(Reader *r, const char *name, const char *text)
{
	int i = find_key(name);
	double v, most = i < KEYS && i >= 0 ? keys[i].most : 1e12, least = i < KEYS && i >= 0 ? keys[i].least : 0;
	char *end;

	if (i < 0)
		return fail(r, "unknown key '%s'", name);
	if (r->seen[i])
		return fail(r, "'%s' is there twice", name);
	errno = 0;
	v = strtod(text, &end);
	if (end == text || *end != 0 || !(v >= least && v <= most) || (i < KEYS && keys[i].whole && v != floor(v)))
		return fail(r, "%s: expected a %snumber from %g to %g, got '%s'", name,
		            i < KEYS && keys[i].whole ? "whole " : "", least, most, text);
	r->seen[i] = true;
	if (i < KEYS)
		r->key[i] = v;
	else
		r->m->ns[i - KEYS] = v;
	return true;
}

/* One line without its comment and the spaces around. */
static bool read_line(Reader *r, char *line)
{
	char *value = line + strcspn(line, " \t");

	if (r->line == 1) {
		return strcmp(line, header) == 0 ||
		       fail(r, "expected '%s', got '%s' (dlc --calibrate writes a new one)", header, line);
	}
	if (!line[0])
		return true;
	if (*value)
		*value++ = 0;
	value += strspn(value, " \t");
	if (!*value)
		return fail(r, "'%s' has no value", line);
	const char **text = strcmp(line, "name") == 0 ? &r->m->name : strcmp(line, "card") == 0 ? &r->m->card : NULL;
	if (!text)
		return read_number(r, line, value);
	if (*text)
		return fail(r, "'%s' is there twice", line);
	*text = value;
	return true;
}

static bool complete(Reader *r)
{
	if (!r->m->name)
		return fail(r, "'name' is missing");
	for (int i = 0; i < KEYS + MACHINE_COSTS; i++)
		if (!r->seen[i] && !(i < KEYS && keys[i].optional))
			return fail(r, "'%s' is missing", i < KEYS ? keys[i].name : machine_rows[i - KEYS].name);
	r->m->threads = r->m->measured_threads = (int)r->key[KEY_THREADS];
	r->m->own_cache = r->key[KEY_OWN];
	r->m->shared_cache = r->key[KEY_SHARED];
	r->m->fork_work = r->key[KEY_FORK];
	r->m->overlap = r->key[KEY_OVERLAP];
	r->m->link_out = r->key[KEY_LINK_OUT];
	r->m->link_in = r->key[KEY_LINK_IN];
	r->m->link_delay = r->key[KEY_LINK_DELAY];
	return true;
}

/* Reads up to the end or the next header. */
static const Machine *parse(Arena *a, const char *path, const char *text, FILE *err)
{
	Reader r = { .a = a, .path = path, .err = err, .m = ARENA_NEW(a, Machine) };

	do {
		size_t len = strcspn(text, "\n"), used;
		char *line = arena_strndup(a, text, len);

		if (r.line > 0 && strcmp(line, header) == 0)
			break;
		r.line++;
		line[strcspn(line, "#\r")] = 0;
		used = strlen(line);
		while (used > 0 && (line[used - 1] == ' ' || line[used - 1] == '\t'))
			line[--used] = 0;
		if (!read_line(&r, line + strspn(line, " \t")))
			return NULL;
		text += len + (text[len] == '\n');
	} while (*text);
	return complete(&r) ? r.m : NULL;
}

const Machine *machine_parse(Arena *a, const char *path, const char *text, FILE *err)
{
	const char *second = strstr(text, header);

	second = second ? strstr(second + 1, header) : NULL;
	if (second && second[-1] == '\n') {
		fprintf(err, "%s: error: more than one profile\n", path);
		return NULL;
	}
	return parse(a, path, text, err);
}

/* ---- built-in ones ---- */

/* The name of the profile that starts at a header. */
static const char *name_at(Arena *a, const char *text)
{
	const char *name = strstr(text, "\nname ");

	return name ? arena_strndup(a, name + 6, strcspn(name + 6, " \t\r\n#")) : "";
}

const Machine *machine_builtin(Arena *a, const char *name)
{
	for (const char *s = strstr(machines_txt, header); s; s = strstr(s + 1, header))
		if (strcmp(name_at(a, s), name) == 0)
			return parse(a, "machines.txt", s, stderr);
	return NULL;
}

const char *machine_names(Arena *a)
{
	const char *names = "";

	for (const char *s = strstr(machines_txt, header); s; s = strstr(s + 1, header))
		names = arena_printf(a, "%s%s%s", names, *names ? ", " : "", name_at(a, s));
	return names;
}

const Machine *machine_with_threads(Arena *a, const Machine *m, int threads)
{
	Machine *copy = ARENA_NEW(a, Machine);

	*copy = *m;
	copy->threads = machine_is_card(m) ? m->threads : threads;
	return copy;
}

bool machine_is_card(const Machine *m)
{
	return m->fork_work <= 0;
}

const char *machine_path(Arena *a, bool card)
{
	const char *processor = getenv("DLC_PROFILE"), *told = card ? getenv("DLC_CARD_PROFILE") : processor;
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME"), *file = card ? "card.profile" : "machine.profile";

	if (told)
		return *told ? told : NULL;
	if (card && processor && !*processor)
		return NULL;
	if (config && config[0] == '/')
		return arena_printf(a, "%s/dlc/%s", config, file);
	return home && home[0] == '/' ? arena_printf(a, "%s/.config/dlc/%s", home, file) : NULL;
}

/* ---- writing ---- */

void machine_print(FILE *out, const Machine *m)
{
	const double key[KEYS] = { m->measured_threads, m->own_cache, m->shared_cache, m->fork_work, m->overlap,
		                   m->link_out, m->link_in, m->link_delay };

	fprintf(out, "%s\nname %s\n", header, m->name);
	if (m->card)
		fprintf(out, "card %s\n", m->card);
	if (m->prior)
		fprintf(out, "# Measured by dlc --calibrate. No time told about costs marked (%s): they are of that built-in profile.\n", m->prior);
	for (int i = 0; i < KEYS; i++)
		if (key[i] > 0 || !keys[i].optional)
			fprintf(out, "%-16s %-12.9g # %s\n", keys[i].name, key[i], keys[i].doc);
	fprintf(out, "# nanoseconds of each\n");
	for (int i = 0; i < MACHINE_COSTS; i++) {
		const MachineRow *row = &machine_rows[i];

		fprintf(out, "%-16s %-12.6g # ", row->name, m->ns[i]);
		if (m->prior && m->kept[i])
			fprintf(out, "(%s) ", m->prior);
		if (row->per[0] && m->ns[i] > 0)
			fprintf(out, "%.3g G%s/s%s: ", 1 / m->ns[i], row->per, row->group == COST_FIXED ? "" : " a thread");
		fprintf(out, "%s\n", row->doc);
	}
}

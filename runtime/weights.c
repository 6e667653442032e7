/* Weights from elsewhere: `--init FILE`. See checkpoint.h for what is promised.
 *
 * Each tensor of the file is looked for by a name of the model: what a line of the name map makes of
 * its own, else its own, without the prefix that the file's names have before the model's
 * ("transformer." of "transformer.h.0.ln_1.weight"), where there is one. Then every variable finds its
 * tensor or is a fault, every tensor its variable or is a fault, unless it is one of those that may
 * be left out: the compiler's own state, buffers that other tools save, a second name of a tensor
 * that was taken. Only then is anything copied. */
#include "checkpoint.h"

#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAP_MAX = 1 << 24, NAME_MAX_BYTES = 1024 };

/* ---- the name map ------------------------------------------------------------------------------ */

typedef struct Rename {
	const char *from, *to; /* to "": the tensor is left out; one * in both is the same text */
	bool used, late; /* late: its tensors are those of lines above */
	int line;
} Rename;

typedef struct NameMap {
	char *text;
	Rename *at;
	int n;
	char *names; /* that were made, one after the other */
} NameMap;

static void map_close(NameMap *m)
{
	free(m->text);
	free(m->at);
	free(m->names);
}

static bool read_text(const char *path, char **out, Fail *f)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) {
		fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	bool ok = S_ISREG(st.st_mode) && st.st_size <= MAP_MAX;
	size_t size = ok ? (size_t)st.st_size : 0, n = 0;
	*out = calloc(size + 1, 1);
	for (ssize_t got = 1; ok && *out && n < size && got > 0; n += got > 0 ? (size_t)got : 0)
		got = read(fd, *out + n, size - n);
	close(fd);
	if (!*out)
		return fail(f, EXIT_FILES, "out of memory");
	return (ok && n == size) || fail(f, EXIT_FILES, "%s: cannot be read as a map of names", path);
}

static char *trim(char *s)
{
	while (*s == ' ' || *s == '\t')
		s++;
	for (size_t n = strlen(s); n && strchr(" \t\r", s[n - 1]); n--)
		s[n - 1] = 0;
	return s;
}

static int stars(const char *s)
{
	int n = 0;
	for (; *s; s++)
		n += *s == '*';
	return n;
}

/* Lines `from -> to`; `#` begins a comment. */
static bool map_open(NameMap *m, const char *path, Fail *f)
{
	if (!read_text(path, &m->text, f))
		return false;
	int lines = 1, number = 0;
	for (const char *s = m->text; *s; s++)
		lines += *s == '\n';
	m->at = calloc((size_t)lines, sizeof *m->at);
	if (!m->at)
		return fail(f, EXIT_FILES, "out of memory");
	char *rest = m->text;
	for (char *line; (line = strsep(&rest, "\n"));) {
		char *comment = strchr(line, '#'), *arrow;
		number++;
		if (comment)
			*comment = 0;
		line = trim(line);
		if (!*line)
			continue;
		arrow = strstr(line, "->");
		if (!arrow)
			return fail(f, EXIT_INPUT, "%s:%d: expected 'from -> to', got '%.100s'", path,
				    number, line);
		*arrow = 0;
		Rename r = { .from = trim(line), .to = trim(arrow + 2), .line = number };
		if (!*r.from || stars(r.from) > 1 || stars(r.to) > stars(r.from))
			return fail(f, EXIT_INPUT,
				    "%s:%d: expected one name on the left, with at most one * that "
				    "stands for the same text on the right",
				    path, number);
		m->at[m->n++] = r;
	}
	return true;
}

/* Whether `from` names s; *text is what its * stands for. */
static bool names(const char *from, const char *s, const char **text, int *len)
{
	const char *star = strchr(from, '*');
	size_t head = star ? (size_t)(star - from) : strlen(from), tail = star ? strlen(star + 1) : 0;
	size_t n = strlen(s);
	if (n < head + tail || strncmp(from, s, head) || (!star && n != head) ||
	    (star && strcmp(star + 1, s + n - tail)))
		return false;
	*text = s + head;
	*len = (int)(n - head - tail);
	return true;
}

static bool rename_tensors(NameMap *m, TensorFile *x, const char *path, Fail *f)
{
	char *at = m->names = calloc((size_t)x->ntensors + 1, NAME_MAX_BYTES);
	if (!at)
		return fail(f, EXIT_FILES, "out of memory");
	for (int i = 0; i < x->ntensors; i++) {
		Tensor *t = &x->tensor[i];
		for (int k = 0; k < m->n; k++) {
			const char *text, *to = m->at[k].to, *star = strchr(to, '*');
			int len;
			if (!names(m->at[k].from, t->name, &text, &len))
				continue;
			m->at[k].late = t->as != t->name;
			if (m->at[k].late)
				continue;
			m->at[k].used = true;
			t->as = at;
			snprintf(at, NAME_MAX_BYTES, "%.*s%.*s%s",
				 (int)(star ? (size_t)(star - to) : strlen(to)), to, star ? len : 0,
				 text, star ? star + 1 : "");
			at += NAME_MAX_BYTES;
		}
	}
	for (int k = 0; k < m->n; k++)
		if (!m->at[k].used)
			return fail(f, EXIT_INPUT,
				    m->at[k].late ? "%s:%d: lines above it take every tensor '%s'"
						  : "%s:%d: the file has no tensor '%s'",
				    path, m->at[k].line, m->at[k].from);
	return true;
}

/* One reading of a file. */
typedef struct Init {
	const Plan *plan;
	TensorFile file;
	NameMap map;
	InitWhat what;
} Init;

/* ---- who is whose -------------------------------------------------------------------------------- */

static bool is_adapter(const Plan *plan, const PlanVar *v)
{
	for (int i = 0; i < plan->nadapters; i++)
		if (&plan->vars[plan->adapters[i].a] == v || &plan->vars[plan->adapters[i].b] == v)
			return true;
	return false;
}

/* Whether the file is asked for this variable. */
static bool wanted(const Init *x, const PlanVar *v)
{
	if (x->what == INIT_ADAPTERS)
		return is_adapter(x->plan, v);
	return v->role == PV_PARAM || v->role == PV_STAT;
}

static Tensor *find_as(const TensorFile *x, const char *name)
{
	for (int i = 0; i < x->ntensors; i++)
		if (strcmp(x->tensor[i].as, name) == 0)
			return &x->tensor[i];
	return NULL;
}

/* Where `name` ends with a dot and `of`, the length before it and with the dot; else 0. */
static size_t prefix_length(const char *name, const char *of)
{
	size_t n = strlen(name), k = strlen(of);
	return n > k + 1 && name[n - k - 1] == '.' && !strcmp(name + n - k, of) ? n - k : 0;
}

/* How many variables would be found under a prefix. */
static int count_under(const Init *x, const char *prefix, size_t n)
{
	int found = 0;
	for (int i = 0; i < x->file.ntensors; i++) {
		const char *name = x->file.tensor[i].as;
		if (strncmp(name, prefix, n))
			continue;
		for (int k = 0; k < x->plan->nvars; k++)
			if (wanted(x, &x->plan->vars[k]) && !strcmp(x->plan->vars[k].name, name + n)) {
				found++;
				break;
			}
	}
	return found;
}

/* Takes away the prefix under which most variables are found, where some have no tensor of their own
 * name. */
static void drop_prefix(Init *x)
{
	const TensorFile *file = &x->file;
	char prefix[NAME_MAX_BYTES];
	size_t length = 0;
	int most = 0;
	for (int k = 0; k < x->plan->nvars && !most; k++) {
		const PlanVar *v = &x->plan->vars[k];
		if (!wanted(x, v) || find_as(file, v->name))
			continue;
		for (int i = 0; i < file->ntensors; i++) {
			size_t n = prefix_length(file->tensor[i].as, v->name);
			int found = n && n < sizeof prefix ? count_under(x, file->tensor[i].as, n) : 0;
			if (found > most) {
				most = found;
				length = n;
				snprintf(prefix, sizeof prefix, "%s", file->tensor[i].as);
			}
		}
	}
	for (int i = 0; most && i < file->ntensors; i++) {
		Tensor *t = &file->tensor[i];
		if (!strncmp(t->as, prefix, length) && !find_as(file, t->as + length))
			t->as += length;
	}
}

static bool ends(const char *s, const char *with)
{
	size_t n = strlen(s), k = strlen(with);
	return n >= k && !strcmp(s + n - k, with);
}

/* Buffers that are no weights: masks of GPT-2's attention, positions, rotary frequencies, counters of
 * batch norm. */
static bool is_buffer(const char *name)
{
	static const char *const known[] = { ".attn.bias", ".attn.masked_bias", ".attention.bias",
		                             ".attention.masked_bias", ".rotary_emb.inv_freq",
		                             "position_ids", ".num_batches_tracked" };
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (ends(name, known[i]))
			return true;
	return false;
}

/* A tied head, saved under both of its names. */
static bool is_copy(const TensorFile *x, const Tensor *t)
{
	for (int i = 0; i < x->ntensors; i++) {
		const Tensor *u = &x->tensor[i];
		if (u->used && u->dtype == t->dtype && u->ndim == t->ndim &&
		    !memcmp(u->dim, t->dim, (size_t)t->ndim * sizeof *t->dim) &&
		    u->end - u->begin == t->end - t->begin &&
		    !memcmp(u->data, t->data, (size_t)(t->end - t->begin)))
			return true;
	}
	return false;
}

static bool is_float(PlanDType t)
{
	return t >= PD_F16;
}

/* Index of the first element that is not finite; -1: all are. Tensors of a file need not be aligned. */
static int64_t first_bad(const Tensor *t)
{
	double piece[512];
	int64_t size = plan_dtype_bytes(t->dtype), bytes = t->end - t->begin;
	for (int64_t at = 0; at < bytes; at += (int64_t)sizeof piece) {
		int64_t n = bytes - at < (int64_t)sizeof piece ? bytes - at : (int64_t)sizeof piece;
		memcpy(piece, t->data + at, (size_t)n);
		int64_t i = plan_first_nonfinite(t->dtype, piece, n / size);
		if (i >= 0)
			return at / size + i;
	}
	return -1;
}

static void check_var(const Init *x, const PlanVar *v, Faults *faults)
{
	Tensor *t = find_as(&x->file, v->name);
	char want[128], found[128];
	tensor_shape_text(v->dtype, v->ndim, v->dim, want);
	if (!t) {
		bool adapter = is_adapter(x->plan, v); /* of a model that has none yet */
		if (v->role == PV_PARAM && (!adapter || x->what == INIT_ADAPTERS))
			fault(faults, "'%s' is missing, expected %s", v->name, want);
		return;
	}
	t->used = tensor_like(t, v) &&
		  (t->dtype == v->dtype || (is_float(t->dtype) && is_float(v->dtype)));
	tensor_shape_text(t->dtype, t->ndim, t->dim, found);
	if (!t->used) {
		fault(faults, "'%s' is %s, expected %s", v->name, found, want);
		return;
	}
	int64_t bad = first_bad(t);
	t->used = bad < 0;
	if (!t->used)
		fault(faults, "'%s' has an element that is not finite, number %" PRId64, v->name, bad);
}

static bool has_variable(const Init *x, const char *name)
{
	for (int k = 0; k < x->plan->nvars; k++)
		if (wanted(x, &x->plan->vars[k]) && !strcmp(x->plan->vars[k].name, name))
			return true;
	return false;
}

static void check_rest(const Init *x, Faults *faults)
{
	for (int i = 0; i < x->file.ntensors; i++) {
		const Tensor *t = &x->file.tensor[i], *twin = find_as(&x->file, t->as);
		if (t->used || !*t->as || !strncmp(t->as, "dlc.", 4) || is_buffer(t->as) ||
		    is_copy(&x->file, t))
			continue;
		if (twin != t)
			fault(faults, "'%s' and '%s' are both '%s'", twin->name, t->name, t->as);
		else if (!has_variable(x, t->as)) /* else its shape was told */
			fault(faults, strcmp(t->as, t->name) ? "'%s' is to be '%s', which is not in the model" : "'%s' is not in the model",
			      t->name, t->as);
	}
}

/* ---- copying --------------------------------------------------------------------------------------- */

/* The nearest number of a 16-bit type, ties to even: `digits` of the fraction, exponents from 1 - bias. */
static uint16_t narrow(double v, int digits, int bias)
{
	uint16_t sign = signbit(v) ? 0x8000 : 0, inf = (uint16_t)((2 * bias + 1) << digits);
	if (isnan(v))
		return (uint16_t)(sign | inf | 1 << (digits - 1));
	int e = isinf(v) ? bias + 1 : v == 0 ? 1 - bias : ilogb(v);
	if (e < 1 - bias)
		e = 1 - bias;
	if (e > bias)
		return sign | inf;
	double whole = nearbyint(ldexp(fabs(v), digits - e));
	/* Below 2^digits the exponent's bits stay 0; a carry out of the fraction goes into them. */
	uint32_t bits = (uint32_t)whole + ((uint32_t)(e + bias - 1) << digits);
	return (uint16_t)(sign | (bits < inf ? bits : inf));
}

static void put_element(PlanDType t, void *to, int64_t i, double value)
{
	if (t == PD_F64)
		((double *)to)[i] = value;
	else if (t == PD_F32)
		((float *)to)[i] = (float)value;
	else
		((uint16_t *)to)[i] = t == PD_BF16 ? narrow(value, 7, 127) : narrow(value, 10, 15);
}

/* A tensor of another type is converted piece by piece in `piece`, which has DEVICE_CHUNK bytes. */
static bool copy_tensor(Device *d, const PlanVar *v, const Tensor *t, unsigned char *piece, Fail *f)
{
	if (t->dtype == v->dtype)
		return device_write(d, v->offset, v->bytes, t->data, f);
	int64_t from = plan_dtype_bytes(t->dtype), to = plan_dtype_bytes(v->dtype);
	int64_t elems = (t->end - t->begin) / from, most = DEVICE_CHUNK / to;
	bool ok = true;
	for (int64_t at = 0; ok && at < elems; at += most) {
		int64_t n = elems - at < most ? elems - at : most;
		for (int64_t i = 0; i < n; i++) {
			uint64_t bits = 0; /* tensors of a file need not be aligned */
			memcpy(&bits, t->data + (at + i) * from, (size_t)from);
			put_element(v->dtype, piece, i, plan_element(t->dtype, &bits, 0));
		}
		ok = device_write(d, v->offset + at * to, n * to, piece, f);
	}
	return ok;
}

static bool copy_variable(Device *d, const PlanVar *from, const PlanVar *to, unsigned char *piece, Fail *f)
{
	bool ok = true;
	for (int64_t at = 0; ok && at < to->bytes; at += DEVICE_CHUNK) {
		int64_t n = to->bytes - at < DEVICE_CHUNK ? to->bytes - at : DEVICE_CHUNK;
		ok = device_read(d, from->offset + at, n, piece, f) &&
		     device_write(d, to->offset + at, n, piece, f);
	}
	return ok;
}

/* Averages are the file's, or begin as their parameters. */
static bool copy_average(Device *d, const TensorFile *x, const PlanVar *v, unsigned char *piece, Fail *f)
{
	const Tensor *t = tensors_find(x, v->name);
	const PlanVar *p = plan_average_of(device_info(d)->plan, v);
	if (!p)
		return true;
	if (t && tensor_like(t, v) && t->dtype == v->dtype)
		return copy_tensor(d, v, t, piece, f);
	return copy_variable(d, p, v, piece, f);
}

static bool copy_all(Device *d, const Init *x, Fail *f)
{
	unsigned char *piece = malloc(DEVICE_CHUNK);
	bool ok = piece || fail(f, EXIT_FILES, "out of memory");
	for (int i = 0; ok && i < x->plan->nvars; i++) {
		const PlanVar *v = &x->plan->vars[i];
		const Tensor *t = wanted(x, v) ? find_as(&x->file, v->name) : NULL;
		ok = !t || !t->used || copy_tensor(d, v, t, piece, f);
	}
	for (int i = 0; ok && i < x->plan->nvars; i++)
		ok = copy_average(d, &x->file, &x->plan->vars[i], piece, f);
	free(piece);
	return ok;
}

static bool match(Init *x, Fail *note, Fail *f)
{
	bool partial = x->what == INIT_PARTIAL;
	Faults faults = { .f = partial ? note : f };
	drop_prefix(x);
	fail(faults.f, EXIT_INPUT, partial ? "%s: a part of it is taken" : "%s: does not fit this model",
	     x->file.path);
	for (int i = 0; i < x->plan->nvars; i++)
		if (wanted(x, &x->plan->vars[i]))
			check_var(x, &x->plan->vars[i], &faults);
	check_rest(x, &faults);
	if (faults_finish(&faults) || partial)
		return true;
	if (x->what == INIT_WHOLE)
		fail_add(f, "\n--init-partial takes what fits, --init-map FILE gives tensors other names");
	return false;
}

bool checkpoint_init(Device *d, const char *path, const char *map, InitWhat what, Fail *note, Fail *f)
{
	Init x = { .plan = device_info(d)->plan, .what = what };
	note->text[0] = 0;
	if (!tensors_open(&x.file, path, f))
		return false;
	for (int i = 0; i < x.file.ntensors; i++)
		x.file.tensor[i].as = x.file.tensor[i].name;
	bool ok = (!map || (map_open(&x.map, map, f) && rename_tensors(&x.map, &x.file, map, f))) &&
		  match(&x, note, f) && copy_all(d, &x, f);
	map_close(&x.map);
	tensors_close(&x.file);
	return ok;
}

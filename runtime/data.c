/* Data sets: opening, checks, order, reading.
 *
 * Method. A format file (data_idx.c, ...) says for each field and split where sample i lies in a
 * mapped file. This file checks that against what the graph reads, and copies samples into the
 * arena, converting types on the way.
 *
 * Order. Step s of a run reads batch s mod B of epoch s / B, where B is the number of batches, of
 * whole ones unless the plan takes a smaller last one. Within an epoch, position i reads sample permute(i): a four-round Feistel network over
 * the smallest even number of bits that covers the samples, walked until it falls inside (Black and
 * Rogaway, 2002). So a position needs no state beyond the step, and micro-batches and resumed runs
 * read what the whole run would.
 *
 * Reading ahead is left to the kernel: small files are asked for as a whole, of large ones the next
 * batch's samples, a step ahead. */
#include "data_format.h"

#include "memory.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_WHOLE \
	((int64_t)1 << 30) /* files up to this size are read into the page cache at once */

struct Data {
	const Plan *plan;
	DataMap *maps;
	DataField (*field)[SPLITS]; /* one for each plan input */
	int64_t *roam;              /* one for each plan input, in elements */
	DataAugment *augment;       /* one for each plan input */
	int64_t samples[SPLITS];
	int64_t tokens;
	bool partial; /* the last batch of an epoch may be smaller */
	void *zeros;
};

/* ---- settings and files --------------------------------------------------------------------- */

bool data_parse_override(char *arg, DataOverride *o)
{
	char *eq = strchr(arg, '=');
	if (!eq || eq == arg || !eq[1])
		return false;
	*eq = 0;
	char *dot = strchr(arg, '.');
	if (dot)
		*dot = 0;
	*o = (DataOverride){ .name = arg, .key = dot ? dot + 1 : NULL, .value = eq + 1 };
	return arg[0] && (!dot || dot[1]);
}

/* The setting that `--data name=path` means, by type. */
static const char *main_key(const char *type)
{
	return !strcmp(type, "idx") || !strcmp(type, "npy") ? "dir" : "file";
}

static const PlanSetting *setting(const DataSet *s, const char *key)
{
	return plan_setting(s->decl->settings, s->decl->nsettings, key);
}

static const char * override(const DataSet *s, const char *key)
{
	for (int i = s->noverride - 1; i >= 0; i--) {
		const DataOverride *o = &s->override[i];
		if (!strcmp(o->name, s->decl->name) &&
		    !strcmp(o->key ? o->key : main_key(s->decl->type), key))
			return o->value;
	}
	return NULL;
}

/* One of the files that a folder, given when the trainer is started, has all of. */
static bool is_in_folder(const DataSet *s, const char *key)
{
	const char *field = strncmp(key, "test_", 5) ? key : key + 5;
	return !strcmp(main_key(s->decl->type), "dir") && (!strcmp(field, "x") || !strcmp(field, "y")) && override(s, "dir");
}

const char *data_text(const DataSet *s, const char *key)
{
	const char *given = override(s, key);
	const PlanSetting *p = setting(s, key);
	if (!given && p && p->kind == 's' && !is_in_folder(s, key))
		given = p->s;
	return given && given[0] ? given : NULL;
}

bool data_number(const DataSet *s, const char *key, double dflt, double *out, Fail *f)
{
	const char *given = override(s, key);
	const PlanSetting *p = setting(s, key);
	*out = p && p->kind == 'i' ? (double)p->i : p && p->kind == 'f' ? p->f : dflt;
	if (given && (!strcmp(given, "true") || !strcmp(given, "false"))) {
		*out = given[0] == 't';
	} else if (given) {
		char *end;
		*out = strtod(given, &end);
		if (end == given || *end || !isfinite(*out))
			return fail(f, EXIT_FILES, "--data %s.%s: expected a number, got '%s'",
				    s->decl->name, key, given);
	}
	return true;
}

const char *data_field_file(const DataSet *s, const PlanInput *in, DataSplit split, char key[128])
{
	snprintf(key, 128, "%s%s", split == SPLIT_TEST ? "test_" : "", in->field);
	return data_text(s, key);
}

bool data_augment(DataSet *s, const PlanInput *in, Fail *f)
{
	double crop, flip;
	if (!data_number(s, "crop", 0, &crop, f) || !data_number(s, "flip", 0, &flip, f))
		return false;
	s->augment = (DataAugment){ .crop = (int64_t)crop, .flip = flip != 0 };
	return in->ndim >= 2 || (s->augment.crop == 0 && !s->augment.flip) ||
	       fail(f, EXIT_INPUT,
		    "data '%s': crop and flip are for pictures, a sample of '%s' has %d dimensions",
		    s->decl->name, in->name, in->ndim);
}

static bool is_gzip(int fd)
{
	unsigned char magic[2];
	return pread(fd, magic, 2, 0) == 2 && magic[0] == 0x1f && magic[1] == 0x8b;
}

bool data_is_file(const char *path, const struct stat *st, Fail *f)
{
	return S_ISREG(st->st_mode) || fail(f, EXIT_FILES, "%s: expected a file, found %s", path,
					    S_ISDIR(st->st_mode) ? "a folder" : "something else");
}

static bool open_file(const char *path, int *fd, struct stat *st, Fail *f)
{
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0 || fstat(*fd, st)) {
		int e = errno;
		if (*fd >= 0)
			close(*fd);
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(e));
	}
	if (data_is_file(path, st, f))
		return true;
	close(*fd);
	return false;
}

/* Maps the open file; fd is closed. NULL after filling f. */
static void *map_file(int fd, int64_t size, const char *shown, Fail *f)
{
	void *p = NULL;
	if (size == 0)
		fail(f, EXIT_INPUT, "%s: the file is empty", shown);
	else if ((p = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
		fail(f, EXIT_FILES, "%s: cannot map the file: %s", shown, strerror(errno));
	close(fd);
	if (f->code)
		return NULL;
	madvise(p, (size_t)size, size <= READ_WHOLE ? MADV_WILLNEED : MADV_RANDOM);
	return p;
}

static void map_free(DataMap *m)
{
	munmap((void *)(uintptr_t)m->bytes, (size_t)m->size);
	free(m->path);
	free(m->file);
	free(m);
}

const DataMap *data_map(DataSet *s, const char *path, const char *shown, Fail *f)
{
	for (DataMap *m = *s->maps; m; m = m->next)
		if (strcmp(m->file, path) == 0)
			return m;
	char cached[4096];
	int fd;
	struct stat st;
	if (!open_file(path, &fd, &st, f))
		return NULL;
	if (is_gzip(fd)) {
		close(fd);
		if (!cache_file(path, "raw", cache_gunzip, NULL, cached, sizeof cached, f) ||
		    !open_file(cached, &fd, &st, f))
			return NULL;
	}
	void *p = map_file(fd, st.st_size, shown, f);
	DataMap *m = p ? calloc(1, sizeof *m) : NULL;
	if (!m) {
		if (p)
			munmap(p, (size_t)st.st_size);
		if (!f->code)
			fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	*m = (DataMap){
		.path = strdup(shown), .file = strdup(path), .bytes = p, .size = st.st_size
	};
	if (!m->path || !m->file) {
		map_free(m);
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	m->next = *s->maps;
	*s->maps = m;
	return m;
}

bool data_holds(const DataField *field, int64_t header, Fail *f)
{
	const DataMap *map = field->map;
	int64_t held = map->size - header;
	if (field->stride && held / field->stride < field->samples)
		return fail(f, EXIT_INPUT,
			    "%s: cut off: the header promises %" PRId64 " samples of %" PRId64
			    " bytes, the file holds %" PRId64,
			    map->path, field->samples, field->stride, held / field->stride);
	if (held > field->samples * field->stride)
		return fail(f, EXIT_INPUT,
			    "%s: %" PRId64 " bytes behind the %" PRId64 " samples of %" PRId64
			    " bytes that the header promises: the file is another's or damaged",
			    map->path, held - field->samples * field->stride, field->samples, field->stride);
	return true;
}

bool data_hold_out(DataField both[SPLITS], double fraction, const char *name, Fail *f)
{
	DataField *train = &both[SPLIT_TRAIN], *test = &both[SPLIT_TEST];
	if (!(fraction >= 0 && fraction < 1))
		return fail(f, EXIT_INPUT,
			    "data '%s': validation is %g, expected a fraction in [0,1)", name,
			    fraction);
	int64_t n = (int64_t)((double)train->samples * fraction);
	if (n == 0)
		return true;
	*test = *train;
	test->samples = n;
	train->samples -= n;
	test->base += train->samples * train->stride;
	return true;
}

/* ---- checks --------------------------------------------------------------------------------- */

static const char *dims_text(int ndim, const int64_t *dim, char out[128])
{
	size_t n = 0;
	out[0] = 0;
	for (int i = 0; i < ndim && n < 100; i++)
		n += (size_t)snprintf(out + n, 128 - n, "%s%" PRId64, i ? "," : "", dim[i]);
	return out;
}

/* Equal but for axes of one element. */
static bool same_dims(int na, const int64_t *a, int nb, const int64_t *b)
{
	int i = 0, j = 0;
	for (;;) {
		while (i < na && a[i] == 1)
			i++;
		while (j < nb && b[j] == 1)
			j++;
		if (i == na || j == nb)
			return i == na && j == nb;
		if (a[i++] != b[j++])
			return false;
	}
}

static uint16_t u16_at(const unsigned char *p, int64_t i)
{
	return (uint16_t)(p[2 * i] | p[2 * i + 1] << 8);
}

static int64_t u32_at(const unsigned char *p, int64_t i)
{
	p += 4 * i;
	return (int64_t)p[0] | (int64_t)p[1] << 8 | (int64_t)p[2] << 16 | (int64_t)p[3] << 24;
}

/* Element j of a field; files need not align their elements. */
static double value_at(PlanDType t, const unsigned char *p, int64_t j)
{
	uint64_t bits = 0;
	int64_t size = plan_dtype_bytes(t);
	memcpy(&bits, p + j * size, (size_t)size);
	return plan_element(t, &bits, 0);
}

static bool is_float(PlanDType t)
{
	return t >= PD_F16;
}

/* Values are never rounded to 16 bits on their way in. */
static bool check_type(const PlanInput *in, const DataField *d, Fail *f)
{
	if ((in->dtype != PD_F16 && in->dtype != PD_BF16) || d->dtype == in->dtype)
		return true;
	return fail(f, EXIT_INPUT, "%s: '%s' is %s in the file, expected %s", d->map->path, in->name,
		    plan_dtype_name(d->dtype), plan_dtype_name(in->dtype));
}

static bool check_shape(const PlanInput *in, const DataField *d, Fail *f)
{
	if (d->ndim < 0 || same_dims(d->ndim, d->dim, in->ndim, in->dim))
		return true;
	char found[128], want[128];
	return fail(f, EXIT_INPUT, "%s: a sample of '%s' has shape [%s], the model reads [%s]",
		    d->map->path, in->name, dims_text(d->ndim, d->dim, found),
		    dims_text(in->ndim, in->dim, want));
}

static void integer_range(PlanDType t, double *low, double *high)
{
	*low = t == PD_I32 ? -2147483648.0 : t == PD_I64 ? -9.3e18 : 0;
	*high = t == PD_BOOL  ? 1
		: t == PD_U8  ? 255
		: t == PD_U16 ? 65535
		: t == PD_I32 ? 2147483647.0
			      : 9.3e18;
}

/* No value of the samples is above `high`, nor below 0: the quick look at the types that text comes in. */
static bool all_below(const DataField *d, int64_t samples, double high)
{
	int64_t most = 0;
	if (d->dtype != PD_U8 && d->dtype != PD_U16 && d->dtype != PD_I32)
		return false;
	for (int64_t i = 0; i < samples; i++) {
		const unsigned char *p = d->base + i * d->stride;
		for (int64_t j = 0; j < d->elems; j++) {
			int64_t v = d->dtype == PD_U8 ? p[j] : d->dtype == PD_U16 ? u16_at(p, j) : u32_at(p, j);
			most = v > most ? v : most;
		}
	}
	return (double)most <= high;
}

/* Integers that the graph uses as numbers of rows or classes, or that must fit a smaller type. Windows that roam also
 * reach into the one behind the last. */
static bool check_values(const PlanInput *in, const DataField *d, bool roams, Fail *f)
{
	int64_t samples = d->samples + roams;
	if (is_float(in->dtype))
		return true;
	double low, high, file_low, file_high;
	integer_range(in->dtype, &low, &high);
	integer_range(d->dtype, &file_low, &file_high);
	bool whole = !is_float(d->dtype); /* values are whole numbers by their type */
	if (in->limit > 0) {
		low = 0;
		high = (double)(in->limit - 1);
	}
	if (whole && ((file_low >= low && file_high <= high) || (low <= 0 && all_below(d, samples, high))))
		return true;
	for (int64_t i = 0; i < samples; i++)
		for (int64_t j = 0; j < d->elems; j++) {
			double v = value_at(d->dtype, d->base + i * d->stride, j);
			bool integer = whole || v == floor(v);
			if (integer &&
			    ((v >= low && v <= high) || (in->limit > 0 && v == (double)in->ignore)))
				continue;
			fail(f, EXIT_INPUT, "%s: '%s' of sample %" PRId64, d->map->path, in->name,
			     i);
			if (d->elems > 1)
				fail_add(f, " has at element %" PRId64 " the value %.17g", j, v);
			else
				fail_add(f, " has the value %.17g", v);
			if (integer)
				fail_add(f, ", expected %.0f to %.0f", low, high);
			else
				fail_add(f, ", expected a whole number");
			if (in->limit > 0 && !((double)in->ignore >= low && (double)in->ignore <= high))
				fail_add(f, " (or %" PRId64 ", which is ignored)", in->ignore);
			return false;
		}
	return true;
}

bool data_is_own(const char *type)
{
	return !strcmp(type, "batch");
}

static bool is_own(const Plan *plan, int input)
{
	int data = plan->inputs[input].data;
	return data >= 0 && data_is_own(plan->data[data].type);
}

/* Samples of a file, of which a part may be held back. */
static int64_t in_file(const Data *d, int input, int split)
{
	const DataField *f = d->field[input];
	bool both = f[SPLIT_TRAIN].map == f[SPLIT_TEST].map;
	return both ? f[SPLIT_TRAIN].samples + f[SPLIT_TEST].samples : f[split].samples;
}

/* Every field of every set has one number of samples, and training at least a batch of them, or one. */
static bool check_counts(Data *d, Fail *f)
{
	const PlanInput *in = d->plan->inputs;
	int first = 0;
	while (first < d->plan->ninputs && is_own(d->plan, first))
		first++;
	for (int s = 0; s < SPLITS; s++) {
		d->samples[s] = 0;
		for (int i = 0; i < d->plan->ninputs; i++) {
			const DataField *a = &d->field[first][s], *b = &d->field[i][s];
			int64_t na = a->map ? a->samples : 0, nb = b->map ? b->samples : 0;
			if (is_own(d->plan, i))
				continue;
			if (na != nb && na && nb)
				return fail(f, EXIT_INPUT,
					    "'%s' has %" PRId64
					    " samples (%s), but '%s' has %" PRId64 " (%s)",
					    in[first].name, in_file(d, first, s), a->map->path, in[i].name,
					    in_file(d, i, s), b->map->path);
			d->samples[s] = i == first || nb < na ? nb : d->samples[s];
		}
	}
	int64_t least = d->partial ? 1 : d->plan->batch;
	if (first < d->plan->ninputs && d->samples[SPLIT_TRAIN] < least)
		return fail(f, EXIT_INPUT,
			    "%s: %" PRId64 " training samples are fewer than a batch of %" PRId64,
			    d->field[first][SPLIT_TRAIN].map->path, d->samples[SPLIT_TRAIN],
			    d->plan->batch);
	return true;
}

/* ---- opening -------------------------------------------------------------------------------- */

static DataOpenFn format(const char *type)
{
	static const struct {
		const char *type;
		DataOpenFn open;
	} formats[] = { { "bytes", data_open_bytes },
			{ "tokens", data_open_tokens },
			{ "text", data_open_text },
			{ "idx", data_open_idx },
			{ "npy", data_open_npy },
			{ "raw", data_open_raw },
			{ "csv", data_open_csv } };
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
		if (strcmp(formats[i].type, type) == 0)
			return formats[i].open;
	return NULL;
}

/* The settings that say where samples come from. All others are part of the graph. */
static bool settled_at_run(const char *type, const char *key)
{
	if (!strcmp(type, "text") && (!strcmp(key, "vocab") || !strcmp(key, "merges")))
		return true;
	if (!strcmp(key, "bits"))
		return true;
	static const char *const keys[] = { "dir",    "file",   "test_file", "x",         "y",
					    "test_x", "test_y", "header",    "validation",
					    "crop",   "flip" };
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!strcmp(keys[i], key))
			return true;
	return false;
}

static bool unknown_setting(const PlanData *d, const char *key, Fail *f)
{
	if (plan_setting(d->settings, d->nsettings, key))
		return fail(f, EXIT_FILES,
			    "--data %s.%s: '%s' is settled when the model is compiled (dlc -D)",
			    d->name, key, key);
	fail(f, EXIT_FILES, "--data %s.%s: %s data have no setting '%s'; there are", d->name, key,
	     d->type, key);
	const char *sign = "";
	for (int j = 0; j < d->nsettings; j++)
		if (settled_at_run(d->type, d->settings[j].key)) {
			fail_add(f, "%s %s", sign, d->settings[j].key);
			sign = ",";
		}
	return false;
}

static bool check_overrides(const Plan *plan, const DataOverride *o, int no, Fail *f)
{
	for (int i = 0; i < no; i++) {
		int k = 0;
		while (k < plan->ndata && (data_is_own(plan->data[k].type) || strcmp(plan->data[k].name, o[i].name)))
			k++;
		if (k < plan->ndata) {
			const PlanData *d = &plan->data[k];
			const char *key = o[i].key ? o[i].key : main_key(d->type);
			if (!o[i].key || (settled_at_run(d->type, key) &&
					  plan_setting(d->settings, d->nsettings, key)))
				continue;
			return unknown_setting(d, key, f);
		}
		fail(f, EXIT_FILES, "--data %s: the model has no data of that name; it has",
		     o[i].name);
		const char *sign = "";
		for (k = 0; k < plan->ndata; k++)
			if (!data_is_own(plan->data[k].type)) {
				fail_add(f, "%s '%s'", sign, plan->data[k].name);
				sign = ",";
			}
		if (!*sign)
			fail_add(f, " none");
		return false;
	}
	return true;
}

bool data_is_text(const char *type)
{
	return !strcmp(type, "bytes") || !strcmp(type, "tokens") || !strcmp(type, "text");
}

static Data *data_new(const Plan *plan, Fail *f)
{
	Data *d = calloc(1, sizeof *d);
	if (d) {
		d->plan = plan;
		d->field = calloc((size_t)plan->ninputs + 1, sizeof *d->field);
		d->roam = calloc((size_t)plan->ninputs + 1, sizeof *d->roam);
		d->augment = calloc((size_t)plan->ninputs + 1, sizeof *d->augment);
	}
	if (!d || !d->field || !d->roam || !d->augment) {
		data_close(d);
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	for (int i = 0; i < plan->ninputs; i++) {
		d->partial |= is_own(plan, i);
		if (data_is_text(plan->data[plan->inputs[i].data].type))
			d->tokens = plan->inputs[i].ndim ? plan->inputs[i].dim[0] : 1;
	}
	return d;
}

static bool open_input(Data *d, int i, const DataOverride *o, int no, Fail *f)
{
	const PlanInput *in = &d->plan->inputs[i];
	const PlanData *decl = &d->plan->data[in->data];
	DataSet set = {
		.plan = d->plan, .decl = decl, .override = o, .noverride = no, .maps = &d->maps
	};
	DataOpenFn open_field = format(decl->type);
	if (!open_field)
		return fail(f, EXIT_BUG, "data '%s' has the unknown type '%s'", decl->name,
			    decl->type);
	if (!open_field(&set, in, d->field[i], f))
		return false;
	d->roam[i] = set.roam;
	d->augment[i] = set.augment;
	for (int s = 0; s < SPLITS; s++) {
		const DataField *field = &d->field[i][s];
		bool roams = s == SPLIT_TRAIN && set.roam > 0;
		if (field->map && (!check_type(in, field, f) || !check_shape(in, field, f) ||
				   !check_values(in, field, roams, f)))
			return false;
	}
	return true;
}

Data *data_open(const Plan *plan, const DataOverride *o, int no, Fail *f)
{
	if (!check_overrides(plan, o, no, f))
		return NULL;
	Data *d = data_new(plan, f);
	if (!d)
		return NULL;
	for (int i = 0; i < plan->ninputs; i++)
		if (!is_own(plan, i) && !open_input(d, i, o, no, f)) {
			data_close(d);
			return NULL;
		}
	if (!check_counts(d, f)) {
		data_close(d);
		return NULL;
	}
	return d;
}

Data *data_zeros(const Plan *plan, Fail *f)
{
	Data *d = data_new(plan, f);
	int64_t largest = 1;
	for (int i = 0; i < plan->ninputs; i++)
		if (plan_input_sample_bytes(&plan->inputs[i]) > largest)
			largest = plan_input_sample_bytes(&plan->inputs[i]);
	if (!d || !(d->zeros = calloc(1, (size_t)largest))) {
		data_close(d);
		if (!f->code)
			fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	for (int i = 0; i < plan->ninputs; i++) {
		int64_t n = plan_input_sample_bytes(&plan->inputs[i]) /
			    plan_dtype_bytes(plan->inputs[i].dtype);
		d->field[i][SPLIT_TRAIN] =
			(DataField){ .base = d->zeros, .dtype = plan->inputs[i].dtype, .elems = n };
	}
	d->samples[SPLIT_TRAIN] = plan->batch;
	return d;
}

void data_close(Data *d)
{
	if (!d)
		return;
	while (d->maps) {
		DataMap *next = d->maps->next;
		map_free(d->maps);
		d->maps = next;
	}
	free(d->field);
	free(d->roam);
	free(d->augment);
	free(d->zeros);
	free(d);
}

int64_t data_samples(const Data *d, DataSplit split)
{
	return d->samples[split];
}

int64_t data_tokens(const Data *d)
{
	return d->tokens;
}

bool data_of_bytes(const Data *d)
{
	for (int i = 0; i < d->plan->ninputs; i++)
		if (!strcmp(d->plan->data[d->plan->inputs[i].data].type, "bytes"))
			return true;
	return false;
}

/* ---- order ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

double data_uniform(uint64_t seed, int64_t i)
{
	uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ mix((uint64_t)i + 1));
	return (double)(bits >> 11) * 0x1p-53;
}

int64_t data_permute(uint64_t key, int64_t i, int64_t n)
{
	int half = 1;
	while (half < 31 && (int64_t)1 << (2 * half) < n)
		half++;
	uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)i;
	do {
		uint64_t left = x >> half, right = x & mask;
		for (uint64_t round = 1; round <= 4; round++) {
			uint64_t next =
				left ^ (mix(right ^ mix(key + round * 0x9e3779b97f4a7c15u)) & mask);
			left = right;
			right = next;
		}
		x = left << half | right;
	} while (x >= (uint64_t)n);
	return (int64_t)x;
}

DataCursor data_at_step(const Data *d, DataOrder order, int64_t step)
{
	int64_t more = d->partial ? d->plan->batch - 1 : 0;
	int64_t batches = (d->samples[SPLIT_TRAIN] + more) / d->plan->batch;
	if (batches < 1)
		batches = 1; /* a model without data */
	return (DataCursor){ .data = d,
			     .split = SPLIT_TRAIN,
			     .training = true,
			     .order = order,
			     .epoch = step / batches,
			     .first = step % batches * d->plan->batch };
}

DataCursor data_at_sample(const Data *d, DataSplit split, int64_t first)
{
	return (DataCursor){ .data = d, .split = split, .first = first };
}

/* ---- reading -------------------------------------------------------------------------------- */

static void convert_any(PlanDType to, void *dst, PlanDType from, const unsigned char *src,
			int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		double v = value_at(from, src, i);
		switch (to) {
		case PD_BOOL: ((uint8_t *)dst)[i] = v != 0; break;
		case PD_U8: ((uint8_t *)dst)[i] = (uint8_t)v; break;
		case PD_U16: ((uint16_t *)dst)[i] = (uint16_t)v; break;
		case PD_I32: ((int32_t *)dst)[i] = (int32_t)v; break;
		case PD_I64: ((int64_t *)dst)[i] = (int64_t)v; break;
		case PD_F32: ((float *)dst)[i] = (float)v; break;
		case PD_F64: ((double *)dst)[i] = v; break;
		default: break;
		}
	}
}

static void convert(PlanDType to, void *dst, PlanDType from, const unsigned char *src, int64_t n)
{
	if (to == from) {
		memcpy(dst, src, (size_t)(n * plan_dtype_bytes(to)));
	} else if (from == PD_U8 && to == PD_I32) {
		int32_t *y = dst;
		for (int64_t i = 0; i < n; i++)
			y[i] = src[i];
	} else if (from == PD_U16 && to == PD_I32) {
		int32_t *y = dst;
		for (int64_t i = 0; i < n; i++)
			y[i] = u16_at(src, i);
	} else if (from == PD_U8 && to == PD_F32) {
		float *y = dst;
		for (int64_t i = 0; i < n; i++)
			y[i] = src[i];
	} else {
		convert_any(to, dst, from, src, n);
	}
}

/* The sample at a position of an epoch, and by how many elements windows of text have moved in it. */
static int64_t place(const DataCursor *c, int64_t position, int64_t roam, int64_t *shift)
{
	const Data *d = c->data;
	*shift = 0;
	if (c->training)
		position %= d->samples[SPLIT_TRAIN]; /* of a batch that is filled up */
	if (!c->training || !c->order.shuffle)
		return position;
	uint64_t key = mix(c->order.seed + 0x632be59bd9b4e019u) ^ mix((uint64_t)c->epoch + 1);
	if (roam > 0)
		*shift = (int64_t)(mix(key) % (uint64_t)(roam + 1));
	return data_permute(key, position, d->samples[SPLIT_TRAIN]);
}

void data_ahead(const DataCursor *c)
{
	const Data *d = c->data;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	for (int i = 0; i < d->plan->ninputs; i++) {
		const DataField *field = &d->field[i][c->split];
		if (!field->map || field->map->size <= READ_WHOLE)
			continue;
		for (int64_t k = 0; k < d->plan->batch; k++) {
			int64_t shift, sample = place(c, c->first + k, d->roam[i], &shift);
			int64_t size = plan_dtype_bytes(field->dtype);
			uintptr_t at = (uintptr_t)(field->base + sample * field->stride + shift * size),
				  start = at / page * page;
			size_t bytes = (size_t)(field->elems * size);
			madvise((void *)start, (size_t)(at - start) + bytes, MADV_WILLNEED);
		}
	}
}

/* Pictures [.., height, width], moved and mirrored as drawn for this position of the epoch. */
static void read_augmented(const DataCursor *c, const PlanInput *in, const DataField *field,
			   DataAugment a, int64_t position, const unsigned char *src,
			   unsigned char *dst)
{
	uint64_t key = mix(c->order.seed + 0x51ed270b9f1c3a71u) ^ mix((uint64_t)c->epoch + 1);
	uint64_t drawn = mix(key ^ mix((uint64_t)position + 1));
	int64_t height = in->dim[in->ndim - 2], width = in->dim[in->ndim - 1];
	int64_t to = plan_dtype_bytes(in->dtype), from = plan_dtype_bytes(field->dtype);
	int64_t span = 2 * a.crop + 1;
	int64_t down = (int64_t)(drawn % (uint64_t)span) - a.crop;
	int64_t right = (int64_t)((drawn >> 20) % (uint64_t)span) - a.crop;
	bool mirror = a.flip && drawn >> 63;
	int64_t first = right < 0 ? -right : 0, last = right > 0 ? width - right : width;
	for (int64_t i = 0; i < field->elems / width; i++) {
		unsigned char *row = dst + i * width * to;
		int64_t y = i % height + down;
		memset(row, 0, (size_t)(width * to));
		if (y >= 0 && y < height && first < last)
			convert(in->dtype, row + first * to, field->dtype,
				src + ((i + down) * width + first + right) * from, last - first);
		for (int64_t l = 0, r = width - 1; mirror && l < r; l++, r--) {
			unsigned char swap[8];
			memcpy(swap, row + l * to, (size_t)to);
			memcpy(row + l * to, row + r * to, (size_t)to);
			memcpy(row + r * to, swap, (size_t)to);
		}
	}
}

int64_t data_sample_at(const DataCursor *c, int input, int64_t first, const char **path)
{
	int64_t shift, sample = place(c, c->first + first, c->data->roam[input], &shift);
	const DataField *field = &c->data->field[input][c->split];
	*path = field->map ? field->map->path : "";
	if (c->split == SPLIT_TEST && field->map == c->data->field[input][SPLIT_TRAIN].map) /* held back from the end */
		sample += c->data->samples[SPLIT_TRAIN];
	return sample;
}

void data_read(void *ctx, int input, int64_t first, int64_t n, void *dst)
{
	const DataCursor *c = ctx;
	const PlanInput *in = &c->data->plan->inputs[input];
	const DataField *field = &c->data->field[input][c->split];
	int64_t bytes = plan_input_sample_bytes(in);
	for (int64_t i = 0; i < n; i++) {
		if (is_own(c->data->plan, input)) {
			((uint8_t *)dst)[i] = !c->training || c->first + first + i < c->data->samples[SPLIT_TRAIN];
			continue;
		}
		int64_t shift,
			sample = place(c, c->first + first + i, c->data->roam[input], &shift);
		const unsigned char *src = field->base + sample * field->stride +
					   shift * plan_dtype_bytes(field->dtype);
		DataAugment a = c->data->augment[input];
		unsigned char *to = (unsigned char *)dst + i * bytes;
		if (c->training && (a.crop || a.flip))
			read_augmented(c, in, field, a, c->first + first + i, src, to);
		else
			convert(in->dtype, to, field->dtype, src, field->elems);
	}
}

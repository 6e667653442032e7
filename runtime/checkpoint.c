/* Writing checkpoints; reading is in checkpoint_read.c.
 *
 *     u64 length of the header | header: JSON, padded with spaces to 8 | data of the tensors, in
 * the header's order
 *
 * Tensors are sorted by name and nothing in the file depends on the moment or the arena's layout,
 * so equal states give equal bytes, whatever the plan. The file is written as last.safetensors.tmp,
 * synced, linked to its other names where some are wanted, and renamed; then the folder is synced. */
#include "checkpoint.h"

#include "checkpoint_format.h"
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct Checkpoint {
	const Plan *plan;
	const PlanVar **order; /* by name */
	char *header;
	size_t size, used; /* of header; the first 8 bytes are the length */
};

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const PlanVar *const *)a)->name, (*(const PlanVar *const *)b)->name);
}

Checkpoint *checkpoint_open(const Plan *plan, Fail *f)
{
	Checkpoint *c = calloc(1, sizeof *c);
	size_t size = 4096 + strlen(plan->fingerprint) + strlen(plan->model) * 6;
	for (int i = 0; i < plan->nvars; i++)
		size += strlen(plan->vars[i].name) * 6 + 256;
	if (c) {
		c->plan = plan;
		c->size = size;
		c->header = malloc(size);
		c->order = malloc(((size_t)plan->nvars + 1) * sizeof(const PlanVar *));
	}
	if (!c || !c->header || !c->order) {
		checkpoint_close(c);
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	for (int i = 0; i < plan->nvars; i++)
		c->order[i] = &plan->vars[i];
	qsort(c->order, (size_t)plan->nvars, sizeof *c->order, by_name);
	return c;
}

void checkpoint_close(Checkpoint *c)
{
	if (!c)
		return;
	free(c->header);
	free(c->order);
	free(c);
}

/* ---- the header ----------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void put(Checkpoint *c, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(c->header + c->used, c->size - c->used, fmt, ap);
	va_end(ap);
	c->used += (size_t)n;
}

static void put_string(Checkpoint *c, const char *s)
{
	put(c, "\"");
	for (; *s; s++)
		if (*s == '"' || *s == '\\')
			put(c, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			put(c, "\\u%04x", (unsigned)(unsigned char)*s);
		else
			put(c, "%c", *s);
	put(c, "\"");
}

/* The next piece of a variable, from `at` on; NULL after filling f. */
static const void *piece(Device *d, const PlanVar *v, int64_t at, int64_t *n, Fail *f)
{
	*n = v->bytes - at < DEVICE_CHUNK ? v->bytes - at : DEVICE_CHUNK;
	return device_view(d, v->offset + at, *n, f);
}

static bool hash_vars(const Checkpoint *c, Device *d, uint64_t *h, Fail *f)
{
	*h = DATA_HASH_START;
	for (int i = 0; i < c->plan->nvars; i++) {
		const PlanVar *v = c->order[i];
		DataHash hash;
		data_hash_begin(&hash, *h);
		for (int64_t at = 0, n; at < v->bytes; at += n) {
			const void *p = piece(d, v, at, &n, f);
			if (!p)
				return false;
			data_hash_add(&hash, p, (size_t)n);
		}
		*h = data_hash_end(&hash);
	}
	return true;
}

static void write_header(Checkpoint *c, uint64_t hash, const CheckpointState *s)
{
	c->used = 8;
	put(c, "{\"__metadata__\":{");
	if (s->best_step >= 0)
		put(c,
		    "\"best_loss\":\"%.17g\",\"best_step\":\"%" PRId64
		    "\",\"evals_since_best\":\"%" PRId64 "\",",
		    s->best_loss, s->best_step, s->evals_since_best);
	put(c, "\"data_hash\":\"%016" PRIx64 "\",\"fingerprint\":", hash);
	put_string(c, c->plan->fingerprint);
	put(c, ",\"format\":\"dlc\",\"model\":");
	put_string(c, c->plan->model);
	put(c, ",\"seed\":\"%" PRIu64 "\",\"shuffle\":\"%s\",\"step\":\"%" PRId64 "\"}", s->seed,
	    s->shuffle ? "true" : "false", s->step);
	int64_t at = 0;
	for (int i = 0; i < c->plan->nvars; i++) {
		const PlanVar *v = c->order[i];
		put(c, ",");
		put_string(c, v->name);
		put(c, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_dtype(v->dtype));
		for (int d = 0; d < v->ndim; d++)
			put(c, "%s%" PRId64, d ? "," : "", v->dim[d]);
		put(c, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", at, at + v->bytes);
		at += v->bytes;
	}
	put(c, "}");
	while (c->used % 8)
		put(c, " ");
	uint64_t length = c->used - 8;
	for (int i = 0; i < 8; i++)
		c->header[i] = (char)(unsigned char)(length >> (8 * i));
}

/* ---- files ---------------------------------------------------------------------------------- */

static bool make_folders(const char *dir, Fail *f)
{
	char path[4096];
	if (strlen(dir) > 3800)
		return fail(f, EXIT_FILES, "the output folder's path is too long");
	for (size_t i = 1; dir[i - 1]; i++) /* each parent, then the folder itself */
		if (dir[i] == '/' || dir[i] == 0) {
			snprintf(path, sizeof path, "%.*s", (int)i, dir);
			if (mkdir(path, 0777) && errno != EEXIST)
				return fail(f, EXIT_FILES, "cannot make the output folder %s: %s",
					    path, strerror(errno));
		}
	return true;
}

/* Proves that files can be made in the folder, by making the one that a save would, and that nothing but a file stands in
 * its place. */
static bool try_folder(const char *dir, Fail *f)
{
	static const char *const saved[] = { "last.safetensors", "best.safetensors", "last.safetensors.tmp" };
	char path[4096];
	struct stat st;
	for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, saved[i]);
		if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
			return fail(f, EXIT_FILES, "%s is %s, where a checkpoint is to be saved (--out names another folder)", path,
				    S_ISDIR(st.st_mode) ? "a folder" : "no file");
	}
	snprintf(path, sizeof path, "%s/last.safetensors.tmp", dir);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail(f, EXIT_FILES, "cannot write to the output folder %s: %s", dir,
			    strerror(errno));
	close(fd);
	unlink(path);
	return true;
}

/* Two runs would write the same temporary file. A file system without locks goes without. */
int checkpoint_folder(const char *dir, Fail *f)
{
	if (!make_folders(dir, f))
		return -1;
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		fail(f, EXIT_FILES, "cannot write to the output folder %s: %s", dir,
		     strerror(errno));
	else if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
		fail(f, EXIT_FILES, "another run writes to the output folder %s (--out names another)",
		     dir);
	else if (try_folder(dir, f))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static bool write_var(Device *d, const PlanVar *v, int fd, Fail *f)
{
	bool ok = true;
	for (int64_t at = 0, n; ok && at < v->bytes; at += n) {
		const void *p = piece(d, v, at, &n, f);
		ok = p && write_all(fd, p, (size_t)n);
	}
	return ok;
}

/* False after filling f, or with errno set. */
static bool write_file(Checkpoint *c, Device *d, const char *path, Fail *f)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return false;
	bool ok = write_all(fd, c->header, c->used);
	for (int i = 0; ok && i < c->plan->nvars; i++)
		ok = write_var(d, c->order[i], fd, f);
	ok = ok && fsync(fd) == 0;
	int e = errno;
	if (close(fd) && ok) {
		ok = false;
		e = errno;
	}
	errno = e;
	return ok;
}

static void sync_folder(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
}

/* A second name for the same bytes: a link, under a name of its own first, as the name may exist
 * already; on a file system without links, written again. */
static bool also_as(Checkpoint *c, Device *d, const char *from, const char *to, Fail *f)
{
	char temp[4200];
	snprintf(temp, sizeof temp, "%s.tmp", to);
	unlink(temp);
	if (link(from, temp) && !write_file(c, d, temp, f)) {
		unlink(temp);
		return false;
	}
	return rename(temp, to) == 0;
}

/* N of "step-N.safetensors"; -1 for any other name. */
static int64_t number_of(const char *name)
{
	char *end;
	if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
		return -1;
	long long n = strtoll(name + 5, &end, 10);
	return strcmp(end, ".safetensors") ? -1 : n;
}

/* A checkpoint written later is newer, whatever its number: the folder may hold those of a longer run. */
static bool is_older(const struct stat *a, int64_t number_a, const struct stat *b, int64_t number_b)
{
	if (a->st_mtim.tv_sec != b->st_mtim.tv_sec)
		return a->st_mtim.tv_sec < b->st_mtim.tv_sec;
	if (a->st_mtim.tv_nsec != b->st_mtim.tv_nsec)
		return a->st_mtim.tv_nsec < b->st_mtim.tv_nsec;
	return number_a < number_b;
}

void checkpoint_prune(const char *dir, int64_t keep)
{
	for (;;) {
		DIR *d = opendir(dir);
		int64_t oldest = -1, count = 0;
		struct stat of_oldest = { 0 }, st;
		char path[4096];
		if (!d)
			return;
		for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
			int64_t n = number_of(e->d_name);
			if (n < 0 || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
				continue;
			if (count++ == 0 || is_older(&st, n, &of_oldest, oldest)) {
				oldest = n;
				of_oldest = st;
			}
		}
		closedir(d);
		snprintf(path, sizeof path, "%s/step-%" PRId64 ".safetensors", dir, oldest);
		if (count <= keep || unlink(path))
			return;
	}
}

bool checkpoint_save(Checkpoint *c, Device *d, const CheckpointState *s, const char *dir,
		     unsigned names, Fail *f)
{
	char temp[4096], last[4096], number[4096], best[4096];
	snprintf(temp, sizeof temp, "%s/last.safetensors.tmp", dir);
	snprintf(last, sizeof last, "%s/last.safetensors", dir);
	snprintf(number, sizeof number, "%s/step-%" PRId64 ".safetensors", dir, s->step);
	snprintf(best, sizeof best, "%s/best.safetensors", dir);
	uint64_t hash;
	if (!hash_vars(c, d, &hash, f))
		return false;
	write_header(c, hash, s);
	bool ok = write_file(c, d, temp, f);
	if (ok && names & SAVE_NUMBERED)
		ok = also_as(c, d, temp, number, f);
	if (ok && names & SAVE_BEST)
		ok = also_as(c, d, temp, best, f);
	ok = ok && rename(temp, last) == 0;
	if (!ok) {
		int e = errno;
		unlink(temp);
		if (f->code) /* the device's own failure */
			return false;
		return fail(f, EXIT_INPUT,
			    "cannot save %s (step %" PRId64
			    "): %s; what was saved before is unchanged",
			    last, s->step, strerror(e));
	}
	sync_folder(dir);
	return true;
}

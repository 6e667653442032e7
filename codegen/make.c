/* Makes an executable: sources into a temporary folder, compilers side by side, one link, one rename
 * (make.h). On failure, and when a signal interrupts, nothing is left behind. */
#include "make.h"

#include <dirent.h>
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char plan_h[];
extern const unsigned plan_h_len;

enum { MAX_LOG_LINES = 12 };

const char *make_path(const Make *k, const char *name)
{
	return arena_printf(k->a, "%s/%s", k->dir, name);
}

/* Removes the temporary folder and what lies in it. */
static void remove_dir(const Make *k)
{
	DIR *d = opendir(k->dir);
	for (const struct dirent *x; d && (x = readdir(d));)
		unlink(make_path(k, x->d_name)); /* not `.` and `..`, which are no files */
	if (d)
		closedir(d);
	rmdir(k->dir);
}

const char *make_quoted(Arena *a, const char *s)
{
	const char *q = "'";
	for (; *s; s++)
		q = *s == '\'' ? arena_printf(a, "%s'\\''", q) : arena_printf(a, "%s%c", q, *s);
	return arena_printf(a, "%s'", q);
}

bool make_fail(const Make *k, const char *what, const char *path)
{
	diag_error(k->m->diag, NO_SPAN, "%s '%s': %s", what, path, strerror(errno));
	return false;
}

bool make_text(Make *k, const char *name, const char *text, size_t len)
{
	const char *path = make_path(k, name);
	FILE *f = fopen(path, "w");
	if (!f)
		return make_fail(k, "cannot write", path);
	bool ok = fwrite(text, 1, len, f) == len;
	return (fclose(f) == 0 && ok) || make_fail(k, "cannot write", path);
}

static bool exists(const char *path) { return access(path, R_OK) == 0; }

/* The folder of the runtime library: as told, or beside dlc (build/), or where `make install` puts it. */
static const char *find_runtime(Make *k)
{
	char self[4096];
	const char *told = k->o->runtime_dir ? k->o->runtime_dir : getenv("DLC_RUNTIME");
	if (told)
		return told;
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	if (n <= 0)
		return ".";
	self[n] = 0;
	char *slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	const char *installed = arena_printf(k->a, "%s/../lib/dlc", self);
	if (!exists(arena_printf(k->a, "%s/%s", self, k->recipe->library)) &&
	    exists(arena_printf(k->a, "%s/%s", installed, k->recipe->library)))
		return installed;
	return arena_strdup(k->a, self);
}

/* ---- commands ---- */

static bool start_job(Make *k, const char *name, const char *command)
{
	const char *log = make_path(k, arena_printf(k->a, "%s.log", name));
	return jobs_start(&k->jobs, command, log, k->dir) || make_fail(k, "cannot start", command);
}

static void show_log(const Make *k, const char *path)
{
	FILE *f = fopen(path, "r");
	char text[512];
	for (int i = 0; f && i < MAX_LOG_LINES && fgets(text, sizeof text, f); i++) {
		text[strcspn(text, "\n")] = 0;
		diag_note(k->m->diag, NO_SPAN, "%s", text);
	}
	if (f)
		fclose(f);
}

/* Waits for every job; reports the first that failed. */
bool make_wait(Make *k, const char *tool, const char *what)
{
	const Job *bad = jobs_wait(&k->jobs);
	if (bad && !jobs_interrupted(&k->jobs)) {
		if (tool) {
			diag_error(k->m->diag, NO_SPAN, "%s failed to %s", tool, what);
			show_log(k, bad->log);
		} else if (WIFEXITED(bad->status) && WEXITSTATUS(bad->status) == 127) {
			diag_error(k->m->diag, NO_SPAN, "the C compiler '%s' cannot be run", k->cc);
			diag_hint(k->m->diag, "install gcc, or name another compiler with CC=...");
		} else {
			diag_error(k->m->diag, NO_SPAN, "the C compiler '%s' failed to %s", k->cc,
				   what);
			show_log(k, bad->log);
		}
	}
	return !bad && !jobs_interrupted(&k->jobs);
}

bool make_compile(Make *k, const char *name, const char *flags)
{
	const char *object = make_path(k, arena_printf(k->a, "%s.o", name));
	const char *source = arena_printf(k->a, "%s/%s.c", k->dir, name);
	k->objects = arena_printf(k->a, "%s %s", k->objects, make_quoted(k->a, object));
	return start_job(k, name,
			 arena_printf(k->a, "exec %s %s -I%s -c -o %s %s", k->cc, flags,
				      make_quoted(k->a, k->dir), make_quoted(k->a, object),
				      make_quoted(k->a, source)));
}

bool make_file(Make *k, const char *name, void (*print)(FILE *f, void *ctx), void *ctx)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	print(f, ctx);
	fclose(f);
	bool ok = make_text(k, name, text, len);
	free(text);
	return ok;
}

typedef struct PlanJob {
	Emit *e;
	const Make *k;
} PlanJob;

static void print_plan(FILE *f, void *ctx)
{
	const PlanJob *j = ctx;
	plan_write(f, j->e, j->k->o, j->k->units, j->k->nunits);
}

bool make_plan(Make *k, Emit *e)
{
	PlanJob job = { e, k };
	return make_text(k, "plan.h", plan_h, plan_h_len) && make_file(k, "plan.c", print_plan, &job) &&
	       make_compile(k, "plan", "-std=gnu11 -O0 -march=native -w");
}

int make_parts(double bytes, double worth_bytes)
{
	int parts = omp_get_num_procs(), worth = (int)(bytes / worth_bytes);
	parts = parts < worth ? parts : worth;
	return parts < 1 ? 1 : parts > MAKE_PARTS ? MAKE_PARTS : parts;
}

static bool link_all(Make *k, const char *output)
{
	const char *extra = getenv("DLC_LDFLAGS");
	const char *command = arena_printf(
		k->a,
		"exec %s -o %s %s %s %s -l:libjansson.a -l:libz.a -lm -lpthread %s",
		k->cc, make_quoted(k->a, output), k->objects,
		make_quoted(k->a, arena_printf(k->a, "%s/%s", k->runtime, k->recipe->library)),
		k->recipe->link, extra ? extra : "");
	return start_job(k, "link", command) && make_wait(k, NULL, "link the trainer");
}

static bool make_all(Make *k, Emit *e)
{
	k->runtime = find_runtime(k);
	if (!exists(arena_printf(k->a, "%s/%s", k->runtime, k->recipe->library))) {
		diag_error(k->m->diag, NO_SPAN, "the runtime library %s is not in '%s'",
			   k->recipe->library, k->runtime);
		diag_hint(k->m->diag, "run 'make', or set DLC_RUNTIME to the folder that has it");
		return false;
	}
	const char *temporary = arena_printf(k->a, "%s.tmp-%ld", k->o->output, (long)getpid());
	bool ok = k->recipe->compile(k, e) && link_all(k, temporary);
	if (ok && rename(temporary, k->o->output) != 0)
		ok = make_fail(k, "cannot write", k->o->output);
	if (!ok)
		unlink(temporary);
	return ok;
}

bool make_trainer(const Module *m, const BuildOptions *o, const Recipe *r)
{
	Arena *a = arena_new();
	KernelPrinter printer = *r->printer;
	if (o->apart)
		printer.group = NULL;
	Emit *e = emit_module(a, m, &printer, o->arch);
	const char *cc = o->cc ? o->cc : getenv("CC");
	Make k = { .a = a, .m = m, .o = o, .cc = cc && *cc ? cc : "cc", .objects = "", .recipe = r };
	bool ok = e != NULL;
	if (ok) {
		const char *tmp = getenv("TMPDIR");
		char *dir = arena_printf(a, "%s/dlc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
		jobs_open(&k.jobs);
		k.dir = mkdtemp(dir);
		ok = k.dir ? make_all(&k, e) : make_fail(&k, "cannot make the folder", dir);
		if (ok && o->keep_sources)
			r->keep(&k, e);
		if (k.dir)
			remove_dir(&k);
		jobs_close(&k.jobs);
	}
	arena_free(a);
	return ok;
}


/* Makes the executable: sources into a temporary folder, compilers side by side, one link, one
 * rename.
 *
 *     TMP/kernels0.c kernels1.c special.c plan.c  --cc-->  *.o
 *     *.o + libdlrt.a  --cc-->  OUTPUT.tmp-PID  --rename-->  OUTPUT
 *
 * Fused kernels are compiled without contraction (rounding belongs to ops), special kernels with it
 * (each is one op). On failure, and when a signal interrupts, nothing is left behind. Environment:
 * CC, DLC_RUNTIME (folder of libdlrt.a), DLC_CFLAGS and DLC_LDFLAGS (added). */
#include "cpu.h"
#include "jobs.h"

#include <dirent.h>
#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern const char scalar_h[], kernel_h[], special_h[], product_h[], plan_h[];
extern const unsigned scalar_h_len, kernel_h_len, special_h_len, product_h_len, plan_h_len;

_Static_assert(MAX_JOBS >= 8, "MAX_PARTS of the kernels, the special ones, the plan");
enum { MAX_LOG_LINES = 12, SPLIT_BYTES = 12000, MAX_PARTS = 6 };

typedef struct Make {
	Arena *a;
	const Module *m;
	const BuildOptions *o;
	const char *dir;     /* temporary folder: of all files but the executable */
	const char *runtime; /* folder of libdlrt.a */
	const char *cc;
	Jobs jobs;
	const char *objects; /* quoted, for the link */
} Make;

static const char *in_dir(const Make *k, const char *name)
{
	return arena_printf(k->a, "%s/%s", k->dir, name);
}

/* Removes the temporary folder and what lies in it. */
static void remove_dir(const Make *k)
{
	DIR *d = opendir(k->dir);
	for (const struct dirent *x; d && (x = readdir(d));)
		unlink(in_dir(k, x->d_name)); /* not `.` and `..`, which are no files */
	if (d)
		closedir(d);
	rmdir(k->dir);
}

/* For the shell: 'it'\''s' */
static const char *quoted(Arena *a, const char *s)
{
	const char *q = "'";
	for (; *s; s++)
		q = *s == '\'' ? arena_printf(a, "%s'\\''", q) : arena_printf(a, "%s%c", q, *s);
	return arena_printf(a, "%s'", q);
}

static bool fail(const Make *k, const char *what, const char *path)
{
	diag_error(k->m->diag, NO_SPAN, "%s '%s': %s", what, path, strerror(errno));
	return false;
}

static bool write_text(Make *k, const char *name, const char *text, size_t len)
{
	const char *path = in_dir(k, name);
	FILE *f = fopen(path, "w");
	if (!f)
		return fail(k, "cannot write", path);
	bool ok = fwrite(text, 1, len, f) == len;
	return (fclose(f) == 0 && ok) || fail(k, "cannot write", path);
}

static bool exists(const char *path) { return access(path, R_OK) == 0; }

/* The folder of libdlrt.a: as told, or beside dlc (build/), or where `make install` puts it. */
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
	if (!exists(arena_printf(k->a, "%s/libdlrt.a", self)) &&
	    exists(arena_printf(k->a, "%s/libdlrt.a", installed)))
		return installed;
	return arena_strdup(k->a, self);
}

/* ---- commands ---- */

static bool start_job(Make *k, const char *name, const char *command)
{
	const char *log = in_dir(k, arena_printf(k->a, "%s.log", name));
	return jobs_start(&k->jobs, command, log, k->dir) || fail(k, "cannot start", command);
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
static bool finish_jobs(Make *k, const char *what)
{
	const Job *bad = jobs_wait(&k->jobs);
	if (bad && !jobs_interrupted(&k->jobs)) {
		if (WIFEXITED(bad->status) && WEXITSTATUS(bad->status) == 127) {
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

static const char *compile_flags(const Make *k, bool special)
{
	const char *extra = getenv("DLC_CFLAGS");
	const char *level = k->o->debug ? "-O1 -g" : "-O3";
	const char *target = "-march=native";
#ifdef __x86_64__
	target = "-march=native -mprefer-vector-width=512";
#endif
	return arena_printf(k->a,
			    "-std=gnu11 %s %s -fopenmp -fno-math-errno -fno-trapping-math "
			    "-fno-strict-aliasing -ffp-contract=%s -w -Wno-psabi %s",
			    level, target, special ? "fast" : "off", extra ? extra : "");
}

static bool start_compile(Make *k, const char *name, const char *flags)
{
	const char *object = in_dir(k, arena_printf(k->a, "%s.o", name));
	const char *source = arena_printf(k->a, "%s/%s.c", k->dir, name);
	k->objects = arena_printf(k->a, "%s %s", k->objects, quoted(k->a, object));
	return start_job(k, name,
			 arena_printf(k->a, "exec %s %s -I%s -c -o %s %s", k->cc, flags,
				      quoted(k->a, k->dir), quoted(k->a, object),
				      quoted(k->a, source)));
}

/* ---- sources ---- */

static bool write_kernels(Make *k, const Emit *e, int part, int parts)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	double all = 0, before = 0;
	for (size_t i = 0; i < e->kernels.len; i++)
		all += e->kernels.at[i].special ? 0 : e->kernels.at[i].weight;
	e->printer->prelude(f, e, false);
	for (size_t i = 0; i < e->kernels.len; i++) {
		const EmitKernel *x = &e->kernels.at[i];
		if (x->special)
			continue;
		int of = (int)(before * parts / (all + 1));
		before += x->weight;
		if (of == part)
			kernel_print(f, e, (int)i);
	}
	fclose(f);
	bool ok = write_text(k, arena_printf(k->a, "kernels%d.c", part), text, len);
	free(text);
	return ok;
}

static bool write_memory(Make *k, const char *name, void (*print)(FILE *f, void *ctx), void *ctx)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	print(f, ctx);
	fclose(f);
	bool ok = write_text(k, name, text, len);
	free(text);
	return ok;
}

typedef struct PlanJob {
	Emit *e;
	const BuildOptions *o;
} PlanJob;

static void print_plan(FILE *f, void *ctx)
{
	const PlanJob *j = ctx;
	plan_write(f, j->e, j->o);
}

static void print_special(FILE *f, void *ctx)
{
	const Emit *e = ctx;
	e->printer->prelude(f, e, true);
	for (size_t i = 0; i < e->kernels.len; i++)
		if (e->kernels.at[i].special)
			kernel_print(f, e, (int)i);
}

/* Into how many files kernels of so many bytes go: as many as the processors at hand can compile at
 * one time, where each is worth a process. */
static int count_parts(double bytes)
{
	int parts = omp_get_num_procs(), worth = (int)(bytes / SPLIT_BYTES);
	parts = parts < worth ? parts : worth;
	return parts < 1 ? 1 : parts > MAX_PARTS ? MAX_PARTS : parts;
}

static bool compile_all(Make *k, Emit *e)
{
	double weight = 0;
	bool special = false;
	for (size_t i = 0; i < e->kernels.len; i++) {
		special = special || e->kernels.at[i].special;
		weight += e->kernels.at[i].special ? 0 : e->kernels.at[i].weight;
	}
	int parts = count_parts(weight);
	PlanJob plan = { e, k->o };
	bool ok = write_text(k, "plan.h", plan_h, plan_h_len) &&
		  write_text(k, "scalar.h", scalar_h, scalar_h_len) &&
		  write_text(k, "kernel.h", kernel_h, kernel_h_len) &&
		  write_text(k, "special.h", special_h, special_h_len) &&
		  write_text(k, "product.h", product_h, product_h_len);
	for (int i = 0; i < parts && ok; i++)
		ok = write_kernels(k, e, i, parts) &&
		     start_compile(k, arena_printf(k->a, "kernels%d", i), compile_flags(k, false));
	if (ok && special)
		ok = write_memory(k, "special.c", print_special, e) &&
		     start_compile(k, "special", compile_flags(k, true));
	ok = ok && write_memory(k, "plan.c", print_plan, &plan) &&
	     start_compile(k, "plan", "-std=gnu11 -O0 -march=native -w");
	return finish_jobs(k, "compile the generated kernels") && ok;
}

static bool link_all(Make *k, const char *output)
{
	const char *extra = getenv("DLC_LDFLAGS");
	const char *command = arena_printf(
		k->a,
		"exec %s -o %s %s %s -fopenmp -ldnnl -l:libjansson.a -l:libz.a -lm -lpthread %s",
		k->cc, quoted(k->a, output), k->objects,
		quoted(k->a, arena_printf(k->a, "%s/libdlrt.a", k->runtime)), extra ? extra : "");
	return start_job(k, "link", command) && finish_jobs(k, "link the trainer");
}

/* Leaves what was compiled beside the executable. */
static void keep_sources(const Make *k, Emit *e)
{
	FILE *f = fopen(arena_printf(k->a, "%s.kernels.c", k->o->output), "w");
	if (f) {
		kernels_write(f, e);
		fclose(f);
	}
	f = fopen(arena_printf(k->a, "%s.plan.c", k->o->output), "w");
	if (f) {
		plan_write(f, e, k->o);
		fclose(f);
	}
}

static bool make_trainer(Make *k, Emit *e)
{
	k->runtime = find_runtime(k);
	if (!exists(arena_printf(k->a, "%s/libdlrt.a", k->runtime))) {
		diag_error(k->m->diag, NO_SPAN, "the runtime library libdlrt.a is not in '%s'",
			   k->runtime);
		diag_hint(k->m->diag, "run 'make', or set DLC_RUNTIME to the folder that has it");
		return false;
	}
	const char *temporary = arena_printf(k->a, "%s.tmp-%ld", k->o->output, (long)getpid());
	bool ok = compile_all(k, e) && link_all(k, temporary);
	if (ok && rename(temporary, k->o->output) != 0)
		ok = fail(k, "cannot write", k->o->output);
	if (!ok)
		unlink(temporary);
	return ok;
}

bool cpu_build(const Module *m, const BuildOptions *o)
{
	Arena *a = arena_new();
	Emit *e = emit_module(a, m, &cpu_printer);
	const char *cc = o->cc ? o->cc : getenv("CC");
	Make k = { .a = a, .m = m, .o = o, .cc = cc && *cc ? cc : "cc", .objects = "" };
	bool ok = e != NULL;
	if (ok) {
		const char *tmp = getenv("TMPDIR");
		char *dir = arena_printf(a, "%s/dlc-XXXXXX", tmp && *tmp ? tmp : "/tmp");
		jobs_open(&k.jobs);
		k.dir = mkdtemp(dir);
		ok = k.dir ? make_trainer(&k, e) : fail(&k, "cannot make the folder", dir);
		if (ok && o->keep_sources)
			keep_sources(&k, e);
		if (k.dir)
			remove_dir(&k);
		jobs_close(&k.jobs);
	}
	arena_free(a);
	return ok;
}

bool cpu_emit(FILE *out, const Module *m, const BuildOptions *o)
{
	(void)o;
	Arena *a = arena_new();
	Emit *e = emit_module(a, m, &cpu_printer);
	if (e)
		kernels_write(out, e);
	arena_free(a);
	return e != NULL;
}

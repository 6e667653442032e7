/* From texts to an executable, for any back end: a temporary folder, commands side by side, a link, a rename.
 *
 *     TMP/kernels0.c .. plan.c  --cc-->  *.o
 *     *.o + the runtime library  --cc-->  OUTPUT.tmp-PID  --rename-->  OUTPUT
 *
 * Environment: CC, DLC_RUNTIME (folder of the runtime libraries), DLC_LDFLAGS (added). */
#ifndef DLC_CODEGEN_MAKE_H
#define DLC_CODEGEN_MAKE_H

#include "emit.h"
#include "jobs.h"

enum { MAKE_PARTS = 6 }; /* files of kernels, at most */

typedef struct Make Make;

/* What differs between back ends. */
typedef struct Recipe {
	const KernelPrinter *printer;
	const char *library, *link; /* "libdlrt.a"; what it needs besides jansson, zlib, libm, libpthread */
	/* Makes all objects. */
	bool (*compile)(Make *k, Emit *e);
	/* Leaves what was compiled beside the executable. */
	void (*keep)(Make *k, Emit *e);
} Recipe;

struct Make {
	Arena *a;
	const Module *m;
	const BuildOptions *o;
	const Recipe *recipe;
	const char *dir;     /* temporary folder: of all files but the executable */
	const char *runtime; /* folder of the runtime library */
	const char *cc;
	Jobs jobs;
	const char *objects; /* quoted, for the link */
	PlanUnit *units;     /* CUDA */
	int nunits;
};

/* The executable o->output; false after diagnostics, and nothing is left behind. */
bool make_trainer(const Module *m, const BuildOptions *o, const Recipe *r);

const char *make_path(const Make *k, const char *name); /* in the folder */
const char *make_quoted(Arena *a, const char *s);       /* for the shell: 'it'\''s' */
bool make_fail(const Make *k, const char *what, const char *path); /* reports errno; false */
bool make_text(Make *k, const char *name, const char *text, size_t len);
bool make_file(Make *k, const char *name, void (*print)(FILE *f, void *ctx), void *ctx);
/* Starts to compile NAME.c to NAME.o. */
bool make_compile(Make *k, const char *name, const char *flags);
/* Writes plan.c and starts to compile it. */
bool make_plan(Make *k, Emit *e);
/* Waits for what was started; reports the first failure: TOOL failed to WHAT. NULL: the C compiler. */
bool make_wait(Make *k, const char *tool, const char *what);
/* Into how many files texts of so many bytes go: as many as the processors at hand can compile at one time, where each is
 * worth a process. */
int make_parts(double bytes, double worth_bytes);

#endif

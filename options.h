/* The command line of dlc, and the exit codes that it and everything behind it share. */
#ifndef DLC_OPTIONS_H
#define DLC_OPTIONS_H

#include "frontend/frontend.h"
#include "ir/base/vec.h"
#include "passes/planner.h"

enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_BUG = 3 };

typedef struct Options {
	Arena *arena;
	const char *input, *output, *target, *arch, *machine, *cc;
	const char *json, *svg, *page; /* files to write; "-": standard output */
	const char *emit, *stop_after, *passes, *print_after;
	const char *pack, *machine_file;
	int64_t capacity;     /* of --pack; 0: as low as possible */
	double seconds;       /* of --pack */
	VEC(const char *) defines;
	FrontOptions front;
	PlannerOptions plan;  /* the budget is not set where it is `auto` */
	int threads;
	int device; /* -1: not given, the first */
	bool auto_budget, calibrate, quick, no_build, no_epilogues, min_budget, curve, explain, check_plan, keep_sources, debug, quiet;
	bool print_after_all, print_changed, time_passes, verify_each;
} Options;

/* Fills the options, checked as far as that needs no file. An exit code where the program ends here (an error, after a message, or --help
 * and the like), -1 to go on. */
int read_options(Options *o, Arena *a, int argc, char **argv);

/* Says what is wrong with the command line on standard error; returns EXIT_USAGE. */
__attribute__((format(printf, 1, 2))) int usage_error(const char *fmt, ...);

#endif

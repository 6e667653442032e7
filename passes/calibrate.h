/* `dlc --calibrate`: a profile of this machine, from the times of real trainers. See calibrate.c for the method. */
#ifndef DLC_PASSES_CALIBRATE_H
#define DLC_PASSES_CALIBRATE_H

#include "machine.h"

/* A model to be planned and built. */
typedef struct CalibrateModel {
	const char *text;
	const char *const *defines; /* "name=value" */
	int ndefines;
	int64_t micro_batch;
	const char *path; /* of the trainer */
} CalibrateModel;

/* Plans the step of a model without a limit and builds its trainer, with `step` and `init` alone; the planned module, or
 * NULL after diagnostics. */
typedef const Module *(*CalibrateBuild)(void *ctx, const CalibrateModel *m);

/* Measures with this many threads, in less than half a minute; says on `err` how far it is (quiet: only what went wrong). `prior` is
 * where costs stay that cannot be seen. NULL after a message; nothing is left behind. */
const Machine *calibrate(Arena *a, const Machine *prior, int threads, CalibrateBuild build, void *ctx, bool quiet, FILE *err);

#endif

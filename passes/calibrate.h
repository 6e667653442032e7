/* `dlc --calibrate`: a profile of this machine's processor, or of an NVIDIA card in it, from the times of real trainers. See
 * calibrate.c for the method. */
#ifndef DLC_PASSES_CALIBRATE_H
#define DLC_PASSES_CALIBRATE_H

#include "machine.h"

/* A model to be planned and built. */
typedef struct CalibrateModel {
	const char *text;
	const char *const *defines; /* "name=value" */
	int ndefines;
	const char *precision;      /* NULL: fp32 */
	int64_t micro_batch;
	const char *path; /* of the trainer */
} CalibrateModel;

/* Plans the step of a model without a limit and builds its trainer, with `step` and `init` alone, a launch for each node; the planned
 * module, or NULL after diagnostics. */
typedef const Module *(*CalibrateBuild)(void *ctx, const CalibrateModel *m);

/* The card that is measured. */
typedef struct CalibrateCard {
	const char *name, *arch; /* "NVIDIA H200", "sm_90" */
	int number;              /* for --device */
	double cache_bytes;      /* 0: not known */
	int64_t arena_bytes;     /* that an arena may have there */
} CalibrateCard;

typedef struct CalibrateOptions {
	const Machine *prior;      /* where costs stay that cannot be seen */
	int threads;               /* of the processor */
	const CalibrateCard *card; /* NULL: the processor is measured */
	bool quick;                /* small models, each a moment: rough */
	bool quiet;                /* says only what goes wrong */
	CalibrateBuild build;
	void *ctx;
	FILE *err;
} CalibrateOptions;

/* Measures, a processor in less than half a minute and a card in less than one; says on `err` how far it is. NULL after a message; nothing is
 * left behind. */
const Machine *calibrate(Arena *a, const CalibrateOptions *o);

#endif

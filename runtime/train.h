/* A trainer: plan, arena, data and position, with the operations that every front (commands, C API)
 * is made of.
 *
 * All of it reports failures through Fail; none of it prints or exits. */
#ifndef DLC_RUNTIME_TRAIN_H
#define DLC_RUNTIME_TRAIN_H

#include "checkpoint.h"
#include "data.h"
#include "memory.h"
#include "run.h"

typedef struct TrainerOptions {
	DeviceOptions device;
	bool check_nan;
	bool no_shuffle;
	bool has_seed;
	uint64_t seed;
	const DataOverride *data;
	int ndata;
	bool zeros_without_data; /* bench: missing files are replaced by zeros */
	bool no_data;            /* info, and hosts that only load and save */
} TrainerOptions;

typedef struct Trainer {
	const Plan *plan;
	Device *device;
	Data *data;
	Checkpoint *checkpoint;
	CheckpointState state; /* step: optimizer steps done, their results known */
	int64_t begun;         /* steps begun: more than those done while the device works on them */
	double started[DEVICE_CALLS], ended; /* when those began; when the last result came */
	RunBad bad;            /* of the step begun last */
	bool synthetic;        /* the data are zeros */
	bool check_nan;        /* steps and evaluations stop at the first result that is not finite */
	RunTime *times;        /* of the steps of `step`; NULL: no clock is read */
	RunTrace *trace;       /* of their runs; NULL */
	int64_t outside_bytes; /* largest anonymous memory outside the arena so far */
} Trainer;

typedef struct StepResult {
	double loss, grad_norm, lr, scale;
	bool has_grad_norm, has_lr, has_scale, has_skipped;
	bool skipped; /* nothing was updated ... */
	bool empty;   /* ... since the batch has no valid target */
	double seconds;
} StepResult;

typedef struct EvalResult {
	double loss, accuracy, top_accuracy;
	bool has_accuracy, has_top; /* has_top: the plan says `top_k` */
	bool of_text;   /* the loss is the mean of -log p over the elements of a text ... */
	bool of_bytes;  /* ... which are bytes */
	int64_t samples;
} EvalResult;

/* Opens the data and the device, prepares the functions named in `funcs` (separated
 * by blanks; absent ones are passed over) and computes the initial values. */
bool trainer_open(Trainer *t, const Plan *plan, const TrainerOptions *o, const char *funcs,
		  Fail *f);
void trainer_close(Trainer *t);

/* Initial values for the trainer's seed, step 0. */
bool trainer_init(Trainer *t, Fail *f);
/* One optimizer step on the next batch. A loss that is not finite is no failure: look at r->loss.
 * `bad` may be NULL; it is set where check_nan found a result that is not finite (then the step
 * was left unfinished). */
bool trainer_step(Trainer *t, StepResult *r, RunBad *bad, Fail *f);
/* The same, but steps up to number `last` (counted from 1) may be begun before this one's result is
 * waited for, where the device can take several: so that it need not wait for us. The state is that of
 * the steps done once trainer_busy is false: only then may it be saved, evaluated or changed. */
bool trainer_advance(Trainer *t, int64_t last, StepResult *r, RunBad *bad, Fail *f);
bool trainer_busy(const Trainer *t);
/* Over a whole split: full batches, then single samples. */
bool trainer_eval(Trainer *t, DataSplit split, EvalResult *r, Fail *f);
/* Writes the predictions of a split, as text where the path ends in .csv, as .npy where in that; *samples gets their number. */
bool trainer_predict(Trainer *t, DataSplit split, const char *path, int64_t *samples, Fail *f);

/* Sets *bad to the first parameter or state that is not finite, or NULL. */
bool trainer_bad_variable(Trainer *t, const PlanVar **bad, Fail *f);
bool trainer_save(Trainer *t, const char *dir, unsigned names, Fail *f);
bool trainer_resume(Trainer *t, const char *path, bool has_seed, uint64_t seed, Fail *f);

/* A number from the plan's `train` settings. */
double trainer_setting(const Plan *plan, const char *key, double dflt);
/* Updates and gives the largest anonymous memory outside the arena. */
int64_t trainer_outside_bytes(Trainer *t);
double seconds_now(void);

#endif

/* Checkpoints in the safetensors format: complete, atomic, byte-identical for identical states.
 *
 * A file holds every variable of the plan under its name, and in `__metadata__` what the variables
 * do not say (step, seed, order, fingerprint, a hash of the data). */
#ifndef DLC_RUNTIME_CHECKPOINT_H
#define DLC_RUNTIME_CHECKPOINT_H

#include "run.h"

typedef struct CheckpointState {
	int64_t step; /* optimizer steps done */
	uint64_t seed;
	bool shuffle;
	/* Of evaluations, where the run keeps its best state (best_step >= 0): the lowest loss, its
	 * step, and how many have come since. */
	double best_loss;
	int64_t best_step, evals_since_best;
} CheckpointState;

/* The names that a saved state gets beside last.safetensors. */
enum { SAVE_NUMBERED = 1, /* step-N.safetensors */ SAVE_BEST = 2 /* best.safetensors */ };

typedef struct Checkpoint Checkpoint;

/* Prepares buffers, so that saving allocates nothing; NULL after filling f. */
Checkpoint *checkpoint_open(const Plan *plan, Fail *f);
void checkpoint_close(Checkpoint *c);

/* Makes the folder where it does not exist, takes it for this run and proves that it can be written.
 * Returns a file descriptor, whose closing (or the end of the process, however it ends) gives the
 * folder back; -1 after filling f. */
int checkpoint_folder(const char *dir, Fail *f);
/* Writes DIR/last.safetensors, and the further names of `names`: under a temporary name, synced,
 * renamed. After a failure or a kill at any moment the files of before are whole. */
bool checkpoint_save(Checkpoint *c, Device *d, const CheckpointState *s, const char *dir,
		     unsigned names, Fail *f);
/* Removes all but the `keep` DIR/step-N.safetensors that were written last. */
void checkpoint_prune(const char *dir, int64_t keep);

/* A file, or a folder's last.safetensors. Restores every variable and the state; strict: another
 * model's file, or one with missing, extra or misshapen tensors is refused before anything is
 * overwritten. */
bool checkpoint_resume(Device *d, const char *path, CheckpointState *s, Fail *f);
typedef enum InitWhat { INIT_WHOLE, INIT_PARTIAL, INIT_ADAPTERS } InitWhat;

/* Takes parameters, and running statistics where the file has them, converting between f64, f32, bf16
 * and f16. Names may have one prefix before the model's; `map`, a file of lines `from -> to`, gives
 * tensors other names (NULL: none). What is missing, misshapen or not in the model is listed: in a
 * refusal, or for INIT_PARTIAL in note->text ("" without any). Adapters may be missing, unless
 * INIT_ADAPTERS asks for them and for nothing else. */
bool checkpoint_init(Device *d, const char *path, const char *map, InitWhat what, Fail *note, Fail *f);

typedef enum ExportWhat { EXPORT_ALL, EXPORT_MERGED, EXPORT_ADAPTERS } ExportWhat;

/* Writes weights for other tools: parameters (their moving averages, where there are some) and
 * running statistics, all of them; with the adapters merged; or the adapters alone. */
bool checkpoint_export(Device *d, const char *path, ExportWhat what, int *tensors, Fail *f);
/* The parameter whose moving average v is; NULL where it is none. */
const PlanVar *plan_average_of(const Plan *plan, const PlanVar *v);

#endif

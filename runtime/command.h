/* The commands of a trainer: ./model train | eval | predict | sample | export | info | bench | profile. */
#ifndef DLC_RUNTIME_COMMAND_H
#define DLC_RUNTIME_COMMAND_H

#include "train.h"

enum { MAX_DATA_OPTIONS = 32 };

/* -1 and NULL: not given. */
typedef struct Options {
	int64_t steps, eval_every, save_every, keep, early_stop, threads, device, length, top_k;
	double temperature;
	bool has_seed, save_best, check_memory, check_nan, no_shuffle, quiet, json, init_partial, merge, adapters, links;
	uint64_t seed;
	const char *init, *out, *resume, *metrics, *output, *split, *prompt, *tensorboard, *trace, *init_map, *init_adapters;
	DataOverride data[MAX_DATA_OPTIONS];
	int ndata;
} Options;

/* Each gives an exit code (fail.h); messages are out. */
int command_train(const Plan *plan, const Options *o);
int command_eval(const Plan *plan, const Options *o);
int command_predict(const Plan *plan, const Options *o);
int command_sample(const Plan *plan, const Options *o);
int command_export(const Plan *plan, const Options *o);
int command_info(const Plan *plan, const Options *o);
int command_bench(const Plan *plan, const Options *o);
int command_profile(const Plan *plan, const Options *o);
int command_links(const Plan *plan, const Options *o); /* profile --links */

/* Prints a failure ("error: ...") and gives its exit code. */
int report(const Fail *f);
/* The part of the options that trainer_open reads. */
TrainerOptions trainer_options(const Options *o);
/* Loads what --init or --resume names into an open trainer. */
bool load_weights(Trainer *t, const Options *o, Fail *f);
/* For commands that use a trained model: the named weights, else those of the last training here,
 * else the initial ones. */
bool load_for_use(Trainer *t, const Options *o, Fail *f);
/* Where checkpoints go without --out: TRAINER.run, after the executable's name, so that two trainers of one model keep apart. */
void default_folder(char out[256]);

#endif

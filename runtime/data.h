/* Training data: files are mapped, never held; a sample is a pure function of (seed, position).
 *
 * A data set of the plan has fields ("x", "tokens"); each is one stretch of a mapped file per
 * split. Everything that can be wrong with a file (missing, empty, truncated, wrong magic, shape or
 * type, values out of range, too few samples) is found by data_open, before the first step. */
#ifndef DLC_RUNTIME_DATA_H
#define DLC_RUNTIME_DATA_H

#include "fail.h"
#include "plan.h"

typedef enum DataSplit { SPLIT_TRAIN, SPLIT_TEST, SPLITS } DataSplit;

/* --data name=path (key NULL: the set's main file or folder) or --data name.key=value. */
typedef struct DataOverride {
	const char *name, *key, *value;
} DataOverride;

typedef struct Data Data;

/* Opens every data set and checks it against the plan. Missing files are EXIT_FILES, wrong contents
 * EXIT_INPUT. */
Data *data_open(const Plan *plan, const DataOverride *o, int no, Fail *f);
/* Synthetic data: zeros of every field, as many samples as a batch (bench without files). */
Data *data_zeros(const Plan *plan, Fail *f);
void data_close(Data *d);
/* Splits an argument of --data in place; false where it has no `=` or no name. */
bool data_parse_override(char *arg, DataOverride *o);

/* Samples of a split; 0 where the data has no test split. */
int64_t data_samples(const Data *d, DataSplit split);
/* Tokens in a sample, where the data are windows of text; else 0. */
int64_t data_tokens(const Data *d);

/* They are bytes. */
bool data_of_bytes(const Data *d);

typedef struct DataOrder {
	uint64_t seed;
	bool shuffle;
} DataOrder;

/* Where a RunSource reads: training at a step, or the test split from a sample on. */
typedef struct DataCursor {
	const Data *data;
	DataSplit split;
	bool training;   /* in the order of `order`, with what is drawn for each sample */
	DataOrder order;
	int64_t epoch, first;
} DataCursor;

/* The batch of optimizer step `step`: epochs are permutations. The samples behind the last whole batch of one are left out, or
 * are a batch of their own where the plan asks which samples there are (data_is_own): it is filled up with samples from
 * the beginning of the epoch, of which that input is 0. */
DataCursor data_at_step(const Data *d, DataOrder order, int64_t step);
/* Samples from `first` on, in file order. */
DataCursor data_at_sample(const Data *d, DataSplit split, int64_t first);
/* Asks the system to have the samples of a batch in memory soon; does nothing for files that are
 * held there anyway. */
void data_ahead(const DataCursor *c);
/* Which sample of which file a field's sample `first` of the batch is. */
int64_t data_sample_at(const DataCursor *c, int input, int64_t first, const char **path);
/* A RunSource's read; ctx is a DataCursor. */
void data_read(void *ctx, int input, int64_t first, int64_t n, void *dst);

/* Data that are not read from files: the input "batch.valid", 1 for each sample of a batch that there is. */
bool data_is_own(const char *type);
/* Samples are windows of a text. */
bool data_is_text(const char *type);
/* A number in [0,1) that depends on (seed, i) alone. */
double data_uniform(uint64_t seed, int64_t i);

/* Element i of the seeded permutation of [0,n): a Feistel network with cycle walking, no table. */
int64_t data_permute(uint64_t key, int64_t i, int64_t n);

#endif

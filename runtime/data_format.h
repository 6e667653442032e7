/* Inside the data reader: what a file format has to say of a field.
 *
 * To add a format: a DataOpenFn in a file of its own, and a row in data.c's table. */
#ifndef DLC_RUNTIME_DATA_FORMAT_H
#define DLC_RUNTIME_DATA_FORMAT_H

#include "bpe.h"
#include "data.h"

/* A file, mapped read-only. */
typedef struct DataMap {
	struct DataMap *next;
	char *path, *file; /* what the user gave, for messages; what is mapped (it may be a cache
			      file) */
	const unsigned char *bytes;
	int64_t size;
} DataMap;

/* One field in one split: sample i is `elems` elements at base + i*stride. */
typedef struct DataField {
	const DataMap *map; /* NULL: the split does not exist */
	const unsigned char *base;
	PlanDType dtype; /* in the file */
	int64_t elems, stride, samples;
	int ndim; /* dims of a sample as the file says, for messages; -1: the file does not say
		     (bytes) */
	int64_t dim[PLAN_MAX_DIMS];
} DataField;

/* What training does to a picture, drawn anew for each sample and epoch: a shift by up to `crop` pixels each way (zeros
 * come in at the edges), and a mirror image in half of the cases. */
typedef struct DataAugment {
	int64_t crop;
	bool flip;
} DataAugment;

/* A data set being opened. */
typedef struct DataSet {
	const Plan *plan;
	const PlanData *decl;
	const DataOverride *override;
	int noverride;
	DataMap **maps; /* list that data_close unmaps */
	int64_t roam;   /* training samples may start up to this many elements later, drawn anew each
			   epoch (windows of text) */
	DataAugment augment;
} DataSet;

/* Opens one field; both[SPLIT_TEST].map stays NULL without a test split. */
typedef bool (*DataOpenFn)(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);

bool data_open_bytes(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_tokens(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_text(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_idx(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_npy(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_raw(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);
bool data_open_csv(DataSet *s, const PlanInput *in, DataField both[SPLITS], Fail *f);

/* A setting as text, number (true and false are 1 and 0) or default: an override first, then the
 * plan's. */
const char *data_text(const DataSet *s, const char *key); /* NULL when absent or "" */
bool data_number(const DataSet *s, const char *key, double dflt, double *out, Fail *f);

/* The settings `crop` and `flip`, of pictures: the last two dimensions are height and width. */
bool data_augment(DataSet *s, const PlanInput *in, Fail *f);
/* A field's own file: the setting FIELD, or test_FIELD for the test split (which `key` gets); NULL
 * where there is none. */
const char *data_field_file(const DataSet *s, const PlanInput *in, DataSplit split, char key[128]);

/* Maps a file once (a second call finds it again); a gzip file is unpacked into the cache first.
 * Messages name it `shown`. */
const DataMap *data_map(DataSet *s, const char *path, const char *shown, Fail *f);
/* False after filling f where the file holds less or more than a header of so many bytes and the samples that it promises,
 * field->stride bytes each. */
bool data_holds(const DataField *field, int64_t header, Fail *f);
/* Moves the last `fraction` of the training samples into the test split. */
bool data_hold_out(DataField both[SPLITS], double fraction, const char *name, Fail *f);

/* ---- data_bpe.c ----------------------------------------------------------------------------- */

/* The vocabulary that the settings `vocab` and `merges` name. */
Bpe *data_vocabulary(const DataSet *s, Fail *f);
/* A text as a file of token ids, of 32 bits each where *wide, else of 16. */
const DataMap *data_encode(DataSet *s, const char *path, bool *wide, Fail *f);

/* ---- data_cache.c --------------------------------------------------------------------------- */

/* The cache file that stands for `path` (by its real path, size, time of change and `kind`), made
 * by `make` where it does not exist yet: `make` writes to fd. Gives the cache file's path in `out`.
 */
typedef bool (*CacheMake)(const char *path, int fd, void *ctx, Fail *f);
bool cache_file(const char *path, const char *kind, CacheMake make, void *ctx, char *out, size_t out_size,
		Fail *f);
struct stat;
/* False after filling f where it is a folder, a device or a pipe: data are mapped, and read more than once. */
bool data_is_file(const char *path, const struct stat *st, Fail *f);
/* A CacheMake that unpacks gzip. */
bool cache_gunzip(const char *path, int fd, void *ctx, Fail *f);

#endif

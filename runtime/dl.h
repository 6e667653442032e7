/* The C API of a compiled trainer, for host programs.
 *
 * Link the model's plan.o and kernels.o with libdlrt.a (dlc --keep-sources leaves the sources; a
 * model for CUDA is a plan.o alone, linked with libdlrt-cuda.a),
 * then:
 *
 *     Dl *dl = dl_open(&(DlOptions){ .data = "images=/data/fashion" });
 *     while (dl_step(dl, &loss) && ...)
 *     dl_save(dl, "out");
 *     dl_close(dl);
 *
 * Nothing here prints or ends the process. After dl_open a step allocates nothing. One Dl is used
 * by one thread at a time; it owns one arena of dl_arena_bytes. */
#ifndef DLC_RUNTIME_DL_H
#define DLC_RUNTIME_DL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Dl Dl;

typedef struct DlOptions {
	int threads;   /* 0: as planned */
	int device;    /* CUDA: which card, counted from 0 */
	uint64_t seed; /* 0: the plan's */
	bool no_shuffle;
	const char *data; /* "name=path", several separated by newlines; NULL: as declared */
} DlOptions;

/* Never NULL but for a lack of memory: on a failure dl_error says what it was, and every other call
 * fails. */
Dl *dl_open(const DlOptions *o);
void dl_close(Dl *d);
const char *dl_error(const Dl *d); /* NULL while nothing has failed */

/* One optimizer step; *loss (may be NULL) gets its loss. */
bool dl_step(Dl *d, double *loss);
int64_t dl_steps_done(const Dl *d);
/* An output of the last step: "grad_norm", "lr", ... */
bool dl_output(const Dl *d, const char *name, double *value);
/* Loss and accuracy (NAN where there are no classes) over the test split. */
bool dl_evaluate(Dl *d, double *loss, double *accuracy);
/* Predictions of the test split, as .npy. */
bool dl_predict(Dl *d, const char *path);

/* DIR/last.safetensors. */
bool dl_save(Dl *d, const char *dir);
/* Weights alone; everything, from a file or a folder. */
bool dl_load_weights(Dl *d, const char *path);
bool dl_resume(Dl *d, const char *path);

/* Parameters. `data` is where a trainer for the CPU has them: valid until dl_close, changed by dl_step;
 * of a trainer for a graphics card it is NULL. dl_read_parameter and dl_write_parameter copy `bytes` from
 * and to either. */
typedef struct DlParameter {
	const char *name, *dtype; /* "fc1.weight", "f32" */
	int ndim;
	const int64_t *dim;
	void *data;
	int64_t bytes;
} DlParameter;

int dl_parameters(const Dl *d);
bool dl_parameter(const Dl *d, int i, DlParameter *out);
bool dl_read_parameter(Dl *d, int i, void *to);
bool dl_write_parameter(Dl *d, int i, const void *from);
int64_t dl_arena_bytes(const Dl *d);

#endif

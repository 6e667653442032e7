/* The front end: model text (.dl) to the tensor IR. Every error that a user can make in a model is
 * found here. */
#ifndef DLC_FRONTEND_H
#define DLC_FRONTEND_H

#include "../ir/ir.h"

typedef struct FrontOptions {
	const char *const *defines; /* "name=value", "train.KEY=value" or "DATA.KEY=value", in
				       order; the last one wins */
	int ndefines;
	const char *precision; /* overrides train.precision; NULL: as the model says */
	uint64_t seed;         /* overrides train.seed; 0: as the model says */
} FrontOptions;

/* Reads a model; NULL after diagnostics (any number, positioned). The module holds the function
 * @forward (macros not expanded; `output loss` and, where there is one, `output predict`), the
 * variables with their initial values, and the sections `train` and `data`, every setting present.
 * `path` and `text` are kept by reference for diagnostics. */
Module *frontend_read(Arena *a, Diag *d, const char *path, const char *text, size_t len,
		      const FrontOptions *o);

#endif

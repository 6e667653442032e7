/* Sums over rows, made by the kernel that works on the rows. */
#ifndef DLC_PASSES_FUSE_COLUMNS_H
#define DLC_PASSES_FUSE_COLUMNS_H

#include "fuse.h"

/* Rewrites the kernels of one function, loop bodies included, in which fuse has run; fuse_columns.c says when. Does nothing where the back end
 * cannot (Capabilities.sums_beside_rows). Numbers the function anew. */
void fuse_columns(Func *f, const Capabilities *caps);

#endif

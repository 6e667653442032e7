/* Values that one kernel stores only for others, which could as well make them themselves. */
#ifndef DLC_PASSES_FUSE_REMAKE_H
#define DLC_PASSES_FUSE_REMAKE_H

#include "fuse.h"

/* Rewrites the kernels of one function, loop bodies included, in which fuse has run; fuse_remake.c says when. Numbers the function
 * anew; what is left without readers is for ir_dce. */
void fuse_remake(Func *f);

#endif

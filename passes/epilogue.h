/* Products that do more than multiply, where the back end can (epilogue.c). */
#ifndef DLC_PASSES_EPILOGUE_H
#define DLC_PASSES_EPILOGUE_H

#include "pass.h"

/* Rewrites one function, loop bodies included, behind fold_sums. Whether it has changed; then the function is numbered anew. */
bool epilogue_func(Func *f, const Capabilities *caps);

#endif

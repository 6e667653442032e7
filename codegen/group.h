/* Steps that one launch can do together. */
#ifndef DLC_CODEGEN_GROUP_H
#define DLC_CODEGEN_GROUP_H

#include "emit.h"

/* Joins steps of equal kernels in each function, where the printer offers it and no byte is touched in another order;
 * kernels that no step uses any more are dropped. */
void group_steps(Emit *e);

#endif

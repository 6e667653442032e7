/* Views, in-place results and offsets of one function (the passes `inplace` and `offsets`). */
#ifndef DLC_PASSES_PLACE_H
#define DLC_PASSES_PLACE_H

#include "timeline.h"

/* Makes slices on the last axis that only attention reads strided views of their source (sets Value.ld), where the back end can
 * read them so. Before `fuse`, which would copy them. */
void place_strided_views(Func *f, const Capabilities *caps);

/* Gives every variable its offset, from 0; returns their end in bytes. */
int64_t place_variables(Module *m);

/* Places a fused and scheduled function above the variables: sets Value.offset of every stored value and view,
 * Node.work_offset, Node.seconds and Func.arena_bytes (returned). -1 after a diagnostic: see timeline_plannable. */
int64_t place_func(Func *f, const PassCtx *cx);

/* The same for a function made from a plan (recompute.h) of which the lives have been placed: they stay where they are. */
int64_t place_func_as(Func *f, const PassCtx *cx, const TLives *lives, const int64_t *offset);

/* Rounds of escalation that placements get; one number, so that planning and placing agree. */
enum { PLACE_ROUNDS = 32 };

#endif

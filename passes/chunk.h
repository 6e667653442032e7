/* Chunked heads: what is computed row by row around a wide value, in parts. See chunk.c for the method. */
#ifndef DLC_PASSES_CHUNK_H
#define DLC_PASSES_CHUNK_H

#include "pass.h"

/* More parts than this are never made: the rows of a result are put together by one node. */
enum { CHUNK_MOST = IR_MAX_ARGS };

/* The widest head of a function. */
typedef struct ChunkHead {
	int64_t rows;  /* it can be cut into so many parts */
	int64_t bytes; /* of its product's result */
	Span span;     /* of the product */
} ChunkHead;

/* True where a function without batch_sum has a head. Numbers the function anew. */
bool chunk_head(Func *f, ChunkHead *head);

/* Computes the heads of the function in `chunks` parts each (1: leaves it alone); after accumulate, before fuse.
 * False after diagnostics: where there is no head, or fewer rows than parts. Works in place. */
bool chunk_func(Func *f, PassCtx *cx, int64_t chunks);

#endif

/* Diagnostics: where in which text something is wrong, said the same way everywhere.
 *
 *     models/mlp.dl:14:17: error: matmul: inner sizes differ, f32[64,784] by f32[512,10]
 *        14 |   logits = matmul(x, w2)
 *           |                 ^~~~~~~~
 *     hint: transpose(w2)?
 */
#ifndef DLC_IR_BASE_DIAG_H
#define DLC_IR_BASE_DIAG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "arena.h"

/* A byte range [begin,end) of one registered source; source < 0: no position. */
typedef struct Span {
	int32_t source;
	int32_t begin, end;
} Span;

#define NO_SPAN ((Span){ -1, 0, 0 })

typedef struct Diag Diag;

/* Messages go to `out` as they come. At most `max_errors` are printed (0: all); later ones are only counted. */
Diag *diag_new(Arena *a, FILE *out, int max_errors);
/* Registers a text (kept by reference) and gives its number for Span.source. */
int diag_source(Diag *d, const char *path, const char *text, size_t len);
const char *diag_source_path(const Diag *d, int source);
/* 1-based line and column (in bytes) of a span's begin; both 0 for NO_SPAN. */
void diag_position(const Diag *d, Span s, int *line, int *column);
/* "path:line", in the arena; "?" for NO_SPAN. */
const char *diag_where(const Diag *d, Arena *a, Span s);

void diag_error(Diag *d, Span s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void diag_warning(Diag *d, Span s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Notes and hints belong to the message before them (and are dropped with it). */
void diag_note(Diag *d, Span s, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void diag_hint(Diag *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int diag_errors(const Diag *d);

#endif

/* Bytes over time under change: range add, largest value and its place, in logarithmic time (a segment tree). */
#ifndef DLC_PASSES_PEAKS_H
#define DLC_PASSES_PEAKS_H

#include "../ir/base/arena.h"

typedef struct Peaks {
	int32_t n, size;   /* positions; leaves of the tree, a power of two */
	int64_t *top;      /* by node: the largest value below it, with what is added at it */
	int64_t *add;      /* by inner node: added to all positions below it */
} Peaks;

/* n positions of value 0. */
Peaks peaks_new(Arena *a, int32_t n);
/* Adds to the positions [from, to), which may be none. */
void peaks_add(Peaks *p, int32_t from, int32_t to, int64_t bytes);
/* The largest value over [from, to); INT64_MIN over none. */
int64_t peaks_over(const Peaks *p, int32_t from, int32_t to);
int64_t peaks_at(const Peaks *p, int32_t i);
/* The largest value of all, and the first position that has it. */
int64_t peaks_top(const Peaks *p);
int32_t peaks_where(const Peaks *p);
/* All n values. */
void peaks_read(const Peaks *p, int64_t *out);

#endif

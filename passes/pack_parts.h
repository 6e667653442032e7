/* What the searches for low placements share: the problem in sections, and each search's entry.
 *
 * A section is a position where the set of live buffers is largest among its neighbours; buffers meet if and only if they
 * share a section, and each covers a contiguous run of them. Sizes are divided by their greatest common divisor.
 *
 * Greedy placement needs less: where each rectangle's life begins and ends among the starts of all. */
#ifndef DLC_PASSES_PACK_PARTS_H
#define DLC_PASSES_PACK_PARTS_H

#include <stdbool.h>

#include "../ir/base/vec.h"
#include "pack.h"

typedef struct PackProblem {
	int32_t n, m;       /* buffers, sections */
	int32_t *lo, *hi;   /* by buffer: its sections, half-open */
	int64_t *size;      /* by buffer, in units */
	int64_t unit;       /* bytes */
	int64_t bound;      /* largest sum of a section, in units */
	int32_t **near;     /* by buffer: those that it meets, by index */
	int32_t *nnear;
	int32_t **live;     /* by section: its buffers */
	int32_t *nlive;
} PackProblem;

/* Work is counted in buffers looked at, so that a limit means the same on every machine. */
typedef struct PackWork {
	int64_t left;
} PackWork;

typedef enum PackAnswer { PACK_FOUND, PACK_IMPOSSIBLE, PACK_GAVE_UP } PackAnswer;

/* The problem of n > 0 rectangles. The lists `near` and `live` are NULL where more than `most` entries would be in one. */
PackProblem *pack_problem(Arena *a, const PackRect *r, size_t n, int64_t most);

/* The offsets that are taken by the rectangles placed so far, over `positions` positions, of which there are no more than there are
 * rectangles; n lives [lo, hi) of rectangles that will come say how to lay it out. Gaps below `least` bytes may count as taken. */
typedef struct PackSpace PackSpace;
PackSpace *pack_space(Arena *a, const int32_t *lo, const int32_t *hi, size_t n, int32_t positions, int64_t least);
void pack_space_clear(PackSpace *s);
void pack_space_take(PackSpace *s, int32_t lo, int32_t hi, int64_t offset, int64_t size);
/* The lowest offset where `size` bytes are free over all of [lo, hi), or of the smallest hole that is large enough (the lowest
 * such; above all that is taken where there is none). */
int64_t pack_space_find(PackSpace *s, int32_t lo, int32_t hi, int64_t size, bool tightest);
/* Done so far, in unions and parts of lists looked at. */
int64_t pack_space_work(const PackSpace *s);

/* Exact search, for a problem with lists. A run looks for a placement of at most `capacity` units, restarting from ever new
 * orders of branching until about `slice` of the work is spent; fills offset[n] where it finds one. */
typedef struct PackExact PackExact;
PackExact *pack_exact(Arena *a, const PackProblem *p);
PackAnswer pack_exact_run(PackExact *x, int64_t capacity, int64_t slice, PackWork *work, int64_t *offset);

/* Local search. A start takes a complete placement; each run goes on from where the last one was, lowers offset[n] from
 * `height` as far as `target` and the work allow, and returns the new height. */
typedef struct PackEvict PackEvict;
PackEvict *pack_evict(Arena *a, const PackProblem *p);
void pack_evict_start(PackEvict *e, const int64_t *offset);
int64_t pack_evict_run(PackEvict *e, int64_t height, int64_t target, PackWork *work, int64_t *offset);

#endif

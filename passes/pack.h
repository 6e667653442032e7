/* Placing live ranges in one arena: the offsets of dynamic storage allocation.
 *
 * A rectangle is a buffer: `size` bytes over the positions [lower, upper). Two rectangles that share a position must not
 * share a byte. The height is the largest offset + size. */
#ifndef DLC_PASSES_PACK_H
#define DLC_PASSES_PACK_H

#include "../ir/base/arena.h"

typedef struct PackRect {
	int64_t lower, upper; /* positions, half-open, lower < upper */
	int64_t size;         /* bytes, > 0 */
	int64_t offset;       /* result */
} PackRect;

/* The largest sum of sizes over one position: no placement is lower. */
int64_t pack_lower_bound(Arena *scratch, const PackRect *r, size_t n);

/* Fills the offsets and returns the height. Stops at the first placement that is not higher than `target`; otherwise
 * the best of several orders and at most `rounds` rounds of escalation. Deterministic. */
int64_t pack_place(Arena *scratch, PackRect *r, size_t n, int64_t target, int rounds);

#endif

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

typedef struct PackResult {
	int64_t height;
	int64_t bound; /* proved: no placement is lower */
} PackResult;

/* Searches, exactly and locally, for a placement that is not higher than `target`; with target 0 for a lowest one. Fills the
 * offsets of the lowest that it met. Ends early where that is reached; where it is proved impossible (bound > target) what work is left
 * goes into a lowest one. The limit is in units of work, so the result is the same on every machine; sizes must add up to less than 2^62. */
PackResult pack_search(Arena *scratch, PackRect *r, size_t n, int64_t target, int64_t work);

/* Units of work that one core of a present machine does in a second, about. */
enum { PACK_WORK_PER_SECOND = 200000000 };

#endif

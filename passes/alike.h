/* Which operations and buffers of a function are alike, as those of equal layers are. */
#ifndef DLC_PASSES_ALIKE_H
#define DLC_PASSES_ALIKE_H

#include "timeline.h"

/* Classes: what has the same number is alike. They are hashes of 64 bits, so two that differ may get one number by chance: only estimates are
 * to be shared. */
typedef struct Alike {
	uint64_t *op, *buf; /* by operation; by buffer */
	int32_t nbufs;      /* classes of buffers that there are */
} Alike;

/* NULL where hardly any two buffers are alike, as in graphs that are no stack of layers. */
const Alike *alike_find(const Timeline *t, Arena *a);

/* A hash of h and x, in this order. */
static inline uint64_t alike_mix(uint64_t h, uint64_t x)
{
	x = (h + UINT64_C(0x9E3779B97F4A7C15)) ^ (x * UINT64_C(0xD6E8FEB86659FD93));
	x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9); /* SplitMix64's (Steele, Lea and Flood, 2014) */
	x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
	return x ^ (x >> 31);
}

#endif

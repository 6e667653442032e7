/* Random numbers for tests, the same on every machine: a linear congruential generator (Knuth's MMIX constants), of which the upper bits
 * are used. */
#ifndef DLC_TESTS_RANDOM_H
#define DLC_TESTS_RANDOM_H

#include <stdint.h>

typedef struct Random {
	uint64_t state;
} Random;

/* A number in [0, n); n is at most 2^31. */
static inline int64_t pick_long(Random *r, int64_t n)
{
	r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (int64_t)((r->state >> 33) % (uint64_t)n);
}

static inline int pick(Random *r, int n) { return (int)pick_long(r, n); }

#endif

/* The arena, and the process's own figures about its memory. */
#ifndef DLC_RUNTIME_MEMORY_H
#define DLC_RUNTIME_MEMORY_H

#include "fail.h"

#include <stdint.h>

typedef struct ArenaMap {
	unsigned char *base; /* aligned to 2 MiB */
	int64_t bytes;       /* usable, as asked for */
	int64_t mapped;      /* whole pages */
	bool pattern;
} ArenaMap;

/* The pattern of --check-memory, of `n` bytes from byte `at` of the arena on, a multiple of 8: into p;
 * the end of the highest byte of p, counted from p, that does not hold it (0: all do). */
void pattern_fill(void *p, int64_t at, int64_t n);
int64_t pattern_end(const void *p, int64_t at, int64_t n);
unsigned char pattern_byte(int64_t at);

/* Maps `bytes` of zeroed memory and touches each page, so that no later step can meet a lack of
 * memory. With `pattern` every 8 bytes hold a value of their address instead, for arena_high_water.
 */
bool arena_map(ArenaMap *m, int64_t bytes, bool pattern, Fail *f);
void arena_unmap(ArenaMap *m);
/* Changes byte `at` to something else than the pattern. */
void arena_mark(const ArenaMap *m, int64_t at);
/* End of the highest byte that no longer holds the pattern. */
int64_t arena_high_water(const ArenaMap *m);
/* Bytes of its pages that are in memory. */
int64_t arena_resident(const ArenaMap *m);

/* Current anonymous resident bytes and the highest resident bytes of this process (statm and
 * rusage; no allocation). */
int64_t memory_anonymous_bytes(void);
int64_t memory_peak_rss_bytes(void);

/* "1.50 GiB" */
const char *memory_text(int64_t bytes, char out[32]);

#endif

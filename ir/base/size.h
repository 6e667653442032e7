/* Sizes as people write them: 4G and 4GiB are 4 * 2^30 bytes, 4GB is 4 * 10^9, 512M, 1.5G, plain bytes. */
#ifndef DLC_IR_BASE_SIZE_H
#define DLC_IR_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"

/* Parses the whole text. False with a reason ("unknown unit 'Q'") where it is no size, below 1 byte, or above 2^62. */
bool size_parse(const char *text, int64_t *bytes, char why[128]);

/* "1.50 MiB", three digits, rounded up, so that a budget as printed is enough; in the arena. */
const char *size_text(Arena *a, int64_t bytes);

#endif

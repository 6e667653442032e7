/* `dlc --pack`: live ranges from a CSV file, placed.
 *
 * The first line names the columns: `id`, `lower`, `upper` and `size` in any order, among others. A buffer lives over
 * [lower, upper) and has `size` bytes. Blank lines and lines that begin with '#' are copied. */
#ifndef DLC_PASSES_PACK_CSV_H
#define DLC_PASSES_PACK_CSV_H

#include <stdio.h>

#include "../ir/base/diag.h"

typedef struct PackRequest {
	const char *path, *text; /* text[len] is 0 */
	size_t len;
	int64_t capacity;        /* bytes; 0: as low as possible */
	double seconds;          /* of search, counted in work */
} PackRequest;

typedef enum PackStatus { PACK_DONE, PACK_MISSED, PACK_INVALID } PackStatus;

/* Writes the rows, in their order, with their column `offset` (added, or replaced) to `out` and one line with the height and
 * the lower bound to `notes`. PACK_MISSED: the placement is higher than the capacity; PACK_INVALID: errors were told. */
PackStatus pack_csv(Arena *a, Diag *d, const PackRequest *q, FILE *out, FILE *notes);

#endif

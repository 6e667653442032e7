/* Names: a hash map by text, and suggestions for misspelt names. */
#ifndef DLC_FRONTEND_NAMES_H
#define DLC_FRONTEND_NAMES_H

#include "../ir/base/arena.h"
#include "../ir/base/diag.h"

typedef struct NameSlot {
	const char *key; /* NULL: free */
	void *value;
} NameSlot;

/* From text to pointer; a zeroed NameMap is empty. Keys are kept by reference. */
typedef struct NameMap {
	NameSlot *slot;
	size_t len, cap; /* cap: 0 or a power of two */
} NameMap;

void *name_get(const NameMap *m, const char *key); /* NULL when absent */
/* Sets or replaces; value is not NULL. Returns the value that was there, or NULL. */
void *name_put(Arena *a, NameMap *m, const char *key, void *value);

/* The nearest of several candidates by edit distance (insert, delete, change, swap), if it is near
 * enough. */
typedef struct Suggest {
	const char *wanted, *best;
	int distance;
} Suggest;

Suggest suggest_start(const char *wanted);
void suggest_try(Suggest *s, const char *candidate);
void suggest_map(Suggest *s, const NameMap *m); /* tries every key */
/* "hint: did you mean 'x'?", or nothing. */
void suggest_hint(const Suggest *s, Diag *d);

#endif

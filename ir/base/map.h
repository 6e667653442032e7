/* A map from pointers to integers, in an arena: open addressing, at most half full, no removal. */
#ifndef DLC_IR_BASE_MAP_H
#define DLC_IR_BASE_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "arena.h"

typedef struct MapSlot {
	const void *key;
	int64_t value;
} MapSlot;

/* A zeroed struct with `arena` set is an empty map. */
typedef struct Map {
	Arena *arena;
	MapSlot *slot;
	size_t len, room; /* room: 0 or a power of two */
} Map;

/* Sets or replaces the value of a key (not NULL); true when the key is new. */
bool map_set(Map *m, const void *key, int64_t value);
/* False when the key is absent; value may be NULL. */
bool map_get(const Map *m, const void *key, int64_t *value);

#endif

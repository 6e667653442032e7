/* Growable arrays (vec.h): the array is copied to twice its room; the old one stays in the arena. */
#include "vec.h"

#include <stdlib.h>

void *vec_grow(Arena *a, void *at, size_t len, size_t *cap, size_t size)
{
	size_t room = *cap ? *cap : 4;
	if (*cap && __builtin_mul_overflow(room, (size_t)2, &room))
		abort();
	void *wider = arena_array(a, room, size);
	if (len)
		memcpy(wider, at, len * size);
	*cap = room;
	return wider;
}

/* Growable arrays in an arena: VEC(T) declares one, a zeroed struct is an empty one. */
#ifndef DLC_IR_BASE_VEC_H
#define DLC_IR_BASE_VEC_H

#include "arena.h"

#define VEC(T)                                                                                     \
	struct {                                                                                   \
		T *at;                                                                             \
		size_t len, cap;                                                                   \
	}

/* Appends x; evaluates v more than once. */
#define vec_push(a, v, x)                                                                          \
	do {                                                                                       \
		if ((v)->len == (v)->cap)                                                          \
			(v)->at = vec_grow((a), (v)->at, (v)->len, &(v)->cap, sizeof *(v)->at);    \
		(v)->at[(v)->len++] = (x);                                                         \
	} while (0)

/* Doubles the room for elements of `size` bytes; the old array stays in the arena. */
void *vec_grow(Arena *a, void *at, size_t len, size_t *cap, size_t size);

#endif

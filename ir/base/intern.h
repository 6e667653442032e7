/* Interned names: equal texts become the same pointer, so that they can be compared and used as keys of a Map. */
#ifndef DLC_IR_BASE_INTERN_H
#define DLC_IR_BASE_INTERN_H

#include "arena.h"

/* A zeroed struct with `arena` set is empty. */
typedef struct Intern {
	Arena *arena;
	const char **slot;
	size_t len, room; /* room: 0 or a power of two */
} Intern;

/* The one copy of a text, 0-terminated; n bytes, none of them 0. */
const char *intern(Intern *t, const char *s, size_t n);
/* The same, or NULL where the text was never interned. */
const char *intern_find(const Intern *t, const char *s, size_t n);

#endif

/* Interned names (intern.h): open addressing over FNV-1a, at most half full. */
#include "intern.h"

static size_t hash_of(const char *s, size_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < n; i++)
		h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
	return (size_t)(h ^ h >> 32);
}

static const char **find_slot(const char **slot, size_t room, const char *s, size_t n)
{
	size_t i = hash_of(s, n) & (room - 1);
	while (slot[i] && (strncmp(slot[i], s, n) != 0 || slot[i][n]))
		i = (i + 1) & (room - 1);
	return &slot[i];
}

static void widen(Intern *t)
{
	size_t room = t->room ? 2 * t->room : 64;
	const char **wider = ARENA_ARRAY(t->arena, room, const char *);
	for (size_t i = 0; i < t->room; i++)
		if (t->slot[i])
			*find_slot(wider, room, t->slot[i], strlen(t->slot[i])) = t->slot[i];
	t->slot = wider;
	t->room = room;
}

const char *intern(Intern *t, const char *s, size_t n)
{
	if (2 * t->len >= t->room)
		widen(t);
	const char **slot = find_slot(t->slot, t->room, s, n);
	if (!*slot) {
		*slot = arena_strndup(t->arena, s, n);
		t->len++;
	}
	return *slot;
}

const char *intern_find(const Intern *t, const char *s, size_t n)
{
	return t->room ? *find_slot(t->slot, t->room, s, n) : NULL;
}

/* A map from pointers to integers (map.h). */
#include "map.h"

static MapSlot *find_slot(MapSlot *slot, size_t room, const void *key)
{
	size_t i = (size_t)(((uint64_t)(uintptr_t)key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (room - 1);
	while (slot[i].key && slot[i].key != key)
		i = (i + 1) & (room - 1);
	return &slot[i];
}

static void widen(Map *m)
{
	size_t room = m->room ? 2 * m->room : 64;
	MapSlot *wider = ARENA_ARRAY(m->arena, room, MapSlot);
	for (size_t i = 0; i < m->room; i++)
		if (m->slot[i].key)
			*find_slot(wider, room, m->slot[i].key) = m->slot[i];
	m->slot = wider;
	m->room = room;
}

bool map_set(Map *m, const void *key, int64_t value)
{
	if (2 * m->len >= m->room)
		widen(m);
	MapSlot *s = find_slot(m->slot, m->room, key);
	bool fresh = !s->key;
	m->len += fresh;
	*s = (MapSlot){ key, value };
	return fresh;
}

bool map_get(const Map *m, const void *key, int64_t *value)
{
	if (!m->room)
		return false;
	const MapSlot *s = find_slot(m->slot, m->room, key);
	if (s->key && value)
		*value = s->value;
	return s->key != NULL;
}

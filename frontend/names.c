/* An open-addressing hash map (linear probing, at most half full) and the optimal string alignment
 * distance. */
#include "names.h"

#include <stdbool.h>

enum { MAX_WORD = 48 };

static size_t hash(const char *s)
{
	uint64_t h = 14695981039346656037u; /* FNV-1a */

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 1099511628211u;
	return (size_t)(h ^ h >> 29);
}

static NameSlot *find(const NameMap *m, const char *key)
{
	size_t i = hash(key) & (m->cap - 1);

	while (m->slot[i].key && strcmp(m->slot[i].key, key) != 0)
		i = (i + 1) & (m->cap - 1);
	return &m->slot[i];
}

void *name_get(const NameMap *m, const char *key)
{
	return m->cap ? find(m, key)->value : NULL;
}

void *name_put(Arena *a, NameMap *m, const char *key, void *value)
{
	NameSlot *s;
	void *old;

	if (2 * (m->len + 1) > m->cap) {
		NameMap big = { .cap = m->cap ? 2 * m->cap : 8, .len = m->len };
		big.slot = ARENA_ARRAY(a, big.cap, NameSlot);
		for (size_t i = 0; i < m->cap; i++)
			if (m->slot[i].key)
				*find(&big, m->slot[i].key) = m->slot[i];
		*m = big;
	}
	s = find(m, key);
	old = s->value;
	if (!s->key) {
		s->key = key;
		m->len++;
	}
	s->value = value;
	return old;
}

/* ---- suggestions ---- */

static int min2(int a, int b)
{
	return a < b ? a : b;
}

/* Distance of words of at most MAX_WORD bytes. */
static int distance(const char *a, int na, const char *b, int nb)
{
	int row[3][MAX_WORD + 1], *two = row[0], *one = row[1], *now = row[2];

	for (int j = 0; j <= nb; j++)
		one[j] = j;
	for (int i = 1; i <= na; i++) {
		now[0] = i;
		for (int j = 1; j <= nb; j++) {
			int d = min2(one[j], now[j - 1]) + 1;
			d = min2(d, one[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d = min2(d, two[j - 2] + 1);
			now[j] = d;
		}
		int *t = two;
		two = one;
		one = now;
		now = t;
	}
	return one[nb];
}

Suggest suggest_start(const char *wanted)
{
	return (Suggest){ .wanted = wanted, .distance = MAX_WORD };
}

void suggest_try(Suggest *s, const char *candidate)
{
	size_t na = strlen(s->wanted), nb = strlen(candidate);

	if (na > MAX_WORD || nb > MAX_WORD)
		return;
	int d = distance(s->wanted, (int)na, candidate, (int)nb);
	int near = na < 3 ? 1 : na < 6 ? 2 : 3;
	bool begins = na >= 3 && nb > na && !strncmp(s->wanted, candidate, na); /* norm: normal */
	if (begins && d > near)
		d = near;
	bool shared = d < (int)(na > nb ? na : nb); /* not every letter differs */
	if (d <= near && shared &&
	    (d < s->distance || (d == s->distance && strcmp(candidate, s->best) < 0))) {
		s->best = candidate;
		s->distance = d;
	}
}

void suggest_map(Suggest *s, const NameMap *m)
{
	for (size_t i = 0; i < m->cap; i++)
		if (m->slot[i].key)
			suggest_try(s, m->slot[i].key);
}

void suggest_hint(const Suggest *s, Diag *d)
{
	if (s->best)
		diag_hint(d, "did you mean '%s'?", s->best);
}

/* Region allocation (arena.h): a list of chunks, filled from the front.
 *
 * An object that does not fit in what is left of the current chunk goes into a new one, at least as large as the
 * object. arena_reset keeps the chunks and starts again at the first. Built with -DHARDMEM each object is a chunk
 * of its own, exactly as long as the object, and reset frees them, so that a memory checker sees each overrun and
 * each use after reset. */
#include "arena.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Chunk Chunk;
struct Chunk {
	Chunk *next;
	size_t room, used; /* bytes behind the header */
};

enum { ALIGN = 16, HEADER = (sizeof(Chunk) + ALIGN - 1) / ALIGN * ALIGN, CHUNK_BYTES = 256 * 1024 };

struct Arena {
	Chunk *first, *at; /* `at` is filled; the chunks behind it are empty */
};

static void out_of_memory(void)
{
	fprintf(stderr, "dlc: out of memory\n");
	exit(2);
}

static Chunk *chunk_new(size_t room)
{
	size_t bytes;
	if (__builtin_add_overflow(room, (size_t)HEADER, &bytes))
		out_of_memory();
	Chunk *c = malloc(bytes);
	if (!c)
		out_of_memory();
	c->next = NULL;
	c->room = room;
	c->used = 0;
	return c;
}

Arena *arena_new(void)
{
	Arena *a = malloc(sizeof *a);
	if (!a)
		out_of_memory();
	a->first = a->at = NULL;
	return a;
}

static void free_chunks(Arena *a)
{
	for (Chunk *c = a->first, *next; c; c = next) {
		next = c->next;
		free(c);
	}
	a->first = a->at = NULL;
}

void arena_free(Arena *a)
{
	if (!a)
		return;
	free_chunks(a);
	free(a);
}

void arena_reset(Arena *a)
{
#ifdef HARDMEM
	free_chunks(a);
#else
	for (Chunk *c = a->first; c; c = c->next)
		c->used = 0;
	a->at = a->first;
#endif
}

/* Makes `at` a chunk with room for `bytes`: a kept one behind it that is large enough, or a new one after it. */
static void next_chunk(Arena *a, size_t bytes)
{
	if (a->at && a->at->next && a->at->next->room >= bytes) {
		a->at = a->at->next;
		return;
	}
#ifdef HARDMEM
	Chunk *c = chunk_new(bytes);
#else
	Chunk *c = chunk_new(bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
#endif
	if (a->at) {
		c->next = a->at->next;
		a->at->next = c;
	} else {
		c->next = a->first;
		a->first = c;
	}
	a->at = c;
}

void *arena_alloc(Arena *a, size_t bytes)
{
#ifdef HARDMEM
	size_t room = bytes ? bytes : 1;
#else
	size_t room;
	if (__builtin_add_overflow(bytes ? bytes : 1, (size_t)(ALIGN - 1), &room))
		out_of_memory();
	room &= ~(size_t)(ALIGN - 1);
#endif
	if (!a->at || a->at->room - a->at->used < room)
		next_chunk(a, room);
	unsigned char *p = (unsigned char *)a->at + HEADER + a->at->used;
	a->at->used += room;
	memset(p, 0, room);
	return p;
}

void *arena_array(Arena *a, size_t n, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(n, size, &bytes))
		out_of_memory();
	return arena_alloc(a, bytes);
}

char *arena_strndup(Arena *a, const char *s, size_t n)
{
	char *copy = arena_alloc(a, n + 1);
	memcpy(copy, s, n);
	return copy;
}

char *arena_strdup(Arena *a, const char *s)
{
	return arena_strndup(a, s, strlen(s));
}

char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
{
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0)
		out_of_memory();
	char *s = arena_alloc(a, (size_t)n + 1);
	vsnprintf(s, (size_t)n + 1, fmt, ap);
	return s;
}

char *arena_printf(Arena *a, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	char *s = arena_vprintf(a, fmt, ap);
	va_end(ap);
	return s;
}

/* Region allocation: everything that one compilation makes lives in one arena and goes with it.
 *
 * Built with -DHARDMEM each object is a malloc of its own, so that AddressSanitizer and valgrind see overruns. */
#ifndef DLC_IR_BASE_ARENA_H
#define DLC_IR_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct Arena Arena;

/* A new, empty arena; never NULL (running out of host memory ends the program with exit code 2). */
Arena *arena_new(void);
void arena_free(Arena *a);
/* Forgets every object but keeps the memory for the next use. */
void arena_reset(Arena *a);

/* Zeroed bytes, aligned to 16. bytes may be 0 (a valid, unique pointer comes back). */
void *arena_alloc(Arena *a, size_t bytes);
/* n * size with an overflow check. */
void *arena_array(Arena *a, size_t n, size_t size);
char *arena_strndup(Arena *a, const char *s, size_t n);
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *a, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));

#define ARENA_NEW(a, T) ((T *)arena_alloc((a), sizeof(T)))
#define ARENA_ARRAY(a, n, T) ((T *)arena_array((a), (size_t)(n), sizeof(T)))

#endif

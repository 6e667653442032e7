/* Counts calls of the allocator; preloaded into a trainer. At exit writes the number to the file in $COUNT_ALLOC. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long calls;

void *malloc(size_t bytes)
{
	atomic_fetch_add(&calls, 1);
	return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
	atomic_fetch_add(&calls, 1);
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t bytes)
{
	atomic_fetch_add(&calls, 1);
	return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	atomic_fetch_add(&calls, 1);
	return __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
	return aligned_alloc(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	*out = aligned_alloc(alignment, bytes);
	return *out ? 0 : 12;
}

__attribute__((destructor)) static void report(void)
{
	long n = atomic_load(&calls);
	const char *path = getenv("COUNT_ALLOC");
	FILE *f = path ? fopen(path, "w") : NULL;

	if (!f)
		return;
	fprintf(f, "%ld\n", n);
	fclose(f);
}

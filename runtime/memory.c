/* One anonymous mapping is all the memory of a trainer.
 *
 * The mapping starts at a 2 MiB boundary and asks for huge pages; everything around it is given
 * back, so that it counts exactly its own pages. The pattern of --check-memory is a hash of the
 * word's index: a store of any data, zeros included, shows. Bytes of a word count from its low end:
 * the machine is little-endian (as safetensors is). */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

static uint64_t pattern_word(int64_t i)
{
	uint64_t x = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
	return x ^ (x >> 29);
}

unsigned char pattern_byte(int64_t at)
{
	return (unsigned char)(pattern_word(at / 8) >> (8 * (at % 8)));
}

void pattern_fill(void *p, int64_t at, int64_t n)
{
	unsigned char *b = p;
	int64_t words = n / 8;
#pragma omp parallel for schedule(static)
	for (int64_t i = 0; i < words; i++) {
		uint64_t word = pattern_word(at / 8 + i);
		memcpy(b + i * 8, &word, 8);
	}
	for (int64_t i = words * 8; i < n; i++)
		b[i] = pattern_byte(at + i);
}

int64_t pattern_end(const void *p, int64_t at, int64_t n)
{
	const unsigned char *b = p;
	while (n % 8 && b[n - 1] == pattern_byte(at + n - 1))
		n--;
	for (uint64_t word; n >= 8 && n % 8 == 0; n -= 8) {
		memcpy(&word, b + n - 8, 8);
		if (word != pattern_word((at + n) / 8 - 1))
			break;
	}
	while (n > 0 && b[n - 1] == pattern_byte(at + n - 1))
		n--;
	return n;
}

static int64_t page_round(int64_t n)
{
	int64_t page = sysconf(_SC_PAGESIZE);
	return (n + page - 1) / page * page;
}

bool arena_map(ArenaMap *m, int64_t bytes, bool pattern, Fail *f)
{
	*m = (ArenaMap){ .bytes = bytes,
			 .mapped = page_round(bytes > 0 ? bytes : 1),
			 .pattern = pattern };
	size_t whole = (size_t)m->mapped + HUGE;
	unsigned char *p =
		mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		char text[32];
		return fail(f, EXIT_FILES, "cannot get the arena of %s: %s",
			    memory_text(bytes, text), strerror(errno));
	}
	size_t head = (HUGE - (uintptr_t)p % HUGE) % HUGE;
	m->base = p + head;
	if (head)
		munmap(p, head);
	munmap(m->base + m->mapped, whole - head - (size_t)m->mapped);
	madvise(m->base, (size_t)m->mapped,
		MADV_HUGEPAGE); /* faster where it is granted, the same where not */

	if (pattern) {
		pattern_fill(m->base, 0, m->mapped);
	} else {
		volatile unsigned char *touch = m->base;
		int64_t pages = m->mapped / 4096;
#pragma omp parallel for schedule(static)
		for (int64_t i = 0; i < pages; i++)
			touch[i * 4096] = 0;
	}
	return true;
}

void arena_unmap(ArenaMap *m)
{
	if (m->base)
		munmap(m->base, (size_t)m->mapped);
	m->base = NULL;
}

void arena_mark(const ArenaMap *m, int64_t at)
{
	m->base[at] = (unsigned char)~pattern_byte(at);
}

int64_t arena_high_water(const ArenaMap *m)
{
	return pattern_end(m->base, 0, m->mapped);
}

int64_t arena_resident(const ArenaMap *m)
{
	unsigned char in_memory[4096];
	int64_t page = sysconf(_SC_PAGESIZE), resident = 0;
	for (int64_t at = 0; at < m->mapped; at += page * (int64_t)sizeof in_memory) {
		int64_t left = m->mapped - at, bytes = left < page * (int64_t)sizeof in_memory
							       ? left
							       : page * (int64_t)sizeof in_memory;
		if (mincore(m->base + at, (size_t)bytes, in_memory))
			return 0;
		for (int64_t i = 0; i < bytes / page; i++)
			resident += in_memory[i] & 1 ? page : 0;
	}
	return resident;
}

/* statm: size resident shared, in pages; shared counts file-backed and shm pages. */
int64_t memory_anonymous_bytes(void)
{
	char text[128];
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	long long size, resident, shared;
	if (sscanf(text, "%lld %lld %lld", &size, &resident, &shared) != 3)
		return 0;
	return (int64_t)(resident - shared) * sysconf(_SC_PAGESIZE);
}

int64_t memory_peak_rss_bytes(void)
{
	struct rusage u;
	return getrusage(RUSAGE_SELF, &u) ? 0 : (int64_t)u.ru_maxrss * 1024;
}

const char *memory_text(int64_t bytes, char out[32])
{
	static const char *const unit[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
	double n = (double)bytes;
	int u = 0;
	while (n >= 1024 && u < 4) {
		n /= 1024;
		u++;
	}
	snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", n, unit[u]);
	return out;
}

/* Regions that kernels may reach, device allocations with what was written of them, and pinned host memory.
 *
 * Device memory starts as a pattern (not zero), lies at a multiple of 256 that is none of 512 (cuMemAlloc promises no more), and is out of the
 * host's reach while the device does not work. Freed memory stays reserved, so that late accesses are told apart. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GAP = 1 << 16, PATTERN = 0xa5 };

typedef struct Pinned {
	uintptr_t base;
	size_t bytes;
	bool ours;
} Pinned;

static struct {
	Region **v; /* by base */
	int n, cap;
	Region *last;
	Pinned *pinned;
	int npinned, cap_pinned;
	size_t used;
	int serial;
	bool open;
} mem;

static void *reserve(size_t bytes, int prot)
{
	void *p = mmap(NULL, bytes ? bytes : 1, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static int position(uintptr_t a) /* the first region whose base is above */
{
	int lo = 0, hi = mem.n;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (mem.v[mid]->base <= a)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

bool region_add(uintptr_t base, size_t bytes, RegionKind kind, const char *name, Region **out)
{
	Region *g = calloc(1, sizeof *g);
	if (mem.n == mem.cap) {
		int cap = mem.cap ? 2 * mem.cap : 64;
		Region **v = realloc(mem.v, (size_t)cap * sizeof(Region *));
		if (!v) {
			free(g);
			return false;
		}
		mem.v = v;
		mem.cap = cap;
	}
	if (!g)
		return false;
	*g = (Region){.base = base, .bytes = bytes, .kind = kind, .name = name};
	g->w = reserve(bytes * sizeof *g->w, PROT_READ | PROT_WRITE);
	g->r = reserve(bytes * sizeof *g->r, PROT_READ | PROT_WRITE);
	if (kind == RG_DEVICE || kind == RG_VARIABLE)
		g->written = reserve(bytes, PROT_READ | PROT_WRITE);
	if (!g->w || !g->r || ((kind == RG_DEVICE || kind == RG_VARIABLE) && !g->written))
		abort();
	int at = position(base);
	memmove(mem.v + at + 1, mem.v + at, (size_t)(mem.n - at) * sizeof(Region *));
	mem.v[at] = g;
	mem.n++;
	if (out)
		*out = g;
	return true;
}

static void drop_records(Region *g)
{
	munmap(g->w, g->bytes ? g->bytes * sizeof *g->w : 1);
	munmap(g->r, g->bytes ? g->bytes * sizeof *g->r : 1);
	if (g->written)
		munmap(g->written, g->bytes ? g->bytes : 1);
	g->w = g->r = NULL;
	g->written = NULL;
}

void region_remove(uintptr_t base)
{
	int at = position(base) - 1;
	if (at < 0 || mem.v[at]->base != base)
		return;
	drop_records(mem.v[at]);
	free(mem.v[at]);
	mem.n--;
	memmove(mem.v + at, mem.v + at + 1, (size_t)(mem.n - at) * sizeof(Region *));
	mem.last = NULL;
}

Region *region_find(uintptr_t a, const Region **near)
{
	if (mem.last && a - mem.last->base < mem.last->bytes)
		return mem.last;
	int at = position(a) - 1;
	if (near)
		*near = at >= 0 ? mem.v[at] : NULL;
	if (at < 0 || a - mem.v[at]->base >= mem.v[at]->bytes || mem.v[at]->freed)
		return NULL;
	return mem.last = mem.v[at];
}

Region *region_at(int i)
{
	return i < mem.n ? mem.v[i] : NULL;
}

static size_t total_bytes(void)
{
	const char *s = getenv("DL_SIM_MEMORY"); /* bytes of the simulated card */
	size_t n = s ? (size_t)strtoull(s, NULL, 10) : 0;
	return n ? n : (size_t)8 << 30;
}

void memory_info(size_t *free_bytes, size_t *total)
{
	*total = total_bytes();
	*free_bytes = *total > mem.used ? *total - mem.used : 0;
}

CUresult memory_alloc(CUdeviceptr *p, size_t bytes)
{
	size_t unused, total;
	memory_info(&unused, &total);
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > unused)
		return CUDA_ERROR_OUT_OF_MEMORY;
	size_t span = (bytes + 256 + 4095) & ~(size_t)4095;
	uint8_t *all = reserve(span + 2 * GAP, PROT_NONE);
	if (!all)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint8_t *base = all + GAP;
	mprotect(base, span, PROT_READ | PROT_WRITE);
	memset(base, PATTERN, span);
	if (!mem.open)
		mprotect(base, span, PROT_NONE);
	Region *g;
	if (!region_add((uintptr_t)base + 256, bytes, RG_DEVICE, NULL, &g))
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->serial = ++mem.serial;
	mem.used += bytes;
	*p = g->base;
	return CUDA_SUCCESS;
}

CUresult memory_free(CUdeviceptr p)
{
	if (p == 0)
		return CUDA_SUCCESS;
	int at = position(p) - 1;
	if (at < 0 || mem.v[at]->base != p || mem.v[at]->kind != RG_DEVICE || mem.v[at]->freed)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "cuMemFree: %#llx is no allocation", p);
	Region *g = mem.v[at];
	size_t span = (g->bytes + 256 + 4095) & ~(size_t)4095;
	madvise((void *)(g->base - 256), span, MADV_DONTNEED);
	mprotect((void *)(g->base - 256), span, PROT_NONE);
	drop_records(g);
	g->freed = true;
	mem.used -= g->bytes;
	mem.last = NULL;
	return CUDA_SUCCESS;
}

void memory_open(bool open)
{
	if (open == mem.open)
		return;
	mem.open = open;
	for (int i = 0; i < mem.n; i++)
		if (mem.v[i]->kind == RG_DEVICE && !mem.v[i]->freed)
			mprotect((void *)(mem.v[i]->base - 256), (mem.v[i]->bytes + 256 + 4095) & ~(size_t)4095, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Region *memory_range(CUdeviceptr p, size_t bytes)
{
	Region *g = region_find(p, NULL);
	if (!g || (g->kind != RG_DEVICE && g->kind != RG_VARIABLE) || bytes > g->bytes - (p - g->base))
		return NULL;
	return g;
}

void memory_mark(Region *g, uintptr_t a, size_t bytes)
{
	memset(g->written + (a - g->base), 1, bytes);
}

int64_t memory_unwritten(const Region *g, uintptr_t a, size_t bytes)
{
	const uint8_t *w = g->written + (a - g->base), *miss = memchr(w, 0, bytes);
	return miss ? miss - w : -1;
}

void memory_drop_shadow(void)
{
	for (int i = 0; i < mem.n; i++)
		if (!mem.v[i]->freed) {
			madvise(mem.v[i]->w, mem.v[i]->bytes * sizeof(uint64_t), MADV_DONTNEED);
			madvise(mem.v[i]->r, mem.v[i]->bytes * sizeof(uint64_t), MADV_DONTNEED);
		}
}

CUresult pinned_add(void *p, size_t bytes, bool ours)
{
	if (mem.npinned == mem.cap_pinned) {
		int cap = mem.cap_pinned ? 2 * mem.cap_pinned : 16;
		Pinned *v = realloc(mem.pinned, (size_t)cap * sizeof *v);
		if (!v)
			return CUDA_ERROR_OUT_OF_MEMORY;
		mem.pinned = v;
		mem.cap_pinned = cap;
	}
	mem.pinned[mem.npinned++] = (Pinned){(uintptr_t)p, bytes, ours};
	return CUDA_SUCCESS;
}

CUresult pinned_remove(void *p, bool ours)
{
	for (int i = 0; i < mem.npinned; i++)
		if (mem.pinned[i].base == (uintptr_t)p && mem.pinned[i].ours == ours) {
			mem.pinned[i] = mem.pinned[--mem.npinned];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

bool pinned_has(const void *p, size_t bytes)
{
	for (int i = 0; i < mem.npinned; i++)
		if ((uintptr_t)p - mem.pinned[i].base <= mem.pinned[i].bytes &&
		    bytes <= mem.pinned[i].bytes - ((uintptr_t)p - mem.pinned[i].base) && (uintptr_t)p >= mem.pinned[i].base)
			return true;
	return false;
}

/* The checks of each access that a kernel makes: bounds, alignment, bytes never written, races.
 *
 * Each byte has a record of its last write and one of its reads:
 *
 *     stamp (32 bits) | thread (10) | warp clock (19) | flags (3)
 *
 * A stamp is an epoch: a number that grows at the start of each block and at each __syncthreads, over the life of the process. So a record
 * with a stamp below the launch's first is of an earlier launch, one below the block's first of another block of this launch, one
 * below the present stamp lies behind a barrier, and records need no clearing. Within an epoch only lanes of one warp can be ordered,
 * by __syncwarp: a warp's clock counts those, and known[i][j] is the clock up to which lane i knows what lane j did.
 *
 * An access races with a recorded one if at least one of them writes, the threads differ and nothing orders them. The record of
 * reads keeps the last one and whether there were others in this epoch (by lanes of one warp or of several) or by other blocks of
 * this launch; where lanes of one warp read and some of them were synchronised, the doubtful case counts as ordered. What fences and atomic
 * operations order between blocks is in fence.c. Shared memory is
 * the block's own: a record of another block means "not yet written". */
#include "sim.h"

#include <stdio.h>
#include <string.h>

enum {
	THREAD_SHIFT = 22,
	CLOCK_SHIFT = 3,
	CLOCK_MAX = (1 << 19) - 1,
	W_ATOMIC = 1, W_PENDING = 2,      /* of writes */
	R_LANES = 1, R_WARPS = 2, R_BLOCKS = 4 /* of reads: others in this epoch; by several warps; by other blocks */
};

static uint32_t stamp_of(uint64_t rec) { return (uint32_t)(rec >> 32); }
static int thread_of(uint64_t rec) { return (int)(rec >> THREAD_SHIFT) & (SIM_MAX_THREADS - 1); }
static uint32_t clock_of(uint64_t rec) { return (uint32_t)(rec >> CLOCK_SHIFT) & CLOCK_MAX; }

static uint64_t record(const Exec *x)
{
	const Warp *w = &x->warps[x->current / SIM_WARP];
	uint32_t clock = w->count < CLOCK_MAX ? w->count : CLOCK_MAX;
	return ((uint64_t)x->stamp << 32) | ((uint64_t)x->current << THREAD_SHIFT) | ((uint64_t)clock << CLOCK_SHIFT);
}

/* What thread `t` did at `clock` of this epoch is known to the running thread. */
static bool ordered(const Exec *x, int t, uint32_t clock)
{
	if (t == x->current)
		return true;
	if (t / SIM_WARP != x->current / SIM_WARP)
		return false;
	const Warp *w = &x->warps[t / SIM_WARP];
	return clock < w->full || (w->partial && clock < w->known[x->current % SIM_WARP][t % SIM_WARP]);
}

/* Another block of this launch, of which nothing has told this one. */
static bool other_block(const Exec *x, uint64_t rec) { return stamp_of(rec) < x->block_first && !fence_orders(stamp_of(rec)); }

static bool reads_ordered(const Exec *x, uint64_t r)
{
	if (r & R_WARPS)
		return false;
	if (!(r & R_LANES))
		return ordered(x, thread_of(r), clock_of(r));
	if (thread_of(r) / SIM_WARP != x->current / SIM_WARP)
		return false;
	const Warp *w = &x->warps[x->current / SIM_WARP];
	uint32_t most = w->full;
	for (int j = 0; w->partial && j < SIM_WARP; j++)
		if (w->known[x->current % SIM_WARP][j] > most)
			most = w->known[x->current % SIM_WARP][j];
	return clock_of(r) < most;
}

static const char *space_name(const Region *g)
{
	return g->kind == RG_DEVICE || g->kind == RG_VARIABLE ? "global" : "shared";
}

static _Noreturn void race(const Exec *x, const Region *g, uintptr_t a, size_t n, int how, uint64_t other, bool was_write, const void *pc)
{
	char where[160], who[96];
	describe_address(where, sizeof where, a);
	if (stamp_of(other) < x->block_first || (!was_write && (other & R_BLOCKS)))
		snprintf(who, sizeof who, "another block");
	else if (!was_write && (other & (R_LANES | R_WARPS)))
		snprintf(who, sizeof who, "other threads, thread %d among them,", thread_of(other));
	else
		snprintf(who, sizeof who, "thread %d", thread_of(other));
	violation(CUDA_ERROR_LAUNCH_FAILED, pc, "race in %s memory: %s %zu bytes at %s, which %s %s with no barrier between", space_name(g),
		  how == ACCESS_READ ? "reads" : "writes", n, where, who, was_write ? "wrote" : "read");
}

static _Noreturn void unwritten(uintptr_t a, size_t n, const Region *g, const void *pc)
{
	char where[240];
	describe_address(where, sizeof where, a);
	violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "reads %zu bytes of %s memory at %s, never written%s", n, space_name(g), where,
		  g->kind == RG_DEVICE ? " (a memset of a whole allocation does not count)" : "");
}

static void read_byte(Exec *x, Region *g, size_t i, uint64_t me, uint32_t first, uintptr_t a, size_t n, const void *pc)
{
	uint64_t w = g->w[i], r = g->r[i];
	if (stamp_of(w) >= first) {
		if (w & W_PENDING)
			violation(CUDA_ERROR_LAUNCH_FAILED, pc, "reads shared memory that a cp.async of thread %d still has to write (no wait)", thread_of(w));
		if (other_block(x, w) || (stamp_of(w) == x->stamp && !ordered(x, thread_of(w), clock_of(w))))
			race(x, g, a, n, ACCESS_READ, w, true, pc);
	}
	uint64_t flags = 0;
	if (stamp_of(r) == x->stamp) {
		flags = r & (R_LANES | R_WARPS | R_BLOCKS);
		if (thread_of(r) != x->current)
			flags |= thread_of(r) / SIM_WARP == x->current / SIM_WARP ? R_LANES : R_WARPS;
	} else if (stamp_of(r) >= x->block_first) {
		flags = r & R_BLOCKS;
	} else if (stamp_of(r) >= first) {
		flags = R_BLOCKS;
	}
	g->r[i] = me | flags;
}

static void write_byte(Exec *x, Region *g, size_t i, uint64_t me, uint32_t first, uintptr_t a, size_t n, int how, const void *pc)
{
	uint64_t w = g->w[i], r = g->r[i];
	if (stamp_of(w) >= first) {
		if (w & W_PENDING)
			violation(CUDA_ERROR_LAUNCH_FAILED, pc, "writes shared memory that a cp.async of thread %d still has to write (no wait)", thread_of(w));
		bool other = other_block(x, w) || (stamp_of(w) == x->stamp && !ordered(x, thread_of(w), clock_of(w)));
		if (other && !(how == ACCESS_ATOMIC && (w & W_ATOMIC)))
			race(x, g, a, n, how, w, true, pc);
	}
	if (stamp_of(r) >= first) {
		bool other = stamp_of(r) < x->block_first || (r & R_BLOCKS) || (stamp_of(r) == x->stamp && !reads_ordered(x, r));
		if (other)
			race(x, g, a, n, how, r, false, pc);
	}
	g->w[i] = me | (how == ACCESS_ATOMIC ? W_ATOMIC : 0);
}

/* Outside of all regions: a thread's own stack, constants of the module, or a fault. */
static void elsewhere(Exec *x, uintptr_t a, size_t n, int how, const Region *near, const void *pc)
{
	const SimModule *m = x->launch->f->module;
	const char *does = how == ACCESS_READ ? "reads" : "writes";
	char where[240];
	if (how == ACCESS_READ && a >= m->lo && n <= m->hi - a && a < m->hi)
		return;
	uintptr_t stacks = (uintptr_t)x->stacks, end = stacks + (uintptr_t)SIM_MAX_THREADS * SIM_STACK;
	if (a >= stacks && a < end)
		violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "%s %zu bytes out of bounds: another thread's local memory", does, n);
	if (near && near->freed && a - near->base < near->bytes)
		violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "%s %zu bytes at allocation %d + %#zx, which has been freed", does, n, near->serial, (size_t)(a - near->base));
	describe_address(where, sizeof where, a);
	violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "%s %zu bytes out of bounds, at %s", does, n, where);
}

static size_t region_limit(const Exec *x, const Region *g)
{
	return g->kind == RG_DYNAMIC ? x->launch->shared : g->bytes;
}

void dl_sim_access(uintptr_t a, size_t n, int how, const void *pc)
{
	Exec *x = &sim_exec;
	bool loose = how & ACCESS_LOOSE;
	how &= ~ACCESS_LOOSE;
	if (a - x->stack_lo < x->stack_hi - x->stack_lo && n <= x->stack_hi - a)
		return;
	const Region *near = NULL;
	Region *g = region_find(a, &near);
	if (n == 0 || !x->launch)
		return;
	if (!g || n > region_limit(x, g) - (a - g->base) || a - g->base >= region_limit(x, g)) {
		elsewhere(x, a, n, how, near, pc);
		return;
	}
	if (x->launch->extents && x->launch->arena == g->base && !extent_of(x->launch, (int64_t)(a - g->base), n, how != ACCESS_READ)) {
		char where[240];
		describe_address(where, sizeof where, a);
		violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "%s %zu bytes that are no %s of this step, at %s", how == ACCESS_READ ? "reads" : "writes", n,
			  how == ACCESS_READ ? "operand or result" : "result or variable", where);
	}
	if (!loose && n <= 16 && (n & (n - 1)) == 0 && (a & (n - 1)) != 0) {
		char where[240];
		describe_address(where, sizeof where, a);
		violation(CUDA_ERROR_MISALIGNED_ADDRESS, pc, "misaligned: %s %zu bytes at %s, which is no multiple of %zu",
			  how == ACCESS_READ ? "reads" : "writes", n, where, n);
	}
	g->used = true;
	size_t at = a - g->base;
	if (how == ACCESS_ATOMIC && g->kind != RG_SHARED && g->kind != RG_DYNAMIC)
		fence_atomic(a);
	if (!sim_checks_all()) {
		if (g->written && how != ACCESS_READ)
			memset(g->written + at, 1, n);
		return;
	}
	bool shared = g->kind == RG_SHARED || g->kind == RG_DYNAMIC;
	uint32_t first = shared ? x->block_first : x->launch_first;
	if (how != ACCESS_WRITE) {
		if (!shared && memchr(g->written + at, 0, n))
			unwritten(a, n, g, pc);
		for (size_t i = at; shared && i < at + n; i++)
			if (stamp_of(g->w[i]) < first)
				unwritten(a, n, g, pc);
	}
	uint64_t me = record(x);
	x->touched += n;
	if (how == ACCESS_READ) {
		for (size_t i = at; i < at + n; i++)
			read_byte(x, g, i, me, first, a, n, pc);
		return;
	}
	for (size_t i = at; i < at + n; i++)
		write_byte(x, g, i, me, first, a, n, how, pc);
	if (!shared)
		memset(g->written + at, 1, n);
}

void shadow_async(uintptr_t a, size_t n, bool pending)
{
	Exec *x = &sim_exec;
	Region *g = region_find(a, NULL);
	uint64_t me = record(x) | (pending ? W_PENDING : 0);
	for (size_t i = 0; g && i < n; i++)
		g->w[a - g->base + i] = me;
}

/* ---- copies that the compiler made calls of, and what it checks itself: indices of arrays whose size it knows, alignment of types ---- */

void *dl_sim_memcpy(void *to, const void *from, size_t n, const void *pc);
void *dl_sim_memset(void *to, int value, size_t n, const void *pc);
_Noreturn void dl_sim_index(size_t index, const void *pc);
_Noreturn void dl_sim_misaligned(const void *site, uintptr_t a, const void *pc);

void *dl_sim_memcpy(void *to, const void *from, size_t n, const void *pc)
{
	dl_sim_access((uintptr_t)from, n, ACCESS_READ, pc);
	dl_sim_access((uintptr_t)to, n, ACCESS_WRITE, pc);
	return memmove(to, from, n);
}

void *dl_sim_memset(void *to, int value, size_t n, const void *pc)
{
	dl_sim_access((uintptr_t)to, n, ACCESS_WRITE, pc);
	return memset(to, value, n);
}

void dl_sim_index(size_t index, const void *pc)
{
	violation(CUDA_ERROR_ILLEGAL_ADDRESS, pc, "index %lld out of bounds of its array", (long long)index);
}

/* A vector is often moved member by member here, where a GPU moves it at once: its alignment is checked by its type. */
void dl_sim_misaligned(const void *site, uintptr_t a, const void *pc)
{
	struct Type {
		uint16_t kind, info;
		char name[];
	};
	struct Site {
		const char *file;
		uint32_t line, column;
		const struct Type *type;
		uint8_t log_alignment, how; /* 0: load, 1: store, others bind a reference or name a member */
	} s;
	char where[240];
	memcpy(&s, site, sizeof s);
	describe_address(where, sizeof where, a);
	violation(CUDA_ERROR_MISALIGNED_ADDRESS, pc, "misaligned: %s %s at %s, which is no multiple of %u", s.how == 0 ? "reads" : s.how == 1 ? "writes" : "uses", s.type->name, where,
		  1u << s.log_alignment);
}

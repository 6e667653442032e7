/* One block: its threads are fibers that run until they meet a barrier, a warp operation or their end.
 *
 * A warp's lanes run until none can go on, then the next warp's. When nothing can go on, every thread that has not ended must wait at the
 * same __syncthreads; anything else is reported: a barrier that some threads do not reach, a warp operation with lanes missing. Stacks are
 * taken from a pool when a thread first runs and given back when it ends, so that threads without barriers share one. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

Exec sim_exec;

static struct {
	int unused[SIM_MAX_THREADS], nunused;
	void *const *args;
	const SimKernel *kernel;
	uint32_t order[SIM_MAX_THREADS / SIM_WARP], lanes[SIM_WARP];
} block;

static void thread_main(void)
{
	block.kernel->call(block.args);
	Exec *x = &sim_exec;
	Thread *t = &x->threads[x->current];
	async_drop(t);
	t->state = TH_DONE;
	x->warps[x->current / SIM_WARP].ended |= 1u << (x->current % SIM_WARP);
	fiber_switch(&t->sp, x->scheduler);
	abort();
}

_Noreturn void block_abandon(void)
{
	Exec *x = &sim_exec;
	fiber_switch(&x->threads[x->current].sp, x->scheduler);
	abort();
}

static void resume(Exec *x, int i)
{
	Thread *t = &x->threads[i];
	if (t->state == TH_NEW) {
		t->stack = block.unused[--block.nunused];
		fiber_make(&t->sp, x->stacks + (size_t)t->stack * SIM_STACK + 4096, SIM_STACK - 4096, thread_main);
	}
	x->current = i;
	x->stack_lo = (uintptr_t)x->stacks + (uintptr_t)t->stack * SIM_STACK + 4096;
	x->stack_hi = x->stack_lo + SIM_STACK - 4096;
	uint32_t n = (uint32_t)i;
	SimDim *me = &x->launch->f->module->info->now->thread;
	*me = n < x->block.x ? (SimDim){n, 0, 0} : (SimDim){n % x->block.x, n / x->block.x % x->block.y, n / (x->block.x * x->block.y)};
	t->state = TH_READY;
	fiber_switch(&x->scheduler, t->sp);
	if (t->state == TH_DONE)
		block.unused[block.nunused++] = t->stack;
}

/* Runs each lane of a warp that can go on; false: none could. */
static bool run_warp(Exec *x, int w)
{
	bool ran = false;
	for (int k = 0; k < SIM_WARP; k++) {
		int i = w * SIM_WARP + (int)block.lanes[k];
		if (i >= x->nthreads || (x->threads[i].state != TH_NEW && x->threads[i].state != TH_READY))
			continue;
		resume(x, i);
		if (x->failed)
			return false;
		ran = true;
	}
	return ran;
}

static void new_epoch(Exec *x)
{
	x->stamp++;
	for (int w = 0; w * SIM_WARP < x->nthreads; w++) {
		Warp *p = &x->warps[w];
		p->count = p->full = 0;
		if (p->partial)
			memset(p->known, 0, sizeof p->known);
		p->partial = false;
	}
}

/* Everything waits. Barrier, or what is wrong, said in the name of thread x->current. */
static void meet(Exec *x)
{
	int at = -1, done = -1, warp = -1, count = 0, all = 1, any = 0;
	for (int i = 0; i < x->nthreads; i++) {
		const Thread *t = &x->threads[i];
		if (t->state == TH_DONE)
			done = i;
		else if (t->state == TH_WARP)
			warp = warp < 0 ? i : warp;
		else if (at < 0)
			at = i;
	}
	if (warp >= 0) {
		const Thread *t = &x->threads[warp];
		uint32_t missing = t->op->mask;
		int who = -1;
		for (int l = 0; l < SIM_WARP; l++) {
			int i = warp / SIM_WARP * SIM_WARP + l;
			if (i < x->nthreads && x->threads[i].state == TH_WARP && x->threads[i].op->kind == t->op->kind)
				missing &= ~(1u << l);
			else if (who < 0 && (missing >> l) & 1u)
				who = i;
		}
		x->current = warp;
		if (who >= 0 && who < x->nthreads && x->threads[who].file)
			violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "warp operation with lanes missing: lanes %#x of mask %#x do not come; thread %d waits at %s:%d", missing,
				  t->op->mask, who, x->threads[who].file, x->threads[who].line);
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "warp operation with lanes missing: lanes %#x of mask %#x do not come; thread %d has ended", missing, t->op->mask, who);
	}
	x->current = at;
	const Thread *first = &x->threads[at];
	if (done >= 0)
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "divergent barrier: thread %d waits at __syncthreads, but thread %d has ended", at, done);
	for (int i = at; i < x->nthreads; i++) {
		const Thread *t = &x->threads[i];
		if (t->line != first->line || t->barrier != first->barrier || strcmp(t->file, first->file) != 0)
			violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "divergent barrier: thread %d waits at another __syncthreads, %s:%d", i, t->file, t->line);
		count += t->pred != 0;
		all &= t->pred != 0;
		any |= t->pred != 0;
	}
	for (int i = 0; i < x->nthreads; i++) {
		Thread *t = &x->threads[i];
		t->pred = t->barrier == 1 ? count : t->barrier == 2 ? all : any;
		t->state = TH_READY;
		t->file = NULL;
	}
	fence_barrier();
	new_epoch(x);
}

/* `meet` speaks from a fiber of its own, since a violation leaves the running stack. */
static void meet_main(void)
{
	meet(&sim_exec);
	void *gone;
	fiber_switch(&gone, sim_exec.scheduler);
	abort();
}

static bool prepare_stacks(Exec *x)
{
	if (!x->stacks) {
		void *p = mmap(NULL, (size_t)(SIM_MAX_THREADS + 1) * SIM_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED)
			return false;
		x->stacks = p;
		for (size_t i = 0; i <= SIM_MAX_THREADS; i++)
			mprotect(x->stacks + i * SIM_STACK, 4096, PROT_NONE); /* too deep: the process ends */
	}
	block.nunused = 0;
	for (int i = SIM_MAX_THREADS - 1; i >= 0; i--)
		block.unused[block.nunused++] = i;
	return true;
}

void block_shut(void)
{
	if (sim_exec.stacks)
		munmap(sim_exec.stacks, (size_t)(SIM_MAX_THREADS + 1) * SIM_STACK);
	sim_exec.stacks = NULL;
}

CUresult block_run(SimDim dim, void *const *args)
{
	Exec *x = &sim_exec;
	if (!prepare_stacks(x))
		return CUDA_ERROR_OUT_OF_MEMORY;
	x->block = dim;
	x->nthreads = (int)(dim.x * dim.y * dim.z);
	block.args = args;
	block.kernel = x->launch->f->kernel;
	int nwarps = (x->nthreads + SIM_WARP - 1) / SIM_WARP;
	sim_permute(block.order, (uint32_t)nwarps, x->stamp);
	sim_permute(block.lanes, SIM_WARP, x->stamp + 1);
	for (int i = 0; i < x->nthreads; i++)
		x->threads[i] = (Thread){.state = TH_NEW};
	for (int w = 0; w < nwarps; w++) {
		int lanes = x->nthreads - w * SIM_WARP;
		x->warps[w].waiting = 0;
		x->warps[w].ended = lanes < SIM_WARP ? ~0u << lanes : 0;
	}
	new_epoch(x);
	x->block_first = x->stamp;
	fence_block();
	for (;;) {
		for (int k = 0; k < nwarps && !x->failed; k++)
			while (run_warp(x, (int)block.order[k]))
				;
		if (x->failed)
			break;
		bool ended = true;
		for (int i = 0; i < x->nthreads && ended; i++)
			ended = x->threads[i].state == TH_DONE;
		if (ended)
			break;
		void *sp;
		fiber_make(&sp, x->stacks + (size_t)SIM_MAX_THREADS * SIM_STACK + 4096, SIM_STACK - 4096, meet_main);
		fiber_switch(&x->scheduler, sp);
		if (x->failed)
			break;
	}
	for (int i = 0; i < x->nthreads; i++)
		async_drop(&x->threads[i]);
	return x->failed;
}

/* ---- barriers and warp operations, called by kernels ---- */

int dl_sim_barrier(int how, int pred, int line, const char *file);
void dl_sim_syncwarp(unsigned mask, int line, const char *file);
uint64_t dl_sim_shfl(int how, unsigned mask, uint64_t v, int source, int width, int line, const char *file);
unsigned dl_sim_vote(int how, unsigned mask, int pred, int line, const char *file);
int dl_sim_reduce(int how, unsigned mask, int v, int line, const char *file);
void dl_sim_trap(int line, const char *file);

static Thread *waits(ThreadState s, int line, const char *file)
{
	Thread *t = &sim_exec.threads[sim_exec.current];
	t->state = s;
	t->line = line;
	t->file = file;
	return t;
}

static void give_way(Thread *t)
{
	fiber_switch(&t->sp, sim_exec.scheduler);
}

int dl_sim_barrier(int how, int pred, int line, const char *file)
{
	Thread *t = waits(TH_BARRIER, line, file);
	t->barrier = how;
	t->pred = pred;
	give_way(t);
	return t->pred;
}

void dl_sim_trap(int line, const char *file)
{
	waits(TH_READY, line, file);
	violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "__trap");
}

static void synchronise(Warp *w, uint32_t mask, int lanes)
{
	uint32_t all = lanes == SIM_WARP ? ~0u : (1u << lanes) - 1u, e = ++w->count;
	if ((mask & all) == all) {
		w->full = e;
		return;
	}
	w->partial = true;
	uint32_t known[SIM_WARP] = {0};
	for (int i = 0; i < SIM_WARP; i++)
		for (int j = 0; ((mask >> i) & 1u) && j < SIM_WARP; j++)
			if (w->known[i][j] > known[j])
				known[j] = w->known[i][j];
	for (int i = 0; i < SIM_WARP; i++)
		for (int j = 0; ((mask >> i) & 1u) && j < SIM_WARP; j++)
			w->known[i][j] = (mask >> j) & 1u ? e : known[j];
}

/* The lane that a shuffle reads; -1: its own value (beyond the segment). */
static int shuffle_source(const WarpOp *op, int lane)
{
	int low = lane & ~(op->width - 1), within = lane - low, s;
	switch (op->how) {
	case 0: return low + (op->source & (op->width - 1));
	case 1: s = within - op->source; return s < 0 ? -1 : low + s;
	case 2: s = within + op->source; return s >= op->width ? -1 : low + s;
	default: s = lane ^ op->source; return s >= low + op->width ? -1 : s;
	}
}

static void shuffle(WarpOp *const *ops, int lane, int base)
{
	int from = shuffle_source(ops[lane], lane);
	if (from < 0)
		from = lane;
	if (from >= SIM_WARP || !ops[from]) {
		sim_exec.current = base + lane;
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "shuffle reads lane %d, which is not in the mask %#x", from, ops[lane]->mask);
	}
	ops[lane]->out = ops[from]->in;
}

/* All lanes have come. ops[lane] is NULL for lanes outside the mask. */
static void complete(WarpOp *const *ops, int base)
{
	Exec *x = &sim_exec;
	int first = 0;
	while (!ops[first])
		first++;
	uint32_t mask = ops[first]->mask, votes = 0;
	int64_t fold = (int32_t)ops[first]->in;
	for (int l = 0; l < SIM_WARP; l++) {
		if (!ops[l])
			continue;
		votes |= (uint32_t)(ops[l]->in != 0) << l;
		int32_t v = (int32_t)ops[l]->in;
		if (l > first)
			fold = ops[l]->how == 0 ? (int32_t)((uint32_t)fold + (uint32_t)v) : ops[l]->how == 1 ? (v < fold ? v : fold) : (v > fold ? v : fold);
	}
	switch (ops[first]->kind) {
	case WK_SYNC: {
		int lanes = x->nthreads - base < SIM_WARP ? x->nthreads - base : SIM_WARP;
		synchronise(&x->warps[base / SIM_WARP], mask, lanes);
		break;
	}
	case WK_MMA:
	case WK_LDMATRIX: mma_complete(ops, base); break;
	default:
		for (int l = 0; l < SIM_WARP; l++)
			if (ops[l] && ops[first]->kind == WK_SHFL)
				shuffle(ops, l, base);
			else if (ops[l])
				ops[l]->out = ops[l]->kind == WK_BALLOT ? votes : ops[l]->kind == WK_ANY ? votes != 0 : ops[l]->kind == WK_ALL ? votes == mask : (uint64_t)fold;
	}
}

static const char *const kind_names[] = {"__syncwarp", "shuffle", "ballot", "any", "all", "mma", "ldmatrix", "reduce"};

/* The operations of a mask's lanes, which are all there: they must be one operation. */
static void gather(const WarpOp *op, int base, WarpOp **ops)
{
	for (int l = 0; l < SIM_WARP; l++) {
		if (!((op->mask >> l) & 1u))
			continue;
		const Thread *o = &sim_exec.threads[base + l];
		ops[l] = o->op;
		if (o->op->kind != op->kind || o->op->mask != op->mask || (op->kind != WK_SHFL && o->op->how != op->how))
			violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "warp operation with lanes missing: lane %d is in a %s with mask %#x (%s:%d), not in this %s with mask %#x", l,
				  kind_names[o->op->kind], o->op->mask, o->file, o->line, kind_names[op->kind], op->mask);
	}
}

void block_warp(WarpOp *op, int line, const char *file)
{
	Exec *x = &sim_exec;
	int lane = x->current % SIM_WARP, base = x->current - lane;
	Warp *w = &x->warps[base / SIM_WARP];
	Thread *t = waits(TH_WARP, line, file);
	t->op = op;
	if (!((op->mask >> lane) & 1u))
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "%s: lane %d is not in its own mask %#x", kind_names[op->kind], lane, op->mask);
	if (op->mask & w->ended) {
		int l = __builtin_ctz(op->mask & w->ended);
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "warp operation with lanes missing: lane %d of the mask %#x of a %s %s", l, op->mask, kind_names[op->kind],
			  base + l >= x->nthreads ? "does not exist" : "has ended");
	}
	w->waiting |= 1u << lane;
	if (op->mask & ~w->waiting) {
		give_way(t);
		return;
	}
	WarpOp *ops[SIM_WARP] = {0};
	gather(op, base, ops);
	complete(ops, base);
	w->waiting &= ~op->mask;
	for (int l = 0; l < SIM_WARP; l++)
		if (ops[l]) {
			x->threads[base + l].state = TH_READY;
			x->threads[base + l].file = NULL;
		}
}

void dl_sim_syncwarp(unsigned mask, int line, const char *file)
{
	WarpOp op = {.kind = WK_SYNC, .mask = mask};
	block_warp(&op, line, file);
}

uint64_t dl_sim_shfl(int how, unsigned mask, uint64_t v, int source, int width, int line, const char *file)
{
	if (width < 1 || width > SIM_WARP || (width & (width - 1)) != 0) {
		waits(TH_READY, line, file);
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "shuffle of width %d", width);
	}
	WarpOp op = {.kind = WK_SHFL, .mask = mask, .how = how, .source = source, .width = width, .in = v};
	block_warp(&op, line, file);
	return op.out;
}

unsigned dl_sim_vote(int how, unsigned mask, int pred, int line, const char *file)
{
	WarpOp op = {.kind = (WarpKind)(WK_BALLOT + how), .mask = mask, .in = pred != 0};
	block_warp(&op, line, file);
	return (unsigned)op.out;
}

int dl_sim_reduce(int how, unsigned mask, int v, int line, const char *file)
{
	WarpOp op = {.kind = WK_REDUCE, .mask = mask, .how = how, .in = (uint32_t)v};
	block_warp(&op, line, file);
	return (int)op.out;
}

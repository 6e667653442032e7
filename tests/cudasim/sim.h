/* What the parts of the simulated driver (libcuda.so.1) share.
 *
 *   driver.c   the entry points          stream.c   queues, events, capture, graphs: what runs when
 *   module.c   loading, symbols          launch.c   one launch: its checks, its blocks in some order
 *   memory.c   regions, host memory      shadow.c   the checks of each access
 *   block.c    threads, barriers, warps  mma.c      tensor cores, ldmatrix, cp.async
 *   report.c   violations, counters      fiber.c    switching between threads' stacks
 *   plan.c     what a launch may touch, where the program is a trainer
 *
 * One lock (driver.c) covers everything; kernels run on the thread that waits for them, while it holds the lock. */
#ifndef CUDASIM_SIM_H
#define CUDASIM_SIM_H

#include <stdbool.h>

#include "api.h"

/* ---- what a module (a compiled shared object) and the simulator agree on: device.h has the same in C++ ---- */

enum { SIM_ABI = 1, SIM_DYNAMIC_MAX = 227 * 1024, SIM_WARP = 32, SIM_MAX_THREADS = 1024, SIM_MAX_PARAMS = 4096 };

typedef struct SimDim {
	uint32_t x, y, z;
} SimDim;

/* Where the running thread finds out who it is. */
typedef struct SimNow {
	SimDim thread, block, block_dim, grid_dim;
} SimNow;

typedef struct SimKernel {
	void (*call)(void *const *args);
	const uint32_t *sizes; /* of the parameters */
	uint32_t nparams, max_threads; /* __launch_bounds__; 0: none */
} SimKernel;

typedef struct SimModuleInfo {
	uint32_t abi, arch; /* 90 */
	SimNow *now;
	unsigned char *dynamic; /* SIM_DYNAMIC_MAX bytes of dynamic shared memory */
} SimModuleInfo;

/* ---- memory ---- */

typedef enum RegionKind { RG_DEVICE, RG_VARIABLE, RG_SHARED, RG_DYNAMIC } RegionKind;

/* Bytes that kernels may reach. `written` has a byte for each (not of shared memory: there the record of the last write says
 * it); `w` and `r` are the records of the last write and of reads, one for each byte (shadow.c), and may be dropped between launches. */
typedef struct Region {
	uintptr_t base;
	size_t bytes;
	RegionKind kind;
	const char *name; /* of a variable */
	bool freed, used; /* used: touched by the launch that runs (static shared memory) */
	uint8_t *written;
	uint64_t *w, *r;
	int serial; /* "allocation 1" */
} Region;

bool region_add(uintptr_t base, size_t bytes, RegionKind kind, const char *name, Region **out);
void region_remove(uintptr_t base);
/* The region of an address, or NULL; `near` (may be NULL) gets the one below it, for messages. */
Region *region_find(uintptr_t a, const Region **near);
Region *region_at(int i); /* all of them, by address; NULL behind the last */
CUresult memory_alloc(CUdeviceptr *p, size_t bytes);
CUresult memory_free(CUdeviceptr p);
void memory_info(size_t *free_bytes, size_t *total);
/* Device memory is out of the host's reach but while the device works: an access by the host ends the process, as on a machine with a GPU. */
void memory_open(bool open);
/* The region that holds all of [p, p+bytes), or NULL. */
Region *memory_range(CUdeviceptr p, size_t bytes);
void memory_mark(Region *g, uintptr_t a, size_t bytes); /* written */
/* The first byte of a range that was never written; -1: there is none. */
int64_t memory_unwritten(const Region *g, uintptr_t a, size_t bytes);
void memory_drop_shadow(void); /* the records of races, not of what was written */
CUresult pinned_add(void *p, size_t bytes, bool ours);
CUresult pinned_remove(void *p, bool ours);
bool pinned_has(const void *p, size_t bytes);

/* ---- modules ---- */

typedef struct SimFunction {
	struct SimModule *module;
	const char *name;
	const SimKernel *kernel;
	int max_dynamic;   /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
	int static_shared; /* of the variables that are its own */
} SimFunction;

typedef struct SimModule {
	void *handle;
	unsigned char *image; /* kept for addr2line */
	size_t image_bytes;
	const SimModuleInfo *info;
	uintptr_t lo, hi, bias; /* its image in memory */
	SimFunction **functions;
	int nfunctions;
	char **names; /* of regions */
	uintptr_t *regions;
	int nregions;
} SimModule;

CUresult module_load(SimModule **out, const void *image);
void module_unload(SimModule *m);
CUresult module_function(SimModule *m, const char *name, SimFunction **out);
CUresult module_global(SimModule *m, const char *name, CUdeviceptr *p, size_t *bytes);
int sim_arch(void); /* of the simulated device: 90 (DL_SIM_ARCH) */
int sim_shared_optin(void);

/* ---- launches ---- */

typedef enum ExtentKind { EXTENT_OPERAND, EXTENT_RESULT, EXTENT_WORK, EXTENT_ENV } ExtentKind;

/* Bytes [lo, hi) of the arena that a launch may touch (plan.c). */
typedef struct Extent {
	int64_t lo, hi;
	bool written; /* may be */
	bool fresh;   /* undefined until the step writes it */
	ExtentKind kind;
	int index;
} Extent;

typedef struct Launch {
	SimFunction *f;
	SimDim grid, block;
	uint32_t shared;
	unsigned char *args; /* copies of the parameters, one behind the other at multiples of 16 */
	uint32_t *arg_at;
	uintptr_t arena; /* its first parameter, where that may be a pointer */
	Extent *extents; /* NULL: not a launch of a known step */
	int nextents;
} Launch;

void plan_extents(Launch *l);
void plan_forget(const Launch *l); /* what the step has still to write is unwritten */
const Extent *extent_of(const Launch *l, int64_t at, size_t n, bool write);
const Extent *extent_near(const Launch *l, int64_t at);

CUresult launch_make(Launch *l, SimFunction *f, SimDim grid, SimDim block, uint32_t shared, void *const *params);
void launch_free(Launch *l);
CUresult launch_run(const Launch *l);

/* ---- the block that runs (block.c), and what an access is checked against (shadow.c) ---- */

typedef enum ThreadState { TH_NEW, TH_READY, TH_BARRIER, TH_WARP, TH_DONE } ThreadState;
typedef enum WarpKind { WK_SYNC, WK_SHFL, WK_BALLOT, WK_ANY, WK_ALL, WK_MMA, WK_LDMATRIX, WK_REDUCE } WarpKind;

/* A lane's part of a warp operation; lives on the stack of its thread. */
typedef struct WarpOp {
	WarpKind kind;
	uint32_t mask;
	int how; /* of a kind: which shuffle, which product */
	int source, width; /* shuffles */
	uint64_t in, out;
	void *data; /* mma, ldmatrix: operands */
} WarpOp;

typedef struct AsyncCopy AsyncCopy;

typedef struct Thread {
	void *sp;
	int stack;
	ThreadState state;
	WarpOp *op;
	const char *file;
	int line, pred, barrier;
	AsyncCopy *pending;
	int ngroups;
} Thread;

typedef struct Warp {
	uint32_t waiting, ended; /* lanes in a warp operation; that have ended, or do not exist */
	uint32_t count, full; /* of __syncwarp in this epoch: events; the last one of all lanes */
	bool partial;
	uint32_t known[SIM_WARP][SIM_WARP]; /* [i][j]: what lane j did before this event is known to lane i */
} Warp;

typedef struct Exec {
	const Launch *launch; /* NULL: nothing runs */
	uint32_t stamp, block_first, launch_first; /* the epoch; the first of the block; of the launch */
	int current, nthreads;
	SimDim block;
	Thread threads[SIM_MAX_THREADS];
	Warp warps[SIM_MAX_THREADS / SIM_WARP];
	uint8_t *stacks;
	uintptr_t stack_lo, stack_hi; /* of the running thread */
	void *scheduler;
	CUresult failed;
	uint64_t touched; /* bytes, since the records were dropped */
} Exec;

extern Exec sim_exec;

enum { SIM_STACK = 128 * 1024 };

/* Order in which things that have none are taken. */
typedef enum Order { ORDER_FORWARD, ORDER_REVERSE, ORDER_SHUFFLE } Order;
Order sim_order(uint64_t *seed);
void sim_permute(uint32_t *index, uint32_t n, uint64_t salt); /* 0..n-1 in that order */

CUresult block_run(SimDim block, void *const *args);
void block_shut(void);
/* Leaves the running thread for good: the launch has failed. */
_Noreturn void block_abandon(void);
/* Joins the other lanes of op->mask; back with op's results. */
void block_warp(WarpOp *op, int line, const char *file);
/* All lanes have come: results (mma.c for products and ldmatrix). */
void mma_complete(WarpOp *const *ops, int first);
void async_drop(Thread *t);

/* Access of the running thread; atomics do not race with one another. pc: for the line of source. */
enum { ACCESS_READ = 0, ACCESS_WRITE = 1, ACCESS_ATOMIC = 2, ACCESS_LOOSE = 4 }; /* LOOSE, added: aligned to less than its size */
void dl_sim_access(uintptr_t a, size_t n, int how, const void *pc);
/* What blocks of a launch know of one another (fence.c): forgotten at its start, and at that of a block; a barrier of the block; an atomic operation of
 * the running thread; whether what another block did in an epoch is known to the running one. */
void fence_launch(void);
void fence_block(void);
void fence_barrier(void);
void fence_atomic(uintptr_t a);
bool fence_orders(uint32_t epoch);
void dl_sim_fence(void);
void shadow_async(uintptr_t a, size_t n, bool pending); /* the bytes of a cp.async: on their way; arrived */

/* ---- fibers ---- */

void fiber_make(void **sp, void *stack, size_t bytes, void (*entry)(void));
void fiber_switch(void **save, void *to);

/* ---- violations and counters ---- */

/* A file of its own below $TMPDIR (else /tmp), open: its descriptor, and its name in `path`; -1: none could be made. */
enum { SIM_PATH = 512 };
int sim_temporary(char path[SIM_PATH]);

/* Says what the running thread did wrong, where (pc, or file and line), and ends the launch with `code`. */
_Noreturn void violation(CUresult code, const void *pc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same outside of kernels; returns code. */
CUresult violation_host(CUresult code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "arena + 0x40 (off[2] + 16)", "shared 'tile' + 64" */
void describe_address(char *to, size_t size, uintptr_t a);
void report_count(const char *what, uint64_t n);
bool sim_checks_all(void); /* DL_SIM_CHECKS=bounds leaves out races and unwritten bytes */

/* ---- queues (stream.c) ---- */

typedef CUresult (*SimWork)(const void *ctx);
/* For the library of products: runs `work` on a copy of ctx when the stream gets there; may be captured. */
CUresult dl_sim_enqueue(CUstream s, SimWork work, const void *ctx, size_t bytes);
CUresult dl_sim_check_range(CUdeviceptr p, size_t bytes, int how, const char *what);
CUresult dl_sim_violation(CUresult code, const char *text);

#endif

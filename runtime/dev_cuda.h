/* An NVIDIA card as a device: what dev_cuda.c (opening, the arena) and dev_cuda_run.c (functions, their
 * graphs, calls) share. */
#ifndef DLC_RUNTIME_DEV_CUDA_H
#define DLC_RUNTIME_DEV_CUDA_H

#include "cuda_api.h"
#include "prim_cublas.h"
#include "run.h"

/* What a run of a segment takes along and brings back, in pinned host memory: the env, its inputs, its
 * scalar outputs. There are two, so that one can be filled while the other is on its way. */
typedef struct CudaSlot {
	unsigned char *host;
	CuGraphExec graph;
	CuEvent done; /* after the last run with this slot */
	bool used;
} CudaSlot;

/* Steps that run one after another, without a loop's end between: one graph. */
typedef struct CudaSegment {
	int first, count;
	bool in_loop;
	int64_t runs; /* of a segment in a loop: its slots take turns */
	CudaSlot slot[DEVICE_CALLS];
} CudaSegment;

typedef struct CudaFunc {
	CudaSegment *segment; /* NULL: not prepared */
	int nsegments;
	CuFunction *kernel; /* of every launch, step after step */
	int *first_kernel;  /* of each step, in `kernel` */
	CublasCall **product; /* of each step; NULL where it is no product */
	int64_t *place;     /* of each input and output in its slot; -1: in none */
	unsigned char *host; /* all slots */
	CuEvent ended[DEVICE_CALLS];
	int64_t calls;
	CuEvent *copied; /* at the end of each copy to host memory or back */
	int ncopies;
	CuEvent *mark; /* before each step and after the last, for times; NULL */
	int nmarks;
} CudaFunc;

struct Device {
	DeviceInfo info;
	CudaApi api;
	bool times; /* calls may ask for the time of each step */
	CuDevice card;
	CuContext context;
	CuStream stream;
	CuStream link[2]; /* copies to host memory, and back; NULL where the plan has none */
	CuEvent reached;  /* how far the steps are when a copy begins */
	unsigned char *host; /* pinned, plan->host_bytes */
	CuModule *module; /* one for each of the plan's */
	CuPtr arena, env; /* the env lies behind the arena */
	unsigned char *piece; /* pinned, DEVICE_CHUNK bytes: what device_view gives */
	CublasLib *cublas;    /* NULL where nothing was prepared that needs it */
	CudaFunc *func;       /* one for each plan function */
};

enum { CUDA_ENV_BYTES = PLAN_ALIGN };

/* The same names as the library's calls, for messages: CUDA(d, f, "what for", MemAlloc, &p, n). */
#define CUDA(D, F, WHAT, NAME, ...) cuda_ok(&(D)->api, (D)->api.NAME(__VA_ARGS__), "cu" #NAME, WHAT, F)

void cuda_func_free(Device *d, CudaFunc *p);
/* Updates info.context_bytes. */
bool cuda_measure(Device *d, Fail *f);

#endif

/* What waits to be done: the operations of streams and the nodes of graphs (queue.c), and who orders them (stream.c, graph.c). */
#ifndef CUDASIM_QUEUE_H
#define CUDASIM_QUEUE_H

#include "sim.h"

typedef enum OpKind { OP_LAUNCH, OP_COPY, OP_FILL, OP_WORK, OP_HOST, OP_RECORD, OP_WAIT, OP_GRAPH } OpKind;
typedef enum CopyKind { COPY_IN, COPY_OUT, COPY_WITHIN } CopyKind; /* to the device; to the host; on the device */

typedef struct Op {
	struct Op *next;
	OpKind kind;
	Launch launch;
	CopyKind copy;
	uintptr_t to, from;
	size_t bytes;
	unsigned char *staged; /* of a copy from pageable memory: what it held at the call */
	uint64_t early; /* of a copy to the host in a graph: the hash of its source when it might first have run */
	uint64_t hash, writes; /* of a copy's source at the call; host writes by the device up to then */
	bool hashed;
	uint32_t value;
	int width; /* of a fill: 1, 2, 4 bytes each */
	SimWork work;
	void *ctx;
	CUhostFn fn;
	struct SimEvent *event;
	struct SimStream *stream; /* to wait for, up to `seq` */
	uint64_t seq;
	struct SimGraphExec *exec;
	uint64_t *hashes; /* of a graph's copies to the device */
	int *deps, ndeps; /* of a node */
} Op;

typedef struct SimStream {
	struct SimStream *next;
	Op *head, *tail;
	uint64_t last, done; /* number of the last operation queued; of the last one done */
	bool blocking;       /* ordered with the default stream */
	struct Capture *capture;
	int *ends, nends;    /* capturing: the nodes that the next one depends on */
} SimStream;

typedef struct SimEvent {
	SimStream *stream;
	uint64_t seq; /* 0: never recorded */
	double time;
	bool timed;
	struct Capture *capture;
	int *ends, nends;
} SimEvent;

typedef struct SimGraph {
	Op **nodes;
	int n;
	int refs; /* the handle, and each executable */
} SimGraph;

typedef struct SimGraphExec {
	SimGraph *graph;
	int refs; /* the handle, and each launch that waits */
} SimGraphExec;

typedef struct Capture {
	SimGraph *graph;
	SimStream *origin;
	bool invalid;
} Capture;

typedef struct SimContext {
	int refs;
} SimContext;

/* The device: all streams, and whether it is lost. */
typedef struct Device {
	SimStream null_stream; /* the default stream */
	SimStream *streams;
	CUresult dead; /* the error of the launch that failed: every call returns it from then on */
	uint64_t host_writes; /* copies to the host and host functions done */
	double clock; /* seconds, where DL_SIM_LINK makes times up */
	Capture *captures[8];
	int ncaptures;
	SimContext context;
	bool initialised;
} Device;

extern Device sim_device;

/* Every entry point: CALL(name) ... return driver_leave(e). */
CUresult driver_enter(const char *name);
CUresult driver_leave(CUresult e);
#define CALL(name) \
	do { \
		CUresult entered = driver_enter(name); \
		if (entered != CUDA_SUCCESS) \
			return driver_leave(entered); \
	} while (0)

Op *op_new(OpKind kind);
void op_free(Op *op);
CUresult op_run(Op *op);
uint64_t hash_of(uintptr_t p, size_t n);
/* The call's moment: sources are hashed, pinned results made unreadable. */
void op_announce(Op *op);

SimStream *stream_of(CUstream s);
/* Takes the operation over: into the stream's queue, or its capture. */
CUresult stream_add(SimStream *s, Op *op);
/* Works the queue off up to an operation, with the device's memory open. */
CUresult stream_run(SimStream *s, uint64_t seq);
CUresult stream_run_all(void);
CUresult stream_step(SimStream *s, uint64_t seq); /* one operation; CUDA_ERROR_NOT_READY while that one is not done */

CUresult capture_add(SimStream *s, Op *op);
CUresult capture_forbids(void); /* a call that waits or allocates, while something captures: invalidates it */
CUresult capture_record(SimEvent *e, SimStream *s);
CUresult capture_wait(SimStream *s, const SimEvent *e);
CUresult graph_run(const Op *op);
void graph_announce(Op *op);
void graph_exec_release(SimGraphExec *x);

#endif

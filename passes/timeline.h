/* The planner's view of a function: operations in order, and the buffers that they read and write.
 *
 * Views and variables have no buffers. A loop's carried values (start, parameter, yield, result) share one buffer. A plan is
 * a sequence of steps, each an operation or a replay of one; which bytes live when follows from the sequence alone. */
#ifndef DLC_PASSES_TIMELINE_H
#define DLC_PASSES_TIMELINE_H

#include "pass.h"
#include "pack.h"

typedef enum BufKind { BUF_ACTIVATION, BUF_GRADIENT, BUF_IO, BUF_WORKSPACE, BUF_KINDS } BufKind;

/* A copy of a buffer to host memory or back, in four steps (ir_in_host): both ways it has a begin and an end. */
typedef enum TMove { MOVE_NONE, MOVE_SEND, MOVE_SENT, MOVE_FETCH, MOVE_FETCHED } TMove;

typedef struct TBuf {
	int64_t bytes;     /* rounded up to the arena's alignment */
	Value *root;       /* the storage root (of a carried buffer: its loop parameter) */
	int32_t op;        /* defines it first */
	int32_t loop;      /* the loop whose body it lives in; -1 outside */
	BufKind kind;
	bool carried;      /* written again by each trip: never replayed */
} TBuf;

typedef struct TPair {
	int32_t use, def;  /* buffers: `def` may take over `use` when that dies here */
} TPair;

typedef struct TOp {
	Node *node;        /* NULL for the end of a loop */
	double seconds;    /* of all its trips, ... */
	double trips;      /* ... of which there are so many */
	TMove move;
	int64_t work_bytes;
	int32_t *use, *def; /* buffers */
	int32_t nuse, ndef;
	TPair *pair;
	int32_t npair;
	int32_t *var;      /* variables read (Value.id of their `var` nodes) */
	int32_t nvar;
	int32_t loop;
	bool replayable;
	bool backward;
	bool closed;       /* nothing may be replayed just before it: the end of a loop; an output behind another, which must stay */
} TOp;

typedef struct Timeline {
	Arena *arena;
	Func *func;
	const Machine *machine;
	TOp *op;
	int32_t nops;
	TBuf *buf;
	int32_t nbufs;
	int32_t *buf_of;   /* by Value.id: buffer of the value's root; -1 for variables */
	int32_t nvalues;
	int32_t *assigned; /* by Value.id of a `var` value: the first op that overwrites it, or -1 */
	int64_t var_bytes; /* of all variables, placed from offset 0 */
} Timeline;

/* One step of a plan: op, and for a replay which of its results are wanted (bit i: def[i]). A copy moves a buffer, whose maker is `op`
 * where the plan is yet to become a function. */
typedef struct TStep {
	int32_t op;
	uint32_t wanted;
	bool replay;
	TMove move;
	int32_t buf; /* of a copy */
} TStep;

/* A stretch of a buffer's life: from the step that makes it to its last use, both inclusive. */
typedef struct TLife {
	int32_t buf;       /* -1: workspace of the step `from` */
	int32_t from, to;
	int32_t over;      /* the life (index) whose bytes it takes over in place, -1 none */
	int64_t bytes;
	bool unread;       /* a result that a replay writes although nobody wants it */
} TLife;

typedef struct TPlan {
	TStep *step;
	int32_t nsteps;
	double seconds;      /* with the time for which copies are waited for (links.h) */
	int64_t live_bytes;  /* largest sum of live bytes, without variables */
	int32_t peak;        /* the step where */
} TPlan;

/* False after a diagnostic where a loop's carried values cannot share one buffer each (accumulate makes none such). */
bool timeline_plannable(const Func *f);

/* Builds the timeline of a scheduled, plannable function (ir_number is called). */
Timeline *timeline_build(Arena *a, Func *f, const PassCtx *cx);

/* The plan without replays. */
TPlan timeline_plain(const Timeline *t, Arena *a);

/* The lives of a plan, in order of `from`; sets live_bytes, peak and seconds of the plan. *live (nsteps entries) may be
 * NULL. Workspaces are lives of one step. */
typedef struct TLives {
	TLife *at;
	int32_t n;
} TLives;
TLives timeline_lives(const Timeline *t, Arena *a, TPlan *p, int64_t *live);

/* The seconds of a plan, as timeline_lives finds them; of which so many are waited for copies, by step into *stall (may be NULL). */
double timeline_seconds(const Timeline *t, const TPlan *p, double *stall);

/* Places the lives: offset of each (by index) above the variables; returns the end of the arena (variables included).
 * Stops searching at `target` bytes. */
int64_t timeline_place(const Timeline *t, Arena *a, const TLives *l, int64_t target, int rounds, int64_t *offset);

int64_t timeline_align(int64_t bytes);

#endif

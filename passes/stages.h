/* A plan under search: what is held where, and what is replayed where, with its peak and its seconds kept up to date.
 *
 * A stage is an operation of the function, with the replays just before it (its bundle). A buffer has a mark at each stage
 * that touches it; between two marks lies a gap, over which its bytes are held or not. The bundles follow from what is
 * held: what a stage reads and nobody holds is replayed there, and so are the operands of replays, back to what is held, and what is held
 * on from there. */
#ifndef DLC_PASSES_STAGES_H
#define DLC_PASSES_STAGES_H

#include "../ir/base/vec.h"
#include "peaks.h"
#include "timeline.h"

typedef struct Mark {
	int32_t stage;
	bool original;  /* the operation itself touches the buffer: the mark stays */
	bool replay;    /* a replay of the bundle reads it or makes it */
	bool held;      /* over the gap to the next mark; false for the last one */
} Mark;

/* What the search has found out about dropping the gap after a mark: when, and of what bundle at the gap's end. */
typedef struct Found {
	int32_t round, version;
	double cost;    /* in seconds; INFINITY: it cannot be dropped */
	int64_t rise;   /* by so many bytes its end then is higher */
} Found;

/* A buffer's marks. What a bundle asks of it, again and again, lies beside them. */
typedef struct Marks {
	Mark *at;       /* ascending stages */
	Found *found;   /* of each */
	int32_t n, cap;
	int64_t bytes;
	int32_t op;     /* the operation that makes it */
	int32_t made, looked, slotted, slot; /* of the bundle at work: epochs; its slot */
	uint8_t state;
} Marks;

typedef struct Stage {
	TStep *step;    /* the bundle; never written once it is there */
	int32_t n, room; /* `room`: size class of the array */
	int32_t version; /* another for each bundle that there has been */
	bool starts;    /* it may make buffers that nobody here reads, to be held on */
	double seconds;
	int64_t inner;  /* most bytes at one of its steps, of what the stage touches */
} Stage;

typedef struct Change Change;
typedef struct Slot Slot;

typedef struct Stages {
	const Timeline *t;
	Arena *arena;
	Marks *buf;
	Stage *stage;
	Peaks peaks;    /* by stage: what is held across it and its `inner` */
	double seconds; /* of all replays */
	int64_t work;   /* done so far, in units of one operand looked at */
	int32_t *last_replay; /* by op: the last stage where it may run again (before its variables are overwritten); -1: none */
	VEC(Change) log;
	/* Of the bundle at work. */
	TStep *step;
	int32_t n;
	double step_seconds;
	bool started;   /* it makes something to be held on */
	int32_t versions; /* the last one given */
	int32_t starting; /* the buffer that stages_start is at, -1 none */
	int32_t epoch;
	int32_t *step_of, *step_epoch; /* by op */
	Slot *slot;
	int64_t *delta;
	int32_t *touched;
	VEC(int32_t) dirty;
	void *spare[32]; /* free bundles by size class: chains */
} Stages;

/* The number of a buffer's marks before stage t. */
int32_t marks_before(const Marks *m, int32_t t);

/* The plan that holds everything. */
Stages *stages_new(const Timeline *t, Arena *a);

/* A plan in which every operation runs where it stands, and what another state had replayed in its bundles. */
Stages *stages_of(const Timeline *t, Arena *a, const TPlan *p);

/* What flipping a gap would do. */
typedef struct Effect {
	double seconds;        /* more (or, below zero, less) of them */
	double shared;         /* of those, what is saved where replays that become double are held from one to the other */
	int64_t left, right;   /* the peaks of the stages at both ends of the gap, or (of `left`, where it is not the highest) more */
} Effect;

/* Looks at flipping the gap after mark i of a buffer, which is held or not. False where that cannot be done: what is needed at its
 * end cannot be replayed there. What is held to share replays must fit below `fit` bytes. Changes nothing. */
bool stages_try(Stages *s, int32_t buf, int32_t i, int64_t fit, Effect *e);

/* Flips it. Where a held gap ends at a stage that touches the buffer no more it is dropped. False, with nothing changed, where a
 * stage beyond both ends, which stages_try does not look at, would then need what cannot be replayed there. */
bool stages_flip(Stages *s, int32_t buf, int32_t i);

/* Replays the buffer at stage t, which need not touch it, to be held from there to its next mark: t lies within a gap that is not held.
 * Worth while where operands are about to die. False, with nothing changed, where that cannot be done. */
bool stages_start(Stages *s, int32_t buf, int32_t t);

/* The number of changes so far; back to it; forgetting the way back. */
size_t stages_now(const Stages *s);
void stages_undo(Stages *s, size_t to);
void stages_keep(Stages *s);

/* The largest sum of live bytes, without variables. */
int64_t stages_peak(const Stages *s);

#endif

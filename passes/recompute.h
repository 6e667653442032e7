/* Rematerialization: trajectories of plans from no replay at all to the smallest that can be reached (see recompute.c). */
#ifndef DLC_PASSES_RECOMPUTE_H
#define DLC_PASSES_RECOMPUTE_H

#include "timeline.h"

/* A plan as what it adds to the operations: replays, each before an operation. */
typedef struct Replay {
	int32_t before;
	TStep step;
} Replay;

/* A buffer waits in host memory: each of the four steps of its copies comes before an operation and its replays. */
typedef struct Move {
	int32_t buf;
	int32_t send, sent, fetch, fetched; /* ascending, all of one run of operations without a loop's start or end between */
} Move;

typedef struct Sketch {
	Replay *replay;     /* in order of execution */
	int32_t n;
	Move *move;
	int32_t nmoves;
	double seconds;     /* of the whole step */
	int64_t live_bytes; /* largest sum of live bytes, without variables */
	int64_t host_bytes; /* of host memory, where moved buffers wait */
} Sketch;

typedef struct Trajectory {
	const Timeline *t;
	Sketch *plan; /* ascending seconds, descending live_bytes (of those without moves); plan[0] has no replays */
	int32_t n;
	int64_t looks, spared; /* of the search, at what dropping a value would do: made; not made, because the value of an equal layer was looked at */
} Trajectory;

/* Units of work that are well spent on one function of a thousand operations; about 70 million make a second. */
enum { RECOMPUTE_WORK = 5000000 };

/* The trajectory up to max_seconds of predicted time. It does not depend on any budget. One descent is always made; more as long as
 * they stay within `work`. */
Trajectory recompute_trajectory(const Timeline *t, Arena *a, double max_seconds, int64_t work);

/* The trajectory of the plan without replays alone. */
Trajectory recompute_nothing(const Timeline *t, Arena *a);

/* A plan as a sequence of steps; plan k of a trajectory. An operation that is replayed before each of its uses runs first before the first of them: it has moved. */
TPlan recompute_steps(const Timeline *t, const Sketch *p, Arena *a);
TPlan recompute_plan(const Trajectory *tr, int32_t k, Arena *a);
bool recompute_moves(const Trajectory *tr, int32_t k);

/* Writes a plan into the function: replays become cloned nodes just before their uses, the order follows the plan. */
void recompute_apply(const Timeline *t, Arena *scratch, const TPlan *p);

#endif

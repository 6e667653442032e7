/* What the planner is made of: candidates, each with its plans; the plans of all of them in order; answers for budgets; the neighbourhood of an
 * answer. Each part reads those before it. */
#ifndef DLC_PASSES_PLANNER_PARTS_H
#define DLC_PASSES_PLANNER_PARTS_H

#include "../ir/base/vec.h"
#include "chunk.h"
#include "planner.h"
#include "recompute.h"

typedef struct Candidate {
	int64_t micro_batch, chunks;
	ChunkHead head; /* rows 0: none */
	int64_t least;  /* bytes that no plan of it goes below, or that its smallest lives on */
	Func *func;
	Timeline *timeline;
	Trajectory trajectory;
	Arena *keep;    /* for what is found out later */
	int64_t *arena; /* by plan: placed bytes, 0 not yet known, and ... */
	int64_t **offset; /* ... its lives' offsets */
} Candidate;

typedef struct Choice {
	const Candidate *candidate;
	int32_t plan;
	double seconds;
	int64_t bound; /* variables and largest live sum: no placement is smaller */
} Choice;

typedef struct Planner {
	Module *m;
	PassCtx *cx;
	const PlannerOptions *o;
	Arena *arena;
	VEC(Candidate) candidates;
	Choice *choice; /* fastest first */
	size_t nchoices;
	int64_t floor;  /* what init and the one-sample functions need */
	const char *floor_func; /* the one of them that needs most; NULL: the variables alone */
	int64_t work;   /* for the search of each candidate */
} Planner;

/* ---- candidates.c ---- */

/* Makes the candidates, the largest micro-batch first. False after diagnostics. */
bool candidates_make(Planner *p);

/* Lowers a step as far as execution order, for so many samples a micro-batch and chunks of its head, which goes to *head. `show` is called
 * behind each pass. False after diagnostics. */
typedef void CandidateShow(const Planner *p, const char *pass, Func *f);
bool candidate_lower(const Planner *p, Func *f, int64_t micro_batch, int64_t chunks, ChunkHead *head, CandidateShow *show);

/* The end in bytes of a placed plan: placed once, remembered. */
int64_t candidate_bytes(const Candidate *c, int32_t plan);

/* ---- choices.c ---- */

/* Which choices a question is about: those of one micro-batch (0: any) that take at most so many seconds. */
typedef struct Among {
	int64_t micro_batch;
	double seconds;
} Among;

extern const Among choices_all;

/* Orders all plans that are fast enough. */
void choices_order(Planner *p);

/* The arena of a choice, which also has room for what p->floor stands for. */
int64_t choice_bytes(Planner *p, const Choice *c);

/* The fastest choice within a budget; the one of the smallest arena. NULL: none. */
const Choice *choices_first(Planner *p, int64_t budget, Among among);
const Choice *choices_smallest(Planner *p, Among among);

/* What a choice is, for people; `least` is the answer to the smallest budget. */
void choice_summary(Planner *p, const Choice *c, const Choice *least, int64_t budget, PlanSummary *out);

/* Adds what is known about all plans like the choice: how fast they are at best within the summary's budget (bound.h). Nothing where an
 * operation has moved, or values wait in host memory. */
void choice_bound(const Choice *c, PlanSummary *out);

/* ---- study.c ---- */

/* The trade-off (see planner_curve), in the module's arena, with bounds or without; how many points into *n. */
PlanSummary *study_curve(Planner *p, const Choice *least, bool bounds, int *n);

/* What is around the choice for the planner's budget: all of *s but the curve. */
void study_neighbours(Planner *p, const Choice *chosen, const Choice *least, PlanStudy *s);

#endif

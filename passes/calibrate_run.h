/* Running the trainers of --calibrate, and reading what they say. */
#ifndef DLC_PASSES_CALIBRATE_RUN_H
#define DLC_PASSES_CALIBRATE_RUN_H

#include <signal.h>

#include "machine_fit.h"

typedef struct TrainerRun {
	Arena *a;
	const char *output, *said; /* files for what a trainer prints */
	const sigset_t *signals;   /* that trainers run with */
	FILE *err;
} TrainerRun;

/* The times of the steps of a trainer's plan in the round in which all of them together took the least. */
typedef struct TrainerTimes {
	double *seconds, *runs;
	size_t n; /* 0: no round so far */
	double whole;
} TrainerTimes;

/* Copies that a trainer for a card has timed: over the link, within the card's memory; and next to nothing, for the cost of a launch. */
typedef struct TrainerLinks {
	VEC(LinkSample) link;
	VEC(LinkSample) within;
	double launch_seconds;
} TrainerLinks;

/* Runs `path profile ARGUMENT..` (NULL behind the last) and takes its times where they are the best so far. False after a message. */
bool trainer_times(const TrainerRun *r, const char *path, const char *const *arguments, TrainerTimes *t);
/* The same with --links among the arguments. */
bool trainer_links(const TrainerRun *r, const char *path, const char *const *arguments, TrainerLinks *l);

#endif

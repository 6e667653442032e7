/* Machine profiles: what the costs of machine.def are here. Built-in ones make plans reproducible; `dlc --calibrate`
 * (calibrate.h) measures this machine and stores one, which is then the default. */
#ifndef DLC_PASSES_MACHINE_H
#define DLC_PASSES_MACHINE_H

#include "pass.h"

typedef enum MachineCost {
#define COST(name, group, per, doc) COST_##name,
#include "machine.def"
#undef COST
	MACHINE_COSTS
} MachineCost;

typedef enum MachineGroup { COST_FIXED, COST_WORK, COST_BYTES } MachineGroup;

typedef struct MachineRow {
	const char *name, *per, *doc;
	MachineGroup group;
} MachineRow;

extern const MachineRow machine_rows[MACHINE_COSTS];

struct Machine {
	const char *name;
	const char *card;     /* "NVIDIA H200, sm_90": the card it was measured on; NULL: of a processor, or from a data sheet */
	const char *prior;    /* of one that is being written: the built-in profile that costs are from which no time told about; NULL: none are */
	bool kept[MACHINE_COSTS]; /* which these are */
	int threads;          /* that work at one time, where there is enough to do; a GPU is one */
	int measured_threads; /* that shared the memory when it was measured: more get no more of it */
	double own_cache;     /* bytes of a processor's own cache */
	double shared_cache;  /* bytes of the cache that all share; 0: none */
	double fork_work;     /* rough operations below which a kernel stays on one thread */
	double overlap;       /* 1: arithmetic and traffic hide each other (a roofline); 0: they add up */
	double link_out, link_in; /* bytes a second between the device's memory and pinned memory of the host, each way; 0: there is no such link */
	double link_delay;    /* nanoseconds until a copy over it begins, and until what waits for it goes on */
	double ns[MACHINE_COSTS];
	double touched;       /* bytes of all values of the function at hand: see machine_running */
};

/* A built-in profile; NULL when there is none of that name. */
const Machine *machine_builtin(Arena *a, const char *name);
/* All their names, "a, b, c"; in the arena. */
const char *machine_names(Arena *a);
/* Where a calibrated profile lies: $DLC_PROFILE, else dlc/machine.profile in $XDG_CONFIG_HOME or ~/.config; of a card
 * $DLC_CARD_PROFILE, else dlc/card.profile there, unless DLC_PROFILE is empty. NULL where the environment names no place. Whether there is
 * one is another question. */
const char *machine_path(Arena *a, bool card);
/* Whether it is of a card, which does not know threads. */
bool machine_is_card(const Machine *m);

/* The profile of a text; NULL after a diagnostic about `path` on `err` ("file.profile:7: ..."). */
const Machine *machine_parse(Arena *a, const char *path, const char *text, FILE *err);
/* Writes what machine_parse reads, with rates beside the numbers. */
void machine_print(FILE *out, const Machine *m);
/* The same machine, planned for this many threads (a GPU stays as it is). */
const Machine *machine_with_threads(Arena *a, const Machine *m, int threads);

#endif

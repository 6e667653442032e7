/* A back end: what it can do (for the passes), and how a planned module becomes a trainer.
 *
 * To add one: fill a Backend in a file of its own and add it to backend_find. */
#ifndef DLC_CODEGEN_BACKEND_H
#define DLC_CODEGEN_BACKEND_H

#include "../ir/ir.h"

typedef struct BuildOptions {
	const char *output;      /* path of the executable */
	const char *model_path;
	const char *json;        /* the plan object, embedded for `info --json` */
	const char *fingerprint;
	int64_t budget_bytes, micro_batch;
	int threads;
	uint64_t seed;
	const char *arch;        /* "sm_90"; NULL: the back end has none */
	const char *cc;          /* C compiler command; NULL: $CC or "cc" */
	const char *runtime_dir; /* where libdlrt.a and plan.h are */
	bool keep_sources;       /* leaves kernels.c and plan.c beside the executable */
	bool apart;              /* a launch for each node, so that times are those of nodes: none of several that are equal */
	bool debug;              /* -O1 -g and sanitizer-friendly kernels */
} BuildOptions;

/* The device of this machine. */
typedef struct BackendCard {
	char name[128], arch[16];    /* "NVIDIA H200", "sm_90" */
	int64_t free_bytes, total_bytes;
	int64_t arena_bytes;         /* of the free ones, what an arena may have */
	int64_t cache_bytes;         /* 0: not known */
} BackendCard;

typedef struct Backend {
	const char *name, *doc;
	/* Which nodes may join a fused kernel; workspace bytes of a node after fuse. */
	bool (*fusable)(const Node *n);
	int64_t (*workspace)(const Node *n, int threads);
	/* Products that can go on with a sum in place, and that can do more (pass.h). */
	bool (*accumulates)(const Node *n);
	bool (*epilogue)(const Node *n, OpCode op);
	/* Kernels of rows with sums over them (pass.h). */
	bool (*sums_beside_rows)(int64_t rows, int64_t length, int sums);
	bool strided_attention, tf32;
	bool offload; /* to host memory and back, beside kernels (pass.h) */
	/* Processors that it builds for, by commas, the default first, and the machine profile (passes/machines.txt) of each; NULL:
	 * it builds for the machine at hand. */
	const char *archs, *machines;
	/* Kernel source text of every function, for --emit=SOURCE. */
	const char *source;
	bool (*emit)(FILE *out, const Module *m, const BuildOptions *o);
	/* What a call of each function starts on the device, one after another, as a JSON object (docs/planning.md): kernels and library
	 * calls. NULL after diagnostics; the member itself is NULL where the back end starts nothing. */
	const char *(*launches)(Arena *a, const Module *m, const char *arch);
	/* The same as a table for people, a line for each step (--emit=launches). False after diagnostics; NULL as above. */
	bool (*print_launches)(FILE *out, const Module *m, const char *arch);
	/* Asks card number `number` of this machine; false after a diagnostic that begins with `what`. NULL: there is none to ask. */
	bool (*card)(BackendCard *card, int number, const char *what, Diag *diag);
	/* Writes the executable, under a temporary name first; false after diagnostics, nothing left behind. */
	bool (*build)(const Module *m, const BuildOptions *o);
} Backend;

const Backend *backend_find(const char *name); /* NULL when unknown */
const char *backend_names(void);               /* "cpu, cuda" */
/* The machine profile of one of its processors; NULL where it does not build for that one. */
const char *backend_machine(Arena *a, const Backend *b, const char *arch);
/* Which of its processors to build for where the card is of architecture `card` ("sm_103": "sm_100"); NULL where it builds for none as old. */
const char *backend_arch_for(Arena *a, const Backend *b, const char *card);

#endif

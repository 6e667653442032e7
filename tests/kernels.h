/* Kernels to test on every back end: each example of the op table, in f64, f32, bf16 and f16, and composites. Each is two
 * functions of one module: with one kernel an op, and fused by the pass. */
#ifndef DLC_TESTS_KERNELS_H
#define DLC_TESTS_KERNELS_H

#include "codegen/emit.h"
#include "interp.h"
#include "passes/pass.h"

enum { GUARD = 64, PATTERN = 0xa5, THREADS = 2, MAX_CASES = 1024 };

typedef struct Case {
	const char *name;
	Func *plain, *fused; /* the same graph; plain: one kernel an op */
	int64_t bytes;	     /* of an arena for it */
} Case;

typedef struct Test {
	Arena *a;
	Module *m;
	PassCtx cx;
	Capabilities caps;
	Case at[MAX_CASES];
	int ncases, passed, failed;
	bool planted; /* faults are wanted: counted, not said */
	Emit *e;
} Test;

extern const PlanEnv moment;

/* Builds a case's result, which is output r0 (or none, when it assigns). */
typedef Value *(*MakeWith)(Builder *b, DType d, const void *with);
void add_made(Test *t, const char *name, MakeWith make, const void *with, DType d);
/* Shapes with tails of every kind, and random bodies (kernel_shapes.c). */
void add_shapes(Test *t);
void add_random(Test *t, int count, uint64_t seed);

/* Fills everything but `e`. */
void make_cases(Test *t, const char *target);
void fault(Test *t, const char *name, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Places a function's values, with space around each; bytes of its arena. */
int64_t place_case(Test *t, Func *f);
/* Inputs and variables in, pattern everywhere else; afterwards, whether the space around values is untouched. */
void fill_arena(const Test *t, const Func *f, unsigned char *arena, int64_t bytes);
bool guards_hold(const Test *t, const Func *f, const unsigned char *arena);
const EmitFunc *find_func(const Test *t, const Func *f);

/* Runs the interpreter (magnitudes: InterpEnv's); false after a fault. */
bool reference(Test *t, const Case *c, InterpEnv *env, Func *f, bool magnitudes);
/* terms: NULL, or for each element the magnitudes of its terms, one factor of each of which may be rounded to d. */
void compare(Test *t, const Case *c, const char *what, DType d, const unsigned char *got, const double *want, const double *terms,
	     int64_t n);
void same_bytes(Test *t, const Case *c, const char *what, const unsigned char *a, const unsigned char *b, int64_t bytes);
/* What a function leaves: outputs in order, then variables; malloc'd. */
unsigned char *results(Test *t, const Func *f, const unsigned char *arena, int64_t *bytes);

#endif

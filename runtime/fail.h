/* How the runtime reports what went wrong: a text and the exit code it deserves, handed upwards.
 * Nothing in the runtime but main.c prints errors or ends the process, so that a host program can
 * embed a trainer (dl.h). */
#ifndef DLC_RUNTIME_FAIL_H
#define DLC_RUNTIME_FAIL_H

#include <stdbool.h>
#include <stddef.h>

enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_FILES = 2, EXIT_BUG = 3, EXIT_INTERRUPTED = 130 };

typedef struct Fail {
	int code;        /* EXIT_*; 0: nothing failed */
	char text[4096]; /* lower case, no full stop; further lines are notes */
} Fail;

/* Sets code and text; always false, so that a caller can `return fail(...)`. */
bool fail(Fail *f, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Appends to the text (a note on a line of its own begins with "\n"); what does not fit is cut. */
void fail_add(Fail *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif

/* What tests of small models share: a module that passes ran on, the interpreter that runs it, and the count of cases. A case fails with its
 * first failed check, of which it prints the name and why. */
#ifndef DLC_TESTS_MODEL_TEST_H
#define DLC_TESTS_MODEL_TEST_H

#include "interp.h"

#include <stdarg.h>

typedef struct Test {
	Arena *arena;
	Diag *diag;
	FILE *quiet; /* where diagnostics go that are not to be seen */
	Module *m;
	InterpEnv env;
	const char *name;
	bool good;
	int passed, failed;
} Test;

__attribute__((format(printf, 3, 4))) static inline void check(Test *t, bool good, const char *fmt, ...)
{
	va_list ap;

	if (good || !t->good)
		return;
	t->good = false;
	printf("FAIL %s: ", t->name);
	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

static inline void begin(Test *t, const char *name)
{
	t->name = name;
	t->good = true;
	t->env = (InterpEnv){ .arena = t->arena, .seed = 5 };
}

static inline void end(Test *t)
{
	t->passed += t->good;
	t->failed += !t->good;
}

#endif

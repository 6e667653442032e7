/* How the simulator's tests count: check(), and finish() with the line that tests/all reads. */
#ifndef CUDASIM_CHECK_H
#define CUDASIM_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int check_passed, check_failed;

static void check(bool right, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void check(bool right, const char *what, const char *fmt, ...)
{
	if (right) {
		check_passed++;
		return;
	}
	check_failed++;
	va_list ap;
	va_start(ap, fmt);
	printf("FAIL %s: ", what);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
}

static int finish(void)
{
	printf("%d passed, %d failed\n", check_passed, check_failed);
	return check_failed != 0;
}

#endif

/* How the simulator's tests count: check(), apart() and finish() with the line that tests/all reads; and what all of them start with. */
#ifndef CUDASIM_CHECK_H
#define CUDASIM_CHECK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"
#include "nvrtc.h"

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

/* Runs `body` in a process of its own, since a fault ends the context: it must return 0 (or be ended by the signal ends_by) and say `says` on
 * stderr; nothing where that is "". */
static __attribute__((unused)) void apart(const char *name, int (*body)(const void *), const void *ctx, int ends_by, const char *says)
{
	char said[4096];
	int in[2];
	if (pipe(in))
		exit(2);
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in[1], 2);
		close(in[0]);
		exit(body(ctx));
	}
	close(in[1]);
	size_t at = 0;
	ssize_t got;
	while (at + 1 < sizeof said && (got = read(in[0], said + at, sizeof said - 1 - at)) > 0)
		at += (size_t)got;
	said[at] = 0;
	close(in[0]);
	int status = -1;
	waitpid(pid, &status, 0);
	bool ended = ends_by ? WIFSIGNALED(status) && WTERMSIG(status) == ends_by : status == 0;
	bool right = ended && (*says ? strstr(said, says) != NULL : said[0] == 0);
	check(right, name, "status %d, said: %s\n      expected: %s", status, said, says);
}

static int finish(void)
{
	printf("%d passed, %d failed\n", check_passed, check_failed);
	return check_failed != 0;
}

/* A cubin (malloc'd), or the end of the test. */
static __attribute__((unused)) char *must_compile(const char *src, const char *const *options, int n)
{
	nvrtcProgram p;
	size_t bytes = 0;
	char *log = NULL;
	nvrtcCreateProgram(&p, src, "kernels.cu", 0, NULL, NULL);
	nvrtcResult r = nvrtcCompileProgram(p, n, options);
	nvrtcGetProgramLogSize(p, &bytes);
	log = malloc(bytes);
	nvrtcGetProgramLog(p, log);
	nvrtcGetCUBINSize(p, &bytes);
	char *cubin = malloc(bytes + 1);
	if (r != NVRTC_SUCCESS || nvrtcGetCUBIN(p, cubin) != NVRTC_SUCCESS) {
		printf("FAIL kernels: %s\n0 passed, 1 failed\n", log);
		exit(1);
	}
	free(log);
	nvrtcDestroyProgram(&p);
	return cubin;
}

static __attribute__((unused)) void start(void)
{
	CUcontext c;
	CUdevice d;
	if (cuInit(0) || cuDeviceGet(&d, 0) || cuDevicePrimaryCtxRetain(&c, d) || cuCtxSetCurrent(c))
		exit(99);
}

#endif

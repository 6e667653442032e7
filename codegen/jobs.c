/* Runs commands side by side. Method: the signals of interest are blocked and taken one by one with
 * sigwaitinfo, so that nothing happens between two statements of ours and no handler is needed.
 * Each command is a process group of its own: a compiler's driver and what it has started are
 * killed at one time. What is orphaned by that becomes our child (PR_SET_CHILD_SUBREAPER) and is
 * waited for as well; then nothing is left that could still make a file. */
#include "jobs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void jobs_open(Jobs *j)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction now, dflt = { .sa_handler = SIG_DFL };
	*j = (Jobs){ 0 };
	sigemptyset(&j->ends);
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
		if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
			sigaddset(&j->ends, ends[i]);
	j->waited = j->ends;
	sigaddset(&j->waited, SIGCHLD);
	sigaction(SIGCHLD, &dflt, &j->child); /* where it is ignored, no status is kept */
	sigprocmask(SIG_BLOCK, &j->waited, &j->before);
}

static void redirect(const char *path, int flags, int to)
{
	int fd = open(path, flags, 0600);
	if (fd < 0)
		return;
	dup2(fd, to);
	close(fd);
}

/* A child's side of a start: out of the way of our signals, with its output in the log. */
static void begin_child(const Jobs *j, const char *log, const char *tmp)
{
	setpgid(0, 0);
	sigprocmask(SIG_SETMASK, &j->before, NULL);
	redirect("/dev/null", O_RDONLY, 0);
	redirect(log, O_WRONLY | O_CREAT | O_TRUNC, 1);
	dup2(1, 2);
	setenv("TMPDIR", tmp, 1);
}

static bool begin(Jobs *j, const char *log, const char *tmp, pid_t *pid)
{
	assert(j->n < MAX_JOBS);
	fflush(NULL);
	*pid = fork();
	if (*pid == 0)
		begin_child(j, log, tmp);
	if (*pid <= 0)
		return *pid == 0;
	setpgid(*pid, *pid); /* whoever comes first */
	j->at[j->n++] = (Job){ .pid = *pid, .log = log };
	return true;
}

bool jobs_start(Jobs *j, const char *command, const char *log, const char *tmp)
{
	pid_t pid;
	if (!begin(j, log, tmp, &pid))
		return false;
	if (pid == 0) {
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return true;
}

bool jobs_call(Jobs *j, int (*run)(void *ctx), void *ctx, const char *log, const char *tmp)
{
	pid_t pid;
	if (!begin(j, log, tmp, &pid))
		return false;
	if (pid == 0) {
		int code = run(ctx);
		fflush(NULL);
		_exit(code);
	}
	return true;
}

static void kill_all(Jobs *j)
{
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < j->n; i++)
		if (j->at[i].pid)
			kill(-j->at[i].pid, SIGKILL);
	for (int i = 0; i < j->n; i++) {
		while (j->at[i].pid &&
		       (waitpid(-j->at[i].pid, &j->at[i].status, 0) > 0 || errno == EINTR))
			;
		j->at[i].pid = 0;
	}
}

/* Notes which commands have ended; returns how many run. */
static int reap(Jobs *j)
{
	int running = 0;
	for (int i = 0; i < j->n; i++) {
		Job *x = &j->at[i];
		if (x->pid && waitpid(x->pid, &x->status, WNOHANG) != 0)
			x->pid = 0;
		running += x->pid != 0;
	}
	return running;
}

const Job *jobs_wait(Jobs *j)
{
	while (reap(j) > 0) {
		int got = sigwaitinfo(&j->waited, NULL);
		if (got > 0 && got != SIGCHLD) {
			j->signal = got;
			kill_all(j);
		}
	}
	const Job *bad = NULL;
	for (int i = j->n - 1; i >= 0; i--)
		if (j->at[i].status != 0)
			bad = &j->at[i];
	j->n = 0;
	return bad;
}

bool jobs_interrupted(Jobs *j)
{
	const struct timespec now = { 0 };
	if (!j->signal) {
		int got = sigtimedwait(&j->ends, NULL, &now);
		j->signal = got > 0 ? got : 0;
	}
	return j->signal != 0;
}

void jobs_close(Jobs *j)
{
	sigaction(SIGCHLD, &j->child, NULL);
	sigprocmask(SIG_SETMASK, &j->before, NULL);
	if (j->signal)
		raise(j->signal);
}

/* Commands that run side by side, and can be interrupted without leaving anything behind.
 *
 * Between jobs_open and jobs_close SIGINT, SIGTERM and SIGHUP (those that are not ignored) wait.
 * jobs_wait answers one by killing all that runs, and fails; the caller then cleans up as after any
 * failure, and jobs_close lets the signal do what it does: it ends the process. For processes of
 * one thread. */
#ifndef DLC_CODEGEN_JOBS_H
#define DLC_CODEGEN_JOBS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

enum { MAX_JOBS = 8 };

typedef struct Job {
	pid_t pid; /* also its process group; 0: has ended */
	int status;
	const char *log;
} Job;

typedef struct Jobs {
	Job at[MAX_JOBS];
	int n;
	int signal; /* that interrupted, or 0 */
	sigset_t ends, waited, before; /* interruptions; these and SIGCHLD; the mask outside */
	struct sigaction child;	       /* SIGCHLD's outside */
} Jobs;

void jobs_open(Jobs *j);
/* Starts a shell command with its output in the file `log` and its temporary files in the folder
 * `tmp`. False where there can be no process (errno). */
bool jobs_start(Jobs *j, const char *command, const char *log, const char *tmp);
/* The same for a function, in a process of its own; it ends with what the function returns. */
bool jobs_call(Jobs *j, int (*run)(void *ctx), void *ctx, const char *log, const char *tmp);
/* Waits for all commands; returns the first that did not end with 0 (valid until the next start),
 * or NULL. */
const Job *jobs_wait(Jobs *j);
/* Whether a signal asks to stop. */
bool jobs_interrupted(Jobs *j);
void jobs_close(Jobs *j);

#endif

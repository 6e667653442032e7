/* Running the trainers of --calibrate (see calibrate_run.h).
 *
 * A trainer writes into files, what it says as JSON and what it complains about; of the latter its error is passed on, in one line.
 *
 * On a card the steps of a plan are timed by events between them, which costs some time itself, and what starts them one by one may be slower than
 * they are; a step at full speed has neither. What all steps together take longer than that is taken off them evenly. */
#include "calibrate_run.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 16, LINE = 1024 };
static const double least_share = 0.25; /* of a step's time that is left at least */

/* The trainer's error: "no cuBLAS: .."; what is said otherwise. */
static void pass_on(const TrainerRun *r, const char *path)
{
	static const char head[] = "error: ";
	char line[LINE] = "";
	FILE *f = fopen(r->said, "r");
	bool found = false;

	while (f && !found && fgets(line, sizeof line, f))
		found = strncmp(line, head, strlen(head)) == 0;
	if (f)
		fclose(f);
	line[strcspn(line, "\n")] = 0;
	if (found)
		fprintf(r->err, "dlc: --calibrate: %s\n", line + strlen(head));
	else
		fprintf(r->err, "dlc: --calibrate: the trainer '%s' cannot be run\n", path);
}

static bool run(const TrainerRun *r, const char *path, const char *const *arguments)
{
	const char *argv[MAX_ARGUMENTS] = { path, "profile", "--json" };
	int status = 0, n = 3;
	pid_t child;

	while (*arguments && n < MAX_ARGUMENTS - 1)
		argv[n++] = *arguments++;
	child = fork();
	if (child == 0) {
		sigprocmask(SIG_SETMASK, r->signals, NULL);
		if (freopen(r->output, "w", stdout) && freopen(r->said, "w", stderr))
			execv(path, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	pass_on(r, path);
	return false;
}

static double number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

/* ---- times ---- */

/* Takes off what the clock between steps has cost. */
static void correct(TrainerTimes *t, double full_speed)
{
	double sum = 0, runs = 0, over;

	for (size_t i = 0; i < t->n; i++) {
		sum += t->seconds[i] * t->runs[i];
		runs += t->runs[i];
	}
	if (!(full_speed > 0) || sum <= full_speed)
		return;
	over = (sum - full_speed) / runs;
	for (size_t i = 0; i < t->n; i++)
		t->seconds[i] = t->seconds[i] - over > least_share * t->seconds[i] ? t->seconds[i] - over : least_share * t->seconds[i];
}

static bool take_times(const TrainerRun *r, const json_t *profile, TrainerTimes *t)
{
	const json_t *steps = json_object_get(profile, "steps");
	double whole = number(profile, "step_seconds_median");
	size_t n = json_array_size(steps);
	bool first = t->n == 0;

	if (n == 0 || !(whole > 0) || (!first && t->n != n))
		return false;
	if (!first && whole >= t->whole)
		return true;
	if (first) {
		t->n = n;
		t->seconds = ARENA_ARRAY(r->a, n, double);
		t->runs = ARENA_ARRAY(r->a, n, double);
	}
	t->whole = whole;
	for (size_t i = 0; i < n; i++) {
		t->runs[i] = number(json_array_get(steps, i), "runs");
		t->seconds[i] = number(json_array_get(steps, i), "seconds");
	}
	correct(t, number(profile, "step_seconds_full_speed"));
	return true;
}

bool trainer_times(const TrainerRun *r, const char *path, const char *const *arguments, TrainerTimes *t)
{
	json_t *profile;
	bool good;

	if (!run(r, path, arguments))
		return false;
	profile = json_load_file(r->output, 0, NULL);
	good = take_times(r, profile, t);
	json_decref(profile);
	if (!good)
		fprintf(r->err, "dlc: --calibrate: the trainer '%s' does not tell the time of its plan\n", path);
	return good;
}

/* ---- copies ---- */

static bool take_links(const TrainerRun *r, const json_t *said, TrainerLinks *l)
{
	const json_t *copies = json_object_get(said, "copies");

	for (size_t i = 0; i < json_array_size(copies); i++) {
		const json_t *one = json_array_get(copies, i);
		const char *kind = json_string_value(json_object_get(one, "kind"));
		LinkSample s = { .bytes = number(one, "bytes"), .seconds = number(one, "seconds"), .in = kind && strcmp(kind, "in") == 0 };

		if (!kind || !(s.seconds > 0))
			return false;
		if (s.in || strcmp(kind, "out") == 0)
			vec_push(r->a, &l->link, s);
		else if (strcmp(kind, "within") == 0)
			vec_push(r->a, &l->within, s);
		else if (strcmp(kind, "fill") == 0)
			l->launch_seconds = s.seconds;
	}
	return l->link.len > 0;
}

bool trainer_links(const TrainerRun *r, const char *path, const char *const *arguments, TrainerLinks *l)
{
	json_t *said;
	bool good;

	if (!run(r, path, arguments))
		return false;
	said = json_load_file(r->output, 0, NULL);
	good = take_links(r, said, l);
	json_decref(said);
	if (!good)
		fprintf(r->err, "dlc: --calibrate: the trainer '%s' does not tell the time of copies\n", path);
	return good;
}

/* The command `train`: the loop around trainer_step, with evaluation, saving, metrics, progress and
 * the ways to stop.
 *
 * A state is saved only after every variable in it was found finite, so a run that went wrong never
 * replaces a good checkpoint. When a loss is not finite, the run goes back to the last state it
 * knows (saved, resumed or initial) and replays, which gives the same numbers, with each result
 * checked: so it can name the step and the op where it began. */
#include "command.h"

#include "events.h"
#include "file.h"
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REPLAY_MAX = 2000, SKIPS_MAX = 10 };

/* The one thing a signal handler can reach. */
static volatile sig_atomic_t stop_requested;

static void on_signal(int number)
{
	stop_requested = number;
}

/* The first Ctrl-C ends after the step and a save; the second ends at once. So does a terminal that
 * hangs up, unless that is ignored (nohup). A reader of the progress that goes away ends nothing. */
static void catch_signals(void)
{
	struct sigaction a = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND }, old;
	sigemptyset(&a.sa_mask);
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
	if (!sigaction(SIGHUP, NULL, &old) && old.sa_handler != SIG_IGN)
		sigaction(SIGHUP, &a, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* A limit on file sizes is met like a full disk: by write's error. */
	signal(SIGXFSZ, SIG_IGN);
}

typedef struct Session {
	const Plan *plan;
	const Options *o;
	Trainer t;
	Progress progress;
	char out[4096];
	int metrics; /* file descriptor, or -1 */
	int folder;  /* holds the output folder for this run */
	bool best_here; /* the best state is in that folder */
	int64_t total, eval_every, save_every, keep, early_stop;
	bool save_best;
	Events *events;    /* TensorBoard's; NULL: none */
	int64_t saved;     /* step of the last save by this run; -1 */
	int64_t evaluated; /* step of the last evaluation; -1 */
	EvalResult eval;
	double last_loss, outside_checked;
	int skips, empties; /* steps in a row without an update; of them those without a valid target */
	double start;
} Session;

/* ---- starting ------------------------------------------------------------------------------- */

static int64_t choose(int64_t given, const Plan *plan, const char *key, double dflt)
{
	return given >= 0 ? given : (int64_t)trainer_setting(plan, key, dflt);
}

/* The folder of a checkpoint's path; false: too long. */
static bool folder_of(char out[4096], const char *checkpoint)
{
	if (snprintf(out, 4096, "%s", checkpoint) > 3800)
		return false;
	size_t n = strlen(out);
	char *slash = strrchr(out, '/');
	if (n <= 12 || strcmp(out + n - 12, ".safetensors") != 0)
		return true;
	if (slash && slash != out)
		*slash = 0;
	else
		snprintf(out, 4096, "%s", slash ? "/" : ".");
	return true;
}

/* Takes --out, else the folder of the resumed checkpoint, else TRAINER.run. */
static bool choose_folder(Session *s, Fail *f)
{
	char name[256];
	default_folder(name);
	bool fits = !s->o->out && s->o->resume ? folder_of(s->out, s->o->resume)
					       : snprintf(s->out, sizeof s->out, "%s", s->o->out ? s->o->out : name) <= 3800;
	if (!fits)
		return fail(f, EXIT_FILES, "the output folder's path is too long");
	s->folder = checkpoint_folder(s->out, f);
	return s->folder >= 0;
}

/* Whether the best state of the run that is resumed is where this one saves. */
static bool keeps_best(const Session *s)
{
	char from[4096], best[4200];
	struct stat a, b;
	snprintf(best, sizeof best, "%s/best.safetensors", s->out);
	return s->o->resume && folder_of(from, s->o->resume) && stat(from, &a) == 0 && stat(s->out, &b) == 0 &&
	       a.st_dev == b.st_dev && a.st_ino == b.st_ino && access(best, F_OK) == 0;
}

static bool open_metrics(Session *s, Fail *f)
{
	s->metrics = -1;
	if (!s->o->metrics)
		return true;
	s->metrics = open(s->o->metrics, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	return s->metrics >= 0 || fail(f, EXIT_FILES, "cannot write the metrics file %s: %s",
				       s->o->metrics, strerror(errno));
}

static bool open_events(Session *s, Fail *f)
{
	return !s->o->tensorboard || (s->events = events_open(s->o->tensorboard, f)) != NULL;
}

/* A best state needs evaluations on held-out samples. */
static bool check_best(Session *s, Fail *f)
{
	if (!s->save_best) {
		s->t.state.best_step = -1;
		return true;
	}
	if (!run_find(s->plan, "eval") || data_samples(s->t.data, SPLIT_TEST) == 0)
		return fail(f, EXIT_FILES, "--save-best and --early-stop need a test split of the data");
	return s->early_stop == 0 || s->eval_every > 0 ||
	       fail(f, EXIT_FILES, "--early-stop needs evaluations: --eval-every N");
}

static bool stops_early(const Session *s)
{
	return s->early_stop > 0 && s->t.state.best_step >= 0 &&
	       s->t.state.evals_since_best >= s->early_stop;
}

static void note_replaced(const Session *s)
{
	char last[4200];
	snprintf(last, sizeof last, "%s/last.safetensors", s->out);
	if (!s->o->resume && !s->o->quiet && access(last, F_OK) == 0)
		fprintf(stderr, "note: %s will be replaced (--resume %s continues it)\n", last,
			s->out);
}

static bool start(Session *s, Fail *f)
{
	TrainerOptions to = trainer_options(s->o);
	s->total = choose(s->o->steps, s->plan, "steps", 1000);
	s->eval_every = choose(s->o->eval_every, s->plan, "eval_every", 0);
	s->save_every = choose(s->o->save_every, s->plan, "save_every", 0);
	s->keep = choose(s->o->keep, s->plan, "keep", 0);
	s->early_stop = choose(s->o->early_stop, s->plan, "early_stop", 0);
	s->save_best = s->o->save_best || s->early_stop > 0 ||
		       trainer_setting(s->plan, "save_best", 0) != 0;
	s->saved = s->evaluated = -1;
	s->last_loss = NAN;
	if (!trainer_open(&s->t, s->plan, &to, "step eval eval1", f))
		return false;
	if (!load_weights(&s->t, s->o, f) || !check_best(s, f) || !choose_folder(s, f) ||
	    !open_metrics(s, f) || !open_events(s, f)) {
		trainer_close(&s->t);
		return false;
	}
	s->best_here = keeps_best(s);
	note_replaced(s);
	if (s->o->resume && !s->o->quiet)
		printf("resumed at step %" PRId64 "\n", s->t.state.step);
	if (s->o->resume && !s->o->quiet && s->t.state.step >= s->total)
		fprintf(stderr, "note: no step is left: the checkpoint has %" PRId64 ", and the run is to have %" PRId64 " in all (--steps)\n",
			s->t.state.step, s->total);
	return true;
}

/* ---- saying --------------------------------------------------------------------------------- */

static void write_metrics(Session *s, const JsonLine *j)
{
	if (s->metrics < 0 || write_all(s->metrics, j->text, j->n))
		return;
	fprintf(stderr, "note: the metrics file cannot be written any more: %s\n", strerror(errno));
	close(s->metrics);
	s->metrics = -1;
}

static void put_eval(const Session *s, JsonLine *j, int64_t step)
{
	if (s->evaluated == step)
		json_eval(j, "val_", &s->eval);
}

static void events_step(Session *s, const StepResult *r)
{
	int64_t step = s->t.state.step;
	if (!s->events)
		return;
	events_scalar(s->events, step, "train/loss", r->loss);
	if (r->has_grad_norm)
		events_scalar(s->events, step, "train/grad_norm", r->grad_norm);
	if (r->has_lr)
		events_scalar(s->events, step, "train/lr", r->lr);
	if (r->has_scale)
		events_scalar(s->events, step, "train/scale", r->scale);
	if (s->evaluated == step) {
		events_scalar(s->events, step, "test/loss", s->eval.loss);
		if (s->eval.has_accuracy)
			events_scalar(s->events, step, "test/accuracy", s->eval.accuracy);
	}
	if (!events_flush(s->events)) {
		fprintf(stderr, "note: the event file cannot be written any more: %s\n", strerror(errno));
		events_close(s->events);
		s->events = NULL;
	}
}

static void metrics_step(Session *s, const StepResult *r)
{
	if (s->metrics < 0)
		return;
	JsonLine j;
	json_begin(&j);
	json_int(&j, "step", s->t.state.step);
	json_num(&j, "loss", r->loss);
	if (r->has_grad_norm)
		json_num(&j, "grad_norm", r->grad_norm);
	if (r->has_lr)
		json_num(&j, "lr", r->lr);
	json_num(&j, "seconds", r->seconds);
	if (r->has_scale)
		json_num(&j, "scale", r->scale);
	if (r->has_skipped)
		json_bool(&j, "skipped", r->skipped);
	put_eval(s, &j, s->t.state.step);
	json_end(&j);
	write_metrics(s, &j);
}

/* What the run used of its arena: with --check-memory what it wrote (a trainer that writes beyond
 * its plan is broken), else what is in memory. */
static bool measure(Session *s, int64_t *bytes, Fail *f)
{
	Device *d = s->t.device;
	bool scanned = device_info(d)->check_memory;
	int64_t planned = s->plan->arena_bytes;
	if (!scanned)
		*bytes = device_resident(d);
	else if (!device_high_water(d, bytes, f))
		return false;
	*bytes = (*bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
	if (!scanned && *bytes > planned)
		*bytes = planned; /* the rest of its last page */
	return *bytes <= planned || fail(f, EXIT_BUG,
					 "the run wrote up to byte %" PRId64
					 " of an arena of %" PRId64 ": this is a bug in dlc",
					 *bytes, planned);
}

static void final_metrics(Session *s, int64_t measured, bool interrupted)
{
	Trainer *t = &s->t;
	const DeviceInfo *d = device_info(t->device);
	JsonLine j;
	json_begin(&j);
	json_bool(&j, "final", true);
	json_int(&j, "steps", t->state.step);
	json_num(&j, "loss", s->last_loss);
	put_eval(s, &j, t->state.step);
	json_int(&j, "skipped_steps", s->progress.skipped);
	json_int(&j, "arena_bytes", t->plan->arena_bytes);
	json_int(&j, "arena_high_water_bytes", measured);
	json_bool(&j, "high_water_scanned", d->check_memory);
	json_int(&j, "peak_rss_bytes", memory_peak_rss_bytes());
	json_int(&j, "outside_arena_bytes", trainer_outside_bytes(t));
	json_num(&j, "seconds", seconds_now() - s->start);
	json_int(&j, "threads", d->threads);
	if (d->context_bytes > 0) {
		json_str(&j, "device", d->name);
		json_int(&j, "device_context_bytes", d->context_bytes);
	}
	if (interrupted)
		json_bool(&j, "interrupted", true);
	json_end(&j);
	write_metrics(s, &j);
}

static void final_lines(Session *s, int64_t measured, bool interrupted)
{
	char planned[32], used[32], rest[32], spent[32];
	if (s->o->quiet)
		return;
	const CheckpointState *c = &s->t.state;
	if (stops_early(s))
		printf("no lower test loss in %" PRId64 " evaluations: training ends early\n",
		       c->evals_since_best);
	printf("%s at step %" PRId64 " after %s", interrupted ? "stopped" : "done", s->t.state.step,
	       duration_text(seconds_now() - s->start, spent));
	char more[128];
	if (s->evaluated == s->t.state.step)
		printf(": test loss %.4f%s", s->eval.loss, eval_text(&s->eval, more));
	printf("\nsaved %s/last.safetensors\n", s->out);
	if (c->best_step >= 0 && s->best_here)
		printf("best: test loss %.4f at step %" PRId64 ", %s/best.safetensors\n", c->best_loss,
		       c->best_step, s->out);
	else if (c->best_step >= 0)
		printf("best: test loss %.4f at step %" PRId64 ", before this run, where that kept it\n", c->best_loss,
		       c->best_step);
	printf("memory: planned %s, %s %s, outside the arena %s\n",
	       memory_text(s->plan->arena_bytes, planned),
	       device_info(s->t.device)->check_memory ? "measured" : "resident", memory_text(measured, used),
	       memory_text(trainer_outside_bytes(&s->t), rest));
	const DeviceInfo *d = device_info(s->t.device);
	if (d->context_bytes > 0)
		printf("card: %s; beside the arena %s (context, kernels, libraries, other programs)\n",
		       d->name, memory_text(d->context_bytes, rest));
}

/* ---- not finite ----------------------------------------------------------------------------- */

/* Back to the last state this run knows of; false where it cannot be had again. */
static bool go_back(Session *s, char from[4300], Fail *f)
{
	if (!trainer_init(&s->t, f))
		return false;
	if (s->saved >= 0) {
		snprintf(from, 4300, "%s/last.safetensors", s->out);
		return trainer_resume(&s->t, from, false, 0, f);
	}
	snprintf(from, 4300, "%s",
		 s->o->resume ? s->o->resume
		 : s->o->init ? s->o->init
			      : "the initial values");
	return load_weights(&s->t, s->o, f);
}

static const char *value_text(double v)
{
	return isnan(v) ? "nan" : v < 0 ? "-inf" : "inf";
}

/* In step number `step`, counted from 1. What is wrong with the data is told with the place in the file. */
static void say_bad(const Trainer *t, const RunBad *bad, int64_t step)
{
	fprintf(stderr,
		"note: the first result that is not finite: %s%s%s%s in step %" PRId64
		", micro-batch %" PRId64 ", element %" PRId64 " is %s\n",
		bad->step->name, bad->step->source[0] ? " (" : "", bad->step->source,
		bad->step->source[0] ? ")" : "", step, bad->micro, bad->element,
		value_text(bad->value));
	if (bad->step->kind != PLAN_INPUT || t->synthetic)
		return;
	const PlanInput *in = &t->plan->inputs[bad->step->index];
	int64_t elems = plan_input_sample_bytes(in) / plan_dtype_bytes(in->dtype);
	DataOrder order = { .seed = t->state.seed, .shuffle = t->state.shuffle };
	DataCursor cursor = data_at_step(t->data, order, step - 1);
	const char *path;
	int64_t sample = data_sample_at(&cursor, bad->step->index, bad->base + bad->element / elems, &path);
	fprintf(stderr, "note: that is '%s' of sample %" PRId64 " of %s\n", in->name, sample, path);
}

/* Replays up to and including step `last` (counted from 1) with every result checked. */
static void find_first_bad(Session *s, int64_t last)
{
	Fail f = { 0 };
	char from[4300];
	StepResult r;
	RunBad bad = { 0 };
	if (!go_back(s, from, &f)) {
		fprintf(stderr,
			"note: the op is unknown, as the last state cannot be had again: %s\n",
			f.text);
		return;
	}
	int64_t n = last - s->t.state.step;
	if (n > REPLAY_MAX) {
		fprintf(stderr,
			"note: --check-nan names the first op whose result is not finite (the last saved state is %" PRId64
			" steps back)\n",
			n);
		return;
	}
	fprintf(stderr, "note: replaying %" PRId64 " steps from %s to find the op\n", n, from);
	s->t.check_nan = true;
	while (s->t.state.step < last && !stop_requested) {
		if (!trainer_step(&s->t, &r, &bad, &f)) {
			fprintf(stderr, "note: the replay failed: %s\n", f.text);
			return;
		}
		if (bad.step) {
			say_bad(&s->t, &bad, s->t.state.step + 1);
			return;
		}
	}
	if (!stop_requested)
		fprintf(stderr, "note: the replay found no result that is not finite\n");
}

static bool not_finite(Session *s, Fail *f, const char *what, double value)
{
	int64_t step = s->t.state.step;
	fail(f, EXIT_INPUT, "%s is %s at step %" PRId64 ": training stops", what, value_text(value),
	     step);
	if (s->saved >= 0)
		fail_add(f, "; %s/last.safetensors holds step %" PRId64, s->out, s->saved);
	report(f);
	find_first_bad(s, step);
	f->text[0] = 0; /* said */
	return false;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static bool evaluate(Session *s, Fail *f)
{
	if (!run_find(s->plan, "eval") || data_samples(s->t.data, SPLIT_TEST) == 0)
		return true;
	if (!trainer_eval(&s->t, SPLIT_TEST, &s->eval, f))
		return false;
	s->evaluated = s->t.state.step;
	return true;
}

static void say_eval(Session *s)
{
	if (s->evaluated != s->t.state.step || s->o->quiet)
		return;
	char more[128];
	progress_clear(&s->progress);
	printf("step %" PRId64 ": test loss %.4f%s\n", s->evaluated, s->eval.loss,
	       eval_text(&s->eval, more));
	fflush(stdout);
}

static bool save(Session *s, unsigned names, Fail *f)
{
	const PlanVar *bad;
	if (!trainer_bad_variable(&s->t, &bad, f))
		return false;
	if (bad) {
		char what[300];
		snprintf(what, sizeof what, "'%.200s'", bad->name);
		return not_finite(s, f, what, NAN);
	}
	if (!trainer_save(&s->t, s->out, names, f))
		return false;
	s->saved = s->t.state.step;
	if (names & SAVE_NUMBERED && s->keep > 0)
		checkpoint_prune(s->out, s->keep);
	return true;
}

/* Counts an evaluation of this step; true where it is the best so far. A loss that is no number never is. */
static bool is_best(Session *s)
{
	CheckpointState *c = &s->t.state;
	if (!s->save_best || s->evaluated != c->step)
		return false;
	if (isnan(s->eval.loss) || (c->best_step >= 0 && !(s->eval.loss < c->best_loss))) {
		c->evals_since_best++;
		return false;
	}
	c->best_loss = s->eval.loss;
	c->best_step = c->step;
	c->evals_since_best = 0;
	s->best_here = true;
	return true;
}

static bool check_step(Session *s, const StepResult *r, const RunBad *bad, Fail *f)
{
	if (bad->step) {
		fail(f, EXIT_INPUT, "a result is %s at step %" PRId64 ": training stops",
		     value_text(bad->value), s->t.state.step + 1);
		report(f);
		say_bad(&s->t, bad, s->t.state.step + 1);
		f->text[0] = 0;
		return false;
	}
	s->skips = r->skipped ? s->skips + 1 : 0;
	s->empties = r->empty ? s->empties + 1 : 0;
	if (s->empties >= SKIPS_MAX)
		return fail(f, EXIT_INPUT, "no batch has a valid target, for ten steps in a row, at step %" PRId64 ": training stops",
			    s->t.state.step);
	if (s->skips >= SKIPS_MAX)
		return not_finite(s, f, "the gradient, for ten steps in a row,", NAN);
	bool may_skip = r->skipped && (r->empty || r->scale > 1);
	if (!isfinite(r->loss) && !may_skip)
		return not_finite(s, f, "the loss", r->loss);
	return true;
}

static int64_t next_multiple(int64_t step, int64_t of, int64_t most)
{
	int64_t next = of > 0 ? (step / of + 1) * of : most;
	return next < most ? next : most;
}

/* The next step behind which the state is looked at: none may be begun beyond it before its result is
 * known. A step that turns out to be the last good one is not among them: then those begun behind it are
 * lost, as the run goes back to the last saved state anyway. */
static int64_t next_pause(const Session *s)
{
	int64_t step = s->t.state.step, next = next_multiple(step, s->eval_every, s->total);
	return stop_requested ? step + 1 : next_multiple(step, s->save_every, next);
}

static bool one_step(Session *s, Fail *f)
{
	StepResult r;
	RunBad bad = { 0 };
	if (!trainer_advance(&s->t, next_pause(s), &r, &bad, f) || !check_step(s, &r, &bad, f))
		return false;
	int64_t step = s->t.state.step;
	s->last_loss = r.loss;
	bool last = step == s->total;
	if (((s->eval_every > 0 && step % s->eval_every == 0) || last) && !evaluate(s, f))
		return false;
	metrics_step(s, &r);
	events_step(s, &r);
	progress_step(&s->progress, step, &r);
	if (!last)
		say_eval(s);
	double now = seconds_now();
	if (now - s->outside_checked > 0.05) {
		trainer_outside_bytes(&s->t);
		s->outside_checked = now;
	}
	unsigned names = is_best(s) ? SAVE_BEST : 0;
	if (s->save_every > 0 && step % s->save_every == 0)
		names |= SAVE_NUMBERED;
	return !names || save(s, names, f);
}

static bool train(Session *s, Fail *f)
{
	progress_begin(&s->progress, &s->t, s->total, s->o->quiet);
	s->start = seconds_now();
	while (s->t.state.step < s->total && !stops_early(s) &&
	       (!stop_requested || trainer_busy(&s->t)))
		if (!one_step(s, f)) {
			progress_clear(&s->progress);
			return false;
		}
	progress_clear(&s->progress);
	if (s->saved != s->t.state.step && !save(s, 0, f))
		return false;
	if (s->evaluated != s->t.state.step && !stop_requested && !evaluate(s, f))
		return false;
	int64_t measured;
	if (!measure(s, &measured, f))
		return false;
	final_metrics(s, measured, stop_requested != 0);
	final_lines(s, measured, stop_requested != 0);
	return true;
}

int command_train(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Session s = { .plan = plan, .o = o };
	if (!start(&s, &f))
		return report(&f);
	catch_signals();
	bool ok = train(&s, &f);
	if (!ok && f.text[0])
		report(&f);
	if (s.metrics >= 0)
		close(s.metrics);
	events_close(s.events);
	close(s.folder);
	trainer_close(&s.t);
	return !ok ? f.code : stop_requested ? EXIT_INTERRUPTED : EXIT_DONE;
}

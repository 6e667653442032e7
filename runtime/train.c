/* The trainer's operations; see train.h. What each is made of is one call of the device
 * (device.h) or of the checkpoint reader and writer; this file adds the position in the data and the
 * totals.
 *
 * A device may take a step while the one before is under way (DeviceInfo.calls). Then a loss is read when
 * the next step has been begun already, and the device never waits for the host between steps. */
#include "train.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double seconds_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double trainer_setting(const Plan *plan, const char *key, double dflt)
{
	const PlanSetting *s = plan_setting(plan->train, plan->ntrain, key);
	return s && s->kind == 'i' ? (double)s->i : s && s->kind == 'f' ? s->f : dflt;
}

int64_t trainer_outside_bytes(Trainer *t)
{
	int64_t n = memory_anonymous_bytes() - device_info(t->device)->host_bytes;
	if (n > t->outside_bytes)
		t->outside_bytes = n;
	return t->outside_bytes;
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool prepare_funcs(Trainer *t, const char *funcs, Fail *f)
{
	char names[128];
	char *save = NULL;
	snprintf(names, sizeof names, "%s", funcs);
	for (char *name = strtok_r(names, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
		const PlanFunc *func = run_find(t->plan, name);
		if (func && !device_prepare(t->device, func, f))
			return false;
	}
	return true;
}

static bool open_data(Trainer *t, const TrainerOptions *o, Fail *f)
{
	if (o->no_data)
		return true;
	t->data = data_open(t->plan, o->data, o->ndata, f);
	if (!t->data && o->zeros_without_data && f->code == EXIT_FILES && o->ndata == 0) {
		*f = (Fail){ 0 };
		t->data = data_zeros(t->plan, f);
		t->synthetic = true;
	}
	return t->data != NULL;
}

bool trainer_open(Trainer *t, const Plan *plan, const TrainerOptions *o, const char *funcs, Fail *f)
{
	*t = (Trainer){ .plan = plan,
			.check_nan = o->check_nan,
			.state = { .seed = o->has_seed ? o->seed : plan->seed,
				   .shuffle = !o->no_shuffle,
				   .best_step = -1 } };
	bool ok = open_data(t, o, f) && device_open(&t->device, plan, &o->device, f);
	if (ok) {
		t->checkpoint = checkpoint_open(plan, f);
		ok = t->checkpoint && prepare_funcs(t, "init", f) && prepare_funcs(t, funcs, f) &&
		     trainer_init(t, f);
	}
	if (!ok)
		trainer_close(t);
	else
		trainer_outside_bytes(t);
	return ok;
}

void trainer_close(Trainer *t)
{
	checkpoint_close(t->checkpoint);
	device_close(t->device);
	data_close(t->data);
	*t = (Trainer){ 0 };
}

/* ---- steps ---------------------------------------------------------------------------------- */

static RunCall call_of(const Trainer *t, DataCursor *cursor)
{
	return (RunCall){ .seed = t->state.seed,
			  .step = t->state.step,
			  .source = { data_read, cursor },
			  .check_nan = t->check_nan };
}

/* A call from its beginning to its end. */
static bool run_whole(Trainer *t, const PlanFunc *func, RunCall *call, Fail *f)
{
	return device_call(t->device, func, call, f) && device_wait(t->device, func, 0, f);
}

bool trainer_init(Trainer *t, Fail *f)
{
	const PlanFunc *init = run_find(t->plan, "init");
	RunCall call = { .seed = t->state.seed };
	t->state.step = t->begun = 0;
	return !init || run_whole(t, init, &call, f);
}

/* Begins the step behind those begun. */
static bool begin_step(Trainer *t, const PlanFunc *step, Fail *f)
{
	DataOrder order = { .seed = t->state.seed, .shuffle = t->state.shuffle };
	DataCursor cursor = data_at_step(t->data, order, t->begun),
		   next = data_at_step(t->data, order, t->begun + 1);
	data_ahead(&next);
	RunCall call = call_of(t, &cursor);
	call.step = t->begun;
	call.times = t->times;
	call.trace = t->trace;
	t->started[t->begun % DEVICE_CALLS] = seconds_now();
	if (!device_call(t->device, step, &call, f))
		return false;
	t->bad = call.bad;
	t->begun++;
	return true;
}

/* The result of the first step that has been begun and is not done. */
static bool end_step(Trainer *t, const PlanFunc *step, StepResult *r, Fail *f)
{
	int back = (int)(t->begun - t->state.step) - 1;
	double skipped = 0, empty = 0, started = t->started[t->state.step % DEVICE_CALLS];
	if (!device_wait(t->device, step, back, f))
		return false;
	run_output(t->device, step, back, "loss", &r->loss);
	r->has_grad_norm = run_output(t->device, step, back, "grad_norm", &r->grad_norm);
	r->has_lr = run_output(t->device, step, back, "lr", &r->lr);
	r->has_scale = run_output(t->device, step, back, "scale", &r->scale);
	r->has_skipped = run_output(t->device, step, back, "skipped", &skipped);
	r->skipped = skipped != 0;
	r->empty = run_output(t->device, step, back, "empty", &empty) && empty != 0;
	double now = seconds_now();
	r->seconds = now - (started > t->ended ? started : t->ended);
	t->ended = now;
	t->state.step++;
	return true;
}

bool trainer_busy(const Trainer *t)
{
	return t->begun > t->state.step;
}

bool trainer_advance(Trainer *t, int64_t last, StepResult *r, RunBad *bad, Fail *f)
{
	const PlanFunc *step = run_find(t->plan, "step");
	/* Where each result or each time is looked at, steps come one by one. */
	int64_t most = t->check_nan || t->times ? 1 : device_info(t->device)->calls;
	*r = (StepResult){ .loss = NAN };
	if (!step)
		return fail(f, EXIT_BUG, "the plan has no function 'step'");
	while (!trainer_busy(t) || (t->begun < last && t->begun - t->state.step < most))
		if (!begin_step(t, step, f))
			return false;
	if (bad)
		*bad = t->bad;
	if (!t->bad.step)
		return end_step(t, step, r, f);
	t->begun = t->state.step; /* it was left unfinished */
	return true;
}

bool trainer_step(Trainer *t, StepResult *r, RunBad *bad, Fail *f)
{
	return trainer_advance(t, t->state.step + 1, r, bad, f);
}

/* ---- evaluation ----------------------------------------------------------------------------- */

typedef struct Totals {
	double loss, weight, correct, top, counted;
	bool has_accuracy, has_top;
} Totals;

static bool begin_batch(Trainer *t, const PlanFunc *func, DataSplit split, int64_t first, Fail *f)
{
	DataCursor cursor = data_at_sample(t->data, split, first);
	RunCall call = call_of(t, &cursor);
	if (!device_call(t->device, func, &call, f))
		return false;
	return !call.bad.step ||
	       fail(f, EXIT_INPUT, "evaluation: %s (%s) is not finite at sample %lld or after",
		    call.bad.step->name, call.bad.step->source, (long long)first);
}

/* Adds what the batch that was begun `back` batches ago has found. */
static bool end_batch(Trainer *t, const PlanFunc *func, int back, Totals *sum, Fail *f)
{
	double loss = 0, weight = (double)func->batch, correct, counted = weight, top = 0;
	if (!device_wait(t->device, func, back, f))
		return false;
	run_output(t->device, func, back, "loss", &loss);
	run_output(t->device, func, back, "weight", &weight);
	if (weight > 0) { /* a batch without a valid target has no mean */
		sum->loss += loss * weight;
		sum->weight += weight;
	}
	if (run_output(t->device, func, back, "correct", &correct)) {
		if (!run_output(t->device, func, back, "counted", &counted))
			counted = weight;
		sum->correct += correct;
		sum->counted += counted;
		sum->has_accuracy = true;
		sum->has_top = run_output(t->device, func, back, "correct_top", &top);
		sum->top += top;
	}
	return true;
}

/* Whole batches of `func` from sample *at on, as many at once as the device takes. */
static bool eval_batches(Trainer *t, const PlanFunc *func, DataSplit split, int64_t *at, int64_t n, Totals *sum,
			 Fail *f)
{
	int under_way = 0, most = t->check_nan ? 1 : device_info(t->device)->calls;
	for (;;) {
		for (; under_way < most && *at + func->batch <= n; *at += func->batch, under_way++)
			if (!begin_batch(t, func, split, *at, f))
				return false;
		if (under_way == 0)
			return true;
		if (!end_batch(t, func, --under_way, sum, f))
			return false;
	}
}

/* A function over whole batches, and its one-sample form for the tail (NULL where the plan has
 * none). */
static bool functions_of(const Trainer *t, const char *name, const char *tail_name,
			 const PlanFunc **full, const PlanFunc **tail, Fail *f)
{
	*full = run_find(t->plan, name);
	*tail = run_find(t->plan, tail_name);
	return *full || fail(f, EXIT_FILES, "this model has no function '%s'", name);
}

static bool split_samples(const Trainer *t, DataSplit split, int64_t *n, Fail *f)
{
	*n = data_samples(t->data, split);
	return *n > 0 || fail(f, EXIT_FILES, "the data have no %s split",
			      split == SPLIT_TEST ? "test" : "training");
}

bool trainer_eval(Trainer *t, DataSplit split, EvalResult *r, Fail *f)
{
	const PlanFunc *full, *tail;
	int64_t n;
	assert(!trainer_busy(t));
	*r = (EvalResult){ .loss = NAN };
	if (!functions_of(t, "eval", "eval1", &full, &tail, f) || !split_samples(t, split, &n, f))
		return false;
	Totals sum = { 0 };
	int64_t at = 0;
	if (!eval_batches(t, full, split, &at, n, &sum, f) ||
	    (tail && !eval_batches(t, tail, split, &at, n, &sum, f)))
		return false;
	r->loss = sum.weight > 0 ? sum.loss / sum.weight : NAN;
	r->has_accuracy = sum.has_accuracy;
	r->accuracy = sum.counted > 0 ? sum.correct / sum.counted : 0;
	r->has_top = sum.has_top;
	r->top_accuracy = sum.counted > 0 ? sum.top / sum.counted : 0;
	/* Classes of text, one a token: the loss is their cross-entropy. */
	r->of_text = sum.has_accuracy && data_tokens(t->data) > 0;
	r->of_bytes = r->of_text && data_of_bytes(t->data);
	r->samples = at < n ? at : n;
	return true;
}

/* ---- variables ------------------------------------------------------------------------------ */

static bool is_finite(Trainer *t, const PlanVar *v, bool *finite, Fail *f)
{
	int64_t size = plan_dtype_bytes(v->dtype);
	*finite = true;
	for (int64_t at = 0; *finite && at < v->bytes; at += DEVICE_CHUNK) {
		int64_t n = v->bytes - at < DEVICE_CHUNK ? v->bytes - at : DEVICE_CHUNK;
		const void *p = device_view(t->device, v->offset + at, n, f);
		if (!p)
			return false;
		*finite = plan_first_nonfinite(v->dtype, p, n / size) < 0;
	}
	return true;
}

bool trainer_bad_variable(Trainer *t, const PlanVar **bad, Fail *f)
{
	bool finite = true;
	*bad = NULL;
	for (int i = 0; finite && i < t->plan->nvars; i++) {
		if (!is_finite(t, &t->plan->vars[i], &finite, f))
			return false;
		if (!finite)
			*bad = &t->plan->vars[i];
	}
	return true;
}

bool trainer_save(Trainer *t, const char *dir, unsigned names, Fail *f)
{
	assert(!trainer_busy(t));
	return checkpoint_save(t->checkpoint, t->device, &t->state, dir, names, f);
}

bool trainer_resume(Trainer *t, const char *path, bool has_seed, uint64_t seed, Fail *f)
{
	CheckpointState s;
	if (!checkpoint_resume(t->device, path, &s, f))
		return false;
	if (has_seed && seed != s.seed)
		return fail(
			f, EXIT_FILES,
			"--seed %llu differs from the checkpoint's %llu; a resumed run keeps its seed",
			(unsigned long long)seed, (unsigned long long)s.seed);
	t->state = s;
	t->begun = s.step;
	return true;
}

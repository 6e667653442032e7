/* profile: the time of each step of the plan, beside the compiler's prediction.
 *
 * Method. Each optimizer step is run with a clock around every step of the plan (RunCall.times). Of the
 * times that one of them has taken (in a loop: the mean over its trips), the median over all
 * optimizer steps is shown: what else the machine does disturbs single runs. The table adds up what
 * has one name.
 *
 * A device that takes several calls at once runs a step in fewer pieces where no clock is read: as many steps again show how long it
 * takes then, at full speed.
 *
 * A trace is one more step, with each run of each step of the plan as an event of Chrome's trace format (ph "X", in
 * microseconds), for chrome://tracing, Perfetto and others. Where a device knows no starts, the steps of the plan stand one
 * behind the other, each with the time of all its runs. */
#include "command.h"

#include "metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROFILE_WARM_UP = 3, PROFILE_STEPS = 20 };

/* A step of the plan, or all those of one name. */
typedef struct Row {
	const PlanStep *step;
	int64_t runs;               /* in one optimizer step */
	double measured, predicted; /* seconds of one run; of a name: of all its runs */
	char by[DEVICE_TEXT];       /* the library's implementation; "" */
} Row;

typedef struct Profile {
	const PlanFunc *func;
	int64_t steps;
	RunTime *times; /* of one optimizer step */
	float *seconds; /* [plan step][optimizer step], of one run */
	double *whole;  /* [optimizer step] */
	double full_speed; /* seconds of one at full speed; 0: not another thing than `whole` */
	Row *row;       /* one for each plan step */
} Profile;

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

static int by_whole(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const Row *)a)->step->name, ((const Row *)b)->step->name);
}

static int by_time(const void *a, const void *b)
{
	double x = ((const Row *)a)->measured, y = ((const Row *)b)->measured;
	return (x < y) - (x > y);
}

static bool profile_open(Profile *p, const Plan *plan, int64_t steps, Fail *f)
{
	*p = (Profile){ .func = run_find(plan, "step"), .steps = steps };
	if (!p->func)
		return fail(f, EXIT_BUG, "the plan has no function 'step'");
	size_t n = (size_t)p->func->nsteps, s = (size_t)steps;
	p->times = calloc(n + 1, sizeof *p->times);
	p->seconds = calloc(n * s + 1, sizeof *p->seconds);
	p->whole = calloc(s, sizeof *p->whole);
	p->row = calloc(n + 1, sizeof *p->row);
	return (p->times && p->seconds && p->whole && p->row) ||
	       fail(f, EXIT_FILES, "out of memory");
}

static void profile_close(Profile *p)
{
	free(p->times);
	free(p->seconds);
	free(p->whole);
	free(p->row);
}

static bool measure(Profile *p, Trainer *t, Fail *f)
{
	StepResult r;
	int n = p->func->nsteps;
	for (int64_t s = -PROFILE_WARM_UP; s < p->steps; s++) {
		memset(p->times, 0, (size_t)n * sizeof *p->times);
		t->times = p->times;
		bool ok = trainer_step(t, &r, NULL, f);
		t->times = NULL;
		if (!ok)
			return false;
		if (s < 0)
			continue;
		p->whole[s] = r.seconds;
		for (int i = 0; i < n; i++)
			if (p->times[i].runs > 0)
				p->seconds[i * p->steps + s] =
					(float)(p->times[i].seconds / (double)p->times[i].runs);
	}
	qsort(p->whole, (size_t)p->steps, sizeof *p->whole, by_whole);
	for (int i = 0; i < n; i++) {
		float *x = p->seconds + i * p->steps;
		qsort(x, (size_t)p->steps, sizeof *x, by_value);
		p->row[i] = (Row){ .step = &p->func->steps[i],
				   .runs = p->times[i].runs,
				   .measured = (double)x[p->steps / 2],
				   .predicted = p->func->steps[i].seconds };
		device_describe(t->device, p->func, i, p->row[i].by);
	}
	return true;
}

/* The median of as many steps without a clock between. */
static bool measure_full_speed(Profile *p, Trainer *t, Fail *f)
{
	StepResult r;
	double *seconds = calloc((size_t)p->steps, sizeof *seconds);
	int64_t last = t->state.step + PROFILE_WARM_UP + p->steps;
	bool ok = seconds || fail(f, EXIT_FILES, "out of memory");
	for (int64_t s = -PROFILE_WARM_UP; s < p->steps && ok; s++) {
		ok = trainer_advance(t, last, &r, NULL, f);
		if (ok && s >= 0)
			seconds[s] = r.seconds;
	}
	if (ok) {
		qsort(seconds, (size_t)p->steps, sizeof *seconds, by_whole);
		p->full_speed = seconds[p->steps / 2];
	}
	free(seconds);
	return ok;
}

static double sum_predicted(const Profile *p)
{
	double sum = 0;
	for (int i = 0; i < p->func->nsteps; i++)
		sum += (double)p->row[i].runs * p->row[i].predicted;
	return sum;
}

static void print_json(const Profile *p, int threads)
{
	const char *between = "";
	printf("{\"step_seconds_median\":%.9g,\"step_seconds_predicted\":%.9g,", p->whole[p->steps / 2], sum_predicted(p));
	if (p->full_speed > 0)
		printf("\"step_seconds_full_speed\":%.9g,", p->full_speed);
	printf("\"threads\":%d,\"steps\":[", threads);
	for (int i = 0; i < p->func->nsteps; i++) {
		const Row *r = &p->row[i];
		printf("%s\n{\"name\":", between);
		json_print_string(stdout, r->step->name);
		printf(",\"source\":");
		json_print_string(stdout, r->step->source);
		if (r->by[0]) {
			printf(",\"implementation\":");
			json_print_string(stdout, r->by);
		}
		if (r->step->moved_bytes)
			printf(",\"bytes\":%" PRId64, r->step->moved_bytes);
		printf(",\"runs\":%" PRId64 ",\"seconds\":%.6g,\"predicted\":%.6g}", r->runs,
		       r->measured, r->predicted);
		between = ",";
	}
	printf("]}\n");
}

/* Adds up rows of one name in place; returns how many there are. */
static int group(Row *row, int n)
{
	int groups = 0;
	for (int i = 0; i < n; i++) {
		row[i].measured *= (double)row[i].runs;
		row[i].predicted *= (double)row[i].runs;
	}
	qsort(row, (size_t)n, sizeof *row, by_name);
	for (int i = 0; i < n; i++) {
		if (groups > 0 && !by_name(&row[groups - 1], &row[i])) {
			row[groups - 1].runs += row[i].runs;
			row[groups - 1].measured += row[i].measured;
			row[groups - 1].predicted += row[i].predicted;
			if (strcmp(row[groups - 1].by, row[i].by))
				snprintf(row[groups - 1].by, DEVICE_TEXT, "several (--json lists them)");
		} else {
			row[groups++] = row[i];
		}
	}
	qsort(row, (size_t)groups, sizeof *row, by_time);
	return groups;
}

static void print_text(Profile *p, const char *device)
{
	double all = 0, whole = p->whole[p->steps / 2], predicted = sum_predicted(p);
	int n = 0;
	for (int i = 0; i < p->func->nsteps; i++)
		if (p->row[i].runs > 0)
			p->row[n++] = p->row[i];
	n = group(p->row, n);
	for (int i = 0; i < n; i++)
		all += p->row[i].measured;
	printf("step: %.3f ms, predicted %.3f ms (median of %" PRId64 " steps, %s)\n",
	       1e3 * whole, 1e3 * predicted, p->steps, device);
	if (p->full_speed > 0)
		printf("at full speed, without a clock between the steps of the plan: %.3f ms\n", 1e3 * p->full_speed);
	printf("\n");
	printf("   runs    share   measured  predicted  step of the plan\n");
	for (int i = 0; i < n; i++) {
		const Row *r = &p->row[i];
		printf("%7" PRId64 "  %5.1f %%  %7.3f ms %7.3f ms  %s%s%s\n", r->runs,
		       all > 0 ? 100 * r->measured / all : 0, 1e3 * r->measured,
		       1e3 * r->predicted, r->step->name, r->by[0] ? ": " : "", r->by);
	}
}

/* ---- the trace ------------------------------------------------------------------------------ */

/* The steps of the plan one behind the other. */
static void line_up(const Profile *p, RunTrace *trace)
{
	double at = 0;
	for (int i = 0; i < p->func->nsteps; i++) {
		if (!p->times[i].runs)
			continue;
		trace->event[trace->n++] = (RunEvent){ at, p->times[i].seconds, i, 0 };
		at += p->times[i].seconds;
	}
}

/* One step more, event by event. */
static bool record(Profile *p, Trainer *t, RunTrace *trace, Fail *f)
{
	StepResult r;
	int n = p->func->nsteps;
	for (int i = 0; i < n; i++)
		trace->room += p->times[i].runs;
	trace->event = calloc((size_t)trace->room + 1, sizeof *trace->event);
	if (!trace->event)
		return fail(f, EXIT_FILES, "out of memory");
	memset(p->times, 0, (size_t)n * sizeof *p->times);
	t->times = p->times;
	t->trace = trace;
	bool ok = trainer_step(t, &r, NULL, f);
	t->times = NULL;
	t->trace = NULL;
	if (ok && trace->n == 0)
		line_up(p, trace);
	return ok;
}

static void print_event(FILE *out, const Profile *p, const RunEvent *e, double begin)
{
	const PlanStep *s = &p->func->steps[e->step];
	fprintf(out, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":%.3f,\"dur\":%.3f,\"name\":", 1e6 * (e->start - begin),
		1e6 * e->seconds);
	json_print_string(out, s->name);
	fprintf(out, ",\"cat\":\"%s\",\"args\":{\"source\":", s->kind == PLAN_PRIM ? "library" : s->kind == PLAN_KERNEL ? "kernel" : "data");
	json_print_string(out, s->source);
	fprintf(out, ",\"step\":%d,\"micro_batch\":%" PRId64 ",\"predicted_us\":%.3f}}", (int)e->step, e->micro, 1e6 * s->seconds);
}

static bool write_trace(const Profile *p, const Trainer *t, const RunTrace *trace, const char *path, Fail *f)
{
	FILE *out = fopen(path, "we");
	if (!out)
		return fail(f, EXIT_FILES, "--trace: %s: %s", path, strerror(errno));
	double begin = trace->n ? trace->event[0].start : 0;
	int64_t micro = -1;
	fprintf(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":");
	json_print_string(out, t->plan->model);
	fprintf(out, "}},\n{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":");
	json_print_string(out, device_info(t->device)->name);
	fprintf(out, "}}");
	for (int64_t i = 0; i < trace->n; i++) {
		const RunEvent *e = &trace->event[i];
		if (e->micro != micro)
			fprintf(out, ",\n{\"ph\":\"C\",\"pid\":1,\"ts\":%.3f,\"name\":\"micro-batch\",\"args\":{\"number\":%" PRId64 "}}",
				1e6 * (e->start - begin), e->micro);
		micro = e->micro;
		print_event(out, p, e, begin);
	}
	fprintf(out, "\n]}\n");
	bool ok = !ferror(out);
	return (fclose(out) == 0 && ok) || fail(f, EXIT_FILES, "--trace: %s: %s", path, strerror(errno));
}

static bool trace_step(Profile *p, Trainer *t, const char *path, Fail *f)
{
	RunTrace trace = { 0 };
	bool ok = record(p, t, &trace, f) && write_trace(p, t, &trace, path, f);
	free(trace.event);
	return ok;
}

int command_profile(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Trainer t;
	Profile p;
	if (o->links)
		return command_links(plan, o);
	TrainerOptions to = trainer_options(o);
	to.zeros_without_data = to.device.times = true;
	if (!trainer_open(&t, plan, &to, "step", &f))
		return report(&f);
	if (t.synthetic)
		fprintf(stderr, "note: no data files; the inputs are zeros\n");
	bool ok = profile_open(&p, plan, o->steps > 0 ? o->steps : PROFILE_STEPS, &f) &&
		  load_weights(&t, o, &f) && measure(&p, &t, &f) &&
		  (device_info(t.device)->calls == 1 || measure_full_speed(&p, &t, &f)) && (!o->trace || trace_step(&p, &t, o->trace, &f));
	if (ok && o->json)
		print_json(&p, device_info(t.device)->threads);
	else if (ok)
		print_text(&p, device_info(t.device)->name);
	profile_close(&p);
	trainer_close(&t);
	return ok ? EXIT_DONE : report(&f);
}

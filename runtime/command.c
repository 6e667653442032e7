/* eval, predict, info and bench, and what all commands share. */
#include "command.h"

#include "metrics.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int report(const Fail *f)
{
	fflush(stdout);
	fprintf(stderr, "error: %s\n", f->text);
	return f->code ? f->code : EXIT_BUG;
}

TrainerOptions trainer_options(const Options *o)
{
	return (TrainerOptions){ .device = { .threads = o->threads > 0 ? (int)o->threads : 0,
					     .number = o->device > 0 ? (int)o->device : 0,
					     .check_memory = o->check_memory },
				 .check_nan = o->check_nan,
				 .no_shuffle = o->no_shuffle,
				 .has_seed = o->has_seed,
				 .seed = o->seed,
				 .data = o->data,
				 .ndata = o->ndata };
}

void default_folder(char out[256])
{
	snprintf(out, 256, "%.200s.run", program_invocation_short_name);
}

bool load_weights(Trainer *t, const Options *o, Fail *f)
{
	Fail note;
	if (o->resume)
		return trainer_resume(t, o->resume, o->has_seed, o->seed, f);
	if (!o->init)
		return true;
	InitWhat what = o->init_partial ? INIT_PARTIAL : INIT_WHOLE;
	if (!checkpoint_init(t->device, o->init, o->init_map, what, &note, f))
		return false;
	if (note.text[0])
		fprintf(stderr, "note: %s\n", note.text);
	return !o->init_adapters ||
	       checkpoint_init(t->device, o->init_adapters, NULL, INIT_ADAPTERS, &note, f);
}

bool load_for_use(Trainer *t, const Options *o, Fail *f)
{
	char dir[256], last[300];
	if (o->init || o->resume)
		return load_weights(t, o, f);
	default_folder(dir);
	snprintf(last, sizeof last, "%s/last.safetensors", dir);
	if (access(last, F_OK) == 0) {
		fprintf(stderr, "note: weights of %s\n", last);
		return trainer_resume(t, last, o->has_seed, o->seed, f);
	}
	fprintf(stderr, "note: no --init and no --resume: these are the initial weights\n");
	return true;
}

static bool split_of(const Trainer *t, const Options *o, DataSplit *split, Fail *f)
{
	if (!o->split) {
		*split = data_samples(t->data, SPLIT_TEST) ? SPLIT_TEST : SPLIT_TRAIN;
		return true;
	}
	*split = strcmp(o->split, "train") == 0 ? SPLIT_TRAIN : SPLIT_TEST;
	return !strcmp(o->split, "train") || !strcmp(o->split, "test") ||
	       !strcmp(o->split, "validation") ||
	       fail(f, EXIT_FILES, "--split %s: expected train or test", o->split);
}

int command_eval(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Trainer t;
	TrainerOptions to = trainer_options(o);
	DataSplit split = SPLIT_TEST;
	EvalResult r;
	if (!trainer_open(&t, plan, &to, "eval eval1", &f))
		return report(&f);
	if (!load_for_use(&t, o, &f) || !split_of(&t, o, &split, &f) ||
	    !trainer_eval(&t, split, &r, &f)) {
		trainer_close(&t);
		return report(&f);
	}
	if (!isfinite(r.loss))
		fprintf(stderr, "note: the loss is no finite number: some sample or weight is none, or the model's results are too large\n");
	if (o->json) {
		JsonLine j;
		json_begin(&j);
		json_eval(&j, "", &r);
		json_int(&j, "samples", r.samples);
		json_str(&j, "split", split == SPLIT_TEST ? "test" : "train");
		json_end(&j);
		fputs(j.text, stdout);
	} else {
		char more[128];
		printf("%s: loss %.6f%s (%" PRId64 " samples)\n",
		       split == SPLIT_TEST ? "test" : "train", r.loss, eval_text(&r, more), r.samples);
	}
	trainer_close(&t);
	return EXIT_DONE;
}

int command_predict(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Trainer t;
	TrainerOptions to = trainer_options(o);
	DataSplit split = SPLIT_TEST;
	int64_t samples = 0;
	if (!o->output) {
		fail(&f, EXIT_FILES, "predict needs --output FILE.npy or FILE.csv");
		return report(&f);
	}
	if (!trainer_open(&t, plan, &to, "predict predict1", &f))
		return report(&f);
	bool ok = load_for_use(&t, o, &f) && split_of(&t, o, &split, &f) &&
		  trainer_predict(&t, split, o->output, &samples, &f);
	trainer_close(&t);
	if (!ok)
		return report(&f);
	if (!o->quiet)
		printf("%s: predictions of %" PRId64 " %s samples\n", o->output, samples,
		       split == SPLIT_TEST ? "test" : "training");
	return EXIT_DONE;
}

int command_export(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Trainer t;
	TrainerOptions to = trainer_options(o);
	int tensors = 0;
	if (!o->output) {
		fail(&f, EXIT_FILES, "export needs --output FILE.safetensors");
		return report(&f);
	}
	if (o->merge && o->adapters) {
		fail(&f, EXIT_FILES, "--merge and --adapters exclude each other");
		return report(&f);
	}
	to.no_data = true;
	if (!trainer_open(&t, plan, &to, "", &f))
		return report(&f);
	ExportWhat what = o->merge ? EXPORT_MERGED : o->adapters ? EXPORT_ADAPTERS : EXPORT_ALL;
	bool ok = load_for_use(&t, o, &f) &&
		  checkpoint_export(t.device, o->output, what, &tensors, &f);
	trainer_close(&t);
	if (!ok)
		return report(&f);
	if (o->merge && !plan->nadapters && !o->quiet)
		fprintf(stderr, "note: the model has no adapters, so there is nothing to merge\n");
	if (!o->quiet)
		printf("%s: %d tensors\n", o->output, tensors);
	return EXIT_DONE;
}

/* ---- info ----------------------------------------------------------------------------------- */

static void print_dims(FILE *out, int ndim, const int64_t *dim, const char *between)
{
	fputc('[', out);
	for (int i = 0; i < ndim; i++)
		fprintf(out, "%s%" PRId64, i ? between : "", dim[i]);
	fputc(']', out);
}

static void info_json(const Plan *plan)
{
	const char *separator = "";
	printf("{\"plan\":%s,\"parameters\":[", plan->json && plan->json[0] ? plan->json : "null");
	for (int i = 0; i < plan->nvars; i++) {
		const PlanVar *v = &plan->vars[i];
		if (v->role != PV_PARAM)
			continue;
		printf("%s{\"name\":", separator);
		json_print_string(stdout, v->name);
		printf(",\"dtype\":\"%s\",\"shape\":", plan_dtype_name(v->dtype));
		print_dims(stdout, v->ndim, v->dim, ",");
		printf(",\"bytes\":%" PRId64 "%s}", v->bytes, v->frozen ? ",\"frozen\":true" : "");
		separator = ",";
	}
	printf("],\"data\":[");
	for (int i = 0; i < plan->ndata; i++) {
		if (data_is_own(plan->data[i].type))
			continue;
		printf("%s{\"name\":", i ? "," : "");
		json_print_string(stdout, plan->data[i].name);
		printf(",\"type\":\"%s\",\"fields\":[", plan->data[i].type);
		separator = "";
		for (int k = 0; k < plan->ninputs; k++) {
			const PlanInput *in = &plan->inputs[k];
			if (in->data != i)
				continue;
			printf("%s{\"name\":", separator);
			json_print_string(stdout, in->field);
			printf(",\"dtype\":\"%s\",\"shape\":", plan_dtype_name(in->dtype));
			print_dims(stdout, in->ndim, in->dim, ",");
			printf("}");
			separator = ",";
		}
		printf("]}");
	}
	printf("],\"fingerprint\":\"%s\",\"threads\":%d,\"seed\":%" PRIu64 "}\n", plan->fingerprint,
	       plan->threads, plan->seed);
}

static void info_text(const Plan *plan)
{
	char arena[32], budget[32];
	int64_t count = 0;
	for (int i = 0; i < plan->nvars; i++)
		if (plan->vars[i].role == PV_PARAM)
			count += plan->vars[i].bytes / plan_dtype_bytes(plan->vars[i].dtype);
	printf("%s (%s), compiled for ", plan->model, plan->model_path);
	if (plan->arch)
		printf("%s (%s)\n", plan->target, plan->arch);
	else
		printf("%s, at most %d threads\n", plan->target, plan->threads);
	printf("memory      arena %s of a budget of %s\n", memory_text(plan->arena_bytes, arena),
	       plan->budget_bytes == INT64_MAX ? "any size"
					       : memory_text(plan->budget_bytes, budget));
	printf("batch       %" PRId64 " in micro-batches of %" PRId64, plan->batch,
	       plan->micro_batch);
	if (plan->batch % plan->micro_batch)
		printf(", the last of %" PRId64, plan->batch % plan->micro_batch);
	putchar('\n');
	printf("steps       %.0f\n", trainer_setting(plan, "steps", 0));
	printf("parameters  %" PRId64 "\n", count);
	for (int i = 0; i < plan->nvars; i++) {
		const PlanVar *v = &plan->vars[i];
		if (v->role != PV_PARAM)
			continue;
		printf("  %-32s %s", v->name, plan_dtype_name(v->dtype));
		print_dims(stdout, v->ndim, v->dim, ", ");
		printf("%s\n", v->frozen ? " frozen" : "");
	}
	for (int i = 0; i < plan->ndata; i++) {
		if (data_is_own(plan->data[i].type))
			continue;
		printf("data        %s (%s)\n", plan->data[i].name, plan->data[i].type);
		for (int k = 0; k < plan->ninputs; k++)
			if (plan->inputs[k].data == i) {
				printf("  %-32s %s", plan->inputs[k].name,
				       plan_dtype_name(plan->inputs[k].dtype));
				print_dims(stdout, plan->inputs[k].ndim, plan->inputs[k].dim, ", ");
				printf("\n");
			}
	}
}

int command_info(const Plan *plan, const Options *o)
{
	if (o->json)
		info_json(plan);
	else
		info_text(plan);
	return EXIT_DONE;
}

/* ---- bench ---------------------------------------------------------------------------------- */

enum { BENCH_WARM_UP = 5, BENCH_STEPS = 50 };

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static bool bench_run(Trainer *t, double *seconds, int64_t n, Fail *f)
{
	StepResult r;
	int64_t last = t->state.step + BENCH_WARM_UP + n;
	for (int64_t i = -BENCH_WARM_UP; i < n; i++) {
		if (!trainer_advance(t, last, &r, NULL, f))
			return false;
		if (i >= 0)
			seconds[i] = r.seconds;
	}
	qsort(seconds, (size_t)n, sizeof *seconds, by_value);
	return true;
}

int command_bench(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Trainer t;
	TrainerOptions to = trainer_options(o);
	to.zeros_without_data = true;
	int64_t n = o->steps > 0 ? o->steps : BENCH_STEPS;
	double *seconds = malloc((size_t)n * sizeof *seconds);
	if (!seconds || !trainer_open(&t, plan, &to, "step", &f)) {
		free(seconds);
		return f.code ? report(&f) : EXIT_FILES;
	}
	if (t.synthetic)
		fprintf(stderr, "note: no data files; the inputs are zeros\n");
	bool ok = load_weights(&t, o, &f) && bench_run(&t, seconds, n, &f);
	if (!ok) {
		trainer_close(&t);
		free(seconds);
		return report(&f);
	}
	double median = seconds[n / 2], least = seconds[0], samples = (double)plan->batch / median;
	int64_t tokens = data_tokens(t.data);
	if (o->json) {
		JsonLine j;
		json_begin(&j);
		json_num(&j, "step_seconds_median", median);
		json_num(&j, "step_seconds_min", least);
		json_num(&j, "samples_per_second", samples);
		json_num(&j, "tokens_per_second", samples * (double)tokens);
		json_int(&j, "threads", device_info(t.device)->threads);
		json_int(&j, "steps", n);
		json_bool(&j, "synthetic_data", t.synthetic);
		json_end(&j);
		fputs(j.text, stdout);
	} else {
		printf("step: median %.3f ms, least %.3f ms over %" PRId64
		       " steps, %s; %.0f samples/s",
		       1e3 * median, 1e3 * least, n, device_info(t.device)->name, samples);
		if (tokens)
			printf(", %.0f tokens/s", samples * (double)tokens);
		printf("\n");
	}
	trainer_close(&t);
	free(seconds);
	return EXIT_DONE;
}

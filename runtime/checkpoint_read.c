/* Resuming: a checkpoint's whole state, or nothing.
 *
 * Nothing in the arena changes unless the whole file is accepted. Weights alone are weights.c's. */
#include "checkpoint.h"

#include "safetensors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_var(const TensorFile *x, const PlanVar *v, Faults *faults)
{
	Tensor *t = tensors_find(x, v->name);
	char want[128], found[128];
	tensor_shape_text(v->dtype, v->ndim, v->dim, want);
	if (!t) {
		fault(faults, "'%s' is missing, expected %s", v->name, want);
		return;
	}
	t->used = true;
	tensor_shape_text(t->dtype, t->ndim, t->dim, found);
	if (!tensor_like(t, v) || t->dtype != v->dtype)
		fault(faults, "'%s' is %s, expected %s", v->name, found, want);
}

/* A metadata entry that is a whole number of at most `most` and nothing else. */
static uint64_t whole_number(const TensorFile *x, const char *key, uint64_t most, Faults *faults)
{
	const char *text = tensors_metadata(x, key);
	char *end = NULL;
	errno = 0;
	unsigned long long v = text && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
	if (!end || *end || errno || v > most)
		fault(faults, "its '%s' is %s%s%s, expected a whole number", key, text ? "'" : "", text ? text : "missing", text ? "'" : "");
	return v;
}

static void read_best(const TensorFile *x, CheckpointState *s, Faults *faults)
{
	const char *loss = tensors_metadata(x, "best_loss");
	char *end = NULL;
	s->best_step = -1;
	if (!loss && !tensors_metadata(x, "best_step") && !tensors_metadata(x, "evals_since_best"))
		return;
	s->best_loss = loss ? strtod(loss, &end) : 0;
	if (!end || end == loss || *end)
		fault(faults, "its 'best_loss' is '%s', expected a number", loss ? loss : "");
	s->best_step = (int64_t)whole_number(x, "best_step", INT64_MAX, faults);
	s->evals_since_best = (int64_t)whole_number(x, "evals_since_best", INT64_MAX, faults);
	if (isnan(s->best_loss)) /* nothing would ever be better: there is no best yet */
		s->best_step = -1;
}

/* What the file says of the run beside its variables. */
static CheckpointState read_state(const TensorFile *x, Faults *faults)
{
	CheckpointState s = { .step = (int64_t)whole_number(x, "step", INT64_MAX / 2, faults),
			      .seed = whole_number(x, "seed", UINT64_MAX, faults) };
	const char *shuffle = tensors_metadata(x, "shuffle");
	s.shuffle = strcmp(shuffle, "true") == 0;
	if (!s.shuffle && strcmp(shuffle, "false") != 0)
		fault(faults, "its 'shuffle' is '%s', expected true or false", shuffle);
	if (!tensors_metadata(x, "data_hash"))
		fault(faults, "its 'data_hash' is missing");
	read_best(x, &s, faults);
	return s;
}

bool checkpoint_resume(Device *d, const char *path, CheckpointState *s, Fail *f)
{
	const Plan *plan = device_info(d)->plan;
	TensorFile x;
	if (!tensors_open(&x, path, f))
		return false;
	const char *fingerprint = tensors_metadata(&x, "fingerprint"), *step = tensors_metadata(&x, "step"),
		   *seed = tensors_metadata(&x, "seed");
	const char *model = tensors_metadata(&x, "model"), *shuffle = tensors_metadata(&x, "shuffle");
	bool ours = fingerprint && step && seed && shuffle;
	if (!ours) {
		fail(f, EXIT_INPUT,
		     "%s: no training state in this file (weights alone are taken by --init)",
		     x.path);
		tensors_close(&x);
		return false;
	}
	fail(f, EXIT_INPUT, "%s: does not fit this model", x.path);
	Faults faults = { .f = f };
	for (int i = 0; i < plan->nvars; i++)
		check_var(&x, &plan->vars[i], &faults);
	for (int i = 0; i < x.ntensors; i++)
		if (!x.tensor[i].used)
			fault(&faults, "'%s' is not in the model", x.tensor[i].name);
	if (!faults.n && strcmp(fingerprint, plan->fingerprint))
		fault(&faults, "its fingerprint is %s (model '%s'), expected %s (model '%s')",
		      fingerprint, model ? model : "?", plan->fingerprint, plan->model);
	CheckpointState state = read_state(&x, &faults);
	bool ok = faults_finish(&faults);
	for (int i = 0; ok && i < plan->nvars; i++)
		ok = device_write(d, plan->vars[i].offset, plan->vars[i].bytes,
				  tensors_find(&x, plan->vars[i].name)->data, f);
	if (ok)
		*s = state;
	tensors_close(&x);
	return ok;
}

/* Resuming: a checkpoint's whole state, or nothing.
 *
 * Nothing in the arena changes unless the whole file is accepted. Weights alone are weights.c's. */
#include "checkpoint.h"

#include "safetensors.h"

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
	bool ok = faults_finish(&faults);
	for (int i = 0; ok && i < plan->nvars; i++)
		ok = device_write(d, plan->vars[i].offset, plan->vars[i].bytes,
				  tensors_find(&x, plan->vars[i].name)->data, f);
	if (ok) {
		const char *loss = tensors_metadata(&x, "best_loss"), *best = tensors_metadata(&x, "best_step"),
			   *since = tensors_metadata(&x, "evals_since_best");
		*s = (CheckpointState){ .step = strtoll(step, NULL, 10),
					.seed = strtoull(seed, NULL, 10),
					.shuffle = strcmp(shuffle, "true") == 0,
					.best_step = -1 };
		if (loss && best && since) {
			s->best_loss = strtod(loss, NULL);
			s->best_step = strtoll(best, NULL, 10);
			s->evals_since_best = strtoll(since, NULL, 10);
		}
	}
	tensors_close(&x);
	return ok;
}

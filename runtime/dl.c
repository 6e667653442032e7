/* The C API over train.h: a Trainer, its last failure, and the texts that the options point into.
 */
#include "dl.h"

#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DATA = 32 };

struct Dl {
	Trainer t;
	Fail fail;
	bool open;
	char *data_text;
	DataOverride data[MAX_DATA];
};

/* Splits "a=b\nc.d=e" into overrides, within a copy. */
static bool parse_data(Dl *d, const char *text, int *n)
{
	*n = 0;
	if (!text)
		return true;
	if (!(d->data_text = strdup(text)))
		return fail(&d->fail, EXIT_FILES, "out of memory");
	char *save = NULL;
	for (char *line = strtok_r(d->data_text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		if (*n == MAX_DATA || !data_parse_override(line, &d->data[(*n)++]))
			return fail(&d->fail, EXIT_FILES,
				    "data: expected name=path or name.key=value on each line");
	return true;
}

Dl *dl_open(const DlOptions *o)
{
	Dl *d = calloc(1, sizeof *d);
	TrainerOptions to = { .device = { .threads = o->threads, .number = o->device },
			      .no_shuffle = o->no_shuffle,
			      .has_seed = o->seed != 0,
			      .seed = o->seed };
	if (!d || !parse_data(d, o->data, &to.ndata))
		return d;
	to.data = d->data;
	d->open = trainer_open(&d->t, &dl_plan, &to, "step eval eval1 predict predict1", &d->fail);
	return d;
}

void dl_close(Dl *d)
{
	if (!d)
		return;
	if (d->open)
		trainer_close(&d->t);
	free(d->data_text);
	free(d);
}

const char *dl_error(const Dl *d)
{
	return d->fail.text[0] ? d->fail.text : NULL;
}

/* Every call starts with a clean slate; one that needs an open trainer fails without. */
static bool ready(Dl *d)
{
	if (d->open)
		d->fail = (Fail){ 0 };
	return d->open;
}

bool dl_step(Dl *d, double *loss)
{
	StepResult r;
	if (!ready(d) || !trainer_step(&d->t, &r, NULL, &d->fail))
		return false;
	if (loss)
		*loss = r.loss;
	return true;
}

int64_t dl_steps_done(const Dl *d)
{
	return d->open ? d->t.state.step : 0;
}

bool dl_output(const Dl *d, const char *name, double *value)
{
	const PlanFunc *step = d->open ? run_find(d->t.plan, "step") : NULL;
	return step && run_output(d->t.device, step, 0, name, value);
}

bool dl_evaluate(Dl *d, double *loss, double *accuracy)
{
	EvalResult r;
	if (!ready(d) || !trainer_eval(&d->t, SPLIT_TEST, &r, &d->fail))
		return false;
	if (loss)
		*loss = r.loss;
	if (accuracy)
		*accuracy = r.has_accuracy ? r.accuracy : (double)NAN;
	return true;
}

bool dl_predict(Dl *d, const char *path)
{
	int64_t samples;
	return ready(d) && trainer_predict(&d->t, SPLIT_TEST, path, &samples, &d->fail);
}

bool dl_save(Dl *d, const char *dir)
{
	int folder = ready(d) ? checkpoint_folder(dir, &d->fail) : -1;
	bool saved = folder >= 0 && trainer_save(&d->t, dir, 0, &d->fail);
	if (folder >= 0)
		close(folder);
	return saved;
}

bool dl_load_weights(Dl *d, const char *path)
{
	Fail note;
	return ready(d) && checkpoint_init(d->t.device, path, NULL, INIT_WHOLE, &note, &d->fail);
}

bool dl_resume(Dl *d, const char *path)
{
	return ready(d) && trainer_resume(&d->t, path, false, 0, &d->fail);
}

/* ---- parameters ----------------------------------------------------------------------------- */

int dl_parameters(const Dl *d)
{
	int n = 0;
	for (int i = 0; d->open && i < d->t.plan->nvars; i++)
		n += d->t.plan->vars[i].role == PV_PARAM;
	return n;
}

static const PlanVar *parameter(const Dl *d, int i)
{
	for (int k = 0; d->open && k < d->t.plan->nvars; k++)
		if (d->t.plan->vars[k].role == PV_PARAM && i-- == 0)
			return &d->t.plan->vars[k];
	return NULL;
}

bool dl_parameter(const Dl *d, int i, DlParameter *out)
{
	const PlanVar *v = parameter(d, i);
	if (!v)
		return false;
	*out = (DlParameter){ .name = v->name,
			      .dtype = plan_dtype_name(v->dtype),
			      .ndim = v->ndim,
			      .dim = v->dim,
			      .data = device_host_pointer(d->t.device, v->offset),
			      .bytes = v->bytes };
	return true;
}

static bool no_parameter(Dl *d, int i)
{
	return fail(&d->fail, EXIT_FILES, "there is no parameter %d", i);
}

bool dl_read_parameter(Dl *d, int i, void *to)
{
	const PlanVar *v = parameter(d, i);
	if (!ready(d))
		return false;
	return v ? device_read(d->t.device, v->offset, v->bytes, to, &d->fail) : no_parameter(d, i);
}

bool dl_write_parameter(Dl *d, int i, const void *from)
{
	const PlanVar *v = parameter(d, i);
	if (!ready(d))
		return false;
	return v ? device_write(d->t.device, v->offset, v->bytes, from, &d->fail) : no_parameter(d, i);
}

int64_t dl_arena_bytes(const Dl *d)
{
	return d->open ? d->t.plan->arena_bytes : 0;
}

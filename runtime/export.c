/* Writing weights for other tools: safetensors with the model's own names, nothing of the training.
 *
 * Of a parameter that has a moving average the average is written. Merged, a weight with an adapter
 * becomes w + scale * (B A), computed in f64 row by row and written as f32 (f64 where it is f64), and
 * the adapters are left out. The file is written under a temporary name, synced and renamed. */
#include "checkpoint.h"

#include "checkpoint_format.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One tensor of the file. */
typedef struct Item {
	const PlanVar *v;           /* by whose name */
	const PlanAdapter *adapter; /* merged into it; NULL */
	PlanDType dtype;
	int64_t bytes;
} Item;

typedef struct Export {
	Device *d;
	const Plan *plan;
	Item *item;
	int n;
} Export;

static int by_name(const void *a, const void *b)
{
	return strcmp(((const Item *)a)->v->name, ((const Item *)b)->v->name);
}

const PlanVar *plan_average_of(const Plan *plan, const PlanVar *v)
{
	for (int i = 0; v->role == PV_OPT && i < plan->nvars && !strncmp(v->name, "dlc.ema.", 8); i++)
		if (!strcmp(plan->vars[i].name, v->name + 8))
			return &plan->vars[i];
	return NULL;
}

/* The variable that holds the value of a parameter: its average, where there is one. */
static const PlanVar *value_of(const Plan *plan, const PlanVar *v)
{
	for (int i = 0; i < plan->nvars; i++)
		if (plan_average_of(plan, &plan->vars[i]) == v)
			return &plan->vars[i];
	return v;
}

static bool part_of_adapter(const Plan *plan, const PlanVar *v)
{
	for (int i = 0; i < plan->nadapters; i++)
		if (&plan->vars[plan->adapters[i].a] == v || &plan->vars[plan->adapters[i].b] == v)
			return true;
	return false;
}

static const PlanAdapter *adapter_of(const Plan *plan, const PlanVar *v)
{
	for (int i = 0; i < plan->nadapters; i++)
		if (&plan->vars[plan->adapters[i].weight] == v)
			return &plan->adapters[i];
	return NULL;
}

static bool choose_items(Export *x, ExportWhat what, Fail *f)
{
	const Plan *plan = x->plan;
	x->item = calloc((size_t)plan->nvars + 1, sizeof *x->item);
	if (!x->item)
		return fail(f, EXIT_FILES, "out of memory");
	for (int i = 0; i < plan->nvars; i++) {
		const PlanVar *v = &plan->vars[i];
		bool part = part_of_adapter(plan, v);
		if ((v->role != PV_PARAM && v->role != PV_STAT) || (what == EXPORT_MERGED && part) ||
		    (what == EXPORT_ADAPTERS && !part))
			continue;
		Item *it = &x->item[x->n++];
		*it = (Item){ .v = v, .dtype = v->dtype, .bytes = v->bytes };
		it->adapter = what == EXPORT_MERGED ? adapter_of(plan, v) : NULL;
		if (it->adapter && v->dtype != PD_F64) {
			it->dtype = PD_F32;
			it->bytes = v->bytes / plan_dtype_bytes(v->dtype) * 4;
		}
	}
	qsort(x->item, (size_t)x->n, sizeof *x->item, by_name);
	return x->n > 0 || fail(f, EXIT_FILES, "the model has no adapters");
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* The text, padded to a multiple of 8; NULL without memory. */
static char *header_text(const Export *x)
{
	json_t *head = json_object();
	int64_t at = 0;
	json_object_set_new(head, "__metadata__", json_pack("{s:s}", "format", "pt"));
	for (int i = 0; i < x->n; i++) {
		const Item *it = &x->item[i];
		json_t *shape = json_array();
		for (int d = 0; d < it->v->ndim; d++)
			json_array_append_new(shape, json_integer(it->v->dim[d]));
		json_object_set_new(head, it->v->name,
				    json_pack("{s:s, s:o, s:[I, I]}", "dtype",
					      safetensors_dtype(it->dtype), "shape", shape,
					      "data_offsets", (json_int_t)at, (json_int_t)(at + it->bytes)));
		at += it->bytes;
	}
	char *text = json_dumps(head, JSON_COMPACT), *padded = NULL;
	json_decref(head);
	if (text && (padded = malloc(strlen(text) + 8))) {
		strcpy(padded, text);
		while (strlen(padded) % 8)
			strcat(padded, " ");
	}
	free(text);
	return padded;
}

/* What a merged weight is computed from and in. */
typedef struct Merge {
	const PlanVar *w, *a, *b; /* the variables that are read */
	unsigned char *at, *bt;   /* the adapter, whole */
	unsigned char *wt;        /* a row of the weight */
	double *row;
	float *out;
} Merge;

static bool merge_open(Merge *m, const Export *x, const Item *it, Fail *f)
{
	size_t columns = (size_t)it->v->dim[1];
	*m = (Merge){ .w = value_of(x->plan, it->v),
		      .a = value_of(x->plan, &x->plan->vars[it->adapter->a]),
		      .b = value_of(x->plan, &x->plan->vars[it->adapter->b]) };
	m->at = malloc((size_t)m->a->bytes);
	m->bt = malloc((size_t)m->b->bytes);
	m->wt = malloc(columns * (size_t)plan_dtype_bytes(m->w->dtype));
	m->row = malloc(columns * sizeof *m->row);
	m->out = malloc(columns * sizeof *m->out);
	if (!m->at || !m->bt || !m->wt || !m->row || !m->out)
		return fail(f, EXIT_FILES, "out of memory");
	return device_read(x->d, m->a->offset, m->a->bytes, m->at, f) &&
	       device_read(x->d, m->b->offset, m->b->bytes, m->bt, f);
}

static void merge_close(Merge *m)
{
	free(m->at);
	free(m->bt);
	free(m->wt);
	free(m->row);
	free(m->out);
}

/* Row i of the weight with its adapter. */
static bool merge_row(const Merge *m, const Export *x, const Item *it, int64_t i, Fail *f)
{
	int64_t columns = it->v->dim[1], rank = m->a->dim[0], in = m->a->dim[1];
	int64_t bytes = columns * plan_dtype_bytes(m->w->dtype);
	if (!device_read(x->d, m->w->offset + i * bytes, bytes, m->wt, f))
		return false;
	for (int64_t j = 0; j < columns; j++) {
		int64_t from = it->adapter->in_out ? i : j, to = it->adapter->in_out ? j : i;
		double sum = 0;
		for (int64_t k = 0; k < rank; k++)
			sum += plan_element(m->b->dtype, m->bt, to * rank + k) *
			       plan_element(m->a->dtype, m->at, k * in + from);
		m->row[j] = plan_element(m->w->dtype, m->wt, j) + it->adapter->scale * sum;
		m->out[j] = (float)m->row[j];
	}
	return true;
}

static bool write_merged(const Export *x, const Item *it, int fd, Fail *f)
{
	Merge m;
	size_t columns = (size_t)it->v->dim[1];
	bool ok = merge_open(&m, x, it, f);
	for (int64_t i = 0; ok && i < it->v->dim[0]; i++)
		ok = merge_row(&m, x, it, i, f) &&
		     (it->dtype == PD_F64 ? write_all(fd, m.row, columns * sizeof *m.row)
					  : write_all(fd, m.out, columns * sizeof *m.out));
	merge_close(&m);
	return ok;
}

static bool write_plain(const Export *x, const PlanVar *v, int fd, Fail *f)
{
	bool ok = true;
	for (int64_t at = 0; ok && at < v->bytes; at += DEVICE_CHUNK) {
		int64_t n = v->bytes - at < DEVICE_CHUNK ? v->bytes - at : DEVICE_CHUNK;
		const void *p = device_view(x->d, v->offset + at, n, f);
		ok = p && write_all(fd, p, (size_t)n);
	}
	return ok;
}

/* False after filling f, or with errno set. */
static bool write_file(const Export *x, const char *header, const char *path, Fail *f)
{
	unsigned char length[8];
	size_t n = strlen(header);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return false;
	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(n >> (8 * i));
	bool ok = write_all(fd, length, 8) && write_all(fd, header, n);
	for (int i = 0; ok && i < x->n; i++) {
		const Item *it = &x->item[i];
		ok = it->adapter ? write_merged(x, it, fd, f)
				 : write_plain(x, value_of(x->plan, it->v), fd, f);
	}
	ok = ok && fsync(fd) == 0;
	int e = errno;
	ok = close(fd) == 0 && ok;
	errno = e;
	return ok;
}

bool checkpoint_export(Device *d, const char *path, ExportWhat what, int *tensors, Fail *f)
{
	Export x = { .d = d, .plan = device_info(d)->plan };
	char temp[4096];
	if (!choose_items(&x, what, f)) {
		free(x.item);
		return false;
	}
	char *header = header_text(&x);
	bool ok = header && snprintf(temp, sizeof temp, "%s.tmp", path) < (int)sizeof temp &&
		  write_file(&x, header, temp, f) && rename(temp, path) == 0;
	if (!ok) {
		if (!f->code)
			fail(f, EXIT_FILES, "cannot write %s: %s", path,
			     header ? strerror(errno) : "out of memory");
		unlink(temp);
	}
	*tensors = x.n;
	free(header);
	free(x.item);
	return ok;
}

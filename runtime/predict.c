/* Predictions as a .npy or a .csv file.
 *
 * A .npy file is mapped, and each call's result is copied from the arena to its rows; of a .csv a row is printed for each
 * sample, from a piece of the arena at a time. So predictions of any size need no memory of their own. The file is made under a
 * temporary name (a .npy with its blocks reserved) and renamed when it is whole. */
#include "train.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NPY_HEADER = 256 };

static const char *npy_descr(PlanDType t)
{
	static const char *const descr[] = {
		[PD_BOOL] = "|b1", [PD_U8] = "|u1",  [PD_U16] = "<u2",
		[PD_I32] = "<i4",  [PD_I64] = "<i8", [PD_F16] = "<f2",
		[PD_BF16] = "<u2", [PD_F32] = "<f4", [PD_F64] = "<f8"
	};
	return descr[t];
}

/* Version 1.0; the header is padded to a fixed length, a multiple of 64. */
static void npy_header(char out[NPY_HEADER], const PlanOutput *o, int64_t rows)
{
	memset(out, ' ', NPY_HEADER);
	memcpy(out, "\x93NUMPY\x01\x00", 8);
	out[8] = (char)(unsigned char)(NPY_HEADER - 10);
	out[9] = 0;
	char text[NPY_HEADER];
	size_t n = (size_t)snprintf(
		text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRId64 ",",
		npy_descr(o->dtype), rows);
	for (int i = 1; i < o->ndim; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%" PRId64, i > 1 ? ", " : " ",
				      o->dim[i]);
	n += (size_t)snprintf(text + n, sizeof text - n, "), }");
	memcpy(out + 10, text, n);
	out[NPY_HEADER - 1] = '\n';
}

typedef struct Target {
	const PlanFunc *full, *tail;
	const PlanOutput *output; /* of `full` */
	int64_t samples, sample_bytes;
	unsigned char *rows; /* of the .npy; else NULL */
	FILE *csv;
} Target;

/* Elements of samples, with as many digits as give a float back; `*column` goes on from piece to piece. */
static void print_elements(const Target *to, const void *p, int64_t n, int64_t *column)
{
	PlanDType t = to->output->dtype;
	int digits = t == PD_F64 ? 17 : t >= PD_F16 ? 9 : 20;
	int64_t columns = to->sample_bytes / plan_dtype_bytes(t);
	for (int64_t i = 0; i < n; i++) {
		fprintf(to->csv, "%s%.*g", *column ? "," : "", digits, plan_element(t, p, i));
		if (++*column == columns) {
			fputc('\n', to->csv);
			*column = 0;
		}
	}
}

static bool print_rows(Trainer *t, const Target *to, const PlanFunc *func, Fail *f)
{
	int64_t offset = run_output_offset(func, run_large_output(func)), column = 0;
	int64_t bytes = func->batch * to->sample_bytes;
	for (int64_t at = 0; at < bytes; at += DEVICE_CHUNK) {
		int64_t n = bytes - at < DEVICE_CHUNK ? bytes - at : DEVICE_CHUNK;
		const void *p = device_view(t->device, offset + at, n, f);
		if (!p)
			return false;
		print_elements(to, p, n / plan_dtype_bytes(to->output->dtype), &column);
	}
	return true;
}

/* Takes the result of a call to its rows in the file. */
static bool keep_rows(Trainer *t, const Target *to, const PlanFunc *func, int64_t at, Fail *f)
{
	if (to->csv)
		return print_rows(t, to, func, f);
	return device_read(t->device, run_output_offset(func, run_large_output(func)),
			   func->batch * to->sample_bytes, to->rows + at * to->sample_bytes, f);
}

static bool predict_all(Trainer *t, const Target *to, DataSplit split, Fail *f)
{
	int64_t at = 0;
	while (at < to->samples) {
		const PlanFunc *func = at + to->full->batch <= to->samples ? to->full : to->tail;
		DataCursor cursor = data_at_sample(t->data, split, at);
		RunCall call = { .seed = t->state.seed,
				 .step = t->state.step,
				 .source = { data_read, &cursor } };
		if (!device_call(t->device, func, &call, f) || !device_wait(t->device, func, 0, f))
			return false;
		if (call.bad.step)
			return fail(f, EXIT_INPUT,
				    "prediction: %s (%s) is not finite at sample %" PRId64
				    " or after",
				    call.bad.step->name, call.bad.step->source, at);
		if (!keep_rows(t, to, func, at, f))
			return false;
		at += func->batch;
	}
	return true;
}

static bool write_csv(Trainer *t, Target *to, DataSplit split, int fd, const char *path, Fail *f)
{
	to->csv = fdopen(dup(fd), "w");
	if (!to->csv)
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	bool ok = predict_all(t, to, split, f);
	if (fclose(to->csv) && ok)
		ok = fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	return ok;
}

static bool write_npy(Trainer *t, Target *to, DataSplit split, int fd, const char *path, Fail *f)
{
	const PlanOutput *o = to->output;
	int64_t size = NPY_HEADER + to->samples * to->sample_bytes;
	int e = posix_fallocate(fd, 0, size);
	if (e)
		return fail(f, EXIT_FILES, "%s: cannot reserve %" PRId64 " bytes: %s", path, size,
			    strerror(e));
	unsigned char *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return fail(f, EXIT_FILES, "%s: cannot map the file: %s", path, strerror(errno));
	npy_header((char *)p, o, to->samples * (o->dim[0] / to->full->batch));
	to->rows = p + NPY_HEADER;
	bool ok = predict_all(t, to, split, f);
	munmap(p, (size_t)size);
	return ok;
}

bool trainer_predict(Trainer *t, DataSplit split, const char *path, int64_t *samples, Fail *f)
{
	Target to = { .full = run_find(t->plan, "predict"), .tail = run_find(t->plan, "predict1") };
	size_t length = strlen(path);
	bool csv = length > 4 && !strcmp(path + length - 4, ".csv");
	if (!csv && (length <= 4 || strcmp(path + length - 4, ".npy")))
		return fail(f, EXIT_FILES, "%s: predictions are written to FILE.npy or FILE.csv", path);
	to.output = to.full ? run_large_output(to.full) : NULL;
	if (!to.output)
		return fail(f, EXIT_FILES, "this model has no 'predict' output");
	to.samples = data_samples(t->data, split);
	if (to.samples == 0)
		return fail(f, EXIT_FILES, "the data have no %s split",
			    split == SPLIT_TEST ? "test" : "training");
	if (!to.tail)
		to.samples -= to.samples % to.full->batch;
	to.sample_bytes = plan_output_bytes(to.output) / to.full->batch;
	char temp[4096];
	snprintf(temp, sizeof temp, "%s.tmp", path);
	int fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	bool ok = csv ? write_csv(t, &to, split, fd, path, f) : write_npy(t, &to, split, fd, path, f);
	close(fd);
	if (ok && rename(temp, path))
		ok = fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	if (!ok)
		unlink(temp);
	*samples = to.samples;
	return ok;
}

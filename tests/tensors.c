/* Looks into checkpoints, for the test scripts: an independent reader of safetensors.
 *
 *     tensors list FILE            name, type and shape, one tensor a line
 *     tensors print FILE NAME      its values on one line, %.9g
 *     tensors same A B             exit 0 where both hold the same tensors, bit for bit
 *     tensors near A B REL [PART [SCALE]]   exit 0 where each float tensor agrees to REL in norm, the others bit for bit;
 *                                  PART: a tensor smaller than that part of all of B together is measured against that (what
 *                                  would be 0 but for rounding); SCALE: floats of B are multiplied by it
 *     tensors delta A B OUT        writes A - B of the f32 tensors as safetensors (what some steps have changed)
 *
 * `same`, `near` and `delta` look at parameters alone (names that do not start with "dlc.") after a first argument -p. */
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct File {
	const char *path;
	const unsigned char *bytes;
	size_t size, data; /* where the tensors begin */
	json_t *head;
} File;

typedef struct Tensor {
	const char *dtype;
	const unsigned char *at;
	size_t bytes;
	json_t *shape;
} Tensor;

static _Noreturn void die(const char *path, const char *why)
{
	fprintf(stderr, "tensors: %s: %s\n", path, why);
	exit(2);
}

static File file_open(const char *path)
{
	File f = { .path = path };
	struct stat st;
	uint64_t n = 0;
	json_error_t error;
	int fd = open(path, O_RDONLY);
	void *map;

	if (fd < 0 || fstat(fd, &st) != 0)
		die(path, "cannot be read");
	f.size = (size_t)st.st_size;
	if (f.size < 8)
		die(path, "expected at least 8 bytes");
	map = mmap(NULL, f.size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		die(path, "cannot be mapped");
	close(fd);
	f.bytes = map;
	for (int i = 7; i >= 0; i--)
		n = n << 8 | f.bytes[i];
	if (n > f.size - 8)
		die(path, "the header is longer than the file");
	f.data = 8 + (size_t)n;
	f.head = json_loadb((const char *)f.bytes + 8, (size_t)n, 0, &error);
	if (!f.head)
		die(path, error.text);
	return f;
}

static bool tensor_find(const File *f, const char *name, Tensor *t)
{
	json_t *o = json_object_get(f->head, name), *at = json_object_get(o, "data_offsets");
	json_int_t from = json_integer_value(json_array_get(at, 0)), to = json_integer_value(json_array_get(at, 1));

	if (!o)
		return false;
	if (from < 0 || to < from || (uint64_t)to > f->size - f->data)
		die(f->path, "a tensor lies outside the file");
	t->dtype = json_string_value(json_object_get(o, "dtype"));
	t->shape = json_object_get(o, "shape");
	t->at = f->bytes + f->data + from;
	t->bytes = (size_t)(to - from);
	return true;
}

static size_t elem_bytes(const char *dtype)
{
	if (strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0)
		return 8;
	if (strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0)
		return 4;
	return strcmp(dtype, "BOOL") == 0 || strcmp(dtype, "U8") == 0 ? 1 : 2;
}

static double element(const Tensor *t, size_t i)
{
	float f;
	double d;
	int64_t l;
	int32_t n;

	if (strcmp(t->dtype, "F32") == 0)
		return memcpy(&f, t->at + 4 * i, 4), (double)f;
	if (strcmp(t->dtype, "F64") == 0)
		return memcpy(&d, t->at + 8 * i, 8), d;
	if (strcmp(t->dtype, "I64") == 0)
		return memcpy(&l, t->at + 8 * i, 8), (double)l;
	if (strcmp(t->dtype, "I32") == 0)
		return memcpy(&n, t->at + 4 * i, 4), n;
	return t->at[i * elem_bytes(t->dtype)];
}

static bool is_float(const Tensor *t)
{
	return strcmp(t->dtype, "F32") == 0 || strcmp(t->dtype, "F64") == 0;
}

static void list(const File *f)
{
	const char *name;
	json_t *o;

	json_object_foreach(f->head, name, o) {
		char *shape = json_dumps(json_object_get(o, "shape"), JSON_COMPACT);

		if (strcmp(name, "__metadata__") != 0)
			printf("%s %s %s\n", name, json_string_value(json_object_get(o, "dtype")), shape);
		free(shape);
	}
}

/* How two files are compared: to `rel` in norm (0: bit for bit) with `scale` times the second one's floats; tensors
 * whose norm is below `least` are measured against that. */
typedef struct Measure {
	bool params; /* leave out names that start with "dlc." */
	double rel, scale, least;
} Measure;

/* ||x - scale*y|| / max(||scale*y||, least); infinite where only one is finite. */
static double distance(const Tensor *x, const Tensor *y, const Measure *m)
{
	double diff = 0, norm = 0;
	size_t n = x->bytes / elem_bytes(x->dtype);

	for (size_t i = 0; i < n; i++) {
		double a = element(x, i), b = m->scale * element(y, i);

		diff += (a - b) * (a - b);
		norm += b * b;
	}
	if (!isfinite(diff))
		return INFINITY;
	norm = fmax(norm, m->least * m->least);
	return diff == 0 ? 0 : norm == 0 ? INFINITY : sqrt(diff / norm);
}

/* The norm of all float tensors of a file together. */
static double norm_of(const File *f)
{
	const char *name;
	double sum = 0;
	json_t *o;

	json_object_foreach(f->head, name, o) {
		Tensor t;

		if (strcmp(name, "__metadata__") == 0 || !tensor_find(f, name, &t) || !is_float(&t))
			continue;
		for (size_t i = 0; i < t.bytes / elem_bytes(t.dtype); i++)
			sum += element(&t, i) * element(&t, i);
	}
	return sqrt(sum);
}

static bool compare(const File *a, const File *b, const Measure *m)
{
	const char *name;
	json_t *o;
	bool ok = true;

	json_object_foreach(a->head, name, o) {
		Tensor x, y;

		if (strcmp(name, "__metadata__") == 0 || (m->params && strncmp(name, "dlc.", 4) == 0))
			continue;
		tensor_find(a, name, &x);
		if (!tensor_find(b, name, &y)) {
			printf("%s has no '%s'\n", b->path, name);
			ok = false;
		} else if (strcmp(x.dtype, y.dtype) != 0 || !json_equal(x.shape, y.shape) || x.bytes != y.bytes) {
			printf("'%s' differs in type or shape\n", name);
			ok = false;
		} else if (m->rel > 0 && is_float(&x) ? !(distance(&x, &y, m) <= m->rel) : memcmp(x.at, y.at, x.bytes) != 0) {
			printf("'%s' differs: distance %.3g in norm, expected at most %.3g\n", name, distance(&x, &y, m),
			       m->rel);
			ok = false;
		}
	}
	json_object_foreach(b->head, name, o)
		if (!json_object_get(a->head, name) && !(m->params && strncmp(name, "dlc.", 4) == 0) &&
		    strcmp(name, "__metadata__") != 0) {
			printf("%s has no '%s'\n", a->path, name);
			ok = false;
		}
	return ok;
}

static void delta(const File *a, const File *b, bool params, const char *path)
{
	FILE *out = fopen(path, "wb");
	json_t *head = json_object(), *o;
	const char *name;
	size_t at = 0;
	char *text;

	if (!out)
		die(path, "cannot be written");
	json_object_foreach(a->head, name, o) {
		Tensor x, y;

		if (strcmp(name, "__metadata__") == 0 || (params && strncmp(name, "dlc.", 4) == 0))
			continue;
		tensor_find(a, name, &x);
		if (strcmp(x.dtype, "F32") != 0 || !tensor_find(b, name, &y) || x.bytes != y.bytes)
			continue;
		json_object_set_new(head, name, json_pack("{s:s,s:O,s:[I,I]}", "dtype", "F32", "shape", x.shape,
							  "data_offsets", (json_int_t)at, (json_int_t)(at + x.bytes)));
		at += x.bytes;
	}
	text = json_dumps(head, JSON_COMPACT);
	for (int i = 0; i < 8; i++)
		fputc((int)((uint64_t)strlen(text) >> (8 * i) & 255), out);
	fputs(text, out);
	json_object_foreach(head, name, o) {
		Tensor x, y;

		tensor_find(a, name, &x);
		tensor_find(b, name, &y);
		for (size_t i = 0; i < x.bytes / 4; i++) {
			float d = (float)(element(&x, i) - element(&y, i));

			fwrite(&d, sizeof d, 1, out);
		}
	}
	if (fclose(out) != 0)
		die(path, "cannot be written");
	free(text);
	json_decref(head);
}

static void print(const File *f, const char *name)
{
	Tensor t;

	if (!tensor_find(f, name, &t))
		die(f->path, "no such tensor");
	for (size_t i = 0; i < t.bytes / elem_bytes(t.dtype); i++)
		printf("%s%.9g", i ? " " : "", element(&t, i));
	putchar('\n');
}

static int two_files(const char *cmd, const File *a, char **arg, bool params)
{
	File b = file_open(arg[1]);
	Measure m = { .params = params, .scale = 1 };
	bool same = true;

	if (strcmp(cmd, "near") == 0) {
		m.rel = strtod(arg[2], NULL);
		m.scale = arg[3] && arg[4] ? strtod(arg[4], NULL) : 1;
		m.least = arg[3] ? strtod(arg[3], NULL) * norm_of(&b) * fabs(m.scale) : 0;
	}
	if (strcmp(cmd, "delta") == 0)
		delta(a, &b, params, arg[2]);
	else
		same = compare(a, &b, &m);
	json_decref(b.head);
	return same ? 0 : 1;
}

int main(int argc, char **argv)
{
	bool params = argc > 2 && strcmp(argv[2], "-p") == 0;
	const char *cmd = argc > 1 ? argv[1] : "";
	char **arg = argv + (params ? 3 : 2);
	int n = argc - (params ? 3 : 2);
	int status = 0;
	File a;

	if (n < 1 || (strcmp(cmd, "list") != 0 && n < 2) || ((strcmp(cmd, "near") == 0 || strcmp(cmd, "delta") == 0) && n < 3)) {
		fprintf(stderr, "usage: tensors list FILE | print FILE NAME | same [-p] A B | near [-p] A B REL [PART [SCALE]] | "
				"delta [-p] A B OUT\n");
		return 2;
	}
	a = file_open(arg[0]);
	if (strcmp(cmd, "list") == 0)
		list(&a);
	else if (strcmp(cmd, "print") == 0)
		print(&a, arg[1]);
	else
		status = two_files(cmd, &a, arg, params);
	json_decref(a.head);
	return status;
}

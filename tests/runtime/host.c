/* A host program over the C API: trains, saves, loads into a second trainer, and finds the same
 * parameters. */
#include "runtime/dl.h"

#include <stdio.h>
#include <string.h>

static int failed(const Dl *d, const char *what)
{
	printf("%s: %s\n", what, d && dl_error(d) ? dl_error(d) : "?");
	return 1;
}

int main(int argc, char **argv)
{
	char data[512];
	double first = 0, loss = 0, accuracy = 0, norm = 0;
	DlParameter p, q;
	if (argc < 3)
		return 2;
	Dl *bad = dl_open(&(DlOptions){ .data = "d=/nonexistent" });
	if (!bad || !dl_error(bad) || dl_step(bad, NULL) || !strstr(dl_error(bad), "/nonexistent"))
		return failed(bad, "a failed open");
	dl_close(bad);
	snprintf(data, sizeof data, "d=%s", argv[1]);
	Dl *a = dl_open(&(DlOptions){ .data = data, .threads = 1 });
	if (!a || dl_error(a) || !dl_step(a, &first))
		return failed(a, "open");
	for (int i = 0; i < 99; i++)
		if (!dl_step(a, &loss))
			return failed(a, "step");
	if (!(loss < first) || dl_steps_done(a) != 100 || !dl_output(a, "grad_norm", &norm) ||
	    dl_output(a, "nothing", &norm))
		return failed(a, "training");
	if (!dl_evaluate(a, &loss, &accuracy) || !(accuracy > 0.5) || !dl_save(a, argv[2]))
		return failed(a, "evaluate or save");
	Dl *b = dl_open(&(DlOptions){ .data = data, .threads = 1 });
	if (!b || dl_load_weights(b, "/nonexistent") || !dl_error(b) || !dl_resume(b, argv[2]) ||
	    dl_error(b))
		return failed(b, "resume");
	float value[160], other[160], zero[160] = { 0 };
	for (int i = 0; i < dl_parameters(a); i++)
		if (!dl_parameter(a, i, &p) || !dl_parameter(b, i, &q) || strcmp(p.name, q.name) ||
		    !dl_read_parameter(a, i, value) || !dl_read_parameter(b, i, other) ||
		    memcmp(value, other, (size_t)p.bytes) ||
		    (p.data && memcmp(p.data, value, (size_t)p.bytes)))
			return failed(b, "parameters");
	if (!dl_write_parameter(b, 0, zero) || !dl_read_parameter(b, 0, value) ||
	    memcmp(zero, value, sizeof value) || dl_read_parameter(b, 2, value) ||
	    !strstr(dl_error(b), "no parameter 2"))
		return failed(b, "copies of parameters");
	if (dl_parameters(a) != 2 || dl_parameter(a, 2, &p) || dl_steps_done(b) != 100)
		return failed(b, "counts");
	dl_close(a);
	dl_close(b);
	printf("host ok\n");
	return 0;
}

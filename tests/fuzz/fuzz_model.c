/* Fuzzes the front end: any text must give a sound module or diagnostics, never a crash.
 *
 * What is read is verified, and its dump must read back and print the same. */
#include "fuzz.h"

#include "../../frontend/frontend.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Arena *a = arena_new();
	char *text = arena_strndup(a, (const char *)data, size);
	FILE *quiet = fopen("/dev/null", "w");
	Diag *d = diag_new(a, quiet, 20);
	FrontOptions options = { 0 };
	Module *m = frontend_read(a, d, "fuzz.dl", text, size, &options);

	if (!m && diag_errors(d) == 0)
		__builtin_trap(); /* refused without saying why */
	if (m)
		fuzz_module(a, quiet, m);
	fclose(quiet);
	arena_free(a);
	return 0;
}

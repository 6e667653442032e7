/* Fuzzes the IR reader, the verifier, the printer and the plan checker. */
#include "fuzz.h"

#include "../../passes/check_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Arena *a = arena_new();
	char *text = arena_strndup(a, (const char *)data, size);
	FILE *quiet = fopen("/dev/null", "w");
	Diag *d = diag_new(a, quiet, 20);
	Module *m = ir_parse(a, d, "fuzz.ir", text, size);

	if (!m && diag_errors(d) == 0)
		__builtin_trap(); /* refused without saying why */
	if (m && ir_verify(m, "parse", quiet)) {
		check_plan(m, INT64_MAX, quiet);
		fuzz_module(a, quiet, m);
	}
	fclose(quiet);
	arena_free(a);
	return 0;
}

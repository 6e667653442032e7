/* What the fuzz targets share. */
#ifndef DLC_TESTS_FUZZ_H
#define DLC_TESTS_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../ir/ir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline char *fuzz_print(const Module *m, size_t *size)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, size);

	ir_print_module(out, m);
	fclose(out);
	return text;
}

/* A module in memory is sound; its dump reads back, is sound again, and prints as the same bytes. */
static inline void fuzz_module(Arena *a, FILE *quiet, const Module *m)
{
	size_t size, again_size;
	char *text, *again;
	Module *back;

	if (!ir_verify(m, "fuzz", quiet))
		__builtin_trap();
	text = fuzz_print(m, &size);
	back = ir_parse(a, diag_new(a, quiet, 20), "printed.ir", text, size);
	if (!back || !ir_verify(back, "print", quiet))
		__builtin_trap();
	again = fuzz_print(back, &again_size);
	if (size != again_size || memcmp(text, again, size) != 0)
		__builtin_trap();
	free(text);
	free(again);
}

#endif

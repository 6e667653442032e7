/* Opening the CUDA libraries, and the texts of their errors; see cuda_api.h. */
#include "cuda_api.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct Symbol {
	const char *name;
	size_t field;
} Symbol;

static const Symbol cuda_symbols[] = {
#define ROW(NAME, SYMBOL, ARGUMENTS) { SYMBOL, offsetof(CudaApi, NAME) },
	CUDA_CALLS(ROW)
#undef ROW
};

static const Symbol cublas_symbols[] = {
#define ROW(NAME, SYMBOL, ARGUMENTS) { SYMBOL, offsetof(CublasApi, NAME) },
	CUBLAS_CALLS(ROW)
#undef ROW
};

/* Fills the fields of a table; the first symbol that the library lacks, or NULL. */
static const char *find_symbols(void *library, const Symbol *symbol, size_t n, void *table)
{
	for (size_t i = 0; i < n; i++) {
		void *at = dlsym(library, symbol[i].name);
		if (!at)
			return symbol[i].name;
		memcpy((char *)table + symbol[i].field, &at, sizeof at);
	}
	return NULL;
}

/* ---- the driver ------------------------------------------------------------------------------- */

#define DRIVER_NEEDED "install NVIDIA's driver 470 or later (CUDA 11.4)"

static bool find_driver(CudaApi *c, Fail *f)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fail(f, EXIT_FILES,
			    "no NVIDIA driver: libcuda.so.1 cannot be opened; this trainer runs on an NVIDIA card: "
			    DRIVER_NEEDED);
	const char *missing =
		find_symbols(library, cuda_symbols, sizeof cuda_symbols / sizeof *cuda_symbols, c);
	return !missing || fail(f, EXIT_FILES,
				"the NVIDIA driver is too old: libcuda.so.1 has no %s; " DRIVER_NEEDED,
				missing);
}

bool cuda_open(CudaApi *c, Fail *f)
{
	int version = 0;
	char text[160];
	*c = (CudaApi){ 0 };
	if (!find_driver(c, f))
		return false;
	CuResult e = c->Init(0);
	if (!e)
		e = c->DriverGetVersion(&version);
	if (e == CU_NO_DEVICE)
		return fail(f, EXIT_FILES,
			    "the NVIDIA driver finds no card (is one there, and may this user use it?)");
	if (e)
		return fail(f, EXIT_FILES, "the NVIDIA driver cannot start: cuInit: %s",
			    cuda_error(c, e, text));
	return version >= CUDA_LEAST ||
	       fail(f, EXIT_FILES, "the NVIDIA driver is too old: it offers CUDA %d.%d; " DRIVER_NEEDED,
		    version / 1000, version % 1000 / 10);
}

const char *cuda_error(const CudaApi *c, CuResult e, char out[160])
{
	const char *name = NULL, *text = NULL;
	c->GetErrorName(e, &name);
	c->GetErrorString(e, &text);
	snprintf(out, 160, "%s%s%.100s%s", name ? name : "unknown error", text ? " (" : "",
		 text ? text : "", text ? ")" : "");
	return out;
}

bool cuda_ok(const CudaApi *c, CuResult e, const char *call, const char *what, Fail *f)
{
	char text[160];
	if (!e)
		return true;
	if (e == CU_OUT_OF_MEMORY)
		return fail(f, EXIT_FILES,
			    "the card is out of memory: %s (%s): %s; another program may have taken it",
			    call, what, cuda_error(c, e, text));
	fail(f, EXIT_BUG, "%s failed (%s): %s", call, what, cuda_error(c, e, text));
	if (e >= CU_KERNEL_FIRST && e <= CU_KERNEL_LAST)
		fail_add(f, "; train --check-nan runs the steps one by one and names the kernel");
	return false;
}

/* ---- cuBLASLt --------------------------------------------------------------------------------- */

bool cublas_open(CublasApi *c, Fail *f)
{
	static const char *const name[] = { "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11" };
	void *library = NULL;
	*c = (CublasApi){ 0 };
	for (size_t i = 0; i < sizeof name / sizeof *name && !library; i++)
		library = dlopen(name[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fail(f, EXIT_FILES,
			    "no cuBLAS: libcublasLt.so.13, .12 and .11 cannot be opened; matrix products need it: "
			    "install CUDA's cuBLAS (libcublas12 or libcublas-13-0) or put its folder into LD_LIBRARY_PATH");
	const char *missing =
		find_symbols(library, cublas_symbols, sizeof cublas_symbols / sizeof *cublas_symbols, c);
	return !missing ||
	       fail(f, EXIT_FILES, "libcublasLt.so has no %s: install cuBLAS of CUDA 11.4 or later", missing);
}

const char *cublas_error(LtStatus e)
{
	switch (e) {
	case 1: return "CUBLAS_STATUS_NOT_INITIALIZED";
	case 3: return "CUBLAS_STATUS_ALLOC_FAILED";
	case 7: return "CUBLAS_STATUS_INVALID_VALUE";
	case 8: return "CUBLAS_STATUS_ARCH_MISMATCH";
	case 11: return "CUBLAS_STATUS_MAPPING_ERROR";
	case 13: return "CUBLAS_STATUS_EXECUTION_FAILED";
	case 14: return "CUBLAS_STATUS_INTERNAL_ERROR";
	case 15: return "CUBLAS_STATUS_NOT_SUPPORTED";
	default: return "an unknown status";
	}
}

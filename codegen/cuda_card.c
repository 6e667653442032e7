/* How much memory the card of this machine has free: what `--mem-budget auto` plans for.
 *
 * The driver is opened for this alone. It is asked with a context in place, so that the context's own memory counts as taken; some of the
 * rest is left for what a trainer loads beside its arena: kernels, graphs, cuBLAS. */
#include <dlfcn.h>

#include "cuda.h"

enum { MOST_BESIDE = 512 << 20, BESIDE_SHARE = 16 }; /* left free: a sixteenth, at most 512 MiB */

typedef struct Driver {
	int (*init)(unsigned flags);
	int (*count)(int *cards), (*card)(int *card, int number);
	int (*retain)(void **context, int card), (*release)(int card), (*use)(void *context);
	int (*memory)(size_t *free_bytes, size_t *total);
} Driver;

static bool find(void *h, const char *name, void *to)
{
	void *sym = dlsym(h, name);
	memcpy(to, &sym, sizeof sym);
	return sym != NULL;
}

static bool find_all(Driver *d, void *h)
{
	return find(h, "cuInit", &d->init) && find(h, "cuDeviceGetCount", &d->count) && find(h, "cuDeviceGet", &d->card) &&
	       find(h, "cuDevicePrimaryCtxRetain", &d->retain) && find(h, "cuDevicePrimaryCtxRelease_v2", &d->release) &&
	       find(h, "cuCtxSetCurrent", &d->use) && find(h, "cuMemGetInfo_v2", &d->memory);
}

/* The call that fails, or NULL. */
static const char *ask(const Driver *d, size_t *free_bytes)
{
	int cards = 0, card = 0;
	size_t total = 0;
	void *context = NULL;
	if (d->init(0) != 0)
		return "cuInit";
	if (d->count(&cards) != 0 || cards == 0)
		return "cuDeviceGetCount";
	if (d->card(&card, 0) != 0 || d->retain(&context, card) != 0)
		return "cuDevicePrimaryCtxRetain";
	bool known = d->use(context) == 0 && d->memory(free_bytes, &total) == 0;
	d->release(card);
	return known ? NULL : "cuMemGetInfo";
}

int64_t cuda_free_bytes(Diag *diag)
{
	static const char hint[] = "it plans for the memory of a card in this machine; for another one say how much that has, as 80G";
	Driver d;
	size_t free_bytes = 0;
	void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *failed = "";
	if (!h)
		diag_error(diag, NO_SPAN, "--mem-budget auto: no NVIDIA driver: libcuda.so.1 cannot be opened");
	else if (!find_all(&d, h))
		diag_error(diag, NO_SPAN, "--mem-budget auto: the NVIDIA driver is too old");
	else if ((failed = ask(&d, &free_bytes)) != NULL)
		diag_error(diag, NO_SPAN, "--mem-budget auto: the NVIDIA driver finds no card (%s fails)", failed);
	if (failed) {
		diag_hint(diag, "%s", hint);
		return -1;
	}
	size_t beside = free_bytes / BESIDE_SHARE;
	return (int64_t)(free_bytes - (beside > MOST_BESIDE ? MOST_BESIDE : beside));
}

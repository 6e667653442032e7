/* What the card of this machine is and how much memory it has free: for `--mem-budget auto` and `--calibrate`.
 *
 * The driver is opened for this alone. It is asked with a context in place, so that the context's own memory counts as taken; some of the
 * rest is left for what a trainer loads beside its arena: kernels, graphs, cuBLAS. */
#include <dlfcn.h>

#include "cuda.h"

enum { MOST_BESIDE = 512 << 20, BESIDE_SHARE = 16 }; /* left free: a sixteenth, at most 512 MiB */
enum { CACHE_BYTES = 38, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 }; /* CU_DEVICE_ATTRIBUTE_* */

typedef struct Driver {
	int (*init)(unsigned flags);
	int (*count)(int *cards), (*card)(int *card, int number);
	int (*name)(char *name, int size, int card), (*attribute)(int *value, int which, int card);
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
	       find(h, "cuDeviceGetName", &d->name) && find(h, "cuDeviceGetAttribute", &d->attribute) &&
	       find(h, "cuDevicePrimaryCtxRetain", &d->retain) && find(h, "cuDevicePrimaryCtxRelease_v2", &d->release) &&
	       find(h, "cuCtxSetCurrent", &d->use) && find(h, "cuMemGetInfo_v2", &d->memory);
}

/* The call that fails, or NULL. */
static const char *ask_memory(const Driver *d, int card, size_t *free_bytes, size_t *total)
{
	void *context = NULL;
	if (d->retain(&context, card) != 0)
		return "cuDevicePrimaryCtxRetain";
	bool known = d->use(context) == 0 && d->memory(free_bytes, total) == 0;
	d->release(card);
	return known ? NULL : "cuMemGetInfo";
}

/* The same; a name that a line of a profile can hold. */
static const char *ask_identity(const Driver *d, int card, BackendCard *out)
{
	int major = 0, minor = 0, cache = 0;
	if (d->name(out->name, (int)sizeof out->name, card) != 0)
		return "cuDeviceGetName";
	if (d->attribute(&major, CAPABILITY_MAJOR, card) != 0 || d->attribute(&minor, CAPABILITY_MINOR, card) != 0)
		return "cuDeviceGetAttribute";
	snprintf(out->arch, sizeof out->arch, "sm_%d%d", major, minor);
	out->cache_bytes = d->attribute(&cache, CACHE_BYTES, card) == 0 && cache > 0 ? cache : 0;
	for (char *s = out->name; *s; s++)
		*s = *s == '#' || (unsigned char)*s < ' ' || (unsigned char)*s >= 127 ? '-' : *s;
	return NULL;
}

/* False after a diagnostic. */
static bool ask(const Driver *d, int number, const char *what, BackendCard *out, Diag *diag)
{
	int cards = 0, card = 0;
	size_t free_bytes = 0, total = 0;
	const char *failed = d->init(0) != 0 ? "cuInit" : d->count(&cards) != 0 || cards == 0 ? "cuDeviceGetCount" : NULL;
	if (!failed && number >= cards) {
		diag_error(diag, NO_SPAN, "%s: --device %d: there %s %d card%s here, counted from 0", what, number, cards == 1 ? "is" : "are",
		           cards, cards == 1 ? "" : "s");
		return false;
	}
	if (!failed && d->card(&card, number) != 0)
		failed = "cuDeviceGet";
	if (!failed && !(failed = ask_identity(d, card, out)))
		failed = ask_memory(d, card, &free_bytes, &total);
	if (failed) {
		diag_error(diag, NO_SPAN, "%s: the NVIDIA driver finds no card that it can use (%s fails)", what, failed);
		return false;
	}
	size_t beside = free_bytes / BESIDE_SHARE;
	out->free_bytes = (int64_t)free_bytes;
	out->total_bytes = (int64_t)total;
	out->arena_bytes = (int64_t)(free_bytes - (beside > MOST_BESIDE ? MOST_BESIDE : beside));
	return true;
}

bool cuda_card(BackendCard *card, int number, const char *what, Diag *diag)
{
	Driver d;
	void *h = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	*card = (BackendCard){ .cache_bytes = 0 };
	if (!h)
		diag_error(diag, NO_SPAN, "%s: no NVIDIA driver: libcuda.so.1 cannot be opened", what);
	else if (!find_all(&d, h))
		diag_error(diag, NO_SPAN, "%s: the NVIDIA driver is too old", what);
	else
		return ask(&d, number, what, card, diag);
	return false;
}

/* profile --links: how long copies between the card's memory and pinned memory of the host take, for the rates of a machine profile and to see
 * what a plan with values in host memory can count on. Nothing of the model is needed but its device. */
#include "command.h"

#include "memory.h"
#include "metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LINK_SIZES = 5, LINK_TIMES = 2 * LINK_SIZES + 3, CACHE_LIKELY = 32 << 20 };
static const int64_t link_bytes[LINK_SIZES] = { 4 << 10, 64 << 10, 1 << 20, 8 << 20, 32 << 20 };
static const char *const kind_name[] = { [LINK_OUT] = "out", [LINK_IN] = "in", [LINK_WITHIN] = "within", [LINK_FILL] = "fill" };
static const char *const kind_text[] = { [LINK_OUT] = "to host memory", [LINK_IN] = "from host memory",
					 [LINK_WITHIN] = "within the card", [LINK_FILL] = "bytes set to 0" };

/* Each way in several sizes; within the card between bytes that stay in its cache and between bytes that do not; and next to nothing, which
 * shows what a launch costs. */
static void choose(LinkTime *t, int64_t cache)
{
	int n = 0;
	for (int i = 0; i < LINK_SIZES; i++) {
		t[n++] = (LinkTime){ .kind = LINK_OUT, .bytes = link_bytes[i] };
		t[n++] = (LinkTime){ .kind = LINK_IN, .bytes = link_bytes[i] };
	}
	cache = cache > 0 ? cache : CACHE_LIKELY;
	t[n++] = (LinkTime){ .kind = LINK_WITHIN, .bytes = cache / 8 };
	t[n++] = (LinkTime){ .kind = LINK_WITHIN, .bytes = 2 * cache };
	t[n++] = (LinkTime){ .kind = LINK_FILL, .bytes = 256 };
}

static void print_json(const DeviceInfo *info, const LinkTime *t)
{
	const char *between = "";
	printf("{\"device\":");
	json_print_string(stdout, info->name);
	printf(",\"cache_bytes\":%" PRId64 ",\"copies\":[", info->cache_bytes);
	for (int i = 0; i < LINK_TIMES; i++, between = ",")
		printf("%s\n{\"kind\":\"%s\",\"bytes\":%" PRId64 ",\"seconds\":%.6g}", between, kind_name[t[i].kind], t[i].bytes,
		       t[i].seconds);
	printf("]}\n");
}

static void print_text(const DeviceInfo *info, const LinkTime *t)
{
	char bytes[32];
	printf("%s\n       bytes        time        rate\n", info->name);
	for (int i = 0; i < LINK_TIMES; i++)
		printf("%12s %8.1f us %6.2f GB/s  %s\n", memory_text(t[i].bytes, bytes), 1e6 * t[i].seconds,
		       t[i].seconds > 0 ? 1e-9 * (double)t[i].bytes / t[i].seconds : 0, kind_text[t[i].kind]);
}

int command_links(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Device *d;
	TrainerOptions to = trainer_options(o);
	LinkTime t[LINK_TIMES];
	if (!device_open(&d, plan, &to.device, &f))
		return report(&f);
	choose(t, device_info(d)->cache_bytes);
	bool ok = device_time_links(d, t, LINK_TIMES, &f);
	if (ok && o->json)
		print_json(device_info(d), t);
	else if (ok)
		print_text(device_info(d), t);
	device_close(d);
	return ok ? EXIT_DONE : report(&f);
}

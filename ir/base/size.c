/* Byte sizes in text (see size.h). Fractions are taken in long double, which holds every int64_t exactly. */
#include "size.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

static const struct Unit {
	const char *name;
	long double bytes;
} units[] = {
	{ "", 1 }, { "B", 1 },
	{ "K", 0x1p10L }, { "KiB", 0x1p10L }, { "KB", 1e3L },
	{ "M", 0x1p20L }, { "MiB", 0x1p20L }, { "MB", 1e6L },
	{ "G", 0x1p30L }, { "GiB", 0x1p30L }, { "GB", 1e9L },
	{ "T", 0x1p40L }, { "TiB", 0x1p40L }, { "TB", 1e12L },
};

/* Digits with at most one point: no signs, exponents, hexadecimal, "inf" or "nan". */
static size_t number_length(const char *text)
{
	size_t n = strspn(text, "0123456789.");
	const char *point = memchr(text, '.', n);

	if (n == 0 || (point && memchr(point + 1, '.', (size_t)(text + n - point - 1))) || (n == 1 && point))
		return 0;
	return n;
}

bool size_parse(const char *text, int64_t *bytes, char why[128])
{
	size_t n = number_length(text);
	long double value;

	if (n == 0) {
		snprintf(why, 128, "expected a size such as 4G, 512M or 1.5GiB, got '%.40s'", text);
		return false;
	}
	value = strtold(text, NULL);
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcasecmp(text + n, units[i].name) != 0)
			continue;
		value = floorl(value * units[i].bytes);
		if (!(value >= 1) || value > 0x1p62L) {
			snprintf(why, 128, "'%.40s' is %s", text, value >= 1 ? "above 2^62 bytes" : "less than one byte");
			return false;
		}
		*bytes = (int64_t)value;
		return true;
	}
	snprintf(why, 128, "unknown unit '%.40s' (known: K, M, G, T, KiB .. TiB, KB .. TB)", text + n);
	return false;
}

const char *size_text(Arena *a, int64_t bytes)
{
	static const char *const names[] = { "bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	int unit = 0;

	while (value >= 1024 && unit < 6) {
		value /= 1024;
		unit++;
	}
	if (unit == 0)
		return arena_printf(a, "%lld bytes", (long long)bytes);
	int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
	double step = digits == 2 ? 100 : digits == 1 ? 10 : 1;
	return arena_printf(a, "%.*f %s", digits, ceil(value * step) / step, names[unit]);
}

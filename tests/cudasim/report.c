/* What the simulator says: violations on stderr, counters in the file that DL_SIM_REPORT names, at the end of the process.
 * Also the settings that are read from the environment. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_COUNTERS = 128 };

static struct {
	const char *name[MAX_COUNTERS];
	uint64_t count[MAX_COUNTERS];
	int n;
} counters;

void report_count(const char *what, uint64_t n)
{
	int i = 0;
	while (i < counters.n && strcmp(counters.name[i], what) != 0)
		i++;
	if (i == MAX_COUNTERS)
		return;
	if (i == counters.n) {
		counters.name[counters.n++] = what;
		counters.count[i] = 0;
	}
	counters.count[i] += n;
}

static __attribute__((destructor)) void report_write(void)
{
	const char *path = getenv("DL_SIM_REPORT");
	FILE *f = path && *path && counters.n ? fopen(path, "w") : NULL;
	if (!f)
		return;
	for (int i = 0; i < counters.n; i++)
		fprintf(f, "%s %llu\n", counters.name[i], (unsigned long long)counters.count[i]);
	fclose(f);
}

int sim_temporary(char path[SIM_PATH])
{
	const char *dir = getenv("TMPDIR");
	snprintf(path, SIM_PATH, "%s/cudasim-XXXXXX", dir && *dir ? dir : "/tmp");
	return mkstemp(path);
}

bool sim_checks_all(void)
{
	static int all = -1;
	if (all < 0) {
		const char *s = getenv("DL_SIM_CHECKS");
		all = !s || strcmp(s, "bounds") != 0;
	}
	return all != 0;
}

Order sim_order(uint64_t *seed)
{
	const char *s = getenv("DL_SIM_ORDER");
	*seed = 1;
	if (s && strcmp(s, "reverse") == 0)
		return ORDER_REVERSE;
	if (s && strncmp(s, "shuffle", 7) == 0) {
		if (s[7] == ':')
			*seed = strtoull(s + 8, NULL, 10);
		return ORDER_SHUFFLE;
	}
	return ORDER_FORWARD;
}

void sim_permute(uint32_t *index, uint32_t n, uint64_t salt)
{
	uint64_t seed;
	Order o = sim_order(&seed);
	for (uint32_t i = 0; i < n; i++)
		index[i] = o == ORDER_REVERSE ? n - 1 - i : i;
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u ^ (salt + 1) * 0xbf58476d1ce4e5b9u;
	for (uint32_t i = n; o == ORDER_SHUFFLE && i > 1; i--) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		uint32_t j = (uint32_t)(x % i), t = index[i - 1];
		index[i - 1] = index[j];
		index[j] = t;
	}
}

/* " (operand 2 + 16)" where the plan is known; else " (off[2] + 16)": the place of the second parameter that is nearest below. */
static void describe_operand(char *to, size_t size, int64_t at)
{
	static const char *const kinds[] = {"operand", "result", "workspace", "environment"};
	const Launch *l = sim_exec.launch;
	const SimKernel *k = l->f->kernel;
	const Extent *e = extent_near(l, at);
	*to = 0;
	if (e && at < e->hi)
		snprintf(to, size, " (%s %d + %lld)", kinds[e->kind], e->index, (long long)(at - e->lo));
	else if (e)
		snprintf(to, size, " (%s %d + %lld, %lld bytes behind its end)", kinds[e->kind], e->index, (long long)(at - e->lo), (long long)(at - e->hi));
	if (e || k->nparams < 2 || k->sizes[1] % 8 != 0)
		return;
	const int64_t *off = (const int64_t *)(const void *)(l->args + l->arg_at[1]);
	int best = -1, n = (int)(k->sizes[1] / 8);
	for (int i = 0; i < n; i++)
		if (off[i] >= 0 && off[i] <= at && (best < 0 || off[i] > off[best]))
			best = i;
	if (best >= 0)
		snprintf(to, size, " (off[%d] + %lld)", best, (long long)(at - off[best]));
}

void describe_address(char *to, size_t size, uintptr_t a)
{
	const Region *g = NULL, *in = region_find(a, &g);
	char operand[96] = "", name[64], behind[64] = "";
	if (in)
		g = in;
	if (!g || a - g->base > g->bytes + ((uintptr_t)1 << 30)) {
		snprintf(to, size, "%#zx, in no allocation", (size_t)a);
		return;
	}
	size_t at = a - g->base, end = g->kind == RG_DYNAMIC && sim_exec.launch ? sim_exec.launch->shared : g->bytes;
	if (g->kind == RG_DEVICE && sim_exec.launch && sim_exec.launch->arena == g->base) {
		snprintf(name, sizeof name, "arena");
		describe_operand(operand, sizeof operand, (int64_t)at);
	} else if (g->kind == RG_DEVICE) {
		snprintf(name, sizeof name, "allocation %d", g->serial);
	} else if (g->kind == RG_DYNAMIC) {
		snprintf(name, sizeof name, "dynamic shared memory");
	} else {
		snprintf(name, sizeof name, "%s'%.40s'", g->kind == RG_SHARED ? "shared " : "", g->name);
	}
	if (at >= end)
		snprintf(behind, sizeof behind, ", %zu bytes behind its end (%zu bytes)", at - end, end);
	else if (in == NULL || at + 1 > end)
		snprintf(behind, sizeof behind, " of %zu", end);
	snprintf(to, size, "%s + %#zx%s%s", name, at, operand, behind);
}

/* "kernels.cu:12" of an instruction, by binutils' addr2line; false: not known. */
static bool source_line(const SimModule *m, const void *pc, char *to, size_t size)
{
	char command[SIM_PATH + 80];
	if ((uintptr_t)pc < m->lo || (uintptr_t)pc >= m->hi)
		return false;
	char path[SIM_PATH];
	int fd = sim_temporary(path);
	if (fd < 0)
		return false;
	bool ok = write(fd, m->image, m->image_bytes) == (ssize_t)m->image_bytes;
	close(fd);
	snprintf(command, sizeof command, "addr2line -e %s %#zx 2>/dev/null", path, (size_t)((uintptr_t)pc - 1 - m->bias));
	FILE *f = ok ? popen(command, "r") : NULL;
	ok = f && fgets(to, (int)size, f) != NULL;
	if (f)
		pclose(f);
	unlink(path);
	if (!ok)
		return false;
	to[strcspn(to, "\n ")] = 0;
	const char *slash = strrchr(to, '/');
	if (slash)
		memmove(to, slash + 1, strlen(slash));
	return to[0] != '?';
}

static void say(const char *text)
{
	fflush(stdout);
	fprintf(stderr, "%s", text);
}

_Noreturn void violation(CUresult code, const void *pc, const char *fmt, ...)
{
	Exec *x = &sim_exec;
	const SimNow *now = x->launch->f->module->info->now;
	const Thread *t = &x->threads[x->current];
	uint32_t i = (uint32_t)x->current;
	char text[1024], line[256], what[640];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	if (pc == NULL && t->file) {
		const char *slash = strrchr(t->file, '/');
		snprintf(line, sizeof line, "%s:%d", slash ? slash + 1 : t->file, t->line);
	} else if (pc == NULL || !source_line(x->launch->f->module, pc, line, sizeof line)) {
		snprintf(line, sizeof line, "?");
	}
	snprintf(text, sizeof text, "cudasim: %s at %s: block (%u,%u,%u) thread (%u,%u,%u): %s\n", x->launch->f->name, line, now->block.x, now->block.y, now->block.z,
		 i % x->block.x, i / x->block.x % x->block.y, i / (x->block.x * x->block.y), what);
	say(text);
	x->failed = code;
	report_count("violations", 1);
	block_abandon();
}

CUresult violation_host(CUresult code, const char *fmt, ...)
{
	char text[1024], what[800];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	snprintf(text, sizeof text, "cudasim: %s\n", what);
	say(text);
	report_count("violations", 1);
	return code;
}

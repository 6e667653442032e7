/* The kernels of many models by NVRTC, each distinct one once.
 *
 *     cuda_zoo ARCH all|forms FILE..   FILE: what `dlc --target cuda --arch ARCH --emit=cuda` printed
 *     cuda_zoo planted                 what is looked for is found in reports made up for that
 *
 * Kernels of all files that have the same text under another number are one. `forms`: so are those that differ only in sizes or in which 16-bit
 * type they are of. They are compiled in units, side by side; of each function ptxas's report is
 * read: no local memory (but in f64, whose functions are calls), shared memory, threads, registers and grids within the chip's limits, at
 * the largest launch of any model. A failure names the first file and source line that has the kernel. */
#include <ctype.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/cuda.h"
#include "codegen/cuda_unit.h"
#include "ir/base/intern.h"
#include "ir/base/map.h"
#include "ir/base/vec.h"

enum { UNIT_BYTES = 150000, MOST_LAUNCHES = 40, NAME = 64 };

typedef struct Launch {
	unsigned grid[3], block, shared;
} Launch;

typedef struct Kernel {
	const char *text; /* '$' for its name */
	const char *from; /* file and comment */
	bool special;
	int nlaunch, number; /* number: in its file */
	Launch launch[MOST_LAUNCHES];
} Kernel;

/* What ptxas says of a function. */
typedef struct Report {
	char name[NAME];
	int frame, stores, loads, registers, shared;
} Report;

typedef struct Zoo {
	Arena *a;
	const char *arch;
	bool forms, quiet;
	VEC(Kernel) kernels;
	Intern texts;
	Map known; /* by text or form */
	int read, passed, failed;
} Zoo;

static void fail(Zoo *z, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(Zoo *z, const char *fmt, ...)
{
	va_list ap;
	z->failed++;
	if (z->quiet)
		return;
	va_start(ap, fmt);
	fputs("FAIL ", stdout);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
}

/* ---- reading ---- */

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* "k12" becomes "$": in k12(, k12_1(, k12_off. */
static const char *nameless(Arena *a, const char *text, int number)
{
	char name[NAME], *out = arena_alloc(a, strlen(text) + 1), *to = out;
	size_t n = (size_t)snprintf(name, sizeof name, "k%d", number);
	for (const char *s = text; *s;) {
		if ((s == text || !in_name(s[-1])) && strncmp(s, name, n) == 0 && !isalnum((unsigned char)s[n])) {
			*to++ = '$';
			s += n;
		} else {
			*to++ = *s++;
		}
	}
	*to = 0;
	return out;
}

/* Numbers become '#', f16 bf16. Of special kernels the small ones stay, which choose code: strides, kernels, tiles. */
static const char *form_of(Arena *a, const char *text, bool special)
{
	char *out = arena_alloc(a, 2 * strlen(text) + 1), *to = out;
	for (const char *s = text; *s;) {
		if (isdigit((unsigned char)*s) && (s == text || !in_name(s[-1]))) {
			const char *number = s;
			for (s++; in_name(*s) || *s == '.'; s++)
				;
			if (special && s - number <= 2 && atoi(number) <= 16) {
				memcpy(to, number, (size_t)(s - number));
				to += s - number;
			} else {
				*to++ = '#';
			}
		} else if (s > text && s[-1] == '_' && strncmp(s, "f16", 3) == 0) {
			*to++ = 'b';
			memcpy(to, "f16", 3);
			to += 3;
			s += 3;
		} else if (strncmp(s, "DlElementF16", 12) == 0) {
			memcpy(to, "DlElementBf16", 13);
			to += 13;
			s += 12;
		} else {
			*to++ = *s++;
		}
	}
	*to = 0;
	return out;
}

static void widen(Kernel *to, const Kernel *x)
{
	for (int i = 0; i < x->nlaunch; i++) {
		Launch *l = &to->launch[i];
		for (int d = 0; d < 3; d++)
			l->grid[d] = x->launch[i].grid[d] > l->grid[d] ? x->launch[i].grid[d] : l->grid[d];
		l->block = x->launch[i].block > l->block ? x->launch[i].block : l->block;
		l->shared = x->launch[i].shared > l->shared ? x->launch[i].shared : l->shared;
	}
}

static void add_kernel(Zoo *z, Kernel *k, const char *text)
{
	k->text = nameless(z->a, text, k->number);
	const char *form = z->forms ? form_of(z->a, k->text, k->special) : k->text, *key = intern(&z->texts, form, strlen(form));
	int64_t known;
	z->read++;
	if (map_get(&z->known, key, &known)) {
		widen(&z->kernels.at[known], k);
		return;
	}
	map_set(&z->known, key, (int64_t)z->kernels.len);
	vec_push(z->a, &z->kernels, *k);
}

/* Launches and comments stand before a kernel, which begins with the type of its offsets. */
static void read_file(Zoo *z, const char *path)
{
	FILE *f = fopen(path, "r"), *text = NULL;
	char *line = NULL, *kept = NULL;
	size_t room = 0, len = 0;
	int before = z->read;
	bool special = false;
	Kernel k = { 0 };
	while (f && getline(&line, &room, f) > 0) {
		bool starts = strncmp(line, "typedef struct { int64_t at[", 28) == 0, outside = line[0] == '#' || strncmp(line, "/* ", 3) == 0;
		Launch l;
		if (outside && text) {
			fclose(text);
			add_kernel(z, &k, kept);
			free(kept);
			text = NULL;
			k = (Kernel){ 0 };
		}
		special = special || strstr(line, "#include \"cuda_special.h\"");
		const char *launch = strncmp(line, "/* launch k", 11) == 0 ? strchr(line, ':') : NULL;
		if (launch && sscanf(launch, ": %u %u %u blocks of %u, %u bytes", &l.grid[0], &l.grid[1], &l.grid[2], &l.block, &l.shared) == 5 &&
		    k.nlaunch < MOST_LAUNCHES)
			k.launch[k.nlaunch++] = l;
		else if (outside && line[0] == '/' && !k.from)
			k.from = arena_printf(z->a, "%s: %.*s", path, (int)strcspn(line + 3, "*\n"), line + 3);
		if (starts) {
			const char *name = strstr(line, "} k");
			text = open_memstream(&kept, &len);
			k.number = name ? atoi(name + 3) : -1;
			k.special = special;
		}
		if (text)
			fputs(line, text);
	}
	if (text) {
		fclose(text);
		add_kernel(z, &k, kept);
		free(kept);
	}
	free(line);
	if (f)
		fclose(f);
	if (z->read == before)
		fail(z, "%s: no kernels", path);
}

/* ---- compiling ---- */

static void print_kernel(FILE *out, const Kernel *k, size_t number)
{
	for (const char *s = k->text; *s; s++)
		if (*s == '$')
			fprintf(out, "k%zu", number);
		else
			fputc(*s, out);
}

/* The next unit, of fused or of special kernels from *at on; NULL: there are no more. */
static const char *next_unit(Zoo *z, bool special, size_t *at)
{
	char *text = NULL;
	size_t len = 0, any = 0;
	FILE *f = open_memstream(&text, &len);
	fputs("/* for its report */\n", f);
	cuda_print_unit_head(f, special);
	for (size_t bytes = 0; *at < z->kernels.len && bytes < UNIT_BYTES; ++*at) {
		const Kernel *k = &z->kernels.at[*at];
		if (k->special != special)
			continue;
		print_kernel(f, k, *at);
		bytes += strlen(k->text);
		any++;
	}
	fclose(f);
	const char *copy = any ? arena_strndup(z->a, text, len) : NULL;
	free(text);
	return copy;
}

/* ---- reports ---- */

static unsigned most_shared(const char *arch)
{
	int sm = atoi(arch + 3);
	return sm == 80 ? 166912 : sm == 86 || sm == 89 || sm == 120 ? 101376 : 232448;
}

/* The function that a report is of; false at its end. */
static bool next_report(const char **log, Report *r)
{
	static const char head[] = "Function properties for ";
	const char *s = strstr(*log, head), *end, *x;
	*r = (Report){ .frame = -1 };
	if (!s)
		return false;
	s += sizeof head - 1;
	snprintf(r->name, sizeof r->name, "%.*s", (int)strcspn(s, " \n"), s);
	end = strstr(s, head);
	*log = end ? end : s + strlen(s);
	const char *frame = strchr(s, '\n');
	if (frame && (frame = strpbrk(frame, "0123456789")))
		sscanf(frame, "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &r->frame, &r->stores, &r->loads);
	if ((x = strstr(s, "Used ")) && (!end || x < end))
		r->registers = atoi(x + 5);
	if ((x = strstr(s, " bytes smem")) && (!end || x < end)) {
		while (x > s && isdigit((unsigned char)x[-1]))
			x--;
		r->shared = atoi(x);
	}
	return true;
}

static void check_report(Zoo *z, const Report *r)
{
	unsigned number = 0, part = 0;
	int before = z->failed;
	if (sscanf(r->name, "k%u_%u", &number, &part) < 1) { /* one that f64 calls */
		if (r->stores + r->loads)
			fail(z, "%s %s: spills %d and %d bytes", z->arch, r->name, r->stores, r->loads);
		return;
	}
	if (number >= z->kernels.len || part >= (unsigned)z->kernels.at[number].nlaunch) {
		fail(z, "%s %s: a function that no kernel launches", z->arch, r->name);
		return;
	}
	const Kernel *k = &z->kernels.at[number];
	const Launch *l = &k->launch[part];
	bool local = r->frame != 0 || r->stores != 0 || r->loads != 0;
	if (local && !(r->frame >= 0 && strstr(k->text, "double")))
		fail(z, "%s %s: frame %d, spills %d and %d bytes", z->arch, k->from, r->frame, r->stores, r->loads);
	if ((unsigned)r->shared + l->shared > most_shared(z->arch))
		fail(z, "%s %s: %u bytes of shared memory", z->arch, k->from, (unsigned)r->shared + l->shared);
	if (l->block > 1024 || (unsigned)r->registers * l->block > 65536 || r->registers == 0)
		fail(z, "%s %s: %u threads of %d registers", z->arch, k->from, l->block, r->registers);
	if (l->grid[0] > INT32_MAX || l->grid[1] > 65535 || l->grid[2] > 65535 || !l->grid[0] || !l->grid[1] || !l->grid[2])
		fail(z, "%s %s: a grid of %u %u %u", z->arch, k->from, l->grid[0], l->grid[1], l->grid[2]);
	z->passed += z->failed == before;
}

static void check_log(Zoo *z, const char *log)
{
	for (Report r; next_report(&log, &r);)
		check_report(z, &r);
}

/* Up to n units at a time, a process each. */
static void compile_some(Zoo *z, CudaUnit *unit, int n, const char *dir)
{
	Jobs jobs;
	jobs_open(&jobs);
	for (int i = 0; i < n; i++)
		unit[i].path = arena_printf(z->a, "%s/unit%d", dir, i);
	bool ok = cuda_units_start(z->a, &jobs, unit, n, dir);
	const Job *bad = jobs_wait(&jobs);
	if (bad || !ok)
		fail(z, "%s: a unit does not compile", z->arch);
	if (bad && system(arena_printf(z->a, "head -20 %s", bad->log)) != 0)
		puts("without a word");
	ok = ok && !bad;
	if (ok && cuda_units_finish(z->a, unit, n))
		fail(z, "%s: a unit has no result", z->arch);
	for (int i = 0; i < n && ok; i++)
		if (unit[i].result.log)
			check_log(z, unit[i].result.log);
	jobs_close(&jobs);
}

static void compile_all(Zoo *z, Nvrtc *lib)
{
	char dir[] = "/tmp/dlc-zoo-XXXXXX";
	int side = omp_get_num_procs() < MAX_JOBS ? omp_get_num_procs() : MAX_JOBS, n = 0, functions = 0;
	CudaUnit unit[MAX_JOBS];
	if (!mkdtemp(dir)) {
		fail(z, "%s: cannot be made", dir);
		return;
	}
	for (int special = 0; special < 2; special++) {
		size_t at = 0;
		for (const char *text; (text = next_unit(z, special, &at));) {
			unit[n++] = (CudaUnit){ .lib = lib, .text = text, .arch = z->arch, .report_only = true };
			if (n == side) {
				compile_some(z, unit, n, dir);
				n = 0;
			}
		}
	}
	compile_some(z, unit, n, dir);
	for (size_t i = 0; i < z->kernels.len; i++)
		functions += z->kernels.at[i].nlaunch;
	if (z->passed + z->failed < functions)
		fail(z, "%s: reports of %d functions, there are %d", z->arch, z->passed + z->failed, functions);
	if (system(arena_printf(z->a, "rm -r %s", dir)) != 0)
		fail(z, "%s: cannot be removed", dir);
	printf("%s: %d kernels, %zu %s, %d functions\n", z->arch, z->read, z->kernels.len, z->forms ? "forms" : "distinct", functions);
}

/* ---- what is to be found ---- */

/* One kernel, launched so, with such a report: so many faults. */
static void planted(Zoo *z, const char *what, Launch l, const char *body, const char *numbers, int faults)
{
	Zoo one = { .a = z->a, .arch = "sm_80", .quiet = true };
	Kernel k = { .text = body, .from = "planted", .nlaunch = 1, .launch = { l } };
	vec_push(z->a, &one.kernels, k);
	check_log(&one, arena_printf(z->a, "ptxas info : Function properties for %s\n", numbers));
	if (one.failed != faults)
		fail(z, "planted: %s: %d faults found", what, one.failed);
	else
		z->passed++;
}

static void all_planted(Zoo *z)
{
	static const char good[] = "k0\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 64 registers, 8 bytes smem\n";
	static const char frame[] = "k0\n 8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 64 registers, 8 bytes smem\n";
	static const char spill[] = "k0\n 0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\nUsed 64 registers, 8 bytes smem\n";
	static const char many[] = "k0\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 72 registers, 8 bytes smem\n";
	static const char other[] = "k1\n 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 64 registers\n";
	static const char called[] = "__internal_pow\n 8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
	planted(z, "nothing", (Launch){ { 1, 1, 1 }, 1024, 166904 }, "", good, 0);
	planted(z, "shared memory", (Launch){ { 1, 1, 1 }, 1024, 166905 }, "", good, 1);
	planted(z, "a grid", (Launch){ { 1, 65536, 1 }, 256, 0 }, "", good, 1);
	planted(z, "registers", (Launch){ { 1, 1, 1 }, 1024, 0 }, "", many, 1);
	planted(z, "a spill", (Launch){ { 1, 1, 1 }, 256, 0 }, "", spill, 1);
	planted(z, "a frame", (Launch){ { 1, 1, 1 }, 256, 0 }, "", frame, 1);
	planted(z, "a frame of f64", (Launch){ { 1, 1, 1 }, 256, 0 }, "double x;", frame, 0);
	planted(z, "no report", (Launch){ { 1, 1, 1 }, 256, 0 }, "", "k0\n", 2);
	planted(z, "a function that is called", (Launch){ { 1, 1, 1 }, 256, 0 }, "", called, 0);
	planted(z, "another kernel", (Launch){ { 1, 1, 1 }, 256, 0 }, "", other, 1);
	const char *two = nameless(z->a, "k1(k12, k1_off, ak1)", 1);
	const char *form = form_of(z->a, "x0[8] + dl_load_f16(a3[256]) * 0.5f", false);
	const char *tiles = form_of(z->a, "DlConv<64, 3, 16, 17>", true);
	if (strcmp(tiles, "DlConv<#, 3, 16, #>") != 0 || strcmp(two, "$(k12, $_off, ak1)") != 0 || strcmp(form, "x0[#] + dl_load_bf16(a3[#]) * #") != 0)
		fail(z, "names or forms: %s; %s; %s", two, form, tiles);
	else
		z->passed++;
}

int main(int argc, char **argv)
{
	char why[NVRTC_WHY];
	Zoo z = { .a = arena_new() };
	z.texts.arena = z.known.arena = z.a;
	if (argc == 2 && strcmp(argv[1], "planted") == 0) {
		all_planted(&z);
	} else if (argc > 3 && (strcmp(argv[2], "all") == 0 || strcmp(argv[2], "forms") == 0)) {
		Nvrtc *lib = nvrtc_open(z.a, why);
		z.arch = argv[1];
		z.forms = strcmp(argv[2], "forms") == 0;
		for (int i = 3; i < argc; i++)
			read_file(&z, argv[i]);
		if (lib)
			compile_all(&z, lib);
		else
			fail(&z, "%s", why);
	} else {
		fputs("usage: cuda_zoo ARCH all|forms FILE.. | planted\n", stderr);
		return 2;
	}
	printf("%d passed, %d failed\n", z.passed, z.failed);
	bool good = z.failed == 0;
	arena_free(z.a);
	return good ? 0 : 1;
}

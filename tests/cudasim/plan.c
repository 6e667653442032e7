/* Which bytes of the arena a launch may touch, where the program is a trainer.
 *
 * A launch gets the whole arena and offsets into it. What lies at them is in the plan that is linked into a trainer as `dl_plan`, found here in
 * the program's own symbol table: the step whose kernel and offsets these are. A step's results and its workspace have their sizes
 * in the plan; what an operand's offset points into was made by the nearest earlier step with a result there (in a loop: by a later
 * one, in the trip before), came from host memory, or is a variable. An operand reaches from its offset to that value's end. Only results, workspace, and
 * variables, which a step may assign, may be written. Results and workspace that are no operand's bytes as well are undefined when the
 * step's first launch begins. */
#include "sim.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/plan.h"

/* ---- the program's plan ---- */

static int first_object(struct dl_phdr_info *info, size_t size, void *bias)
{
	(void)size;
	*(uintptr_t *)bias = info->dlpi_addr;
	return 1; /* the program itself comes first */
}

static bool read_at(FILE *f, uint64_t at, void *to, size_t n)
{
	return fseek(f, (long)at, SEEK_SET) == 0 && fread(to, 1, n, f) == n;
}

static uintptr_t symbol_value(FILE *f, const char *name)
{
	Elf64_Ehdr h;
	Elf64_Shdr s, text;
	Elf64_Sym y;
	char got[16];
	if (!read_at(f, 0, &h, sizeof h) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0)
		return 0;
	for (int i = 0; i < h.e_shnum; i++) {
		if (!read_at(f, h.e_shoff + (uint64_t)i * sizeof s, &s, sizeof s) || s.sh_type != SHT_SYMTAB)
			continue;
		if (!read_at(f, h.e_shoff + (uint64_t)s.sh_link * sizeof text, &text, sizeof text))
			continue;
		for (uint64_t k = 0; k < s.sh_size / sizeof y; k++) {
			memset(got, 0, sizeof got);
			if (!read_at(f, s.sh_offset + k * sizeof y, &y, sizeof y) || ELF64_ST_TYPE(y.st_info) != STT_OBJECT || y.st_size != sizeof(Plan))
				continue;
			if (read_at(f, text.sh_offset + y.st_name, got, strlen(name) + 1) && strcmp(got, name) == 0)
				return y.st_value;
		}
	}
	return 0;
}

static const Plan *find_plan(void)
{
	static const Plan *plan;
	static bool looked;
	if (looked)
		return plan;
	looked = true;
	const char *setting = getenv("DL_SIM_PLAN");
	if (setting && strcmp(setting, "none") == 0)
		return NULL;
	uintptr_t bias = 0, value = 0;
	FILE *f = fopen("/proc/self/exe", "r");
	if (f) {
		value = symbol_value(f, "dl_plan");
		fclose(f);
	}
	dl_iterate_phdr(first_object, &bias);
	plan = value ? (const Plan *)(bias + value) : NULL;
	if (plan && plan->version != PLAN_VERSION)
		plan = NULL;
	return plan;
}

/* ---- what lies at an offset ---- */

/* A result of step `i` of a function that covers offset `at`: its end. */
static int64_t result_end(const PlanStep *s, int64_t at)
{
	int first = s->noff - s->nout - s->nwork;
	if (s->kind == PLAN_FETCH && at >= s->off[0] && at < s->off[0] + s->copy_bytes)
		return s->off[0] + s->copy_bytes;
	for (int k = 0; k < s->nout && s->out_bytes; k++) {
		int64_t lo = s->off[first + k], hi = lo + s->out_bytes[k];
		if (at >= lo && at < hi)
			return hi;
	}
	return -1;
}

/* The end of the value that operand offset `at` of step `i` points into; -1: not known. */
static int64_t value_end(const Plan *p, const PlanFunc *f, int i, int64_t at, bool *variable)
{
	*variable = false;
	for (int k = 0; k < p->nvars; k++)
		if (at >= p->vars[k].offset && at < p->vars[k].offset + p->vars[k].bytes) {
			*variable = true;
			return p->vars[k].offset + p->vars[k].bytes;
		}
	for (int k = 1; k < f->nsteps; k++) {
		int64_t end = result_end(&f->steps[(i - k + f->nsteps) % f->nsteps], at);
		if (end >= 0)
			return end;
	}
	return -1;
}

static bool add_extent(Launch *l, int64_t lo, int64_t hi, bool written, ExtentKind kind, int index)
{
	Extent *v = realloc(l->extents, (size_t)(l->nextents + 1) * sizeof *v);
	if (!v)
		return false;
	l->extents = v;
	v[l->nextents++] = (Extent){lo, hi, written, false, kind, index};
	return true;
}

static bool add_step(Launch *l, const Plan *p, const PlanFunc *f, int i)
{
	const PlanStep *s = &f->steps[i];
	int operands = s->noff - s->nout - s->nwork;
	for (int k = 0; k < s->nout; k++)
		if (!s->out_bytes || !add_extent(l, s->off[operands + k], s->off[operands + k] + s->out_bytes[k], true, EXTENT_RESULT, k))
			return false;
	if (s->nwork && !add_extent(l, s->off[s->noff - 1], s->off[s->noff - 1] + s->work_bytes, true, EXTENT_WORK, 0))
		return false;
	for (int k = 0; k < operands; k++) {
		bool variable;
		int64_t end = value_end(p, f, i, s->off[k], &variable);
		if (end < 0 || !add_extent(l, s->off[k], end, variable, EXTENT_OPERAND, k))
			return false;
	}
	return true;
}

/* Of the extents from `first` on, a step's. */
static void mark_fresh(Launch *l, int first)
{
	for (int i = first; i < l->nextents; i++) {
		Extent *e = &l->extents[i];
		e->fresh = e->kind != EXTENT_OPERAND;
		for (int k = first; k < l->nextents && e->fresh; k++)
			if (l->extents[k].kind == EXTENT_OPERAND && l->extents[k].lo < e->hi && e->lo < l->extents[k].hi)
				e->fresh = false;
	}
}

void plan_forget(const Launch *l)
{
	for (int i = 0; i < l->nextents; i++) {
		const Extent *e = &l->extents[i];
		Region *g = e->fresh ? memory_range(l->arena + (CUdeviceptr)e->lo, (size_t)(e->hi - e->lo)) : NULL;
		if (g)
			memset(g->written + (l->arena + (CUdeviceptr)e->lo - g->base), 0, (size_t)(e->hi - e->lo));
	}
}

/* The number of the launch among those of the step; -1: it is none of them. Functions of other batches share kernels, and by chance
 * offsets: their grids tell them apart. */
static int launch_of_step(const Launch *l, const PlanStep *s)
{
	const SimKernel *k = l->f->kernel;
	for (int i = 0; i < s->nlaunch; i++) {
		const uint32_t *g = s->launch[i].grid;
		if (strcmp(s->launch[i].symbol, l->f->name) == 0 && g[0] == l->grid.x && g[1] == l->grid.y && g[2] == l->grid.z &&
		    k->nparams >= 2 && k->sizes[1] >= (size_t)s->noff * 8 && memcmp(l->args + l->arg_at[1], s->off, (size_t)s->noff * 8) == 0)
			return i;
	}
	return -1;
}

/* Adds the extents of those of the function's steps that the launch may belong to; false: not all are known. */
static bool add_func(Launch *l, const Plan *p, const PlanFunc *f)
{
	bool known = true;
	for (int i = 0; i < f->nsteps; i++) {
		int first = l->nextents, number = launch_of_step(l, &f->steps[i]);
		if (number < 0)
			continue;
		known = add_step(l, p, f, i) && known;
		if (number == 0)
			mark_fresh(l, first);
	}
	return known;
}

void plan_extents(Launch *l)
{
	static const PlanFunc *last; /* whose the launch before was: a function's follow each other */
	const Plan *p = find_plan();
	bool known = !last || add_func(l, p, last);
	for (int i = 0; p && i < p->nfuncs && !l->nextents; i++) {
		known = add_func(l, p, &p->funcs[i]) && known;
		if (l->nextents)
			last = &p->funcs[i];
	}
	/* Behind the plan's arena lies what the runtime keeps there for itself: kernels read their PlanEnv. */
	if (l->nextents)
		known = known && add_extent(l, p->arena_bytes, INT64_MAX, false, EXTENT_ENV, 0);
	if (!known) {
		free(l->extents);
		l->extents = NULL;
		l->nextents = 0;
	}
	if (p)
		report_count(l->nextents ? "launches_of_plan" : "launches_not_in_plan", 1);
}

/* The extent that holds [at, at+n) and may be written, if it is to be; NULL: none does. */
const Extent *extent_of(const Launch *l, int64_t at, size_t n, bool write)
{
	for (int i = 0; i < l->nextents; i++) {
		const Extent *e = &l->extents[i];
		if (at >= e->lo && at + (int64_t)n <= e->hi && (e->written || !write))
			return e;
	}
	return NULL;
}

/* The one that reaches up to nearest below `at`, for messages. */
const Extent *extent_near(const Launch *l, int64_t at)
{
	const Extent *best = NULL;
	for (int i = 0; i < l->nextents; i++) {
		const Extent *e = &l->extents[i];
		if (e->lo <= at && (!best || (at < e->hi) > (at < best->hi) || ((at < e->hi) == (at < best->hi) && e->lo > best->lo)))
			best = e;
	}
	return best;
}

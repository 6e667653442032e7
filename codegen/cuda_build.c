/* Builds for CUDA (make.h): kernels into a few units, each compiled by NVRTC in a process of its own, unless the cache has
 * it; their cubins and PTX (packed: a trainer seldom needs it) become constants of plan.c. */
#include <stdlib.h>

#include "cuda.h"
#include "cuda_unit.h"
#include "make.h"
#include "traffic.h"

enum { SPLIT_BYTES = 12000, SPECIAL_PARTS = 2 };
_Static_assert(MAX_JOBS >= MAKE_PARTS + SPECIAL_PARTS, "units of fused kernels, and of special ones");

/* ---- units ---- */

static const char *unit_text(Make *k, Emit *e, int module, bool special)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	cuda_print_unit_head(f, special);
	for (size_t i = 0; i < e->kernels.len; i++)
		if (e->kernels.at[i].module == module)
			kernel_print(f, e, (int)i);
	fclose(f);
	const char *copy = arena_strndup(k->a, text, len);
	free(text);
	return copy;
}

/* Gives each kernel its unit: fused ones in order, in parts of equal weight; behind them special ones, in turn. Returns the
 * number of units; *fused: of those of fused kernels. */
static int divide(Emit *e, int *fused)
{
	double all = 0, before = 0;
	int special = 0;
	for (size_t i = 0; i < e->kernels.len; i++)
		all += e->kernels.at[i].special ? 0 : e->kernels.at[i].weight;
	*fused = make_parts(all, SPLIT_BYTES);
	for (size_t i = 0; i < e->kernels.len; i++) {
		EmitKernel *x = &e->kernels.at[i];
		x->module = x->special ? *fused + special++ % SPECIAL_PARTS : (int)(before * *fused / (all + 1));
		before += x->special ? 0 : x->weight;
	}
	return *fused + (special < SPECIAL_PARTS ? special : SPECIAL_PARTS);
}

/* Results of all units: from the cache, or from processes side by side. */
static bool compile_units(Make *k, CudaUnit *unit, int n)
{
	bool ok = cuda_units_start(k->a, &k->jobs, unit, n, k->dir) || make_fail(k, "cannot start", "NVRTC");
	ok = make_wait(k, "NVRTC", "compile the generated kernels") && ok;
	const CudaUnit *without = ok ? cuda_units_finish(k->a, unit, n) : NULL;
	return ok && (!without || make_fail(k, "cannot read", without->path));
}

static bool write_unit(Make *k, const CudaUnit *u, int i, PlanUnit *to)
{
	const char *cubin = arena_printf(k->a, "unit%d.cubin", i), *ptx = arena_printf(k->a, "unit%d.ptx.z", i);
	const char *text = k->o->keep_sources ? nvrtc_ptx(k->a, &u->result) : NULL;
	if (text && !make_text(k, arena_printf(k->a, "unit%d.ptx", i), text, (size_t)u->result.ptx_bytes))
		return false;
	*to = (PlanUnit){ make_path(k, cubin), make_path(k, ptx), u->result.cubin_bytes, u->result.ptx_packed_bytes, u->result.ptx_bytes };
	return make_text(k, cubin, (const char *)u->result.cubin, (size_t)u->result.cubin_bytes) &&
	       make_text(k, ptx, (const char *)u->result.ptx, (size_t)u->result.ptx_packed_bytes) &&
	       make_text(k, arena_printf(k->a, "unit%d.log", i), u->result.log, (size_t)u->result.log_bytes);
}

static bool compile_all(Make *k, Emit *e)
{
	char why[NVRTC_WHY];
	int fused;
	Nvrtc *lib = nvrtc_open(k->a, why);
	if (!lib) {
		diag_error(k->m->diag, NO_SPAN, "%s", why);
		return false;
	}
	k->nunits = divide(e, &fused);
	k->units = ARENA_ARRAY(k->a, k->nunits, PlanUnit);
	CudaUnit *unit = ARENA_ARRAY(k->a, k->nunits, CudaUnit);
	for (int i = 0; i < k->nunits; i++) {
		unit[i] = (CudaUnit){ .lib = lib, .text = unit_text(k, e, i, i >= fused), .arch = k->o->arch,
				      .path = make_path(k, arena_printf(k->a, "unit%d", i)) };
	}
	bool ok = compile_units(k, unit, k->nunits);
	for (int i = 0; i < k->nunits && ok; i++)
		ok = write_unit(k, &unit[i], i, &k->units[i]);
	return ok && make_plan(k, e) && make_wait(k, NULL, "compile the plan");
}

/* ---- what --keep-sources leaves ---- */

static void copy_out(Make *k, const char *from, const char *to)
{
	FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
	char bytes[65536];
	size_t n;
	while (in && out && (n = fread(bytes, 1, sizeof bytes, in)) > 0 && fwrite(bytes, 1, n, out) == n)
		;
	if (in)
		fclose(in);
	if (out && fclose(out) != 0)
		make_fail(k, "cannot write", to);
}

/* NAME.kernels.cu, NAME.plan.c, and for each unit the compiler's report, its cubin and its PTX. */
static void keep_sources(Make *k, Emit *e)
{
	const char *name = k->o->output;
	static const char *const suffix[] = { "log", "cubin", "ptx" };
	FILE *f = fopen(arena_printf(k->a, "%s.kernels.cu", name), "w");
	if (f) {
		kernels_write(f, e);
		fclose(f);
	}
	for (int i = 0; i < k->nunits; i++) {
		for (int s = 0; s < 3; s++)
			copy_out(k, make_path(k, arena_printf(k->a, "unit%d.%s", i, suffix[s])),
				 arena_printf(k->a, "%s.unit%d.%s", name, i, suffix[s]));
		k->units[i].cubin = arena_printf(k->a, "%s.unit%d.cubin", name, i);
		k->units[i].ptx = arena_printf(k->a, "%s.unit%d.ptx", name, i);
		k->units[i].ptx_packed_bytes = 0;
	}
	f = fopen(arena_printf(k->a, "%s.plan.c", name), "w");
	if (f) {
		plan_write(f, e, k->o, k->units, k->nunits);
		fclose(f);
	}
}

bool cuda_build(const Module *m, const BuildOptions *o)
{
	static const Recipe recipe = { &cuda_printer, "libdlrt-cuda.a", "-ldl", compile_all, keep_sources };
	return make_trainer(m, o, &recipe);
}

const char *cuda_launches(Arena *a, const Module *m, const char *arch)
{
	Arena *scratch = arena_new();
	const Emit *e = emit_module(scratch, m, &cuda_printer, arch);
	const char *s = e ? emit_launches(a, e) : NULL;
	arena_free(scratch);
	return s;
}

bool cuda_print_launches(FILE *out, const Module *m, const char *arch)
{
	Arena *a = arena_new();
	const Emit *e = emit_module(a, m, &cuda_printer, arch);
	if (e)
		traffic_print(out, e);
	arena_free(a);
	return e != NULL;
}

bool cuda_emit(FILE *out, const Module *m, const BuildOptions *o)
{
	Arena *a = arena_new();
	Emit *e = emit_module(a, m, &cuda_printer, o->arch);
	if (e)
		kernels_write(out, e);
	arena_free(a);
	return e != NULL;
}

/* Builds for the CPU (make.h). Fused kernels are compiled without contraction (rounding belongs to ops), special kernels
 * with it (each is one op). Environment: DLC_CFLAGS (added). */
#include <stdlib.h>

#include "cpu.h"
#include "make.h"

extern const char scalar_h[], kernel_h[], special_h[], product_h[], plan_h[];
extern const unsigned scalar_h_len, kernel_h_len, special_h_len, product_h_len, plan_h_len;

_Static_assert(MAX_JOBS >= MAKE_PARTS + 2, "the kernels, the special ones, the plan");
enum { SPLIT_BYTES = 12000 };

static const char *compile_flags(const Make *k, bool special)
{
	const char *extra = getenv("DLC_CFLAGS");
	const char *level = k->o->debug ? "-O1 -g" : "-O3";
	const char *target = "-march=native";
#ifdef __x86_64__
	target = "-march=native -mprefer-vector-width=512";
#endif
	return arena_printf(k->a,
			    "-std=gnu11 %s %s -fopenmp -fno-math-errno -fno-trapping-math "
			    "-fno-strict-aliasing -ffp-contract=%s -w -Wno-psabi %s",
			    level, target, special ? "fast" : "off", extra ? extra : "");
}

/* ---- sources ---- */

static bool write_kernels(Make *k, const Emit *e, int part, int parts)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	double all = 0, before = 0;
	for (size_t i = 0; i < e->kernels.len; i++)
		all += e->kernels.at[i].special ? 0 : e->kernels.at[i].weight;
	e->printer->prelude(f, e, false);
	for (size_t i = 0; i < e->kernels.len; i++) {
		const EmitKernel *x = &e->kernels.at[i];
		if (x->special)
			continue;
		int of = (int)(before * parts / (all + 1));
		before += x->weight;
		if (of == part)
			kernel_print(f, e, (int)i);
	}
	fclose(f);
	bool ok = make_text(k, arena_printf(k->a, "kernels%d.c", part), text, len);
	free(text);
	return ok;
}

static void print_special(FILE *f, void *ctx)
{
	const Emit *e = ctx;
	e->printer->prelude(f, e, true);
	for (size_t i = 0; i < e->kernels.len; i++)
		if (e->kernels.at[i].special)
			kernel_print(f, e, (int)i);
}

static bool compile_all(Make *k, Emit *e)
{
	double weight = 0;
	bool special = false;
	for (size_t i = 0; i < e->kernels.len; i++) {
		special = special || e->kernels.at[i].special;
		weight += e->kernels.at[i].special ? 0 : e->kernels.at[i].weight;
	}
	int parts = make_parts(weight, SPLIT_BYTES);
	bool ok = make_text(k, "plan.h", plan_h, plan_h_len) &&
		  make_text(k, "scalar.h", scalar_h, scalar_h_len) &&
		  make_text(k, "kernel.h", kernel_h, kernel_h_len) &&
		  make_text(k, "special.h", special_h, special_h_len) &&
		  make_text(k, "product.h", product_h, product_h_len);
	for (int i = 0; i < parts && ok; i++)
		ok = write_kernels(k, e, i, parts) &&
		     make_compile(k, arena_printf(k->a, "kernels%d", i), compile_flags(k, false));
	if (ok && special)
		ok = make_file(k, "special.c", print_special, e) &&
		     make_compile(k, "special", compile_flags(k, true));
	ok = ok && make_plan(k, e);
	return make_wait(k, NULL, "compile the generated kernels") && ok;
}

static void keep_sources(Make *k, Emit *e)
{
	FILE *f = fopen(arena_printf(k->a, "%s.kernels.c", k->o->output), "w");
	if (f) {
		kernels_write(f, e);
		fclose(f);
	}
	f = fopen(arena_printf(k->a, "%s.plan.c", k->o->output), "w");
	if (f) {
		plan_write(f, e, k->o, NULL, 0);
		fclose(f);
	}
}

bool cpu_build(const Module *m, const BuildOptions *o)
{
	static const Recipe recipe = { &cpu_printer, "libdlrt.a", "-fopenmp -ldnnl", compile_all, keep_sources };
	return make_trainer(m, o, &recipe);
}

bool cpu_emit(FILE *out, const Module *m, const BuildOptions *o)
{
	(void)o;
	Arena *a = arena_new();
	Emit *e = emit_module(a, m, &cpu_printer, NULL);
	if (e)
		kernels_write(out, e);
	arena_free(a);
	return e != NULL;
}

/* Generated CUDA kernels: those of the cases of kernels.h that the back end has kernels for.
 *
 *     cuda_kernels version            the version of NVRTC; fails where there is none
 *     cuda_kernels print              every kernel, with its launches: for tests/cuda_zoo.c, which reads the compiler's reports
 *     cuda_kernels planted            attention in 16 bits with probabilities (and what is like them in its gradients) that
 *                                     are four units of rounding off: each case is a fault
 *     cuda_kernels run [NAME]         the driver runs them (a GPU, or tests/cudasim); fused results equal the
 *                                     interpreter's, fused equals unfused bit for bit (but for sums over rows beside others
 *                                     along them: those equal themselves), no byte outside of results,
 *                                     assigned variables and workspaces is touched
 *
 * NAME: only cases whose names contain it. Library calls are not run here: cases with products are left out. */
#include "kernels.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include "codegen/cuda.h"
#include "codegen/cuda_unit.h"

enum { UNITS = 4, RANDOM = 24, DYNAMIC_SHARED = 8 /* the attribute */ };

typedef struct Driver {
	int (*init)(unsigned), (*device)(int *, int), (*context)(void **, int), (*use)(void *);
	int (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
	int (*to_device)(uint64_t, const void *, size_t), (*to_host)(void *, uint64_t, size_t), (*wait)(void);
	int (*load)(void **, const void *), (*unload)(void *), (*function)(void **, void *, const char *);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*allow)(void *, int, int); /* cuFuncSetAttribute */
	int (*error)(int, const char **);
} Driver;

typedef struct Gpu {
	Test t;
	Nvrtc *lib;
	Driver d;
	CudaUnit unit[UNITS];
	void *module[UNITS];
	uint64_t env; /* PlanEnv on the device */
} Gpu;

/* ---- cases ---- */

static bool can_run(Test *t, const Func *f)
{
	for (const Node *n = f->body->first; n; n = n->next) {
		OpKind kind = ir_ops[n->op].kind;
		PlanPrim p;
		if (kind != K_KERNEL && kind != K_MATRIX)
			continue;
		if (cuda_library(n, &p) || !cuda_special_text(t->a, n, "sm_80").text)
			return false;
	}
	return true;
}

/* Keeps the cases to run; the others' functions go. */
static void choose_cases(Test *t, const char *name)
{
	int kept = 0;
	for (int i = 0; i < t->ncases; i++) {
		Case c = t->at[i];
		bool keep = can_run(t, c.plain) && can_run(t, c.fused) && (!name || strstr(c.name, name));
		if (keep) {
			t->at[kept++] = c;
			place_case(t, c.plain);
			place_case(t, c.fused);
		} else {
			ir_remove_func(t->m, c.plain->name);
			ir_remove_func(t->m, c.fused->name);
		}
	}
	t->ncases = kept;
}

/* ---- compiling ---- */

/* What is planted: a factor of 1 + 2^-6 in bf16, 1 + 2^-9 in f16. */
static const char right[] = "E::pack2(t[e * 2], t[e * 2 + 1])";
static const char wrong[] = "E::pack2(t[e * 2] * DL_OFF, t[e * 2 + 1] * DL_OFF)";
static const char factor[] = "#define DL_OFF (E::load(E::store(1.001953125f)) == 1.0f ? 1.015625f : 1.001953125f)\n";

static const char *plant(Test *t, const char *text)
{
	const char *at = strstr(text, right);
	if (!at || strstr(at + 1, right)) {
		printf("FAIL planted: the place is not found\n");
		exit(1);
	}
	return arena_printf(t->a, "%s%.*s%s%s", factor, (int)(at - text), text, wrong, at + sizeof right - 1);
}

static const char *unit_text(Test *t, int unit)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	cuda_print_unit_head(f, true);
	for (size_t i = 0; i < t->e->kernels.len; i++)
		if (t->e->kernels.at[i].module == unit)
			kernel_print(f, t->e, (int)i);
	fclose(f);
	const char *copy = arena_strndup(t->a, text, len);
	free(text);
	return t->planted ? plant(t, copy) : copy;
}

static bool compile_all(Gpu *g, const char *arch)
{
	Test *t = &g->t;
	char dir[] = "/tmp/dlc-cuda-XXXXXX";
	Jobs jobs;
	if (!mkdtemp(dir))
		return false;
	double all = 0, before = 0;
	for (size_t i = 0; i < t->e->kernels.len; i++)
		all += t->e->kernels.at[i].weight;
	for (size_t i = 0; i < t->e->kernels.len; i++) {
		t->e->kernels.at[i].module = (int)(before * UNITS / (all + 1));
		before += t->e->kernels.at[i].weight;
	}
	for (int i = 0; i < UNITS; i++)
		g->unit[i] = (CudaUnit){ .lib = g->lib, .text = unit_text(t, i), .arch = arch, .path = arena_printf(t->a, "%s/unit%d", dir, i) };
	jobs_open(&jobs);
	bool ok = cuda_units_start(t->a, &jobs, g->unit, UNITS, dir);
	const Job *bad = jobs_wait(&jobs);
	if (bad)
		ok = system(arena_printf(t->a, "head -20 %s", bad->log)) != 0 && false;
	ok = ok && !cuda_units_finish(t->a, g->unit, UNITS);
	jobs_close(&jobs);
	if (!getenv("KEEP"))
		ok = system(arena_printf(t->a, "rm -r %s", dir)) == 0 && ok;
	return ok;
}

/* ---- running ---- */

static bool find(void *h, const char *name, void *to)
{
	void *sym = dlsym(h, name);
	memcpy(to, &sym, sizeof sym);
	return sym != NULL;
}

static bool open_driver(Driver *d)
{
	void *h = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
	int device = 0;
	return h && find(h, "cuInit", &d->init) && find(h, "cuDeviceGet", &d->device) &&
	       find(h, "cuDevicePrimaryCtxRetain", &d->context) && find(h, "cuCtxSetCurrent", &d->use) &&
	       find(h, "cuMemAlloc_v2", &d->alloc) && find(h, "cuMemFree_v2", &d->release) &&
	       find(h, "cuMemcpyHtoD_v2", &d->to_device) && find(h, "cuMemcpyDtoH_v2", &d->to_host) &&
	       find(h, "cuCtxSynchronize", &d->wait) && find(h, "cuModuleLoadData", &d->load) && find(h, "cuModuleUnload", &d->unload) &&
	       find(h, "cuModuleGetFunction", &d->function) && find(h, "cuLaunchKernel", &d->launch) &&
	       find(h, "cuFuncSetAttribute", &d->allow) && find(h, "cuGetErrorString", &d->error) && d->init(0) == 0 && d->device(&device, 0) == 0 &&
	       d->context(&context, device) == 0 && d->use(context) == 0;
}

static void run_step(Gpu *g, const EmitStep *s, uint64_t arena, const char *name)
{
	Test *t = &g->t;
	int64_t *off = emit_offsets(t->a, t->m, s).off;
	for (int i = 0; i < s->nlaunch; i++) {
		const PlanLaunch *l = &s->launch[i];
		const char *symbol = arena_printf(t->a, i ? "k%d_%d" : "k%d", s->index, i);
		void *fn = NULL, *args[] = { &arena, off, &g->env };
		int code = g->d.function(&fn, g->module[t->e->kernels.at[s->index].module], symbol);
		if (code == 0 && l->shared_bytes > 0)
			code = g->d.allow(fn, DYNAMIC_SHARED, (int)l->shared_bytes);
		if (code == 0)
			code = g->d.launch(fn, l->grid[0], l->grid[1], l->grid[2], l->block, 1, 1, l->shared_bytes, NULL, args, NULL);
		if (code == 0)
			code = g->d.wait();
		const char *why = "?";
		if (code != 0) {
			g->d.error(code, &why);
			fault(t, name, "%s: %s", symbol, why);
			return;
		}
	}
}

static unsigned char *run(Gpu *g, Func *f, const char *name, const char *how)
{
	Test *t = &g->t;
	size_t bytes = (size_t)place_case(t, f);
	unsigned char *arena = aligned_alloc(64, (bytes + 63) / 64 * 64);
	uint64_t device = 0;
	fill_arena(t, f, arena, (int64_t)bytes);
	if (g->d.alloc(&device, bytes) != 0 || g->d.to_device(device, arena, bytes) != 0) {
		fault(t, name, "no memory");
		return arena;
	}
	const EmitFunc *ef = find_func(t, f);
	for (size_t i = 0; i < ef->steps.len; i++)
		if (ef->steps.at[i].kind == PLAN_KERNEL)
			run_step(g, &ef->steps.at[i], device, name);
	g->d.to_host(arena, device, bytes);
	g->d.release(device);
	if (!guards_hold(t, f, arena))
		fault(t, name, "bytes outside of a buffer were written (%s)", how);
	return arena;
}

/* Attention alone: tensor cores take one factor of its sums' terms in 16 bits. */
static bool rounds_factors(const Case *c)
{
	for (const Node *n = c->plain->body->first; n; n = n->next)
		if (n->op == OP_attention || ir_is_attention_grad(n->op))
			return true;
	return false;
}

static bool sums_beside_rows(const Test *t, const Func *f)
{
	for (const Node *n = f->body->first; n; n = n->next) {
		const Loop *l = n->op == OP_fused ? loop_build(t->a, n, f->batch) : NULL;
		if (l && l->ncolumns > 0)
			return true;
	}
	return false;
}

static void check_case(Gpu *g, const Case *c)
{
	Test *t = &g->t;
	InterpEnv env, terms;
	int64_t n1, n2;
	bool rounds = rounds_factors(c);
	if (!reference(t, c, &env, c->fused, false) || (rounds && !reference(t, c, &terms, c->fused, true)))
		return;
	unsigned char *arena = run(g, c->plain, c->name, "plain");
	unsigned char *plain = results(t, c->plain, arena, &n1);
	free(arena);
	arena = run(g, c->fused, c->name, "fused");
	unsigned char *fused = results(t, c->fused, arena, &n2);
	for (const Node *n = c->fused->body->first; n; n = n->next) {
		if (n->op != OP_output)
			continue;
		const InterpSlot *s = interp_find(env.outputs, ir_str(n, "name"));
		compare(t, c, s->name, s->type.dtype, arena + emit_offset(t->m, n->arg[0]), s->v,
			rounds ? interp_find(terms.outputs, s->name)->v : NULL, type_elems(&s->type));
	}
	for (const Var *v = t->m->vars; v; v = v->next)
		compare(t, c, v->name, v->type.dtype, arena + v->offset, interp_find(env.vars, v->name)->v, NULL, type_elems(&v->type));
	if (sums_beside_rows(t, c->fused)) { /* which have an order of their own */
		free(arena);
		free(plain);
		arena = run(g, c->fused, c->name, "fused, again");
		plain = results(t, c->fused, arena, &n1);
		same_bytes(t, c, "fused, again", plain, fused, n1);
	} else {
		same_bytes(t, c, "fused against unfused", plain, fused, n1 < n2 ? n1 : n2);
	}
	free(arena);
	free(plain);
	free(fused);
}

/* Counts the cases in which what is planted is found. */
static void check_planted(Gpu *g)
{
	Test *t = &g->t;
	int found = 0, missed = 0;
	for (int i = 0; i < t->ncases; i++) {
		const char *name = t->at[i].name;
		if (strchr(name, '/') || !strstr(name, "f16"))
			continue;
		t->failed = 0;
		check_case(g, &t->at[i]);
		*(t->failed ? &found : &missed) += 1;
		if (!t->failed)
			printf("FAIL %s: what is planted is not found\n", name);
	}
	t->passed = found;
	t->failed = missed + (found == 0);
}

static void run_all(Gpu *g)
{
	Test *t = &g->t;
	PlanEnv env = moment;
	if (!open_driver(&g->d) || g->d.alloc(&g->env, sizeof env) != 0 || g->d.to_device(g->env, &env, sizeof env) != 0) {
		fault(t, "driver", "cannot be opened");
		return;
	}
	if (!compile_all(g, "sm_90")) {
		fault(t, "kernels", "do not compile");
		return;
	}
	for (int i = 0; i < UNITS; i++)
		if (g->d.load(&g->module[i], g->unit[i].result.cubin) != 0)
			fault(t, "module", "cannot be loaded");
	if (t->planted)
		check_planted(g);
	for (int i = 0; i < t->ncases && !t->planted; i++)
		check_case(g, &t->at[i]);
	for (int i = 0; i < UNITS; i++)
		if (g->module[i] && g->d.unload(g->module[i]) != 0)
			fault(t, "module", "cannot be unloaded");
	if (g->d.release(g->env) != 0)
		fault(t, "driver", "cannot release memory");
}

static int print_version(void)
{
	Arena *a = arena_new();
	char why[NVRTC_WHY];
	const Nvrtc *n = nvrtc_open(a, why);
	printf("%d\n", n ? nvrtc_version(n) : 0);
	arena_free(a);
	return n ? 0 : 1;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "version") == 0)
		return print_version();
	Gpu *g = calloc(1, sizeof *g);
	Test *t = &g->t;
	char why[NVRTC_WHY];
	bool prints = argc == 2 && strcmp(argv[1], "print") == 0;
	t->planted = argc == 2 && strcmp(argv[1], "planted") == 0;
	if (!prints && !t->planted && (argc < 2 || strcmp(argv[1], "run") != 0)) {
		fputs("usage: cuda_kernels version | print | planted | run [NAME]\n", stderr);
		return 2;
	}
	make_cases(t, "cuda");
	add_shapes(t);
	add_random(t, RANDOM, 1);
	choose_cases(t, prints ? NULL : t->planted ? "attention" : argv[2]);
	t->e = emit_module(t->a, t->m, &cuda_printer, "sm_80");
	if (prints && t->e) {
		kernels_write(stdout, t->e);
		arena_free(t->a);
		free(g);
		return 0;
	}
	g->lib = nvrtc_open(t->a, why);
	if (!g->lib || !t->e)
		fault(t, "kernels", "cannot be made (%s)", g->lib ? "" : why);
	else
		run_all(g);
	printf("%d passed, %d failed\n", t->passed, t->failed);
	bool good = t->failed == 0;
	arena_free(t->a);
	free(g);
	return good ? 0 : 1;
}

/* Generated CPU kernels against the reference interpreter.
 *
 * Every example of the op table, in f64, f32, bf16 and f16, and the composites below become functions
 * of one module, each twice: with one kernel an op, and fused by the pass. Their kernels are
 * compiled as the back end compiles them, into a shared object, and run over buffers with guard
 * bytes around them. Checked: fused results equal the interpreter's (f64 to 1e-11, f32 to 2e-5 of
 * the largest element; in 16 bits arithmetic exactly, else one unit in the last place); fused equals unfused bit for bit; two threads equal one bit for bit; no byte outside of
 * results, assigned variables and workspaces is touched. */
#include "kernels.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "codegen/cpu.h"
#include "runtime/prim.h"

extern const char scalar_h[], kernel_h[], special_h[], product_h[], plan_h[];

typedef struct Cpu {
	Test t;
	void *kernels, *special; /* shared objects */
	PrimLib *lib;
} Cpu;

/* ---- compiling ---- */

/* Writes the source of one kind of kernels; the command that compiles it, or NULL. */
static const char *compile(Test *t, const char *dir, bool special)
{
	const char *c = arena_printf(t->a, "%s/%s.c", dir, special ? "special" : "kernels");
	const char *so = arena_printf(t->a, "%s/%s.so", dir, special ? "special" : "kernels");
	FILE *f = fopen(c, "w");
	if (!f)
		return NULL;
	t->e->printer->prelude(f, t->e, special);
	for (size_t i = 0; i < t->e->kernels.len; i++)
		if (t->e->kernels.at[i].special == special)
			kernel_print(f, t->e, (int)i);
	fclose(f);
	return arena_printf(t->a,
			     "cc -std=gnu11 -O2 -ftree-vectorize -march=native -fopenmp "
			     "-fno-math-errno -fno-trapping-math -fno-strict-aliasing "
			     "-ffp-contract=%s -w -Wno-psabi -I%s -shared -fPIC -o %s %s -lm",
			     special ? "fast" : "off", dir, so, c);
}

static void *load_object(Test *t, const char *dir, const char *name)
{
	return dlopen(arena_printf(t->a, "%s/%s.so", dir, name), RTLD_NOW);
}

static bool write_file(Test *t, const char *dir, const char *name, const char *text)
{
	FILE *f = fopen(arena_printf(t->a, "%s/%s", dir, name), "w");
	return f && fputs(text, f) >= 0 && fclose(f) == 0;
}

static bool compile_all(Cpu *cpu)
{
	Test *t = &cpu->t;
	char dir[] = "/tmp/dlc-kernels-XXXXXX";
	if (!mkdtemp(dir))
		return false;
	bool ok = write_file(t, dir, "plan.h", plan_h) &&
		  write_file(t, dir, "scalar.h", scalar_h) &&
		  write_file(t, dir, "kernel.h", kernel_h) &&
		  write_file(t, dir, "special.h", special_h) &&
		  write_file(t, dir, "product.h", product_h);
	const char *kernels = compile(t, dir, false), *special = compile(t, dir, true);
	ok = ok && kernels && special && /* both at a time */
	     system(arena_printf(t->a, "%s & %s; wait", kernels, special)) == 0;
	cpu->kernels = ok ? load_object(t, dir, "kernels") : NULL;
	cpu->special = ok ? load_object(t, dir, "special") : NULL;
	if (!getenv("KEEP"))
		ok = system(arena_printf(t->a, "rm -r %s", dir)) == 0 && ok;
	return cpu->kernels && cpu->special;
}

/* ---- running ---- */

static void run_steps(Cpu *cpu, const EmitFunc *f, unsigned char *arena, const PlanEnv *env,
		      int *failed)
{
	Test *t = &cpu->t;
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		const int64_t *off = emit_offsets(t->a, t->m, s).off;
		if (s->kind == PLAN_KERNEL) {
			bool special = t->e->kernels.at[s->index].special;
			void *sym = dlsym(special ? cpu->special : cpu->kernels,
					  arena_printf(t->a, "k%d", s->index));
			PlanKernel fn;
			memcpy(&fn, &sym, sizeof fn);
			fn(arena, off, env);
		} else if (s->kind == PLAN_PRIM) {
			char why[PRIM_WHY] = "";
			PrimCall *call =
				prim_bind(cpu->lib, &t->e->prims.at[s->index], arena, off, why);
			*failed += !call || !prim_run(call);
		}
	}
}

/* Runs one function; the arena belongs to the caller. Offsets stay as they were for this run. */
static unsigned char *run(Cpu *cpu, Func *f, int threads, const char *name, const char *how)
{
	Test *t = &cpu->t;
	int64_t bytes = place_case(t, f);
	unsigned char *arena = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
	fill_arena(t, f, arena, bytes);
	PlanEnv env = moment;
	env.threads = threads;
	int failed = 0;
	run_steps(cpu, find_func(t, f), arena, &env, &failed);
	if (failed)
		fault(t, name, "a library call failed (%s)", how);
	if (!guards_hold(t, f, arena))
		fault(t, name, "bytes outside of a buffer were written (%s)", how);
	return arena;
}

static void check_case(Cpu *cpu, const Case *c)
{
	Test *t = &cpu->t;
	InterpEnv env;
	int64_t n1, n2, n3;
	if (!reference(t, c, &env, c->fused, false))
		return;
	unsigned char *arena = run(cpu, c->plain, 1, c->name, "plain");
	unsigned char *plain = results(t, c->plain, arena, &n1);
	free(arena);
	arena = run(cpu, c->fused, THREADS, c->name, "two threads");
	unsigned char *two = results(t, c->fused, arena, &n2);
	free(arena);
	arena = run(cpu, c->fused, 1, c->name, "fused");
	unsigned char *one = results(t, c->fused, arena, &n3);
	for (const Node *n = c->fused->body->first; n; n = n->next) {
		if (n->op != OP_output)
			continue;
		const InterpSlot *s = interp_find(env.outputs, ir_str(n, "name"));
		compare(t, c, s->name, s->type.dtype, arena + emit_offset(t->m, n->arg[0]), s->v, NULL,
			type_elems(&s->type));
	}
	for (const Var *v = t->m->vars; v; v = v->next)
		compare(t, c, v->name, v->type.dtype, arena + v->offset,
			interp_find(env.vars, v->name)->v, NULL, type_elems(&v->type));
	free(arena);
	bool library = !strstr(c->name, "f64") && !strstr(c->name, "/") &&
		       (strncmp(c->name, "matmul", 6) == 0 || strncmp(c->name, "conv", 4) == 0);
	same_bytes(t, c, "fused against unfused", plain, one, n1 < n3 ? n1 : n3);
	if (!library)
		same_bytes(t, c, "two threads against one", two, one, n2 < n3 ? n2 : n3);
	free(plain);
	free(one);
	free(two);
}

/* Nodes that differ in their random streams alone share their kernels. */
static void check_sharing(Test *t)
{
	const EmitFunc *one[2] = { NULL, NULL }, *other[2] = { NULL, NULL };
	for (int i = 0; i < t->ncases; i++)
		for (int k = 0; k < 2; k++) {
			const char *d = dtype_name(k ? DT_F64 : DT_F32), *name = t->at[i].name;
			if (strcmp(name, arena_printf(t->a, "dropped/%s", d)) == 0)
				one[k] = find_func(t, t->at[i].fused);
			if (strcmp(name, arena_printf(t->a, "dropped_otherwise/%s", d)) == 0)
				other[k] = find_func(t, t->at[i].fused);
		}
	for (int k = 0; k < 2 && t->ncases; k++) {
		bool same = one[k]->steps.len == other[k]->steps.len;
		for (size_t i = 0; same && i < one[k]->steps.len; i++)
			same = one[k]->steps.at[i].kind != PLAN_KERNEL ||
			       one[k]->steps.at[i].index == other[k]->steps.at[i].index;
		t->passed += same;
		if (!same)
			fault(t, "dropped", "kernels that differ in streams alone are not one");
	}
}

int main(void)
{
	Cpu *cpu = calloc(1, sizeof *cpu);
	Test *t = &cpu->t;
	char why[PRIM_WHY] = "";
	make_cases(t, "cpu");
	cpu->lib = prim_open(THREADS, why);
	t->e = emit_module(t->a, t->m, &cpu_printer, NULL);
	if (!cpu->lib || !t->e || !compile_all(cpu)) {
		printf("FAIL kernels: cannot be made (%s)\n", why);
		t->failed++;
		t->ncases = 0;
	}
	for (int i = 0; i < t->ncases; i++)
		check_case(cpu, &t->at[i]);
	check_sharing(t);
	printf("%d passed, %d failed\n", t->passed, t->failed);
	bool good = t->failed == 0;
	prim_close(cpu->lib);
	arena_free(t->a);
	free(cpu);
	return good ? 0 : 1;
}

/* Machine profiles and what is predicted with them: text both ways, what is refused and where, the fit of costs to times, and what
 * must hold of any prediction. */
#include "passes/cost.h"
#include "passes/links.h"
#include "passes/machine_fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void check(const char *what, bool good)
{
	if (good) {
		passed++;
	} else {
		failed++;
		printf("FAIL %s\n", what);
	}
}

/* ---- text ---- */

static const char *printed(Arena *a, const Machine *m)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);
	const char *copy;

	machine_print(f, m);
	fclose(f);
	copy = arena_strndup(a, text, len);
	free(text);
	return copy;
}

static void test_round_trip(Arena *a)
{
	const char *names = machine_names(a);
	int n = 0;

	for (const char *s = names; *s; n++) {
		size_t len = strcspn(s, ",");
		const char *name = arena_strndup(a, s, len), *text;
		const Machine *m = machine_builtin(a, name), *again;

		check(name, m && strcmp(m->name, name) == 0);
		if (m) {
			text = printed(a, m);
			again = machine_parse(a, "f", text, stderr);
			check("a profile is read back", again && memcmp(again->ns, m->ns, sizeof m->ns) == 0 &&
			                                        again->overlap == m->overlap && again->threads == m->threads &&
			                                        again->link_out == m->link_out && again->link_in == m->link_in &&
			                                        again->link_delay == m->link_delay);
			check("a GPU has a link to host memory, a processor none", (m->link_out > 0 && m->link_in > 0) == (m->fork_work == 0));
			check("and prints as itself", again && strcmp(printed(a, again), text) == 0);
		}
		s += len;
		s += strspn(s, ", ");
	}
	check("there are profiles of a processor and three GPUs", n == 4);
	check("and no other", !machine_builtin(a, "h201") && !machine_builtin(a, ""));
}

/* The card that a profile is of, and where its costs are from. */
static void test_card(Arena *a)
{
	Machine m = *machine_builtin(a, "h200");
	const Machine *again;
	const char *text;

	m.card = "NVIDIA H200, sm_90";
	m.prior = "h200";
	m.kept[COST_conv] = true;
	text = printed(a, &m);
	again = machine_parse(a, "f", text, stderr);
	check("a profile names its card", again && again->card && strcmp(again->card, m.card) == 0 && machine_is_card(again));
	check("and the costs that no time told about", strstr(text, "# (h200) 3.33e+04 GFLOP/s a thread: a multiplication or addition of a convolution\n") &&
	                                                      !strstr(text, "(h200) the same"));
	check("a processor is none", !machine_is_card(machine_builtin(a, "generic-cpu")));
}

/* `from` is replaced by `to` in the text of a profile: refused, with these words. */
static void refuse(Arena *a, const char *from, const char *to, const char *words)
{
	const char *text = printed(a, machine_builtin(a, "generic-cpu")), *at = strstr(text, from);
	char said[512] = "";
	FILE *err = fmemopen(said, sizeof said, "w");
	const Machine *m;

	text = arena_printf(a, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	m = machine_parse(a, "f", text, err);
	fclose(err);
	check(words, !m && strstr(said, words));
	if (!strstr(said, words))
		printf("     said: %s", said);
}

static void test_refusals(Arena *a)
{
	refuse(a, "profile 1", "profile 2", "f:1: error: expected 'dlc machine profile 1', got 'dlc machine profile 2'");
	refuse(a, "dlc machine", "", "f:1: error: expected 'dlc machine profile 1'");
	refuse(a, "name generic-cpu", "name", "f:2: error: 'name' has no value");
	refuse(a, "name generic-cpu\n", "", "error: 'name' is missing");
	refuse(a, "name generic-cpu", "name a\nname b", "f:3: error: 'name' is there twice");
	refuse(a, "threads          2", "card a\ncard b\nthreads 2", "f:4: error: 'card' is there twice");
	refuse(a, "threads          2", "threads 0", "f:3: error: threads: expected a whole number from 1 to 1024, got '0'");
	refuse(a, "threads          2", "threads 1.5", "f:3: error: threads: expected a whole number");
	refuse(a, "\nkernel ", "\nlink_in -1\nkernel ", "link_in: expected a number from 0 to 1e+15, got '-1'");
	refuse(a, "\nkernel ", "\nkernels ", "error: unknown key 'kernels'");
	refuse(a, "\nkernel ", "\nfork 1\nkernel ", "error: 'fork' is there twice");
	refuse(a, "\nfork ", "\n# ", "error: 'fork' is missing");
	refuse(a, "\nfar  ", "\nfar nan # ", "error: far: expected a number from 0 to 1e+12, got 'nan'");
	refuse(a, "\nfar  ", "\nfar -1 # ", "got '-1'");
	refuse(a, "\nfar  ", "\nfar 1e999 # ", "got '1e999'");
	refuse(a, "\nfar  ", "\nfar 1x # ", "got '1x'");
	refuse(a, "# nanoseconds", "dlc machine profile 1\n# ", "error: more than one profile");
}

/* ---- copies beside kernels ---- */

static bool is_near(double got, double want)
{
	return fabs(got - want) < 1e-12;
}

/* 1 GB/s out, 2 GB/s in, 1 us before each copy: a copy of 9 kB takes 10 us there and 5.5 us back. */
static void test_links(Arena *a)
{
	Machine m = *machine_builtin(a, "h200");
	Links l;
	double first, second, back;

	m.link_out = 1e9;
	m.link_in = 2e9;
	m.link_delay = 1000;
	l = links_of(&m);
	links_run(&l, 4e-6);
	first = links_begin(&l, false, 9000, 1);
	check("a copy begins behind the kernels before it", is_near(first, 14e-6));
	second = links_begin(&l, false, 9000, 1);
	back = links_begin(&l, true, 9000, 1);
	check("and behind the copy before it, but not behind one the other way", is_near(second, 24e-6) && is_near(back, 9.5e-6));
	links_run(&l, 12e-6);
	check("what is done by then is not waited for", links_wait(&l, first) <= 0 && is_near(l.now, 16e-6));
	check("what is not done is", is_near(links_wait(&l, second), 8e-6) && is_near(l.now, 24e-6));
	check("in a loop, each trip's copy", is_near(links_begin(&l, false, 9000, 3), 54e-6));
	check("no link, no time", links_seconds(machine_builtin(a, "generic-cpu"), false, 9000) <= 0);
}

/* ---- fit ---- */

static double uniform(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (double)(*state >> 11) * 0x1p-53;
}

/* Times made from a machine's costs give those costs back, whatever one starts from. */
static void test_fit(Arena *a, double noise, double near, double overlap)
{
	enum { N = 3000, COSTS = 5 };
	static const MachineCost some[COSTS] = { COST_kernel, COST_simple, COST_product_f32, COST_near, COST_far };
	Machine truth = *machine_builtin(a, "generic-cpu"), m = truth;
	MachineSample *s = ARENA_ARRAY(a, N, MachineSample);
	uint64_t state = 7;
	bool good = true;

	truth.overlap = m.overlap = overlap;
	for (int k = 0; k < N; k++) {
		double sum[3] = { 0 };

		for (int i = 0; i < COSTS; i++) {
			s[k].unit[some[i]] = some[i] == COST_kernel ? 1 : exp(uniform(&state) * 12);
			sum[machine_rows[some[i]].group] += s[k].unit[some[i]] * truth.ns[some[i]] * 1e-9;
		}
		s[k].seconds = sum[0] + fmax(sum[1], sum[2]) + (1 - overlap) * fmin(sum[1], sum[2]);
		s[k].seconds *= 1 + noise * (2 * uniform(&state) - 1);
		if (noise > 0 && k % 20 == 0)
			s[k].seconds *= 10; /* something else ran in between */
		s[k].weight = 1;
	}
	for (int i = 0; i < COSTS; i++)
		m.ns[some[i]] *= i % 2 ? 3 : 0.3;
	machine_fit(a, &m, s, N);
	for (int i = 0; i < COSTS; i++) {
		double off = fabs(m.ns[some[i]] / truth.ns[some[i]] - 1);

		if (off > near)
			printf("     %s: %g, expected %g\n", machine_rows[some[i]].name, m.ns[some[i]], truth.ns[some[i]]);
		good = good && off <= near;
	}
	check(noise > 0 ? "noisy times give costs" : "exact times give their costs", good);
	check("costs that no time tells about stay", m.ns[COST_attention] == truth.ns[COST_attention]);
}

/* A cost that was 0 is none of this machine, whatever times are left over. */
static void test_absent(Arena *a)
{
	Machine m = *machine_builtin(a, "h200");
	MachineSample s[2] = { { .seconds = 1e-3, .weight = 1 }, { .seconds = 2e-3, .weight = 1 } };

	for (int i = 0; i < 2; i++) {
		s[i].unit[COST_call] = 1;
		s[i].unit[COST_product_a] = 1e6 * (i + 1);
	}
	machine_fit(a, &m, s, 2);
	check("a cost that was 0 stays 0", m.ns[COST_product_a] == 0 && m.ns[COST_call] > 3000);
	check("it is said which costs no time told about", m.kept[COST_product_a] && m.kept[COST_kernel] && !m.kept[COST_call]);
}

/* The rates of a link and its delay out of the times of copies. */
static void test_fit_links(void)
{
	static const double bytes[] = { 4096, 65536, 1 << 20, 8 << 20, 32 << 20 };
	LinkSample s[10];
	Machine m = { .link_out = 1, .link_in = 2, .link_delay = 3 };

	for (int noise = 0; noise < 2; noise++) {
		uint64_t state = 5;

		for (int i = 0; i < 10; i++) {
			s[i] = (LinkSample){ .bytes = bytes[i / 2], .in = i % 2 };
			s[i].seconds = (12e-6 + s[i].bytes / (s[i].in ? 5e10 : 3e10)) * (1 + 0.05 * noise * (2 * uniform(&state) - 1));
		}
		check("rates and delay of a link", machine_fit_links(&m, s, 10) && fabs(m.link_out / 3e10 - 1) < 1e-6 + 0.06 * noise &&
		                                           fabs(m.link_in / 5e10 - 1) < 1e-6 + 0.06 * noise && fabs(m.link_delay / 12e3 - 1) < 1e-6 + 0.1 * noise);
	}
	m = (Machine){ .link_out = 1, .link_in = 2, .link_delay = 3 };
	for (int i = 0; i < 10; i++)
		s[i].seconds = i / 2 == 0 ? 1 : 1e-6;
	check("times that no rate explains set nothing", !machine_fit_links(&m, s, 10) && m.link_out == 1 && m.link_in == 2 && m.link_delay == 3);
}

/* A cost that would have to be negative is 0. */
static void test_nonnegative(Arena *a)
{
	Machine m = *machine_builtin(a, "generic-cpu");
	MachineSample s[2] = { { .seconds = 1e-6, .weight = 1 }, { .seconds = 1e-7, .weight = 1 } };

	s[0].unit[COST_kernel] = s[1].unit[COST_kernel] = 1;
	s[1].unit[COST_simple] = 1000;
	machine_fit(a, &m, s, 2);
	check("no cost is negative", m.ns[COST_simple] >= 0 && m.ns[COST_kernel] >= 0);
}

/* ---- predictions ---- */

/* Seconds of a step without its inputs. */
static double seconds_of(Arena *a, Diag *d, const char *machine, int threads, const char *body)
{
	const char *text = arena_printf(a, "module \"m\" batch 4 {\n  func @step batch 4 {\n%s  }\n}\n", body);
	Module *m = ir_parse(a, d, "test", text, strlen(text));
	const Machine *with = machine_with_threads(a, machine_builtin(a, machine), threads);
	double sum = 0;

	if (!m)
		return NAN;
	for (const Node *n = ir_find_func(m, "step")->body->first; n; n = n->next)
		sum += n->op == OP_input ? 0 : cost_seconds(n, with);
	return sum;
}

static const char *matmul(Arena *a, int m, int k, int n, const char *type)
{
	return arena_printf(a, "    %%0 = input {name = \"d.x\"} : %s[%d,%d]\n    %%1 = input {name = \"d.y\"} : %s[%d,%d]\n"
	                       "    %%2 = matmul %%0, %%1 {ta = false, tb = false} : %s[%d,%d]\n", type, m, k, type, k, n, type, m, n);
}

static const char *unary(Arena *a, const char *op, int n)
{
	return arena_printf(a, "    %%0 = input {name = \"d.x\"} : f32[%d]\n    %%1 = fused %%0 : f32[%d] {\n      (%%a0 : f32[%d])\n"
	                       "      %%b0 = %s %%a0 : f32[%d]\n      yield %%b0\n    }\n", n, n, n, op, n);
}

/* A variable is further away in a step that touches much besides; what a kernel before has made is not. */
static void test_touched(Arena *a, Diag *d)
{
	static const char head[] = "module \"m\" batch 4 {\n  var \"w\" : f32[65536] param init const(0)\n  func @step batch 4 {\n"
	                           "    %0 = var {name = \"w\"} : f32[65536]\n    %1 = const {value = 1} : f32[65536]\n";
	static const char tail[] = "    %3 = relu %0 : f32[65536]\n    %4 = relu %1 : f32[65536]\n  }\n}\n";
	double seconds[2][2] = { { 0 } };

	for (int large = 0; large < 2; large++) {
		const char *text = arena_printf(a, "%s    %%2 = const {value = 1} : f32[%d]\n%s", head, large ? 1 << 26 : 16, tail);
		Module *m = ir_parse(a, d, "test", text, strlen(text));
		const Func *f = m ? ir_find_func(m, "step") : NULL;
		Machine running = machine_running(machine_builtin(a, "generic-cpu"), f);
		int i = 0;

		for (const Node *n = f->body->first; n; n = n->next)
			if (n->op == OP_relu)
				seconds[large][i++] = cost_seconds(n, &running);
	}
	check("a variable comes from memory where a step touches much", seconds[1][0] > 1.2 * seconds[0][0]);
	check("and what was just made does not", seconds[1][1] == seconds[0][1]);
}

/* Of causal attention half is computed, of a narrow window a part that does not grow with the square. */
static void test_attention(Arena *a, Diag *d)
{
	static const char form[] = "    %%0 = input {name = \"d.x\"} : f32[4,%d,64]\n    %%1, %%2 = attention %%0, %%0, %%0 {heads = 2, causal = %s, "
	                           "scale = 0, kv_heads = 0, window = %d} : f32[4,%d,64], f32[4,2,%d]\n";
	double full = seconds_of(a, d, "generic-cpu", 1, arena_printf(a, form, 1024, "false", 0, 1024, 1024));
	double causal = seconds_of(a, d, "generic-cpu", 1, arena_printf(a, form, 1024, "true", 0, 1024, 1024));
	double window = seconds_of(a, d, "generic-cpu", 1, arena_printf(a, form, 1024, "true", 64, 1024, 1024));
	double longer = seconds_of(a, d, "generic-cpu", 1, arena_printf(a, form, 2048, "true", 64, 2048, 2048));

	check("causal attention takes about half", causal > 0.4 * full && causal < 0.65 * full);
	check("a window takes less", window < 0.3 * causal);
	check("and grows with the length", longer > 1.8 * window && longer < 2.2 * window);
}

static void test_predictions(Arena *a, Diag *d)
{
	static const char *const machines[] = { "generic-cpu", "h200", "a100", "rtx4090" };

	for (int i = 0; i < 4; i++) {
		const char *m = machines[i];
		double last = 0, t;

		for (int n = 16; n <= 4096; n *= 4) {
			t = seconds_of(a, d, m, 2, matmul(a, n, n, n, "f32"));
			check("a larger product takes longer", t > last);
			last = t;
		}
		last = 0;
		for (int n = 64; n <= 1 << 24; n *= 4) {
			t = seconds_of(a, d, m, 2, unary(a, "exp", n));
			check("a larger array takes longer or as long", t >= last);
			last = t;
		}
		check("exp is no cheaper than neg", seconds_of(a, d, m, 2, unary(a, "exp", 65536)) >=
		                                            seconds_of(a, d, m, 2, unary(a, "neg", 65536)));
		check("a narrow product wastes time",
		      seconds_of(a, d, m, 2, matmul(a, 4, 1024, 1024, "f32")) > seconds_of(a, d, m, 2, matmul(a, 1024, 1024, 1024, "f32")) / 256);
	}
	check("two threads are faster where there is much to do",
	      seconds_of(a, d, "generic-cpu", 2, matmul(a, 512, 512, 512, "f32")) <
	              0.6 * seconds_of(a, d, "generic-cpu", 1, matmul(a, 512, 512, 512, "f32")));
	check("and not for a small kernel", seconds_of(a, d, "generic-cpu", 2, unary(a, "neg", 64)) ==
	                                            seconds_of(a, d, "generic-cpu", 1, unary(a, "neg", 64)));
	check("a GPU has its tensor cores for 16 bits",
	      seconds_of(a, d, "h200", 2, matmul(a, 4096, 4096, 4096, "bf16")) <
	              seconds_of(a, d, "h200", 2, matmul(a, 4096, 4096, 4096, "f32")) / 8);
	check("and does not know threads", seconds_of(a, d, "h200", 2, unary(a, "exp", 1 << 20)) ==
	                                           seconds_of(a, d, "h200", 64, unary(a, "exp", 1 << 20)));
	check("products come near to the data sheet",
	      fabs(seconds_of(a, d, "h200", 1, matmul(a, 8192, 8192, 8192, "bf16")) / (2.0 * 8192 * 8192 * 8192 / 989e12) - 1 / 0.7) < 0.1);
}

int main(void)
{
	Arena *a = arena_new();
	Diag *d = diag_new(a, stdout, 20);

	test_round_trip(a);
	test_card(a);
	test_links(a);
	test_refusals(a);
	test_fit(a, 0, 1e-2, 0);
	test_fit(a, 0, 1e-2, 1);
	test_fit(a, 0.1, 0.1, 0);
	test_nonnegative(a);
	test_absent(a);
	test_fit_links();
	test_predictions(a, d);
	test_touched(a, d);
	test_attention(a, d);
	arena_free(a);
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}

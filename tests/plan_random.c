/* What the planner promises, on random graphs, each under many budgets.
 *
 *     plan_random [GRAPHS] [SEED] [BUDGETS]     of each kind; the defaults are a few seconds' worth
 *     plan_random --print GRAPH SEED            the text of one graph, as a failure names it
 *
 * Kinds: training graphs of opaque nodes (sizes that are no multiple of the alignment, workspaces, nodes that may not be replayed,
 * several results, values kept to the end); and small models of real ops, with their backward passes and optimizers, in
 * micro-batches that the planner chooses.
 *
 * For each budget: it is never exceeded; the independent checker and the verifier are satisfied; the predicted seconds are
 * the sum of those of the nodes; nothing is replayed that must not be; the smallest budget and the unlimited arena are
 * the same whatever the budget. Over budgets: arenas do not fall and predicted seconds do not rise. One byte below the
 * smallest budget is refused. Of models, each new plan is run by the reference interpreter, and variables and outputs equal,
 * bit for bit, those of the plan without replays. The same input gives the same plan.
 *
 * All of it without a link to host memory, and with one (rates made up, so that copies pay, and sometimes have to be waited for), under a
 * limit of host memory and half as many budgets. */
#include "codegen/backend.h"
#include "interp.h"
#include "passes/check_plan.h"
#include "passes/machine.h"
#include "passes/planner.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 2, BATCH = 12, WIDTH = 6, MAX_VALUES = 128 };

/* ---- opaque graphs ---- */

typedef struct Text {
	FILE *out, *vars; /* the body; lines of variables */
	Random r;
	int next;         /* number of the next value */
	int at[MAX_VALUES], width[MAX_VALUES], n; /* values to choose from */
	bool read[MAX_VALUES];
} Text;

static int any_size(Random *r)
{
	return pick(r, 4) == 0 ? 1 + pick(r, 300) : 1 + pick(r, 40000);
}

/* Prints one node that reads arg[0..nargs), each once; returns the number of its first result. */
static int opaque(Text *t, const char *name, const int *arg, int nargs, int nres, const int *size, bool backward)
{
	bool remat = pick(&t->r, 8) != 0;
	const char *between = " ";
	int first = t->next;

	fprintf(t->out, "    ");
	for (int i = 0; i < nres; i++)
		fprintf(t->out, "%s%%%d", i ? ", " : "", t->next++);
	fprintf(t->out, " = opaque");
	for (int i = 0; i < nargs; i++) {
		bool again = false;

		for (int k = 0; k < i; k++)
			again = again || arg[k] == arg[i];
		if (again)
			continue;
		fprintf(t->out, "%s%%%d", between, arg[i]);
		between = ", ";
	}
	fprintf(t->out, " {name = \"%s\", seconds = %d.%03de-6, workspace = %d, remat = %s}%s :", name, pick(&t->r, 60),
	        pick(&t->r, 1000), pick(&t->r, 4) ? 0 : any_size(&t->r), remat ? "true" : "false", backward ? " [backward]" : "");
	for (int i = 0; i < nres; i++)
		fprintf(t->out, "%s u8[%d]", i ? "," : "", size[i]);
	fprintf(t->out, "\n");
	return first;
}

/* Forward op i reads op i-1 and sometimes older ones; its gradient reads the gradient that comes in and, by chance, its
 * operands and results. The gradient of a value with several readers takes them all as operands. */
static void opaque_graph(Text *t)
{
	int forward = 3 + pick(&t->r, 12), value[16], size[16], from[16][3], nfrom[16];
	int grad[16][16], ngrad[16] = { 0 }, saved[16], weight = any_size(&t->r);
	bool flags = pick(&t->r, 2);

	fprintf(t->vars, "  var \"w\" : u8[%d] param init const(0) stream 0\n", weight);
	fprintf(t->out, "    %%0 = var {name = \"w\"} : u8[%d]\n", weight);
	for (int i = 0; i < forward; i++) {
		int arg[4] = { 0 }, sizes[2] = { any_size(&t->r), 1 + pick(&t->r, 2000) }, nres = pick(&t->r, 5) ? 1 : 2;

		nfrom[i] = 0;
		if (i > 0)
			from[i][nfrom[i]++] = i - 1;
		while (i > 1 && nfrom[i] < 3 && pick(&t->r, 3) == 0)
			from[i][nfrom[i]++] = pick(&t->r, i);
		for (int k = 0; k < nfrom[i]; k++)
			arg[k] = value[from[i][k]];
		if (i == 0 || pick(&t->r, 3) == 0)
			arg[nfrom[i]] = 0;
		value[i] = opaque(t, "forward", arg, i == 0 ? 1 : nfrom[i], nres, sizes, false);
		size[i] = sizes[0];
		saved[i] = nres == 2 ? value[i] + 1 : value[i];
	}
	for (int i = forward - 1; i >= 0; i--) {
		int arg[24], n = 0, sizes[3], first;

		for (int k = 0; k < ngrad[i]; k++)
			arg[n++] = grad[i][k];
		if (n == 0)
			arg[n++] = value[i];
		if (pick(&t->r, 3))
			arg[n++] = saved[i];
		for (int k = 0; k < nfrom[i]; k++)
			if (pick(&t->r, 3))
				arg[n++] = value[from[i][k]];
		for (int k = 0; k < nfrom[i]; k++)
			sizes[k] = size[from[i][k]];
		first = opaque(t, "backward", arg, n, nfrom[i] ? nfrom[i] : 1, nfrom[i] ? sizes : &size[0], flags);
		for (int k = 0; k < nfrom[i]; k++)
			grad[from[i][k]][ngrad[from[i][k]]++] = first + k;
		if (i == 0 || pick(&t->r, 5) == 0)
			fprintf(t->out, "    output %%%d {name = \"g%d\"}\n", first, i);
	}
	fprintf(t->out, "    output %%%d {name = \"loss\"}\n", value[forward - 1]);
}

/* ---- models ---- */

static int add_var(Text *t, const int *dim, int ndim)
{
	fprintf(t->vars, "  var \"p%d\" : f32[%d", t->next, dim[0]);
	fprintf(t->out, "    %%%d = var {name = \"p%d\"} : f32[%d", t->next, t->next, dim[0]);
	for (int i = 1; i < ndim; i++) {
		fprintf(t->vars, ",%d", dim[i]);
		fprintf(t->out, ",%d", dim[i]);
	}
	fprintf(t->vars, "] param init uniform(-0.7, 0.9) stream %d\n", t->next);
	fprintf(t->out, "]\n");
	return t->next++;
}

static void have(Text *t, int width)
{
	t->width[t->n] = width;
	t->at[t->n++] = t->next++;
}

static void end_type(Text *t, int width)
{
	fprintf(t->out, " : f32[%d',%d]\n", BATCH, width);
	have(t, width);
}

/* A value of the list, a recent one more often. */
static int chosen(Text *t)
{
	int x = pick(&t->r, 2) ? t->n - 1 : pick(&t->r, t->n);

	t->read[x] = true;
	return x;
}

static void product(Text *t, int x, int width)
{
	int from = t->width[x];
	int w = add_var(t, (int[]){ from, width }, 2), b = add_var(t, &width, 1);

	fprintf(t->out, "    %%%d = matmul %%%d, %%%d {ta = false, tb = false}", t->next, t->at[x], w);
	end_type(t, width);
	t->read[t->n - 1] = true;
	fprintf(t->out, "    %%%d = add %%%d, %%%d", t->next, t->at[t->n - 1], b);
	end_type(t, width);
}

static void element_wise(Text *t)
{
	static const char *const one[] = { "relu", "gelu", "tanh", "sigmoid", "sin", "silu", "softplus", "neg" };
	static const char *const two[] = { "add", "mul", "sub", "max" };
	int x = chosen(t), y = chosen(t);

	if (t->width[x] == t->width[y] && pick(&t->r, 2))
		fprintf(t->out, "    %%%d = %s %%%d, %%%d", t->next, two[pick(&t->r, 4)], t->at[x], t->at[y]);
	else
		fprintf(t->out, "    %%%d = %s %%%d", t->next, one[pick(&t->r, 8)], t->at[x]);
	end_type(t, t->width[x]);
}

static void wide_op(Text *t)
{
	int x = chosen(t), width = t->width[x], gain, bias;

	switch (pick(&t->r, 3)) {
	case 0:
		gain = add_var(t, &width, 1);
		bias = add_var(t, &width, 1);
		fprintf(t->out, "    %%%d = layer_norm %%%d, %%%d, %%%d {eps = 1e-05}", t->next, t->at[x], gain, bias);
		break;
	case 1: fprintf(t->out, "    %%%d = softmax %%%d {axis = -1}", t->next, t->at[x]); break;
	default: fprintf(t->out, "    %%%d = dropout %%%d {p = 0.25, stream = %d}", t->next, t->at[x], t->next); break;
	}
	end_type(t, width);
}

/* The sum of all values that nobody reads yet, so that all parameters are trained. */
static int joined(Text *t)
{
	int sum = -1, n = t->n;

	for (int x = 1; x < n; x++) {
		int y = x;

		if (t->read[x])
			continue;
		if (t->width[x] != WIDTH) {
			product(t, x, WIDTH);
			y = t->n - 1;
		}
		if (sum >= 0) {
			fprintf(t->out, "    %%%d = add %%%d, %%%d", t->next, t->at[sum], t->at[y]);
			end_type(t, WIDTH);
			y = t->n - 1;
		}
		sum = y;
	}
	return sum;
}

static void model(Text *t)
{
	static const char *const optimizer[] = { "adamw", "adam", "sgd" };
	int ops = 5 + pick(&t->r, 14), last;

	fprintf(t->vars, "  section train {batch = %d, optimizer = \"%s\", lr = 0.01%s%s}\n", BATCH, optimizer[pick(&t->r, 3)],
	        pick(&t->r, 2) ? ", clip_norm = 0.5" : "", pick(&t->r, 2) ? ", weight_decay = 0.1" : "");
	fprintf(t->out, "    %%%d = input {name = \"d.x\"}", t->next);
	end_type(t, WIDTH);
	fprintf(t->out, "    %%%d = input {name = \"d.y\"} : i32[%d']\n", t->next++, BATCH);
	product(t, 0, WIDTH);
	for (int i = 0; i < ops; i++) {
		int what = pick(&t->r, 6);

		if (what < 2)
			product(t, chosen(t), pick(&t->r, 3) ? WIDTH : 2 * WIDTH);
		else if (what < 5)
			element_wise(t);
		else
			wide_op(t);
	}
	last = joined(t);
	fprintf(t->out, "    %%%d = cross_entropy %%%d, %%1 {ignore = -100, smoothing = 0} : f32[]\n", t->next, t->at[last]);
	fprintf(t->out, "    output %%%d {name = \"loss\"}\n", t->next++);
}

/* Graph number `index` of a seed; odd ones are models. */
static char *graph_text(int index, int seed)
{
	char *body = NULL, *vars = NULL, *text = NULL;
	size_t size = 0;
	Text t = { .r = { (uint64_t)seed << 32 | (uint64_t)index } };
	bool runs = index % 2;
	FILE *out;

	t.out = open_memstream(&body, &size);
	t.vars = open_memstream(&vars, &size);
	pick(&t.r, 2);
	if (runs) {
		model(&t);
	} else {
		t.next = 1;
		opaque_graph(&t);
	}
	fclose(t.out);
	fclose(t.vars);
	out = open_memstream(&text, &size);
	fprintf(out, "module \"random\" batch %d {\n%s  func @%s batch %d {\n%s  }\n}\n", BATCH, vars,
	        runs ? "forward" : "step", BATCH, body);
	fclose(out);
	free(body);
	free(vars);
	return text;
}

/* ---- planning ---- */

typedef struct Plan {
	Arena *arena;
	Module *m;
	PlannerResult result;
	PlanSummary s;
	bool derived;
} Plan;

typedef struct Test {
	FILE *quiet; /* refusals are expected */
	const char *text;
	int graph, seed, budgets;
	bool link;
	const char *which; /* of the budgets */
	int failed;
	int64_t plans, replays, moves, waits;
} Test;

static void fault(Test *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fault(Test *t, const char *fmt, ...)
{
	va_list ap;

	if (t->failed++ > 3)
		return;
	printf("FAIL graph %d of seed %d, %s%s: ", t->graph, t->seed, t->link ? "with a link, " : "", t->which);
	va_start(ap, fmt);
	(void)vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
}

enum { HOST_BYTES = 60000 };

/* 4 GB/s each way, so that the largest opaque value takes ten microseconds, and 20 ns before a copy begins: a kernel of a model takes more. */
static const Machine *machine_for(Arena *a, bool link)
{
	Machine *m = ARENA_NEW(a, Machine);

	*m = *machine_with_threads(a, machine_builtin(a, "generic-cpu"), 1);
	m->link_out = m->link_in = link ? 4e9 : 0;
	m->link_delay = 20;
	return m;
}

/* micro_batch and chunks 0: free. */
static Plan make_plan(Test *t, int64_t budget, int64_t micro_batch, int64_t chunks, bool recompute)
{
	const Backend *cpu = backend_find("cpu");
	Capabilities caps = { .threads = 1, .strided_attention = cpu->strided_attention, .workspace = cpu->workspace,
		              .fusable = cpu->fusable, .accumulates = cpu->accumulates, .offload = true };
	PlannerOptions o = { .budget = budget, .micro_batch = micro_batch, .chunks = chunks, .recompute = recompute,
		             .offload = true, .host_bytes = HOST_BYTES, .optimizer_in_backward = -1, .max_slowdown = 10 };
	Plan p = { .arena = arena_new(), .result = PLAN_FAILED };
	PassCtx cx = { .arena = p.arena, .diag = diag_new(p.arena, t->quiet, 0), .caps = &caps, .dump = t->quiet,
		       .machine = machine_for(p.arena, t->link),
		       .micro_batch = micro_batch, .recompute = recompute,
		       .optimizer_in_backward = true, .budget = budget };

	p.m = ir_parse(p.arena, cx.diag, "random.ir", t->text, strlen(t->text));
	if (!p.m)
		return p;
	cx.facts = pass_facts(p.m);
	p.derived = !ir_find_func(p.m, "forward") || pass_run_until("optimizer", p.m, &cx) != PASS_FAILED;
	if (p.derived)
		p.result = planner_run(p.m, &cx, &o, &p.s);
	return p;
}

/* ---- what holds for one plan ---- */

static double block_seconds(Test *t, const Block *b)
{
	double sum = 0;

	for (const Node *n = b->first; n; n = n->next) {
		sum += n->op == OP_loop ? block_seconds(t, n->body) * (double)ir_int(n, "trips") : n->seconds;
		t->replays += n->replay_of != NULL;
		t->moves += n->op == OP_send;
		t->waits += ir_ops[n->op].kind == K_MOVE && n->seconds > 0;
		if (n->replay_of && (ir_ops[n->op].remat == RM_NEVER || (n->op == OP_opaque && !ir_int(n, "remat"))))
			fault(t, "a node is replayed that must not be");
	}
	return sum;
}

static void check_one(Test *t, const Plan *p, int64_t budget)
{
	char *said = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&said, &size);
	double sum = block_seconds(t, ir_find_func(p->m, "step")->body);

	if (p->s.arena_bytes > budget)
		fault(t, "%lld bytes", (long long)p->s.arena_bytes);
	if (p->s.host_bytes > HOST_BYTES || p->s.host_bytes != ir_find_func(p->m, "step")->host_bytes)
		fault(t, "%lld bytes of host memory, the limit is %d, the step has %lld", (long long)p->s.host_bytes, HOST_BYTES,
		      (long long)ir_find_func(p->m, "step")->host_bytes);
	if (p->s.lower_bound_bytes > p->s.arena_bytes)
		fault(t, "the lower bound, %lld, is above the arena", (long long)p->s.lower_bound_bytes);
	if (fabs(sum - p->s.step_seconds) > 1e-9 * sum)
		fault(t, "predicted %.12g s, the nodes take %.12g s", p->s.step_seconds, sum);
	if (!ir_verify(p->m, "planner", out) || !check_plan(p->m, budget, out)) {
		fflush(out);
		fault(t, "the checker says\n%s", said);
	}
	fclose(out);
	free(said);
}

/* ---- values ---- */

static void fill(InterpEnv *env)
{
	InterpSlot *x, *y;
	Type tx = type_make(DT_F32, 2, (int64_t[]){ BATCH, WIDTH }), ty = type_make(DT_I32, 1, (int64_t[]){ BATCH });

	x = interp_slot(env, &env->inputs, "d.x", &tx);
	y = interp_slot(env, &env->inputs, "d.y", &ty);
	for (int i = 0; i < BATCH * WIDTH; i++)
		x->v[i] = (float)sin(i * 1.7);
	for (int i = 0; i < BATCH; i++)
		y->v[i] = i % 5 == 2 ? -100 : (i * 5 + 1) % WIDTH;
}

static bool run_steps(Test *t, const Plan *p, InterpEnv *env)
{
	*env = (InterpEnv){ .arena = p->arena, .seed = 5 };
	fill(env);
	if (!interp_func(ir_find_func(p->m, "init"), env)) {
		fault(t, "init does not run: %s", env->error);
		return false;
	}
	for (env->step = 0; env->step < STEPS; env->step++)
		if (!interp_func(ir_find_func(p->m, "step"), env)) {
			fault(t, "step does not run: %s", env->error);
			return false;
		}
	return true;
}

static bool same_bits(const InterpSlot *a, InterpSlot *list)
{
	const InterpSlot *b = interp_find(list, a->name);

	return b && memcmp(a->v, b->v, (size_t)type_elems(&a->type) * sizeof *a->v) == 0;
}

/* Against the plan without replays of the same micro-batch and as many chunks. */
static void check_values(Test *t, const Plan *p)
{
	Plan plain = make_plan(t, INT64_MAX, p->s.micro_batch, p->s.chunks, false);
	InterpEnv got, want;

	if (plain.result != PLAN_OK) {
		fault(t, "there is no plan without replays of its micro-batch");
	} else if (run_steps(t, p, &got) && run_steps(t, &plain, &want)) {
		for (const InterpSlot *s = want.vars; s; s = s->next)
			if (!same_bits(s, got.vars))
				fault(t, "variable %s has another value than without replays", s->name);
		for (const InterpSlot *s = want.outputs; s; s = s->next)
			if (!same_bits(s, got.outputs))
				fault(t, "output %s has another value than without replays", s->name);
	}
	arena_free(plain.arena);
}

/* ---- many budgets ---- */

static void check_again(Test *t, const Plan *p, int64_t budget)
{
	char *text[2] = { NULL, NULL };
	Plan again = make_plan(t, budget, 0, 0, true);

	for (int i = 0; i < 2; i++) {
		size_t size = 0;
		FILE *out = open_memstream(&text[i], &size);

		ir_print_module(out, i ? again.m : p->m);
		fclose(out);
	}
	if (strcmp(text[0], text[1]) != 0)
		fault(t, "planned twice, the plans differ");
	free(text[0]);
	free(text[1]);
	arena_free(again.arena);
}

static void check_refused(Test *t, int64_t least)
{
	Plan p = make_plan(t, least - 1, 0, 0, true);

	if (p.result != PLAN_TOO_SMALL)
		fault(t, "one byte less than the smallest budget, %lld, is not refused", (long long)least);
	else if (p.s.min_budget_bytes != least)
		fault(t, "a refusal names %lld as the smallest budget, a plan %lld", (long long)p.s.min_budget_bytes,
		      (long long)least);
	arena_free(p.arena);
}

static void check_budget(Test *t, int64_t budget, PlanSummary *before)
{
	Plan p = make_plan(t, budget, 0, 0, true);

	if (p.result != PLAN_OK) {
		fault(t, "no plan, although the smallest budget is %lld", (long long)before->min_budget_bytes);
	} else {
		bool news = p.s.arena_bytes != before->arena_bytes;

		check_one(t, &p, budget);
		if (p.s.arena_bytes < before->arena_bytes)
			fault(t, "%lld bytes, a smaller budget got %lld", (long long)p.s.arena_bytes, (long long)before->arena_bytes);
		if (p.s.step_seconds > before->step_seconds)
			fault(t, "%.9g s, a smaller budget got %.9g s", p.s.step_seconds, before->step_seconds);
		if (p.s.min_budget_bytes != before->min_budget_bytes ||
		    p.s.unlimited_arena_bytes != before->unlimited_arena_bytes)
			fault(t, "another budget gives another smallest or unlimited arena");
		if (news && t->graph % 2)
			check_values(t, &p);
		if (news)
			t->plans++;
		*before = p.s;
	}
	arena_free(p.arena);
}

/* From the smallest budget to a little more than the unlimited arena, in equal steps. */
static void check_graph(Test *t)
{
	Plan unlimited = make_plan(t, INT64_MAX, 0, 0, true);
	int64_t least = unlimited.s.min_budget_bytes, most = unlimited.s.unlimited_arena_bytes;
	PlanSummary before = unlimited.s;
	char which[64];

	t->which = "without a budget";
	if (unlimited.result != PLAN_OK) {
		fault(t, unlimited.derived ? "no plan" : "no graph");
	} else {
		check_one(t, &unlimited, INT64_MAX);
		if (unlimited.s.arena_bytes != most)
			fault(t, "%lld bytes, the unlimited arena is %lld", (long long)unlimited.s.arena_bytes, (long long)most);
		check_again(t, &unlimited, INT64_MAX);
		check_refused(t, least);
		before.arena_bytes = 0;
		before.step_seconds = INFINITY;
		t->which = which;
		for (int i = 0; i < t->budgets; i++) {
			int64_t budget = least + (most - least + 64) * i / (t->budgets > 1 ? t->budgets - 1 : 1);

			snprintf(which, sizeof which, "budget %lld", (long long)budget);
			check_budget(t, budget, &before);
		}
		if (before.arena_bytes != most)
			fault(t, "the unlimited arena is %lld", (long long)most);
	}
	arena_free(unlimited.arena);
}

int main(int argc, char **argv)
{
	bool print = argc == 4 && strcmp(argv[1], "--print") == 0;
	int graphs = argc > 1 ? atoi(argv[1]) : 3, seed = argc > 2 ? atoi(argv[2]) : 1, failed = 0;
	Test t = { .quiet = fopen("/dev/null", "w"), .seed = seed };
	int budgets = argc > 3 ? atoi(argv[3]) : 200;

	if (print) {
		char *text = graph_text(atoi(argv[2]), atoi(argv[3]));

		fputs(text, stdout);
		free(text);
		fclose(t.quiet);
		return 0;
	}
	for (int run = 0; run < 4 * graphs; run++) {
		char *text = graph_text(run / 2, seed);

		t.graph = run / 2;
		t.link = run % 2;
		t.budgets = t.link ? (budgets + 1) / 2 : budgets;
		t.text = text;
		t.failed = 0;
		check_graph(&t);
		failed += t.failed > 0;
		free(text);
	}
	/* Without replays and copies the test says little. */
	if (t.plans < 8 * graphs || t.replays == 0 || t.moves == 0) {
		printf("FAIL only %lld plans, with %lld replays and %lld values in host memory, of %d graphs\n", (long long)t.plans,
		       (long long)t.replays, (long long)t.moves, 2 * graphs);
		failed++;
	}
	printf("%lld different plans, %lld replays, %lld values in host memory, %lld waits for copies\n", (long long)t.plans,
	       (long long)t.replays, (long long)t.moves, (long long)t.waits);
	printf("%d passed, %d failed\n", 4 * graphs - failed < 0 ? 0 : 4 * graphs - failed, failed);
	fclose(t.quiet);
	return failed > 0;
}

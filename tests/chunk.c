/* Heads in chunks, by their numbers: small models as IR text, in micro-batches, their heads whole and in 2 to 8 parts, run by the
 * reference interpreter. Loss, gradients and what evaluation reports must be those of the whole head, up to the order of sums in f64,
 * and nothing as wide as the whole head may be left. What is no head must be left alone, with an error where it was asked for. */
#include "model_test.h"
#include "passes/accumulate.h"
#include "passes/chunk.h"

#include <math.h>
#include <stdlib.h>

enum { BATCH = 4, T = 5, C = 4, V = 24 };

/* ---- models ---- */

/* What stands between the layers below and the loss: %x is f64[4',5,4], and %loss is to be made. */
typedef struct Case {
	const char *name;
	const char *head;
	bool cut;      /* it is a head */
	bool rows_wide; /* its data is as wide as the head */
} Case;

static const Case cases[] = {
	{ "a linear layer and cross-entropy",
	  "    %h = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", true, false },
	{ "transposed weights, a bias, smoothing",
	  "    %wt = transpose %v {perm = [1,0]} : f64[4,24]\n"
	  "    %g = matmul %x, %wt {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %h = add %g, %b : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0.1} : f64[]\n", true, false },
	{ "a vocabulary that is padded, logits that are bounded",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %s = slice %g {axis = 2, start = 0, stop = 21} : f64[4',5,21]\n"
	  "    %h = tanh %s : f64[4',5,21]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", true, false },
	{ "a number for each sample, another for each position",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %s = mul %g, %each : f64[4',5,24]\n"
	  "    %h = mul %s, %place : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", true, false },
	{ "rows of all samples in one axis",
	  "    %f = reshape %x : f64[20',4]\n"
	  "    %h = matmul %f, %w {ta = false, tb = false} : f64[20',24]\n"
	  "    %ft = reshape %t : i32[20']\n"
	  "    %loss = cross_entropy %h, %ft {ignore = -100, smoothing = 0} : f64[]\n", true, false },
	{ "mean squares of something wide",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %h = add %g, %b : f64[4',5,24]\n"
	  "    %loss = mse %h, %y : f64[]\n", true, true },
	{ "a scalar of the model inside the head, and its gradient",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %h = mul %g, %scale : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", true, false },
	{ "a norm over the samples is no head",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %s = mean %g {axes = [1], keep = true} : f64[4',1,24]\n"
	  "    %h = sub %g, %s : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", false, false },
	{ "a number for each position and class is no head",
	  "    %g = matmul %x, %w {ta = false, tb = false} : f64[4',5,24]\n"
	  "    %h = add %g, %grid : f64[4',5,24]\n"
	  "    %loss = cross_entropy %h, %t {ignore = -100, smoothing = 0} : f64[]\n", false, false },
};

static const char *text_of(Test *t, const Case *c)
{
	return arena_printf(t->arena,
		"module \"m\" batch 4 {\n"
		"  var \"below\" : f64[3,4] param init normal(0, 0.5) stream 1\n"
		"  var \"w\" : f64[4,24] param init normal(0, 0.5) stream 2\n"
		"  var \"v\" : f64[24,4] param init normal(0, 0.5) stream 3\n"
		"  var \"b\" : f64[24] param init normal(0, 0.5) stream 4\n"
		"  var \"scale\" : f64[] param init const(0.7) stream 6\n"
		"  var \"grid\" : f64[5,24] param init normal(0, 0.5) stream 7\n"
		"  func @forward batch 4 {\n"
		"    %%below = var {name = \"below\"} : f64[3,4]\n"
		"    %%w = var {name = \"w\"} : f64[4,24]\n"
		"    %%v = var {name = \"v\"} : f64[24,4]\n"
		"    %%b = var {name = \"b\"} : f64[24]\n"
		"    %%i = iota {axis = 0} : i32[5,1]\n"
		"    %%place = cast %%i {to = \"f64\"} : f64[5,1]\n"
		"    %%scale = var {name = \"scale\"} : f64[]\n"
		"    %%grid = var {name = \"grid\"} : f64[5,24]\n"
		"    %%in = input {name = \"x\"} : f64[4',5,3]\n"
		"    %%t = input {name = \"t\"} : i32[4',5]\n"
		"    %%y = input {name = \"y\"} : f64[4',5,24]\n"
		"    %%each = input {name = \"each\"} : f64[4',1,1]\n"
		"    %%m = matmul %%in, %%below {ta = false, tb = false} : f64[4',5,4]\n"
		"    %%x = gelu %%m : f64[4',5,4]\n"
		"%s"
		"    output %%loss {name = \"loss\"}\n"
		"  }\n"
		"}\n", c->head);
}

static bool run_pass(Test *t, const char *name, PassFn pass, PassCtx *cx)
{
	return pass(t->m, cx) != PASS_FAILED && ir_verify(t->m, name, stderr);
}

/* The model up to micro-batches, then its functions in chunks; false where that was refused. */
static bool compile(Test *t, const Case *c, int64_t micro, int64_t chunks, const char *func)
{
	PassCtx cx = { .arena = t->arena, .diag = t->diag, .dump = t->quiet, .micro_batch = micro };
	const char *text = text_of(t, c);
	bool good = true;

	t->m = ir_parse(t->arena, t->diag, t->name, text, strlen(text));
	check(t, t->m != NULL, "the model does not parse");
	if (!t->m)
		return false;
	check(t, run_pass(t, "expand", pass_expand, &cx) && run_pass(t, "simplify", pass_simplify, &cx) &&
	         run_pass(t, "autodiff", pass_autodiff, &cx) && run_pass(t, "accumulate", pass_accumulate, &cx),
	      "the model does not compile");
	if (t->good && chunks > 1) {
		good = chunk_func(ir_find_func(t->m, func), &cx, chunks);
		check(t, ir_verify(t->m, "chunk", stderr), "the chunks are not sound");
	}
	return good && t->good;
}

static void set(Test *t, const char *name, Type type, const double *v)
{
	memcpy(interp_slot(&t->env, &t->env.inputs, name, &type)->v, v, (size_t)type_elems(&type) * sizeof *v);
}

static void run(Test *t, const char *func)
{
	const Func *f = ir_find_func(t->m, func);

	t->env.outputs = NULL;
	check(t, interp_func(f, &t->env), "%s does not run: %s", func, t->env.error);
}

static void set_data(Test *t)
{
	double x[BATCH * T * 3], y[BATCH * T * V], each[BATCH], target[BATCH * T];

	for (int i = 0; i < BATCH * T * 3; i++)
		x[i] = sin(i * 1.7);
	for (int i = 0; i < BATCH * T * V; i++)
		y[i] = cos(i * 0.3);
	for (int i = 0; i < BATCH; i++)
		each[i] = 0.5 + i;
	for (int i = 0; i < BATCH * T; i++)
		target[i] = i % 4 == 1 || i < 3 ? -100 : (i * 7 + 1) % 21;
	set(t, "x", type_make(DT_F64, 3, (int64_t[]){ BATCH, T, 3 }), x);
	set(t, "y", type_make(DT_F64, 3, (int64_t[]){ BATCH, T, V }), y);
	set(t, "each", type_make(DT_F64, 3, (int64_t[]){ BATCH, 1, 1 }), each);
	set(t, "t", type_make(DT_I32, 2, (int64_t[]){ BATCH, T }), target);
	run(t, "init");
}

/* ---- what is compared ---- */

static int64_t widest(const Block *b, bool rows_wide)
{
	int64_t most = 0;

	for (const Node *n = b->first; n; n = n->next) {
		int64_t inner = n->body ? widest(n->body, rows_wide) : 0;

		most = inner > most ? inner : most;
		for (int i = 0; i < n->nres; i++)
			if (!(rows_wide && (n->op == OP_input || ir_is_view(n))) && type_elems(&n->res[i]->type) > most)
				most = type_elems(&n->res[i]->type);
	}
	return most;
}

static void compare(Test *t, InterpSlot *want)
{
	int n = 0;

	for (const InterpSlot *s = want; s; s = s->next, n++) {
		const InterpSlot *got = interp_find(t->env.outputs, s->name);

		check(t, got != NULL, "no output %s", s->name);
		for (int64_t i = 0; got && i < type_elems(&s->type); i++)
			check(t, fabs(got->v[i] - s->v[i]) <= 1e-15 + 1e-12 * fabs(s->v[i]), "%s[%lld]: expected %.17g, got %.17g",
			      s->name, (long long)i, s->v[i], got->v[i]);
	}
	check(t, n > 0, "no outputs to compare");
}

static void test_numbers(Test *t, const Case *c, const char *func, int64_t micro)
{
	static const int64_t chunks[] = { 2, 3, 5 };
	int64_t wide = (strcmp(func, "step") == 0 ? micro : BATCH) * T * V;
	InterpSlot *whole;

	begin(t, arena_printf(t->arena, "%s, %s, micro-batches of %lld", c->name, func, (long long)micro));
	if (compile(t, c, micro, 1, func)) {
		set_data(t);
		run(t, func);
	}
	whole = t->env.outputs;
	for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
		check(t, compile(t, c, micro, chunks[i], func), "refused");
		if (!t->good)
			break;
		check(t, widest(ir_find_func(t->m, func)->body, c->rows_wide) < wide, "something is as wide as the head");
		run(t, func);
		compare(t, whole);
	}
	end(t);
}

/* What has no head is refused, and stays as it was. */
static void test_refusal(Test *t, const Case *c)
{
	begin(t, c->name);
	t->diag = diag_new(t->arena, t->quiet, 0);
	check(t, !compile(t, c, 2, 2, "step"), "it is cut all the same");
	check(t, diag_errors(t->diag) == 1, "expected one error, found %d", diag_errors(t->diag));
	end(t);
}

static void test_too_many(Test *t)
{
	ChunkHead head = { 0 };

	begin(t, "more chunks than rows");
	t->diag = diag_new(t->arena, t->quiet, 0);
	check(t, !compile(t, &cases[0], 1, T + 1, "step"), "it is cut all the same");
	check(t, diag_errors(t->diag) == 1, "expected one error, found %d", diag_errors(t->diag));
	check(t, chunk_head(ir_find_func(t->m, "step"), &head) && head.rows == T && head.bytes == T * V * 8,
	      "expected a head of 5 rows and 960 bytes, found %lld and %lld", (long long)head.rows, (long long)head.bytes);
	end(t);
}

int main(void)
{
	Test t = { .arena = arena_new(), .quiet = tmpfile() };

	t.diag = diag_new(t.arena, t.quiet, 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (!cases[i].cut) {
			test_refusal(&t, &cases[i]);
			continue;
		}
		for (int64_t micro = 1; micro <= BATCH; micro++) /* 3: a last one of 1 */
			test_numbers(&t, &cases[i], "step", micro);
		test_numbers(&t, &cases[i], "eval", BATCH);
	}
	test_too_many(&t);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	fclose(t.quiet);
	arena_free(t.arena);
	return t.failed != 0;
}

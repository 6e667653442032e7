/* The passes from expand to accumulate, by their numbers: small models as IR text, run by the
 * reference interpreter.
 *
 * The expected numbers are those of the training semantics (losses, norms, optimizers, clipping),
 * the finite differences of whole models, and one run against another: a batch in one piece and in
 * micro-batches, a graph before and after simplification. */
#include "model_test.h"
#include "passes/accumulate.h"
#include "passes/simplify.h"

#include <math.h>
#include <stdlib.h>

/* ---- modules ---- */

static bool run_pass(Test *t, const char *name, PassFn pass, PassCtx *cx)
{
	bool good = pass(t->m, cx) != PASS_FAILED;
	return good && ir_verify(t->m, name, stderr);
}

/* Reads a module and runs the pipeline on it; the step is left in micro-batches of `micro` (0: one
 * piece). */
static bool compile(Test *t, const char *text, int64_t micro, bool allow_stats)
{
	PassCtx cx = { .arena = t->arena, .diag = t->diag, .dump = t->quiet };
	cx.micro_batch = micro;
	cx.allow_microbatch_stats = allow_stats;
	t->m = ir_parse(t->arena, t->diag, t->name, text, strlen(text));
	if (!t->m || !run_pass(t, "expand", pass_expand, &cx) ||
	    !run_pass(t, "simplify", pass_simplify, &cx) ||
	    !run_pass(t, "autodiff", pass_autodiff, &cx))
		return false;
	if (ir_find_section(t->m, "train", "") && !run_pass(t, "optimizer", pass_optimizer, &cx))
		return false;
	return run_pass(t, "accumulate", pass_accumulate, &cx);
}

static void run(Test *t, const char *func)
{
	const Func *f = ir_find_func(t->m, func);
	t->env.outputs = NULL;
	if (f)
		check(t, interp_func(f, &t->env), "%s does not run: %s", func, t->env.error);
	else
		check(t, false, "no func %s", func);
}

static void set(Test *t, InterpSlot **list, const char *name, Type type, const double *v)
{
	memcpy(interp_slot(&t->env, list, name, &type)->v, v,
	       (size_t)type_elems(&type) * sizeof *v);
}

static double element(Test *t, InterpSlot *list, const char *name, int64_t i)
{
	const InterpSlot *s = interp_find(list, name);
	check(t, s != NULL, "nothing of the name %s", name);
	return s ? s->v[i] : NAN;
}

static void expect(Test *t, InterpSlot *list, const char *name, int n, const double *v,
		   double tolerance)
{
	for (int i = 0; i < n; i++) {
		double got = element(t, list, name, i);
		check(t, fabs(got - v[i]) <= tolerance, "%s[%d]: expected %.9g, got %.9g", name, i,
		      v[i], got);
	}
}

/* ---- losses ---- */

static const char cross_entropy_text[] =
	"module \"ce\" batch 4 {\n"
	"  var \"b\" : f64[3] param init const(0)\n"
	"  func @forward batch 4 {\n"
	"    %0 = var {name = \"b\"} : f64[3]\n"
	"    %1 = input {name = \"x\"} : f64[4',3]\n"
	"    %2 = input {name = \"t\"} : i32[4']\n"
	"    %3 = add %1, %0 : f64[4',3]\n"
	"    %4 = cross_entropy %3, %2 {ignore = -100, smoothing = %%} : f64[]\n"
	"    output %4 {name = \"loss\"}\n"
	"  }\n"
	"}\n";

static const char *with_number(Test *t, const char *text, const char *number)
{
	const char *at = strstr(text, "%%");
	return arena_printf(t->arena, "%.*s%s%s", (int)(at - text), text, number, at + 2);
}

/* Each # of the text is the batch. */
static const char *with_batch(Test *t, const char *text, int batch)
{
	const char *number = arena_printf(t->arena, "%d", batch), *done = "", *at;
	for (; (at = strchr(text, '#')); text = at + 1)
		done = arena_printf(t->arena, "%s%.*s%s", done, (int)(at - text), text, number);
	return arena_printf(t->arena, "%s%s", done, text);
}

static void cross_entropy_data(Test *t, const double *targets)
{
	const double logits[] = { 1, 2, 3, 1, 0, 0, 0, 0, 5, 2, 2, 2 };
	set(t, &t->env.inputs, "x", type_make(DT_F64, 2, (int64_t[]){ 4, 3 }), logits);
	set(t, &t->env.inputs, "t", type_make(DT_I32, 1, (int64_t[]){ 4 }), targets);
}

static void test_cross_entropy(Test *t)
{
	const double targets[] = { 2, 0, -100, 1 }, none[] = { -100, -100, -100, -100 };
	const struct {
		const char *smoothing;
		double loss;
	} cases[] = { { "0", 0.68588763 }, { "0.1", 0.74144316 } };
	for (int i = 0; i < 2; i++)
		for (int64_t micro = 1; micro <= 4; micro++) {
			begin(t, "cross_entropy");
			check(t,
			      compile(t, with_number(t, cross_entropy_text, cases[i].smoothing),
				      micro, false),
			      "compile");
			cross_entropy_data(t, targets);
			run(t, "init");
			run(t, "step");
			expect(t, t->env.outputs, "loss", 1, &cases[i].loss, 1e-7);
			run(t, "eval");
			expect(t, t->env.outputs, "loss", 1, &cases[i].loss, 1e-7);
			expect(t, t->env.outputs, "weight", 1, (double[]){ 3 }, 0);
			expect(t, t->env.outputs, "correct", 1, (double[]){ 2 }, 0);
			end(t);
			begin(t, "cross_entropy without a valid target");
			cross_entropy_data(t, none);
			run(t, "init");
			run(t, "step");
			expect(t, t->env.outputs, "loss", 1, (double[]){ 0 }, 0);
			expect(t, t->env.outputs, "grad:b", 3, (double[]){ 0, 0, 0 }, 0);
			end(t);
		}
}

/* ---- optimizers ---- */

static const char update_text[] = "module \"update\" batch 1 {\n"
				  "  var \"p\" : f32[1,3] param init const(0)\n"
				  "  section train {batch = 1, lr = 0.1, %%}\n"
				  "  func @forward batch 1 {\n"
				  "    %0 = var {name = \"p\"} : f32[1,3]\n"
				  "    %1 = input {name = \"g\"} : f32[1',3]\n"
				  "    %2 = mul %0, %1 : f32[1',3]\n"
				  "    %3 = sum %2 {axes = [0,1], keep = false} : f32[]\n"
				  "    %4 = batch_sum %3 : f32[]\n"
				  "    output %4 {name = \"loss\"}\n"
				  "  }\n"
				  "}\n";

typedef struct UpdateCase {
	const char *settings;
	double after[2][3];
} UpdateCase;

/* p = (1,-2,.5), lr .1, g = (.1,-.2,.3) then (0,.5,-.3). */
static const UpdateCase updates[] = {
	{ "optimizer = \"adamw\", weight_decay = 0.01",
	  { { .89900005, -1.898, .39950001 }, { .83109522, -1.9403236, .40436366 } } },
	/* by hand: p -= lr*g */
	{ "optimizer = \"sgd\"", { { .99, -1.98, .47 }, { .99, -2.03, .5 } } },
	/* g += .1*p: (.2,-.4,.35) then p - lr*g */
	{ "optimizer = \"sgd\", weight_decay = 0.1",
	  { { .98, -1.96, .465 }, { .9702, -1.9904, .49035 } } },
	/* buf = g, then .5*buf + g: (.05,.4,-.15) */
	{ "optimizer = \"sgd\", momentum = 0.5", { { .99, -1.98, .47 }, { .985, -2.02, .485 } } },
	/* dampening .5: buf = g, then .5*buf + .5*g: (.05,.15,0) */
	{ "optimizer = \"sgd\", momentum = 0.5, dampening = 0.5",
	  { { .99, -1.98, .47 }, { .985, -1.995, .47 } } },
	/* g + .5*buf: (.15,-.3,.45), then (.025,.7,-.375) */
	{ "optimizer = \"sgd\", momentum = 0.5, nesterov = true",
	  { { .985, -1.97, .455 }, { .9825, -2.04, .4925 } } },
};

static void test_updates(Test *t)
{
	const double p[] = { 1, -2, .5 }, g[2][3] = { { .1, -.2, .3 }, { 0, .5, -.3 } };
	const Type type = type_make(DT_F32, 2, (int64_t[]){ 1, 3 });
	for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
		begin(t, updates[i].settings);
		check(t, compile(t, with_number(t, update_text, updates[i].settings), 0, false),
		      "compile");
		run(t, "init");
		set(t, &t->env.vars, "p", type, p);
		for (int step = 0; step < 2; step++) {
			double rounded[3];
			for (int k = 0; k < 3; k++)
				rounded[k] = (double)(float)g[step][k];
			set(t, &t->env.inputs, "g", type, rounded);
			run(t, "step");
			expect(t, t->env.vars, "p", 3, updates[i].after[step], 2e-7);
		}
		expect(t, t->env.vars, "dlc.step", 1, (double[]){ 2 }, 0);
		end(t);
	}
}

static void test_clipping(Test *t)
{
	const Type type = type_make(DT_F32, 2, (int64_t[]){ 1, 3 });
	begin(t, "clip_norm");
	check(t,
	      compile(t, with_number(t, update_text, "optimizer = \"sgd\", clip_norm = 1.0"), 0,
		      false),
	      "compile");
	run(t, "init");
	set(t, &t->env.inputs, "g", type, (double[]){ 3, 0, 4 });
	run(t, "step");
	expect(t, t->env.outputs, "grad_norm", 1, (double[]){ 5 }, 0);
	expect(t, t->env.vars, "p", 3, (double[]){ -.05999999, 0, -.07999998 }, 1e-8);
	end(t);
}

/* cosine from 3e-4 to 3e-5, warm-up 2, total 10 */
static void test_schedule(Test *t)
{
	const Type type = type_make(DT_F32, 2, (int64_t[]){ 1, 3 });
	begin(t, "schedule");
	const char *settings = "optimizer = \"sgd\", lr_kind = \"cosine\", lr_min = 0.01, "
			       "lr_warmup = 2, lr_total = 10";
	check(t, compile(t, with_number(t, update_text, settings), 0, false), "compile");
	run(t, "init");
	set(t, &t->env.inputs, "g", type, (double[]){ 0, 0, 0 });
	for (int it = 0; it < 13; it++) {
		double lr = it < 2    ? .1 * (it + 1) / 3
			    : it > 10 ? .01
				      : .01 + (1 + cos(M_PI * (it - 2) / 8)) / 2 * .09;
		run(t, "step");
		expect(t, t->env.outputs, "lr", 1, &lr, 1e-15);
	}
	end(t);
}

/* ---- batch norm ---- */

static const char batch_norm_text[] =
	"module \"bn\" batch # {\n"
	"  var \"gain\" : f64[1] param init const(1)\n"
	"  var \"bias\" : f64[1] param init const(0)\n"
	"  var \"mean\" : f64[1] stat init const(0)\n"
	"  var \"var\" : f64[1] stat init const(1)\n"
	"  func @forward batch # {\n"
	"    %0 = var {name = \"gain\"} : f64[1]\n"
	"    %1 = var {name = \"bias\"} : f64[1]\n"
	"    %2 = var {name = \"mean\"} : f64[1]\n"
	"    %3 = var {name = \"var\"} : f64[1]\n"
	"    %4 = input {name = \"x\"} : f64[#',1]\n"
	"    %5 = batch_norm %4, %0, %1, %2, %3 {eps = 1e-05, momentum = 0.1} : f64[#',1]\n"
	"    %6 = input {name = \"w\"} : f64[#',1]\n"
	"    %7 = mul %5, %6 : f64[#',1]\n"
	"    %8 = batch_mean %7 : f64[]\n"
	"    output %8 {name = \"loss\"}\n"
	"    output %5 {name = \"predict\"}\n"
	"  }\n"
	"}\n";

static void batch_norm_data(Test *t)
{
	const Type type = type_make(DT_F64, 2, (int64_t[]){ 4, 1 });
	set(t, &t->env.inputs, "x", type, (double[]){ 1, 2, 3, 6 });
	set(t, &t->env.inputs, "w", type, (double[]){ 1, 10, 100, 1000 });
	run(t, "init");
}

/* 1, 2, 3 | 6, 7: means 2 and 6.5, unbiased variances 1 and 0.5; the second micro-batch goes on with the running
 * statistics that the first one left. */
static void test_uneven_batch_norm(Test *t)
{
	const Type type = type_make(DT_F64, 2, (int64_t[]){ 5, 1 });
	const char *text = with_batch(t, batch_norm_text, 5);
	begin(t, "batch_norm over micro-batches of 3 and 2, allowed");
	check(t, compile(t, text, 3, true), "compile");
	set(t, &t->env.inputs, "x", type, (double[]){ 1, 2, 3, 6, 7 });
	set(t, &t->env.inputs, "w", type, (double[]){ 1, 1, 1, 1, 1 });
	run(t, "init");
	run(t, "step");
	expect(t, t->env.vars, "mean", 1, (double[]){ 0.83 }, 1e-12);
	expect(t, t->env.vars, "var", 1, (double[]){ 0.95 }, 1e-12);
	end(t);
	for (int64_t micro = 1; micro <= 4; micro += 3) {
		begin(t, "batch_norm of one value, allowed");
		Diag *loud = t->diag;
		t->diag = diag_new(t->arena, t->quiet, 0);
		check(t, !compile(t, text, micro, true), "one value has a variance");
		check(t, diag_errors(t->diag) == 1, "expected one error, got %d", diag_errors(t->diag));
		t->diag = loud;
		end(t);
	}
}

static void test_batch_norm(Test *t)
{
	const double y[] = { -1.0690434, -0.5345217, 0, 1.6035651 }, m[] = { 0.3 },
		     v[] = { 1.3666667 };
	double loss = 0;
	for (int i = 0; i < 4; i++)
		loss += y[i] * pow(10, i) / 4;
	const char *text = with_batch(t, batch_norm_text, 4);
	begin(t, "batch_norm");
	check(t, compile(t, text, 0, false), "compile");
	batch_norm_data(t);
	run(t, "step");
	expect(t, t->env.outputs, "loss", 1, &loss, 1e-3);
	expect(t, t->env.vars, "mean", 1, m, 1e-7);
	expect(t, t->env.vars, "var", 1, v, 1e-7);
	run(t, "predict");
	double seen = (6 - 0.3) / sqrt(1.36666666667 + 1e-5);
	check(t, fabs(element(t, t->env.outputs, "predict", 3) - seen) < 1e-9,
	      "predict does not use the running statistics");
	end(t);

	begin(t, "batch_norm over two micro-batches, allowed");
	check(t, compile(t, text, 2, true), "compile");
	batch_norm_data(t);
	run(t, "step");
	expect(t, t->env.vars, "mean", 1, (double[]){ 0.585 }, 1e-7);
	expect(t, t->env.vars, "var", 1, (double[]){ 1.305 }, 1e-7);
	end(t);

	begin(t, "batch_norm over two micro-batches, not allowed");
	Diag *loud = t->diag;
	t->diag = diag_new(t->arena, t->quiet, 0);
	check(t, !compile(t, text, 2, false), "it is split all the same");
	check(t, diag_errors(t->diag) == 1, "expected one error, got %d", diag_errors(t->diag));
	t->diag = loud;
	end(t);
}

/* ---- a whole model ---- */

/* Tied weights, positions, a norm used twice, sliced attention, dropout, smoothing, ignored
 * targets, and a penalty on weights, which no micro-batch may count. */
static const char transformer_text[] =
	"module \"gpt\" batch 4 {\n"
	"  var \"wte\" : f64[7,6] param init normal(0, 0.5) stream 0\n"
	"  var \"wpe\" : f64[5,6] param init normal(0, 0.5) stream 1\n"
	"  var \"ln.gain\" : f64[6] param init uniform(0.5, 1.5) stream 6\n"
	"  var \"ln.bias\" : f64[6] param init uniform(-0.5, 0.5) stream 7\n"
	"  var \"qkv.weight\" : f64[6,18] param init uniform(-0.4, 0.4) stream 2\n"
	"  var \"qkv.bias\" : f64[18] param init uniform(-0.4, 0.4) stream 3\n"
	"  var \"fc.weight\" : f64[6,12] param init uniform(-0.4, 0.4) stream 4\n"
	"  var \"proj.weight\" : f64[12,6] param init uniform(-0.4, 0.4) stream 5\n"
	"  func @forward batch 4 {\n"
	"    %0 = var {name = \"wte\"} : f64[7,6]\n"
	"    %1 = var {name = \"wpe\"} : f64[5,6]\n"
	"    %2 = var {name = \"ln.gain\"} : f64[6]\n"
	"    %3 = var {name = \"ln.bias\"} : f64[6]\n"
	"    %4 = var {name = \"qkv.weight\"} : f64[6,18]\n"
	"    %5 = var {name = \"qkv.bias\"} : f64[18]\n"
	"    %6 = var {name = \"fc.weight\"} : f64[6,12]\n"
	"    %7 = var {name = \"proj.weight\"} : f64[12,6]\n"
	"    %8 = input {name = \"x\"} : i32[4',5]\n"
	"    %9 = input {name = \"t\"} : i32[4',5]\n"
	"    %10 = embedding %0, %8 : f64[4',5,6]\n"
	"    %11 = add %10, %1 : f64[4',5,6]\n"
	"    %12 = layer_norm %11, %2, %3 {eps = 1e-05} : f64[4',5,6]\n"
	"    %13 = matmul %12, %4 {ta = false, tb = false} : f64[4',5,18]\n"
	"    %14 = add %13, %5 : f64[4',5,18]\n"
	"    %15 = split %14 {axis = -1, parts = 3, index = 0} : f64[4',5,6]\n"
	"    %16 = split %14 {axis = -1, parts = 3, index = 1} : f64[4',5,6]\n"
	"    %17 = split %14 {axis = -1, parts = 3, index = 2} : f64[4',5,6]\n"
	"    %18, %19 = attention %15, %16, %17 {heads = 2, causal = true, scale = 0} : "
	"f64[4',5,6], f64[4',2,5]\n"
	"    %20 = dropout %18 {p = 0.2, stream = 9} : f64[4',5,6]\n"
	"    %21 = add %11, %20 : f64[4',5,6]\n"
	"    %22 = layer_norm %21, %2, %3 {eps = 1e-05} : f64[4',5,6]\n"
	"    %23 = matmul %22, %6 {ta = false, tb = false} : f64[4',5,12]\n"
	"    %24 = gelu %23 : f64[4',5,12]\n"
	"    %25 = matmul %24, %7 {ta = false, tb = false} : f64[4',5,6]\n"
	"    %26 = add %21, %25 : f64[4',5,6]\n"
	"    %27 = transpose %0 {perm = [1,0]} : f64[6,7]\n"
	"    %28 = matmul %26, %27 {ta = false, tb = false} : f64[4',5,7]\n"
	"    %29 = cross_entropy %28, %9 {ignore = -100, smoothing = 0.1} : f64[]\n"
	"    %30 = mul %6, %6 : f64[6,12]\n"
	"    %31 = sum %30 {axes = [0,1], keep = false} : f64[]\n"
	"    %32 = const {value = 0.01} : f64[]\n"
	"    %33 = mul %31, %32 : f64[]\n"
	"    %34 = add %29, %33 : f64[]\n"
	"    output %34 {name = \"loss\"}\n"
	"  }\n"
	"}\n";

static void transformer_data(Test *t)
{
	double x[20], y[20];
	for (int i = 0; i < 20; i++) {
		x[i] = (i * 5 + i / 3) % 7;
		y[i] = i % 4 == 3 || i < 4 ? -100 : (i * 3 + 1) % 7; /* 0, 4, 4, 4 valid targets */
	}
	set(t, &t->env.inputs, "x", type_make(DT_I32, 2, (int64_t[]){ 4, 5 }), x);
	set(t, &t->env.inputs, "t", type_make(DT_I32, 2, (int64_t[]){ 4, 5 }), y);
	run(t, "init");
}

static double loss_at(Test *t, double *x, double v)
{
	*x = v;
	run(t, "step");
	return element(t, t->env.outputs, "loss", 0);
}

static void check_differences(Test *t, const Var *v, const InterpSlot *grads)
{
	const double h = 1e-3;
	double *x = interp_find(t->env.vars, v->name)->v;
	const InterpSlot *g = interp_find((InterpSlot *)(uintptr_t)grads,
					  arena_printf(t->arena, "grad:%s", v->name));
	check(t, g != NULL, "no gradient of %s", v->name);
	for (int64_t i = 0; g && i < type_elems(&v->type); i++) {
		double keep = x[i];
		double near = loss_at(t, &x[i], keep + h) - loss_at(t, &x[i], keep - h);
		double far = loss_at(t, &x[i], keep + 2 * h) - loss_at(t, &x[i], keep - 2 * h);
		double d = (8 * near - far) / (12 * h);
		x[i] = keep;
		check(t, fabs(d - g->v[i]) <= 1e-8 + 1e-6 * fabs(d),
		      "gradient of %s[%lld]: expected %.9g, got %.9g", v->name, (long long)i, d,
		      g->v[i]);
	}
}

static void test_transformer(Test *t)
{
	begin(t, "transformer, finite differences");
	check(t, compile(t, transformer_text, 0, false), "compile");
	transformer_data(t);
	run(t, "step");
	const InterpSlot *whole = t->env.outputs;
	for (const Var *v = t->m->vars; v; v = v->next)
		check_differences(t, v, whole);
	end(t);
	for (int64_t micro = 1; micro <= 3; micro++) {
		begin(t, "transformer in micro-batches");
		check(t, compile(t, transformer_text, micro, false), "compile");
		transformer_data(t);
		run(t, "step");
		for (const InterpSlot *s = whole; s; s = s->next)
			expect(t, t->env.outputs, s->name, (int)type_elems(&s->type), s->v, 1e-14);
		end(t);
	}
}

/* ---- splits that leave a smaller last micro-batch ---- */

static const char ignoring_text[] =
	"module \"ignoring\" batch # {\n"
	"  var \"fc.weight\" : f32[8,16] param init uniform(-0.5, 0.5) stream 0\n"
	"  var \"fc.bias\" : f32[16] param init uniform(-0.5, 0.5) stream 1\n"
	"  var \"out.weight\" : f32[16,10] param init uniform(-0.5, 0.5) stream 2\n"
	"  func @forward batch # {\n"
	"    %0 = var {name = \"fc.weight\"} : f32[8,16]\n"
	"    %1 = var {name = \"fc.bias\"} : f32[16]\n"
	"    %2 = var {name = \"out.weight\"} : f32[16,10]\n"
	"    %3 = input {name = \"x\"} : f32[#',8]\n"
	"    %4 = input {name = \"t\"} : i32[#']\n"
	"    %5 = matmul %3, %0 {ta = false, tb = false} : f32[#',16]\n"
	"    %6 = add %5, %1 : f32[#',16]\n"
	"    %7 = gelu %6 : f32[#',16]\n"
	"    %8 = dropout %7 {p = 0.3, stream = 5} : f32[#',16]\n"
	"    %9 = matmul %8, %2 {ta = false, tb = false} : f32[#',10]\n"
	"    %10 = cross_entropy %9, %4 {ignore = -100, smoothing = 0} : f32[]\n"
	"    output %10 {name = \"loss\"}\n"
	"  }\n"
	"}\n";

static void ignoring_data(Test *t)
{
	double x[60 * 8], y[60];
	uint32_t w[2];
	for (int i = 0; i < 60 * 8; i++) {
		interp_philox((uint64_t)i, 77, 0, 1, w);
		x[i] = (double)(float)(w[0] * 0x1p-31 - 1);
	}
	for (int i = 0; i < 60; i++) { /* two of three are ignored; of the last twelve all but one */
		interp_philox((uint64_t)i, 78, 0, 1, w);
		y[i] = w[0] % 3 || (i > 47 && i != 55) ? -100 : (double)(w[1] % 10);
	}
	y[55] = 4;
	set(t, &t->env.inputs, "x", type_make(DT_F32, 2, (int64_t[]){ 60, 8 }), x);
	set(t, &t->env.inputs, "t", type_make(DT_I32, 1, (int64_t[]){ 60 }), y);
	run(t, "init");
}

static double largest(const InterpSlot *s)
{
	double most = 0;
	for (int64_t i = 0; i < type_elems(&s->type); i++)
		most = fmax(most, fabs(s->v[i]));
	return most;
}

/* 60 samples as 60, 2 of 30, 3 of 16 and 12, 8 of 7 and 4, 59 and 1, 60 of 1. */
static void test_uneven(Test *t)
{
	const int64_t micro[] = { 60, 30, 16, 7, 59, 1 };
	const char *text = with_batch(t, ignoring_text, 60);
	const InterpSlot *whole = NULL;
	for (size_t k = 0; k < sizeof micro / sizeof *micro; k++) {
		begin(t, arena_printf(t->arena, "a batch of 60 by %d", (int)micro[k]));
		check(t, compile(t, text, micro[k], false), "compile");
		ignoring_data(t);
		run(t, "step");
		if (!whole)
			whole = t->env.outputs;
		for (const InterpSlot *s = whole; s; s = s->next) {
			if (s->type.dtype == DT_BOOL) /* whether it is skipped */
				continue;
			check(t, largest(s) > 1e-3, "%s says nothing", s->name);
			expect(t, t->env.outputs, s->name, (int)type_elems(&s->type), s->v,
			       1e-5 * largest(s));
		}
		end(t);
	}
}

/* Simplified and as expanded: the same bits. */
static void test_simplify(Test *t)
{
	begin(t, "simplify keeps every bit");
	PassCtx cx = { .arena = t->arena, .diag = t->diag, .dump = t->quiet };
	size_t n = strlen(transformer_text);
	t->m = ir_parse(t->arena, t->diag, t->name, transformer_text, n);
	check(t, run_pass(t, "expand", pass_expand, &cx), "expand");
	transformer_data(t);
	run(t, "step");
	double before = element(t, t->env.outputs, "loss", 0);
	check(t, simplify_func(ir_find_func(t->m, "step"), true), "nothing to simplify");
	check(t, !simplify_func(ir_find_func(t->m, "step"), true),
	      "a second time changes something");
	run(t, "step");
	double after = element(t, t->env.outputs, "loss", 0);
	check(t, before == after, "expected %.17g, got %.17g", before, after);
	end(t);
}

int main(void)
{
	Test t = { .arena = arena_new(), .quiet = tmpfile() };
	t.diag = diag_new(t.arena, stderr, 0);
	Diag *loud = t.diag;
	t.diag = diag_new(t.arena, t.quiet, 0); /* the warning of an allowed split is expected */
	test_batch_norm(&t);
	test_uneven_batch_norm(&t);
	t.diag = loud;
	test_cross_entropy(&t);
	test_updates(&t);
	test_clipping(&t);
	test_schedule(&t);
	test_transformer(&t);
	test_uneven(&t);
	test_simplify(&t);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	fclose(t.quiet);
	arena_free(t.arena);
	return t.failed != 0;
}

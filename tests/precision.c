/* Mixed precision by its numbers: small models as IR text, through the whole pipeline in bf16 and
 * fp16, run by the reference interpreter, which rounds as the ops do.
 *
 * Loss scaling: the trace of the training semantics; a skipped step that changes nothing; the same
 * clipped gradients under every scale. Blocks with a precision of their own, bit for bit. Accumulation:
 * many micro-batches in bf16 against f32. */
#include "model_test.h"
#include "passes/accumulate.h"

#include <math.h>
#include <stdlib.h>

/* ---- modules ---- */

static void run(Test *t, const char *func)
{
	t->env.outputs = NULL;
	check(t, interp_func(ir_find_func(t->m, func), &t->env), "%s does not run: %s", func,
	      t->env.error);
}

/* The pipeline up to micro-batches of `micro`, and the initial values. */
static void compile(Test *t, const char *text, const char *precision, int64_t micro)
{
	static const PassFn pass[] = { pass_expand,     pass_simplify,  pass_autodiff,
				       pass_autocast,   pass_loss_scale, pass_optimizer,
				       pass_accumulate };
	PassCtx cx = { .arena = t->arena,
		       .diag = t->diag,
		       .dump = stderr,
		       .precision = precision,
		       .micro_batch = micro,
		       .allow_microbatch_stats = true };
	t->m = ir_parse(t->arena, t->diag, t->name, text, strlen(text));
	bool good = t->m != NULL;
	for (size_t i = 0; good && i < sizeof pass / sizeof *pass; i++)
		good = pass[i](t->m, &cx) != PASS_FAILED && ir_verify(t->m, "pass", stderr);
	if (!good) { /* nothing can be run */
		printf("FAIL %s: does not compile\n0 passed, 1 failed\n", t->name);
		exit(1);
	}
	run(t, "init");
}

static double *input(Test *t, const char *name, int64_t rows, int64_t columns)
{
	Type type = type_make(DT_F32, 2, (int64_t[]){ rows, columns });
	return interp_slot(&t->env, &t->env.inputs, name, &type)->v;
}

static double var(const Test *t, const char *name, int64_t i)
{
	const InterpSlot *s = interp_find(t->env.vars, name);
	return s ? s->v[i] : NAN;
}

static double output(const Test *t, const char *name)
{
	const InterpSlot *s = interp_find(t->env.outputs, name);
	return s ? s->v[0] : NAN;
}

/* A fixed sequence that looks random, in [-1, 1). */
static void fill(double *v, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		v[i] = (double)(float)((double)(seed >> 33) / 1073741824.0 - 1);
	}
}

/* ---- the scale ---- */

/* loss = sum p*g, so that the gradient is the input. */
static const char update_text[] = "module \"update\" batch 1 {\n"
				  "  var \"p\" : f32[1,3] param init const(0.5)\n"
				  "  section train {loss_scale_interval = 3, lr = 0.1, %s}\n"
				  "  func @forward batch 1 {\n"
				  "    %%0 = var {name = \"p\"} : f32[1,3]\n"
				  "    %%1 = input {name = \"g\"} : f32[1',3]\n"
				  "    %%2 = mul %%0, %%1 : f32[1',3]\n"
				  "    %%3 = batch_mean %%2 : f32[]\n"
				  "    output %%3 {name = \"loss\"}\n"
				  "  }\n"
				  "}\n";

static InterpSlot *copy_vars(const Test *t)
{
	InterpEnv to = { .arena = t->arena };
	for (const InterpSlot *s = t->env.vars; s; s = s->next)
		memcpy(interp_slot(&to, &to.vars, s->name, &s->type)->v, s->v,
		       (size_t)type_elems(&s->type) * sizeof *s->v);
	return to.vars;
}

/* What a skipped step leaves is what there was, but for the scale; what another leaves is not. */
static void check_skip(Test *t, const InterpSlot *before, bool skips)
{
	bool moved = false;
	for (const InterpSlot *s = before; s; s = s->next) {
		const InterpSlot *now = interp_find(t->env.vars, s->name);
		bool same = !memcmp(now->v, s->v, (size_t)type_elems(&s->type) * sizeof *s->v);
		bool scale = !strncmp(s->name, "dlc.loss_scale", 14);
		moved |= !same && !scale;
		check(t, !skips || same || scale, "a skipped step changes %s", s->name);
	}
	check(t, moved == !skips, "a step that counts changes nothing");
	check(t, output(t, "skipped") == skips, "skipped is %g", output(t, "skipped"));
}

static void test_trace(Test *t)
{
	static const int overflow[] = { 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0 };
	static const double scale[] = { 32768, 16384, 16384, 16384, 32768, 32768,
					32768, 16384, 16384, 16384, 32768 };
	static const double count[] = { 0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0 };
	static const char *const optimizers[] = { "optimizer = \"adamw\", lr_kind = \"cosine\"",
						  "optimizer = \"sgd\", momentum = 0.9",
						  "optimizer = \"adam\", clip_norm = 0.5" };
	for (int k = 0; k < 3; k++)
		for (int how = 0; how < 3; how++) { /* infinity of both signs, and NaN */
			static const double bad[] = { INFINITY, -INFINITY, NAN };
			begin(t, arena_printf(t->arena, "scale, %s, %g", optimizers[k], bad[how]));
			compile(t, arena_printf(t->arena, update_text, optimizers[k]), "fp16", 0);
			int updates = 0;
			for (int i = 0; i < 11; i++) {
				double *g = input(t, "g", 1, 3);
				for (int j = 0; j < 3; j++)
					g[j] = overflow[i] && j == how ? bad[how]
								       : 0.25 * (j + 1) + i;
				InterpSlot *before = copy_vars(t);
				run(t, "step");
				check_skip(t, before, overflow[i]);
				updates += !overflow[i];
				check(t, var(t, "dlc.loss_scale", 0) == scale[i],
				      "step %d: scale %g", i, var(t, "dlc.loss_scale", 0));
				check(t, output(t, "scale") == scale[i], "step %d: reports %g", i,
				      output(t, "scale"));
				check(t, var(t, "dlc.loss_scale_steps", 0) == count[i],
				      "step %d: count %g", i, var(t, "dlc.loss_scale_steps", 0));
				check(t, var(t, "dlc.step", 0) == updates, "step %d: t %g", i,
				      var(t, "dlc.step", 0));
			}
			end(t);
		}
}

/* A scale that cannot grow any more stays, and its count starts again. */
static void test_largest(Test *t)
{
	begin(t, "largest scale");
	compile(t, arena_printf(t->arena, update_text, "loss_scale_init = 2e38"), "fp16", 0);
	for (int i = 0; i < 3; i++) {
		fill(input(t, "g", 1, 3), 3, 7);
		for (int j = 0; j < 3; j++)
			input(t, "g", 1, 3)[j] *= 1e-30;
		run(t, "step");
	}
	check(t, var(t, "dlc.loss_scale", 0) == (double)2e38f, "scale %g",
	      var(t, "dlc.loss_scale", 0));
	check(t, var(t, "dlc.loss_scale_steps", 0) == 0, "count %g",
	      var(t, "dlc.loss_scale_steps", 0));
	end(t);
}

/* ---- a network ---- */

static const char network_text[] =
	"module \"network\" batch %d {\n"
	"  var \"w\" : f32[16,8] param init uniform(-0.5, 0.5) stream 1\n"
	"  var \"b\" : f32[16] param init uniform(-0.5, 0.5) stream 2\n"
	"  var \"g\" : f32[16] param init const(1)\n"
	"  var \"h\" : f32[16] param init const(0)\n"
	"  var \"v\" : f32[4,16] param init uniform(-0.5, 0.5) stream 3\n"
	"  section train {optimizer = \"sgd\", lr = 0.01, keep_gradients = true, %s}\n"
	"  func @forward batch %d {\n"
	"    %%0 = var {name = \"w\"} : f32[16,8]\n"
	"    %%1 = var {name = \"b\"} : f32[16]\n"
	"    %%2 = var {name = \"g\"} : f32[16]\n"
	"    %%3 = var {name = \"h\"} : f32[16]\n"
	"    %%4 = var {name = \"v\"} : f32[4,16]\n"
	"    %%5 = input {name = \"x\"} : f32[%d',8]\n"
	"    %%6 = matmul %%5, %%0 {ta = false, tb = true} : f32[%d',16]\n"
	"    %%7 = add %%6, %%1 : f32[%d',16]\n"
	"    %%8 = gelu %%7 : f32[%d',16]\n"
	"    %%9 = layer_norm %%8, %%2, %%3 {eps = 1e-05} : f32[%d',16]\n"
	"    %%10 = matmul %%9, %%4 {ta = false, tb = true} : f32[%d',4]\n"
	"    %%11 = input {name = \"y\"} : f32[%d',4]\n"
	"    %%12 = mse %%10, %%11 : f32[]\n"
	"    output %%12 {name = \"loss\"}\n"
	"  }\n"
	"}\n";

static void network(Test *t, int n, const char *settings, const char *precision, int64_t micro)
{
	compile(t,
		arena_printf(t->arena, network_text, n, settings, n, n, n, n, n, n, n, n),
		precision, micro);
	fill(input(t, "x", n, 8), n * 8, 11);
	fill(input(t, "y", n, 4), n * 4, 13);
}

/* One sample of one micro-batch of eight whose product does not fit f16. */
static void test_one_overflow(Test *t)
{
	for (int64_t micro = 1; micro <= 2; micro++) {
		begin(t, "one overflow among eight micro-batches");
		network(t, (int)(8 * micro), "momentum = 0.9", "fp16", micro);
		run(t, "step");
		check(t, output(t, "skipped") == 0, "it skips without an overflow");
		InterpSlot *before = copy_vars(t);
		for (int j = 0; j < 8; j++)
			input(t, "x", 8 * micro, 8)[5 * micro * 8 + j] *= 60000;
		run(t, "step");
		check_skip(t, before, true);
		check(t, var(t, "dlc.loss_scale", 0) == 32768, "scale %g",
		      var(t, "dlc.loss_scale", 0));
		end(t);
	}
}

/* |a - b| / |b| over all gradients. */
static double distance(const InterpSlot *a, const InterpSlot *b)
{
	double apart = 0, size = 0;
	for (; b; b = b->next) {
		if (strncmp(b->name, "grad:", 5) != 0)
			continue;
		InterpSlot copy = *a; /* interp_find walks a list */
		const InterpSlot *s = interp_find(&copy, b->name);
		for (int64_t i = 0; i < type_elems(&b->type); i++) {
			apart += (s->v[i] - b->v[i]) * (s->v[i] - b->v[i]);
			size += b->v[i] * b->v[i];
		}
	}
	return sqrt(apart / size);
}

static void test_scales_agree(Test *t)
{
	double norm[2], w[2];
	InterpSlot *gradients[2];
	begin(t, "scales 65536 and 1");
	for (int i = 0; i < 2; i++) {
		t->env = (InterpEnv){ .arena = t->arena, .seed = 5 };
		network(t, 16,
			i ? "clip_norm = 0.5, loss_scale = 1.0" : "clip_norm = 0.5, loss_scale = 65536.0",
			"fp16", 0);
		double was = var(t, "w", 0);
		run(t, "step");
		check(t, output(t, "skipped") == 0, "it skips");
		norm[i] = output(t, "grad_norm");
		w[i] = var(t, "w", 0) - was;
		gradients[i] = t->env.outputs;
	}
	check(t, norm[0] > 0.5, "nothing is clipped at norm %g", norm[0]);
	check(t, fabs(norm[0] - norm[1]) <= 1e-3 * norm[1], "norms %g and %g", norm[0], norm[1]);
	check(t, fabs(w[0] - w[1]) <= 1e-3 * fabs(w[1]) + 1e-7, "updates %g and %g", w[0], w[1]);
	check(t, distance(gradients[0], gradients[1]) <= 1e-3, "gradients are %g apart",
	      distance(gradients[0], gradients[1]));
	end(t);
}

/* ---- skipped steps ---- */

/* A convolution with a batch norm before the classes; %s: settings, then what the loss is made of. */
static const char classes_text[] = "module \"classes\" batch 8 {\n"
				   "  var \"w\" : f32[6,4] param init uniform(-0.5, 0.5) stream 1\n"
				   "  var \"g\" : f32[6] param init const(1)\n"
				   "  var \"b\" : f32[6] param init const(0)\n"
				   "  var \"rm\" : f32[6] stat init const(0)\n"
				   "  var \"rv\" : f32[6] stat init const(1)\n"
				   "  var \"v\" : f32[3,6] param init uniform(-0.5, 0.5) stream 2\n"
				   "  section train {lr = 0.1, ema = 0.9, clip_norm = 0.5, %s}\n"
				   "  section data d npy {t_type = \"u8\"}\n"
				   "  func @forward batch 8 {\n"
				   "    %%0 = var {name = \"w\"} : f32[6,4]\n"
				   "    %%1 = var {name = \"g\"} : f32[6]\n"
				   "    %%2 = var {name = \"b\"} : f32[6]\n"
				   "    %%3 = var {name = \"rm\"} : f32[6]\n"
				   "    %%4 = var {name = \"rv\"} : f32[6]\n"
				   "    %%5 = var {name = \"v\"} : f32[3,6]\n"
				   "    %%6 = input {name = \"x\"} : f32[8',4]\n"
				   "    %%7 = matmul %%6, %%0 {ta = false, tb = true} : f32[8',6]\n"
				   "    %%8 = batch_norm %%7, %%1, %%2, %%3, %%4 {eps = 1e-05, momentum = 0.1} : f32[8',6]\n"
				   "    %%9 = matmul %%8, %%5 {ta = false, tb = true} : f32[8',3]\n"
				   "    %%10 = input {name = \"t\"} : i32[8']\n"
				   "    %%11 = cross_entropy %%9, %%10 {ignore = -100, smoothing = 0} : f32[]\n"
				   "%s"
				   "  }\n"
				   "}\n";

static const char one_loss[] = "    output %11 {name = \"loss\"}\n";
static const char two_losses[] = "    %12 = input {name = \"t2\"} : i32[8']\n"
				 "    %13 = cross_entropy %9, %12 {ignore = -100, smoothing = 0} : f32[]\n"
				 "    %14 = const {value = 0.5} : f32[]\n"
				 "    %15 = mul %13, %14 : f32[]\n"
				 "    %16 = add %11, %15 : f32[]\n"
				 "    output %16 {name = \"loss\"}\n";
static const char weighted_loss[] = "    %12 = const {value = 0.5} : f32[3]\n"
				    "    %13 = cross_entropy %9, %10, %12 {ignore = -100, smoothing = 0.1} : f32[]\n"
				    "    output %13 {name = \"loss\"}\n";
static const char penalty_loss[] = "    %12 = mul %5, %5 : f32[3,6]\n"
				   "    %13 = sum %12 {axes = [0,1], keep = false} : f32[]\n"
				   "    %14 = add %11, %13 : f32[]\n"
				   "    output %14 {name = \"loss\"}\n";
static const char mean_beside[] = "    %12 = mul %9, %9 : f32[8',3]\n"
				  "    %13 = batch_mean %12 : f32[]\n"
				  "    %14 = add %11, %13 : f32[]\n"
				  "    output %14 {name = \"loss\"}\n";
static const char bytes_loss[] = "    %12 = input {name = \"d.t\"} : i32[8']\n"
				 "    %13 = cross_entropy %9, %12 {ignore = -100, smoothing = 0} : f32[]\n"
				 "    output %13 {name = \"loss\"}\n";

static void set_targets(Test *t, const char *name, const double *v)
{
	Type type = type_make(DT_I32, 1, (int64_t[]){ 8 });
	memcpy(interp_slot(&t->env, &t->env.inputs, name, &type)->v, v, 8 * sizeof *v);
}

static void classes(Test *t, const char *settings, const char *loss, const char *precision, int64_t micro)
{
	t->env = (InterpEnv){ .arena = t->arena, .seed = 5 };
	compile(t, arena_printf(t->arena, classes_text, settings, loss), precision, micro);
	fill(input(t, "x", 8, 4), 8 * 4, 11);
}

static const double all[8] = { 0, 1, 2, 0, 1, 2, 0, 1 }, one[8] = { -100, -100, -100, -100, -100, 2, -100, -100 },
		    none[8] = { -100, -100, -100, -100, -100, -100, -100, -100 };

/* An overflow of one sample, with a dynamic or a static scale: nothing changes, not what a batch norm remembers either;
 * also where it takes its statistics over micro-batches, with a smaller last one: the updates then have a loop of their own,
 * behind the one that finds the overflow. In steps that count they are those of f32. */
static void test_statistics(Test *t)
{
	static const int64_t micros[] = { 0, 4, 5 };
	for (int k = 0; k < 6; k++) {
		int64_t micro = micros[k / 2];
		double want[2] = { 0 };
		begin(t, arena_printf(t->arena, "statistics at an overflow, micro-batches of %d, %s scale", (int)micro,
				      k & 1 ? "static" : "dynamic"));
		classes(t, "seed = 1", one_loss, "fp32", micro);
		set_targets(t, "t", all);
		input(t, "x", 8, 4)[5 * 4] = 0;
		run(t, "step");
		want[0] = var(t, "rm", 2), want[1] = var(t, "rv", 2);
		classes(t, k & 1 ? "loss_scale = 128.0" : "loss_scale_init = 1024.0", one_loss, "fp16", micro);
		set_targets(t, "t", all);
		for (int step = 0; step < 4; step++) {
			bool bad = step == 2;
			InterpSlot *before = copy_vars(t);
			input(t, "x", 8, 4)[5 * 4] = bad ? INFINITY : 0.25 * step;
			run(t, "step");
			check_skip(t, before, bad);
			check(t, bad || var(t, "rm", 0) != interp_find(before, "rm")->v[0], "step %d: rm stays", step);
			check(t, step > 0 || fabs(var(t, "rm", 2) - want[0]) < 1e-3 * fabs(want[0]), "rm %g, in f32 %g",
			      var(t, "rm", 2), want[0]);
			check(t, step > 0 || fabs(var(t, "rv", 2) - want[1]) < 1e-3 * fabs(want[1]), "rv %g, in f32 %g",
			      var(t, "rv", 2), want[1]);
			double scale = k & 1 ? 128 : step < 2 ? 1024 : 512;
			check(t, output(t, "scale") == scale, "step %d: scale %g", step, output(t, "scale"));
		}
		end(t);
	}
}

/* A batch without a valid target changes nothing and is a skip; one target is enough. */
static void test_empty(Test *t)
{
	static const char *const precision[] = { "fp32", "bf16", "fp16" };
	static const char *const loss[] = { one_loss, weighted_loss, penalty_loss };
	for (int k = 0; k < 18; k++) {
		int64_t micro = k % 2 ? 2 : 0;
		begin(t, arena_printf(t->arena, "an empty batch in %s, loss %d, micro-batches of %d", precision[k / 2 % 3],
				      k / 6, (int)micro));
		classes(t, k % 4 == 3 ? "loss_scale_init = 64.0, optimizer = \"sgd\", momentum = 0.9"
				   : "loss_scale_init = 64.0, lr_kind = \"cosine\"", loss[k / 6],
			precision[k / 2 % 3], micro);
		static const double *const batches[] = { all, none, one, none, none, all };
		int updates = 0;
		for (int i = 0; i < 6; i++) {
			set_targets(t, "t", batches[i]);
			InterpSlot *before = copy_vars(t);
			run(t, "step");
			check_skip(t, before, batches[i] == none);
			check(t, output(t, "empty") == (batches[i] == none), "step %d: empty is %g", i, output(t, "empty"));
			check(t, isfinite(output(t, "loss")), "step %d: loss %g", i, output(t, "loss"));
			updates += batches[i] != none;
			check(t, var(t, "dlc.step", 0) == updates, "step %d: t %g", i, var(t, "dlc.step", 0));
		}
		end(t);
	}
}

/* Of two losses both must be empty; no gate where a part of the loss has data whatever the targets, or where no target can
 * be left out. */
static void test_parts(Test *t)
{
	begin(t, "two losses");
	classes(t, "seed = 1", two_losses, "fp32", 0);
	for (int k = 0; k < 4; k++) {
		set_targets(t, "t", k & 1 ? one : none);
		set_targets(t, "t2", k & 2 ? all : none);
		InterpSlot *before = copy_vars(t);
		run(t, "step");
		check_skip(t, before, k == 0);
	}
	end(t);
	for (int k = 0; k < 2; k++) {
		begin(t, k ? "targets from bytes" : "a mean beside the classes");
		classes(t, "seed = 1", k ? bytes_loss : mean_beside, "fp32", 0);
		set_targets(t, "t", none);
		set_targets(t, "d.t", all);
		run(t, "step");
		check(t, isnan(output(t, "skipped")), "there is a gate");
		check(t, var(t, "dlc.step", 0) == 1, "t %g", var(t, "dlc.step", 0));
		end(t);
	}
}

/* ---- precisions of blocks ---- */

/* The network with a mark on its first `marked` operations; of them the last two are the second product and the loss. */
static const char *marked_network(Test *t, int n, const char *mark, int marked)
{
	const char *text = arena_printf(t->arena, network_text, n, "momentum = 0.9", n, n, n, n, n, n, n, n), *out = "";
	while (*text) { /* line by line: an operation reads values and is no leaf */
		size_t len = (size_t)(strchr(text, '\n') - text) + 1;
		char *line = arena_strndup(t->arena, text, len), *type = strrchr(line, ':');
		bool operation = strstr(line, "= ") && strstr(line, " %") && !strstr(line, " = var {") && !strstr(line, " = input {") &&
				 !strstr(line, "output") && type;
		if (operation && marked-- > 0)
			out = arena_printf(t->arena, "%s%.*s %s %s", out, (int)(type - line - 1), line, mark, type);
		else
			out = arena_printf(t->arena, "%s%s", out, line);
		text += len;
	}
	return out;
}

static void step_of(Test *t, const char *text, const char *precision)
{
	t->env = (InterpEnv){ .arena = t->arena, .seed = 5 };
	compile(t, text, precision, 0);
	fill(input(t, "x", 4, 8), 4 * 8, 11);
	fill(input(t, "y", 4, 4), 4 * 4, 13);
	run(t, "step");
}

/* The loss, gradients and variables whose names begin with one of `of` are the same bits. */
static void check_same(Test *t, const InterpSlot *a, InterpSlot *b, const char *const *of)
{
	int seen = 0;
	for (; a; a = a->next) {
		bool wanted = !of;
		for (int i = 0; of && of[i]; i++)
			wanted |= !strcmp(a->name, of[i]);
		if (!wanted)
			continue;
		const InterpSlot *s = interp_find(b, a->name);
		check(t, s && !memcmp(s->v, a->v, (size_t)type_elems(&a->type) * sizeof *a->v), "%s differs", a->name);
		seen++;
	}
	check(t, seen > 0, "nothing is compared");
}

/* A model that is one block of a precision is the model in that precision, whatever the run's. */
static void test_block_is_run(Test *t)
{
	static const struct {
		const char *mark, *same, *runs[2];
	} kinds[] = { { "[in_f32]", "fp32", { "bf16", "fp16" } },
		      { "[in_bf16]", "bf16", { "fp32", "fp32" } },
		      { "[in_f16]", "fp16", { "fp32", "bf16" } } };
	const char *plain = marked_network(t, 4, "", 0);
	for (int k = 0; k < 3; k++)
		for (int i = 0; i < 2; i++) {
			begin(t, arena_printf(t->arena, "a block %s in a run in %s", kinds[k].mark, kinds[k].runs[i]));
			step_of(t, plain, kinds[k].same);
			InterpSlot *outputs = t->env.outputs, *vars = t->env.vars;
			step_of(t, plain, kinds[k].runs[i]);
			check(t, distance(outputs, t->env.outputs) > 1e-5, "the precisions do not differ");
			step_of(t, marked_network(t, 4, kinds[k].mark, 100), kinds[k].runs[i]);
			/* fp16 around a block in f32 scales its loss by a power of two, which is exact. */
			for (InterpSlot *s = t->env.outputs; s; s = s->next)
				if (!strncmp(s->name, "grad:", 5) || !strcmp(s->name, "loss"))
					check_same(t, interp_find(outputs, s->name), s, (const char *const[]){ s->name, NULL });
			check_same(t, vars, t->env.vars,
				   (const char *const[]){ "w", "b", "g", "h", "v", "dlc.sgd.momentum.w", NULL });
			end(t);
		}
}

/* The first layer in f32, the second in bf16 as the run: the same as casts by hand around the second product. */
static const char by_hand[] = "module \"network\" batch 4 {\n"
			      "  var \"w\" : f32[16,8] param init uniform(-0.5, 0.5) stream 1\n"
			      "  var \"b\" : f32[16] param init uniform(-0.5, 0.5) stream 2\n"
			      "  var \"g\" : f32[16] param init const(1)\n"
			      "  var \"h\" : f32[16] param init const(0)\n"
			      "  var \"v\" : f32[4,16] param init uniform(-0.5, 0.5) stream 3\n"
			      "  section train {optimizer = \"sgd\", lr = 0.01, keep_gradients = true, momentum = 0.9}\n"
			      "  func @forward batch 4 {\n"
			      "    %0 = var {name = \"w\"} : f32[16,8]\n"
			      "    %1 = var {name = \"b\"} : f32[16]\n"
			      "    %2 = var {name = \"g\"} : f32[16]\n"
			      "    %3 = var {name = \"h\"} : f32[16]\n"
			      "    %4 = var {name = \"v\"} : f32[4,16]\n"
			      "    %5 = input {name = \"x\"} : f32[4',8]\n"
			      "    %6 = matmul %5, %0 {ta = false, tb = true} : f32[4',16]\n"
			      "    %7 = add %6, %1 : f32[4',16]\n"
			      "    %8 = gelu %7 : f32[4',16]\n"
			      "    %9 = layer_norm %8, %2, %3 {eps = 1e-05} : f32[4',16]\n"
			      "    %10 = cast %9 {to = \"bf16\"} : bf16[4',16]\n"
			      "    %11 = cast %4 {to = \"bf16\"} : bf16[4,16]\n"
			      "    %12 = matmul %10, %11 {ta = false, tb = true} : bf16[4',4]\n"
			      "    %13 = cast %12 {to = \"f32\"} : f32[4',4]\n"
			      "    %14 = input {name = \"y\"} : f32[4',4]\n"
			      "    %15 = mse %13, %14 : f32[]\n"
			      "    output %15 {name = \"loss\"}\n"
			      "  }\n"
			      "}\n";

static void test_block_within(Test *t)
{
	begin(t, "a layer in f32 within bf16");
	step_of(t, by_hand, "fp32");
	const InterpSlot *outputs = t->env.outputs;
	step_of(t, marked_network(t, 4, "[in_f32]", 4), "bf16");
	check_same(t, outputs, t->env.outputs,
		   (const char *const[]){ "loss", "grad:w", "grad:b", "grad:g", "grad:h", NULL });
	end(t);
}

/* One layer, whose gradient is a sum of 64 products. */
static const char layer_text[] = "module \"layer\" batch 64 {\n"
				 "  var \"w\" : f32[4,8] param init uniform(-0.5, 0.5) stream 1\n"
				 "  section train {optimizer = \"sgd\", keep_gradients = true}\n"
				 "  func @forward batch 64 {\n"
				 "    %0 = var {name = \"w\"} : f32[4,8]\n"
				 "    %1 = input {name = \"x\"} : f32[64',8]\n"
				 "    %2 = matmul %1, %0 {ta = false, tb = true} : f32[64',4]\n"
				 "    %3 = input {name = \"y\"} : f32[64',4]\n"
				 "    %4 = mse %2, %3 : f32[]\n"
				 "    output %4 {name = \"loss\"}\n"
				 "  }\n"
				 "}\n";

/* Gradients add up in f32: in 64 micro-batches as in one piece, and near to all in f32. Samples that
 * agree on where to go, as sums in bf16 would stop growing. */
static void test_accumulation(Test *t)
{
	static const char *const precision[] = { "bf16", "bf16", "fp32" };
	InterpSlot *g[3];
	begin(t, "64 micro-batches in bf16");
	for (int i = 0; i < 3; i++) {
		t->env = (InterpEnv){ .arena = t->arena, .seed = 5 };
		compile(t, layer_text, precision[i], i == 0 ? 1 : 0);
		fill(input(t, "x", 64, 8), 64 * 8, 11);
		fill(input(t, "y", 64, 4), 64 * 4, 13);
		for (int k = 0; k < 64 * 8; k++)
			input(t, "x", 64, 8)[k] += 2;
		for (int k = 0; k < 64 * 4; k++)
			input(t, "y", 64, 4)[k] += 4;
		run(t, "step");
		g[i] = t->env.outputs;
	}
	double whole = distance(g[0], g[1]), full = distance(g[0], g[2]);
	check(t, whole <= 1e-6, "one piece is %g apart", whole);
	check(t, full <= 1e-3, "f32 is %g apart", full);
	check(t, full > 1e-5, "bf16 is no nearer than f32, %g", full);
	end(t);
}

int main(void)
{
	Test t = { .arena = arena_new(), .quiet = tmpfile() };
	t.diag = diag_new(t.arena, t.quiet, 0); /* the warning of an allowed split is expected */
	test_trace(&t);
	test_largest(&t);
	test_one_overflow(&t);
	test_scales_agree(&t);
	test_statistics(&t);
	test_empty(&t);
	test_parts(&t);
	test_block_is_run(&t);
	test_block_within(&t);
	test_accumulation(&t);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	fclose(t.quiet);
	arena_free(t.arena);
	return t.failed != 0;
}

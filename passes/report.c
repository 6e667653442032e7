/* Reports of a plan (see report.h). JSON is written by jansson. */
#include "report.h"

#include "../ir/base/size.h"
#include "answers.h"

#include <inttypes.h>
#include <jansson.h>

static void put_int(json_t *o, const char *key, int64_t v)
{
	json_object_set_new(o, key, json_integer(v));
}

static void put_real(json_t *o, const char *key, double v)
{
	json_object_set_new(o, key, json_real(v));
}

static json_t *bytes_object(const PlanBytes *b)
{
	json_t *o = json_object();

	put_int(o, "parameters", b->parameters);
	put_int(o, "optimizer", b->optimizer);
	put_int(o, "gradients", b->gradients);
	put_int(o, "activations", b->activations);
	put_int(o, "workspace", b->workspace);
	put_int(o, "input", b->input);
	return o;
}

static json_t *recompute_object(const PlanSummary *s)
{
	json_t *o = json_object();

	put_int(o, "nodes", s->recompute_nodes);
	put_real(o, "seconds", s->recompute_seconds);
	put_int(o, "bytes_saved", s->recompute_bytes_saved);
	return o;
}

static json_t *offload_object(const PlanSummary *s)
{
	json_t *o = json_object();

	put_int(o, "values", s->moved);
	put_int(o, "bytes", s->moved_bytes);
	put_int(o, "host_bytes", s->host_bytes);
	put_real(o, "wait_seconds", s->wait_seconds);
	return o;
}

static json_t *plan_object(Arena *a, const Module *m, const PlanSummary *s, const ReportNames *n)
{
	json_t *o = json_object();

	json_object_set_new(o, "model", json_string(answer_text(a, m->name)));
	json_object_set_new(o, "target", json_string(n->target));
	json_object_set_new(o, "precision", json_string(n->precision));
	json_object_set_new(o, "machine", json_string(answer_text(a, n->machine)));
	put_int(o, "batch", s->batch);
	put_int(o, "micro_batch", s->micro_batch);
	put_int(o, "accumulation_steps", s->accumulation_steps);
	put_int(o, "chunks", s->chunks);
	put_int(o, "parameters", s->parameters);
	put_int(o, "trained_parameters", s->trained);
	json_object_set_new(o, "budget_bytes",
	                    s->budget_bytes == INT64_MAX ? json_null() : json_integer(s->budget_bytes));
	put_int(o, "arena_bytes", s->arena_bytes);
	put_int(o, "lower_bound_bytes", s->lower_bound_bytes);
	put_int(o, "unlimited_arena_bytes", s->unlimited_arena_bytes);
	put_int(o, "min_budget_bytes", s->min_budget_bytes);
	put_real(o, "predicted_step_seconds", s->step_seconds);
	if (s->step_seconds_bound > 0)
		put_real(o, "step_seconds_bound", s->step_seconds_bound);
	put_real(o, "plan_seconds", n->plan_seconds);
	put_real(o, "compile_seconds", n->compile_seconds);
	if (n->launches)
		json_object_set_new(o, "launches", json_loads(n->launches, 0, NULL));
	json_object_set_new(o, "bytes", bytes_object(&s->peak));
	json_object_set_new(o, "recompute", recompute_object(s));
	json_object_set_new(o, "offload", offload_object(s));
	return o;
}

/* The text of a value, in the arena; the value is given up. */
static const char *dump(Arena *a, json_t *o)
{
	char *text = json_dumps(o, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
	const char *copy = arena_strdup(a, text ? text : "null");

	free(text);
	json_decref(o);
	return copy;
}

const char *report_json(Arena *a, const Module *m, const PlanSummary *s, const ReportNames *n)
{
	return dump(a, plan_object(a, m, s, n));
}

const char *report_curve_json(Arena *a, const Module *m, const PlanSummary *point, int n, const ReportNames *names)
{
	json_t *list = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(list, plan_object(a, m, &point[i], names));
	return dump(a, list);
}

const char *report_seconds(Arena *a, double seconds)
{
	static const char *const names[] = { "s", "ms", "us", "ns" };
	int unit = 0;

	if (!(seconds > 0))
		return "0 s";
	while (unit < 3 && seconds < 0.9995) {
		seconds *= 1000;
		unit++;
	}
	return arena_printf(a, "%.*f %s", seconds < 9.995 ? 2 : seconds < 99.95 ? 1 : 0, seconds, names[unit]);
}

const char *report_split(Arena *a, const PlanSummary *s, const char *times)
{
	int64_t whole = s->batch / s->micro_batch, rest = s->batch % s->micro_batch;
	const char *even = whole == 1 && rest ? arena_printf(a, "%" PRId64, s->micro_batch)
	                                      : arena_printf(a, "%" PRId64 " %s %" PRId64, whole, times, s->micro_batch);

	return rest ? arena_printf(a, "%s + %" PRId64, even, rest) : even;
}

void report_text(FILE *out, Arena *a, const Module *m, const PlanSummary *s)
{
	const PlanBytes *b = &s->peak;

	fprintf(out, "%s: arena %s", m->name, size_text(a, s->arena_bytes));
	if (s->budget_bytes != INT64_MAX)
		fprintf(out, " of a budget of %s", size_text(a, s->budget_bytes));
	fprintf(out, " (smallest feasible %s, unlimited %s)\n", size_text(a, s->min_budget_bytes),
	        size_text(a, s->unlimited_arena_bytes));
	fprintf(out, "  at the peak: parameters %s, optimizer %s, gradients %s, activations %s, workspace %s, input %s\n",
	        size_text(a, b->parameters), size_text(a, b->optimizer), size_text(a, b->gradients),
	        size_text(a, b->activations), size_text(a, b->workspace), size_text(a, b->input));
	fprintf(out, "  batch %" PRId64 " as %s%s; %" PRId64 " replay%s, %.1f %% of the step\n", s->batch,
	        report_split(a, s, "x"), s->chunks > 1 ? arena_printf(a, ", its head in %" PRId64 " chunks", s->chunks) : "",
	        s->recompute_nodes, s->recompute_nodes == 1 ? "" : "s",
	        s->step_seconds > 0 ? 100 * s->recompute_seconds / s->step_seconds : 0);
	if (s->moved > 0)
		fprintf(out, "  %" PRId64 " value%s of %s in all wait%s in host memory, which takes %s; waits for copies %.1f %% of the step\n", s->moved,
		        s->moved == 1 ? "" : "s",
		        size_text(a, s->moved_bytes), s->moved == 1 ? "s" : "", size_text(a, s->host_bytes),
		        s->step_seconds > 0 ? 100 * s->wait_seconds / s->step_seconds : 0);
}

/* ---- the plan as a table ---- */

static void last_uses(const Block *b, int32_t *last)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++) {
			Value *root = ir_view_root(n->arg[i], NULL);

			if (n->pos > last[root->id])
				last[root->id] = n->pos;
			if (n->op == OP_fetched) /* what it comes from is read up to here */
				last[n->arg[0]->def->arg[0]->id] = n->pos;
		}
		if (n->op == OP_loop)
			last_uses(n->body, last);
	}
}

const char *report_op(Arena *a, const Node *n)
{
	const char *first = NULL, *last = NULL;
	int count = 0;

	if (n->op == OP_opaque && ir_str(n, "name")[0])
		return ir_str(n, "name");
	if (n->op != OP_fused)
		return ir_ops[n->op].name;
	for (const Node *b = n->body->first; b; b = b->next) {
		if (b->op == OP_yield || ir_ops[b->op].kind == K_LEAF)
			continue;
		last = ir_ops[b->op].name;
		if (!first)
			first = last;
		count++;
	}
	if (count < 2)
		return first ? first : "fill";
	return arena_printf(a, count == 2 ? "%s+%s" : "%s..%s", first, last);
}

/* One line; live and from hold a life and a source line, or nothing and what a node stores into, or nothing. */
static void plan_row(FILE *out, int32_t pos, const char *op, const char *value, const char *type, int64_t offset,
                     const char *bytes, const char *live, const char *from)
{
	fprintf(out, "%5d  %-20.20s %-6s %-22s 0x%08" PRIx64 " %10s", pos, op, value, type, (uint64_t)offset, bytes);
	if (from[0])
		fprintf(out, "  %-12s %s", live, from);
	fputc('\n', out);
}

static const char *remark(const Node *n)
{
	if (n->op == OP_send)
		return "  place in host memory";
	if (n->op == OP_fetch)
		return "  from host memory";
	return n->replay_of ? "  recomputed" : "";
}

static void plan_line(FILE *out, Arena *a, const Module *m, const Node *n, int i, const int32_t *last)
{
	const Value *v = n->res[i];

	plan_row(out, n->pos, report_op(a, n), arena_printf(a, "%%%d", v->id), type_text(a, &v->type, false), v->offset,
	         size_text(a, type_bytes(&v->type)),
	         arena_printf(a, "%5d..%d", n->pos, last[v->id] > n->pos ? last[v->id] : n->pos),
	         arena_printf(a, "%s%s", diag_where(m->diag, a, n->span), remark(n)));
}

/* The variable that v, an operand of n or a parameter of its body, stands for. */
static const char *stored_name(const Node *n, Value *v)
{
	for (int i = 0; n->body && i < n->body->nparam; i++)
		if (n->body->param[i] == v)
			v = n->arg[i];
	return ir_str(ir_view_root(v, NULL)->def, "name");
}

static void plan_store(FILE *out, Arena *a, const Module *m, const Node *n, const Node *assign)
{
	const char *name = stored_name(n, assign->arg[0]);
	const Var *v = ir_find_var(m, name);

	plan_row(out, n->pos, report_op(a, n), "", type_text(a, &v->type, false), v->offset,
	         size_text(a, type_bytes(&v->type)), "", arena_printf(a, "-> %s", name));
}

/* The variables that a node stores: its own, or those of a kernel's body. */
static void plan_stores(FILE *out, Arena *a, const Module *m, const Node *n)
{
	if (n->op == OP_assign)
		plan_store(out, a, m, n, n);
	for (const Node *b = n->op == OP_fused ? n->body->first : NULL; b; b = b->next)
		if (b->op == OP_assign)
			plan_store(out, a, m, n, b);
}

static void plan_node(FILE *out, Arena *a, const Module *m, const Node *n, const int32_t *last)
{
	for (int i = 0; i < n->nres; i++)
		plan_line(out, a, m, n, i, last);
	plan_stores(out, a, m, n);
	if (n->op == OP_sent || n->op == OP_fetched)
		fprintf(out, "%5d  %-20s %%%-5d\n", n->pos, ir_ops[n->op].name, n->arg[0]->id);
	if (n->op == OP_output)
		fprintf(out, "%5d  %-20s %%%-5d -> %s\n", n->pos, "output", n->arg[0]->id, ir_str(n, "name"));
	if (n->work_bytes > 0)
		plan_row(out, n->pos, "workspace", "", "", n->work_offset, size_text(a, n->work_bytes), "", "");
}

/* "loop 3 times, 16 samples each", or "once, the last 12 samples" */
static void plan_loop(FILE *out, Arena *a, const Node *n)
{
	int64_t trips = ir_int(n, "trips"), batch = ir_int(n, "batch");
	const char *samples = arena_printf(a, "%" PRId64 " sample%s", batch, batch == 1 ? "" : "s");

	if (trips == 1)
		fprintf(out, "%5d  once, %s %s\n", n->pos, ir_int(n, "base") ? "the last" : "the first", samples);
	else
		fprintf(out, "%5d  loop %" PRId64 " times, %s each\n", n->pos, trips, samples);
}

static void plan_block(FILE *out, Arena *a, const Module *m, const Block *b, const int32_t *last)
{
	for (const Node *n = b->first; n; n = n->next) {
		if (n->op == OP_loop) {
			plan_loop(out, a, n);
			plan_block(out, a, m, n->body, last);
			fprintf(out, "       end of loop\n");
		} else if (n->op != OP_var && n->op != OP_yield && !ir_is_view(n)) {
			plan_node(out, a, m, n, last);
		}
	}
}

static void plan_func(FILE *out, Arena *a, Func *f)
{
	int32_t nvalues;
	int32_t *last;

	ir_number(f, &nvalues);
	last = ARENA_ARRAY(a, nvalues, int32_t);
	last_uses(f->body, last);
	fprintf(out, "\n@%s: %s\n", f->name, size_text(a, f->arena_bytes));
	fprintf(out, " step  %-20s %-6s %-22s %-10s %10s  %-12s %s\n", "op", "value", "type", "offset", "bytes", "live",
	        "from");
	plan_block(out, a, f->module, f->body, last);
}

static void plan_vars(FILE *out, Arena *a, const Module *m)
{
	static const char *const roles[] = { [VAR_PARAM] = "parameter", [VAR_STAT] = "statistic",
		                             [VAR_OPT] = "optimizer", [VAR_COUNTER] = "counter" };

	fprintf(out, "variables of all functions\n");
	fprintf(out, "       %-49s %-10s %10s  %-12s %s\n", "type", "offset", "bytes", "kind", "name");
	for (const Var *v = m->vars; v; v = v->next)
		fprintf(out, "       %-49s 0x%08" PRIx64 " %10s  %-12s %s\n", type_text(a, &v->type, false),
		        (uint64_t)v->offset, size_text(a, type_bytes(&v->type)), roles[v->role], v->name);
}

void report_plan(FILE *out, Arena *a, const Module *m)
{
	Func *step = ir_find_func(m, "step");

	plan_vars(out, a, m);
	if (step)
		plan_func(out, a, step);
	for (Func *f = m->funcs; f; f = f->next)
		if (f != step)
			plan_func(out, a, f);
}

/* ---- fingerprint ---- */

static uint64_t fnv1a(uint64_t h, const char *s)
{
	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 0x100000001b3u;
	return h;
}

const char *report_fingerprint(Arena *a, const Module *m)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, 64 bits */

	for (const Var *v = m->vars; v; v = v->next)
		h = fnv1a(fnv1a(fnv1a(h, v->name), type_text(a, &v->type, false)), ";");
	return arena_printf(a, "%016" PRIx64, h);
}

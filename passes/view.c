/* A placed step as a list of things that take bytes for some steps (see answers.h).
 *
 * The function holds its plan: replays are nodes, offsets are values'. Its timeline and lives are
 * built again as the placement built them, so that every number here is the plan's own. */
#include "answers.h"
#include "machine.h"

#include "report.h"

#include <math.h>
#include <stdlib.h>

const char *const view_kind_names[VIEW_KINDS] = { "parameters",  "optimizer", "gradients",
						  "activations", "workspace", "input" };

const char *const view_phase_names[PHASES] = { "forward", "computed again", "backward", "update" };

static ViewKind kind_of_var(const Var *var)
{
	return var->role == VAR_PARAM || var->role == VAR_STAT ? VIEW_PARAMETER : VIEW_OPTIMIZER;
}

static ViewKind kind_of_buf(BufKind kind)
{
	static const ViewKind kinds[BUF_KINDS] = { [BUF_ACTIVATION] = VIEW_ACTIVATION,
						   [BUF_GRADIENT] = VIEW_GRADIENT,
						   [BUF_IO] = VIEW_IO,
						   [BUF_WORKSPACE] = VIEW_WORKSPACE };

	return kinds[kind];
}

const Node *view_node(const View *v, int32_t step)
{
	return v->t->op[v->plan.step[step].op].node;
}

const char *view_op(const View *v, Arena *a, int32_t step)
{
	const Node *n = view_node(v, step);

	return n ? report_op(a, n) : "end of the loop";
}

ViewPhase view_phase(const View *v, int32_t step)
{
	const Node *n = view_node(v, step);

	if (n && n->replay_of)
		return PHASE_REPLAY;
	if (n && n->flags & NF_OPTIMIZER)
		return PHASE_UPDATE;
	return n && n->flags & NF_BACKWARD ? PHASE_BACKWARD : PHASE_FORWARD;
}

int64_t view_trips(const View *v, int32_t step)
{
	const Node *n = view_node(v, step);
	const Node *owner = n && n->parent ? n->parent->owner : NULL;

	return owner && owner->op == OP_loop ? ir_int(owner, "trips") : 1;
}

const char *view_where(const View *v, Arena *a, Span s)
{
	return diag_where(v->m->diag, a, s);
}

bool view_at_peak(const View *v, const ViewItem *i)
{
	return i->from + i->over <= v->plan.peak && v->plan.peak <= i->to;
}

/* ---- making one ---- */

static const char *buffer_name(Arena *a, const View *v, const TBuf *buf)
{
	const Value *root = buf->root;
	const Node *n = v->t->op[buf->op].node;
	const char *type = type_text(a, &root->type, false);

	if (buf->carried)
		return arena_printf(a, "sum over the micro-batches, %s", type);
	if (n && n->op == OP_input)
		return arena_printf(a, "%%%d input %s %s", root->id, ir_str(n, "name"), type);
	return arena_printf(a, "%%%d %s %s", root->id, n ? report_op(a, n) : "loop", type);
}

static ViewItem item_of_life(Arena *a, const View *v, const TLife *life)
{
	ViewItem i = { .kind = VIEW_WORKSPACE,
		       .bytes = life->bytes,
		       .from = life->from,
		       .to = life->to,
		       .over = life->over >= 0 };
	const Node *n = view_node(v, life->from);

	i.span = n ? n->span : NO_SPAN;
	i.replay = n && n->replay_of;
	if (life->buf < 0) {
		i.name = arena_printf(a, "workspace of %s", view_op(v, a, life->from));
		i.offset = n ? n->work_offset : 0;
		return i;
	}
	i.kind = kind_of_buf(v->t->buf[life->buf].kind);
	i.name = buffer_name(a, v, &v->t->buf[life->buf]);
	i.offset = v->t->buf[life->buf].root->offset;
	return i;
}

static void add_variables(Arena *a, View *v)
{
	for (const Var *var = v->m->vars; var; var = var->next)
		v->item[v->nitems++] =
		    (ViewItem){ .kind = kind_of_var(var),
				.name = arena_printf(a, "%s %s", var->name,
						     type_text(a, &var->type, false)),
				.offset = var->offset,
				.bytes = timeline_align(type_bytes(&var->type)),
				.to = v->plan.nsteps - 1,
				.span = var->span };
	v->nvars = v->nitems;
}

/* What waits for a copy takes as long as that is. */
static void put_waits(Arena *a, View *v)
{
	double *stall = ARENA_ARRAY(a, v->plan.nsteps, double);

	timeline_seconds(v->t, &v->plan, stall);
	for (int32_t i = 0; i < v->plan.nsteps; i++)
		if (v->plan.step[i].move)
			v->t->op[v->plan.step[i].op].seconds = stall[i];
}

View view_make(Arena *a, Module *m, const PassCtx *cx)
{
	Func *step = ir_find_func(m, "step");
	View v = { .machine = cx->machine->name, .m = m, .t = timeline_build(a, step, cx), .arena = step->arena_bytes };
	size_t nvars = 0;
	TLives lives;

	v.plan = timeline_plain(v.t, a);
	v.live = ARENA_ARRAY(a, v.plan.nsteps + 1, int64_t);
	lives = timeline_lives(v.t, a, &v.plan, v.live);
	put_waits(a, &v);
	for (int32_t i = 0; i < v.plan.nsteps; i++)
		v.live[i] += v.t->var_bytes;
	for (int32_t i = 0; i < v.plan.nsteps; i++)
		v.phases |= view_phase(&v, i) >= PHASE_BACKWARD;
	for (const Var *var = m->vars; var; var = var->next)
		nvars++;
	v.item = ARENA_ARRAY(a, nvars + (size_t)lives.n, ViewItem);
	add_variables(a, &v);
	for (int32_t k = 0; k < lives.n; k++)
		v.item[v.nitems++] = item_of_life(a, &v, &lives.at[k]);
	for (int32_t k = 0; k < lives.n; k++)
		if (lives.at[k].over >= 0)
			v.item[v.nvars + lives.at[k].over].passed_on = true;
	return v;
}

/* ---- costs ---- */

static int compare_groups(const void *pa, const void *pb)
{
	const ViewCost *a = pa, *b = pb;
	int by = strcmp(a->where, b->where);

	return by != 0 ? by : strcmp(a->op, b->op);
}

static int compare_costs(const void *pa, const void *pb)
{
	const ViewCost *a = pa, *b = pb;

	if (a->seconds < b->seconds || a->seconds > b->seconds)
		return a->seconds > b->seconds ? -1 : 1;
	return compare_groups(pa, pb);
}

ViewCost *view_costs(const View *v, Arena *a, bool replays, int32_t *n)
{
	ViewCost *cost = ARENA_ARRAY(a, v->plan.nsteps, ViewCost);
	int32_t count = 0, kept = 0;

	for (int32_t i = 0; i < v->plan.nsteps; i++) {
		const Node *node = view_node(v, i);

		if (!node || node->op == OP_loop || (replays && !node->replay_of) ||
		    (v->plan.step[i].move && !(v->t->op[v->plan.step[i].op].seconds > 0)))
			continue;
		cost[count++] = (ViewCost){ .op = view_op(v, a, i),
					    .where = view_where(v, a, node->span),
					    .seconds = v->t->op[v->plan.step[i].op].seconds,
					    .times = view_trips(v, i) };
	}
	qsort(cost, (size_t)count, sizeof *cost, compare_groups);
	for (int32_t i = 0; i < count; i++) {
		if (kept > 0 && compare_groups(&cost[kept - 1], &cost[i]) == 0) {
			cost[kept - 1].seconds += cost[i].seconds;
			cost[kept - 1].times += cost[i].times;
		} else {
			cost[kept++] = cost[i];
		}
	}
	qsort(cost, (size_t)kept, sizeof *cost, compare_costs);
	*n = kept;
	return cost;
}

/* ---- text ---- */

/* Bytes of the UTF-8 character at s, or 0 where it is none that XML may hold. */
static int utf8_character(const unsigned char *s)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80       ? 1
		: s[0] >> 5 == 6  ? 2
		: s[0] >> 4 == 14 ? 3
		: s[0] >> 3 == 30 ? 4
				  : 0;
	uint32_t c = n == 1 ? s[0] : n > 0 ? s[0] & (0x7fu >> n) : 0;

	for (int i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (n == 0 || c < least[n] || c > 0x10ffff || (c >> 11) == 0x1b || (c & 0xfffe) == 0xfffe)
		return 0;
	return c < 32 || c == 127 ? 0 : n;
}

const char *answer_text(Arena *a, const char *text)
{
	VEC(char) out = { 0 };

	for (int n; *text; text += n > 0 ? n : 1) {
		n = utf8_character((const unsigned char *)text);
		for (int i = 0; i < n; i++)
			vec_push(a, &out, text[i]);
		for (const char *c = n == 0 ? "\xef\xbf\xbd" : ""; *c; c++)
			vec_push(a, &out, *c);
	}
	vec_push(a, &out, '\0');
	return out.at;
}

const char *answer_escape(Arena *a, const char *text)
{
	VEC(char) out = { 0 };

	for (text = answer_text(a, text); *text; text++) {
		const char *as = *text == '&'    ? "&amp;"
				 : *text == '<'  ? "&lt;"
				 : *text == '>'  ? "&gt;"
				 : *text == '"'  ? "&quot;"
				 : *text == '\'' ? "&#39;"
						 : NULL;

		for (const char *c = as; c && *c; c++)
			vec_push(a, &out, *c);
		if (!as)
			vec_push(a, &out, *text);
	}
	vec_push(a, &out, '\0');
	return out.at;
}

/* ---- axes ---- */

double answer_tick(double range, int most)
{
	double step = pow(10, floor(log10(range / most)));

	if (step * most < range)
		step *= 2;
	if (step * most < range)
		step *= 2.5;
	if (step * most < range)
		step *= 2;
	return step;
}

const char *answer_unit(int64_t bytes, double *unit)
{
	static const char *const names[] = { "bytes", "KiB", "MiB", "GiB" };
	int i = 0;

	*unit = 1;
	while (i < 3 && (double)bytes >= *unit * 1024) {
		*unit *= 1024;
		i++;
	}
	return names[i];
}

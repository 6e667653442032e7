/* The plan checker's walk: executes a placed function on paper.
 *
 * Every definition gets a number of its own (a `tag`) and writes it to the bytes of its place; every use asks whether
 * those bytes still carry the number of the definition it means. So reuse of storage, in-place results and lost
 * values need no notion of a live range: what was overwritten too early is simply gone.
 *
 *     node 3  %2 at 0x000  writes 1        0x000 [1 1 1 1]
 *     node 4  %3 at 0x080  reads 1: fine   0x080 [2 2]
 *     node 5  %4 at 0x000  writes 3        0x000 [3 3 3 3]
 *     node 6  reads %2: expected 1, found 3 - a fault
 *
 * A view carries the tag of its root. A variable has one current tag, changed by its assign; its readers must come
 * before (within one trip of a loop). A loop's body is walked twice, with the tags of the yielded values passed to
 * the parameters, so the second trip finds what the first one left behind. The loops of a function together see each
 * sample of the batch once a pass (check_samples.c).
 *
 * A copy to host memory or back goes on between two nodes, and may do its work at any moment in between. So what it reads must carry
 * its tag at both, what it writes belongs to it from the first on, and nobody reads that before the second. Host memory has
 * bytes of its own. */
#include "check_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "check_parts.h"

enum { ALIGN = 64, MAX_FAULTS = 50, BROKEN = -1 };

/* Who a tag stands for: a value, the workspace of a node, or a variable. */
typedef struct Writer {
	const Node *node;
	const Value *value;
	const Var *var;
} Writer;

typedef struct VarState {
	const Var *var;
	int32_t tag;
	const Node *assigned; /* in this trip */
} VarState;

typedef struct Kept {
	const Node *output;
	int32_t tag;
} Kept;

/* Of a copy that `send` or `fetch` begins. */
typedef enum CopyState { COPY_NONE, COPY_UNDER_WAY, COPY_DONE } CopyState;

typedef struct Check {
	const Module *m;
	Arena *a; /* of one function */
	FILE *out;
	int faults;
	Func *f;
	int32_t nvalues;
	const char **name; /* by Value.id; made with the first fault */
	ByteMap *map;
	int32_t *tag;    /* by Value.id; 0: not defined yet, BROKEN: already reported */
	int32_t *var_of; /* by Value.id: 1 + the index of the variable whose storage it shows, or 0 */
	VarState *var;   /* by name */
	int32_t nvars;
	VEC(Writer) writer; /* by tag; number 0 is nobody */
	VEC(Kept) kept;     /* outputs */
	ByteMap *host;
	CopyState *copy;    /* by Value.id of what a copy makes */
	int under_way;      /* copies */
} Check;

/* ---- words ---- */

/* Names as the printer gives them: %0 in a function, %a0 and %b0 (parameters, values) one loop deeper, and so on. */
static void name_block(Check *c, const Block *b, int depth)
{
	int32_t next = 0;
	char letter[2] = { 0 };

	for (int32_t i = 0; i < b->nparam; i++)
		c->name[b->param[i]->id] = arena_printf(c->a, "%%%c%d", 'a' + 2 * ((depth - 1) % 13), (int)i);
	if (depth > 0)
		letter[0] = (char)('b' + 2 * ((depth - 1) % 13));
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			c->name[n->res[i]->id] = arena_printf(c->a, "%%%s%d", letter, (int)next++);
		if (n->op == OP_loop)
			name_block(c, n->body, depth + 1);
	}
}

static const char *value_text(Check *c, const Value *v)
{
	if (!c->name) { /* the first fault of this function */
		c->name = ARENA_ARRAY(c->a, c->nvalues, const char *);
		name_block(c, c->f->body, 0);
	}
	if (v->def && v->def->op == OP_var)
		return arena_printf(c->a, "%s, variable '%s'", c->name[v->id], ir_str(v->def, "name"));
	return c->name[v->id];
}

static const char *node_text(Check *c, const Node *n)
{
	const char *op = ir_ops[n->op].name;

	if (n->nres > 0)
		return arena_printf(c->a, "%s = %s", value_text(c, n->res[0]), op);
	return n->nargs > 0 ? arena_printf(c->a, "%s %s", op, value_text(c, n->arg[0])) : op;
}

__attribute__((format(printf, 3, 4))) static void fault(Check *c, const Node *n, const char *fmt, ...)
{
	va_list ap;

	c->faults++;
	if (c->faults > MAX_FAULTS)
		return;
	fprintf(c->out, "check-plan: ");
	if (c->f)
		fprintf(c->out, "func @%s: ", c->f->name);
	if (n) {
		fprintf(c->out, "node %d, %s", (int)n->pos, node_text(c, n));
		if (n->span.source >= 0)
			fprintf(c->out, " (%s)", diag_where(c->m->diag, c->a, n->span));
		fprintf(c->out, ": ");
	}
	va_start(ap, fmt);
	vfprintf(c->out, fmt, ap);
	va_end(ap);
	fputc('\n', c->out);
	if (c->faults == MAX_FAULTS)
		fprintf(c->out, "check-plan: further faults are only counted\n");
}

static const char *writer_text(Check *c, int32_t tag)
{
	const Writer *w = &c->writer.at[tag];

	if (tag == 0)
		return "nothing";
	if (w->var)
		return arena_printf(c->a, "variable '%s'", w->var->name);
	if (w->value)
		return arena_printf(c->a, "%s of node %d", value_text(c, w->value), (int)w->node->pos);
	return arena_printf(c->a, "the workspace of node %d, %s", (int)w->node->pos, node_text(c, w->node));
}

static int32_t new_tag(Check *c, const Node *n, const Value *v, const Var *var)
{
	vec_push(c->a, &c->writer, ((Writer){ n, v, var }));
	return (int32_t)c->writer.len - 1;
}

/* ---- one place ---- */

static void check_within(Check *c, const Node *n, const char *what, int64_t from, int64_t bytes, const char *where, int64_t end)
{
	if (from < 0)
		fault(c, n, "%s has no place in the %s", what, where);
	else if (from % ALIGN != 0)
		fault(c, n, "%s is at 0x%" PRIx64 ", expected a multiple of %d", what, (uint64_t)from, ALIGN);
	else if (bytes > end - from)
		fault(c, n, "%s ends at 0x%" PRIx64 ", expected at most the %s's 0x%" PRIx64, what, (uint64_t)range_make(from, bytes).to,
		      where, (uint64_t)end);
}

static void check_place(Check *c, const Node *n, const char *what, int64_t from, int64_t bytes)
{
	check_within(c, n, what, from, bytes, "arena", c->f->arena_bytes);
}

static void check_bytes(Check *c, const Node *n, const char *verb, const Value *v, int32_t tag)
{
	Range r = range_of(v);
	int32_t other;
	int64_t at;

	if (!bytes_intact(c->map, r.from, r.to, tag, &other, &at))
		fault(c, n, "%s %s at 0x%" PRIx64 "..0x%" PRIx64 ", but 0x%" PRIx64 " was last written by %s", verb,
		      value_text(c, v), (uint64_t)r.from, (uint64_t)r.to, (uint64_t)at, writer_text(c, other));
}

/* What a copy is still filling. */
static bool is_arriving(const Check *c, int32_t tag)
{
	const Value *v = tag > 0 ? c->writer.at[tag].value : NULL;

	return v && v->def && v->def->op == OP_fetch && c->copy[v->id] == COPY_UNDER_WAY;
}

/* `n` reads `v`. Returns the tag found, or BROKEN after a fault. */
static int32_t use(Check *c, const Node *n, const Value *v)
{
	int32_t *tag = &c->tag[v->id], expected = *tag, before = c->faults;
	VarState *var = c->var_of[v->id] ? &c->var[c->var_of[v->id] - 1] : NULL;

	if (*tag == BROKEN)
		return BROKEN;
	if (*tag == 0)
		fault(c, n, "reads %s before it is defined", value_text(c, v));
	else if (ir_in_host(v))
		fault(c, n, "reads %s, which is in host memory", value_text(c, v));
	else if (v->offset < 0)
		fault(c, n, "reads %s, which has no place", value_text(c, v));
	else if (is_arriving(c, *tag))
		fault(c, n, "reads %s before 'fetched': its copy may not have ended", value_text(c, v));
	else if (var && var->assigned)
		fault(c, n, "reads variable '%s' after its assign at node %d", var->var->name, (int)var->assigned->pos);
	else
		check_bytes(c, n, "reads", v, expected = var ? var->tag : expected);
	if (c->faults > before)
		*tag = BROKEN; /* said once */
	return *tag == BROKEN ? BROKEN : expected;
}

/* ---- definitions ---- */

static int compare_name(const void *x, const void *y)
{
	const VarState *a = x, *b = y;

	return strcmp(a->var->name, b->var->name);
}

static VarState *find_var(Check *c, const char *name)
{
	VarState key = { .var = &(Var){ .name = name } };

	return c->nvars ? bsearch(&key, c->var, (size_t)c->nvars, sizeof key, compare_name) : NULL;
}

static void define_var(Check *c, const Node *n)
{
	const Value *v = n->res[0];
	VarState *var = find_var(c, ir_str(n, "name"));

	if (!var) {
		fault(c, n, "there is no variable '%s'", ir_str(n, "name"));
		c->tag[v->id] = BROKEN;
		return;
	}
	if (v->offset != var->var->offset)
		fault(c, n, "variable '%s' is at 0x%" PRIx64 ", expected 0x%" PRIx64, var->var->name,
		      (uint64_t)v->offset, (uint64_t)var->var->offset);
	c->tag[v->id] = v->offset == var->var->offset ? var->tag : BROKEN;
	c->var_of[v->id] = (int32_t)(var - c->var) + 1;
}

static void define_view(Check *c, const Node *n, int64_t delta)
{
	const Value *v = n->res[0], *of = n->arg[0];
	int64_t row = of->type.ndim > 0 ? of->type.dim[of->type.ndim - 1] : 0;

	c->tag[v->id] = c->tag[of->id];
	c->var_of[v->id] = c->var_of[of->id];
	if (c->tag[of->id] == BROKEN)
		return;
	if (c->tag[of->id] == 0)
		fault(c, n, "reads %s before it is defined", value_text(c, of));
	else if (of->offset < 0)
		fault(c, n, "is a view of %s, which has no place", value_text(c, of));
	else if (v->offset != of->offset + delta)
		fault(c, n, "the view is at 0x%" PRIx64 ", expected 0x%" PRIx64 " within %s", (uint64_t)v->offset,
		      (uint64_t)(of->offset + delta), value_text(c, of));
	else if (v->ld != 0 && v->ld != row)
		fault(c, n, "the view's rows are %" PRId64 " elements apart, expected %" PRId64, v->ld, row);
	else
		return;
	c->tag[v->id] = BROKEN;
}

/* ---- nodes that store ---- */

/* The variable that argument 0 of an assign shows; `of` is the walked function's value. */
static VarState *assigned_var(Check *c, const Node *n, const Value *of)
{
	if (c->var_of[of->id])
		return &c->var[c->var_of[of->id] - 1];
	fault(c, n, "assigns to %s, expected a variable", value_text(c, of));
	return NULL;
}

static int param_index(const Block *b, const Value *v)
{
	for (int i = 0; i < b->nparam; i++)
		if (b->param[i] == v)
			return i;
	return -1;
}

/* Kernel `n` stores body value (or result) `stored` to the range r: which operands does that hurt? */
static void check_store(Check *c, const Node *n, const char *what, const Value *stored, Range r)
{
	for (int i = 0; i < n->nargs; i++) {
		const Value *arg = n->arg[i];
		Range s = range_of(arg);
		const char *why;

		if (arg->offset < 0 || !range_overlap(r, s))
			continue;
		why = r.from == s.from && r.to == s.to ? rule_inplace(n, i, stored) : "the ranges are not the same";
		if (why)
			fault(c, n, "%s at 0x%" PRIx64 "..0x%" PRIx64 " overlaps operand %d, %s: %s", what,
			      (uint64_t)r.from, (uint64_t)r.to, i, value_text(c, arg), why);
	}
}

/* Results against operands, workspace and each other. */
static void check_results(Check *c, const Node *n)
{
	Range work = range_of_work(n);

	for (int i = 0; i < n->nres; i++) {
		Range r = range_of(n->res[i]);
		const char *what = arena_printf(c->a, "result %d", i);

		check_place(c, n, what, n->res[i]->offset, r.to - r.from);
		if (n->res[i]->offset < 0)
			continue;
		check_store(c, n, what, n->op == OP_fused ? n->body->last->arg[i] : n->res[i], r);
		if (n->work_bytes > 0 && range_overlap(r, work))
			fault(c, n, "%s at 0x%" PRIx64 " overlaps the workspace", what, (uint64_t)r.from);
		for (int j = 0; j < i; j++)
			if (n->res[j]->offset >= 0 && range_overlap(r, range_of(n->res[j])))
				fault(c, n, "%s at 0x%" PRIx64 " overlaps result %d", what, (uint64_t)r.from, j);
	}
}

static void check_work(Check *c, const Node *n)
{
	Range work = range_of_work(n);

	if (n->work_bytes == 0)
		return;
	check_place(c, n, "the workspace", n->work_offset, n->work_bytes);
	if (n->work_offset < 0)
		return;
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->offset >= 0 && range_overlap(work, range_of(n->arg[i])))
			fault(c, n, "the workspace at 0x%" PRIx64 " overlaps operand %d, %s", (uint64_t)work.from, i,
			      value_text(c, n->arg[i]));
	bytes_write(c->map, work.from, work.to, new_tag(c, n, NULL, NULL));
}

/* Variables that the body of kernel `n` assigns: the order within the body, and what the stores overlap. */
static void check_body_assigns(Check *c, const Node *n)
{
	bool *stored = ARENA_ARRAY(c->a, n->nargs + 1, bool);

	for (const Node *k = n->body->first; k; k = k->next) {
		int at;

		for (int i = k->op == OP_assign ? 1 : 0; i < k->nargs; i++) {
			at = param_index(n->body, k->arg[i]);
			if (at >= 0 && stored[at])
				fault(c, n, "the kernel reads operand %d, %s, after it has assigned it", at,
				      value_text(c, n->arg[at]));
		}
		if (k->op != OP_assign)
			continue;
		at = param_index(n->body, k->arg[0]);
		if (at < 0) {
			fault(c, n, "the kernel assigns to a value of its own, expected a variable");
			continue;
		}
		stored[at] = true;
		check_store(c, n, arena_printf(c->a, "the assign to operand %d", at), k->arg[1], range_of(n->arg[at]));
		for (int i = 0; i < n->nres; i++)
			if (n->res[i]->offset >= 0 && range_overlap(range_of(n->res[i]), range_of(n->arg[at])))
				fault(c, n, "result %d overlaps operand %d, which the kernel assigns", i, at);
	}
}

static void store_var(Check *c, const Node *n, VarState *var)
{
	Range r = range_of_var(var->var);

	if (var->assigned)
		fault(c, n, "assigns variable '%s' a second time, after node %d", var->var->name,
		      (int)var->assigned->pos);
	var->tag = new_tag(c, n, NULL, var->var);
	var->assigned = n;
	if (r.from >= 0)
		bytes_write(c->map, r.from, r.to, var->tag);
}

static void walk_assign(Check *c, const Node *n)
{
	VarState *var = assigned_var(c, n, n->arg[0]);
	Range r = range_of(n->arg[0]), s = range_of(n->arg[1]);

	use(c, n, n->arg[1]);
	if (!var)
		return;
	if (n->arg[1]->offset >= 0 && range_overlap(r, s) && (r.from != s.from || r.to != s.to))
		fault(c, n, "the value overlaps a part of the variable");
	store_var(c, n, var);
}

static void walk_kernel(Check *c, const Node *n)
{
	int64_t delta;

	if (n->op == OP_var) {
		define_var(c, n);
		return;
	}
	if (rule_view(n, &delta)) {
		define_view(c, n, delta);
		return;
	}
	for (int i = 0; i < n->nargs; i++)
		use(c, n, n->arg[i]);
	check_work(c, n);
	if (ir_ops[n->op].kind == K_LEAF && n->res[0]->offset < 0) {
		c->tag[n->res[0]->id] = new_tag(c, n, n->res[0], NULL); /* copied into its readers, or never read */
		return;
	}
	check_results(c, n);
	if (n->op == OP_fused)
		check_body_assigns(c, n);
	for (int i = 0; i < n->nres; i++) {
		Range r = range_of(n->res[i]);

		c->tag[n->res[i]->id] = new_tag(c, n, n->res[i], NULL);
		if (r.from >= 0)
			bytes_write(c->map, r.from, r.to, c->tag[n->res[i]->id]);
	}
	if (n->op != OP_fused)
		return;
	for (const Node *k = n->body->first; k; k = k->next) {
		int at = k->op == OP_assign ? param_index(n->body, k->arg[0]) : -1;
		VarState *var = at >= 0 ? assigned_var(c, n, n->arg[at]) : NULL;

		if (var)
			store_var(c, n, var);
	}
}

/* ---- copies to host memory and back ---- */

static void check_host(Check *c, const Node *n, const Value *h)
{
	Range r = range_of(h);
	int32_t other;
	int64_t at;

	if (h->offset < 0 || c->tag[h->id] <= 0 || bytes_intact(c->host, r.from, r.to, c->tag[h->id], &other, &at))
		return;
	fault(c, n, "reads %s at 0x%" PRIx64 "..0x%" PRIx64 " of host memory, but 0x%" PRIx64 " was last written by %s", value_text(c, h),
	      (uint64_t)r.from, (uint64_t)r.to, (uint64_t)at, writer_text(c, other));
	c->tag[h->id] = BROKEN; /* said once */
}

static void begin_copy(Check *c, const Node *n)
{
	const Value *to = n->res[0];
	Range r = range_of(to);
	bool host = n->op == OP_send;

	if (host)
		check_within(c, n, "the copy", to->offset, r.to - r.from, "host memory", c->f->host_bytes);
	else
		check_place(c, n, "the copy", to->offset, r.to - r.from);
	c->tag[to->id] = new_tag(c, n, to, NULL);
	if (to->offset >= 0)
		bytes_write(host ? c->host : c->map, r.from, r.to, c->tag[to->id]);
	c->copy[to->id] = COPY_UNDER_WAY;
	c->under_way++;
}

static void end_copy(Check *c, const Node *n, const Value *made)
{
	if (c->copy[made->id] != COPY_UNDER_WAY) {
		fault(c, n, c->copy[made->id] == COPY_DONE ? "ends the copy to %s a second time" : "ends the copy to %s before it begins",
		      value_text(c, made));
		return;
	}
	c->copy[made->id] = COPY_DONE;
	c->under_way--;
}

static void walk_move(Check *c, const Node *n)
{
	const Value *x = n->arg[0];

	switch (n->op) {
	case OP_send:
		use(c, n, x);
		begin_copy(c, n);
		break;
	case OP_sent:
		use(c, n, x);
		end_copy(c, n, n->arg[1]);
		check_host(c, n, n->arg[1]);
		break;
	case OP_fetch:
		if (c->tag[x->id] == 0)
			fault(c, n, "reads %s before it is defined", value_text(c, x));
		else if (c->copy[x->id] != COPY_DONE)
			fault(c, n, "reads %s before 'sent': its copy may not have ended", value_text(c, x));
		check_host(c, n, x);
		begin_copy(c, n);
		break;
	default:
		end_copy(c, n, x);
		check_host(c, n, x->def->arg[0]);
		use(c, n, x);
	}
}

/* Copies begin and end within a stretch that is issued as one. */
static void check_no_copies(Check *c, const Node *n, const char *where)
{
	if (c->under_way > 0)
		fault(c, n, "%d cop%s still under way at %s", c->under_way, c->under_way == 1 ? "y is" : "ies are", where);
	c->under_way = 0; /* said once */
}

/* ---- loops ---- */

/* `to` is `from` under another name: a loop's parameter, or its result. */
static void hand_over(Check *c, const Node *loop, const Value *from, const Value *to, const char *what)
{
	int32_t tag = c->tag[to->id] == BROKEN ? BROKEN : use(c, loop, from);

	c->tag[to->id] = tag;
	c->var_of[to->id] = 0;
	if (tag == BROKEN || (to->offset == from->offset && to->ld == from->ld))
		return;
	fault(c, loop, "%s %d is at 0x%" PRIx64 ", expected the place of %s, 0x%" PRIx64, what, (int)to->index,
	      (uint64_t)to->offset, value_text(c, from), (uint64_t)from->offset);
	c->tag[to->id] = BROKEN;
}

static void walk_block(Check *c, const Block *b);

static void forget_block(Check *c, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			c->tag[n->res[i]->id] = c->tag[n->res[i]->id] == BROKEN ? BROKEN : 0;
		if (n->op == OP_loop)
			forget_block(c, n->body);
	}
}

/* Variables that loops assigned may be read and assigned anew. */
static void begin_trip(Check *c)
{
	for (int32_t i = 0; i < c->nvars; i++)
		if (c->var[i].assigned && c->var[i].assigned->parent->owner)
			c->var[i].assigned = NULL;
}

static void walk_loop(Check *c, const Node *n)
{
	const Node *yield = n->body->last;
	int trips = ir_int(n, "trips") > 1 ? 2 : 1;

	check_no_copies(c, n, "the start of a loop");
	if (ir_int(n, "base") > 0)
		begin_trip(c);
	for (int i = 0; i < n->nargs; i++)
		hand_over(c, n, n->arg[i], n->body->param[i], "parameter");
	for (int trip = 0; trip < trips; trip++) {
		if (trip > 0) {
			for (int i = 0; i < n->nargs; i++)
				hand_over(c, n, yield->arg[i], n->body->param[i], "parameter");
			forget_block(c, n->body);
			begin_trip(c);
		}
		walk_block(c, n->body);
		if (trip == 0)
			check_no_copies(c, n, "the end of a trip");
		c->under_way = 0;
	}
	for (int i = 0; i < n->nres; i++) {
		c->tag[n->res[i]->id] = c->tag[n->body->param[i]->id]; /* BROKEN is said once */
		hand_over(c, n, yield->arg[i], n->res[i], "result");
	}
}

/* ---- functions ---- */

/* What an output leaves for the host; in a loop, the last trip's. */
static void keep(Check *c, const Node *n)
{
	int32_t tag = use(c, n, n->arg[0]);

	for (size_t i = 0; i < c->kept.len; i++)
		if (c->kept.at[i].output == n) {
			c->kept.at[i].tag = tag;
			return;
		}
	vec_push(c->a, &c->kept, ((Kept){ n, tag }));
}

static void walk_block(Check *c, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		const char *why = n->replay_of ? rule_replay(c->a, n) : NULL;

		if (why)
			fault(c, n, "is not a replay of node %d: %s", (int)n->replay_of->pos, why);
		switch (n->op) {
		case OP_loop:
			walk_loop(c, n);
			break;
		case OP_assign:
			walk_assign(c, n);
			break;
		case OP_output:
			keep(c, n);
			break;
		case OP_yield:
			break; /* read by walk_loop */
		case OP_send:
		case OP_sent:
		case OP_fetch:
		case OP_fetched:
			walk_move(c, n);
			break;
		default:
			walk_kernel(c, n);
		}
	}
}

typedef VEC(int64_t) Bounds;

static void add_bounds(Check *c, Bounds *at, Range r)
{
	if (r.from < 0)
		return;
	vec_push(c->a, at, r.from);
	vec_push(c->a, at, r.to);
}

static void collect_bounds(Check *c, Bounds *at, Bounds *host, const Block *b)
{
	for (int32_t i = 0; i < b->nparam; i++)
		add_bounds(c, at, range_of(b->param[i]));
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			add_bounds(c, n->op == OP_send ? host : at, range_of(n->res[i]));
		if (n->work_bytes > 0)
			add_bounds(c, at, range_of_work(n));
		if (n->op == OP_loop)
			collect_bounds(c, at, host, n->body);
	}
}

/* Every variable holds its value at the start, and at the end what it was assigned last. */
static void walk_func(Check *c, Func *f)
{
	Bounds bounds = { 0 }, host = { 0 };
	int32_t n = 0;
	const Node *loop;
	const char *why;

	ir_number(f, &c->nvalues);
	c->f = f;
	c->name = NULL;
	c->tag = ARENA_ARRAY(c->a, c->nvalues, int32_t);
	c->var_of = ARENA_ARRAY(c->a, c->nvalues, int32_t);
	c->writer.len = c->writer.cap = c->kept.len = c->kept.cap = 0;
	c->writer.at = NULL;
	c->kept.at = NULL;
	new_tag(c, NULL, NULL, NULL);
	for (const Var *v = c->m->vars; v; v = v->next)
		add_bounds(c, &bounds, range_of_var(v));
	collect_bounds(c, &bounds, &host, f->body);
	c->map = bytes_map(c->a, bounds.at, bounds.len);
	c->host = bytes_map(c->a, host.at, host.len);
	c->copy = ARENA_ARRAY(c->a, c->nvalues, CopyState);
	c->under_way = 0;
	c->var = ARENA_ARRAY(c->a, c->nvars, VarState);
	for (const Var *v = c->m->vars; v; v = v->next, n++) {
		c->var[n] = (VarState){ v, new_tag(c, NULL, NULL, v), NULL };
		if (v->offset >= 0)
			bytes_write(c->map, range_of_var(v).from, range_of_var(v).to, c->var[n].tag);
	}
	if (n > 1)
		qsort(c->var, (size_t)n, sizeof *c->var, compare_name);
	why = rule_samples(c->a, f, &loop);
	if (why)
		fault(c, loop, "%s", why);
	walk_block(c, f->body);
	check_no_copies(c, NULL, "the end");
	for (size_t i = 0; i < c->kept.len; i++)
		if (c->kept.at[i].tag != BROKEN)
			check_bytes(c, c->kept.at[i].output, "leaves for the host", c->kept.at[i].output->arg[0],
				    c->kept.at[i].tag);
	for (int32_t i = 0; i < c->nvars; i++) {
		const Var *v = c->var[i].var;
		Range r = range_of_var(v);
		int32_t other;
		int64_t at;

		if (r.from >= 0 && !bytes_intact(c->map, r.from, r.to, c->var[i].tag, &other, &at))
			fault(c, NULL, "variable '%s' at 0x%" PRIx64 " is left overwritten at 0x%" PRIx64 " by %s",
			      v->name, (uint64_t)v->offset, (uint64_t)at, writer_text(c, other));
	}
}

static int compare_place(const void *x, const void *y)
{
	const Var *const *a = x, *const *b = y;

	return (*a)->offset < (*b)->offset ? -1 : (*a)->offset > (*b)->offset;
}

/* Variables are placed apart, once for all functions, within the largest arena. */
static void check_vars(Check *c, int64_t arena_bytes)
{
	const Var **sorted = ARENA_ARRAY(c->a, c->nvars, const Var *);
	int32_t n = 0;

	for (const Var *v = c->m->vars; v; v = v->next) {
		sorted[n++] = v;
		if (v->offset < 0)
			fault(c, NULL, "variable '%s' has no place in the arena", v->name);
		else if (v->offset % ALIGN != 0)
			fault(c, NULL, "variable '%s' is at 0x%" PRIx64 ", expected a multiple of %d", v->name,
			      (uint64_t)v->offset, ALIGN);
		else if (type_bytes(&v->type) > arena_bytes - v->offset)
			fault(c, NULL, "variable '%s' at 0x%" PRIx64 " ends beyond the arena of 0x%" PRIx64 " bytes",
			      v->name, (uint64_t)v->offset, (uint64_t)arena_bytes);
	}
	if (n > 1)
		qsort(sorted, (size_t)n, sizeof(const Var *), compare_place);
	for (int32_t i = 1; i < n; i++)
		if (sorted[i - 1]->offset >= 0 && range_of_var(sorted[i - 1]).to > sorted[i]->offset)
			fault(c, NULL, "variables '%s' and '%s' overlap at 0x%" PRIx64, sorted[i - 1]->name,
			      sorted[i]->name, (uint64_t)sorted[i]->offset);
}

bool check_plan(const Module *m, int64_t budget, FILE *out)
{
	Check c = { .m = m, .a = arena_new(), .out = out };
	int64_t arena_bytes = 0;

	for (const Var *v = m->vars; v; v = v->next)
		c.nvars++;
	for (const Func *f = m->funcs; f; f = f->next)
		arena_bytes = f->arena_bytes > arena_bytes ? f->arena_bytes : arena_bytes;
	if (arena_bytes > budget)
		fault(&c, NULL, "the arena has %" PRId64 " bytes, expected at most the budget's %" PRId64, arena_bytes,
		      budget);
	check_vars(&c, arena_bytes);
	for (Func *f = c.faults == 0 ? m->funcs : NULL; f; f = f->next) {
		arena_reset(c.a);
		if (strcmp(f->name, "forward") != 0) /* the model as written: never placed, never run */
			walk_func(&c, f);
	}
	arena_free(c.a);
	if (c.faults > MAX_FAULTS)
		fprintf(out, "check-plan: %d faults\n", c.faults);
	return c.faults == 0;
}

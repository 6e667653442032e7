/* Operations and buffers of a function, and the lives of a plan's bytes (see timeline.h).
 *
 * Loops are laid out flat: the loop's start is an op that reads the starting values, its body follows once, its end is an op
 * that reads every outer buffer that the body read, so that those outlive each trip:
 *
 *     %6 = loop %5 { (%a) ... yield %b }      op 7  start  use {acc}
 *                                             op 8.. body  ... use {acc, w}     (yields in place into acc)
 *                                             op 12 end    use {acc, w}     (w: where there are more trips than one)
 *
 * Invariants: every buffer has one defining op; a carried buffer's later writes count as uses. */
#include "timeline.h"

#include "cost.h"
#include "fuse.h"
#include "links.h"
#include "schedule.h"

#include <assert.h>

/* Up to so many lives placements are searched for, with so much work each (pack.h). */
enum { SEARCHED_RECTS = 1000, PLACE_WORK = PACK_WORK_PER_SECOND / 50 };

typedef struct Build {
	Timeline *t;
	const PassCtx *cx;
	int32_t *rep;           /* union-find over Value.id, for carried buffers */
	int32_t *reads;         /* by Value.id of a root: how often it is an operand */
	VEC(TOp) ops;
	VEC(TBuf) bufs;
	VEC(int32_t) use, def, var; /* of the op at hand */
	VEC(int32_t) outer;     /* outer buffers read in the loop at hand */
	int32_t loop;           /* -1 outside */
	int32_t nloops;
	double trips;
	Machine machine;        /* running the function */
} Build;

int64_t timeline_align(int64_t bytes)
{
	return (bytes + IR_ALIGN - 1) / IR_ALIGN * IR_ALIGN;
}

/* The operand reads its root's bytes exactly, from the first to the last. */
static bool whole_root(Value *v)
{
	int64_t offset;
	Value *root = ir_view_root(v, &offset);

	return offset == 0 && v->ld == 0 && type_bytes(&v->type) == type_bytes(&root->type);
}

/* ---- building ---- */

static int32_t find(int32_t *rep, int32_t i)
{
	while (rep[i] != i)
		i = rep[i] = rep[rep[i]];
	return i;
}

static void join(Build *b, Value *x, Value *y)
{
	b->rep[find(b->rep, ir_view_root(x, NULL)->id)] = find(b->rep, ir_view_root(y, NULL)->id);
}

static int32_t buf_of(Build *b, Value *v)
{
	return b->t->buf_of[find(b->rep, ir_view_root(v, NULL)->id)];
}

static bool is_var(const Value *root)
{
	return root->def && root->def->op == OP_var;
}

static bool contains(const int32_t *at, size_t n, int32_t x)
{
	for (size_t i = 0; i < n; i++)
		if (at[i] == x)
			return true;
	return false;
}

static void add_use(Build *b, Value *v)
{
	Value *root = ir_view_root(v, NULL);
	Arena *a = b->t->arena;
	int32_t buf;

	if (ir_in_host(root))
		return;
	if (is_var(root)) {
		if (!contains(b->var.at, b->var.len, root->id))
			vec_push(a, &b->var, root->id);
		return;
	}
	buf = buf_of(b, v);
	assert(buf >= 0);
	if (!contains(b->use.at, b->use.len, buf))
		vec_push(a, &b->use, buf);
	if (b->loop >= 0 && b->bufs.at[buf].loop != b->loop && !contains(b->outer.at, b->outer.len, buf))
		vec_push(a, &b->outer, buf);
}

static BufKind kind_of(const Node *n, const Type *t)
{
	if (n->op == OP_input)
		return BUF_IO;
	if ((n->flags & NF_BACKWARD) && t->batch == 0 && t->ndim > 0)
		return BUF_GRADIENT;
	return BUF_ACTIVATION;
}

static void add_def(Build *b, Node *n, Value *v)
{
	Arena *a = b->t->arena;
	int32_t root = find(b->rep, v->id), buf = b->t->buf_of[root];

	if (ir_in_host(v))
		return;
	if (buf >= 0) { /* a carried buffer is written again */
		b->bufs.at[buf].carried = true;
		if (!contains(b->use.at, b->use.len, buf))
			vec_push(a, &b->use, buf);
		return;
	}
	buf = (int32_t)b->bufs.len;
	b->t->buf_of[root] = buf;
	vec_push(a, &b->bufs, ((TBuf){ .bytes = timeline_align(type_bytes(&v->type)), .root = v,
	                               .op = (int32_t)b->ops.len, .loop = b->loop, .kind = kind_of(n, &v->type) }));
	vec_push(a, &b->def, buf);
}

static int32_t *take(Arena *a, const int32_t *at, size_t n)
{
	int32_t *copy = ARENA_ARRAY(a, n, int32_t);

	if (n)
		memcpy(copy, at, n * sizeof *copy);
	return copy;
}

static void note_assigned(Value *var, void *ctx)
{
	Build *b = ctx;
	int32_t *first = &b->t->assigned[ir_view_root(var, NULL)->id];

	if (*first < 0)
		*first = (int32_t)b->ops.len;
}

static void count_assign(Value *var, void *ctx)
{
	(void)var;
	++*(int *)ctx;
}

/* The operand has as many elements as anything in the kernel: it is read along the whole domain, not once a row. */
static bool spans_domain(const Node *fused, const Value *operand)
{
	int64_t elems = type_elems(&operand->type);

	for (const Node *n = fused->body->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++)
			if (type_elems(&n->arg[i]->type) > elems)
				return false;
	return true;
}

/* Result r may be written over operand i while the node runs. */
static bool may_take_over(const Node *n, int i, int r)
{
	if (!whole_root(n->arg[i]))
		return false;
	if (n->op != OP_fused)
		return ir_acc(n) && i == n->nargs - 1;
	return spans_domain(n, n->arg[i]) && fuse_may_alias(n, i, r);
}

/* Operand and result buffers that may share bytes: each operand that reads the buffer must allow it. */
static void add_pairs(Build *b, TOp *op)
{
	Node *n = op->node;
	VEC(TPair) pairs = { 0 };

	if (!n || (n->op != OP_fused && !ir_acc(n)))
		return;
	for (int r = 0; r < n->nres; r++) {
		for (int32_t u = 0; u < op->nuse; u++) {
			int32_t def = buf_of(b, n->res[r]);
			bool legal = b->bufs.at[op->use[u]].bytes == b->bufs.at[def].bytes && op->use[u] != def;

			for (int i = 0; i < n->nargs && legal; i++)
				if (!is_var(ir_view_root(n->arg[i], NULL)) && buf_of(b, n->arg[i]) == op->use[u])
					legal = may_take_over(n, i, r);
			if (legal)
				vec_push(b->t->arena, &pairs, ((TPair){ op->use[u], def }));
		}
	}
	op->pair = pairs.at;
	op->npair = (int32_t)pairs.len;
}

static TMove move_of(const Node *n)
{
	switch (n ? n->op : OP_COUNT) {
	case OP_send: return MOVE_SEND;
	case OP_sent: return MOVE_SENT;
	case OP_fetch: return MOVE_FETCH;
	case OP_fetched: return MOVE_FETCHED;
	default: return MOVE_NONE;
	}
}

static void finish_op(Build *b, Node *n)
{
	Arena *a = b->t->arena;
	TOp op = { .node = n, .loop = b->loop, .trips = b->trips, .move = move_of(n), .closed = !n || n->op == OP_output };
	int assigns = 0;

	op.use = take(a, b->use.at, b->use.len);
	op.nuse = (int32_t)b->use.len;
	op.def = take(a, b->def.at, b->def.len);
	op.ndef = (int32_t)b->def.len;
	op.var = take(a, b->var.at, b->var.len);
	op.nvar = (int32_t)b->var.len;
	if (n) {
		schedule_overwrites(n, count_assign, &assigns);
		schedule_overwrites(n, note_assigned, b);
		op.seconds = n->op == OP_loop ? 0 : cost_seconds(n, &b->machine) * b->trips;
		op.work_bytes = timeline_align(n->work_bytes);
		op.backward = (n->flags & (NF_BACKWARD | NF_OPTIMIZER)) != 0;
		op.replayable = assigns == 0 && n->op != OP_loop && n->nres > 0 && ir_ops[n->op].remat != RM_NEVER &&
		                (n->op != OP_opaque || ir_int(n, "remat"));
		for (int32_t i = 0; i < op.nuse && op.replayable; i++)
			op.replayable = !b->bufs.at[op.use[i]].carried;
	}
	add_pairs(b, &op);
	vec_push(a, &b->ops, op);
	b->use.len = b->def.len = b->var.len = 0;
}

static void add_block(Build *b, const Block *block);

/* ---- loops ---- */

/* The operand over which `v`, made in the loop, may be written, and which nothing else reads; the parameter itself where that is one,
 * else a sum that goes on, else the first. */
static Value *taken_over(const Build *b, const Value *v, const Value *param)
{
	const Node *n = v->def;
	Value *found = NULL;

	for (int i = 0; n && n->parent == param->block && i < n->nargs; i++) {
		Value *root = ir_view_root(n->arg[i], NULL);
		bool sum = root == param || (root->def && ir_acc(root->def));

		if ((found && !sum) || b->reads[root->id] != 1 || type_bytes(&root->type) != type_bytes(&v->type) || is_var(root) ||
		    !may_take_over(n, i, v->index))
			continue;
		if (root == param)
			return root;
		found = root;
	}
	return found;
}

/* A carried value that goes through several operations before the next trip, each over the bytes of the one before it, stays in its
 * buffer all the way:
 *
 *     %s = matmul %x, %dy, %param         yield %t: %param, %s and %t are one buffer
 *     %t = embedding_grad %at, %dz, %s */
static void join_steps(Build *b, Value *param, Value *next)
{
	Value *last = ir_view_root(next, NULL), *v = last;

	if (b->reads[last->id] != 1)
		return;
	while (v && v != param)
		v = taken_over(b, v, param);
	if (!v)
		return;
	for (v = last; v != param; v = taken_over(b, v, param))
		join(b, v, param);
}

static void add_loop(Build *b, Node *n)
{
	Block *body = n->body;

	for (int i = 0; i < n->nargs; i++)
		add_use(b, n->arg[i]);
	for (int32_t i = 0; i < body->nparam; i++) { /* all names of a carried buffer lead to its start */
		int32_t start = buf_of(b, n->arg[i]);

		b->bufs.at[start].carried = true;
		b->bufs.at[start].kind = BUF_GRADIENT;
		join_steps(b, body->param[i], body->last->arg[i]);
		join(b, body->param[i], n->arg[i]);
		join(b, body->last->arg[i], n->arg[i]);
		join(b, n->res[i], n->arg[i]);
		b->t->buf_of[find(b->rep, n->res[i]->id)] = start;
	}
	finish_op(b, n);
	b->loop = b->nloops++;
	b->trips = (double)ir_int(n, "trips");
	b->outer.len = 0;
	add_block(b, body);
	for (size_t i = 0; i < b->outer.len && b->trips > 1; i++) /* the next trip reads them again */
		vec_push(b->t->arena, &b->use, b->outer.at[i]);
	b->loop = -1;
	b->trips = 1;
	for (int i = 0; i < n->nargs; i++)
		if (!contains(b->use.at, b->use.len, buf_of(b, n->arg[i])))
			vec_push(b->t->arena, &b->use, buf_of(b, n->arg[i]));
	finish_op(b, NULL);
}

static void count_reads(Build *b, const Block *block)
{
	for (const Node *n = block->first; n; n = n->next) {
		for (int i = 0; i < n->nargs && !ir_is_view(n); i++)
			b->reads[ir_view_root(n->arg[i], NULL)->id]++;
		if (n->op == OP_loop)
			count_reads(b, n->body);
	}
}

static void add_block(Build *b, const Block *block)
{
	for (Node *n = block->first; n; n = n->next) {
		if (n->op == OP_var || n->op == OP_yield || ir_is_view(n))
			continue;
		if (n->op == OP_loop) {
			add_loop(b, n);
			continue;
		}
		for (int i = 0; i < n->nargs; i++)
			add_use(b, n->arg[i]);
		for (int i = 0; i < n->nres; i++)
			add_def(b, n, n->res[i]);
		finish_op(b, n);
	}
}

/* Outputs come last and stay until the function ends: the first reads what all of them do, and what was dropped may be replayed before it. */
static void join_outputs(Build *b)
{
	size_t first = b->ops.len;
	bool *seen = ARENA_ARRAY(b->t->arena, b->bufs.len, bool);
	TOp *op;

	while (first > 0 && b->ops.at[first - 1].node && b->ops.at[first - 1].node->op == OP_output)
		first--;
	if (first == b->ops.len)
		return;
	for (size_t i = first; i < b->ops.len; i++)
		for (int32_t k = 0; k < b->ops.at[i].nuse; k++) {
			int32_t buf = b->ops.at[i].use[k];

			if (!seen[buf])
				vec_push(b->t->arena, &b->use, buf);
			seen[buf] = true;
		}
	op = &b->ops.at[first];
	op->use = take(b->t->arena, b->use.at, b->use.len);
	op->nuse = (int32_t)b->use.len;
	op->closed = false;
}

/* ---- what can be laid out ---- */

/* Counts for each storage root, by Value.id, the nodes' operands that read it, a loop's own ones included. */
static void count_uses(const Block *b, int32_t *uses)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs && !ir_is_view(n); i++)
			uses[ir_view_root(n->arg[i], NULL)->id]++;
		if (n->op == OP_loop)
			count_uses(n->body, uses);
	}
}

/* The bytes that start a carried value are written by every trip: they must be the loop's alone, and what a trip
 * leaves there must be made in the body. `carried`: by Value.id, the number of what is carried already, from 1. */
static bool loop_plannable(const Func *f, const Node *n, const int32_t *uses, int32_t *carried)
{
	Diag *d = f->module->diag;

	for (int i = 0; i < n->nargs; i++) {
		Value *start = ir_view_root(n->arg[i], NULL), *next = ir_view_root(n->body->last->arg[i], NULL);
		bool made = next == n->body->param[i] || (next->def && next->def->parent == n->body);

		if (is_var(start) || !start->def || uses[start->id] != 1) {
			diag_error(d, n->span, "loop: carried value %d starts from a value that is not its own "
			           "(a variable, or read elsewhere too)", i);
			return false;
		}
		if (!made || is_var(next) || (next != n->body->param[i] && uses[next->id] < 1)) {
			diag_error(d, n->span, "loop: carried value %d is not made in the body", i);
			return false;
		}
		if (carried[next->id]) {
			diag_error(d, n->span, "loop: carried values %d and %d are one value", carried[next->id] - 1, i);
			return false;
		}
		carried[next->id] = i + 1;
	}
	return true;
}

static bool loops_plannable(const Func *f, Arena *scratch)
{
	int32_t nvalues, *uses, *carried;

	ir_number(f, &nvalues);
	uses = ARENA_ARRAY(scratch, nvalues, int32_t);
	carried = ARENA_ARRAY(scratch, nvalues, int32_t);
	count_uses(f->body, uses);
	for (const Node *n = f->body->first; n; n = n->next) {
		if (n->op != OP_loop)
			continue;
		if (!loop_plannable(f, n, uses, carried))
			return false;
		for (const Node *k = n->body->first; k; k = k->next)
			if (k->op == OP_loop) {
				diag_error(f->module->diag, k->span, "loop: a loop in a loop cannot be planned");
				return false;
			}
	}
	return true;
}

bool timeline_plannable(const Func *f)
{
	Arena *scratch = arena_new();
	bool good = loops_plannable(f, scratch);

	arena_free(scratch);
	return good;
}

Timeline *timeline_build(Arena *a, Func *f, const PassCtx *cx)
{
	Timeline *t = ARENA_NEW(a, Timeline);
	Build b = { .t = t, .cx = cx, .loop = -1, .trips = 1, .machine = machine_running(cx->machine, f) };

	t->arena = a;
	t->func = f;
	t->machine = cx->machine;
	ir_number(f, &t->nvalues);
	t->buf_of = ARENA_ARRAY(a, t->nvalues, int32_t);
	t->assigned = ARENA_ARRAY(a, t->nvalues, int32_t);
	b.rep = ARENA_ARRAY(a, t->nvalues, int32_t);
	b.reads = ARENA_ARRAY(a, t->nvalues, int32_t);
	for (int32_t i = 0; i < t->nvalues; i++) {
		b.rep[i] = i;
		t->buf_of[i] = t->assigned[i] = -1;
	}
	count_reads(&b, f->body);
	add_block(&b, f->body);
	join_outputs(&b);
	for (int32_t i = 0; i < t->nvalues; i++)
		t->buf_of[i] = t->buf_of[find(b.rep, i)];
	for (const Var *v = f->module->vars; v; v = v->next)
		t->var_bytes += timeline_align(type_bytes(&v->type));
	t->op = b.ops.at;
	t->nops = (int32_t)b.ops.len;
	t->buf = b.bufs.at;
	t->nbufs = (int32_t)b.bufs.len;
	return t;
}

TPlan timeline_plain(const Timeline *t, Arena *a)
{
	TPlan p = { .step = ARENA_ARRAY(a, t->nops, TStep), .nsteps = t->nops };

	for (int32_t i = 0; i < t->nops; i++) {
		const TOp *op = &t->op[i];

		p.step[i] = (TStep){ .op = i, .wanted = UINT32_MAX, .move = op->move };
		if (op->move)
			p.step[i].buf = op->ndef ? op->def[0] : op->use[0];
	}
	return p;
}

/* ---- lives ---- */

/* How many lives a plan has. */
static int32_t count_lives(const Timeline *t, const TPlan *p)
{
	int32_t n = 0;

	for (int32_t i = 0; i < p->nsteps; i++) {
		const TStep *s = &p->step[i];
		const TOp *op = &t->op[s->op];

		n += s->move ? s->move == MOVE_FETCH : op->ndef + (op->work_bytes > 0);
	}
	return n;
}

/* A copy's bytes are busy until it ends, or from its begin on. */
static void move_life(const Timeline *t, const TStep *s, int32_t i, TLives *out, int32_t *cur)
{
	if (s->move != MOVE_FETCH) {
		out->at[cur[s->buf]].to = i;
		return;
	}
	cur[s->buf] = out->n;
	out->at[out->n++] = (TLife){ .buf = s->buf, .from = i, .to = i, .over = -1, .bytes = t->buf[s->buf].bytes };
}

static void open_lives(const Timeline *t, const TPlan *p, TLives *out, int32_t *cur, int32_t *first_at)
{
	for (int32_t i = 0; i < p->nsteps; i++) {
		const TStep *s = &p->step[i];
		const TOp *op = &t->op[s->op];

		first_at[i] = out->n;
		if (s->move) {
			move_life(t, s, i, out, cur);
			continue;
		}
		for (int32_t k = 0; k < op->nuse; k++)
			out->at[cur[op->use[k]]].to = i;
		for (int32_t k = 0; k < op->ndef; k++) {
			bool wanted = (s->wanted >> (k & 31)) & 1;

			if (!s->replay || wanted)
				cur[op->def[k]] = out->n;
			out->at[out->n++] = (TLife){ .buf = op->def[k], .from = i, .to = i, .over = -1, .unread = s->replay && !wanted,
			                             .bytes = t->buf[op->def[k]].bytes };
		}
		if (op->work_bytes > 0)
			out->at[out->n++] = (TLife){ .buf = -1, .from = i, .to = i, .over = -1, .bytes = op->work_bytes };
	}
	first_at[p->nsteps] = out->n;
}

/* Results that take over a dying operand's bytes. */
static void share_inplace(const Timeline *t, const TPlan *p, const TLives *l, int32_t *cur, const int32_t *first_at, bool *taken)
{
	for (int32_t i = 0; i < p->nsteps; i++) {
		const TOp *op = &t->op[p->step[i].op];

		for (int32_t k = 0; k < op->npair && !p->step[i].move; k++) {
			int32_t from = cur[op->pair[k].use];

			for (int32_t j = first_at[i]; j < first_at[i + 1]; j++) {
				TLife *life = &l->at[j];

				if (life->buf != op->pair[k].def || life->over >= 0 || taken[from] || l->at[from].to != i)
					continue;
				life->over = from;
				taken[from] = true;
			}
		}
		for (int32_t j = first_at[i]; j < first_at[i + 1]; j++)
			if (l->at[j].buf >= 0 && !l->at[j].unread)
				cur[l->at[j].buf] = j;
	}
}

double timeline_seconds(const Timeline *t, const TPlan *p, double *stall)
{
	Links links = links_of(t->machine);
	double *ready = NULL; /* by buffer: when its last copy ends */
	Arena *scratch = NULL;

	for (int32_t i = 0; i < p->nsteps; i++) {
		const TStep *s = &p->step[i];
		const TOp *op = &t->op[s->op];
		double waited = 0;

		if (s->move && !ready) {
			scratch = arena_new();
			ready = ARENA_ARRAY(scratch, t->nbufs, double);
		}
		switch (s->move) {
		case MOVE_NONE: links_run(&links, op->seconds); break;
		case MOVE_SEND:
		case MOVE_FETCH: ready[s->buf] = links_begin(&links, s->move == MOVE_FETCH, t->buf[s->buf].bytes, op->trips); break;
		case MOVE_SENT:
		case MOVE_FETCHED: waited = links_wait(&links, ready[s->buf]); break;
		}
		if (stall)
			stall[i] = waited;
	}
	if (scratch)
		arena_free(scratch);
	return links.now;
}

TLives timeline_lives(const Timeline *t, Arena *a, TPlan *p, int64_t *live)
{
	int32_t most = count_lives(t, p);
	TLives l = { .at = ARENA_ARRAY(a, most, TLife) };
	int32_t *cur = ARENA_ARRAY(a, t->nbufs, int32_t);
	int32_t *first_at = ARENA_ARRAY(a, p->nsteps + 1, int32_t);
	int64_t sum = 0;

	if (!live)
		live = ARENA_ARRAY(a, p->nsteps + 1, int64_t);
	open_lives(t, p, &l, cur, first_at);
	share_inplace(t, p, &l, cur, first_at, ARENA_ARRAY(a, l.n, bool));
	memset(live, 0, (size_t)p->nsteps * sizeof *live);
	for (int32_t k = 0; k < l.n; k++) {
		int32_t from = l.at[k].from + (l.at[k].over >= 0), to = l.at[k].to + 1;

		if (from < p->nsteps && from < to) {
			live[from] += l.at[k].bytes;
			if (to < p->nsteps)
				live[to] -= l.at[k].bytes;
		}
	}
	p->live_bytes = p->peak = 0;
	p->seconds = timeline_seconds(t, p, NULL);
	for (int32_t i = 0; i < p->nsteps; i++) {
		sum += live[i];
		live[i] = sum;
		if (sum > p->live_bytes) {
			p->live_bytes = sum;
			p->peak = i;
		}
	}
	return l;
}

/* The quick way first; where that leaves gaps, the search, which is what small and tight plans need. */
static int64_t place_rects(Arena *a, PackRect *r, size_t n, int64_t target, int rounds)
{
	int64_t bound = pack_lower_bound(a, r, n), height = pack_place(a, r, n, target, n > SEARCHED_RECTS ? rounds : 0);
	double sum = 0;
	PackRect *tight;
	PackResult found;

	for (size_t i = 0; i < n; i++)
		sum += (double)r[i].size;
	if (height <= target || height <= bound + (bound >> 11) || n > SEARCHED_RECTS || sum > 0x1p60)
		return height;
	tight = ARENA_ARRAY(a, n, PackRect);
	memcpy(tight, r, n * sizeof *r);
	found = pack_search(a, tight, n, bound, PLACE_WORK);
	if (found.height < height) {
		memcpy(r, tight, n * sizeof *r);
		height = found.height;
	}
	return height;
}

int64_t timeline_place(const Timeline *t, Arena *a, const TLives *l, int64_t target, int rounds, int64_t *offset)
{
	PackRect *r = ARENA_ARRAY(a, l->n, PackRect);
	int32_t *rect = ARENA_ARRAY(a, l->n, int32_t);
	size_t n = 0;
	int64_t height;

	for (int32_t k = 0; k < l->n; k++) {
		const TLife *life = &l->at[k];

		if (life->over >= 0) { /* lives come in order of `from`: the one taken over has its rectangle */
			rect[k] = rect[life->over];
			r[rect[k]].upper = life->to + 1;
			continue;
		}
		rect[k] = (int32_t)n;
		r[n++] = (PackRect){ .lower = life->from, .upper = life->to + 1, .size = life->bytes };
	}
	height = place_rects(a, r, n, target - t->var_bytes, rounds);
	for (int32_t k = 0; k < l->n; k++)
		offset[k] = t->var_bytes + r[rect[k]].offset;
	return t->var_bytes + height;
}

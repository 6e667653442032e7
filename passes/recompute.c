/* recompute: drop forward values and replay them just before their next use.
 *
 * Method: greedy eviction at the peak. A plan is a sequence of steps; where the sum of live bytes is largest, every buffer that
 * is live but not touched there lies in a gap between two of its uses:
 *
 *     h = gelu(u) ... [peak] ... dw = matmul(h, dy)
 *                                                       ==>   h = gelu(u) ... [peak] ... h' = gelu(u); dw = matmul(h', dy)
 *
 * Dropping it there costs a replay of its producer just before the next use, and of that replay's operands where they are not
 * live either: they are kept on a little longer when they cross the peak anyway, else replayed themselves. The gap with the
 * fewest seconds per byte goes first; then the peak is found again. Where many gaps lie at the peak, a share of them goes
 * at once (none that another's replay relies on), so that the number of rounds does not grow with the depth of a model. A replay is a use of its operands, so chains of replays
 * start at the nearest kept value, and what was dropped once can be dropped again between later uses.
 *
 * Every new low of the peak is a plan of the trajectory. Seconds only grow along it, so the first plan whose placed arena fits
 * a budget is the fastest of the trajectory that does.
 *
 * Invariants: effects (assign, output) and carried sums are never replayed; a replay that reads a variable comes before
 * the variable is overwritten; a replay stays in the loop of its producer. */
#include "recompute.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_CHAIN = 256, MAX_DEPTH = 64, GAPS_PER_EVICTION = 256 };

typedef struct Search {
	const Timeline *t;
	Arena *arena;      /* reset never: plans of the trajectory live here */
	Arena *scratch;    /* reset at each iteration */
	TPlan plan;
	TLives lives;
	int64_t *live;     /* by step */
	int32_t *at;       /* by op: step of its first execution */
	int32_t *first_life, *life_list; /* lives of buffer b: life_list[first_life[b] .. first_life[b+1]) */
	int32_t *first_use, *use_list;   /* steps that read buffer b, ascending */
	uint8_t *mark;     /* by life: what this round has decided for it */
	double limit;      /* seconds */
} Search;

enum { MARK_RELIED_ON = 1, MARK_EVICTED = 2 };

/* What one eviction would do: replays in execution order, and the lives that they rely on. */
typedef struct Chain {
	TStep step[MAX_CHAIN];
	int32_t n;
	double seconds;
	int64_t bytes;     /* live at the replay beside the value itself */
	int64_t work;
	int32_t relied[MAX_CHAIN]; /* lives that the replays read, kept on longer where need be */
	int32_t nrelied;
} Chain;

/* ---- what is live where ---- */

static bool indexed(const TLife *life)
{
	return life->buf >= 0 && !life->unread;
}

static void index_lives(Search *s)
{
	const Timeline *t = s->t;

	s->first_life = ARENA_ARRAY(s->scratch, t->nbufs + 2, int32_t);
	s->life_list = ARENA_ARRAY(s->scratch, s->lives.n + 1, int32_t);
	for (int32_t k = 0; k < s->lives.n; k++)
		if (indexed(&s->lives.at[k]))
			s->first_life[s->lives.at[k].buf + 2]++;
	for (int32_t b = 0; b < t->nbufs; b++)
		s->first_life[b + 2] += s->first_life[b + 1];
	for (int32_t k = 0; k < s->lives.n; k++)
		if (indexed(&s->lives.at[k]))
			s->life_list[s->first_life[s->lives.at[k].buf + 1]++] = k;
}

static void index_uses(Search *s)
{
	const Timeline *t = s->t;
	int32_t total = 0;

	s->first_use = ARENA_ARRAY(s->scratch, t->nbufs + 2, int32_t);
	for (int32_t i = 0; i < s->plan.nsteps; i++) {
		const TOp *op = &t->op[s->plan.step[i].op];

		if (!s->plan.step[i].replay)
			s->at[s->plan.step[i].op] = i;
		for (int32_t k = 0; k < op->nuse; k++)
			s->first_use[op->use[k] + 2]++;
		total += op->nuse;
	}
	for (int32_t b = 0; b < t->nbufs; b++)
		s->first_use[b + 2] += s->first_use[b + 1];
	s->use_list = ARENA_ARRAY(s->scratch, total + 1, int32_t);
	for (int32_t i = 0; i < s->plan.nsteps; i++) {
		const TOp *op = &t->op[s->plan.step[i].op];

		for (int32_t k = 0; k < op->nuse; k++)
			s->use_list[s->first_use[op->use[k] + 1]++] = i;
	}
}

/* The life of a buffer that holds its value just before step u: the last that begins before u. -1: not made yet. */
static int32_t life_before(const Search *s, int32_t buf, int32_t u)
{
	int32_t found = -1;

	for (int32_t k = s->first_life[buf]; k < s->first_life[buf + 1]; k++)
		if (s->lives.at[s->life_list[k]].from < u)
			found = s->life_list[k];
	return found;
}

static int64_t max_live(const Search *s, int32_t from, int32_t to)
{
	int64_t most = 0;

	for (int32_t i = from; i <= to; i++)
		if (s->live[i] > most)
			most = s->live[i];
	return most;
}

/* ---- one eviction ---- */

static bool in_chain(const Chain *c, const Timeline *t, int32_t buf)
{
	for (int32_t i = 0; i < c->n; i++) {
		const TOp *op = &t->op[c->step[i].op];

		for (int32_t k = 0; k < op->ndef; k++)
			if (op->def[k] == buf && (c->step[i].wanted >> (k & 31)) & 1)
				return true;
	}
	return false;
}

static bool reads_overwritten(const Search *s, const TOp *op, int32_t u)
{
	for (int32_t i = 0; i < op->nvar; i++) {
		int32_t by = s->t->assigned[op->var[i]];

		if (by >= 0 && s->at[by] < u)
			return true;
	}
	return false;
}

static bool replay_into(const Search *s, Chain *c, int32_t buf, int32_t u, int depth);

/* Makes sure that an operand is there at step u: it is, or it is kept on across, or replayed. */
static bool provide(const Search *s, Chain *c, int32_t buf, int32_t u, int depth)
{
	const TLife *life;
	int32_t k;

	if (in_chain(c, s->t, buf))
		return true;
	k = life_before(s, buf, u);
	life = k >= 0 ? &s->lives.at[k] : NULL;
	if (!life || life->to < s->plan.peak || s->mark[k] & MARK_EVICTED || c->nrelied == MAX_CHAIN)
		return replay_into(s, c, buf, u, depth + 1);
	if (life->to < u) { /* crosses the peak (or begins after it) and ends before u: keep it a little longer */
		if (max_live(s, life->to + 1, u) + life->bytes >= s->plan.live_bytes)
			return replay_into(s, c, buf, u, depth + 1);
		c->bytes += life->bytes;
	}
	c->relied[c->nrelied++] = k;
	return true;
}

/* Appends what recomputes buf just before step u. */
static bool replay_into(const Search *s, Chain *c, int32_t buf, int32_t u, int depth)
{
	const Timeline *t = s->t;
	int32_t producer = t->buf[buf].op;
	const TOp *op = &t->op[producer];
	uint32_t wanted = 0;

	if (depth > MAX_DEPTH || c->n == MAX_CHAIN || !op->replayable)
		return false;
	if (!t->op[s->plan.step[u].op].node || op->loop != t->op[s->plan.step[u].op].loop)
		return false; /* what a loop reads stays for all its trips */
	if (reads_overwritten(s, op, u))
		return false;
	for (int32_t i = 0; i < op->nuse; i++)
		if (!provide(s, c, op->use[i], u, depth))
			return false;
	if (c->n == MAX_CHAIN)
		return false;
	for (int32_t k = 0; k < op->ndef; k++)
		if (op->def[k] == buf)
			wanted |= 1u << (k & 31);
	c->step[c->n++] = (TStep){ .op = producer, .wanted = wanted, .replay = true };
	c->seconds += op->seconds;
	if (depth > 0)
		c->bytes += t->buf[buf].bytes;
	if (op->work_bytes > c->work)
		c->work = op->work_bytes;
	return true;
}

typedef struct Gap {
	int32_t life, last, next; /* dropped after step `last`, needed again at step `next` */
} Gap;

/* The gap of a live buffer around the peak; false where the peak touches it. */
static bool gap_at_peak(const Search *s, int32_t k, Gap *g)
{
	const TLife *life = &s->lives.at[k];
	int32_t peak = s->plan.peak;

	if (!indexed(life) || life->from >= peak || life->to <= peak || s->t->buf[life->buf].carried)
		return false;
	*g = (Gap){ k, life->from, life->to };
	for (int32_t i = s->first_use[life->buf]; i < s->first_use[life->buf + 1]; i++) {
		int32_t step = s->use_list[i];

		if (step == peak)
			return false;
		if (step < peak && step > g->last)
			g->last = step;
		if (step > peak) {
			g->next = step;
			break;
		}
	}
	return true;
}

/* Seconds per byte, or infinity where the eviction cannot be done or would not lower this peak. */
static double score(const Search *s, const Gap *g, Chain *c)
{
	const TLife *life = &s->lives.at[g->life];
	int64_t around;

	c->n = c->nrelied = 0;
	c->seconds = 0;
	c->bytes = c->work = 0;
	if (!replay_into(s, c, life->buf, g->next, 0))
		return INFINITY;
	if (s->plan.seconds + c->seconds > s->limit)
		return INFINITY;
	around = s->live[g->next] > s->live[g->next - 1] && g->next > 0 ? s->live[g->next - 1] : s->live[g->next];
	if (around + c->bytes + c->work >= s->plan.live_bytes || s->live[g->next] + c->bytes >= s->plan.live_bytes)
		return INFINITY;
	return (c->seconds + 1e-12) / (double)life->bytes;
}

static void measure(Search *s)
{
	arena_reset(s->scratch);
	s->live = ARENA_ARRAY(s->scratch, s->plan.nsteps + 1, int64_t);
	s->lives = timeline_lives(s->t, s->scratch, &s->plan, s->live);
	index_lives(s);
	index_uses(s);
	s->mark = ARENA_ARRAY(s->scratch, s->lives.n + 1, uint8_t);
}

typedef struct Ranked {
	double score;
	Gap gap;
} Ranked;

static int compare_ranked(const void *pa, const void *pb)
{
	const Ranked *a = pa, *b = pb;
	int32_t la = a->gap.next - a->gap.last, lb = b->gap.next - b->gap.last;

	if (a->score < b->score || a->score > b->score)
		return a->score < b->score ? -1 : 1;
	if (la != lb)
		return la > lb ? -1 : 1; /* of equals the longest gap */
	return a->gap.life < b->gap.life ? -1 : a->gap.life > b->gap.life;
}

/* One accepted eviction: its replays go before step u. */
typedef struct Insertion {
	int32_t u, n, order;
	const TStep *step;
} Insertion;

static int compare_insertions(const void *pa, const void *pb)
{
	const Insertion *a = pa, *b = pb;

	if (a->u != b->u)
		return a->u < b->u ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* The plan with all insertions made. */
static void insert_all(Search *s, Insertion *in, size_t n)
{
	int32_t total = s->plan.nsteps, from = 0, to = 0;
	TStep *step;

	for (size_t i = 0; i < n; i++)
		total += in[i].n;
	step = ARENA_ARRAY(s->arena, total, TStep);
	qsort(in, n, sizeof *in, compare_insertions);
	for (size_t i = 0; i < n; i++) {
		memcpy(step + to, s->plan.step + from, (size_t)(in[i].u - from) * sizeof *step);
		to += in[i].u - from;
		from = in[i].u;
		memcpy(step + to, in[i].step, (size_t)in[i].n * sizeof *step);
		to += in[i].n;
	}
	memcpy(step + to, s->plan.step + from, (size_t)(s->plan.nsteps - from) * sizeof *step);
	s->plan.step = step;
	s->plan.nsteps = total;
}

/* Marks what an eviction decides; false where an earlier one of this round relies on the life. */
static bool accept(Search *s, const Gap *g, Chain *c, Insertion *in, double *seconds)
{
	TStep *step;

	if (s->mark[g->life] & MARK_RELIED_ON || !(score(s, g, c) < INFINITY) ||
	    s->plan.seconds + *seconds + c->seconds > s->limit)
		return false;
	for (int32_t i = 0; i < c->nrelied; i++)
		s->mark[c->relied[i]] |= MARK_RELIED_ON;
	s->mark[g->life] |= MARK_EVICTED;
	*seconds += c->seconds;
	step = ARENA_ARRAY(s->scratch, c->n, TStep);
	memcpy(step, c->step, (size_t)c->n * sizeof *step);
	*in = (Insertion){ .u = g->next, .n = c->n, .step = step };
	return true;
}

/* Evicts the best gaps at the peak; false where none is left. */
static bool evict(Search *s)
{
	Chain *c = ARENA_NEW(s->scratch, Chain);
	VEC(Ranked) ranked = { 0 };
	VEC(Insertion) in = { 0 };
	double seconds = 0;
	size_t most;

	for (int32_t k = 0; k < s->lives.n; k++) {
		Ranked r = { 0 };

		if (!gap_at_peak(s, k, &r.gap))
			continue;
		r.score = score(s, &r.gap, c);
		if (r.score < INFINITY)
			vec_push(s->scratch, &ranked, r);
	}
	if (ranked.len == 0)
		return false;
	qsort(ranked.at, ranked.len, sizeof *ranked.at, compare_ranked);
	most = 1 + ranked.len / GAPS_PER_EVICTION;
	for (size_t i = 0; i < ranked.len && in.len < most; i++) {
		Insertion x;

		if (!accept(s, &ranked.at[i].gap, c, &x, &seconds))
			continue;
		x.order = (int32_t)in.len;
		vec_push(s->scratch, &in, x);
	}
	insert_all(s, in.at, in.len);
	return in.len > 0;
}

Trajectory recompute_trajectory(const Timeline *t, Arena *a, double max_seconds)
{
	Search s = { .t = t, .arena = a, .scratch = arena_new(), .limit = max_seconds };
	VEC(TPlan) plans = { 0 };
	int32_t stale = 0;

	s.at = ARENA_ARRAY(a, t->nops, int32_t);
	s.plan = timeline_plain(t, a);
	measure(&s);
	vec_push(a, &plans, s.plan);
	/* A peak may move sideways for a while before it sinks; give up when it has not sunk for long. */
	while (stale < 64 + t->nops / 4 && evict(&s)) {
		measure(&s);
		if (s.plan.live_bytes < plans.at[plans.len - 1].live_bytes) {
			vec_push(a, &plans, s.plan);
			stale = 0;
		} else {
			stale++;
		}
	}
	arena_free(s.scratch);
	return (Trajectory){ .plan = plans.at, .n = (int32_t)plans.len };
}

/* ---- writing a plan into the function ---- */

typedef struct Rewrite {
	const Timeline *t;
	Module *m;
	Value ***operands; /* by op: the node's operands before any renaming */
	Value **now;       /* by buffer: the replay's result that holds it; NULL: the original */
	Value **view;      /* by Value.id: what stands for a view of a replayed root ... */
	Value **view_of;   /* ... and the replay that it was made for */
	Value **map;       /* for ir_clone_node: empty between calls */
} Rewrite;

static Node *clone_before(Rewrite *w, Node *n, Node *before)
{
	Builder b = ir_builder(w->m, before->parent);
	Node *copy;

	b.before = before;
	copy = ir_clone_node(&b, n, w->map, 1, 1);
	for (int i = 0; i < n->nres; i++)
		w->map[n->res[i]->id] = NULL;
	copy->replay_of = n;
	return copy;
}

/* What v is called now: itself, or the same view of the last replay of its root. */
static Value *current(Rewrite *w, Value *v, Node *before)
{
	Value *root = ir_view_root(v, NULL);
	int32_t buf = w->t->buf_of[root->id];
	Value *now = buf >= 0 ? w->now[buf] : NULL;

	if (!now)
		return v;
	if (v == root)
		return now;
	if (w->view_of[v->id] != now) {
		Value *arg = current(w, v->def->arg[0], before);
		Node *copy = clone_before(w, v->def, before);

		copy->arg[0] = arg;
		w->view_of[v->id] = now;
		w->view[v->id] = copy->res[0];
	}
	return w->view[v->id];
}

static void replay_before(Rewrite *w, const TStep *s, Node *before)
{
	const TOp *op = &w->t->op[s->op];
	Node *copy = clone_before(w, op->node, before);

	for (int i = 0; i < copy->nargs; i++)
		copy->arg[i] = current(w, w->operands[s->op][i], copy);
	for (int i = 0; i < copy->nres; i++) {
		int32_t buf = w->t->buf_of[op->node->res[i]->id];

		for (int32_t k = 0; k < op->ndef; k++)
			if (op->def[k] == buf && (s->wanted >> (k & 31)) & 1)
				w->now[buf] = copy->res[i];
	}
}

void recompute_apply(const Timeline *t, Arena *scratch, const TPlan *p)
{
	Rewrite w = { .t = t, .m = t->func->module };

	w.operands = ARENA_ARRAY(scratch, t->nops, Value **);
	w.now = ARENA_ARRAY(scratch, t->nbufs, Value *);
	w.view = ARENA_ARRAY(scratch, t->nvalues, Value *);
	w.view_of = ARENA_ARRAY(scratch, t->nvalues, Value *);
	w.map = ARENA_ARRAY(scratch, t->nvalues, Value *);
	for (int32_t i = 0; i < t->nops; i++) {
		Node *n = t->op[i].node;

		if (!n)
			continue;
		w.operands[i] = ARENA_ARRAY(scratch, n->nargs, Value *);
		for (int k = 0; k < n->nargs; k++)
			w.operands[i][k] = n->arg[k];
	}
	for (int32_t i = 0; i < p->nsteps; i++) {
		int32_t u = i;
		Node *n;

		if (p->step[i].replay) {
			while (p->step[u].replay)
				u++;
			replay_before(&w, &p->step[i], t->op[p->step[u].op].node);
			continue;
		}
		n = t->op[p->step[i].op].node;
		if (n && n->op != OP_loop)
			for (int k = 0; k < n->nargs; k++)
				n->arg[k] = current(&w, n->arg[k], n);
	}
	ir_dce(t->func);
	ir_number(t->func, NULL);
}

PassResult pass_recompute(Module *m, PassCtx *cx)
{
	Func *f = ir_find_func(m, "step");
	Arena *a;
	Timeline *t;
	Trajectory tr;
	int32_t best = 0;

	if (!f || !cx->recompute)
		return PASS_SAME;
	if (!timeline_plannable(f))
		return PASS_FAILED;
	a = arena_new();
	t = timeline_build(a, f, cx);
	tr = recompute_trajectory(t, a, INFINITY);
	while (best + 1 < tr.n && t->var_bytes + tr.plan[best].live_bytes > cx->budget)
		best++;
	recompute_apply(t, a, &tr.plan[best]);
	arena_free(a);
	return best > 0 ? PASS_CHANGED : PASS_SAME;
}

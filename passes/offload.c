/* offload: values wait in host memory instead of being replayed.
 *
 *     u = matmul x, w ... [peak] ... u' = matmul x, w; dy = gelu_grad u', ..
 * ==> u = matmul x, w; send u .. sent .. [peak] .. fetch u' .. fetched; dy = gelu_grad u', ..
 *
 * A plan of the trajectory, found by recompute, says what it replays, at which gaps between two uses (stages.h). Held again, such a gap costs
 * bytes and no seconds; away in host memory it costs bytes only where the copies are under way, at its ends, and seconds only where kernels
 * wait for them (links.h). So the plan's peak may stay where it is while replays go:
 *
 *   1. gaps that are replayed are candidates, those first that save the most seconds by second of the link.
 *   2. they are taken in lots, twice as large after each one that pays, half as large after one that does not: the gaps are held, the copies
 *      of all that is away are laid out anew, and a lot stays if the plan is then faster by more than the delays of its copies, and no larger
 *      than the target.
 *
 * And what is held goes as well, replayable or not: from the plan without replays and from the smallest one, gap by gap the largest that lies over
 * the peak, as long as that makes the plan smaller and no slower.
 *
 * A lot that has no time for its copies, or is larger than the target as the state counts (by operation, not by step), is given up before the whole plan is
 * made.
 *
 * Layout: a copy out begins as soon as the value is not used any more, and its bytes are free at the first operation by which it is
 * predicted to be done, with some time to spare. Copies in are laid out from the last to the first, each as late as those behind it and its own use
 * allow, with as much to spare. Seconds and bytes are those of the whole plan, laid out (timeline.c), not estimates.
 *
 * The target of a plan is its own peak, and then that of one with fewer replays, a little larger: there is room for copies on their way.
 *
 * Invariants. A copy begins and ends within one run of operations without a loop's start or end between, and so within one trip.
 * Effects, carried sums, and what outputs read stay on the device. No plan is taken away. The result depends on the timeline, the machine and the
 * limit of host memory alone: work is counted, not timed. */
#include "offload.h"

#include "links.h"
#include "refine.h"

#include <assert.h>
#include <stdlib.h>

enum { LEAST_GAP = 5, MOST_PLANS = 40, MOST_FAILURES = 12, MOST_SUNK = 24, BEHIND = 2 };
enum { WORK_A_STEP = 6, WORK_SHARE = 8, WORK_AN_OP = 120 }; /* of a layout; so many times as much as a descent may take; of a plan, at least */
static const double SPARE = 0.25; /* of a copy's time */

/* A gap that is away, or may be: after the buffer's mark at the stage `left`. */
typedef struct Away {
	int32_t buf, left;
	double score; /* seconds saved by second of the link: the higher the better */
} Away;

typedef struct Offload {
	const Timeline *t;
	Arena *arena, *scratch; /* of the result; of the plan at hand */
	Stages *s;
	int64_t target, host_bytes;
	int64_t work, enough;
	int32_t *run;   /* by operation: the run that it is in */
	double *start;  /* by operation, and of the end: when it or its first replay begins, if nothing is waited for */
	int64_t *live, *gone; /* by operation: bytes; how many more of them are in host memory from there on */
	VEC(Away) away, candidate;
	VEC(Move) move;
} Offload;

bool offload_possible(const PassCtx *cx)
{
	return cx->caps->offload && cx->machine->link_out > 0 && cx->machine->link_in > 0;
}

/* ---- host memory ---- */

/* Who a copy's step is about: the value in host memory of a function, the buffer of a plan that is none yet. */
static int32_t host_key(const Timeline *t, const TStep *s)
{
	const Node *n = t->op[s->op].node;

	if (!t->op[s->op].move)
		return s->buf;
	switch (s->move) {
	case MOVE_SEND: return n->res[0]->id;
	case MOVE_SENT: return n->arg[1]->id;
	case MOVE_FETCH: return n->arg[0]->id;
	default: return n->arg[0]->def->arg[0]->id;
	}
}

int64_t offload_host(const Timeline *t, const TPlan *p, Arena *scratch, int64_t *offset)
{
	int32_t keys = t->nvalues > t->nbufs ? t->nvalues : t->nbufs, *rect = ARENA_ARRAY(scratch, keys, int32_t);
	VEC(PackRect) r = { 0 };
	int64_t height;
	size_t n = 0;

	for (int32_t i = 0; i < p->nsteps; i++) {
		const TStep *s = &p->step[i];

		if (s->move == MOVE_SEND) {
			rect[host_key(t, s)] = (int32_t)r.len;
			vec_push(scratch, &r, ((PackRect){ .lower = i, .upper = i + 1, .size = t->buf[s->buf].bytes }));
		} else if (s->move) {
			r.at[rect[host_key(t, s)]].upper = i + 1;
		}
	}
	if (r.len == 0)
		return 0;
	height = pack_place(scratch, r.at, r.len, 0, 0);
	for (int32_t i = 0; i < p->nsteps && offset; i++)
		if (p->step[i].move == MOVE_SEND)
			offset[i] = r.at[n++].offset;
	return height;
}

/* ---- which gaps ---- */

/* Operations between two that start or end a loop share a number. */
static int32_t *find_runs(const Timeline *t, Arena *a)
{
	int32_t *run = ARENA_ARRAY(a, t->nops, int32_t), n = 0;

	for (int32_t i = 0; i < t->nops; i++) {
		const Node *node = t->op[i].node;
		bool border = !node || node->op == OP_loop;

		n += border;
		run[i] = n;
		n += border;
	}
	return run;
}

static bool may_go(const Offload *o, int32_t buf, int32_t left, int32_t right)
{
	const Timeline *t = o->t;
	const Node *reader = t->op[right].node;

	return right - left >= LEAST_GAP && !t->buf[buf].carried && o->run[left] == o->run[right] && t->buf[buf].loop == t->op[right].loop &&
	       reader && reader->op != OP_output && !t->op[right].closed;
}

/* Seconds of a buffer's copies one way, of all trips. */
static double copy_seconds(const Timeline *t, bool in, int32_t buf)
{
	const TBuf *b = &t->buf[buf];

	return t->op[b->op].trips * links_seconds(t->machine, in, b->bytes);
}

static int compare_away(const void *pa, const void *pb)
{
	const Away *a = pa, *b = pb;

	if (a->score < b->score || a->score > b->score)
		return a->score > b->score ? -1 : 1;
	if (a->buf != b->buf)
		return a->buf < b->buf ? -1 : 1;
	return a->left < b->left ? -1 : a->left > b->left;
}

/* Gaps that are replayed, the best first. */
static void gather(Offload *o)
{
	o->candidate.len = 0;
	for (int32_t b = 0; b < o->t->nbufs; b++)
		for (int32_t i = 0; i + 1 < o->s->buf[b].n; i++) {
			const Mark *m = &o->s->buf[b].at[i];
			Effect e;

			if (m->held || !may_go(o, b, m->stage, m[1].stage) || !stages_try(o->s, b, i, INT64_MAX, &e) || e.seconds >= 0)
				continue;
			vec_push(o->scratch, &o->candidate, ((Away){ b, m->stage, -e.seconds / (copy_seconds(o->t, false, b) + copy_seconds(o->t, true, b)) }));
		}
	if (o->candidate.len)
		qsort(o->candidate.at, o->candidate.len, sizeof *o->candidate.at, compare_away);
}

/* ---- layout ---- */

/* When each operation begins in a plan without its copies. */
static void find_starts(Offload *o, const TPlan *p)
{
	double now = 0;
	int32_t next = 0;

	for (int32_t i = 0; i < p->nsteps; i++) {
		double begin = now;

		now += o->t->op[p->step[i].op].seconds;
		if (i > 0 && p->step[i - 1].replay)
			begin = o->start[next]; /* its bundle has begun */
		if (p->step[i].replay) {
			o->start[next] = begin;
			continue;
		}
		while (next <= p->step[i].op)
			o->start[next++] = begin;
		if (next <= o->t->nops)
			o->start[next] = now;
	}
	while (next <= o->t->nops)
		o->start[next++] = now;
}

/* The first operation that begins at or after a time; the last that begins at or before it, -1 where none does. */
static int32_t first_after(const Offload *o, double time)
{
	int32_t lo = 0, hi = o->t->nops;

	while (lo < hi) {
		int32_t mid = (lo + hi) / 2;

		if (o->start[mid] < time)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int32_t last_before(const Offload *o, double time)
{
	int32_t lo = -1, hi = o->t->nops;

	while (lo < hi) {
		int32_t mid = lo + (hi - lo + 1) / 2;

		if (o->start[mid] > time)
			hi = mid - 1;
		else
			lo = mid;
	}
	return lo;
}

static int by_send(const void *pa, const void *pb)
{
	const Move *a = pa, *b = pb;

	if (a->send != b->send)
		return a->send < b->send ? -1 : 1;
	return a->buf < b->buf ? -1 : a->buf > b->buf;
}

static int by_need(const void *pa, const void *pb)
{
	const Move *a = pa, *b = pb;

	if (a->fetched != b->fetched)
		return a->fetched > b->fetched ? -1 : 1;
	return by_send(pa, pb);
}

/* The gaps that are away as moves, as yet without the middle two of their steps: those that the state still holds. */
static void open_moves(Offload *o)
{
	o->move.len = 0;
	for (size_t k = 0; k < o->away.len; k++) {
		const Away *w = &o->away.at[k];
		const Marks *m = &o->s->buf[w->buf];
		int32_t i = marks_before(m, w->left);

		if (i + 1 < m->n && m->at[i].stage == w->left && m->at[i].held && may_go(o, w->buf, w->left, m->at[i + 1].stage))
			vec_push(o->scratch, &o->move, ((Move){ .buf = w->buf, .send = w->left + 1, .fetched = m->at[i + 1].stage }));
	}
}

/* Fills in when copies out are done and when those in begin; false where there is no time between them. */
static bool lay_out(Offload *o)
{
	const Timeline *t = o->t;
	double out = 0, in = o->start[t->nops];

	open_moves(o);
	if (o->move.len == 0)
		return false;
	qsort(o->move.at, o->move.len, sizeof *o->move.at, by_send);
	for (size_t k = 0; k < o->move.len; k++) {
		Move *m = &o->move.at[k];
		double seconds = copy_seconds(t, false, m->buf), begin = o->start[m->send];

		out = (out > begin ? out : begin) + seconds;
		m->sent = first_after(o, out + SPARE * seconds);
		m->sent = m->sent > m->send ? m->sent : m->send + 1;
	}
	qsort(o->move.at, o->move.len, sizeof *o->move.at, by_need);
	for (size_t k = 0; k < o->move.len; k++) {
		Move *m = &o->move.at[k];
		double seconds = copy_seconds(t, true, m->buf), end = o->start[m->fetched];

		in = (in < end ? in : end) - seconds;
		m->fetch = last_before(o, in - SPARE * seconds);
		m->fetch = m->fetch < m->fetched ? m->fetch : m->fetched - 1;
		if (m->fetch <= m->sent)
			return false;
	}
	return true;
}

/* A first look at what the state and its moves stand for: whether there is time for the copies, and whether any stage is above the target. */
static bool is_promising(Offload *o)
{
	const Timeline *t = o->t;
	int64_t away = 0;

	o->work += 2 * (int64_t)t->nops;
	o->start[0] = 0;
	for (int32_t i = 0; i < t->nops; i++)
		o->start[i + 1] = o->start[i] + o->s->stage[i].seconds + t->op[i].seconds;
	if (!lay_out(o))
		return false;
	memset(o->gone, 0, (size_t)t->nops * sizeof *o->gone);
	for (size_t k = 0; k < o->move.len; k++) {
		const Move *m = &o->move.at[k];

		o->gone[m->sent] += t->buf[m->buf].bytes;
		o->gone[m->fetch] -= t->buf[m->buf].bytes;
	}
	peaks_read(&o->s->peaks, o->live);
	for (int32_t i = 0; i < t->nops; i++) {
		away += o->gone[i];
		if (o->live[i] - away > o->target)
			return false;
	}
	return true;
}

/* The plan that the state and its moves stand for, with its seconds and bytes; false where it breaks a limit. */
static bool evaluate(Offload *o, Sketch *out)
{
	Arena *scratch = arena_new();
	TPlan plan;
	bool good;

	*out = refine_sketch(o->s, o->scratch);
	plan = recompute_steps(o->t, out, scratch);
	o->work += WORK_A_STEP * (int64_t)plan.nsteps;
	find_starts(o, &plan);
	good = lay_out(o);
	if (good) {
		out->move = ARENA_ARRAY(o->scratch, o->move.len, Move);
		out->nmoves = (int32_t)o->move.len;
		memcpy(out->move, o->move.at, o->move.len * sizeof *out->move);
		plan = recompute_steps(o->t, out, scratch);
		timeline_lives(o->t, scratch, &plan, NULL);
		out->seconds = plan.seconds;
		out->live_bytes = plan.live_bytes;
		good = plan.live_bytes <= o->target;
	}
	if (good) {
		out->host_bytes = offload_host(o->t, &plan, scratch, NULL);
		good = out->host_bytes <= o->host_bytes;
	}
	arena_free(scratch);
	return good;
}

/* ---- the search ---- */

/* Holds the gap of a candidate again, to be away; false where it is not one any more. */
static bool take(Offload *o, const Away *c)
{
	const Marks *m = &o->s->buf[c->buf];
	int32_t i = marks_before(m, c->left);

	if (i + 1 >= m->n || m->at[i].stage != c->left || m->at[i].held || !may_go(o, c->buf, c->left, m->at[i + 1].stage) ||
	    !stages_flip(o->s, c->buf, i))
		return false;
	vec_push(o->scratch, &o->away, *c);
	return true;
}

/* Takes lots of candidates while they pay; *best is the plan so far, which is replaced. */
static bool take_lots(Offload *o, Sketch *best)
{
	double delay = 2e-9 * o->t->machine->link_delay;
	size_t lot = 1, at = 0;
	int failures = 0;
	bool any = false;

	while (at < o->candidate.len && failures < MOST_FAILURES && o->work + o->s->work < o->enough) {
		size_t before = stages_now(o->s), had = o->away.len, end = at + lot < o->candidate.len ? at + lot : o->candidate.len;
		Sketch plan;

		for (size_t k = at; k < end; k++)
			take(o, &o->candidate.at[k]);
		if (o->away.len == had) {
			at = end;
			continue;
		}
		if (is_promising(o) && evaluate(o, &plan) && plan.seconds < best->seconds - delay * (double)(o->away.len - had)) {
			*best = plan;
			any = true;
			failures = 0;
			at = end;
			lot *= 2;
			stages_keep(o->s);
			continue;
		}
		stages_undo(o->s, before);
		o->away.len = had;
		failures++;
		at += lot == 1;
		lot = lot > 1 ? lot / 2 : 1;
	}
	return any;
}

static Sketch kept(Arena *a, Sketch p)
{
	Replay *replay = ARENA_ARRAY(a, p.n, Replay);
	Move *move = ARENA_ARRAY(a, p.nmoves, Move);

	if (p.n)
		memcpy(replay, p.replay, (size_t)p.n * sizeof *replay);
	if (p.nmoves)
		memcpy(move, p.move, (size_t)p.nmoves * sizeof *move);
	p.replay = replay;
	p.move = move;
	return p;
}

/* Begins at a plan. */
static void begin_at(Offload *o, const Sketch *plan, int64_t target)
{
	arena_reset(o->scratch);
	o->away.at = o->candidate.at = NULL;
	o->move.at = NULL;
	o->away.len = o->away.cap = o->candidate.len = o->candidate.cap = o->move.len = o->move.cap = 0;
	o->s = refine_state(o->t, o->scratch, plan);
	o->start = ARENA_ARRAY(o->scratch, o->t->nops + 1, double);
	o->live = ARENA_ARRAY(o->scratch, o->t->nops, int64_t);
	o->gone = ARENA_ARRAY(o->scratch, o->t->nops + 1, int64_t);
	o->target = target;
}

/* The plan with fewer replays; false where nothing is gained. */
static bool improve(Offload *o, const Sketch *plan, int64_t target, Sketch *out)
{
	bool good;

	begin_at(o, plan, target);
	*out = *plan;
	gather(o);
	good = take_lots(o, out);
	o->work += o->s->work + 16 * (int64_t)o->t->nops;
	return good;
}

/* ---- held gaps ---- */

static bool is_listed(const Away *list, size_t n, int32_t buf, int32_t left)
{
	for (size_t k = 0; k < n; k++)
		if (list[k].buf == buf && list[k].left == left)
			return true;
	return false;
}

/* The stage with the most bytes, without those that are away by the last layout. */
static int32_t find_peak(Offload *o)
{
	int32_t peak = 0;

	peaks_read(&o->s->peaks, o->live);
	for (size_t k = 0; k < o->move.len; k++)
		for (int32_t i = o->move.at[k].sent; i < o->move.at[k].fetch; i++)
			o->live[i] -= o->t->buf[o->move.at[k].buf].bytes;
	for (int32_t i = 1; i < o->t->nops; i++)
		if (o->live[i] > o->live[peak])
			peak = i;
	return peak;
}

/* The largest held gap over a stage that is neither away nor has been tried (among the candidates); of equal ones the longest. */
static bool find_held(const Offload *o, int32_t stage, Away *out)
{
	int64_t bytes = 0;
	int32_t length = 0;

	for (int32_t b = 0; b < o->t->nbufs; b++) {
		const Marks *m = &o->s->buf[b];
		int32_t i = marks_before(m, stage) - 1;
		const Mark *at = &m->at[i];

		if (i < 0 || i + 1 >= m->n || !at->held || at[1].stage == stage || m->bytes < bytes ||
		    (m->bytes == bytes && at[1].stage - at->stage <= length) || !may_go(o, b, at->stage, at[1].stage) ||
		    is_listed(o->away.at, o->away.len, b, at->stage) || is_listed(o->candidate.at, o->candidate.len, b, at->stage))
			continue;
		*out = (Away){ .buf = b, .left = at->stage };
		bytes = m->bytes;
		length = at[1].stage - at->stage;
	}
	return bytes > 0;
}

/* Adds to found[0..MOST_SUNK) smaller plans, no slower than this one, each by at least a hundredth of all bytes; returns how many. */
static int32_t sink(Offload *o, const Sketch *plan, Sketch *found)
{
	Sketch best = *plan, next;
	int64_t noted = plan->live_bytes;
	int32_t n = 0;
	Away gap;

	begin_at(o, plan, INT64_MAX);
	while (n < MOST_SUNK && o->candidate.len < MOST_FAILURES && o->work < o->enough && find_held(o, find_peak(o), &gap)) {
		vec_push(o->scratch, &o->away, gap);
		o->work += o->t->nops + o->t->nbufs;
		if (is_promising(o) && evaluate(o, &next) && next.live_bytes <= best.live_bytes && next.seconds <= plan->seconds) {
			best = next;
			if (best.live_bytes < noted - (noted + o->t->var_bytes) / 100) {
				found[n++] = kept(o->arena, best);
				noted = best.live_bytes;
			}
			continue;
		}
		o->away.len--;
		vec_push(o->scratch, &o->candidate, gap);
		lay_out(o);
	}
	if (n < MOST_SUNK && best.live_bytes < noted)
		found[n++] = kept(o->arena, best);
	o->work += o->s->work + 16 * (int64_t)o->t->nops;
	return n;
}

static int compare_plans(const void *pa, const void *pb)
{
	const Sketch *a = pa, *b = pb;

	if (a->seconds < b->seconds || a->seconds > b->seconds)
		return a->seconds < b->seconds ? -1 : 1;
	if (a->nmoves != b->nmoves)
		return a->nmoves < b->nmoves ? -1 : 1;
	return a->live_bytes < b->live_bytes ? -1 : a->live_bytes > b->live_bytes;
}

/* All plans, fastest first; of those with moves the ones that no other beats. */
static void merge(Trajectory *tr, Arena *a, const Sketch *more, int32_t n)
{
	Sketch *all = ARENA_ARRAY(a, tr->n + n, Sketch);
	int64_t least = INT64_MAX;
	int32_t len = 0;

	for (int32_t k = 0; k < tr->n; k++)
		all[len++] = tr->plan[k];
	for (int32_t k = 0; k < n; k++)
		all[len++] = more[k];
	qsort(all, (size_t)len, sizeof *all, compare_plans);
	tr->n = 0;
	for (int32_t k = 0; k < len; k++) {
		if (all[k].nmoves && all[k].live_bytes >= least)
			continue;
		least = all[k].live_bytes < least ? all[k].live_bytes : least;
		all[tr->n++] = all[k];
	}
	tr->plan = all;
}

void offload_trajectory(Trajectory *tr, Arena *a, const bool *worth, int64_t host_bytes, int64_t work)
{
	Offload o = { .t = tr->t, .arena = a, .scratch = arena_new(), .host_bytes = host_bytes };
	int32_t *plan = ARENA_ARRAY(a, tr->n, int32_t), many = 0, plans, n = 0;
	int64_t affordable = WORK_SHARE * work / (2 * (WORK_AN_OP * (int64_t)tr->t->nops + 1)) + 1;
	Sketch *found;

	for (int32_t k = 1; k < tr->n; k++)
		if (worth[k])
			plan[many++] = k;
	plans = many < MOST_PLANS ? many : MOST_PLANS;
	plans = plans < affordable ? plans : (int32_t)affordable;
	found = ARENA_ARRAY(a, 2 * (plans + MOST_SUNK), Sketch);
	o.run = find_runs(tr->t, a);
	for (int32_t i = 0; i < 2 * plans; i++) {
		int32_t k = plan[(int64_t)many * (i / 2 + 1) / plans - 1], at = i % 2 ? k - BEHIND : k;
		Sketch more;

		o.enough = o.work + (WORK_SHARE * work - o.work) / (2 * plans - i);
		if (improve(&o, &tr->plan[k], tr->plan[at > 0 ? at : 0].live_bytes, &more))
			found[n++] = kept(a, more);
	}
	for (int32_t k = 0; k < tr->n; k += tr->n > 1 ? tr->n - 1 : 1) {
		o.enough = o.work + work;
		if (k == 0 || worth[k])
			n += sink(&o, &tr->plan[k], &found[n]);
	}
	arena_free(o.scratch);
	if (n)
		merge(tr, a, found, n);
}

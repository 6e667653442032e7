/* The state of the recompute search (see stages.h).
 *
 *     stage   0  1  2  ...  u  ...  c
 *     h       m=====m-------------m====m      = held, - not held: h is replayed in the bundle of the third mark
 *
 * Bundles are a function of what is held: need() walks from what a stage reads back to what is held there, and appends
 * replays in the order of the walk, operands first. So one flip of a gap changes one bundle, at its right end (and the one at
 * its left end, where the buffer was replayed to be held on), besides the bytes over it.
 *
 * A stage's peak is what is held across it plus `inner`: the most that its own buffers (those with a mark) take at any of its
 * steps. simulate() counts as timeline_lives does, in-place results included, so the peak of the state is the largest sum of live
 * bytes of the plan that it stands for.
 *
 * Invariants: the first mark of a buffer is the operation that makes it, and that and every other `original` mark stay; a mark that
 * is not original is there because the stage's bundle reads or makes the buffer; a held gap after a mark that the gap before does
 * not reach begins with a replay (or with the maker); every change is logged, and undone in reverse. */
#include "stages.h"

#include <assert.h>

enum { MAX_BUNDLE = 256, FEW_MARKS = 4, MORE_MARKS = 2 };
enum { IN = 1, OUT = 2, MARKED = 4 };

typedef enum ChangeKind { SET_HELD, SET_REPLAY, INSERT_MARK, REMOVE_MARK, ADD_BYTES, SET_INNER, SET_BUNDLE } ChangeKind;

struct Change {
	ChangeKind kind;
	int32_t a, b;   /* buffer and stage; first and last position; stage */
	int64_t bytes;
	Mark mark;
	Found found;
	Stage stage;
	double seconds;
};

/* A buffer at the stage at work: in steps of its bundle, the operation being the last. */
struct Slot {
	int32_t buf, born, last;
	bool taken;     /* a result has its bytes */
};

/* ---- marks ---- */

int32_t marks_before(const Marks *m, int32_t t)
{
	int32_t lo = 0, hi = m->n;

	while (hi - lo > FEW_MARKS) {
		int32_t mid = (lo + hi) / 2;

		if (m->at[mid].stage < t)
			lo = mid + 1;
		else
			hi = mid;
	}
	while (lo < hi && m->at[lo].stage < t)
		lo++;
	return lo;
}

static unsigned find_state(Stages *s, Marks *m, int32_t t)
{
	int32_t i = marks_before(m, t);
	unsigned state = i > 0 && m->at[i - 1].held ? IN : 0;

	s->work++;
	if (i < m->n && m->at[i].stage == t)
		state |= MARKED | (m->at[i].held ? OUT : 0);
	else if (state & IN)
		state |= OUT;
	m->looked = s->epoch;
	m->state = (uint8_t)state;
	return state;
}

/* Whether a buffer is held into stage t and out of it, and has a mark there. */
static inline unsigned state_at(Stages *s, int32_t buf, int32_t t)
{
	Marks *m = &s->buf[buf];

	return m->looked == s->epoch ? m->state : find_state(s, m, t);
}

static void grow_marks(Stages *s, Marks *m, int32_t cap)
{
	Mark *at = ARENA_ARRAY(s->arena, cap, Mark);
	Found *found = ARENA_ARRAY(s->arena, cap, Found);

	if (m->n) {
		memcpy(at, m->at, (size_t)m->n * sizeof *at);
		memcpy(found, m->found, (size_t)m->n * sizeof *found);
	}
	m->at = at;
	m->found = found;
	m->cap = cap;
}

static void put_mark(Stages *s, int32_t buf, Mark mark, Found found)
{
	Marks *m = &s->buf[buf];
	int32_t i = marks_before(m, mark.stage);

	if (m->n == m->cap)
		grow_marks(s, m, 2 * m->cap + 2);
	memmove(&m->at[i + 1], &m->at[i], (size_t)(m->n - i) * sizeof *m->at);
	memmove(&m->found[i + 1], &m->found[i], (size_t)(m->n - i) * sizeof *m->found);
	m->at[i] = mark;
	m->found[i] = found;
	m->n++;
}

static void take_mark(Stages *s, int32_t buf, int32_t t)
{
	Marks *m = &s->buf[buf];
	int32_t i = marks_before(m, t);

	assert(m->at[i].stage == t);
	m->n--;
	memmove(&m->at[i], &m->at[i + 1], (size_t)(m->n - i) * sizeof *m->at);
	memmove(&m->found[i], &m->found[i + 1], (size_t)(m->n - i) * sizeof *m->found);
}

/* ---- changes, all of them logged ---- */

static void record(Stages *s, Change c)
{
	c.seconds = s->seconds;
	vec_push(s->arena, &s->log, c);
}

static void set_held(Stages *s, int32_t buf, int32_t i, bool held)
{
	Mark *m = &s->buf[buf].at[i];

	record(s, (Change){ .kind = SET_HELD, .a = buf, .b = m->stage });
	m->held = held;
}

static void set_replay(Stages *s, int32_t buf, int32_t i, bool replay)
{
	Mark *m = &s->buf[buf].at[i];

	if (m->replay == replay)
		return;
	record(s, (Change){ .kind = SET_REPLAY, .a = buf, .b = m->stage });
	m->replay = replay;
}

static void insert_mark(Stages *s, int32_t buf, Mark mark)
{
	record(s, (Change){ .kind = INSERT_MARK, .a = buf, .b = mark.stage });
	put_mark(s, buf, mark, (Found){ 0 });
}

static void remove_mark(Stages *s, int32_t buf, int32_t i)
{
	const Marks *m = &s->buf[buf];

	record(s, (Change){ .kind = REMOVE_MARK, .a = buf, .b = m->at[i].stage, .mark = m->at[i], .found = m->found[i] });
	take_mark(s, buf, m->at[i].stage);
}

static void add_bytes(Stages *s, int32_t from, int32_t to, int64_t bytes)
{
	if (from >= to || bytes == 0)
		return;
	record(s, (Change){ .kind = ADD_BYTES, .a = from, .b = to, .bytes = bytes });
	peaks_add(&s->peaks, from, to, bytes);
	s->work += 4;
}

typedef struct Spare {
	struct Spare *next;
} Spare;

static TStep *new_bundle(Stages *s, const TStep *step, int32_t n, int32_t *class)
{
	size_t room = sizeof(Spare) > sizeof(TStep) ? sizeof(Spare) : sizeof(TStep);
	TStep *at;

	for (*class = 0; room < (size_t)n * sizeof *step; room *= 2)
		++*class;
	at = s->spare[*class];
	if (at)
		s->spare[*class] = ((Spare *)(void *)at)->next;
	else
		at = arena_alloc(s->arena, room);
	memcpy(at, step, (size_t)n * sizeof *step);
	return at;
}

static void free_bundle(Stages *s, const Stage *st)
{
	if (st->n == 0)
		return;
	((Spare *)(void *)st->step)->next = s->spare[st->room];
	s->spare[st->room] = st->step;
}

size_t stages_now(const Stages *s)
{
	return s->log.len;
}

void stages_undo(Stages *s, size_t to)
{
	while (s->log.len > to) {
		Change *c = &s->log.at[--s->log.len];
		Marks *m = &s->buf[c->a];

		s->seconds = c->seconds;
		switch (c->kind) {
		case SET_HELD: m->at[marks_before(m, c->b)].held ^= true; break;
		case SET_REPLAY: m->at[marks_before(m, c->b)].replay ^= true; break;
		case INSERT_MARK: take_mark(s, c->a, c->b); break;
		case REMOVE_MARK: put_mark(s, c->a, c->mark, c->found); break;
		case ADD_BYTES: peaks_add(&s->peaks, c->a, c->b, -c->bytes); break;
		case SET_INNER: s->stage[c->a].inner = c->bytes; break;
		case SET_BUNDLE:
			free_bundle(s, &s->stage[c->a]);
			s->stage[c->a] = c->stage;
			break;
		}
	}
}

void stages_keep(Stages *s)
{
	for (size_t i = 0; i < s->log.len; i++)
		if (s->log.at[i].kind == SET_BUNDLE)
			free_bundle(s, &s->log.at[i].stage);
	s->log.len = 0;
}

/* ---- the bundle of a stage ---- */

static bool in_bundle(const Stages *s, int32_t buf)
{
	return s->buf[buf].made == s->epoch;
}

/* Appends what makes buf in stage t, where it is neither held nor made yet, for a chain of `readers` that wait for it. */
static bool need(Stages *s, int32_t t, int32_t buf, int32_t readers)
{
	int32_t producer = s->buf[buf].op;
	const TOp *op = &s->t->op[producer];
	bool again = s->step_epoch[producer] == s->epoch; /* of several results, after another one */

	if (t > s->last_replay[producer] || s->t->op[t].closed || op->loop != s->t->op[t].loop || s->n + readers + !again > MAX_BUNDLE)
		return false;
	s->buf[buf].made = s->epoch; /* a graph has no cycles: nobody asks again before it is there */
	for (int32_t k = 0; k < op->nuse && !again; k++)
		if (!(state_at(s, op->use[k], t) & IN) && !in_bundle(s, op->use[k]) && !need(s, t, op->use[k], readers + 1))
			return false;
	if (!again) {
		s->step_epoch[producer] = s->epoch;
		s->step_of[producer] = s->n;
		s->step[s->n++] = (TStep){ .op = producer, .replay = true };
		s->step_seconds += op->seconds;
	}
	for (int32_t k = 0; k < op->ndef; k++)
		if (op->def[k] == buf)
			s->step[s->step_of[producer]].wanted |= UINT32_C(1) << k;
	return true;
}

/* What a step reads and makes: the first `nuse` of n are read. */
static int32_t touches(const TOp *op, int32_t k)
{
	return k < op->nuse ? op->use[k] : op->def[k - op->nuse];
}

static bool touched_by(const TStep *step, const TOp *op, int32_t k)
{
	return k < op->nuse || !step->replay || (step->wanted >> (k - op->nuse)) & 1;
}

/* Makes the bundle that stage t needs as things are held now: in s->step. `starts`: held gaps may begin here, such as that of
 * s->starting (-1: none), which the old bundle does not touch. */
static bool build(Stages *s, int32_t t, bool starts)
{
	const TOp *op = &s->t->op[t];
	const Stage *old = &s->stage[t];

	s->epoch++;
	s->n = 0;
	s->step_seconds = 0;
	s->started = false;
	for (int32_t k = 0; k < op->nuse; k++)
		if (!(state_at(s, op->use[k], t) & IN) && !in_bundle(s, op->use[k]) && !need(s, t, op->use[k], 0))
			return false;
	for (int32_t i = 0; i < old->n && starts; i++) { /* what is made here to be held on */
		const TOp *r = &s->t->op[old->step[i].op];

		for (int32_t k = 0; k < r->nuse + r->ndef; k++) {
			int32_t buf = touches(r, k);

			if (!touched_by(&old->step[i], r, k) || (state_at(s, buf, t) & (IN | OUT)) != OUT ||
			    s->buf[buf].op == t)
				continue;
			s->started = true;
			if (!in_bundle(s, buf) && !need(s, t, buf, 0))
				return false;
		}
		s->work += r->nuse + r->ndef;
	}
	if (s->starting >= 0) {
		s->started = true;
		return in_bundle(s, s->starting) || need(s, t, s->starting, 0);
	}
	return true;
}

static inline Slot *slot_of(Stages *s, int32_t buf, int32_t *nslots)
{
	Marks *m = &s->buf[buf];

	if (m->slotted != s->epoch) {
		m->slotted = s->epoch;
		m->slot = *nslots;
		s->slot[(*nslots)++] = (Slot){ .buf = buf };
	}
	return &s->slot[m->slot];
}

/* The slots of all that the stage touches, with their lives. */
static int32_t fill_slots(Stages *s, int32_t t)
{
	int32_t n = 0;

	for (int32_t i = 0; i <= s->n; i++) {
		const TStep *step = &s->step[i];
		const TOp *op = &s->t->op[step->op];

		for (int32_t k = 0; k < op->nuse; k++)
			slot_of(s, op->use[k], &n)->last = i;
		for (int32_t k = 0; k < op->ndef; k++) {
			Slot *slot;

			if (step->replay && !((step->wanted >> k) & 1))
				continue;
			slot = slot_of(s, op->def[k], &n);
			if (slot->last == 0 && !(state_at(s, slot->buf, t) & IN))
				slot->born = i;
			slot->last = i;
		}
		s->work += op->nuse + op->ndef;
	}
	return n;
}

/* Takes back the bytes of results that begin over a dying operand (see share_inplace in timeline.c). */
static void share_inplace(Stages *s, int32_t i, const TOp *op)
{
	int32_t over = -1; /* pairs come result by result */

	for (int32_t k = 0; k < op->npair; k++) {
		Slot *from = &s->slot[s->buf[op->pair[k].use].slot];
		int64_t bytes = s->buf[op->pair[k].def].bytes;

		if (from->taken || from->last != i || over == op->pair[k].def)
			continue;
		from->taken = true;
		over = op->pair[k].def;
		s->delta[i] -= bytes;
		s->delta[i + 1] += bytes;
	}
}

/* The most bytes at a step of stage t with the bundle at work, of what the stage touches. */
static int64_t simulate(Stages *s, int32_t t)
{
	int32_t n;
	int64_t sum = 0, most = 0;

	s->step[s->n] = (TStep){ .op = t, .wanted = UINT32_MAX };
	n = fill_slots(s, t);
	memset(s->delta, 0, (size_t)(s->n + 3) * sizeof *s->delta);
	for (int32_t i = 0; i < n; i++) {
		Slot *slot = &s->slot[i];
		int64_t bytes = s->buf[slot->buf].bytes;

		if (state_at(s, slot->buf, t) & OUT)
			slot->last = s->n + 1;
		s->delta[slot->born] += bytes;
		s->delta[slot->last + 1] -= bytes;
	}
	for (int32_t i = 0; i <= s->n; i++) {
		const TOp *op = &s->t->op[s->step[i].op];
		int64_t alone = op->work_bytes;

		for (int32_t k = 0; k < op->ndef && s->step[i].replay; k++)
			if (!((s->step[i].wanted >> k) & 1))
				alone += s->buf[op->def[k]].bytes;
		share_inplace(s, i, op);
		sum += s->delta[i];
		if (sum + alone > most)
			most = sum + alone;
	}
	return most;
}

/* Buffers that the steps of a bundle touch, each once, into s->touched. */
static int32_t collect_touched(Stages *s, const TStep *step, int32_t nsteps)
{
	int32_t n = 0;

	s->epoch++;
	for (int32_t i = 0; i < nsteps; i++) {
		const TOp *op = &s->t->op[step[i].op];

		for (int32_t k = 0; k < op->nuse + op->ndef; k++) {
			int32_t buf = touches(op, k);

			if (!touched_by(&step[i], op, k) || s->buf[buf].slotted == s->epoch)
				continue;
			s->buf[buf].slotted = s->epoch;
			s->touched[n++] = buf;
		}
	}
	return n;
}

/* ---- keeping the whole consistent ---- */

static void mark_touched(Stages *s, int32_t t, int32_t buf)
{
	Marks *m = &s->buf[buf];
	int32_t i = marks_before(m, t);

	if (i < m->n && m->at[i].stage == t) {
		set_replay(s, buf, i, true);
		return;
	}
	assert(i > 0);
	if (m->at[i - 1].held) /* it counts among what the stage touches from now on */
		add_bytes(s, t, t + 1, -s->buf[buf].bytes);
	insert_mark(s, buf, (Mark){ .stage = t, .replay = true, .held = m->at[i - 1].held });
}

/* The bundle of stage t touches the buffer no more. */
static void unmark(Stages *s, int32_t t, int32_t buf)
{
	Marks *m = &s->buf[buf];
	int32_t i = marks_before(m, t);
	bool out = m->at[i].held;

	set_replay(s, buf, i, false);
	if (m->at[i].original)
		return;
	remove_mark(s, buf, i);
	if (!m->at[i - 1].held) {
		assert(!out);
		return;
	}
	if (out) {
		add_bytes(s, t, t + 1, s->buf[buf].bytes);
		return;
	}
	add_bytes(s, m->at[i - 1].stage + 1, t, -s->buf[buf].bytes); /* it was held for this bundle alone */
	set_held(s, buf, i - 1, false);
	vec_push(s->arena, &s->dirty, m->at[i - 1].stage);
}

static void install(Stages *s, int32_t t)
{
	Stage *st = &s->stage[t], old = *st;
	int32_t n;

	record(s, (Change){ .kind = SET_BUNDLE, .a = t, .stage = old });
	st->n = s->n;
	st->version = ++s->versions;
	st->starts = s->started;
	st->step = NULL;
	st->room = 0;
	if (s->n)
		st->step = new_bundle(s, s->step, s->n, &st->room);
	s->seconds += s->step_seconds - st->seconds;
	st->seconds = s->step_seconds;
	n = collect_touched(s, st->step, st->n);
	for (int32_t k = 0; k < n; k++)
		mark_touched(s, t, s->touched[k]);
	for (int32_t i = 0; i < old.n; i++) {
		const TOp *op = &s->t->op[old.step[i].op];

		for (int32_t k = 0; k < op->nuse + op->ndef; k++) {
			int32_t buf = touches(op, k);

			if (!touched_by(&old.step[i], op, k) || s->buf[buf].slotted == s->epoch)
				continue;
			s->buf[buf].slotted = s->epoch;
			unmark(s, t, buf);
		}
	}
}

/* Brings stage t up to date with what is held; false where what it needs cannot be replayed there. */
static bool refresh(Stages *s, int32_t t)
{
	int64_t inner;

	if (!build(s, t, s->stage[t].starts))
		return false;
	if (s->n > 0 || s->stage[t].n > 0)
		install(s, t);
	s->epoch++;
	inner = simulate(s, t);
	if (inner != s->stage[t].inner) {
		add_bytes(s, t, t + 1, inner - s->stage[t].inner);
		record(s, (Change){ .kind = SET_INNER, .a = t, .bytes = s->stage[t].inner });
		s->stage[t].inner = inner;
	}
	return true;
}

/* Brings the stages that are dirty, and those that become so, up to date; else goes back to where things were. */
static bool settle(Stages *s, size_t before)
{
	while (s->dirty.len > 0)
		if (!refresh(s, s->dirty.at[--s->dirty.len])) {
			stages_undo(s, before);
			return false;
		}
	return true;
}

bool stages_flip(Stages *s, int32_t buf, int32_t i)
{
	Marks *m = &s->buf[buf];
	int32_t left = m->at[i].stage, right = m->at[i + 1].stage;
	int64_t bytes = s->buf[buf].bytes;
	size_t before = stages_now(s);

	assert(i + 1 < m->n);
	if (!m->at[i].held)
		s->stage[left].starts = true;
	else if (m->at[i + 1].held)
		s->stage[right].starts = true;
	add_bytes(s, left + 1, right, m->at[i].held ? -bytes : bytes);
	set_held(s, buf, i, !m->at[i].held);
	s->dirty.len = 0;
	vec_push(s->arena, &s->dirty, left);
	vec_push(s->arena, &s->dirty, right);
	return settle(s, before);
}

bool stages_start(Stages *s, int32_t buf, int32_t t)
{
	const Marks *m = &s->buf[buf];
	int32_t i = marks_before(m, t), right = m->at[i].stage;
	size_t before = stages_now(s);
	bool good;

	assert(i > 0 && i < m->n && !m->at[i - 1].held && right > t);
	insert_mark(s, buf, (Mark){ .stage = t, .replay = true, .held = true });
	add_bytes(s, t + 1, right, s->buf[buf].bytes);
	s->dirty.len = 0;
	s->starting = buf;
	good = refresh(s, t);
	s->starting = -1;
	if (!good) {
		stages_undo(s, before);
		return false;
	}
	vec_push(s->arena, &s->dirty, right);
	return settle(s, before);
}

/* Seconds of replays in the bundle at work for stage t that another stage has too, next to it among the marks of
 * the buffer, where the bytes fit in between. */
static double shared_seconds(Stages *s, int32_t t, int32_t but, int64_t fit)
{
	double sum = 0;

	for (int32_t i = 0; i < s->n; i++) {
		const TOp *op = &s->t->op[s->step[i].op];
		bool shared = true;

		for (int32_t k = 0; k < op->ndef && shared; k++) {
			const Marks *m = &s->buf[op->def[k]];
			int32_t at;
			bool marked;

			if (!((s->step[i].wanted >> k) & 1))
				continue;
			at = marks_before(m, t);
			marked = at < m->n && m->at[at].stage == t;
			shared = op->def[k] != but && !(marked && (m->at[at].held || m->at[at].replay));
			if (!shared)
				break;
			at += marked;
			shared = (at < m->n && !m->at[at - 1].held && m->at[at].stage > t &&
			          peaks_over(&s->peaks, t + 1, m->at[at].stage) + s->buf[op->def[k]].bytes <= fit) ||
			         (at > 1 && !marked &&
			          peaks_over(&s->peaks, m->at[at - 1].stage + 1, t) + s->buf[op->def[k]].bytes <= fit);
		}
		if (shared)
			sum += op->seconds;
	}
	return sum;
}

/* The bundle of stage t as it stands, for simulate(): what build() would make of it where nothing that it depends on has changed. Its work is
 * counted as if it had been built: simulate() looks at the same buffers. */
static void reload(Stages *s, int32_t t, bool starts)
{
	const Stage *st = &s->stage[t];

	s->epoch++;
	s->n = st->n;
	s->step_seconds = st->seconds;
	if (st->n)
		memcpy(s->step, st->step, (size_t)st->n * sizeof *s->step);
	for (int32_t i = 0; i < st->n && starts; i++)
		s->work += s->t->op[st->step[i].op].nuse + s->t->op[st->step[i].op].ndef;
}

/* The bundle at the left end of the gap after *m, which has been flipped. It changes only where the buffer was made there to be held on, and
 * now is not: what is held from there on is read or made there anyway. */
static void rebuild_left(Stages *s, const Mark *m, bool held_before)
{
	bool starts = s->stage[m->stage].starts;

	if (m->held || held_before || !starts) {
		reload(s, m->stage, starts || m->held);
	} else {
		bool good = build(s, m->stage, true);

		assert(good);
		(void)good;
	}
}

bool stages_try(Stages *s, int32_t buf, int32_t i, int64_t fit, Effect *e)
{
	Mark *m = &s->buf[buf].at[i];
	int32_t left = m->stage, right = m[1].stage;
	bool good;

	*e = (Effect){ 0 };
	m->held = !m->held;
	good = build(s, right, s->stage[right].starts || (!m->held && m[1].held));
	if (good) {
		e->seconds = s->step_seconds - s->stage[right].seconds;
		if (s->n > 1 && m->held == false)
			e->shared = shared_seconds(s, right, buf, fit);
		e->right = peaks_at(&s->peaks, right) - s->stage[right].inner + simulate(s, right);
		e->left = peaks_at(&s->peaks, left);
		if (m->held || e->left == stages_peak(s) || (i > 0 && !m[-1].held)) {
			rebuild_left(s, m, i == 0 || m[-1].held);
			e->seconds += s->step_seconds - s->stage[left].seconds;
			e->left += simulate(s, left) - s->stage[left].inner;
		}
	}
	m->held = !m->held;
	return good;
}

/* ---- beginning and end ---- */

static void find_last_replays(Stages *s)
{
	const Timeline *t = s->t;

	for (int32_t i = 0; i < t->nops; i++) {
		const TOp *op = &t->op[i];

		s->last_replay[i] = op->replayable && op->ndef <= 32 ? t->nops : -1;
		for (int32_t k = 0; k < op->nvar; k++) {
			int32_t by = t->assigned[op->var[k]];

			if (by >= 0 && by < s->last_replay[i])
				s->last_replay[i] = by;
		}
	}
}

/* The marks of stage t, of which `step` is one step; what a step reads, and nothing before it in the stage makes, is held until there. */
static void load_step(Stages *s, int32_t t, const TStep *step)
{
	const TOp *op = &s->t->op[step->op];

	for (int32_t k = 0; k < op->nuse + op->ndef; k++) {
		int32_t buf = touches(op, k);
		Marks *m = &s->buf[buf];

		if (!touched_by(step, op, k))
			continue;
		if (m->n == 0 || m->at[m->n - 1].stage < t) {
			put_mark(s, buf, (Mark){ .stage = t }, (Found){ 0 });
			if (m->n > 1 && k < op->nuse) {
				m->at[m->n - 2].held = true;
				peaks_add(&s->peaks, m->at[m->n - 2].stage + 1, t, s->buf[buf].bytes);
			}
		}
		m->at[m->n - 1].original |= !step->replay;
		m->at[m->n - 1].replay |= step->replay;
	}
}

/* Room for the marks of a plan, side by side, and for some more of each buffer. */
static void make_room(Stages *s, const TPlan *p)
{
	const Timeline *t = s->t;

	s->buf = ARENA_ARRAY(s->arena, t->nbufs, Marks);
	for (int32_t i = 0; i < p->nsteps; i++) {
		const TOp *op = &t->op[p->step[i].op];

		for (int32_t k = 0; k < op->nuse + op->ndef; k++)
			s->buf[touches(op, k)].cap++;
	}
	for (int32_t b = 0; b < t->nbufs; b++) {
		s->buf[b].bytes = t->buf[b].bytes;
		s->buf[b].op = t->buf[b].op;
		grow_marks(s, &s->buf[b], s->buf[b].cap + MORE_MARKS);
	}
}

static void load(Stages *s, const TPlan *p)
{
	make_room(s, p);
	for (int32_t i = 0, from = 0; i < p->nsteps; i++) {
		int32_t t = p->step[i].op;
		Stage *st;

		if (p->step[i].replay)
			continue;
		st = &s->stage[t];
		st->version = ++s->versions;
		st->n = i - from;
		st->starts = st->n > 0;
		if (st->n)
			st->step = new_bundle(s, &p->step[from], st->n, &st->room);
		for (; from < i; from++) {
			st->seconds += s->t->op[p->step[from].op].seconds;
			load_step(s, t, &p->step[from]);
		}
		load_step(s, t, &p->step[from++]);
		s->seconds += st->seconds;
	}
	for (int32_t i = 0; i < s->t->nops; i++) {
		bool good = refresh(s, i);

		assert(good);
		(void)good;
	}
	stages_keep(s);
}

Stages *stages_of(const Timeline *t, Arena *a, const TPlan *p)
{
	Stages *s = ARENA_NEW(a, Stages);

	s->t = t;
	s->arena = a;
	s->starting = -1;
	s->stage = ARENA_ARRAY(a, t->nops, Stage);
	s->peaks = peaks_new(a, t->nops);
	s->last_replay = ARENA_ARRAY(a, t->nops, int32_t);
	s->step = ARENA_ARRAY(a, MAX_BUNDLE + 1, TStep);
	s->delta = ARENA_ARRAY(a, MAX_BUNDLE + 4, int64_t);
	s->slot = ARENA_ARRAY(a, t->nbufs, Slot);
	s->touched = ARENA_ARRAY(a, t->nbufs, int32_t);
	s->step_of = ARENA_ARRAY(a, t->nops, int32_t);
	s->step_epoch = ARENA_ARRAY(a, t->nops, int32_t);
	find_last_replays(s);
	load(s, p);
	return s;
}

Stages *stages_new(const Timeline *t, Arena *a)
{
	TPlan plain = timeline_plain(t, a);

	return stages_of(t, a, &plain);
}

int64_t stages_peak(const Stages *s)
{
	return s->t->nops > 0 ? peaks_top(&s->peaks) : 0;
}

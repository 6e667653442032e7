/* accumulate: the batch as a loop over micro-batches whose sums equal the whole batch's.
 *
 * Every sum over samples of the whole batch is wrapped in batch_sum. A value's stage is the number
 * of batch_sums that must be complete before it can be computed; each stage that has batch_sums
 * becomes one loop, which holds what they need and depends on the batch, re-typed for the
 * micro-batch, and carries the sums:
 *
 *     c = sum(valid)          loop: c' += sum(valid)                 stage 0
 *     n = batch_sum(c)   =>   loss = .. / c'
 *     g = f(x, n)             loop: g' += .. f(x, c') ..             stage 1: computes valid
 *     dw = batch_sum(g)       assign w, w - lr*g'                    again if it needs it
 *
 * A batch that does not divide evenly leaves a smaller last micro-batch. Each stage then is two
 * loops, and the second, of one trip, goes on with the sums of the first:
 *
 *     s  = loop zero {trips = 3, batch = 16, base = 0}  { .. f32[16',5] .. }
 *     s' = loop s    {trips = 1, batch = 12, base = 48} { .. f32[12',5] .. }
 *
 * Statistics that each micro-batch brings up to date and a gate keeps or drops are carried likewise (carry.c).
 *
 * What does not depend on the batch stays outside: before the first loop that may read it, behind
 * the loops whose sums it reads. Effects outside come last, so that every loop reads variables as
 * they were.
 *
 * Which splits are right. By class of what depends on the batch: a value with a batch axis belongs
 * to samples; a value without one is a sum over the samples (P), as long as only linear ops made it
 * from such sums, else a statistic (T). Only sums may go into batch_sum. A statistic that is used
 * makes the result depend on the size of the micro-batch (batch norm); that is refused unless
 * allowed. */
#include "accumulate.h"

#include "carry.h"

typedef enum Class {
	C_NONE = 1, /* does not depend on the batch */
	C_SAMPLES,  /* has a batch axis */
	C_SUM,      /* P */
	C_STAT      /* T */
} Class;

/* What is known of a value (Value.aux). */
typedef struct Facts {
	Class cls;
	int stage; /* loops that must have ended before it exists; of what depends on the batch: the
		      loop it is in */
	bool state; /* a variable that a loop assigns, or made of one: computed in that loop */
} Facts;

typedef VEC(const Node *) Nodes;

/* What is known of a function. */
typedef struct Split {
	const Block *body;
	Arena *scratch;
	int stages;  /* number of loops */
	Nodes stats; /* uses of statistics of the micro-batch */
	Nodes echo;  /* the same in the backward pass, where the forward pass is to blame */
	CarryStates carried; /* updates under a gate, which a loop carries like sums */
	Nodes wrong; /* what no flag can allow: sums that are none, values of one micro-batch that
			leave the loop */
} Split;

static Facts *facts(const Value *v)
{
	return v->aux;
}

/* ---- classes ---- */

static bool is_zero(const Value *v)
{
	return v->def && v->def->op == OP_const && ir_float(v->def, "value") == 0;
}

/* True where every operand from `first` on is a sum over samples, or zero. */
static bool all_sums(const Node *n, int first)
{
	for (int i = first; i < n->nargs; i++)
		if (facts(n->arg[i])->cls != C_SUM && !is_zero(n->arg[i]))
			return false;
	return true;
}

/* Operands that are sums: bit i for operand i. */
static unsigned sums_mask(const Node *n)
{
	unsigned m = 0;
	for (int i = 0; i < n->nargs && i < 32; i++)
		if (facts(n->arg[i])->cls == C_SUM)
			m |= 1u << i;
	return m;
}

/* True where n, which reads sums over samples and nothing else that depends on the batch, gives
 * such a sum again: f(a + b) = f(a) + f(b). */
static bool is_linear(const Node *n)
{
	unsigned sums = sums_mask(n);
	if (ir_acc(n)) /* what a product is added to would count once a micro-batch */
		return false;
	switch ((int)n->op) {
	case OP_neg:
	case OP_reshape:
	case OP_transpose:
	case OP_broadcast:
	case OP_slice:
	case OP_pad:
	case OP_sum:
	case OP_mean:
	case OP_stop_gradient: return true;
	case OP_cast:
		return dtype_is_float(n->res[0]->type.dtype) ||
		       !dtype_is_float(n->arg[0]->type.dtype);
	case OP_add:
	case OP_sub:
	case OP_concat: return all_sums(n, 0);
	case OP_mul:
	case OP_matmul: return sums == 1 || sums == 2;
	case OP_div: return sums == 1;
	case OP_select: return !(sums & 1) && all_sums(n, 1);
	default: return false;
	}
}

/* The class of a node's unmarked results, from its operands' classes. */
static Class class_of(const Node *n)
{
	bool samples = false, sum = false, stat = false;
	for (int i = 0; i < n->nargs; i++) {
		Class c = facts(n->arg[i])->cls;
		samples |= c == C_SAMPLES;
		sum |= c == C_SUM;
		stat |= c == C_STAT;
	}
	if (n->op == OP_batch_sum || (!samples && !sum && !stat))
		return C_NONE;
	if (samples)
		return !stat && !sum && (ir_ops[n->op].flags & OPF_BATCH_LINEAR) && !ir_acc(n) ? C_SUM : C_STAT;
	return !stat && is_linear(n) ? C_SUM : C_STAT;
}

static bool reads(const Node *n, Class c)
{
	for (int i = 0; i < n->nargs; i++)
		if (facts(n->arg[i])->cls == c)
			return true;
	return false;
}

static bool depends(const Facts *f)
{
	return f->cls != C_NONE || f->state;
}

static bool reads_batch(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (depends(facts(n->arg[i])))
			return true;
	return false;
}

/* True where n computes, or lets samples meet, what another size of the micro-batch would change. */
static bool uses_statistics(const Node *n, Class cls, bool marked)
{
	if (n->flags & NF_BATCH_STATS || n->op == OP_assign)
		return reads_batch(n);
	if (marked)
		return reads(n, C_SUM) || reads(n, C_STAT);
	return n->nres && cls == C_STAT;
}

static const CarryState *carried_by(const Split *s, const Node *n)
{
	for (size_t i = 0; i < s->carried.len && n->op == OP_batch_sum; i++)
		if (s->carried.at[i].sum == n)
			return &s->carried.at[i];
	return NULL;
}

/* Classes and stages of the results of n, and what n says about splitting. */
static void classify(Split *s, const Node *n)
{
	Class cls = class_of(n);
	int stage = 0;
	for (int i = 0; i < n->nargs; i++)
		if (facts(n->arg[i])->stage > stage)
			stage = facts(n->arg[i])->stage;
	bool marked = false;
	for (int i = 0; i < n->nres; i++) {
		Facts *f = ARENA_NEW(s->scratch, Facts);
		f->cls = n->res[i]->type.batch ? C_SAMPLES : cls;
		f->stage = stage + (n->op == OP_batch_sum);
		n->res[i]->aux = f;
		marked |= n->res[i]->type.batch != 0;
		if (f->stage > s->stages)
			s->stages = f->stage;
	}
	if (n->op == OP_batch_sum ? facts(n->arg[0])->cls != C_SUM && !carried_by(s, n)
				  : n->op == OP_output && reads_batch(n))
		vec_push(s->scratch, &s->wrong, n);
	else if (uses_statistics(n, cls, marked))
		vec_push(s->scratch, n->flags & NF_BACKWARD ? &s->echo : &s->stats, n);
}

/* ---- variables that a loop updates ---- */

/* The value of a variable that an assign of batch-dependent values overwrites changes from trip to
 * trip. Marking it can make further values, and so assigns, depend on the batch: repeat until
 * nothing new is found. */
static bool mark_state(Split *s)
{
	bool found = false;
	for (size_t i = 0; i < s->carried.len; i++) {
		Facts *f = facts(s->carried.at[i].inner);
		found |= !f->state;
		f->state = true;
	}
	for (const Node *n = s->body->first; n; n = n->next) {
		if (n->op != OP_assign || !depends(facts(n->arg[1])) || facts(n->arg[0])->state)
			continue;
		facts(n->arg[0])->state = found = true;
	}
	for (const Node *n = s->body->first; found && n; n = n->next)
		for (int i = 0; i < n->nres && n->op != OP_var && n->op != OP_batch_sum; i++)
			facts(n->res[i])->state |=
				reads_batch(n) && facts(n->res[i])->cls == C_NONE;
	return found;
}

static void analyse(Split *s)
{
	for (const Node *n = s->body->first; n; n = n->next)
		classify(s, n);
	while (mark_state(s))
		;
	/* An update that waits for a sum of the last loop (a gate) takes one more. */
	for (const Node *n = s->body->first; n; n = n->next)
		if (n->op == OP_assign && depends(facts(n->arg[1])) && facts(n->arg[1])->stage == s->stages)
			s->stages++;
	if (!s->stats.len)
		s->stats = s->echo;
}

bool accumulate_possible(const Func *f, const Node **why)
{
	Split s = { .body = f->body, .scratch = arena_new() };
	analyse(&s);
	const Node *first = s.wrong.len ? s.wrong.at[0] : s.stats.len ? s.stats.at[0] : NULL;
	arena_free(s.scratch);
	if (why)
		*why = first;
	return first == NULL;
}

/* ---- small micro-batches ---- */

static int64_t smallest_part(const Func *f, int64_t micro)
{
	return f->batch % micro ? f->batch % micro : micro;
}

bool accumulate_has_variance(const Func *f, int64_t micro, const Node **why)
{
	int64_t part = smallest_part(f, micro);
	for (const Node *n = f->body->first; n; n = n->next) {
		bool mean = n->op == OP_mean || (n->op == OP_sum && n->res[0]->type.ndim > 0); /* of some samples: a sum and their number */
		if (!(n->flags & NF_BATCH_STATS) || !mean || n->res[0]->type.batch)
			continue;
		int64_t values =
			type_elems(&n->arg[0]->type) / type_elems(&n->res[0]->type) / f->batch;
		if (values * part != 1)
			continue;
		if (why)
			*why = n;
		return false;
	}
	return true;
}

/* ---- diagnostics ---- */

static bool seen_before(const Nodes *nodes, size_t i)
{
	Span s = nodes->at[i]->span;
	for (size_t j = 0; j < i; j++) {
		Span t = nodes->at[j]->span;
		if (s.source == t.source && s.begin == t.begin && s.end == t.end)
			return true;
	}
	return s.source < 0 && i > 0;
}

static void note_others(Diag *d, const Nodes *nodes)
{
	const size_t most = 1000; /* beyond which the list helps nobody */
	for (size_t i = 1; i < nodes->len && i < most; i++)
		if (!seen_before(nodes, i))
			diag_note(d, nodes->at[i]->span, "and so does this");
}

static bool check_split(const Split *s, const Func *f, PassCtx *cx, int64_t micro)
{
	Diag *d = cx->diag;
	long long whole = f->batch, part = micro;
	if (s->wrong.len) {
		const Node *n = s->wrong.at[0];
		if (n->op == OP_output)
			diag_error(d, n->span,
				   "'%s' depends on the samples of one micro-batch, so the batch "
				   "cannot be split",
				   ir_str(n, "name"));
		else
			diag_error(d, n->span,
				   "batch_sum of what is no sum over samples, so the batch cannot "
				   "be split");
		return false;
	}
	if (!s->stats.len)
		return true;
	Span at = s->stats.at[0]->span;
	const Node *single;
	if (cx->allow_microbatch_stats && !accumulate_has_variance(f, micro, &single)) {
		diag_error(d, single->span,
			   "takes its statistics over one value in a micro-batch of %lld, which has "
			   "no variance",
			   (long long)smallest_part(f, micro));
		return false;
	}
	if (cx->allow_microbatch_stats) {
		diag_warning(d, at,
			     "takes its statistics over micro-batches of %lld samples, not over "
			     "the batch of %lld",
			     part, whole);
		note_others(d, &s->stats);
		return true;
	}
	diag_error(d, at,
		   "depends on statistics of the whole batch of %lld, which micro-batches of %lld "
		   "would change",
		   whole, part);
	note_others(d, &s->stats);
	diag_hint(d, "--allow-microbatch-stats splits the batch all the same");
	return false;
}

/* ---- the rewrite ---- */

typedef struct Rewrite {
	const Split *s;
	Func *f;
	Node **node;  /* by position */
	bool *inside; /* by position: computed in loops */
	int32_t nodes, values;
	int *group;    /* by position, of nodes outside the loops: the loop that they come before */
	Value **outer; /* by value id: what stands for a batch_sum outside its loop */
	Node *end;     /* everything is moved or made in front of this */
	int64_t micro;
} Rewrite;

static bool in_loop(const Node *n)
{
	if (n->op == OP_var || n->op == OP_batch_sum)
		return false;
	for (int i = 0; i < n->nres; i++)
		if (depends(facts(n->res[i])))
			return true;
	return n->nres == 0 && reads_batch(n);
}

/* The loop that carries a batch_sum: the last one before its users. The sum of a loss is so taken
 * in the loop of the backward pass, which computes the loss anyway, and not in the one that counts
 * its targets. */
static int loop_of_sum(const Rewrite *r, const Node *sum)
{
	return r->group[sum->pos] - 1;
}

/* A variable of a loop is updated once, in the last one. */
static int loop_of_assign(const Rewrite *r)
{
	return r->s->stages - 1;
}

/* Everything outside, and every sum, stands as late as its users allow, so that nothing large waits
 * through a loop for its use behind it; effects stand last. Users inside a loop may be computed
 * from their own stage on. */
static void place_outside(Rewrite *r)
{
	for (int32_t i = 0; i < r->nodes; i++)
		r->group[i] = r->node[i]->op == OP_var ? 0 : r->s->stages;
	for (int32_t i = r->nodes; i-- > 0;) {
		const Node *n = r->node[i];
		int need = r->group[i];
		if (r->inside[i])
			need = n->nres ? facts(n->res[0])->stage : facts(n->arg[1])->stage;
		for (int j = 0; j < n->nargs; j++) {
			const Node *def = n->arg[j]->def;
			if (!r->inside[def->pos] && need < r->group[def->pos])
				r->group[def->pos] = need;
		}
	}
}

/* Nodes that loop k computes: behind the sums that it carries and the variables that it assigns. */
static bool *needed_in(const Rewrite *r, int k)
{
	bool *need = ARENA_ARRAY(r->s->scratch, r->nodes, bool);
	for (int32_t i = r->nodes; i-- > 0;) {
		const Node *n = r->node[i];
		bool sum = n->op == OP_batch_sum && loop_of_sum(r, n) == k;
		if (n->op == OP_assign && r->inside[i])
			need[i] = loop_of_assign(r) == k;
		if (!need[i] && !sum)
			continue;
		for (int j = 0; j < n->nargs; j++)
			if (r->inside[n->arg[j]->def->pos])
				need[n->arg[j]->def->pos] = true;
	}
	return need;
}

static void read_outer(const Rewrite *r, Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->id >= 0 && r->outer[n->arg[i]->id])
			n->arg[i] = r->outer[n->arg[i]->id];
}

/* The batch_sums of loop k, in order. */
static Nodes sums_of(const Rewrite *r, int k)
{
	Nodes sums = { 0 };
	for (int32_t i = 0; i < r->nodes; i++)
		if (r->node[i]->op == OP_batch_sum && loop_of_sum(r, r->node[i]) == k)
			vec_push(r->s->scratch, &sums, r->node[i]);
	return sums;
}

/* Zeros, from which the sums of a stage start, and variables, from a copy of which their updates go on. */
static Value **zero_sums(Rewrite *r, const Nodes *sums)
{
	Builder b = ir_builder(r->f->module, r->f->body);
	Value **zero = ARENA_ARRAY(r->s->scratch, sums->len, Value *);
	b.before = r->end;
	for (size_t i = 0; i < sums->len; i++) {
		b.span = sums->at[i]->span;
		const CarryState *c = carried_by(r->s, sums->at[i]);
		zero[i] = c ? ir_binary_c(&b, OP_mul, c->var, 1) : ir_const(&b, sums->at[i]->res[0]->type, 0);
	}
	return zero;
}

/* Micro-batches of one size, one behind the other. */
typedef struct Part {
	int64_t trips, batch, base;
} Part;

static Node *loop_node(Rewrite *r, const Nodes *sums, Value *const *start, const Part *p)
{
	Builder b = ir_builder(r->f->module, r->f->body);
	Type *types = ARENA_ARRAY(r->s->scratch, sums->len, Type);
	int32_t n = (int32_t)sums->len;
	b.before = r->end;
	b.span = n ? sums->at[n - 1]->span : NO_SPAN;
	for (int32_t i = 0; i < n; i++)
		types[i] = start[i]->type;
	const Attr attrs[] = { { .i = p->trips }, { .i = p->batch }, { .i = p->base } };
	Node *loop = ir_region(&b, OP_loop, n, start, attrs, n, types);
	for (int32_t i = 0; i < n; i++)
		ir_block_param(r->f->module, loop->body, types[i]);
	return loop;
}

/* The needed nodes for the micro-batches of one part, whose sums begin with `start`; NULL after a
 * diagnostic. */
static Node *make_part(Rewrite *r, const Nodes *sums, const bool *need, Value *const *start,
		       const Part *p)
{
	Node *loop = loop_node(r, sums, start, p);
	Builder b = ir_builder(r->f->module, loop->body);
	Value **map = ARENA_ARRAY(r->s->scratch, r->values, Value *);
	memcpy(map, r->outer, (size_t)r->values * sizeof *map);
	for (size_t i = 0; i < sums->len; i++) {
		const CarryState *c = carried_by(r->s, sums->at[i]);
		if (c)
			map[c->inner->id] = loop->body->param[i];
	}
	for (int32_t i = 0; i < r->nodes; i++)
		if (need[i] && !ir_clone_node(&b, r->node[i], map, r->f->batch, p->batch)) {
			diag_error(r->f->module->diag, r->node[i]->span,
				   "cannot be re-typed for a micro-batch of %lld",
				   (long long)p->batch);
			return NULL;
		}
	Value **next = ARENA_ARRAY(r->s->scratch, sums->len, Value *);
	for (size_t i = 0; i < sums->len; i++) {
		b.span = sums->at[i]->span;
		b.flags = sums->at[i]->flags;
		Value *term = map[sums->at[i]->arg[0]->id];
		next[i] = carried_by(r->s, sums->at[i]) ? term : ir_binary(&b, OP_add, loop->body->param[i], term);
	}
	b.flags = 0;
	b.span = NO_SPAN;
	ir_region(&b, OP_yield, (int)sums->len, next, NULL, 0, NULL);
	return loop;
}

static bool make_stage(Rewrite *r, int k)
{
	Nodes sums = sums_of(r, k);
	const bool *need = needed_in(r, k);
	const int64_t whole = r->f->batch / r->micro, rest = r->f->batch % r->micro;
	const Part parts[] = { { whole, r->micro, 0 }, { 1, rest, whole * r->micro } };
	Value *const *sum = zero_sums(r, &sums);
	for (int i = 0; i < (rest ? 2 : 1); i++) {
		const Node *loop = make_part(r, &sums, need, sum, &parts[i]);
		if (!loop)
			return false;
		sum = loop->res;
	}
	for (size_t i = 0; i < sums.len; i++)
		r->outer[sums.at[i]->res[0]->id] = sum[i];
	return true;
}

static bool rewrite(const Split *s, Func *f, int64_t micro)
{
	Rewrite r = { .s = s, .f = f, .micro = micro };
	r.nodes = ir_number(f, &r.values);
	r.node = ARENA_ARRAY(s->scratch, r.nodes, Node *);
	r.group = ARENA_ARRAY(s->scratch, r.nodes, int);
	r.outer = ARENA_ARRAY(s->scratch, r.values, Value *);
	r.inside = ARENA_ARRAY(s->scratch, r.nodes, bool);
	for (Node *n = f->body->first; n; n = n->next) {
		r.node[n->pos] = n;
		r.inside[n->pos] = in_loop(n);
	}
	Builder b = ir_builder(f->module, f->body);
	r.end = ir_region(&b, OP_yield, 0, NULL, NULL, 0, NULL);
	place_outside(&r);
	bool good = true;
	for (int g = 0; g <= s->stages && good; g++) {
		for (int32_t i = 0; i < r.nodes; i++) {
			Node *n = r.node[i];
			if (r.inside[i] || n->op == OP_batch_sum || r.group[i] != g)
				continue;
			read_outer(&r, n);
			ir_move_before(n, r.end);
		}
		good = g == s->stages || make_stage(&r, g);
	}
	for (int32_t i = 0; i < r.nodes; i++)
		if (r.inside[i] || r.node[i]->op == OP_batch_sum)
			ir_unlink(r.node[i]);
	for (size_t i = 0; i < s->carried.len; i++)
		ir_unlink(s->carried.at[i].inner->def);
	ir_unlink(r.end);
	return good;
}

/* ---- the pass ---- */

/* With one micro-batch a batch_sum is its operand. */
static void drop_sums(Func *f)
{
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n->next;
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = NULL;
		for (int i = 0; i < n->nargs; i++)
			if (n->arg[i]->aux)
				n->arg[i] = n->arg[i]->aux;
		if (n->op != OP_batch_sum)
			continue;
		n->res[0]->aux = n->arg[0];
		ir_unlink(n);
	}
}

static bool has_loop(const Func *f)
{
	for (const Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_loop)
			return true;
	return false;
}

/* Into loops over micro-batches that are smaller than the batch; the last one takes what is left. */
static bool split(Func *f, PassCtx *cx, int64_t micro)
{
	if (micro < 0 || micro > f->batch) {
		diag_error(cx->diag, NO_SPAN,
			   "a micro-batch of %lld is not between 1 and the batch of %lld",
			   (long long)micro, (long long)f->batch);
		return false;
	}
	if (has_loop(f)) {
		diag_error(cx->diag, NO_SPAN, "func %s is split already", f->name);
		return false;
	}
	Split s = { .body = f->body, .scratch = arena_new() };
	if (cx->allow_microbatch_stats)
		s.carried = carry_states(f, s.scratch);
	analyse(&s);
	bool good = check_split(&s, f, cx, micro) && rewrite(&s, f, micro);
	arena_free(s.scratch);
	return good;
}

bool accumulate_func(Func *f, PassCtx *cx, int64_t micro)
{
	if (micro != 0 && micro != f->batch)
		return split(f, cx, micro);
	drop_sums(f);
	return true;
}

PassResult pass_accumulate(Module *m, PassCtx *cx)
{
	for (Func *f = m->funcs; f; f = f->next)
		if (!accumulate_func(f, cx, strcmp(f->name, "step") ? 0 : cx->micro_batch))
			return PASS_FAILED;
	return PASS_CHANGED;
}

/* Bytes that loop nests move, beside the least that they could.
 *
 * The floor. What is no loop nest (a product, a convolution, attention, an embedding, a pool; here: a product) cuts a function into
 * levels: the level of a value is how many products lie one behind the other on the longest way to it. All element-wise work, casts,
 * reductions and moves of one level could at best be one launch, which reads each value that comes from outside once and writes each
 * that is wanted outside once. So the floor is the sum, over the levels, of
 *
 *     each distinct value that the level's loop nests read and do not make (a result of a product, of another level, a variable)
 *     each distinct value that they make and that a product, another level, an output or a loop reads
 *     each variable that they assign
 *
 * A value that lives only within a level costs nothing, one that crosses to the backward pass costs a write and a read. A loop
 * stands between the levels before and behind it, and counts once for each trip. What a product does besides (epilogue) is part of it.
 *
 * Invariant: the floor depends on the arithmetic of the graph and not on how `fuse` has cut it into kernels. */
#include "traffic.h"

/* A stretch of a value's storage. */
typedef struct Stretch {
	const Value *root;
	int64_t at, bytes;
} Stretch;

typedef struct Seen {
	Stretch s;
	int32_t level;
} Seen;

typedef struct Levels {
	Arena *a;
	int32_t *level;	 /* by Value.id */
	bool *product;	 /* by Value.id: made by no loop nest */
	int32_t *first;	 /* by Value.id of a root: last entry of `seen` of this value, plus one */
	VEC(Seen) seen;
	VEC(int32_t) chain;
	bool *left;	 /* by Value.id of a root: wanted outside of its level */
	int32_t most, base;
	int64_t bytes;
} Levels;

/* ---- one kernel ---- */

static Stretch stretch_of(Value *v)
{
	Stretch s = { .bytes = type_bytes(&v->type) };
	s.root = ir_view_root(v, &s.at);
	return s;
}

/* What reads its operands and writes its results in order, once: a loop nest, and sums over many tensors. */
static bool is_nest(const Node *n) { return n->op == OP_fused || n->op == OP_part_sums; }

/* Whether a kernel stores to an operand; whether it reads it otherwise. */
static void uses_of(const Node *fused, int arg, bool *read, bool *written)
{
	*read = *written = false;
	if (!fused->body) {
		*read = true;
		return;
	}
	const Value *p = fused->body->param[arg];
	for (const Node *x = fused->body->first; x; x = x->next)
		for (int i = 0; i < x->nargs; i++) {
			bool target = x->op == OP_assign && i == 0;
			*written = *written || (x->arg[i] == p && target);
			*read = *read || (x->arg[i] == p && !target);
		}
}

static bool read_before(const Node *n, int arg)
{
	Stretch s = stretch_of(n->arg[arg]);
	for (int k = 0; k < arg; k++) {
		Stretch t = stretch_of(n->arg[k]);
		if (t.root == s.root && t.at == s.at && t.bytes == s.bytes)
			return true;
	}
	return false;
}

static int64_t moved_by(const Node *n)
{
	int64_t bytes = 2 * n->work_bytes;
	if (!is_nest(n))
		return 0;
	for (int i = 0; i < n->nargs; i++) {
		bool read, written;
		uses_of(n, i, &read, &written);
		int64_t one = type_bytes(&n->arg[i]->type);
		bytes += (read && !read_before(n, i) ? one : 0) + (written ? one : 0);
	}
	for (int i = 0; i < n->nres; i++)
		bytes += type_bytes(&n->res[i]->type);
	return bytes;
}

int64_t traffic_step(const EmitStep *s)
{
	int64_t bytes = 0;
	if (s->kind != PLAN_KERNEL)
		return 0;
	for (int i = 0; i < s->nmembers; i++)
		bytes += moved_by(s->member[i].node);
	return s->nmembers ? bytes : moved_by(s->node);
}

/* ---- levels ---- */

static bool first_time(Levels *l, Stretch s, int32_t level)
{
	int32_t *last = &l->first[s.root->id];
	for (int32_t i = *last; i > 0; i = l->chain.at[i - 1]) {
		const Seen *x = &l->seen.at[i - 1];
		if (x->level == level && x->s.at == s.at && x->s.bytes == s.bytes)
			return false;
	}
	vec_push(l->a, &l->seen, ((Seen){ s, level }));
	vec_push(l->a, &l->chain, *last);
	*last = (int32_t)l->seen.len;
	return true;
}

static void set_results(Levels *l, const Node *n, int32_t level)
{
	for (int i = 0; i < n->nres; i++) {
		l->level[n->res[i]->id] = level;
		l->product[n->res[i]->id] = !is_nest(n);
	}
	l->most = level > l->most ? level : l->most;
}

/* The latest level of what n reads, views included. */
static int32_t latest(const Levels *l, const Node *n)
{
	int32_t level = l->base;
	for (int i = 0; i < n->nargs; i++) {
		int32_t at = l->level[ir_view_root(n->arg[i], NULL)->id];
		level = at > level ? at : level;
	}
	return level;
}

/* Operands of a loop nest at a level, as far as they come from elsewhere. */
static void enter(Levels *l, const Node *n, int32_t level, int64_t trips)
{
	for (int i = 0; i < n->nargs; i++) {
		Stretch s = stretch_of(n->arg[i]);
		bool read, written;
		uses_of(n, i, &read, &written);
		if (written)
			l->bytes += s.bytes * trips;
		if (!read || (!l->product[s.root->id] && l->level[s.root->id] == level))
			continue;
		l->left[s.root->id] = true;
		if (first_time(l, s, level))
			l->bytes += s.bytes * trips;
	}
}

/* Everything but a loop nest takes its operands from memory. */
static void leave(Levels *l, const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		l->left[ir_view_root(n->arg[i], NULL)->id] = true;
}

static void walk(Levels *l, const Block *b, int64_t trips)
{
	for (const Node *n = b->first; n; n = n->next) {
		if (ir_is_view(n))
			continue;
		if (is_nest(n)) {
			int32_t level = latest(l, n);
			enter(l, n, level, trips);
			set_results(l, n, level);
			continue;
		}
		leave(l, n);
		if (ir_ops[n->op].kind == K_MOVE) { /* what comes back is where it was */
			for (int i = 0; i < n->nres; i++) {
				l->level[n->res[i]->id] = l->level[n->arg[0]->id];
				l->product[n->res[i]->id] = true;
			}
		} else if (n->op == OP_loop) {
			l->base = ++l->most;
			for (int i = 0; i < n->body->nparam; i++) {
				l->level[n->body->param[i]->id] = l->base;
				l->product[n->body->param[i]->id] = true;
			}
			walk(l, n->body, trips * ir_int(n, "trips"));
			l->base = l->most + 1;
			set_results(l, n, l->base);
		} else {
			set_results(l, n, n->nargs > 0 ? latest(l, n) + 1 : l->base);
		}
	}
}

/* Results that are wanted outside of the level that makes them. */
static void count_left(Levels *l, const Block *b, int64_t trips)
{
	for (const Node *n = b->first; n; n = n->next) {
		if (n->op == OP_loop)
			count_left(l, n->body, trips * ir_int(n, "trips"));
		for (int i = 0; is_nest(n) && i < n->nres; i++)
			if (l->left[n->res[i]->id])
				l->bytes += type_bytes(&n->res[i]->type) * trips;
	}
}

static int64_t moved_in(const Block *b, int64_t trips)
{
	int64_t bytes = 0;
	for (const Node *n = b->first; n; n = n->next)
		bytes += n->op == OP_loop ? moved_in(n->body, trips * ir_int(n, "trips")) : trips * moved_by(n);
	return bytes;
}

Traffic traffic_func(Arena *a, const EmitFunc *f)
{
	int32_t values;
	ir_number(f->func, &values);
	Levels l = { .a = a };
	l.level = ARENA_ARRAY(a, values, int32_t);
	l.product = ARENA_ARRAY(a, values, bool);
	l.first = ARENA_ARRAY(a, values, int32_t);
	l.left = ARENA_ARRAY(a, values, bool);
	walk(&l, f->func->body, 1);
	count_left(&l, f->func->body, 1);
	return (Traffic){ moved_in(f->func->body, 1), l.bytes };
}

/* ---- the table ---- */

static const char *amount(Arena *a, int64_t bytes)
{
	return bytes ? arena_printf(a, "%lld", (long long)bytes) : "";
}

static void print_func(FILE *out, Arena *a, const Emit *e, const EmitFunc *f)
{
	int64_t trips = 1, launches = 0;
	fprintf(out, "func %s\n launches   bytes moved  what\n", f->func->name);
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		int n = s->kind == PLAN_PRIM ? 1 : s->nlaunch;
		if (s->kind == PLAN_LOOP) {
			trips = f->loops.at[s->index].trips;
			fprintf(out, "                         %lld times:\n", (long long)trips);
		} else if (s->kind == PLAN_END) {
			trips = 1;
			fprintf(out, "                         end\n");
		} else if (n > 0) {
			launches += n * trips;
			const char *where = s->node->span.source < 0 ? "" : diag_where(e->m->diag, a, s->node->span);
			fprintf(out, "%9d %13s  %s  %s\n", n, amount(a, traffic_step(s)), emit_step_name(a, s), where);
		}
	}
	Traffic t = traffic_func(a, f);
	fprintf(out, "%9lld %13s  in all; the floor is %s\n", (long long)launches, amount(a, t.moved), amount(a, t.floor));
}

void traffic_print(FILE *out, const Emit *e)
{
	Arena *a = arena_new();
	for (size_t i = 0; i < e->funcs.len; i++)
		print_func(out, a, e, &e->funcs.at[i]);
	arena_free(a);
}

/* offsets: every variable, buffer and workspace gets its bytes in the one arena.
 *
 *     [ variables | what one function needs while it runs ]
 *
 * Variables come first and stay; the functions share the rest, since only one runs at a time. Within a function the lives of
 * the buffers (timeline.c) are packed as rectangles (pack.c).
 *
 * Values that are sent to host memory have offsets there, packed the same way; each from its `send` to the last `fetched`.
 *
 * A placed node also carries its predicted seconds, for the plan that the trainer keeps; one that waits for a copy those for which it waits.
 *
 * Invariant: offsets depend on the function alone, never on a budget. */
#include "place.h"

#include "cost.h"
#include "offload.h"

int64_t place_variables(Module *m)
{
	int64_t end = 0;

	for (Var *v = m->vars; v; v = v->next) {
		v->offset = end;
		end += timeline_align(type_bytes(&v->type));
	}
	return end;
}

typedef struct Placing {
	const Timeline *t;
	const Module *m;
	int64_t *buf_offset; /* by buffer */
} Placing;

static void place_value(const Placing *p, Value *v)
{
	int64_t within;
	Value *root = ir_view_root(v, &within);

	if (ir_in_host(root))
		return;
	if (root->def && root->def->op == OP_var)
		v->offset = ir_find_var(p->m, ir_str(root->def, "name"))->offset + within;
	else if (p->t->buf_of[root->id] >= 0)
		v->offset = p->buf_offset[p->t->buf_of[root->id]] + within;
}

static void place_block(const Placing *p, Block *b)
{
	for (int32_t i = 0; i < b->nparam; i++)
		place_value(p, b->param[i]);
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			place_value(p, n->res[i]);
		if (n->op == OP_loop)
			place_block(p, n->body);
	}
}

static bool same_lives(const TLives *x, const TLives *y)
{
	for (int32_t k = 0; x->n == y->n && k < x->n; k++) {
		const TLife *a = &x->at[k], *b = &y->at[k];

		if (a->from != b->from || a->to != b->to || a->over != b->over || a->bytes != b->bytes)
			return false;
	}
	return x->n == y->n;
}

/* Where the plan's lives are placed already; returns the end of the highest. */
static int64_t take_offsets(const Timeline *t, const TLives *lives, const int64_t *placed, int64_t *offset)
{
	int64_t end = t->var_bytes;

	for (int32_t k = 0; k < lives->n; k++) {
		offset[k] = placed[k];
		if (placed[k] + lives->at[k].bytes > end)
			end = placed[k] + lives->at[k].bytes;
	}
	return end;
}

/* Host memory, and how long copies are waited for, in each trip. */
static void place_moves(Func *f, const Timeline *t, const TPlan *plain, Arena *a)
{
	int64_t *offset = ARENA_ARRAY(a, plain->nsteps, int64_t);
	double *stall = ARENA_ARRAY(a, plain->nsteps, double);

	f->host_bytes = offload_host(t, plain, a, offset);
	timeline_seconds(t, plain, stall);
	for (int32_t i = 0; i < plain->nsteps; i++) {
		const TOp *op = &t->op[plain->step[i].op];

		if (op->move == MOVE_SEND)
			op->node->res[0]->offset = offset[i];
		if (op->move)
			op->node->seconds = stall[i] / op->trips;
	}
}

/* `before` (may be NULL): lives that have been placed; where these are the same they keep their offsets. */
static int64_t place_plannable(Func *f, const PassCtx *cx, const TLives *before, const int64_t *placed)
{
	Arena *a = arena_new();
	Timeline *t = timeline_build(a, f, cx);
	TPlan plain = timeline_plain(t, a);
	TLives lives = timeline_lives(t, a, &plain, NULL);
	int64_t *offset = ARENA_ARRAY(a, lives.n, int64_t);
	Machine running = machine_running(cx->machine, f);
	Placing p = { .t = t, .m = f->module, .buf_offset = ARENA_ARRAY(a, t->nbufs, int64_t) };

	if (before && same_lives(before, &lives))
		f->arena_bytes = take_offsets(t, &lives, placed, offset);
	else
		f->arena_bytes = timeline_place(t, a, &lives, 0, PLACE_ROUNDS, offset);
	for (int32_t k = 0; k < lives.n; k++) {
		if (lives.at[k].buf >= 0)
			p.buf_offset[lives.at[k].buf] = offset[k];
		else
			t->op[plain.step[lives.at[k].from].op].node->work_offset = offset[k];
	}
	place_block(&p, f->body);
	for (int32_t i = 0; i < t->nops; i++)
		if (t->op[i].node)
			t->op[i].node->seconds = cost_seconds(t->op[i].node, &running);
	place_moves(f, t, &plain, a);
	arena_free(a);
	return f->arena_bytes;
}

int64_t place_func(Func *f, const PassCtx *cx)
{
	return timeline_plannable(f) ? place_plannable(f, cx, NULL, NULL) : -1;
}

int64_t place_func_as(Func *f, const PassCtx *cx, const TLives *lives, const int64_t *offset)
{
	return place_plannable(f, cx, lives, offset);
}

PassResult pass_offsets(Module *m, PassCtx *cx)
{
	place_variables(m);
	for (Func *f = m->funcs; f; f = f->next)
		if (place_func(f, cx) < 0)
			return PASS_FAILED;
	return PASS_CHANGED;
}

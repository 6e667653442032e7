/* A plan becomes the function: replays are cloned nodes just before their uses (see recompute.h).
 *
 *     %h = gelu %u                         %h = gelu %u
 *     ...                           ==>    ...
 *     %dw = matmul %h, %dy                 %h2 = replay(%h) gelu %u
 *                                          %dw = matmul %h2, %dy
 *
 * A walk over the plan's steps keeps what each buffer is called now: its first value, or that of its last replay. Operands are renamed
 * as the walk meets them; a view of a replayed value is cloned once for each replay that is read through it.
 *
 * A copy to host memory and back becomes four nodes of its own; what `fetch` makes is what the buffer is called from then on.
 *
 * Invariant: no original node moves. */
#include "recompute.h"

typedef struct Rewrite {
	const Timeline *t;
	Module *m;
	Value ***operands; /* by op: the node's operands before any renaming */
	Value **now;       /* by buffer: the replay's or fetch's result that holds it; NULL: the original */
	Value **host;      /* by buffer: its copy in host memory */
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

/* As old as its maker, so that what reads it is predicted to take as long. */
static void move_before(Rewrite *w, const TStep *s, Node *before)
{
	Value *root = w->t->buf[s->buf].root, *x = w->now[s->buf] ? w->now[s->buf] : root;
	Value *arg[] = { s->move == MOVE_FETCH ? w->host[s->buf] : x, w->host[s->buf] };
	Builder b = ir_builder(w->m, before->parent);

	b.before = before;
	b.span = root->def->span;
	b.flags = root->def->flags & (NF_BACKWARD | NF_OPTIMIZER);
	switch (s->move) {
	case MOVE_SEND: w->host[s->buf] = ir_value(&b, OP_send, 1, arg, NULL, NULL); break;
	case MOVE_SENT: ir_node(&b, OP_sent, 2, arg, NULL, NULL); break;
	case MOVE_FETCH: w->now[s->buf] = ir_value(&b, OP_fetch, 1, arg, NULL, NULL); break;
	case MOVE_FETCHED: ir_node(&b, OP_fetched, 1, arg, NULL, NULL); break;
	case MOVE_NONE: break;
	}
}

/* The operation that a replay or a copy at step i comes before. */
static Node *next_original(const Timeline *t, const TPlan *p, int32_t i)
{
	while (p->step[i].replay || p->step[i].move)
		i++;
	return t->op[p->step[i].op].node;
}

void recompute_apply(const Timeline *t, Arena *scratch, const TPlan *p)
{
	Rewrite w = { .t = t, .m = t->func->module };

	w.operands = ARENA_ARRAY(scratch, t->nops, Value **);
	w.now = ARENA_ARRAY(scratch, t->nbufs, Value *);
	w.host = ARENA_ARRAY(scratch, t->nbufs, Value *);
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
		Node *n;

		if (p->step[i].move) {
			move_before(&w, &p->step[i], next_original(t, p, i));
			continue;
		}
		if (p->step[i].replay) {
			replay_before(&w, &p->step[i], next_original(t, p, i));
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

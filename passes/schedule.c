/* schedule: the execution order.
 *
 * The program order of forward and backward pass is kept, with three exceptions:
 *
 *   1. a backward node that is ready and frees at least as many bytes as it makes goes first:
 *
 *          %dx = matmul %dy, %w                %dw = matmul %x, %dy      // %x dies here
 *          %dw = matmul %x, %dy      ==>       %dx = matmul %dy, %w
 *
 *   2. an optimizer node goes as soon as its operands are final, so that a gradient dies at once (where a global norm or a
 *      loop stands between, data flow holds it back by itself), and what it makes ready goes on at once, so that no two updates
 *      hold their temporaries side by side;
 *   3. what has no operands (input) sinks to just before its first user, and outputs, which the host reads once the function has
 *      run, sink to the end.
 *
 * Dependencies are data flow, and: whoever overwrites a variable comes after the readers before it.
 * Invariant: the order within the block is topological before and after. */
#include "schedule.h"

#include <stdlib.h>

typedef struct Edge {
	int32_t from, to;
} Edge;

typedef struct Reader {
	int32_t var, item; /* Value.id of the variable, and who reads it */
} Reader;

typedef struct Sched {
	Arena *arena;
	Node **node;     /* in program order */
	int32_t n;
	int32_t *preds;  /* not yet emitted */
	int32_t *first;  /* successors of i: succ[first[i] .. first[i+1]) */
	int32_t *succ;
	bool *emitted;
	int32_t *uses;   /* by Value.id of a storage root: nodes of this block that have still to read it */
	int32_t *def;    /* by Value.id: the item that defines it, -1 when it comes from outside */
	int32_t *out;    /* the new order */
	int32_t nout;
	int32_t here;    /* the item that edges are being collected for */
	VEC(int32_t) ready; /* of those that may go early: first in, first out */
	VEC(int32_t) update; /* of these, what a node of an update has made ready: last in, first out */
	VEC(Edge) edges;
	VEC(Reader) readers;
	bool early_updates;
} Sched;

typedef void (*Visit)(Value *v, void *ctx);

void schedule_overwrites(const Node *n, Visit visit, void *ctx)
{
	if (n->op == OP_assign) {
		visit(n->arg[0], ctx);
	} else if (n->op == OP_fused) {
		for (const Node *b = n->body->first; b; b = b->next)
			if (b->op == OP_assign && !b->arg[0]->def)
				visit(n->arg[b->arg[0]->index], ctx);
	} else if (n->op == OP_loop) {
		for (const Node *b = n->body->first; b; b = b->next)
			schedule_overwrites(b, visit, ctx);
	}
}

/* Every value that n reads, with those that a loop's body reads from outside. */
static void each_read(const Node *n, Visit visit, void *ctx)
{
	for (int i = 0; i < n->nargs; i++)
		visit(n->arg[i], ctx);
	if (n->op == OP_loop)
		for (const Node *b = n->body->first; b; b = b->next)
			each_read(b, visit, ctx);
}

static bool is_var(const Value *root)
{
	return root->def && root->def->op == OP_var;
}

static void data_edge(Value *v, void *ctx)
{
	Sched *s = ctx;
	Value *root = ir_view_root(v, NULL);
	int32_t from = s->def[v->id];

	if (from >= 0 && from != s->here) {
		Edge e = { from, s->here };
		vec_push(s->arena, &s->edges, e);
	}
	s->uses[root->id]++;
	if (is_var(root)) {
		Reader r = { root->id, s->here };
		vec_push(s->arena, &s->readers, r);
	}
}

static int compare_readers(const void *pa, const void *pb)
{
	const Reader *a = pa, *b = pb;

	if (a->var != b->var)
		return a->var < b->var ? -1 : 1;
	return a->item < b->item ? -1 : a->item > b->item;
}

/* Edges from every reader of a variable to the item that overwrites it. (A loop that goes on with the batch reads, and
 * overwrites again, what the loop before it left.) */
static void overwrite_edges(Value *var, void *ctx)
{
	Sched *s = ctx;
	int32_t id = ir_view_root(var, NULL)->id;
	size_t lo = 0, hi = s->readers.len;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (s->readers.at[mid].var < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < s->readers.len && s->readers.at[lo].var == id; lo++) {
		Edge e = { s->readers.at[lo].item, s->here };

		if (e.from < e.to)
			vec_push(s->arena, &s->edges, e);
	}
}

/* Turns the edge list into successor ranges and predecessor counts. */
static void build_successors(Sched *s)
{
	s->first = ARENA_ARRAY(s->arena, s->n + 2, int32_t);
	s->succ = ARENA_ARRAY(s->arena, s->edges.len + 1, int32_t);
	for (size_t i = 0; i < s->edges.len; i++) {
		s->first[s->edges.at[i].from + 2]++;
		s->preds[s->edges.at[i].to]++;
	}
	for (int32_t i = 0; i < s->n; i++)
		s->first[i + 2] += s->first[i + 1];
	for (size_t i = 0; i < s->edges.len; i++)
		s->succ[s->first[s->edges.at[i].from + 1]++] = s->edges.at[i].to;
}

static void collect_edges(Sched *s)
{
	for (s->here = 0; s->here < s->n; s->here++)
		each_read(s->node[s->here], data_edge, s);
	if (s->readers.len)
		qsort(s->readers.at, s->readers.len, sizeof *s->readers.at, compare_readers);
	for (s->here = 0; s->here < s->n; s->here++)
		schedule_overwrites(s->node[s->here], overwrite_edges, s);
	build_successors(s);
}

/* Bytes that die when n runs now, less the bytes that it makes. A sum that a product goes on with dies too where it comes from
 * outside, as a loop's parameter: its bytes are the result's. */
static int64_t net_freed(const Sched *s, const Node *n)
{
	const Value *acc = ir_acc(n) ? ir_view_root(ir_acc(n), NULL) : NULL;
	int64_t freed = 0;

	for (int i = 0; i < n->nargs; i++) {
		const Value *root = ir_view_root(n->arg[i], NULL);
		int32_t mine = 0;

		for (int k = 0; k < n->nargs; k++)
			mine += ir_view_root(n->arg[k], NULL) == root;
		if (!is_var(root) && (s->def[root->id] >= 0 || root == acc) && s->uses[root->id] == mine)
			freed += type_bytes(&root->type) / mine;
	}
	if (!ir_is_view(n))
		for (int i = 0; i < n->nres; i++)
			freed -= type_bytes(&n->res[i]->type);
	return freed;
}

/* Whether n is of those that may go before their turn. */
static bool may_go_early(const Sched *s, const Node *n)
{
	if (n->flags & NF_OPTIMIZER)
		return s->early_updates;
	return (n->flags & NF_BACKWARD) && n->nargs > 0;
}

static bool wants_early(const Sched *s, const Node *n)
{
	return (n->flags & NF_OPTIMIZER) || net_freed(s, n) >= 0;
}

static void drop_use(Value *v, void *ctx)
{
	Sched *s = ctx;

	s->uses[ir_view_root(v, NULL)->id]--;
}

static void emit(Sched *s, int32_t i)
{
	bool update = s->node[i]->flags & NF_OPTIMIZER;

	s->emitted[i] = true;
	s->out[s->nout++] = i;
	each_read(s->node[i], drop_use, s);
	for (int32_t k = s->first[i]; k < s->first[i + 1]; k++)
		if (--s->preds[s->succ[k]] == 0 && !update && may_go_early(s, s->node[s->succ[k]]))
			vec_push(s->arena, &s->ready, s->succ[k]);
	for (int32_t k = s->first[i + 1]; update && k-- > s->first[i];) /* the first on top */
		if (s->preds[s->succ[k]] == 0 && may_go_early(s, s->node[s->succ[k]]))
			vec_push(s->arena, &s->update, s->succ[k]);
}

/* Emits ready nodes that go early, until none is left. */
static void emit_early(Sched *s)
{
	bool again = true;

	while (again) {
		size_t keep = 0;

		while (s->update.len > 0) {
			int32_t i = s->update.at[--s->update.len];

			if (!s->emitted[i])
				emit(s, i);
		}
		again = false;
		for (size_t k = 0; k < s->ready.len; k++) {
			int32_t i = s->ready.at[k];

			if (s->emitted[i])
				continue;
			if (!again && wants_early(s, s->node[i])) {
				emit(s, i); /* appends to s->ready, behind k */
				again = true;
			} else {
				s->ready.at[keep++] = i;
			}
		}
		s->ready.len = keep;
	}
}

/* Moves nodes without operands to just before their first user in the block. */
static void sink_sources(Block *b)
{
	for (Node *n = b->last, *prev; n; n = prev) {
		Node *user = n->next;

		prev = n->prev;
		if (n->op != OP_input || n->nres != 1)
			continue;
		for (; user; user = user->next) {
			bool reads = false;

			for (int i = 0; i < user->nargs; i++)
				reads |= user->arg[i] == n->res[0];
			if (reads || user->op == OP_loop)
				break;
		}
		if (user && user != n->next)
			ir_move_before(n, user);
	}
}

/* Outputs go last, in their order. */
static void sink_outputs(Block *b)
{
	Node *stop = b->last, *next;

	for (Node *n = b->first; n; n = n == stop ? NULL : next) {
		Node *last = b->last;

		next = n->next;
		if (n->op != OP_output || n == last)
			continue;
		ir_move_before(n, last);
		ir_move_before(last, n);
	}
}

static void schedule_block(Block *b, Arena *scratch, int32_t nvalues, bool early_updates)
{
	Sched s = { .arena = scratch, .early_updates = early_updates };

	for (Node *n = b->first; n; n = n->next)
		s.n++;
	s.node = ARENA_ARRAY(scratch, s.n, Node *);
	s.preds = ARENA_ARRAY(scratch, s.n, int32_t);
	s.out = ARENA_ARRAY(scratch, s.n, int32_t);
	s.emitted = ARENA_ARRAY(scratch, s.n, bool);
	s.uses = ARENA_ARRAY(scratch, nvalues, int32_t);
	s.def = ARENA_ARRAY(scratch, nvalues, int32_t);
	memset(s.def, 0xff, (size_t)nvalues * sizeof *s.def);
	s.n = 0;
	for (Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			s.def[n->res[i]->id] = s.n;
		s.node[s.n++] = n;
	}
	collect_edges(&s);
	for (int32_t i = 0; i < s.n; i++) {
		if (s.emitted[i] || s.node[i]->op == OP_yield)
			continue;
		emit(&s, i);
		emit_early(&s);
	}
	for (int32_t i = 0; i < s.n; i++)
		if (!s.emitted[i])
			s.out[s.nout++] = i; /* yield stays last */
	for (int32_t i = s.n - 2; i >= 0; i--)
		if (s.node[s.out[i]]->next != s.node[s.out[i + 1]])
			ir_move_before(s.node[s.out[i]], s.node[s.out[i + 1]]);
	sink_sources(b);
	sink_outputs(b);
}

void schedule_func(Func *f, Arena *scratch, bool early_updates)
{
	int32_t nvalues;

	ir_number(f, &nvalues);
	for (Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_loop)
			schedule_block(n->body, scratch, nvalues, false);
	schedule_block(f->body, scratch, nvalues, early_updates);
	ir_number(f, NULL);
}

PassResult pass_schedule(Module *m, PassCtx *cx)
{
	Arena *scratch = arena_new();

	for (Func *f = m->funcs; f; f = f->next)
		schedule_func(f, scratch, cx->optimizer_in_backward);
	arena_free(scratch);
	return PASS_CHANGED;
}

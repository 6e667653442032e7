/* Updates of running statistics under a gate; see carry.h.
 *
 *     %n = add (mul %v, 0.9), (mul %mean, 0.1)             each micro-batch goes on with what the one before has left
 *     assign %v, select(%ok, %n, %v)                       %ok: all gradients of the whole batch are finite
 *
 * Whether the step counts is known behind its last micro-batch. An assign in the loop would have to wait for that, in a loop of its own
 * which computes the forward pass once more; so the loop carries the new statistics, as it does sums, and they are assigned once behind it:
 *
 *     %c = loop (%v + 0) { (%a) .. %n = add (mul %a, 0.9), .. yield %n }
 *     assign %v, select(%ok, %c, %v)
 *
 * Only where nothing but that update reads the variable. */
#include "carry.h"

typedef struct Finder {
	Func *f;
	Arena *a;
	int32_t values;
} Finder;

static bool is_candidate(const Node *n)
{
	const Node *s = n->op == OP_assign ? n->arg[1]->def : NULL;
	return s && n->arg[0]->def && n->arg[0]->def->op == OP_var && s->op == OP_select && s->arg[2] == n->arg[0] &&
	       s->arg[1]->def && s->arg[1] != n->arg[0] && s->parent == n->parent;
}

/* What depends on v, apart from the select and the assign, leads to `next` and nowhere else. */
static bool leads_to_next(const Finder *c, const Value *v, const Node *select, const Node *assign)
{
	bool *made_of = ARENA_ARRAY(c->a, c->values, bool), *read = ARENA_ARRAY(c->a, c->values, bool);
	const Value *next = select->arg[1];
	made_of[v->id] = true;
	for (const Node *n = c->f->body->first; n; n = n->next) {
		bool on = false;
		for (int i = 0; i < n->nargs && n != select && n != assign; i++)
			if (made_of[n->arg[i]->id]) {
				on = true;
				read[n->arg[i]->id] = true;
			}
		if (on && (n->nres != 1 || n->body || n->op == OP_batch_sum || made_of[next->id]))
			return false; /* an effect, or more is made of `next` */
		if (on)
			made_of[n->res[0]->id] = true;
	}
	for (const Node *n = c->f->body->first; n; n = n->next)
		for (int i = 0; i < n->nres; i++)
			if (made_of[n->res[i]->id] && n->res[i] != next && !read[n->res[i]->id])
				return false;
	return made_of[next->id];
}

/* `next` is read by the select alone. */
static bool read_once(const Finder *c, const Value *next, const Node *select)
{
	for (const Node *n = c->f->body->first; n; n = n->next)
		for (int i = 0; i < n->nargs; i++)
			if (n->arg[i] == next && n != select)
				return false;
	return true;
}

static CarryState carry(const Finder *c, Node *assign)
{
	Node *select = assign->arg[1]->def, *next = select->arg[1]->def;
	CarryState s = { .var = assign->arg[0] };
	Builder b = ir_builder(c->f->module, c->f->body);
	b.span = next->span;
	b.before = s.var->def->next;
	s.inner = ir_value(&b, OP_var, 0, NULL, s.var->def->attr, &s.var->type);
	b.before = next->next;
	s.sum = ir_unary(&b, OP_batch_sum, next->res[0])->def;
	for (Node *n = c->f->body->first; n; n = n->next)
		for (int i = 0; i < n->nargs && n != select && n != assign; i++)
			if (n->arg[i] == s.var)
				n->arg[i] = s.inner;
	select->arg[1] = s.sum->res[0];
	return s;
}

CarryStates carry_states(Func *f, Arena *a)
{
	CarryStates found = { 0 };
	Finder c = { f, a, 0 };
	VEC(Node *) assigns = { 0 };
	ir_number(f, &c.values);
	for (Node *n = f->body->first; n; n = n->next)
		if (is_candidate(n) && leads_to_next(&c, n->arg[0], n->arg[1]->def, n) && read_once(&c, n->arg[1]->def->arg[1], n->arg[1]->def))
			vec_push(a, &assigns, n);
	for (size_t i = 0; i < assigns.len; i++)
		vec_push(a, &found, carry(&c, assigns.at[i]));
	ir_number(f, &c.values);
	return found;
}

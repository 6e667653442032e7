/* Conditions on the updates of a step; see gate.h.
 *
 *     output %c {name = "gate:finite"}          %k = select %c, %p', %p
 *     assign %p, %p'                      =>    assign %p, %k
 *                                               output (not %c) {name = "skipped"}     (optimizer) */
#include "gate.h"

static const char prefix[] = "gate:";

void gate_add(Builder *b, const char *why, Value *condition)
{
	ir_output(b, arena_printf(b->m->arena, "%s%s", prefix, why), condition);
}

Value *gate_take(Builder *b, Func *f)
{
	Value *all = NULL;
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n->next;
		if (n->op != OP_output ||
		    strncmp(ir_str(n, "name"), prefix, sizeof prefix - 1) != 0)
			continue;
		all = all ? ir_binary(b, OP_and, all, n->arg[0]) : n->arg[0];
		ir_unlink(n);
	}
	return all;
}

void gate_assigns(Module *m, Node *first, Value *ok)
{
	for (Node *n = first; n; n = n->next) {
		if (n->op != OP_assign)
			continue;
		Builder b = ir_builder(m, n->parent);
		b.before = n;
		b.span = n->span;
		b.flags = n->flags;
		n->arg[1] = ir_select(&b, ok, n->arg[1], n->arg[0]);
	}
}

static bool is_statistic(const Module *m, const Node *n)
{
	const Node *var = n->op == OP_assign ? n->arg[0]->def : NULL;
	return var && var->op == OP_var && ir_find_var(m, ir_str(var, "name"))->role == VAR_STAT;
}

void gate_statistics(Builder *b, Func *f, Value *ok)
{
	Node *last = f->body->last;
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n == last ? NULL : n->next;
		if (!is_statistic(b->m, n))
			continue;
		Builder at = *b;
		at.span = n->span;
		at.flags = n->flags;
		ir_assign(&at, n->arg[0], ir_select(&at, ok, n->arg[1], n->arg[0]));
		ir_unlink(n);
	}
}

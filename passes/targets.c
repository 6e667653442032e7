/* Batches without a single valid target: see targets.h.
 *
 *     %l = cross_entropy %x, %t      =>     %c = the number of targets of the whole batch that are not `ignore`
 *     output %l {name = "loss"}             output %c > 0 {name = "gate:targets"}
 *                                           output not (%c > 0) {name = "empty"}
 *
 * Such a batch says nothing about the model, and its step is skipped as one with an overflow is. A loss may be made of
 * several: the step is skipped if all of them are empty. So there is no gate where some part of the loss depends on the
 * data and is no cross_entropy, as a mean over samples, nor where no target can be `ignore`: token ids and labels from
 * files of unsigned numbers are not negative. What depends on parameters alone, a penalty, says nothing of the data. */
#include "targets.h"

#include "../ir/op_util.h"
#include "gate.h"
#include "last_batch.h"

/* ---- what a target can be ---- */

/* Fields of integers that are never negative, by how their files store them. */
static bool is_unsigned_field(const Module *m, const char *input)
{
	const char *dot = strchr(input, '.');
	const Section *s = dot ? ir_find_section(m, "data", arena_strndup(m->arena, input, (size_t)(dot - input))) : NULL;
	if (!s)
		return false;
	if (!strcmp(s->type, "bytes") || !strcmp(s->type, "tokens") || !strcmp(s->type, "text") || !strcmp(s->type, "idx"))
		return true;
	const char *type = ir_setting_str(s, arena_printf(m->arena, "%s_type", dot + 1), "");
	return type[0] == 'u';
}

/* What says which samples there are; at least one is. */
static bool is_mask(const Value *v)
{
	while (v->def && ir_ops[v->def->op].kind == K_SHAPE)
		v = v->def->arg[0];
	return v->def && v->def->op == OP_input && !strcmp(ir_str(v->def, "name"), LAST_BATCH_INPUT);
}

static bool may_be(const Module *m, const Value *v, double ignore)
{
	const Node *n = v->def;
	DType t = v->type.dtype;
	if (ignore < 0 && (t == DT_BOOL || t == DT_U8 || t == DT_U16))
		return false;
	if (!n)
		return true;
	switch (n->op) {
	case OP_const: return ir_float(n, "value") == ignore;
	case OP_input: return ignore >= 0 || !is_unsigned_field(m, ir_str(n, "name"));
	case OP_select: return may_be(m, n->arg[1], ignore) || (!is_mask(n->arg[0]) && may_be(m, n->arg[2], ignore));
	default: break;
	}
	bool moves = n->op == OP_cast || (ir_ops[n->op].kind == K_SHAPE && n->nargs == 1 && n->op != OP_pad);
	return !moves || may_be(m, n->arg[0], ignore);
}

/* ---- the parts of a loss ---- */

typedef struct Parts {
	Value *any; /* bool[]: some cross_entropy has a valid target */
	bool other; /* there is a part that always has data */
} Parts;

/* Value.aux: of what depends on the data, its own node. */
static void mark_data(const Func *f)
{
	for (Node *n = f->body->first; n; n = n->next) {
		bool data = n->op == OP_input && !is_mask(n->res[0]);
		for (int i = 0; i < n->nargs; i++)
			data |= n->arg[i]->aux != NULL;
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = data ? n : NULL;
	}
}

static void add_part(Builder *b, Parts *p, const Node *n)
{
	Value *target = n->op == OP_cross_entropy ? n->arg[1] : NULL;
	if (!target || !may_be(b->m, target, (double)ir_int(n, "ignore"))) {
		p->other = true;
		return;
	}
	int32_t flags = b->flags;
	b->span = n->span;
	b->flags = n->flags; /* the count of its expansion is the same node then */
	Value *some = ir_binary_c(b, OP_gt, op_target_count(b, n, true), 0);
	b->flags = flags;
	p->any = p->any ? ir_binary(b, OP_or, p->any, some) : some;
}

/* One backward sweep from the loss through element-wise ops. */
static Parts parts_of(Builder *b, const Func *step, Node *loss)
{
	Parts p = { 0 };
	int32_t values;
	Arena *scratch = arena_new();
	ir_number(step, &values);
	bool *wanted = ARENA_ARRAY(scratch, values, bool);
	wanted[loss->arg[0]->id] = true;
	for (Node *n = loss->prev; n && !p.other; n = n->prev) {
		if (n->nres != 1 || !wanted[n->res[0]->id] || !n->res[0]->aux)
			continue;
		if (ir_ops[n->op].kind != K_EWISE) {
			add_part(b, &p, n);
			continue;
		}
		for (int i = 0; i < n->nargs; i++)
			wanted[n->arg[i]->id] = true;
	}
	arena_free(scratch);
	return p;
}

void targets_gate(Func *step)
{
	Node *loss = step->body->first;
	while (loss && (loss->op != OP_output || strcmp(ir_str(loss, "name"), "loss")))
		loss = loss->next;
	if (!loss)
		return;
	Builder b = ir_builder(step->module, step->body);
	mark_data(step);
	Parts p = parts_of(&b, step, loss);
	if (!p.any || p.other)
		return;
	b.span = loss->span;
	gate_add(&b, "targets", p.any);
	ir_output(&b, "empty", ir_unary(&b, OP_not, p.any));
}

/* The op table: the rows of ops.def, names, attributes, and the start-up check of the table. */
#include "op_rules.h"

#include <assert.h>
#include <stdio.h>

const OpInfo ir_ops[OP_COUNT] = {
#define OP(NAME, ...) [OP_##NAME] = { .name = #NAME, __VA_ARGS__ },
#include "ops.def"
#undef OP
};

OpCode op_from_name(const char *s, size_t n)
{
	for (int op = 0; op < OP_COUNT; op++)
		if (strlen(ir_ops[op].name) == n && memcmp(ir_ops[op].name, s, n) == 0)
			return (OpCode)op;
	return OP_COUNT;
}

/* ---- attributes ---- */

enum { MAX_ATTRS = sizeof ir_ops[0].attrs / sizeof ir_ops[0].attrs[0] };

int op_attr_count(OpCode op)
{
	int n = 0;
	while (n < MAX_ATTRS && ir_ops[op].attrs[n].kind != A_END)
		n++;
	return n;
}

int op_attr_find(OpCode op, const char *name, size_t len)
{
	const AttrSpec *spec = ir_ops[op].attrs;
	for (int i = 0; i < MAX_ATTRS && spec[i].kind != A_END; i++)
		if (strlen(spec[i].name) == len && memcmp(spec[i].name, name, len) == 0)
			return i;
	return -1;
}

void op_attr_defaults(OpCode op, Attr *out)
{
	const AttrSpec *spec = ir_ops[op].attrs;
	for (int i = 0; i < MAX_ATTRS && spec[i].kind != A_END; i++) {
		memset(&out[i], 0, sizeof out[i]);
		if (spec[i].kind == A_INT || spec[i].kind == A_BOOL)
			out[i].i = (int64_t)spec[i].dflt;
		else if (spec[i].kind == A_FLOAT)
			out[i].f = spec[i].dflt;
		else if (spec[i].kind == A_STR)
			out[i].s = "";
	}
}

Attr *ir_attr(const Node *n, const char *name)
{
	int i = op_attr_find(n->op, name, strlen(name));
	assert(i >= 0 && "the op has no attribute of this name");
	return &n->attr[i];
}

static const Attr *attr_of_kind(const Node *n, const char *name, AttrKind kind)
{
	int i = op_attr_find(n->op, name, strlen(name));
	assert(i >= 0 && "the op has no attribute of this name");
	AttrKind has = ir_ops[n->op].attrs[i].kind;
	assert((has == A_BOOL ? A_INT : has) == kind && "the attribute is of another kind");
	(void)has;
	(void)kind;
	return &n->attr[i];
}

int64_t ir_int(const Node *n, const char *name)
{
	return attr_of_kind(n, name, A_INT)->i;
}

double ir_float(const Node *n, const char *name)
{
	return attr_of_kind(n, name, A_FLOAT)->f;
}

const char *ir_str(const Node *n, const char *name)
{
	return attr_of_kind(n, name, A_STR)->s;
}

const IntList *ir_ints(const Node *n, const char *name)
{
	return &attr_of_kind(n, name, A_INTS)->ints;
}

int op_most_args(OpCode op)
{
	const OpInfo *o = &ir_ops[op];
	return o->flags & OPF_VARARGS ? IR_MAX_ARGS : o->nargs + ((o->flags & OPF_ACC) != 0);
}

/* ---- the check ---- */

/* What is wrong with a row, or NULL. Rows without an example (ex = "") need a module around them. */
static const char *check_row(const OpInfo *o)
{
	int attrs = op_attr_count((OpCode)(o - ir_ops));
	if (!o->doc || !o->doc[0])
		return "no doc";
	if (!o->ex)
		return "no example";
	if (!o->type)
		return "no type rule";
	if (o->grad && (o->flags & OPF_NOGRAD))
		return "both a gradient and OPF_NOGRAD";
	if (!o->grad && !(o->flags & OPF_NOGRAD))
		return "neither a gradient nor OPF_NOGRAD";
	if (o->kind == K_EWISE && !o->expr)
		return "element-wise without an expression";
	if ((o->kind == K_MACRO) != (o->expand != NULL))
		return "a macro has an expansion, and nothing else has";
	if (o->kind == K_LEAF && o->nargs != 0)
		return "a leaf with operands";
	if (o->kind == K_EWISE && (o->nargs < 1 || o->nargs > 3 || o->nres != 1))
		return "element-wise ops have 1 to 3 operands and one result";
	if ((o->flags & OPF_VIEW) && (o->nargs < 1 || o->nres != 1))
		return "a view has an operand and one result";
	if ((o->flags & OPF_ACC) && (o->nres < 1 || o->flags & (OPF_VARARGS | OPF_VIEW)))
		return "what adds to an operand has one result, and no other optional operands";
	if ((o->flags & OPF_RANDOM) && op_attr_find((OpCode)(o - ir_ops), "stream", 6) < 0)
		return "random without an attribute stream";
	if (o->nres < 0 || o->nres > 8 || o->nargs < 0 || o->nargs > IR_MAX_ARGS)
		return "counts out of range";
	if ((o->saves_args >> o->nargs && !(o->flags & OPF_VARARGS)) || o->saves_res >> o->nres)
		return "saves an operand or result that does not exist";
	for (int i = 0; i < attrs; i++)
		for (int j = 0; j < i; j++)
			if (strcmp(o->attrs[i].name, o->attrs[j].name) == 0)
				return "two attributes of one name";
	return NULL;
}

const char *op_table_check(void)
{
	static char what[128]; /* called once, at start-up; the table is the same for every caller */
	for (int op = 0; op < OP_COUNT; op++) {
		const char *fault = check_row(&ir_ops[op]);
		if (fault) {
			snprintf(what, sizeof what, "%s: %s", ir_ops[op].name, fault);
			return what;
		}
	}
	return NULL;
}

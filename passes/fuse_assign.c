/* Which kernels may update variables in place.
 *
 * A kernel runs in passes: a reduction ends one, and what is read again later is evaluated again, from its operands. An assign is stored
 * element by element, in the last pass that evaluates anything from the new value. So the kernel may read the variable only
 *
 *     - at the element that it writes: v and what is made of it lies along v, and is not spread over a row, moved or broadcast
 *     - in no pass behind the one that stores
 *
 *     assign v, v*0.9 + sum(x)    with    y = x + v        v [N,1], y [N,M]: y reads one element of v for a whole row
 *                                 with    t = -v, y = x*t  the same of what is derived from it
 *                                 with    m = sum(v*0.9)   a reduction has read it before; later passes read the sum
 *
 * The plan checker has the same rule of its own (check_rules.c), tests/fuse.c holds them together on random functions. */
#include "fuse_parts.h"

#include <assert.h>

/* Of a member's value: */
typedef struct Reading {
	bool reads; /* made of the variable's element at the same place */
	int pass, last; /* the first pass that can make it, the last that evaluates anything from it */
} Reading;

typedef struct Kernel {
	const Fuse *f;
	const Node *member[FUSE_MAX_OPS]; /* in order of position */
	Reading of[FUSE_MAX_OPS];	   /* by member */
	int n;
	int var_last; /* the last pass that reads the variable itself */
} Kernel;

static const Node *next_member(const Group *a, size_t *i, const Group *b, size_t *k)
{
	const Node *x = a && *i < a->members.len ? a->members.at[*i] : NULL, *y = b && *k < b->members.len ? b->members.at[*k] : NULL;
	bool first = x && (!y || x->pos < y->pos);
	*i += first;
	*k += !first && y;
	return first ? x : y;
}

static void add_member(Kernel *k, const Node *n)
{
	assert(k->n < FUSE_MAX_OPS);
	k->member[k->n++] = n;
}

/* What is known of a value that a member makes; NULL of others. */
static Reading *reading(Kernel *k, const Value *v)
{
	int low = 0, high = k->n;
	if (!v->def || v->def->parent != k->f->block)
		return NULL;
	while (low < high) {
		int mid = (low + high) / 2;
		if (k->member[mid]->pos < v->def->pos)
			low = mid + 1;
		else
			high = mid;
	}
	return low < k->n && k->member[low] == v->def ? &k->of[low] : NULL;
}

static bool is_variable(const Value *v, const Value *var)
{
	return ir_view_root((Value *)(uintptr_t)v, NULL) == var;
}

/* Results along the variable, element by element. */
static bool in_step(const Node *n, const Value *var)
{
	bool ewise = ir_ops[n->op].kind == K_EWISE || (ir_ops[n->op].flags & OPF_VIEW);
	return ewise && type_elems(&n->res[0]->type) == type_elems(&var->type);
}

/* Fills k->of from the operands on; false where something is read out of step. */
static bool read_forward(Kernel *k, const Value *var)
{
	for (int m = 0; m < k->n; m++) {
		const Node *n = k->member[m];
		Reading r = { 0 };
		for (int i = n->op == OP_assign; i < n->nargs; i++) {
			const Reading *x = reading(k, n->arg[i]);
			r.reads |= x ? x->reads : is_variable(n->arg[i], var);
			r.pass = x && x->pass > r.pass ? x->pass : r.pass;
		}
		if (ir_ops[n->op].kind == K_REDUCE)
			r = (Reading){ .pass = r.pass + 1 };
		else if (r.reads && n->op != OP_assign && !in_step(n, var))
			return false;
		r.last = r.pass;
		k->of[m] = r;
	}
	return true;
}

/* The last passes, from the users on. */
static void read_backward(Kernel *k, const Value *var)
{
	k->var_last = 0;
	for (int m = k->n; m-- > 0;) {
		const Node *n = k->member[m];
		bool reduces = ir_ops[n->op].kind == K_REDUCE;
		int seen = reduces ? k->of[m].pass - 1 : k->of[m].last;
		for (int i = n->op == OP_assign; i < n->nargs; i++) {
			Reading *x = reading(k, n->arg[i]);
			if (x && x->last < seen)
				x->last = seen;
			if (!x && is_variable(n->arg[i], var) && k->var_last < seen)
				k->var_last = seen;
		}
	}
}

static bool assign_holds(Kernel *k, const Node *assign)
{
	const Value *var = assign->arg[0];
	if (!read_forward(k, var))
		return false;
	read_backward(k, var);
	const Reading *stored = reading(k, assign->arg[1]);
	return k->var_last <= (stored ? stored->last : 0);
}

bool fuse_assigns_hold(const Fuse *f, const Group *a, const Group *b, const Node *n)
{
	bool assigns = (n && n->op == OP_assign) || (a && a->has_assign) || (b && b->has_assign), good = true;
	int32_t key = a ? a->key : b->key;
	if (!assigns)
		return true;
	if (f->replays && !(key & (NF_OPTIMIZER | NF_BATCH_STATS)))
		return false; /* replays must have no side effect */
	Kernel k = { .f = f };
	size_t i = 0, j = 0;
	for (const Node *x; (x = next_member(a, &i, b, &j));)
		add_member(&k, x);
	if (n)
		add_member(&k, n);
	for (int m = 0; m < k.n && good; m++)
		good = k.member[m]->op != OP_assign || assign_holds(&k, k.member[m]);
	return good;
}

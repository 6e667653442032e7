/* inplace: slices that their readers can take with a stride become views, and what is put side by side is written so.
 *
 *     %q = slice %qkv {axis = 2, start = 0, stop = 128}     // rows of 128 in rows of 384: ld = 384, no bytes of its own
 *     %y, %l = attention %q, %k, %v
 *
 *     %dq, %dk, %dv = attention_grad ..        =>           %d = attention_grad_qkv ..   where nothing else reads them
 *     %d = concat %dq, %dk, %dv {axis = 2}
 *
 * Which results take over a dying operand's bytes depends on what dies where, and is decided with the offsets (timeline.c). */
#include "place.h"

static bool takes_stride(const Node *user, const Value *v)
{
	if (user->op != OP_attention && !ir_is_attention_grad(user->op))
		return false;
	for (int i = 3; i < user->nargs; i++)
		if (user->arg[i] == v)
			return false;
	return true;
}

static bool is_last_axis_slice(const Node *n)
{
	const Value *source;

	if (n->op != OP_slice || ir_int(n, "axis") != n->arg[0]->type.ndim - 1)
		return false;
	source = ir_view_root(n->arg[0], NULL);
	return n->res[0]->type.ndim == 3 && n->arg[0]->ld == 0 && !(source->def && source->def->op == OP_var);
}

static void mark_block(Block *b, const int32_t *users, const int32_t *strided)
{
	for (Node *n = b->first; n; n = n->next) {
		if (n->op == OP_loop)
			mark_block(n->body, users, strided);
		if (is_last_axis_slice(n) && users[n->res[0]->id] > 0 && users[n->res[0]->id] == strided[n->res[0]->id])
			n->res[0]->ld = n->arg[0]->type.dim[n->arg[0]->type.ndim - 1];
	}
}

static void count_users(const Block *b, int32_t *users, int32_t *strided)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nargs; i++) {
			users[n->arg[i]->id]++;
			strided[n->arg[i]->id] += takes_stride(n, n->arg[i]);
		}
		if (n->op == OP_loop)
			count_users(n->body, users, strided);
	}
}

/* Whether a concat's operands are an attention's gradients, in order, which nothing else reads. */
static bool joins_gradients(const Node *n, const int32_t *users)
{
	const Node *grad = n->op == OP_concat && n->nargs == 3 ? n->arg[0]->def : NULL;
	int64_t axis = n->op == OP_concat ? ir_int(n, "axis") : 0;

	if (!grad || grad->op != OP_attention_grad || grad->parent != n->parent || (axis != 2 && axis != -1))
		return false;
	for (int i = 0; i < 3; i++)
		if (n->arg[i] != grad->res[i] || users[grad->res[i]->id] != 1)
			return false;
	return type_equal(&n->arg[1]->type, &n->arg[2]->type) && n->arg[0]->type.dim[1] == n->arg[1]->type.dim[1];
}

/* now: by Value.id, what stands for it from now on. */
static bool join_gradients(Func *f, const Capabilities *caps, Block *block, const int32_t *users, Value **now)
{
	bool changed = false;

	for (Node *n = block->first; n; n = n->next) {
		if (n->op == OP_loop)
			changed |= join_gradients(f, caps, n->body, users, now);
		if (!joins_gradients(n, users) || !caps->epilogue(n->arg[0]->def, OP_attention_grad_qkv))
			continue;
		Node *grad = n->arg[0]->def;
		Builder b = ir_builder(f->module, block);
		b.before = grad;
		b.span = grad->span;
		b.flags = grad->flags;
		Node *made = ir_node(&b, OP_attention_grad_qkv, grad->nargs, grad->arg, grad->attr, NULL);
		made->res[0]->id = -1; /* it has no number */
		made->res[0]->name = n->res[0]->name;
		now[n->res[0]->id] = made->res[0];
		changed = true;
	}
	return changed;
}

void place_strided_views(Func *f, const Capabilities *caps)
{
	Arena *scratch;
	int32_t nvalues, *users, *strided;

	if (!caps->strided_attention)
		return;
	scratch = arena_new();
	ir_number(f, &nvalues);
	users = ARENA_ARRAY(scratch, nvalues, int32_t);
	strided = ARENA_ARRAY(scratch, nvalues, int32_t);
	count_users(f->body, users, strided);
	mark_block(f->body, users, strided);
	Value **now = ARENA_ARRAY(scratch, nvalues, Value *);
	if (caps->epilogue && join_gradients(f, caps, f->body, users, now)) {
		ir_replace_all(f->body, now, nvalues);
		ir_dce(f);
	}
	arena_free(scratch);
}

PassResult pass_inplace(Module *m, PassCtx *cx)
{
	for (Func *f = m->funcs; f; f = f->next)
		place_strided_views(f, cx->caps);
	return PASS_CHANGED;
}

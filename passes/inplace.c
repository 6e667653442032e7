/* inplace: slices that their readers can take with a stride become views.
 *
 *     %q = slice %qkv {axis = 2, start = 0, stop = 128}     // rows of 128 in rows of 384: ld = 384, no bytes of its own
 *     %y, %l = attention %q, %k, %v
 *
 * Which results take over a dying operand's bytes depends on what dies where, and is decided with the offsets (timeline.c). */
#include "place.h"

static bool takes_stride(const Node *user, const Value *v)
{
	if (user->op != OP_attention && user->op != OP_attention_grad)
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
	arena_free(scratch);
}

PassResult pass_inplace(Module *m, PassCtx *cx)
{
	for (Func *f = m->funcs; f; f = f->next)
		place_strided_views(f, cx->caps);
	return PASS_CHANGED;
}

/* autodiff: the backward pass of @step.
 *
 * A reverse walk over the forward nodes. Each value collects the contributions of its users; when
 * the walk reaches the node that makes the value, all of them are there: they are added up and
 * handed to the op's gradient rule, whose answers are contributions to the operands (summed over
 * broadcast axes and cast to the operand's dtype).
 *
 *     forward            backward
 *     y = matmul x, w    dx = matmul dy, w {tb}      only where x depends on a parameter
 *     loss = f(y)        dw = matmul x, dy {ta}
 *                        output batch_sum(dw) {name = "grad:w"}
 *
 * Two sums. A value that does not depend on the batch (a parameter, a function of parameters) can
 * get contributions that are sums over the samples of a micro-batch, and others that are not, such
 * as a penalty on weights. They are added up apart and go through the rules of such values apart
 * (the rules are linear in dy); at the parameter the gradient is batch_sum(samples) + fixed, which
 * stays right when the batch is split.
 *
 * Frozen parameters are constants: what depends on them alone has no gradient, so nothing backward is
 * made below the lowest op that reads a trained one.
 *
 * Slices. Values that are disjoint slices of one value along one axis (q, k, v) give its gradient
 * as one concat instead of a sum of padded pieces. */
#include "loss_scale.h"
#include "saved.h"
#include "simplify.h"
#include "var_index.h"

enum { SAMPLES, FIXED, KINDS };

typedef struct Part {
	Value *v;
	const Node *slice; /* v is the gradient of this slice of the value; NULL: of the value */
} Part;

typedef VEC(Part) Parts;
typedef VEC(Value *) Values;

/* What the walk knows of a value (Value.aux). */
typedef struct Facts {
	bool active;  /* depends on a parameter, and so needs a gradient */
	bool samples; /* depends on the samples of the batch, other than through a batch_sum */
	Parts parts[KINDS];
} Facts;

typedef struct Walk {
	Module *m;
	const PassCtx *cx;
	Diag *diag;
	Arena *scratch;
	Builder b;
	VarIndex vars;
} Walk;

/* ---- facts ---- */

static Facts *facts(const Value *v)
{
	return v->aux;
}

static bool samples_of(const Node *n)
{
	if (n->op == OP_batch_sum)
		return false;
	for (int i = 0; i < n->nargs; i++)
		if (facts(n->arg[i])->samples)
			return true;
	return false;
}

/* Facts of the results of n, whose operands have theirs. */
static void note(Walk *w, Node *n)
{
	bool active = false, samples = samples_of(n);
	for (int i = 0; i < n->nargs; i++)
		active |= facts(n->arg[i])->active;
	for (int i = 0; i < n->nres; i++) {
		Facts *f = ARENA_NEW(w->scratch, Facts);
		f->samples = samples || n->res[i]->type.batch != 0;
		f->active = active && ir_ops[n->op].grad != NULL &&
			    dtype_is_float(n->res[i]->type.dtype);
		n->res[i]->aux = f;
	}
}

/* A variable's first `var` node stands for all of them. */
static void note_var(Walk *w, Node *n)
{
	const VarEntry *e = var_index_find(&w->vars, ir_str(n, "name"));
	if (!e)
		return;
	if (e->read != n->res[0])
		n->res[0]->aux = facts(e->read);
	else
		facts(e->read)->active = e->var->role == VAR_PARAM && !e->var->frozen &&
					 dtype_is_float(e->read->type.dtype);
}

/* ---- contributions ---- */

/* g, of a shape that `like` broadcasts to, summed to like's shape; in like's dtype. */
static Value *reduce_to(Builder *b, Value *g, const Type *like)
{
	int lead = g->type.ndim - like->ndim;
	IntList axes = { .n = 0 };
	for (int i = 0; i < g->type.ndim; i++) {
		bool was_one =
			i < lead || (like->dim[i - lead] == 1 && !(like->batch >> (i - lead) & 1));
		bool marked = (g->type.batch >> i & 1) != 0;
		if (was_one && (g->type.dim[i] > 1 || marked))
			axes.v[axes.n++] = i;
	}
	if (axes.n)
		g = ir_reduce(b, OP_sum, g, &axes, lead == 0);
	g = ir_reshape(b, g, *like);
	return ir_cast(b, g, like->dtype);
}

static void contribute(Walk *w, Value *to, Value *g, const Node *slice)
{
	Facts *f = facts(to);
	int kind = f->samples || facts(g)->samples ? SAMPLES : FIXED;
	vec_push(w->scratch, &f->parts[kind], ((Part){ g, slice }));
}

/* Facts for the nodes made since `last`. */
static void note_since(Walk *w, const Node *last)
{
	for (Node *n = last->next; n; n = n->next)
		note(w, n);
}

static int64_t slice_start(const Part *p)
{
	return ir_int(p->slice, "start");
}

/* True where all parts are slices along one axis that do not overlap; sorts them by start. */
static bool disjoint_slices(Parts *p)
{
	for (size_t i = 0; i < p->len; i++)
		if (!p->at[i].slice ||
		    ir_int(p->at[i].slice, "axis") != ir_int(p->at[0].slice, "axis"))
			return false;
	for (size_t i = 1; i < p->len; i++)
		for (size_t j = i; j && slice_start(&p->at[j]) < slice_start(&p->at[j - 1]); j--) {
			Part t = p->at[j];
			p->at[j] = p->at[j - 1];
			p->at[j - 1] = t;
		}
	for (size_t i = 1; i < p->len; i++)
		if (slice_start(&p->at[i]) < ir_int(p->at[i - 1].slice, "stop"))
			return false;
	return true;
}

static void push_gap(Walk *w, Values *pieces, const Type *whole, int axis, int64_t from, int64_t to)
{
	if (from == to)
		return;
	Type gap = *whole;
	gap.dim[axis] = to - from;
	vec_push(w->scratch, pieces, ir_const(&w->b, gap, 0));
}

/* The slices' gradients side by side, zeros where there is none. */
static Value *join_slices(Walk *w, const Value *of, const Parts *p)
{
	int axis = (int)ir_int(p->at[0].slice, "axis");
	int64_t at = 0;
	Values pieces = { 0 };
	for (size_t i = 0; i < p->len; i++) {
		push_gap(w, &pieces, &of->type, axis, at, slice_start(&p->at[i]));
		vec_push(w->scratch, &pieces, p->at[i].v);
		at = ir_int(p->at[i].slice, "stop");
	}
	push_gap(w, &pieces, &of->type, axis, at, of->type.dim[axis]);
	return ir_concat(&w->b, (int)pieces.len, pieces.at, axis);
}

static Value *whole_part(Walk *w, const Value *of, const Part *p)
{
	if (!p->slice)
		return p->v;
	int axis = (int)ir_int(p->slice, "axis");
	return ir_pad(&w->b, p->v, axis, slice_start(p),
		      of->type.dim[axis] - ir_int(p->slice, "stop"));
}

/* The sum of v's contributions of one kind; NULL where there are none. */
static Value *total(Walk *w, Value *v, int kind)
{
	Parts all = facts(v)->parts[kind], slices = { 0 }, rest = { 0 };
	for (size_t i = 0; i < all.len; i++)
		if (all.at[i].slice)
			vec_push(w->scratch, &slices, all.at[i]);
		else
			vec_push(w->scratch, &rest, all.at[i]);
	if (slices.len > 1 && slices.len < IR_MAX_ARGS / 2 && disjoint_slices(&slices))
		vec_push(w->scratch, &rest, ((Part){ join_slices(w, v, &slices), NULL }));
	else
		for (size_t i = 0; i < slices.len; i++)
			vec_push(w->scratch, &rest, slices.at[i]);
	Value *sum = NULL;
	for (size_t i = 0; i < rest.len; i++) {
		Value *g = whole_part(w, v, &rest.at[i]);
		sum = sum ? ir_binary(&w->b, OP_add, sum, g) : g;
	}
	return sum;
}

/* ---- the walk ---- */

/* The gradient rule of n for the contributions of one kind. */
static bool backward_kind(Walk *w, Node *n, int kind)
{
	Value *dy[8] = { NULL }, *dx[IR_MAX_ARGS] = { NULL };
	const Node *last = w->b.block->last;
	bool any = false;
	for (int i = 0; i < n->nres; i++) {
		dy[i] = total(w, n->res[i], kind);
		any |= dy[i] != NULL;
	}
	if (any && n->op == OP_slice) {
		note_since(w, last);
		contribute(w, n->arg[0], dy[0], n);
		return true;
	}
	if (any && !ir_ops[n->op].grad(&w->b, n, dy, dx))
		return false;
	for (int i = 0; i < n->nargs; i++)
		dx[i] = dx[i] && facts(n->arg[i])->active
				? reduce_to(&w->b, dx[i], &n->arg[i]->type)
				: NULL;
	if (w->b.failed)
		return false;
	note_since(w, last);
	for (int i = 0; i < n->nargs; i++)
		if (dx[i])
			contribute(w, n->arg[i], dx[i], NULL);
	return true;
}

static bool backward_node(Walk *w, Node *n)
{
	bool active = false;
	for (int i = 0; i < n->nres; i++)
		active |= facts(n->res[i])->active;
	if (!active || n->op == OP_var)
		return true;
	w->b.span = n->span;
	w->b.flags = NF_BACKWARD | (n->flags & NF_PRECISION);
	return backward_kind(w, n, SAMPLES) && backward_kind(w, n, FIXED);
}

/* A gradient must not stop at a node that has no rule only because it is of the wrong stage. */
static bool check_node(Walk *w, const Node *n)
{
	OpKind k = ir_ops[n->op].kind;
	if (k != K_REGION && k != K_OPAQUE && k != K_MACRO)
		return true;
	diag_error(w->diag, n->span, "autodiff: %s has no gradient", ir_ops[n->op].name);
	return false;
}

/* Forward nodes in order, with their facts. */
static Node **note_forward(Walk *w, size_t *count)
{
	size_t n = 0, at = 0;
	for (Node *x = w->b.block->first; x; x = x->next)
		n++;
	Node **nodes = ARENA_ARRAY(w->scratch, n, Node *);
	bool good = true;
	for (Node *x = w->b.block->first; x; x = x->next) {
		good &= check_node(w, x);
		note(w, x);
		if (x->op == OP_var)
			note_var(w, x);
		nodes[at++] = x;
	}
	*count = n;
	return good ? nodes : NULL;
}

/* The gradient of a parameter, over the whole batch; NULL where it does not reach the loss. */
static Value *param_gradient(Walk *w, Value *p)
{
	Value *samples = total(w, p, SAMPLES), *fixed = total(w, p, FIXED);
	if (samples)
		samples = ir_unary(&w->b, OP_batch_sum, samples);
	return samples && fixed ? ir_binary(&w->b, OP_add, samples, fixed)
	       : samples        ? samples
				: fixed;
}

static bool output_gradients(Walk *w, Span loss)
{
	int params = 0, reached = 0;
	w->b.flags = NF_BACKWARD;
	for (Var *v = w->m->vars; v; v = v->next) {
		if (v->role != VAR_PARAM || v->frozen)
			continue;
		params++;
		Value *read = var_index_find(&w->vars, v->name)->read;
		w->b.span = v->span;
		Value *g = read ? param_gradient(w, read) : NULL;
		if (!g) {
			diag_warning(w->diag, v->span,
				     "'%s' does not reach the loss and is not trained", v->name);
			continue;
		}
		reached++;
		ir_output(&w->b, arena_printf(w->m->arena, "grad:%s", v->name), g);
	}
	if (!params)
		diag_error(w->diag, loss, "the model has no parameters to train");
	else if (!reached)
		diag_error(w->diag, loss, "no parameter reaches the loss");
	return reached > 0;
}

static Node *find_loss(const Func *step)
{
	for (Node *n = step->body->first; n; n = n->next)
		if (n->op == OP_output && !strcmp(ir_str(n, "name"), "loss"))
			return n;
	return NULL;
}

static bool differentiate(Walk *w, const Node *loss)
{
	size_t count;
	Value *y = loss->arg[0];
	Node **nodes = note_forward(w, &count);
	if (!nodes)
		return false;
	const Node *last = w->b.block->last;
	w->b.flags = NF_BACKWARD;
	w->b.span = loss->span;
	Value *root = loss_scale_root(&w->b, w->cx, &y->type);
	if (root->def->op == OP_var) /* among the variables, at the front */
		note(w, root->def);
	note_since(w, last);
	contribute(w, y, root, NULL);
	for (size_t i = count; i-- > 0;)
		if (!backward_node(w, nodes[i]))
			return false;
	return output_gradients(w, loss->span) && !w->b.failed;
}

/* The backward pass may read what the forward pass assigns, so that comes last. */
static void move_assigns_back(Func *step)
{
	Builder b = ir_builder(step->module, step->body);
	Node *last = step->body->last;
	Node *end = ir_region(&b, OP_yield, 0, NULL, NULL, 0, NULL);
	for (Node *n = step->body->first, *next; n; n = next) {
		next = n == last ? NULL : n->next; /* what has been moved stays */
		if (n->op == OP_assign)
			ir_move_before(n, end);
	}
	ir_unlink(end);
}

PassResult pass_autodiff(Module *m, PassCtx *cx)
{
	Func *step = ir_find_func(m, "step");
	const Node *loss = step ? find_loss(step) : NULL;
	if (!loss) {
		diag_error(cx->diag, NO_SPAN,
			   step ? "func step has no output 'loss'" : "the module has no func step");
		return PASS_FAILED;
	}
	if (loss->arg[0]->type.ndim || !dtype_is_float(loss->arg[0]->type.dtype)) {
		diag_error(cx->diag, loss->span,
			   "the loss must be one floating-point number, got %s",
			   type_text(cx->arena, &loss->arg[0]->type, false));
		return PASS_FAILED;
	}
	Walk w = {
		.m = m, .cx = cx, .diag = cx->diag, .scratch = arena_new(), .b = ir_builder(m, step->body)
	};
	w.vars = var_index(w.scratch, m, step);
	bool good = differentiate(&w, loss);
	arena_free(w.scratch);
	if (!good)
		return PASS_FAILED;
	move_assigns_back(step);
	simplify_func(step, true);
	saved_reduce(step);
	simplify_func(step, true);
	return PASS_CHANGED;
}

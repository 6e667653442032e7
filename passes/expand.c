/* expand: func @forward, as the front end built it, becomes the functions that a trainer runs.
 *
 *     forward  ─┬─> step      training: loss over the whole batch
 *               ├─> eval      loss, weight, and for classes correct, correct_top, counted;  eval1 at batch 1
 *               └─> predict   the values that the model computes;  predict1 at batch 1
 *     variables ──> init      assigns their initial values
 *
 * Each is a clone of forward whose macros are replaced by their expansions (OpInfo.expand), in
 * training or in evaluation; what its outputs do not need is removed. eval and predict hold no
 * number that depends on the batch, so that they can be re-typed for another one. `weight` is what
 * a loss counts for in a mean over several batches: the number of valid targets of a cross_entropy
 * (the sum of their classes' weights, where it has weights), else of samples. */
#include "expand.h"
#include "last_batch.h"
#include "precision.h"
#include "targets.h"

/* ---- macros ---- */

static void map_args(Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i]->aux)
			n->arg[i] = n->arg[i]->aux;
}

static void clear_aux(const Block *b)
{
	for (const Node *n = b->first; n; n = n->next)
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = NULL;
}

/* Value.aux of a macro's result is what stands for it; users come later and are mapped when they
 * are reached. */
bool expand_func(Func *f, bool training)
{
	bool good = true;
	clear_aux(f->body);
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n->next;
		map_args(n);
		if (ir_ops[n->op].kind != K_MACRO)
			continue;
		Value *res[8] = { NULL };
		Builder b = ir_builder(f->module, f->body);
		b.before = n;
		b.span = n->span;
		b.flags = n->flags;
		if (!ir_ops[n->op].expand(&b, n, training, res) || b.failed) {
			good = false;
			continue;
		}
		for (int i = 0; i < n->nres; i++)
			n->res[i]->aux = res[i];
		ir_unlink(n);
	}
	return good;
}

/* ---- what forward says ---- */

static Node *find_output(const Func *f, const char *name)
{
	for (Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_output && !strcmp(ir_str(n, "name"), name))
			return n;
	return NULL;
}

static void remove_outputs(Func *f, const char *except)
{
	for (Node *n = f->body->first, *next; n; n = next) {
		next = n->next;
		if (n->op == OP_output && strcmp(ir_str(n, "name"), except))
			ir_unlink(n);
	}
}

/* The last loss macro that the loss is made of: through element-wise ops, so that `loss a + 0.1*b`
 * finds b's. One backward sweep that marks what is reached in Value.aux. */
static Node *loss_macro(Func *f, Node *loss)
{
	clear_aux(f->body);
	loss->arg[0]->aux = loss;
	for (Node *n = loss; n; n = n->prev) {
		if (n->nres != 1 || !n->res[0]->aux)
			continue;
		if (n->op == OP_cross_entropy || n->op == OP_mse)
			return n;
		for (int i = 0;
		     i < n->nargs && (ir_ops[n->op].kind == K_EWISE || n->op == OP_batch_mean); i++)
			n->arg[i]->aux = loss;
	}
	return NULL;
}

static Func *derive(Func *forward, const char *name, int64_t batch)
{
	Func *f = ir_clone_func(forward->module, forward, name, batch);
	if (!f)
		diag_error(forward->module->diag, NO_SPAN,
			   "func forward cannot be re-typed for batch %lld", (long long)batch);
	return f;
}

/* ---- the functions ---- */

Node *expand_front(const Func *f)
{
	Node *n = f->body->first;
	while (n && n->op == OP_var)
		n = n->next;
	return n;
}

/* 16-bit variables get the f32 numbers, rounded. */
static Value *initial_value(Builder *b, const Var *v)
{
	Type t = v->type;
	if (v->init == INIT_CONST)
		return ir_const(b, t, v->a);
	if (dtype_bytes(t.dtype) == 2)
		t.dtype = DT_F32;
	Attr a[] = { { .f = v->a }, { .f = v->b }, { .i = v->stream } };
	OpCode op = v->init == INIT_UNIFORM ? OP_random_uniform : OP_random_normal;
	return ir_cast(b, ir_value(b, op, 0, NULL, a, &t), v->type.dtype);
}

void expand_init(Func *init, Var *first)
{
	Builder b = ir_builder(init->module, init->body);
	Builder front = b;
	front.before = expand_front(init);
	for (Var *v = first; v; v = v->next) {
		front.span = b.span = v->span;
		Value *var = ir_value(&front, OP_var, 0, NULL, &(Attr){ .s = v->name }, &v->type);
		ir_assign(&b, var, initial_value(&b, v));
		front.before = front.before ? front.before : var->def->next;
	}
}

static bool make_init(Module *m)
{
	expand_init(ir_func(m, "init"), m->vars);
	return true;
}

static bool make_step(Func *forward)
{
	Func *f = derive(forward, "step", forward->batch);
	if (!f)
		return false;
	remove_outputs(f, "loss");
	if (!last_batch_mask(f))
		return false;
	targets_gate(f);
	if (!expand_func(f, true))
		return false;
	ir_dce(f);
	return true;
}

static Value *sum_f32(Builder *b, Value *cond)
{
	return ir_reduce_all(b, OP_sum, ir_cast(b, cond, DT_F32));
}

/* The weights of a weighted cross_entropy's classes, added up over its valid targets. */
static Value *weight_of(Builder *b, const Node *macro, Value *target, Value *valid)
{
	Value *weights = macro->arg[2];
	Type table = weights->type, rows = target->type;
	table.dim[table.ndim++] = 1;
	rows.dtype = weights->type.dtype;
	Value *each = ir_value(b, OP_embedding, 2, (Value *[]){ ir_reshape(b, weights, table), target }, NULL, NULL);
	each = ir_select(b, valid, ir_reshape(b, each, rows), ir_scalar(b, rows.dtype, 0));
	return ir_cast(b, ir_reduce_all(b, OP_sum, each), DT_F32);
}

/* Of each target, whether at most k classes have a logit that is not below its own: itself, equals, and what is not a
 * number count against it. */
static Value *among_top(Builder *b, Value *logits, Value *target, const IntList *last, int64_t k)
{
	Type column = target->type, row = type_scalar(DT_I32);
	column.dim[column.ndim++] = 1;
	row.ndim = 1;
	row.dim[0] = logits->type.dim[logits->type.ndim - 1];
	Value *classes = ir_value(b, OP_iota, 0, NULL, NULL, &row);
	Value *hit = ir_binary(b, OP_eq, classes, ir_cast(b, ir_reshape(b, target, column), DT_I32));
	Value *own = ir_select(b, hit, logits, ir_scalar(b, logits->type.dtype, 0));
	own = ir_reduce(b, OP_sum, own, last, true);
	Value *above = ir_unary(b, OP_not, ir_binary(b, OP_lt, logits, own));
	above = ir_reduce(b, OP_sum, ir_cast(b, above, DT_I32), last, false);
	return ir_binary_c(b, OP_le, above, (double)k);
}

/* Outputs of eval beside the loss. */
static void count_samples(Func *f, const Node *macro, Builder *b)
{
	if (!macro || macro->op != OP_cross_entropy) {
		Type row = type_scalar(DT_F32);
		row.ndim = 1;
		row.dim[0] = f->batch;
		row.batch = 1;
		ir_output(b, "weight", ir_reduce_all(b, OP_sum, ir_const(b, row, 1)));
		return;
	}
	Value *logits = macro->arg[0], *target = macro->arg[1];
	IntList last = ir_list(1, &(int64_t){ logits->type.ndim - 1 });
	if (target->type.dtype != DT_I64)
		target = ir_cast(b, target, DT_I32); /* an unsigned target cannot be compared with a
							negative `ignore` */
	Value *valid = ir_binary_c(b, OP_ne, target, (double)ir_int(macro, "ignore"));
	Value *hit = ir_binary(b, OP_eq, ir_reduce(b, OP_argmax, logits, &last, false), target);
	Value *count = sum_f32(b, valid);
	ir_output(b, "weight", macro->nargs == 3 ? weight_of(b, macro, target, valid) : count);
	ir_output(b, "correct", sum_f32(b, ir_binary(b, OP_and, hit, valid)));
	ir_output(b, "counted", count);
	int64_t k = (int64_t)ir_setting_num(ir_find_section(f->module, "train", ""), "top_k", 0);
	int64_t classes = logits->type.dim[logits->type.ndim - 1];
	if (k >= classes && !strcmp(f->name, "eval"))
		diag_warning(f->module->diag, ir_setting(ir_find_section(f->module, "train", ""), "top_k")->span,
			     "top_k is %lld of %lld classes, among which the right one always is", (long long)k, (long long)classes);
	if (k > 0)
		ir_output(b, "correct_top",
			  sum_f32(b, ir_binary(b, OP_and, among_top(b, logits, target, &last, k), valid)));
}

static bool make_eval(Func *forward, const char *name, int64_t batch)
{
	Func *f = derive(forward, name, batch);
	if (!f)
		return false;
	remove_outputs(f, "loss");
	Node *loss = find_output(f, "loss");
	Builder b = ir_builder(f->module, f->body);
	b.span = loss->span;
	count_samples(f, loss_macro(f, loss), &b);
	if (b.failed || !expand_func(f, false))
		return false;
	ir_dce(f);
	return true;
}

/* Predicts what the model says it predicts, or what its loss compares. */
static bool make_predict(Func *forward, const char *name, int64_t batch)
{
	Func *f = derive(forward, name, batch);
	if (!f)
		return false;
	if (!find_output(f, "predict")) {
		const Node *macro = loss_macro(f, find_output(f, "loss"));
		Builder b = ir_builder(f->module, f->body);
		if (!macro) {
			ir_remove_func(f->module, name);
			return true;
		}
		b.span = macro->span;
		ir_output(&b, "predict", macro->arg[0]);
	}
	remove_outputs(f, "predict");
	if (!expand_func(f, false))
		return false;
	ir_dce(f);
	return true;
}

/* What a macro of class f32 expands into, and the gradients of that, stay in f32: where the run or a block computes in
 * 16 bits. Blocks in f16 are noted for the loss scale, which they need too. */
static void mark_f32(Module *m, const PassCtx *cx, const Func *forward)
{
	Span at;
	int32_t in = 0;
	for (const Node *n = forward->body->first; n; n = n->next)
		in |= n->flags & NF_IN;
	if (in & NF_IN_F16)
		ir_set(m, ir_section(m, "train", "", ""), "fp16_blocks", A_BOOL, (Attr){ .i = true });
	if (precision_low(precision_of(m, cx, &at)) == DT_NONE && !(in & (NF_IN_BF16 | NF_IN_F16)))
		return;
	for (Node *n = forward->body->first; n; n = n->next)
		if (ir_ops[n->op].kind == K_MACRO && ir_ops[n->op].prec == P_F32)
			n->flags |= NF_F32;
}

PassResult pass_expand(Module *m, PassCtx *cx)
{
	Func *forward = ir_find_func(m, "forward");
	if (!forward && ir_find_func(m, "step"))
		return PASS_SAME;
	if (!forward) {
		diag_error(cx->diag, NO_SPAN, "the module has no func forward");
		return PASS_FAILED;
	}
	const Node *loss = find_output(forward, "loss");
	if (!loss) {
		diag_error(cx->diag, NO_SPAN, "the model has no loss");
		return PASS_FAILED;
	}
	const Type *t = &loss->arg[0]->type;
	if (t->ndim || !dtype_is_float(t->dtype)) {
		diag_error(cx->diag, loss->span,
			   "the loss must be one floating-point number, got %s",
			   type_text(cx->arena, t, false));
		return PASS_FAILED;
	}
	mark_f32(m, cx, forward);
	bool good = make_init(m) && make_step(forward) && make_eval(forward, "eval", m->batch) &&
		    make_eval(forward, "eval1", 1) && make_predict(forward, "predict", m->batch) &&
		    make_predict(forward, "predict1", 1);
	ir_remove_func(m, "forward");
	return good ? PASS_CHANGED : PASS_FAILED;
}

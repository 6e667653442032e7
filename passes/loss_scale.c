/* loss_scale: keeps fp16 gradients out of the underflow (semantics.md, "Loss scaling").
 *
 *     backward from 1              backward from S                              (loss_scale_root)
 *     output g {grad:w}       =>   u = g * (1/S)     output u {grad:w}
 *                                  ok = no element of any u is infinite or NaN
 *                                  output ok {gate:finite}
 *                                  S, n = ok ? (n+1 == interval ? (2S, 0) : (S, n+1)) : (S/2, 0)
 *
 * S is the variable dlc.loss_scale, n dlc.loss_scale_steps: so both are in checkpoints, S is the
 * same for all micro-batches of a step, and no host decides anything. The optimizer clips behind
 * this and gates its updates (gate.h). With a static scale, a number, S is a constant and there are
 * no variables.
 *
 * Settings, of the section `train`: loss_scale ("dynamic" or a number), loss_scale_init,
 * loss_scale_growth, loss_scale_backoff, loss_scale_interval.
 *
 * Only fp16 needs a scale, of the run or of a block; other precisions leave the graph as it is. */
#include "loss_scale.h"

#include "expand.h"
#include "gate.h"
#include "precision.h"
#include "tensor_sums.h"

#include <math.h>

static const char scale_name[] = "dlc.loss_scale", steps_name[] = "dlc.loss_scale_steps";

typedef VEC(Value *) Values;

static bool is_scaled(const Module *m, const PassCtx *cx)
{
	Span at;
	return precision_low(precision_of(m, cx, &at)) == DT_F16 ||
	       ir_setting_num(ir_find_section(m, "train", ""), "fp16_blocks", 0) != 0;
}

static const Section *settings(const Module *m)
{
	return ir_find_section(m, "train", "");
}

/* The static scale; 0 where it is dynamic. */
static double static_scale(const Module *m)
{
	const Setting *s = ir_setting(settings(m), "loss_scale");
	return s && s->kind != A_STR ? ir_setting_num(settings(m), "loss_scale", 0) : 0;
}

/* S, in the type of the loss. */
static Value *scale_value(Builder *b, DType t)
{
	double fixed = static_scale(b->m);
	if (fixed > 0)
		return ir_scalar(b, t, fixed);
	Var *v = ir_find_var(b->m, scale_name);
	if (!v) {
		v = ir_var_new(b->m, scale_name, type_scalar(DT_F32), VAR_COUNTER);
		v->a = ir_setting_num(settings(b->m), "loss_scale_init", 65536);
		v->span = NO_SPAN;
	}
	return ir_cast(b, ir_var(b, v), t);
}

Value *loss_scale_root(Builder *b, const PassCtx *cx, const Type *t)
{
	return is_scaled(b->m, cx) ? scale_value(b, t->dtype) : ir_const(b, *t, 1);
}

/* ---- the pass ---- */

static bool is_gradient(const Node *n)
{
	return n->op == OP_output && !strncmp(ir_str(n, "name"), "grad:", 5);
}

/* Divides the gradients by the scale; whether all are finite. NULL where there are none. */
static Value *unscale(Builder *b, Func *step, Value *inverse)
{
	Values scaled = { 0 };
	Node *last = step->body->last;
	for (Node *n = step->body->first, *next; n; n = next) {
		next = n == last ? NULL : n->next; /* not what is made here */
		if (!is_gradient(n))
			continue;
		b->span = n->span;
		Value *g = n->arg[0];
		vec_push(b->m->arena, &scaled, g);
		ir_output(b, ir_str(n, "name"), ir_binary(b, OP_mul, g, ir_cast(b, inverse, g->type.dtype)));
		ir_unlink(n);
	}
	b->span = NO_SPAN;
	return scaled.len ? ir_binary_c(b, OP_eq, tensor_not_finite(b, (int)scaled.len, scaled.at, inverse), 0) : NULL;
}

/* S and n behind this step. */
static void update_scale(Builder *b, Value *s, Value *ok)
{
	const Section *train = settings(b->m);
	double interval = ir_setting_num(train, "loss_scale_interval", 2000);
	Var *v = ir_find_var(b->m, steps_name);
	if (!v)
		v = ir_var_new(b->m, steps_name, type_scalar(DT_I32), VAR_COUNTER);
	v->span = NO_SPAN;
	Value *n = ir_var(b, v), *more = ir_binary_c(b, OP_add, n, 1);
	Value *none = ir_scalar(b, DT_I32, 0), *full = ir_binary_c(b, OP_eq, more, interval);
	Value *grown = ir_binary_c(b, OP_mul, s, ir_setting_num(train, "loss_scale_growth", 2));
	Value *grows = ir_binary(b, OP_and, full, ir_unary(b, OP_is_finite, grown));
	Value *less = ir_binary_c(b, OP_mul, s, ir_setting_num(train, "loss_scale_backoff", 0.5));
	Value *next = ir_select(b, ok, ir_select(b, grows, grown, s), less);
	ir_assign(b, n, ir_select(b, ok, ir_select(b, full, none, more), none));
	ir_assign(b, s, next);
	ir_output(b, "scale", next);
}

PassResult pass_loss_scale(Module *m, PassCtx *cx)
{
	Func *step = ir_find_func(m, "step"), *init = ir_find_func(m, "init");
	if (!step || !is_scaled(m, cx))
		return PASS_SAME;
	bool fixed = static_scale(m) > 0;
	if (!fixed && !ir_find_var(m, scale_name)) {
		diag_error(cx->diag, NO_SPAN,
			   "loss_scale: autodiff has not scaled the loss (it wants --precision too)");
		return PASS_FAILED;
	}
	Builder b = ir_builder(m, step->body);
	b.flags = NF_BACKWARD | NF_OPTIMIZER;
	Value *s = scale_value(&b, DT_F32);
	Value *inverse = ir_binary(&b, OP_div, ir_scalar(&b, DT_F32, 1), s);
	Value *ok = unscale(&b, step, inverse);
	if (!ok) {
		diag_error(cx->diag, NO_SPAN, "loss_scale: func step has no gradients");
		return PASS_FAILED;
	}
	gate_add(&b, "finite", ok);
	if (fixed)
		ir_output(&b, "scale", s);
	else
		update_scale(&b, s, ok);
	if (!fixed && init)
		expand_init(init, ir_find_var(m, scale_name));
	return b.failed ? PASS_FAILED : PASS_CHANGED;
}

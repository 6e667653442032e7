/* optimizer: from gradients to updated variables.
 *
 * Takes the outputs "grad:NAME" that autodiff left in @step, and appends, in this order
 * (semantics.md, "Optimizers and clipping"): t = dlc.step + 1; the learning rate at the old step;
 * the global norm and the clipped gradients, where asked for; the update of each parameter, as the
 * expansion of an optimizer row of the op table; dlc.step = t. The variables that this needs are
 * made here and get their initial values in @init:
 *
 *     dlc.step                  i64 counter of optimizer steps
 *     dlc.adamw.m.NAME, .v.     moments (dlc.adam. likewise)
 *     dlc.sgd.momentum.NAME     momentum buffer, where momentum > 0
 *
 * Settings, of the section `train`: optimizer, lr, lr_kind, lr_min, lr_warmup, lr_total, lr_param,
 * weight_decay, momentum, dampening, nesterov, beta1, beta2, eps, clip_norm, log_grad_norm,
 * keep_gradients. Weight decay applies to parameters of two or more dimensions, unless a parameter
 * says otherwise (Var.decay). */
#include "expand.h"
#include "simplify.h"
#include "var_index.h"

#include <math.h>

typedef struct Optimizer {
	Module *m;
	Diag *diag;
	const Section *train;
	Builder b, front; /* at the end of step; where its `var` nodes are */
	VarIndex vars;    /* that there were before */
	Var *first_new;
	OpCode op;     /* OP_sgd, OP_adam or OP_adamw */
	Value *lr, *t; /* f64[], i64[] */
	bool good;
} Optimizer;

typedef struct Gradient {
	Var *var;
	VarEntry *entry;
	Value *g;
} Gradient;

typedef VEC(Gradient) Gradients;

/* ---- settings ---- */

/* The number `key` of `train`; an error at the setting, with what is `wanted`, where `good` does
 * not hold. */
static double checked(Optimizer *o, const char *key, double v, bool good, const char *wanted)
{
	if (good)
		return v;
	const Setting *s = ir_setting(o->train, key);
	diag_error(o->diag, s ? s->span : NO_SPAN, "train: %s must be %s, got %g", key, wanted, v);
	o->good = false;
	return 0;
}

static double amount(Optimizer *o, const char *key, double dflt)
{
	double v = ir_setting_num(o->train, key, dflt);
	return checked(o, key, v, v >= 0 && isfinite(v), "a number from 0 on");
}

/* Below 1, where 1 itself would make a bias correction of 0. */
static double beta(Optimizer *o, const char *key, double dflt)
{
	double v = ir_setting_num(o->train, key, dflt);
	return checked(o, key, v, v >= 0 && v < 1, "from 0 to below 1");
}

/* A number of steps. */
static int64_t steps(Optimizer *o, const char *key, double dflt)
{
	double v = ir_setting_num(o->train, key, dflt);
	return (int64_t)checked(o, key, v, v >= 0 && v <= 1e15, "a number of steps");
}

static bool flag(const Optimizer *o, const char *key)
{
	return ir_setting_num(o->train, key, 0) != 0;
}

static bool choose_optimizer(Optimizer *o)
{
	const char *name = ir_setting_str(o->train, "optimizer", "adamw");
	OpCode op = op_from_name(name, strlen(name));
	if (op == OP_sgd || op == OP_adam || op == OP_adamw) {
		o->op = op;
		return true;
	}
	const Setting *s = ir_setting(o->train, "optimizer");
	diag_error(o->diag, s ? s->span : NO_SPAN,
		   "train: '%s' is not an optimizer (sgd, adam, adamw)", name);
	return false;
}

/* ---- gradients ---- */

/* Marks the variables that step assigns already: they cannot be updated as well. */
static void mark_assigned(Optimizer *o, const Func *step)
{
	for (const Node *n = step->body->first; n; n = n->next) {
		const Node *var = n->op == OP_assign ? n->arg[0]->def : NULL;
		if (!var || var->op != OP_var)
			continue;
		VarEntry *e = var_index_find(&o->vars, ir_str(var, "name"));
		if (e)
			e->mark = true;
	}
}

/* Takes the gradient outputs, in order; they stay as outputs where `keep_gradients` asks for them.
 */
static bool take_gradients(Optimizer *o, Func *step, Gradients *out)
{
	bool keep = flag(o, "keep_gradients");
	mark_assigned(o, step);
	for (Node *n = step->body->first, *next; n; n = next) {
		next = n->next;
		if (n->op != OP_output || strncmp(ir_str(n, "name"), "grad:", 5))
			continue;
		VarEntry *e = var_index_find(&o->vars, ir_str(n, "name") + 5);
		if (!e) {
			diag_error(o->diag, n->span, "optimizer: no variable of the name '%s'",
				   ir_str(n, "name") + 5);
			return false;
		}
		if (e->mark) {
			diag_error(o->diag, n->span, "optimizer: '%s' is assigned already",
				   e->var->name);
			return false;
		}
		e->mark = true;
		vec_push(o->m->arena, out, ((Gradient){ e->var, e, n->arg[0] }));
		if (!keep)
			ir_unlink(n);
	}
	if (!out->len)
		diag_error(o->diag, NO_SPAN, "optimizer: func step has no gradients");
	return out->len > 0;
}

/* The L2 norm of all gradients as one vector, in their dtype (f64 where they differ). */
static Value *global_norm(Optimizer *o, const Gradients *gs)
{
	Builder *b = &o->b;
	DType d = gs->at[0].g->type.dtype;
	Value *sum = NULL;
	for (size_t i = 1; i < gs->len; i++)
		d = gs->at[i].g->type.dtype == d ? d : DT_F64;
	for (size_t i = 0; i < gs->len; i++) {
		Value *g = gs->at[i].g;
		b->span = gs->at[i].var->span;
		Value *squares =
			ir_cast(b, ir_reduce_all(b, OP_sum, ir_binary(b, OP_mul, g, g)), d);
		sum = sum ? ir_binary(b, OP_add, sum, squares) : squares;
	}
	return ir_unary(b, OP_sqrt, sum);
}

/* g *= min(1, max/(norm + 1e-6)), always multiplied. */
static void clip(Optimizer *o, Gradients *gs)
{
	Builder *b = &o->b;
	double most = amount(o, "clip_norm", 0);
	if (!(most > 0) && !flag(o, "log_grad_norm"))
		return;
	Value *norm = global_norm(o, gs);
	b->span = NO_SPAN;
	ir_output(b, "grad_norm", norm);
	if (!(most > 0))
		return;
	Value *ratio = ir_binary(b, OP_div, ir_scalar(b, norm->type.dtype, most),
				 ir_binary_c(b, OP_add, norm, 1e-6));
	Value *by = ir_binary_c(b, OP_min, ratio, 1);
	for (size_t i = 0; i < gs->len; i++) {
		Gradient *g = &gs->at[i];
		b->span = g->var->span;
		g->g = ir_binary(b, OP_mul, g->g, ir_cast(b, by, g->g->type.dtype));
	}
}

/* ---- variables ---- */

static Value *var_value(Optimizer *o, VarEntry *e)
{
	if (!e->read)
		e->read = ir_value(&o->front, OP_var, 0, NULL, &(Attr){ .s = e->var->name },
				   &e->var->type);
	return e->read;
}

/* The value of a variable of this pass, which a module that was trained before may have. */
static Value *own_var(Optimizer *o, const char *name, Type type, VarRole role, Span span)
{
	VarEntry *e = var_index_find(&o->vars, name);
	if (e)
		return var_value(o, e);
	Var *v = ir_var_new(o->m, name, type, role);
	v->span = span;
	o->first_new = o->first_new ? o->first_new : v;
	return var_value(o, &(VarEntry){ .var = v });
}

static Value *state(Optimizer *o, const char *kind, const Var *p)
{
	const char *name =
		arena_printf(o->m->arena, "dlc.%s.%s.%s", ir_ops[o->op].name, kind, p->name);
	return own_var(o, name, p->type, VAR_OPT, p->span);
}

/* ---- updates ---- */

static Value *learning_rate(Optimizer *o, Value *old_step)
{
	Attr a[] = {
		{ .s = ir_setting_str(o->train, "lr_kind", "constant") },
		{ .f = amount(o, "lr", 1e-3) },
		{ .f = amount(o, "lr_min", 0) },
		{ .i = steps(o, "lr_warmup", 0) },
		{ .i = steps(o, "lr_total", ir_setting_num(o->train, "steps", 1000)) },
		{ .f = amount(o, "lr_param", 0) },
	};
	const Setting *kind = ir_setting(o->train, "lr_kind");
	o->b.span = kind ? kind->span : NO_SPAN;
	return ir_value(&o->b, OP_schedule, 1, &old_step, a, NULL);
}

static Node *sgd_node(Optimizer *o, const Gradient *g, double decay)
{
	Value *args[] = { var_value(o, g->entry), g->g, o->lr, o->t, NULL };
	double momentum = amount(o, "momentum", 0);
	Attr a[] = { { .f = momentum },
		     { .f = amount(o, "dampening", 0) },
		     { .i = flag(o, "nesterov") },
		     { .f = decay } };
	if (momentum > 0)
		args[4] = state(o, "momentum", g->var);
	return ir_node(&o->b, OP_sgd, momentum > 0 ? 5 : 4, args, a, NULL);
}

static Node *adam_node(Optimizer *o, const Gradient *g, double decay)
{
	Value *m = state(o, "m", g->var), *v = state(o, "v", g->var);
	Value *args[] = { var_value(o, g->entry), g->g, o->lr, o->t, m, v };
	Attr a[] = { { .f = beta(o, "beta1", 0.9) },
		     { .f = beta(o, "beta2", 0.999) },
		     { .f = amount(o, "eps", 1e-8) },
		     { .f = decay } };
	return ir_node(&o->b, o->op, 6, args, a, NULL);
}

/* The row of the op table says how; its expansion takes the node's place. */
static void update(Optimizer *o, const Gradient *g)
{
	bool decays = g->var->decay < 0 ? g->var->type.ndim >= 2 : g->var->decay > 0;
	double decay = decays ? amount(o, "weight_decay", o->op == OP_adamw ? 0.01 : 0) : 0;
	o->b.span = g->var->span;
	Node *n = o->op == OP_sgd ? sgd_node(o, g, decay) : adam_node(o, g, decay);
	if (!o->good || o->b.failed)
		return;
	o->good = ir_ops[n->op].expand(&o->b, n, true, NULL);
	ir_unlink(n);
}

/* Nesterov's step looks ahead along a buffer that holds whole gradients. */
static bool check_nesterov(Optimizer *o)
{
	const Setting *s = ir_setting(o->train, "nesterov");
	if (o->op != OP_sgd || !flag(o, "nesterov"))
		return true;
	if (amount(o, "momentum", 0) > 0 && amount(o, "dampening", 0) <= 0)
		return true;
	diag_error(o->diag, s->span, "train: nesterov needs momentum and no dampening");
	return false;
}

static bool build_updates(Optimizer *o, Func *step)
{
	Gradients gs = { 0 };
	if (!choose_optimizer(o) || !check_nesterov(o) || !take_gradients(o, step, &gs))
		return false;
	o->front.before = expand_front(step);
	Value *count = own_var(o, "dlc.step", type_scalar(DT_I64), VAR_COUNTER, NO_SPAN);
	o->t = ir_binary_c(&o->b, OP_add, count, 1);
	o->lr = learning_rate(o, count);
	if (o->b.failed)
		return false;
	o->b.span = NO_SPAN;
	ir_output(&o->b, "lr", o->lr);
	clip(o, &gs);
	for (size_t i = 0; i < gs.len && o->good && !o->b.failed; i++)
		update(o, &gs.at[i]);
	o->b.span = NO_SPAN;
	ir_assign(&o->b, count, o->t);
	return o->good && !o->b.failed;
}

PassResult pass_optimizer(Module *m, PassCtx *cx)
{
	Func *step = ir_find_func(m, "step");
	if (!step) {
		diag_error(cx->diag, NO_SPAN, "the module has no func step");
		return PASS_FAILED;
	}
	Func *init = ir_find_func(m, "init");
	Optimizer o = { .m = m,
			.diag = cx->diag,
			.train = ir_find_section(m, "train", ""),
			.b = ir_builder(m, step->body),
			.front = ir_builder(m, step->body),
			.vars = var_index(cx->arena, m, step),
			.good = true };
	o.b.flags = NF_BACKWARD | NF_OPTIMIZER;
	if (!build_updates(&o, step))
		return PASS_FAILED;
	if (init && o.first_new)
		expand_init(init, o.first_new);
	simplify_func(step, true);
	return PASS_CHANGED;
}

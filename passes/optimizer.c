/* optimizer: from gradients to updated variables.
 *
 * Takes the outputs "grad:NAME" that autodiff left in @step, and appends, in this order
 * (semantics.md, "Optimizers and clipping"): t = dlc.step + 1; the learning rate at the old step;
 * the global norm and the clipped gradients, where asked for; the update of each parameter, as the
 * expansion of an optimizer row of the op table; dlc.step = t. The variables that this needs are
 * made here and get their initial values in @init:
 *
 *     dlc.step                  i64 counter of optimizer steps
 *     dlc.adamw.m.NAME, .v.     moments (dlc.adam. likewise; dlc.lion.m.)
 *     dlc.sgd.momentum.NAME     momentum buffer, where momentum > 0
 *     dlc.adafactor.row.NAME, .column.     second moment of what has two or more dimensions
 *     dlc.adafactor.v.NAME      second moment of a vector
 *     dlc.ema.NAME              moving average of a parameter, where `ema` asks for it
 *
 * Where another pass left gates (gate.h), the updates happen only if all are open, and there is an
 * output `skipped`.
 *
 * Settings, of the section `train`: optimizer, lr, lr_kind, lr_min, lr_warmup, lr_total, lr_param,
 * weight_decay, momentum, dampening, nesterov, beta1, beta2, eps, beta2_decay, eps1, eps2, d,
 * clip_norm, clip_value, ema, log_grad_norm, keep_gradients. A parameter of a group (Var.group) takes
 * those of its update from the section "group gN" first, and lr_scale. Weight decay applies to
 * parameters of two or more dimensions, unless the parameter (Var.decay) or its group says otherwise.
 *
 * Moving averages take the place of parameters in the functions that do not train: eval, predict. */
#include "expand.h"
#include "gate.h"
#include "simplify.h"
#include "tensor_sums.h"
#include "var_index.h"

#include <math.h>

typedef struct Optimizer {
	Module *m;
	Diag *diag;
	const Section *train, *group; /* of the parameter at hand; NULL: in no group */
	Builder b, front; /* at the end of step; where its `var` nodes are */
	VarIndex vars;    /* that there were before */
	Var *first_new;
	OpCode op;     /* a row of rules[] */
	Value *lr, *t; /* f64[], i64[] */
	Value *clip;   /* the factor of all gradients, where the update itself takes it; NULL */
	VEC(Value *) rates; /* lr of each group, by number; NULL: not asked for yet */
	bool good;
} Optimizer;

typedef struct Gradient {
	Var *var;
	VarEntry *entry;
	Value *g;
} Gradient;

typedef VEC(Gradient) Gradients;

/* ---- settings ---- */

/* Where `key` is set for the parameter at hand. */
static const Section *section_of(const Optimizer *o, const char *key)
{
	return ir_setting(o->group, key) ? o->group : o->train;
}

/* The number `key`; an error at the setting, with what is `wanted`, where `good` does not hold. */
static double checked(Optimizer *o, const char *key, double v, bool good, const char *wanted)
{
	if (good)
		return v;
	const Section *of = section_of(o, key);
	const Setting *s = ir_setting(of, key);
	diag_error(o->diag, s ? s->span : NO_SPAN, "%s: %s must be %s, got %g",
		   o->group && of == o->group ? "group" : "train", key, wanted, v);
	o->good = false;
	return 0;
}

static double number(const Optimizer *o, const char *key, double dflt)
{
	return ir_setting_num(section_of(o, key), key, dflt);
}

static double amount(Optimizer *o, const char *key, double dflt)
{
	double v = number(o, key, dflt);
	return checked(o, key, v, v >= 0 && isfinite(v), "a number from 0 on");
}

/* Below 1, where 1 itself would make a bias correction of 0. */
static double beta(Optimizer *o, const char *key, double dflt)
{
	double v = number(o, key, dflt);
	return checked(o, key, v, v >= 0 && v < 1, "from 0 to below 1");
}

/* A number of steps. */
static int64_t steps(Optimizer *o, const char *key, double dflt)
{
	double v = number(o, key, dflt);
	return (int64_t)checked(o, key, v, v >= 0 && v <= 1e15, "a number of steps");
}

static bool flag(const Optimizer *o, const char *key)
{
	return number(o, key, 0) != 0;
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

/* The scalar that every gradient has been multiplied by, as loss scaling does (loss_scale.c); NULL. */
static Value *common_factor(const Gradients *gs)
{
	Value *by = NULL;
	for (size_t i = 0; i < gs->len; i++) {
		const Node *d = gs->at[i].g->def;
		if (!d || d->op != OP_mul || d->arg[1]->type.ndim > 0 || (by && d->arg[1] != by))
			return NULL;
		by = d->arg[1];
	}
	return by;
}

/* The L2 norm of all gradients as one vector, in their dtype (f64 where they differ). What a common factor makes of them is
 * not stored for it. */
static Value *global_norm(Optimizer *o, const Gradients *gs)
{
	Value *by = common_factor(gs), **x = ARENA_ARRAY(o->m->arena, gs->len, Value *);
	for (size_t i = 0; i < gs->len; i++)
		x[i] = by ? gs->at[i].g->def->arg[0] : gs->at[i].g;
	o->b.span = NO_SPAN;
	return ir_unary(&o->b, OP_sqrt, tensor_squares(&o->b, (int)gs->len, x, by));
}

/* g *= min(1, max/(norm + 1e-6)), always multiplied. Adafactor, whose kernels each read the gradient, does it in them. */
static void clip_norm(Optimizer *o, Gradients *gs)
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
	if (o->op == OP_adafactor)
		o->clip = by;
	for (size_t i = 0; !o->clip && i < gs->len; i++) {
		Gradient *g = &gs->at[i];
		b->span = g->var->span;
		g->g = ir_binary(b, OP_mul, g->g, ir_cast(b, by, g->g->type.dtype));
	}
}

/* Each element into [-most, most], after the norm was clipped. */
static void clip_value(Optimizer *o, Gradients *gs)
{
	Builder *b = &o->b;
	double most = amount(o, "clip_value", 0);
	for (size_t i = 0; most > 0 && o->op != OP_adafactor && i < gs->len; i++) {
		Gradient *g = &gs->at[i];
		b->span = g->var->span;
		g->g = ir_binary_c(b, OP_min, ir_binary_c(b, OP_max, g->g, -most), most);
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

static Value *state_of(Optimizer *o, const char *kind, const Var *p, Type type)
{
	const char *name =
		arena_printf(o->m->arena, "dlc.%s.%s.%s", ir_ops[o->op].name, kind, p->name);
	return own_var(o, name, type, VAR_OPT, p->span);
}

static Value *state(Optimizer *o, const char *kind, const Var *p)
{
	return state_of(o, kind, p, p->type);
}

/* ---- learning rates ---- */

static Value *schedule(Optimizer *o, Value *old_step)
{
	Attr a[] = {
		{ .s = ir_setting_str(section_of(o, "lr_kind"), "lr_kind", "constant") },
		{ .f = amount(o, "lr", 1e-3) },
		{ .f = amount(o, "lr_min", 0) },
		{ .i = steps(o, "lr_warmup", 0) },
		{ .i = steps(o, "lr_total", ir_setting_num(o->train, "steps", 1000)) },
		{ .f = amount(o, "lr_param", 0) },
	};
	const Setting *kind = ir_setting(section_of(o, "lr_kind"), "lr_kind");
	o->b.span = kind ? kind->span : NO_SPAN;
	return ir_value(&o->b, OP_schedule, 1, &old_step, a, NULL);
}

/* The rate of the group at hand, made once. */
static Value *rate(Optimizer *o, int32_t group)
{
	if (!o->group)
		return o->lr;
	while (o->rates.len <= (size_t)group)
		vec_push(o->m->arena, &o->rates, NULL);
	Value **known = &o->rates.at[group];
	if (*known)
		return *known;
	double scale = amount(o, "lr_scale", 1);
	Value *own = ir_setting(o->group, "lr") ? schedule(o, o->t->def->arg[0]) : o->lr;
	*known = scale == 1 ? own : ir_binary_c(&o->b, OP_mul, own, scale);
	return *known;
}

/* ---- updates ---- */

typedef struct Update {
	const Gradient *g;
	Value *p, *lr;
	double decay;
} Update;

static Node *sgd_node(Optimizer *o, const Update *u)
{
	Value *args[] = { u->p, u->g->g, u->lr, o->t, NULL };
	double momentum = amount(o, "momentum", 0), dampening = amount(o, "dampening", 0);
	bool nesterov = flag(o, "nesterov");
	Attr a[] = { { .f = momentum }, { .f = dampening }, { .i = nesterov }, { .f = u->decay } };
	/* It looks ahead along a buffer that holds whole gradients. */
	if (o->good && nesterov && !(momentum > 0 && dampening <= 0)) {
		diag_error(o->diag, ir_setting(section_of(o, "nesterov"), "nesterov")->span,
			   "%s: nesterov needs momentum and no dampening",
			   o->group ? "group" : "train");
		o->good = false;
	}
	if (momentum > 0)
		args[4] = state(o, "momentum", u->g->var);
	return ir_node(&o->b, OP_sgd, momentum > 0 ? 5 : 4, args, a, NULL);
}

static Node *adam_node(Optimizer *o, const Update *u)
{
	Value *m = state(o, "m", u->g->var), *v = state(o, "v", u->g->var);
	Value *args[] = { u->p, u->g->g, u->lr, o->t, m, v };
	Attr a[] = { { .f = beta(o, "beta1", 0.9) },
		     { .f = beta(o, "beta2", 0.999) },
		     { .f = amount(o, "eps", 1e-8) },
		     { .f = u->decay } };
	return ir_node(&o->b, o->op, 6, args, a, NULL);
}

static Node *lion_node(Optimizer *o, const Update *u)
{
	Value *args[] = { u->p, u->g->g, u->lr, o->t, state(o, "m", u->g->var) };
	Attr a[] = { { .f = beta(o, "beta1", 0.9) },
		     { .f = beta(o, "beta2", 0.99) },
		     { .f = u->decay } };
	return ir_node(&o->b, OP_lion, 5, args, a, NULL);
}

static Node *adafactor_node(Optimizer *o, const Update *u)
{
	const Var *p = u->g->var;
	Value *args[] = { u->p, u->g->g, u->lr, o->t, NULL, NULL, NULL };
	int n = 4;
	double decay = number(o, "beta2_decay", -0.8), d = number(o, "d", 1);
	Attr a[] = { { .f = checked(o, "beta2_decay", decay, decay <= 0 && isfinite(decay),
				    "a number up to 0") },
		     { .f = amount(o, "eps1", 0) },
		     { .f = amount(o, "eps2", 1e-3) },
		     { .f = checked(o, "d", d, d >= 1 && isfinite(d), "a number from 1 on") },
		     { .f = u->decay },
		     { .f = ir_setting_num(o->train, "clip_value", 0) } };
	if (!o->good)
		return NULL;
	if (p->type.ndim < 2) {
		args[n++] = state(o, "v", p);
	} else {
		Type row = p->type, column = p->type;
		row.dim[row.ndim - 1] = column.dim[column.ndim - 2] = 1;
		args[n++] = state_of(o, "row", p, row);
		args[n++] = state_of(o, "column", p, column);
	}
	if (o->clip)
		args[n++] = ir_cast(&o->b, o->clip, p->type.dtype);
	return ir_node(&o->b, OP_adafactor, n, args, a, NULL);
}

static const struct Rule {
	OpCode op;
	double decay; /* weight decay where nothing is said */
	Node *(*node)(Optimizer *o, const Update *u);
} rules[] = {
	{ OP_sgd, 0, sgd_node },   { OP_adam, 0, adam_node },           { OP_adamw, 0.01, adam_node },
	{ OP_lion, 0, lion_node }, { OP_adafactor, 0, adafactor_node },
};
enum { RULES = sizeof rules / sizeof *rules };

static const struct Rule *rule_of(OpCode op)
{
	for (size_t i = 0; i < RULES; i++)
		if (rules[i].op == op)
			return &rules[i];
	return NULL;
}

static bool choose_optimizer(Optimizer *o)
{
	const char *name = ir_setting_str(o->train, "optimizer", "adamw");
	o->op = op_from_name(name, strlen(name));
	if (rule_of(o->op))
		return true;
	const Setting *s = ir_setting(o->train, "optimizer");
	diag_error(o->diag, s ? s->span : NO_SPAN,
		   "train: '%s' is not an optimizer (sgd, adam, adamw, lion, adafactor)", name);
	return false;
}

static double decay_of(Optimizer *o, const Var *v)
{
	bool decays = v->decay < 0 ? v->type.ndim >= 2 : v->decay > 0;
	decays |= ir_setting(o->group, "weight_decay") != NULL;
	return decays ? amount(o, "weight_decay", rule_of(o->op)->decay) : 0;
}

/* As torch.optim.swa_utils.AveragedModel: the first step's parameters, then d*average + (1-d)*p. */
static void average(Optimizer *o, const Gradient *g, double d)
{
	Builder *b = &o->b;
	const Node *n = b->block->last;
	while (n->op != OP_assign || n->arg[0] != g->entry->read)
		n = n->prev;
	const char *name = arena_printf(o->m->arena, "dlc.ema.%s", g->var->name);
	Value *p = n->arg[1], *old = own_var(o, name, g->var->type, VAR_OPT, g->var->span);
	Var *shadow = ir_find_var(o->m, name);
	shadow->init = g->var->init; /* the same numbers: an average of no steps is the parameter */
	shadow->a = g->var->a;
	shadow->b = g->var->b;
	shadow->stream = g->var->stream;
	Value *next = ir_binary(b, OP_add, old,
				ir_binary_c(b, OP_mul, ir_binary(b, OP_sub, p, old), 1 - d));
	ir_assign(b, old, ir_select(b, ir_binary_c(b, OP_eq, o->t, 1), p, next));
}

/* The row of the op table says how; its expansion takes the node's place. */
static void update(Optimizer *o, const Gradient *g, double ema)
{
	const char *name = arena_printf(o->m->arena, "g%d", (int)g->var->group);
	o->group = g->var->group ? ir_find_section(o->m, "group", name) : NULL;
	o->b.span = g->var->span;
	Update u = { g, var_value(o, g->entry), rate(o, g->var->group), decay_of(o, g->var) };
	o->b.span = g->var->span;
	Node *n = o->good ? rule_of(o->op)->node(o, &u) : NULL;
	o->good = o->good && n && !o->b.failed && ir_ops[n->op].expand(&o->b, n, true, NULL);
	if (o->good) {
		ir_unlink(n);
		if (ema > 0)
			average(o, g, ema);
	}
	o->group = NULL;
}

/* eval and predict read the averages. */
static void read_averages(Optimizer *o)
{
	for (Func *f = o->m->funcs; f; f = f->next) {
		if (!strcmp(f->name, "init") || !strcmp(f->name, "step"))
			continue;
		for (Node *n = f->body->first; n; n = n->next) {
			const char *name = n->op == OP_var ? ir_str(n, "name") : "";
			const Var *v = ir_find_var(o->m, arena_printf(o->m->arena, "dlc.ema.%s", name));
			if (v)
				ir_attr(n, "name")->s = v->name;
		}
	}
}

static bool build_updates(Optimizer *o, Func *step)
{
	Gradients gs = { 0 };
	if (!choose_optimizer(o) || !take_gradients(o, step, &gs))
		return false;
	o->front.before = expand_front(step);
	o->b.span = NO_SPAN;
	Value *ok = gate_take(&o->b, step);
	Node *before = step->body->last;
	Value *count = own_var(o, "dlc.step", type_scalar(DT_I64), VAR_COUNTER, NO_SPAN);
	o->t = ir_binary_c(&o->b, OP_add, count, 1);
	o->lr = schedule(o, count);
	if (o->b.failed)
		return false;
	o->b.span = NO_SPAN;
	ir_output(&o->b, "lr", o->lr);
	clip_norm(o, &gs);
	clip_value(o, &gs);
	double ema = beta(o, "ema", 0);
	for (size_t i = 0; i < gs.len && o->good && !o->b.failed; i++)
		update(o, &gs.at[i], ema);
	if (ema > 0)
		read_averages(o);
	o->b.span = NO_SPAN;
	ir_assign(&o->b, count, o->t);
	if (ok) {
		gate_assigns(o->m, before->next, ok);
		gate_statistics(&o->b, step, ok);
		ir_output(&o->b, "skipped", ir_unary(&o->b, OP_not, ok));
	}
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

/* Adapters of low rank (Hu et al., LoRA, 2021) on linear layers, as the library PEFT makes them.
 *
 *     y = matmul x, w        =>     y + scale * matmul(matmul(dropout(x), A), B)
 *
 * with A = NAME.lora_A.weight [rank, in] uniform within 1/sqrt(in), B = NAME.lora_B.weight [out,
 * rank] zeros, scale = alpha / rank, for each layer NAME that the pattern names: a weight NAME.weight
 * (or NAME itself) of two dimensions that products alone read, as their right operand; [out, in] and
 * [in, out] are both taken as they are. An adapter so begins as nothing, and can be added to the
 * weight: the section "lora WEIGHT" says of what it is made, for the trainer's `export --merge`. */
#include "settings.h"

#include <math.h>

/* ---- reading ---- */

void lora_read(Train *t, const Expr *e, Lora *out)
{
	static const char *const usage = "lora(on, rank = 8, alpha = rank, dropout = 0)";
	Front *f = t->f;
	Actuals args;

	if (e->kind == E_NONE)
		return;
	if (e->kind != E_CALL || e->call.primitive || strcmp(e->call.name, "lora") != 0) {
		if (front_error(f, &t->frame, e->span, "expected the adapters of some layers"))
			diag_hint(f->diag, "such as lora(\"*.c_attn\", rank = 8, alpha = 16)");
		return;
	}
	for (Arg *a = e->call.args; a; a = a->next)
		sema_constant(f, a->value);
	if (!eval_args(f, &t->frame, e->call.args, &args) || args.poison)
		return;
	const Actual *on = actual_take(&args, 0, "on"), *rank = actual_take(&args, 1, "rank");
	const Actual *alpha = actual_take(&args, 2, "alpha"), *drop = actual_take(&args, 3, "dropout");
	if (!actuals_done(f, &t->frame, &args, "lora", usage))
		return;
	if (!on) {
		if (front_error(f, &t->frame, e->span, "lora needs the names of layers"))
			diag_hint(f->diag, "it is called as %s", usage);
		return;
	}
	*out = (Lora){ .rank = 8, .span = e->span };
	if (rank)
		out->rank = (int64_t)settings_number(t, rank->expr, rank->v, "rank", A_INT, 1, 1 << 20, 8);
	out->alpha = (double)out->rank;
	if (alpha)
		out->alpha = settings_number(t, alpha->expr, alpha->v, "alpha", A_FLOAT, 0, 1e30, 1);
	if (drop)
		out->dropout = settings_number(t, drop->expr, drop->v, "dropout", A_FLOAT, 0, 0.999, 0);
	out->on = patterns_of(t, on->expr, on->v, "on");
}

/* ---- applying ---- */

/* How a weight is read (Value.aux of its `var` node). */
typedef struct Readers {
	int products, others;
} Readers;

static bool is_product(const Node *n, const Value *w)
{
	return n->op == OP_matmul && n->arg[1] == w && n->arg[0] != w;
}

static void count_readers(Front *f)
{
	for (Node *n = f->func->body->first; n; n = n->next) {
		if (n->op == OP_var)
			n->res[0]->aux = ARENA_NEW(f->arena, Readers);
		for (int i = 0; i < n->nargs; i++) {
			Readers *r = n->arg[i]->def && n->arg[i]->def->op == OP_var ? n->arg[i]->aux
										     : NULL;
			if (r && is_product(n, n->arg[i]))
				r->products++;
			else if (r)
				r->others++;
		}
	}
}

/* "h.0.attn.c_attn" of "h.0.attn.c_attn.weight" */
static const char *layer_of(Front *f, const char *name)
{
	size_t n = strlen(name);

	return n > 7 && !strcmp(name + n - 7, ".weight") ? arena_strndup(f->arena, name, n - 7) : name;
}

typedef struct Adapter {
	const Lora *l;
	Value *w, *a, *b;
	double scale;
} Adapter;

static Type matrix(DType t, int64_t rows, int64_t columns)
{
	return type_make(t, 2, (int64_t[]){ rows, columns });
}

/* The two parameters, and the section that says what they belong to. */
static bool make_adapter(Front *f, const Lora *l, const VarUse *w, const char *layer, bool in_out,
			 Adapter *out)
{
	const Type *t = &w->value->type;
	int64_t in = t->dim[in_out ? 0 : 1], rows = t->dim[in_out ? 1 : 0];
	Type ta = matrix(t->dtype, l->rank, in), tb = matrix(t->dtype, rows, l->rank);
	double bound = 1 / sqrt((double)in);
	const char *na = arena_printf(f->arena, "%s.lora_A.weight", layer);
	const char *nb = arena_printf(f->arena, "%s.lora_B.weight", layer);
	VarUse *a = param_add(f, na, &ta, &(InitVal){ INIT_UNIFORM, -bound, bound }, w->var->span);
	VarUse *b = param_add(f, nb, &tb, &(InitVal){ INIT_CONST, 0, 0 }, w->var->span);

	if (!a || !b) {
		front_error(f, NULL, w->var->span, "the model has a parameter '%s' already",
			    a ? nb : na);
		return false;
	}
	*out = (Adapter){ l, w->value, a->value, b->value, l->alpha / (double)l->rank };
	Section *s = ir_section(f->module, "lora", w->var->name, "");
	s->span = l->span;
	ir_set(f->module, s, "a", A_STR, (Attr){ .s = na });
	ir_set(f->module, s, "b", A_STR, (Attr){ .s = nb });
	ir_set(f->module, s, "scale", A_FLOAT, (Attr){ .f = out->scale });
	ir_set(f->module, s, "in_out", A_BOOL, (Attr){ .i = in_out });
	return true;
}

/* Adds the adapter's product to the result of n. */
static void adapt(Front *f, Node *n, const Adapter *x)
{
	Builder b = ir_builder(f->module, f->func->body);
	Value *in = n->arg[0], *y = n->res[0];
	Node *next = n->next;

	b.before = next;
	b.span = n->span;
	b.flags = n->flags & NF_IN;
	if (x->l->dropout > 0)
		in = ir_value(&b, OP_dropout, 1, &in,
			      (Attr[]){ { .f = x->l->dropout }, { .i = f->module->streams++ } }, NULL);
	Value *low = ir_matmul(&b, in, x->a, ir_int(n, "ta") != 0, true);
	Value *up = ir_matmul(&b, low, x->b, false, true);
	if (x->scale != 1)
		up = ir_binary_c(&b, OP_mul, up, x->scale);
	Value *sum = ir_binary(&b, OP_add, y, up);
	ir_replace_uses(f->func->body, y, sum);
	sum->def->arg[0] = y;
}

static void adapt_all(Front *f, const Adapter *x)
{
	for (Node *n = f->func->body->first, *next; n; n = next) {
		next = n->next;
		if (is_product(n, x->w))
			adapt(f, n, x);
	}
}

/* Whether products read it in one layout; *in_out: the second axis is the layer's output. */
static bool one_layout(Front *f, const Value *w, bool *in_out)
{
	int kinds = 0;

	for (const Node *n = f->func->body->first; n; n = n->next)
		if (is_product(n, w)) {
			*in_out = !ir_int(n, "tb");
			kinds |= 1 << *in_out;
		}
	return kinds != 3;
}

/* A weight that others read as well would not be the same with its adapter merged. */
static void refuse_shared(Front *f, Pattern *on, const Var *v, const char *layer)
{
	for (Pattern *p = on; p; p = p->next)
		if ((!strcmp(p->text, v->name) || !strcmp(p->text, layer)) &&
		    front_error(f, NULL, p->span,
				"'%s' is read by more than linear layers and can have no adapter",
				v->name))
			diag_note(f->diag, v->span, "it is made here");
}

void lora_apply(Front *f, const Lora *l)
{
	NameMap layers = { 0 };
	Var *last = f->module->last_var;

	count_readers(f);
	for (Var *v = f->module->vars; v; v = v == last ? NULL : v->next) {
		const VarUse *u = v->role == VAR_PARAM ? name_get(&f->vars, v->name) : NULL;
		const Readers *r = u ? u->value->aux : NULL;
		const char *layer = layer_of(f, v->name);
		bool in_out = false;
		Adapter x;
		if (!r || v->type.ndim != 2 || !r->products)
			continue;
		if (r->others || !one_layout(f, u->value, &in_out)) {
			refuse_shared(f, l->on, v, layer);
			continue;
		}
		name_put(f->arena, &layers, layer, v);
		bool named = pattern_match(l->on, layer) != NULL;
		named |= pattern_match(l->on, v->name) != NULL;
		if (named && make_adapter(f, l, u, layer, in_out, &x))
			adapt_all(f, &x);
	}
	patterns_check(f, l->on, "linear layer", &layers);
}

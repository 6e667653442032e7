/* autocast: products in a 16-bit type, by the precision classes of the op table (OpInfo.prec).
 *
 *     %w = var  : f32[4,3]                 %w = var  : f32[4,3]
 *     %b = var  : f32[3]                   %b = var  : f32[3]
 *                                          %w' = cast %w, %b' = cast %b       once a step
 *     %x = layer_norm ..  : f32            %x = layer_norm ..  : f32
 *                                    =>    %x' = cast %x  : bf16              kept instead of %x
 *     %y = matmul %x, %w  : f32            %y = matmul %x', %w'  : bf16
 *     %z = add %y, %b  : f32               %z = add %y, %b'  : bf16
 *     %l = sum %z  : f32                   %l = sum (cast %z)  : f32
 *
 * One walk over the nodes of each function but `init`, in order; the types of a node's results
 * follow from those of its operands:
 *
 *     low       operands are narrowed. A product that sums over the samples (a weight's gradient)
 *               gives f32: the sums are not rounded before they are added up.
 *     f32       16-bit operands are widened; so for every node with NF_F32, which `expand` gave to
 *               the parts of softmax, norms and losses, and autodiff to their gradients.
 *     follow    the widest operand's type, where parameters and constants have no say: a bias is
 *               narrowed, a constant too if the 16-bit type holds it; else the op computes in f32
 *               and its result is narrowed, as dropout's is.
 *     effects, regions    get what they got before: variables, sums over the batch, outputs and
 *               what a loop carries stay in f32.
 *
 * The 16-bit type is the run's, or that of the block that the node is in (NF_IN_BF16, NF_IN_F16). Where
 * a block asks for f32 (NF_IN_F32), and outside of blocks in an fp32 run, all classes are f32. In a tf32 run
 * nothing is cast: products of class low are marked (NF_TF32), and their library rounds operands as it reads them.
 *
 * Where casts stand. A narrowed value is made once, behind what makes the wide one, so that it is
 * kept in its place; a parameter's behind the variables, which leaves it outside the loop over
 * micro-batches. A value is widened by each reader for itself, inside its kernel: a wide copy that
 * several read would have to be stored. */
#include "expand.h"
#include "precision.h"
#include "simplify.h"

#include <assert.h>
#include <float.h>
#include <math.h>

/* What is known of a value (Value.aux). */
typedef struct Facts {
	DType was;   /* before the pass */
	bool fixed;  /* made of parameters and constants alone */
	Value *now;  /* what stands for it; NULL: itself */
	Value *low[2]; /* the same as bf16 and as f16; NULL: not asked for yet */
} Facts;

typedef struct Cast {
	Module *m;
	Diag *diag;
	Arena *scratch;
	Func *f;
	DType low; /* of the run; DT_NONE: none */
	bool tf32;
	bool good;
} Cast;

static Facts *facts(const Value *v)
{
	return v->aux;
}

static Facts *note(const Cast *c, Value *v, DType was, bool fixed)
{
	Facts *f = ARENA_NEW(c->scratch, Facts);
	*f = (Facts){ .was = was, .fixed = fixed };
	v->aux = f;
	return f;
}

static bool is_16(const Value *v)
{
	return v->type.dtype == DT_BF16 || v->type.dtype == DT_F16;
}

static bool is_f32(const Value *v)
{
	return v->type.dtype == DT_F32;
}

static bool is_leaf(const Value *v, OpCode op)
{
	return v->def && v->def->op == op;
}

static Builder at(const Cast *c, Block *block, Node *before, const Node *like)
{
	Builder b = ir_builder(c->m, block);
	b.before = before;
	b.span = like ? like->span : NO_SPAN;
	b.flags = like ? like->flags : 0;
	return b;
}

static Builder before(const Cast *c, Node *n)
{
	return at(c, n->parent, n, n);
}

/* ---- constants ---- */

static double largest(DType t)
{
	return t == DT_F16 ? 65504 : t == DT_BF16 ? 0x1.fep127 : FLT_MAX;
}

/* Whether the 16-bit type holds v: 11 or 8 bits of a fraction, within its range of exponents. */
static bool is_exact(DType t, double v)
{
	int exponent, bits = t == DT_F16 ? 11 : 8, least = t == DT_F16 ? -24 : -133;
	if (v == 0 || !isfinite(v))
		return true;
	double fraction = frexp(v, &exponent);
	int unit = exponent - bits > least ? exponent - bits : least;
	double units = ldexp(fraction, exponent - unit);
	return fabs(v) <= largest(t) && units == trunc(units);
}

/* What meets 16-bit numbers must not be infinite among them. */
static void check_fits(Cast *c, const Node *n, double v, DType t)
{
	if (!isfinite(v) || fabs(v) <= largest(t))
		return;
	diag_error(c->diag, n->span, "the constant %g does not fit %s, whose largest number is %g",
		   v, dtype_name(t), largest(t));
	diag_hint(c->diag, "a mask is a select, not a large number that is added");
	c->good = false;
}

/* ---- casts ---- */

static Value *cast_before(Cast *c, Node *n, Value *v, DType t)
{
	Builder b = before(c, n);
	Value *to = ir_cast(&b, v, t);
	note(c, to, t, facts(v)->fixed);
	return to;
}

static Builder behind(const Cast *c, const Value *v)
{
	if (!v->def)
		return at(c, v->block, v->block->first, NULL);
	if (v->def->op != OP_var)
		return at(c, v->def->parent, v->def->next, v->def);
	Builder b = at(c, c->f->body, expand_front(c->f), v->def);
	return b;
}

/* v in the 16-bit type t, for n. */
static Value *narrow(Cast *c, Node *n, Value *v, DType t)
{
	Facts *f = facts(v);
	Value **low = &f->low[t == DT_F16];
	if (!dtype_is_float(v->type.dtype) || v->type.dtype == DT_F64 || v->type.dtype == t)
		return v;
	if (is_leaf(v, OP_const)) {
		check_fits(c, n, ir_float(v->def, "value"), t);
		Type type = v->type;
		type.dtype = t;
		Builder b = before(c, n);
		Value *to = ir_const(&b, type, ir_float(v->def, "value"));
		note(c, to, t, true);
		return to;
	}
	if (*low)
		return *low;
	Builder b = behind(c, v);
	if (is_leaf(v, OP_reshape)) /* of the operand's one cast */
		*low = ir_reshape(&b, narrow(c, n, v->def->arg[0], t), v->type);
	else
		*low = ir_cast(&b, v, t);
	note(c, *low, t, f->fixed);
	return *low;
}

static Value *widen(Cast *c, Node *n, Value *v)
{
	return is_16(v) ? cast_before(c, n, v, DT_F32) : v;
}

static Value *as(Cast *c, Node *n, Value *v, DType t)
{
	return t == v->type.dtype || !dtype_is_float(v->type.dtype) ? v
	       : t == DT_BF16 || t == DT_F16                         ? narrow(c, n, v, t)
								     : cast_before(c, n, v, t);
}

/* ---- classes ---- */

/* The 16-bit type of a node of class low; DT_NONE: it computes in f32. */
static DType low_of(const Cast *c, const Node *n)
{
	DType in = precision_of_block(n);
	return in == DT_NONE ? c->low : in == DT_F32 ? DT_NONE : in;
}

static void cast_low(Cast *c, Node *n, DType low)
{
	for (int i = 0; i < n->nargs; i++)
		if (!(ir_ops[n->op].f32_args >> i & 1))
			n->arg[i] = narrow(c, n, n->arg[i], low);
}

/* An element-wise op widens by itself beside an f32 operand. */
static void cast_f32(Cast *c, Node *n)
{
	Value *from = NULL, *to = NULL; /* x * x reads one cast twice */
	for (int i = 0; i < n->nargs && ir_ops[n->op].kind == K_EWISE; i++)
		if (is_f32(n->arg[i]))
			return;
	for (int i = 0; i < n->nargs; i++) {
		if (!is_16(n->arg[i]))
			continue;
		to = n->arg[i] == from ? to : widen(c, n, n->arg[i]);
		from = n->arg[i];
		n->arg[i] = to;
	}
}

/* A constant that the 16-bit type does not hold, or a random number: met in f32. */
static bool is_fine(const Value *v, DType low)
{
	if (!is_f32(v) || !v->def || ir_ops[v->def->op].kind != K_LEAF || v->def->op == OP_var ||
	    v->def->op == OP_input)
		return false;
	return v->def->op != OP_const || !is_exact(low, ir_float(v->def, "value"));
}

/* Element-wise ops of class follow; the 16-bit type where the result is to be narrowed, else DT_NONE. */
static DType cast_follow(Cast *c, Node *n)
{
	DType low = DT_NONE;
	bool wide = false, fine = false;
	for (int i = 0; i < n->nargs; i++) {
		DType t = n->arg[i]->type.dtype;
		wide |= t == DT_F64 || (is_16(n->arg[i]) && low != DT_NONE && low != t);
		low = is_16(n->arg[i]) ? t : low;
	}
	for (int i = 0; i < n->nargs && low != DT_NONE; i++) {
		const Value *v = n->arg[i];
		fine |= is_fine(v, low);
		wide |= is_f32(v) && !facts(v)->fixed && !is_fine(v, low);
	}
	if (low == DT_NONE || wide)
		return DT_NONE;
	for (int i = 0; i < n->nargs; i++)
		if (!is_fine(n->arg[i], low))
			n->arg[i] = narrow(c, n, n->arg[i], low);
		else if (is_leaf(n->arg[i], OP_const))
			check_fits(c, n, ir_float(n->arg[i]->def, "value"), low);
	return fine ? low : DT_NONE;
}

/* Ops that want operands of one type: concat takes the widest, a kernel its first operand's. What a kernel adds to stays f32. */
static void cast_alike(Cast *c, Node *n)
{
	DType t = DT_NONE;
	for (int i = 0; i < n->nargs; i++) {
		const Value *v = n->arg[i];
		if (!dtype_is_float(v->type.dtype) || is_leaf(v, OP_const) || ir_ops[n->op].f32_args >> i & 1)
			continue;
		if (t == DT_NONE || (n->op == OP_concat && !facts(v)->fixed))
			t = t == DT_NONE ? v->type.dtype : dtype_promote(t, v->type.dtype);
	}
	for (int i = 0; i < n->nargs && t != DT_NONE; i++)
		n->arg[i] = as(c, n, n->arg[i], ir_ops[n->op].f32_args >> i & 1 && t != DT_F64 ? DT_F32 : t);
}

/* What effects, regions and kernels of other passes read. */
static void restore(Cast *c, Node *n, const DType *was)
{
	for (int i = 0; i < n->nargs; i++)
		n->arg[i] = as(c, n, n->arg[i], was[i]);
}

/* ---- types ---- */

/* A sum over the samples of the batch. */
static bool sums_samples(const Node *n)
{
	bool marked = false;
	for (int i = 0; i < n->nargs; i++)
		marked |= n->arg[i]->type.batch != 0;
	return marked && (ir_ops[n->op].flags & OPF_BATCH_LINEAR) && !n->res[0]->type.batch;
}

static DType float_operand(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (dtype_is_float(n->arg[i]->type.dtype))
			return n->arg[i]->type.dtype;
	return DT_NONE;
}

/* The results' types, by the op's rule from what its operands are now. */
static void retype(Cast *c, Node *n)
{
	Type res[8] = { { 0 } };
	char why[256];
	DType t = float_operand(n);
	if (ir_ops[n->op].kind == K_LEAF)
		return;
	bool sums = (t == DT_BF16 || t == DT_F16) && (sums_samples(n) || ir_acc(n));
	if (sums && n->op == OP_matmul)
		ir_attr(n, "out")->s = dtype_name(DT_F32);
	for (int i = 0; i < n->nres && (ir_ops[n->op].flags & OPF_TYPED); i++)
		if (dtype_is_float(n->res[i]->type.dtype))
			n->res[i]->type.dtype = sums ? DT_F32 : t;
	if (!ir_ops[n->op].type(n, res, why)) {
		diag_error(c->diag, n->span, "%s: %s", ir_ops[n->op].name, why);
		c->good = false;
		return;
	}
	for (int i = 0; i < n->nres; i++)
		n->res[i]->type = res[i];
}

/* ---- the walk ---- */

static void cast_block(Cast *c, Block *b);

static bool is_apart(const Node *n)
{
	OpKind k = ir_ops[n->op].kind;
	return k == K_EFFECT || k == K_REGION || k == K_OPAQUE || k == K_MACRO || k == K_MOVE;
}

/* x in the type that y has now; in f32 where nothing is to be narrowed. */
static Value *cast_like(Cast *c, Node *n)
{
	return low_of(c, n) == DT_NONE && is_f32(n->arg[0]) ? n->arg[0] : as(c, n, n->arg[0], n->arg[1]->type.dtype);
}

/* In a run in tf32, a product that would be in f32 and is not asked to be. */
static void mark_tf32(const Cast *c, Node *n)
{
	if (c->tf32 && ir_is_product(n->op) && is_f32(n->arg[0]) && !(n->flags & (NF_F32 | NF_IN_F32)))
		n->flags |= NF_TF32;
}

/* By class; the 16-bit type where the result is to be narrowed, else DT_NONE. */
static DType cast_operands(Cast *c, Node *n)
{
	const OpInfo *o = &ir_ops[n->op];
	DType low = low_of(c, n);
	bool moves = o->kind == K_SHAPE; /* no computation, so in any type */
	if (o->kind == K_LEAF || o->prec == P_NONE)
		return DT_NONE;
	if (o->prec == P_F32 || ((n->flags & NF_F32 || low == DT_NONE) && !moves))
		cast_f32(c, n);
	else if (o->prec == P_LOW)
		cast_low(c, n, low);
	else if (o->kind == K_EWISE)
		return cast_follow(c, n);
	else
		cast_alike(c, n);
	return DT_NONE;
}

static bool is_fixed(const Node *n, const Module *m)
{
	if (n->op == OP_var)
		return ir_find_var(m, ir_str(n, "name"))->role == VAR_PARAM;
	if (ir_ops[n->op].kind == K_LEAF)
		return n->op == OP_const || n->op == OP_iota;
	for (int i = 0; i < n->nargs; i++)
		if (!facts(n->arg[i])->fixed)
			return false;
	return n->nargs > 0;
}

static void cast_node(Cast *c, Node *n)
{
	DType was[IR_MAX_ARGS], *operands = was;
	if (n->nargs > IR_MAX_ARGS)
		operands = ARENA_ARRAY(c->scratch, n->nargs, DType);
	for (int i = 0; i < n->nargs; i++) {
		operands[i] = facts(n->arg[i])->was;
		if (facts(n->arg[i])->now)
			n->arg[i] = facts(n->arg[i])->now;
	}
	bool fixed = is_fixed(n, c->m) && !is_apart(n);
	for (int i = 0; i < n->nres; i++)
		note(c, n->res[i], n->res[i]->type.dtype, fixed);
	if (is_apart(n)) {
		restore(c, n, operands);
		if (n->op == OP_loop)
			cast_block(c, n->body);
		return;
	}
	if (n->op == OP_cast_like) {
		facts(n->res[0])->now = cast_like(c, n);
		return;
	}
	DType rounds = cast_operands(c, n);
	retype(c, n);
	mark_tf32(c, n);
	if (rounds != DT_NONE && c->good)
		facts(n->res[0])->now = narrow(c, n, n->res[0], rounds);
}

static void cast_block(Cast *c, Block *b)
{
	for (int i = 0; i < b->nparam; i++)
		note(c, b->param[i], b->param[i]->type.dtype, false);
	for (Node *n = b->first, *next; n && c->good; n = next) {
		next = n->next;
		cast_node(c, n);
	}
}

static void drop_marks(const Block *b)
{
	for (Node *n = b->first; n; n = n->next) {
		n->flags &= ~NF_PRECISION;
		if (n->op == OP_loop)
			drop_marks(n->body);
	}
}

/* Whether a block has a precision of its own. */
static bool has_marks(const Block *b)
{
	for (const Node *n = b->first; n; n = n->next)
		if (n->flags & NF_IN || (n->op == OP_loop && has_marks(n->body)))
			return true;
	return false;
}

static bool has_work(const Module *m, const char *p)
{
	bool work = !precision_is_full(p);
	for (const Func *f = m->funcs; f && !work; f = f->next)
		work = has_marks(f->body);
	return work;
}

PassResult pass_autocast(Module *m, PassCtx *cx)
{
	Span span;
	const char *p = precision_of(m, cx, &span);
	if (!has_work(m, p))
		return PASS_SAME;
	Cast c = { .m = m, .diag = cx->diag, .low = precision_low(p), .tf32 = precision_is_tf32(p), .good = true };
	if (c.low == DT_NONE && !c.tf32 && !precision_is_full(p)) {
		diag_error(cx->diag, span, "'%s' is not a precision (fp32, tf32, bf16, fp16)", p);
		return PASS_FAILED;
	}
	if (c.tf32 && !cx->caps->tf32) {
		diag_error(cx->diag, span, "tf32 is a precision of tensor cores: this target has none");
		diag_hint(cx->diag, "--target cuda has; fp32, bf16, fp16 and fp64 are for every target");
		return PASS_FAILED;
	}
	c.scratch = arena_new();
	for (Func *f = m->funcs; f && c.good; f = f->next) {
		c.f = f;
		if (!strcmp(f->name, "init"))
			continue;
		cast_block(&c, f->body);
		drop_marks(f->body);
		simplify_func(f, false);
	}
	arena_free(c.scratch);
	return c.good ? PASS_CHANGED : PASS_FAILED;
}

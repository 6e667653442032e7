/* The verifier: what must hold of every graph, between any two passes.
 *
 * One walk in execution order over each function, with three maps: the values defined so far (a use must follow its
 * definition and be in scope; the body of `fused` is closed over its parameters), what variable a value stands for
 * (var nodes, views of them, kernel parameters bound to them), and the variables assigned so far (a variable is
 * assigned once, after all its readers, nested bodies included; but a loop that begins beyond the first sample goes on
 * where another left off, with the variables as that one left them). Every fault is reported, with what was expected
 * and what was found; a node with a fault in its form is not looked at further, so faults do not cascade. */
#include <stdarg.h>

#include "internal.h"

typedef struct Verifier {
	const Module *m;
	const Func *f;
	FaultFn fault;
	void *to;
	Arena *scratch;
	Map values, nodes, stands_for, assigned;
	Map names; /* made for the first fault of a function */
	int faults;
} Verifier;

/* A block's surroundings. */
typedef struct Scope {
	const Block *block;
	int64_t batch; /* samples that one run of the block sees */
	bool part;     /* the body of a loop over micro-batches: what is around it sees more samples */
	int depth;
	bool fused;
} Scope;

static const char *id_of(Verifier *v, const Value *x)
{
	char name[32];
	if (!v->names.len)
		v->names = ir_value_names(v->scratch, v->f);
	return arena_strdup(v->scratch, ir_value_name(&v->names, x, name));
}

static void __attribute__((format(printf, 3, 4))) report(Verifier *v, const Node *n, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *what = arena_vprintf(v->scratch, fmt, ap);
	va_end(ap);
	const char *where = arena_printf(v->scratch, "@%s: ", v->f->name);
	if (n && n->nres > 0)
		where = arena_printf(v->scratch, "%s%s = ", where, id_of(v, n->res[0]));
	if (n)
		where = arena_printf(v->scratch, "%s%s: ", where, ir_ops[n->op].name);
	v->fault(v->to, n ? n->span : NO_SPAN, arena_printf(v->scratch, "%s%s", where, what));
	v->faults++;
}

static void check_var(Verifier *v, const Var *x)
{
	if (type_check(&x->type) && !x->type.batch)
		return;
	v->fault(v->to, x->span, arena_printf(v->scratch, "variable '%s': expected a type without batch marks, found %s",
					      x->name, type_text(v->scratch, &x->type, true)));
	v->faults++;
}

static const char *type_of(Verifier *v, const Value *x)
{
	return type_text(v->scratch, &x->type, true);
}

/* ---- the form of a node ---- */

static bool check_counts(Verifier *v, const Node *n)
{
	const OpInfo *o = &ir_ops[n->op];
	bool varargs = o->flags & OPF_VARARGS, region = o->kind == K_REGION || o->kind == K_OPAQUE;
	int most = op_most_args(n->op);
	int before = v->faults;
	if (n->nargs < o->nargs || (n->nargs > most && !varargs))
		report(v, n, "expected %s%d operands, found %d",
		       varargs ? "at least " : most > o->nargs ? arena_printf(v->scratch, "%d or ", o->nargs) : "",
		       varargs ? o->nargs : most, n->nargs);
	if (!region && n->nargs > IR_MAX_ARGS)
		report(v, n, "expected at most %d operands, found %d", IR_MAX_ARGS, n->nargs);
	if (!region && n->nres != o->nres)
		report(v, n, "expected %d results, found %d", o->nres, n->nres);
	if ((n->op == OP_loop || n->op == OP_fused) != (n->body != NULL))
		report(v, n, n->body ? "expected no body, found one" : "expected a body, found none");
	return v->faults == before;
}

static bool check_attrs(Verifier *v, const Node *n)
{
	int before = v->faults;
	for (int i = 0; i < op_attr_count(n->op); i++) {
		const AttrSpec *spec = &ir_ops[n->op].attrs[i];
		const Attr *a = &n->attr[i];
		if (spec->kind == A_STR && !a->s)
			report(v, n, "expected a text for attribute '%s', found none", spec->name);
		if (spec->kind == A_INTS && (a->ints.n < 0 || a->ints.n > IR_MAX_DIMS))
			report(v, n, "expected 0 to %d integers for attribute '%s', found %d", IR_MAX_DIMS, spec->name,
			       a->ints.n);
		if (spec->kind == A_BOOL && a->i != 0 && a->i != 1)
			report(v, n, "expected true or false for attribute '%s', found %lld", spec->name,
			       (long long)a->i);
	}
	return v->faults == before;
}

/* A new value of the block: typed, and whole numbers of samples where it is marked. */
static void check_value(Verifier *v, const Node *n, const Value *x, const Scope *s)
{
	if (!type_check(&x->type))
		report(v, n, "expected a type of at least one and fewer than 2^63 bytes for %s, found %s", id_of(v, x),
		       type_of(v, x));
	for (int i = 0; i < x->type.ndim; i++)
		if ((x->type.batch >> i & 1) && x->type.dim[i] % s->batch != 0)
			report(v, n, "expected axis %d of %s to be a multiple of the batch %lld, found %s", i, id_of(v, x),
			       (long long)s->batch, type_of(v, x));
	if (!map_set(&v->values, x, 1))
		report(v, n, "%s is defined twice", id_of(v, x));
}

static bool check_results(Verifier *v, const Node *n, const Scope *s)
{
	int before = v->faults;
	for (int i = 0; i < n->nres; i++) {
		const Value *x = n->res[i];
		if (!x || x->def != n || x->index != i)
			report(v, n, "result %d does not know its node", i);
		else
			check_value(v, n, x, s);
	}
	return v->faults == before;
}

/* ---- operands ---- */

static const Block *home_of(const Value *x)
{
	return x->def ? x->def->parent : x->block;
}

/* Whether a block is `from` or one whose values may be read there. */
static bool is_visible(const Block *home, const Block *from)
{
	while (from) {
		if (from == home)
			return true;
		from = from->owner && from->owner->op != OP_fused ? from->owner->parent : NULL;
	}
	return false;
}

/* Whether a value of outside depends on the batch while the block sees one micro-batch at a time. */
static bool is_whole_batch(const Value *x, const Scope *s)
{
	return s->part && x->type.batch && home_of(x) != s->block;
}

static bool check_operands(Verifier *v, const Node *n, const Scope *s)
{
	int before = v->faults;
	for (int i = 0; i < n->nargs; i++) {
		const Value *x = n->arg[i];
		if (!x)
			report(v, n, "operand %d is missing", i);
		else if (!map_get(&v->values, x, NULL))
			report(v, n, "operand %d, %s, is not defined before its use", i, id_of(v, x));
		else if (!is_visible(home_of(x), s->block))
			report(v, n, "operand %d, %s, is out of scope%s", i, id_of(v, x),
			       s->fused ? ": the body of a kernel reads its parameters alone" : "");
		else if (ir_in_host(x) && ir_ops[n->op].kind != K_MOVE)
			report(v, n, "operand %d, %s, is in host memory: only 'fetch' reads it", i, id_of(v, x));
		else if (is_whole_batch(x, s))
			report(v, n, "operand %d, %s, is %s, of the whole batch, inside a loop over micro-batches", i,
			       id_of(v, x), type_of(v, x));
	}
	return v->faults == before;
}

/* What is told of an operation that nothing else is known of: sums over any graph of them stay finite. */
static void check_told(Verifier *v, const Node *n)
{
	const double most = 1e18;
	double seconds = ir_float(n, "seconds");
	if (!(seconds >= 0 && seconds <= most))
		report(v, n, "expected seconds from 0 to %g, found %g", most, seconds);
	if (ir_int(n, "workspace") < 0)
		report(v, n, "expected a workspace of at least 0 bytes, found %lld", (long long)ir_int(n, "workspace"));
}

static void check_types(Verifier *v, const Node *n)
{
	const OpInfo *o = &ir_ops[n->op];
	if (o->kind == K_OPAQUE)
		check_told(v, n);
	if (o->kind == K_REGION || o->kind == K_OPAQUE)
		return;
	Type want[8] = { { 0 } };
	char why[256] = "";
	for (int i = 0; i < n->nres; i++)
		want[i] = n->res[i]->type;
	if (!o->type(n, want, why)) {
		report(v, n, "%s", why);
		return;
	}
	for (int i = 0; i < n->nres; i++)
		if (!type_equal(&want[i], &n->res[i]->type))
			report(v, n, "expected result %d to be %s, found %s", i,
			       type_text(v->scratch, &want[i], true), type_of(v, n->res[i]));
}

/* ---- variables ---- */

static const Var *var_of(const Verifier *v, const Value *x)
{
	int64_t var;
	return map_get(&v->stands_for, x, &var) ? (const Var *)(intptr_t)var : NULL;
}

static void stand_for(Verifier *v, const Value *x, const Var *var)
{
	if (var)
		map_set(&v->stands_for, x, (int64_t)(intptr_t)var);
}

static const Node *loop_around(const Node *n)
{
	const Node *owner = n->parent->owner;
	while (owner && owner->op != OP_loop)
		owner = owner->parent->owner;
	return owner;
}

/* Whether `var` was assigned before n. What another loop assigned does not count in a loop that goes on with the batch. */
static bool was_assigned(const Verifier *v, const Var *var, const Node *n)
{
	int64_t by;
	if (!map_get(&v->assigned, var, &by))
		return false;
	const Node *loop = loop_around(n), *other = loop_around((const Node *)(intptr_t)by);
	return !loop || !other || loop == other || ir_int(loop, "base") == 0;
}

static void check_assign(Verifier *v, const Node *n)
{
	const Var *var = var_of(v, n->arg[0]);
	if (!var)
		report(v, n, "expected operand 0 to be a variable");
	else if (was_assigned(v, var, n))
		report(v, n, "variable '%s' is assigned twice", var->name);
	else
		map_set(&v->assigned, var, (int64_t)(intptr_t)n);
}

/* Reads come before the assign; results that are the variable's storage are remembered. */
static void check_variables(Verifier *v, const Node *n)
{
	for (int i = 0; i < n->nargs; i++) {
		const Var *var = var_of(v, n->arg[i]);
		if (var && !(n->op == OP_assign && i == 0) && was_assigned(v, var, n))
			report(v, n, "operand %d reads variable '%s' after its assign", i, var->name);
	}
	if (n->op == OP_assign) {
		check_assign(v, n);
	} else if (n->op == OP_var) {
		const Var *var = ir_find_var(v->m, ir_str(n, "name"));
		if (!var)
			report(v, n, "no variable is named '%s'", ir_str(n, "name"));
		else if (!type_equal(&var->type, &n->res[0]->type))
			report(v, n, "expected %s, the type of '%s', found %s", type_text(v->scratch, &var->type, true),
			       var->name, type_of(v, n->res[0]));
		stand_for(v, n->res[0], var);
	} else if (n->nres == 1 && n->nargs > 0 && ir_is_view(n)) {
		stand_for(v, n->res[0], var_of(v, n->arg[0]));
	}
}

/* ---- views, replays, bodies ---- */

static void check_view(Verifier *v, const Node *n)
{
	Value *x = n->res[0];
	const Type *source = &n->arg[0]->type;
	if (x->ld && (n->op != OP_slice || ir_int(n, "axis") != source->ndim - 1 || x->ld != source->dim[source->ndim - 1]))
		report(v, n, "expected a row stride on a slice of the last axis alone, its source's row, found ld %lld",
		       (long long)x->ld);
	else if (n->op != OP_slice && type_bytes(&x->type) != type_bytes(source))
		report(v, n, "expected a view of %lld bytes, found %s", (long long)type_bytes(source), type_of(v, x));
	int64_t bytes;
	const Value *root = ir_view_root(x, &bytes);
	if (x->offset >= 0 && root->offset >= 0 && x->offset != root->offset + bytes)
		report(v, n, "expected the view at offset 0x%llx, found 0x%llx", (long long)(root->offset + bytes),
		       (long long)x->offset);
}

static void check_replay(Verifier *v, const Node *n, const Scope *s)
{
	const Node *of = n->replay_of;
	if (n->nres == 0) {
		report(v, n, "expected a replay to have a result");
		return;
	}
	if (!map_get(&v->nodes, of, NULL) || !is_visible(of->parent, s->block)) {
		report(v, n, "replays a node that does not come before it");
		return;
	}
	if (of->op != n->op || of->nres != n->nres) {
		report(v, n, "expected a replay of %s with %d results, found one of %s with %d", ir_ops[n->op].name, n->nres,
		       ir_ops[of->op].name, of->nres);
		return;
	}
	for (int i = 0; i < n->nres; i++)
		if (!type_equal(&of->res[i]->type, &n->res[i]->type))
			report(v, n, "expected result %d of the replay to be %s, found %s", i, type_of(v, of->res[i]),
			       type_of(v, n->res[i]));
}

static void check_block(Verifier *v, const Scope *s);

/* Values `a`, each a `have` of the node, must have the types of the values `b`, its `want`s. */
static void check_pairs(Verifier *v, const Node *n, const char *have, Value *const *a, int na, const char *want,
			Value *const *b, int nb)
{
	if (na != nb) {
		report(v, n, "expected as many %ss as %ss, %d, found %d", have, want, nb, na);
		return;
	}
	for (int i = 0; i < na; i++)
		if (a[i] && b[i] && !type_equal(&a[i]->type, &b[i]->type))
			report(v, n, "expected %s %d to be %s, the type of %s %d, found %s", have, i, type_of(v, b[i]), want,
			       i, type_of(v, a[i]));
}

/* The trips of a loop see samples of the batch around it. */
static bool check_samples(Verifier *v, const Node *n, int64_t around)
{
	int64_t trips = ir_int(n, "trips"), batch = ir_int(n, "batch"), base = ir_int(n, "base");
	if (trips < 1 || batch < 1 || base < 0) {
		report(v, n, "expected at least one trip of one sample from 0 on, found %lld of %lld from %lld on",
		       (long long)trips, (long long)batch, (long long)base);
		return false;
	}
	if (base <= around && trips <= (around - base) / batch)
		return true;
	report(v, n, "expected to end within the batch of %lld, found %lld trips of %lld from %lld on", (long long)around,
	       (long long)trips, (long long)batch, (long long)base);
	return false;
}

static void check_body(Verifier *v, const Node *n, const Scope *outer)
{
	Scope s = { .block = n->body, .batch = outer->batch, .depth = outer->depth + 1, .fused = n->op == OP_fused };
	if (s.depth > IR_MAX_DEPTH) {
		report(v, n, "expected at most %d bodies in each other", IR_MAX_DEPTH);
		return;
	}
	if (n->body->owner != n)
		report(v, n, "the body does not know its node");
	if (n->op == OP_loop) {
		if (!check_samples(v, n, outer->batch))
			return;
		s.batch = ir_int(n, "batch");
		s.part = s.batch != outer->batch;
		check_pairs(v, n, "result", n->res, n->nres, "operand", n->arg, n->nargs);
	}
	check_pairs(v, n, "parameter", n->body->param, n->body->nparam, "operand", n->arg, n->nargs);
	for (int i = 0; i < n->body->nparam; i++) {
		const Value *x = n->body->param[i];
		if (!x || x->def || x->block != n->body || x->index != i) {
			report(v, n, "parameter %d does not know its body", i);
			return;
		}
		check_value(v, n, x, &s);
		if (n->op == OP_fused && i < n->nargs)
			stand_for(v, x, var_of(v, n->arg[i]));
	}
	check_block(v, &s);
	const Node *last = n->body->last;
	if (last && last->op == OP_yield)
		check_pairs(v, last, "operand", last->arg, last->nargs, "result", n->res, n->nres);
}

/* What may stand where. */
static void check_place(Verifier *v, const Node *n, const Scope *s)
{
	OpKind kind = ir_ops[n->op].kind;
	bool body = s->block->owner != NULL;
	if (n->op == OP_yield && (!body || n->next))
		report(v, n, body ? "expected at the end of a body" : "expected in a body");
	if (body && !n->next && n->op != OP_yield)
		report(v, n, "expected a yield at the end of the body");
	if (s->fused && (kind == K_MACRO || kind == K_MOVE || n->op == OP_var || n->op == OP_input || n->op == OP_output || n->body))
		report(v, n, "expected no such op in the body of a kernel");
}

/* False, silently, for an operand whose own node was at fault. */
static bool are_typed(const Node *n)
{
	for (int i = 0; i < n->nargs; i++)
		if (!type_check(&n->arg[i]->type))
			return false;
	return true;
}

static void check_node(Verifier *v, const Node *n, const Scope *s)
{
	check_place(v, n, s);
	bool formed = check_counts(v, n) && check_attrs(v, n);
	bool reads = check_operands(v, n, s);
	bool makes = check_results(v, n, s);
	if (!formed || !reads || !makes || !are_typed(n))
		return;
	int before = v->faults;
	check_types(v, n);
	if (v->faults > before)
		return;
	check_variables(v, n);
	if (n->replay_of)
		check_replay(v, n, s);
	if (!s->fused && n->nargs > 0 && n->nres == 1 && (ir_is_view(n) || n->res[0]->ld))
		check_view(v, n);
	if (n->body)
		check_body(v, n, s);
}

static void check_block(Verifier *v, const Scope *s)
{
	const Block *b = s->block;
	if (!b->first && b->owner)
		report(v, b->owner, "expected a yield at the end of the body, found nothing");
	const Node *prev = NULL;
	for (const Node *n = b->first; n; prev = n, n = n->next) {
		if (n->parent != b || n->prev != prev || !map_set(&v->nodes, n, 1)) {
			report(v, n, "the node's links are broken");
			return;
		}
		check_node(v, n, s);
	}
	if (b->last != prev)
		report(v, b->last, "the block's last node is not its last");
}

/* ---- modules ---- */

static void check_func(Verifier *v, const Func *f)
{
	v->f = f;
	v->values = v->nodes = v->stands_for = v->assigned = v->names = (Map){ .arena = v->scratch };
	if (ir_find_func(v->m, f->name) != f)
		report(v, NULL, "another function has this name");
	if (f->batch < 1) {
		report(v, NULL, "expected a batch of at least 1, found %lld", (long long)f->batch);
		return;
	}
	if (f->body->nparam || f->body->owner)
		report(v, NULL, "expected a function's block to have no parameters and no owner");
	check_block(v, &(Scope){ .block = f->body, .batch = f->batch });
}

bool ir_find_faults(const Module *m, FaultFn fault, void *to)
{
	Verifier v = { .m = m, .fault = fault, .to = to, .scratch = arena_new() };
	for (const Var *x = m->vars; x; x = x->next)
		check_var(&v, x);
	for (const Func *f = m->funcs; f; f = f->next)
		check_func(&v, f);
	arena_free(v.scratch);
	return v.faults == 0;
}

typedef struct Listing {
	const Module *m;
	const char *after;
	FILE *out;
} Listing;

static void list_fault(void *to, Span span, const char *text)
{
	const Listing *l = to;
	int line, column;
	diag_position(l->m->diag, span, &line, &column);
	fprintf(l->out, "dlc: after %s: %s", l->after, text);
	if (line)
		fprintf(l->out, " (%s:%d)", diag_source_path(l->m->diag, span.source), line);
	fputc('\n', l->out);
}

bool ir_verify(const Module *m, const char *after, FILE *out)
{
	return ir_find_faults(m, list_fault, &(Listing){ m, after, out });
}

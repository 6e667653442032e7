/* The reader of IR text: recursive descent over the format that print.c writes.
 *
 *     module    "module" text "batch" int ["streams" int] "{" {var | section | func} "}"
 *     var       "var" text ":" type ["@" int] role ["frozen"] "init" kind "(" number ["," number] ")"
 *               ["stream" int] ["decay" int] ["group" int]
 *     section   "section" name [name [name]] "{" [key "=" setting {"," key "=" setting}] "}"
 *     func      "func" "@" name "batch" int ["arena" int] ["host" int] "{" {node} "}"
 *     node      [values "="] ["replay" "(" value ")"] op [values] [attrs] {"[" [flag] "]"} [":" places]
 *               ["work" int ["+" int]] ["{" "(" [value ":" place {"," ...}] ")" {node} "}"]
 *     place     type ["ld" int] ["@" int]
 *
 * The reader checks form, names and counts; when all is read the verifier checks the rest, and its faults become
 * errors with positions too. After a fault the reader goes on at the next line, and the results that the faulty
 * line would have made are known but untyped, so that later lines are not blamed. */
#include "base/intern.h"
#include "internal.h"
#include "scan.h"

/* Names are looked up from the innermost scope outwards, up to one that is closed (the body of a kernel). */
typedef struct Names Names;
struct Names {
	Names *outer;
	Block *block;
	Map values; /* interned name to Value */
	bool closed;
	bool unsure; /* its parameters could not be read: unknown names are not reported */
	int depth;
};

typedef struct Parser {
	Scanner s;
	Module *m;
	Arena *scratch;
	Intern interned;
	Names *names;
	bool ended; /* it was said that the text ends too early */
} Parser;

typedef VEC(Value *) Values;
typedef VEC(Type) Types;

/* What the text says about a result or parameter. */
typedef struct Place {
	Type type;
	int64_t ld, offset;
} Place;

typedef VEC(Place) Places;

typedef struct ResultName {
	const char *name;
	Span span;
} ResultName;

typedef VEC(ResultName) ResultNames;

/* ---- small things ---- */

static bool expected(Parser *p, const char *what)
{
	if (p->ended)
		return false;
	p->ended = p->s.token.kind == T_END;
	diag_error(p->m->diag, p->s.token.span, "expected %s, found %s", what, scan_found(&p->s));
	return false;
}

static bool accept(Parser *p, char punct)
{
	if (!scan_at(&p->s, punct))
		return false;
	scan_next(&p->s);
	return true;
}

static bool accept_name(Parser *p, const char *name)
{
	if (!scan_at_name(&p->s, name))
		return false;
	scan_next(&p->s);
	return true;
}

static bool want(Parser *p, char punct)
{
	if (accept(p, punct))
		return true;
	return expected(p, arena_printf(p->scratch, "'%c'", punct));
}

static bool want_name(Parser *p, const char *name)
{
	if (accept_name(p, name))
		return true;
	return expected(p, arena_printf(p->scratch, "'%s'", name));
}

/* An integer of at least `min` and at most `max`. */
static bool want_int(Parser *p, const char *what, int64_t min, int64_t max, int64_t *out)
{
	const Token *t = &p->s.token;
	if (t->kind != T_INT)
		return expected(p, what);
	if (t->overflow)
		return false; /* the scanner has said so */
	if (t->i < min && max == INT64_MAX) {
		diag_error(p->m->diag, t->span, "expected %s of at least %lld, found %lld", what, (long long)min,
			   (long long)t->i);
		return false;
	}
	if (t->i < min || t->i > max) {
		diag_error(p->m->diag, t->span, "expected %s from %lld to %lld, found %lld", what, (long long)min,
			   (long long)max, (long long)t->i);
		return false;
	}
	*out = t->i;
	scan_next(&p->s);
	return true;
}

static bool want_number(Parser *p, double *out)
{
	const Token *t = &p->s.token;
	bool minus = false;
	if (t->kind == T_INT || t->kind == T_FLOAT) {
		*out = t->kind == T_INT && t->i == 0 && p->s.text[t->span.begin] == '-' ? -0.0 : t->f;
		scan_next(&p->s);
		return true;
	}
	if (scan_at(&p->s, '-')) {
		minus = true;
		scan_next(&p->s);
	}
	if (scan_at_name(&p->s, "inf"))
		*out = minus ? -__builtin_inf() : __builtin_inf();
	else if (scan_at_name(&p->s, "nan"))
		*out = __builtin_nan("");
	else
		return expected(p, "a number");
	scan_next(&p->s);
	return true;
}

static bool want_text(Parser *p, const char *what, const char **out)
{
	if (p->s.token.kind != T_STRING)
		return expected(p, what);
	*out = arena_strndup(p->m->arena, p->s.token.text, p->s.token.len);
	scan_next(&p->s);
	return true;
}

/* A name, bare or as a text. */
static bool want_word(Parser *p, const char *what, const char **out)
{
	if (p->s.token.kind != T_NAME && p->s.token.kind != T_STRING)
		return expected(p, what);
	*out = arena_strndup(p->m->arena, p->s.token.text, p->s.token.len);
	scan_next(&p->s);
	return true;
}

static bool want_ints(Parser *p, IntList *out)
{
	*out = (IntList){ 0 };
	if (!want(p, '['))
		return false;
	while (!scan_at(&p->s, ']')) {
		if (out->n == IR_MAX_DIMS) {
			diag_error(p->m->diag, p->s.token.span, "a list has at most %d integers", IR_MAX_DIMS);
			return false;
		}
		if (!want_int(p, "an integer", INT64_MIN, INT64_MAX, &out->v[out->n++]))
			return false;
		if (!accept(p, ','))
			break;
	}
	return want(p, ']');
}

/* Goes on at the next line after `begin`, where the faulty one began, past bodies that the rest of it opens. */
static void skip_line(Parser *p, int32_t begin)
{
	int depth = 0;
	for (; p->s.token.kind != T_END; scan_next(&p->s)) {
		if (p->s.token.first && depth == 0 && p->s.token.span.begin > begin)
			return;
		if (scan_at(&p->s, '{'))
			depth++;
		else if (scan_at(&p->s, '}') && depth > 0)
			depth--;
	}
}

/* ---- types ---- */

static bool want_dims(Parser *p, Type *t)
{
	while (!scan_at(&p->s, ']')) {
		if (t->ndim == IR_MAX_DIMS) {
			diag_error(p->m->diag, p->s.token.span, "a type has at most %d dimensions", IR_MAX_DIMS);
			return false;
		}
		if (!want_int(p, "a size", 1, INT64_MAX, &t->dim[t->ndim]))
			return false;
		if (accept(p, '\''))
			t->batch = (uint16_t)(t->batch | 1u << t->ndim);
		t->ndim++;
		if (!accept(p, ','))
			break;
	}
	return want(p, ']');
}

static bool want_type(Parser *p, Type *t)
{
	Span span = p->s.token.span;
	*t = type_scalar(DT_NONE);
	if (p->s.token.kind == T_NAME)
		t->dtype = dtype_from_name(p->s.token.text, p->s.token.len);
	if (t->dtype == DT_NONE)
		return expected(p, "a type such as f32[2,3]");
	scan_next(&p->s);
	if (!want(p, '[') || !want_dims(p, t))
		return false;
	if (type_check(t))
		return true;
	span.end = p->s.token.span.begin;
	diag_error(p->m->diag, span, "%s is too large: its bytes do not fit in 63 bits", type_text(p->scratch, t, true));
	return false;
}

static bool want_place(Parser *p, Place *place)
{
	*place = (Place){ .offset = -1 };
	if (!want_type(p, &place->type))
		return false;
	if (accept_name(p, "ld") && !want_int(p, "a row stride", 1, INT64_MAX, &place->ld))
		return false;
	return !accept(p, '@') || want_int(p, "an offset", 0, INT64_MAX, &place->offset);
}

static void set_place(Value *v, const Place *place)
{
	v->type = place->type;
	v->ld = place->ld;
	v->offset = place->offset;
}

/* ---- values ---- */

static void define(Parser *p, const char *name, Span span, Value *v)
{
	for (const Names *n = p->names; n; n = n->closed ? NULL : n->outer)
		if (map_get(&n->values, name, NULL)) {
			diag_error(p->m->diag, span, "'%%%s' is defined already", name);
			return;
		}
	map_set(&p->names->values, name, (int64_t)(intptr_t)v);
}

static Value *find_value(const Parser *p, const char *name)
{
	int64_t found;
	for (const Names *n = p->names; n; n = n->closed ? NULL : n->outer)
		if (map_get(&n->values, name, &found))
			return (Value *)(intptr_t)found;
	return NULL;
}

static bool want_value(Parser *p, Value **out)
{
	const Token *t = &p->s.token;
	if (t->kind != T_VALUE)
		return expected(p, "a value such as %0");
	const char *name = intern(&p->interned, t->text, t->len);
	*out = find_value(p, name);
	if (!*out && p->names->unsure) {
		*out = ARENA_NEW(p->m->arena, Value);
		(*out)->block = p->names->block;
	}
	if (!*out) {
		diag_error(p->m->diag, t->span, "'%%%s' is not defined here", name);
		if (p->names->closed)
			diag_hint(p->m->diag, "the body of a kernel reads its parameters alone");
		return false;
	}
	scan_next(&p->s);
	return true;
}

static bool want_values(Parser *p, Values *list)
{
	while (p->s.token.kind == T_VALUE) {
		Value *v;
		if (!want_value(p, &v))
			return false;
		vec_push(p->scratch, list, v);
		if (!accept(p, ','))
			return true;
		if (p->s.token.kind != T_VALUE)
			return expected(p, "a value such as %0");
	}
	return true;
}

/* Results of a line that could not be read: known, but without a type. */
static void define_unread(Parser *p, const ResultNames *results)
{
	for (size_t i = 0; i < results->len; i++) {
		Value *v = ARENA_NEW(p->m->arena, Value);
		v->block = p->names->block;
		if (!find_value(p, results->at[i].name))
			define(p, results->at[i].name, results->at[i].span, v);
	}
}

/* ---- attributes ---- */

static bool want_attr(Parser *p, AttrKind kind, Attr *out)
{
	if (kind == A_INT)
		return want_int(p, "an integer", INT64_MIN, INT64_MAX, &out->i);
	if (kind == A_FLOAT)
		return want_number(p, &out->f);
	if (kind == A_STR)
		return want_text(p, "a text in quotes", &out->s);
	if (kind == A_INTS)
		return want_ints(p, &out->ints);
	out->i = scan_at_name(&p->s, "true");
	if (!out->i && !scan_at_name(&p->s, "false"))
		return expected(p, "true or false");
	scan_next(&p->s);
	return true;
}

static const char *attr_names(Parser *p, OpCode op)
{
	const char *list = "";
	for (int i = 0; i < op_attr_count(op); i++)
		list = arena_printf(p->scratch, "%s%s%s", list, i ? ", " : "", ir_ops[op].attrs[i].name);
	return list;
}

/* One "name = value" of a node. `given` has a bit for each attribute seen. */
static bool want_named_attr(Parser *p, OpCode op, Attr *attrs, unsigned *given)
{
	const Token *t = &p->s.token;
	if (t->kind != T_NAME)
		return expected(p, "the name of an attribute");
	int i = op_attr_find(op, t->text, t->len);
	if (i < 0) {
		diag_error(p->m->diag, t->span, "%s has no attribute '%.*s'", ir_ops[op].name, (int)t->len, t->text);
		diag_hint(p->m->diag, "its attributes: %s", attr_names(p, op));
		return false;
	}
	if (*given >> i & 1) {
		diag_error(p->m->diag, t->span, "attribute '%.*s' is given twice", (int)t->len, t->text);
		return false;
	}
	*given |= 1u << i;
	scan_next(&p->s);
	return want(p, '=') && want_attr(p, ir_ops[op].attrs[i].kind, &attrs[i]);
}

/* Attributes in braces; a brace that opens a body is left alone. */
static bool want_attrs(Parser *p, OpCode op, Attr *attrs)
{
	op_attr_defaults(op, attrs);
	if (op_attr_count(op) == 0 || !scan_at(&p->s, '{') || scan_peek(&p->s) == '(')
		return true;
	scan_next(&p->s);
	unsigned given = 0;
	while (!scan_at(&p->s, '}')) {
		if (!want_named_attr(p, op, attrs, &given))
			return false;
		if (!accept(p, ','))
			break;
	}
	return want(p, '}');
}

/* Flags in brackets; without any a node has those of the kernel around it, and [] means none. */
static bool want_flags(Parser *p, int32_t *flags)
{
	static const struct {
		const char *name;
		int32_t flag;
	} names[] = { { "backward", NF_BACKWARD },       { "optimizer", NF_OPTIMIZER }, { "batch_stats", NF_BATCH_STATS },
		      { "f32", NF_F32 },                 { "in_f32", NF_IN_F32 },       { "in_bf16", NF_IN_BF16 },
		      { "in_f16", NF_IN_F16 },           { "tf32", NF_TF32 } };
	enum { N = sizeof names / sizeof *names };
	const Node *owner = p->names->block->owner;
	*flags = owner && owner->op == OP_fused && !scan_at(&p->s, '[') ? owner->flags : 0;
	while (accept(p, '[')) {
		size_t i = 0;
		if (accept(p, ']'))
			continue;
		while (i < N && !accept_name(p, names[i].name))
			i++;
		if (i == N)
			return expected(p, "backward, optimizer, batch_stats, f32, in_f32, in_bf16 or in_f16");
		*flags |= names[i].flag;
		if (!want(p, ']'))
			return false;
	}
	return true;
}

/* ---- nodes ---- */

/* What stands before the body of a node, in the text's order. */
typedef struct Header {
	ResultNames results;
	Value *replay;
	Span op_span;
	OpCode op;
	Values args;
	Attr attrs[8];
	int32_t flags;
	Places places;
	int64_t work_offset, work_bytes;
} Header;

static bool want_results(Parser *p, ResultNames *results)
{
	if (p->s.token.kind != T_VALUE)
		return true;
	do {
		const Token *t = &p->s.token;
		if (t->kind != T_VALUE)
			return expected(p, "a value such as %0");
		ResultName r = { intern(&p->interned, t->text, t->len), t->span };
		vec_push(p->scratch, results, r);
		scan_next(&p->s);
	} while (accept(p, ','));
	return want(p, '=');
}

static bool want_op(Parser *p, Header *h)
{
	if (accept_name(p, "replay")) {
		Span span = p->s.token.span;
		if (!want(p, '(') || !want_value(p, &h->replay) || !want(p, ')'))
			return false;
		if (!h->replay->def && h->replay->type.dtype != DT_NONE) {
			diag_error(p->m->diag, span, "a parameter cannot be replayed");
			return false;
		}
	}
	const Token *t = &p->s.token;
	if (t->kind != T_NAME)
		return expected(p, "an op");
	h->op = op_from_name(t->text, t->len);
	h->op_span = t->span;
	if (h->op == OP_COUNT) {
		diag_error(p->m->diag, t->span, "no op is named '%.*s'", t->len > 60 ? 60 : (int)t->len, t->text);
		return false;
	}
	scan_next(&p->s);
	return true;
}

static bool want_places(Parser *p, Places *places)
{
	if (!accept(p, ':'))
		return true;
	do {
		Place place;
		if (!want_place(p, &place))
			return false;
		vec_push(p->scratch, places, place);
	} while (accept(p, ','));
	return true;
}

static bool want_work(Parser *p, Header *h)
{
	h->work_offset = -1;
	if (!accept_name(p, "work"))
		return true;
	if (!want_int(p, "the bytes of a workspace", 0, INT64_MAX, &h->work_bytes))
		return false;
	if (!accept(p, '+'))
		return true;
	h->work_offset = h->work_bytes;
	return want_int(p, "the bytes of a workspace", 0, INT64_MAX, &h->work_bytes);
}

static bool check_counts(Parser *p, const Header *h)
{
	const OpInfo *o = &ir_ops[h->op];
	size_t least = (size_t)o->nargs, most = (size_t)op_most_args(h->op);
	bool region = o->kind == K_REGION || o->kind == K_OPAQUE;
	if (h->args.len < least || (h->args.len > most && !region)) {
		const char *more = o->flags & OPF_ACC ? arena_printf(p->scratch, " or %zu", most) : most > least ? " or more" : "";
		diag_error(p->m->diag, h->op_span, "%s has %zu%s operand%s, found %zu", o->name, least, more,
			   least == 1 ? "" : "s", h->args.len);
		return false;
	}
	if (!region && h->results.len != (size_t)o->nres) {
		diag_error(p->m->diag, h->op_span, "%s has %d result%s, found %zu", o->name, o->nres,
			   o->nres == 1 ? "" : "s", h->results.len);
		return false;
	}
	if (h->results.len != h->places.len) {
		diag_error(p->m->diag, h->op_span, "expected a type for each result, %zu, found %zu", h->results.len,
			   h->places.len);
		return false;
	}
	return true;
}

static bool want_header(Parser *p, Header *h)
{
	return want_results(p, &h->results) && want_op(p, h) && want_values(p, &h->args) &&
	       want_attrs(p, h->op, h->attrs) && want_flags(p, &h->flags) && want_places(p, &h->places) &&
	       want_work(p, h) && check_counts(p, h);
}

static Node *make_node(Parser *p, const Header *h, Span span)
{
	Builder b = ir_builder(p->m, p->names->block);
	b.span = span;
	b.flags = h->flags;
	Node *n = ir_raw_node(&b, h->op, (int)h->args.len, h->args.at, h->attrs, (int)h->results.len, NULL);
	n->replay_of = h->replay ? h->replay->def : NULL;
	n->work_offset = h->work_offset;
	n->work_bytes = h->work_bytes;
	for (size_t i = 0; i < h->places.len; i++)
		set_place(n->res[i], &h->places.at[i]);
	return n;
}

static void parse_nodes(Parser *p);

static bool want_params(Parser *p, Block *b)
{
	if (!want(p, '('))
		return false;
	while (!scan_at(&p->s, ')')) {
		const Token t = p->s.token;
		Place place;
		if (t.kind != T_VALUE)
			return expected(p, "a parameter such as %a0");
		scan_next(&p->s);
		if (!want(p, ':') || !want_place(p, &place))
			return false;
		Value *v = ir_block_param(p->m, b, place.type);
		set_place(v, &place);
		define(p, intern(&p->interned, t.text, t.len), t.span, v);
		if (!accept(p, ','))
			break;
	}
	return want(p, ')');
}

static bool want_body(Parser *p, Node *n)
{
	Names inner = { .outer = p->names, .block = n->body, .values = { .arena = p->scratch },
			.closed = n->op == OP_fused, .depth = p->names->depth + 1 };
	if (inner.depth > IR_MAX_DEPTH) {
		diag_error(p->m->diag, p->s.token.span, "at most %d bodies can be in each other", IR_MAX_DEPTH);
		return false;
	}
	if (!want(p, '{'))
		return false;
	p->names = &inner;
	int32_t begin = p->s.token.span.begin;
	inner.unsure = !want_params(p, n->body);
	if (inner.unsure)
		skip_line(p, begin);
	parse_nodes(p);
	p->names = inner.outer;
	return want(p, '}');
}

static bool parse_node(Parser *p)
{
	Header h = { .op = OP_COUNT };
	Span span = p->s.token.span;
	if (!want_header(p, &h)) {
		define_unread(p, &h.results);
		return false;
	}
	span.end = h.op_span.end;
	Node *n = make_node(p, &h, span);
	bool good = !n->body || want_body(p, n);
	for (size_t i = 0; i < h.results.len; i++)
		define(p, h.results.at[i].name, h.results.at[i].span, n->res[i]);
	return good;
}

/* Nodes up to the brace that closes them. */
static void parse_nodes(Parser *p)
{
	while (p->s.token.kind != T_END && !scan_at(&p->s, '}')) {
		int32_t begin = p->s.token.span.begin;
		if (!parse_node(p))
			skip_line(p, begin);
	}
}

/* ---- the module ---- */

/* The index of the name at hand in a list that ends in NULL; -1 after a diagnostic. */
static int want_choice(Parser *p, const char *what, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (accept_name(p, names[i]))
			return i;
	expected(p, what);
	return -1;
}

static bool parse_init(Parser *p, Var *v)
{
	static const char *const kinds[] = { "const", "uniform", "normal", NULL };
	int kind = want_name(p, "init") ? want_choice(p, "const, uniform or normal", kinds) : -1;
	if (kind < 0 || !want(p, '(') || !want_number(p, &v->a))
		return false;
	v->init = (InitKind)kind;
	if (v->init != INIT_CONST && (!want(p, ',') || !want_number(p, &v->b)))
		return false;
	int64_t stream = 0, decay = -1, group = 0;
	if (!want(p, ')'))
		return false;
	if (accept_name(p, "stream") && !want_int(p, "a random stream", 0, INT32_MAX, &stream))
		return false;
	if (accept_name(p, "decay") && !want_int(p, "a switch", 0, 1, &decay))
		return false;
	if (accept_name(p, "group") && !want_int(p, "the number of a group", 0, INT32_MAX, &group))
		return false;
	v->stream = (int32_t)stream;
	v->decay = (int8_t)decay;
	v->group = (int32_t)group;
	return true;
}

static bool parse_var(Parser *p)
{
	static const char *const roles[] = { "param", "stat", "opt", "counter", NULL };
	Span span = p->s.token.span;
	const char *name;
	Type type;
	int64_t offset = -1;
	if (!want_text(p, "the variable's name in quotes", &name) || !want(p, ':') || !want_type(p, &type))
		return false;
	if (accept(p, '@') && !want_int(p, "an offset", 0, INT64_MAX, &offset))
		return false;
	int role = want_choice(p, "param, stat, opt or counter", roles);
	if (role < 0)
		return false;
	if (ir_find_var(p->m, name)) {
		diag_error(p->m->diag, span, "a variable '%s' exists already", name);
		return false;
	}
	Var *v = ir_var_new(p->m, name, type, (VarRole)role);
	v->span = span;
	v->offset = offset;
	v->frozen = accept_name(p, "frozen");
	return parse_init(p, v);
}

static bool want_setting(Parser *p, Section *s)
{
	Span span = p->s.token.span;
	const char *key;
	if (!want_word(p, "the name of a setting", &key) || !want(p, '='))
		return false;
	const Token *t = &p->s.token;
	AttrKind kind = A_FLOAT;
	if (t->kind == T_INT)
		kind = A_INT;
	else if (t->kind == T_STRING)
		kind = A_STR;
	else if (scan_at(&p->s, '['))
		kind = A_INTS;
	else if (scan_at_name(&p->s, "true") || scan_at_name(&p->s, "false"))
		kind = A_BOOL;
	Attr value = { .i = 0 };
	if (!want_attr(p, kind, &value))
		return false;
	if (ir_setting(s, key)) {
		diag_error(p->m->diag, span, "setting '%s' is given twice", key);
		return false;
	}
	ir_set(p->m, s, key, kind, value)->span = span;
	return true;
}

static bool parse_section(Parser *p)
{
	Span span = p->s.token.span;
	const char *kind, *name = "", *type = "";
	if (!want_word(p, "train or data", &kind))
		return false;
	if (!scan_at(&p->s, '{') && !want_word(p, "the section's name", &name))
		return false;
	if (!scan_at(&p->s, '{') && !want_word(p, "the section's type", &type))
		return false;
	if (ir_find_section(p->m, kind, name)) {
		diag_error(p->m->diag, span, "section %s '%s' exists already", kind, name);
		return false;
	}
	Section *s = ir_section(p->m, kind, name, type);
	s->span = span;
	if (!want(p, '{'))
		return false;
	while (!scan_at(&p->s, '}')) {
		if (!want_setting(p, s))
			return false;
		if (!accept(p, ','))
			break;
	}
	return want(p, '}');
}

static bool parse_func(Parser *p)
{
	const char *name;
	int64_t batch, arena = 0, host = 0;
	if (!want(p, '@'))
		return false;
	Span span = p->s.token.span;
	if (!want_word(p, "the function's name", &name) || !want_name(p, "batch") ||
	    !want_int(p, "a batch", 1, INT64_MAX, &batch))
		return false;
	if (accept_name(p, "arena") && !want_int(p, "the bytes of an arena", 1, INT64_MAX, &arena))
		return false;
	if (accept_name(p, "host") && !want_int(p, "bytes of host memory", 1, INT64_MAX, &host))
		return false;
	if (ir_find_func(p->m, name)) {
		diag_error(p->m->diag, span, "a function @%s exists already", name);
		return false;
	}
	Func *f = ir_func(p->m, name);
	f->batch = batch;
	f->arena_bytes = arena;
	f->host_bytes = host;
	if (!want(p, '{'))
		return false;
	Names names = { .block = f->body, .values = { .arena = p->scratch } };
	p->names = &names;
	parse_nodes(p);
	p->names = NULL;
	return want(p, '}');
}

static bool parse_item(Parser *p)
{
	if (accept_name(p, "var"))
		return parse_var(p);
	if (accept_name(p, "section"))
		return parse_section(p);
	if (accept_name(p, "func"))
		return parse_func(p);
	return expected(p, "var, section, func or '}'");
}

static bool parse_module(Parser *p)
{
	int64_t streams = 0;
	if (!want_name(p, "module") || !want_text(p, "the module's name in quotes", &p->m->name) ||
	    !want_name(p, "batch") || !want_int(p, "a batch", 1, INT64_MAX, &p->m->batch))
		return false;
	if (accept_name(p, "streams") && !want_int(p, "a number of random streams", 0, INT32_MAX, &streams))
		return false;
	p->m->streams = (int32_t)streams;
	if (!want(p, '{'))
		return false;
	while (p->s.token.kind != T_END && !scan_at(&p->s, '}')) {
		int32_t begin = p->s.token.span.begin;
		if (!parse_item(p))
			skip_line(p, begin);
	}
	return want(p, '}') && (p->s.token.kind == T_END || expected(p, "the end of the text"));
}

static void report_fault(void *to, Span span, const char *text)
{
	diag_error(to, span, "%s", text);
}

Module *ir_parse(Arena *a, Diag *d, const char *path, const char *text, size_t len)
{
	int source = diag_source(d, path, text, len), before = diag_errors(d);
	if (len > INT32_MAX) {
		diag_error(d, NO_SPAN, "%s: %zu bytes are too many, at most 2 GiB can be read", path, len);
		return NULL;
	}
	Parser p = { .m = ir_module(a, d, "", 1), .scratch = arena_new() };
	p.s = (Scanner){ .arena = p.scratch, .diag = d, .text = text, .len = len, .source = source };
	p.interned.arena = p.scratch;
	scan_next(&p.s);
	bool good = parse_module(&p) && diag_errors(d) == before && ir_find_faults(p.m, report_fault, d);
	arena_free(p.scratch);
	return good ? p.m : NULL;
}

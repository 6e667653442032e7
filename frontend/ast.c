/* Makers of syntax tree nodes, and the two ways into the parser.
 *
 * Depth: the tree is walked by recursion later, so every node knows the depth below it, and one
 * that would be deeper than AST_MAX_DEPTH is reported once and becomes E_POISON. */
#include "parse.h"

#include "parser.h"
#include "scanner.h"

static const char *const operator_text[] = { "+", "-",  "*", "/",  "//",  "%",  "@",   "==", "!=",
					     "<", "<=", ">", ">=", "and", "or", "not", "-" };

const char *ast_operator_text(Operator op)
{
	return operator_text[op];
}

void parse_too_deep(Parse *p, Span s)
{
	if (!p->deep)
		diag_error(p->diag, s, "the text nests too deeply here, more than %d levels",
			   AST_MAX_DEPTH);
	p->deep = true;
}

const char *parse_string(Parse *p, Span s, const char *text, size_t len)
{
	char *out = arena_alloc(p->arena, len + 1);
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		if (text[i] != '\\') {
			out[n++] = text[i];
			continue;
		}
		Span at = { s.source, s.begin + 1 + (int32_t)i, s.begin + 3 + (int32_t)i };
		switch (text[++i]) {
		case 'n': out[n++] = '\n'; break;
		case 't': out[n++] = '\t'; break;
		case '"':
		case '\\': out[n++] = text[i]; break;
		case '{':
		case '}':
			out[n++] = '\\';
			out[n++] = text[i];
			break;
		default:
			diag_error(p->diag, at,
				   "unknown escape '\\%c'; known are \\n \\t \\\" \\\\ \\{ \\}",
				   text[i]);
		}
	}
	out[n] = 0;
	return out;
}

/* ---- expressions ---- */

Expr *expr_new(Parse *p, ExprKind kind, Span s)
{
	Expr *e = ARENA_NEW(p->arena, Expr);

	e->kind = kind;
	e->span = s;
	e->depth = 1;
	return e;
}

/* e one deeper than `child`, or poison. */
static Expr *deepen(Parse *p, Expr *e, const Expr *child)
{
	if (child && child->depth + 1 > e->depth)
		e->depth = child->depth + 1;
	if (e->depth > AST_MAX_DEPTH) {
		parse_too_deep(p, e->span);
		*e = (Expr){ .kind = E_POISON, .depth = 1, .span = e->span };
	}
	return e;
}

static Expr *deepen_args(Parse *p, Expr *e, const Arg *args)
{
	for (; args && e->kind != E_POISON; args = args->next)
		deepen(p, e, args->value);
	return e;
}

Expr *expr_name(Parse *p, ExprKind kind, Span s, const char *text)
{
	Expr *e = expr_new(p, kind, s);

	e->s = text;
	return e;
}

Expr *expr_op(Parse *p, Span s, Operator op, Expr *a, Expr *b)
{
	Expr *e = expr_new(p, b ? E_BINARY : E_UNARY, s);

	e->op.op = op;
	e->op.a = a;
	e->op.b = b;
	e = deepen(p, e, a);
	return e->kind == E_POISON ? e : deepen(p, e, b);
}

Expr *expr_cond(Parse *p, Span s, Expr *c, Expr *a, Expr *b)
{
	Expr *e = expr_new(p, E_COND, s);

	e->cond.c = c;
	e->cond.a = a;
	e->cond.b = b;
	if (c->depth > a->depth)
		a = c;
	return deepen(p, e, a->depth > b->depth ? a : b);
}

Expr *expr_list(Parse *p, Span s, Arg *items)
{
	Expr *e = expr_new(p, E_LIST, s);

	e->list = items;
	return deepen_args(p, e, items);
}

Expr *expr_call(Parse *p, Span s, const char *name, Span name_span, Arg *args, bool primitive)
{
	Expr *e = expr_new(p, E_CALL, s);

	e->call.name = name;
	e->call.name_span = name_span;
	e->call.args = args;
	e->call.primitive = primitive;
	return deepen_args(p, e, args);
}

Expr *expr_field(Parse *p, Span s, Expr *base, const char *name, Span name_span)
{
	Expr *e = expr_new(p, E_FIELD, s);

	e->field.base = base;
	e->field.name = name;
	e->field.name_span = name_span;
	return deepen(p, e, base);
}

Expr *expr_index(Parse *p, Span s, Expr *base, Expr *at)
{
	Expr *e = expr_new(p, E_INDEX, s);

	e->index.base = base;
	e->index.at = at;
	return deepen(p, e, base->depth > at->depth ? base : at);
}

Arg *arg_new(Parse *p, const char *name, Span s, Expr *value)
{
	Arg *x = ARENA_NEW(p->arena, Arg);

	x->name = name;
	x->span = s;
	x->value = value;
	return x;
}

Stmt *stmt_new(Parse *p, StmtKind kind, Span s)
{
	Stmt *x = ARENA_NEW(p->arena, Stmt);

	x->kind = kind;
	x->span = s;
	return x;
}

/* ---- lists ---- */

#define APPEND(l, x)                                                                               \
	do {                                                                                       \
		if (!(l)->end)                                                                     \
			(l)->first = (x);                                                          \
		else                                                                               \
			*(l)->end = (x);                                                           \
		(l)->end = &(x)->next;                                                             \
	} while (0)

void args_add(ArgList *l, Arg *x)
{
	APPEND(l, x);
}

void stmts_add(StmtList *l, Stmt *x)
{
	APPEND(l, x);
}

void names_add(Parse *p, NameList *l, const char *s, Span span)
{
	Name *x = ARENA_NEW(p->arena, Name);

	x->s = s;
	x->span = span;
	APPEND(l, x);
}

void params_add(ParamList *l, Param *x)
{
	APPEND(l, x);
}

/* ---- top level ---- */

void parse_const(Parse *p, const char *name, Span s, Expr *value)
{
	ConstDef *x = ARENA_NEW(p->arena, ConstDef);

	*x = (ConstDef){ name, s, value, NULL };
	*p->consts_end = x;
	p->consts_end = &x->next;
}

void parse_data(Parse *p, const char *name, Span s, Expr *source)
{
	DataDef *x = ARENA_NEW(p->arena, DataDef);

	*x = (DataDef){ name, s, source, NULL };
	*p->data_end = x;
	p->data_end = &x->next;
}

void parse_block(Parse *p, const char *name, Span s, Param *params, Stmt *body)
{
	BlockDef *x = ARENA_NEW(p->arena, BlockDef);

	x->name = name;
	x->span = s;
	x->params = params;
	x->body = body;
	*p->blocks_end = x;
	p->blocks_end = &x->next;
}

void parse_model(Parse *p, Span s, Stmt *body)
{
	AstSection *x = ARENA_NEW(p->arena, AstSection);

	x->span = s;
	x->body = body;
	*p->models_end = x;
	p->models_end = &x->next;
}

void parse_train(Parse *p, Span s, Arg *settings)
{
	AstSection *x = ARENA_NEW(p->arena, AstSection);

	x->span = s;
	x->settings = settings;
	*p->trains_end = x;
	p->trains_end = &x->next;
}

static void parse_run(Parse *p, const char *text, size_t len)
{
	yyscan_t scanner;

	p->ast = ARENA_NEW(p->arena, Ast);
	p->consts_end = &p->ast->consts;
	p->data_end = &p->ast->data;
	p->blocks_end = &p->ast->blocks;
	p->models_end = &p->ast->models;
	p->trains_end = &p->ast->trains;
	if (dl_lex_init_extra(p, &scanner) != 0) {
		diag_error(p->diag, NO_SPAN, "out of memory");
		return;
	}
	dl__scan_bytes(text, (int)len, scanner); /* a copy: the scanner writes into its buffer */
	dl_parse(p, scanner);
	dl_lex_destroy(scanner);
}

Ast *ast_parse(Arena *a, Diag *d, int source, const char *text, size_t len)
{
	Parse p = { .arena = a,
		    .diag = d,
		    .source = source,
		    .start = DL_TEXT,
		    .text = text,
		    .len = (int32_t)len,
		    .whole = true };

	parse_run(&p, text, len);
	return p.ast;
}

Expr *ast_parse_expr(Arena *a, Diag *d, int source, const char *text, size_t len, int32_t offset)
{
	Parse p = { .arena = a,
		    .diag = d,
		    .source = source,
		    .start = DL_EXPRESSION,
		    .text = text,
		    .len = (int32_t)len,
		    .offset = offset,
		    .pos = offset };
	int before = diag_errors(d);

	parse_run(&p, text, len);
	return diag_errors(d) > before ? NULL : p.expr;
}

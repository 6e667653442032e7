/* The grammar. Actions build the tree and nothing else.
 *
 * Recovery: an error inside a statement, a setting or a top-level item skips to the end of its line, or to a `{`, whose body
 * is then read as usual, or to the `}` around it. */
%require "3.8"
%define api.pure full
%define api.prefix {dl_}
%define api.token.prefix {DL_}
%define api.location.type {Span}
%define parse.error custom
%define parse.lac full
%locations
%expect 0
%parse-param {struct Parse *p} {void *scanner}
%lex-param {void *scanner}

%code requires {
#include "parse.h"
}
%code {
#include "names.h"

int dl_lex(DL_STYPE *val, DL_LTYPE *loc, void *scanner);
static void dl_error(DL_LTYPE *loc, struct Parse *p, void *scanner, const char *message);

#define YYLLOC_DEFAULT(cur, rhs, n)                                                                \
	do {                                                                                       \
		(cur).source = p->source;                                                          \
		(cur).begin = (n) ? YYRHSLOC(rhs, 1).begin : YYRHSLOC(rhs, 0).end;                 \
		(cur).end = (n) ? YYRHSLOC(rhs, n).end : YYRHSLOC(rhs, 0).end;                     \
	} while (0)
}

%union {
	int64_t integer;
	double number;
	const char *name;
	Expr *expr;
	Arg *arg;
	Stmt *stmt;
	Param *param;
	TypeExpr *type;
	ArgList args;
	StmtList stmts;
	NameList names;
	ParamList params;
}

%token EOF 0 "the end of the file"
%token TEXT EXPRESSION
%token NL "the end of the line"
%token CONST "'const'" DATA "'data'" BLOCK "'block'" MODEL "'model'" TRAIN "'train'" FOR "'for'" IN "'in'" IF "'if'" ELSE "'else'"
%token LOSS "'loss'" PREDICT "'predict'" RETURN "'return'" REQUIRE "'require'" TRUE "'true'" FALSE "'false'" NONE "'none'" OP "'op'"
%token DOTS "'..'" EQ "'=='" NE "'!='" LE "'<='" GE "'>='" FLOORDIV "'//'" AND "'and'" OR "'or'" NOT "'not'"
%token <name> NAME "a name" STRING "a string"
%token <integer> INTEGER "an integer"
%token <number> FLOAT "a number"

%type <expr> expr postfix primary
%type <arg> arg setting item_value
%type <args> args arg_list list items_of_list settings values
%type <stmt> stmt if_stmt else_part
%type <stmts> stmts body
%type <names> targets
%type <param> param
%type <params> params param_list
%type <type> type

%right '?' ':'
%left OR
%left AND
%precedence NOT
%nonassoc EQ NE '<' LE '>' GE
%left '+' '-'
%left '*' '/' '%' '@' FLOORDIV
%precedence NEG

%%

start:
	TEXT items
|	EXPRESSION expr ends		{ p->expr = $2; }
;
ends:	%empty | ends NL;

/* ---- top level ---- */

items:
	%empty
|	items NL
|	items item
|	items error NL			{ yyerrok; }
|	items error body		{ yyerrok; }
;
item:
	CONST consts
|	DATA NAME '=' expr		{ parse_data(p, $2, @2, $4); }
|	BLOCK NAME '(' params ')' body	{ parse_block(p, $2, @2, $4.first, $6.first); }
|	MODEL body			{ parse_model(p, @1, $2.first); }
|	TRAIN '{' settings '}'		{ parse_train(p, @1, $3.first); }
|	TRAIN '{' settings error '}'	{ parse_train(p, @1, $3.first); yyerrok; }
;
consts:
	const
|	consts ',' const
;
const:	NAME '=' expr			{ parse_const(p, $1, @1, $3); };

params:
	%empty				{ $$ = (ParamList){ 0 }; }
|	param_list
|	param_list ','
;
param_list:
	param				{ $$ = (ParamList){ 0 }; params_add(&$$, $1); }
|	param_list ',' param		{ $$ = $1; params_add(&$$, $3); }
;
param:
	NAME				{ $$ = ARENA_NEW(p->arena, Param); $$->name = $1; $$->span = @1; }
|	NAME ':' type			{ $$ = ARENA_NEW(p->arena, Param); $$->name = $1; $$->span = @1; $$->type = $3; }
|	NAME '=' expr			{ $$ = ARENA_NEW(p->arena, Param); $$->name = $1; $$->span = @1; $$->dflt = $3; }
|	NAME ':' type '=' expr		{ $$ = ARENA_NEW(p->arena, Param); $$->name = $1; $$->span = @1; $$->type = $3; $$->dflt = $5; }
;
type:
	NAME				{ $$ = ARENA_NEW(p->arena, TypeExpr); $$->name = $1; $$->span = @1; }
|	NAME '[' list ']'		{ $$ = ARENA_NEW(p->arena, TypeExpr); $$->name = $1; $$->span = @$; $$->shaped = true; $$->dims = $3.first; }
;

settings:
	%empty				{ $$ = (ArgList){ 0 }; }
|	settings NL
|	settings ','
|	settings setting		{ $$ = $1; args_add(&$$, $2); }
|	settings error NL		{ $$ = $1; yyerrok; }
;
setting: NAME '=' expr			{ $$ = arg_new(p, $1, @1, $3); };

/* ---- statements ---- */

body:
	'{' stmts '}'			{ $$ = $2; }
|	'{' stmts error '}'		{ $$ = $2; yyerrok; }
;
stmts:
	%empty				{ $$ = (StmtList){ 0 }; }
|	stmts NL
|	stmts stmt			{ $$ = $1; stmts_add(&$$, $2); }
|	stmts error NL			{ $$ = $1; yyerrok; }
|	stmts error body		{ $$ = $1; yyerrok; }
;
stmt:
	targets '=' expr		{ $$ = stmt_new(p, S_ASSIGN, @$); $$->targets = $1.first; $$->a = $3; }
|	FOR NAME IN expr DOTS expr body	{
		NameList l = { 0 };
		names_add(p, &l, $2, @2);
		$$ = stmt_new(p, S_FOR, ((Span){ p->source, @1.begin, @6.end }));
		$$->targets = l.first; $$->a = $4; $$->b = $6; $$->body = $7.first;
	}
|	if_stmt
|	LOSS expr			{ $$ = stmt_new(p, S_LOSS, @$); $$->a = $2; }
|	PREDICT expr			{ $$ = stmt_new(p, S_PREDICT, @$); $$->a = $2; }
|	RETURN values			{ $$ = stmt_new(p, S_RETURN, @$); $$->values = $2.first; }
|	REQUIRE expr ',' expr		{ $$ = stmt_new(p, S_REQUIRE, @$); $$->a = $2; $$->b = $4; }
;
if_stmt:
	IF expr body else_part		{ $$ = stmt_new(p, S_IF, @2); $$->a = $2; $$->body = $3.first; $$->orelse = $4; }
;
else_part:
	%empty				{ $$ = NULL; }
|	ELSE if_stmt			{ $$ = $2; }
|	ELSE body			{ $$ = $2.first; }
;
targets:
	NAME				{ $$ = (NameList){ 0 }; names_add(p, &$$, $1, @1); }
|	targets ',' NAME		{ $$ = $1; names_add(p, &$$, $3, @3); }
;
values:
	item_value			{ $$ = (ArgList){ 0 }; args_add(&$$, $1); }
|	values ',' item_value		{ $$ = $1; args_add(&$$, $3); }
;

/* ---- expressions ---- */

expr:
	postfix
|	expr '+' expr			{ $$ = expr_op(p, @$, O_ADD, $1, $3); }
|	expr '-' expr			{ $$ = expr_op(p, @$, O_SUB, $1, $3); }
|	expr '*' expr			{ $$ = expr_op(p, @$, O_MUL, $1, $3); }
|	expr '/' expr			{ $$ = expr_op(p, @$, O_DIV, $1, $3); }
|	expr FLOORDIV expr		{ $$ = expr_op(p, @$, O_FLOORDIV, $1, $3); }
|	expr '%' expr			{ $$ = expr_op(p, @$, O_MOD, $1, $3); }
|	expr '@' expr			{ $$ = expr_op(p, @$, O_MATMUL, $1, $3); }
|	expr EQ expr			{ $$ = expr_op(p, @$, O_EQ, $1, $3); }
|	expr NE expr			{ $$ = expr_op(p, @$, O_NE, $1, $3); }
|	expr '<' expr			{ $$ = expr_op(p, @$, O_LT, $1, $3); }
|	expr LE expr			{ $$ = expr_op(p, @$, O_LE, $1, $3); }
|	expr '>' expr			{ $$ = expr_op(p, @$, O_GT, $1, $3); }
|	expr GE expr			{ $$ = expr_op(p, @$, O_GE, $1, $3); }
|	expr AND expr			{ $$ = expr_op(p, @$, O_AND, $1, $3); }
|	expr OR expr			{ $$ = expr_op(p, @$, O_OR, $1, $3); }
|	NOT expr			{ $$ = expr_op(p, @$, O_NOT, $2, NULL); }
|	'-' expr %prec NEG		{ $$ = expr_op(p, @$, O_NEG, $2, NULL); }
|	expr '?' expr ':' expr		{ $$ = expr_cond(p, @$, $1, $3, $5); }
;
postfix:
	primary
|	postfix '.' NAME		{ $$ = expr_field(p, @$, $1, $3, @3); }
|	postfix '[' expr ']'		{ $$ = expr_index(p, @$, $1, $3); }
;
primary:
	NAME				{ $$ = expr_name(p, E_NAME, @$, $1); }
|	STRING				{ $$ = expr_name(p, E_STR, @$, $1); }
|	INTEGER				{ $$ = expr_new(p, E_INT, @$); $$->i = $1; }
|	FLOAT				{ $$ = expr_new(p, E_FLOAT, @$); $$->f = $1; }
|	TRUE				{ $$ = expr_new(p, E_BOOL, @$); $$->b = true; }
|	FALSE				{ $$ = expr_new(p, E_BOOL, @$); $$->b = false; }
|	NONE				{ $$ = expr_new(p, E_NONE, @$); }
|	NAME '(' args ')'		{ $$ = expr_call(p, @$, $1, @1, $3.first, false); }
|	OP '.' NAME '(' args ')'	{ $$ = expr_call(p, @$, $3, @3, $5.first, true); }
|	'(' expr ')'			{ $$ = $2; }
|	'(' expr ',' items_of_list ')'	{
		ArgList l = { 0 };
		args_add(&l, arg_new(p, NULL, @2, $2));
		l.first->next = $4.first;
		$$ = expr_list(p, @$, l.first);
	}
|	'[' list ']'			{ $$ = expr_list(p, @$, $2.first); }
;
args:
	%empty				{ $$ = (ArgList){ 0 }; }
|	arg_list
|	arg_list ','
;
arg_list:
	arg				{ $$ = (ArgList){ 0 }; args_add(&$$, $1); }
|	arg_list ',' arg		{ $$ = $1; args_add(&$$, $3); }
;
arg:
	expr				{ $$ = arg_new(p, NULL, @1, $1); }
|	NAME '=' expr			{ $$ = arg_new(p, $1, @1, $3); }
;
list:
	%empty				{ $$ = (ArgList){ 0 }; }
|	items_of_list
|	items_of_list ','
;
items_of_list:
	item_value			{ $$ = (ArgList){ 0 }; args_add(&$$, $1); }
|	items_of_list ',' item_value	{ $$ = $1; args_add(&$$, $3); }
;
item_value: expr			{ $$ = arg_new(p, NULL, @1, $1); };

%%

/* Only running out of the parser's stack comes here: syntax errors go to yyreport_syntax_error. */
static void dl_error(DL_LTYPE *loc, struct Parse *p, void *scanner, const char *message)
{
	(void)scanner;
	(void)message;
	parse_too_deep(p, *loc);
}

/* Symbols by the text that messages use. */
static const char *const expression_start[] = { "a name", "a string", "an integer", "a number", "'true'", "'false'", "'none'",
						"'op'",   "'('",      "'['",        "'-'",      "'not'",  NULL };
static const char *const operators[] = { "'('", "'+'", "'-'", "'*'", "'/'", "'//'", "'%'", "'@'", "'<'", "'<='", "'>'", "'>='",
					 "'=='", "'!='", "'?'", "'.'", "'['", "'and'", "'or'", NULL };
static const char *const statement_start[] = { "a name", "'for'", "'if'", "'loss'", "'predict'", "'return'", "'require'", NULL };

typedef struct Expected {
	const char *name[80];
	int n;
} Expected;

static bool listed(const char *const *list, const char *s)
{
	for (; *list; list++)
		if (!strcmp(*list, s))
			return true;
	return false;
}

static bool expects(const Expected *e, const char *s)
{
	for (int i = 0; i < e->n; i++)
		if (!strcmp(e->name[i], s))
			return true;
	return false;
}

/* Takes the symbols of a list out and puts `name` (NULL: nothing) in their place. */
static void replace(Expected *e, const char *const *list, const char *name)
{
	int n = 0;

	for (int i = 0; i < e->n; i++)
		if (!listed(list, e->name[i]))
			e->name[n++] = e->name[i];
	if (name)
		e->name[n++] = name;
	e->n = n;
}

/* Says what could stand here in as few words as possible. */
static const char *expected_text(struct Parse *p, Expected *e)
{
	static const char *const ends[] = { "the end of the line", "the end of the file", NULL };
	char *s = "";

	if (expects(e, "'*'")) {
		replace(e, operators, NULL);
		if (expects(e, "the end of the line")) /* a whole statement has been read */
			return "an operator or the end of the line";
	} else if (expects(e, "a number")) {
		replace(e, expression_start, "an expression");
	} else if (expects(e, "'for'") && expects(e, "'return'")) {
		replace(e, statement_start, "a statement");
	}
	if (e->n > 1)
		replace(e, ends, NULL);
	for (int i = 0; i < e->n; i++)
		s = arena_printf(p->arena, "%s%s%s", s, i == 0 ? "" : i == e->n - 1 ? " or " : ", ", e->name[i]);
	return s;
}

static const char *found_text(struct Parse *p, const yypcontext_t *cx)
{
	const YYLTYPE *loc = yypcontext_location(cx);
	const char *name = yysymbol_name(yypcontext_token(cx));
	int32_t n = loc->end - loc->begin;

	if (yypcontext_token(cx) == YYSYMBOL_YYEOF)
		return p->whole ? "the end of the file" : "the end";
	if (n <= 0 || n > 40 || !strcmp(name, "the end of the line"))
		return name;
	return arena_printf(p->arena, "'%.*s'", (int)n, p->text + (loc->begin - p->offset));
}

/* Whether the text before `at` ends with this word. */
static bool follows_word(const struct Parse *p, int32_t at, const char *word)
{
	int32_t n = (int32_t)strlen(word);

	while (at > 0 && (p->text[at - 1] == ' ' || p->text[at - 1] == '\t'))
		at--;
	return at >= n && !memcmp(p->text + at - n, word, (size_t)n) &&
	       (at == n || strchr(" \t\r\n{}", p->text[at - n - 1]));
}

static int yyreport_syntax_error(const yypcontext_t *cx, struct Parse *p, void *scanner)
{
	static const char *const top[] = { "const", "data", "block", "model", "train" };
	static const char *const output[] = { "loss", "predict", "return" };
	yysymbol_kind_t kinds[80];
	Expected e = { .n = yypcontext_expected_tokens(cx, kinds, 80) };
	const Bracket *open = p->unclosed.open ? &p->unclosed : p->nopen > 0 ? &p->open[p->nopen - 1] : NULL;
	const YYLTYPE *loc = yypcontext_location(cx);
	bool at_top, assigned;

	(void)scanner;
	if (p->fatal || e.n < 0)
		return 0;
	for (int i = 0; i < e.n; i++)
		e.name[i] = yysymbol_name(kinds[i]);
	assigned = loc->end - loc->begin == 1 && p->text[loc->begin - p->offset] == '=';
	at_top = expects(&e, "'train'");
	diag_error(p->diag, *loc, "expected %s, got %s", expected_text(p, &e), found_text(p, cx));
	if (open && (open->open != '{' || yypcontext_token(cx) == YYSYMBOL_YYEOF) &&
	    (p->line_start || p->last == DL_EOF || p->last == DL_NL))
		diag_note(p->diag, open->span, "'%c' is opened here", open->open);
	p->unclosed = (Bracket){ 0 };
	for (size_t i = 0; assigned && i < sizeof output / sizeof *output; i++)
		if (follows_word(p, loc->begin - p->offset, output[i]))
			diag_hint(p->diag, "it has no name: write %s EXPRESSION", output[i]);
	if (at_top && loc->end > loc->begin) {
		Suggest s = suggest_start(arena_strndup(p->arena, p->text + (loc->begin - p->offset),
							(size_t)(loc->end - loc->begin)));
		for (size_t i = 0; i < sizeof top / sizeof *top; i++)
			suggest_try(&s, top[i]);
		suggest_hint(&s, p->diag);
	}
	while (p->nopen > 0 && p->open[p->nopen - 1].open != '{') /* so that the line's end is seen again */
		p->nopen--;
	return 0;
}

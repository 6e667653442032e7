/* What the scanner and the parser share while one text is read. */
#ifndef DLC_FRONTEND_PARSE_H
#define DLC_FRONTEND_PARSE_H

#include "ast.h"

typedef struct Bracket {
	char open;
	Span span;
} Bracket;

typedef struct Parse {
	Arena *arena;
	Diag *diag;
	int source;
	const char *text;
	bool whole;      /* a file, not one expression */
	int32_t len;     /* of text */
	int32_t else_at; /* offset of an `else` that goes on from the line of a `}` before it */
	int32_t offset;  /* of text[0] in the source */
	int32_t pos;     /* offset of the next byte to scan */
	int start;       /* the token that chooses what is parsed; 0 once given */
	int last;        /* the token given last, 0 at the start */
	bool line_start; /* the token given last is the first of its line */
	bool newline;    /* a line has ended since the token given last */
	bool fatal;      /* stop: what follows would only repeat the fault */
	bool deep;       /* nesting has been reported */
	Bracket open[AST_MAX_BRACKETS];
	int nopen;
	Bracket unclosed; /* closed by a `}` that came too early, until reported */
	Ast *ast;
	Expr *expr;
	/* List ends, so that appending is one step. */
	ConstDef **consts_end;
	DataDef **data_end;
	BlockDef **blocks_end;
	AstSection **models_end, **trains_end;
} Parse;

/* List under construction: first and where the next element goes. */
typedef struct ArgList {
	Arg *first, **end;
} ArgList;
typedef struct StmtList {
	Stmt *first, **end;
} StmtList;
typedef struct NameList {
	Name *first, **end;
} NameList;
typedef struct ParamList {
	Param *first, **end;
} ParamList;

/* Reports nesting beyond AST_MAX_DEPTH once. */
void parse_too_deep(Parse *p, Span s);
/* A string literal's text between its quotes, with escapes resolved; braces keep their backslash
 * for interpolation. */
const char *parse_string(Parse *p, Span s, const char *text, size_t len);

/* Node makers; a child deeper than AST_MAX_DEPTH is reported and replaced. */
Expr *expr_new(Parse *p, ExprKind kind, Span s);
Expr *expr_name(Parse *p, ExprKind kind, Span s, const char *text);
Expr *expr_op(Parse *p, Span s, Operator op, Expr *a, Expr *b);
Expr *expr_cond(Parse *p, Span s, Expr *c, Expr *a, Expr *b);
Expr *expr_list(Parse *p, Span s, Arg *items);
Expr *expr_call(Parse *p, Span s, const char *name, Span name_span, Arg *args, bool primitive);
Expr *expr_field(Parse *p, Span s, Expr *base, const char *name, Span name_span);
Expr *expr_index(Parse *p, Span s, Expr *base, Expr *at);
Arg *arg_new(Parse *p, const char *name, Span s, Expr *value);
Stmt *stmt_new(Parse *p, StmtKind kind, Span s);

/* Appending; an empty list is all zeros. */
void args_add(ArgList *l, Arg *x);
void stmts_add(StmtList *l, Stmt *x);
void names_add(Parse *p, NameList *l, const char *s, Span span);
void params_add(ParamList *l, Param *x);

void parse_const(Parse *p, const char *name, Span s, Expr *value);
void parse_data(Parse *p, const char *name, Span s, Expr *source);
void parse_block(Parse *p, const char *name, Span s, Param *params, Stmt *body);
void parse_model(Parse *p, Span s, Stmt *body);
void parse_train(Parse *p, Span s, Arg *settings);

#endif

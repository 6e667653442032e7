/* The syntax tree of a .dl text: what the parser builds and nothing more. Every node keeps its
 * Span.
 *
 * Lists are singly linked in source order. Names and strings are NUL-terminated copies in the
 * arena. Names are resolved by sema.c, which fills Expr.call.target and turns what it has reported
 * into E_POISON. */
#ifndef DLC_FRONTEND_AST_H
#define DLC_FRONTEND_AST_H

#include "../ir/base/arena.h"
#include "../ir/base/diag.h"

typedef struct Expr Expr;
typedef struct Arg Arg;
typedef struct Stmt Stmt;
typedef struct Name Name;
typedef struct TypeExpr TypeExpr;
typedef struct BlockDef BlockDef;

enum { AST_MAX_DEPTH = 500, AST_MAX_BRACKETS = 200 };

typedef enum ExprKind {
	E_POISON,
	E_INT,
	E_FLOAT,
	E_STR,
	E_BOOL,
	E_NONE,
	E_NAME,
	E_LIST,
	E_UNARY,
	E_BINARY,
	E_COND,
	E_CALL,
	E_FIELD,
	E_INDEX
} ExprKind;

/* Operators, in the order of ast_operator_text and value.c's tables. */
typedef enum Operator {
	O_ADD,
	O_SUB,
	O_MUL,
	O_DIV,
	O_FLOORDIV,
	O_MOD,
	O_MATMUL,
	O_EQ,
	O_NE,
	O_LT,
	O_LE,
	O_GT,
	O_GE,
	O_AND,
	O_OR,
	O_NOT,
	O_NEG
} Operator;

/* What a call refers to. */
typedef enum TargetKind { T_UNKNOWN, T_BLOCK, T_BUILTIN, T_OP } TargetKind;

struct Expr {
	ExprKind kind;
	int32_t depth; /* of the tree below; at most AST_MAX_DEPTH */
	Span span;
	union {
		int64_t i;
		double f;
		bool b;
		const char *s; /* E_STR (escapes resolved, braces not), E_NAME */
		Arg *list;     /* E_LIST */
		struct {
			Operator op;
			Expr *a, *b; /* b NULL for E_UNARY */
		} op;
		struct {
			Expr *c, *a, *b;
		} cond;
		struct {
			const char *name;
			Span name_span;
			Arg *args;
			bool primitive; /* written op.NAME(...) */
			TargetKind target;
			int32_t index;   /* T_BUILTIN: row; T_OP: OpCode */
			BlockDef *block; /* T_BLOCK */
		} call;
		struct {
			Expr *base;
			const char *name;
			Span name_span;
		} field;
		struct {
			Expr *base, *at;
		} index;
	};
};

/* An argument, a list element, or a setting `key = value`. */
struct Arg {
	const char *name; /* NULL: positional */
	Span span;        /* of the name, or of the value where there is none */
	Expr *value;
	Arg *next;
};

struct Name {
	const char *s;
	Span span;
	Name *next;
};

struct TypeExpr {
	const char *name; /* int number bool string list init tensor, or a dtype */
	Span span;
	bool shaped;
	Arg *dims; /* the name `_` stands for any size */
};

typedef struct Param {
	const char *name;
	Span span;
	TypeExpr *type; /* NULL: anything */
	Expr *dflt;     /* NULL: required */
	struct Param *next;
} Param;

typedef enum StmtKind { S_ASSIGN, S_FOR, S_IF, S_LOSS, S_PREDICT, S_RETURN, S_REQUIRE } StmtKind;

struct Stmt {
	StmtKind kind;
	Span span;
	Name *targets; /* S_ASSIGN; S_FOR: the index */
	Expr *a, *b;   /* S_ASSIGN, S_LOSS, S_PREDICT: a; S_FOR: bounds; S_IF: condition; S_REQUIRE:
			  condition, message */
	Arg *values;   /* S_RETURN */
	Stmt *body, *orelse;
	Stmt *next;
};

struct BlockDef {
	const char *name;
	Span span; /* of the name */
	Param *params;
	Stmt *body;
	bool standard; /* from std.dl */
	int8_t state;  /* sema's walk for recursion: 0 new, 1 open, 2 done */
	BlockDef *next;
};

typedef struct ConstDef {
	const char *name;
	Span span;
	Expr *value;
	struct ConstDef *next;
} ConstDef;

typedef struct DataDef {
	const char *name;
	Span span;
	Expr *source; /* a type with its settings, or a choice between such by a constant */
	struct DataDef *next;
} DataDef;

/* A `model` or `train` block. */
typedef struct AstSection {
	Span span;
	Stmt *body;    /* model */
	Arg *settings; /* train */
	struct AstSection *next;
} AstSection;

typedef struct Ast {
	ConstDef *consts;
	DataDef *data;
	BlockDef *blocks;
	AstSection *models, *trains;
} Ast;

const char *ast_operator_text(Operator op);

/* Parses a file; what could be read comes back even after diagnostics. */
Ast *ast_parse(Arena *a, Diag *d, int source, const char *text, size_t len);
/* Parses one expression; NULL after diagnostics. Spans count from `text`, which starts at `offset`
 * in the source. */
Expr *ast_parse_expr(Arena *a, Diag *d, int source, const char *text, size_t len, int32_t offset);

#endif

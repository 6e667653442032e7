/* Inside the front end: values, the context of one compilation, and what its files offer each
 * other.
 *
 * frontend.c  the stages, in order          sema.c      names, duplicates, recursion: before
 * anything is evaluated eval.c      expressions and statements    value.c     constants and their
 * arithmetic call.c      blocks: arguments, instances  prim.c      ops by name, operators on
 * tensors builtin.c   functions of the language     param.c     parameters and their names
 * settings.c  `train` and -D                dataset.c   `data`
 * tuning.c    parameters by name            lora.c      adapters
 *
 * Every error goes through front_error, which finds the user's text for it and says a thing once.
 */
#ifndef DLC_FRONTEND_FRONT_H
#define DLC_FRONTEND_FRONT_H

#include "../ir/ir.h"
#include "ast.h"
#include "frontend.h"
#include "names.h"

/* ---- values ---- */

typedef enum ValKind {
	V_POISON, /* its fault has been reported: silent from here on */
	V_NONE,
	V_BOOL,
	V_INT,
	V_FLOAT,
	V_STR,
	V_LIST,
	V_TENSOR,
	V_TUPLE, /* several results of one call */
	V_DATA,  /* a data set: its fields are tensors */
	V_INIT   /* initial values of a parameter: normal(0.02) */
} ValKind;

/* How a number depends on `batch`: not, as a whole multiple of it, or in another way. */
typedef enum BatchMark { BM_NONE, BM_MULTIPLE, BM_OTHER } BatchMark;

typedef struct InitVal {
	InitKind kind;
	double a, b;
} InitVal;

enum { DATA_MAX_FIELDS = 2 };

typedef struct NumberList {
	int32_t n;
	double *v;
} NumberList;

typedef struct Dataset {
	const DataDef *def;
	const Expr *source;          /* the call that was chosen: type and settings */
	const struct DataType *type; /* NULL after an error */
	Section *section;
	NumberList channels[2];      /* mean and std by channel; empty where they are one number, which the section has */
	Value *input[DATA_MAX_FIELDS]; /* the raw field, made at its first use */
	Value *field[DATA_MAX_FIELDS]; /* what the model sees */
} Dataset;

typedef struct Val {
	ValKind kind;
	BatchMark mark; /* V_INT, V_FLOAT, V_BOOL */
	int32_t n;      /* V_LIST, V_TUPLE */
	union {
		bool b;
		int64_t i;
		double f;
		const char *s;
		struct Val *at; /* V_LIST, V_TUPLE */
		Value *t;
		Dataset *data;
		const InitVal *init;
	};
} Val;

#define POISON ((Val){ .kind = V_POISON })
#define NONE_VAL ((Val){ .kind = V_NONE })

Val val_int(int64_t i);
Val val_float(double f);
Val val_tensor(Value *t);
bool val_is_number(Val v); /* int or float */
double val_number(Val v);  /* of an int or a float */
bool val_equal(Val a, Val b);
/* "an int", "a tensor", ...: for messages. */
const char *val_kind_text(ValKind k);
/* The value as written: "3", "0.5", "[2, 3]", "f32[64,10]". */
const char *val_text(Arena *a, Val v);
/* The value with its kind: "the number 2.5", "a tensor f32[64,10]". */
const char *val_describe(Arena *a, Val v);

/* ---- the compilation ---- */

enum {
	FRONT_MAX_TEXT = 16 << 20, /* bytes of a model */
	FRONT_MAX_NODES = 200000,  /* of the forward function */
	FRONT_MAX_VARS = 10000,    /* parameters and statistics */
	FRONT_MAX_WORK = 4000000,  /* expressions and statements evaluated */
	FRONT_MAX_CALLS = 100,     /* blocks within blocks */
	FRONT_MAX_DEPTH = 2000,    /* evaluations within evaluations */
	FRONT_MAX_LIST = 65536,    /* elements of a list that is joined from two */
	FRONT_MAX_STRING = 4096    /* bytes of an interpolated string */
};

typedef struct ConstVal {
	const ConstDef *def; /* NULL for the predefined ones */
	Expr *expr;          /* what is evaluated; an override replaces it */
	Val value;
	int8_t state; /* 0 not evaluated, 1 being evaluated, 2 done */
} ConstVal;

/* A variable of a block. */
typedef struct Local {
	Val value;
	Span span;        /* of the name where it got its value */
	const Expr *from; /* an argument: the expression in the caller; else NULL */
} Local;

/* One instance of a block (or of the model) being evaluated. */
typedef struct Frame {
	const BlockDef *block; /* NULL: the model, a constant or a setting */
	bool standard;         /* evaluates text of std.dl */
	bool constant;         /* tensors cannot be made here */
	NameMap locals;        /* name to Local */
	const char *path;      /* of parameters made here, "" or "h.0.attn" */
	Span user;             /* in std.dl: the user's call that led here */
	Span call;             /* where this block was called */
	struct Frame *up;      /* the caller */
	Val result;            /* of `return` */
} Frame;

/* A parameter or running statistic, and where the graph reads it. */
typedef struct VarUse {
	Var *var;
	Value *value;
} VarUse;

typedef struct Override {
	const char *scope, *key, *text; /* "train", "lr", "1e-3"; scope NULL: a const */
	int32_t offset;                 /* of text in its source */
	Span span, name;                /* of it all and of the name */
	bool used, read;
	Expr *expr; /* once read; NULL after an error */
	struct Override *next;
} Override;

typedef struct Front {
	Arena *arena;
	Diag *diag;
	const FrontOptions *opt;
	Ast *user, *std;
	int user_source, std_source;
	Override *overrides;
	NameMap consts;                  /* ConstVal */
	NameMap datasets;                /* Dataset */
	NameMap user_blocks, std_blocks; /* BlockDef */
	NameMap vars;                    /* VarUse */
	NameMap streams;                 /* random streams of variables, as text */
	Node *last_var;    /* `var` nodes stand first in the function, in order of their making */
	NameMap instances; /* full path of a block instance: Instance (param.c) */
	NameMap reported;  /* spans that have an error */
	Module *module;
	Func *func;
	Builder b;
	DType real; /* f32, or f64 under precision fp64 */
	int32_t precision; /* NF_IN_*: what the blocks being evaluated ask for; 0: the run's */
	Value *loss, *predict;
	Span loss_span, predict_span;
	struct Tuning *tuning; /* tuning.c: what `train` says of parameters by name */
	int8_t batch_state; /* of `batch`: 0 not evaluated, 1 being evaluated, 2 known */
	int64_t nodes, nvars, work;
	int depth, calls;
	bool recursive; /* some block calls itself: the model is not evaluated */
	bool stop;      /* a limit was exceeded: evaluate nothing more */
} Front;

/* An error at `s`, or, when `s` lies in std.dl, at the user's call with a note at `s`. False when
 * this place has its error already (or evaluation has stopped): then notes must be left out too. */
bool front_error(Front *f, const Frame *fr, Span s, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* The place in the user's text that stands for `s`. */
Span front_span(const Front *f, const Frame *fr, Span s);
bool front_reported(Front *f, Span user);
/* Notes after an error: where in std.dl, and which calls led here. */
void front_trace(Front *f, const Frame *fr, Span s);
/* Refuses to go on, once. */
void front_limit(Front *f, const Frame *fr, Span s, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- sema.c ---- */

/* Fills the tables and resolves every call; reports what can be told without evaluating. */
void sema_check(Front *f);
/* The same for one expression that may use constants alone. */
void sema_constant(Front *f, Expr *e);

/* ---- value.c ---- */

/* Arithmetic and comparison of constants; operands are numbers, bools, strings or lists. */
Val value_binary(Front *f, const Frame *fr, Span s, Operator op, Val a, Val b);
Val value_unary(Front *f, const Frame *fr, Span s, Operator op, Val a);
/* Checks a float that a computation gave; `what` names the computation. */
Val value_finite(Front *f, const Frame *fr, Span s, const char *what, double v, BatchMark mark);

/* ---- eval.c ---- */

Val eval_expr(Front *f, Frame *fr, const Expr *e);
/* Runs statements; true when a `return` ended them. */
bool eval_stmts(Front *f, Frame *fr, const Stmt *s);
Val eval_const(Front *f, const char *name, Span at); /* of a known constant */
/* The int, or false after an error that says what it is for ("the axis"). Refuses what depends on
 * the batch. */
bool eval_int(Front *f, const Frame *fr, Span s, Val v, const char *what, int64_t *out);
/* Dims and marks from a list of ints; at most IR_MAX_DIMS. minus_one: one -1 is allowed. */
bool eval_shape(Front *f, const Frame *fr, Span s, Val v, bool minus_one, Type *out);

/* Evaluated arguments of one call. */
typedef struct Actual {
	const char *name; /* NULL: positional */
	Span span;        /* of the name or value */
	const Expr *expr;
	Val v;
	bool used;
} Actual;

typedef struct Actuals {
	Actual *at;
	int n, npos; /* positional ones come first */
	bool poison; /* some value is poison */
} Actuals;

/* Evaluates arguments; false after an error in their form. */
bool eval_args(Front *f, Frame *fr, const Arg *args, Actuals *out);
Actual *actual_named(Actuals *a, const char *name);
/* The positional argument i, or the one of this name; NULL when absent. Marks it used. */
Actual *actual_take(Actuals *a, int i, const char *name);
/* Reports arguments that nothing took: `usage` is the form of the call. */
bool actuals_done(Front *f, const Frame *fr, Actuals *a, const char *callee, const char *usage);

/* ---- call.c ---- */

Val call_block(Front *f, Frame *fr, const Expr *e);

/* ---- prim.c: ops by name; tensor.c: the ops with rules of their own ---- */

/* The op that a model may call by this name, or OP_COUNT. */
OpCode prim_find(const char *name);
void prim_suggest(Suggest *s);
Val prim_call(Front *f, Frame *fr, const Expr *e, OpCode op);
/* The same with arguments evaluated already (none of them poison). */
Val prim_apply(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args);
/* An operator with at least one tensor operand. */
Val prim_binary(Front *f, Frame *fr, const Expr *e, Operator op, Val a, Val b);
Val prim_unary(Front *f, Frame *fr, const Expr *e, Operator op, Val a);
/* One node at `e`'s place in the user's text, flags NF_*; NULL after a diagnostic. */
Node *prim_node(Front *f, const Frame *fr, const Expr *e, OpCode op, int nargs, Value *const *args,
		const Attr *attrs, const Type *given, int32_t flags);
/* The results of a node as a value; the sum over the batch where the node lost the batch dimension
 * by summing. */
Val prim_results(Front *f, const Frame *fr, const Expr *e, Node *n);
/* A number as a tensor beside one of type `like`; NULL after an error. */
Value *prim_operand(Front *f, const Frame *fr, const Expr *e, Val v, const Type *like);
/* Whether a value of this dtype can be this number. */
bool prim_holds(DType t, double v);
/* "matmul(x, y, ta = false, tb = false)" */
const char *prim_usage(Front *f, OpCode op);

/* concat and stack of the tensors of a list (as one operand or as many); `join` is their op of many operands. */
Val tensor_join(Front *f, Frame *fr, const Expr *e, Actuals *args, bool stack);
/* Numbers as a tensor of one dimension. */
Val tensor_vector(Front *f, Frame *fr, const Expr *e, const double *v, int32_t n);
/* An axis of `t`, negative ones from the end. */
bool tensor_axis(Front *f, const Frame *fr, Span s, Val v, const Type *t, int64_t *out);
/* Is this axis of `t` the batch? */
bool tensor_is_batch(const Type *t, int64_t axis);
/* reshape and broadcast (x, shape), reductions (x, axes, keep), leaves (shape, attributes, dtype).
 */
Val tensor_reshape(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args);
Val tensor_reduce(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args);
Val tensor_leaf(Front *f, Frame *fr, const Expr *e, OpCode op, Actuals *args);
/* k * (samples in the whole batch), as a tensor of type `real`. */
Value *tensor_batch_count(Front *f, const Frame *fr, const Expr *e, double k);
/* Attribute `i` of an op from its argument: the given one, else the default; false after an error.
 */
bool prim_attr(Front *f, Frame *fr, const Expr *e, OpCode op, int i, int position, Actuals *args,
	       Attr *out);

/* ---- builtin.c ---- */

int builtin_find(const char *name); /* -1 when there is none */
void builtin_suggest(Suggest *s);
Val builtin_call(Front *f, Frame *fr, const Expr *e, int index);

/* ---- param.c ---- */

/* The path of a new block instance: `name` as the author wrote it, or NULL for one made from
 * `block`. NULL after an error. */
const char *param_path(Front *f, const Frame *fr, const Expr *call, const char *block,
		       const char *name);
/* A variable of this name below the frame's path, made at its first use. */
Val param_use(Front *f, const Frame *fr, const Expr *e, const char *name, const Type *t,
	      VarRole role, const InitVal *init, int decay);
/* A parameter that the text does not name; NULL where the name is taken. */
VarUse *param_add(Front *f, const char *full, const Type *t, const InitVal *init, Span at);

/* ---- settings.c, tuning.c, dataset.c ---- */

/* Splits the -D options; false after errors. */
bool overrides_read(Front *f);
void overrides_check(Front *f); /* what no one has used is unknown */
/* The override of a setting or const, marked used; NULL. */
Override *override_find(Front *f, const char *scope, const char *key);
/* Its value: an expression, or the bare text where `text` says that a string is wanted. */
Expr *override_expr(Front *f, Override *o, bool text);

/* How data with such a field are declared, "idx(...)"; NULL when no type has it. */
const char *dataset_example(const char *field);

int64_t settings_batch(Front *f); /* train.batch */
const char *settings_precision(Front *f);
void tuning_apply(Front *f);   /* groups, frozen parameters, adapters: of the model as built */
void settings_build(Front *f); /* the section `train` */
void dataset_build(Front *f);  /* the sections `data` */
Val dataset_field(Front *f, Frame *fr, const Expr *e, Dataset *d);
/* Reports that `key` is no setting of a data set, with a suggestion. */
void dataset_unknown(Front *f, const Dataset *d, Span at, const char *key);
void dataset_finish(Front *f); /* ranges of integer fields, unused data */

#endif

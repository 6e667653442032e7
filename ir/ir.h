/* The tensor IR: a typed SSA graph over tensors with static shapes.
 *
 * A Module holds variables (what lives from step to step), functions and the settings of `train` and `data`.
 * A Func is a Block of Nodes in execution order. A Node applies an op (a row of ops.def) to Values and
 * defines result Values. Two ops own a nested Block: `loop` (trip i sees the samples from base + i * batch on, `batch` of
 * them; its body may read values of the enclosing block) and `fused` (one kernel; its body reads only its own parameters).
 * Both bodies have parameters and end in `yield`.
 *
 * A dimension may be marked as scaling with the batch (Type.batch, printed as `64'`): such a dimension is
 * k * Func.batch, and ir_clone_block can re-type a block for a micro-batch. */
#ifndef DLC_IR_H
#define DLC_IR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/intern.h"
#include "base/map.h"
#include "base/vec.h"

/* ---- types ------------------------------------------------------------------------------------- */

enum { IR_MAX_DIMS = 8, IR_MAX_ARGS = 64 };

/* Every placed value begins at a multiple of this many bytes of the arena. */
enum { IR_ALIGN = 64 };

/* In order of promotion: element-wise arithmetic takes the later of its operands' types (f16 with bf16: f32). */
typedef enum DType {
	DT_NONE, DT_BOOL, DT_U8, DT_U16, DT_I32, DT_I64, DT_F16, DT_BF16, DT_F32, DT_F64, DT_COUNT
} DType;

typedef struct Type {
	DType dtype;
	uint8_t ndim;   /* 0: a scalar */
	uint16_t batch; /* bit i: dim[i] is a multiple of, and scales with, Func.batch */
	int64_t dim[IR_MAX_DIMS];
} Type;

const char *dtype_name(DType t);              /* "f32" */
DType dtype_from_name(const char *s, size_t n); /* DT_NONE when unknown */
int64_t dtype_bytes(DType t);
bool dtype_is_float(DType t);
DType dtype_promote(DType a, DType b);

Type type_make(DType t, int ndim, const int64_t *dim);
Type type_scalar(DType t);
/* Number of elements and bytes; callers may rely on no overflow: type_check has refused such types. */
int64_t type_elems(const Type *t);
int64_t type_bytes(const Type *t);
/* False where a dimension is < 1 or the bytes do not fit in int64_t. */
bool type_check(const Type *t);
bool type_equal(const Type *a, const Type *b); /* dtype, dims and batch marks */
bool type_same_shape(const Type *a, const Type *b); /* dims only */
/* NumPy's broadcasting; the dtype is the promoted one; false where shapes do not match. A marked dimension meets a
 * marked one of its size or an unmarked 1, and the result is marked; beside an unmarked dimension of the same size it
 * does not match, as it would not under another batch. */
bool type_broadcast(const Type *a, const Type *b, Type *out);
/* "f32[64',128]"; with marks=false (for people) "f32[64,128]". */
const char *type_text(Arena *a, const Type *t, bool marks);

/* ---- ops --------------------------------------------------------------------------------------- */

typedef enum OpCode {
#define OP(name, ...) OP_##name,
#include "ops.def"
#undef OP
	OP_COUNT
} OpCode;

typedef enum OpKind {
	K_LEAF,   /* const, iota, var, input, random: no tensor operands */
	K_EWISE,  /* one scalar expression per element, operands broadcast */
	K_REDUCE, /* attr axes, keep: like NumPy */
	K_SHAPE,  /* the same elements elsewhere: reshape, transpose, broadcast, slice, pad, concat */
	K_MATRIX, /* a library call: matmul, conv2d and its gradients */
	K_KERNEL, /* a hand-shaped kernel of its own: pools, embedding, attention */
	K_MACRO,  /* expanded into other ops by the pass `expand` */
	K_EFFECT, /* no results: assign, output */
	K_REGION, /* loop, fused, yield */
	K_OPAQUE, /* known by bytes and cost alone */
	K_MOVE    /* copies to host memory and back, beside the other nodes: send, sent, fetch, fetched */
} OpKind;

/* What the pass `autocast` makes of an op under a 16-bit precision. */
typedef enum Precision {
	P_FOLLOW, /* computes in the type of its operands, element-wise arithmetic in the widest */
	P_LOW,    /* computes in the 16-bit type, sums in f32 */
	P_F32,    /* 16-bit operands are widened */
	P_NONE    /* takes and gives what it does */
} Precision;
typedef enum Remat { RM_OK, RM_CHEAP, RM_NEVER } Remat;

enum { /* OpInfo.flags */
	OPF_VIEW = 1,        /* result 0 has the bytes of argument 0 (slice: only where contiguous, see ir_is_view) */
	OPF_RANDOM = 2,      /* a counter generator: attr `stream` */
	OPF_TYPED = 4,       /* the result type is an input of the builder, not derived (const, reshape, ...) */
	OPF_VARARGS = 8,     /* nargs is the minimum */
	OPF_NOGRAD = 16,     /* no gradient flows, on purpose */
	OPF_BATCH_LINEAR = 32, /* result is a sum over samples when it loses the batch mark (matmul, sum, conv2d_grad_w) */
	OPF_ACC = 64         /* an optional operand behind the others, of the result's type (f32 or f64): the result is it plus what
	                      * the op computes, and may take over its bytes where it dies (ir_acc) */
};

typedef enum AttrKind { A_END, A_INT, A_BOOL, A_FLOAT, A_STR, A_INTS } AttrKind;

typedef struct IntList {
	int32_t n;
	int64_t v[IR_MAX_DIMS];
} IntList;

typedef struct Attr {
	union {
		int64_t i; /* A_INT, A_BOOL */
		double f;
		const char *s;
		IntList ints;
	};
} Attr;

typedef struct AttrSpec {
	const char *name;
	AttrKind kind;
	double dflt; /* numeric default; NAN-free: an attribute equal to its default is still printed */
	bool optional; /* A_STR, A_BOOL: not printed where it is empty, or false */
} AttrSpec;

typedef struct Value Value;
typedef struct Node Node;
typedef struct Block Block;
typedef struct Func Func;
typedef struct Module Module;
typedef struct Builder Builder;

/* Type rule: fills res[0..nres) from n's args and attrs (for OPF_TYPED: checks n->res types as given).
 * On a fault writes one lower-case sentence to `why` ("inner sizes differ, f32[64,784] by f32[512,10]"). */
typedef bool (*TypeRule)(const Node *n, Type *res, char why[256]);
/* Gradient rule: given dy[i] (the gradient of result i, or NULL) sets dx[j] (NULL: none) for each argument.
 * Shapes may be the broadcast ones: the walker sums broadcast axes, casts, and adds up uses. */
typedef bool (*GradRule)(Builder *b, Node *n, Value *const *dy, Value **dx);
/* Macro expansion: sets res[i] for each result. `training` chooses dropout's and batch norm's behaviour. */
typedef bool (*ExpandRule)(Builder *b, Node *n, bool training, Value **res);
/* Floating-point operations of one execution. Default: elements of the result (K_EWISE), of arg 0 (K_REDUCE). */
typedef double (*FlopsRule)(const Node *n);

typedef struct OpInfo {
	const char *name;
	const char *doc;
	const char *expr;   /* K_EWISE: C expression; $0 $1 $2 operands in the compute type, #f(..) a math function of
	                     * the compute type (dl_f_f32, dl_f_f64), @a attribute a, T(1.5) a literal of the compute type */
	const char *ex;     /* example operand types and attributes for the self-test: "f64[2,3], f64[3] {axis = 1}";
	                     * several examples are separated by " ; " */
	OpKind kind;
	int nargs, nres;
	unsigned flags;
	Precision prec;
	Remat remat;
	AttrSpec attrs[8];
	TypeRule type;
	GradRule grad;
	ExpandRule expand;
	FlopsRule flops;
	unsigned saves_args, saves_res; /* what the gradient reads: bit i for argument / result i */
	unsigned f32_args;  /* P_LOW, P_FOLLOW: operands that stay f32 (bit i) */
} OpInfo;

extern const OpInfo ir_ops[OP_COUNT];
OpCode op_from_name(const char *s, size_t n); /* OP_COUNT when unknown */
int op_attr_count(OpCode op);
int op_attr_find(OpCode op, const char *name, size_t len); /* index into OpInfo.attrs and Node.attr, or -1 */
void op_attr_defaults(OpCode op, Attr *out);               /* fills op_attr_count(op) attributes */
int op_most_args(OpCode op); /* operands that a node may have; the least number is OpInfo.nargs */
/* Start-up self-check of the table; returns NULL or what is wrong with which row. */
const char *op_table_check(void);

/* ---- values, nodes, blocks, functions --------------------------------------------------------------- */

struct Value {
	Type type;
	Node *def;     /* NULL for a block parameter */
	Block *block;  /* for a block parameter: whose */
	int32_t index; /* result number, or parameter number */
	int32_t id;    /* dense number within the function after ir_number() */
	const char *name; /* hint for printing, may be NULL */
	int64_t offset;   /* arena offset in bytes after `offsets`; -1 before. Views carry their own offset. Of a value in host memory
	                   * (ir_in_host): its offset there */
	int64_t ld;       /* strided view only: elements between rows (see ir_is_view); 0: dense */
	void *aux;        /* scratch of the pass at work */
};

struct Node {
	OpCode op;
	int32_t nargs, nres;
	Value **arg;
	Value **res;
	Attr *attr;       /* one for each AttrSpec of the op */
	Block *body;      /* loop, fused */
	Node *replay_of;  /* the node that this one recomputes */
	Span span;        /* source of the statement; gradient nodes inherit their forward node's */
	Block *parent;
	Node *prev, *next;
	int32_t pos;      /* position in the function's linear order after ir_number(), bodies included */
	int32_t flags;    /* NF_* */
	int64_t work_offset, work_bytes; /* workspace in the arena (library scratchpads, partial sums, thread rows) */
	double seconds;   /* predicted, of one execution; after `offsets` (0 before); no part of the text */
	void *aux;
};

enum { /* Node.flags */
	NF_BACKWARD = 1,   /* made by autodiff or after it */
	NF_OPTIMIZER = 2,  /* made by the optimizer pass */
	NF_BATCH_STATS = 4, /* a statistic over the micro-batch (batch norm): changes with the micro-batch size */
	NF_F32 = 8, /* stays in f32 under a 16-bit precision, whatever its op's class; from `expand` to `autocast` */
	NF_IN_F32 = 16, /* its block's precision, where that is not the run's; up to `autocast` */
	NF_IN_BF16 = 32,
	NF_IN_F16 = 64,
	NF_IN = NF_IN_F32 | NF_IN_BF16 | NF_IN_F16,
	NF_PRECISION = NF_F32 | NF_IN, /* what a gradient takes over from its forward node */
	NF_TF32 = 128 /* a product of f32 operands, which it may take as tf32 (10 bits of fraction); made by `autocast` */
};

struct Block {
	Node *owner;   /* NULL for a function's own block */
	Node *first, *last;
	Value **param;
	int32_t nparam;
};

struct Func {
	const char *name; /* forward, init, step, eval, eval1, predict */
	Module *module;
	Block *body;
	int64_t batch;    /* samples that one pass over the top-level body sees */
	int64_t arena_bytes; /* after `offsets`: the end of the highest placed byte */
	int64_t host_bytes;  /* the same of host memory, where values wait that are sent there; 0: none */
	Func *next;
};

typedef enum VarRole {
	VAR_PARAM,   /* trained unless frozen, in checkpoints under its own name */
	VAR_STAT,    /* running statistic: in checkpoints under its own name */
	VAR_OPT,     /* optimizer state: in checkpoints under its name, which starts with "dlc." */
	VAR_COUNTER  /* scalars such as dlc.step */
} VarRole;

typedef enum InitKind { INIT_CONST, INIT_UNIFORM, INIT_NORMAL } InitKind;

typedef struct Var {
	const char *name;
	Type type;
	VarRole role;
	InitKind init;
	double a, b;      /* const a; uniform [a,b); normal mean a, deviation b */
	int32_t stream;   /* random stream of its initial values */
	int8_t decay;     /* weight decay: 1 yes, 0 no, -1 by rule (two or more dimensions) */
	bool frozen;      /* param: not trained; stat: not updated */
	int32_t group;    /* its settings are those of the section "group gN", then those of `train`; 0: no group */
	Span span;
	int64_t offset;   /* arena offset after `offsets`; -1 before */
	struct Var *next;
} Var;

/* Settings of `train` and of each `data`: an ordered list of key = value, read by passes and the plan writer. */
typedef struct Setting {
	const char *key;
	AttrKind kind; /* A_INT, A_BOOL, A_FLOAT, A_STR, A_INTS */
	Attr value;
	Span span;
	struct Setting *next;
} Setting;

typedef struct Section {
	const char *kind;  /* "train", "data", "group" (of parameters) or "lora" (an adapter) */
	const char *name;  /* data: "text"; group: "g1"; lora: the weight's name; train: "" */
	const char *type;  /* data: "bytes", "tokens", "idx", "npy", "raw", "csv"; train: "" */
	Setting *first;
	Span span;
	struct Section *next;
} Section;

struct Module {
	Arena *arena;
	Diag *diag;
	const char *name;  /* the model's name: file name without folder and suffix */
	int64_t batch;     /* the whole batch of one optimizer step */
	Var *vars;
	Func *funcs;
	Section *sections;
	int32_t streams;   /* next random stream */
	Var *last_var;
	Intern var_names;  /* variables by name: interned name to Var */
	Map var_by_name;
};

Module *ir_module(Arena *a, Diag *d, const char *name, int64_t batch);
Func *ir_func(Module *m, const char *name);          /* appended, empty */
Func *ir_find_func(const Module *m, const char *name); /* NULL when absent */
void ir_remove_func(Module *m, const char *name);
Var *ir_var_new(Module *m, const char *name, Type t, VarRole role); /* appended; name must be new */
Var *ir_find_var(const Module *m, const char *name);
Section *ir_section(Module *m, const char *kind, const char *name, const char *type); /* found or appended */
Section *ir_find_section(const Module *m, const char *kind, const char *name);
/* Sets or replaces a key. */
Setting *ir_set(Module *m, Section *s, const char *key, AttrKind kind, Attr value);
const Setting *ir_setting(const Section *s, const char *key); /* NULL when absent; s may be NULL */
double ir_setting_num(const Section *s, const char *key, double dflt); /* A_INT, A_BOOL and A_FLOAT as a double */
const char *ir_setting_str(const Section *s, const char *key, const char *dflt);

/* ---- building ----------------------------------------------------------------------------------- */

/* Where new nodes go: at the end of `block`, or before `before` when that is not NULL. */
struct Builder {
	Module *m;
	Block *block;
	Node *before;
	Span span;
	int32_t flags; /* NF_* for new nodes */
	bool failed;   /* a type rule refused; the diagnostic is out, the node's results are poison (DT_NONE) */
};

Builder ir_builder(Module *m, Block *b);
/* The one way to make a node: attrs may be NULL (defaults) and are copied; `given` holds the result types of an
 * OPF_TYPED op (else NULL). A refused type rule gives an error at b->span, b->failed and results of type DT_NONE;
 * a DT_NONE operand gives DT_NONE results silently. */
Node *ir_node(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, const Type *given);
Value *ir_value(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, const Type *given);
/* A node with a body (loop: attributes trips, batch, base; fused) and nres results of the given types; fill the body before verifying. */
Node *ir_region(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, int nres, const Type *res);
Value *ir_block_param(Module *m, Block *b, Type t);

/* Attributes by name; the name must be in the op's row (asserted). */
int64_t ir_int(const Node *n, const char *name);
double ir_float(const Node *n, const char *name);
const char *ir_str(const Node *n, const char *name);
const IntList *ir_ints(const Node *n, const char *name);
Attr *ir_attr(const Node *n, const char *name);

/* The operand to which an OPF_ACC op adds; NULL where the node has none. */
Value *ir_acc(const Node *n);
/* Gives a node its operand to add to; the node has none yet, and `acc` the type of its result. */
void ir_set_acc(Module *m, Node *n, Value *acc);

/* A value that lies in host memory, where only a copy can read it: what `send` leaves.
 *
 *     %h = send %x       begins a copy of %x to host memory, which goes on beside the nodes that follow
 *     sent %x, %h        it has ended: until here %x must stay as it is
 *     %y = fetch %h      begins a copy back: from here on the bytes of %y are its
 *     fetched %y         it has ended: %y may be read, and equals %x */
bool ir_in_host(const Value *v);

/* A product of matrices, with or without an epilogue: matmul, matmul_bias, matmul_gelu_grad, matmul_sums. */
bool ir_is_product(OpCode op);
/* attention_grad, with three results or one. */
bool ir_is_attention_grad(OpCode op);
/* part_sums: the first operand whose elements are summed; how many parts a tensor has. */
enum { IR_PART = 16384 }; /* elements */
int ir_part_operand(const Node *n);
int64_t ir_parts(const Type *t);

/* Short forms. Scalars (`c`) take the dtype of the value beside them. */
Value *ir_const(Builder *b, Type t, double v);
Value *ir_scalar(Builder *b, DType t, double v);
Value *ir_var(Builder *b, Var *v);          /* reuses the function's `var` node when there is one */
Value *ir_input(Builder *b, const char *name, Type t);
Value *ir_unary(Builder *b, OpCode op, Value *x);
Value *ir_binary(Builder *b, OpCode op, Value *x, Value *y);
Value *ir_binary_c(Builder *b, OpCode op, Value *x, double c); /* x op c */
Value *ir_select(Builder *b, Value *cond, Value *x, Value *y);
Value *ir_cast(Builder *b, Value *x, DType t);
Value *ir_reduce(Builder *b, OpCode op, Value *x, const IntList *axes, bool keep);
Value *ir_reduce_last(Builder *b, OpCode op, Value *x, bool keep);
Value *ir_reduce_all(Builder *b, OpCode op, Value *x);      /* to a scalar */
Value *ir_reshape(Builder *b, Value *x, Type shape);        /* dtype of x, dims and marks of shape */
Value *ir_transpose(Builder *b, Value *x, const IntList *perm);
Value *ir_transpose2(Builder *b, Value *x);                 /* swaps the last two axes */
Value *ir_broadcast(Builder *b, Value *x, Type shape);
Value *ir_slice(Builder *b, Value *x, int axis, int64_t start, int64_t stop);
Value *ir_pad(Builder *b, Value *x, int axis, int64_t before, int64_t after);
Value *ir_concat(Builder *b, int n, Value *const *xs, int axis);
Value *ir_matmul(Builder *b, Value *x, Value *y, bool ta, bool tb);
void ir_assign(Builder *b, Value *var, Value *v);
void ir_output(Builder *b, const char *name, Value *v);
IntList ir_list(int n, const int64_t *v);

/* ---- walking and changing ------------------------------------------------------------------------- */

/* Numbers positions and values in order, nested bodies included (a loop's body follows the loop node; fused bodies
 * are numbered apart, from 0, as they are kernels). Returns the number of positions; *nvalues may be NULL. */
int32_t ir_number(const Func *f, int32_t *nvalues);
int32_t ir_number_fused(Block *b); /* numbers one fused body from 0; returns its number of values */
void ir_unlink(Node *n);
void ir_move_before(Node *n, Node *before);
/* Replaces every use of `from` in the block (and nested loop bodies) by `to`. */
void ir_replace_uses(Block *b, Value *from, Value *to);
/* What stands for v: `now`, by Value.id of the first so many values, says what stands for each (NULL: itself), and so on for that one.
 * Values that have no number, or a later one, stand for themselves. */
Value *ir_stands_for(Value *v, Value *const *now, int32_t values);
/* Every operand in the block (and nested loop bodies) becomes what stands for it. */
void ir_replace_all(Block *b, Value *const *now, int32_t values);
/* Removes nodes without effects whose results are unused; returns how many. Of the replays of a removed node the first
 * stands for it from then on. Numbers the function anew. */
int ir_dce(Func *f);
/* Result 0 shares argument 0's storage: reshape, batch_sum, stop_gradient of a dense value; slice where it is one
 * contiguous range; slice on the last axis where every user accepts a row stride (then ld is set by `inplace`). */
bool ir_is_view(const Node *n);
/* The storage root behind views, and the byte offset into it (*bytes may be NULL). */
Value *ir_view_root(Value *v, int64_t *bytes);

/* A copy of a block's nodes appended at `to`. map[id] (by Value.id of the source function after ir_number) gives the
 * replacement for values from outside (NULL: the value itself) and is filled for values made; new batch sizes scale marked dimensions
 * and the samples of loops (from_batch == to_batch: a plain copy). Returns false where a dimension does not divide, or the
 * batch is cut by numbers. */
bool ir_clone_block(Builder *to, const Block *from, Value **map, int64_t from_batch, int64_t to_batch);
Node *ir_clone_node(Builder *to, const Node *n, Value **map, int64_t from_batch, int64_t to_batch);
/* Appended under a new name; NULL where a dimension does not divide. Numbers `f` anew. */
Func *ir_clone_func(Module *m, const Func *f, const char *name, int64_t batch);

/* ---- text ---------------------------------------------------------------------------------------- */

void ir_print_module(FILE *out, const Module *m);
void ir_print_func(FILE *out, const Func *f);
/* Reads what ir_print_module wrote; NULL after diagnostics. */
Module *ir_parse(Arena *a, Diag *d, const char *path, const char *text, size_t len);
void ir_print_dot(FILE *out, const Func *f);
/* Every fault is reported ("expected ..., found ..."), prefixed by `after` (a pass name); true when sound. */
bool ir_verify(const Module *m, const char *after, FILE *out);

#endif

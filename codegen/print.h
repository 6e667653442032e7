/* What the printers of fused kernels share: types, literals, indices and expressions, as C that
 * both a C compiler and a CUDA compiler take. cpu.c and cuda.c put loops around them.
 *
 * A Printer writes one kernel. Instruction i of the loop form is the variable v<i>; operands are
 * a0, a1, .., results r0, r1, ..; dimension d is i<d>, the last one j. */
#ifndef DLC_CODEGEN_PRINT_H
#define DLC_CODEGEN_PRINT_H

#include "loop.h"

typedef struct Printer {
	Arena *a;
	FILE *out;
	const Node *fused;
	const Loop *l;
	int64_t micro;
	int64_t *stream; /* of the random ops, as off[] has them */
	int indent;
	const char *last; /* the name of the last dimension, if it is inner; NULL: j, or i<d> where
			     inner is flat */
	const int *stage; /* by instruction: the i of the x<i>[e] in which a load's element stands, or -1; NULL: none */
} Printer;

/* Where N stands in off[]: behind the places. */
int kernel_own_numbers(const Node *n);
/* The streams of a kernel's random ops, each once, in order of first use; they follow N. Returns
 * how many. */
int kernel_streams(Arena *a, const Node *n, int64_t **stream);

/* C type of a stored element ("uint8_t" for bool), of a value in a register ("int32_t" for bool),
 * of what a reduction accumulates in; the suffix of scalar.h's functions. */
const char *print_ctype(DType t);
const char *print_vtype(DType t);
const char *print_reducer(DType t);
const char *print_suffix(DType t);
/* A literal of the type, exact; the least value of a reducer's type. */
const char *print_literal(Arena *a, DType t, double v);
const char *print_lowest(DType t);
const char *print_number(const Printer *p, int64_t v);

/* One line; one that ends in '{' indents what follows, one that begins with '}' ends that. */
void print_line(Printer *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Declares the indices of dimensions [first, first+n) of a flattened variable. */
void print_decode(Printer *p, const char *type, const char *var, int first, int n);
const char *print_index(const Printer *p, const LoopIndex *x);
/* When its guards hold; "" without guards. */
const char *print_guard(const Printer *p, const LoopIndex *x);
/* The variable that holds a random op's stream. */
const char *print_stream(const Printer *p, const Node *n);
/* The value of an instruction that is no reduction. */
const char *print_instr(const Printer *p, const LoopInstr *x);
/* Declares v<i> of reduction i, of what it has come to. */
void print_reduced(Printer *p, int i, const char *sum);
/* Where a store goes, and the value that is stored there. */
const char *print_target(const Printer *p, const LoopStore *s);
const char *print_stored(const Printer *p, const LoopStore *s);
void print_store(Printer *p, const LoopStore *s);

/* The type of what is stored. */
DType print_stored_type(const Printer *p, const LoopStore *s);

/* Of the loop form: whether a store runs once an element (else once a row), whether a phase has
 * inner loops, whether an operand is assigned to. */
bool loop_store_is_inner(const Loop *l, const LoopStore *s);
bool loop_store_is_column(const Loop *l, const LoopStore *s); /* known behind the last row alone */
bool loop_phase_has_inner(const Loop *l, int phase);
bool loop_assigns(const Loop *l, int operand);
/* Of a reduction: what kind, what it accumulates in, of how many elements. */
bool loop_is_max(const LoopInstr *x);
DType loop_reduce_dtype(const Loop *l, const LoopInstr *x);
int64_t loop_reduce_count(const Loop *l);

#endif

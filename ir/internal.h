/* What the files of ir/ share among themselves. */
#ifndef DLC_IR_INTERNAL_H
#define DLC_IR_INTERNAL_H

#include "base/map.h"
#include "ir.h"

/* A linked node without a type rule run: result types are copied from `types`, or DT_NONE where that is NULL; the
 * text attributes must live as long as the module. loop and fused get an empty body. */
Node *ir_raw_node(Builder *b, OpCode op, int nargs, Value *const *args, const Attr *attrs, int nres, const Type *types);

/* The names that the printer gives to a function's values ("%12", "%b3"), by Value. */
Map ir_value_names(Arena *a, const Func *f);
const char *ir_value_name(const Map *names, const Value *v, char text[32]); /* "%?" for a value of elsewhere */

/* Where a fault of the verifier is and what it says, in one line. */
typedef void (*FaultFn)(void *to, Span span, const char *text);
/* Calls `fault` for each fault of the module; true when there is none. */
bool ir_find_faults(const Module *m, FaultFn fault, void *to);

/* Deepest nesting of bodies: the printer has two letters for each level. */
enum { IR_MAX_DEPTH = 8 };

#endif

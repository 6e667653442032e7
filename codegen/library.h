/* What a library is asked for: sizes and strides of a product or a convolution (PlanPrim, runtime/plan.h). Which of them it
 * offers, and in which type it computes, is each back end's to say. */
#ifndef DLC_CODEGEN_LIBRARY_H
#define DLC_CODEGEN_LIBRARY_H

#include "../ir/ir.h"
#include "../runtime/plan.h"

/* Fills in everything but `compute` and the workspace; false for a node that is neither. */
bool library_call(const Node *n, PlanPrim *p);
/* Element i of an attribute that gives one or two numbers; one number stands for both. */
int64_t library_pair(const Node *n, const char *name, int i, int64_t dflt);

#endif

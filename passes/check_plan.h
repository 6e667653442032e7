/* The plan checker: replays a placed module byte by byte, and shares no code with the planner.
 *
 * It knows the IR (ir/ir.h), not how plans are made: what it accepts is what a trainer can execute. */
#ifndef DLC_PASSES_CHECK_PLAN_H
#define DLC_PASSES_CHECK_PLAN_H

#include "../ir/ir.h"

/* Walks every function of a placed module (after `offsets`) in its linear order, remembers for each byte of the
 * arena who wrote it last, and reports to `out`, one line a fault:
 *
 *  - a value that is read before it is defined, has no place, or whose bytes another writer has taken since;
 *    loop bodies are walked twice, so that a trip also sees what the trip before it left;
 *  - a variable that is read after its assign, or that a function leaves overwritten;
 *  - an output (read by the host once the function has run) that does not survive to the end;
 *  - a workspace over an operand or a result, results of one node over each other, a result over an operand that
 *    the node may still read (anything but a kernel that touches both element by element, in step);
 *  - a view that is not where its root is, a loop value that changes its place from trip to trip;
 *  - a replay that is an effect, or that does not repeat the same op on the same inputs;
 *  - places that are not aligned to 64, lie beyond the function's arena, or an arena beyond `budget` bytes
 *    (INT64_MAX: no budget).
 *
 * True when there is none. Renumbers the functions (ir_number), changes nothing else. */
bool check_plan(const Module *m, int64_t budget, FILE *out);

#endif

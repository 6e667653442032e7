/* What the planner decided, for programs and for people. */
#ifndef DLC_PASSES_REPORT_H
#define DLC_PASSES_REPORT_H

#include "planner.h"

typedef struct ReportNames {
	const char *target, *precision, *machine;
	double plan_seconds, compile_seconds;
	const char *launches; /* a JSON object (codegen/emit.h, emit_launches); NULL: not known */
} ReportNames;

/* The object of `dlc --json` (one line of JSON, in the arena). Unlimited budgets are null. */
const char *report_json(Arena *a, const Module *m, const PlanSummary *s, const ReportNames *n);

/* The array of `dlc --curve --json`: such an object for each of n summaries. */
const char *report_curve_json(Arena *a, const Module *m, const PlanSummary *point, int n, const ReportNames *names);

/* "3.21 ms", with three digits; in the arena. */
const char *report_seconds(Arena *a, double seconds);

/* How the batch is divided: "12 x 5"; "3 x 16 + 12", "7 + 5" where the last part is smaller. `times` is the sign to use. */
const char *report_split(Arena *a, const PlanSummary *s, const char *times);

/* What a node computes, for people: "matmul", the name of an opaque op; a kernel as "gelu", "add+gelu" or "add..sum". */
const char *report_op(Arena *a, const Node *n);

/* A few lines: arena, what fills it, micro-batch, replays, predicted step. */
void report_text(FILE *out, Arena *a, const Module *m, const PlanSummary *s);

/* The plan of a placed module as tables: the variables; then `step` and the other functions, a line for each value that
 * a step makes (position, op, value, type, offset, bytes, life, source) and for each variable that it stores (`-> name`). */
void report_plan(FILE *out, Arena *a, const Module *m);

/* Names and types of what a checkpoint holds, as 16 hexadecimal digits: equal for equal models. */
const char *report_fingerprint(Arena *a, const Module *m);

#endif

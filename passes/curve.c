/* The trade-off between memory and time, as a table (see answers.h). */
#include "answers.h"

#include "../ir/base/size.h"
#include "report.h"

#include <inttypes.h>

static double share(const PlanSummary *s)
{
	return s->step_seconds > 0 ? 100 * s->recompute_seconds / s->step_seconds : 0;
}

/* "none", or "+3.2 %": how much longer than the fastest. */
static const char *slower(Arena *a, const PlanSummary *s, const PlanSummary *fastest)
{
	double by = fastest->step_seconds > 0 ? 100 * (s->step_seconds / fastest->step_seconds - 1) : 0;

	return by > 0 ? arena_printf(a, "+%.1f %%", by) : "-";
}

void curve_table(FILE *out, Arena *a, const Module *m, const PlanSummary *point, int n)
{
	const PlanSummary *first = &point[0], *last = &point[n - 1];

	if (n == 1)
		fprintf(out, "%s: %s is the smallest budget, and more memory buys nothing; batch %" PRId64 "\n", m->name,
		        size_text(a, first->arena_bytes), first->batch);
	else
		fprintf(out, "%s: from %s, the smallest budget, to %s, above which more memory buys nothing; batch %" PRId64
		        "\n", m->name, size_text(a, first->arena_bytes), size_text(a, last->arena_bytes), first->batch);
	fprintf(out, "%14s  %10s  %10s  %11s  %7s  %10s  %9s  %9s\n", "budget", "arena", "live", "micro-batch", "replays",
	        "recomputed", "step", "slower");
	for (int i = 0; i < n; i++) {
		const PlanSummary *s = &point[i];

		fprintf(out, "%14" PRId64 "  %10s  %10s  %11s  %7" PRId64 "  %8.1f %%  %9s  %9s\n", s->budget_bytes,
		        size_text(a, s->arena_bytes), size_text(a, s->lower_bound_bytes),
		        arena_printf(a, "%" PRId64 " x %" PRId64, s->accumulation_steps, s->micro_batch),
		        s->recompute_nodes, share(s), report_seconds(a, s->step_seconds), slower(a, s, last));
	}
}

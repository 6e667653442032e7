/* The plan in words and numbers (see answers.h).
 *
 * Five questions, in the order in which people ask them: what fills the memory, which lines of the
 * model are behind it, what is computed twice, why the batch was cut as it was, and what more or
 * less memory would change. */
#include "answers.h"

#include "../ir/base/size.h"
#include "report.h"

#include <inttypes.h>
#include <stdlib.h>

enum { LINES = 10 }; /* of a list; the rest is summed */

static double percent(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

static const char *plural(int64_t n)
{
	return n == 1 ? "" : "s";
}

/* One line of a list: an amount, its share of the whole, and of what. */
static void put(FILE *out, const char *amount, double share, const char *what)
{
	fprintf(out, "  %10s  %5.1f %%  %s\n", amount, share, what);
}

/* ---- the peak, by kind ---- */

static const char *const phase_names[PHASES] = { ", of the forward pass", ", computed again",
						 ", of the backward pass", ", of the update" };

static void explain_kinds(FILE *out, Arena *a, const View *v, const PlanSummary *s)
{
	const int64_t bytes[VIEW_KINDS] = { s->peak.parameters, s->peak.optimizer,
					    s->peak.gradients,  s->peak.activations,
					    s->peak.workspace,  s->peak.input };
	int32_t at = v->plan.peak;
	double arena = (double)s->arena_bytes;
	int64_t holes = s->arena_bytes;

	if (v->plan.nsteps > 0) {
		const Node *n = view_node(v, at);
		ViewPhase phase = view_phase(v, at);
		bool known = v->phases || phase != PHASE_FORWARD;

		fprintf(out, "\nThe peak is in step %d of %d: %s%s, %s\n", at + 1, v->plan.nsteps,
			view_op(v, a, at), known ? phase_names[phase] : "",
			view_where(v, a, n ? n->span : NO_SPAN));
	}
	for (int k = 0; k < VIEW_KINDS; k++) {
		holes -= bytes[k];
		if (bytes[k] > 0)
			put(out, size_text(a, bytes[k]), percent((double)bytes[k], arena),
			    view_kind_names[k]);
	}
	put(out, size_text(a, holes), percent((double)holes, arena), "gaps between them");
}

/* ---- the peak, by source line ---- */

typedef struct Line {
	const char *where;
	const ViewItem *largest;
	int64_t bytes;
	int32_t items;
} Line;

static int compare_wheres(const void *pa, const void *pb)
{
	return strcmp(((const Line *)pa)->where, ((const Line *)pb)->where);
}

static int compare_lines(const void *pa, const void *pb)
{
	const Line *a = pa, *b = pb;

	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	return strcmp(a->where, b->where);
}

static Line *lines_at_peak(Arena *a, const View *v, int32_t *n)
{
	Line *line = ARENA_ARRAY(a, v->nitems, Line);
	int32_t count = 0, kept = 0;

	for (int32_t i = 0; i < v->nitems; i++) {
		const ViewItem *item = &v->item[i];

		if (view_at_peak(v, item))
			line[count++] =
			    (Line){ view_where(v, a, item->span), item, item->bytes, 1 };
	}
	qsort(line, (size_t)count, sizeof *line, compare_wheres);
	for (int32_t i = 0; i < count; i++) {
		Line *last = &line[kept > 0 ? kept - 1 : 0];

		if (kept == 0 || strcmp(last->where, line[i].where) != 0) {
			line[kept++] = line[i];
			continue;
		}
		/* Equal sizes: the one that comes first in the arena, whatever the order of sorting
		 * was. */
		if (line[i].largest->bytes > last->largest->bytes ||
		    (line[i].largest->bytes == last->largest->bytes &&
		     line[i].largest < last->largest))
			last->largest = line[i].largest;
		last->bytes += line[i].bytes;
		last->items++;
	}
	qsort(line, (size_t)kept, sizeof *line, compare_lines);
	*n = kept;
	return line;
}

/* The lines behind those that are shown, as one. */
static void put_others(FILE *out, Arena *a, const Line *line, int32_t n, int64_t whole)
{
	int64_t rest = 0;

	for (int32_t i = LINES; i < n; i++)
		rest += line[i].bytes;
	if (n > LINES)
		put(out, size_text(a, rest), percent((double)rest, (double)whole),
		    arena_printf(a, "%d other line%s", n - LINES, plural(n - LINES)));
}

static void explain_lines(FILE *out, Arena *a, const View *v, const PlanSummary *s)
{
	int32_t n;
	const Line *line = lines_at_peak(a, v, &n);

	fprintf(out, "\nThe lines behind it\n");
	for (int32_t i = 0; i < n && i < LINES; i++) {
		const char *where = strcmp(line[i].where, "?") == 0 ? "(no line)" : line[i].where;
		const char *more =
		    line[i].items > 1 ? arena_printf(a, " and %d more", line[i].items - 1) : "";

		put(out, size_text(a, line[i].bytes),
		    percent((double)line[i].bytes, (double)s->arena_bytes),
		    arena_printf(a, "%s  %s%s", where, line[i].largest->name, more));
	}
	put_others(out, a, line, n, s->arena_bytes);
}

/* ---- replays ---- */

static void explain_replays(FILE *out, Arena *a, const View *v, const PlanSummary *s)
{
	int32_t n, left = 0;
	const ViewCost *cost = view_costs(v, a, true, &n);
	double rest = 0;

	if (s->recompute_nodes == 0) {
		fprintf(out, "\nNothing is computed twice\n");
		return;
	}
	fprintf(out,
		"\n%" PRId64 " operation%s computed again instead of kept: "
		"%s of the step, %.1f %%, for a peak that is %s lower\n",
		s->recompute_nodes, s->recompute_nodes == 1 ? " is" : "s are",
		report_seconds(a, s->recompute_seconds),
		percent(s->recompute_seconds, s->step_seconds),
		size_text(a, s->recompute_bytes_saved));
	if (s->step_seconds_bound > 0)
		fprintf(out, "No plan with these parts and this order takes less than %s within the budget: this one is at most %.1f %% slower\n",
			report_seconds(a, s->step_seconds_bound),
			100 * (s->step_seconds / s->step_seconds_bound - 1));
	for (int32_t i = 0; i < n; i++) {
		if (i >= LINES) {
			rest += cost[i].seconds;
			left++;
			continue;
		}
		put(out, report_seconds(a, cost[i].seconds),
		    percent(cost[i].seconds, s->step_seconds),
		    arena_printf(a, "%s  %s, %" PRId64 " time%s", cost[i].where, cost[i].op,
				 cost[i].times, plural(cost[i].times)));
	}
	if (left > 0)
		put(out, report_seconds(a, rest), percent(rest, s->step_seconds),
		    arena_printf(a, "%d other%s", left, plural(left)));
}

/* ---- host memory ---- */

/* What is sent there, by source line. */
static Line *lines_moved(Arena *a, const View *v, int32_t *n)
{
	Line *line = ARENA_ARRAY(a, v->plan.nsteps, Line);
	int32_t count = 0, kept = 0;

	for (int32_t i = 0; i < v->plan.nsteps; i++) {
		int64_t times = view_trips(v, i);

		if (v->plan.step[i].move == MOVE_SEND)
			line[count++] = (Line){ view_where(v, a, view_node(v, i)->span), NULL, times * v->t->buf[v->plan.step[i].buf].bytes,
				                (int32_t)times };
	}
	qsort(line, (size_t)count, sizeof *line, compare_wheres);
	for (int32_t i = 0; i < count; i++) {
		if (kept > 0 && strcmp(line[kept - 1].where, line[i].where) == 0) {
			line[kept - 1].bytes += line[i].bytes;
			line[kept - 1].items += line[i].items;
		} else {
			line[kept++] = line[i];
		}
	}
	qsort(line, (size_t)kept, sizeof *line, compare_lines);
	*n = kept;
	return line;
}

static void explain_moves(FILE *out, Arena *a, const View *v, const PlanSummary *s)
{
	int32_t n;
	const Line *line;

	if (s->moved == 0)
		return;
	line = lines_moved(a, v, &n);
	fprintf(out,
		"\n%" PRId64 " value%s in host memory instead of being computed again, %s in all, at most %s at a time; "
		"kernels wait %s for copies, %.1f %% of the step\n",
		s->moved, s->moved == 1 ? " waits" : "s wait", size_text(a, s->moved_bytes), size_text(a, s->host_bytes),
		report_seconds(a, s->wait_seconds), percent(s->wait_seconds, s->step_seconds));
	for (int32_t i = 0; i < n && i < LINES; i++)
		put(out, size_text(a, line[i].bytes), percent((double)line[i].bytes, (double)s->moved_bytes),
		    arena_printf(a, "%s  %" PRId32 " time%s", line[i].where, line[i].items, plural(line[i].items)));
	put_others(out, a, line, n, s->moved_bytes);
}

/* ---- the micro-batch ---- */

/* "66.4 ms (11.0 % less)", against the plan at hand. */
static const char *compared(Arena *a, double seconds, const PlanSummary *s)
{
	double by = percent(seconds - s->step_seconds, s->step_seconds);

	if (by < 0.05 && by > -0.05)
		return arena_printf(a, "%s (the same)", report_seconds(a, seconds));
	return arena_printf(a, "%s (%.1f %% %s)", report_seconds(a, seconds), by < 0 ? -by : by,
			    by < 0 ? "less" : "more");
}

static void explain_micro_batch(FILE *out, Arena *a, const PlanSummary *s, const PlanStudy *study)
{
	const PlanSummary *least = &study->larger_least, *within = &study->larger_within,
			  *fast = &study->larger_as_fast;

	if (s->micro_batch == s->batch) {
		fprintf(out, "\nThe batch of %" PRId64 " is computed at once\n", s->batch);
		return;
	}
	fprintf(out, "\nThe batch of %" PRId64 " is computed in %" PRId64 " parts", s->batch,
		s->accumulation_steps);
	if (s->batch % s->micro_batch)
		fprintf(out, ": %" PRId64 " of %" PRId64 " and 1 of %" PRId64 "\n",
			s->batch / s->micro_batch, s->micro_batch, s->batch % s->micro_batch);
	else
		fprintf(out, " of %" PRId64 "\n", s->micro_batch);
	if (least->batch == 0) {
		fprintf(out, "  no larger part was asked for\n");
		return;
	}
	if (within->batch == 0)
		fprintf(out, "  parts of %" PRId64 " need at least %s; the step then takes %s\n",
			least->micro_batch, size_text(a, least->arena_bytes),
			compared(a, least->step_seconds, s));
	else
		fprintf(out,
			"  parts of %" PRId64 " would fit, with %" PRId64
			" replay%s; the step then takes %s\n",
			within->micro_batch, within->recompute_nodes,
			plural(within->recompute_nodes), compared(a, within->step_seconds, s));
	if (fast->batch > 0 && fast->arena_bytes > least->arena_bytes)
		fprintf(out, "  from %s on they are no slower than this plan: %s\n",
			size_text(a, fast->arena_bytes), compared(a, fast->step_seconds, s));
}

/* ---- the head ---- */

static void explain_head(FILE *out, Arena *a, const View *v, const PlanSummary *s)
{
	if (s->chunks <= 1)
		return;
	fprintf(out,
		"\nThe head of %s is computed in %" PRId64 " chunks, forward and backward: %" PRId64
		" of %" PRId64 " rows at a time, %s of %s\n",
		view_where(v, a, s->head), s->chunks, (s->head_rows + s->chunks - 1) / s->chunks,
		s->head_rows, size_text(a, (s->head_bytes + s->chunks - 1) / s->chunks),
		size_text(a, s->head_bytes));
}

/* ---- more and less memory ---- */

static void explain_answer(FILE *out, Arena *a, const char *what, const PlanSummary *other,
			   const PlanSummary *s)
{
	fprintf(out,
		"  %10s  %-10s  %s, in %" PRId64 " part%s of %s%" PRId64 "%s, %" PRId64 " replay%s\n",
		size_text(a, other->budget_bytes), what, compared(a, other->step_seconds, s),
		other->accumulation_steps, plural(other->accumulation_steps),
		other->batch % other->micro_batch ? "at most " : "", other->micro_batch,
		other->chunks > 1 ? arena_printf(a, ", %" PRId64 " chunks", other->chunks) : "",
		other->recompute_nodes, plural(other->recompute_nodes));
}

static void explain_memory(FILE *out, Arena *a, const PlanSummary *s, const PlanStudy *study)
{
	const PlanSummary *most = &study->point[study->npoints - 1], *least = &study->point[0];
	int64_t budget = s->budget_bytes == INT64_MAX ? s->arena_bytes : s->budget_bytes;

	fprintf(out, "\nWhat other budgets would change; this plan's step takes %s\n",
		report_seconds(a, s->step_seconds));
	explain_answer(out, a, "unlimited", most, s);
	explain_answer(out, a, "10 % more", &study->more, s);
	if (study->less.batch > 0)
		explain_answer(out, a, "10 % less", &study->less, s);
	else
		fprintf(out, "  %10s  %-10s  nothing fits\n", size_text(a, budget - budget / 10),
			"10 % less");
	explain_answer(out, a, "smallest", least, s);
}

void explain_text(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study)
{
	fprintf(out, "%s: %s", v->m->name, size_text(a, s->arena_bytes));
	if (s->budget_bytes != INT64_MAX)
		fprintf(out, " of a budget of %s", size_text(a, s->budget_bytes));
	fprintf(out, " (smallest feasible %s, unlimited %s)\n", size_text(a, s->min_budget_bytes),
		size_text(a, s->unlimited_arena_bytes));
	explain_kinds(out, a, v, s);
	explain_lines(out, a, v, s);
	explain_replays(out, a, v, s);
	explain_moves(out, a, v, s);
	explain_micro_batch(out, a, s, study);
	explain_head(out, a, v, s);
	explain_memory(out, a, s, study);
	fprintf(out, "\nTimes are predictions for the machine '%s'\n", v->machine);
}

/* The trade-off between memory and time, as a table and as a drawing (see answers.h). */
#include "answers.h"

#include "../ir/base/size.h"
#include "report.h"

#include <inttypes.h>
#include <math.h>

static double share(const PlanSummary *s)
{
	return s->step_seconds > 0 ? 100 * s->recompute_seconds / s->step_seconds : 0;
}

/* "none", or "+3.2 %": how much longer than the fastest. */
static const char *slower(Arena *a, const PlanSummary *s, const PlanSummary *fastest)
{
	double by =
	    fastest->step_seconds > 0 ? 100 * (s->step_seconds / fastest->step_seconds - 1) : 0;

	return by > 0 ? arena_printf(a, "+%.1f %%", by) : "-";
}

/* A column for chunks where there are any: "", or a heading or number in it. */
static const char *chunks_column(Arena *a, const PlanSummary *point, int n, int64_t chunks)
{
	bool any = false;

	for (int i = 0; i < n; i++)
		any = any || point[i].chunks > 1;
	if (!any)
		return "";
	return chunks > 0 ? arena_printf(a, "  %6" PRId64, chunks) : "  chunks";
}

/* The same for host memory in which values wait. */
static const char *host_column(Arena *a, const PlanSummary *point, int n, const PlanSummary *s)
{
	bool any = false;

	for (int i = 0; i < n; i++)
		any = any || point[i].moved > 0;
	if (!any)
		return "";
	return arena_printf(a, "  %10s", s ? size_text(a, s->host_bytes) : "in host");
}

void curve_table(FILE *out, Arena *a, const Module *m, const PlanSummary *point, int n)
{
	const PlanSummary *first = &point[0], *last = &point[n - 1];

	if (n == 1)
		fprintf(
		    out,
		    "%s: %s is the smallest budget, and more memory buys nothing; batch %" PRId64
		    "\n",
		    m->name, size_text(a, first->arena_bytes), first->batch);
	else
		fprintf(out,
			"%s: from %s, the smallest budget, to %s, above which more memory buys "
			"nothing; batch %" PRId64 "\n",
			m->name, size_text(a, first->arena_bytes), size_text(a, last->arena_bytes),
			first->batch);
	fprintf(out, "%14s  %10s  %10s  %11s%s%s  %7s  %10s  %9s  %9s\n", "budget", "arena", "live",
		"micro-batch", chunks_column(a, point, n, 0), host_column(a, point, n, NULL), "replays", "recomputed", "step", "slower");
	for (int i = 0; i < n; i++) {
		const PlanSummary *s = &point[i];

		fprintf(out, "%14" PRId64 "  %10s  %10s  %11s%s%s  %7" PRId64 "  %8.1f %%  %9s  %9s\n",
			s->budget_bytes, size_text(a, s->arena_bytes),
			size_text(a, s->lower_bound_bytes),
			report_split(a, s, "x"), chunks_column(a, point, n, s->chunks), host_column(a, point, n, s),
			s->recompute_nodes, share(s), report_seconds(a, s->step_seconds),
			slower(a, s, last));
	}
}

/* ---- the drawing ---- */

enum { WIDTH = 720, HEIGHT = 340, LEFT = 64, RIGHT = 704, TOP = 20, BOTTOM = 292 };

typedef struct Chart {
	FILE *out;
	Arena *a;
	double low, high; /* of the logarithm of bytes */
	double top;       /* seconds */
} Chart;

static double x_of(const Chart *c, double bytes)
{
	return LEFT + (log(fmax(bytes, 1)) - c->low) / (c->high - c->low) * (RIGHT - LEFT);
}

static double y_of(const Chart *c, double seconds)
{
	return BOTTOM - seconds / c->top * (BOTTOM - TOP);
}

static void draw_bytes_tick(const Chart *c, double bytes)
{
	fprintf(c->out,
		"<path class='grid' d='M%.1f %dV%d'/><text x='%.1f' y='%d' text-anchor='middle'>"
		"%s</text>\n",
		x_of(c, bytes), TOP, BOTTOM, x_of(c, bytes), BOTTOM + 18,
		size_text(c->a, (int64_t)bytes));
}

/* Round sizes where the axis is short, powers of two where it is long. */
static void draw_bytes_axis(const Chart *c)
{
	double low = exp(c->low), high = exp(c->high), unit, tick;

	if (high / low > 6) {
		int every = (int)ceil(log2(high / low) / 7);

		for (double x = exp2(ceil(log2(low))); x <= high; x *= exp2(every))
			draw_bytes_tick(c, x);
		return;
	}
	answer_unit((int64_t)high, &unit);
	tick = answer_tick((high - low) / unit, 6) * unit;
	for (double x = ceil(low / tick) * tick; x <= high; x += tick)
		draw_bytes_tick(c, x);
}

static void draw_seconds_axis(const Chart *c)
{
	double tick = answer_tick(c->top, 6);

	for (int i = 0; i * tick <= c->top; i++)
		fprintf(c->out,
			"<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' "
			"text-anchor='end'>%s</text>\n",
			LEFT, y_of(c, i * tick), RIGHT, LEFT - 6, y_of(c, i * tick) + 4,
			i ? report_seconds(c->a, i * tick) : "0");
}

/* What a budget between two points gets is the answer to the smaller one: a staircase. */
static void draw_points(const Chart *c, const PlanSummary *point, int n)
{
	for (int i = 0; i < n; i++)
		fprintf(c->out, i == 0 ? "<path class='live' d='M%.1f %.1f" : "H%.1fV%.1f",
			x_of(c, (double)point[i].arena_bytes), y_of(c, point[i].step_seconds));
	fprintf(c->out, "H%d'/>\n", RIGHT);
	for (int i = 0; i < n; i++)
		fprintf(c->out,
			"<circle class='k0' cx='%.1f' cy='%.1f' r='4'><title>%s: %s, %s, %" PRId64
			" replays</title></circle>\n",
			x_of(c, (double)point[i].arena_bytes), y_of(c, point[i].step_seconds),
			size_text(c->a, point[i].arena_bytes),
			report_seconds(c->a, point[i].step_seconds),
			report_split(c->a, &point[i], "x"), point[i].recompute_nodes);
}

void curve_svg(FILE *out, Arena *a, const PlanSummary *point, int n, const PlanSummary *now)
{
	double first = fmax((double)point[0].arena_bytes, 1),
	       last = fmax((double)point[n - 1].arena_bytes, 1);
	Chart c = { out, a, log(first / 1.04), log(last * 1.06), point[0].step_seconds * 1.2 };
	double x, y;
	bool left;

	if (!(c.top > 0))
		c.top = 1;
	x = x_of(&c, (double)now->arena_bytes);
	y = y_of(&c, now->step_seconds);
	left = x > (LEFT + RIGHT) / 2.0;
	fprintf(out,
		"<svg class='dlc' viewBox='0 0 %d %d' role='img' aria-label='Predicted time of a "
		"step against memory, "
		"from %s at %s to %s at %s'>\n",
		WIDTH, HEIGHT, report_seconds(a, point[0].step_seconds),
		size_text(a, point[0].arena_bytes), report_seconds(a, point[n - 1].step_seconds),
		size_text(a, point[n - 1].arena_bytes));
	fprintf(out, "<rect class='ground' width='%d' height='%d'/>\n", WIDTH, HEIGHT);
	draw_bytes_axis(&c);
	draw_seconds_axis(&c);
	draw_points(&c, point, n);
	fprintf(out,
		"<circle class='p1' cx='%.1f' cy='%.1f' r='6'/>"
		"<text x='%.1f' y='%.1f' text-anchor='%s'>this plan</text>\n",
		x, y, x + (left ? -2 : 2), y - 12, left ? "end" : "start");
	fprintf(out,
		"<text x='%d' y='%d' text-anchor='end' class='quiet'>memory</text>"
		"<text x='%d' y='12' class='quiet'>predicted time of a step</text></svg>\n",
		RIGHT, BOTTOM + 38, LEFT);
}

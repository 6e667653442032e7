/* Memory over time as a picture (see answers.h).
 *
 *     bytes ^  +--------+      budget - - - - - - - - -
 *           |  | %12    |  +-------------+
 *           |  +--------+  | %31         |
 *           |  | variables               |
 *           +--[forward][loop][backward ][update]----> steps
 *
 * Every buffer is a rectangle, from the step that makes it to its last use, at its offset. The
 * largest have a title with name, bytes, life and source line, which a viewer shows on hovering;
 * the small rest of a large plan is one shape a kind. Colours are custom properties, so that the
 * picture follows the reader's light or dark. */
#include "answers.h"

#include "../ir/base/size.h"

#include <inttypes.h>
#include <stdlib.h>

extern const char picture_css[]; /* the file, embedded */

enum {
	WIDTH = 960,
	FRAME = 548,
	HEIGHT = 612,
	LEFT = 64,
	RIGHT = 944,
	TOP = 24,
	BOTTOM = 470,  /* of the plot */
	STRIP = 12,    /* height of the band of phases below it */
	TITLED = 4000, /* rectangles that get a title */
	COLUMNS = 1760 /* of the line of live bytes: two a unit */
};

typedef struct Drawing {
	FILE *out;
	Arena *a;
	const View *v;
	double x_scale, y_scale; /* units a step, units a byte */
} Drawing;

static double x_of(const Drawing *d, double step)
{
	return LEFT + step * d->x_scale;
}

static double y_of(const Drawing *d, double byte)
{
	return BOTTOM - byte * d->y_scale;
}

/* ---- the frame ---- */

static void draw_head(const Drawing *d, const PlanSummary *s, bool document)
{
	const char *name = answer_escape(d->a, d->v->m->name);
	int height = document ? HEIGHT : FRAME;

	fprintf(
	    d->out,
	    "<svg class='dlc' %sviewBox='0 0 %d %d' role='%s' aria-label='Memory of %s over one "
	    "step: %s'>\n",
	    document ? "xmlns='http://www.w3.org/2000/svg' " : "id='memory' tabindex='0' ", WIDTH,
	    height, document ? "img" : "group", name, size_text(d->a, s->arena_bytes));
	fprintf(d->out, "<style>\n%s</style>\n", picture_css);
	fputs("<defs><pattern id='dlc-hatch' width='5' height='5' patternUnits='userSpaceOnUse' "
	      "patternTransform='rotate(45)'><line class='hatch-line' x1='0' y1='0' x2='0' y2='5'/>"
	      "</pattern></defs>\n",
	      d->out);
	fprintf(d->out, "<rect class='ground' width='%d' height='%d'/>\n", WIDTH, height);
}

static void draw_axes(const Drawing *d, int64_t top)
{
	double unit, tick, steps = d->v->plan.nsteps > 0 ? d->v->plan.nsteps : 1;
	const char *name = answer_unit(top, &unit);

	tick = answer_tick((double)top / unit, 8);
	for (int i = 0; (double)i * tick * unit <= (double)top; i++) {
		double y = y_of(d, (double)i * tick * unit);

		fprintf(d->out,
			"<path class='grid' d='M%d %.1fH%d'/><text x='%d' y='%.1f' "
			"text-anchor='end'>%g</text>\n",
			LEFT, y, RIGHT, LEFT - 6, y + 4, (double)i * tick);
	}
	fprintf(d->out, "<text x='%d' y='14' text-anchor='end'>%s</text>\n", LEFT - 6, name);
	tick = answer_tick(steps, 10);
	if (tick < 1)
		tick = 1;
	for (int i = 0; (double)i * tick <= steps; i++)
		fprintf(d->out, "<text x='%.1f' y='%d' text-anchor='middle'>%g</text>\n",
			x_of(d, (double)i * tick), BOTTOM + STRIP + 20, (double)i * tick);
	fprintf(d->out,
		"<text x='%d' y='%d' text-anchor='end' class='quiet'>steps of the plan, in "
		"order</text>\n",
		RIGHT, BOTTOM + STRIP + 58);
}

/* ---- buffers ---- */

typedef struct Box {
	double x, y, width, height;
} Box;

/* In the step where a result takes over an operand's bytes each has a half. */
static Box box_of(const Drawing *d, const ViewItem *i)
{
	double from = x_of(d, i->from + (i->over ? 0.5 : 0)),
	       to = x_of(d, i->to + (i->passed_on ? 0.5 : 1));
	double low = y_of(d, (double)i->offset), high = y_of(d, (double)(i->offset + i->bytes));

	return (Box){ from, high, to - from, low - high };
}

static double area_of(const ViewItem *i)
{
	return (double)i->bytes * (i->to - i->from + 1);
}

static int compare_areas(const void *pa, const void *pb)
{
	const ViewItem *const *a = pa, *const *b = pb;
	double x = area_of(*a), y = area_of(*b);

	return x > y ? -1 : x < y ? 1 : *a < *b ? -1 : *a > *b;
}

/* By item: whether it gets a rectangle with a title. */
static bool *choose_titled(const Drawing *d)
{
	const View *v = d->v;
	const ViewItem **by_area = ARENA_ARRAY(d->a, v->nitems, const ViewItem *);
	bool *titled = ARENA_ARRAY(d->a, v->nitems, bool);

	for (int32_t i = 0; i < v->nitems; i++)
		by_area[i] = &v->item[i];
	qsort(by_area, (size_t)v->nitems, sizeof *by_area, compare_areas);
	for (int32_t i = 0; i < v->nitems && i < TITLED; i++)
		titled[by_area[i] - v->item] = true;
	return titled;
}

static void draw_item(const Drawing *d, const ViewItem *i, bool variable)
{
	Box b = box_of(d, i);

	fprintf(
	    d->out,
	    "<rect class='k%d%s' x='%.2f' y='%.2f' width='%.2f' height='%.2f'><title>%s\n%s, %s",
	    (int)i->kind, b.width > 2 && b.height > 2 ? " b" : "", b.x, b.y, b.width, b.height,
	    answer_escape(d->a, i->name), view_kind_names[i->kind], size_text(d->a, i->bytes));
	if (i->bytes >= 1024)
		fprintf(d->out, " (%" PRId64 " bytes)", i->bytes);
	fprintf(d->out, " from 0x%" PRIx64 "\n", (uint64_t)i->offset);
	if (variable)
		fputs("lives from step to step", d->out);
	else
		fprintf(d->out, "steps %d to %d of %d%s%s", i->from + 1, i->to + 1,
			d->v->plan.nsteps, i->over ? ", in place of an operand" : "",
			i->replay ? ", computed again" : "");
	if (i->span.source >= 0)
		fprintf(d->out, "\n%s", answer_escape(d->a, view_where(d->v, d->a, i->span)));
	fputs("</title></rect>\n", d->out);
}

static void draw_boxes(const Drawing *d, const char *class, const char *title, const bool *skip,
		       int kind, bool replays)
{
	bool open = false;

	for (int32_t k = 0; k < d->v->nitems; k++) {
		const ViewItem *i = &d->v->item[k];
		Box b = box_of(d, i);

		if ((skip && skip[k]) || (kind >= 0 && (int)i->kind != kind) ||
		    (replays && !i->replay))
			continue;
		if (!open)
			fprintf(d->out, "<path class='%s' d='", class);
		open = true;
		fprintf(d->out, "M%.2f %.2fh%.2fv%.2fh%.2fz", b.x, b.y, b.width, b.height,
			-b.width);
	}
	if (open)
		fprintf(d->out, "'>%s</path>\n",
			title ? arena_printf(d->a, "<title>%s</title>", title) : "");
}

static void draw_buffers(const Drawing *d)
{
	const bool *titled = choose_titled(d);

	fputs("<g class='buffers'>\n", d->out);
	for (int k = 0; k < VIEW_KINDS; k++)
		draw_boxes(d, arena_printf(d->a, "k%d", k),
			   arena_printf(d->a, "small %s", view_kind_names[k]), titled, k, false);
	for (int32_t i = 0; i < d->v->nitems; i++)
		if (titled[i])
			draw_item(d, &d->v->item[i], i < d->v->nvars);
	fputs("</g>\n", d->out);
	draw_boxes(d, "hatch", NULL, NULL, -1, true);
}

/* ---- live bytes, budget, peak ---- */

static void draw_live(const Drawing *d)
{
	const View *v = d->v;
	int32_t n = v->plan.nsteps, columns = n < COLUMNS ? n : COLUMNS;

	fprintf(d->out, "<path class='live' d='M%d %.2f", LEFT,
		y_of(d, n > 0 ? (double)v->live[0] : 0));
	for (int32_t c = 0; c < columns; c++) {
		int32_t from = (int32_t)((int64_t)c * n / columns),
			to = (int32_t)((int64_t)(c + 1) * n / columns);
		int64_t most = 0;

		for (int32_t i = from; i < to; i++)
			most = v->live[i] > most ? v->live[i] : most;
		fprintf(d->out, "V%.2fH%.2f", y_of(d, (double)most), x_of(d, to));
	}
	fputs("'/>\n", d->out);
}

static void draw_marks(const Drawing *d, const PlanSummary *s, int64_t top)
{
	double peak = x_of(d, d->v->plan.peak + 0.5);
	bool right = peak > (LEFT + RIGHT) / 2.0;

	if (s->budget_bytes <= top) { /* its name away from the peak's */
		double y = y_of(d, (double)s->budget_bytes);

		fprintf(d->out,
			"<path class='mark' d='M%d %.2fH%d'/>"
			"<text x='%d' y='%.2f' text-anchor='%s'>budget %s</text>\n",
			LEFT, y, RIGHT, right ? LEFT + 4 : RIGHT, y - 4, right ? "start" : "end",
			size_text(d->a, s->budget_bytes));
	}
	if (d->v->plan.nsteps == 0)
		return;
	fprintf(d->out,
		"<path class='mark' d='M%.2f %dV%d'/><text x='%.2f' y='%d' text-anchor='%s'>peak, "
		"step %d</text>\n",
		peak, TOP - 6, BOTTOM, peak + (right ? -5 : 5), TOP - 8, right ? "end" : "start",
		d->v->plan.peak + 1);
}

/* ---- phases and legend ---- */

static void draw_loop(const Drawing *d, int32_t from, int32_t to)
{
	fprintf(d->out,
		"<path class='axis' fill='none' d='M%.2f %dv5H%.2fv-5'/>"
		"<text x='%.2f' y='%d' text-anchor='middle' class='quiet'>%" PRId64
		" times</text>\n",
		x_of(d, from), BOTTOM + STRIP + 26, x_of(d, to), (x_of(d, from) + x_of(d, to)) / 2,
		BOTTOM + STRIP + 44, view_trips(d->v, from));
}

/* Of a graph from elsewhere only what is computed again is known. */
static void draw_phases(const Drawing *d)
{
	const View *v = d->v;

	for (int32_t i = 0, to; i < v->plan.nsteps; i = to) {
		ViewPhase phase = view_phase(v, i);

		for (to = i + 1; to < v->plan.nsteps && view_phase(v, to) == phase;)
			to++;
		if (phase == PHASE_FORWARD && !v->phases)
			continue;
		fprintf(d->out,
			"<rect class='p%d' x='%.2f' y='%d' width='%.2f' height='%d'><title>%s, "
			"steps %d to %d</title></rect>\n",
			(int)phase, x_of(d, i), BOTTOM + 2, (to - i) * d->x_scale, STRIP - 4,
			view_phase_names[phase], i + 1, to);
	}
	for (int32_t i = 0, to; i < v->plan.nsteps; i = to) {
		int32_t loop = v->t->op[v->plan.step[i].op].loop;

		for (to = i + 1; to < v->plan.nsteps && v->t->op[v->plan.step[to].op].loop == loop;)
			to++;
		if (loop >= 0)
			draw_loop(d, i, to);
	}
}

/* A page has its own, in words that wrap. */
static void draw_legend(const Drawing *d)
{
	static const int kind_width = 118, phase_width = 130;

	for (int k = 0; k < VIEW_KINDS; k++)
		fprintf(d->out,
			"<rect class='k%d' x='%d' y='%d' width='12' height='12'/><text x='%d' "
			"y='%d'>%s</text>\n",
			k, LEFT + k * kind_width, HEIGHT - 54, LEFT + k * kind_width + 17,
			HEIGHT - 44, view_kind_names[k]);
	fprintf(d->out,
		"<rect class='k3' x='%d' y='%d' width='12' height='12'/>"
		"<rect class='hatch' x='%d' y='%d' width='12' height='12'/><text x='%d' y='%d'>"
		"computed again</text>\n",
		LEFT + VIEW_KINDS * kind_width, HEIGHT - 54, LEFT + VIEW_KINDS * kind_width,
		HEIGHT - 54, LEFT + VIEW_KINDS * kind_width + 17, HEIGHT - 44);
	for (int p = 0; p < PHASES; p++)
		fprintf(
		    d->out,
		    "<rect class='p%d' x='%d' y='%d' width='12' height='6'/><text x='%d' y='%d'>"
		    "%s</text>\n",
		    p, LEFT + p * phase_width, HEIGHT - 25, LEFT + p * phase_width + 17,
		    HEIGHT - 18, view_phase_names[p]);
	fprintf(d->out,
		"<path class='live' d='M%d %dh12'/><text x='%d' y='%d'>live bytes, without "
		"gaps</text>\n",
		LEFT + PHASES * phase_width, HEIGHT - 22, LEFT + PHASES * phase_width + 17,
		HEIGHT - 18);
}

void picture_svg(FILE *out, Arena *a, const View *v, const PlanSummary *s, bool document)
{
	int64_t top = s->arena_bytes;
	Drawing d = { .out = out, .a = a, .v = v };

	if (s->budget_bytes != INT64_MAX && (double)s->budget_bytes < 1.25 * (double)top)
		top = s->budget_bytes > top ? s->budget_bytes : top;
	if (top < 1)
		top = 1;
	d.x_scale = (double)(RIGHT - LEFT) / (v->plan.nsteps > 0 ? v->plan.nsteps : 1);
	d.y_scale = (double)(BOTTOM - TOP) / (double)top;
	draw_head(&d, s, document);
	draw_axes(&d, top);
	draw_buffers(&d);
	draw_live(&d);
	draw_marks(&d, s, top);
	draw_phases(&d);
	if (document)
		draw_legend(&d);
	fputs("</svg>\n", out);
}

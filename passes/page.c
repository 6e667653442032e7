/* One page about a plan, for a browser without a network (see answers.h).
 *
 * Everything is in the file: style, pictures, tables, and a script of a few lines that shows what a
 * buffer is when it is pointed at, tapped, or reached with the arrow keys. Without the script the
 * page still says everything. */
#include "answers.h"

#include "../ir/base/size.h"
#include "report.h"

#include <inttypes.h>
#include <stdlib.h>

extern const char page_css[], page_js[]; /* the files, embedded */

enum { KERNELS = 40 }; /* rows; the rest is summed */

typedef struct Page {
	FILE *out;
	Arena *a;
	const View *v;
	const PlanSummary *s;
	const PlanStudy *study;
} Page;

static double percent(double part, double whole)
{
	return whole > 0 ? 100 * part / whole : 0;
}

/* The head of a table of columns `a|#b|c`: those with # hold numbers. */
static void begin_table(const Page *p, const char *columns)
{
	fputs("<div class='scroll' tabindex='0'><table><thead><tr>", p->out);
	for (const char *c = columns; *c; c += *c == '|') {
		bool number = *c == '#';
		size_t n = strcspn(c += number, "|");

		fprintf(p->out, "<th scope='col'%s>%.*s</th>", number ? " class='n'" : "", (int)n,
			c);
		c += n;
	}
	fputs("</tr></thead><tbody>\n", p->out);
}

static void end_table(const Page *p)
{
	fputs("</tbody></table></div>\n", p->out);
}

static void put_fact(const Page *p, const char *name, const char *value)
{
	fprintf(p->out, "<div><dt>%s</dt><dd>%s</dd></div>\n", name, value);
}

static void put_facts(const Page *p)
{
	const PlanSummary *s = p->s;
	Arena *a = p->a;

	fputs("<dl>\n", p->out);
	put_fact(p, "arena", size_text(a, s->arena_bytes));
	put_fact(p, "budget",
		 s->budget_bytes == INT64_MAX ? "unlimited" : size_text(a, s->budget_bytes));
	put_fact(p, "smallest feasible", size_text(a, s->min_budget_bytes));
	put_fact(p, "unlimited plan", size_text(a, s->unlimited_arena_bytes));
	put_fact(p, "predicted step", report_seconds(a, s->step_seconds));
	put_fact(p, "batch",
		 arena_printf(a, "%" PRId64 " = %s", s->batch, report_split(a, s, "&times;")));
	if (s->chunks > 1)
		put_fact(p, "head", arena_printf(a, "%" PRId64 " chunks", s->chunks));
	put_fact(p, "computed again",
		 arena_printf(a, "%.1f %%", percent(s->recompute_seconds, s->step_seconds)));
	fputs("</dl>\n", p->out);
}

static void put_legend(const Page *p)
{
	fputs("</div>\n<ul class='dlc legend'>\n", p->out);
	for (int k = 0; k < VIEW_KINDS; k++)
		fprintf(p->out, "<li><i style='background:var(--k%d)'></i>%s</li>\n", k,
			view_kind_names[k]);
	fputs("<li><i class='again'></i>computed again</li>\n"
	      "<li><i class='line'></i>live bytes, without gaps</li>\n"
	      "</ul>\n<ul class='dlc legend'>\n",
	      p->out);
	for (int k = 0; k < PHASES; k++)
		fprintf(p->out, "<li><i class='low' style='background:var(--p%d)'></i>%s</li>\n", k,
			view_phase_names[k]);
	fputs("</ul>\n", p->out);
}

static void put_picture(const Page *p)
{
	fputs("<h2>Memory over one step</h2>\n"
	      "<p>Each rectangle is a buffer: wide as it lives long, high as it is large. "
	      "Point at one, tap it, or move with the <kbd>&larr;</kbd> <kbd>&rarr;</kbd> "
	      "<kbd>&uarr;</kbd> <kbd>&darr;</kbd> keys.</p>\n<div class='scroll'>\n",
	      p->out);
	picture_svg(p->out, p->a, p->v, p->s, false);
	put_legend(p);
	fputs("<output id='what' aria-live='polite'>No buffer is selected.</output>\n", p->out);
}

static void put_kind(const Page *p, const char *name, int64_t bytes)
{
	double share = percent((double)bytes, (double)p->s->arena_bytes);

	fprintf(p->out,
		"<tr><th scope='row'>%s</th><td class='n'>%s</td><td class='n'>%.1f %%</td>"
		"<td class='bar'><span style='width:%.1f%%'></span></td></tr>\n",
		name, size_text(p->a, bytes), share, share);
}

static void put_kinds(const Page *p)
{
	const PlanBytes *b = &p->s->peak;
	const int64_t bytes[VIEW_KINDS] = { b->parameters,  b->optimizer, b->gradients,
					    b->activations, b->workspace, b->input };
	int64_t gaps = p->s->arena_bytes;

	fputs("<h2>What fills the peak</h2>\n", p->out);
	begin_table(p, "kind|#bytes|#share");
	for (int k = 0; k < VIEW_KINDS; k++) {
		put_kind(p, view_kind_names[k], bytes[k]);
		gaps -= bytes[k];
	}
	put_kind(p, "gaps", gaps);
	end_table(p);
}

static void put_curve(const Page *p)
{
	fputs("<h2>What memory buys</h2>\n"
	      "<p>Each point is the fastest plan that fits into so much memory.</p>\n"
	      "<div class='scroll narrow'>\n",
	      p->out);
	curve_svg(p->out, p->a, p->study->point, p->study->npoints, p->s);
	fputs("</div>\n<details><summary>The same as a table</summary>\n", p->out);
	begin_table(p, "#budget, bytes|#arena|#batch|#replays|#computed again|#step");
	for (int i = 0; i < p->study->npoints; i++) {
		const PlanSummary *s = &p->study->point[i];

		fprintf(p->out,
			"<tr><td class='n'>%" PRId64
			"</td><td class='n'>%s</td><td class='n'>%s</td><td class='n'>%" PRId64
			"</td><td class='n'>%.1f %%</td><td class='n'>%s</td></tr>\n",
			s->budget_bytes, size_text(p->a, s->arena_bytes),
			report_split(p->a, s, "&times;"), s->recompute_nodes,
			percent(s->recompute_seconds, s->step_seconds),
			report_seconds(p->a, s->step_seconds));
	}
	end_table(p);
	fputs("</details>\n", p->out);
}

/* Without folders: tables have to fit on narrow screens. */
static const char *file_name(const char *where)
{
	const char *slash = strrchr(where, '/');

	return slash ? slash + 1 : where;
}

static void put_kernel(const Page *p, const char *op, const char *where, int64_t times,
		       double seconds)
{
	double share = percent(seconds, p->s->step_seconds);

	fprintf(p->out,
		"<tr><th scope='row'>%s</th><td>%s</td><td class='n'>%" PRId64
		"</td><td class='n'>%s</td>"
		"<td class='n'>%.1f %%</td></tr>\n",
		answer_escape(p->a, op), answer_escape(p->a, where), times,
		report_seconds(p->a, seconds), share);
}

static void put_kernels(const Page *p)
{
	int32_t n;
	const ViewCost *cost = view_costs(p->v, p->a, false, &n);
	double rest = 0;
	int64_t times = 0;

	fputs("<h2>Kernels by predicted time</h2>\n", p->out);
	begin_table(p, "kernel|line|#runs|#time|#share");
	for (int32_t i = 0; i < n; i++) {
		if (i < KERNELS) {
			put_kernel(p, cost[i].op, file_name(cost[i].where), cost[i].times,
				   cost[i].seconds);
			continue;
		}
		rest += cost[i].seconds;
		times += cost[i].times;
	}
	if (n > KERNELS)
		put_kernel(p, arena_printf(p->a, "%d more", n - KERNELS), "", times, rest);
	end_table(p);
}

static void put_words(const Page *p)
{
	char *text = NULL;
	size_t len = 0;
	FILE *words = open_memstream(&text, &len);
	char *line, *rest;

	fputs("<h2>In words</h2>\n<pre>", p->out);
	if (words) {
		explain_text(words, p->a, p->v, p->s, p->study);
		fclose(words);
		for (line = text; line && *line; line = rest) {
			rest = line + strcspn(line, "\n");
			if (*rest)
				*rest++ = 0;
			fprintf(p->out, "%s\n", answer_escape(p->a, line));
		}
		free(text);
	}
	fputs("</pre>\n", p->out);
}

void page_html(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study)
{
	Page p = { out, a, v, s, study };
	const char *name = answer_escape(a, v->m->name);

	fprintf(out,
		"<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
		"<meta name='viewport' content='width=device-width,initial-scale=1'>\n<title>%s: "
		"memory plan</title>\n",
		name);
	fprintf(out, "<style>\n%s</style>\n", page_css);
	fprintf(out, "</head>\n<body>\n<main>\n<h1>%s: %s</h1>\n", name,
		size_text(a, s->arena_bytes));
	put_facts(&p);
	put_picture(&p);
	put_kinds(&p);
	put_curve(&p);
	put_kernels(&p);
	put_words(&p);
	fputs("</main>\n", out);
	fprintf(out, "<script>\n%s</script>\n", page_js);
	fputs("</body>\n</html>\n", out);
}

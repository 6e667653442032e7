/* One page about a plan, for a browser without a network (see answers.h).
 *
 * Everything is in the file: style, pictures, tables, and a script of a few lines that shows what a buffer is when it is
 * pointed at, tapped, or reached with the arrow keys. Without the script the page still says everything. */
#include "answers.h"

#include "../ir/base/size.h"
#include "report.h"

#include <inttypes.h>
#include <stdlib.h>

enum { KERNELS = 40 }; /* rows; the rest is summed */

static const char head[] =
	"<style>\n"
	":root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#5b6470;--rule:#d5d9df;--bar:#3b73b9;--field:#f4f6f8}\n"
	"@media (prefers-color-scheme:dark){:root{--page:#14171b;--text:#e6e8eb;--soft:#9aa3ad;--rule:#363c44;--bar:#4b86cf;"
	"--field:#1d2127}}\n"
	"*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}\n"
	"main{max-width:1100px;margin:0 auto;padding:1.2rem 1rem 4rem}h1{font-size:1.6rem;margin:.2rem 0 1rem;"
	"overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}p{margin:.3rem 0;color:var(--soft)}\n"
	"dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.8rem;margin:0}"
	"dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums}\n"
	".scroll{overflow-x:auto}.scroll>svg{display:block;width:100%;min-width:680px;height:auto}"
	".narrow>svg{min-width:460px;max-width:760px}:focus-visible{outline:3px solid var(--bar);outline-offset:2px}\n"
	".legend{display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;margin:0 0 .5rem;padding:0;list-style:none;font-size:.9rem}"
	".legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.4rem}.legend .low{height:.4rem;margin-bottom:.2rem}"
	".legend .line{height:0;border-top:1.5px solid currentColor;margin-bottom:.3rem}.legend .again{background:"
	"repeating-linear-gradient(135deg,var(--k3) 0 3px,var(--ground) 3px 5px)}\n"
	"#what{display:block;min-height:6.6em;padding:.5rem .8rem;border-left:4px solid var(--bar);background:var(--field);"
	"white-space:pre-wrap;overflow-wrap:anywhere}\n"
	"table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th{text-align:left;font-weight:600}"
	"th,td{padding:.3rem .6rem;border-bottom:1px solid var(--rule);white-space:nowrap}.n{text-align:right}"
	"td.bar{width:40%;min-width:6rem}td.bar>span{display:block;height:.7rem;background:var(--bar);min-width:1px}\n"
	"pre{white-space:pre-wrap;overflow-wrap:anywhere;padding:.8rem;background:var(--field);font-size:.85rem;margin:0}"
	"@media (max-width:36rem){td.bar,th.bar{display:none}th,td{padding:.3rem .35rem;font-size:.9rem}}"
	"summary{cursor:pointer;padding:.4rem 0}kbd{border:1px solid var(--rule);border-radius:3px;padding:0 .3em}\n"
	"</style>\n";

/* Left and right walk through the buffers in the order of time, up and down to the neighbours in the arena. */
static const char script[] =
	"<script>\n"
	"const picture = document.getElementById('memory'), what = document.getElementById('what');\n"
	"const hint = what.textContent;\n"
	"const all = [...picture.querySelectorAll('.buffers rect')];\n"
	"let at = -1;\n"
	"function show(element) {\n"
	"  all[at]?.classList.remove('chosen');\n"
	"  at = all.indexOf(element);\n"
	"  all[at]?.classList.add('chosen');\n"
	"  what.textContent = element ? element.querySelector('title').textContent : hint;\n"
	"}\n"
	"function side(r) {\n"
	"  const n = name => Number(r.getAttribute(name));\n"
	"  return { left: n('x'), right: n('x') + n('width'), top: n('y'), bottom: n('y') + n('height') };\n"
	"}\n"
	"function neighbour(up) {\n"
	"  const here = side(all[at]), middle = (here.left + here.right) / 2;\n"
	"  let best = null, distance = Infinity;\n"
	"  for (const r of all) {\n"
	"    const s = side(r), far = up ? here.top - s.bottom : s.top - here.bottom;\n"
	"    if (r !== all[at] && s.left <= middle && middle <= s.right && far > -0.02 && far < distance) {\n"
	"      best = r;\n"
	"      distance = far;\n"
	"    }\n"
	"  }\n"
	"  return best;\n"
	"}\n"
	"for (const kind of ['pointerover', 'click'])\n"
	"  picture.addEventListener(kind, e => {\n"
	"    const r = e.target.closest('.buffers rect');\n"
	"    if (r) show(r);\n"
	"  });\n"
	"picture.addEventListener('keydown', e => {\n"
	"  let next;\n"
	"  if (e.key === 'Escape') return show(null);\n"
	"  if (e.key === 'ArrowRight') next = all[Math.min(at + 1, all.length - 1)];\n"
	"  else if (e.key === 'ArrowLeft') next = all[Math.max(at - 1, 0)];\n"
	"  else if (e.key === 'Home') next = all[0];\n"
	"  else if (e.key === 'End') next = all[all.length - 1];\n"
	"  else if (e.key === 'ArrowUp' || e.key === 'ArrowDown') next = at < 0 ? all[0] : neighbour(e.key === 'ArrowUp');\n"
	"  else return;\n"
	"  e.preventDefault();\n"
	"  if (!next) return;\n"
	"  show(next);\n"
	"  next.scrollIntoView({ block: 'nearest', inline: 'nearest' });\n"
	"});\n"
	"</script>\n";

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
	put_fact(p, "budget", s->budget_bytes == INT64_MAX ? "unlimited" : size_text(a, s->budget_bytes));
	put_fact(p, "smallest feasible", size_text(a, s->min_budget_bytes));
	put_fact(p, "unlimited plan", size_text(a, s->unlimited_arena_bytes));
	put_fact(p, "predicted step", report_seconds(a, s->step_seconds));
	put_fact(p, "batch", arena_printf(a, "%" PRId64 " = %" PRId64 " &times; %" PRId64, s->batch, s->accumulation_steps,
	                                  s->micro_batch));
	put_fact(p, "computed again", arena_printf(a, "%.1f %%", percent(s->recompute_seconds, s->step_seconds)));
	fputs("</dl>\n", p->out);
}

static void put_legend(const Page *p)
{
	fputs("</div>\n<ul class=\"dlc legend\">\n", p->out);
	for (int k = 0; k < VIEW_KINDS; k++)
		fprintf(p->out, "<li><i style=\"background:var(--k%d)\"></i>%s</li>\n", k, view_kind_names[k]);
	fputs("<li><i class=\"again\"></i>computed again</li><li><i class=\"line\"></i>live bytes, without gaps</li>\n"
	      "</ul>\n<ul class=\"dlc legend\">\n", p->out);
	for (int k = 0; k < PHASES; k++)
		fprintf(p->out, "<li><i class=\"low\" style=\"background:var(--p%d)\"></i>%s</li>\n", k, view_phase_names[k]);
	fputs("</ul>\n", p->out);
}

static void put_picture(const Page *p)
{
	fputs("<h2>Memory over one step</h2>\n"
	      "<p>Each rectangle is a buffer: wide as it lives long, high as it is large. Point at one, tap it, or move with the "
	      "<kbd>&larr;</kbd> <kbd>&rarr;</kbd> <kbd>&uarr;</kbd> <kbd>&darr;</kbd> keys.</p>\n<div class=\"scroll\">\n",
	      p->out);
	picture_svg(p->out, p->a, p->v, p->s, false);
	put_legend(p);
	fputs("<output id=\"what\" aria-live=\"polite\">No buffer is selected.</output>\n", p->out);
}

static void put_kind(const Page *p, const char *name, int64_t bytes)
{
	double share = percent((double)bytes, (double)p->s->arena_bytes);

	fprintf(p->out, "<tr><th scope=\"row\">%s</th><td class=\"n\">%s</td><td class=\"n\">%.1f %%</td>"
	        "<td class=\"bar\"><span style=\"width:%.1f%%\"></span></td></tr>\n",
	        name, size_text(p->a, bytes), share, share);
}

static void put_kinds(const Page *p)
{
	const PlanBytes *b = &p->s->peak;
	const int64_t bytes[VIEW_KINDS] = { b->parameters, b->optimizer, b->gradients, b->activations, b->workspace, b->io };
	int64_t gaps = p->s->arena_bytes;

	fputs("<h2>What fills the peak</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">kind</th>"
	      "<th scope=\"col\" class=\"n\">bytes</th><th scope=\"col\" class=\"n\">share</th><td class=\"bar\"></td></tr></thead><tbody>\n",
	      p->out);
	for (int k = 0; k < VIEW_KINDS; k++) {
		put_kind(p, view_kind_names[k], bytes[k]);
		gaps -= bytes[k];
	}
	put_kind(p, "gaps", gaps);
	fputs("</tbody></table></div>\n", p->out);
}

static void put_curve(const Page *p)
{
	fputs("<h2>What memory buys</h2>\n<p>Each point is the fastest plan that fits into so much memory.</p>\n"
	      "<div class=\"scroll narrow\">\n", p->out);
	curve_svg(p->out, p->a, p->study->point, p->study->npoints, p->s);
	fputs("</div>\n<details><summary>The same as a table</summary><div class=\"scroll\" tabindex=\"0\"><table><thead><tr>"
	      "<th scope=\"col\" class=\"n\">budget, bytes</th><th scope=\"col\" class=\"n\">arena</th>"
	      "<th scope=\"col\" class=\"n\">batch</th><th scope=\"col\" class=\"n\">replays</th>"
	      "<th scope=\"col\" class=\"n\">computed again</th><th scope=\"col\" class=\"n\">step</th></tr></thead><tbody>\n",
	      p->out);
	for (int i = 0; i < p->study->npoints; i++) {
		const PlanSummary *s = &p->study->point[i];

		fprintf(p->out, "<tr><td class=\"n\">%" PRId64 "</td><td class=\"n\">%s</td><td class=\"n\">%" PRId64 " &times; %" PRId64
		        "</td><td class=\"n\">%" PRId64 "</td><td class=\"n\">%.1f %%</td><td class=\"n\">%s</td></tr>\n",
		        s->budget_bytes, size_text(p->a, s->arena_bytes), s->accumulation_steps, s->micro_batch,
		        s->recompute_nodes, percent(s->recompute_seconds, s->step_seconds),
		        report_seconds(p->a, s->step_seconds));
	}
	fputs("</tbody></table></div></details>\n", p->out);
}

/* Without folders: tables have to fit on narrow screens. */
static const char *file_name(const char *where)
{
	const char *slash = strrchr(where, '/');

	return slash ? slash + 1 : where;
}

static void put_kernel(const Page *p, const char *op, const char *where, int64_t times, double seconds)
{
	double share = percent(seconds, p->s->step_seconds);

	fprintf(p->out, "<tr><th scope=\"row\">%s</th><td>%s</td><td class=\"n\">%" PRId64 "</td><td class=\"n\">%s</td>"
	        "<td class=\"n\">%.1f %%</td></tr>\n", answer_escape(p->a, op), answer_escape(p->a, where), times,
	        report_seconds(p->a, seconds), share);
}

static void put_kernels(const Page *p)
{
	int32_t n;
	const ViewCost *cost = view_costs(p->v, p->a, false, &n);
	double rest = 0;
	int64_t times = 0;

	fputs("<h2>Kernels by predicted time</h2>\n<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\">kernel</th>"
	      "<th scope=\"col\">line</th><th scope=\"col\" class=\"n\">runs</th><th scope=\"col\" class=\"n\">time</th>"
	      "<th scope=\"col\" class=\"n\">share</th></tr></thead><tbody>\n", p->out);
	for (int32_t i = 0; i < n; i++) {
		if (i < KERNELS) {
			put_kernel(p, cost[i].op, file_name(cost[i].where), cost[i].times, cost[i].seconds);
			continue;
		}
		rest += cost[i].seconds;
		times += cost[i].times;
	}
	if (n > KERNELS)
		put_kernel(p, arena_printf(p->a, "%d others", n - KERNELS), "", times, rest);
	fputs("</tbody></table></div>\n", p->out);
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

	fprintf(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>%s: memory plan</title>\n", name);
	fputs(head, out);
	fprintf(out, "</head>\n<body>\n<main>\n<h1>%s: %s</h1>\n", name, size_text(a, s->arena_bytes));
	put_facts(&p);
	put_picture(&p);
	put_kinds(&p);
	put_curve(&p);
	put_kernels(&p);
	put_words(&p);
	fputs("</main>\n", out);
	fputs(script, out);
	fputs("</body>\n</html>\n", out);
}

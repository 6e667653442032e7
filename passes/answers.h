/* A plan and its alternatives for people: the trade-off curve, the explanation, the picture, the page.
 *
 * All texts depend on the graph, the budget and the machine profile alone, never on how long planning took. */
#ifndef DLC_PASSES_ANSWERS_H
#define DLC_PASSES_ANSWERS_H

#include "planner.h"
#include "timeline.h"

/* ---- the trade-off (curve.c) ---- */

/* One line a point of planner_curve, smallest budget first; slowness is relative to the last one. */
void curve_table(FILE *out, Arena *a, const Module *m, const PlanSummary *point, int n);

/* The curve as a drawing: memory (logarithmic) against predicted seconds, `now` marked on it. */
void curve_svg(FILE *out, Arena *a, const PlanSummary *point, int n, const PlanSummary *now);

/* ---- a placed step, ready to be told about (view.c) ---- */

typedef enum ViewKind {
	VIEW_PARAMETER, VIEW_OPTIMIZER, VIEW_GRADIENT, VIEW_ACTIVATION, VIEW_WORKSPACE, VIEW_IO, VIEW_KINDS
} ViewKind;

/* Bytes that stay for some steps. */
typedef struct ViewItem {
	ViewKind kind;
	const char *name; /* "gelu f32[64,512]", "fc1.weight f32[10,64]", "workspace of conv2d" */
	int64_t offset, bytes;
	int32_t from, to; /* steps, both inclusive */
	Span span;        /* of what makes it */
	bool replay;
	bool over;        /* took over the bytes of an operand in the step where it is made */
} ViewItem;

/* What one op (or all replays of ops that look alike) of one source line costs. */
typedef struct ViewCost {
	const char *op;
	const char *where;
	double seconds;
	int32_t times;  /* launches of one step of training */
} ViewCost;

typedef struct View {
	Module *m;
	Timeline *t;
	TPlan plan;
	ViewItem *item;   /* variables first, then in order of `from` */
	int32_t nitems, nvars;
	int64_t arena;    /* end of the highest byte */
	int64_t *live;    /* by step, variables included */
	int32_t backward; /* the first step of the backward pass; nsteps where there is none */
} View;

extern const char *const view_kind_names[VIEW_KINDS];

/* `step` must be placed. Everything is in the arena. */
View view_make(Arena *a, Module *m, const PassCtx *cx);
/* Live at the peak: of `overtaken` operands only the result counts. */
bool view_at_peak(const View *v, const ViewItem *i);
/* "models/mlp.dl:7" of a step's op, "?" where it has no source. */
const char *view_where(const View *v, Arena *a, Span s);
const Node *view_node(const View *v, int32_t step); /* NULL for the end of a loop */
const char *view_op(const View *v, Arena *a, int32_t step);
/* Costs by op and line, the largest first; of replays only, or of all steps. */
ViewCost *view_costs(const View *v, Arena *a, bool replays, int32_t *n);

/* ---- words, picture, page ---- */

/* What fills the peak, what is replayed, why this micro-batch, what more or less memory would change (explain.c). */
void explain_text(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study);

/* Memory over time: a stand-alone SVG document, or (page) an element of an HTML page with what its script needs
 * (picture.c). */
void picture_svg(FILE *out, Arena *a, const View *v, const PlanSummary *s, bool page);

/* One HTML page with all of it, without references to anything outside (page.c). */
void page_html(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study);

/* Text for XML and HTML: the five special characters become entities, control characters a replacement. */
const char *answer_escape(Arena *a, const char *text);

#endif

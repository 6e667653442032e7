/* A plan and its alternatives for people: the trade-off curve, the explanation, the picture, the
 * page.
 *
 * All texts depend on the graph, the budget and the machine profile alone, never on how long
 * planning took. */
#ifndef DLC_PASSES_ANSWERS_H
#define DLC_PASSES_ANSWERS_H

#include "planner.h"
#include "timeline.h"

/* ---- the trade-off (curve.c) ---- */

/* One line a point of planner_curve, smallest budget first; slowness is relative to the last one.
 */
void curve_table(FILE *out, Arena *a, const Module *m, const PlanSummary *point, int n);

/* The curve as an element of a page that holds picture_svg too: memory (logarithmic) against
 * predicted seconds, `now` marked on it. */
void curve_svg(FILE *out, Arena *a, const PlanSummary *point, int n, const PlanSummary *now);

/* ---- a placed step, ready to be told about (view.c) ---- */

typedef enum ViewKind {
	VIEW_PARAMETER,
	VIEW_OPTIMIZER,
	VIEW_GRADIENT,
	VIEW_ACTIVATION,
	VIEW_WORKSPACE,
	VIEW_IO,
	VIEW_KINDS
} ViewKind;

/* Bytes that stay for some steps. */
typedef struct ViewItem {
	ViewKind kind;
	const char *name; /* "gelu f32[64,512]", "fc1.weight f32[10,64]", "workspace of conv2d" */
	int64_t offset, bytes;
	int32_t from, to; /* steps, both inclusive */
	Span span;        /* of what makes it */
	bool replay;
	bool over;      /* takes over the bytes of an operand in the step where it is made */
	bool passed_on; /* a result takes over its bytes in its last step */
} ViewItem;

/* What one op (or all replays of ops that look alike) of one source line costs. */
typedef struct ViewCost {
	const char *op;
	const char *where;
	double seconds;
	int64_t times; /* launches of one step of training */
} ViewCost;

typedef enum ViewPhase {
	PHASE_FORWARD,
	PHASE_REPLAY,
	PHASE_BACKWARD,
	PHASE_UPDATE,
	PHASES
} ViewPhase;

typedef struct View {
	const char *machine; /* profile of the predicted times */
	Module *m;
	Timeline *t;
	TPlan plan;
	ViewItem *item; /* variables first, then in order of `from` */
	int32_t nitems, nvars;
	int64_t arena; /* end of the highest byte of the step */
	int64_t *live; /* by step, variables included */
	bool phases;   /* the graph says what is backward; one from elsewhere may not */
} View;

extern const char *const view_kind_names[VIEW_KINDS], *const view_phase_names[PHASES];

/* `step` must be placed. Everything is in the arena. */
View view_make(Arena *a, Module *m, const PassCtx *cx);
/* Whether an item's bytes count at the peak; in the step where a result takes over an operand the
 * operand does. */
bool view_at_peak(const View *v, const ViewItem *i);
const Node *view_node(const View *v, int32_t step); /* NULL for the end of a loop */
const char *view_op(const View *v, Arena *a, int32_t step);
ViewPhase view_phase(const View *v, int32_t step);
int64_t view_trips(const View *v,
		   int32_t step); /* how often the step runs in one step of training */
/* "models/mlp.dl:7", "?" without a source. */
const char *view_where(const View *v, Arena *a, Span s);
/* Costs by op and line, the largest first; of replays only, or of all steps. */
ViewCost *view_costs(const View *v, Arena *a, bool replays, int32_t *n);

/* ---- words, picture, page ---- */

/* What fills the peak, what is replayed, why this micro-batch, what more or less memory would
 * change (explain.c). */
void explain_text(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study);

/* Memory over time: a rectangle a buffer, steps by bytes, with a <title> that says what it is
 * (picture.c). A document of its own, or an element of an HTML page, without a legend. */
void picture_svg(FILE *out, Arena *a, const View *v, const PlanSummary *s, bool document);

/* One HTML page with all of it, without references to anything outside (page.c). */
void page_html(FILE *out, Arena *a, const View *v, const PlanSummary *s, const PlanStudy *study);

/* ---- what they share (view.c) ---- */

/* A name as UTF-8: bytes that are no character of XML, such as those of a file's name in another encoding, become
 * replacements. */
const char *answer_text(Arena *a, const char *text);
/* The same for XML and HTML: the five special characters become entities. */
const char *answer_escape(Arena *a, const char *text);

/* The distance of round ticks (1, 2 or 5 times a power of ten), at most `most` of them in `range`.
 */
double answer_tick(double range, int most);

/* The largest unit in which bytes are at least 1, up to GiB; *unit is one of it in bytes. */
const char *answer_unit(int64_t bytes, double *unit);

#endif

/* What other budgets would give (see planner_parts.h): the curve, and the answers beside one answer. */
#include "planner_parts.h"

#include <math.h>

/* Answers, smallest arena last. */
typedef struct Curve {
	const Choice *at[PLAN_CURVE_POINTS];
	bool whole[PLAN_CURVE_POINTS]; /* no answer lies between this one and the next */
	int n;
} Curve;

/* Walks down from the plan without a limit: the next budget is a step smaller in the logarithm of the arena. */
static void sample_curve(Planner *p, const Choice *least, Curve *curve)
{
	int64_t bottom = choice_bytes(p, least);
	double ratio = pow((double)choice_bytes(p, &p->choice[0]) / (double)bottom, 1.0 / (PLAN_CURVE_POINTS - 1));
	const Choice *c = choices_first(p, INT64_MAX, choices_all);

	while (curve->n < PLAN_CURVE_POINTS - 1 && choice_bytes(p, c) > bottom) {
		int64_t budget = (int64_t)((double)choice_bytes(p, c) / ratio);

		curve->at[curve->n++] = c;
		if (budget >= choice_bytes(p, c))
			budget = choice_bytes(p, c) - 1;
		c = choices_first(p, budget < bottom ? bottom : budget, choices_all);
	}
	curve->at[curve->n++] = choices_first(p, bottom, choices_all);
}

/* The widest gap that may hold an answer, by the logarithm of the arena; -1 where there is none. */
static int widest_gap(Planner *p, const Curve *curve)
{
	double widest = 0;
	int gap = -1;

	for (int i = 0; i + 1 < curve->n; i++) {
		double width = log((double)choice_bytes(p, curve->at[i]) / (double)choice_bytes(p, curve->at[i + 1]));

		if (!curve->whole[i] && width > widest) {
			widest = width;
			gap = i;
		}
	}
	return gap;
}

/* Puts more answers into the gaps, while there is room: a short curve becomes complete. */
static void refine_curve(Planner *p, Curve *curve)
{
	int i;

	while (curve->n < PLAN_CURVE_POINTS && (i = widest_gap(p, curve)) >= 0) {
		int64_t high = choice_bytes(p, curve->at[i]), low = choice_bytes(p, curve->at[i + 1]);
		const Choice *c = choices_first(p, (int64_t)sqrt((double)high * (double)low), choices_all);

		if (!c || choice_bytes(p, c) <= low) /* nothing in the lower half */
			c = choices_first(p, high - 1, choices_all);
		if (choice_bytes(p, c) <= low) {
			curve->whole[i] = true;
			continue;
		}
		for (int k = curve->n++; k > i + 1; k--) {
			curve->at[k] = curve->at[k - 1];
			curve->whole[k] = curve->whole[k - 1];
		}
		curve->at[i + 1] = c;
		curve->whole[i + 1] = false;
	}
}

PlanSummary *study_curve(Planner *p, const Choice *least, bool bounds, int *n)
{
	Curve curve = { 0 };
	PlanSummary *point;

	sample_curve(p, least, &curve);
	refine_curve(p, &curve);
	point = ARENA_ARRAY(p->m->arena, curve.n, PlanSummary);
	for (int i = 0; i < curve.n; i++) {
		const Choice *c = curve.at[curve.n - 1 - i];

		choice_summary(p, c, least, choice_bytes(p, c), &point[i]);
		if (bounds)
			choice_bound(c, &point[i]);
	}
	*n = curve.n;
	return point;
}

/* The smallest micro-batch above that of the answer; 0 where there is none. */
static int64_t next_larger(const Planner *p, int64_t micro_batch)
{
	int64_t next = 0;

	for (size_t i = 0; i < p->candidates.len; i++) {
		int64_t b = p->candidates.at[i].micro_batch;

		if (b > micro_batch && (next == 0 || b < next))
			next = b;
	}
	return next;
}

static void note(Planner *p, const Choice *c, const Choice *least, int64_t budget, PlanSummary *out)
{
	if (c)
		choice_summary(p, c, least, budget, out);
}

void study_neighbours(Planner *p, const Choice *chosen, const Choice *least, PlanStudy *s)
{
	int64_t arena = choice_bytes(p, chosen), budget = p->o->budget == INT64_MAX ? arena : p->o->budget;
	int64_t more = budget + budget / 10, less = budget - budget / 10;
	int64_t larger = next_larger(p, chosen->candidate->micro_batch);

	note(p, choices_first(p, more, choices_all), least, more, &s->more);
	note(p, choices_first(p, less, choices_all), least, less, &s->less);
	if (larger == 0)
		return;
	note(p, choices_smallest(p, (Among){ larger, INFINITY }), least, budget, &s->larger_least);
	note(p, choices_first(p, budget, (Among){ larger, INFINITY }), least, budget, &s->larger_within);
	note(p, choices_smallest(p, (Among){ larger, chosen->seconds }), least, budget, &s->larger_as_fast);
}

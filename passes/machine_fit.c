/* Least squares with costs that are not negative.
 *
 * Method. Minimised is the sum over samples of weight * ((predicted - seconds) / seconds)^2, plus a small pull of every cost
 * to where it was. What the weights depend on is known once there is a solution; so: guess, solve, guess again. Where
 * arithmetic and traffic overlap, that goes for the larger of the two as well. A solution under the bound 0 is found by going through the
 * costs one at a time (coordinate descent, which converges for a convex quadratic).
 * A cost that was 0 stays 0: a machine of that kind has none (products on a card need no packing), and what is left of a time must not
 * end up there.
 * Samples far off the prediction count less (Huber's weights): something else ran in between. */
#include "machine_fit.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 12, SWEEPS = 400 };
static const double pull = 1e-3, far_off = 0.3;

typedef struct Fit {
	const MachineSample *s;
	int n;
	double prior[MACHINE_COSTS];
	double total; /* of the weights */
	double gram[MACHINE_COSTS][MACHINE_COSTS], right[MACHINE_COSTS];
} Fit;

static void group_sums(const Machine *m, const MachineSample *s, double sum[3])
{
	sum[0] = sum[1] = sum[2] = 0;
	for (int i = 0; i < MACHINE_COSTS; i++)
		sum[machine_rows[i].group] += s->unit[i] * m->ns[i] * 1e-9;
}

/* The smaller of arithmetic and traffic counts by 1 - overlap. */
static double predict(const Machine *m, const MachineSample *s, double factor[3])
{
	double sum[3];

	group_sums(m, s, sum);
	factor[COST_FIXED] = 1;
	factor[COST_WORK] = sum[COST_WORK] >= sum[COST_BYTES] ? 1 : 1 - m->overlap;
	factor[COST_BYTES] = sum[COST_WORK] >= sum[COST_BYTES] ? 1 - m->overlap : 1;
	return sum[0] + factor[1] * sum[1] + factor[2] * sum[2];
}

/* Errors are relative to the mean of predicted and measured, so that half and double are equally wrong. */
static double middle(const Machine *m, const MachineSample *s)
{
	double factor[3];

	return (predict(m, s, factor) + s->seconds) / 2;
}

static double distance(const Machine *m, const MachineSample *s, double factor[3])
{
	return fabs(predict(m, s, factor) - s->seconds) / middle(m, s);
}

/* The normal equations at the costs at hand, for relative errors. */
static void gather(Fit *f, const Machine *m)
{
	memset(f->gram, 0, sizeof f->gram);
	memset(f->right, 0, sizeof f->right);
	for (int k = 0; k < f->n; k++) {
		const MachineSample *s = &f->s[k];
		double factor[3], x[MACHINE_COSTS], off = distance(m, s, factor);
		double w = s->weight * (off > far_off ? far_off / off : 1), between = middle(m, s);

		for (int i = 0; i < MACHINE_COSTS; i++)
			x[i] = s->unit[i] * factor[machine_rows[i].group] * 1e-9 / between * f->prior[i];
		for (int i = 0; i < MACHINE_COSTS; i++) {
			if (x[i] == 0)
				continue;
			f->right[i] += w * x[i] * s->seconds / between;
			for (int j = 0; j < MACHINE_COSTS; j++)
				f->gram[i][j] += w * x[i] * x[j];
		}
	}
	for (int i = 0; i < MACHINE_COSTS; i++) {
		f->gram[i][i] += pull * f->total / f->n;
		f->right[i] += pull * f->total / f->n;
	}
}

/* Unknowns are costs in units of the prior. */
static void solve(Fit *f, Machine *m)
{
	double x[MACHINE_COSTS];

	for (int i = 0; i < MACHINE_COSTS; i++)
		x[i] = f->prior[i] > 0 ? m->ns[i] / f->prior[i] : 0;
	for (int sweep = 0; sweep < SWEEPS; sweep++)
		for (int i = 0; i < MACHINE_COSTS; i++) {
			double r = f->right[i];

			for (int j = 0; j < MACHINE_COSTS; j++)
				r -= j == i ? 0 : f->gram[i][j] * x[j];
			x[i] = r > 0 ? r / f->gram[i][i] : 0;
		}
	for (int i = 0; i < MACHINE_COSTS; i++)
		m->ns[i] = x[i] * f->prior[i];
}

static double error_of(const Fit *f, const Machine *m)
{
	double sum = 0, factor[3];

	for (int k = 0; k < f->n; k++) {
		double off = distance(m, &f->s[k], factor);

		sum += f->s[k].weight * (off > far_off ? far_off * (2 * off - far_off) : off * off);
	}
	return sum / f->total;
}

double machine_fit(Arena *a, Machine *m, const MachineSample *s, int n)
{
	Fit *f = ARENA_NEW(a, Fit);

	f->s = s;
	f->n = n;
	for (int i = 0; i < MACHINE_COSTS; i++) {
		f->prior[i] = m->ns[i];
		m->kept[i] = true;
		for (int k = 0; k < n && m->kept[i] && m->ns[i] > 0; k++)
			m->kept[i] = s[k].unit[i] <= 0;
	}
	for (int k = 0; k < n; k++)
		f->total += s[k].weight;
	for (int round = 0; round < ROUNDS; round++) {
		gather(f, m);
		solve(f, m);
	}
	return error_of(f, m);
}

/* ---- links ---- */

/* Sums over one way's samples, each weighted by 1 / seconds^2: of 1, bytes, bytes^2, seconds, bytes * seconds. */
typedef struct LinkSums {
	double one, b, bb, s, bs;
} LinkSums;

static LinkSums link_sums(const LinkSample *s, int n, bool in)
{
	LinkSums sum = { 0 };

	for (int i = 0; i < n; i++) {
		double w = 1 / (s[i].seconds * s[i].seconds);

		if (s[i].in != in || !(s[i].seconds > 0))
			continue;
		sum.one += w;
		sum.b += w * s[i].bytes;
		sum.bb += w * s[i].bytes * s[i].bytes;
		sum.s += w * s[i].seconds;
		sum.bs += w * s[i].bytes * s[i].seconds;
	}
	return sum;
}

/* The delay of a line through one way's samples; not below 0. */
static double link_delay(const LinkSums *x)
{
	double det = x->one * x->bb - x->b * x->b, delay = (x->s * x->bb - x->b * x->bs) / det;

	return det > 0 && delay > 0 ? delay : 0;
}

/* A profile has one delay for both ways: their mean; then each way's rate under it. */
bool machine_fit_links(Machine *m, const LinkSample *s, int n)
{
	LinkSums out = link_sums(s, n, false), in = link_sums(s, n, true);
	double delay = (link_delay(&out) + link_delay(&in)) / 2;
	double out_byte = (out.bs - delay * out.b) / out.bb, in_byte = (in.bs - delay * in.b) / in.bb;

	if (!(out_byte > 0) || !(in_byte > 0))
		return false;
	m->link_out = 1 / out_byte;
	m->link_in = 1 / in_byte;
	m->link_delay = 1e9 * delay;
	return true;
}

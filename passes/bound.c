/* The dual bound on replays (see bound.h), over the plans in which each operation runs where it stands, and perhaps again later.
 *
 * Between two operations that touch a buffer, one after the other, lies a gap. Whatever the plan, as long as the operations keep
 * their order: either the buffer is held over the whole gap, and its bytes count at every operation within; or it is not
 * there at some time in the gap, and since it is read at the gap's end, its producer runs again after the gap began. The gaps
 * of one buffer do not overlap, so no replay serves two of them. Gaps of several results of one operation may share a replay where
 * they overlap: those form a group, which costs one run if any of it is not held.
 *
 * So with x_g = 1 where all of group g is held, and fixed_t what operation t itself touches, every plan within M bytes satisfies
 *
 *     fixed_t + sum over gaps g around t of bytes_g x_g <= M        for all t
 *     seconds >= sum over groups g of seconds_g (1 - x_g)
 *
 * and for any prices lambda_t >= 0 its seconds are at least
 *
 *     L = sum over t of lambda_t (fixed_t - M) + sum over g of min(seconds_g, sum over its gaps of bytes x lambda within)
 *
 * (Lagrangian relaxation). Prices are found by projected subgradient steps of Polyak's length, fewer for very large functions; every L met is a
 * bound, the largest is returned. What a replay must itself replay is not counted, so the bound is weak where memory is
 * scarcest. Operations that work in place are counted as if they always could. */
#include "bound.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { ROUNDS = 400, ROUNDS_WORK = 20000000 };

typedef struct Gap {
	int32_t left, right; /* operations at its ends */
	int32_t op;          /* the producer */
	double bytes;
} Gap;

typedef struct Dual {
	const Timeline *t;
	double *fixed;       /* by operation */
	Gap *gap;            /* group by group */
	int32_t ngaps;
	double *seconds;     /* by group */
	int32_t *first;      /* by group: its first gap; behind the last one, the number of gaps */
	int32_t ngroups;
	double *price, *sum; /* by operation; sums of those before it */
	double *slope;       /* by operation: bytes over M */
} Dual;

static bool may_replay(const Timeline *t, const TOp *op, int32_t at)
{
	if (!op->replayable || t->op[at].closed || op->loop != t->op[at].loop)
		return false;
	for (int32_t k = 0; k < op->nvar; k++)
		if (t->assigned[op->var[k]] >= 0 && t->assigned[op->var[k]] < at)
			return false;
	return true;
}

/* The gap of a buffer between two operations that touch it: one that may be given up, or more of what is fixed. */
static void add_gap(Dual *d, int32_t buf, int32_t left, int32_t right)
{
	const Timeline *t = d->t;
	double bytes = (double)t->buf[buf].bytes;

	if (right <= left + 1)
		return;
	if (may_replay(t, &t->op[t->buf[buf].op], right)) {
		d->gap[d->ngaps++] = (Gap){ .left = left, .right = right, .op = t->buf[buf].op, .bytes = bytes };
		return;
	}
	for (int32_t i = left + 1; i < right; i++)
		d->fixed[i] += bytes;
}

static void find_gaps(Dual *d, Arena *a)
{
	const Timeline *t = d->t;
	int32_t *last = ARENA_ARRAY(a, t->nbufs, int32_t), most = 0;

	for (int32_t i = 0; i < t->nops; i++)
		most += t->op[i].nuse;
	d->gap = ARENA_ARRAY(a, most, Gap);
	for (int32_t i = 0; i < t->nops; i++) {
		const TOp *op = &t->op[i];

		d->fixed[i] += (double)op->work_bytes;
		for (int32_t k = 0; k < op->nuse; k++) {
			add_gap(d, op->use[k], last[op->use[k]], i);
			last[op->use[k]] = i;
			d->fixed[i] += (double)t->buf[op->use[k]].bytes;
		}
		for (int32_t k = 0; k < op->ndef; k++) {
			last[op->def[k]] = i;
			d->fixed[i] += (double)t->buf[op->def[k]].bytes;
		}
		for (int32_t k = 0; k < op->npair; k++) /* pairs come result by result */
			if (k == 0 || op->pair[k].def != op->pair[k - 1].def)
				d->fixed[i] -= (double)t->buf[op->pair[k].def].bytes;
	}
}

static int compare_gaps(const void *pa, const void *pb)
{
	const Gap *a = pa, *b = pb;

	if (a->op != b->op)
		return a->op < b->op ? -1 : 1;
	if (a->left != b->left)
		return a->left < b->left ? -1 : 1;
	return a->right < b->right ? -1 : a->right > b->right;
}

static void group_gaps(Dual *d, Arena *a)
{
	int32_t end = -1;

	qsort(d->gap, (size_t)d->ngaps, sizeof *d->gap, compare_gaps);
	d->seconds = ARENA_ARRAY(a, d->ngaps, double);
	d->first = ARENA_ARRAY(a, d->ngaps + 1, int32_t);
	for (int32_t k = 0; k < d->ngaps; k++) {
		Gap *g = &d->gap[k];

		if (k == 0 || g->op != g[-1].op || g->left >= end) {
			d->first[d->ngroups] = k;
			d->seconds[d->ngroups++] = d->t->op[g->op].seconds;
			end = g->right;
		}
		if (g->right > end)
			end = g->right;
	}
	d->first[d->ngroups] = d->ngaps;
}

/* L at the prices at hand; what is held too much of, by operation, and the sum of its squares where a price may move. */
static double evaluate(Dual *d, double most, double *norm)
{
	int32_t n = d->t->nops;
	double value = 0, held = 0;

	d->sum[0] = 0;
	for (int32_t i = 0; i < n; i++) {
		d->sum[i + 1] = d->sum[i] + d->price[i];
		value += d->price[i] * (d->fixed[i] - most);
		d->slope[i] = 0;
	}
	d->slope[n] = 0;
	for (int32_t k = 0; k < d->ngroups; k++) {
		const Gap *from = &d->gap[d->first[k]], *to = &d->gap[d->first[k + 1]];
		double priced = 0; /* its bytes at the prices at hand */

		for (const Gap *g = from; g < to; g++)
			priced += g->bytes * (d->sum[g->right] - d->sum[g->left + 1]);
		value += priced < d->seconds[k] ? priced : d->seconds[k];
		for (const Gap *g = from; g < to && priced <= d->seconds[k]; g++) {
			d->slope[g->left + 1] += g->bytes;
			d->slope[g->right] -= g->bytes;
		}
	}
	for (int32_t i = 0; i < n; i++) {
		held += d->slope[i];
		d->slope[i] = d->fixed[i] + held - most;
		if (d->slope[i] > 0 || d->price[i] > 0)
			*norm += d->slope[i] * d->slope[i];
	}
	return value;
}

double bound_replay_seconds(const Timeline *t, Arena *scratch, int64_t bytes, double known)
{
	Dual d = { .t = t };
	double best = 0, length = 1;
	int most;

	d.fixed = ARENA_ARRAY(scratch, t->nops, double);
	d.price = ARENA_ARRAY(scratch, t->nops, double);
	d.sum = ARENA_ARRAY(scratch, t->nops + 1, double);
	d.slope = ARENA_ARRAY(scratch, t->nops + 1, double);
	find_gaps(&d, scratch);
	group_gaps(&d, scratch);
	for (int32_t i = 0; i < t->nops; i++)
		if (d.fixed[i] > (double)bytes)
			return INFINITY;
	if (!(known < INFINITY)) {
		known = 0;
		for (int32_t k = 0; k < d.ngroups; k++)
			known += d.seconds[k];
	}
	most = ROUNDS_WORK / (t->nops + d.ngaps + 1);
	for (int round = 0, stale = 0; round < ROUNDS && round <= most && best < known; round++) {
		double norm = 0, value = evaluate(&d, (double)bytes, &norm), step;

		stale = value > best ? 0 : stale + 1;
		best = fmax(best, value);
		if (stale == 10) {
			length /= 2;
			stale = 0;
		}
		if (!(norm > 0))
			break;
		step = length * (1.05 * known - value) / norm;
		for (int32_t i = 0; i < t->nops; i++) {
			double price = d.price[i] + step * d.slope[i];

			d.price[i] = price > 0 ? price : 0;
		}
	}
	return best;
}

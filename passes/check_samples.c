/* Which samples the loops of a function see.
 *
 * A stage is one pass over the batch: a loop, and where the batch does not divide evenly the loops that go on where the
 * one before ended, with its sums. So the samples of a stage follow each other without a gap, from the first to the
 * last of the batch:
 *
 *     s  = loop zero {trips = 3, batch = 16, base = 0}     samples  0..48
 *     s' = loop s    {trips = 1, batch = 12, base = 48}    samples 48..60 of 60, and the sums of the first 48 */
#include "check_parts.h"

#include <inttypes.h>

/* `n` starts with what the loop before it has summed. */
static bool goes_on(const Node *n, const Node *before)
{
	if (n->nargs != before->nres)
		return false;
	for (int i = 0; i < n->nargs; i++)
		if (n->arg[i] != before->res[i])
			return false;
	return true;
}

const char *rule_samples(Arena *a, const Func *f, const Node **at)
{
	const Node *before = NULL; /* of a stage that has not ended */
	int64_t seen = 0;          /* samples of that stage */

	for (const Node *n = f->body->first; n; n = n->next) {
		if (n->op != OP_loop)
			continue;
		*at = n;
		if (ir_int(n, "base") != seen)
			return arena_printf(a, "begins with sample %" PRId64 ", expected %" PRId64, ir_int(n, "base"), seen);
		if (before && !goes_on(n, before))
			return arena_printf(a, "does not start with the sums of node %d", (int)before->pos);
		seen += ir_int(n, "trips") * ir_int(n, "batch");
		if (seen > f->batch)
			return arena_printf(a, "ends with sample %" PRId64 " of a batch of %" PRId64, seen, f->batch);
		before = seen < f->batch ? n : NULL;
		seen = before ? seen : 0;
	}
	*at = before;
	return before ? arena_printf(a, "ends with sample %" PRId64 " of a batch of %" PRId64
	                             ", and nothing goes on with the rest", seen, f->batch)
	              : NULL;
}

/* What the plan checker is made of: a map of who wrote which byte, and the rules for single nodes and for loops. */
#ifndef DLC_PASSES_CHECK_PARTS_H
#define DLC_PASSES_CHECK_PARTS_H

#include "../ir/ir.h"

/* ---- who wrote which byte (check_bytes.c) ---- */

typedef struct ByteMap ByteMap;

/* A map whose ranges begin and end at the given addresses (any order, repeats allowed; the array is sorted in
 * place and kept). Every byte starts with writer 0. */
ByteMap *bytes_map(Arena *a, int64_t *bounds, size_t n);
/* [from,to) now belongs to `writer` (> 0). */
void bytes_write(ByteMap *m, int64_t from, int64_t to, int32_t writer);
/* True where all of [from,to) belongs to `writer`; else *other is the writer of the first byte that does not, and
 * *at its address. */
bool bytes_intact(const ByteMap *m, int64_t from, int64_t to, int32_t writer, int32_t *other, int64_t *at);

/* ---- rules for one node (check_rules.c) ---- */

/* Where a value lies: [from,to), the gaps between the rows of a strided view included. */
typedef struct Range {
	int64_t from, to;
} Range;

Range range_make(int64_t from, int64_t bytes); /* saturates: texts may say anything */
Range range_of(const Value *v);
Range range_of_var(const Var *v);
Range range_of_work(const Node *n);
bool range_overlap(Range a, Range b);

/* Result 0 has no storage of its own; *delta is its distance in bytes from argument 0. */
bool rule_view(const Node *n, int64_t *delta);
/* `stored` (yielded or assigned by the body of kernel `n`; for an op without a body its own result) goes to the
 * bytes of operand `i`. NULL where every element is written only after its last read, else why not. */
const char *rule_inplace(const Node *n, int i, const Value *stored);
/* NULL where `n` repeats n->replay_of exactly, else what differs. */
const char *rule_replay(Arena *a, const Node *n);

/* ---- rules for a function (check_samples.c) ---- */

/* NULL where each pass of loops over the batch sees every sample once, else what is wrong with *at. The loops are sound
 * in themselves, as the verifier has it: no trip lies outside the batch. */
const char *rule_samples(Arena *a, const Func *f, const Node **at);

#endif

/* Equal layers: which buffers are alike, and that the search looks at one for all.
 *
 * A chain of blocks is built: each has four operations with a residual sum, and the backward pass reads what they made. Then one block
 * is made different in one thing at a time. */
#include <math.h>
#include <stdio.h>

#include "../ir/ir.h"
#include "../passes/alike.h"
#include "../passes/machine.h"
#include "../passes/recompute.h"

enum { BLOCKS = 80, OPS = 4, ODD = 40, DEEP = 6 };

typedef enum Oddity { EQUAL, OTHER_SECONDS, OTHER_BYTES, ONE_MORE_READER, ALL_DIFFERENT } Oddity;

typedef struct Test {
	int passed, failed;
	Arena *arena;
	Value *made[BLOCKS][OPS]; /* of the forward pass */
} Test;

static void check(Test *t, bool good, const char *what)
{
	t->passed += good;
	t->failed += !good;
	if (!good)
		printf("FAIL %s\n", what);
}

static Value *add_op(Builder *b, int nargs, Value **arg, double seconds, int64_t bytes)
{
	Attr attr[8];
	Type res = type_make(DT_U8, 1, (int64_t[]){ bytes });

	op_attr_defaults(OP_opaque, attr);
	attr[op_attr_find(OP_opaque, "name", 4)].s = "f";
	attr[op_attr_find(OP_opaque, "seconds", 7)].f = seconds;
	attr[op_attr_find(OP_opaque, "remat", 5)].i = 1;
	return ir_region(b, OP_opaque, nargs, arg, attr, 1, &res)->res[0];
}

static Timeline *build(Test *t, Oddity odd)
{
	static const int64_t bytes[OPS] = { 4096, 8192, 2048, 4096 };
	Module *m = ir_module(t->arena, diag_new(t->arena, stderr, 20), "blocks", 1);
	Func *f = ir_func(m, "step");
	Builder b = ir_builder(m, f->body);
	PassCtx cx = { .arena = t->arena, .machine = machine_builtin(t->arena, "generic-cpu") };
	Value *x = add_op(&b, 0, NULL, 1e-3, 4096), *dy;

	for (int k = 0; k < BLOCKS; k++) {
		Value *in = x;

		for (int i = 0; i < OPS; i++) {
			bool here = k == ODD && i == 1;
			double seconds = 1e-3 * (i + 1) * (here && odd == OTHER_SECONDS ? 2 : 1);
			int64_t size = bytes[i] * (here && odd == OTHER_BYTES ? 2 : 1) + (odd == ALL_DIFFERENT ? 64 * (OPS * k + i) : 0);
			Value *arg[] = { x, in };

			x = t->made[k][i] = add_op(&b, i == OPS - 1 ? 2 : 1, arg, seconds, size);
		}
		if (k == ODD && odd == ONE_MORE_READER)
			ir_output(&b, "more", add_op(&b, 1, (Value *[]){ t->made[k][1] }, 1e-3, 64));
	}
	dy = add_op(&b, 1, &x, 1e-3, 4096);
	for (int k = BLOCKS - 1; k >= 0; k--)
		for (int i = OPS - 1; i >= 0; i--)
			dy = add_op(&b, 2, (Value *[]){ dy, t->made[k][i] }, 1e-3, odd == ALL_DIFFERENT ? 4096 + 64 * (OPS * k + i) : 4096);
	ir_output(&b, "dx", dy);
	return timeline_build(t->arena, f, &cx);
}

static uint64_t class_of(const Test *t, const Timeline *tl, const Alike *a, int block, int i)
{
	return a->buf[tl->buf_of[t->made[block][i]->id]];
}

/* ---- classes ---- */

static void test_equal(Test *t)
{
	const Timeline *tl = build(t, EQUAL);
	const Alike *a = alike_find(tl, t->arena);
	bool same = a != NULL, apart = a != NULL;

	for (int k = DEEP; a && k < BLOCKS - DEEP; k++)
		for (int i = 0; i < OPS; i++) {
			same &= class_of(t, tl, a, k, i) == class_of(t, tl, a, DEEP, i);
			for (int j = 0; j < i; j++)
				apart &= class_of(t, tl, a, k, i) != class_of(t, tl, a, k, j);
		}
	check(t, same, "equal places of equal blocks are alike");
	check(t, apart, "other places are not");
	check(t, a && a->nbufs < tl->nbufs / 4, "there are few classes");
}

/* Blocks far from the odd one are alike, and it is not like them. */
static void test_odd(Test *t, Oddity odd, const char *what)
{
	const Timeline *tl = build(t, odd);
	const Alike *a = alike_find(tl, t->arena);

	check(t, a && class_of(t, tl, a, ODD, 1) != class_of(t, tl, a, DEEP, 1), what);
	check(t, a && class_of(t, tl, a, BLOCKS - DEEP, 1) == class_of(t, tl, a, DEEP, 1), "blocks far from the odd one are alike");
}

static void test_different(Test *t)
{
	check(t, !alike_find(build(t, ALL_DIFFERENT), t->arena), "where all are different there are no classes");
}

/* ---- the search ---- */

/* The plans are what they say, descend, and get far. */
static void check_plans(Test *t, const Trajectory *tr)
{
	bool good = true;

	for (int32_t k = 0; k < tr->n; k++) {
		TPlan p = recompute_plan(tr, k, t->arena);

		timeline_lives(tr->t, t->arena, &p, NULL);
		good &= p.live_bytes == tr->plan[k].live_bytes && fabs(p.seconds - tr->plan[k].seconds) < 1e-9;
		good &= k == 0 || (p.live_bytes < tr->plan[k - 1].live_bytes && p.seconds >= tr->plan[k - 1].seconds);
	}
	check(t, good, "plans are what they say");
	check(t, 3 * tr->plan[tr->n - 1].live_bytes < tr->plan[0].live_bytes, "plans get far");
}

static void test_looks(Test *t)
{
	Trajectory equal = recompute_trajectory(build(t, EQUAL), t->arena, INFINITY, RECOMPUTE_WORK);
	Trajectory different = recompute_trajectory(build(t, ALL_DIFFERENT), t->arena, INFINITY, RECOMPUTE_WORK);

	check(t, equal.spared > equal.looks / 4, "equal blocks share looks");
	check(t, different.spared == 0 && different.looks > 0, "different ones do not");
	check_plans(t, &equal);
	check_plans(t, &different);
	printf("%lld looks, %lld spared\n", (long long)equal.looks, (long long)equal.spared);
}

int main(void)
{
	Test t = { .arena = arena_new() };

	test_equal(&t);
	test_odd(&t, OTHER_SECONDS, "other seconds are another class");
	test_odd(&t, OTHER_BYTES, "other bytes are another class");
	test_odd(&t, ONE_MORE_READER, "one more reader is another class");
	test_different(&t);
	test_looks(&t);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	arena_free(t.arena);
	return t.failed > 0;
}

/* The IR's library against what ir.h promises, where text alone cannot show it: types, the builder's errors, clones
 * under another batch, dead code, views, faults of broken graphs, diagnostics, maps. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ir/base/intern.h"
#include "../ir/base/map.h"
#include "../ir/ir.h"

typedef struct Test {
	Arena *arena;
	Diag *diag;
	FILE *out; /* diagnostics and faults */
	char *said;
	size_t len;
	int passed, failed;
} Test;

static void check(Test *t, bool good, const char *what)
{
	t->passed += good;
	t->failed += !good;
	if (!good)
		printf("FAIL %s\n", what);
}

/* What was said since the last call must be `want`. */
static void said(Test *t, const char *what, const char *want)
{
	fflush(t->out);
	bool same = strcmp(t->said ? t->said : "", want) == 0;
	check(t, same, what);
	if (!same)
		printf("expected:\n%sfound:\n%s", want, t->said);
	rewind(t->out);
	for (size_t i = 0; i < t->len; i++) /* the stream keeps old bytes behind shorter texts */
		fputc('\0', t->out);
	rewind(t->out);
}

static Type type_of(DType d, const char *dims)
{
	Type t = type_scalar(d);
	for (char *end; *dims; dims = *end == ',' ? end + 1 : end) {
		t.dim[t.ndim] = strtoll(dims, &end, 10);
		if (*end == '\'') {
			t.batch = (uint16_t)(t.batch | 1u << t.ndim);
			end++;
		}
		t.ndim++;
	}
	return t;
}

static Type f32(const char *dims)
{
	return type_of(DT_F32, dims);
}

static Module *read(Test *t, const char *body)
{
	const char *text = arena_printf(t->arena, "module \"t\" batch 4 {\n  var \"w\" : f32[8] param init const(0)\n"
						  "  func @step batch 4 {\n%s  }\n}\n", body);
	Module *m = ir_parse(t->arena, t->diag, "t.ir", text, strlen(text));
	if (!m) {
		fflush(t->out);
		printf("FAIL the text of a test:\n%s%s", text, t->said);
		exit(1);
	}
	return m;
}

static void prints(Test *t, const char *what, const Func *f, const char *want)
{
	ir_print_func(t->out, f);
	said(t, what, want);
}

/* ---- types ---- */

static void broadcasts(Test *t, const char *a, const char *b, const char *want)
{
	Type x = f32(a), y = f32(b), z;
	bool good = type_broadcast(&x, &y, &z);
	const char *found = good ? type_text(t->arena, &z, true) : "no";
	check(t, strcmp(found, want) == 0, arena_printf(t->arena, "[%s] with [%s]: expected %s, found %s", a, b, want, found));
}

static void test_types(Test *t)
{
	broadcasts(t, "2,3", "3", "f32[2,3]");
	broadcasts(t, "2,1", "1,3", "f32[2,3]");
	broadcasts(t, "2,3", "2", "no");
	broadcasts(t, "", "4',3", "f32[4',3]");
	broadcasts(t, "4',1", "3", "f32[4',3]");
	broadcasts(t, "4',3", "4',3", "f32[4',3]");
	broadcasts(t, "4',3", "1,3", "f32[4',3]");
	broadcasts(t, "4',3", "4,3", "no");
	broadcasts(t, "1',3", "1,3", "f32[1',3]");
	broadcasts(t, "1',3", "5,3", "no");
	broadcasts(t, "1',3", "5',3", "no");
	check(t, dtype_promote(DT_F16, DT_BF16) == DT_F32, "f16 with bf16 is f32");
	check(t, dtype_promote(DT_I64, DT_F16) == DT_F16, "i64 with f16 is f16");
	Type large = f32("2305843009213693951"), larger = f32("2305843009213693952"), none = f32("0");
	check(t, type_check(&large) && !type_check(&larger) && !type_check(&none), "bytes from 1 to 2^63 - 1");
	check(t, dtype_from_name("f3", 2) == DT_NONE && dtype_from_name("bf16", 4) == DT_BF16, "names of dtypes");
}

/* ---- the builder ---- */

static void test_builder(Test *t)
{
	Module *m = ir_module(t->arena, t->diag, "m", 4);
	Func *f = ir_func(m, "step");
	Builder b = ir_builder(m, f->body);
	Value *x = ir_input(&b, "x", f32("4',8")), *y = ir_input(&b, "y", f32("5"));
	Value *bad = ir_binary(&b, OP_add, x, y);
	said(t, "a refused type rule", "dlc: error: add: shapes do not match, f32[4,8] with f32[5]\n");
	check(t, b.failed && bad->type.dtype == DT_NONE, "a refused type rule gives poison");
	Value *poison = ir_unary(&b, OP_neg, ir_binary_c(&b, OP_mul, bad, 2));
	said(t, "poison is silent", "");
	check(t, poison->type.dtype == DT_NONE, "poison spreads");
	Value *huge = ir_const(&b, f32("1"), 0);
	ir_broadcast(&b, huge, f32("4611686018427387904"));
	said(t, "a result too large",
	     "dlc: error: broadcast: f32[4611686018427387904] is not a valid type\n");

	Var *w = ir_var_new(m, "w", f32("8"), VAR_PARAM), *v = ir_var_new(m, "v", f32("8"), VAR_PARAM);
	Value *w1 = ir_var(&b, w), *v1 = ir_var(&b, v);
	check(t, ir_var(&b, w) == w1 && w1 != v1, "one var node serves all readers");
	check(t, f->body->first == w1->def && w1->def->next == v1->def, "var nodes stand at the front");
	check(t, ir_reshape(&b, x, f32("4',8")) == x && ir_cast(&b, x, DT_F32) == x, "nothing is made of nothing");
	check(t, ir_int(ir_matmul(&b, x, x, false, true)->def, "tb") == 1, "attributes by name");
}

static void test_settings(Test *t)
{
	Module *m = ir_module(t->arena, t->diag, "m", 4);
	Section *s = ir_section(m, "train", "", "");
	ir_set(m, s, "steps", A_INT, (Attr){ .i = 10 });
	ir_set(m, s, "steps", A_FLOAT, (Attr){ .f = 2.5 });
	ir_set(m, s, "kind", A_STR, (Attr){ .s = "adam" });
	check(t, ir_section(m, "train", "", "") == s && s->first->next && !s->first->next->next, "settings are replaced");
	check(t, ir_setting_num(s, "steps", 0) > 2.4 && ir_setting_num(NULL, "steps", 7) > 6.9, "numbers and defaults");
	check(t, strcmp(ir_setting_str(s, "kind", ""), "adam") == 0 && !ir_setting_str(s, "steps", NULL), "texts");
}

/* ---- changing graphs ---- */

static void test_clone(Test *t)
{
	Module *m = read(t, "%0 = input {name = \"x\"} : f32[4',8]\n"
			    "%1 = reshape %0 : f32[32']\n"
			    "%2 = fused %0 : f32[8] {\n (%a0 : f32[4',8])\n %b0 = sum %a0 {axes = [0]} : f32[8]\n yield %b0\n}\n"
			    "%3 = replay(%2) fused %0 : f32[8] {\n (%a0 : f32[4',8])\n %b0 = sum %a0 {axes = [0]} : f32[8]\n"
			    " yield %b0\n}\n"
			    "%4 = loop %2 {trips = 2, batch = 2} : f32[8] {\n (%a0 : f32[8])\n %b0 = input {name = \"x\"} : f32[2',8]\n"
			    " %b1 = sum %b0 {axes = [0]} : f32[8]\n %b2 = add %b1, %3 [backward] : f32[8]\n yield %b2\n}\n");
	Func *copy = ir_clone_func(m, m->funcs, "copy", 6);
	prints(t, "a clone for another batch", copy,
	       "func @copy batch 6 {\n"
	       "  %0 = input {name = \"x\"} : f32[6',8]\n"
	       "  %1 = reshape %0 : f32[48']\n"
	       "  %2 = fused %0 : f32[8] {\n    (%a0 : f32[6',8])\n"
	       "    %b0 = sum %a0 {axes = [0], keep = false} : f32[8]\n    yield %b0\n  }\n"
	       "  %3 = replay(%2) fused %0 : f32[8] {\n    (%a0 : f32[6',8])\n"
	       "    %b0 = sum %a0 {axes = [0], keep = false} : f32[8]\n    yield %b0\n  }\n"
	       "  %4 = loop %2 {trips = 2, batch = 3, base = 0} : f32[8] {\n    (%a0 : f32[8])\n"
	       "    %b0 = input {name = \"x\"} : f32[3',8]\n"
	       "    %b1 = sum %b0 {axes = [0], keep = false} : f32[8]\n"
	       "    %b2 = add %b1, %3 [backward] : f32[8]\n    yield %b2\n  }\n}\n");
	check(t, ir_verify(m, "clone", t->out), "a clone is sound");
	check(t, !ir_clone_func(m, m->funcs, "odd", 3) && !ir_find_func(m, "odd"), "3 samples are no 2 trips");
	check(t, !ir_clone_func(m, m->funcs, "large", INT64_MAX / 8), "sizes do not overflow");
}

static void test_dce(Test *t)
{
	Module *m = read(t, "%0 = input {name = \"x\"} : f32[8]\n%1 = neg %0 : f32[8]\n%2 = abs %1 : f32[8]\n"
			    "%3 = replay(%1) neg %0 : f32[8]\n"
			    "%4 = loop %0 {trips = 2} : f32[8] {\n (%a0 : f32[8])\n %b0 = neg %a0 : f32[8]\n"
			    " %b1 = abs %b0 : f32[8]\n yield %b0\n}\n"
			    "loop {trips = 2} {\n ()\n %b0 = abs %0 : f32[8]\n yield\n}\n"
			    "%5 = fused %0 : f32[8] {\n (%a0 : f32[8])\n %b0 = neg %a0 : f32[8]\n %b1 = abs %a0 : f32[8]\n"
			    " yield %b1\n}\n"
			    "%6 = var {name = \"w\"} : f32[8]\nfused %6, %4 {\n (%a0 : f32[8], %a1 : f32[8])\n"
			    " assign %a0, %a1\n yield\n}\n"
			    "%7 = add %3, %5 : f32[8]\noutput %7 {name = \"y\"}\n");
	check(t, ir_dce(m->funcs) == 5, "dead: an operand of a dead op, it, a loop, one in a loop, one in a kernel");
	check(t, ir_dce(m->funcs) == 0, "nothing more is dead");
	check(t, ir_verify(m, "dce", t->out), "what is left is sound");
	prints(t, "without dead code", m->funcs,
	       "func @step batch 4 {\n  %0 = input {name = \"x\"} : f32[8]\n  %1 = neg %0 : f32[8]\n"
	       "  %2 = loop %0 {trips = 2, batch = 1, base = 0} : f32[8] {\n    (%a0 : f32[8])\n    %b0 = neg %a0 : f32[8]\n    yield %b0\n  }\n"
	       "  %3 = fused %0 : f32[8] {\n    (%a0 : f32[8])\n    %b0 = abs %a0 : f32[8]\n    yield %b0\n  }\n"
	       "  %4 = var {name = \"w\"} : f32[8]\n"
	       "  fused %4, %2 {\n    (%a0 : f32[8], %a1 : f32[8])\n    assign %a0, %a1\n    yield\n  }\n"
	       "  %5 = add %1, %3 : f32[8]\n  output %5 {name = \"y\"}\n}\n");
	m = read(t, "%0 = input {name = \"x\"} : f32[8]\n%1 = neg %0 : f32[8]\n%2 = replay(%1) neg %0 : f32[8]\n"
		    "%3 = replay(%1) neg %0 : f32[8]\n%4 = add %2, %3 : f32[8]\noutput %4 {name = \"y\"}\n");
	check(t, ir_dce(m->funcs) == 1, "dead: a node of which there are replays");
	prints(t, "the first replay of a dead node stands for it", m->funcs,
	       "func @step batch 4 {\n  %0 = input {name = \"x\"} : f32[8]\n  %1 = neg %0 : f32[8]\n"
	       "  %2 = replay(%1) neg %0 : f32[8]\n  %3 = add %1, %2 : f32[8]\n  output %3 {name = \"y\"}\n}\n");
}

static void test_views(Test *t)
{
	Module *m = read(t, "%0 = const {value = 0} : f32[1,8,6]\n%1 = slice %0 {axis = 1, start = 2, stop = 5} : f32[1,3,6]\n"
			    "%2 = reshape %1 : f32[3,6]\n%3 = slice %2 {axis = 1, start = 2, stop = 4} : f32[3,2]\n"
			    "%4 = slice %2 {axis = 1, start = 2, stop = 4} : f32[3,2] ld 6\n%5 = reshape %4 : f32[6]\n");
	Node *n = m->funcs->body->first;
	Value *base = n->res[0];
	int64_t bytes;
	check(t, ir_view_root(n->next->next->res[0], &bytes) == base && bytes == 2 * 6 * 4, "a contiguous slice is a view");
	n = n->next->next->next;
	check(t, !ir_is_view(n), "a slice of the last axis is a copy");
	check(t, ir_view_root(n->next->res[0], &bytes) == base && bytes == (2 * 6 + 2) * 4, "with a row stride it is a view");
	check(t, !ir_is_view(n->next->next), "a strided value cannot be reshaped in place");
}

/* ---- faults that no text can hold ---- */

static Node *node_at(const Module *m, int i)
{
	Node *n = m->funcs->body->first;
	while (i-- > 0)
		n = n->next;
	return n;
}

static Module *chain(Test *t)
{
	return read(t, "%0 = input {name = \"x\"} : f32[8]\n%1 = neg %0 : f32[8]\n%2 = abs %1 : f32[8]\n"
		       "output %2 {name = \"y\"}\n");
}

static void faulty(Test *t, const char *what, const Module *m, const char *want)
{
	check(t, !ir_verify(m, "it", t->out), what);
	said(t, what, want);
}

static void test_faults(Test *t)
{
	Module *m = chain(t), *other = chain(t);
	ir_move_before(node_at(m, 2), node_at(m, 1));
	faulty(t, "used before it is defined", m,
	       "dlc: after it: @step: %1 = abs: operand 0, %2, is not defined before its use (t.ir:6)\n");
	m = chain(t);
	node_at(m, 2)->arg[0] = node_at(other, 1)->res[0];
	faulty(t, "of another function", m,
	       "dlc: after it: @step: %2 = abs: operand 0, %?, is not defined before its use (t.ir:6)\n");
	m = chain(t);
	node_at(m, 2)->arg[0] = NULL;
	faulty(t, "no operand", m, "dlc: after it: @step: %2 = abs: operand 0 is missing (t.ir:6)\n");
	m = chain(t);
	node_at(m, 2)->res[0] = node_at(m, 1)->res[0];
	faulty(t, "a result of two nodes", m,
	       "dlc: after it: @step: %2 = abs: result 0 does not know its node (t.ir:6)\n"
	       "dlc: after it: @step: output: operand 0, %?, is not defined before its use (t.ir:7)\n");
	m = chain(t);
	node_at(m, 2)->prev = NULL;
	faulty(t, "a broken link", m, "dlc: after it: @step: %2 = abs: the node's links are broken (t.ir:6)\n");
	m = chain(t);
	node_at(m, 1)->res[0]->type = type_scalar(DT_NONE);
	faulty(t, "poison", m, "dlc: after it: @step: %1 = neg: expected a type of at least one and fewer than 2^63 bytes "
			       "for %1, found none[] (t.ir:5)\n");
	m = chain(t);
	node_at(m, 2)->replay_of = node_at(other, 2);
	faulty(t, "a replay of elsewhere", m,
	       "dlc: after it: @step: %2 = abs: replays a node that does not come before it (t.ir:6)\n");
}

/* ---- the base ---- */

static void test_diag(Test *t)
{
	static const char text[] = "\tx = \xc3\xa4 + \xff;\n\n";
	char wide[400];
	memset(wide, 'a', sizeof wide);
	int s = diag_source(t->diag, "d", text, sizeof text - 1), w = diag_source(t->diag, "w", wide, sizeof wide);
	diag_error(t->diag, (Span){ s, 8, 9 }, "plus");
	said(t, "tabs and UTF-8", "d:1:9: error: plus\n    1 |         x = \xc3\xa4 + ?;\n      |               ^\n");
	diag_note(t->diag, (Span){ s, 1, 14 }, "lines");
	said(t, "several lines", "d:1:2: note: lines\n    1 |         x = \xc3\xa4 + ?;\n      |         ^~~~~~~~~~\n");
	diag_warning(t->diag, (Span){ s, 900, 901 }, "far");
	said(t, "behind the end", "d:3:1: warning: far\n    3 |\n      | ^\n");
	diag_error(t->diag, (Span){ w, 200, 202 }, "wide");
	fflush(t->out);
	check(t, strlen(t->said) < 320 && strstr(t->said, "...aaa") && strstr(t->said, "^~\n"), "a wide line is clipped");
	said(t, "a wide line", arena_strdup(t->arena, t->said));
	Diag *few = diag_new(t->arena, t->out, 1);
	diag_error(few, NO_SPAN, "first");
	diag_hint(few, "of the first");
	diag_error(few, NO_SPAN, "second");
	diag_hint(few, "of the second");
	said(t, "errors over the limit", "dlc: error: first\nhint: of the first\n");
	check(t, diag_errors(few) == 2, "they are counted");
}

static void test_maps(Test *t)
{
	enum { N = 5000 };
	Map m = { .arena = t->arena };
	Intern names = { .arena = t->arena };
	static char key[N];
	bool good = !map_get(&m, key, NULL);
	for (int i = 0; i < N; i++)
		good &= map_set(&m, &key[i], i);
	for (int i = 0; i < N; i++) {
		int64_t v = -1;
		good &= map_get(&m, &key[i], &v) && v == i && !map_set(&m, &key[i], i);
	}
	check(t, good, "a map holds what it was given");
	good = true;
	const char *first[N];
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < N; i++) {
			char name[24];
			int n = snprintf(name, sizeof name, "n%d", i * i);
			const char *one = intern(&names, name, (size_t)n);
			good &= strcmp(one, name) == 0 && (pass == 0 || one == first[i]);
			first[i] = one;
		}
	check(t, good, "equal names are one pointer");
	Arena *a = arena_new();
	for (int round = 0; round < 3; round++, arena_reset(a))
		for (size_t n = 1; n < (size_t)1 << 20; n *= 3) {
			unsigned char *p = arena_alloc(a, n);
			good &= p[0] == 0 && p[n - 1] == 0 && (uintptr_t)p % 16 == 0;
			memset(p, 0xff, n);
		}
	arena_free(a);
	check(t, good, "arenas give zeroed, aligned bytes, also after a reset");
}

int main(void)
{
	Test t = { .arena = arena_new() };
	t.out = open_memstream(&t.said, &t.len);
	if (!t.out)
		return 2;
	t.diag = diag_new(t.arena, t.out, 0);
	check(&t, op_table_check() == NULL, "the op table is complete");
	test_types(&t);
	test_builder(&t);
	test_settings(&t);
	test_clone(&t);
	test_dce(&t);
	test_views(&t);
	test_faults(&t);
	test_diag(&t);
	test_maps(&t);
	fclose(t.out);
	free(t.said);
	arena_free(t.arena);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	return t.failed > 0;
}

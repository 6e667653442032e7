/* The pass driver (pass.h): runs rows of passes.def and holds them to what they claim.
 *
 * A pass runs only where the facts that it needs hold. After it the graph is verified; a fault, a fact that the pass
 * claims to give and the graph denies, or (with verify_each) a changed text under PASS_SAME or a text that does not
 * read back is a bug of ours: the
 * graph goes to dlc-bug-PASS.ir and the program ends with exit code 3. Where a pass gave errors to the user the graph
 * is not looked at: it may hold poisoned values. */
#include "pass.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

const PassInfo pass_table[] = {
#define PASS(NAME, NEEDS, GIVES, DROPS, DOC)                                                       \
	[PASS_ROW_##NAME] = { .name = #NAME, .doc = DOC, .run = pass_##NAME, .needs = (NEEDS), .gives = (GIVES),       \
			      .drops = (DROPS) },
#include "passes.def"
#undef PASS
};
const int pass_count = PASS_ROWS;

static const PassInfo *find_pass(const char *name, size_t len)
{
	for (int i = 0; i < pass_count; i++)
		if (strlen(pass_table[i].name) == len && memcmp(pass_table[i].name, name, len) == 0)
			return &pass_table[i];
	return NULL;
}

PassResult pass_each(Module *m, const PassCtx *cx, bool (*change)(Func *f, const Capabilities *caps))
{
	bool changed = false;

	for (Func *f = m->funcs; f; f = f->next)
		changed |= change(f, cx->caps);
	return changed ? PASS_CHANGED : PASS_SAME;
}

const PassInfo *pass_find(const char *name)
{
	return find_pass(name, strlen(name));
}

/* ---- facts ---- */

static const struct {
	unsigned fact;
	const char *text;
} fact_names[] = {
	{ FACT_EXPANDED, "functions free of macros" },
	{ FACT_BACKWARD, "a backward pass" },
	{ FACT_OPTIMIZER, "updates of the variables" },
	{ FACT_ACCUMULATED, "explicit loops instead of batch_sum" },
	{ FACT_FUSED, "kernels" },
	{ FACT_ORDERED, "an execution order" },
	{ FACT_RECOMPUTED, "a chosen recompute set" },
	{ FACT_INPLACE, "decided views" },
	{ FACT_PLACED, "offsets" },
};

static const char *fact_text(unsigned fact)
{
	for (size_t i = 0; i < sizeof fact_names / sizeof *fact_names; i++)
		if (fact_names[i].fact == fact)
			return fact_names[i].text;
	return "an unknown fact";
}

/* What a walk over a block finds. */
typedef struct Findings {
	bool macro, batch_sum, loose, backward, update, replay, placed;
} Findings;

static void look_at(const Block *b, Findings *found)
{
	for (const Node *n = b->first; n; n = n->next) {
		OpKind kind = ir_ops[n->op].kind;
		found->macro |= kind == K_MACRO;
		found->batch_sum |= n->op == OP_batch_sum;
		found->loose |= (kind == K_EWISE || kind == K_REDUCE) && !(n->nres == 1 && ir_is_view(n));
		found->backward |= (n->flags & NF_BACKWARD) != 0;
		found->update |= n->op == OP_assign || n->op == OP_fused;
		found->replay |= n->replay_of != NULL;
		for (int i = 0; i < n->nres; i++)
			found->placed |= n->res[i]->offset >= 0;
		if (n->op == OP_loop)
			look_at(n->body, found);
	}
}

unsigned pass_facts(const Module *m)
{
	Findings found = { 0 };
	for (const Func *f = m->funcs; f; f = f->next)
		if (strcmp(f->name, "forward") != 0)
			look_at(f->body, &found);
	if (!ir_find_func(m, "step") || found.macro)
		return 0;
	unsigned facts = FACT_EXPANDED;
	facts |= found.backward ? FACT_BACKWARD : 0;
	facts |= found.backward && found.update ? FACT_OPTIMIZER : 0;
	if (found.batch_sum)
		return facts;
	facts |= FACT_ACCUMULATED;
	if (found.loose)
		return facts;
	facts |= FACT_FUSED | FACT_INPLACE | FACT_ORDERED; /* the order of the text is one */
	facts |= found.replay ? FACT_RECOMPUTED : 0;
	return facts | (found.placed ? FACT_PLACED : 0);
}

/* The first pass of the table that gives a fact. */
static const char *giver_of(unsigned fact)
{
	for (int i = 0; i < pass_count; i++)
		if (pass_table[i].gives & fact)
			return pass_table[i].name;
	return "another pass";
}

static bool check_needs(const PassInfo *p, const PassCtx *cx)
{
	unsigned missing = p->needs & ~cx->facts;
	for (unsigned fact = 1; missing; fact <<= 1) {
		if (!(missing & fact))
			continue;
		diag_error(cx->diag, NO_SPAN, "pass '%s' needs %s, which pass '%s' gives", p->name, fact_text(fact),
			   giver_of(fact));
		missing &= ~fact;
	}
	return !(p->needs & ~cx->facts);
}

/* ---- bugs ---- */

static _Noreturn void bug(const PassInfo *p, const Module *m, const char *what)
{
	char path[128];
	snprintf(path, sizeof path, "dlc-bug-%s.ir", p->name);
	fprintf(stderr, "dlc: internal error: pass '%s' %s\n", p->name, what);
	FILE *out = fopen(path, "w");
	if (out)
		ir_print_module(out, m);
	if (out && fclose(out) == 0)
		fprintf(stderr, "dlc: the graph is in %s\n", path);
	else
		fprintf(stderr, "dlc: the graph could not be written to %s\n", path);
	exit(3);
}

static void check_result(const PassInfo *p, const Module *m, const PassCtx *cx)
{
	if (!ir_verify(m, p->name, stderr))
		bug(p, m, "left a graph with faults");
	unsigned visible = FACT_EXPANDED | FACT_ACCUMULATED; /* what the graph shows without doubt */
	unsigned denied = p->gives & visible & ~pass_facts(m);
	if (denied)
		bug(p, m, arena_printf(cx->arena, "claims %s, and the graph has none", fact_text(denied & -denied)));
}

/* ---- dumps ---- */

/* The module's text in memory; to be freed. */
static char *text_of(const Module *m)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	if (out)
		ir_print_module(out, m);
	if (!out || fclose(out) != 0) {
		fprintf(stderr, "dlc: out of memory\n");
		exit(2);
	}
	return text;
}

/* Whether the reader takes a dump back, and printing gives the same bytes. */
static bool reads_back(const char *text)
{
	Arena *a = arena_new();
	const Module *m = ir_parse(a, diag_new(a, stderr, 1), "dump", text, strlen(text));
	char *again = m ? text_of(m) : NULL;
	bool same = again && strcmp(again, text) == 0;
	free(again);
	arena_free(a);
	return same;
}

bool pass_dumps(const PassCtx *cx)
{
	return cx->print_after || cx->print_after_all || cx->print_changed;
}

void pass_dump(const char *name, const Module *m, const PassCtx *cx, bool changed)
{
	bool named = cx->print_after && strcmp(cx->print_after, name) == 0;
	if (!named && !cx->print_after_all && !(cx->print_changed && changed))
		return;
	FILE *out = cx->dump ? cx->dump : stdout;
	if (!named)
		fprintf(out, "// after %s\n", name);
	ir_print_module(out, m);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- running ---- */

static const Node *find_move(const Block *b)
{
	const Node *found = NULL;
	for (const Node *n = b->first; n && !found; n = n->next)
		found = ir_ops[n->op].kind == K_MOVE ? n : n->op == OP_loop ? find_move(n->body) : NULL;
	return found;
}

bool pass_without_moves(const Module *m)
{
	for (const Func *f = m->funcs; f; f = f->next) {
		const Node *n = find_move(f->body);
		if (n) {
			diag_error(m->diag, n->span, "%s: only 'offsets' takes a graph with copies to host memory: the planner makes them last",
				   ir_ops[n->op].name);
			return false;
		}
	}
	return true;
}

PassResult pass_run(const PassInfo *p, Module *m, PassCtx *cx)
{
	if (!check_needs(p, cx) || (p->run != pass_offsets && !pass_without_moves(m)))
		return PASS_FAILED;
	bool compare = cx->print_changed || cx->verify_each;
	char *before = compare ? text_of(m) : NULL;
	int errors = diag_errors(cx->diag);
	double start = now();
	PassResult result = p->run(m, cx);
	cx->pass_seconds[p - pass_table] += now() - start;
	cx->pass_runs[p - pass_table]++;
	if (result == PASS_FAILED || diag_errors(cx->diag) > errors) {
		free(before);
		return PASS_FAILED;
	}
	check_result(p, m, cx);
	cx->facts = (cx->facts & ~p->drops) | p->gives;
	bool changed = result == PASS_CHANGED;
	if (compare) {
		char *after = text_of(m);
		changed = strcmp(before, after) != 0;
		bool good = !cx->verify_each || reads_back(after);
		free(before);
		free(after);
		if (!good)
			bug(p, m, "left a graph whose text does not read back");
		if (cx->verify_each && changed && result == PASS_SAME)
			bug(p, m, "says that it changed nothing, and the graph's text is another");
	}
	pass_dump(p->name, m, cx, changed);
	return result;
}

static PassResult no_such_pass(const PassCtx *cx, const char *name, size_t len)
{
	const char *names = pass_table[0].name;
	for (int i = 1; i < pass_count; i++)
		names = arena_printf(cx->arena, "%s, %s", names, pass_table[i].name);
	diag_error(cx->diag, NO_SPAN, "no pass is named '%.*s'", len > 60 ? 60 : (int)len, name);
	diag_hint(cx->diag, "the passes: %s", names);
	return PASS_FAILED;
}

PassResult pass_run_list(const char *list, Module *m, PassCtx *cx)
{
	PassResult all = PASS_SAME;
	for (const char *at = list; *at;) {
		size_t len = strcspn(at, ",");
		const PassInfo *p = find_pass(at, len);
		if (!p)
			return no_such_pass(cx, at, len);
		PassResult one = pass_run(p, m, cx);
		if (one == PASS_FAILED)
			return one;
		all = one == PASS_CHANGED ? one : all;
		at += len + (at[len] == ',');
	}
	return all;
}

PassResult pass_run_until(const char *stop, Module *m, PassCtx *cx)
{
	const PassInfo *last = stop ? pass_find(stop) : &pass_table[pass_count - 1];
	if (!last)
		return no_such_pass(cx, stop, strlen(stop));
	PassResult all = PASS_SAME;
	for (const PassInfo *p = pass_table; p <= last; p++) {
		PassResult one = pass_run(p, m, cx);
		if (one == PASS_FAILED)
			return one;
		all = one == PASS_CHANGED ? one : all;
	}
	return all;
}

void pass_print_times(FILE *out, const PassCtx *cx)
{
	double all = 0;
	for (int i = 0; i < pass_count; i++)
		all += cx->pass_seconds[i];
	fprintf(out, "pass           runs   seconds   share\n");
	for (int i = 0; i < pass_count; i++)
		if (cx->pass_runs[i])
			fprintf(out, "%-12s %6d %9.4f %6.1f%%\n", pass_table[i].name, cx->pass_runs[i],
				cx->pass_seconds[i], all > 0 ? 100 * cx->pass_seconds[i] / all : 0.0);
	fprintf(out, "%-12s %6s %9.4f\n", "all", "", all);
}

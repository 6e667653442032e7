/* dlc: the command. Options, then one call a stage:
 *
 *     read (model text or IR text) | passes up to `optimizer` | plan under the budget | check | build
 *
 * Exit codes: 0 done, 1 errors in the input or a budget too small, 2 usage or files, 3 a bug of ours. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codegen/backend.h"
#include "frontend/frontend.h"
#include "ir/ir.h"
#include "options.h"
#include "passes/answers.h"
#include "passes/calibrate.h"
#include "passes/check_plan.h"
#include "passes/cost.h"
#include "passes/pack_csv.h"
#include "passes/pass.h"
#include "passes/planner.h"
#include "passes/precision.h"
#include "passes/report.h"

typedef struct Command {
	Arena *arena;
	Diag *diag;
	Options o;
	PassCtx cx;
	const Backend *backend;
	Capabilities caps;
	Module *module;
	bool from_ir; /* the input was IR text */
	PlanSummary summary;
	PlanStudy study; /* where an answer needs it */
	double plan_seconds, compile_seconds;
	const char *launches; /* a JSON object; NULL: not counted */
} Command;

static double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- stages ---- */

/* The whole file; NULL after a message. */
static char *read_file(Arena *a, const char *path, size_t *len)
{
	FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
	VEC(char) text = { 0 };
	char chunk[65536];
	size_t n;

	if (!f) {
		fprintf(stderr, "dlc: %s: %s\n", path, strerror(errno));
		return NULL;
	}
	while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
		for (size_t i = 0; i < n; i++)
			vec_push(a, &text, chunk[i]);
	if (ferror(f)) {
		fprintf(stderr, "dlc: %s: %s\n", path, strerror(errno));
		return NULL;
	}
	if (f != stdin)
		fclose(f);
	*len = text.len;
	vec_push(a, &text, '\0');
	return text.at;
}

/* Reads a profile; false after a message. */
static bool read_machine(Command *c, const char *path, const Machine **m)
{
	size_t len;
	char *text = read_file(c->arena, path, &len);

	return text && (*m = machine_parse(c->arena, path, text, stderr)) != NULL;
}

/* Whether a stored profile of a card is of one that this is compiled for. */
static bool is_of_arch(const Command *c, const Machine *m)
{
	const char *of = m->card ? strrchr(m->card, ' ') : NULL, *arch = of ? backend_arch_for(c->arena, c->backend, of + 1) : NULL;

	return !of || !c->o.arch || (arch && strcmp(arch, c->o.arch) == 0);
}

/* The profile without --machine: what --calibrate has stored for the target, of a card where it is one of --arch; else that of --arch, or
 * generic-cpu. False after a message. */
static bool choose_default_machine(Command *c, const Machine **m)
{
	bool card = c->backend->archs != NULL;
	const char *path = machine_path(c->arena, card), *arch = card ? backend_machine(c->arena, c->backend, c->o.arch) : "generic-cpu";

	*m = NULL;
	if (path && access(path, F_OK) == 0 && !read_machine(c, path, m))
		return false;
	if (!*m || (card && !is_of_arch(c, *m)))
		*m = machine_builtin(c->arena, arch);
	return true;
}

/* --machine: a built-in profile by name, or a file. False after a message. */
static bool choose_machine(Command *c)
{
	const char *told = c->o.machine;
	const Machine *m = told ? machine_builtin(c->arena, told) : NULL;

	if (told && !m && access(told, F_OK) != 0) {
		usage_error("--machine: there is no profile '%s' (a file, or one of: %s)", told, machine_names(c->arena));
		return false;
	}
	if (told && !m && !read_machine(c, told, &m))
		return false;
	if (!told && !choose_default_machine(c, &m))
		return false;
	if (!c->o.quiet && machine_is_card(m) != (c->backend->archs != NULL))
		fprintf(stderr, "dlc: warning: the profile '%s' is of a %s: predicted times are not those of target %s\n", m->name,
		        machine_is_card(m) ? "card" : "processor", c->o.target);
	c->cx.machine = machine_with_threads(c->arena, m, c->o.threads);
	return true;
}

static bool is_ir(const char *path, const char *text)
{
	size_t n = strlen(path);

	while (*text == ' ' || *text == '\n' || *text == '\t' || *text == '/') {
		if (*text == '/')
			text += strcspn(text, "\n");
		else
			text++;
	}
	return (n > 3 && strcmp(path + n - 3, ".ir") == 0) || strncmp(text, "module \"", 8) == 0;
}

static int read_module(Command *c)
{
	size_t len = 0;
	char *text = read_file(c->arena, c->o.input, &len);

	if (!text)
		return EXIT_USAGE;
	c->from_ir = is_ir(c->o.input, text);
	if (c->from_ir) {
		c->module = ir_parse(c->arena, c->diag, c->o.input, text, len);
		if (c->module && !ir_verify(c->module, "reading", stderr))
			return EXIT_INPUT;
		if (c->module)
			c->cx.facts = pass_facts(c->module);
	} else {
		c->module = frontend_read(c->arena, c->diag, c->o.input, text, len, &c->o.front);
	}
	return c->module ? -1 : EXIT_INPUT;
}

static int emit(Command *c)
{
	BuildOptions b = { .model_path = c->o.input, .threads = c->o.threads, .arch = c->o.arch };

	if (strcmp(c->o.emit, "ir") == 0)
		ir_print_module(stdout, c->module);
	for (Func *f = c->module->funcs; f && strcmp(c->o.emit, "dot") == 0; f = f->next)
		ir_print_dot(stdout, f);
	if (strcmp(c->o.emit, "plan") == 0)
		report_plan(stdout, c->arena, c->module);
	if (strcmp(c->o.emit, "launches") == 0 && !c->backend->print_launches(stdout, c->module, c->o.arch))
		return EXIT_INPUT;
	if (strcmp(c->o.emit, c->backend->source) == 0 && !c->backend->emit(stdout, c->module, &b))
		return EXIT_INPUT;
	return fflush(stdout) == 0 ? EXIT_DONE : EXIT_USAGE;
}

/* Sums of sizes are 64-bit numbers: what all values and workspaces together may have, with room for what passes add (copies,
 * replays). */
static const double most_bytes = 36028797018963968.0; /* 2^55 */

typedef struct Total {
	double bytes, largest;
	const Type *type; /* of the largest; NULL: a workspace */
	Span span;
} Total;

static void add_bytes(Total *t, int64_t bytes, const Type *type, Span span)
{
	t->bytes += (double)bytes;
	if ((double)bytes > t->largest) {
		t->largest = (double)bytes;
		t->type = type;
		t->span = span;
	}
}

static void add_block(Total *t, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			add_bytes(t, type_bytes(&n->res[i]->type), &n->res[i]->type, n->span);
		add_bytes(t, n->work_bytes, NULL, n->span);
		if (n->op == OP_opaque)
			add_bytes(t, ir_int(n, "workspace"), NULL, n->span);
		if (n->body)
			add_block(t, n->body);
	}
}

/* False after a message where sizes are beyond any machine's, so that no sum of them can overflow. */
static bool check_sizes(Command *c)
{
	for (const Func *f = c->module->funcs; f; f = f->next) {
		Total t = { .span = NO_SPAN };

		for (const Var *v = c->module->vars; v; v = v->next)
			add_bytes(&t, type_bytes(&v->type), &v->type, v->span);
		add_block(&t, f->body);
		if (t.bytes <= most_bytes)
			continue;
		diag_error(c->diag, t.span, "the values of the model have %.3g bytes, more than 2^55; the largest is %s", t.bytes,
		           t.type ? type_text(c->arena, t.type, false) : "a workspace");
		return false;
	}
	return true;
}

/* Runs passes by hand and prints: --passes, --stop-after. */
static int inspect(Command *c)
{
	PassResult r;

	if (!check_sizes(c))
		return EXIT_INPUT;
	r = c->o.passes ? pass_run_list(c->o.passes, c->module, &c->cx) : pass_run_until(c->o.stop_after, c->module, &c->cx);
	if (c->cx.time_passes)
		pass_print_times(stderr, &c->cx);
	if (r == PASS_FAILED)
		return EXIT_INPUT;
	if (c->o.check_plan && !check_plan(c->module, c->o.plan.budget, stdout))
		return EXIT_INPUT;
	return c->o.emit ? emit(c) : EXIT_DONE;
}

/* The model's name as that of a file in the working folder; IR text may hold any. */
static const char *file_name(const Command *c)
{
	const char *slash = strrchr(c->module->name, '/');

	return slash ? slash + 1 : c->module->name;
}

/* A bug of ours: leaves the graph for the report. */
static int own_bug(Command *c, const char *what)
{
	const char *path = arena_printf(c->arena, "dlc-bug-%s.ir", file_name(c));
	FILE *f = fopen(path, "w");

	fprintf(stderr, "dlc: internal error: %s", what);
	if (f) {
		ir_print_module(f, c->module);
		fclose(f);
		fprintf(stderr, "; the graph is in %s", path);
	}
	fputc('\n', stderr);
	return EXIT_BUG;
}

/* The step, up to where the planner takes over; an exit code, or -1 to go on. */
static int derive(Command *c)
{
	/* A graph that is a step already (recorded elsewhere, or dumped late) is planned as it is. */
	if (ir_find_func(c->module, "forward") && pass_run_until("optimizer", c->module, &c->cx) == PASS_FAILED)
		return EXIT_INPUT;
	if (!check_sizes(c))
		return EXIT_INPUT;
	if (!ir_find_func(c->module, "step")) {
		diag_error(c->diag, NO_SPAN, "the graph has neither a function 'forward' nor 'step' to plan");
		return EXIT_INPUT;
	}
	return -1;
}

/* Answers about what other budgets would give. */
static bool wants_study(const Options *o)
{
	return o->explain || o->page || o->curve;
}

/* Whether anything but --emit asks about a plan. */
static bool wants_plan(const Options *o)
{
	return wants_study(o) || o->min_budget || o->check_plan || o->json || o->svg;
}

static int plan(Command *c)
{
	double start = now_seconds();
	PlannerResult r;
	int code = derive(c);

	if (code >= 0)
		return code;
	r = planner_study(c->module, &c->cx, &c->o.plan, &c->summary, wants_study(&c->o) ? &c->study : NULL);
	c->plan_seconds = now_seconds() - start;
	if (c->cx.time_passes)
		pass_print_times(stderr, &c->cx);
	if (r != PLAN_OK)
		return EXIT_INPUT;
	if (!ir_verify(c->module, "planner", stderr))
		return own_bug(c, "the planned graph is not sound");
	if (!check_plan(c->module, c->o.plan.budget, stderr))
		return own_bug(c, "the plan does not hold");
	return -1;
}

static ReportNames names(const Command *c)
{
	Span at;

	return (ReportNames){ c->o.target, precision_of(c->module, &c->cx, &at), c->cx.machine->name,
		              c->plan_seconds, c->compile_seconds, NULL };
}

static const char *plan_json(Command *c)
{
	ReportNames n = names(c);

	if (c->backend->launches && !c->launches)
		c->launches = c->backend->launches(c->arena, c->module, c->o.arch);
	n.launches = c->launches;
	return report_json(c->arena, c->module, &c->summary, &n);
}

/* Where words go: standard output may be for JSON or a picture alone. */
static FILE *words(const Command *c)
{
	const char *const files[] = { c->o.json, c->o.svg, c->o.page };

	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (files[i] && strcmp(files[i], "-") == 0)
			return stderr;
	return stdout;
}

static const char *trainer_path(const Command *c)
{
	return c->o.output ? c->o.output : file_name(c);
}

static const char *folder_of(Arena *a, const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? arena_strndup(a, path, (size_t)(slash - path) + 1) : ".";
}

/* Whether two names lead to one file; it need not be there yet. */
static bool is_same_file(Arena *a, const char *p, const char *q)
{
	const char *slash_p = strrchr(p, '/'), *slash_q = strrchr(q, '/');
	struct stat s, t;
	bool there = stat(p, &s) == 0, too = stat(q, &t) == 0;

	if (!there && !too)
		return strcmp(slash_p ? slash_p + 1 : p, slash_q ? slash_q + 1 : q) == 0 && stat(folder_of(a, p), &s) == 0 &&
		       stat(folder_of(a, q), &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
	return there && too && S_ISREG(s.st_mode) && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
}

/* Before any work: that a file can be written there. `option` names another. */
static bool check_place(Command *c, const char *path, const char *option)
{
	struct stat there;

	if (!path[0]) {
		usage_error("%s: expected the name of a file, got ''", option);
		return false;
	}
	if (stat(path, &there) == 0 && S_ISDIR(there.st_mode)) {
		fprintf(stderr, "dlc: cannot write '%s': it is a folder (%s names another file)\n", path, option);
		return false;
	}
	if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* a device, a pipe, a link is written to */
		return true;
	if (access(folder_of(c->arena, path), W_OK | X_OK) != 0) {
		fprintf(stderr, "dlc: cannot write '%s': %s\n", path, strerror(errno));
		return false;
	}
	return true;
}

/* That the trainer can be written where it is to go, and is not the model itself. An exit code, or -1 to go on. */
static int check_trainer(Command *c)
{
	const char *path = trainer_path(c);

	if (!check_place(c, path, "-o"))
		return EXIT_USAGE;
	if (is_same_file(c->arena, path, c->o.input)) {
		fprintf(stderr, "dlc: the trainer would replace the model '%s' (-o names another file)\n", path);
		return EXIT_USAGE;
	}
	return -1;
}

/* Before any work: that each file that is to be written has a place, which is neither that of another nor of what is read. An exit code, or -1 to go on. */
static int check_files(Command *c)
{
	const Options *o = &c->o;
	bool builds = !o->no_build && !o->emit && !o->min_budget && !o->curve;
	const struct {
		const char *what, *path;
	} file[] = { { "the trainer", builds ? trainer_path(c) : NULL }, { "--emit", o->emit ? "-" : NULL },
		     { "--json", o->json }, { "--svg", o->svg }, { "--report", o->page } };
	int n = sizeof file / sizeof *file;
	int code = builds ? check_trainer(c) : -1;

	for (int i = 1; i < n && code < 0; i++) {
		bool out = file[i].path && strcmp(file[i].path, "-") == 0;

		if (!file[i].path)
			continue;
		if (!out && !check_place(c, file[i].path, file[i].what))
			return EXIT_USAGE;
		if (!out && is_same_file(c->arena, file[i].path, o->input))
			return usage_error("'%s' would replace the model", file[i].path);
		if (!out && o->machine && is_same_file(c->arena, file[i].path, o->machine))
			return usage_error("'%s' would replace the machine profile", file[i].path);
		for (int k = 0; k < i; k++)
			if (out && k > 0 && file[k].path && strcmp(file[k].path, "-") == 0)
				return usage_error("%s and %s cannot both have standard output", file[k].what, file[i].what);
			else if (!out && file[k].path && is_same_file(c->arena, file[i].path, file[k].path))
				return usage_error("%s and %s cannot both be '%s'", file[k].what, file[i].what, file[i].path);
	}
	return code;
}

/* The plan in a few lines, unless the explanation says the same or standard output is for a file. */
static void write_summary(Command *c)
{
	if (!c->o.quiet && !c->o.explain && words(c) == stdout)
		report_text(stdout, c->arena, c->module, &c->summary);
}

static int build(Command *c)
{
	double start = now_seconds();
	BuildOptions b = { .output = trainer_path(c), .model_path = c->o.input, .arch = c->o.arch,
		           .json = plan_json(c), .fingerprint = report_fingerprint(c->arena, c->module),
		           .budget_bytes = c->o.plan.budget, .micro_batch = c->summary.micro_batch,
		           .threads = c->o.threads, .apart = c->o.calibrate, .cc = c->o.cc, .keep_sources = c->o.keep_sources, .debug = c->o.debug };
	const Section *train = ir_find_section(c->module, "train", "");

	b.seed = c->o.front.seed ? c->o.front.seed : (uint64_t)ir_setting_num(train, "seed", 1);
	if (diag_errors(c->diag) > 0 || !c->backend->build(c->module, &b)) /* what cannot be counted cannot be built */
		return EXIT_USAGE;
	c->compile_seconds = now_seconds() - start;
	write_summary(c);
	if (!c->o.quiet && words(c) == stdout)
		printf("  written: %s, for target %s%s%s in %s\n", b.output, c->o.target, c->o.arch ? " " : "", c->o.arch ? c->o.arch : "",
		       names(c).precision);
	return -1;
}

/* ---- answers ---- */

typedef void (*Writer)(Command *c, FILE *out);

/* A file appears whole or not at all: it is written under another name beside its own. What is there and is no plain
 * file (a device, a pipe, a link) is written to. "-" is standard output. */
static int write_file(Command *c, const char *path, Writer write)
{
	bool plain, good;
	const char *name;
	struct stat st;
	FILE *f;

	if (strcmp(path, "-") == 0) {
		write(c, stdout);
		return -1;
	}
	plain = lstat(path, &st) != 0 || S_ISREG(st.st_mode);
	name = plain ? arena_printf(c->arena, "%s.%ld.tmp", path, (long)getpid()) : path;
	f = fopen(name, "w");
	if (f)
		write(c, f);
	good = f && !ferror(f);
	if (f)
		good = fclose(f) == 0 && good;
	if (good && plain)
		good = rename(name, path) == 0;
	if (good)
		return -1;
	fprintf(stderr, "dlc: %s: %s\n", path, strerror(errno));
	if (f && plain)
		unlink(name);
	return EXIT_USAGE;
}

static void write_plan_json(Command *c, FILE *out)
{
	fprintf(out, "%s\n", plan_json(c));
}

static void write_curve_json(Command *c, FILE *out)
{
	ReportNames n = names(c);

	fprintf(out, "%s\n", report_curve_json(c->arena, c->module, c->study.point, c->study.npoints, &n));
}

/* The table, unless standard output is for the JSON array. */
static int write_curve(Command *c)
{
	int code;

	if (words(c) == stdout)
		curve_table(stdout, c->arena, c->module, c->study.point, c->study.npoints);
	code = c->o.json ? write_file(c, c->o.json, write_curve_json) : -1;
	return code >= 0 ? code : EXIT_DONE;
}

/* --curve alone needs no plan of its own. */
static int curve(Command *c)
{
	double start = now_seconds();
	int code = derive(c);

	if (code >= 0)
		return code;
	if (!planner_curve(c->module, &c->cx, &c->o.plan, &c->study.point, &c->study.npoints))
		return EXIT_INPUT;
	c->plan_seconds = now_seconds() - start;
	return write_curve(c);
}

static void write_svg(Command *c, FILE *out)
{
	View v = view_make(c->arena, c->module, &c->cx);

	picture_svg(out, c->arena, &v, &c->summary, true);
}

static void write_page(Command *c, FILE *out)
{
	View v = view_make(c->arena, c->module, &c->cx);

	page_html(out, c->arena, &v, &c->summary, &c->study);
}

/* What was asked for about a plan; an exit code, or -1 to go on. */
static int write_answers(Command *c)
{
	int code = -1;

	if (c->o.explain) {
		View v = view_make(c->arena, c->module, &c->cx);

		explain_text(words(c), c->arena, &v, &c->summary, &c->study);
	}
	if (c->o.svg)
		code = write_file(c, c->o.svg, write_svg);
	if (code < 0 && c->o.page)
		code = write_file(c, c->o.page, write_page);
	return code;
}

static int compile(Command *c)
{
	bool only_plans = c->o.no_build || c->o.emit;
	int code = check_files(c);

	if (code >= 0)
		return code;
	if (c->o.curve && !c->o.min_budget && !c->o.explain && !c->o.svg && !c->o.page)
		return curve(c);
	code = plan(c);
	if (c->o.min_budget && (code < 0 || c->summary.min_budget_bytes > 0)) { /* also where another budget was refused */
		printf("%lld\n", (long long)c->summary.min_budget_bytes);
		return EXIT_DONE;
	}
	if (code >= 0)
		return code;
	if (c->o.check_plan)
		fputs("the plan holds\n", words(c));
	if (!only_plans && !c->o.curve && (code = build(c)) >= 0)
		return code;
	if (only_plans && !c->o.emit && !c->o.curve)
		write_summary(c);
	if ((code = write_answers(c)) >= 0)
		return code;
	if (c->o.curve)
		return write_curve(c);
	if (c->o.json && (code = write_file(c, c->o.json, write_plan_json)) >= 0)
		return code;
	return c->o.emit ? emit(c) : EXIT_DONE;
}

/* A model of --calibrate: a command of its own, up to the trainer. */
static const Module *build_measured(void *ctx, const CalibrateModel *m)
{
	const Command *of = ctx;
	Command c = { .arena = of->arena, .diag = of->diag, .o = of->o, .cx = of->cx, .backend = of->backend };
	static const char *const unused[] = { "eval", "eval1", "predict", "predict1" };

	c.o.input = "calibrate.dl";
	c.o.output = m->path;
	c.o.quiet = true;
	c.o.front = (FrontOptions){ .defines = m->defines, .ndefines = m->ndefines, .precision = m->precision };
	c.cx.precision = m->precision;
	c.o.plan = (PlannerOptions){ .budget = INT64_MAX, .micro_batch = m->micro_batch, .recompute = true,
		                     .optimizer_in_backward = -1, .allow_microbatch_stats = true, .max_slowdown = 10 };
	c.cx.facts = 0;
	c.module = frontend_read(c.arena, c.diag, c.o.input, m->text, strlen(m->text), &c.o.front);
	if (!c.module || derive(&c) >= 0 ||
	    planner_run(c.module, &c.cx, &c.o.plan, &c.summary) != PLAN_OK)
		return NULL;
	for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
		ir_remove_func(c.module, unused[i]);
	return build(&c) < 0 ? c.module : NULL;
}

static void write_machine(Command *c, FILE *out)
{
	machine_print(out, c->cx.machine);
}

/* Makes the folders above a file. */
static void make_folders(Command *c, const char *path)
{
	for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/'))
		mkdir(arena_strndup(c->arena, path, (size_t)(s - path)), 0777);
}

/* The card that is to be measured, and --arch where it was not given. False after a message. */
static bool find_card(Command *c, CalibrateCard *out)
{
	BackendCard card;

	if (!c->backend->card(&card, c->o.device > 0 ? c->o.device : 0, "--calibrate", c->diag))
		return false;
	if (!c->o.arch && !(c->o.arch = backend_arch_for(c->arena, c->backend, card.arch))) {
		fprintf(stderr, "dlc: --calibrate: %s is of generation %s: dlc compiles for %s\n", card.name, card.arch, c->backend->archs);
		return false;
	}
	*out = (CalibrateCard){ .name = arena_strdup(c->arena, card.name), .arch = arena_strdup(c->arena, card.arch), .arena_bytes = card.arena_bytes,
		                .number = c->o.device > 0 ? c->o.device : 0, .cache_bytes = (double)card.cache_bytes };
	return true;
}

/* That the profile can be stored there. */
static bool prepare_place(Command *c, const char *path)
{
	if (strcmp(path, "-") == 0)
		return true;
	if (path[0])
		make_folders(c, path);
	return check_place(c, path, "--machine-file");
}

/* --calibrate: measures, stores the profile and shows it. */
static int measure_machine(Command *c)
{
	bool on_card = c->backend->card != NULL;
	const char *path = c->o.machine_file ? c->o.machine_file : machine_path(c->arena, on_card);
	CalibrateCard card;
	CalibrateOptions o = { .threads = c->o.threads, .card = on_card ? &card : NULL, .quick = c->o.quick, .quiet = c->o.quiet,
		               .build = build_measured, .ctx = c, .err = stderr };
	int code;

	if (!path)
		return usage_error("--calibrate: neither %s nor HOME says where to store the profile (--machine-file FILE)",
		                   on_card ? "DLC_CARD_PROFILE" : "DLC_PROFILE");
	if ((on_card && !find_card(c, &card)) || !prepare_place(c, path))
		return EXIT_USAGE;
	o.prior = machine_builtin(c->arena, on_card ? backend_machine(c->arena, c->backend, c->o.arch) : "generic-cpu");
	c->cx.machine = machine_with_threads(c->arena, o.prior, c->o.threads);
	c->cx.machine = calibrate(c->arena, &o);
	if (!c->cx.machine)
		return EXIT_USAGE;
	code = write_file(c, path, write_machine);
	if (code >= 0 || strcmp(path, "-") == 0)
		return code >= 0 ? code : EXIT_DONE;
	if (!c->o.quiet) {
		write_machine(c, stdout);
		printf("# stored in %s\n", path);
	}
	return EXIT_DONE;
}

/* --pack: live ranges from a CSV file, placed. */
static int pack(Command *c)
{
	PackRequest q = { .path = c->o.pack, .capacity = c->o.capacity, .seconds = c->o.seconds };

	q.text = read_file(c->arena, q.path, &q.len);
	if (!q.text)
		return EXIT_USAGE;
	return pack_csv(c->arena, c->diag, &q, stdout, stderr) == PACK_DONE ? EXIT_DONE : EXIT_INPUT;
}

/* --mem-budget auto */
static bool choose_budget(Command *c)
{
	BackendCard card;

	if (!c->backend->card) {
		usage_error("--mem-budget auto: plans for the free memory of a card (--target cuda), not of target %s", c->o.target);
		return false;
	}
	if (!c->backend->card(&card, c->o.device > 0 ? c->o.device : 0, "--mem-budget auto", c->diag)) {
		diag_hint(c->diag, "it plans for the memory of a card in this machine; for another one say how much that has, as 80G");
		return false;
	}
	c->o.plan.budget = card.arena_bytes;
	return true;
}

/* What passes know of the command line and of the back end. */
static void set_context(Command *c)
{
	const Options *o = &c->o;
	const Backend *b = c->backend;

	c->caps = (Capabilities){ .threads = o->threads, .tf32 = b->tf32, .strided_attention = b->strided_attention, .offload = b->offload,
		                  .workspace = b->workspace,
		                  .fusable = b->fusable, .accumulates = b->accumulates,
		                  .epilogue = c->o.no_epilogues ? NULL : b->epilogue, .sums_beside_rows = b->sums_beside_rows };
	c->cx.caps = &c->caps;
	c->cx.precision = o->front.precision;
	c->cx.print_after = o->print_after;
	c->cx.print_after_all = o->print_after_all;
	c->cx.print_changed = o->print_changed;
	c->cx.time_passes = o->time_passes;
	c->cx.verify_each = o->verify_each;
}

/* What passes that are run by hand know of the plan. */
static void set_plan(PassCtx *cx, const PlannerOptions *o)
{
	cx->budget = o->budget;
	cx->micro_batch = o->micro_batch;
	cx->chunks = o->chunks;
	cx->recompute = o->recompute;
	cx->allow_microbatch_stats = o->allow_microbatch_stats;
	cx->optimizer_in_backward = o->optimizer_in_backward != 0;
}

static int run(Command *c, int argc, char **argv)
{
	int code = read_options(&c->o, c->arena, argc, argv);

	if (code >= 0)
		return code;
	if (c->o.pack)
		return pack(c);
	c->backend = backend_find(c->o.target);
	set_context(c);
	if (c->o.calibrate)
		return measure_machine(c);
	if (!choose_machine(c) || (c->o.auto_budget && !choose_budget(c)))
		return EXIT_USAGE;
	set_plan(&c->cx, &c->o.plan);
	code = read_module(c);
	if (code >= 0)
		return code;
	if (c->o.passes || c->o.stop_after)
		return inspect(c);
	if (c->from_ir && c->o.emit && c->o.plan.budget == INT64_MAX && !wants_plan(&c->o))
		return emit(c); /* no pass was asked for: IR in, IR out */
	return compile(c);
}

/* A standard stream that is closed would give its number to the next file that is opened. Read only: so that
 * writing to it still fails. */
static bool occupy_standard_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			return false;
	return true;
}

int main(int argc, char **argv)
{
	/* Candidates come and go, each in an arena of a few MiB: its pages stay ours, instead of being taken and cleared anew. */
	mallopt(M_MMAP_THRESHOLD, 32 << 20); /* the most that glibc takes */
	mallopt(M_TRIM_THRESHOLD, 512 << 20);
	Command c = { .arena = arena_new() };
	const char *bad = op_table_check();
	int code;

	if (!occupy_standard_streams())
		return EXIT_USAGE;
	if (bad) {
		fprintf(stderr, "dlc: internal error: op table: %s\n", bad);
		return EXIT_BUG;
	}
	c.diag = diag_new(c.arena, stderr, 20);
	c.cx = (PassCtx){ .arena = c.arena, .diag = c.diag, .dump = stdout };
	code = run(&c, argc, argv);
	if (code == EXIT_DONE && diag_errors(c.diag) > 0)
		code = EXIT_INPUT;
	if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_DONE) {
		fputs("dlc: standard output cannot be written\n", stderr);
		code = EXIT_USAGE;
	}
	arena_free(c.arena);
	return code;
}

/* dlc: the command. Options, then one call a stage:
 *
 *     read (model text or IR text) | passes up to `optimizer` | plan under the budget | check | build
 *
 * Exit codes: 0 done, 1 errors in the input or a budget too small, 2 usage or files, 3 a bug of ours. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "codegen/backend.h"
#include "frontend/frontend.h"
#include "frontend/names.h"
#include "ir/base/size.h"
#include "ir/ir.h"
#include "passes/answers.h"
#include "passes/calibrate.h"
#include "passes/check_plan.h"
#include "passes/chunk.h"
#include "passes/cost.h"
#include "passes/pack_csv.h"
#include "passes/pass.h"
#include "passes/planner.h"
#include "passes/precision.h"
#include "passes/report.h"

enum { EXIT_DONE = 0, EXIT_INPUT = 1, EXIT_USAGE = 2, EXIT_BUG = 3 };

typedef struct Options {
	const char *input, *output, *target, *arch, *json, *emit, *stop_after, *passes, *machine, *cc, *svg, *page, *pack, *machine_file;
	int64_t capacity;     /* of --pack; 0: as low as possible */
	double seconds;
	VEC(const char *) defines;
	FrontOptions front;
	PlannerOptions plan;
	int threads;
	bool auto_budget, calibrate, no_build, min_budget, curve, explain, check_plan, keep_sources, debug, quiet;
} Options;

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

static const char usage_text[] =
	"usage: dlc MODEL.dl [--mem-budget SIZE] [-o FILE] [options]      compiles a trainer that stays inside SIZE bytes\n"
	"       dlc GRAPH.ir [options]                                    the same from IR text ('-': standard input)\n"
	"       dlc --calibrate [--machine-file FILE] [--threads N]       measures this machine; predicted times are then of it\n"
	"       dlc --pack FILE.csv [--capacity SIZE] [--seconds S]       places live ranges (id,lower,upper,size), adds 'offset'\n"
	"\n"
	"plan:     --mem-budget SIZE   bytes that the trainer may hold: 4G, 512M, 1.5GiB, 4GB, 4096 (default: unlimited)\n"
	"                              auto: with --target cuda, what the card in this machine has free\n"
	"          --min-budget        prints the smallest feasible budget in bytes, and stops\n"
	"          --curve             prints the whole trade-off between memory and predicted time, and stops\n"
	"          --explain           says what fills the peak, what is replayed, what more or less memory would change\n"
	"                              (the trainer is built as well, unless there is --no-build)\n"
	"          --micro-batch N     samples of one micro-batch (default: chosen)\n"
	"          --chunks N          parts in which a wide head and its loss are computed (default: chosen; 1: whole)\n"
	"          --no-recompute      no replays    --optimizer-in-backward on|off    --allow-microbatch-stats\n"
	"          --max-slowdown R    no plan slower than R times the unlimited one (default 10)\n"
	"          --machine NAME|FILE profile for predicted times    --threads N (default: all processors)\n"
	"model:    -D NAME=VALUE       overrides a const, train.KEY or DATA.KEY    --precision P    --seed N\n"
	"output:   -o FILE             the trainer (default: the model's name)    --no-build    --keep-sources    --debug\n"
	"          --json FILE         the plan as one JSON object ('-': standard output); with --curve: an array\n"
	"          --svg FILE          memory over time as a picture    --report FILE.html  a page with everything\n"
	"          --quiet\n"
	"          --target cpu|cuda   --arch sm_90 (cuda: or sm_80 sm_86 sm_89 sm_100 sm_120)\n"
	"inspect:  --emit=ir|dot|plan|launches|c|cuda    --stop-after=PASS    --passes=LIST    --check-plan\n"
	"          --print-after=PASS  --print-after-all  --print-changed  --time-passes  --verify-each\n"
	"          --list-passes  --list-ops  --version  --help\n";

static double now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- options ---- */

__attribute__((format(printf, 1, 2))) static int usage_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("dlc: ", stderr);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("\ndlc: see 'dlc --help'\n", stderr);
	return EXIT_USAGE;
}

/* A whole number in [least, most]; false after a message. */
static bool parse_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out)
{
	char *end;

	errno = 0;
	*out = strtoll(text, &end, 10);
	if (errno == 0 && end != text && *end == 0 && *out >= least && *out <= most)
		return true;
	fprintf(stderr, "dlc: --%s: expected a whole number from %lld to %lld, got '%s'\n", option, (long long)least,
	        (long long)most, text);
	return false;
}

static bool parse_budget(const char *text, int64_t *out)
{
	char why[128];

	if (size_parse(text, out, why))
		return true;
	fprintf(stderr, "dlc: --mem-budget: %s\n", why);
	return false;
}

static bool parse_capacity(const char *text, int64_t *out)
{
	char why[128];

	if (size_parse(text, out, why))
		return true;
	fprintf(stderr, "dlc: --capacity: %s\n", why);
	return false;
}

static bool parse_seconds(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && *end == 0 && *out >= 0 && *out <= 1e6)
		return true;
	fprintf(stderr, "dlc: --seconds: expected a number from 0 to 1000000, got '%s'\n", text);
	return false;
}

static bool parse_slowdown(const char *text, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && *end == 0 && *out >= 1 && *out <= 1e6)
		return true;
	fprintf(stderr, "dlc: --max-slowdown: expected a number from 1 to 1000000, got '%s'\n", text);
	return false;
}

static void list_passes(void)
{
	for (int i = 0; i < pass_count; i++)
		printf("%-12s %s\n", pass_table[i].name, pass_table[i].doc);
}

static void list_ops(void)
{
	for (int i = 0; i < OP_COUNT; i++)
		printf("%-18s %s\n", ir_ops[i].name, ir_ops[i].doc);
}

enum {
	O_BUDGET = 256, O_MIN_BUDGET, O_MICRO, O_CHUNKS, O_NO_RECOMPUTE, O_IN_BACKWARD, O_ALLOW_STATS, O_SLOWDOWN, O_MACHINE, O_THREADS,
	O_PRECISION, O_SEED, O_NO_BUILD, O_KEEP, O_DEBUG, O_JSON, O_QUIET, O_EMIT, O_STOP, O_PASSES, O_CHECK, O_PRINT_AFTER,
	O_PRINT_ALL, O_PRINT_CHANGED, O_TIME, O_VERIFY, O_LIST_PASSES, O_LIST_OPS, O_VERSION, O_HELP, O_TARGET, O_ARCH,
	O_CALIBRATE, O_MACHINE_FILE, O_PACK, O_CAPACITY, O_SECONDS,
	O_CURVE, O_EXPLAIN, O_SVG, O_REPORT
};

static const struct option long_options[] = {
	{ "mem-budget", 1, 0, O_BUDGET }, { "min-budget", 0, 0, O_MIN_BUDGET }, { "micro-batch", 1, 0, O_MICRO },
	{ "chunks", 1, 0, O_CHUNKS },
	{ "no-recompute", 0, 0, O_NO_RECOMPUTE }, { "optimizer-in-backward", 1, 0, O_IN_BACKWARD },
	{ "allow-microbatch-stats", 0, 0, O_ALLOW_STATS }, { "max-slowdown", 1, 0, O_SLOWDOWN },
	{ "machine", 1, 0, O_MACHINE }, { "threads", 1, 0, O_THREADS }, { "precision", 1, 0, O_PRECISION },
	{ "seed", 1, 0, O_SEED }, { "no-build", 0, 0, O_NO_BUILD }, { "keep-sources", 0, 0, O_KEEP },
	{ "debug", 0, 0, O_DEBUG }, { "json", 1, 0, O_JSON }, { "quiet", 0, 0, O_QUIET }, { "emit", 1, 0, O_EMIT },
	{ "stop-after", 1, 0, O_STOP }, { "passes", 1, 0, O_PASSES }, { "check-plan", 0, 0, O_CHECK },
	{ "print-after", 1, 0, O_PRINT_AFTER }, { "print-after-all", 0, 0, O_PRINT_ALL },
	{ "print-changed", 0, 0, O_PRINT_CHANGED }, { "time-passes", 0, 0, O_TIME }, { "verify-each", 0, 0, O_VERIFY },
	{ "list-passes", 0, 0, O_LIST_PASSES }, { "list-ops", 0, 0, O_LIST_OPS }, { "version", 0, 0, O_VERSION },
	{ "help", 0, 0, O_HELP }, { "target", 1, 0, O_TARGET }, { "arch", 1, 0, O_ARCH }, { "pack", 1, 0, O_PACK }, { "calibrate", 0, 0, O_CALIBRATE },
	{ "machine-file", 1, 0, O_MACHINE_FILE },
	{ "capacity", 1, 0, O_CAPACITY }, { "seconds", 1, 0, O_SECONDS },
	{ "curve", 0, 0, O_CURVE }, { "explain", 0, 0, O_EXPLAIN }, { "svg", 1, 0, O_SVG }, { "report", 1, 0, O_REPORT },
	{ 0, 0, 0, 0 },
};

/* One option that only prints and ends the program; -1 when it is none. */
static int answer(int opt)
{
	switch (opt) {
	case O_LIST_PASSES:
		list_passes();
		return EXIT_DONE;
	case O_LIST_OPS:
		list_ops();
		return EXIT_DONE;
	case O_VERSION:
		puts("dlc 0.1");
		return EXIT_DONE;
	case O_HELP:
	case 'h':
		fputs(usage_text, stdout);
		return EXIT_DONE;
	default:
		return -1;
	}
}

static bool set_plan_option(Command *c, int opt, const char *arg)
{
	PlannerOptions *p = &c->o.plan;
	int64_t n;

	switch (opt) {
	case O_BUDGET:
		c->o.auto_budget = strcmp(arg, "auto") == 0;
		return c->o.auto_budget || parse_budget(arg, &p->budget);
	case O_MIN_BUDGET: c->o.min_budget = true; return true;
	case O_CURVE: c->o.curve = true; return true;
	case O_EXPLAIN: c->o.explain = true; return true;
	case O_MICRO: return parse_count("micro-batch", arg, 1, INT32_MAX, &p->micro_batch);
	case O_CHUNKS: return parse_count("chunks", arg, 1, CHUNK_MOST, &p->chunks);
	case O_NO_RECOMPUTE: p->recompute = false; return true;
	case O_ALLOW_STATS: p->allow_microbatch_stats = true; return true;
	case O_SLOWDOWN: return parse_slowdown(arg, &p->max_slowdown);
	case O_MACHINE: c->o.machine = arg; return true;
	case O_THREADS:
		if (!parse_count("threads", arg, 1, 1024, &n))
			return false;
		c->o.threads = (int)n;
		return true;
	case O_IN_BACKWARD:
		if (strcmp(arg, "on") != 0 && strcmp(arg, "off") != 0) {
			usage_error("--optimizer-in-backward: expected on or off, got '%s'", arg);
			return false;
		}
		p->optimizer_in_backward = strcmp(arg, "on") == 0;
		return true;
	default: return true;
	}
}

static bool set_option(Command *c, int opt, const char *arg)
{
	Options *o = &c->o;
	int64_t n;

	switch (opt) {
	case 'o': o->output = arg; return true;
	case 'D': vec_push(c->arena, &o->defines, arg); return true;
	case O_TARGET: o->target = arg; return true;
	case O_ARCH: o->arch = arg; return true;
	case O_PACK: o->pack = arg; return true;
	case O_CALIBRATE: o->calibrate = true; return true;
	case O_MACHINE_FILE: o->machine_file = arg; return true;
	case O_CAPACITY: return parse_capacity(arg, &o->capacity);
	case O_SECONDS: return parse_seconds(arg, &o->seconds);
	case O_PRECISION: o->front.precision = c->cx.precision = arg; return true;
	case O_SEED:
		if (!parse_count("seed", arg, 1, INT64_MAX, &n))
			return false;
		o->front.seed = (uint64_t)n;
		return true;
	case O_NO_BUILD: o->no_build = true; return true;
	case O_KEEP: o->keep_sources = true; return true;
	case O_DEBUG: o->debug = true; return true;
	case O_JSON: o->json = arg; return true;
	case O_SVG: o->svg = arg; return true;
	case O_REPORT: o->page = arg; return true;
	case O_QUIET: o->quiet = true; return true;
	case O_EMIT: o->emit = arg; return true;
	case O_STOP: o->stop_after = arg; return true;
	case O_PASSES: o->passes = arg; return true;
	case O_CHECK: o->check_plan = true; return true;
	case O_PRINT_AFTER: c->cx.print_after = arg; return true;
	case O_PRINT_ALL: c->cx.print_after_all = true; return true;
	case O_PRINT_CHANGED: c->cx.print_changed = true; return true;
	case O_TIME: c->cx.time_passes = true; return true;
	case O_VERIFY: c->cx.verify_each = true; return true;
	default: return set_plan_option(c, opt, arg);
	}
}

/* --target, --arch, and what --emit asks of them. */
static int check_target(Command *c)
{
	Options *o = &c->o;
	const Backend *b = backend_find(o->target);

	if (!b)
		return usage_error("--target: '%s' is not built in (%s are)", o->target, backend_names());
	if (o->arch && !b->archs)
		return usage_error("--arch: target %s builds for the machine at hand", o->target);
	if (!o->arch && b->archs)
		o->arch = arena_strndup(c->arena, b->archs, strcspn(b->archs, ","));
	if (o->arch && !backend_machine(c->arena, b, o->arch))
		return usage_error("--arch: expected one of %s, got '%s'", b->archs, o->arch);
	if (o->emit && (strcmp(o->emit, "c") == 0 || strcmp(o->emit, "cuda") == 0) && strcmp(o->emit, b->source) != 0)
		return usage_error("--emit=%s: target %s has --emit=%s", o->emit, o->target, b->source);
	if (o->emit && strcmp(o->emit, "launches") == 0 && !b->print_launches)
		return usage_error("--emit=launches: target %s starts nothing on a device", o->target);
	if (o->calibrate && b->archs)
		return usage_error("--calibrate measures this machine's processor: there are profiles for target %s (--machine)",
		                   o->target);
	return -1;
}

static int check_names(Command *c)
{
	const Options *o = &c->o;

	static const char *const emits[] = { "ir", "dot", "plan", "launches", "c", "cuda" };
	bool known = !o->emit;

	for (size_t i = 0; i < sizeof emits / sizeof *emits && o->emit; i++)
		known |= strcmp(o->emit, emits[i]) == 0;
	if (!known)
		return usage_error("--emit: expected ir, dot, plan, launches, c or cuda, got '%s'", o->emit);
	if (o->stop_after && !pass_find(o->stop_after))
		return usage_error("--stop-after: there is no pass '%s' (--list-passes names them)", o->stop_after);
	if (c->cx.print_after && !pass_find(c->cx.print_after))
		return usage_error("--print-after: there is no pass '%s' (--list-passes names them)", c->cx.print_after);
	return check_target(c);
}

/* An option that getopt_long does not take: unknown, one of several that begin so, or with a value where none is wanted or
 * without one. `given` is the argument, `--NAME` or `--NAME=VALUE` for long ones. */
static int option_error(Command *c, int opt, const char *given)
{
	const char *name = arena_strndup(c->arena, given, strcspn(given, "="));
	Suggest s = suggest_start(name);

	if (optopt != 0 && optopt < 256) /* a short one, perhaps among others; a byte, so perhaps negative */
		name = optopt > ' ' && optopt < 127 ? arena_printf(c->arena, "-%c", optopt)
		                                     : arena_printf(c->arena, "-\\x%02x", (unsigned)optopt & 0xff);
	if (opt == ':')
		return usage_error("'%s' needs a value", name);
	if (optopt >= 256)
		return usage_error("'%s' takes no value", name);
	for (const struct option *o = long_options; o->name && optopt == 0; o++)
		suggest_try(&s, arena_printf(c->arena, "--%s", o->name));
	return s.best ? usage_error("unknown option '%s': did you mean '%s'?", name, s.best)
	              : usage_error("unknown option '%s'", name);
}

/* Fills the options; an exit code, or -1 to go on. */
static int read_options(Command *c, int argc, char **argv)
{
	int opt;

	opterr = 0; /* messages are ours */
	c->o.target = "cpu";
	c->o.seconds = 2;
	c->o.plan = (PlannerOptions){ .budget = INT64_MAX, .recompute = true, .optimizer_in_backward = -1, .max_slowdown = 10 };
	while ((opt = getopt_long(argc, argv, ":o:D:h", long_options, NULL)) != -1) {
		int code = answer(opt);

		if (code >= 0)
			return code;
		if (opt == '?' || opt == ':')
			return option_error(c, opt, argv[optind - 1]);
		if (!set_option(c, opt, optarg))
			return EXIT_USAGE;
	}
	if (c->o.threads == 0)
		c->o.threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (c->o.pack)
		return optind < argc ? usage_error("--pack takes one file: what is '%s'?", argv[optind]) : -1;
	if (c->o.calibrate)
		return optind < argc ? usage_error("--calibrate takes no model: what is '%s'?", argv[optind]) : check_names(c);
	if (optind >= argc)
		return usage_error("expected a model (MODEL.dl) or a graph (GRAPH.ir)");
	if (optind + 1 < argc)
		return usage_error("one model at a time: what is '%s'?", argv[optind + 1]);
	c->o.input = argv[optind];
	c->o.front.defines = c->o.defines.at;
	c->o.front.ndefines = (int)c->o.defines.len;
	return check_names(c);
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

/* --machine: a built-in profile by name, or a file. Without it: that of --arch; else what --calibrate has stored, else
 * generic-cpu. False after a message. */
static bool choose_machine(Command *c)
{
	const char *arch = c->o.arch ? backend_machine(c->arena, c->backend, c->o.arch) : NULL;
	const char *told = c->o.machine ? c->o.machine : arch, *path = told ? told : machine_path(c->arena);
	const Machine *m = told ? machine_builtin(c->arena, told) : NULL;
	char *text;
	size_t len;

	if (!m && path && access(path, F_OK) == 0) {
		text = read_file(c->arena, path, &len);
		if (!text || !(m = machine_parse(c->arena, path, text, stderr)))
			return false;
	} else if (!m && told) {
		usage_error("--machine: there is no profile '%s' (a file, or one of: %s)", told, machine_names(c->arena));
		return false;
	} else if (!m) {
		m = machine_builtin(c->arena, "generic-cpu");
	}
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

/* Runs passes by hand and prints: --passes, --stop-after. */
static int inspect(Command *c)
{
	PassResult r = c->o.passes ? pass_run_list(c->o.passes, c->module, &c->cx) :
	                             pass_run_until(c->o.stop_after, c->module, &c->cx);

	if (c->cx.time_passes)
		pass_print_times(stderr, &c->cx);
	if (r == PASS_FAILED)
		return EXIT_INPUT;
	if (c->o.check_plan && !check_plan(c->module, c->o.plan.budget, stdout))
		return EXIT_INPUT;
	return c->o.emit ? emit(c) : EXIT_DONE;
}

/* A bug of ours: leaves the graph for the report. */
static int own_bug(Command *c, const char *what)
{
	const char *path = arena_printf(c->arena, "dlc-bug-%s.ir", c->module->name);
	FILE *f = fopen(path, "w");

	if (f) {
		ir_print_module(f, c->module);
		fclose(f);
	}
	fprintf(stderr, "dlc: internal error: %s; the graph is in %s\n", what, path);
	return EXIT_BUG;
}

/* Sums of sizes are 64-bit numbers: what all values together may have, with room for what the planner adds (copies,
 * replays, workspaces). */
static const double most_bytes = 36028797018963968.0; /* 2^55 */

typedef struct Total {
	double bytes, largest;
	const Type *type; /* the largest */
	Span span;
} Total;

static void add_bytes(Total *t, const Type *type, Span span)
{
	double bytes = (double)type_bytes(type);

	t->bytes += bytes;
	if (bytes > t->largest) {
		t->largest = bytes;
		t->type = type;
		t->span = span;
	}
}

static void add_block(Total *t, const Block *b)
{
	for (const Node *n = b->first; n; n = n->next) {
		for (int i = 0; i < n->nres; i++)
			add_bytes(t, &n->res[i]->type, n->span);
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
			add_bytes(&t, &v->type, v->span);
		add_block(&t, f->body);
		if (t.bytes <= most_bytes)
			continue;
		diag_error(c->diag, t.span, "the values of the model have %.3g bytes, more than 2^55; the largest is %s", t.bytes,
		           type_text(c->arena, t.type, false));
		return false;
	}
	return true;
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
	return c->o.output ? c->o.output : c->module->name;
}

/* Before any work: that the trainer can be written where it is to go, and is not the model itself. An exit code, or
 * -1 to go on. */
static int check_output(Command *c)
{
	const char *path = trainer_path(c), *slash = strrchr(path, '/');
	const char *folder = slash ? arena_strndup(c->arena, path, (size_t)(slash - path) + 1) : ".";
	struct stat model, there;

	if (!path[0])
		return usage_error("-o: expected the name of a file, got ''");
	if (access(folder, W_OK | X_OK) != 0) {
		fprintf(stderr, "dlc: cannot write '%s': %s\n", path, strerror(errno));
		return EXIT_USAGE;
	}
	if (stat(path, &there) != 0)
		return -1;
	if (S_ISDIR(there.st_mode)) {
		fprintf(stderr, "dlc: cannot write '%s': it is a folder (-o names another file)\n", path);
		return EXIT_USAGE;
	}
	if (stat(c->o.input, &model) == 0 && model.st_dev == there.st_dev && model.st_ino == there.st_ino) {
		fprintf(stderr, "dlc: the trainer would replace the model '%s' (-o names another file)\n", path);
		return EXIT_USAGE;
	}
	return -1;
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
		           .threads = c->o.threads, .cc = c->o.cc, .keep_sources = c->o.keep_sources, .debug = c->o.debug };
	const Section *train = ir_find_section(c->module, "train", "");

	b.seed = c->o.front.seed ? c->o.front.seed : (uint64_t)ir_setting_num(train, "seed", 1);
	if (diag_errors(c->diag) > 0 || !c->backend->build(c->module, &b)) /* what cannot be counted cannot be built */
		return EXIT_USAGE;
	c->compile_seconds = now_seconds() - start;
	write_summary(c);
	if (!c->o.quiet && words(c) == stdout)
		printf("  written: %s\n", b.output);
	return -1;
}

/* ---- answers ---- */

typedef void (*Writer)(Command *c, FILE *out);

/* A file appears whole or not at all: it is written under another name beside its own. What is there and is no plain
 * file (a device, a pipe, a link) is written to. "-" is standard output. */
static int write_file(Command *c, const char *path, Writer write)
{
	bool plain, good;
	struct stat st, model;
	const char *name;
	FILE *f;

	if (strcmp(path, "-") == 0) {
		write(c, stdout);
		return -1;
	}
	if (c->o.input && stat(path, &st) == 0 && stat(c->o.input, &model) == 0 && st.st_dev == model.st_dev &&
	    st.st_ino == model.st_ino)
		return usage_error("'%s' would replace the model", path);
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
	int code = c->o.no_build || c->o.emit || c->o.min_budget || c->o.curve ? -1 : check_output(c);

	if (code >= 0)
		return code;
	if (c->o.curve && !c->o.min_budget && !c->o.explain && !c->o.svg && !c->o.page)
		return curve(c);
	code = plan(c);
	if (c->o.min_budget && c->summary.min_budget_bytes > 0) {
		printf("%lld\n", (long long)c->summary.min_budget_bytes);
		return EXIT_DONE;
	}
	if (code >= 0)
		return code;
	if (c->o.check_plan)
		fputs("the plan holds\n", words(c));
	if (c->o.emit)
		return emit(c);
	if (!c->o.no_build && !c->o.curve && (code = build(c)) >= 0)
		return code;
	if (c->o.no_build && !c->o.curve)
		write_summary(c);
	if ((code = write_answers(c)) >= 0)
		return code;
	if (c->o.curve)
		return write_curve(c);
	if (c->o.json && (code = write_file(c, c->o.json, write_plan_json)) >= 0)
		return code;
	return EXIT_DONE;
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
	c.o.front = (FrontOptions){ .defines = m->defines, .ndefines = m->ndefines };
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

/* --calibrate: measures, stores the profile and shows it. */
static int measure_machine(Command *c)
{
	const char *path = c->o.machine_file ? c->o.machine_file : machine_path(c->arena);
	const Machine *prior = machine_builtin(c->arena, "generic-cpu");
	int code;

	if (!path)
		return usage_error("--calibrate: neither DLC_PROFILE nor HOME says where to store the profile (--machine-file FILE)");
	c->cx.machine = machine_with_threads(c->arena, prior, c->o.threads);
	c->cx.machine = calibrate(c->arena, prior, c->o.threads, build_measured, c, c->o.quiet, stderr);
	if (!c->cx.machine)
		return EXIT_USAGE;
	if (strcmp(path, "-") != 0)
		make_folders(c, path);
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
	if (!c->backend->free_bytes) {
		usage_error("--mem-budget auto: plans for the free memory of a card (--target cuda), not of target %s", c->o.target);
		return false;
	}
	c->o.plan.budget = c->backend->free_bytes(c->diag);
	return c->o.plan.budget >= 0;
}

static int run(Command *c, int argc, char **argv)
{
	int code = read_options(c, argc, argv);

	if (code >= 0)
		return code;
	if (c->o.pack)
		return pack(c);
	c->backend = backend_find(c->o.target);
	c->caps = (Capabilities){ .threads = c->o.threads, .strided_attention = c->backend->strided_attention,
		                  .workspace = c->backend->workspace, .fusable = c->backend->fusable,
		                  .accumulates = c->backend->accumulates };
	c->cx.caps = &c->caps;
	if (c->o.calibrate)
		return measure_machine(c);
	if (!choose_machine(c) || (c->o.auto_budget && !choose_budget(c)))
		return EXIT_USAGE;
	c->cx.micro_batch = c->o.plan.micro_batch;
	c->cx.chunks = c->o.plan.chunks;
	c->cx.allow_microbatch_stats = c->o.plan.allow_microbatch_stats;
	c->cx.optimizer_in_backward = c->o.plan.optimizer_in_backward != 0;
	c->cx.recompute = c->o.plan.recompute;
	c->cx.budget = c->o.plan.budget;
	code = read_module(c);
	if (code >= 0)
		return code;
	if (c->o.passes || c->o.stop_after)
		return inspect(c);
	if (c->from_ir && c->o.emit && c->o.plan.budget == INT64_MAX)
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

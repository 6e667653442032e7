/* The command line (see options.h): one table of names, one switch of what each sets. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "codegen/backend.h"
#include "frontend/names.h"
#include "ir/base/size.h"
#include "passes/chunk.h"
#include "passes/pass.h"

static const char usage_text[] =
	"usage: dlc MODEL.dl [--mem-budget SIZE] [-o FILE] [options]      compiles a trainer that stays inside SIZE bytes\n"
	"       dlc GRAPH.ir [options]                                    the same from IR text ('-': standard input)\n"
	"       dlc --calibrate [--machine-file FILE] [--threads N]       measures this machine; predicted times are then of it\n"
	"       dlc --calibrate --target cuda [--device N] [--quick]      measures its NVIDIA card, and the link to host memory\n"
	"       dlc --pack FILE.csv [--capacity SIZE] [--seconds S]       places live ranges (id,lower,upper,size), adds 'offset'\n"
	"\n"
	"plan:     --mem-budget SIZE   of the arena, where all of training lies: 4G, 512M, 1.5GiB, 4GB, 4096 (default: unlimited)\n"
	"                              auto: with --target cuda, what the card in this machine has free\n"
	"          --min-budget        prints the smallest feasible budget in bytes, and stops\n"
	"          --curve             prints the whole trade-off between memory and predicted time, and stops\n"
	"          --explain           says what fills the peak, what is replayed, what more or less memory would change\n"
	"                              (the trainer is built as well, unless there is --no-build)\n"
	"          --micro-batch N     samples of one micro-batch (default: chosen)\n"
	"          --chunks N          parts in which a wide head and its loss are computed (default: chosen; 1: whole)\n"
	"          --no-recompute      no replays    --no-epilogues    --optimizer-in-backward on|off    --allow-microbatch-stats\n"
	"          --no-offload        nothing waits in host memory (CUDA)    --host-mem BYTES    at most so many bytes of it\n"
	"          --max-slowdown R    no plan slower than R times the unlimited one (default 10)\n"
	"          --machine NAME|FILE profile for predicted times    --threads N (default: all processors)\n"
	"model:    -D NAME=VALUE       overrides a const, train.KEY or DATA.KEY    --precision P    --seed N\n"
	"output:   -o FILE             the trainer (default: the model's name)    --no-build    --keep-sources    --debug\n"
	"          --json FILE         the plan as one JSON object ('-': standard output); with --curve: an array\n"
	"          --svg FILE          memory over time as a picture    --report FILE.html  a page with everything\n"
	"          --quiet\n"
	"          --target cpu|cuda   --arch sm_90 (cuda: or sm_80 sm_86 sm_89 sm_100 sm_120)\n"
	"          --device N          the card that --mem-budget auto and --calibrate ask, counted from 0 (cuda)\n"
	"inspect:  --emit=ir|dot|plan|launches|c|cuda    --stop-after=PASS    --passes=LIST    --check-plan\n"
	"          --print-after=PASS  --print-after-all  --print-changed  --time-passes  --verify-each\n"
	"          --list-passes  --list-ops  --version  --help\n";

int usage_error(const char *fmt, ...)
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

/* A number of bytes, such as 4G; false after a message. */
static bool parse_bytes(const char *option, const char *text, int64_t *out)
{
	char why[128];

	if (size_parse(text, out, why))
		return true;
	fprintf(stderr, "dlc: --%s: %s\n", option, why);
	return false;
}

/* A number in [least, 1e6]; false after a message. */
static bool parse_number(const char *option, const char *text, double least, double *out)
{
	char *end;

	*out = strtod(text, &end);
	if (end != text && *end == 0 && *out >= least && *out <= 1e6)
		return true;
	fprintf(stderr, "dlc: --%s: expected a number from %g to 1000000, got '%s'\n", option, least, text);
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
	O_BUDGET = 256, O_MIN_BUDGET, O_MICRO, O_CHUNKS, O_NO_RECOMPUTE, O_NO_EPILOGUES, O_NO_OFFLOAD, O_HOST_MEM, O_IN_BACKWARD, O_ALLOW_STATS, O_SLOWDOWN, O_MACHINE, O_THREADS,
	O_PRECISION, O_SEED, O_NO_BUILD, O_KEEP, O_DEBUG, O_JSON, O_QUIET, O_EMIT, O_STOP, O_PASSES, O_CHECK, O_PRINT_AFTER,
	O_PRINT_ALL, O_PRINT_CHANGED, O_TIME, O_VERIFY, O_LIST_PASSES, O_LIST_OPS, O_VERSION, O_HELP, O_TARGET, O_ARCH,
	O_CALIBRATE, O_MACHINE_FILE, O_DEVICE, O_QUICK, O_PACK, O_CAPACITY, O_SECONDS,
	O_CURVE, O_EXPLAIN, O_SVG, O_REPORT
};

static const struct option long_options[] = {
	{ "mem-budget", 1, 0, O_BUDGET }, { "min-budget", 0, 0, O_MIN_BUDGET }, { "micro-batch", 1, 0, O_MICRO },
	{ "chunks", 1, 0, O_CHUNKS },
	{ "no-recompute", 0, 0, O_NO_RECOMPUTE }, { "no-epilogues", 0, 0, O_NO_EPILOGUES }, { "no-offload", 0, 0, O_NO_OFFLOAD },
	{ "host-mem", 1, 0, O_HOST_MEM }, { "optimizer-in-backward", 1, 0, O_IN_BACKWARD },
	{ "allow-microbatch-stats", 0, 0, O_ALLOW_STATS }, { "max-slowdown", 1, 0, O_SLOWDOWN },
	{ "machine", 1, 0, O_MACHINE }, { "threads", 1, 0, O_THREADS }, { "precision", 1, 0, O_PRECISION },
	{ "seed", 1, 0, O_SEED }, { "no-build", 0, 0, O_NO_BUILD }, { "keep-sources", 0, 0, O_KEEP },
	{ "debug", 0, 0, O_DEBUG }, { "json", 1, 0, O_JSON }, { "quiet", 0, 0, O_QUIET }, { "emit", 1, 0, O_EMIT },
	{ "stop-after", 1, 0, O_STOP }, { "passes", 1, 0, O_PASSES }, { "check-plan", 0, 0, O_CHECK },
	{ "print-after", 1, 0, O_PRINT_AFTER }, { "print-after-all", 0, 0, O_PRINT_ALL },
	{ "print-changed", 0, 0, O_PRINT_CHANGED }, { "time-passes", 0, 0, O_TIME }, { "verify-each", 0, 0, O_VERIFY },
	{ "list-passes", 0, 0, O_LIST_PASSES }, { "list-ops", 0, 0, O_LIST_OPS }, { "version", 0, 0, O_VERSION },
	{ "help", 0, 0, O_HELP }, { "target", 1, 0, O_TARGET }, { "arch", 1, 0, O_ARCH }, { "pack", 1, 0, O_PACK }, { "calibrate", 0, 0, O_CALIBRATE },
	{ "machine-file", 1, 0, O_MACHINE_FILE }, { "device", 1, 0, O_DEVICE }, { "quick", 0, 0, O_QUICK },
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

static bool set_plan_option(Options *o, int opt, const char *arg)
{
	PlannerOptions *p = &o->plan;
	int64_t n;

	switch (opt) {
	case O_BUDGET:
		o->auto_budget = strcmp(arg, "auto") == 0;
		return o->auto_budget || parse_bytes("mem-budget", arg, &p->budget);
	case O_MIN_BUDGET: o->min_budget = true; return true;
	case O_CURVE: o->curve = true; return true;
	case O_EXPLAIN: o->explain = true; return true;
	case O_MICRO: return parse_count("micro-batch", arg, 1, INT32_MAX, &p->micro_batch);
	case O_CHUNKS: return parse_count("chunks", arg, 1, CHUNK_MOST, &p->chunks);
	case O_NO_RECOMPUTE: p->recompute = false; return true;
	case O_NO_EPILOGUES: o->no_epilogues = true; return true;
	case O_NO_OFFLOAD: p->offload = false; return true;
	case O_HOST_MEM: return parse_bytes("host-mem", arg, &p->host_bytes);
	case O_ALLOW_STATS: p->allow_microbatch_stats = true; return true;
	case O_SLOWDOWN: return parse_number("max-slowdown", arg, 1, &p->max_slowdown);
	case O_MACHINE: o->machine = arg; return true;
	case O_THREADS:
		if (!parse_count("threads", arg, 1, 1024, &n))
			return false;
		o->threads = (int)n;
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

static bool set_option(Options *o, int opt, const char *arg)
{
	int64_t n;

	switch (opt) {
	case 'o': o->output = arg; return true;
	case 'D': vec_push(o->arena, &o->defines, arg); return true;
	case O_TARGET: o->target = arg; return true;
	case O_ARCH: o->arch = arg; return true;
	case O_PACK: o->pack = arg; return true;
	case O_CALIBRATE: o->calibrate = true; return true;
	case O_QUICK: o->quick = true; return true;
	case O_DEVICE:
		if (!parse_count("device", arg, 0, 1023, &n))
			return false;
		o->device = (int)n;
		return true;
	case O_MACHINE_FILE: o->machine_file = arg; return true;
	case O_CAPACITY: return parse_bytes("capacity", arg, &o->capacity);
	case O_SECONDS: return parse_number("seconds", arg, 0, &o->seconds);
	case O_PRECISION: o->front.precision = arg; return true;
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
	case O_PRINT_AFTER: o->print_after = arg; return true;
	case O_PRINT_ALL: o->print_after_all = true; return true;
	case O_PRINT_CHANGED: o->print_changed = true; return true;
	case O_TIME: o->time_passes = true; return true;
	case O_VERIFY: o->verify_each = true; return true;
	default: return set_plan_option(o, opt, arg);
	}
}

/* --target, --arch, and what --emit asks of them. */
static int check_target(Options *o)
{
	const Backend *b = backend_find(o->target);

	if (!b)
		return usage_error("--target: '%s' is not built in (%s are)", o->target, backend_names());
	if (o->arch && !b->archs)
		return usage_error("--arch: target %s builds for the machine at hand", o->target);
	if (!o->arch && b->archs && !o->calibrate) /* else it is the card's */
		o->arch = arena_strndup(o->arena, b->archs, strcspn(b->archs, ","));
	if (o->arch && !backend_machine(o->arena, b, o->arch))
		return usage_error("--arch: expected one of %s, got '%s'", b->archs, o->arch);
	if (o->emit && (strcmp(o->emit, "c") == 0 || strcmp(o->emit, "cuda") == 0) && strcmp(o->emit, b->source) != 0)
		return usage_error("--emit=%s: target %s has --emit=%s", o->emit, o->target, b->source);
	if (o->emit && strcmp(o->emit, "launches") == 0 && !b->print_launches)
		return usage_error("--emit=launches: target %s starts nothing on a device", o->target);
	if (o->device >= 0 && (!b->card || !(o->calibrate || o->auto_budget)))
		return usage_error("--device: the card that --mem-budget auto or --calibrate asks, of --target cuda; a trainer has a --device of its own");
	return -1;
}

static int check_names(Options *o)
{
	static const char *const emits[] = { "ir", "dot", "plan", "launches", "c", "cuda" };
	bool known = !o->emit;

	for (size_t i = 0; i < sizeof emits / sizeof *emits && o->emit; i++)
		known |= strcmp(o->emit, emits[i]) == 0;
	if (!known)
		return usage_error("--emit: expected ir, dot, plan, launches, c or cuda, got '%s'", o->emit);
	if (o->stop_after && !pass_find(o->stop_after))
		return usage_error("--stop-after: there is no pass '%s' (--list-passes names them)", o->stop_after);
	if (o->print_after && !pass_find(o->print_after))
		return usage_error("--print-after: there is no pass '%s' (--list-passes names them)", o->print_after);
	return check_target(o);
}

/* What is asked for is done or refused: no files of plans where none is made, no limits that nothing looks at. */
static int check_uses(const Options *o)
{
	const char *alone = o->min_budget ? "--min-budget" : o->passes ? "--passes" : o->stop_after ? "--stop-after" : o->pack ? "--pack" : o->calibrate ? "--calibrate" : NULL;
	const char *file = o->json ? "--json" : o->svg ? "--svg" : o->page ? "--report" : NULL;

	if (alone && file)
		return usage_error("%s: with %s there is nothing to write", file, alone);
	if (o->curve && o->emit)
		return usage_error("--emit: with --curve there is no plan to print");
	if (o->pack && o->plan.budget != INT64_MAX)
		return usage_error("--mem-budget: what --pack places has a --capacity");
	if (o->quick && !o->calibrate)
		return usage_error("--quick: of --calibrate alone");
	if (!o->pack && o->capacity > 0)
		return usage_error("--capacity: of --pack alone; a plan has a --mem-budget");
	if (!o->pack && o->seconds >= 0)
		return usage_error("--seconds: of --pack alone; the search for a plan is limited by its work");
	return -1;
}

/* An option that getopt_long does not take: unknown, one of several that begin so, or with a value where none is wanted or
 * without one. `given` is the argument, `--NAME` or `--NAME=VALUE` for long ones. */
static int option_error(Options *o, int opt, const char *given)
{
	const char *name = arena_strndup(o->arena, given, strcspn(given, "="));
	Suggest s = suggest_start(name);

	if (optopt != 0 && optopt < 256) /* a short one, perhaps among others; a byte, so perhaps negative */
		name = optopt > ' ' && optopt < 127 ? arena_printf(o->arena, "-%c", optopt)
		                                     : arena_printf(o->arena, "-\\x%02x", (unsigned)optopt & 0xff);
	if (opt == ':')
		return usage_error("'%s' needs a value", name);
	if (optopt >= 256)
		return usage_error("'%s' takes no value", name);
	for (const struct option *known = long_options; known->name && optopt == 0; known++)
		suggest_try(&s, arena_printf(o->arena, "--%s", known->name));
	return s.best ? usage_error("unknown option '%s': did you mean '%s'?", name, s.best)
	              : usage_error("unknown option '%s'", name);
}

enum { PACK_SECONDS = 2 }; /* unless --seconds says more */

int read_options(Options *o, Arena *a, int argc, char **argv)
{
	int opt;

	opterr = 0; /* messages are ours */
	*o = (Options){ .arena = a, .target = "cpu", .seconds = -1, .device = -1 };
	o->plan = (PlannerOptions){ .budget = INT64_MAX, .recompute = true, .offload = true, .host_bytes = INT64_MAX,
	                            .optimizer_in_backward = -1, .max_slowdown = 10 };
	while ((opt = getopt_long(argc, argv, ":o:D:h", long_options, NULL)) != -1) {
		int code = answer(opt);

		if (code >= 0)
			return code;
		if (opt == '?' || opt == ':')
			return option_error(o, opt, argv[optind - 1]);
		if (!set_option(o, opt, optarg))
			return EXIT_USAGE;
	}
	if (o->threads == 0)
		o->threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
	if (check_uses(o) >= 0)
		return EXIT_USAGE;
	if (o->seconds < 0)
		o->seconds = PACK_SECONDS;
	if (o->pack)
		return optind < argc ? usage_error("--pack takes one file: what is '%s'?", argv[optind]) : -1;
	if (o->calibrate)
		return optind < argc ? usage_error("--calibrate takes no model: what is '%s'?", argv[optind]) : check_names(o);
	if (optind >= argc)
		return usage_error("expected a model (MODEL.dl) or a graph (GRAPH.ir)");
	if (optind + 1 < argc)
		return usage_error("one model at a time: what is '%s'?", argv[optind + 1]);
	o->input = argv[optind];
	o->front.defines = o->defines.at;
	o->front.ndefines = (int)o->defines.len;
	return check_names(o);
}

/* The command line of a trainer: which command, which options, and the exit code. */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRAIN = 1, EVAL = 2, PREDICT = 4, INFO = 8, BENCH = 16, SAMPLE = 32, PROFILE = 64, EXPORT = 128, ALL = 255,
       ONLY_CPU = 256, ONLY_CUDA = 512 };

typedef struct Command {
	const char *name;
	int bit;
	int (*run)(const Plan *plan, const Options *o);
	const char *doc;
} Command;

static const Command commands[] = {
	{ "train", TRAIN, command_train, "train, showing progress; saves on Ctrl-C" },
	{ "eval", EVAL, command_eval, "loss and accuracy over the test split" },
	{ "predict", PREDICT, command_predict, "predictions of the test split as a .npy or .csv file" },
	{ "sample", SAMPLE, command_sample, "continues a text, for models of text" },
	{ "export", EXPORT, command_export, "weights for other tools as a safetensors file" },
	{ "info", INFO, command_info, "the plan, the parameters and the data declared" },
	{ "bench", BENCH, command_bench, "step times, on zeros where there are no data files" },
	{ "profile", PROFILE, command_profile, "where the time of a step goes, beside what was predicted" },
};

typedef enum ArgKind { ARG_NONE, ARG_COUNT, ARG_NUMBER, ARG_SEED, ARG_TEXT, ARG_DATA } ArgKind;

typedef struct OptionRow {
	const char *name, *value;
	int commands;
	ArgKind kind;
	size_t field;
	int64_t least;
	const char *doc;
} OptionRow;

#define FIELD(NAME) offsetof(Options, NAME)

static const OptionRow rows[] = {
	{ "--steps", "N", TRAIN | BENCH | PROFILE, ARG_COUNT, FIELD(steps), 0,
	  "optimizer steps in all, also after --resume" },
	{ "--data", "NAME=PATH", TRAIN | EVAL | PREDICT | BENCH | PROFILE, ARG_DATA, 0, 0,
	  "file or folder of a data set; NAME.KEY=VALUE another setting (test_x, validation, ...)" },
	{ "--init", "FILE", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT, ARG_TEXT, FIELD(init), 0,
	  "start from the weights of a safetensors file" },
	{ "--init-map", "FILE", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT, ARG_TEXT,
	  FIELD(init_map), 0, "names that --init's tensors have in the model: lines FROM -> TO" },
	{ "--init-partial", NULL, TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT, ARG_NONE,
	  FIELD(init_partial), 0, "take what fits of --init's file" },
	{ "--init-adapters", "FILE", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT, ARG_TEXT,
	  FIELD(init_adapters), 0, "adapters for the weights of --init, from a file of their own" },
	{ "--resume", "PATH", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT, ARG_TEXT, FIELD(resume), 0,
	  "continue from a checkpoint, or a folder's last one" },
	{ "--out", "DIR", TRAIN, ARG_TEXT, FIELD(out), 0, "where checkpoints go (the folder of --resume, else TRAINER.run)" },
	{ "--eval-every", "N", TRAIN, ARG_COUNT, FIELD(eval_every), 0, "evaluate every N steps" },
	{ "--save-every", "N", TRAIN, ARG_COUNT, FIELD(save_every), 0,
	  "save every N steps, as step-N.safetensors too" },
	{ "--keep", "N", TRAIN, ARG_COUNT, FIELD(keep), 1,
	  "keep the N newest of those, remove older ones" },
	{ "--save-best", NULL, TRAIN, ARG_NONE, FIELD(save_best), 0,
	  "keep the state of the lowest test loss as best.safetensors" },
	{ "--early-stop", "N", TRAIN, ARG_COUNT, FIELD(early_stop), 1,
	  "end after N evaluations without a lower test loss; --save-best with it" },
	{ "--tensorboard", "DIR", TRAIN, ARG_TEXT, FIELD(tensorboard), 0,
	  "write a TensorBoard event file into the folder" },
	{ "--trace", "FILE", PROFILE, ARG_TEXT, FIELD(trace), 0,
	  "write when each kernel of one step ran, as a Chrome trace (JSON)" },
	{ "--links", NULL, PROFILE | ONLY_CUDA, ARG_NONE, FIELD(links), 0,
	  "time copies between the card's memory and the host's instead" },
	{ "--metrics", "FILE", TRAIN, ARG_TEXT, FIELD(metrics), 0, "append a JSON line a step" },
	{ "--output", "FILE", PREDICT, ARG_TEXT, FIELD(output), 0, "where the predictions go: .npy, or .csv with a row for each sample" },
	{ "--output", "FILE", EXPORT, ARG_TEXT, FIELD(output), 0, "where the weights go: .safetensors" },
	{ "--merge", NULL, EXPORT, ARG_NONE, FIELD(merge), 0, "adapters are added to their weights" },
	{ "--adapters", NULL, EXPORT, ARG_NONE, FIELD(adapters), 0, "the adapters alone" },
	{ "--split", "NAME", EVAL | PREDICT, ARG_TEXT, FIELD(split), 0, "train or test" },
	{ "--prompt", "TEXT", SAMPLE, ARG_TEXT, FIELD(prompt), 0,
	  "the text to continue; for a model of tokens, their numbers" },
	{ "--length", "N", SAMPLE, ARG_COUNT, FIELD(length), 0, "tokens to write (200)" },
	{ "--temperature", "X", SAMPLE, ARG_NUMBER, FIELD(temperature), 0,
	  "logits are divided by it (1); 0: always the likeliest token" },
	{ "--top-k", "N", SAMPLE, ARG_COUNT, FIELD(top_k), 1, "draw from the N likeliest tokens" },
	{ "--threads", "N", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | ONLY_CPU, ARG_COUNT, FIELD(threads), 1,
	  "threads, at most what the plan allows (OMP_NUM_THREADS)" },
	{ "--device", "N", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE | EXPORT | ONLY_CUDA, ARG_COUNT,
	  FIELD(device), 0, "which card, counted from 0 (0)" },
	{ "--seed", "N", TRAIN | EVAL | PREDICT | SAMPLE | BENCH | PROFILE, ARG_SEED, FIELD(seed), 0,
	  "seed of initial values, order, dropout and samples" },
	{ "--no-shuffle", NULL, TRAIN | BENCH | PROFILE, ARG_NONE, FIELD(no_shuffle), 0,
	  "samples in the order of the files" },
	{ "--check-memory", NULL, TRAIN, ARG_NONE, FIELD(check_memory), 0,
	  "measure what the run really writes of its arena" },
	{ "--check-nan", NULL, TRAIN, ARG_NONE, FIELD(check_nan), 0,
	  "check each result; stop at the first that is not finite" },
	{ "--json", NULL, EVAL | INFO | BENCH | PROFILE, ARG_NONE, FIELD(json), 0,
	  "one JSON object on standard output" },
	{ "--quiet", NULL, TRAIN | PREDICT | EXPORT, ARG_NONE, FIELD(quiet), 0, "print errors only" },
};

enum { ROWS = sizeof rows / sizeof *rows, COMMANDS = sizeof commands / sizeof *commands };

/* Whether one of the commands has the option, in a trainer for this plan's target. */
static bool has_option(const OptionRow *row, int bits, const Plan *plan)
{
	int other = strcmp(plan->target, "cuda") ? ONLY_CUDA : ONLY_CPU;
	return (row->commands & bits) && !(row->commands & other);
}

static void help(const Plan *plan, const char *program, int bits)
{
	printf("%s: a trainer compiled by dlc from %s\n\nusage: %s COMMAND [OPTION...]\n\n",
	       plan->model, plan->model_path, program);
	for (int i = 0; i < COMMANDS; i++)
		if (commands[i].bit & bits)
			printf("  %-9s %s\n", commands[i].name, commands[i].doc);
	printf("\noptions:\n");
	for (int i = 0; i < ROWS; i++) {
		char left[64];
		if (!has_option(&rows[i], bits, plan))
			continue;
		snprintf(left, sizeof left, "%s%s%s", rows[i].name, rows[i].value ? " " : "",
			 rows[i].value ? rows[i].value : "");
		printf("  %-18s %s\n", left, rows[i].doc);
	}
	printf("  %-18s this text; after a command, its options\n", "--help");
	const char *sign = "\ndata:";
	for (int i = 0; i < plan->ndata; i++)
		if (!data_is_own(plan->data[i].type)) {
			printf("%s '%s' (%s)", sign, plan->data[i].name, plan->data[i].type);
			sign = ",";
		}
	if (*sign == ',')
		putchar('\n');
}

/* ---- parsing -------------------------------------------------------------------------------- */

/* Levenshtein's distance, for words up to 31 letters; longer ones are far from everything. */
static int distance(const char *a, const char *b)
{
	int row[32];
	int na = (int)strlen(a), nb = (int)strlen(b);
	if (na > 31 || nb > 31)
		return 99;
	for (int j = 0; j <= nb; j++)
		row[j] = j;
	for (int i = 1; i <= na; i++) {
		int diagonal = row[0];
		row[0] = i;
		for (int j = 1; j <= nb; j++) {
			int best = diagonal + (a[i - 1] != b[j - 1]);
			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[nb];
}

static bool unknown_option(const Command *c, const char *arg, Fail *f)
{
	const char *near = NULL;
	int best = 4;
	for (int i = 0; i < ROWS; i++) {
		int d = distance(arg, rows[i].name);
		if (has_option(&rows[i], c->bit, &dl_plan) && d < best) {
			best = d;
			near = rows[i].name;
		}
	}
	fail(f, EXIT_FILES, "%s has no option '%s'", c->name, arg);
	for (int i = 0; i < ROWS; i++)
		if (strcmp(arg, rows[i].name) == 0)
			fail_add(f, "; other %s have it",
				 has_option(&rows[i], ALL, &dl_plan) ? "commands" : "targets (dlc --target)");
	if (near)
		fail_add(f, "; did you mean '%s'?", near);
	return false;
}

static bool parse_number(const OptionRow *row, const char *text, uint64_t *out, Fail *f)
{
	char *end;
	errno = 0;
	unsigned long long v = strtoull(text, &end, 0);
	bool whole = text[0] >= '0' && text[0] <= '9' && *end == 0 && errno == 0;
	if (!whole ||
	    (row->kind == ARG_COUNT && (v > (uint64_t)INT64_MAX / 2 || (int64_t)v < row->least)))
		return fail(f, EXIT_FILES,
			    "%s: expected a whole number of at least %" PRId64 ", got '%s'",
			    row->name, row->least, text);
	*out = v;
	return true;
}

static bool parse_real(const OptionRow *row, const char *text, double *out, Fail *f)
{
	char *end;
	*out = strtod(text, &end);
	return (end != text && *end == 0 && isfinite(*out) && *out >= (double)row->least) ||
	       fail(f, EXIT_FILES, "%s: expected a number of at least %" PRId64 ", got '%s'",
		    row->name, row->least, text);
}

static bool store(const OptionRow *row, char *value, Options *o, Fail *f)
{
	char *at = (char *)o + row->field;
	uint64_t number = 0;
	switch (row->kind) {
	case ARG_NONE: *(bool *)(void *)at = true; return true;
	case ARG_COUNT:
		if (!parse_number(row, value, &number, f))
			return false;
		*(int64_t *)(void *)at = (int64_t)number;
		return true;
	case ARG_NUMBER: return parse_real(row, value, (double *)(void *)at, f);
	case ARG_SEED:
		o->has_seed = true;
		return parse_number(row, value, (uint64_t *)(void *)at, f);
	case ARG_DATA:
		if (o->ndata == MAX_DATA_OPTIONS)
			return fail(f, EXIT_FILES, "more than %d --data options", MAX_DATA_OPTIONS);
		return data_parse_override(value, &o->data[o->ndata++]) ||
		       fail(f, EXIT_FILES, "--data: expected NAME=PATH or NAME.KEY=VALUE, got '%s'",
			    value);
	default:
		*(const char **)(void *)at = value;
		return value[0] || !strcmp(row->name, "--prompt") || fail(f, EXIT_FILES, "%s needs a value (%s)", row->name, row->value);
	}
}

/* --name value, or --name=value. */
static bool parse_options(const Command *c, int argc, char **argv, Options *o, Fail *f)
{
	for (int i = 0; i < argc; i++) {
		char *arg = argv[i], *value = NULL;
		if (strncmp(arg, "--", 2))
			return fail(f, EXIT_FILES, "%s takes options only, got '%s'", c->name, arg);
		if ((value = strchr(arg, '=')))
			*value++ = 0;
		int k = 0;
		while (k < ROWS &&
		       (strcmp(rows[k].name, arg) || !has_option(&rows[k], c->bit, &dl_plan)))
			k++;
		if (k == ROWS)
			return unknown_option(c, arg, f);
		if (rows[k].kind == ARG_NONE && value)
			return fail(f, EXIT_FILES, "%s takes no value, got '%s'", arg, value);
		if (rows[k].kind != ARG_NONE && !value) {
			if (++i == argc)
				return fail(f, EXIT_FILES, "%s needs a value (%s)", arg,
					    rows[k].value);
			value = argv[i];
		}
		if (!store(&rows[k], value, o, f))
			return false;
	}
	return true;
}

static const Command *find_command(const char *name)
{
	for (int i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static int unknown_command(const char *name)
{
	Fail f = { 0 };
	fail(&f, EXIT_FILES, "no command '%s'", name);
	for (int i = 0; i < COMMANDS; i++)
		if (distance(name, commands[i].name) <= 2)
			fail_add(&f, "; did you mean '%s'?", commands[i].name);
	fail_add(&f, "\nthe commands are train, eval, predict, sample, export, info, bench, profile; --help explains them");
	return report(&f);
}

static bool wants_help(const char *arg)
{
	return !strcmp(arg, "--help") || !strcmp(arg, "-h") || !strcmp(arg, "help");
}

/* A standard stream that is closed would give its number to the next file that is opened, and what
 * is printed would end up in there. Read only: so that writing to it still fails. */
static bool occupy_standard_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			return false;
	return true;
}

static int run_command(int argc, char **argv)
{
	const Plan *plan = &dl_plan;
	Options o = { .steps = -1, .eval_every = -1, .save_every = -1, .keep = -1, .early_stop = -1,
		      .threads = -1, .device = -1, .length = -1, .temperature = 1 };
	Fail f = { 0 };
	if (argc < 2) {
		help(plan, argv[0], ALL);
		return EXIT_FILES;
	}
	if (wants_help(argv[1])) {
		help(plan, argv[0], ALL);
		return EXIT_DONE;
	}
	const Command *c = find_command(argv[1]);
	if (!c)
		return unknown_command(argv[1]);
	for (int i = 2; i < argc; i++)
		if (wants_help(argv[i])) {
			help(plan, argv[0], c->bit);
			return EXIT_DONE;
		}
	if (c->bit != INFO)
		device_process(argv);
	if (!parse_options(c, argc - 2, argv + 2, &o, &f))
		return report(&f);
	if (o.init && o.resume) {
		fail(&f, EXIT_FILES,
		     "--init and --resume exclude each other: a checkpoint holds the weights too");
		return report(&f);
	}
	if (!o.init && (o.init_map || o.init_partial || o.init_adapters)) {
		fail(&f, EXIT_FILES, "%s needs --init FILE",
		     o.init_map ? "--init-map" : o.init_partial ? "--init-partial" : "--init-adapters");
		return report(&f);
	}
	return c->run(plan, &o);
}

/* What was asked for on standard output and could not be written is a failure; the progress of
 * `train` is not (it shows on a terminal that may be gone, the results are in files). */
int main(int argc, char **argv)
{
	if (!occupy_standard_streams())
		return EXIT_FILES;
	int code = run_command(argc, argv);
	bool written = fflush(stdout) == 0 && !ferror(stdout);
	if (written || code != EXIT_DONE || (argc > 1 && !strcmp(argv[1], "train")))
		return code;
	Fail f = { 0 };
	fail(&f, EXIT_FILES, "standard output cannot be written");
	return report(&f);
}

/* Measures this machine.
 *
 * Method. Small models (calibrate.dl, in the sizes below) go the way of every model: planned, compiled by the target's
 * compiler, linked with the runtime; and each trainer says how long the steps of its plan take (`profile --json`), in a few rounds: of
 * each, the one that was disturbed least counts. A step
 * of the plan is a node of the graph, whose units of each cost are known (cost_units); so each is an equation, and
 * machine_fit solves them for the costs. Nothing is measured that is not what trainers do: same kernels, same library,
 * same caches.
 *
 *     calibrate.dl --plan--> nodes ------ units -----+
 *          |                                         +--> costs
 *          +--cc--> trainer --profile--> seconds ----+
 *
 * On a card a trainer also times copies (`profile --links`), as the runtime does them in a step, in graphs and on the streams of values that wait in host
 * memory. Whether a planned step has any is the planner's decision, and how long they take does not depend on the model; so they are no samples out of
 * some plan that was forced to have them, but a chain of each size. From them come the rates of the link and its delay (machine_fit_links);
 * copies within the card's memory are samples of traffic like kernels, and a fill of a few bytes is one of a launch in a graph.
 *
 * Models are in order of what they tell; where building takes too long, the last ones are left out. Everything lies in a
 * temporary folder, which goes away also when a signal ends the work. */
#include "calibrate.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "calibrate_run.h"
#include "cost.h"

extern const char calibrate_dl[];

enum { MAX_DEFINES = 8, DATA_BYTES = 64 << 20, LEAST_STEPS = 5, MOST_STEPS = 60, REFITS = 3 };
static const double seconds_each = 0.2;

/* A model's sizes. */
typedef struct Case {
	const char *define[MAX_DEFINES];
	int64_t micro_batch;
	const char *precision;
} Case;

static const Case processor_cases[] = {
	{ { "part=0", "T=96", "C=160", "heads=5", "vocab=320", "train.batch=8" }, 8, NULL },
	{ { "part=1", "side=32", "channels=28", "train.batch=56" }, 56, NULL },
	{ { "part=2", "T=640", "train.batch=48" }, 48, NULL },
	{ { "part=0", "T=48", "C=96", "heads=2", "vocab=256", "train.batch=6" }, 1, NULL },
	{ { "part=2", "T=512", "wide=200", "train.batch=32" }, 4, NULL },
	{ { "part=1", "side=16", "channels=40", "train.batch=32" }, 32, NULL },
	{ { "part=0", "T=128", "C=256", "heads=4", "vocab=512", "train.batch=8" }, 4, NULL },
	{ { "part=0", "T=32", "C=128", "heads=4", "vocab=256", "train.batch=24" }, 6, NULL },
	{ { "part=2", "T=900", "wide=480", "narrow=256", "train.batch=96" }, 24, NULL },
};

/* Larger than launches and caches; and a small one. */
static const Case card_cases[] = {
	{ { "part=0", "T=1024", "C=768", "heads=12", "vocab=16384", "train.batch=8" }, 8, "bf16" },
	{ { "part=1", "side=32", "channels=64", "train.batch=512" }, 512, "fp32" },
	{ { "part=2", "T=2048", "wide=4096", "narrow=1024", "train.batch=4096" }, 4096, "fp32" },
	{ { "part=0", "T=512", "C=512", "heads=8", "vocab=4096", "train.batch=16" }, 8, "fp32" },
	{ { "part=1", "side=32", "channels=128", "train.batch=256" }, 256, "bf16" },
	{ { "part=2", "T=4096", "wide=8192", "narrow=4096", "train.batch=4096" }, 4096, "bf16" },
	{ { "part=0", "T=256", "C=256", "heads=4", "vocab=1024", "train.batch=4" }, 2, "bf16" },
};

static const Case card_quick_cases[] = {
	{ { "part=0", "T=32", "C=32", "heads=2", "vocab=256", "train.batch=2" }, 2, "bf16" },
	{ { "part=1", "side=8", "channels=8", "train.batch=2" }, 2, NULL },
	{ { "part=2", "T=64", "wide=64", "narrow=32", "train.batch=8" }, 8, NULL },
};

static const Case quick_cases[] = {
	{ { "part=0", "T=32", "C=32", "heads=2", "vocab=256", "train.batch=2" }, 2, NULL },
	{ { "part=1", "side=8", "channels=8", "train.batch=2" }, 2, NULL },
	{ { "part=2", "T=64", "wide=64", "narrow=32", "train.batch=8" }, 8, NULL },
};

/* What is run, and how long at most. */
typedef struct Suite {
	const Case *cases;
	int n, rounds;
	double seconds_build, seconds_all;
} Suite;

#define CASES(list) (list), (int)(sizeof(list) / sizeof *(list))
static const Suite suite_processor = { CASES(processor_cases), 4, 16, 26 };
static const Suite suite_card = { CASES(card_cases), 3, 35, 55 };
static const Suite suite_card_quick = { CASES(card_quick_cases), 1, 35, 55 };
static const Suite suite_quick = { CASES(quick_cases), 1, 16, 26 };

typedef struct Trainer {
	const Module *module;
	const char *path;
	int64_t steps; /* of a round */
	TrainerTimes times;
} Trainer;

typedef struct Calibration {
	Arena *a;
	const CalibrateOptions *o;
	const Suite *suite;
	Machine *machine; /* before its costs are known */
	const char *dir, *data;
	TrainerRun run;
	VEC(Trainer) trainers;
	VEC(MachineSample) samples;
	TrainerLinks links;
	double start;
	sigset_t before;
} Calibration;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- trainers' times ---- */

/* Tokens that look like none in particular. */
static bool write_data(const Calibration *c)
{
	FILE *f = fopen(c->data, "wb");
	uint64_t x = 88172645463325252u;
	bool good = f != NULL;

	for (int i = 0; i < DATA_BYTES / 8 && good; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		good = fwrite(&x, 8, 1, f) == 1;
	}
	if (f)
		good = fclose(f) == 0 && good;
	if (!good)
		fprintf(c->o->err, "dlc: --calibrate: cannot write '%s': %s\n", c->data, strerror(errno));
	return good;
}

static bool take_times(Calibration *c, Trainer *t)
{
	const char *number = arena_printf(c->a, "%d", c->o->card ? c->o->card->number : c->o->threads);
	const char *const arguments[] = { "--steps", arena_printf(c->a, "%lld", (long long)t->steps), c->o->card ? "--device" : "--threads",
		                          number, "--data", arena_printf(c->a, "text=%s", c->data), NULL };

	return trainer_times(&c->run, t->path, arguments, &t->times);
}

static bool take_links(Calibration *c)
{
	const char *const arguments[] = { "--links", "--device", arena_printf(c->a, "%d", c->o->card->number), NULL };

	if (!trainer_links(&c->run, c->trainers.at[0].path, arguments, &c->links))
		return false;
	if (machine_fit_links(c->machine, c->links.link.at, (int)c->links.link.len))
		return true;
	fprintf(c->o->err, "dlc: --calibrate: larger copies to and from host memory took no longer: is the card busy with something else?\n");
	return false;
}

/* ---- samples ---- */

/* The steps of the plan in a block, which are its nodes but for those that do nothing, as the runtime counts them. */
static void take_block(Calibration *c, const Trainer *t, const Machine *m, const Block *b, size_t *at)
{
	for (const Node *n = b->first; n; n = n->next) {
		MachineSample s;
		size_t i;

		if (n->op == OP_var || n->op == OP_yield || ir_is_view(n))
			continue;
		i = (*at)++;
		assert(i < t->times.n);
		if (n->op == OP_loop) {
			take_block(c, t, m, n->body, at);
			++*at;
			continue;
		}
		s.seconds = t->times.seconds[i];
		s.weight = sqrt(s.seconds * t->times.runs[i] / t->times.whole);
		if (s.seconds > 0 && cost_units(n, m, s.unit))
			vec_push(c->a, &c->samples, s);
	}
}

/* Copies on a card: one weighs as much as a step, a launch more, since each kernel has it. */
static void take_copies(Calibration *c, const Machine *m)
{
	MachineSample s = { .seconds = c->links.launch_seconds, .weight = 4 };

	s.unit[COST_kernel] = 1;
	if (s.seconds > 0)
		vec_push(c->a, &c->samples, s);
	for (size_t i = 0; i < c->links.within.len; i++) {
		cost_copy_units(m, c->links.within.at[i].bytes, s.unit);
		s.seconds = c->links.within.at[i].seconds;
		s.weight = 1;
		vec_push(c->a, &c->samples, s);
	}
}

static void take_samples(Calibration *c, const Machine *m)
{
	c->samples.len = 0;
	for (size_t i = 0; i < c->trainers.len; i++) {
		const Func *step = ir_find_func(c->trainers.at[i].module, "step");
		Machine running = machine_running(m, step);
		size_t at = 0;

		take_block(c, &c->trainers.at[i], &running, step->body, &at);
		assert(at == c->trainers.at[i].times.n);
	}
	take_copies(c, m);
}

/* What convolutions and attention count as in 16 bits depends on costs (cost.c); so once these are known it is counted again. */
static Machine *fit(Calibration *c)
{
	Machine *m = ARENA_NEW(c->a, Machine), *from = ARENA_NEW(c->a, Machine);

	*from = *c->machine;
	for (int i = 0; i < REFITS; i++) {
		take_samples(c, from);
		*m = *c->machine;
		machine_fit(c->a, m, c->samples.at, (int)c->samples.len);
		*from = *m;
	}
	return m;
}

/* ---- trainers ---- */

static double predicted(const Block *b, const Machine *m)
{
	double sum = 0;

	for (const Node *n = b->first; n; n = n->next)
		sum += n->op == OP_loop ? (double)ir_int(n, "trips") * predicted(n->body, m) : cost_seconds(n, m);
	return sum;
}

/* As many steps as fit into a model's share of a round. */
static int64_t steps_for(const Calibration *c, const Module *m)
{
	double n = seconds_each / predicted(ir_find_func(m, "step")->body, c->machine);

	return n < LEAST_STEPS || c->o->quick ? LEAST_STEPS : n > MOST_STEPS ? MOST_STEPS : (int64_t)n;
}

static bool build_one(Calibration *c, const Case *k)
{
	const char *path = arena_printf(c->a, "%s/trainer%zu", c->dir, c->trainers.len);
	CalibrateModel model = { .text = calibrate_dl, .defines = k->define, .precision = k->precision, .micro_batch = k->micro_batch, .path = path };
	Trainer t = { .path = path };
	const Func *step;

	while (model.ndefines < MAX_DEFINES && k->define[model.ndefines])
		model.ndefines++;
	t.module = c->o->build(c->o->ctx, &model);
	if (!t.module)
		return false;
	t.steps = steps_for(c, t.module);
	vec_push(c->a, &c->trainers, t);
	step = ir_find_func(t.module, "step");
	if (!c->o->card || step->arena_bytes <= c->o->card->arena_bytes)
		return true;
	fprintf(c->o->err, "dlc: --calibrate: the card has %lld MiB free for a trainer, and %lld are needed: free it of other programs%s\n",
	        (long long)(c->o->card->arena_bytes >> 20), (long long)(step->arena_bytes >> 20), c->o->quick ? "" : ", or measure with --quick");
	return false;
}

/* ---- the whole ---- */

static bool interrupted(void)
{
	sigset_t waiting;

	sigpending(&waiting);
	return sigismember(&waiting, SIGINT) || sigismember(&waiting, SIGTERM) || sigismember(&waiting, SIGHUP);
}

/* The first one also tells, on a card, how long copies take: what is amiss there shows before the others are built. */
static bool build_all(Calibration *c)
{
	const Suite *suite = c->suite;

	for (int i = 0; i < suite->n; i++) {
		double so_far = now() - c->start;

		if (!c->o->quiet)
			fprintf(c->o->err, "dlc: calibrating: compiles model %d of %d, %.0f s\n", i + 1, suite->n, so_far);
		if (i > 0 && !c->o->quick && so_far * (i + 1) / i > suite->seconds_build) {
			fprintf(c->o->err, "dlc: --calibrate: it takes long (is the machine busy?); %d of %d models are left out\n", suite->n - i, suite->n);
			break;
		}
		if (!build_one(c, &suite->cases[i]) || (i == 0 && c->o->card && !take_links(c)) || interrupted())
			return false;
	}
	return true;
}

/* All trainers in turn, a few times: what else the machine does then hits none of them always. */
static bool measure_all(Calibration *c)
{
	for (int round = 0; round < c->suite->rounds; round++) {
		double began = now();

		if (!c->o->quiet)
			fprintf(c->o->err, "dlc: calibrating: times kernels, round %d of %d, %.0f s\n", round + 1, c->suite->rounds, began - c->start);
		for (size_t i = 0; i < c->trainers.len; i++)
			if (!take_times(c, &c->trainers.at[i]) || interrupted())
				return false;
		if (now() - c->start + (now() - began) > c->suite->seconds_all)
			break;
	}
	return true;
}

static void remove_all(const Calibration *c)
{
	for (size_t i = 0; i < c->trainers.len; i++)
		unlink(c->trainers.at[i].path);
	unlink(c->data);
	unlink(c->run.output);
	unlink(c->run.said);
	rmdir(c->dir);
}

static double cache_bytes(int level, double otherwise)
{
	long n = sysconf(level);

	return n > 0 ? (double)n : otherwise;
}

/* This machine before anything is measured. */
static Machine *blank(Arena *a, const CalibrateOptions *o)
{
	Machine *m = ARENA_NEW(a, Machine);
	char host[64] = "";

	*m = *o->prior;
	m->prior = o->prior->name;
	if (o->card) {
		m->name = o->card->name;
		m->card = arena_printf(a, "%s, %s", o->card->name, o->card->arch);
		m->own_cache = o->card->cache_bytes > 0 ? o->card->cache_bytes : m->own_cache;
		return m;
	}
	gethostname(host, sizeof host - 1);
	m->name = *host && !strpbrk(host, " \t#\n") ? arena_strdup(a, host) : "calibrated";
	m->threads = m->measured_threads = o->threads;
	m->overlap = 0;
	m->own_cache = cache_bytes(_SC_LEVEL2_CACHE_SIZE, m->own_cache);
	m->shared_cache = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0);
	return m;
}

const Machine *calibrate(Arena *a, const CalibrateOptions *o)
{
	const char *tmp = getenv("TMPDIR");
	char *dir = arena_printf(a, "%s/dlc-calibrate-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	Calibration c = { .a = a, .o = o, .start = now() };
	sigset_t ends;
	bool good;

	if (!(c.dir = mkdtemp(dir))) {
		fprintf(o->err, "dlc: --calibrate: cannot make the folder '%s': %s\n", dir, strerror(errno));
		return NULL;
	}
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, &c.before);
	c.suite = o->card ? o->quick ? &suite_card_quick : &suite_card : o->quick ? &suite_quick : &suite_processor;
	c.machine = blank(a, o);
	c.data = arena_printf(a, "%s/data", dir);
	c.run = (TrainerRun){ .a = a, .output = arena_printf(a, "%s/profile.json", dir), .said = arena_printf(a, "%s/said", dir),
		              .signals = &c.before, .err = o->err };
	good = write_data(&c) && build_all(&c) && measure_all(&c);
	remove_all(&c);
	sigprocmask(SIG_SETMASK, &c.before, NULL); /* a signal that has waited ends the process here */
	return good ? fit(&c) : NULL;
}

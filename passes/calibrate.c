/* Measures this machine.
 *
 * Method. Small models (calibrate.dl, in the sizes below) go the way of every model: planned, compiled by the system's
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
 * Models are in order of what they tell; where building takes too long, the last ones are left out. Everything lies in a
 * temporary folder, which goes away also when a signal ends the work. */
#include "calibrate.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cost.h"
#include "machine_fit.h"

extern const char calibrate_dl[];

enum { MAX_DEFINES = 8, DATA_BYTES = 64 << 20, ROUNDS = 4, LEAST_STEPS = 5, MOST_STEPS = 60 };
static const double seconds_each = 0.2, seconds_build = 16, seconds_all = 26;

/* A model's sizes. */
typedef struct Case {
	const char *define[MAX_DEFINES];
	int64_t micro_batch;
} Case;

static const Case cases[] = {
	{ { "part=0", "T=96", "C=160", "heads=5", "vocab=320", "train.batch=8" }, 8 },
	{ { "part=1", "side=32", "channels=28", "train.batch=56" }, 56 },
	{ { "part=2", "T=640", "train.batch=48" }, 48 },
	{ { "part=0", "T=48", "C=96", "heads=2", "vocab=256", "train.batch=6" }, 1 },
	{ { "part=2", "T=512", "wide=200", "train.batch=32" }, 4 },
	{ { "part=1", "side=16", "channels=40", "train.batch=32" }, 32 },
	{ { "part=0", "T=128", "C=256", "heads=4", "vocab=512", "train.batch=8" }, 4 },
	{ { "part=0", "T=32", "C=128", "heads=4", "vocab=256", "train.batch=24" }, 6 },
	{ { "part=2", "T=900", "wide=480", "narrow=256", "train.batch=96" }, 24 },
};

/* A model's trainer, and the times of the steps of its plan in the round in which all of them together took the least. */
typedef struct Trainer {
	const Module *module;
	const char *path;
	int64_t steps; /* of a round */
	double *seconds, *runs;
	size_t n;
	double whole;
} Trainer;

typedef struct Calibration {
	Arena *a;
	const Machine *machine;
	int threads;
	const char *dir, *data, *output;
	VEC(Trainer) trainers;
	VEC(MachineSample) samples;
	double start;
	sigset_t before;
	FILE *err;
	bool quiet;
} Calibration;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a trainer's times ---- */

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
		fprintf(c->err, "dlc: --calibrate: cannot write '%s': %s\n", c->data, strerror(errno));
	return good;
}

/* Runs `trainer profile` with its output in a file; the signals that wait here are its own affair. */
static bool run_trainer(const Calibration *c, const Trainer *t)
{
	const char *data = arena_printf(c->a, "text=%s", c->data), *n = arena_printf(c->a, "%lld", (long long)t->steps);
	const char *threads = arena_printf(c->a, "%d", c->threads);
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		sigprocmask(SIG_SETMASK, &c->before, NULL);
		if (freopen(c->output, "w", stdout))
			execl(t->path, t->path, "profile", "--json", "--steps", n, "--threads", threads, "--data", data, (char *)NULL);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	fprintf(c->err, "dlc: --calibrate: the trainer '%s' cannot be run\n", t->path);
	return false;
}

/* Reads what it said. */
static bool take_times(const Calibration *c, Trainer *t)
{
	json_t *profile = json_load_file(c->output, 0, NULL);
	const json_t *steps = json_object_get(profile, "steps");
	double whole = json_number_value(json_object_get(profile, "step_seconds_median"));
	size_t n = json_array_size(steps);
	bool good = n > 0 && whole > 0 && (t->n == 0 || t->n == n), best = t->n == 0 || whole < t->whole;

	if (good && t->n == 0) {
		t->n = n;
		t->seconds = ARENA_ARRAY(c->a, n, double);
		t->runs = ARENA_ARRAY(c->a, n, double);
	}
	for (size_t i = 0; i < n && good; i++) {
		const json_t *step = json_array_get(steps, i);
		double s = json_number_value(json_object_get(step, "seconds"));

		t->runs[i] = json_number_value(json_object_get(step, "runs"));
		if (best)
			t->seconds[i] = s;
	}
	t->whole = best ? whole : t->whole;
	json_decref(profile);
	if (!good)
		fprintf(c->err, "dlc: --calibrate: the trainer '%s' does not tell the time of its plan\n", t->path);
	return good;
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
		assert(i < t->n);
		if (n->op == OP_loop) {
			take_block(c, t, m, n->body, at);
			++*at;
			continue;
		}
		s.seconds = t->seconds[i];
		s.weight = sqrt(s.seconds * t->runs[i] / t->whole);
		if (s.seconds > 0 && cost_units(n, m, s.unit))
			vec_push(c->a, &c->samples, s);
	}
}

static void take_samples(Calibration *c)
{
	for (size_t i = 0; i < c->trainers.len; i++) {
		const Func *step = ir_find_func(c->trainers.at[i].module, "step");
		Machine running = machine_running(c->machine, step);
		size_t at = 0;

		take_block(c, &c->trainers.at[i], &running, step->body, &at);
		assert(at == c->trainers.at[i].n);
	}
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

	return n < LEAST_STEPS ? LEAST_STEPS : n > MOST_STEPS ? MOST_STEPS : (int64_t)n;
}

static bool build_one(Calibration *c, const Case *k, CalibrateBuild build, void *ctx)
{
	const char *path = arena_printf(c->a, "%s/trainer%zu", c->dir, c->trainers.len);
	CalibrateModel model = { .text = calibrate_dl, .defines = k->define, .micro_batch = k->micro_batch, .path = path };
	Trainer t = { .path = path };

	while (model.ndefines < MAX_DEFINES && k->define[model.ndefines])
		model.ndefines++;
	t.module = build(ctx, &model);
	if (!t.module)
		return false;
	t.steps = steps_for(c, t.module);
	vec_push(c->a, &c->trainers, t);
	return true;
}

/* ---- the whole ---- */

static bool interrupted(void)
{
	sigset_t waiting;

	sigpending(&waiting);
	return sigismember(&waiting, SIGINT) || sigismember(&waiting, SIGTERM) || sigismember(&waiting, SIGHUP);
}

static bool build_all(Calibration *c, CalibrateBuild build, void *ctx)
{
	const int n = sizeof cases / sizeof *cases;

	for (int i = 0; i < n; i++) {
		if (!c->quiet)
			fprintf(c->err, "dlc: calibrating: compiles model %d of %d, %.0f s\n", i + 1, n, now() - c->start);
		if (i > 0 && (now() - c->start) * (i + 1) / i > seconds_build) {
			fprintf(c->err, "dlc: --calibrate: it takes long (is the machine busy?); %d of %d models are left out\n", n - i, n);
			break;
		}
		if (!build_one(c, &cases[i], build, ctx) || interrupted())
			return false;
	}
	return true;
}

/* All trainers in turn, a few times: what else the machine does then hits none of them always. */
static bool measure_all(Calibration *c)
{
	for (int round = 0; round < ROUNDS; round++) {
		double began = now();

		if (!c->quiet)
			fprintf(c->err, "dlc: calibrating: times kernels, round %d of %d, %.0f s\n", round + 1, ROUNDS, began - c->start);
		for (size_t i = 0; i < c->trainers.len; i++)
			if (!run_trainer(c, &c->trainers.at[i]) || !take_times(c, &c->trainers.at[i]) || interrupted())
				return false;
		if (now() - c->start + (now() - began) > seconds_all)
			break;
	}
	take_samples(c);
	return true;
}

static void remove_all(const Calibration *c)
{
	for (size_t i = 0; i < c->trainers.len; i++)
		unlink(c->trainers.at[i].path);
	unlink(c->data);
	unlink(c->output);
	rmdir(c->dir);
}

static double cache_bytes(int level, double otherwise)
{
	long n = sysconf(level);

	return n > 0 ? (double)n : otherwise;
}

static Machine *blank(Arena *a, const Machine *prior, int threads)
{
	Machine *m = ARENA_NEW(a, Machine);
	char host[64] = "";

	*m = *prior;
	gethostname(host, sizeof host - 1);
	m->name = *host && !strpbrk(host, " \t#\n") ? arena_strdup(a, host) : "calibrated";
	m->threads = m->measured_threads = threads;
	m->overlap = 0;
	m->own_cache = cache_bytes(_SC_LEVEL2_CACHE_SIZE, prior->own_cache);
	m->shared_cache = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 0);
	return m;
}

const Machine *calibrate(Arena *a, const Machine *prior, int threads, CalibrateBuild build, void *ctx, bool quiet, FILE *err)
{
	const char *tmp = getenv("TMPDIR");
	char *dir = arena_printf(a, "%s/dlc-calibrate-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	Calibration c = { .a = a, .threads = threads, .start = now(), .quiet = quiet, .err = err };
	Machine *m = blank(a, prior, threads);
	sigset_t ends;
	bool good;

	if (!(c.dir = mkdtemp(dir))) {
		fprintf(err, "dlc: --calibrate: cannot make the folder '%s': %s\n", dir, strerror(errno));
		return NULL;
	}
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGHUP);
	sigprocmask(SIG_BLOCK, &ends, &c.before);
	c.machine = m;
	c.data = arena_printf(a, "%s/data", dir);
	c.output = arena_printf(a, "%s/profile.json", dir);
	good = write_data(&c) && build_all(&c, build, ctx) && measure_all(&c);
	remove_all(&c);
	sigprocmask(SIG_SETMASK, &c.before, NULL); /* a signal that has waited ends the process here */
	if (!good)
		return NULL;
	machine_fit(a, m, c.samples.at, (int)c.samples.len);
	return m;
}

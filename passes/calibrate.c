/* Measures this machine.
 *
 * Method. Small models (calibrate.dl, in the sizes below) go the way of every model: planned, compiled by the system's
 * compiler, linked with the runtime; and each trainer says how long the steps of its plan take (`profile --json`). A step
 * of the plan is a node of the graph, whose units of each cost are known (cost_units); so each is an equation, and
 * machine_fit solves them for the costs. Nothing is measured that is not what trainers do: same kernels, same library,
 * same caches.
 *
 *     calibrate.dl --plan--> nodes ------ units -----+
 *          |                                         +--> costs
 *          +--cc--> trainer --profile--> seconds ----+
 *
 * Models are in order of what they tell; when the time is over, those that are left are left out. Everything lies in a
 * temporary folder, which goes away also when a signal ends the work. */
#include "calibrate.h"

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

enum { MAX_DEFINES = 8, DATA_BYTES = 64 << 20, LEAST_STEPS = 8, MOST_STEPS = 100 };
static const double seconds_each = 0.6, seconds_all = 24;

/* A model's sizes. */
typedef struct Case {
	const char *define[MAX_DEFINES];
	int64_t micro_batch;
} Case;

static const Case cases[] = {
	{ { "part=0", "T=96", "C=160", "heads=5", "vocab=320", "train.batch=8" }, 8 },
	{ { "part=1", "side=24", "channels=24", "train.batch=48" }, 48 },
	{ { "part=2", "T=640", "train.batch=48" }, 48 },
	{ { "part=0", "T=48", "C=96", "heads=2", "vocab=256", "train.batch=6" }, 1 },
	{ { "part=2", "T=512", "wide=200", "train.batch=32" }, 4 },
	{ { "part=1", "side=16", "channels=40", "train.batch=32" }, 32 },
	{ { "part=0", "T=128", "C=256", "heads=4", "vocab=512", "train.batch=8" }, 4 },
	{ { "part=0", "T=32", "C=128", "heads=4", "vocab=256", "train.batch=24" }, 6 },
	{ { "part=2", "T=900", "wide=480", "narrow=256", "train.batch=96" }, 24 },
};

typedef struct Calibration {
	Arena *a;
	const Machine *machine;
	int threads;
	const char *dir, *data, *trainer, *output;
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
static bool run_trainer(const Calibration *c, int64_t steps)
{
	const char *data = arena_printf(c->a, "text=%s", c->data), *n = arena_printf(c->a, "%lld", (long long)steps);
	const char *threads = arena_printf(c->a, "%d", c->threads);
	int status = 0;
	pid_t child = fork();

	if (child == 0) {
		sigprocmask(SIG_SETMASK, &c->before, NULL);
		if (freopen(c->output, "w", stdout))
			execl(c->trainer, c->trainer, "profile", "--json", "--steps", n, "--threads", threads, "--data", data,
			      (char *)NULL);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	fprintf(c->err, "dlc: --calibrate: the trainer '%s' cannot be run\n", c->trainer);
	return false;
}

/* ---- samples ---- */

/* The steps of the plan in a block, which are its nodes but for those that do nothing, as the runtime counts them. */
static bool take_block(Calibration *c, const Block *b, const json_t *steps, size_t *at, double whole)
{
	for (const Node *n = b->first; n; n = n->next) {
		MachineSample s;
		const json_t *step;

		if (n->op == OP_var || n->op == OP_yield || ir_is_view(n))
			continue;
		step = json_array_get(steps, (*at)++);
		if (!step)
			return false;
		if (n->op == OP_loop) {
			if (!take_block(c, n->body, steps, at, whole))
				return false;
			++*at;
			continue;
		}
		s.seconds = json_number_value(json_object_get(step, "seconds"));
		s.weight = sqrt(s.seconds * json_number_value(json_object_get(step, "runs")) / whole);
		if (s.seconds > 0 && cost_units(n, c->machine, s.unit))
			vec_push(c->a, &c->samples, s);
	}
	return true;
}

static bool take_samples(Calibration *c, const Module *m)
{
	json_t *profile = json_load_file(c->output, 0, NULL);
	const json_t *steps = json_object_get(profile, "steps");
	double whole = json_number_value(json_object_get(profile, "step_seconds_median"));
	const Func *f = ir_find_func(m, "step");
	size_t at = 0;
	bool good = f && whole > 0 && take_block(c, f->body, steps, &at, whole) && at == json_array_size(steps);

	json_decref(profile);
	if (!good)
		fprintf(c->err, "dlc: --calibrate: the trainer '%s' does not tell the time of its plan\n", c->trainer);
	return good;
}

static double predicted(const Block *b, const Machine *m)
{
	double sum = 0;

	for (const Node *n = b->first; n; n = n->next)
		sum += n->op == OP_loop ? (double)ir_int(n, "trips") * predicted(n->body, m) : cost_seconds(n, m);
	return sum;
}

/* As many steps as fit into a model's share of the time. */
static int64_t steps_for(const Calibration *c, const Module *m)
{
	double n = seconds_each / predicted(ir_find_func(m, "step")->body, c->machine);

	return n < LEAST_STEPS ? LEAST_STEPS : n > MOST_STEPS ? MOST_STEPS : (int64_t)n;
}

static bool measure(Calibration *c, const Case *k, CalibrateBuild build, void *ctx)
{
	CalibrateModel model = { .text = calibrate_dl, .defines = k->define, .micro_batch = k->micro_batch, .path = c->trainer };
	const Module *m;

	while (model.ndefines < MAX_DEFINES && k->define[model.ndefines])
		model.ndefines++;
	m = build(ctx, &model);
	return m && run_trainer(c, steps_for(c, m)) && take_samples(c, m);
}

/* ---- the whole ---- */

static bool interrupted(void)
{
	sigset_t waiting;

	sigpending(&waiting);
	return sigismember(&waiting, SIGINT) || sigismember(&waiting, SIGTERM) || sigismember(&waiting, SIGHUP);
}

static bool measure_all(Calibration *c, CalibrateBuild build, void *ctx)
{
	const int n = sizeof cases / sizeof *cases;

	for (int i = 0; i < n; i++) {
		if (!c->quiet)
			fprintf(c->err, "dlc: calibrating: model %d of %d, %d kernels timed, %.0f s\n", i + 1, n,
			        (int)c->samples.len, now() - c->start);
		if (i > 0 && (now() - c->start) * (i + 1) / i > seconds_all) {
			fprintf(c->err, "dlc: --calibrate: the time is over (is the machine busy?); %d models are left out\n", n - i);
			break;
		}
		if (!measure(c, &cases[i], build, ctx) || interrupted())
			return false;
	}
	return true;
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
	c.trainer = arena_printf(a, "%s/trainer", dir);
	c.output = arena_printf(a, "%s/profile.json", dir);
	good = write_data(&c) && measure_all(&c, build, ctx);
	unlink(c.data);
	unlink(c.trainer);
	unlink(c.output);
	rmdir(dir);
	sigprocmask(SIG_SETMASK, &c.before, NULL); /* a signal that has waited ends the process here */
	if (!good)
		return NULL;
	machine_fit(a, m, c.samples.at, (int)c.samples.len);
	return m;
}

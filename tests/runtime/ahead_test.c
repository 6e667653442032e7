/* Steps that are begun ahead: their results are those of steps one by one, and the state is. Linked with the
 * hand-made plan; argument: the folder of its data. Prints how many steps were under way, and "ahead ok". */
#include "runtime/train.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 12, BYTES = 640 };

static int failed(const char *what, const Fail *f)
{
	printf("%s: %s\n", what, f->text);
	return 1;
}

/* The losses of the first steps and the first parameter behind them. */
static bool run(Trainer *t, int64_t last, double loss[STEPS], unsigned char *weights, int64_t *most, Fail *f)
{
	*most = 0;
	for (int i = 0; i < STEPS; i++) {
		StepResult r;
		if (!trainer_advance(t, last, &r, NULL, f))
			return false;
		loss[i] = r.loss;
		int64_t ahead = t->begun - t->state.step;
		*most = ahead > *most ? ahead : *most;
	}
	return !trainer_busy(t) && device_read(t->device, t->plan->vars[0].offset, BYTES, weights, f);
}

int main(int argc, char **argv)
{
	Fail f = { 0 };
	Trainer t;
	DataOverride data = { "d", NULL, argc > 1 ? argv[1] : "" };
	TrainerOptions o = { .data = &data, .ndata = 1 };
	double one[STEPS], ahead[STEPS];
	unsigned char weights[2][BYTES];
	int64_t most[2];
	if (!trainer_open(&t, &dl_plan, &o, "step", &f))
		return failed("open", &f);
	if (!run(&t, 0, one, weights[0], &most[0], &f) || !trainer_init(&t, &f) ||
	    !run(&t, STEPS, ahead, weights[1], &most[1], &f))
		return failed("steps", &f);
	bool same = !memcmp(one, ahead, sizeof one) && !memcmp(weights[0], weights[1], BYTES) && one[0] != one[1];
	int64_t want = device_info(t.device)->calls - 1;
	printf("%lld ahead of one by one, %lld with leave, expected 0 and %lld\n", (long long)most[0],
	       (long long)most[1], (long long)want);
	trainer_close(&t);
	if (!same || most[0] != 0 || most[1] != want)
		return 1;
	printf("ahead ok\n");
	return 0;
}

/* The command `sample`: continues a text with a trained language model.
 *
 * A model of text reads a window of T tokens and gives, for each place, logits of the token that
 * follows. One token at a time: the window is run through `predict1`, the logits of the last token
 * written so far become a distribution, a token is drawn from it and appended; a full window moves
 * on by one. Nothing is kept between tokens, so that sampling needs no memory of its own beyond the
 * logits of one place.
 *
 * What stands behind the last token is zeros, which only a causal model does not see: this is
 * tested before the first token. Token i of a seed is drawn with a number that depends on (seed, i)
 * alone. */
#include "command.h"

#include "data_format.h"
#include "metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_LENGTH = 200 };

typedef struct Sampler {
	const Options *o;
	Trainer t;
	const PlanFunc *func;
	const PlanOutput *logits;
	int input;        /* the one that holds the window */
	bool bytes;       /* tokens are bytes of text, else numbers ... */
	Bpe *bpe;         /* ... unless there is a vocabulary */
	int64_t window, vocab;
	int64_t filled;   /* tokens in the window */
	int32_t *token;   /* the window */
	void *place;      /* the logits of one place, as the model gives them */
	double *weight;   /* of each token, and the order of them that top-k needs */
	double *sorted;
} Sampler;

/* ---- the model ------------------------------------------------------------------------------ */

static void read_window(void *ctx, int input, int64_t first, int64_t n, void *dst)
{
	const Sampler *s = ctx;
	(void)input, (void)first, (void)n;
	memcpy(dst, s->token, (size_t)s->window * sizeof *s->token);
}

/* The one input of predict1, if it is a window of text. */
static bool find_window(Sampler *s, Fail *f)
{
	const Plan *plan = s->t.plan;
	s->input = -1;
	for (int i = 0; i < s->func->nsteps; i++) {
		const PlanStep *step = &s->func->steps[i];
		if (step->kind != PLAN_INPUT || step->index == s->input)
			continue;
		const PlanInput *in = &plan->inputs[step->index];
		if (s->input >= 0 || !data_is_text(plan->data[in->data].type) || in->ndim > 1 ||
		    in->dtype != PD_I32)
			return fail(f, EXIT_FILES,
				    "sample continues text: the predictions of this model read '%s'",
				    in->name);
		s->input = step->index;
	}
	if (s->input < 0)
		return fail(f, EXIT_FILES, "the predictions of this model read no data");
	const PlanInput *in = &plan->inputs[s->input];
	const PlanData *data = &plan->data[in->data];
	s->bytes = !strcmp(data->type, "bytes");
	if (!strcmp(data->type, "text")) {
		DataSet set = { .plan = plan, .decl = data, .override = s->o->data, .noverride = s->o->ndata };
		if (!(s->bpe = data_vocabulary(&set, f)))
			return false;
	}
	s->window = in->ndim ? in->dim[0] : 1;
	return true;
}

/* Logits are [1, T, vocab], floats. */
static bool find_logits(Sampler *s, Fail *f)
{
	const PlanOutput *o = run_large_output(s->func);
	if (!o || o->ndim != 3 || o->dim[1] != s->window || o->dtype < PD_F16)
		return fail(f, EXIT_FILES,
			    "sample needs predictions of [batch, %" PRId64
			    ", vocabulary]: logits of the next token at each place",
			    s->window);
	s->logits = o;
	s->vocab = o->dim[2];
	return true;
}

/* The logits of one place, after a run of the window. */
static bool run_window(Sampler *s, int64_t place, Fail *f)
{
	RunCall call = { .seed = s->t.state.seed,
			 .step = s->t.state.step,
			 .source = { read_window, s } };
	int64_t bytes = s->vocab * plan_dtype_bytes(s->logits->dtype);
	int64_t offset = run_output_offset(s->func, s->logits) + place * bytes;
	if (!device_call(s->t.device, s->func, &call, f) || !device_wait(s->t.device, s->func, 0, f) ||
	    !device_read(s->t.device, offset, bytes, s->place, f))
		return false;
	for (int64_t i = 0; i < s->vocab; i++) {
		s->weight[i] = plan_element(s->logits->dtype, s->place, i);
		if (isnan(s->weight[i]))
			return fail(f, EXIT_INPUT, "the logits of token %" PRId64 " are not numbers", i);
	}
	return true;
}

/* Another token behind the first must not change what is predicted at the first. */
static bool check_causal(Sampler *s, Fail *f)
{
	if (s->window < 2)
		return true;
	memset(s->token, 0, (size_t)s->window * sizeof *s->token);
	if (!run_window(s, 0, f))
		return false;
	memcpy(s->sorted, s->weight, (size_t)s->vocab * sizeof *s->weight);
	s->token[1] = s->vocab > 1;
	if (!run_window(s, 0, f))
		return false;
	s->token[1] = 0;
	if (memcmp(s->sorted, s->weight, (size_t)s->vocab * sizeof *s->weight) != 0)
		return fail(f, EXIT_FILES,
			    "this model looks ahead: what it predicts for a token depends on those "
			    "behind it, so it cannot continue a text");
	return true;
}

/* ---- drawing -------------------------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x < y) - (x > y);
}

/* Turns logits into weights: exp((x - max) / temperature), zero below the k-th largest. */
static void weigh(Sampler *s)
{
	double temperature = s->o->temperature, max = -INFINITY, least = -INFINITY;
	int64_t k = s->o->top_k;
	for (int64_t i = 0; i < s->vocab; i++)
		max = s->weight[i] > max ? s->weight[i] : max;
	if (k > 0 && k < s->vocab) {
		memcpy(s->sorted, s->weight, (size_t)s->vocab * sizeof *s->weight);
		qsort(s->sorted, (size_t)s->vocab, sizeof *s->sorted, descending);
		least = s->sorted[k - 1];
	}
	for (int64_t i = 0; i < s->vocab; i++) {
		double x = s->weight[i];
		s->weight[i] = x < least          ? 0
			       : x == max         ? 1
			       : temperature == 0 ? 0
						  : exp((x - max) / temperature);
	}
}

static int64_t draw(Sampler *s, int64_t i)
{
	double sum = 0, u = data_uniform(s->o->has_seed ? s->o->seed : s->t.state.seed, i);
	int64_t last = 0;
	for (int64_t k = 0; k < s->vocab; k++)
		sum += s->weight[k];
	u *= sum;
	for (int64_t k = 0; k < s->vocab; k++) {
		if (s->weight[k] <= 0)
			continue;
		last = k;
		if (s->o->temperature == 0 || u < s->weight[k])
			break;
		u -= s->weight[k];
	}
	return last;
}

/* ---- text in and out ------------------------------------------------------------------------ */

static void append(Sampler *s, int64_t token)
{
	if (s->filled == s->window)
		memmove(s->token, s->token + 1, (size_t)--s->filled * sizeof *s->token);
	s->token[s->filled++] = (int32_t)token;
}

static void print(const Sampler *s, int64_t token)
{
	size_t n = 0;
	const unsigned char *text = s->bpe ? bpe_token(s->bpe, token, &n) : NULL;
	if (s->bpe)
		fwrite(text ? text : (const unsigned char *)"", 1, n, stdout);
	else if (s->bytes)
		putchar((int)token);
	else
		printf("%" PRId64 " ", token);
	fflush(stdout);
}

typedef struct Prompt {
	Sampler *s;
	bool taken; /* else only looked at */
	bool shown;
	Fail *f;
} Prompt;

static bool take_token(const Prompt *p, int64_t token)
{
	if (token < 0 || token >= p->s->vocab)
		return fail(p->f, EXIT_FILES, "--prompt: token %" PRId64 ", the model knows 0 to %" PRId64, token, p->s->vocab - 1);
	if (p->taken)
		append(p->s, token);
	if (p->taken && p->shown)
		print(p->s, token);
	return true;
}

/* A BpeSink. */
static bool take_prompt(void *ctx, const int32_t *id, size_t n)
{
	Prompt *p = ctx;
	for (size_t i = 0; i < n; i++)
		if (!take_token(p, id[i]))
			return false;
	return true;
}

/* --prompt: text for a model of bytes or with a vocabulary, numbers for one of tokens. Without one, a line's end or token 0. */
static bool walk_prompt(Prompt *to)
{
	const Sampler *s = to->s;
	const char *p = s->o->prompt;
	if (s->bpe) {
		const char *text = p && *p ? p : "\n";
		return bpe_encode(s->bpe, (const unsigned char *)text, strlen(text), take_prompt, to, to->f);
	}
	if (!p)
		return take_token(to, s->bytes ? '\n' : 0);
	while (*p) {
		char *end = NULL;
		long long token = s->bytes ? (unsigned char)*p : strtoll(p, &end, 10);
		if (end == p)
			return fail(to->f, EXIT_FILES,
				    "--prompt: this model's text is numbers of tokens, such as \"464 1110\", got '%s'",
				    p);
		if (!take_token(to, token))
			return false;
		p = s->bytes ? p + 1 : end + strspn(end, " ,");
	}
	return true;
}

/* All of it is looked at before any is printed. */
static bool read_prompt(Sampler *s, Fail *f)
{
	const char *p = s->o->prompt;
	Prompt to = { s, false, p && *p, f };
	if (!walk_prompt(&to))
		return false;
	to.taken = true;
	return walk_prompt(&to);
}

static bool generate(Sampler *s, Fail *f)
{
	int64_t n = s->o->length >= 0 ? s->o->length : SAMPLE_LENGTH;
	for (int64_t i = 0; i < n && !ferror(stdout); i++) {
		if (!run_window(s, s->filled - 1, f))
			return false;
		weigh(s);
		int64_t token = draw(s, i);
		append(s, token);
		print(s, token);
	}
	printf("\n");
	return true;
}

static bool prepare(Sampler *s, Fail *f)
{
	s->func = run_find(s->t.plan, "predict1");
	if (!s->func)
		return fail(f, EXIT_FILES, "this model has no 'predict' output");
	if (!find_window(s, f) || !find_logits(s, f))
		return false;
	s->token = calloc((size_t)s->window, sizeof *s->token);
	s->place = malloc((size_t)(s->vocab * plan_dtype_bytes(s->logits->dtype)));
	s->weight = malloc((size_t)s->vocab * sizeof *s->weight);
	s->sorted = malloc((size_t)s->vocab * sizeof *s->sorted);
	return (s->token && s->place && s->weight && s->sorted) || fail(f, EXIT_FILES, "out of memory");
}

int command_sample(const Plan *plan, const Options *o)
{
	Fail f = { 0 };
	Sampler s = { .o = o };
	TrainerOptions to = trainer_options(o);
	Options weights = *o; /* a resumed run keeps its seed; here --seed is that of the draws */
	weights.has_seed = false;
	to.no_data = true;
	if (!trainer_open(&s.t, plan, &to, "predict1", &f))
		return report(&f);
	bool ok = prepare(&s, &f) && load_for_use(&s.t, &weights, &f) && check_causal(&s, &f) &&
		  read_prompt(&s, &f) && generate(&s, &f);
	bpe_close(s.bpe);
	free(s.token);
	free(s.place);
	free(s.weight);
	free(s.sorted);
	trainer_close(&s.t);
	return ok ? EXIT_DONE : report(&f);
}

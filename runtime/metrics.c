/* JSON lines and progress; see metrics.h. Everything is formatted into fixed buffers: nothing
 * allocates. */
#include "metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- JSON ----------------------------------------------------------------------------------- */

void json_begin(JsonLine *j)
{
	j->text[0] = '{';
	j->n = 1;
}

/* Adds a field, unless it would not fit with the closing brace. */
__attribute__((format(printf, 3, 4))) static void field(JsonLine *j, const char *key,
							const char *fmt, ...)
{
	char value[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(value, sizeof value, fmt, ap);
	va_end(ap);
	size_t left = sizeof j->text - 3 - j->n;
	int n = snprintf(j->text + j->n, left, "%s\"%s\":%s", j->n > 1 ? "," : "", key, value);
	if (n > 0 && (size_t)n < left)
		j->n += (size_t)n;
}

void json_int(JsonLine *j, const char *key, int64_t v)
{
	field(j, key, "%" PRId64, v);
}

void json_num(JsonLine *j, const char *key, double v)
{
	char text[40];
	if (!isfinite(v)) {
		field(j, key, "null");
		return;
	}
	for (int digits = 9; digits <= 17; digits += 8) {
		snprintf(text, sizeof text, "%.*g", digits, v);
		if (strtod(text, NULL) == v || (digits == 9 && (double)(float)v == v))
			break;
	}
	field(j, key, "%s", text);
}

void json_bool(JsonLine *j, const char *key, bool v)
{
	field(j, key, "%s", v ? "true" : "false");
}

static size_t escape(char *out, size_t size, const char *s)
{
	size_t n = 0;
	for (; *s && n + 8 < size; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			n += (size_t)snprintf(out + n, size - n, "\\%c", c);
		else if (c < 0x20)
			n += (size_t)snprintf(out + n, size - n, "\\u%04x", (unsigned)c);
		else
			out[n++] = *s;
	}
	out[n] = 0;
	return n;
}

void json_str(JsonLine *j, const char *key, const char *v)
{
	char text[1000];
	escape(text, sizeof text, v);
	field(j, key, "\"%s\"", text);
}

void json_end(JsonLine *j)
{
	j->text[j->n++] = '}';
	j->text[j->n++] = '\n';
	j->text[j->n] = 0;
}

void json_print_string(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		char one[2] = { *s, 0 }, text[16];
		escape(text, sizeof text, one);
		fputs(text, out);
	}
	fputc('"', out);
}

/* ---- evaluations ---------------------------------------------------------------------------- */

const char *eval_text(const EvalResult *r, char out[128])
{
	size_t n = 0;
	out[0] = 0;
	if (r->has_accuracy)
		n += (size_t)snprintf(out + n, 128 - n, ", accuracy %.2f %%", 100 * r->accuracy);
	if (r->has_top)
		n += (size_t)snprintf(out + n, 128 - n, ", top-k %.2f %%", 100 * r->top_accuracy);
	if (r->of_text)
		n += (size_t)snprintf(out + n, 128 - n, ", perplexity %.4g", exp(r->loss));
	if (r->of_bytes)
		snprintf(out + n, 128 - n, ", %.3f bits per byte", r->loss / log(2));
	return out;
}

void json_eval(JsonLine *j, const char *prefix, const EvalResult *r)
{
	char key[64];
	snprintf(key, sizeof key, "%sloss", prefix);
	json_num(j, key, r->loss);
	snprintf(key, sizeof key, "%saccuracy", prefix);
	if (r->has_accuracy)
		json_num(j, key, r->accuracy);
	snprintf(key, sizeof key, "%stop_k_accuracy", prefix);
	if (r->has_top)
		json_num(j, key, r->top_accuracy);
	snprintf(key, sizeof key, "%sperplexity", prefix);
	if (r->of_text)
		json_num(j, key, exp(r->loss));
	snprintf(key, sizeof key, "%sbits_per_byte", prefix);
	if (r->of_bytes)
		json_num(j, key, r->loss / log(2));
}

/* ---- progress ------------------------------------------------------------------------------- */

const char *duration_text(double seconds, char out[32])
{
	int64_t s = (int64_t)(seconds + 0.5);
	if (s >= 3600)
		snprintf(out, 32, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60),
			 (int)(s % 60));
	else if (s >= 60)
		snprintf(out, 32, "%d:%02d", (int)(s / 60), (int)(s % 60));
	else
		snprintf(out, 32, "%d s", (int)s);
	return out;
}

void progress_begin(Progress *p, const Trainer *t, int64_t total, bool quiet)
{
	const char *term = getenv("TERM");
	*p = (Progress){ .out = stdout, .quiet = quiet, .first = t->state.step, .total = total };
	p->terminal = isatty(STDOUT_FILENO) && !(term && !strcmp(term, "dumb"));
	p->samples_per_step = t->plan->batch;
	p->tokens_per_sample = data_tokens(t->data);
	p->bytes = t->plan->arena_bytes;
	p->start = p->last = seconds_now();
}

static void append(char *line, size_t size, size_t *n, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static void append(char *line, size_t size, size_t *n, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int w = vsnprintf(line + *n, size - *n, fmt, ap);
	va_end(ap);
	if (w > 0)
		*n = *n + (size_t)w < size ? *n + (size_t)w : size - 1;
}

static void bar(char *line, size_t size, size_t *n, const Progress *p, int64_t step)
{
	enum { WIDTH = 20 };
	int full = p->total > 0 ? (int)(step * WIDTH / p->total) : WIDTH;
	append(line, size, n, " [");
	for (int i = 0; i < WIDTH; i++)
		append(line, size, n, "%c", i < full ? '=' : i == full ? '>' : ' ');
	append(line, size, n, "]");
}

static void show(Progress *p, int64_t step, const StepResult *r, double now)
{
	char line[512], memory[32], eta[32];
	size_t n = 0;
	double spent = now - p->start, done = (double)(step - p->first);
	double per_second = spent > 0 ? done / spent : 0;
	double rate = per_second * (double)p->samples_per_step *
		      (p->tokens_per_sample ? (double)p->tokens_per_sample : 1);
	append(line, sizeof line, &n, "step %" PRId64 "/%" PRId64, step, p->total);
	if (p->terminal)
		bar(line, sizeof line, &n, p, step);
	append(line, sizeof line, &n, "  loss %.4f", r->loss);
	if (r->has_grad_norm)
		append(line, sizeof line, &n, "  norm %.3f", isnan(r->grad_norm) ? NAN : r->grad_norm); /* no "-nan" */
	if (r->has_lr)
		append(line, sizeof line, &n, "  lr %.3g", r->lr);
	if (r->has_scale)
		append(line, sizeof line, &n, "  scale %g", r->scale);
	if (p->skipped)
		append(line, sizeof line, &n, "  %" PRId64 " skipped", p->skipped);
	append(line, sizeof line, &n, "  %.0f %s/s  %s", rate,
	       p->tokens_per_sample ? "tokens" : "samples", memory_text(p->bytes, memory));
	if (per_second > 0 && step < p->total)
		append(line, sizeof line, &n, "  %s left",
		       duration_text((double)(p->total - step) / per_second, eta));
	if (p->terminal)
		fprintf(p->out, "\r%s\033[K", line);
	else
		fprintf(p->out, "%s\n", line);
	fflush(p->out);
	p->open = p->terminal;
	p->last = now;
}

void progress_step(Progress *p, int64_t step, const StepResult *r)
{
	p->skipped += r->skipped;
	if (p->quiet)
		return;
	double now = seconds_now();
	int64_t part = (p->total - p->first + 19) / 20;
	bool due = p->terminal ? now - p->last >= 0.1
			       : (step - p->first) % part == 0 || now - p->last >= 10;
	if (due || step == p->total || step == p->first + 1)
		show(p, step, r, now);
}

void progress_clear(Progress *p)
{
	if (p->open)
		fprintf(p->out, "\n");
	p->open = false;
}

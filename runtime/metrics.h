/* What a run tells while it trains: JSON lines for programs, a line of progress for people. */
#ifndef DLC_RUNTIME_METRICS_H
#define DLC_RUNTIME_METRICS_H

#include "train.h"

#include <stdio.h>

/* A JSON object on one line, in a buffer of its own; too long a line is cut at a whole field. */
typedef struct JsonLine {
	char text[4096];
	size_t n;
} JsonLine;

void json_begin(JsonLine *j);
void json_int(JsonLine *j, const char *key, int64_t v);
void json_num(
	JsonLine *j, const char *key,
	double v); /* 9 digits where they give the float back, else 17; null where not finite */
void json_bool(JsonLine *j, const char *key, bool v);
void json_str(JsonLine *j, const char *key, const char *v);
void json_end(JsonLine *j); /* closes the object, adds a newline */
/* Writes a JSON string with its quotes. */
void json_print_string(FILE *out, const char *s);

typedef struct Progress {
	FILE *out;
	bool terminal, quiet;
	int64_t first, total; /* steps done at the start, steps in all */
	double start, last;   /* times of the start and of the last line */
	int64_t samples_per_step;
	int64_t tokens_per_sample; /* > 0: the rate counts tokens */
	int64_t bytes;             /* memory to show */
	int64_t skipped;           /* steps of this run that updated nothing */
	bool open;                 /* a terminal line without its end */
} Progress;

void progress_begin(Progress *p, const Trainer *t, int64_t total, bool quiet);
/* Shows a step when it is time: ten times a second on a terminal, else every twentieth of the run
 * or ten seconds. */
void progress_step(Progress *p, int64_t step, const StepResult *r);
/* Ends an open terminal line, so that other text can follow. */
void progress_clear(Progress *p);

/* An evaluation's figures after the loss: ", accuracy 92.50 %, perplexity 7.21, 2.850 bits per byte". */
const char *eval_text(const EvalResult *r, char out[128]);
/* The same as fields, their names behind `prefix`; with the loss. */
void json_eval(JsonLine *j, const char *prefix, const EvalResult *r);

/* "1:02:03", "4:05", "12 s" */
const char *duration_text(double seconds, char out[32]);

#endif

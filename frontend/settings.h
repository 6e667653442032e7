/* What the readers of `train` share: settings.c (settings, optimizer, schedule) and tuning.c (groups
 * of parameters, frozen ones, adapters). */
#ifndef DLC_FRONTEND_SETTINGS_H
#define DLC_FRONTEND_SETTINGS_H

#include "front.h"

/* An optimizer: its arguments, by position or by name, and the defaults that are its own. */
enum { MAX_ARGS = 6 };

typedef struct Optimizer {
	const char *name, *usage, *args[MAX_ARGS];
	unsigned bit; /* in Key.owners */
	double lr;
	struct {
		const char *key;
		double value;
	} dflt[3];
} Optimizer;

/* Settings that are being read: the block's, or one group's. */
typedef struct Train {
	Front *f;
	Frame frame;
	const Arg *settings;  /* of the train block; NULL in a group */
	const Arg *arguments; /* of the optimizer or of the group */
	const Optimizer *optimizer;
	Section *out;
	bool group; /* -D does not reach here: it replaces `groups` as a whole */
} Train;

/* What sets `key` (-D, the train block, the arguments), else NULL. `text`: a string is wanted. */
Expr *settings_source(Train *t, const char *key, bool text);
/* Evaluates what may use constants alone. */
Val settings_constant(Train *t, Expr *e);
/* A number of this kind within its range; `dflt` after an error. */
double settings_number(Train *t, const Expr *e, Val v, const char *key, AttrKind kind, double low,
		       double high, double dflt);
/* Reads a group's arguments, named ones, into t->out. */
void settings_group(Train *t);

/* ---- tuning.c: what is said of parameters by name ---- */

/* A name of parameters or layers in which `*` stands for any text. */
typedef struct Pattern {
	const char *text;
	Span span;
	bool used; /* something matched it */
	struct Pattern *next;
} Pattern;

/* The first of a list that matches, all of which are marked used; NULL. */
Pattern *pattern_match(Pattern *list, const char *name);
/* The patterns in the value of `e`, one string or a list of them; NULL where there is none, and
 * after an error. `what` names the setting. */
Pattern *patterns_of(Train *t, const Expr *e, Val v, const char *what);
/* Errors for patterns that nothing matched; `names` are those there are, `of` says of what. */
void patterns_check(Front *f, const Pattern *list, const char *of, const NameMap *names);
/* Reads them with the settings; tuning_apply (front.h) uses them once the model's parameters are
 * known. */
void tuning_read(Train *t);
/* Whether `train` may have this setting because tuning_read takes it. */
bool tuning_has(const char *key);
void tuning_suggest(Suggest *s);

/* ---- lora.c: adapters of linear layers ---- */

typedef struct Lora {
	Pattern *on; /* NULL: there is none */
	int64_t rank;
	double alpha, dropout;
	Span span;
} Lora;

/* Reads lora(on, rank, alpha, dropout). */
void lora_read(Train *t, const Expr *e, Lora *out);
/* Puts the adapters into the model. */
void lora_apply(Front *f, const Lora *l);

#endif

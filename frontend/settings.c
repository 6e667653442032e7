/* The train block and the -D options.
 *
 * `train` is flat: the arguments of the optimizer and of its schedule become settings of their own
 * (lr, lr_kind, momentum, ...). Where one is written both ways, the setting beside the optimizer
 * wins over the optimizer's argument, and -D over both. The section that comes out has every
 * setting, but for those of another optimizer that are `sparse`. A group's arguments are read by
 * the same rows. */
#include "settings.h"

/* ---- -D ---- */

static bool is_name(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || s[i] == '_' ||
		      (i > 0 && s[i] >= '0' && s[i] <= '9')))
			return false;
	return n > 0;
}

bool overrides_read(Front *f)
{
	Override **end = &f->overrides;
	bool good = true;

	for (int i = 0; i < f->opt->ndefines; i++) {
		const char *s = f->opt->defines[i], *eq = strchr(s, '=');
		size_t n = eq ? (size_t)(eq - s) : strlen(s), len = strlen(s);
		int source = diag_source(f->diag, "-D", s, len);
		const char *dot = memchr(s, '.', n), *key = dot ? dot + 1 : s;
		Override *o = ARENA_NEW(f->arena, Override);
		if (!eq || !is_name(key, n - (size_t)(key - s)) ||
		    (dot && !is_name(s, (size_t)(dot - s)))) {
			diag_error(f->diag, (Span){ source, 0, (int32_t)n },
				   "expected name=value, train.KEY=value or DATA.KEY=value");
			good = false;
			continue;
		}
		*o = (Override){ .key = arena_strndup(f->arena, key, n - (size_t)(key - s)),
				 .text = eq + 1,
				 .offset = (int32_t)n + 1,
				 .span = { source, 0, (int32_t)len },
				 .name = { source, 0, (int32_t)n } };
		o->scope = dot ? arena_strndup(f->arena, s, (size_t)(dot - s)) : NULL;
		*end = o;
		end = &o->next;
	}
	return good;
}

Override *override_find(Front *f, const char *scope, const char *key)
{
	Override *last = NULL;

	for (Override *o = f->overrides; o; o = o->next)
		if ((scope ? o->scope && !strcmp(o->scope, scope) : !o->scope) &&
		    !strcmp(o->key, key)) {
			o->used = true;
			last = o;
		}
	return last;
}

/* Text taken as it is: braces mean themselves. */
static Expr *text_expr(Front *f, const Override *o)
{
	Expr *e = ARENA_NEW(f->arena, Expr);
	char *s = arena_alloc(f->arena, 2 * strlen(o->text) + 1);

	*e = (Expr){ .kind = E_STR, .depth = 1, .span = o->span, .s = s };
	for (const char *p = o->text; *p; p++) {
		if (*p == '{' || *p == '}')
			*s++ = '\\';
		*s++ = *p;
	}
	return e;
}

Expr *override_expr(Front *f, Override *o, bool text)
{
	if (!o->read)
		o->expr = text && o->text[0] != '"'
				  ? text_expr(f, o)
				  : ast_parse_expr(f->arena, f->diag, o->span.source, o->text,
						   strlen(o->text), o->offset);
	o->read = true;
	return o->expr;
}

/* ---- what train has ---- */

/* Optimizers, as bits of Key.owners; 0: a setting of `train` alone. */
enum { SGD = 1, ADAM = 2, ADAMW = 4, LION = 8, ADAFACTOR = 16, GROUP = 32, EVERY = 63 };

typedef struct Key {
	const char *name;
	unsigned owners; /* whose argument it may be */
	AttrKind kind;   /* A_INT, A_FLOAT, A_BOOL */
	double dflt, low, high;
	bool sparse; /* left out of the section where nothing sets it */
} Key;

static const Key keys[] = {
	{ "batch", 0, A_INT, 64, 1, 1 << 24, false },
	{ "steps", 0, A_INT, 1000, 1, 1e15, false },
	{ "clip_norm", 0, A_FLOAT, 0, 0, 1e30, false },
	{ "clip_value", 0, A_FLOAT, 0, 0, 1e30, true },
	{ "ema", 0, A_FLOAT, 0, 0, 1, true },
	{ "seed", 0, A_INT, 1, 0, 9.2e18, false },
	{ "eval_every", 0, A_INT, 0, 0, 1e15, false },
	{ "save_every", 0, A_INT, 0, 0, 1e15, false },
	{ "keep", 0, A_INT, 0, 0, 1e15, false },
	{ "save_best", 0, A_BOOL, 0, 0, 1, false },
	{ "early_stop", 0, A_INT, 0, 0, 1e15, false },
	{ "drop_last", 0, A_BOOL, 1, 0, 1, true },
	{ "top_k", 0, A_INT, 0, 1, 1 << 20, true },
	{ "loss_scale_init", 0, A_FLOAT, 65536, 1e-30, 1e30, true },
	{ "loss_scale_growth", 0, A_FLOAT, 2, 1, 1e30, true },
	{ "loss_scale_backoff", 0, A_FLOAT, 0.5, 1e-30, 1, true },
	{ "loss_scale_interval", 0, A_INT, 2000, 1, 1 << 30, true },
	{ "weight_decay", EVERY, A_FLOAT, 0, 0, 1e30, false },
	{ "momentum", SGD, A_FLOAT, 0, 0, 1, false },
	{ "dampening", SGD, A_FLOAT, 0, 0, 1, false },
	{ "nesterov", SGD, A_BOOL, 0, 0, 1, false },
	{ "beta1", ADAM | ADAMW | LION, A_FLOAT, 0.9, 0, 1, false },
	{ "beta2", ADAM | ADAMW | LION, A_FLOAT, 0.999, 0, 1, false },
	{ "eps", ADAM | ADAMW, A_FLOAT, 1e-8, 0, 1, false },
	{ "beta2_decay", ADAFACTOR, A_FLOAT, -0.8, -100, 0, true },
	{ "eps1", ADAFACTOR, A_FLOAT, 0, 0, 1, true }, /* 0: of the type */
	{ "eps2", ADAFACTOR, A_FLOAT, 1e-3, 0, 1e30, true },
	{ "d", ADAFACTOR, A_FLOAT, 1, 1, 1e30, true },
	{ "lr_scale", GROUP, A_FLOAT, 1, 0, 1e30, true },
};
enum { NKEYS = sizeof keys / sizeof *keys };

static const char *const special[] = { "precision", "loss_scale", "optimizer", "lr", "betas" };

#define ADAM_ARGS { "lr", "betas", "eps", "weight_decay" }
static const Optimizer optimizers[] = {
	{ "sgd", "sgd(lr, momentum, dampening, nesterov, weight_decay)",
	  { "lr", "momentum", "dampening", "nesterov", "weight_decay" }, SGD, 1e-2, { { 0 } } },
	{ "adam", "adam(lr, betas, eps, weight_decay)", ADAM_ARGS, ADAM, 1e-3, { { 0 } } },
	{ "adamw", "adamw(lr, betas, eps, weight_decay)", ADAM_ARGS, ADAMW, 1e-3,
	  { { "weight_decay", 0.01 } } },
	{ "lion", "lion(lr, betas, weight_decay)", { "lr", "betas", "weight_decay" }, LION, 1e-4,
	  { { "beta2", 0.99 } } },
	{ "adafactor", "adafactor(lr, beta2_decay, eps1, eps2, d, weight_decay)",
	  { "lr", "beta2_decay", "eps1", "eps2", "d", "weight_decay" }, ADAFACTOR, 1e-2, { { 0 } } },
};
enum { NOPTIMIZERS = sizeof optimizers / sizeof *optimizers, DEFAULT_OPTIMIZER = 2 /* adamw */ };

/* The arguments of a schedule, by position or by name, and what they become. */
typedef struct Schedule {
	const char *name, *usage, *args[MAX_ARGS];
	const char *param; /* the argument that becomes lr_param */
	double dflt;       /* of it; 0: it is needed */
} Schedule;

static const Schedule schedules[] = {
	{ "constant", "constant(peak, warmup = 0)", { "peak", "warmup" }, NULL, 0 },
	{ "linear", "linear(peak, min = 0, total = steps, warmup = 0)",
	  { "peak", "min", "total", "warmup" }, NULL, 0 },
	{ "cosine", "cosine(peak, min = 0, total = steps, warmup = 0)",
	  { "peak", "min", "total", "warmup" }, NULL, 0 },
	{ "step", "step(peak, every, min = 0, warmup = 0)",
	  { "peak", "every", "min", "warmup" }, "every", 0 },
	{ "wsd", "wsd(peak, min = 0, total = steps, last = 0.2, warmup = 0)",
	  { "peak", "min", "total", "last", "warmup" }, "last", 0.2 },
};

/* ---- evaluation ---- */

/* Of several places that set a key, the last in this order wins. */
typedef enum Place { BY_NONE, BY_ARGUMENT, BY_BLOCK, BY_OVERRIDE } Place;

typedef struct Source {
	Expr *e; /* NULL: nothing sets it */
	Place place;
	const Override *override;
} Source;

static Source source_of(Train *t, const char *key, bool text)
{
	Override *o = t->group ? NULL : override_find(t->f, "train", key);
	Source s = { NULL, BY_NONE, o };

	for (const Arg *a = t->arguments; a; a = a->next)
		if (a->name && !strcmp(a->name, key))
			s = (Source){ a->value, BY_ARGUMENT, o };
	for (const Arg *a = t->settings; a; a = a->next)
		if (!strcmp(a->name, key))
			s = (Source){ a->value, BY_BLOCK, o };
	if (!o)
		return s;
	s = (Source){ override_expr(t->f, o, text), BY_OVERRIDE, o };
	if (!s.e) { /* reported: stands for the default */
		s.e = ARENA_NEW(t->f->arena, Expr);
		s.e->kind = E_POISON;
		s.e->span = o->span;
	}
	return s;
}

Expr *settings_source(Train *t, const char *key, bool text)
{
	return source_of(t, key, text).e;
}

Val settings_constant(Train *t, Expr *e)
{
	sema_constant(t->f, e);
	return eval_expr(t->f, &t->frame, e);
}

static void put(Train *t, const char *key, AttrKind kind, Attr v, Span s)
{
	ir_set(t->f->module, t->out, key, kind, v)->span = s;
}

static void put_num(Train *t, const char *key, AttrKind kind, double v, Span s)
{
	put(t, key, kind, kind == A_FLOAT ? (Attr){ .f = v } : (Attr){ .i = (int64_t)v }, s);
}

double settings_number(Train *t, const Expr *e, Val v, const char *key, AttrKind kind, double low,
		       double high, double dflt)
{
	Front *f = t->f;

	if (v.kind == V_POISON)
		return dflt;
	if (kind == A_BOOL  ? v.kind != V_BOOL
	    : kind == A_INT ? v.kind != V_INT
			    : !val_is_number(v)) {
		front_error(f, &t->frame, e->span, "'%s' must be %s, got %s", key,
			    kind == A_BOOL  ? "true or false"
			    : kind == A_INT ? "a whole number"
					    : "a number",
			    val_describe(f->arena, v));
		return dflt;
	}
	double x = kind == A_BOOL ? v.b : val_number(v);
	if (x >= low && x <= high)
		return x;
	front_error(f, &t->frame, e->span, "'%s' is %s, must be %s %.15g", key,
		    val_text(f->arena, v), x < low ? "at least" : "at most", x < low ? low : high);
	return dflt;
}

static double default_of(const Train *t, const Key *k)
{
	size_t n = sizeof t->optimizer->dflt / sizeof *t->optimizer->dflt;

	for (size_t i = 0; i < n && t->optimizer->dflt[i].key; i++)
		if (!strcmp(t->optimizer->dflt[i].key, k->name))
			return t->optimizer->dflt[i].value;
	return k->dflt;
}

static void put_key(Train *t, const Key *k)
{
	Expr *e = settings_source(t, k->name, false);
	double dflt = default_of(t, k);
	Span at = e ? e->span : t->out->span;
	Val v = e ? settings_constant(t, e) : POISON;
	double x = e ? settings_number(t, e, v, k->name, k->kind, k->low, k->high, dflt) : dflt;

	if (!e && (t->group || (k->sparse && !(k->owners & t->optimizer->bit))))
		return;
	if (!strcmp(k->name, "batch"))
		put_num(t, k->name, A_INT, (double)t->f->module->batch, at);
	else if (!strcmp(k->name, "seed") && t->f->opt->seed)
		put(t, k->name, A_INT, (Attr){ .i = (int64_t)t->f->opt->seed }, at);
	else if (v.kind == V_INT && k->kind == A_INT && (double)v.i == x)
		put(t, k->name, A_INT, (Attr){ .i = v.i }, at); /* exact beyond 2^53 */
	else
		put_num(t, k->name, k->kind, x, at);
}

/* ---- learning rate ---- */

static const Schedule *find_schedule(Train *t, const Expr *e)
{
	Suggest s = suggest_start(e->call.name);

	for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
		if (!strcmp(schedules[i].name, e->call.name))
			return &schedules[i];
		suggest_try(&s, schedules[i].name);
	}
	if (front_error(t->f, &t->frame, e->call.name_span, "unknown schedule '%s'",
			e->call.name)) {
		suggest_hint(&s, t->f->diag);
		if (!s.best)
			diag_hint(t->f->diag, "there are constant, linear, cosine, step and wsd");
	}
	return NULL;
}

typedef struct Rate {
	const char *kind;
	double peak, min, param;
	int64_t warmup, total;
} Rate;

/* The argument `key` of a schedule: the default where it is absent or the schedule has none. */
static double take_number(Train *t, Actuals *a, const Schedule *s, const char *key, AttrKind kind,
			  double low, double dflt)
{
	for (int i = 0; i < MAX_ARGS && s->args[i]; i++) {
		if (strcmp(s->args[i], key) != 0)
			continue;
		const Actual *x = actual_take(a, i, key);
		return x ? settings_number(t, x->expr, x->v, key, kind, low, kind == A_INT ? 1e15 : 1e30,
				    dflt)
			 : dflt;
	}
	return dflt;
}

static void read_schedule(Train *t, const Expr *e, Rate *r)
{
	const Schedule *s = find_schedule(t, e);
	Front *f = t->f;
	Actuals args;

	if (!s)
		return;
	for (Arg *a = e->call.args; a; a = a->next)
		sema_constant(f, a->value);
	if (!eval_args(f, &t->frame, e->call.args, &args) || args.poison)
		return;
	if (!args.n &&
	    front_error(f, &t->frame, e->span, "%s needs the peak of the learning rate", s->name))
		diag_hint(f->diag, "it is called as %s", s->usage);
	r->kind = s->name;
	r->peak = take_number(t, &args, s, "peak", A_FLOAT, 0, r->peak);
	r->warmup = (int64_t)take_number(t, &args, s, "warmup", A_INT, 0, 0);
	r->min = take_number(t, &args, s, "min", A_FLOAT, 0, 0);
	r->total = (int64_t)take_number(t, &args, s, "total", A_INT, 1, (double)r->total);
	if (s->param) {
		bool needed = s->dflt <= 0;
		if (needed && args.npos < 2 && !actual_named(&args, s->param) &&
		    front_error(f, &t->frame, e->span, "%s needs '%s'", s->name, s->param))
			diag_hint(f->diag, "it is called as %s", s->usage);
		r->param = take_number(t, &args, s, s->param, needed ? A_INT : A_FLOAT, needed,
				       s->dflt);
	}
	actuals_done(f, &t->frame, &args, s->name, s->usage);
	if (r->param > 1 && s->dflt > 0)
		front_error(f, &t->frame, e->span, "'%s' is a part of the whole, at most 1, got %g",
			    s->param, r->param);
}

static void put_rate(Train *t)
{
	Rate r = { .kind = "constant", .peak = t->optimizer->lr };
	Expr *e = settings_source(t, "lr", false);
	Span s = e ? e->span : t->out->span;

	int64_t steps = (int64_t)ir_setting_num(ir_find_section(t->f->module, "train", ""), "steps", 1000);

	r.total = steps;
	if (e && e->kind == E_CALL && !e->call.primitive && builtin_find(e->call.name) < 0)
		read_schedule(t, e, &r);
	else if (e && e->kind == E_CALL && !strcmp(e->call.name, "constant"))
		read_schedule(t, e, &r);
	else if (e)
		r.peak = settings_number(t, e, settings_constant(t, e), "lr", A_FLOAT, 0, 1e30, r.peak);
	if (r.warmup >= steps)
		diag_warning(t->f->diag, s, "the warm-up takes %lld steps, the run %lld: the learning rate does not reach its peak",
			     (long long)r.warmup, (long long)steps);
	put(t, "lr_kind", A_STR, (Attr){ .s = r.kind }, s);
	put_num(t, "lr", A_FLOAT, r.peak, s);
	put_num(t, "lr_min", A_FLOAT, r.min, s);
	put_num(t, "lr_warmup", A_INT, (double)r.warmup, s);
	put_num(t, "lr_total", A_INT, (double)r.total, s);
	put_num(t, "lr_param", A_FLOAT, r.param, s);
}

/* ---- optimizer ---- */

/* The arguments with the names of their positions. */
static Arg *named_args(Train *t, const Optimizer *o, const Arg *args)
{
	Arg *first = NULL, **end = &first;
	bool named = false;
	int i = 0;

	for (const Arg *a = args; a; a = a->next, i++) {
		Arg *x = ARENA_NEW(t->f->arena, Arg);
		*x = *a;
		x->next = NULL;
		named |= a->name != NULL;
		if (!a->name && named) {
			front_error(t->f, &t->frame, a->span,
				    "an argument without a name comes after one with a name");
			continue;
		}
		if (!a->name && (i >= MAX_ARGS || !o->args[i])) {
			if (front_error(t->f, &t->frame, a->span, "%s takes fewer arguments",
					o->name))
				diag_hint(t->f->diag, "it is called as %s", o->usage);
			break;
		}
		if (!a->name)
			x->name = o->args[i];
		*end = x;
		end = &x->next;
	}
	return first;
}

/* The name and arguments of the optimizer: adamw, or adamw(lr = 1e-3). */
static void read_optimizer(Train *t)
{
	Front *f = t->f;
	Expr *e = settings_source(t, "optimizer", false);
	const char *name = NULL;
	const Arg *args = NULL;
	Span at;

	if (!e || e->kind == E_POISON)
		return;
	at = e->span;
	if (e->kind == E_NAME) {
		name = e->s;
	} else if (e->kind == E_CALL && !e->call.primitive) {
		name = e->call.name;
		at = e->call.name_span;
		args = e->call.args;
	}
	for (size_t i = 0; name && i < NOPTIMIZERS; i++)
		if (!strcmp(optimizers[i].name, name)) {
			t->optimizer = &optimizers[i];
			t->arguments = named_args(t, &optimizers[i], args);
			return;
		}
	if (!front_error(f, &t->frame, at,
			 name ? "unknown optimizer '%s'"
			      : "expected an optimizer such as adamw(lr = 1e-3)%s",
			 name ? name : ""))
		return;
	Suggest s = suggest_start(name ? name : "");
	for (size_t i = 0; i < NOPTIMIZERS; i++)
		suggest_try(&s, optimizers[i].name);
	suggest_hint(&s, f->diag);
	if (name && !s.best)
		diag_hint(f->diag, "there are sgd, adam, adamw, lion and adafactor");
}

/* Whether `betas` sets this beta, which may be set by its own name too. */
static bool takes_pair(Train *t, const Source *pair, const char *key)
{
	Source own = source_of(t, key, false);

	if (own.place != pair->place)
		return own.place < pair->place;
	if (own.place == BY_OVERRIDE) { /* the last of several */
		const Override *o = pair->override;
		while (o && o != own.override)
			o = o->next;
		return !o;
	}
	if (front_error(t->f, &t->frame, own.e->span, "'%s' is one of the 'betas' too", key))
		diag_note(t->f->diag, pair->e->span, "these");
	return false;
}

/* betas = (b1, b2) is written as a list. */
static void put_betas(Train *t)
{
	static const char *const names[] = { "beta1", "beta2" };
	Source pair = source_of(t, "betas", false);
	Expr *e = pair.e;
	Val v = e ? settings_constant(t, e) : POISON;

	if (!e || v.kind == V_POISON)
		return;
	if (v.kind != V_LIST || v.n != 2) {
		front_error(t->f, &t->frame, e->span,
			    "'betas' must be a list of two numbers such as [0.9, 0.999], got %s",
			    val_describe(t->f->arena, v));
		return;
	}
	for (int i = 0; i < 2; i++)
		if (takes_pair(t, &pair, names[i]))
			put_num(t, names[i], A_FLOAT,
				settings_number(t, e, v.at[i], "betas", A_FLOAT, 0, 1, 0), e->span);
}

/* ---- unknown settings ---- */

static const Key *find_key(const char *name)
{
	for (size_t i = 0; i < NKEYS; i++)
		if (!strcmp(keys[i].name, name))
			return &keys[i];
	return NULL;
}

static bool is_special(const char *name)
{
	for (size_t i = 0; i < sizeof special / sizeof *special; i++)
		if (!strcmp(special[i], name))
			return true;
	return false;
}

/* Whether the optimizer in use has this setting, if any optimizer has it; else an error. */
static bool check_owner(Train *t, const char *name, Span at)
{
	const Key *k = find_key(name);
	unsigned owners = k ? k->owners : !strcmp(name, "betas") ? ADAM | ADAMW | LION : 0;

	if (!owners || owners == GROUP || owners & t->optimizer->bit)
		return true;
	front_error(t->f, &t->frame, at, "%s has no '%s'", t->optimizer->name, name);
	return false;
}

/* Whether an optimizer or a group may have this argument. */
static bool is_argument(const Train *t, const char *name)
{
	const Key *k = find_key(name);

	return (k && k->owners && (t->group || k->owners != GROUP)) || !strcmp(name, "lr") ||
	       !strcmp(name, "betas");
}

/* Whether `name` is a setting here; else an error with a suggestion. */
static void check_key(Train *t, const char *name, Span at, bool argument)
{
	Front *f = t->f;
	const Key *k = find_key(name);
	Suggest s = suggest_start(name);

	if (argument ? is_argument(t, name)
		     : (k && k->owners != GROUP) || is_special(name) || tuning_has(name)) {
		check_owner(t, name, at);
		return;
	}
	for (size_t i = 0; i < NKEYS; i++)
		if (argument ? is_argument(t, keys[i].name) : keys[i].owners != GROUP)
			suggest_try(&s, keys[i].name);
	for (size_t i = argument ? 3 : 0; i < sizeof special / sizeof *special; i++)
		suggest_try(&s, special[i]);
	if (!argument)
		tuning_suggest(&s);
	if (front_error(f, &t->frame, at, argument ? "%s has no argument '%s'" : "%s has no setting '%s'",
			t->group   ? "group"
			: argument ? t->optimizer->name
				   : "train",
			name)) {
		suggest_hint(&s, f->diag);
		if (!s.best && argument && !t->group)
			diag_hint(f->diag, "it is called as %s", t->optimizer->usage);
	}
}

static void check_arguments(Train *t)
{
	for (const Arg *a = t->arguments; a; a = a->next) {
		check_key(t, a->name, a->span, true);
		for (const Arg *b = t->arguments; b != a; b = b->next)
			if (!strcmp(a->name, b->name))
				front_error(t->f, &t->frame, a->span,
					    "argument '%s' is given twice", a->name);
	}
}

static void check_keys(Train *t)
{
	Front *f = t->f;

	for (const Arg *a = t->settings; a; a = a->next) {
		check_key(t, a->name, a->span, false);
		for (const Arg *b = t->settings; b != a; b = b->next)
			if (!strcmp(a->name, b->name) &&
			    front_error(f, &t->frame, a->span, "'%s' is set twice", a->name))
				diag_note(f->diag, b->span, "first here");
	}
	check_arguments(t);
	for (const Override *o = f->overrides; o; o = o->next)
		if (o->scope && !strcmp(o->scope, "train"))
			check_owner(t, o->key, o->name);
}

/* ---- the section ---- */

static Train train_of(Front *f)
{
	const AstSection *s = f->user->trains;

	return (Train){ .f = f,
			.settings = s ? s->settings : NULL,
			.optimizer = &optimizers[DEFAULT_OPTIMIZER],
			.frame = {
				.constant = true, .path = "", .user = NO_SPAN, .call = NO_SPAN } };
}

int64_t settings_batch(Front *f)
{
	Train t = train_of(f);
	Expr *e = settings_source(&t, "batch", false);
	const Key *k = find_key("batch");
	double v = k->dflt;

	f->batch_state = 1;
	if (e)
		v = settings_number(&t, e, settings_constant(&t, e), k->name, k->kind, k->low, k->high, v);
	f->batch_state = 2;
	return (int64_t)v;
}

const char *settings_precision(Front *f)
{
	static const char *const names[][2] = {
		{ "fp32", "f32" }, { "fp64", "f64" }, { "bf16", "bf16" }, { "fp16", "f16" }, { "tf32", "tf32" }
	};
	Train t = train_of(f);
	Expr *e = settings_source(&t, "precision", true);
	const char *given = f->opt->precision;
	Span at = NO_SPAN;

	if (!given && e && e->kind != E_POISON) {
		given = e->kind == E_NAME || e->kind == E_STR ? e->s : "?";
		at = e->span;
	}
	if (!given)
		return names[0][0];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(given, names[i][0]) || !strcmp(given, names[i][1]))
			return names[i][0];
	if (front_error(f, &t.frame, at, "unknown precision '%s'", given))
		diag_hint(f->diag, "there are fp32, tf32, bf16, fp16 and fp64");
	return names[0][0];
}

/* `dynamic`, or a number: a scale that stays. */
static void put_loss_scale(Train *t)
{
	Expr *e = settings_source(t, "loss_scale", false);

	if (e && e->kind == E_NAME && !strcmp(e->s, "dynamic"))
		put(t, "loss_scale", A_STR, (Attr){ .s = "dynamic" }, e->span);
	else if (e && e->kind == E_NAME && !name_get(&t->f->consts, e->s))
		front_error(t->f, &t->frame, e->span, "'loss_scale' must be dynamic or a number, got '%s'", e->s);
	else if (e)
		put_num(t, "loss_scale", A_FLOAT,
			settings_number(t, e, settings_constant(t, e), "loss_scale", A_FLOAT, 1e-30,
					1e30, 1),
			e->span);
}

void settings_build(Front *f)
{
	Train t = train_of(f);

	read_optimizer(&t);
	check_keys(&t);
	t.out = ir_section(f->module, "train", "", "");
	t.out->span = f->user->trains ? f->user->trains->span : NO_SPAN;
	put(&t, "precision", A_STR, (Attr){ .s = settings_precision(f) }, t.out->span);
	put(&t, "optimizer", A_STR, (Attr){ .s = t.optimizer->name }, t.out->span);
	put_loss_scale(&t);
	for (size_t i = 0; i < NKEYS; i++)
		if (keys[i].owners != GROUP)
			put_key(&t, &keys[i]);
	put_betas(&t);
	put_rate(&t);
	tuning_read(&t);
}

void settings_group(Train *t)
{
	check_arguments(t);
	for (size_t i = 0; i < NKEYS; i++)
		if (is_argument(t, keys[i].name))
			put_key(t, &keys[i]);
	put_betas(t);
	if (settings_source(t, "lr", false))
		put_rate(t);
}

void overrides_check(Front *f)
{
	for (const Override *o = f->overrides; o; o = o->next) {
		Suggest s = suggest_start(o->key);
		if (o->used)
			continue;
		const Dataset *d = o->scope ? name_get(&f->datasets, o->scope) : NULL;
		if (!o->scope) {
			diag_error(f->diag, o->name, "the model has no const '%s'", o->key);
			suggest_map(&s, &f->consts);
			suggest_map(&s, &f->datasets);
		} else if (!strcmp(o->scope, "train")) {
			diag_error(f->diag, o->name, "train has no setting '%s'", o->key);
			for (size_t i = 0; i < NKEYS; i++)
				if (keys[i].owners != GROUP)
					suggest_try(&s, keys[i].name);
			for (size_t i = 0; i < sizeof special / sizeof *special; i++)
				suggest_try(&s, special[i]);
			tuning_suggest(&s);
		} else if (d) {
			dataset_unknown(f, d, o->name, o->key);
			continue;
		} else {
			diag_error(f->diag, o->name, "the model has no data '%s'", o->scope);
			s = suggest_start(o->scope);
			suggest_map(&s, &f->datasets);
			suggest_try(&s, "train");
		}
		suggest_hint(&s, f->diag);
	}
}

/* The front end from end to end: text to tree, tree to checked tree, checked tree to graph; and how
 * it speaks.
 *
 * The user's text and the standard library are parsed apart; the library's blocks see none of the
 * user's names. A model is built by evaluating it: blocks are inlined, loops unrolled, constants
 * computed, and each tensor expression leaves a node. Nodes and errors inside std.dl belong to the
 * user's call that led there. A value whose making failed is poison and silent from then on, and a
 * place of the text speaks once however often it is evaluated. */
#include "front.h"

#include <stdarg.h>

extern const char std_dl[];
extern const unsigned std_dl_len;

/* ---- diagnostics ---- */

Span front_span(const Front *f, const Frame *fr, Span s)
{
	return s.source == f->std_source && fr && fr->user.source >= 0 ? fr->user : s;
}

bool front_reported(Front *f, Span user)
{
	const char *key = arena_printf(f->arena, "%d:%d:%d", user.source, user.begin, user.end);

	return f->stop || name_get(&f->reported, key);
}

static void remember(Front *f, Span user)
{
	name_put(f->arena, &f->reported,
		 arena_printf(f->arena, "%d:%d:%d", user.source, user.begin, user.end), f);
}

void front_trace(Front *f, const Frame *fr, Span s)
{
	Span user = front_span(f, fr, s);
	const Frame *up = fr;

	if (user.source != s.source)
		diag_note(f->diag, s, "in the standard block '%s'",
			  fr->block ? fr->block->name : "?");
	while (up && up->standard)
		up = up->up;
	for (int n = 0; up && up->block && n < 3; up = up->up, n++)
		diag_note(f->diag, up->call, "in block '%s', called here", up->block->name);
	remember(f, user);
}

bool front_error(Front *f, const Frame *fr, Span s, const char *fmt, ...)
{
	Span user = front_span(f, fr, s);
	va_list ap;

	if (front_reported(f, user))
		return false;
	va_start(ap, fmt);
	diag_error(f->diag, user, "%s", arena_vprintf(f->arena, fmt, ap));
	va_end(ap);
	front_trace(f, fr, s);
	return true;
}

void front_limit(Front *f, const Frame *fr, Span s, const char *fmt, ...)
{
	va_list ap;

	if (!f->stop) {
		va_start(ap, fmt);
		diag_error(f->diag, front_span(f, fr, s), "%s", arena_vprintf(f->arena, fmt, ap));
		va_end(ap);
	}
	f->stop = true;
}

/* ---- the text ---- */

/* Length of the UTF-8 sequence at s, 0 where it is none. */
static int utf8_length(const unsigned char *s, size_t left)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	int n = s[0] < 0x80       ? 1
		: s[0] >> 5 == 6  ? 2
		: s[0] >> 4 == 14 ? 3
		: s[0] >> 3 == 30 ? 4
				  : 0;
	uint32_t c = n < 2 ? s[0] : s[0] & (0x7fu >> n);

	if (n == 0 || (size_t)n > left)
		return 0;
	for (int i = 1; i < n; i++) {
		if (s[i] >> 6 != 2)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

static bool text_check(Diag *d, int source, const char *text, size_t len)
{
	const unsigned char *s = (const unsigned char *)text;

	if (len > FRONT_MAX_TEXT) {
		diag_error(d, NO_SPAN, "the model has %zu bytes, at most %d are possible", len,
			   FRONT_MAX_TEXT);
		return false;
	}
	for (size_t i = 0; i < len;) {
		int n = utf8_length(s + i, len - i);
		if (n == 0 || s[i] == 0) {
			Span at = { source, (int32_t)i, (int32_t)i + 1 };
			diag_error(d, at, n ? "a NUL byte in the text" : "byte 0x%02x is not UTF-8",
				   s[i]);
			return false;
		}
		i += (size_t)n;
	}
	return true;
}

/* ---- the stages ---- */

/* "gpt-char" of "models/gpt-char.dl"; "model" where there is no name. */
static const char *model_name(Arena *a, const char *path)
{
	const char *base = strrchr(path, '/');
	size_t n;

	base = base ? base + 1 : path;
	if (!strcmp(path, "-")) /* standard input */
		return "model";
	n = strlen(base);
	if (n > 3 && !strcmp(base + n - 3, ".dl"))
		n -= 3;
	return n ? arena_strndup(a, base, n) : "model";
}

static void check_loss(Front *f, Span model)
{
	if (f->stop)
		return;
	if (f->loss_span.source < 0) {
		if (diag_errors(f->diag) == 0) {
			diag_error(f->diag, model, "the model has no loss");
			diag_hint(f->diag, "end it with: loss cross_entropy(logits, targets)");
		}
		return;
	}
	if (diag_errors(f->diag) > 0)
		return;
	for (const Var *v = f->module->vars; v; v = v->next)
		if (v->role == VAR_PARAM)
			return;
	diag_error(f->diag, model, "the model has no parameters, so there is nothing to train");
	diag_hint(f->diag, "blocks such as linear make parameters");
}

/* What the model predicts when it does not say so: what the loss compares with the targets. */
static void finish_outputs(Front *f)
{
	const Node *n = f->loss->def;

	if (!f->predict && n && (n->op == OP_cross_entropy || n->op == OP_mse)) {
		f->predict = n->arg[0];
		f->predict_span = f->loss_span;
	}
	f->b.span = f->loss_span;
	ir_output(&f->b, "loss", f->loss);
	f->b.span = f->predict_span;
	if (f->predict)
		ir_output(&f->b, "predict", f->predict);
}

static void build(Front *f, const char *path)
{
	const AstSection *model = f->user->models;
	Frame fr = { .path = "", .user = NO_SPAN, .call = NO_SPAN };

	f->module->batch = settings_batch(f);
	f->func = ir_func(f->module, "forward");
	f->func->batch = f->module->batch;
	f->b = ir_builder(f->module, f->func->body);
	f->real = !strcmp(settings_precision(f), "fp64") ? DT_F64 : DT_F32;
	for (const ConstDef *c = f->user->consts; c && !f->stop; c = c->next)
		eval_const(f, c->name, c->span);
	settings_build(f);
	dataset_build(f);
	overrides_check(f);
	if (!model) {
		if (diag_errors(f->diag) == 0)
			diag_error(f->diag, (Span){ f->user_source, 0, 0 }, "%s has no model block",
				   path);
		return;
	}
	if (!f->recursive) {
		eval_stmts(f, &fr, model->body);
		check_loss(f, model->span);
	}
	if (diag_errors(f->diag) == 0) {
		dataset_finish(f);
		finish_outputs(f);
		tuning_apply(f);
	}
}

Module *frontend_read(Arena *a, Diag *d, const char *path, const char *text, size_t len,
		      const FrontOptions *o)
{
	static const FrontOptions none = { 0 };
	Front f = { .arena = a,
		    .diag = d,
		    .opt = o ? o : &none,
		    .loss_span = NO_SPAN,
		    .predict_span = NO_SPAN };
	int before = diag_errors(d);

	f.user_source = diag_source(d, path, text, len);
	f.std_source = diag_source(d, "std.dl", std_dl, std_dl_len);
	if (!text_check(d, f.user_source, text, len))
		return NULL;
	f.user = ast_parse(a, d, f.user_source, text, len);
	f.std = ast_parse(a, d, f.std_source, std_dl, std_dl_len);
	bool sound = overrides_read(&f) && diag_errors(d) == before;
	f.module = ir_module(a, d, model_name(a, path), 1);
	sema_check(&f);
	if (sound) /* after a syntax error half a model would only repeat it */
		build(&f, path);
	return diag_errors(d) > before ? NULL : f.module;
}

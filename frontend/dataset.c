/* `data NAME = TYPE(...)`: the settings of each type, and its fields as the model sees them.
 *
 * A field is an input of the graph whose first dimension is the batch. Pictures come as bytes and
 * become floats here, so that a sample crosses into the arena in its smallest form. Their mean and deviation are one
 * number, or a list of one for each channel. Files are the runtime's business: they are not opened. */
#include "front.h"

#include <stdlib.h>

typedef struct Spec {
	const char *key;
	AttrKind kind;
	double dflt;
	const char *text; /* default of an A_STR; "28,28": of an A_INTS */
	double low, high;
} Spec;

typedef struct Field {
	const char *name;
	/* The raw type of a field from its settings. */
	bool (*type)(Front *f, const Dataset *d, Type *out);
	/* Becomes (x * scale - mean) / std: never, always, or where a setting asks for it (else
	 * integers stay what they are). */
	enum { AS_IS, SCALED, SCALED_IF_SET } scaled;
} Field;

typedef struct DataType {
	const char *name;
	Spec specs[20];
	Field fields[DATA_MAX_FIELDS];
} DataType;

static double number(const Dataset *d, const char *key)
{
	return ir_setting_num(d->section, key, 0);
}

static Type batch_of(Front *f, DType t)
{
	return (Type){ .dtype = t, .ndim = 1, .batch = 1, .dim = { f->module->batch } };
}

/* Appends the dims of a list setting. */
static bool append(Front *f, const Dataset *d, const char *key, Type *t)
{
	const Setting *s = ir_setting(d->section, key);

	for (int32_t i = 0; i < s->value.ints.n; i++) {
		if (t->ndim == IR_MAX_DIMS || s->value.ints.v[i] < 1) {
			diag_error(f->diag, s->span,
				   "'%s' must be at most %d dimensions of at least 1", key,
				   IR_MAX_DIMS - 1);
			return false;
		}
		t->dim[t->ndim++] = s->value.ints.v[i];
	}
	return true;
}

static bool window_type(Front *f, const Dataset *d, Type *out)
{
	*out = batch_of(f, DT_I32);
	out->dim[out->ndim++] = (int64_t)number(d, "window");
	return true;
}

static bool idx_x(Front *f, const Dataset *d, Type *out)
{
	*out = batch_of(f, DT_U8);
	return append(f, d, "shape", out);
}

static bool labels(Front *f, const Dataset *d, Type *out)
{
	(void)d;
	*out = batch_of(f, DT_I32);
	return true;
}

static bool npy_type(Front *f, const Dataset *d, const char *shape, const char *dtype, Type *out)
{
	const Setting *s = ir_setting(d->section, dtype);

	*out = batch_of(f, dtype_from_name(s->value.s, strlen(s->value.s)));
	if (out->dtype == DT_NONE) {
		diag_error(f->diag, s->span, "'%s' must be a type such as f32, u8 or i32, got '%s'",
			   dtype, s->value.s);
		return false;
	}
	return append(f, d, shape, out);
}

static bool npy_x(Front *f, const Dataset *d, Type *out)
{
	return npy_type(f, d, "x_shape", "x_type", out);
}

static bool npy_y(Front *f, const Dataset *d, Type *out)
{
	return npy_type(f, d, "y_shape", "y_type", out);
}

static bool csv_x(Front *f, const Dataset *d, Type *out)
{
	*out = batch_of(f, DT_F32);
	out->dim[out->ndim++] = (int64_t)number(d, "features");
	return true;
}

static bool csv_y(Front *f, const Dataset *d, Type *out)
{
	const Setting *s = ir_setting(d->section, "target");

	*out = batch_of(f, DT_I32);
	if (!strcmp(s->value.s, "class")) {
		if (number(d, "targets") == 1)
			return true;
		diag_error(f->diag, ir_setting(d->section, "targets")->span,
			   "a class is one target: several are values, target = \"value\"");
		return false;
	}
	*out = batch_of(f, DT_F32);
	out->dim[out->ndim++] = (int64_t)number(d, "targets");
	if (strcmp(s->value.s, "value") != 0)
		diag_error(f->diag, s->span, "'target' must be \"class\" or \"value\", got \"%s\"",
			   s->value.s);
	return !strcmp(s->value.s, "value");
}

/* Integers of a file are classes, whatever their type there. */
static bool raw_y(Front *f, const Dataset *d, Type *out)
{
	if (!npy_type(f, d, "y_shape", "y_type", out))
		return false;
	if (!dtype_is_float(out->dtype))
		out->dtype = DT_I32;
	return true;
}

#define NORMALISED(SCALE)                                     \
	{ "scale", A_FLOAT, SCALE, NULL, -1e30, 1e30 },       \
		{ "mean", A_FLOAT, 0, NULL, -1e30, 1e30 },    \
	{                                                     \
		"std", A_FLOAT, 1, NULL, 1e-30, 1e30          \
	}
/* What may be a list, one number for each channel; the section has its text then. By index in Dataset.channels. */
static const struct {
	const char *key;
	OpCode op;
	double identity;
} by_channel[] = { { "mean", OP_sub, 0 }, { "std", OP_div, 1 } };

/* Pictures in training: see runtime/data_format.h. */
#define AUGMENTED                                \
	{ "crop", A_INT, 0, NULL, 0, 4096 },     \
	{                                        \
		"flip", A_BOOL, 0, NULL, 0, 1    \
	}

static const DataType types[] = {
	{ "bytes",
	  { { "file", A_STR, 0, "", 0, 0 },
	    { "window", A_INT, 64, NULL, 1, 1 << 24 },
	    { "validation", A_FLOAT, 0.1, NULL, 0, 0.9 } },
	  { { "tokens", window_type, AS_IS }, { "targets", window_type, AS_IS } } },
	{ "tokens",
	  { { "file", A_STR, 0, "", 0, 0 },
	    { "test_file", A_STR, 0, "", 0, 0 },
	    { "window", A_INT, 64, NULL, 1, 1 << 24 },
	    { "vocab", A_INT, 0, NULL, 1, 1 << 24 },
	    { "bits", A_INT, 0, NULL, 0, 32 },
	    { "validation", A_FLOAT, 0.1, NULL, 0, 0.9 } },
	  { { "tokens", window_type, AS_IS }, { "targets", window_type, AS_IS } } },
	{ "text",
	  { { "file", A_STR, 0, "", 0, 0 },
	    { "test_file", A_STR, 0, "", 0, 0 },
	    { "window", A_INT, 64, NULL, 1, 1 << 24 },
	    { "vocab", A_STR, 0, "", 0, 0 },
	    { "merges", A_STR, 0, "", 0, 0 },
	    { "validation", A_FLOAT, 0.1, NULL, 0, 0.9 } },
	  { { "tokens", window_type, AS_IS }, { "targets", window_type, AS_IS } } },
	{ "idx",
	  { { "dir", A_STR, 0, "/usr/share/datasets/fashion-mnist", 0, 0 },
	    { "x", A_STR, 0, "", 0, 0 },
	    { "y", A_STR, 0, "", 0, 0 },
	    { "test_x", A_STR, 0, "", 0, 0 },
	    { "test_y", A_STR, 0, "", 0, 0 },
	    { "shape", A_INTS, 0, "28,28", 0, 0 },
	    { "classes", A_INT, 10, NULL, 2, 256 },
	    NORMALISED(1 / 255.0),
	    AUGMENTED },
	  { { "x", idx_x, SCALED }, { "y", labels, AS_IS } } },
	{ "npy",
	  { { "dir", A_STR, 0, "", 0, 0 },
	    { "x", A_STR, 0, "", 0, 0 },
	    { "y", A_STR, 0, "", 0, 0 },
	    { "test_x", A_STR, 0, "", 0, 0 },
	    { "test_y", A_STR, 0, "", 0, 0 },
	    { "x_shape", A_INTS, 0, "", 0, 0 },
	    { "x_type", A_STR, 0, "f32", 0, 0 },
	    { "y_shape", A_INTS, 0, "", 0, 0 },
	    { "y_type", A_STR, 0, "i32", 0, 0 },
	    { "classes", A_INT, 0, NULL, 0, 1 << 30 },
	    { "validation", A_FLOAT, 0, NULL, 0, 0.9 },
	    NORMALISED(1),
	    AUGMENTED },
	  { { "x", npy_x, SCALED_IF_SET }, { "y", npy_y, AS_IS } } },
	{ "raw",
	  { { "file", A_STR, 0, "", 0, 0 },
	    { "test_file", A_STR, 0, "", 0, 0 },
	    { "x_shape", A_INTS, 0, "28,28", 0, 0 },
	    { "x_type", A_STR, 0, "u8", 0, 0 },
	    { "x_at", A_INT, 0, NULL, 0, 1 << 30 },
	    { "y_shape", A_INTS, 0, "", 0, 0 },
	    { "y_type", A_STR, 0, "u8", 0, 0 },
	    { "y_at", A_INT, -1, NULL, -1, 1 << 30 },
	    { "record", A_INT, 0, NULL, 0, 1 << 30 },
	    { "header", A_INT, 0, NULL, 0, 1 << 30 },
	    { "classes", A_INT, 0, NULL, 0, 1 << 30 },
	    { "validation", A_FLOAT, 0, NULL, 0, 0.9 },
	    NORMALISED(1 / 255.0),
	    AUGMENTED },
	  { { "x", npy_x, SCALED }, { "y", raw_y, AS_IS } } },
	{ "csv",
	  { { "file", A_STR, 0, "", 0, 0 },
	    { "test_file", A_STR, 0, "", 0, 0 },
	    { "features", A_INT, 0, NULL, 1, 1 << 24 },
	    { "target", A_STR, 0, "class", 0, 0 },
	    { "targets", A_INT, 1, NULL, 1, 1 << 20 },
	    { "classes", A_INT, 0, NULL, 0, 1 << 30 },
	    { "header", A_BOOL, 1, NULL, 0, 1 },
	    { "validation", A_FLOAT, 0, NULL, 0, 0.9 } },
	  { { "x", csv_x, AS_IS }, { "y", csv_y, AS_IS } } },
};

/* ---- settings ---- */

static Attr default_of(const Spec *s)
{
	Attr a = { 0 };
	char *end;

	switch (s->kind) {
	case A_STR: a.s = s->text; break;
	case A_FLOAT: a.f = s->dflt; break;
	case A_INTS:
		for (const char *p = s->text; *p; p = *end ? end + 1 : end)
			a.ints.v[a.ints.n++] = strtoll(p, &end, 10);
		break;
	default: a.i = (int64_t)s->dflt;
	}
	return a;
}

static bool ints_of(Val v, IntList *out)
{
	if (v.kind != V_LIST || v.n >= IR_MAX_DIMS)
		return false;
	for (out->n = 0; out->n < v.n; out->n++) {
		if (v.at[out->n].kind != V_INT || v.at[out->n].mark)
			return false;
		out->v[out->n] = v.at[out->n].i;
	}
	return true;
}

static bool in_range(Front *f, const Frame *fr, const Spec *s, Span at, Val v)
{
	bool below = val_number(v) < s->low;

	if (val_number(v) >= s->low && val_number(v) <= s->high)
		return true;
	front_error(f, fr, at, "'%s' is %s, must be %s %g", s->key, val_text(f->arena, v), below ? "at least" : "at most",
		    below ? s->low : s->high);
	return false;
}

static int list_index(const Spec *s)
{
	for (int i = 0; i < 2; i++)
		if (!strcmp(s->key, by_channel[i].key))
			return i;
	return -1;
}

/* A list of numbers, one for each channel; false after an error. */
static bool convert_channels(Front *f, const Frame *fr, Dataset *d, const Spec *s, Span at, Val v)
{
	if (v.n == 0) {
		front_error(f, fr, at, "'%s' must be a number or a list of numbers, got an empty list", s->key);
		return false;
	}
	for (int32_t i = 0; i < v.n; i++) {
		if (v.at[i].kind == V_POISON)
			return false;
		if (!val_is_number(v.at[i]) || v.at[i].mark) {
			front_error(f, fr, at, "element %d of '%s' is %s, expected a number", (int)i, s->key,
				    val_describe(f->arena, v.at[i]));
			return false;
		}
		if (!in_range(f, fr, s, at, v.at[i]))
			return false;
	}
	NumberList *to = &d->channels[list_index(s)];
	*to = (NumberList){ .n = v.n, .v = ARENA_ARRAY(f->arena, v.n, double) };
	for (int32_t i = 0; i < v.n; i++)
		to->v[i] = val_number(v.at[i]);
	return true;
}

/* A setting from its value; false after an error. */
static bool convert(Front *f, const Frame *fr, const Spec *s, Span at, Val v, Attr *out)
{
	static const char *const wants[] = { [A_INT] = "a whole number",
					     [A_BOOL] = "true or false",
					     [A_FLOAT] = "a number",
					     [A_STR] = "a string",
					     [A_INTS] = "a list of at most 7 whole numbers" };
	bool good = false;

	if (v.kind == V_POISON)
		return false;
	switch (s->kind) {
	case A_STR:
		good = v.kind == V_STR;
		out->s = good ? v.s : "";
		break;
	case A_INTS: good = ints_of(v, &out->ints); break;
	case A_BOOL:
		good = v.kind == V_BOOL;
		out->i = good && v.b;
		break;
	case A_INT:
		good = v.kind == V_INT;
		out->i = good ? v.i : 0;
		break;
	default:
		good = val_is_number(v);
		out->f = good ? val_number(v) : 0;
		break;
	}
	if (!good) {
		front_error(f, fr, at, "'%s' must be %s, got %s", s->key, wants[s->kind],
			    val_describe(f->arena, v));
	} else if (v.mark) {
		front_error(f, fr, at, "'%s' cannot depend on the batch size", s->key);
		good = false;
	} else if (val_is_number(v)) {
		good = in_range(f, fr, s, at, v);
	}
	return good;
}

static void put_setting(Front *f, Dataset *d, const Spec *s)
{
	Frame fr = { .constant = true, .path = "", .user = NO_SPAN, .call = NO_SPAN };
	Override *o = override_find(f, d->def->name, s->key);
	AttrKind kind = s->kind;
	Attr v = default_of(s);
	Span at = d->source->call.name_span;
	Expr *e = NULL;

	for (const Arg *a = d->source->call.args; a; a = a->next)
		if (a->name && !strcmp(a->name, s->key))
			e = a->value;
	if (e)
		sema_constant(f, e); /* also when it is overridden */
	if (o && (e = override_expr(f, o, s->kind == A_STR)))
		sema_constant(f, e);
	if (e) {
		at = e->span;
		Val given = eval_expr(f, &fr, e);
		if (list_index(s) >= 0 && given.kind == V_LIST) {
			if (convert_channels(f, &fr, d, s, at, given)) {
				kind = A_STR;
				v.s = val_text(f->arena, given);
			}
		} else if (!convert(f, &fr, s, at, given, &v)) {
			v = default_of(s);
		}
	} else if (!o && s->kind == A_INT && s->dflt < s->low) {
		diag_error(f->diag, d->source->call.name_span, "%s data need '%s'", d->type->name, s->key);
	}
	ir_set(f->module, d->section, s->key, kind, v)->span = at;
}

void dataset_unknown(Front *f, const Dataset *d, Span at, const char *key)
{
	Suggest s = suggest_start(key);

	if (!d->type)
		return;
	diag_error(f->diag, at, "%s data have no setting '%s'", d->type->name, key);
	for (const Spec *x = d->type->specs; x->key; x++)
		suggest_try(&s, x->key);
	suggest_hint(&s, f->diag);
}

static void check_settings(Front *f, const Dataset *d)
{
	for (const Arg *a = d->source->call.args; a; a = a->next) {
		const Spec *s = d->type->specs;
		if (!a->name) {
			diag_error(f->diag, a->span, "settings of data have names: %s = ...",
				   s->key);
			continue;
		}
		while (s->key && strcmp(s->key, a->name) != 0)
			s++;
		if (!s->key)
			dataset_unknown(f, d, a->span, a->name);
		for (const Arg *b = d->source->call.args; b != a; b = b->next)
			if (b->name && !strcmp(a->name, b->name))
				diag_error(f->diag, a->span, "'%s' is set twice", a->name);
	}
}

/* What the data are: the source as written or as -D NAME=... has it, its choices made; NULL after
 * an error. */
static const Expr *choose_source(Front *f, const Dataset *d)
{
	Frame fr = { .constant = true, .path = "", .user = NO_SPAN, .call = NO_SPAN };
	Override *o = override_find(f, NULL, d->def->name);
	Expr *e = o ? override_expr(f, o, false) : d->def->source;

	while (e && e->kind == E_COND) {
		sema_constant(f, e->cond.c);
		Val v = eval_expr(f, &fr, e->cond.c);
		if (v.kind != V_BOOL) {
			if (v.kind != V_POISON)
				front_error(f, &fr, e->cond.c->span,
					    "a condition must be true or false, got %s",
					    val_describe(f->arena, v));
			return NULL;
		}
		e = v.b ? e->cond.a : e->cond.b;
	}
	if (e && (e->kind != E_CALL || e->call.primitive)) {
		if (front_error(f, &fr, e->span, "data are a type with its settings in parentheses"))
			diag_hint(f->diag, "such as %s = idx(classes = 10)", d->def->name);
		return NULL;
	}
	return e;
}

void dataset_build(Front *f)
{
	for (const DataDef *def = f->user->data; def; def = def->next) {
		Dataset *d = name_get(&f->datasets, def->name);
		if (!d || d->def != def) /* the second of two has been reported */
			continue;
		if (!(d->source = choose_source(f, d)))
			continue;
		const char *type = d->source->call.name;
		Suggest s = suggest_start(type);
		for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
			suggest_try(&s, types[i].name);
			if (!strcmp(types[i].name, type))
				d->type = &types[i];
		}
		if (!d->type) {
			diag_error(f->diag, d->source->call.name_span, "unknown type of data '%s'", type);
			suggest_hint(&s, f->diag);
			if (!s.best)
				diag_hint(f->diag, "there are bytes, tokens, idx, npy, raw and csv");
			continue;
		}
		check_settings(f, d);
		d->section = ir_section(f->module, "data", def->name, type);
		d->section->span = def->span;
		for (const Spec *x = d->type->specs; x->key; x++)
			put_setting(f, d, x);
	}
}

/* ---- fields ---- */

static Value *scale(Front *f, const Frame *fr, const Expr *e, Value *x, OpCode op, Value *by)
{
	Value *in[2] = { x, by };
	Node *n = x && by ? prim_node(f, fr, e, op, 2, in, NULL, NULL, 0) : NULL;

	return n ? n->res[0] : NULL;
}

static Value *scale_by(Front *f, const Frame *fr, const Expr *e, Value *x, OpCode op, double c,
		       double identity)
{
	Type t = type_scalar(f->real);
	Node *n;

	if (!x || c == identity)
		return x;
	n = prim_node(f, fr, e, OP_const, 0, NULL, &(Attr){ .f = c }, &t, 0);
	return scale(f, fr, e, x, op, n ? n->res[0] : NULL);
}

/* The axis of channels: of [batch, .., C, H, W] the third from the end, of vectors the last. -1: there is none. */
static int channel_axis(const Type *t)
{
	return t->ndim >= 4 ? t->ndim - 3 : t->ndim == 2 ? 1 : -1;
}

/* x less its mean, or by its deviation, for each channel. */
static Value *scale_channels(Front *f, Frame *fr, const Expr *e, const Dataset *d, Value *x, int i)
{
	const char *key = by_channel[i].key;
	const NumberList list = d->channels[i];
	const Setting *s = ir_setting(d->section, key);
	int axis = channel_axis(&x->type);
	Type t = { .dtype = f->real, .ndim = (uint8_t)(axis < 0 ? 0 : x->type.ndim - axis), .dim = { list.n, 1, 1 } };
	Val v;
	Node *n;

	if (axis < 0 || x->type.dim[axis] != list.n) {
		diag_error(f->diag, s->span, "'%s' has %d number%s, one for each channel, but samples of %s have %s", key,
			   (int)list.n, list.n == 1 ? "" : "s", type_text(f->arena, &x->type, false),
			   axis < 0 ? "no channels" : arena_printf(f->arena, "%lld", (long long)x->type.dim[axis]));
		return NULL;
	}
	v = tensor_vector(f, fr, e, list.v, list.n);
	if (v.kind != V_TENSOR)
		return NULL;
	n = prim_node(f, fr, e, OP_reshape, 1, &v.t, NULL, &t, 0);
	return scale(f, fr, e, x, by_channel[i].op, n ? n->res[0] : NULL);
}

static Value *normalise(Front *f, Frame *fr, const Expr *e, const Dataset *d, Value *x)
{
	x = scale_by(f, fr, e, x, OP_mul, number(d, "scale"), 1);
	for (int i = 0; i < 2 && x; i++)
		x = d->channels[i].n ? scale_channels(f, fr, e, d, x, i)
				     : scale_by(f, fr, e, x, by_channel[i].op, number(d, by_channel[i].key), by_channel[i].identity);
	return x;
}

static bool is_scaled(const Dataset *d, const Field *field)
{
	return field->scaled == SCALED ||
	       (field->scaled == SCALED_IF_SET &&
		(d->channels[0].n || d->channels[1].n || number(d, "scale") != 1 || number(d, "mean") != 0 ||
		 number(d, "std") != 1));
}

static Value *make_field(Front *f, Frame *fr, const Expr *e, Dataset *d, int i)
{
	const Field *field = &d->type->fields[i];
	const char *name = arena_printf(f->arena, "%s.%s", d->def->name, field->name);
	Attr to = { .s = dtype_name(f->real) };
	Value *x;
	Node *n;
	Type t;

	if (!field->type(f, d, &t) ||
	    !(n = prim_node(f, fr, e, OP_input, 0, NULL, &(Attr){ .s = name }, &t, 0)))
		return NULL;
	x = d->input[i] = n->res[0];
	if (is_scaled(d, field) || (dtype_is_float(t.dtype) && t.dtype != f->real)) {
		n = prim_node(f, fr, e, OP_cast, 1, &x, &to, NULL, 0);
		x = n ? n->res[0] : NULL;
	}
	if (is_scaled(d, field))
		x = normalise(f, fr, e, d, x);
	return x;
}

Val dataset_field(Front *f, Frame *fr, const Expr *e, Dataset *d)
{
	Suggest s = suggest_start(e->field.name);

	if (!d->type)
		return POISON;
	for (int i = 0; i < DATA_MAX_FIELDS; i++) {
		suggest_try(&s, d->type->fields[i].name);
		if (strcmp(d->type->fields[i].name, e->field.name) != 0)
			continue;
		int32_t precision = f->precision;
		f->precision = 0; /* it may be used outside of this block, too */
		if (!d->field[i])
			d->field[i] = make_field(f, fr, e, d, i);
		f->precision = precision;
		return d->field[i] ? val_tensor(d->field[i]) : POISON;
	}
	if (front_error(f, fr, e->field.name_span, "%s data have no field '%s'", d->type->name,
			e->field.name)) {
		suggest_hint(&s, f->diag);
		if (!s.best)
			diag_hint(f->diag, "there are %s and %s", d->type->fields[0].name,
				  d->type->fields[1].name);
	}
	return POISON;
}

const char *dataset_example(const char *field)
{
	if (!strcmp(field, "x") || !strcmp(field, "y"))
		return "idx(...)";
	return !strcmp(field, "tokens") || !strcmp(field, "targets") ? "bytes(...)" : NULL;
}

/* ---- ranges ---- */

/* The input behind reshapes and casts. */
static const Value *input_behind(const Value *v)
{
	while (v->def && (v->def->op == OP_reshape || v->def->op == OP_cast))
		v = v->def->arg[0];
	return v;
}

/* Classes that the data are said to have and the loss does not: told once for each data set. */
static void check_classes(Front *f, const Dataset *d, const Node *loss, int64_t rows)
{
	const Setting *s = ir_setting(d->section, "classes");

	if (!s || s->value.i <= rows)
		return;
	diag_warning(f->diag, loss->span,
		     "the loss knows %lld class%s, data '%s' has %lld: labels from %lld on will be refused",
		     (long long)rows, rows == 1 ? "" : "es", d->def->name, (long long)s->value.i, (long long)rows);
	if (s->span.source == d->source->call.name_span.source && s->span.begin == d->source->call.name_span.begin)
		diag_hint(f->diag, "%lld is the default of %s data: write classes = %lld",
			  (long long)s->value.i, d->type->name, (long long)rows);
	else
		diag_note(f->diag, s->span, "classes is given here");
}

/* The values that the graph can take from an integer field: rows of a table, classes of a loss.
 * They become the settings limit_FIELD and ignore_FIELD, which the runtime checks before the first
 * step. A table has no row to ignore: for what goes into one, ignore_FIELD is a row like others. */
static void put_range(Front *f, Dataset *d, int i)
{
	const char *name = d->type->fields[i].name;
	int64_t limit = !strcmp(d->type->name, "bytes")    ? 256
			: !strcmp(d->type->name, "tokens") ? (int64_t)number(d, "vocab")
			: i == 1                           ? (int64_t)number(d, "classes")
							   : 0;
	int64_t ignore = -100;
	bool row = false, told = false;

	for (const Node *n = f->func->body->first; n; n = n->next) {
		int64_t rows = 0;
		if (n->op == OP_embedding && input_behind(n->arg[1]) == d->input[i]) {
			rows = n->arg[0]->type.dim[0];
			row = true;
		} else if (n->op == OP_cross_entropy && input_behind(n->arg[1]) == d->input[i]) {
			rows = n->arg[0]->type.dim[n->arg[0]->type.ndim - 1];
			ignore = ir_int(n, "ignore");
			if (i == 1 && !told)
				check_classes(f, d, n, rows);
			told = true;
		}
		if (rows > 0 && (limit == 0 || rows < limit))
			limit = rows;
	}
	ir_set(f->module, d->section, arena_printf(f->arena, "limit_%s", name), A_INT,
	       (Attr){ .i = limit });
	ir_set(f->module, d->section, arena_printf(f->arena, "ignore_%s", name), A_INT,
	       (Attr){ .i = row ? 0 : ignore });
}

void dataset_finish(Front *f)
{
	for (const DataDef *def = f->user->data; def; def = def->next) {
		Dataset *d = name_get(&f->datasets, def->name);
		bool used = false;
		for (int i = 0; i < DATA_MAX_FIELDS; i++) {
			used |= d->input[i] != NULL;
			if (d->input[i] && !dtype_is_float(d->input[i]->type.dtype) &&
			    !is_scaled(d, &d->type->fields[i]))
				put_range(f, d, i);
		}
		if (!used)
			diag_warning(f->diag, def->span, "data '%s' is never used", def->name);
	}
}

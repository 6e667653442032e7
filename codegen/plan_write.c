/* Writes plan.c: a placed module as the constant tables of runtime/plan.h. */
#include "emit.h"

#include <assert.h>
#include <math.h>

#include "traffic.h"

_Static_assert((int)DT_F64 == (int)PD_F64 && (int)DT_BOOL == (int)PD_BOOL &&
		       (int)DT_I32 == (int)PD_I32,
	       "plan.h numbers types as ir.h does");
_Static_assert((int)VAR_COUNTER == (int)PV_COUNTER && (int)VAR_STAT == (int)PV_STAT, "and roles");
_Static_assert((int)IR_MAX_DIMS == (int)PLAN_MAX_DIMS, "and dimensions");

typedef struct Writer {
	FILE *out;
	Emit *e;
	const Module *m;
	const BuildOptions *o;
	const PlanUnit *units; /* NULL: kernels are functions */
	int nunits;
} Writer;

/* ---- literals ---- */

static void put_string(FILE *out, const char *s)
{
	fputc('"', out);
	for (; s && *s; s++) {
		unsigned char c = (unsigned char)*s;
		if (c == '"' || c == '\\')
			fprintf(out, "\\%c", c);
		else if (c < 32 || c > 126 || c == '?')
			fprintf(out, "\\%03o", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static void put_number(FILE *out, double v)
{
	if (isnan(v))
		fputs("(0.0 / 0.0)", out);
	else if (isinf(v))
		fputs(v > 0 ? "(1.0 / 0.0)" : "(-1.0 / 0.0)", out);
	else
		fprintf(out, "%.17g", v);
}

static void put_list(FILE *out, const int64_t *v, int n)
{
	fputs("{ ", out);
	for (int i = 0; i < n; i++)
		fprintf(out, "%s%lld", i ? ", " : "", (long long)v[i]);
	fputs(n ? " }" : "0 }", out);
}

/* "models/mlp.dl:14", or "" */
static const char *source_of(const Writer *w, const Node *n)
{
	return n->span.source < 0 ? "" : diag_where(w->m->diag, w->e->a, n->span);
}

/* ---- settings, data, variables ---- */

static int write_settings(const Writer *w, const Section *s, const char *name)
{
	int n = 0;
	fprintf(w->out, "static const PlanSetting %s[] = {\n", name);
	for (const Setting *x = s ? s->first : NULL; x; x = x->next, n++) {
		fputs("\t{ .key = ", w->out);
		put_string(w->out, x->key);
		switch (x->kind) {
		case A_STR:
			fputs(", .kind = 's', .s = ", w->out);
			put_string(w->out, x->value.s);
			break;
		case A_FLOAT:
			fputs(", .kind = 'f', .f = ", w->out);
			put_number(w->out, x->value.f);
			break;
		case A_INTS:
			fprintf(w->out, ", .kind = 'l', .n = %d, .list = ", x->value.ints.n);
			put_list(w->out, x->value.ints.v, x->value.ints.n);
			break;
		default:
			fprintf(w->out, ", .kind = 'i', .i = %lld", (long long)x->value.i);
		}
		fputs(" },\n", w->out);
	}
	fputs("\t{ 0 }\n};\n", w->out);
	return n;
}

static int write_data(const Writer *w)
{
	int n = 0;
	VEC(int) counts = { 0 };
	for (const Section *s = w->m->sections; s; s = s->next)
		if (strcmp(s->kind, "data") == 0) {
			int c = write_settings(w, s, arena_printf(w->e->a, "data_settings%d", n++));
			vec_push(w->e->a, &counts, c);
		}
	n = 0;
	fputs("static const PlanData data[] = {\n", w->out);
	for (const Section *s = w->m->sections; s; s = s->next) {
		if (strcmp(s->kind, "data") != 0)
			continue;
		fputs("\t{ ", w->out);
		put_string(w->out, s->name);
		fputs(", ", w->out);
		put_string(w->out, s->type);
		fprintf(w->out, ", data_settings%d, %d },\n", n, counts.at[n]);
		n++;
	}
	fputs("\t{ 0 }\n};\n", w->out);
	return n;
}

static int write_vars(const Writer *w)
{
	int n = 0;
	fputs("static const PlanVar vars[] = {\n", w->out);
	for (const Var *v = w->m->vars; v; v = v->next, n++) {
		fputs("\t{ ", w->out);
		put_string(w->out, v->name);
		fprintf(w->out, ", %d, %d, %d, ", (int)v->role, (int)v->type.dtype, v->type.ndim);
		put_list(w->out, v->type.dim, v->type.ndim);
		fprintf(w->out, ", %lld, %lld, %d },\n", (long long)v->offset,
			(long long)type_bytes(&v->type), v->frozen);
	}
	fputs("\t{ 0 }\n};\n", w->out);
	return n;
}

static int var_number(const Module *m, const char *name)
{
	int n = 0;
	for (const Var *v = m->vars; v; v = v->next, n++)
		if (!strcmp(v->name, name))
			return n;
	return -1;
}

/* The sections "lora WEIGHT". */
static int write_adapters(const Writer *w)
{
	int n = 0;
	fputs("static const PlanAdapter adapters[] = {\n", w->out);
	for (const Section *s = w->m->sections; s; s = s->next) {
		if (strcmp(s->kind, "lora") != 0)
			continue;
		int weight = var_number(w->m, s->name), a = var_number(w->m, ir_setting_str(s, "a", ""));
		int b = var_number(w->m, ir_setting_str(s, "b", ""));
		if (weight < 0 || a < 0 || b < 0)
			continue;
		fprintf(w->out, "\t{ %d, %d, %d, %d, ", weight, a, b,
			ir_setting_num(s, "in_out", 0) != 0);
		put_number(w->out, ir_setting_num(s, "scale", 1));
		fputs(" },\n", w->out);
		n++;
	}
	fputs("\t{ 0 }\n};\n", w->out);
	return n;
}

/* One sample of a data field: without the batch's axis. The front end has put the range of its
 * values in the settings limit_FIELD and ignore_FIELD. */
static void write_input(const Writer *w, const Node *n)
{
	const char *name = ir_str(n, "name"), *dot = strchr(name, '.');
	const char *field = dot ? dot + 1 : name;
	const char *set = dot ? arena_strndup(w->e->a, name, (size_t)(dot - name)) : name;
	int data = -1, i = 0;
	const Section *section = NULL;
	for (const Section *s = w->m->sections; s; s = s->next)
		if (strcmp(s->kind, "data") == 0) {
			if (strcmp(s->name, set) == 0) {
				data = i;
				section = s;
			}
			i++;
		}
	const Type *t = &n->res[0]->type;
	int first = t->ndim > 0 && (t->batch & 1) ? 1 : 0;
	double limit = ir_setting_num(section, arena_printf(w->e->a, "limit_%s", field), 0);
	double ignore = ir_setting_num(section, arena_printf(w->e->a, "ignore_%s", field), -100);
	fputs("\t{ ", w->out);
	put_string(w->out, name);
	fprintf(w->out, ", %d, ", data);
	put_string(w->out, field);
	fprintf(w->out, ", %d, %d, ", (int)t->dtype, t->ndim - first);
	put_list(w->out, t->dim + first, t->ndim - first);
	fprintf(w->out, ", %lld, %lld },\n", (long long)limit, (long long)ignore);
}

static void write_inputs(const Writer *w)
{
	fputs("static const PlanInput inputs[] = {\n", w->out);
	for (size_t i = 0; i < w->e->inputs.len; i++)
		write_input(w, w->e->inputs.at[i]);
	fputs("\t{ 0 }\n};\n", w->out);
}

/* ---- steps ---- */

static void write_prims(const Writer *w)
{
	fputs("static const PlanPrim prims[] = {\n", w->out);
	for (size_t i = 0; i < w->e->prims.len; i++) {
		const PlanPrim *p = &w->e->prims.at[i];
		fprintf(w->out, "\t{ %d, %d, %d, %d, %d, { ", (int)p->kind, (int)p->dtype,
			(int)p->out, (int)p->compute, p->ndim);
		for (int r = 0; r < 3; r++) {
			put_list(w->out, p->dims[r], PLAN_MAX_DIMS);
			fputs(r < 2 ? ", " : " }, { ", w->out);
		}
		for (int r = 0; r < 3; r++) {
			put_list(w->out, p->strides[r], PLAN_MAX_DIMS);
			fputs(r < 2 ? ", " : " }, ", w->out);
		}
		put_list(w->out, p->stride, 2);
		fputs(", ", w->out);
		put_list(w->out, p->pad, 2);
		fputs(", ", w->out);
		put_list(w->out, p->dilation, 2);
		fprintf(w->out, ", %lld, %d, %d, %d, %lld },\n", (long long)p->groups, p->acc, (int)p->epilogue, p->tf32,
			(long long)p->work_bytes);
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

/* What steps launch, one after the other. A kernel k12 is k12, k12_1, .. on the device. */
static void write_launches(const Writer *w, const EmitFunc *f, int number)
{
	fprintf(w->out, "static const PlanLaunch launches%d[] = {\n", number);
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		for (int k = 0; k < s->nlaunch; k++) {
			const PlanLaunch *l = &s->launch[k];
			fprintf(w->out, "\t{ \"k%d", s->index);
			if (k > 0)
				fprintf(w->out, "_%d", k);
			fprintf(w->out, "\", %d, { %u, %u, %u }, %u, %u },\n", w->e->kernels.at[s->index].module,
				(unsigned)l->grid[0], (unsigned)l->grid[1], (unsigned)l->grid[2], (unsigned)l->block,
				(unsigned)l->shared_bytes);
		}
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

static double seconds_of(const EmitStep *s)
{
	double seconds = s->kind == PLAN_END || s->nmembers ? 0 : s->node->seconds;
	for (int i = 0; i < s->nmembers; i++)
		seconds += s->member[i].node->seconds;
	return seconds;
}

/* Offsets and result bytes of all steps in two arrays, the steps in a third. */
static void write_steps(const Writer *w, const EmitFunc *f, int number)
{
	EmitOffsets *all = ARENA_ARRAY(w->e->a, f->steps.len, EmitOffsets);
	fprintf(w->out, "static const int64_t off%d[] = {\n", number);
	for (size_t i = 0; i < f->steps.len; i++) {
		EmitOffsets x = all[i] = emit_offsets(w->e->a, w->m, &f->steps.at[i]);
		for (int k = 0; k < x.noff + x.nown; k++)
			fprintf(w->out, "%s%lld,", k ? " " : "\t", (long long)x.off[k]);
		if (x.noff)
			fputc('\n', w->out);
	}
	fprintf(w->out, "\t0\n};\nstatic const int64_t bytes%d[] = {\n", number);
	for (size_t i = 0; i < f->steps.len; i++) {
		for (int k = 0; k < all[i].nout; k++)
			fprintf(w->out, "\t%lld,\n", (long long)type_bytes(&emit_result(&f->steps.at[i], k)->type));
	}
	fprintf(w->out, "\t0\n};\nstatic const PlanStep steps%d[] = {\n", number);
	int at = 0, out = 0, launches = 0;
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		const EmitOffsets x = all[i];
		fprintf(w->out, "\t{ %d, %d, ", (int)s->kind,
			s->kind == PLAN_KERNEL ? 0 : s->index);
		if (s->kind == PLAN_KERNEL && !w->units)
			fprintf(w->out, "k%d, ", s->index);
		else
			fputs("0, ", w->out);
		fprintf(w->out, "off%d + %d, %d, ", number, at, x.noff);
		put_string(w->out, emit_step_name(w->e->a, s));
		fputs(", ", w->out);
		put_string(w->out, source_of(w, s->node));
		fprintf(w->out, ", bytes%d + %d, %d, %d, %d, %.9g, %lld", number, out, x.nout,
			x.nwork, x.nout ? (int)s->node->res[0]->type.dtype : 0,
			seconds_of(s),
			x.nwork ? (long long)s->node->work_bytes : 0);
		if (s->nlaunch)
			fprintf(w->out, ", launches%d + %d, %d, %d", number, launches, s->nlaunch, s->nmembers);
		int64_t moved = traffic_step(s);
		if (moved)
			fprintf(w->out, ", .moved_bytes = %lld", (long long)moved);
		if (s->kind == PLAN_SEND || s->kind == PLAN_FETCH)
			fprintf(w->out, ", .copy_bytes = %lld", (long long)type_bytes(&s->node->arg[0]->type));
		fputs(" },\n", w->out);
		launches += s->nlaunch;
		at += x.noff + x.nown;
		out += x.nout;
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

static void write_outputs(const Writer *w, const EmitFunc *f, int number)
{
	fprintf(w->out, "static const PlanOutput outputs%d[] = {\n", number);
	for (size_t i = 0; i < f->outputs.len; i++) {
		const Type *t = &f->outputs.at[i]->arg[0]->type;
		fputs("\t{ ", w->out);
		put_string(w->out, ir_str(f->outputs.at[i], "name"));
		fprintf(w->out, ", %d, %d, ", (int)t->dtype, t->ndim);
		put_list(w->out, t->dim, t->ndim);
		fputs(" },\n", w->out);
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

static void write_loops(const Writer *w, const EmitFunc *f, int number)
{
	fprintf(w->out, "static const PlanLoop loops%d[] = {\n", number);
	for (size_t i = 0; i < f->loops.len; i++) {
		const PlanLoop *l = &f->loops.at[i];
		fprintf(w->out, "\t{ %lld, %lld, %lld, %lld },\n", (long long)l->trips,
			(long long)l->batch, (long long)l->base, (long long)l->first);
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

static void write_funcs(const Writer *w)
{
	for (size_t i = 0; i < w->e->funcs.len; i++) {
		if (w->units)
			write_launches(w, &w->e->funcs.at[i], (int)i);
		write_steps(w, &w->e->funcs.at[i], (int)i);
		write_outputs(w, &w->e->funcs.at[i], (int)i);
		write_loops(w, &w->e->funcs.at[i], (int)i);
	}
	fputs("static const PlanFunc funcs[] = {\n", w->out);
	for (size_t i = 0; i < w->e->funcs.len; i++) {
		const EmitFunc *f = &w->e->funcs.at[i];
		fprintf(w->out,
			"\t{ \"%s\", %lld, loops%zu, %zu, steps%zu, %zu, outputs%zu, %zu, %lld, %d },\n",
			f->func->name, (long long)f->func->batch, i, f->loops.len, i, f->steps.len,
			i, f->outputs.len, (long long)f->func->arena_bytes, (int)f->ncopies);
	}
	fputs("\t{ 0 }\n};\n", w->out);
}

/* ---- the plan ---- */

/* What the C compiler was told to use: the trainer refuses a processor without it. */
static const char isa_text[] =
	"#ifdef __AVX512F__\n#define ISA_AVX512 \"avx512f avx512bw avx512dq avx512vl "
	"\"\n#else\n#define ISA_AVX512 \"\"\n#endif\n"
	"#ifdef __AVX2__\n#define ISA_AVX2 \"avx2 \"\n#else\n#define ISA_AVX2 \"\"\n#endif\n"
	"#ifdef __FMA__\n#define ISA_FMA \"fma\"\n#else\n#define ISA_FMA \"\"\n#endif\n";

static void put_path(FILE *out, const char *s)
{
	for (; *s; s++)
		fprintf(out, *s == '"' || *s == '\\' ? "\\\\\\%c" : "%c", *s);
}

/* One file as constant bytes, with a zero behind them. */
static void write_file_bytes(FILE *out, const char *name, int number, const char *path)
{
	fprintf(out, "__asm__(\".pushsection .rodata\\n.balign 64\\n%s%d:\\n.incbin \\\"", name, number);
	put_path(out, path);
	fprintf(out, "\\\"\\n.byte 0\\n.popsection\");\nextern const unsigned char %s%d[] __attribute__((visibility(\"hidden\")));\n",
		name, number);
}

static void write_modules(const Writer *w)
{
	for (int i = 0; i < w->nunits; i++) {
		write_file_bytes(w->out, "cubin", i, w->units[i].cubin);
		write_file_bytes(w->out, "ptx", i, w->units[i].ptx);
	}
	fputs("static const PlanModule modules[] = {\n", w->out);
	for (int i = 0; i < w->nunits; i++)
		fprintf(w->out, "\t{ cubin%d, %lld, ptx%d, %lld, %lld },\n", i, (long long)w->units[i].cubin_bytes, i,
			(long long)w->units[i].ptx_packed_bytes, (long long)w->units[i].ptx_bytes);
	fputs("\t{ 0 }\n};\n", w->out);
}

void plan_write(FILE *out, Emit *e, const BuildOptions *o, const PlanUnit *units, int nunits)
{
	Writer w = { out, e, e->m, o, units, nunits };
	int64_t arena = 0, host = 0;
	for (size_t i = 0; i < e->funcs.len; i++) {
		const Func *f = e->funcs.at[i].func;
		arena = f->arena_bytes > arena ? f->arena_bytes : arena;
		host = f->host_bytes > host ? f->host_bytes : host;
	}
	fputs("#include \"plan.h\"\n\n", out);
	if (units)
		write_modules(&w);
	else
		fputs(isa_text, out);
	for (size_t i = 0; i < e->kernels.len && !units; i++)
		fprintf(out,
			"extern void k%zu(unsigned char *, const int64_t *, const PlanEnv *);\n",
			i);
	int nvars = write_vars(&w), nadapters = write_adapters(&w), ndata = write_data(&w);
	int ntrain = write_settings(&w, ir_find_section(e->m, "train", ""), "train");
	write_inputs(&w);
	write_prims(&w);
	write_funcs(&w);
	fprintf(out, "const Plan dl_plan = {\n\t.version = PLAN_VERSION, .target = \"%s\", .isa = %s,\n\t.model = ",
		units ? "cuda" : "cpu", units ? "\"\"" : "ISA_AVX512 ISA_AVX2 ISA_FMA");
	put_string(out, e->m->name);
	fputs(", .model_path = ", out);
	put_string(out, o->model_path);
	fputs(",\n\t.fingerprint = ", out);
	put_string(out, o->fingerprint);
	fputs(",\n\t.json = ", out);
	put_string(out, o->json);
	fprintf(out,
		",\n\t.arena_bytes = %lld, .budget_bytes = %lld, .threads = %d, .seed = %lluu,\n",
		(long long)arena, (long long)o->budget_bytes, o->threads,
		(unsigned long long)o->seed);
	fprintf(out, "\t.batch = %lld, .micro_batch = %lld,\n", (long long)e->m->batch,
		(long long)o->micro_batch);
	fprintf(out,
		"\t.vars = vars, .nvars = %d, .adapters = adapters, .nadapters = %d, .prims = prims, .nprims = %zu, .inputs = inputs, "
		".ninputs = %zu,\n",
		nvars, nadapters, e->prims.len, e->inputs.len);
	fprintf(out,
		"\t.data = data, .ndata = %d, .funcs = funcs, .nfuncs = %zu, .train = train, "
		".ntrain = %d",
		ndata, e->funcs.len, ntrain);
	if (units)
		fprintf(out, ",\n\t.arch = \"%s\", .modules = modules, .nmodules = %d, .host_bytes = %lld", o->arch, nunits, (long long)host);
	fputs("\n};\n", out);
}

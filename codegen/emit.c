/* Collects what a module's trainer consists of. Each node of a planned function is one step: a
 * kernel, a library call, an input, an output, a loop's start or end; variables, leaves and views
 * are places and no steps. */
#include "emit.h"

#include <assert.h>

#include "group.h"
#include "print.h"
#include "traffic.h"

enum { MOST_LAUNCHES = 40 }; /* of a kernel, in cuda_parts.h and cuda_tensor.h */

static uint64_t hash_text(const char *s)
{
	uint64_t h = 1469598103934665603u;
	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * 1099511628211u;
	return h;
}

static void table_put(Emit *e, int32_t kernel)
{
	uint64_t at = hash_text(e->kernels.at[kernel].text) % (uint64_t)e->table_size;
	while (e->table[at] >= 0)
		at = (at + 1) % (uint64_t)e->table_size;
	e->table[at] = kernel;
}

static void table_grow(Emit *e)
{
	e->table_size = e->table_size ? e->table_size * 2 : 256;
	e->table = ARENA_ARRAY(e->a, e->table_size, int32_t);
	for (int32_t i = 0; i < e->table_size; i++)
		e->table[i] = -1;
	for (size_t i = 0; i < e->kernels.len; i++)
		table_put(e, (int32_t)i);
}

/* The kernel of a text, or -1. */
static int32_t find_kernel(const Emit *e, const char *text, bool special)
{
	if (!e->table_size)
		return -1;
	for (uint64_t at = hash_text(text) % (uint64_t)e->table_size; e->table[at] >= 0;
	     at = (at + 1) % (uint64_t)e->table_size) {
		const EmitKernel *k = &e->kernels.at[e->table[at]];
		if (k->special == special && strcmp(k->text, text) == 0)
			return e->table[at];
	}
	return -1;
}

const char *emit_name(Arena *a, const Node *n)
{
	if (n->op != OP_fused)
		return ir_ops[n->op].name;
	const char *s = "";
	int shown = 0, all = 0;
	for (const Node *x = n->body->first; x; x = x->next) {
		if (x->op == OP_yield || x->op == OP_const || x->op == OP_iota)
			continue;
		all++;
		if (shown < 6) {
			s = arena_printf(a, "%s%s%s", s, shown ? "+" : "", ir_ops[x->op].name);
			shown++;
		}
	}
	if (all > shown)
		s = arena_printf(a, "%s+%d more", s, all - shown);
	return *s ? s : "const";
}

const char *emit_step_name(Arena *a, const EmitStep *s)
{
	const char *name = emit_name(a, s->node);
	return s->nmembers ? arena_printf(a, "%s x%d", name, s->nmembers) : name;
}

static const char *kernel_comment(Arena *a, const Node *n)
{
	const char *s = arena_printf(a, "%s:", emit_name(a, n));
	for (int i = 0; i < n->nargs; i++)
		s = arena_printf(a, "%s %s", s, type_text(a, &n->arg[i]->type, false));
	s = arena_printf(a, "%s ->", s);
	for (int i = 0; i < n->nres; i++)
		s = arena_printf(a, "%s %s", s, type_text(a, &n->res[i]->type, false));
	return s;
}

int32_t emit_kernel(Emit *e, const Node *n, const char *text, bool special)
{
	int32_t found = find_kernel(e, text, special);
	if (found >= 0)
		return found;
	EmitKernel k = { .text = text, .comment = kernel_comment(e->a, n), .special = special,
			 .weight = (double)strlen(text), .node = n };
	vec_push(e->a, &e->kernels, k);
	if ((int32_t)e->kernels.len * 2 > e->table_size)
		table_grow(e);
	else
		table_put(e, (int32_t)e->kernels.len - 1);
	return (int32_t)e->kernels.len - 1;
}

static void fail(Emit *e, const Node *n, const char *what)
{
	diag_error(e->m->diag, n->span, "%s: %s", ir_ops[n->op].name, what);
	e->failed = true;
}

static void set_kernel(Emit *e, EmitStep *s, const KernelText *text, bool special)
{
	s->index = emit_kernel(e, s->node, text->text, special);
	s->n = text->n;
	s->launch = text->launch;
	s->nlaunch = text->nlaunch;
	s->joins = text->joins;
}

static void kernel_step(Emit *e, EmitFunc *f, const Node *n, int64_t micro)
{
	EmitStep s = { .kind = PLAN_KERNEL, .node = n, .micro = micro };
	PlanPrim p;
	if (n->op == OP_fused) {
		const Loop *l = loop_build(e->a, n, micro);
		if (!l) {
			fail(e, n, "this combination of ops has no loop form");
			return;
		}
		KernelText text = e->printer->fused(e->a, n, l, micro);
		if (!text.text) {
			fail(e, n, "this back end has no kernel for sums over rows beside others along them");
			return;
		}
		set_kernel(e, &s, &text, false);
	} else if (e->printer->library(n, &p)) {
		p.work_bytes = n->work_bytes;
		s.kind = PLAN_PRIM;
		s.index = (int32_t)e->prims.len;
		for (size_t i = 0; i < e->prims.len; i++)
			if (memcmp(&e->prims.at[i], &p, sizeof p) == 0)
				s.index = (int32_t)i;
		if (s.index == (int32_t)e->prims.len)
			vec_push(e->a, &e->prims, p);
	} else {
		KernelText text = e->printer->special(e->a, n, e->arch);
		if (!text.text) {
			fail(e, n, "this op can be planned, but there is no kernel to run it");
			return;
		}
		set_kernel(e, &s, &text, true);
	}
	vec_push(e->a, &f->steps, s);
}

static int32_t input_index(Emit *e, const Node *n)
{
	const char *name = ir_str(n, "name");
	for (size_t i = 0; i < e->inputs.len; i++)
		if (strcmp(ir_str(e->inputs.at[i], "name"), name) == 0)
			return (int32_t)i;
	vec_push(e->a, &e->inputs, n);
	return (int32_t)e->inputs.len - 1;
}

/* Micro-batches are counted over the loops of a stage: one that begins beyond the first sample goes on with the number
 * of the loop before it. */
static int32_t add_loop(Emit *e, EmitFunc *f, const Node *n)
{
	PlanLoop loop = { .trips = ir_int(n, "trips"),
			  .batch = ir_int(n, "batch"),
			  .base = ir_int(n, "base") };
	if (loop.base > 0 && f->loops.len > 0) {
		const PlanLoop *before = &f->loops.at[f->loops.len - 1];
		loop.first = before->first + before->trips;
	}
	vec_push(e->a, &f->loops, loop);
	return (int32_t)f->loops.len - 1;
}

/* A copy has the number of what it makes. */
static void move_step(Emit *e, EmitFunc *f, const Node *n)
{
	static const PlanStepKind kinds[] = { [OP_send - OP_send] = PLAN_SEND, [OP_sent - OP_send] = PLAN_SENT,
					      [OP_fetch - OP_send] = PLAN_FETCH, [OP_fetched - OP_send] = PLAN_FETCHED };
	const Value *made = n->nres ? n->res[0] : n->arg[n->op == OP_sent];
	int64_t number = 0;
	if (n->nres)
		map_set(&f->copies, made, number = f->ncopies++);
	else
		map_get(&f->copies, made, &number);
	EmitStep s = { .kind = kinds[n->op - OP_send], .node = n, .index = (int32_t)number };
	vec_push(e->a, &f->steps, s);
}

static void walk_block(Emit *e, EmitFunc *f, const Block *b, int64_t micro)
{
	for (const Node *n = b->first; n; n = n->next) {
		EmitStep s = { .node = n };
		if (n->op == OP_input) {
			s.kind = PLAN_INPUT;
			s.index = input_index(e, n);
			vec_push(e->a, &f->steps, s);
		} else if (n->op == OP_output) {
			s.kind = PLAN_OUTPUT;
			s.index = (int32_t)f->outputs.len;
			vec_push(e->a, &f->outputs, n);
			vec_push(e->a, &f->steps, s);
		} else if (n->op == OP_loop) {
			s.kind = PLAN_LOOP;
			s.index = add_loop(e, f, n);
			vec_push(e->a, &f->steps, s);
			walk_block(e, f, n->body, ir_int(n, "batch"));
			s.kind = PLAN_END;
			vec_push(e->a, &f->steps, s);
		} else if (ir_ops[n->op].kind == K_MOVE) {
			move_step(e, f, n);
		} else if (n->op != OP_var && n->op != OP_yield && !ir_is_view(n)) {
			kernel_step(e, f, n, micro);
		}
	}
}

Emit *emit_module(Arena *a, const Module *m, const KernelPrinter *printer, const char *arch)
{
	Emit *e = ARENA_NEW(a, Emit);
	e->a = a;
	e->m = m;
	e->printer = printer;
	e->arch = arch;
	for (const Func *f = m->funcs; f; f = f->next) {
		if (strcmp(f->name, "forward") == 0)
			continue;
		EmitFunc ef = { .func = f, .copies = { .arena = a } };
		walk_block(e, &ef, f->body, f->batch);
		vec_push(a, &e->funcs, ef);
	}
	if (e->failed)
		return NULL;
	group_steps(e);
	return e;
}

int64_t emit_offset(const Module *m, const Value *v)
{
	int64_t bytes = 0;
	const Value *root = v;
	while (root->def && ir_is_view(root->def)) {
		int64_t one = 0;
		if (root->def->op == OP_slice) {
			const Type *x = &root->def->arg[0]->type;
			int64_t axis = ir_int(root->def, "axis"), inner = dtype_bytes(x->dtype);
			axis = axis < 0 ? axis + x->ndim : axis;
			for (int64_t i = axis + 1; i < x->ndim; i++)
				inner *= x->dim[i];
			one = ir_int(root->def, "start") * inner;
		}
		bytes += one;
		root = root->def->arg[0];
	}
	if (root->def && root->def->op == OP_var) {
		const Var *var = ir_find_var(m, ir_str(root->def, "name"));
		assert(var && var->offset >= 0);
		return var->offset + bytes;
	}
	assert(root->offset >= 0 && "offsets has placed every stored value");
	return root->offset + bytes;
}

/* Parts of all members' off[], one member after the other. */
static void gather(int64_t *to, int *at, const EmitOffsets *x, int n, int first, int count)
{
	for (int i = 0; i < n; i++)
		for (int k = 0; k < count; k++)
			to[(*at)++] = x[i].off[first + k];
}

static EmitOffsets group_offsets(Arena *a, const Module *m, const EmitStep *s)
{
	int n = s->nmembers;
	EmitOffsets *x = ARENA_ARRAY(a, n, EmitOffsets), r = { 0 };
	for (int i = 0; i < n; i++)
		x[i] = emit_offsets(a, m, &s->member[i]);
	assert(x[0].nwork == 0);
	r.off = ARENA_ARRAY(a, n * (x[0].noff + x[0].nown + 1), int64_t);
	gather(r.off, &r.noff, x, n, 0, x[0].noff - x[0].nout);
	gather(r.off, &r.noff, x, n, x[0].noff - x[0].nout, x[0].nout);
	r.nout = n * x[0].nout;
	int at = r.noff;
	gather(r.off, &at, x, n, x[0].noff, x[0].nown);
	int64_t block = 0;
	for (int i = 0; i < n; i++) {
		r.off[at++] = block;
		block += s->member[i].launch[0].grid[0];
	}
	r.nown = at - r.noff;
	return r;
}

const Value *emit_result(const EmitStep *s, int i)
{
	int each = s->node->nres;
	return s->nmembers ? s->member[i / each].node->res[i % each] : s->node->res[i];
}

EmitOffsets emit_offsets(Arena *a, const Module *m, const EmitStep *s)
{
	if (s->nmembers)
		return group_offsets(a, m, s);
	const Node *n = s->node;
	EmitOffsets x = { 0 };
	if (s->kind == PLAN_LOOP || s->kind == PLAN_END)
		return x;
	if (ir_ops[n->op].kind == K_MOVE) { /* in the arena, in host memory */
		x.off = ARENA_ARRAY(a, 2, int64_t);
		x.off[x.noff++] = emit_offset(m, n->op == OP_fetch ? n->res[0] : n->arg[0]);
		if (n->nres)
			x.off[x.noff++] = n->op == OP_send ? n->res[0]->offset : n->arg[0]->offset;
		return x;
	}
	int64_t *stream = NULL;
	int nstreams = s->kind == PLAN_KERNEL ? kernel_streams(a, n, &stream) : 0;
	x.off = ARENA_ARRAY(a, n->nargs + n->nres + 2 + nstreams, int64_t);
	for (int i = 0; i < n->nargs; i++)
		x.off[x.noff++] = emit_offset(m, n->arg[i]);
	for (int i = 0; i < n->nres; i++)
		x.off[x.noff++] = emit_offset(m, n->res[i]);
	x.nout = n->nres;
	if (n->work_bytes > 0 && (s->kind == PLAN_KERNEL || s->kind == PLAN_PRIM)) {
		x.off[x.noff++] = n->work_offset;
		x.nwork = 1;
	}
	if (s->kind != PLAN_KERNEL)
		return x;
	assert(x.noff == kernel_own_numbers(n));
	x.off[x.noff + x.nown++] = s->n;
	for (int i = 0; i < nstreams; i++)
		x.off[x.noff + x.nown++] = stream[i];
	return x;
}

/* Loops do not nest. */
static const char *func_launches(Arena *a, const EmitFunc *f)
{
	int64_t outside = 0, trip = 0, call = 0, trips = 0;
	const char *list = "", *comma = "";
	for (size_t i = 0; i < f->steps.len; i++) {
		const EmitStep *s = &f->steps.at[i];
		int64_t n = s->kind == PLAN_KERNEL ? s->nlaunch : s->kind == PLAN_PRIM;
		if (s->kind == PLAN_LOOP) {
			trips = f->loops.at[s->index].trips;
			trip = 0;
		} else if (s->kind == PLAN_END) {
			list = arena_printf(a, "%s%s%lld", list, comma, (long long)trip);
			comma = ", ";
			call += trips * trip;
			trips = 0;
		} else if (trips > 0) {
			trip += n;
		} else {
			outside += n;
		}
	}
	Traffic t = traffic_func(a, f);
	return arena_printf(a, "{\"call\": %lld, \"outside\": %lld, \"trip\": [%s], \"moved_bytes\": %lld, \"floor_bytes\": %lld}",
			    (long long)(call + outside), (long long)outside, list, (long long)t.moved, (long long)t.floor);
}

const char *emit_launches(Arena *a, const Emit *e)
{
	const char *s = "{";
	for (size_t i = 0; i < e->funcs.len; i++)
		s = arena_printf(a, "%s%s\"%s\": %s", s, i ? ", " : "", e->funcs.at[i].func->name, func_launches(a, &e->funcs.at[i]));
	return arena_printf(a, "%s}", s);
}

static void print_kernel(FILE *out, const Emit *e, int kernel)
{
	fprintf(out, "/* %s */\n", e->kernels.at[kernel].comment);
	e->printer->print(out, e, kernel);
}

void kernel_print(FILE *out, const Emit *e, int kernel)
{
	fputc('\n', out);
	print_kernel(out, e, kernel);
}

/* "launch k3_1: 12 1 1 blocks of 256, 0 bytes": on a GPU, the largest of all steps in each dimension. */
static void print_launches(FILE *out, const Emit *e, int kernel)
{
	PlanLaunch most[MOST_LAUNCHES] = { 0 };
	int n = 0;
	for (size_t f = 0; f < e->funcs.len; f++)
		for (size_t i = 0; i < e->funcs.at[f].steps.len; i++) {
			const EmitStep *s = &e->funcs.at[f].steps.at[i];
			if (s->kind != PLAN_KERNEL || s->index != kernel)
				continue;
			assert(s->nlaunch <= MOST_LAUNCHES);
			n = s->nlaunch;
			for (int k = 0; k < n; k++) {
				const PlanLaunch *l = &s->launch[k];
				for (int d = 0; d < 3; d++)
					most[k].grid[d] = l->grid[d] > most[k].grid[d] ? l->grid[d] : most[k].grid[d];
				most[k].block = l->block;
				most[k].shared_bytes = l->shared_bytes > most[k].shared_bytes ? l->shared_bytes : most[k].shared_bytes;
			}
		}
	for (int k = 0; k < n; k++) {
		const PlanLaunch *l = &most[k];
		fprintf(out, "/* launch k%d", kernel);
		if (k > 0)
			fprintf(out, "_%d", k);
		fprintf(out, ": %u %u %u blocks of %u, %u bytes */\n", l->grid[0], l->grid[1], l->grid[2], l->block, l->shared_bytes);
	}
}

static void print_launched(FILE *out, const Emit *e, int kernel)
{
	fputc('\n', out);
	print_launches(out, e, kernel);
	print_kernel(out, e, kernel);
}

void kernels_write(FILE *out, const Emit *e)
{
	bool special = false;
	e->printer->prelude(out, e, false);
	for (size_t i = 0; i < e->kernels.len; i++) {
		special = special || e->kernels.at[i].special;
		if (e->kernels.at[i].special)
			continue;
		print_launched(out, e, (int)i);
	}
	if (!special)
		return;
	fputc('\n', out);
	e->printer->prelude(out, e, true);
	for (size_t i = 0; i < e->kernels.len; i++)
		if (e->kernels.at[i].special)
			print_launched(out, e, (int)i);
}

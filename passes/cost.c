/* Predicted time of a node: the larger of arithmetic over the machine's rate and traffic over its bandwidth, plus the
 * fixed cost of a launch (Williams, Waterman and Patterson, "Roofline", 2009).
 *
 * Traffic counts each operand and result once, as every kernel here reads and writes them once. */
#include "cost.h"

#include <string.h>

static const Machine machines[] = {
	{ .name = "generic-cpu", .flops_matmul = 100e9, .flops_conv = 60e9, .flops_ewise = 8e9,
	  .bytes_per_second = 12e9, .launch_seconds = 3e-6 },
};

const Machine *machine_find(const char *name)
{
	if (!name)
		return &machines[0];
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
		if (strcmp(machines[i].name, name) == 0)
			return &machines[i];
	return NULL;
}

const char *machine_names(Arena *a)
{
	const char *names = machines[0].name;

	for (size_t i = 1; i < sizeof machines / sizeof *machines; i++)
		names = arena_printf(a, "%s, %s", names, machines[i].name);
	return names;
}

/* Work of one element of a body op in units of a simple operation; a polynomial costs about a dozen. */
static double element_work(const Node *n)
{
	const OpInfo *op = &ir_ops[n->op];

	if (op->flags & OPF_RANDOM)
		return 40;
	if (op->expr && strchr(op->expr, '#'))
		return 12;
	return 1;
}

static double body_flops(const Block *body)
{
	double sum = 0;

	for (const Node *n = body->first; n; n = n->next) {
		const OpInfo *op = &ir_ops[n->op];

		if (op->kind == K_REDUCE)
			sum += (double)type_elems(&n->arg[0]->type);
		else if (n->nres > 0 && op->kind != K_SHAPE)
			sum += (double)type_elems(&n->res[0]->type) * element_work(n);
	}
	return sum;
}

double cost_flops(const Node *n)
{
	const OpInfo *op = &ir_ops[n->op];

	if (n->op == OP_fused)
		return body_flops(n->body);
	if (op->flops)
		return op->flops(n);
	if (op->kind == K_REDUCE)
		return (double)type_elems(&n->arg[0]->type);
	if (n->nres == 0)
		return 0;
	return (double)type_elems(&n->res[0]->type) * (op->expr ? element_work(n) : 1);
}

double cost_bytes(const Node *n)
{
	double sum = 0;

	for (int i = 0; i < n->nargs; i++)
		sum += (double)type_bytes(&n->arg[i]->type);
	for (int i = 0; i < n->nres; i++)
		sum += (double)type_bytes(&n->res[i]->type);
	if (n->op == OP_embedding) /* reads the chosen rows only */
		sum = 2 * (double)type_bytes(&n->res[0]->type) + (double)type_bytes(&n->arg[1]->type);
	return sum;
}

static double arithmetic_rate(const Node *n, const Machine *m)
{
	if (n->op == OP_matmul)
		return m->flops_matmul;
	if (ir_ops[n->op].kind == K_MATRIX)
		return m->flops_conv;
	if (n->op == OP_attention || n->op == OP_attention_grad)
		return m->flops_matmul / 3;
	return m->flops_ewise;
}

double cost_seconds(const Node *n, const Machine *m)
{
	double compute, traffic;

	if (n->op == OP_opaque)
		return ir_float(n, "seconds");
	if (n->op == OP_var || n->op == OP_loop || n->op == OP_yield || n->op == OP_output || ir_is_view(n))
		return 0;
	compute = cost_flops(n) / arithmetic_rate(n, m);
	traffic = cost_bytes(n) / m->bytes_per_second;
	return (compute > traffic ? compute : traffic) + m->launch_seconds;
}

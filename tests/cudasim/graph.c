/* Capture and graphs. A captured operation becomes a node that depends on what its stream did last and on the events that the stream waited
 * for. A launch runs the nodes in an order that respects those, chosen by DL_SIM_ORDER: what forgets a dependency comes out wrong. Copies between
 * host and device run as late as their dependencies allow (in the reverse order: as early), and are taken to be under way from when
 * they might have run: what they read must stay as it is until then, what they write is undefined. */
#include "queue.h"

#include <stdlib.h>
#include <string.h>

static void set_ends(int **to, int *nto, const int *from, int n)
{
	int *v = malloc((size_t)(n + 1) * sizeof *v);
	if (!v)
		abort();
	if (n)
		memcpy(v, from, (size_t)n * sizeof *v);
	free(*to);
	*to = v;
	*nto = n;
}

CUresult capture_add(SimStream *s, Op *op)
{
	SimGraph *g = s->capture->graph;
	if (s->capture->invalid) {
		op_free(op);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	Op **v = realloc(g->nodes, (size_t)(g->n + 1) * sizeof(Op *));
	if (!v)
		abort();
	g->nodes = v;
	op->deps = s->ends;
	op->ndeps = s->nends;
	s->ends = NULL;
	v[g->n] = op;
	set_ends(&s->ends, &s->nends, &g->n, 1);
	g->n++;
	return CUDA_SUCCESS;
}

CUresult capture_forbids(void)
{
	if (sim_device.ncaptures == 0)
		return CUDA_SUCCESS;
	for (int i = 0; i < sim_device.ncaptures; i++)
		sim_device.captures[i]->invalid = true;
	return violation_host(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that waits or allocates while a stream captures");
}

CUresult capture_record(SimEvent *e, SimStream *s)
{
	e->capture = s->capture;
	set_ends(&e->ends, &e->nends, s->ends, s->nends);
	return CUDA_SUCCESS;
}

CUresult capture_wait(SimStream *s, const SimEvent *e)
{
	if (s->capture && s->capture != e->capture)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "a capturing stream waits for an event that was not recorded in its capture");
	if (!s->capture && s->head)
		return violation_host(CUDA_ERROR_INVALID_VALUE, "a stream with work queued joins a capture");
	s->capture = e->capture;
	int *all = malloc((size_t)(s->nends + e->nends + 1) * sizeof *all);
	if (!all)
		abort();
	int n = 0;
	for (int i = 0; i < s->nends; i++)
		all[n++] = s->ends[i];
	for (int i = 0; i < e->nends; i++) {
		bool have = false;
		for (int j = 0; j < n && !have; j++)
			have = all[j] == e->ends[i];
		if (!have)
			all[n++] = e->ends[i];
	}
	free(s->ends);
	s->ends = all;
	s->nends = n;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	CALL("cuStreamBeginCapture");
	SimStream *s = stream_of(stream);
	if (s == &sim_device.null_stream || s->capture || sim_device.ncaptures == 8 || mode < 0 || mode > 2)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	Capture *c = calloc(1, sizeof *c);
	SimGraph *g = calloc(1, sizeof *g);
	if (!c || !g)
		abort();
	g->refs = 1;
	*c = (Capture){.graph = g, .origin = s};
	s->capture = c;
	set_ends(&s->ends, &s->nends, NULL, 0);
	sim_device.captures[sim_device.ncaptures++] = c;
	return driver_leave(CUDA_SUCCESS);
}

static void graph_release(SimGraph *g)
{
	if (--g->refs > 0)
		return;
	for (int i = 0; i < g->n; i++)
		op_free(g->nodes[i]);
	free(g->nodes);
	free(g);
}

/* All nodes are behind what the stream that began the capture did last. */
static bool joined(const SimGraph *g, const SimStream *origin)
{
	bool *in = calloc((size_t)g->n + 1, sizeof *in), all = true;
	if (!in)
		abort();
	for (int i = 0; i < origin->nends; i++)
		in[origin->ends[i]] = true;
	for (int i = g->n - 1; i >= 0; i--) {
		all &= in[i];
		for (int j = 0; in[i] && j < g->nodes[i]->ndeps; j++)
			in[g->nodes[i]->deps[j]] = true;
	}
	free(in);
	return all;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
	CALL("cuStreamEndCapture");
	SimStream *s = stream_of(stream);
	Capture *c = s->capture;
	*out = NULL;
	if (!c)
		return driver_leave(CUDA_ERROR_INVALID_VALUE);
	if (c->origin != s)
		return driver_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	CUresult e = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : joined(c->graph, s) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (e == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
		violation_host(e, "capture ends while work of a joined stream is not waited for");
	for (int i = 0; i < sim_device.ncaptures; i++)
		if (sim_device.captures[i] == c)
			sim_device.captures[i--] = sim_device.captures[--sim_device.ncaptures];
	for (SimStream *o = sim_device.streams; o; o = o->next)
		if (o->capture == c) {
			o->capture = NULL;
			o->nends = 0;
		}
	if (e == CUDA_SUCCESS)
		*out = c->graph;
	else
		graph_release(c->graph);
	free(c);
	return driver_leave(e);
}

CUresult cuStreamIsCapturing(CUstream s, int *status)
{
	const SimStream *t = stream_of(s);
	*status = !t->capture ? 0 : t->capture->invalid ? 2 : 1;
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	*mode = 0;
	return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n)
{
	for (size_t i = 0; nodes && i < *n && i < (size_t)g->n; i++)
		nodes[i] = g->nodes[i];
	*n = (size_t)g->n;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph g, unsigned long long flags)
{
	(void)flags;
	CALL("cuGraphInstantiate");
	*x = calloc(1, sizeof **x);
	if (!*x)
		return driver_leave(CUDA_ERROR_OUT_OF_MEMORY);
	(*x)->graph = g;
	(*x)->refs = 1;
	g->refs++;
	return driver_leave(CUDA_SUCCESS);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *x, CUgraph g, CUgraphNode *bad, char *log, size_t log_bytes)
{
	if (bad)
		*bad = NULL;
	if (log && log_bytes)
		*log = 0;
	return cuGraphInstantiateWithFlags(x, g, 0);
}

CUresult cuGraphDestroy(CUgraph g)
{
	CALL("cuGraphDestroy");
	graph_release(g);
	return driver_leave(CUDA_SUCCESS);
}

void graph_exec_release(SimGraphExec *x)
{
	if (--x->refs > 0)
		return;
	graph_release(x->graph);
	free(x);
}

CUresult cuGraphExecDestroy(CUgraphExec x)
{
	CALL("cuGraphExecDestroy");
	graph_exec_release(x);
	return driver_leave(CUDA_SUCCESS);
}

void graph_announce(Op *op)
{
	SimGraph *g = op->exec->graph;
	op->writes = sim_device.host_writes;
	op->hashes = calloc((size_t)g->n + 1, sizeof *op->hashes);
	if (!op->hashes)
		abort();
	for (int i = 0; i < g->n; i++) {
		op_announce(g->nodes[i]);
		op->hashes[i] = g->nodes[i]->hash;
	}
}

/* Where a node is in a launch; BEGUN: a copy that might run by now. */
typedef enum NodeState { NODE_WAITS, NODE_BEGUN, NODE_DONE } NodeState;

static bool is_ready(const SimGraph *g, const NodeState *state, int i)
{
	for (int j = 0; j < g->nodes[i]->ndeps; j++)
		if (state[g->nodes[i]->deps[j]] != NODE_DONE)
			return false;
	return true;
}

static bool is_copy(const Op *op)
{
	return op->kind == OP_COPY && op->copy != COPY_WITHIN;
}

/* The region of the device that a copy reads or writes; NULL where it has been freed, which its run will tell. */
static Region *device_side(const Op *c, uintptr_t *at)
{
	*at = c->copy == COPY_IN ? c->to : c->from;
	return memory_range(*at, c->bytes);
}

static void begin_copy(Op *c)
{
	uintptr_t at;
	Region *g = device_side(c, &at);
	if (g && c->copy == COPY_IN)
		memset(g->written + (at - g->base), 0, c->bytes);
	else if (g)
		c->early = hash_of(at, c->bytes);
}

static CUresult end_copy(const Op *c)
{
	uintptr_t at;
	const Region *g = device_side(c, &at);
	if (g && c->copy == COPY_IN && memchr(g->written + (at - g->base), 1, c->bytes))
		return violation_host(CUDA_ERROR_LAUNCH_FAILED, "copy of %zu bytes to the device: a node that does not wait for it has written there", c->bytes);
	if (g && c->copy == COPY_OUT && hash_of(at, c->bytes) != c->early)
		return violation_host(CUDA_ERROR_LAUNCH_FAILED, "copy of %zu bytes to the host: a node that does not wait for it has changed its source", c->bytes);
	return CUDA_SUCCESS;
}

/* The node to run next; those copies begin that may. */
static int next_node(const SimGraph *g, NodeState *state, const uint32_t *order)
{
	uint64_t seed;
	int copy = -1, other = -1, any = -1;
	for (int k = 0; k < g->n; k++) {
		int i = (int)order[k];
		if (state[i] == NODE_DONE || !is_ready(g, state, i))
			continue;
		any = any < 0 ? i : any;
		if (!is_copy(g->nodes[i])) {
			other = other < 0 ? i : other;
			continue;
		}
		copy = copy < 0 ? i : copy;
		if (state[i] == NODE_WAITS)
			begin_copy(g->nodes[i]);
		state[i] = NODE_BEGUN;
	}
	switch (sim_order(&seed)) {
	case ORDER_FORWARD: return other >= 0 ? other : copy;
	case ORDER_REVERSE: return copy >= 0 ? copy : other;
	default: return any;
	}
}

/* Runs node by node; each once all that it depends on have run. */
CUresult graph_run(const Op *op)
{
	SimGraph *g = op->exec->graph;
	uint32_t *order = malloc(((size_t)g->n + 1) * sizeof *order);
	NodeState *state = calloc((size_t)g->n + 1, sizeof *state);
	if (!order || !state)
		abort();
	sim_permute(order, (uint32_t)g->n, (uint64_t)g->n);
	CUresult e = CUDA_SUCCESS;
	for (int left = g->n; left > 0 && e == CUDA_SUCCESS; left--) {
		int i = next_node(g, state, order);
		Op *node = g->nodes[i];
		node->hash = op->hashes[i];
		node->writes = op->writes;
		if (is_copy(node))
			e = end_copy(node);
		e = e == CUDA_SUCCESS ? op_run(node) : e;
		state[i] = NODE_DONE;
	}
	free(order);
	free(state);
	return e;
}

CUresult cuStreamBeginCapture(CUstream, int) __attribute__((alias("cuStreamBeginCapture_v2")));
CUresult cuGraphInstantiate(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t) __attribute__((alias("cuGraphInstantiate_v2")));

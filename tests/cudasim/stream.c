/* Streams: queues that are worked off when someone waits.
 *
 * An operation on the default stream comes behind everything queued on the blocking streams before, and the other way round. A query does
 * one operation, so that a host that polls makes progress and sees "not ready". */
#include "queue.h"

#include <stdlib.h>

SimStream *stream_of(CUstream s)
{
	return s == NULL || (uintptr_t)s <= 2 ? &sim_device.null_stream : s; /* 1, 2: the names of the default stream */
}

static void push(SimStream *s, Op *op)
{
	op->next = NULL;
	op->next = NULL;
	if (s->tail)
		s->tail->next = op;
	else
		s->head = op;
	s->tail = op;
	s->last++;
}

static void push_wait(SimStream *s, SimStream *of)
{
	if (of == s || of->done == of->last)
		return;
	Op *w = op_new(OP_WAIT);
	w->stream = of;
	w->seq = of->last;
	push(s, w);
}

CUresult stream_add(SimStream *s, Op *op)
{
	if (s->capture)
		return capture_add(s, op);
	if (s == &sim_device.null_stream) {
		for (SimStream *o = sim_device.streams; o; o = o->next) {
			if (o->blocking && o->capture) {
				o->capture->invalid = true;
				op_free(op);
				return violation_host(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call on the default stream while a blocking stream captures");
			}
			if (o->blocking)
				push_wait(s, o);
		}
	} else if (s->blocking) {
		push_wait(s, &sim_device.null_stream);
	}
	op_announce(op);
	push(s, op);
	return CUDA_SUCCESS;
}

static CUresult run_one(SimStream *s)
{
	Op *op = s->head;
	CUresult e = op_run(op);
	s->head = op->next;
	if (!s->head)
		s->tail = NULL;
	s->done++;
	op_free(op);
	if (e != CUDA_SUCCESS && !sim_device.dead)
		sim_device.dead = e;
	return e;
}

/* After a failure nothing that waits will run. */
static void forget(SimStream *s)
{
	while (s->head) {
		Op *op = s->head;
		s->head = op->next;
		op_free(op);
	}
	s->tail = NULL;
	s->done = s->last;
}

static CUresult work_off(SimStream *s, uint64_t seq, int most)
{
	CUresult e = CUDA_SUCCESS;
	memory_open(true);
	for (int i = 0; s->done < seq && e == CUDA_SUCCESS && (most < 0 || i < most); i++)
		e = run_one(s);
	return e;
}

static CUresult settle(CUresult e)
{
	memory_open(false);
	if (e != CUDA_SUCCESS) {
		forget(&sim_device.null_stream);
		for (SimStream *s = sim_device.streams; s; s = s->next)
			forget(s);
	}
	return e;
}

/* Waits of streams for each other nest; the outermost closes the memory. */
static int depth;

CUresult stream_run(SimStream *s, uint64_t seq)
{
	depth++;
	CUresult e = work_off(s, seq, -1);
	depth--;
	return depth ? e : settle(e);
}

CUresult stream_step(SimStream *s, uint64_t seq)
{
	depth++;
	CUresult e = work_off(s, seq, 1);
	depth--;
	e = settle(e);
	return e == CUDA_SUCCESS && s->done < seq ? CUDA_ERROR_NOT_READY : e;
}

CUresult stream_run_all(void)
{
	CUresult e = stream_run(&sim_device.null_stream, sim_device.null_stream.last);
	for (SimStream *s = sim_device.streams; s && e == CUDA_SUCCESS; s = s->next)
		e = stream_run(s, s->last);
	return e;
}

/* How long copies between a card's memory and the host's take, and within the card's.
 *
 * Method. A copy is timed as a plan runs it (dev_cuda_run.c): in a CUDA graph, on the stream of its direction, behind what the first stream
 * was given, which waits for it. A graph holds a chain of equal ones, so that each takes all that a step which waits for it would lose:
 *
 *     first stream    reached ----------------- wait, reached ---------------- wait ...
 *     stream of copies       `-- copy, copied --'            `-- copy, copied --'
 *
 * Such a graph is launched twice in a row; the second run is timed, by events around it, a few times: the least counts, since other work
 * only adds. Copies within the card and fills are a chain on the first stream alone.
 *
 * Invariants. Memory and streams are its own and are given back; nothing of the plan is touched. */
#include "dev_cuda.h"

#include <stdlib.h>

enum { LINK_ROUNDS = 3, CHAIN = 16, CHAIN_OF_LARGE = 4, LARGE = 4 << 20 };

typedef struct Links {
	CuPtr card;          /* twice the bytes of the largest copy within the card */
	unsigned char *host; /* pinned */
	CuStream way[2];     /* out, in */
	CuEvent reached, copied, begin, end;
} Links;

static int64_t most_bytes(const LinkTime *t, int n, bool host)
{
	int64_t most = 1;
	for (int i = 0; i < n; i++) {
		bool link = t[i].kind == LINK_OUT || t[i].kind == LINK_IN;
		int64_t bytes = host && !link ? 0 : t[i].kind == LINK_WITHIN ? 2 * t[i].bytes : t[i].bytes;
		most = bytes > most ? bytes : most;
	}
	return most;
}

static bool links_open(Device *d, Links *l, const LinkTime *t, int n, Fail *f)
{
	void *host = NULL;
	if (!CUDA(d, f, "copies to be timed", MemAlloc, &l->card, (size_t)most_bytes(t, n, false)) ||
	    !CUDA(d, f, "host memory of copies to be timed", MemHostAlloc, &host, (size_t)most_bytes(t, n, true), 0))
		return false;
	l->host = host;
	return CUDA(d, f, "a stream of copies", StreamCreate, &l->way[0], CU_STREAM_APART) &&
	       CUDA(d, f, "a stream of copies", StreamCreate, &l->way[1], CU_STREAM_APART) &&
	       CUDA(d, f, "an event", EventCreate, &l->reached, CU_EVENT_UNTIMED) &&
	       CUDA(d, f, "an event", EventCreate, &l->copied, CU_EVENT_UNTIMED) &&
	       CUDA(d, f, "an event", EventCreate, &l->begin, CU_EVENT_TIMED) &&
	       CUDA(d, f, "an event", EventCreate, &l->end, CU_EVENT_TIMED);
}

static void links_close(Device *d, Links *l)
{
	const CuEvent event[] = { l->reached, l->copied, l->begin, l->end };
	for (size_t i = 0; i < sizeof event / sizeof *event; i++)
		if (event[i])
			d->api.EventDestroy(event[i]);
	for (int i = 0; i < 2; i++)
		if (l->way[i])
			d->api.StreamDestroy(l->way[i]);
	if (l->host)
		d->api.MemFreeHost(l->host);
	if (l->card)
		d->api.MemFree(l->card);
}

static bool issue_link(Device *d, const Links *l, bool in, size_t bytes, Fail *f)
{
	CuStream way = l->way[in];
	return CUDA(d, f, "a copy", EventRecord, l->reached, d->stream) &&
	       CUDA(d, f, "a copy", StreamWaitEvent, way, l->reached, 0) &&
	       (in ? CUDA(d, f, "a copy", MemcpyHtoDAsync, l->card, l->host, bytes, way)
		   : CUDA(d, f, "a copy", MemcpyDtoHAsync, l->host, l->card, bytes, way)) &&
	       CUDA(d, f, "a copy", EventRecord, l->copied, way) &&
	       CUDA(d, f, "a copy", StreamWaitEvent, d->stream, l->copied, 0);
}

static bool issue_one(Device *d, const Links *l, const LinkTime *t, Fail *f)
{
	size_t bytes = (size_t)t->bytes;
	switch (t->kind) {
	case LINK_WITHIN:
		return CUDA(d, f, "a copy", MemcpyDtoDAsync, l->card + (CuPtr)bytes, l->card, bytes, d->stream);
	case LINK_FILL: return CUDA(d, f, "a fill", MemsetD8Async, l->card, 0, bytes, d->stream);
	default: return issue_link(d, l, t->kind == LINK_IN, bytes, f);
	}
}

static bool capture_chain(Device *d, const Links *l, const LinkTime *t, int chain, CuGraphExec *out, Fail *f)
{
	CuGraph graph = NULL;
	Fail second = { 0 };
	if (!CUDA(d, f, "copies", StreamBeginCapture, d->stream, CU_CAPTURE_RELAXED))
		return false;
	bool ok = true;
	for (int i = 0; i < chain && ok; i++)
		ok = issue_one(d, l, t, f);
	ok = CUDA(d, ok ? f : &second, "copies", StreamEndCapture, d->stream, &graph) && ok;
	ok = ok && CUDA(d, f, "copies", GraphInstantiate, out, graph, 0);
	if (graph)
		d->api.GraphDestroy(graph);
	return ok;
}

static bool time_chain(Device *d, const Links *l, LinkTime *t, int chain, CuGraphExec graph, Fail *f)
{
	for (int round = 0; round < LINK_ROUNDS; round++) {
		float milliseconds = 0;
		if (!CUDA(d, f, "copies", GraphLaunch, graph, d->stream) ||
		    !CUDA(d, f, "copies", EventRecord, l->begin, d->stream) ||
		    !CUDA(d, f, "copies", GraphLaunch, graph, d->stream) ||
		    !CUDA(d, f, "copies", EventRecord, l->end, d->stream) ||
		    !CUDA(d, f, "copies", EventSynchronize, l->end) ||
		    !CUDA(d, f, "copies", EventElapsedTime, &milliseconds, l->begin, l->end))
			return false;
		double seconds = 1e-3 * (double)milliseconds / chain;
		t->seconds = round == 0 || seconds < t->seconds ? seconds : t->seconds;
	}
	return true;
}

static bool time_one(Device *d, const Links *l, LinkTime *t, Fail *f)
{
	CuGraphExec graph = NULL;
	int chain = t->bytes < LARGE ? CHAIN : CHAIN_OF_LARGE;
	bool ok = capture_chain(d, l, t, chain, &graph, f) && time_chain(d, l, t, chain, graph, f);
	if (graph)
		d->api.GraphExecDestroy(graph);
	return ok;
}

bool device_time_links(Device *d, LinkTime *t, int n, Fail *f)
{
	Links l = { 0 };
	bool ok = links_open(d, &l, t, n, f);
	for (int i = 0; i < n && ok; i++)
		ok = time_one(d, &l, &t[i], f);
	links_close(d, &l);
	return ok;
}

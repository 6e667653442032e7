/* Library calls by oneDNN 2.6.
 *
 * Method. A call has three operands in fixed roles (a or x, b or w, c or y), one of them the
 * result. Matrix products are described by their strides and the first implementation the library
 * offers is taken. Convolutions are offered plain NCHW tensors; the fast implementations want
 * blocked ones, so descriptors are made with `any` layouts and where the implementation chose
 * another layout than the plain one, the operand is packed into the workspace:
 *
 *     x  --reorder-->  [x packed]  --+
 *     w  --reorder-->  [w packed]  --+-- convolution -->  [y packed]  --reorder-->  y
 *
 * 16-bit operands. Where the processor has no instructions for them (PlanPrim.compute), a
 * convolution's packed operands are f32. Reorders widen and round bf16; those of f16 go element by element in this library,
 * so f16 is widened and rounded here (narrow.h), and the reorder's plain side is a copy in f32:
 *
 *     x  --widen-->  [x wide]  --reorder-->  [x packed]     and     [y packed]  --reorder-->  [y wide]  --round-->  y
 *
 * or, where the packed layout is the plain one, the packed operand itself.
 *
 * Sums. A call that goes on with a sum adds to it as it stores the result: a product by the library's post-op `sum`, a packed
 * weight gradient as it is unpacked, a plain one from a part in the workspace. A sum that lies elsewhere is copied to the result's
 * place first; the numbers are the same.
 *
 * To keep packed operands small and in the cache, a packed convolution runs over slices of the
 * batch; a weight gradient adds up its slices in order. The number of slices depends on the shape
 * alone.
 *
 * Invariants. The workspace holds the packed operands and the library's scratchpad, each piece
 * aligned to PLAN_ALIGN. A wide copy is needed during one reorder only, so all of them, and the scratchpad, take the same
 * place. The query and the trainer share `prepare`, so planned and used sizes are
 * the same number. After prim_bind this file allocates nothing. */
#include "narrow.h"
#include "prim.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The roles: a b c, or x w y. */
enum { A, B, C, ROLES };
/* Packed bytes of a slice aimed at; samples it has at least. */
enum { SLICE_BYTES = 2 << 20, SLICE_MIN = 8 };

typedef struct Piece {
	dnnl_memory_desc_t plain, inner; /* as the plan stores it, or its wide copy; as the library wants it */
	PlanDType narrow;              /* stored in this type, f16, and computed with in f32: `plain` is wide; else PD_NONE */
	dnnl_primitive_desc_t reorder; /* NULL where `plain` and `inner` are the same */
	int64_t work;        /* offset of the packed operand in the workspace; -1 without one */
	int64_t wide_work;   /* offset of the wide copy from the scratchpad's */
	int64_t slice_bytes; /* plain bytes from one slice to the next; 0: the same in all */
} Piece;

typedef struct Prepared {
	dnnl_primitive_desc_t main;
	Piece piece[ROLES];
	int result; /* role */
	int64_t slices;
	bool acc;             /* adds to a sum */
	int64_t partial_work; /* weight gradient in slices, or a plain one that is added: where a part goes; -1 */
	int64_t scratch_work, bytes;
} Prepared;

struct PrimCall {
	PrimCall *next;
	dnnl_stream_t stream;
	dnnl_primitive_t main, reorder[ROLES];
	dnnl_memory_t plain[ROLES], inner[ROLES], partial, scratch;
	char *plain_at[ROLES]; /* address of slice 0 */
	int64_t slice_bytes[ROLES];
	PlanDType narrow[ROLES]; /* stored so, and widened here; PD_NONE */
	float *wide[ROLES];      /* where it is wide: its copy, or the packed operand */
	int64_t elems[ROLES];    /* of a slice */
	dnnl_exec_arg_t arg[ROLES + 1];
	int result;
	int64_t slices;
	float *sum, *part; /* weight gradient in parts: sum += part */
	int64_t sum_elems;
	bool first_too;    /* the first part is added as well, to a sum that is there before */
	const char *from;  /* of a sum that lies elsewhere than the result; NULL */
	int64_t from_bytes;
	bool ok;
};

struct PrimLib {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	int threads;
	PrimCall *calls;
};

/* Where the roles stand in PlanStep.off, and the library's argument numbers. */
typedef struct KindInfo {
	int off[ROLES];
	int arg[ROLES];
	int result;
} KindInfo;

static const KindInfo kinds[] = {
	[PRIM_MATMUL] = { { 0, 1, 2 }, { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST }, C },
	[PRIM_CONV] = { { 0, 1, 2 }, { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST }, C },
	[PRIM_CONV_GRAD_X] = { { 2, 1, 0 },
			       { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
			       A },
	[PRIM_CONV_GRAD_W] = { { 0, 2, 1 },
			       { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST },
			       B },
};

static dnnl_data_type_t data_type(PlanDType t)
{
	switch (t) {
	case PD_F32: return dnnl_f32;
	case PD_BF16: return dnnl_bf16;
	case PD_F16: return dnnl_f16;
	default: return dnnl_data_type_undef;
	}
}

/* As the plan stores a role, and as the library computes with it: a weight gradient always adds up
 * in f32. */
static PlanDType stored_type(const PlanPrim *p, int role)
{
	return role == kinds[p->kind].result && p->out ? p->out : p->dtype;
}

static PlanDType inner_type(const PlanPrim *p, int role)
{
	PlanDType t = p->compute ? p->compute : p->dtype;
	return p->kind == PRIM_CONV_GRAD_W && role == B ? PD_F32 : t;
}

/* What the plan stores a role in where that is widened and rounded here, not by the library. */
static PlanDType narrow_type(const PlanPrim *p, int role)
{
	PlanDType t = stored_type(p, role);
	return t == PD_F16 && inner_type(p, role) == PD_F32 ? t : PD_NONE;
}

PlanDType plan_prim_compute(PlanDType t)
{
	bool bf16 = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
		    dnnl_cpu_isa_avx512_core_bf16;
	switch (t) {
	case PD_F32:
	case PD_F16: return PD_F32;
	case PD_BF16: return bf16 ? PD_BF16 : PD_F32;
	default: return PD_NONE;
	}
}

static int64_t align_up(int64_t n)
{
	return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static int64_t md_bytes(const dnnl_memory_desc_t *md)
{
	return (int64_t)dnnl_memory_desc_get_size(md);
}

static int64_t plain_elems(const Piece *c)
{
	return md_bytes(&c->plain) / (int64_t)dnnl_data_type_size(c->plain.data_type);
}

/* Of the plain tensor in the plan. */
static int64_t stored_bytes(const Piece *c)
{
	return c->narrow ? plain_elems(c) * (int64_t)sizeof(uint16_t) : md_bytes(&c->plain);
}

static bool is_packed(const Piece *c)
{
	return c->narrow || !dnnl_memory_desc_equal(&c->plain, &c->inner);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static void prepared_free(Prepared *r)
{
	for (int i = 0; i < ROLES; i++)
		if (r->piece[i].reorder)
			dnnl_primitive_desc_destroy(r->piece[i].reorder);
	if (r->main)
		dnnl_primitive_desc_destroy(r->main);
}

/* Elements that axes [from,ndim) reach over. */
static int64_t span(const int64_t *dims, const int64_t *strides, int from, int ndim)
{
	int64_t n = 1;
	for (int d = from; d < ndim; d++)
		if (dims[d] * strides[d] > n)
			n = dims[d] * strides[d];
	return n;
}

static bool prepare_matmul(dnnl_engine_t engine, const PlanPrim *p, dnnl_primitive_attr_t attr,
			   Prepared *r)
{
	for (int i = 0; i < ROLES; i++) {
		dnnl_dims_t dims = { 0 }, strides = { 0 };
		for (int d = 0; d < p->ndim; d++) {
			dims[d] = p->dims[i][d];
			strides[d] = p->strides[i][d];
			if (strides[d] == 0 && d < p->ndim - 2)
				dims[d] = 1; /* broadcast: the library reads the one there is */
			if (strides[d] == 0)
				strides[d] = 1;
		}
		/* The stride of a batch axis of one element means nothing, but the library's choice
		 * reads it. */
		for (int d = p->ndim - 3; d >= 0; d--)
			if (dims[d] == 1)
				strides[d] = span(dims, strides, d + 1, p->ndim);
		if (dnnl_memory_desc_init_by_strides(&r->piece[i].plain, p->ndim, dims,
						     data_type(stored_type(p, i)), strides))
			return false;
		r->piece[i].inner = r->piece[i].plain;
	}
	dnnl_matmul_desc_t d;
	if (dnnl_matmul_desc_init(&d, &r->piece[A].plain, &r->piece[B].plain, NULL,
				  &r->piece[C].plain))
		return false;
	return dnnl_primitive_desc_create(&r->main, &d, attr, engine, NULL) == dnnl_success;
}

typedef struct ConvGeometry {
	dnnl_dims_t stride, dilation, before, after;
} ConvGeometry;

/* The library counts dilation from 0 and wants the padding after as well; the planned output size
 * decides that. */
static ConvGeometry conv_geometry(const PlanPrim *p)
{
	ConvGeometry g = { 0 };
	for (int i = 0; i < 2; i++) {
		int64_t reach = (p->dims[B][2 + i] - 1) * p->dilation[i] + 1;
		g.stride[i] = p->stride[i];
		g.dilation[i] = p->dilation[i] - 1;
		g.before[i] = p->pad[i];
		g.after[i] = (p->dims[C][2 + i] - 1) * p->stride[i] + reach - p->dims[A][2 + i] -
			     p->pad[i];
	}
	return g;
}

/* t: of each role. */
static bool conv_descs(const PlanPrim *p, int64_t n, bool any, const dnnl_data_type_t t[ROLES],
		       dnnl_memory_desc_t md[ROLES])
{
	bool grouped = p->groups > 1;
	dnnl_dims_t x = { n, p->dims[A][1], p->dims[A][2], p->dims[A][3] };
	dnnl_dims_t y = { n, p->dims[C][1], p->dims[C][2], p->dims[C][3] };
	dnnl_dims_t w = { p->dims[B][0], p->dims[B][1], p->dims[B][2], p->dims[B][3] };
	dnnl_dims_t wg = { p->groups, p->dims[B][0] / p->groups, p->dims[B][1], p->dims[B][2],
			   p->dims[B][3] };
	dnnl_format_tag_t act = any ? dnnl_format_tag_any : dnnl_nchw;
	dnnl_format_tag_t wei = any ? dnnl_format_tag_any : grouped ? dnnl_goihw : dnnl_oihw;
	return !dnnl_memory_desc_init_by_tag(&md[A], 4, x, t[A], act) &&
	       !dnnl_memory_desc_init_by_tag(&md[B], grouped ? 5 : 4, grouped ? wg : w, t[B],
					     wei) &&
	       !dnnl_memory_desc_init_by_tag(&md[C], 4, y, t[C], act);
}

static dnnl_primitive_desc_t conv_create(dnnl_engine_t engine, const PlanPrim *p, PlanPrimKind kind,
					 dnnl_primitive_attr_t attr, dnnl_primitive_desc_t hint,
					 const dnnl_memory_desc_t md[ROLES])
{
	ConvGeometry g = conv_geometry(p);
	dnnl_convolution_desc_t d;
	dnnl_status_t s;
	if (kind == PRIM_CONV)
		s = dnnl_dilated_convolution_forward_desc_init(
			&d, dnnl_forward_training, dnnl_convolution_direct, &md[A], &md[B], NULL,
			&md[C], g.stride, g.dilation, g.before, g.after);
	else if (kind == PRIM_CONV_GRAD_X)
		s = dnnl_dilated_convolution_backward_data_desc_init(
			&d, dnnl_convolution_direct, &md[A], &md[B], &md[C], g.stride, g.dilation,
			g.before, g.after);
	else
		s = dnnl_dilated_convolution_backward_weights_desc_init(
			&d, dnnl_convolution_direct, &md[A], &md[B], NULL, &md[C], g.stride,
			g.dilation, g.before, g.after);
	dnnl_primitive_desc_t pd = NULL;
	if (s != dnnl_success ||
	    dnnl_primitive_desc_create(&pd, &d, attr, engine, hint) != dnnl_success)
		return NULL;
	return pd;
}

/* A data gradient of a few channels would be padded to a full block of them: the plain form is
 * faster. */
static bool conv_may_pack(const PlanPrim *p)
{
	bool depthwise = p->groups > 1 && p->dims[B][1] == 1;
	return p->kind != PRIM_CONV_GRAD_X || depthwise || p->dims[B][1] >= 8;
}

/* The chosen implementation for n samples at a time, and the layouts it wants. */
static bool conv_choose(dnnl_engine_t engine, const PlanPrim *p, int64_t n,
			dnnl_primitive_attr_t attr, Prepared *r)
{
	static const dnnl_query_t query[][ROLES] = {
		[PRIM_CONV] = { dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md },
		[PRIM_CONV_GRAD_X] = { dnnl_query_diff_src_md, dnnl_query_weights_md,
				       dnnl_query_diff_dst_md },
		[PRIM_CONV_GRAD_W] = { dnnl_query_src_md, dnnl_query_diff_weights_md,
				       dnnl_query_diff_dst_md },
	};
	dnnl_memory_desc_t md[ROLES], plain[ROLES], forward[ROLES];
	dnnl_data_type_t stored[ROLES], inner[ROLES], one[ROLES];
	for (int i = 0; i < ROLES; i++) {
		r->piece[i].narrow = narrow_type(p, i);
		stored[i] = r->piece[i].narrow ? dnnl_f32 : data_type(stored_type(p, i));
		inner[i] = data_type(inner_type(p, i));
		one[i] = data_type(inner_type(p, A));
	}
	bool pack = conv_may_pack(p);
	if (!conv_descs(p, n, pack, inner, md) || !conv_descs(p, n, false, stored, plain) ||
	    !conv_descs(p, n, pack, one, forward))
		return false;
	dnnl_primitive_desc_t hint = NULL;
	if (p->kind != PRIM_CONV &&
	    !(hint = conv_create(engine, p, PRIM_CONV, attr, NULL, forward)))
		return false;
	r->main = conv_create(engine, p, p->kind, attr, hint, md);
	if (hint)
		dnnl_primitive_desc_destroy(hint);
	if (!r->main)
		return false;
	for (int i = 0; i < ROLES; i++) {
		r->piece[i].plain = plain[i];
		r->piece[i].inner = *dnnl_primitive_desc_query_md(r->main, query[p->kind][i], 0);
	}
	return true;
}

static int64_t packed_bytes(const Piece *c)
{
	return is_packed(c) ? align_up(md_bytes(&c->inner)) : 0;
}

/* The largest divisor of the batch whose packed activations are within SLICE_BYTES, but not below
 * SLICE_MIN. */
static int64_t slice_samples(int64_t batch, int64_t packed)
{
	int64_t best = batch;
	for (int64_t n = batch - 1; n >= SLICE_MIN; n--) {
		if (packed / batch * best <= SLICE_BYTES)
			break;
		if (batch % n == 0)
			best = n;
	}
	return best;
}

static bool prepare_conv(dnnl_engine_t engine, const PlanPrim *p, dnnl_primitive_attr_t attr,
			 Prepared *r)
{
	int64_t batch = p->dims[A][0];
	if (!conv_choose(engine, p, batch, attr, r))
		return false;
	int64_t packed = packed_bytes(&r->piece[A]) + packed_bytes(&r->piece[C]);
	int64_t n = packed ? slice_samples(batch, packed) : batch;
	if (n == batch)
		return true;
	dnnl_primitive_desc_destroy(r->main);
	r->main = NULL;
	r->slices = batch / n;
	if (!conv_choose(engine, p, n, attr, r))
		return false;
	r->piece[A].slice_bytes = stored_bytes(&r->piece[A]);
	r->piece[C].slice_bytes = stored_bytes(&r->piece[C]);
	return true;
}

static int64_t scratch_bytes(dnnl_primitive_desc_t pd)
{
	return md_bytes(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
}

/* A weight gradient that the library computes where it is stored, but cannot add there. */
static bool is_added_in_parts(const Prepared *r)
{
	return r->result == B && (r->slices > 1 || (r->acc && r->piece[B].work < 0));
}

/* The reorder between a piece's plain and packed forms; *scratch: bytes that must be free while it runs, its scratchpad and the
 * wide copy behind that. */
static bool make_reorder(dnnl_engine_t engine, dnnl_primitive_attr_t attr, bool out, Piece *c, int64_t *scratch)
{
	const dnnl_memory_desc_t *from = out ? &c->inner : &c->plain, *to = out ? &c->plain : &c->inner;
	if (dnnl_reorder_primitive_desc_create(&c->reorder, from, engine, to, engine, attr))
		return false;
	*scratch = scratch_bytes(c->reorder);
	if (c->narrow) {
		c->wide_work = align_up(*scratch);
		*scratch = c->wide_work + md_bytes(&c->plain);
	}
	return true;
}

/* Lays out the workspace: packed operands, the part of a weight gradient, the place of the scratchpad and of wide copies. */
static bool lay_out(dnnl_engine_t engine, dnnl_primitive_attr_t attr, dnnl_primitive_attr_t adding,
		    Prepared *r)
{
	int64_t scratch = scratch_bytes(r->main);
	for (int i = 0; i < ROLES; i++) {
		Piece *c = &r->piece[i];
		int64_t during = 0;
		bool out = i == r->result;
		c->work = -1;
		if (!is_packed(c))
			continue;
		c->work = r->bytes;
		r->bytes += align_up(md_bytes(&c->inner));
		if (dnnl_memory_desc_equal(&c->plain, &c->inner))
			continue; /* widened where it is read, or rounded from where it is computed */
		if (!make_reorder(engine, out ? adding : attr, out, c, &during))
			return false;
		scratch = during > scratch ? during : scratch;
	}
	r->partial_work = -1;
	if (is_added_in_parts(r)) {
		r->partial_work = r->bytes;
		r->bytes += align_up(md_bytes(&r->piece[B].inner));
	}
	r->scratch_work = r->bytes;
	r->bytes += align_up(scratch);
	return true;
}

/* Attributes of a call whose scratchpad comes from the workspace; `sum`: it adds to its result. NULL
 * where there are none to be had. */
static dnnl_primitive_attr_t make_attr(bool sum)
{
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t ops = NULL;
	if (dnnl_primitive_attr_create(&attr))
		return NULL;
	bool ok = !dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
	if (sum && ok) {
		ok = !dnnl_post_ops_create(&ops) && !dnnl_post_ops_append_sum(ops, 1) &&
		     !dnnl_primitive_attr_set_post_ops(attr, ops);
		if (ops)
			dnnl_post_ops_destroy(ops);
	}
	if (ok)
		return attr;
	dnnl_primitive_attr_destroy(attr);
	return NULL;
}

/* Chooses implementations and layouts for `p`; false (and nothing held) where the library has none.
 */
static bool prepare(dnnl_engine_t engine, const PlanPrim *p, Prepared *r)
{
	*r = (Prepared){ .result = kinds[p->kind].result, .slices = 1, .acc = p->acc };
	if (data_type(p->dtype) == dnnl_data_type_undef || (p->compute && p->kind == PRIM_MATMUL))
		return false;
	if (p->acc && (stored_type(p, r->result) != PD_F32 ||
		       (p->kind != PRIM_MATMUL && p->kind != PRIM_CONV_GRAD_W)))
		return false;
	dnnl_primitive_attr_t attr = make_attr(false), adding = make_attr(p->acc);
	bool ok = attr && adding &&
		  (p->kind == PRIM_MATMUL ? prepare_matmul(engine, p, adding, r)
					  : prepare_conv(engine, p, attr, r)) &&
		  lay_out(engine, attr, adding, r);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	if (adding)
		dnnl_primitive_attr_destroy(adding);
	if (!ok)
		prepared_free(r);
	return ok;
}

/* Runs `prepare` as it would run with this many threads; the library sizes scratchpads by OpenMP's
 * number. */
static bool query(const PlanPrim *p, int threads, int64_t *bytes, char *info)
{
	int before = omp_get_max_threads();
	omp_set_num_threads(threads);
	dnnl_engine_t engine;
	Prepared r;
	bool ok = dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success;
	if (ok) {
		ok = prepare(engine, p, &r);
		if (ok) {
			const char *name = "";
			dnnl_primitive_desc_query(r.main, dnnl_query_impl_info_str, 0, &name);
			snprintf(info, PRIM_WHY, "%s%s", name, r.slices > 1 ? " in slices" : "");
			*bytes = r.bytes;
			prepared_free(&r);
		}
		dnnl_engine_destroy(engine);
	}
	omp_set_num_threads(before);
	return ok;
}

int64_t plan_prim_workspace(const PlanPrim *p, int threads)
{
	int64_t bytes = -1;
	char info[PRIM_WHY];
	return query(p, threads, &bytes, info) ? bytes : -1;
}

void prim_describe(const PlanPrim *p, int threads, char out[PRIM_WHY])
{
	int64_t bytes;
	out[0] = 0;
	query(p, threads, &bytes, out);
}

/* ---- calls ---------------------------------------------------------------------------------- */

PrimLib *prim_open(int threads, char why[PRIM_WHY])
{
	PrimLib *lib = calloc(1, sizeof *lib);
	omp_set_num_threads(threads);
	if (!lib || dnnl_engine_create(&lib->engine, dnnl_cpu, 0) != dnnl_success) {
		snprintf(why, PRIM_WHY, "oneDNN has no engine for this processor");
		free(lib);
		return NULL;
	}
	lib->threads = threads;
	if (dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags) !=
	    dnnl_success) {
		snprintf(why, PRIM_WHY, "oneDNN cannot make a stream");
		prim_close(lib);
		return NULL;
	}
	return lib;
}

static void call_free(PrimCall *c)
{
	for (int i = 0; i < ROLES; i++) {
		if (c->inner[i] && c->inner[i] != c->plain[i])
			dnnl_memory_destroy(c->inner[i]);
		if (c->plain[i])
			dnnl_memory_destroy(c->plain[i]);
		if (c->reorder[i])
			dnnl_primitive_destroy(c->reorder[i]);
	}
	if (c->partial)
		dnnl_memory_destroy(c->partial);
	if (c->scratch)
		dnnl_memory_destroy(c->scratch);
	if (c->main)
		dnnl_primitive_destroy(c->main);
	free(c);
}

void prim_close(PrimLib *lib)
{
	if (!lib)
		return;
	while (lib->calls) {
		PrimCall *next = lib->calls->next;
		call_free(lib->calls);
		lib->calls = next;
	}
	if (lib->stream)
		dnnl_stream_destroy(lib->stream);
	dnnl_engine_destroy(lib->engine);
	free(lib);
}

/* Memory objects at their addresses, primitives from their descriptors. */
static bool call_make(PrimLib *lib, const Prepared *r, PrimCall *c, char *work)
{
	dnnl_engine_t e = lib->engine;
	for (int i = 0; i < ROLES; i++) {
		const Piece *p = &r->piece[i];
		char *at = !p->narrow  ? c->plain_at[i]
			   : p->reorder ? work + r->scratch_work + p->wide_work
					: work + p->work;
		c->slice_bytes[i] = p->slice_bytes;
		c->narrow[i] = p->narrow;
		c->wide[i] = (float *)(void *)at;
		c->elems[i] = plain_elems(p);
		if (dnnl_memory_create(&c->plain[i], &p->plain, e, at))
			return false;
		c->inner[i] = c->plain[i];
		if (!p->reorder)
			continue;
		c->inner[i] = NULL;
		if (dnnl_memory_create(&c->inner[i], &p->inner, e, work + p->work) ||
		    dnnl_primitive_create(&c->reorder[i], p->reorder))
			return false;
	}
	c->first_too = r->acc && r->piece[B].work < 0;
	if (r->partial_work >= 0) {
		if (dnnl_memory_create(&c->partial, &r->piece[B].inner, e, work + r->partial_work))
			return false;
		c->sum = (float *)(void *)(r->piece[B].work >= 0 ? work + r->piece[B].work
								 : c->plain_at[B]);
		c->part = (float *)(void *)(work + r->partial_work);
		c->sum_elems = md_bytes(&r->piece[B].inner) / (int64_t)sizeof(float);
	}
	dnnl_dims_t dims = { r->bytes - r->scratch_work };
	dnnl_memory_desc_t scratch =
		*dnnl_primitive_desc_query_md(r->main, dnnl_query_scratchpad_md, 0);
	if (dims[0] > 0 && dnnl_memory_desc_init_by_tag(&scratch, 1, dims, dnnl_u8, dnnl_a))
		return false;
	return !dnnl_memory_create(&c->scratch, &scratch, e,
				   dims[0] > 0 ? work + r->scratch_work : NULL) &&
	       !dnnl_primitive_create(&c->main, r->main);
}

PrimCall *prim_bind(PrimLib *lib, const PlanPrim *p, unsigned char *arena, const int64_t *off,
		    char why[PRIM_WHY])
{
	Prepared r;
	if (!prepare(lib->engine, p, &r)) {
		snprintf(why, PRIM_WHY, "oneDNN does not offer this call on this processor");
		return NULL;
	}
	if (r.bytes > p->work_bytes) {
		snprintf(
			why, PRIM_WHY,
			"compiled for another processor: oneDNN needs %lld bytes of workspace here, planned are %lld",
			(long long)r.bytes, (long long)p->work_bytes);
		prepared_free(&r);
		return NULL;
	}
	PrimCall *c = calloc(1, sizeof *c);
	const KindInfo *k = &kinds[p->kind];
	bool ok = c != NULL;
	if (ok) {
		for (int i = 0; i < ROLES; i++) /* the sum stands between the operands and the result */
			c->plain_at[i] = (char *)arena + off[k->off[i] + (p->acc && i == k->result)];
		char *work = (char *)arena + (r.bytes ? off[ROLES + p->acc] : 0);
		if (p->acc && off[ROLES - 1] != off[ROLES]) {
			c->from = (char *)arena + off[ROLES - 1];
			c->from_bytes = stored_bytes(&r.piece[r.result]);
		}
		ok = call_make(lib, &r, c, work);
		for (int i = 0; i < ROLES; i++)
			c->arg[i] = (dnnl_exec_arg_t){ k->arg[i], c->inner[i] };
		c->arg[ROLES] = (dnnl_exec_arg_t){ DNNL_ARG_SCRATCHPAD, c->scratch };
		c->stream = lib->stream;
		c->result = r.result;
		c->slices = r.slices;
	}
	prepared_free(&r);
	if (!ok) {
		snprintf(why, PRIM_WHY, "oneDNN cannot make a primitive (out of memory?)");
		if (c)
			call_free(c);
		return NULL;
	}
	c->next = lib->calls;
	lib->calls = c;
	return c;
}

static bool reorder(const PrimCall *c, int role)
{
	bool out = role == c->result;
	dnnl_exec_arg_t arg[] = {
		{ DNNL_ARG_FROM, out ? c->inner[role] : c->plain[role] },
		{ DNNL_ARG_TO, out ? c->plain[role] : c->inner[role] },
		{ DNNL_ARG_SCRATCHPAD, c->scratch },
	};
	return !dnnl_primitive_execute(c->reorder[role], c->stream, 3, arg);
}

static void add_part(const PrimCall *c)
{
	float *sum = c->sum;
	const float *part = c->part;
#pragma omp parallel for simd
	for (int64_t i = 0; i < c->sum_elems; i++)
		sum[i] += part[i];
}

static uint16_t *narrow_at(const PrimCall *c, int role, int64_t slice)
{
	return (uint16_t *)(void *)(c->plain_at[role] + slice * c->slice_bytes[role]);
}

/* An operand as the library wants it. */
static bool pack(const PrimCall *c, int role, int64_t slice)
{
	if (c->narrow[role])
		narrow_widen(c->narrow[role], narrow_at(c, role, slice), c->wide[role], c->elems[role]);
	return !c->reorder[role] || reorder(c, role);
}

/* The result as the plan stores it. */
static bool unpack(const PrimCall *c, int64_t slice)
{
	int role = c->result;
	if (c->reorder[role] && !reorder(c, role))
		return false;
	if (c->narrow[role])
		narrow_round(c->narrow[role], c->wide[role], narrow_at(c, role, slice), c->elems[role]);
	return true;
}

/* One slice of the batch: pack, compute, unpack. Weights are packed, and their gradient unpacked,
 * by prim_run. */
static bool run_slice(PrimCall *c, int64_t slice)
{
	for (int i = A; i < ROLES; i++)
		if (c->slices > 1 && c->slice_bytes[i] && !c->narrow[i] &&
		    dnnl_memory_set_data_handle(c->plain[i],
						c->plain_at[i] + slice * c->slice_bytes[i]))
			return false;
	for (int i = A; i < ROLES; i++)
		if (i != B && i != c->result && !pack(c, i, slice))
			return false;
	bool partial = c->partial && (slice > 0 || c->first_too);
	c->arg[B].memory = partial ? c->partial : c->inner[B];
	if (dnnl_primitive_execute(c->main, c->stream, ROLES + 1, c->arg))
		return false;
	if (partial)
		add_part(c);
	return c->result == B || unpack(c, slice);
}

bool prim_run(PrimCall *c)
{
	if (c->from)
		memcpy(c->plain_at[c->result], c->from, (size_t)c->from_bytes);
	if (c->result != B && !pack(c, B, 0))
		return false;
	for (int64_t s = 0; s < c->slices; s++)
		if (!run_slice(c, s))
			return false;
	return c->result != B || unpack(c, 0);
}

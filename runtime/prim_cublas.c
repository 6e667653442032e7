/* Matrix products by cuBLASLt.
 *
 * Method. The library counts columns first, the plan rows: a row-major product c = a x b is the
 * column-major product c' = b' x a' of the same bytes, so b is given as the library's A and a as its B.
 * An operand whose last stride is 1 is not transposed, one whose last but one is 1 is. Batch axes are
 * joined to one where their strides allow it (0 on all: the operand is shared); the outer ones that
 * cannot be joined become calls of their own, one after the other.
 *
 * The algorithm is the library's first choice for these shapes, alignments and the planned workspace.
 * Sums are split only so that the parts are added up in the type of the computation: an f32 sum is
 * never rounded to 16 bits on the way. With PlanPrim.acc the product is added to its sum by the library
 * (beta = 1), in place or apart.
 *
 * Invariants. After cublas_bind nothing allocates. The workspace is the planned one, never more. */
#include "prim_cublas.h"

#include <stdio.h>
#include <stdlib.h>

/* The operands as the plan has them: a, b and the result; and what the result is added to (PlanPrim.acc),
 * which is laid out as the result is: without one the result itself, unread. */
enum { A, B, C, OPERANDS, SUM = OPERANDS, PLACES };

struct CublasCall {
	CublasCall *next;
	LtMatmulDesc desc;
	LtLayout layout[OPERANDS];
	LtAlgo algo;
	CuPtr at[PLACES], extra, work; /* extra: what the epilogue reads or leaves */
	int64_t work_bytes;
	/* Calls that are made one after the other: over axes that could not be joined. */
	int32_t nouter;
	int64_t outer[PLAN_MAX_DIMS], step[OPERANDS][PLAN_MAX_DIMS]; /* trips; bytes from one to the next */
	bool f64, acc;
	char text[CUBLAS_WHY];
};

struct CublasLib {
	CublasApi api;
	LtHandle handle;
	CublasCall *calls;
};

CublasLib *cublas_lib_open(Fail *f)
{
	CublasLib *lib = calloc(1, sizeof *lib);
	if (!lib) {
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	if (cublas_open(&lib->api, f)) {
		LtStatus e = lib->api.Create(&lib->handle);
		if (!e)
			return lib;
		fail(f, EXIT_FILES,
		     "cuBLAS cannot start: cublasLtCreate: %s (is the library for this driver?)",
		     cublas_error(e));
		lib->handle = NULL;
	}
	cublas_lib_close(lib);
	return NULL;
}

static void call_free(const CublasApi *api, CublasCall *c)
{
	for (int i = 0; i < OPERANDS; i++)
		if (c->layout[i])
			api->LayoutDestroy(c->layout[i]);
	if (c->desc)
		api->DescDestroy(c->desc);
	free(c);
}

void cublas_lib_close(CublasLib *lib)
{
	if (!lib)
		return;
	while (lib->calls) {
		CublasCall *next = lib->calls->next;
		call_free(&lib->api, lib->calls);
		lib->calls = next;
	}
	if (lib->handle)
		lib->api.Destroy(lib->handle);
	free(lib);
}

/* ---- describing ------------------------------------------------------------------------------- */

static int data_type(PlanDType t)
{
	return t == PD_F64 ? LT_F64 : t == PD_F16 ? LT_F16 : t == PD_BF16 ? LT_BF16 : LT_F32;
}

static int64_t type_bytes(PlanDType t)
{
	return t == PD_F64 ? 8 : t == PD_F32 ? 4 : 2;
}

static PlanDType operand_type(const PlanPrim *p, int role)
{
	return role == C && p->out ? p->out : p->dtype;
}

/* The library's matrix of an operand: its columns are the plan's rows. */
typedef struct Matrix {
	int64_t rows, columns, ld; /* as stored, before `transposed` is applied */
	bool transposed;
} Matrix;

static bool matrix_of(const PlanPrim *p, int role, Matrix *m)
{
	int last = p->ndim - 1;
	int64_t rows = p->dims[role][last - 1], columns = p->dims[role][last];
	int64_t row = p->strides[role][last - 1], column = p->strides[role][last];
	*m = (Matrix){ columns, rows, rows > 1 ? row : columns, false };
	if ((column == 1 || columns == 1) && m->ld >= columns)
		return true;
	*m = (Matrix){ rows, columns, columns > 1 ? column : rows, true };
	return (row == 1 || rows == 1) && m->ld >= rows;
}

/* Whether batch axis i goes on where the `count` places within it end, in every operand. */
static bool joins(const PlanPrim *p, int i, int64_t count, const int64_t *stride)
{
	for (int role = 0; role < OPERANDS; role++)
		if (p->strides[role][i] != stride[role] * count)
			return false;
	return true;
}

/* Batch axes, from the inside: as many as can be joined are the library's batch. */
static void split_batch(const PlanPrim *p, CublasCall *c, int64_t *count, int64_t stride[OPERANDS])
{
	int i = p->ndim - 3;
	*count = 1;
	for (int role = 0; role < OPERANDS; role++)
		stride[role] = 0;
	for (; i >= 0; i--) {
		if (p->dims[C][i] == 1)
			continue;
		if (*count > 1 && !joins(p, i, *count, stride))
			break;
		if (*count == 1)
			for (int role = 0; role < OPERANDS; role++)
				stride[role] = p->strides[role][i];
		*count *= p->dims[C][i];
	}
	for (; i >= 0; i--) {
		if (p->dims[C][i] == 1)
			continue;
		c->outer[c->nouter] = p->dims[C][i];
		for (int role = 0; role < OPERANDS; role++)
			c->step[role][c->nouter] =
				p->strides[role][i] * type_bytes(operand_type(p, role));
		c->nouter++;
	}
}

static LtStatus make_layouts(const CublasApi *api, const PlanPrim *p, const Matrix m[OPERANDS], CublasCall *c)
{
	int64_t count, stride[OPERANDS];
	split_batch(p, c, &count, stride);
	for (int role = 0; role < OPERANDS; role++) {
		int32_t batch = (int32_t)count;
		LtStatus e = api->LayoutCreate(&c->layout[role], data_type(operand_type(p, role)),
					       (uint64_t)m[role].rows, (uint64_t)m[role].columns,
					       m[role].ld);
		if (!e && batch > 1)
			e = api->LayoutSet(c->layout[role], LT_BATCH_COUNT, &batch, sizeof batch);
		if (!e && batch > 1)
			e = api->LayoutSet(c->layout[role], LT_BATCH_OFFSET, &stride[role],
					   sizeof stride[role]);
		if (e)
			return e;
	}
	return 0;
}

/* The library's result has our columns as its rows. A bias is one number for each of them, sums of our b are of its A. */
static LtStatus set_epilogue(const CublasApi *api, const PlanPrim *p, CublasCall *c)
{
	static const int32_t kinds[] = { [EPILOGUE_BIAS] = LT_EPILOGUE_BIAS,
					 [EPILOGUE_BIAS_RELU] = LT_EPILOGUE_RELU_BIAS,
					 [EPILOGUE_GELU_GRAD] = LT_EPILOGUE_DGELU,
					 [EPILOGUE_SUMS_A] = LT_EPILOGUE_BGRADB,
					 [EPILOGUE_SUMS_B] = LT_EPILOGUE_BGRADA };
	int64_t ld = p->dims[C][p->ndim - 1];
	LtStatus e;
	if (!p->epilogue)
		return 0;
	e = api->DescSet(c->desc, LT_EPILOGUE, &kinds[p->epilogue], sizeof kinds[0]);
	if (!e && p->epilogue != EPILOGUE_GELU_GRAD)
		return api->DescSet(c->desc, LT_BIAS_POINTER, &c->extra, sizeof c->extra);
	if (!e)
		e = api->DescSet(c->desc, LT_AUX_POINTER, &c->extra, sizeof c->extra);
	return e ? e : api->DescSet(c->desc, LT_AUX_LD, &ld, sizeof ld);
}

static LtStatus make_desc(const CublasApi *api, const PlanPrim *p, const Matrix m[OPERANDS], CublasCall *c)
{
	/* The library's A is our b, its B our a. */
	int32_t trans_a = m[B].transposed, trans_b = m[A].transposed;
	c->f64 = p->dtype == PD_F64;
	int compute = c->f64 ? LT_COMPUTE_F64 : p->tf32 ? LT_COMPUTE_TF32 : LT_COMPUTE_F32;
	LtStatus e = api->DescCreate(&c->desc, compute, c->f64 ? LT_F64 : LT_F32);
	if (!e)
		e = api->DescSet(c->desc, LT_TRANS_A, &trans_a, sizeof trans_a);
	if (!e)
		e = api->DescSet(c->desc, LT_TRANS_B, &trans_b, sizeof trans_b);
	return e ? e : set_epilogue(api, p, c);
}

/* ---- choosing --------------------------------------------------------------------------------- */

/* The largest power of two, at most 256, that divides an address and what is added to it. */
static uint32_t alignment(const CublasCall *c, int role)
{
	uint64_t bits = c->at[role] | 256;
	for (int i = 0; i < c->nouter; i++)
		bits |= (uint64_t)c->step[role == SUM ? C : role][i];
	return (uint32_t)(bits & -bits);
}

/* Whether the result lies as the sum does: dense. */
static bool is_dense(const PlanPrim *p)
{
	int64_t dense = 1;
	for (int i = p->ndim - 1; i >= 0; i--) {
		if (p->dims[C][i] > 1 && p->strides[C][i] != dense)
			return false;
		dense *= p->dims[C][i];
	}
	return true;
}

static LtStatus choose(const CublasLib *lib, CublasCall *c, int *found)
{
	const CublasApi *api = &lib->api;
	LtPreference pref;
	LtHeuristic h = { .state = 0 };
	uint64_t most = (uint64_t)c->work_bytes;
	uint32_t reduction = LT_REDUCTION_COMPUTE_TYPE;
	uint32_t align[] = { alignment(c, B), alignment(c, A), alignment(c, SUM), alignment(c, C) };
	LtStatus e = api->PreferenceCreate(&pref);
	if (e)
		return e;
	e = api->PreferenceSet(pref, LT_PREF_WORK_BYTES, &most, sizeof most);
	if (!e)
		e = api->PreferenceSet(pref, LT_PREF_REDUCTION, &reduction, sizeof reduction);
	for (int i = 0; !e && i < 4; i++)
		e = api->PreferenceSet(pref, LT_PREF_ALIGN_A + i, &align[i], sizeof align[i]);
	if (!e)
		e = api->Heuristic(lib->handle, c->desc, c->layout[B], c->layout[A], c->layout[C],
				   c->layout[C], pref, 1, &h, found);
	api->PreferenceDestroy(pref);
	c->algo = h.algo;
	return e ? e : *found > 0 ? h.state : 0;
}

static void describe(const CublasApi *api, CublasCall *c)
{
	int32_t id = 0, split = 0;
	uint32_t tile = 0, stages = 0;
	size_t n;
	api->AlgoGet(&c->algo, LT_ALGO_ID, &id, sizeof id, &n);
	api->AlgoGet(&c->algo, LT_ALGO_TILE, &tile, sizeof tile, &n);
	api->AlgoGet(&c->algo, LT_ALGO_SPLIT, &split, sizeof split, &n);
	api->AlgoGet(&c->algo, LT_ALGO_STAGES, &stages, sizeof stages, &n);
	int at = snprintf(c->text, sizeof c->text, "cublasLt algorithm %d, tile %u, stages %u", id, tile,
			  stages);
	if (split > 1)
		snprintf(c->text + at, sizeof c->text - (size_t)at, ", split %d", split);
}

static bool call_make(CublasLib *lib, const PlanPrim *p, CublasCall *c, Fail *f)
{
	Matrix m[OPERANDS];
	int found = 0;
	if (p->kind != PRIM_MATMUL)
		return fail(f, EXIT_BUG, "cuBLAS offers matrix products alone");
	for (int role = 0; role < OPERANDS; role++)
		if (!matrix_of(p, role, &m[role]))
			return fail(f, EXIT_BUG, "cuBLAS cannot take the strides of a matrix");
	if (m[C].transposed)
		return fail(f, EXIT_BUG, "cuBLAS cannot write a transposed result");
	if (p->acc && (!is_dense(p) || operand_type(p, C) == PD_F16 || operand_type(p, C) == PD_BF16))
		return fail(f, EXIT_BUG, "cuBLAS cannot add this result to a sum of f32");
	LtStatus e = make_desc(&lib->api, p, m, c);
	if (!e)
		e = make_layouts(&lib->api, p, m, c);
	if (!e)
		e = choose(lib, c, &found);
	if (e)
		return fail(f, EXIT_FILES, "cuBLAS does not offer this product: %s", cublas_error(e));
	if (!found)
		return fail(f, EXIT_FILES, "cuBLAS has no algorithm for this product in %lld bytes of workspace%s",
			    (long long)c->work_bytes,
			    p->epilogue ? " (a later cuBLAS may; or compile with --no-epilogues)" : "");
	describe(&lib->api, c);
	return true;
}

CublasCall *cublas_bind(CublasLib *lib, const PlanPrim *p, CuPtr arena, const int64_t *off, Fail *f)
{
	CublasCall *c = calloc(1, sizeof *c);
	if (!c) {
		fail(f, EXIT_FILES, "out of memory");
		return NULL;
	}
	bool leaves = p->epilogue == EPILOGUE_SUMS_A || p->epilogue == EPILOGUE_SUMS_B;
	bool reads = p->epilogue && !leaves;
	int i = 0;
	c->acc = p->acc;
	c->at[A] = arena + (uint64_t)off[i++];
	c->at[B] = arena + (uint64_t)off[i++];
	if (reads)
		c->extra = arena + (uint64_t)off[i++];
	if (p->acc)
		c->at[SUM] = arena + (uint64_t)off[i++];
	c->at[C] = arena + (uint64_t)off[i++];
	if (!p->acc)
		c->at[SUM] = c->at[C];
	if (leaves)
		c->extra = arena + (uint64_t)off[i++];
	c->work_bytes = p->work_bytes;
	c->work = p->work_bytes > 0 ? arena + (uint64_t)off[i] : 0;
	if (!call_make(lib, p, c, f)) {
		call_free(&lib->api, c);
		return NULL;
	}
	c->next = lib->calls;
	lib->calls = c;
	return c;
}

const char *cublas_describe(const CublasCall *c)
{
	return c->text;
}

/* ---- running ---------------------------------------------------------------------------------- */

static LtStatus run_at(const CublasLib *lib, const CublasCall *c, const CuPtr at[PLACES], CuStream s)
{
	static const float one = 1, zero = 0;
	static const double one64 = 1, zero64 = 0;
	const void *alpha = c->f64 ? (const void *)&one64 : &one;
	const void *beta = c->acc ? alpha : c->f64 ? (const void *)&zero64 : &zero;
	return lib->api.Matmul(lib->handle, c->desc, alpha, (const void *)(uintptr_t)at[B], c->layout[B],
			       (const void *)(uintptr_t)at[A], c->layout[A], beta,
			       (const void *)(uintptr_t)at[SUM], c->layout[C], (void *)(uintptr_t)at[C],
			       c->layout[C], &c->algo, (void *)(uintptr_t)c->work,
			       (size_t)c->work_bytes, s);
}

LtStatus cublas_run(const CublasLib *lib, const CublasCall *c, CuStream s)
{
	int64_t trip[PLAN_MAX_DIMS] = { 0 };
	CuPtr at[PLACES] = { c->at[A], c->at[B], c->at[C], c->at[SUM] };
	for (;;) {
		LtStatus e = run_at(lib, c, at, s);
		int i = 0;
		while (!e && i < c->nouter && ++trip[i] == c->outer[i]) {
			for (int role = 0; role < PLACES; role++)
				at[role] -= (uint64_t)(c->step[role == SUM ? C : role][i] *
						       (c->outer[i] - 1));
			trip[i++] = 0;
		}
		if (e || i == c->nouter)
			return e;
		for (int role = 0; role < PLACES; role++)
			at[role] += (uint64_t)c->step[role == SUM ? C : role][i];
	}
}

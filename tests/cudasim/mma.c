/* Tensor cores, ldmatrix and cp.async, with the fragment layouts of the PTX ISA ("Matrix Fragments for mma.m16n8k16", "ldmatrix", "cp.async").
 *
 * lane = 4 group + t. mma.m16n8k16, two 16-bit elements a register: A's register r holds row group + 8 (r & 1), columns 2 t + 8 (r >> 1) and one
 * more; B's register r rows 2 t + 8 r and one more of column group; D's d[i] row group + 8 (i >> 1), column 2 t + (i & 1). mma.m16n8k8
 * of tf32: A's a[r] row group + 8 (r & 1), column t + 4 (r >> 1); B's b[r] row t + 4 r, column group; only the upper 19 bits of an operand count.
 * Products are exact, their sum is taken in double and rounded once to f32: hardware's own order and truncation are not modelled.
 *
 * cp.async: the bytes are read at the call and appear in shared memory at the wait of the thread that asked; until then they are
 * marked as on their way, and any access to them is reported. */
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { M = 16, N = 8, KMAX = 16 };

typedef struct MmaData {
	float *d;
	const uint32_t *a, *b;
} MmaData;

typedef struct RowData {
	uint32_t *r;
	const void *row;
	const char *file;
	int n, trans, line;
} RowData;

struct AsyncCopy {
	AsyncCopy *next; /* the oldest first */
	unsigned char bytes[16];
	unsigned char *to;
	int group; /* number of its commit; -1: not yet committed */
};

void dl_sim_mma(int how, float *d, const unsigned *a, const unsigned *b, int line, const char *file);
void dl_sim_ldmatrix(int n, int trans, unsigned *r, const void *row, int line, const char *file);
void dl_sim_async16(void *shared, const void *global, int valid, int line, const char *file);
void dl_sim_async_commit(void);
void dl_sim_async_wait(int n);

static float from_bits(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static float from_f16(uint32_t h)
{
	uint32_t e = (h >> 10) & 31u, m = h & 1023u;
	float v = e == 0 ? ldexpf((float)m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexpf((float)(m | 1024u), (int)e - 25);
	return h & 0x8000u ? -v : v;
}

static float element(int how, uint32_t reg, int half)
{
	if (how == 2)
		return from_bits(reg & 0xffffe000u);
	uint32_t h = half ? reg >> 16 : reg & 0xffffu;
	return how == 0 ? from_bits(h << 16) : from_f16(h);
}

static void product(WarpOp *const *ops)
{
	double a[M][KMAX], b[KMAX][N];
	int how = ops[0]->how, depth = how == 2 ? 8 : 16, per = how == 2 ? 1 : 2;
	for (int l = 0; l < SIM_WARP; l++) {
		const MmaData *m = ops[l]->data;
		int group = l / 4, t = l % 4;
		for (int r = 0; r < 4; r++)
			for (int h = 0; h < per; h++)
				a[group + 8 * (r & 1)][per * t + h + 4 * per * (r >> 1)] = (double)element(how, m->a[r], h);
		for (int r = 0; r < 2; r++)
			for (int h = 0; h < per; h++)
				b[per * t + h + 4 * per * r][group] = (double)element(how, m->b[r], h);
	}
	for (int l = 0; l < SIM_WARP; l++) {
		const MmaData *m = ops[l]->data;
		for (int i = 0; i < 4; i++) {
			int row = l / 4 + 8 * (i >> 1), col = 2 * (l % 4) + (i & 1);
			double sum = (double)m->d[i];
			for (int k = 0; k < depth; k++)
				sum += a[row][k] * b[k][col];
			m->d[i] = (float)sum;
		}
	}
}

/* Lanes 8 i .. 8 i + 7 give the rows of matrix i; each lane gets two elements of each matrix. */
static void load_matrices(WarpOp *const *ops, int base)
{
	const RowData *first = ops[0]->data;
	uint16_t m[4][8][8];
	for (int i = 0; i < first->n; i++)
		for (int row = 0; row < 8; row++) {
			const RowData *d = ops[8 * i + row]->data;
			sim_exec.current = base + 8 * i + row;
			dl_sim_access((uintptr_t)d->row, 16, ACCESS_READ, NULL);
			const Region *g = region_find((uintptr_t)d->row, NULL);
			if (!g || (g->kind != RG_SHARED && g->kind != RG_DYNAMIC))
				violation(CUDA_ERROR_ILLEGAL_ADDRESS, NULL, "ldmatrix of an address that is not in shared memory");
			memcpy(m[i][row], d->row, 16);
		}
	for (int l = 0; l < SIM_WARP; l++) {
		const RowData *d = ops[l]->data;
		for (int i = 0; i < d->n; i++) {
			int p = l / 4, q = 2 * (l % 4);
			uint32_t lo = d->trans ? m[i][q][p] : m[i][p][q], hi = d->trans ? m[i][q + 1][p] : m[i][p][q + 1];
			d->r[i] = lo | (hi << 16);
		}
	}
}

void mma_complete(WarpOp *const *ops, int base)
{
	int me = sim_exec.current;
	if (ops[0]->kind == WK_MMA)
		product(ops);
	else
		load_matrices(ops, base);
	sim_exec.current = me;
}

void dl_sim_mma(int how, float *d, const unsigned *a, const unsigned *b, int line, const char *file)
{
	MmaData m = {d, a, b};
	WarpOp op = {.kind = WK_MMA, .mask = ~0u, .how = how, .data = &m};
	block_warp(&op, line, file);
}

void dl_sim_ldmatrix(int n, int trans, unsigned *r, const void *row, int line, const char *file)
{
	RowData d = {r, row, file, n, trans, line};
	WarpOp op = {.kind = WK_LDMATRIX, .mask = ~0u, .how = 2 * n + trans, .data = &d};
	block_warp(&op, line, file);
}

void dl_sim_async16(void *shared, const void *global, int valid, int line, const char *file)
{
	Exec *x = &sim_exec;
	Thread *t = &x->threads[x->current];
	t->line = line;
	t->file = file;
	if (valid < 0 || valid > 16)
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "cp.async of %d valid bytes of 16", valid);
	if (((uintptr_t)shared | (uintptr_t)global) % 16 != 0)
		violation(CUDA_ERROR_MISALIGNED_ADDRESS, NULL, "misaligned: cp.async of 16 bytes from %p to %p", global, shared);
	const Region *g = region_find((uintptr_t)shared, NULL), *from = region_find((uintptr_t)global, NULL);
	if (!g || (g->kind != RG_SHARED && g->kind != RG_DYNAMIC))
		violation(CUDA_ERROR_ILLEGAL_ADDRESS, NULL, "cp.async to an address that is not in shared memory");
	if (valid && from && from->kind != RG_DEVICE && from->kind != RG_VARIABLE)
		violation(CUDA_ERROR_ILLEGAL_ADDRESS, NULL, "cp.async from an address that is not in global memory");
	AsyncCopy *c = calloc(1, sizeof *c);
	if (!c)
		violation(CUDA_ERROR_LAUNCH_FAILED, NULL, "out of memory");
	dl_sim_access((uintptr_t)global, (size_t)valid, ACCESS_READ, NULL);
	if (valid)
		memcpy(c->bytes, global, (size_t)valid);
	dl_sim_access((uintptr_t)shared, 16, ACCESS_WRITE, NULL);
	shadow_async((uintptr_t)shared, 16, true);
	c->to = shared;
	c->group = -1;
	AsyncCopy **end = &t->pending;
	while (*end)
		end = &(*end)->next;
	*end = c;
	t->file = NULL;
}

void dl_sim_async_commit(void)
{
	Thread *t = &sim_exec.threads[sim_exec.current];
	for (AsyncCopy *c = t->pending; c; c = c->next)
		if (c->group < 0)
			c->group = t->ngroups;
	t->ngroups++;
}

void dl_sim_async_wait(int n)
{
	Thread *t = &sim_exec.threads[sim_exec.current];
	while (t->pending && t->pending->group >= 0 && t->pending->group < t->ngroups - n) {
		AsyncCopy *c = t->pending;
		t->pending = c->next;
		memcpy(c->to, c->bytes, sizeof c->bytes);
		shadow_async((uintptr_t)c->to, 16, false);
		free(c);
	}
}

void async_drop(Thread *t)
{
	while (t->pending) {
		AsyncCopy *c = t->pending;
		t->pending = c->next;
		free(c);
	}
}

/* The reference interpreter: products, convolutions, pools, embedding and attention, by their
 * definitions. */
#include "interp.h"

#include <math.h>

static double *data(const Value *v)
{
	return v->aux;
}

static const int64_t *dims(const Value *v)
{
	return v->type.dim;
}

static void round_all(const Node *n)
{
	for (int r = 0; r < n->nres; r++)
		for (int64_t i = 0; i < type_elems(&n->res[r]->type); i++)
			data(n->res[r])[i] =
				interp_round(n->res[r]->type.dtype, data(n->res[r])[i]);
}

/* ---- matmul ---- */

static void matmul(const Node *n)
{
	const Value *a = n->arg[0], *b = n->arg[1], *c = n->res[0];
	bool ta = ir_int(n, "ta") != 0, tb = ir_int(n, "tb") != 0;
	int la = a->type.ndim - 2, lb = b->type.ndim - 2, lc = c->type.ndim - 2;
	int64_t M = dims(c)[lc], N = dims(c)[lc + 1], K = dims(a)[la + !ta], batch = 1;
	for (int i = 0; i < lc; i++)
		batch *= dims(c)[i];
	for (int64_t g = 0; g < batch; g++) {
		const double *x = data(a) + (la ? g * M * K : 0),
			     *y = data(b) + (lb ? g * K * N : 0);
		for (int64_t i = 0; i < M; i++)
			for (int64_t j = 0; j < N; j++)
				for (int64_t k = 0; k < K; k++)
					data(c)[(g * M + i) * N + j] +=
						x[ta ? k * M + i : i * K + k] *
						y[tb ? j * K + k : k * N + j];
	}
}

/* What is done to the elements of a product, or beside it. */
static void epilogue(const Node *n)
{
	const Value *c = n->res[0], *of = n->op == OP_matmul_sums ? n->arg[ir_int(n, "of")] : NULL;
	int64_t elems = type_elems(&c->type), N = dims(c)[c->type.ndim - 1];
	for (int64_t i = 0; i < elems && n->op == OP_matmul_bias; i++)
		data(c)[i] += data(n->arg[2])[i % N];
	for (int64_t i = 0; i < elems && n->op == OP_matmul_bias && ir_int(n, "relu"); i++)
		data(c)[i] = data(c)[i] < 0 ? 0 : data(c)[i];
	for (int64_t i = 0; i < elems && n->op == OP_matmul_gelu_grad; i++)
		data(c)[i] *= interp_gelu_grad(data(n->arg[2])[i]);
	bool inner_first = of && (of == n->arg[0] ? ir_int(n, "ta") != 0 : !ir_int(n, "tb"));
	for (int64_t i = 0; of && i < type_elems(&of->type); i++)
		data(n->res[1])[inner_first ? i % dims(of)[1] : i / dims(of)[1]] += data(of)[i];
}

/* ---- convolutions: one loop nest for the three ops ---- */

typedef struct Window {
	int64_t stride[2], pad[2], dilation[2];
} Window;

static Window window_of(const Node *n, bool dilated)
{
	Window w;
	for (int i = 0; i < 2; i++) {
		w.stride[i] = ir_ints(n, "stride")->v[i];
		w.pad[i] = ir_ints(n, "pad")->v[i];
		w.dilation[i] = dilated ? ir_ints(n, "dilation")->v[i] : 1;
	}
	return w;
}

/* The image position under kernel element k of result position o; -1 in the padding. */
static int64_t under(const Window *w, int axis, int64_t o, int64_t k, int64_t size)
{
	int64_t at = o * w->stride[axis] - w->pad[axis] + k * w->dilation[axis];
	return at < 0 || at >= size ? -1 : at;
}

/* For each pair of an image element xi and a kernel element wi that meet in result element yi: y +=
 * x*w, or its derivatives x += y*w, w += x*y. */
static void conv(const Node *n, const Value *x, const Value *w, const Value *y, const Value *into)
{
	Window win = window_of(n, true);
	int64_t groups = ir_int(n, "groups"), cg = dims(w)[1], og = dims(w)[0] / groups;
	int64_t H = dims(x)[2], W = dims(x)[3], kh = dims(w)[2], kw = dims(w)[3];
	for (int64_t yi = 0; yi < type_elems(&y->type); yi++) {
		int64_t ow = yi % dims(y)[3], oh = yi / dims(y)[3] % dims(y)[2];
		int64_t o = yi / (dims(y)[3] * dims(y)[2]) % dims(y)[1];
		int64_t s = yi / (dims(y)[3] * dims(y)[2] * dims(y)[1]);
		for (int64_t k = 0; k < cg * kh * kw; k++) {
			int64_t c = k / (kh * kw), ih = under(&win, 0, oh, k / kw % kh, H),
				iw = under(&win, 1, ow, k % kw, W);
			if (ih < 0 || iw < 0)
				continue;
			int64_t xi = ((s * dims(x)[1] + o / og * cg + c) * H + ih) * W + iw,
				wi = o * cg * kh * kw + k;
			if (into == y)
				data(y)[yi] += data(x)[xi] * data(w)[wi];
			else if (into == x)
				data(x)[xi] += data(y)[yi] * data(w)[wi];
			else
				data(w)[wi] += data(x)[xi] * data(y)[yi];
		}
	}
}

/* ---- pools ---- */

/* Forward: y from x, and a second result the places in the windows. Backward: dx from dy (and, for max, x). */
static void pool(const Node *n, const Value *x, const Value *y, bool max, bool backward)
{
	Window win = window_of(n, false);
	int64_t kh = ir_ints(n, "kernel")->v[0], kw = ir_ints(n, "kernel")->v[1], H, W;
	const Value *image = backward ? n->res[0] : x;
	H = dims(image)[2];
	W = dims(image)[3];
	for (int64_t yi = 0; yi < type_elems(&y->type); yi++) {
		int64_t ow = yi % dims(y)[3], oh = yi / dims(y)[3] % dims(y)[2],
			plane = yi / (dims(y)[3] * dims(y)[2]);
		int64_t best = -1, place = 0;
		for (int64_t k = 0; k < kh * kw; k++) {
			int64_t ih = under(&win, 0, oh, k / kw, H),
				iw = under(&win, 1, ow, k % kw, W);
			if (ih < 0 || iw < 0)
				continue;
			int64_t xi = (plane * H + ih) * W + iw;
			if (max && (best < 0 || data(x)[xi] > data(x)[best])) {
				best = xi;
				place = k;
			}
			if (!max && backward)
				data(image)[xi] += data(y)[yi] / (double)(kh * kw);
			else if (!max)
				data(y)[yi] += data(x)[xi] / (double)(kh * kw);
		}
		if (max && backward)
			data(image)[best] += data(y)[yi];
		else if (max)
			data(y)[yi] = data(x)[best];
		if (n->nres == 2)
			data(n->res[1])[yi] = (double)place;
	}
}

/* x gets what the window at yi of dy gives to its place k. */
static void pool_index_grad(const Node *n, const Value *place, const Value *dy)
{
	Window win = window_of(n, false);
	const Value *dx = n->res[0];
	int64_t kh = ir_ints(n, "kernel")->v[0], kw = ir_ints(n, "kernel")->v[1], H = dims(dx)[2], W = dims(dx)[3];
	for (int64_t yi = 0; yi < type_elems(&dy->type); yi++) {
		int64_t k = (int64_t)data(place)[yi], plane = yi / (dims(dy)[3] * dims(dy)[2]);
		int64_t ih = under(&win, 0, yi / dims(dy)[3] % dims(dy)[2], k / kw, H), iw = under(&win, 1, yi % dims(dy)[3], k % kw, W);
		if (k < kh * kw && ih >= 0 && iw >= 0)
			data(dx)[(plane * H + ih) * W + iw] += data(dy)[yi];
	}
}

/* ---- embedding ---- */

/* An index outside of the table reads zeros and adds nowhere. */
static bool in_table(const Value *table, double row)
{
	return row >= 0 && row < (double)dims(table)[0];
}

static void embedding(const Value *table, const Value *at, double *rows)
{
	int64_t C = dims(table)[1];
	for (int64_t i = 0; i < type_elems(&at->type); i++)
		for (int64_t c = 0; c < C && in_table(table, data(at)[i]); c++)
			rows[i * C + c] = data(table)[(int64_t)data(at)[i] * C + c];
}

static void embedding_grad(const Value *table, const Value *at, const double *dy)
{
	int64_t C = dims(table)[1];
	for (int64_t i = 0; i < type_elems(&at->type); i++)
		for (int64_t c = 0; c < C && in_table(table, data(at)[i]); c++)
			data(table)[(int64_t)data(at)[i] * C + c] += dy[i * C + c];
}

/* ---- attention ---- */

typedef struct Attention {
	int64_t B, Tq, Tk, heads, kv, D, window;
	double scale;
	bool causal, magnitudes;
	const double *mask; /* [B,Tk], or NULL */
} Attention;

static Attention attention_of(const Node *n)
{
	int operands = n->op == OP_attention ? 3 : 6;
	Attention a = { .B = dims(n->arg[0])[0],
			.Tq = dims(n->arg[0])[1],
			.window = ir_int(n, "window") };
	a.Tk = dims(n->arg[1])[1];
	a.heads = ir_int(n, "heads");
	a.kv = ir_int(n, "kv_heads") ? ir_int(n, "kv_heads") : a.heads;
	a.D = dims(n->arg[0])[2] / a.heads;
	a.mask = n->nargs > operands ? data(n->arg[operands]) : NULL;
	a.causal = ir_int(n, "causal") != 0;
	a.scale = ir_float(n, "scale") != 0 ? ir_float(n, "scale") : 1 / sqrt((double)a.D);
	return a;
}

/* A term of a result. */
static double term(const Attention *a, double x)
{
	return a->magnitudes ? fabs(x) : x;
}

static double dot(const double *x, const double *y, int64_t n)
{
	double s = 0;
	for (int64_t i = 0; i < n; i++)
		s += x[i] * y[i];
	return s;
}

/* The row of [B,Tq,heads*D] that belongs to sample b, position t, head h. */
static double *head_row(const Value *v, const Attention *a, int64_t b, int64_t t, int64_t h)
{
	return data(v) + ((b * a->Tq + t) * a->heads + h) * a->D;
}

/* The row of [B,Tk,kv*D] that head h of the queries meets. */
static double *key_row(const Value *v, const Attention *a, int64_t b, int64_t t, int64_t h)
{
	return data(v) + ((b * a->Tk + t) * a->kv + h / (a->heads / a->kv)) * a->D;
}

/* Whether query i meets key j. */
static bool meets(const Attention *a, int64_t b, int64_t i, int64_t j)
{
	int64_t far = i > j ? i - j : j - i;
	return !(a->causal && j > i) && !(a->window && far >= a->window) &&
	       !(a->mask && a->mask[b * a->Tk + j] == 0);
}

static void attention_row(const Node *n, const Attention *a, int64_t b, int64_t h, int64_t i)
{
	const double *q = head_row(n->arg[0], a, b, i, h);
	double *o = head_row(n->res[0], a, b, i, h), most = -INFINITY, sum = 0;
	for (int64_t j = 0; j < a->Tk; j++)
		if (meets(a, b, i, j))
			most = fmax(most, a->scale * dot(q, key_row(n->arg[1], a, b, j, h), a->D));
	for (int64_t j = 0; j < a->Tk; j++)
		if (meets(a, b, i, j))
			sum += exp(a->scale * dot(q, key_row(n->arg[1], a, b, j, h), a->D) - most);
	double lse = sum > 0 ? most + log(sum) : 0;
	data(n->res[1])[(b * a->heads + h) * a->Tq + i] = lse;
	for (int64_t j = 0; j < a->Tk; j++) {
		if (!meets(a, b, i, j))
			continue;
		double p = exp(a->scale * dot(q, key_row(n->arg[1], a, b, j, h), a->D) - lse);
		for (int64_t d = 0; d < a->D; d++)
			o[d] += term(a, p * key_row(n->arg[2], a, b, j, h)[d]);
	}
}

/* Rows of dq, dk and dv, which may lie side by side. */
static double *grad_row(const Node *n, const Attention *a, int which, int64_t b, int64_t t, int64_t h)
{
	int64_t kv = a->kv * a->D, all = a->heads * a->D + 2 * kv, g = h / (a->heads / a->kv);
	if (n->op == OP_attention_grad)
		return which ? key_row(n->res[which], a, b, t, h) : head_row(n->res[0], a, b, t, h);
	return data(n->res[0]) + (b * a->Tq + t) * all + (which ? a->heads * a->D + (which - 1) * kv + g * a->D : h * a->D);
}

static void attention_grad_row(const Node *n, const Attention *a, int64_t b, int64_t h, int64_t i)
{
	const double *q = head_row(n->arg[0], a, b, i, h), *o = head_row(n->arg[3], a, b, i, h);
	const double *go = head_row(n->arg[5], a, b, i, h);
	double lse = data(n->arg[4])[(b * a->heads + h) * a->Tq + i], delta = dot(go, o, a->D);
	for (int64_t j = 0; j < a->Tk; j++) {
		const double *k = key_row(n->arg[1], a, b, j, h),
			     *v = key_row(n->arg[2], a, b, j, h);
		if (!meets(a, b, i, j))
			continue;
		double p = exp(a->scale * dot(q, k, a->D) - lse);
		double ds = p * (dot(go, v, a->D) - delta) * a->scale;
		for (int64_t d = 0; d < a->D; d++) {
			grad_row(n, a, 0, b, i, h)[d] += term(a, ds * k[d]);
			grad_row(n, a, 1, b, j, h)[d] += term(a, ds * q[d]);
			grad_row(n, a, 2, b, j, h)[d] += term(a, p * go[d]);
		}
	}
}

static void attention(const Node *n, bool magnitudes)
{
	Attention a = attention_of(n);
	a.magnitudes = magnitudes;
	for (int64_t b = 0; b < a.B; b++)
		for (int64_t h = 0; h < a.heads; h++)
			for (int64_t i = 0; i < a.Tq; i++)
				(n->op == OP_attention ? attention_row
						       : attention_grad_row)(n, &a, b, h, i);
}

static void part_sums(const Node *n)
{
	int first = ir_part_operand(n);
	bool squares = strcmp(ir_str(n, "of"), "squares") == 0;
	double by = first ? data(n->arg[0])[0] : 1, *part = data(n->res[0]);
	for (int i = first; i < n->nargs; i++) {
		int64_t elems = type_elems(&n->arg[i]->type);
		for (int64_t k = 0; k < elems; k++) {
			double v = interp_round(n->arg[i]->type.dtype == DT_F64 ? DT_F64 : DT_F32, data(n->arg[i])[k] * by);
			part[k / IR_PART] += squares ? v * v : !isfinite(v);
		}
		part += ir_parts(&n->arg[i]->type);
	}
}

bool interp_kernel(const Node *n, bool magnitudes)
{
	Value *const *x = n->arg, *y = n->res[0];
	switch ((int)n->op) {
	case OP_matmul: matmul(n); break;
	case OP_matmul_bias:
	case OP_matmul_gelu_grad:
	case OP_matmul_sums:
		matmul(n);
		epilogue(n);
		break;
	case OP_conv2d: conv(n, x[0], x[1], y, y); break;
	case OP_conv2d_grad_x: conv(n, y, x[1], x[0], y); break;
	case OP_conv2d_grad_w: conv(n, x[0], y, x[1], y); break;
	case OP_max_pool2d: pool(n, x[0], y, true, false); break;
	case OP_max_pool2d_grad: pool(n, x[0], x[1], true, true); break;
	case OP_max_pool2d_index: pool(n, x[0], y, true, false); break;
	case OP_max_pool2d_index_grad: pool_index_grad(n, x[0], x[1]); break;
	case OP_avg_pool2d: pool(n, x[0], y, false, false); break;
	case OP_avg_pool2d_grad: pool(n, NULL, x[0], false, true); break;
	case OP_embedding: embedding(x[0], x[1], data(y)); break;
	case OP_embedding_grad: embedding_grad(y, x[0], data(x[1])); break;
	case OP_part_sums: part_sums(n); break;
	case OP_attention:
	case OP_attention_grad:
	case OP_attention_grad_qkv: attention(n, magnitudes); break;
	default: return false;
	}
	for (int64_t i = 0; ir_acc(n) && i < type_elems(&y->type); i++)
		data(y)[i] += data(ir_acc(n))[i];
	round_all(n);
	return true;
}

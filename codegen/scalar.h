/* What kernels of every back end compute with: scalar math, 16-bit numbers, learning rates, counters.
 * It is C11 and CUDA C++, and includes nothing: before it come the integer types of stdint.h, PlanEnv,
 * INFINITY and NAN, memcpy, and the functions of math.h.
 *
 * Math: f32 functions are branch-free polynomials, so that a compiler vectorises the loops that call
 * them; they are good to about 2 units in the last place (gelu's derivative to 2e-7 absolute). f64
 * functions are the library's. Multiply-add appears inside a function only, where the processor has
 * it; the compiler contracts nothing across ops.
 *
 * Random numbers: Philox 4x32-10 (Salmon et al., 2011); counter = element, stream, step; key =
 * seed. */
#ifndef DL_SCALAR_H
#define DL_SCALAR_H

enum { DL_constant, DL_linear, DL_cosine, DL_step, DL_wsd };

#ifdef DL_CUDA
#define DL_INLINE static __device__ __forceinline__
#define DL_INLINE_MEMBER __device__ __forceinline__
#define DL_FUNCTION static __device__ __noinline__
#define DL_UNROLL _Pragma("unroll")
#else
#define DL_INLINE static inline __attribute__((always_inline, unused))
#define DL_FUNCTION static __attribute__((unused))
#define DL_UNROLL _Pragma("GCC unroll 10")
#endif

#if defined DL_CUDA || defined __FMA__
#define DL_FMA(a, b, c) fmaf((a), (b), (c))
#define DL_FMAD(a, b, c) fma((a), (b), (c))
#else
#define DL_FMA(a, b, c) ((a) * (b) + (c))
#define DL_FMAD(a, b, c) ((a) * (b) + (c))
#endif

/* ---- bits ---- */

DL_INLINE int32_t dl_bits(float x)
{
	int32_t i;
	memcpy(&i, &x, sizeof i);
	return i;
}
DL_INLINE float dl_from_bits(int32_t i)
{
	float x;
	memcpy(&x, &i, sizeof x);
	return x;
}
DL_INLINE int64_t dl_bitsd(double x)
{
	int64_t i;
	memcpy(&i, &x, sizeof i);
	return i;
}
DL_INLINE double dl_from_bitsd(int64_t i)
{
	double x;
	memcpy(&x, &i, sizeof x);
	return x;
}

/* ---- 16-bit floating point: bits in memory, f32 in registers ----
 *
 * load: exact. round: to nearest even, kept as f32; after each op. pack: of what is rounded.
 * store: round and pack. Without branches, so that the compiler vectorises them. */

DL_INLINE float dl_load_bf16(uint16_t h) { return dl_from_bits((int32_t)((uint32_t)h << 16)); }
DL_INLINE float dl_round_bf16(float x)
{
	const uint32_t u = (uint32_t)dl_bits(x), r = u + 0x7fffu + (u >> 16 & 1u);
	return dl_from_bits((int32_t)((x != x ? u | 0x400000u : r) & 0xffff0000u));
}
DL_INLINE uint16_t dl_pack_bf16(float x) { return (uint16_t)((uint32_t)dl_bits(x) >> 16); }
DL_INLINE uint16_t dl_store_bf16(float x) { return dl_pack_bf16(dl_round_bf16(x)); }

/* A subnormal is a multiple of 2^-24; the exponent of 31 stands for infinity and NaN. */
DL_INLINE float dl_load_f16(uint16_t h)
{
	const uint32_t m = h & 0x7fffu, e = h & 0x7c00u, sign = (uint32_t)(h & 0x8000u) << 16;
	const uint32_t tiny = (uint32_t)dl_bits((float)(int32_t)m * 5.9604644775390625e-8f);
	const uint32_t plain = (m << 13) + 0x38000000u, large = m << 13 | 0x7f800000u;
	return dl_from_bits((int32_t)((e == 0 ? tiny : e == 0x7c00u ? large : plain) | sign));
}
/* A number of 2^k has the unit 2^(k-10), below 2^-14 that of 2^-14: which a sum with 2^(k+13) has too, so that the sum is
 * rounded as it should; and there the exponent is kept as it would be in a number of 2^15, so that what is larger, infinity and
 * NaN stay what they are. From 65520 on it is infinite. */
DL_INLINE float dl_round_f16(float x)
{
	const int32_t u = dl_bits(x), a = u & 0x7fffffff;
	const int32_t c = a < 0x38800000 ? 0x38800000 : a, d = c > 0x47000000 ? 0x47000000 : c;
	const float by = dl_from_bits((d & 0x7f800000) + 0x06800000);
	const float y = (dl_from_bits(a) + by) - by;
	return dl_from_bits(dl_bits(y >= 65536.0f ? INFINITY : y) | (int32_t)((uint32_t)u & 0x80000000u));
}
DL_INLINE uint16_t dl_pack_f16(float x)
{
	const uint32_t u = (uint32_t)dl_bits(x), a = u & 0x7fffffffu;
	const uint32_t tiny = (uint32_t)(int32_t)(dl_from_bits((int32_t)a) * 16777216.0f);
	const uint32_t plain = (a - 0x38000000u) >> 13, large = (a & 0x7fffffu) >> 13 | 0x7c00u;
	const uint32_t y = a < 0x38800000u ? tiny : a >= 0x7f800000u ? large : plain;
	return (uint16_t)(y | (u >> 16 & 0x8000u));
}
/* Both at once: the fraction of the same sum, behind the exponent. */
DL_INLINE uint16_t dl_store_f16(float x)
{
	const int32_t u = dl_bits(x), a = u & 0x7fffffff, c = a < 0x47800000 ? a : 0x47800000;
	const int32_t e = (c > 0x38800000 ? c : 0x38800000) & 0x7f800000;
	const int32_t sum = dl_bits(dl_from_bits(c) + dl_from_bits(e + 0x06800000));
	const int32_t h = ((e - 0x38800000) >> 13) + (sum & 0x7fffff), nan = (a >> 13 & 0x3ff) | 0x7e00;
	return (uint16_t)((a > 0x7f800000 ? nan : h) | (u >> 16 & 0x8000));
}

/* ---- f32 math ---- */

DL_INLINE float dl_abs_f32(float x) { return fabsf(x); }
DL_INLINE float dl_max_f32(float a, float b) { return (a > b) | (a != a) ? a : b; }
DL_INLINE float dl_min_f32(float a, float b) { return (a < b) | (a != a) ? a : b; }
DL_INLINE float dl_sign_f32(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
DL_INLINE float dl_floor_f32(float x) { return floorf(x); }
DL_INLINE float dl_sqrt_f32(float x) { return sqrtf(x); }
DL_INLINE int32_t dl_is_finite_f32(float x) { return (dl_bits(x) & 0x7f800000) != 0x7f800000; }

/* 2^n for -127 < n < 128; anything for other n (of a NaN). */
DL_INLINE float dl_power_of_two(int32_t n)
{
	return dl_from_bits((int32_t)((uint32_t)(n + 127) << 23));
}

/* e^y = 2^n e^r with |r| <= ln2/2; the power of two in two factors, so that both ends are rounded
 * as they should. What underflows to 0 is not computed as a subnormal first, which would be slow:
 * masked scores are -inf. */
DL_INLINE float dl_exp_f32(float y)
{
	const int zero = y < -104.0f;
	float x = zero ? 0.0f : y;
	x = x > 90.0f ? 90.0f : x;
	const float t = x * 1.44269504f +
			12582912.0f; /* 1.5 * 2^23: the sum's low bits are the nearest integer */
	const float n = t - 12582912.0f;
	float r = DL_FMA(n, -0.693145752f, x);
	r = DL_FMA(n, -1.42860677e-6f, r);
	float p = DL_FMA(0.00139262508f, r, 0.00836323288f);
	p = DL_FMA(p, r, 0.0416665542f);
	p = DL_FMA(p, r, 0.166665767f);
	p = DL_FMA(p, r, 0.5f);
	p = DL_FMA(p, r * r, r) + 1.0f;
	const int32_t k = dl_bits(t) - 0x4b400000, h = k >> 1;
	p = p * dl_power_of_two(h) * dl_power_of_two(k - h);
	return zero ? 0.0f : p;
}

/* log x = e ln2 + log(1+r), 1+r in [sqrt(1/2), sqrt(2)); subnormal x are scaled first. */
DL_INLINE float dl_log_f32(float x)
{
	const float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
	const float y = tiny != 0.0f ? x * 8388608.0f : x;
	/* Unsigned where it may wrap (negative x, NaN: the result is NaN whatever comes of it). */
	const uint32_t i = (uint32_t)dl_bits(y);
	const int32_t e = (int32_t)(i - 0x3f3504f3u) >> 23;
	const float r = dl_from_bits((int32_t)(i - ((uint32_t)e << 23))) - 1.0f, n = (float)e - 23.0f * tiny, z = r * r;
	float p = DL_FMA(0.0697161144f, r, -0.114797338f);
	p = DL_FMA(p, r, 0.116854199f);
	p = DL_FMA(p, r, -0.124256873f);
	p = DL_FMA(p, r, 0.142490576f);
	p = DL_FMA(p, r, -0.166678023f);
	p = DL_FMA(p, r, 0.200007157f);
	p = DL_FMA(p, r, -0.24999997f);
	p = DL_FMA(p, r, 0.333333312f);
	p = DL_FMA(n, -2.12194440e-4f, p * r * z);
	p = DL_FMA(-0.5f, z, p) + r;
	p = DL_FMA(n, 0.693359375f, p);
	p = x == INFINITY ? x : p;
	p = x == 0.0f ? -INFINITY : p;
	return x < 0.0f || x != x ? NAN : p;
}

DL_INLINE float dl_log1p_f32(float x)
{
	const float u = 1.0f + x, c = x - (u - 1.0f);
	const float y = dl_log_f32(u) + c / u;
	return u == 1.0f ? x : u == INFINITY || u <= 0.0f ? dl_log_f32(u) : y;
}

DL_INLINE float dl_sigmoid_f32(float x)
{
	const float e = dl_exp_f32(-dl_abs_f32(x)), d = 1.0f / (1.0f + e);
	return x >= 0.0f ? d : e * d;
}

DL_INLINE float dl_tanh_f32(float x)
{
	const float a = dl_abs_f32(x), z = x * x;
	float p = DL_FMA(0.00229274493f, z, -0.00834394566f);
	p = DL_FMA(p, z, 0.0217689187f);
	p = DL_FMA(p, z, -0.0539592596f);
	p = DL_FMA(p, z, 0.133333036f);
	p = DL_FMA(p, z, -0.333333332f);
	const float small = DL_FMA(p * z, x, x);
	const float large = 1.0f - 2.0f / (dl_exp_f32(2.0f * a) + 1.0f);
	return a < 0.625f ? small : copysignf(large, x);
}

DL_INLINE float dl_erf_f32(float x)
{
	const float a = dl_abs_f32(x), z = x * x;
	float p = DL_FMA(8.33471862e-05f, z, -0.000813470933f);
	p = DL_FMA(p, z, 0.00520036859f);
	p = DL_FMA(p, z, -0.0268591515f);
	p = DL_FMA(p, z, 0.112836915f);
	p = DL_FMA(p, z, -0.376126335f);
	p = DL_FMA(p, z, 0.128379167f);
	const float small = DL_FMA(p, x, x), t = a > 4.0f ? 4.0f : a;
	float q = DL_FMA(-1.64356965e-06f, t, 4.61779128e-05f);
	q = DL_FMA(q, t, -0.000597743472f);
	q = DL_FMA(q, t, 0.00476357525f);
	q = DL_FMA(q, t, -0.0264310176f);
	q = DL_FMA(q, t, 0.110094481f);
	q = DL_FMA(q, t, 0.631814517f);
	q = DL_FMA(q, t, 1.13023762f);
	q = DL_FMA(q, t, -0.000320441531f);
	const float large = copysignf(1.0f - dl_exp_f32(-q), x);
	return x != x ? x : a < 0.92f ? small : large;
}

/* 0.5 x (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
DL_INLINE float dl_gelu_tanh_f32(float x)
{
	const float u = 1.59576912f * DL_FMA(0.044715f * x * x, x, x);
	return x * dl_sigmoid_f32(u);
}

DL_INLINE float dl_gelu_tanh_grad_f32(float x)
{
	const float z = x * x, u = 1.59576912f * DL_FMA(0.044715f * z, x, x);
	const float e = dl_exp_f32(-dl_abs_f32(u)), d = 1.0f / (1.0f + e),
		    s = u >= 0.0f ? d : e * d;
	const float w = x * (e * d * d) * 1.59576912f * DL_FMA(0.134145f, z, 1.0f);
	return s + (e == 0.0f ? 0.0f : w); /* far out x * 0 must not become NaN */
}

/* Sine and cosine of x = n pi/2 + r, reduced in f64: good for |x| up to 2^30. */
DL_INLINE float dl_sincos(float x, int32_t quarter)
{
	const double t = (double)x * 0.63661977236758134308 + 6755399441055744.0;
	const double n = t - 6755399441055744.0;
	const double rd = ((double)x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
	const int32_t k = (int32_t)dl_bitsd(t) + quarter;
	const float r = (float)rd, z = r * r;
	float s = DL_FMA(2.72437814e-06f, z, -0.000198400389f);
	s = DL_FMA(s, z, 0.00833333179f);
	s = DL_FMA(s, z, -0.166666667f);
	s = DL_FMA(s * z, r, r);
	float c = DL_FMA(-2.72958308e-07f, z, 2.48005604e-05f);
	c = DL_FMA(c, z, -0.00138888876f);
	c = DL_FMA(c, z, 0.0416666667f);
	c = DL_FMA(c, z * z, DL_FMA(-0.5f, z, 1.0f));
	const float y = k & 1 ? c : s;
	return k & 2 ? -y : y;
}
DL_INLINE float dl_sin_f32(float x) { return dl_sincos(x, 0); }
DL_INLINE float dl_cos_f32(float x) { return dl_sincos(x, 1); }

/* x^y = e^(y log x) in f64 (log by the series of atanh), so that the result is good to the last
 * place of f32. */
DL_INLINE float dl_pow_f32(float x, float y)
{
	const double a = (double)fabsf(x);
	const int64_t i = dl_bitsd(a), e = (i - 0x3fe6a09e667f3bcdLL) >> 52;
	const double m = dl_from_bitsd(i - e * (1LL << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
	double p = DL_FMAD(0.0832405948, z, 0.0906921731);
	p = DL_FMAD(p, z, 0.111114515);
	p = DL_FMAD(p, z, 0.142857119);
	p = DL_FMAD(p, z, 0.2);
	p = DL_FMAD(p, z, 0.333333333333);
	const double lg = DL_FMAD(p * z, s, s) * 2.0 + (double)e * 0.69314718055994530942;
	double v = lg * (double)y;
	v = v < -150.0 ? -150.0 : v > 120.0 ? 120.0 : v;
	const double t = v * 1.44269504088896340736 + 6755399441055744.0,
		     n = t - 6755399441055744.0;
	const double r = v - n * 0.69314718055994530942;
	double q = DL_FMAD(2.76252097e-06, r, 2.48763067e-05);
	q = DL_FMAD(q, r, 0.000198412086);
	q = DL_FMAD(q, r, 0.00138888214);
	q = DL_FMAD(q, r, 0.00833333335);
	q = DL_FMAD(q, r, 0.0416666669);
	q = DL_FMAD(q, r, 0.16666666667);
	q = DL_FMAD(q, r, 0.5);
	q = DL_FMAD(q * r, r, r) + 1.0;
	const double big = q * dl_from_bitsd(((int64_t)dl_bitsd(t) - 0x4338000000000000LL + 1023) *
					     (1LL << 52));
	float w = (float)big;
	const float fy = floorf(y), half = floorf(y * 0.5f) * 2.0f;
	w = x < 0.0f ? (fy != y ? NAN : half != y ? -w : w) : w;
	w = a == 0.0 ? (y > 0.0f ? 0.0f : INFINITY) : w;
	w = a == INFINITY ? (y > 0.0f ? INFINITY : 0.0f) : w;
	w = x != x || y != y ? NAN : w;
	return y == 0.0f || x == 1.0f ? 1.0f : w;
}

/* ---- f64 math ---- */

DL_INLINE double dl_abs_f64(double x) { return fabs(x); }
DL_INLINE double dl_max_f64(double a, double b) { return (a > b) | (a != a) ? a : b; }
DL_INLINE double dl_min_f64(double a, double b) { return (a < b) | (a != a) ? a : b; }
DL_INLINE double dl_sign_f64(double x) { return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : x; }
DL_INLINE double dl_floor_f64(double x) { return floor(x); }
DL_INLINE double dl_sqrt_f64(double x) { return sqrt(x); }
DL_INLINE int32_t dl_is_finite_f64(double x)
{
	return (dl_bitsd(x) & 0x7ff0000000000000LL) != 0x7ff0000000000000LL;
}
DL_INLINE double dl_exp_f64(double x) { return exp(x); }
DL_INLINE double dl_log_f64(double x) { return log(x); }
DL_INLINE double dl_log1p_f64(double x) { return log1p(x); }
DL_INLINE double dl_tanh_f64(double x) { return tanh(x); }
DL_INLINE double dl_erf_f64(double x) { return erf(x); }
DL_INLINE double dl_sin_f64(double x) { return sin(x); }
DL_INLINE double dl_cos_f64(double x) { return cos(x); }
DL_INLINE double dl_pow_f64(double x, double y) { return pow(x, y); }
DL_INLINE double dl_sigmoid_f64(double x)
{
	const double e = exp(-dl_abs_f64(x)), d = 1.0 / (1.0 + e);
	return x >= 0.0 ? d : e * d;
}
DL_INLINE double dl_gelu_tanh_f64(double x)
{
	return x * dl_sigmoid_f64(1.5957691216057307117 * (x + 0.044715 * x * x * x));
}
DL_INLINE double dl_gelu_tanh_grad_f64(double x)
{
	const double z = x * x, s = dl_sigmoid_f64(1.5957691216057307117 * (x + 0.044715 * z * x));
	const double c = dl_sigmoid_f64(-1.5957691216057307117 * (x + 0.044715 * z * x)) * s;
	return s + (c == 0.0 ? 0.0 : x * c * 1.5957691216057307117 * (1.0 + 0.134145 * z));
}

/* ---- integers ---- */

#define DL_INTEGER(T, S)                                                \
	DL_INLINE T dl_abs_##S(T x) { return x < 0 ? -x : x; }          \
	DL_INLINE T dl_max_##S(T a, T b) { return a > b ? a : b; }      \
	DL_INLINE T dl_min_##S(T a, T b) { return a < b ? a : b; }      \
	DL_INLINE T dl_sign_##S(T x) { return (T)((x > 0) - (x < 0)); } \
	DL_INLINE T dl_floor_##S(T x) { return x; }                     \
	DL_INLINE int32_t dl_is_finite_##S(T x)                         \
	{                                                               \
		(void)x;                                                \
		return 1;                                               \
	}
DL_INTEGER(int32_t, i32)
DL_INTEGER(int64_t, i64)

/* ---- learning rates: `it` counts optimizer steps from 0 ---- */

DL_FUNCTION double dl_schedule(int kind, int64_t it, double peak, double min, int64_t warmup,
			       int64_t total, double param)
{
	if (it < warmup)
		return peak * (double)(it + 1) / (double)(warmup + 1);
	const double span = (double)(total - warmup), done = (double)(it - warmup);
	if (kind == DL_cosine) {
		if (it > total)
			return min;
		const double r = span > 0 ? done / span : 1.0;
		return min + (1.0 + cos(3.14159265358979323846 * r)) / 2.0 * (peak - min);
	}
	if (kind == DL_linear) {
		const double r = span > 0 && it < total ? done / span : 1.0;
		return peak + (min - peak) * r;
	}
	if (kind == DL_step) { /* a tenth, each `param` steps */
		const double n = param > 0 ? floor(done / param) : 0.0, y = peak * pow(0.1, n);
		return y > min ? y : min;
	}
	if (kind == DL_wsd) {
		const double tail = param * (double)total, start = (double)total - tail;
		if ((double)it <= start || tail <= 0)
			return peak;
		const double r = it < total ? ((double)it - start) / tail : 1.0;
		return min + (1.0 - sqrt(r)) * (peak - min);
	}
	return peak;
}

/* ---- random numbers ---- */

typedef struct DlRandom {
	uint32_t x0, x1;
} DlRandom;

DL_INLINE DlRandom dl_philox(uint64_t element, uint32_t stream, uint32_t step, uint64_t seed)
{
	uint32_t c0 = (uint32_t)element, c1 = (uint32_t)(element >> 32), c2 = stream, c3 = step;
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	DL_UNROLL
	for (int i = 0; i < 10; i++) {
		const uint64_t p = (uint64_t)c0 * 0xd2511f53u, q = (uint64_t)c2 * 0xcd9e8d57u;
		const uint32_t n0 = (uint32_t)(q >> 32) ^ c1 ^ k0,
			       n2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)q;
		c3 = (uint32_t)p;
		c0 = n0;
		c2 = n2;
		k0 += 0x9e3779b9u;
		k1 += 0xbb67ae85u;
	}
	const DlRandom r = { c0, c1 };
	return r;
}
DL_INLINE float dl_unit(uint32_t x) { return (float)(int32_t)(x >> 8) * 5.9604644775390625e-8f; }

/* Element's numbers under env's seed and step. */
#define DL_RANDOM(e, stream) \
	dl_philox((uint64_t)(e), (uint32_t)(stream), (uint32_t)env->step, env->seed)
#define DL_UNIFORM(T, e, stream, lo, hi) \
	((T)(lo) + ((T)(hi) - (T)(lo)) * (T)dl_unit(DL_RANDOM(e, stream).x0))
#define DL_DROPOUT(T, e, stream, p)                                                               \
	((double)dl_unit(DL_RANDOM(e, stream).x0) >= (double)(p) ? (T)(1.0 / (1.0 - (double)(p))) \
								 : (T)0)
DL_INLINE float dl_normal_f32(DlRandom r)
{
	const float u1 = (float)(int32_t)((r.x0 >> 8) + 1) * 5.9604644775390625e-8f;
	return dl_sqrt_f32(-2.0f * dl_log_f32(u1)) * dl_cos_f32(6.28318531f * dl_unit(r.x1));
}
DL_INLINE double dl_normal_f64(DlRandom r)
{
	const double u1 = (double)((r.x0 >> 8) + 1) * 5.9604644775390625e-8;
	return sqrt(-2.0 * log(u1)) * cos(6.283185307179586477 * (double)dl_unit(r.x1));
}

#endif

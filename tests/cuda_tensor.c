/* The tensor-core kernels of the back end `cuda` (codegen/attention.cuh, conv.cuh) by themselves.
 *
 *     cuda_tensor values [all]      runs them through the driver interface against plain loops in double: with LD_LIBRARY_PATH on
 *                                   tests/cudasim's libraries in the simulator, else on a GPU
 *     cuda_tensor compiler          whether there is an NVRTC
 *     cuda_tensor registers [all]   compiles them by NVRTC for sm_80, sm_90 and sm_100: no local memory, shared memory within the chip's
 *
 * `all WORD`: all cases whose name (for registers, and architecture) has the word.
 *
 * Cases: heads and tiles with tails, groups of heads, windows, masks with rows that no key meets, packed q, k, v; strides, dilation, groups,
 * odd sizes. f32 to 1e-5 of the largest element, 16 bits to a few units of their rounding; no byte outside of results and
 * workspace may change; a second run must give the same bits. */
#include "codegen/cuda_tensor.h"
#include "interp.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const char scalar_h[];

enum { GUARD = 64, PATTERN = 0xa5, MAX_OFF = 12 };

typedef struct Test {
	Arena *a;
	Module *m;
	const char *word; /* of the cases to run, or NULL */
	int made, passed, failed;
} Test;

/* ---- cases ---- */

typedef struct AttentionCase {
	int B, T, TK, H, KV, D, causal, window, mask, packed;
	double scale;
} AttentionCase;

static const AttentionCase attention_cases[] = {
	{ 1, 140, 140, 1, 1, 64, 1, 0, 0, 1, 0 },   { 2, 70, 90, 4, 2, 24, 0, 0, 1, 0, -0.2 }, { 2, 90, 90, 2, 2, 40, 0, 13, 0, 0, 0 },
	{ 2, 60, 60, 3, 1, 10, 1, 17, 1, 0, 0.3 }, { 1, 70, 70, 2, 1, 128, 1, 0, 0, 1, 0 },   { 1, 40, 37, 1, 1, 200, 0, 0, 1, 0, 0 },
	{ 1, 33, 130, 2, 2, 16, 0, 0, 0, 0, 0 },
};
/* Sizes at which registers are counted: those of models, and every row of the tables of tiles. */
static const AttentionCase register_cases[] = {
	{ 64, 1024, 1024, 12, 12, 64, 1, 0, 0, 1, 0 }, { 8, 1024, 1024, 16, 4, 128, 1, 0, 0, 0, 0 },  { 8, 512, 512, 8, 8, 32, 0, 0, 1, 0, 0 },
	{ 8, 512, 500, 8, 8, 64, 0, 0, 1, 0, 0 },      { 8, 500, 500, 8, 4, 128, 1, 100, 1, 0, 0 }, { 2, 512, 512, 4, 4, 256, 1, 0, 0, 0, 0 },
	{ 2, 512, 512, 4, 2, 200, 0, 64, 1, 0, 0 },    { 2, 512, 512, 4, 4, 80, 1, 0, 0, 0, 0 },    { 2, 500, 500, 4, 4, 36, 1, 0, 1, 0, 0 },
	{ 2, 500, 500, 4, 4, 18, 1, 0, 1, 0, 0 },
};

typedef struct ConvCase {
	int N, C, H, W, O, groups, kh, kw, sh, sw, ph, pw, dh, dw;
} ConvCase;

static const ConvCase conv_cases[] = {
	{ 2, 32, 9, 11, 40, 1, 3, 3, 1, 1, 1, 1, 1, 1 }, { 2, 24, 9, 11, 40, 1, 3, 3, 2, 2, 1, 1, 1, 1 },
	{ 2, 5, 12, 10, 70, 1, 3, 5, 2, 1, 1, 2, 1, 1 }, { 2, 64, 8, 8, 40, 1, 1, 1, 1, 1, 0, 0, 1, 1 },
	{ 2, 40, 4, 6, 33, 1, 1, 1, 1, 1, 0, 0, 1, 1 },	 { 1, 8, 13, 9, 12, 4, 3, 3, 1, 1, 2, 2, 2, 2 },
	{ 2, 6, 9, 9, 12, 6, 4, 3, 2, 2, 1, 1, 1, 1 },	 { 3, 3, 17, 15, 20, 1, 7, 7, 2, 2, 3, 3, 1, 1 },
	{ 1, 32, 6, 6, 40, 1, 2, 2, 3, 3, 0, 0, 1, 1 },
};
static const ConvCase conv_registers[] = {
	{ 64, 64, 56, 56, 64, 1, 3, 3, 1, 1, 1, 1, 1, 1 },   { 64, 64, 56, 56, 128, 1, 3, 3, 2, 2, 1, 1, 1, 1 },
	{ 64, 3, 224, 224, 64, 1, 7, 7, 2, 2, 3, 3, 1, 1 },  { 64, 64, 56, 56, 256, 1, 1, 1, 1, 1, 0, 0, 1, 1 },
	{ 64, 512, 7, 7, 512, 1, 3, 3, 1, 1, 1, 1, 1, 1 },   { 64, 1, 28, 28, 32, 1, 3, 3, 1, 1, 1, 1, 1, 1 },
	{ 64, 96, 29, 29, 96, 96, 5, 5, 2, 2, 2, 2, 1, 1 },  { 64, 128, 14, 14, 128, 8, 3, 3, 1, 1, 1, 1, 1, 1 },
};

#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

/* ---- nodes ---- */

static Value *input(Builder *b, const char *name, DType d, int n, const int64_t *dims) { return ir_input(b, name, type_make(d, n, dims)); }

/* q, k, v: of their own, or columns of one value. */
static void make_qkv(Builder *b, DType d, const AttentionCase *c, Value **v)
{
	int64_t q = (int64_t)c->H * c->D, kv = (int64_t)c->KV * c->D, width[3] = { q, kv, kv }, at = 0;
	Value *all = c->packed ? input(b, "qkv", d, 3, (int64_t[]){ c->B, c->T, q + 2 * kv }) : NULL;
	for (int i = 0; i < 3; i++) {
		const char *name = arena_printf(b->m->arena, "%c", "qkv"[i]);
		v[i] = c->packed ? ir_slice(b, all, 2, at, at + width[i])
				 : input(b, name, d, 3, (int64_t[]){ c->B, i ? c->TK : c->T, width[i] });
		if (c->packed)
			v[i]->ld = q + 2 * kv;
		at += width[i];
	}
}

/* Attention and its gradient: side by side where q, k and v are. */
static Func *make_attention(Test *t, DType d, const AttentionCase *c)
{
	Func *f = ir_func(t->m, arena_printf(t->a, "f%d", t->made++));
	Builder b = ir_builder(t->m, f->body);
	int64_t y[3] = { c->B, c->T, (int64_t)c->H * c->D }, keys[2] = { c->B, c->TK };
	Attr attr[5] = { { .i = c->H }, { .i = c->causal }, { .f = c->scale }, { .i = c->KV }, { .i = c->window } };
	Value *arg[7];
	make_qkv(&b, d, c, arg);
	arg[3] = c->mask ? input(&b, "mask", DT_BOOL, 2, keys) : NULL;
	Node *n = ir_node(&b, OP_attention, c->mask ? 4 : 3, arg, attr, NULL);
	arg[6] = arg[3];
	arg[3] = n->res[0];
	arg[4] = n->res[1];
	arg[5] = input(&b, "dy", d, 3, y);
	Node *grad = ir_node(&b, c->packed ? OP_attention_grad_qkv : OP_attention_grad, c->mask ? 7 : 6, arg, attr, NULL);
	static const char *const name[] = { "y", "lse", "dq", "dk", "dv" };
	for (int i = 0; i < 2 + grad->nres; i++)
		ir_output(&b, i == 2 && c->packed ? "dqkv" : name[i], i < 2 ? n->res[i] : grad->res[i - 2]);
	assert(!b.failed);
	return f;
}

/* A convolution and its gradients, that by w in d and, in 16 bits, in f32 as well; and added to a sum. */
static Func *make_conv(Test *t, DType d, const ConvCase *c)
{
	Func *f = ir_func(t->m, arena_printf(t->a, "f%d", t->made++));
	Builder b = ir_builder(t->m, f->body);
	int64_t OH = (c->H + 2 * c->ph - c->dh * (c->kh - 1) - 1) / c->sh + 1, OW = (c->W + 2 * c->pw - c->dw * (c->kw - 1) - 1) / c->sw + 1;
	Type x = type_make(d, 4, (int64_t[]){ c->N, c->C, c->H, c->W }), y = type_make(d, 4, (int64_t[]){ c->N, c->O, OH, OW });
	Type w = type_make(d, 4, (int64_t[]){ c->O, c->C / c->groups, c->kh, c->kw }), sums = w;
	sums.dtype = DT_F32;
	Attr attr[4] = { { .ints = ir_list(2, (int64_t[]){ c->sh, c->sw }) },
			 { .ints = ir_list(2, (int64_t[]){ c->ph, c->pw }) },
			 { .ints = ir_list(2, (int64_t[]){ c->dh, c->dw }) },
			 { .i = c->groups } };
	Value *vx = ir_input(&b, "x", x), *vw = ir_input(&b, "w", w), *vy = ir_input(&b, "dy", y);
	ir_output(&b, "y", ir_value(&b, OP_conv2d, 2, (Value *[]){ vx, vw }, attr, NULL));
	ir_output(&b, "dx", ir_value(&b, OP_conv2d_grad_x, 2, (Value *[]){ vy, vw }, attr, &x));
	ir_output(&b, "dw", ir_value(&b, OP_conv2d_grad_w, 2, (Value *[]){ vx, vy }, attr, &w));
	if (d != DT_F32)
		ir_output(&b, "sums", ir_value(&b, OP_conv2d_grad_w, 2, (Value *[]){ vx, vy }, attr, &sums));
	Value *before = ir_input(&b, "before", sums);
	ir_output(&b, "added", ir_value(&b, OP_conv2d_grad_w, 3, (Value *[]){ vx, vy, before }, attr, &sums));
	assert(!b.failed);
	return f;
}

static bool is_kernel(const Node *n)
{
	OpKind kind = ir_ops[n->op].kind;
	return kind == K_MATRIX || kind == K_KERNEL;
}

/* ---- what the libraries offer ---- */

typedef struct Gpu {
	int (*alloc)(unsigned long long *, size_t), (*release)(unsigned long long);
	int (*to)(unsigned long long, const void *, size_t), (*from)(void *, unsigned long long, size_t);
	int (*load)(void **, const void *), (*unload)(void *), (*function)(void **, void *, const char *), (*attribute)(void *, int, int);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*wait)(void);
	char arch[16];
} Gpu;

typedef struct Compiler {
	int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
	int (*compile)(void *, int, const char *const *), (*destroy)(void **);
	int (*log_size)(void *, size_t *), (*log)(void *, char *), (*cubin_size)(void *, size_t *), (*cubin)(void *, char *);
} Compiler;

static void *open_any(const char *const *names)
{
	void *h = NULL;
	for (; *names && !h; names++)
		h = dlopen(*names, RTLD_NOW | RTLD_GLOBAL);
	return h;
}

/* Function pointers of one struct, in order of their names. */
static bool find_all(void *lib, void *to, const char *const *names)
{
	for (void **f = to; *names; names++, f++) {
		*f = dlsym(lib, *names);
		if (!*f)
			return false;
	}
	return true;
}

static bool open_compiler(Compiler *c)
{
	static const char *const libs[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so", NULL };
	static const char *const names[] = { "nvrtcCreateProgram",  "nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcGetProgramLogSize",
					     "nvrtcGetProgramLog", "nvrtcGetCUBINSize",	  "nvrtcGetCUBIN",	 NULL };
	void *lib = open_any(libs);
	return lib && find_all(lib, c, names);
}

static bool open_gpu(Gpu *g)
{
	static const char *const libs[] = { "libcuda.so.1", NULL };
	static const char *const names[] = { "cuMemAlloc_v2",	   "cuMemFree_v2",   "cuMemcpyHtoD_v2",	   "cuMemcpyDtoH_v2",
					     "cuModuleLoadData",   "cuModuleUnload", "cuModuleGetFunction", "cuFuncSetAttribute",
					     "cuLaunchKernel",	   "cuCtxSynchronize", NULL };
	void *lib = open_any(libs), *context;
	struct {
		int (*init)(unsigned), (*device)(int *, int), (*attribute)(int *, int, int), (*retain)(void **, int), (*current)(void *);
	} f;
	static const char *const first[] = { "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", NULL };
	int device, major, minor;
	if (!lib || !find_all(lib, g, names) || !find_all(lib, &f, first) || f.init(0) || f.device(&device, 0) || f.attribute(&major, 75, device) ||
	    f.attribute(&minor, 76, device) || f.retain(&context, device) || f.current(context))
		return false;
	snprintf(g->arch, sizeof g->arch, "sm_%d%d", major, minor);
	return true;
}

/* The cubin, or NULL after its log is printed; *log, from malloc, is what the compiler said. */
static char *compile(const Compiler *c, const char *text, const char *arch, bool verbose, char **log)
{
	void *program = NULL;
	size_t n = 0;
	const char *options[] = { NULL, "-std=c++17", "-fmad=false", "--ptxas-options=-v" };
	char target[32];
	snprintf(target, sizeof target, "-arch=%s", arch);
	options[0] = target;
	if (c->create(&program, text, "kernels.cu", 0, NULL, NULL) != 0)
		return NULL;
	int failed = c->compile(program, verbose ? 4 : 3, options);
	c->log_size(program, &n);
	*log = calloc(n + 1, 1);
	c->log(program, *log);
	char *cubin = NULL;
	if (failed) {
		printf("%.3000s\n", *log);
	} else {
		c->cubin_size(program, &n);
		cubin = malloc(n);
		c->cubin(program, cubin);
	}
	c->destroy(&program);
	return cubin;
}

/* What scalar.h stands behind. */
static const char types[] = "#define DL_CUDA 1\n"
			    "typedef signed char int8_t;\ntypedef int int32_t;\ntypedef long long int64_t;\n"
			    "typedef unsigned char uint8_t;\ntypedef unsigned short uint16_t;\n"
			    "typedef unsigned int uint32_t;\ntypedef unsigned long long uint64_t;\n"
			    "#define INFINITY __int_as_float(0x7f800000)\n#define NAN __int_as_float(0x7fc00000)\n"
			    "typedef struct PlanEnv {\n\tuint64_t seed;\n\tint64_t step, micro, base;\n\tint32_t threads;\n} PlanEnv;\n";

/* The start of a unit. */
static FILE *open_unit(char **s, size_t *n)
{
	FILE *out = open_memstream(s, n);
	fputs(types, out);
	fputs(scalar_h, out);
	cuda_tensor_prelude(out);
	return out;
}

static void put_kernel(FILE *out, const char *text, const char *name)
{
	for (; *text; text++)
		if (*text == '$')
			fputs(name, out);
		else
			putc(*text, out);
}

/* ---- registers ---- */

static void check_registers(Test *t, const Compiler *c, const Node *n, const char *what, const char *arch)
{
	CudaTensor x;
	int64_t limit = cuda_shared_limit(arch);
	if (!cuda_tensor_text(t->a, n, limit, &x)) {
		printf("FAIL %s: no kernel\n", what);
		t->failed++;
		return;
	}
	char *log = NULL, *text = NULL;
	size_t bytes = 0;
	FILE *unit = open_unit(&text, &bytes);
	put_kernel(unit, x.text, "kernel");
	fclose(unit);
	char *cubin = compile(c, text, arch, true, &log);
	bool good = cubin && strstr(log, "bytes stack frame");
	for (const char *s = log; good && (s = strstr(s, "bytes stack frame")) != NULL; s++)
		good = s - log > 2 && s[-2] == '0' && (s[-3] == ' ' || s[-3] == '\t');
	for (int i = 0; i < x.nlaunch; i++)
		good = good && x.launch[i].shared_bytes <= limit;
	if (!good)
		printf("FAIL %s %s: registers spill, or shared memory does not fit\n", what, arch);
	for (char *line = log ? strtok(log, "\n") : NULL; !good && line; line = strtok(NULL, "\n"))
		if (strstr(line, "ptxas") || strstr(line, "error") || strstr(line, "bytes stack"))
			puts(line);
	*(good ? &t->passed : &t->failed) += 1;
	free(text);
	free(log);
	free(cubin);
}

static void func_registers(Test *t, const Compiler *c, const Func *f, const char *what, const char *arch)
{
	if (t->word && !strstr(arena_printf(t->a, "%s %s", what, arch), t->word))
		return;
	for (const Node *n = f->body->first; n; n = n->next)
		if (is_kernel(n))
			check_registers(t, c, n, arena_printf(t->a, "%s: %s", what, ir_ops[n->op].name), arch);
}

static const char *attention_name(Test *t, DType d, const AttentionCase *x)
{
	return arena_printf(t->a, "attention %s B %d T %d TK %d heads %d/%d of %d%s%s window %d", dtype_name(d), x->B, x->T, x->TK, x->H, x->KV, x->D,
			    x->causal ? " causal" : "", x->mask ? " mask" : "", x->window);
}

static const char *conv_name(Test *t, DType d, const ConvCase *x)
{
	return arena_printf(t->a, "conv %s [%d,%d,%d,%d] by [%d,%d/%d,%d,%d] stride %d %d", dtype_name(d), x->N, x->C, x->H, x->W, x->O, x->C,
			    x->groups, x->kh, x->kw, x->sh, x->sw);
}

static void all_registers(Test *t, bool full)
{
	static const char *const archs[] = { "sm_90", "sm_80", "sm_100", "sm_86" };
	static const DType in[] = { DT_BF16, DT_F32 }; /* f16 is bf16 with another instruction */
	Compiler c;
	if (!open_compiler(&c)) {
		printf("FAIL libnvrtc is not there\n");
		t->failed++;
		return;
	}
	for (int i = 0; i < (full ? COUNT(archs) : 1); i++)
		for (int d = 0; d < (full ? COUNT(in) : 1); d++) {
			for (int k = 0; k < (full ? COUNT(register_cases) : 1); k++)
				func_registers(t, &c, make_attention(t, in[d], &register_cases[k]),
					       attention_name(t, in[d], &register_cases[k]), archs[i]);
			for (int k = 0; k < (full ? COUNT(conv_registers) : 1); k++)
				func_registers(t, &c, make_conv(t, in[d], &conv_registers[k]), conv_name(t, in[d], &conv_registers[k]),
					       archs[i]);
		}
}

/* ---- values ---- */

/* Where values lie in an arena, guard bytes around each. */
typedef struct Run {
	Test *t;
	const Gpu *gpu;
	const Compiler *compiler;
	const char *what;
	InterpEnv env;
	unsigned char *before, *after; /* host copies */
	int64_t bytes;
	unsigned long long arena;
	void *module;
} Run;

static void fault(Test *t, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void fault(Test *t, const char *what, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	printf("FAIL %s: ", what);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
	t->failed++;
}

static double load(DType d, const unsigned char *p, int64_t i)
{
	if (d == DT_BOOL)
		return p[i];
	return d == DT_F32 ? (double)((const float *)(const void *)p)[i] : interp_value(d, ((const uint16_t *)(const void *)p)[i]);
}

static void store(DType d, unsigned char *p, int64_t i, double v)
{
	if (d == DT_BOOL)
		p[i] = v != 0;
	else if (d == DT_F32)
		((float *)(void *)p)[i] = (float)v;
	else
		((uint16_t *)(void *)p)[i] = interp_bits(d, v);
}

/* Normal numbers, about; a mask with rows without a key: the first 25 keys do not count. */
static double element(const char *name, DType d, int64_t i, int64_t row)
{
	uint32_t r[2];
	interp_philox((uint64_t)i, (uint32_t)name[0] + 256u * (uint32_t)name[1], 0, 1, r);
	if (d == DT_BOOL)
		return i % row >= 25 && r[0] % 3 != 0;
	double u = ((double)r[0] + 0.5) / 4294967296.0, v = (double)r[1] / 4294967296.0;
	return interp_round(d, sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void place(Run *r, Value *v)
{
	v->offset = (r->bytes + GUARD + 63) / 64 * 64;
	r->bytes = v->offset + type_bytes(&v->type) + GUARD;
}

/* Inputs and results get places, inputs their elements. */
static bool prepare(Run *r, const Func *f)
{
	r->env = (InterpEnv){ .arena = r->t->a };
	for (Node *n = f->body->first; n; n = n->next) {
		if (n->op != OP_input && !is_kernel(n))
			continue;
		for (int i = 0; i < n->nres; i++)
			place(r, n->res[i]);
		if (is_kernel(n)) {
			n->work_bytes = cuda_tensor_workspace(n);
			n->work_offset = (r->bytes + GUARD + 63) / 64 * 64;
			r->bytes = n->work_offset + n->work_bytes + GUARD;
			continue;
		}
		const Type *type = &n->res[0]->type;
		InterpSlot *s = interp_slot(&r->env, &r->env.inputs, ir_str(n, "name"), type);
		for (int64_t i = 0; i < type_elems(type); i++)
			s->v[i] = element(s->name, type->dtype, i, type->dim[type->ndim - 1]);
	}
	if (!interp_func(f, &r->env)) {
		fault(r->t, r->what, "the interpreter: %s", r->env.error);
		return false;
	}
	r->before = malloc((size_t)r->bytes);
	r->after = malloc((size_t)r->bytes);
	memset(r->before, PATTERN, (size_t)r->bytes);
	for (const Node *n = f->body->first; n; n = n->next)
		for (int64_t i = 0; n->op == OP_input && i < type_elems(&n->res[0]->type); i++)
			store(n->res[0]->type.dtype, r->before + n->res[0]->offset, i,
			      interp_find(r->env.inputs, ir_str(n, "name"))->v[i]);
	return r->gpu->alloc(&r->arena, (size_t)r->bytes) == 0 && r->gpu->to(r->arena, r->before, (size_t)r->bytes) == 0;
}

/* All kernels of a function, k0, k1, .., as one module; launches are kept in `x` by node. */
static bool load_kernels(Run *r, const Func *f, CudaTensor *x)
{
	char *text = NULL, *log = NULL, name[16];
	size_t bytes = 0;
	int k = 0;
	bool all = true;
	FILE *unit = open_unit(&text, &bytes);
	for (const Node *n = f->body->first; n; n = n->next) {
		if (!is_kernel(n))
			continue;
		snprintf(name, sizeof name, "k%d", k);
		if (cuda_tensor_text(r->t->a, n, cuda_shared_limit(r->gpu->arch), &x[k]))
			put_kernel(unit, x[k++].text, name);
		else
			all = false;
	}
	fclose(unit);
	char *cubin = all ? compile(r->compiler, text, r->gpu->arch, false, &log) : NULL;
	if (!cubin || r->gpu->load(&r->module, cubin) != 0)
		fault(r->t, r->what, "its kernels cannot be loaded");
	free(text);
	free(log);
	free(cubin);
	return r->module != NULL;
}

static void launch(Run *r, const Node *n, const CudaTensor *x, int k)
{
	int64_t off[MAX_OFF] = { 0 };
	int noff = 0, error = 0;
	for (int i = 0; i < n->nargs; i++, noff++) {
		const Value *root = ir_view_root(n->arg[i], &off[noff]);
		off[noff] += root->offset;
	}
	for (int i = 0; i < n->nres; i++)
		off[noff++] = n->res[i]->offset;
	if (n->work_bytes)
		off[noff++] = n->work_offset;
	unsigned long long env = 0;
	for (int i = 0; !error && i < x->nlaunch; i++) {
		const PlanLaunch *l = &x->launch[i];
		void *args[] = { &r->arena, off, &env }, *function = NULL;
		error = r->gpu->function(&function, r->module, i ? arena_printf(r->t->a, "k%d_%d", k, i) : arena_printf(r->t->a, "k%d", k));
		if (!error)
			error = r->gpu->attribute(function, 8, (int)l->shared_bytes);
		if (!error)
			error = r->gpu->launch(function, l->grid[0], l->grid[1], l->grid[2], l->block, 1, 1, l->shared_bytes, NULL, args, NULL);
		if (!error)
			error = r->gpu->wait();
	}
	if (error)
		fault(r->t, r->what, "%s: error %d", ir_ops[n->op].name, error);
}

static void check_result(Run *r, const Node *output)
{
	const Value *v = output->arg[0];
	InterpSlot *want = interp_find(r->env.outputs, ir_str(output, "name"));
	DType low = r->what[0] && strstr(r->what, "bf16") ? DT_BF16 : strstr(r->what, " f16") ? DT_F16 : DT_F32;
	double most = 0, worst = 0, limit = low == DT_BF16 ? 0x3p-8 : low == DT_F16 ? 0x3p-11 : 1e-5;
	for (int64_t i = 0; i < type_elems(&v->type); i++) {
		double error = fabs(load(v->type.dtype, r->after + v->offset, i) - want->v[i]);
		most = fmax(most, fabs(want->v[i]));
		worst = error <= worst ? worst : error;
	}
	if (worst <= limit * most)
		r->t->passed++;
	else
		fault(r->t, r->what, "%s: off by %.3g of %.3g", want->name, worst, most);
}

static bool in_range(int64_t at, int64_t offset, int64_t bytes) { return at >= offset && at < offset + bytes; }

/* Bytes that are no result's and no workspace's are as they were. */
static void check_others(Run *r, const Func *f)
{
	for (int64_t i = 0; i < r->bytes; i++) {
		bool own = false;
		if (r->before[i] == r->after[i])
			continue;
		for (const Node *n = f->body->first; n; n = n->next) {
			own = own || (is_kernel(n) && in_range(i, n->work_offset, n->work_bytes));
			for (int k = 0; is_kernel(n) && k < n->nres; k++)
				own = own || in_range(i, n->res[k]->offset, type_bytes(&n->res[k]->type));
		}
		if (!own) {
			fault(r->t, r->what, "byte %lld is no result's, and changed", (long long)i);
			return;
		}
	}
	r->t->passed++;
}

static void check_values(Test *t, const Gpu *gpu, const Compiler *compiler, const Func *f, const char *what)
{
	if (t->word && !strstr(what, t->word))
		return;
	Run r = { .t = t, .gpu = gpu, .compiler = compiler, .what = what };
	CudaTensor x[8];
	if (!prepare(&r, f) || !load_kernels(&r, f, x))
		return;
	unsigned char *first = malloc((size_t)r.bytes);
	for (int pass = 0; pass < 2; pass++) {
		int k = 0;
		for (const Node *n = f->body->first; n; n = n->next)
			if (is_kernel(n)) {
				launch(&r, n, &x[k], k);
				k++;
			}
		gpu->from(pass ? r.after : first, r.arena, (size_t)r.bytes);
	}
	if (memcmp(first, r.after, (size_t)r.bytes) == 0)
		t->passed++;
	else
		fault(t, what, "a second run gives other bits");
	for (const Node *n = f->body->first; n; n = n->next)
		if (n->op == OP_output)
			check_result(&r, n);
	check_others(&r, f);
	gpu->unload(r.module);
	gpu->release(r.arena);
	free(first);
	free(r.before);
	free(r.after);
}

static void all_values(Test *t, bool full)
{
	static const DType in[] = { DT_BF16, DT_F32, DT_F16 };
	Compiler c;
	Gpu gpu;
	if (!open_compiler(&c) || !open_gpu(&gpu)) {
		printf("FAIL libcuda and libnvrtc cannot be used\n");
		t->failed++;
		return;
	}
	for (int d = 0; d < COUNT(in); d++) {
		for (int k = 0; k < COUNT(attention_cases); k++)
			if (full || k == d)
				check_values(t, &gpu, &c, make_attention(t, in[d], &attention_cases[k]),
					     attention_name(t, in[d], &attention_cases[k]));
		for (int k = 0; k < COUNT(conv_cases); k++)
			if (full || k == d * 2 + 1)
				check_values(t, &gpu, &c, make_conv(t, in[d], &conv_cases[k]), conv_name(t, in[d], &conv_cases[k]));
	}
}

int main(int argc, char **argv)
{
	bool registers = argc > 1 && strcmp(argv[1], "registers") == 0, full = argc > 2 && strcmp(argv[2], "all") == 0;
	Compiler c;
	if (argc > 1 && strcmp(argv[1], "compiler") == 0)
		return open_compiler(&c) ? 0 : 1;
	Test t = { .a = arena_new(), .word = argc > 3 ? argv[3] : NULL };
	t.m = ir_module(t.a, diag_new(t.a, stdout, 0), "cuda_tensor", 1);
	if (registers)
		all_registers(&t, full);
	else
		all_values(&t, full);
	printf("%d passed, %d failed\n", t.passed, t.failed);
	arena_free(t.a);
	return t.failed ? 1 : 0;
}

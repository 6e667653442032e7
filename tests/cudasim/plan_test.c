/* A program with a plan, as trainers are: launches may touch the operands, results and workspace of their step and nothing else. */
#include "check.h"
#include "runtime/plan.h"

static const char kernels[] =
	"struct Off { long long at[4]; };\n"
	"extern \"C\" __global__ void __launch_bounds__(64) k0(unsigned char *const arena, const Off off, const void *const env)\n"
	"{ int i = threadIdx.x; if (i < off.at[2]) ((float *)(arena + off.at[1]))[i] = ((float *)(arena + off.at[0]))[i] + *(const float *)env; }\n"
	"extern \"C\" __global__ void __launch_bounds__(64) k1(unsigned char *const arena, const Off off, const void *const env)\n"
	"{ int i = threadIdx.x; float *w = (float *)(arena + off.at[1]);\n"
	"  if (i < off.at[2]) { w[i] = ((float *)(arena + off.at[0]))[i] + w[i]; } }\n"
	"extern \"C\" __global__ void __launch_bounds__(64) k2(unsigned char *const arena, const Off off, const void *const env)\n"
	"{ ((float *)(arena + off.at[0]))[threadIdx.x] = 1.0f; }\n"
	"extern \"C\" __global__ void __launch_bounds__(64) k3(unsigned char *const arena, const Off off, const void *const env)\n"
	"{ float *y = (float *)(arena + off.at[1]); if (off.at[2] == 0) y[threadIdx.x] = 0.0f; y[threadIdx.x] += 1.0f; }\n";

/* A variable of 16 floats at 0; values of 16 floats at 128 and 256; between them bytes that belong to nobody. */
enum { VAR = 0, X = 128, Y = 256, OTHER = 512, ARENA = 1024 };

static const PlanVar vars[] = {{.name = "w", .dtype = PD_F32, .ndim = 1, .dim = {16}, .offset = VAR, .bytes = 64}};
static const PlanLaunch spoils[] = {{.symbol = "k2", .grid = {1, 1, 1}, .block = 64}}, counts[] = {{.symbol = "k3", .grid = {1, 1, 1}, .block = 64}};
static const PlanLaunch copies[] = {{.symbol = "k0", .grid = {1, 1, 1}, .block = 64}}, adds[] = {{.symbol = "k1", .grid = {1, 1, 1}, .block = 64}};
static const int64_t off0[] = {VAR, X, 16}, off1[] = {X + 32, Y, 8}, off2[] = {X, VAR, 8}, bytes[] = {64, 64};
static const PlanStep steps[] = {
	{.kind = PLAN_KERNEL, .off = off0, .noff = 2, .name = "copy", .source = "", .out_bytes = bytes, .nout = 1, .launch = copies, .nlaunch = 1},
	{.kind = PLAN_KERNEL, .off = off1, .noff = 2, .name = "copy", .source = "", .out_bytes = bytes, .nout = 1, .launch = copies, .nlaunch = 1}, /* of a view into x */
	{.kind = PLAN_KERNEL, .off = off2, .noff = 2, .name = "assign", .source = "", .out_bytes = bytes, .nout = 0, .launch = adds, .nlaunch = 1},
	{.kind = PLAN_KERNEL, .off = off1, .noff = 2, .name = "spoil", .source = "", .out_bytes = bytes, .nout = 1, .launch = spoils, .nlaunch = 1}, /* writes its operand */
	{.kind = PLAN_KERNEL, .off = off1, .noff = 2, .name = "count", .source = "", .out_bytes = bytes, .nout = 1, .launch = counts, .nlaunch = 1}, /* reads its result first */
	{.kind = PLAN_END},
};
/* Another function with the step that assigns, kernel and offsets alike, but for two batches: as if its result were fresh. */
static const PlanLaunch adds_twice[] = {{.symbol = "k1", .grid = {2, 1, 1}, .block = 64}};
static const PlanStep steps_twice[] = {
	{.kind = PLAN_KERNEL, .off = off2, .noff = 2, .name = "add", .source = "", .out_bytes = bytes, .nout = 1, .launch = adds_twice, .nlaunch = 1},
	{.kind = PLAN_END},
};
static const PlanFunc funcs[] = {
	{.name = "predict", .batch = 2, .steps = steps_twice, .nsteps = 1, .arena_bytes = ARENA},
	{.name = "step", .batch = 1, .steps = steps, .nsteps = 5, .arena_bytes = ARENA},
};
const Plan dl_plan = {.version = PLAN_VERSION, .model = "m", .target = "cuda", .arena_bytes = ARENA, .vars = vars, .nvars = 1, .funcs = funcs, .nfuncs = 2};

typedef struct Case {
	const char *name;
	int64_t n[5]; /* elements that each launch does; -1: it is left out */
	bool foreign; /* offsets that are no step's */
	CUresult code;
	const char *says;
} Case;

static const char *cubin;

static int run(const void *ctx)
{
	const Case *c = ctx;
	CUmodule m;
	CUfunction f;
	CUdeviceptr arena, env;
	float h[ARENA / 4 + 16] = {0};
	start();
	if (cuModuleLoadData(&m, cubin) || cuMemAlloc_v2(&arena, sizeof h) || cuMemcpyHtoD_v2(arena, h, sizeof h))
		return 98;
	env = arena + ARENA; /* of the runtime, behind the plan's arena */
	for (int i = 0; i < 5; i++) {
		int64_t off[4] = {steps[i].off[0] + (c->foreign ? 4 : 0), steps[i].off[1], c->n[i], 0};
		void *args[] = {&arena, &off, &env};
		if (c->n[i] >= 0 && (cuModuleGetFunction(&f, m, steps[i].launch->symbol) || cuLaunchKernel(f, 1, 1, 1, i < 3 ? 64 : 16, 1, 1, 0, NULL, args, NULL)))
			return 97;
	}
	CUresult e = cuCtxSynchronize();
	if (e != c->code)
		fprintf(stderr, "error %d, not %d\n", e, c->code);
	return e != c->code;
}

int main(void)
{
	static const char *const options[] = {"--gpu-architecture=sm_90"};
	static const Case cases[] = {
		{"each step within its bytes", {16, 8, 8, -1, 0}, false, 0, ""},
		{"one element too many read", {17, 8, 8, -1, -1}, false, 700, "thread (16,0,0): reads 4 bytes that are no operand or result of this step, at arena + 0x40 (operand 0 + 64, 0 bytes behind its end)"},
		{"a view ends with its value", {16, 9, 8, -1, -1}, false, 700, "thread (8,0,0): reads 4 bytes that are no operand or result of this step, at arena + 0xc0 (operand 0 + 32, 0 bytes behind its end)"},
		{"a variable may be assigned", {16, 8, 16, -1, -1}, false, 0, ""},
		{"one element too many assigned", {16, 8, 17, -1, -1}, false, 700, "reads 4 bytes that are no operand or result of this step, at arena + 0xc0 (operand 0 + 64, 0 bytes behind its end)"},
		{"an operand is no result", {16, 8, -1, 0, -1}, false, 700, "writes 4 bytes that are no result or variable of this step, at arena + 0xa0 (operand 0 + 0)"},
		{"a result is undefined at first", {16, 8, -1, -1, 1}, false, 700, "reads 4 bytes of global memory at arena + 0x100 (result 0 + 0), never written"},
		{"a launch of no step", {17, 9, 17, -1, -1}, true, 0, ""},
	};
	char *made = must_compile(kernels, options, 1);
	cubin = made;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		apart(cases[i].name, run, &cases[i], 0, cases[i].says);
	free(made);
	return finish();
}

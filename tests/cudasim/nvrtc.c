/* libnvrtc.so of the simulator: CUDA C is compiled by g++ behind device.h. The "cubin" is the shared object, the "PTX" the same in base64.
 *
 * Options that the real one knows are accepted; of those, include paths, macros, the architecture and contraction mean something here. */
#include "nvrtc.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
extern const char cudasim_device_h[], cudasim_entry_h[];

enum { MAX_ARGS = 64 };

typedef struct SimProgram {
	char *name, *src;
	int nheaders;
	char **headers, **names;
	char *log;
	unsigned char *object;
	size_t object_bytes;
	char *ptx;
	bool cubin; /* compiled for a real architecture */
} SimProgram;

const char *nvrtcGetErrorString(nvrtcResult r)
{
	static const char *const text[] = {"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE", "NVRTC_ERROR_INVALID_INPUT",
					   "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION", "NVRTC_ERROR_COMPILATION"};
	return r >= 0 && (size_t)r < sizeof text / sizeof *text ? text[r] : "NVRTC_ERROR unknown";
}

nvrtcResult nvrtcVersion(int *major, int *minor)
{
	*major = 13;
	*minor = 0;
	return NVRTC_SUCCESS;
}

static const int archs[] = {75, 80, 86, 87, 89, 90, 100, 103, 120};

nvrtcResult nvrtcGetNumSupportedArchs(int *n)
{
	*n = (int)(sizeof archs / sizeof *archs);
	return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetSupportedArchs(int *to)
{
	memcpy(to, archs, sizeof archs);
	return NVRTC_SUCCESS;
}

nvrtcResult nvrtcCreateProgram(nvrtcProgram *out, const char *src, const char *name, int nheaders, const char *const *headers, const char *const *names)
{
	SimProgram *p = calloc(1, sizeof *p);
	if (!p || !src)
		return NVRTC_ERROR_INVALID_INPUT;
	p->src = strdup(src);
	p->name = strdup(name && *name ? name : "default_program");
	p->nheaders = nheaders;
	p->headers = calloc((size_t)nheaders + 1, sizeof(char *));
	p->names = calloc((size_t)nheaders + 1, sizeof(char *));
	for (int i = 0; i < nheaders; i++) {
		p->headers[i] = strdup(headers[i]);
		p->names[i] = strdup(names[i]);
	}
	p->log = strdup("");
	*out = p;
	return NVRTC_SUCCESS;
}

static void clear(SimProgram *p)
{
	free(p->object);
	free(p->ptx);
	p->object = NULL;
	p->ptx = NULL;
}

nvrtcResult nvrtcDestroyProgram(nvrtcProgram *out)
{
	SimProgram *p = *out;
	clear(p);
	for (int i = 0; i < p->nheaders; i++) {
		free(p->headers[i]);
		free(p->names[i]);
	}
	free(p->headers);
	free(p->names);
	free(p->src);
	free(p->name);
	free(p->log);
	free(p);
	*out = NULL;
	return NVRTC_SUCCESS;
}

/* ---- options ---- */

typedef struct Options {
	int arch;
	bool real, contract; /* sm_NN; multiply-add where the text has a product and a sum */
	const char *pass[MAX_ARGS]; /* to g++ */
	int npass;
	char std[32], bad[128];
} Options;

static const char *value_of(const char *o, const char *name)
{
	size_t n = strlen(name);
	if (strncmp(o, "--", 2) == 0)
		o++;
	if (strncmp(o, name, n) != 0)
		return NULL;
	return o[n] == '=' ? o + n + 1 : o[n] == 0 ? "" : NULL;
}

static bool known_option(const char *o)
{
	static const char *const known[] = {
		"-ftz", "-prec-div", "-prec-sqrt", "-use_fast_math", "-default-device", "-device-as-default-execution-space", "-lineinfo", "-generate-line-info", "-restrict",
		"-extra-device-vectorization", "-w", "-disable-warnings", "-diag-suppress", "-ptxas-options", "-Xptxas", "-maxrregcount", "-split-compile", "-G", "-device-debug",
		"-no-source-include", "-builtin-initializer-list", "-version-ident", "-minimal", "-time", "-opt-level", "-dopt",
	};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (value_of(o, known[i]))
			return true;
	return false;
}

static bool read_options(Options *x, int n, const char *const *options)
{
	*x = (Options){.arch = 75, .contract = true};
	snprintf(x->std, sizeof x->std, "-std=c++17");
	for (int i = 0; i < n; i++) {
		const char *o = options[i], *v;
		if (x->npass > MAX_ARGS - 24)
			return false;
		if ((v = value_of(o, "-gpu-architecture")) || (v = value_of(o, "-arch"))) {
			if (*v == 0 && i + 1 < n)
				v = options[++i];
			x->real = strncmp(v, "sm_", 3) == 0;
			x->arch = x->real ? atoi(v + 3) : strncmp(v, "compute_", 8) == 0 ? atoi(v + 8) : 0;
			bool have = false;
			for (size_t k = 0; k < sizeof archs / sizeof *archs; k++)
				have |= archs[k] == x->arch;
			if (have)
				continue;
			snprintf(x->bad, sizeof x->bad, "nvrtc: error: invalid value for --gpu-architecture (-arch)\n");
			return false;
		}
		if ((v = value_of(o, "-fmad")))
			x->contract = strcmp(v, "false") != 0;
		else if ((v = value_of(o, "-std")))
			snprintf(x->std, sizeof x->std, "-std=%s", v);
		else if (strncmp(o, "-D", 2) == 0 || strncmp(o, "-I", 2) == 0 || strncmp(o, "-U", 2) == 0) {
			x->pass[x->npass++] = o;
			if (o[2] == 0 && i + 1 < n)
				x->pass[x->npass++] = options[++i];
		} else if ((strcmp(o, "-Xptxas") == 0 || strcmp(o, "--ptxas-options") == 0 || strcmp(o, "-maxrregcount") == 0) && i + 1 < n)
			i++;
		else if (!known_option(o)) {
			snprintf(x->bad, sizeof x->bad, "nvrtc: error: unrecognized option %.60s found\n", o);
			return false;
		}
	}
	return true;
}

/* ---- files and the compiler ---- */

static bool write_file(const char *dir, const char *name, const char *a, const char *b)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	for (char *s = path + strlen(dir) + 1; (s = strchr(s, '/')) != NULL; s++)
		*s = '_';
	FILE *f = fopen(path, "w");
	if (!f)
		return false;
	fputs(a, f);
	fputs(b, f);
	return fclose(f) == 0;
}

static char *read_file(const char *dir, const char *name, size_t *n)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "r");
	*n = 0;
	if (!f)
		return NULL;
	fseek(f, 0, SEEK_END);
	long size = ftell(f);
	rewind(f);
	char *s = calloc((size_t)size + 1, 1);
	if (s)
		*n = fread(s, 1, (size_t)size, f);
	fclose(f);
	return s;
}

/* Runs g++ with arguments; what it says is added to the file "log" in `dir`. */
static bool run_compiler(const char *dir, const char *const *args)
{
	char log[300];
	snprintf(log, sizeof log, "%s/log", dir);
	posix_spawn_file_actions_t fa;
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&fa, 1, 2);
	pid_t pid;
	char *argv[MAX_ARGS + 40] = {0};
	for (int i = 0; args[i]; i++)
		memcpy(&argv[i], &args[i], sizeof argv[i]);
	int status = -1;
	bool ok = posix_spawnp(&pid, "g++", &fa, NULL, argv, environ) == 0 && waitpid(pid, &status, 0) == pid && status == 0;
	posix_spawn_file_actions_destroy(&fa);
	return ok;
}

/* in.cu to all.ii: macros and includes. */
static bool preprocess(const char *dir, const Options *x)
{
	char arch[48], in[300], out[300], include[300];
	const char *args[MAX_ARGS + 40] = {"g++", "-E", "-x", "c++", x->std};
	int n = 5;
	snprintf(arch, sizeof arch, "-D__CUDA_ARCH__=%d", x->arch * 10);
	snprintf(in, sizeof in, "%s/in.cu", dir);
	snprintf(out, sizeof out, "%s/all.ii", dir);
	snprintf(include, sizeof include, "-I%s", dir);
	args[n++] = arch;
	args[n++] = include;
	for (int i = 0; i < x->npass; i++)
		args[n++] = x->pass[i];
	args[n++] = "-o";
	args[n++] = out;
	args[n++] = in;
	return run_compiler(dir, args);
}

/* out.cc to out.so. */
static bool compile(const char *dir, const Options *x)
{
	static const char *const fixed[] = {
		"g++", "-x", "c++", "-O1", "-g1", "-w", "-fPIC", "-shared", "-nostdlib", "-fno-exceptions", "-fno-rtti", "-fno-gnu-unique", "-fvisibility=hidden",
		"-fno-strict-aliasing", "-fno-threadsafe-statics", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-fsanitize=bounds,alignment", "-Wl,--build-id=none",
	};
	char in[300], out[300];
	const char *args[MAX_ARGS + 40] = {0};
	int n = 0;
	for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
		args[n++] = fixed[i];
	args[n++] = x->std;
	args[n++] = x->contract ? "-ffp-contract=fast" : "-ffp-contract=off";
#if defined(__x86_64__)
	if (__builtin_cpu_supports("fma"))
		args[n++] = "-mfma";
#endif
	snprintf(in, sizeof in, "%s/out.cc", dir);
	snprintf(out, sizeof out, "%s/out.so", dir);
	args[n++] = "-o";
	args[n++] = out;
	args[n++] = in;
	args[n++] = "-lm";
	args[n++] = "-lc";
	return run_compiler(dir, args);
}

static void remove_files(const SimProgram *p, const char *dir)
{
	char path[512];
	for (int i = 0; i < p->nheaders; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, p->names[i]);
		for (char *s = path + strlen(dir) + 1; (s = strchr(s, '/')) != NULL; s++)
			*s = '_';
		unlink(path);
	}
	static const char *const names[] = {"in.cu", "all.ii", "out.cc", "out.so", "log"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", dir, names[i]);
		unlink(path);
	}
	rmdir(dir);
}

static char *make_ptx(const unsigned char *b, size_t n, int arch)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *s = malloc(n / 3 * 4 + 256);
	if (!s)
		return NULL;
	size_t at = (size_t)sprintf(s, "//\n// Not PTX: a simulator's module.\n//\n.version 9.0\n.target sm_%d\n.address_size 64\n// dl_sim:", arch);
	for (size_t i = 0; i < n; i += 3) {
		unsigned v = (unsigned)b[i] << 16 | (i + 1 < n ? (unsigned)b[i + 1] << 8 : 0u) | (i + 2 < n ? b[i + 2] : 0u);
		for (int k = 3; k >= (i + 2 < n ? 0 : i + 1 < n ? 1 : 2); k--)
			s[at++] = digits[(v >> (6 * k)) & 63u];
	}
	s[at++] = '\n';
	s[at] = 0;
	return s;
}

/* The program and its headers as files, for the preprocessor. */
static bool write_program(const SimProgram *p, const char *dir)
{
	char line[256];
	char *in = NULL;
	size_t n;
	snprintf(line, sizeof line, "\n#line 1 \"%.200s\"\n", p->name);
	FILE *f = open_memstream(&in, &n);
	if (!f)
		return false;
	fprintf(f, "#line 1 \"cudasim/device.h\"\n%s%s%s\n", cudasim_device_h, line, p->src);
	fclose(f);
	bool ok = write_file(dir, "in.cu", in, "");
	free(in);
	for (int i = 0; i < p->nheaders && ok; i++)
		ok = write_file(dir, p->names[i], p->headers[i], "");
	return ok;
}

/* all.ii to out.cc; false: *why says what is not understood. */
static bool translate(const char *dir, const Options *x, char **why)
{
	size_t n;
	char *all = read_file(dir, "all.ii", &n), *entries = NULL, *text = all ? rewrite_source(all, &entries, why) : NULL, *tail = NULL;
	FILE *f = text ? open_memstream(&tail, &n) : NULL;
	if (f) {
		fprintf(f, "%s\n#line 1 \"cudasim\"\nDL_SIM_MODULE(%d)\n%s", text, x->arch, entries);
		fclose(f);
	}
	bool ok = f && write_file(dir, "out.cc", cudasim_entry_h, tail);
	free(all);
	free(entries);
	free(text);
	free(tail);
	return ok;
}

nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int noptions, const char *const *options)
{
	Options x;
	free(p->log);
	p->log = NULL;
	clear(p);
	if (!read_options(&x, noptions, options)) {
		p->log = strdup(x.bad);
		return NVRTC_ERROR_INVALID_OPTION;
	}
	char dir[200], *why = NULL;
	const char *under = getenv("TMPDIR");
	snprintf(dir, sizeof dir, "%.160s/cudasim-XXXXXX", under && *under ? under : "/tmp");
	if (!mkdtemp(dir)) {
		p->log = strdup("cudasim: no folder for temporary files\n");
		return NVRTC_ERROR_PROGRAM_CREATION_FAILURE;
	}
	size_t n;
	bool ok = write_program(p, dir) && preprocess(dir, &x) && translate(dir, &x, &why) && compile(dir, &x);
	p->log = why ? why : read_file(dir, "log", &n);
	if (ok)
		p->object = (unsigned char *)read_file(dir, "out.so", &p->object_bytes);
	ok = ok && p->object_bytes > 0;
	remove_files(p, dir);
	if (!p->log)
		p->log = strdup(ok ? "" : "cudasim: g++ cannot be run\n");
	if (!ok)
		return NVRTC_ERROR_COMPILATION;
	p->cubin = x.real;
	p->ptx = make_ptx(p->object, p->object_bytes, x.arch);
	return p->ptx ? NVRTC_SUCCESS : NVRTC_ERROR_OUT_OF_MEMORY;
}

nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *n)
{
	*n = p->cubin ? p->object_bytes : 0;
	return p->object ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *to)
{
	if (!p->object || !p->cubin)
		return NVRTC_ERROR_INVALID_PROGRAM;
	memcpy(to, p->object, p->object_bytes);
	return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t *n)
{
	*n = p->ptx ? strlen(p->ptx) + 1 : 0;
	return p->ptx ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}

nvrtcResult nvrtcGetPTX(nvrtcProgram p, char *to)
{
	if (!p->ptx)
		return NVRTC_ERROR_INVALID_PROGRAM;
	memcpy(to, p->ptx, strlen(p->ptx) + 1);
	return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n)
{
	*n = strlen(p->log) + 1;
	return NVRTC_SUCCESS;
}

nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *to)
{
	memcpy(to, p->log, strlen(p->log) + 1);
	return NVRTC_SUCCESS;
}

/* mkcubin ARCH IN.cu OUT: compiles CUDA C by the NVRTC that is found (the simulator's, in the tests) to
 * OUT.cubin and OUT.ptx. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Nvrtc {
	int (*CreateProgram)(void **p, const char *text, const char *name, int n, const char *const *headers,
			     const char *const *names);
	int (*DestroyProgram)(void **p);
	int (*CompileProgram)(void *p, int n, const char *const *options);
	int (*GetProgramLogSize)(void *p, size_t *n);
	int (*GetProgramLog)(void *p, char *to);
	int (*GetCUBINSize)(void *p, size_t *n);
	int (*GetCUBIN)(void *p, char *to);
	int (*GetPTXSize)(void *p, size_t *n);
	int (*GetPTX)(void *p, char *to);
} Nvrtc;

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "mkcubin: %s\n", what);
	exit(1);
}

static void *symbol(void *library, const char *name)
{
	void *p = dlsym(library, name);
	must(p != NULL, name);
	return p;
}

static char *read_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	must(f != NULL, path);
	char *text = calloc(1 << 20, 1);
	must(text && fread(text, 1, (1 << 20) - 1, f) > 0, path);
	fclose(f);
	return text;
}

static void write_file(const char *stem, const char *end, const char *bytes, size_t n)
{
	char path[4096];
	snprintf(path, sizeof path, "%s%s", stem, end);
	FILE *f = fopen(path, "wb");
	must(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0, path);
}

/* Compiles to one of the two forms. */
static void compile(const Nvrtc *n, const char *text, const char *option, int ptx, const char *out)
{
	void *p;
	size_t size = 0;
	const char *const options[] = { option, "-fmad=false" };
	must(!n->CreateProgram(&p, text, "model.cu", 0, NULL, NULL), "nvrtcCreateProgram");
	int failed = n->CompileProgram(p, 2, options);
	if (failed) {
		n->GetProgramLogSize(p, &size);
		char *log = calloc(size + 1, 1);
		n->GetProgramLog(p, log);
		fprintf(stderr, "%s\n", log);
		exit(1);
	}
	must(!(ptx ? n->GetPTXSize : n->GetCUBINSize)(p, &size), "size");
	char *bytes = malloc(size);
	must(bytes && !(ptx ? n->GetPTX : n->GetCUBIN)(p, bytes), "result");
	write_file(out, ptx ? ".ptx" : ".cubin", bytes, size);
	free(bytes);
	n->DestroyProgram(&p);
}

int main(int argc, char **argv)
{
	must(argc == 4, "usage: mkcubin ARCH IN.cu OUT");
	void *library = dlopen("libnvrtc.so.13", RTLD_NOW);
	must(library != NULL, "libnvrtc.so.13 cannot be opened");
	Nvrtc n;
	char real[64], virtual[64];
#define FIND(NAME) memcpy(&n.NAME, (void *[]){ symbol(library, "nvrtc" #NAME) }, sizeof(void *))
	FIND(CreateProgram);
	FIND(DestroyProgram);
	FIND(CompileProgram);
	FIND(GetProgramLogSize);
	FIND(GetProgramLog);
	FIND(GetCUBINSize);
	FIND(GetCUBIN);
	FIND(GetPTXSize);
	FIND(GetPTX);
	snprintf(real, sizeof real, "--gpu-architecture=%s", argv[1]);
	snprintf(virtual, sizeof virtual, "--gpu-architecture=compute_%s", argv[1] + 3);
	char *text = read_file(argv[2]);
	compile(&n, text, real, 0, argv[3]);
	compile(&n, text, virtual, 1, argv[3]);
	free(text);
	return 0;
}

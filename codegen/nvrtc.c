/* Opens NVRTC, compiles, keeps results (nvrtc.h).
 *
 * A file of a result is a line "dlc-cuda 2 CUBIN PTX TEXT LOG HASH" with lengths (TEXT: of the PTX unpacked) and a hash of what
 * follows, then cubin, packed PTX and log. What is cut off or changed is no result, and is compiled again. */
#include "nvrtc.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { MOST_BYTES = 1 << 30 };

typedef struct Program Program; /* nvrtcProgram */

struct Nvrtc {
	Arena *a;
	int major, minor;
	const char *path, *stamp; /* where the library lies; what tells it from another of the same version */
	int (*version)(int *major, int *minor);
	int (*create)(Program **p, const char *text, const char *name, int n, const char *const *header,
		      const char *const *header_name);
	int (*compile)(Program *p, int n, const char *const *option);
	int (*destroy)(Program **p);
	int (*cubin_size)(Program *p, size_t *n), (*cubin)(Program *p, char *to);
	int (*ptx_size)(Program *p, size_t *n), (*ptx)(Program *p, char *to);
	int (*log_size)(Program *p, size_t *n), (*log)(Program *p, char *to);
	const char *(*error)(int code);
};

/* ---- the library ---- */

static void *open_library(Arena *a)
{
	static const char *const name[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so" };
	const char *folder[] = { "", NULL, NULL, "/usr/local/cuda/lib64/" };
	const char *home = getenv("CUDA_HOME"), *path = getenv("CUDA_PATH");
	folder[1] = home && *home ? arena_printf(a, "%s/lib64/", home) : NULL;
	folder[2] = path && *path ? arena_printf(a, "%s/lib64/", path) : NULL;
	for (size_t f = 0; f < sizeof folder / sizeof *folder; f++)
		for (size_t i = 0; folder[f] && i < sizeof name / sizeof *name; i++) {
			void *h = dlopen(arena_printf(a, "%s%s", folder[f], name[i]), RTLD_NOW | RTLD_LOCAL);
			if (h)
				return h;
		}
	return NULL;
}

static bool find(void *h, const char *name, void *to)
{
	void *sym = dlsym(h, name);
	memcpy(to, &sym, sizeof sym);
	return sym != NULL;
}

static bool find_all(Nvrtc *n, void *h)
{
	return find(h, "nvrtcVersion", &n->version) && find(h, "nvrtcCreateProgram", &n->create) &&
	       find(h, "nvrtcCompileProgram", &n->compile) && find(h, "nvrtcDestroyProgram", &n->destroy) &&
	       find(h, "nvrtcGetCUBINSize", &n->cubin_size) && find(h, "nvrtcGetCUBIN", &n->cubin) &&
	       find(h, "nvrtcGetPTXSize", &n->ptx_size) && find(h, "nvrtcGetPTX", &n->ptx) &&
	       find(h, "nvrtcGetProgramLogSize", &n->log_size) && find(h, "nvrtcGetProgramLog", &n->log) &&
	       find(h, "nvrtcGetErrorString", &n->error);
}

Nvrtc *nvrtc_open(Arena *a, char why[NVRTC_WHY])
{
	Nvrtc *n = ARENA_NEW(a, Nvrtc);
	void *h = open_library(a);
	struct link_map *map = NULL;
	struct stat st;
	n->a = a;
	if (!h) {
		snprintf(why, NVRTC_WHY,
			 "NVRTC (libnvrtc.so) is not here: install CUDA 11.2 or later (cuda-nvrtc, or pip's "
			 "nvidia-cuda-nvrtc), or name its folder with CUDA_HOME or LD_LIBRARY_PATH");
		return NULL;
	}
	if (!find_all(n, h) || n->version(&n->major, &n->minor) != 0) {
		snprintf(why, NVRTC_WHY, "libnvrtc.so is not what it should be: %s", dlerror());
		return NULL;
	}
	n->path = dlinfo(h, RTLD_DI_LINKMAP, &map) == 0 && map ? arena_strdup(a, map->l_name) : "";
	n->stamp = stat(n->path, &st) == 0 ? arena_printf(a, "%lld %lld", (long long)st.st_size, (long long)st.st_mtime) : "";
	return n;
}

int nvrtc_version(const Nvrtc *n) { return n->major * 100 + n->minor; }

/* ---- compiling ---- */

static char *take(Nvrtc *n, Program *p, int (*size)(Program *, size_t *), int (*get)(Program *, char *), int64_t *bytes)
{
	size_t len = 0;
	*bytes = 0;
	if (size(p, &len) != 0 || len > MOST_BYTES)
		return NULL;
	char *to = arena_alloc(n->a, len + 1);
	if (get(p, to) != 0)
		return NULL;
	to[len] = 0;
	*bytes = (int64_t)len;
	return to;
}

static int options(Nvrtc *n, const char *arch, const char **to)
{
	int count = 0;
	to[count++] = arena_printf(n->a, "--gpu-architecture=%s", arch);
	to[count++] = "-fmad=false";
	to[count++] = "-ftz=false";
	to[count++] = "-prec-div=true";
	to[count++] = "-prec-sqrt=true";
	to[count++] = "-std=c++17";
	to[count++] = "-w";
	if (nvrtc_version(n) >= 1200)
		to[count++] = "--ptxas-options=-v";
	return count;
}

static void pack_ptx(Nvrtc *n, const char *text, NvrtcResult *r)
{
	uLongf bytes = compressBound((uLong)strlen(text));
	unsigned char *to = arena_alloc(n->a, bytes);
	if (compress(to, &bytes, (const unsigned char *)text, (uLong)strlen(text)) != Z_OK)
		return;
	r->ptx = to;
	r->ptx_packed_bytes = (int64_t)bytes;
	r->ptx_bytes = (int64_t)strlen(text);
}

char *nvrtc_ptx(Arena *a, const NvrtcResult *r)
{
	uLongf bytes = (uLongf)r->ptx_bytes;
	char *text = arena_alloc(a, (size_t)r->ptx_bytes + 1);
	text[r->ptx_bytes] = 0;
	bool ok = uncompress((unsigned char *)text, &bytes, r->ptx, (uLong)r->ptx_packed_bytes) == Z_OK && bytes == (uLongf)r->ptx_bytes;
	return ok ? text : NULL;
}

bool nvrtc_compile(Nvrtc *n, const char *text, const char *arch, NvrtcResult *r)
{
	const char *option[16];
	Program *p = NULL;
	int count = options(n, arch, option);
	*r = (NvrtcResult){ .log = "" };
	int code = n->create(&p, text, "kernels.cu", 0, NULL, NULL);
	if (code == 0)
		code = n->compile(p, count, option);
	if (p) {
		char *log = take(n, p, n->log_size, n->log, &r->log_bytes);
		r->log = log ? log : "";
		r->log_bytes = (int64_t)strlen(r->log);
	}
	if (code == 0) {
		r->cubin = (unsigned char *)take(n, p, n->cubin_size, n->cubin, &r->cubin_bytes);
		const char *ptx = take(n, p, n->ptx_size, n->ptx, &r->ptx_bytes);
		if (ptx)
			pack_ptx(n, ptx, r);
	}
	if (p)
		n->destroy(&p);
	if (code != 0 && r->log_bytes == 0) {
		r->log = arena_printf(n->a, "NVRTC %d.%d for %s: %s", n->major, n->minor, arch, n->error(code));
		r->log_bytes = (int64_t)strlen(r->log);
	}
	return code == 0 && r->cubin && r->ptx;
}

/* ---- files of results ---- */

/* FNV-1a, from a state. */
static uint64_t hash_bytes(uint64_t h, const void *from, size_t n)
{
	const unsigned char *s = from;
	for (size_t i = 0; i < n; i++)
		h = (h ^ s[i]) * 1099511628211u;
	return h;
}

static uint64_t hash_result(const NvrtcResult *r)
{
	uint64_t h = hash_bytes(14695981039346656037u, r->cubin, (size_t)r->cubin_bytes);
	h = hash_bytes(h, r->ptx, (size_t)r->ptx_packed_bytes);
	return hash_bytes(h, r->log, (size_t)r->log_bytes);
}

bool nvrtc_write(const char *path, const NvrtcResult *r)
{
	FILE *f = fopen(path, "wb");
	if (!f)
		return false;
	bool ok = fprintf(f, "dlc-cuda 2 %lld %lld %lld %lld %016llx\n", (long long)r->cubin_bytes, (long long)r->ptx_packed_bytes,
			  (long long)r->ptx_bytes, (long long)r->log_bytes, (unsigned long long)hash_result(r)) > 0;
	ok = ok && fwrite(r->cubin, 1, (size_t)r->cubin_bytes, f) == (size_t)r->cubin_bytes;
	ok = ok && fwrite(r->ptx, 1, (size_t)r->ptx_packed_bytes, f) == (size_t)r->ptx_packed_bytes;
	ok = ok && fwrite(r->log, 1, (size_t)r->log_bytes, f) == (size_t)r->log_bytes;
	return fclose(f) == 0 && ok;
}

static char *read_part(Arena *a, FILE *f, int64_t bytes)
{
	char *to = arena_alloc(a, (size_t)bytes + 1);
	to[bytes] = 0;
	return fread(to, 1, (size_t)bytes, f) == (size_t)bytes ? to : NULL;
}

bool nvrtc_read(Arena *a, const char *path, NvrtcResult *r)
{
	FILE *f = fopen(path, "rb");
	char line[128];
	long long n[4]; /* cubin, packed PTX, its text, log */
	unsigned long long hash;
	if (!f)
		return false;
	bool ok = fgets(line, sizeof line, f) &&
		  sscanf(line, "dlc-cuda 2 %lld %lld %lld %lld %llx", &n[0], &n[1], &n[2], &n[3], &hash) == 5;
	for (int i = 0; i < 4; i++)
		ok = ok && n[i] >= 0 && n[i] < MOST_BYTES;
	if (ok) {
		*r = (NvrtcResult){ .cubin_bytes = n[0], .ptx_packed_bytes = n[1], .ptx_bytes = n[2], .log_bytes = n[3] };
		ok = (r->cubin = (unsigned char *)read_part(a, f, n[0])) && (r->ptx = (unsigned char *)read_part(a, f, n[1])) &&
		     (r->log = read_part(a, f, n[3])) && hash_result(r) == hash;
	}
	fclose(f);
	return ok;
}

/* ---- the cache ---- */

/* NULL: there is none. */
static const char *cache_folder(Arena *a)
{
	const char *told = getenv("DLC_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (told)
		return *told ? told : NULL;
	if (xdg && *xdg)
		return arena_printf(a, "%s/dlc/cuda", xdg);
	return home && *home ? arena_printf(a, "%s/.cache/dlc/cuda", home) : NULL;
}

static const char *cache_path(Nvrtc *n, const char *text, const char *arch)
{
	const char *folder = cache_folder(n->a), *option[16];
	if (!folder)
		return NULL;
	uint64_t h[2] = { 14695981039346656037u, 0x9e3779b97f4a7c15u };
	int count = options(n, arch, option);
	const char *made = arena_printf(n->a, "%d.%d %s %s", n->major, n->minor, n->path, n->stamp);
	for (int k = 0; k < 2; k++) {
		h[k] = hash_bytes(h[k], made, strlen(made) + 1);
		for (int i = 0; i < count; i++)
			h[k] = hash_bytes(h[k], option[i], strlen(option[i]) + 1);
		h[k] = hash_bytes(h[k], text, strlen(text));
	}
	return arena_printf(n->a, "%s/%016llx%016llx", folder, (unsigned long long)h[0], (unsigned long long)h[1]);
}

bool nvrtc_cached(Nvrtc *n, const char *text, const char *arch, NvrtcResult *r)
{
	const char *path = cache_path(n, text, arch);
	return path && nvrtc_read(n->a, path, r);
}

void nvrtc_keep(Nvrtc *n, const char *text, const char *arch, const NvrtcResult *r)
{
	const char *path = cache_path(n, text, arch);
	if (!path)
		return;
	for (const char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/'))
		mkdir(arena_strndup(n->a, path, (size_t)(s - path)), 0777);
	const char *temporary = arena_printf(n->a, "%s.tmp-%ld", path, (long)getpid());
	if (!nvrtc_write(temporary, r) || rename(temporary, path) != 0)
		unlink(temporary);
}

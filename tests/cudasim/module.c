/* Modules: a cubin is the bytes of a shared object, PTX a text that holds the same in base64. Its symbol table says which variables
 * are shared memory (dl_sim_s_NAME, see device.h), which are the module's own; kernels are dl_sim_kernel_NAME. */
#include "sim.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int sim_arch(void)
{
	const char *s = getenv("DL_SIM_ARCH"); /* "sm_90" or "90" */
	int n = s ? atoi(strncmp(s, "sm_", 3) == 0 ? s + 3 : s) : 0;
	return n ? n : 90;
}

int sim_shared_optin(void)
{
	switch (sim_arch()) {
	case 75: return 64 * 1024;
	case 80: case 87: return 163 * 1024;
	case 86: case 89: case 120: return 99 * 1024;
	default: return 227 * 1024;
	}
}

static int base64_digit(int c)
{
	return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The shared object within an image: a copy. */
static unsigned char *object_of(const void *image, size_t *bytes)
{
	const char *text = image;
	if (memcmp(text, ELFMAG, SELFMAG) == 0) {
		Elf64_Ehdr h;
		memcpy(&h, image, sizeof h);
		*bytes = (size_t)(h.e_shoff + (uint64_t)h.e_shnum * h.e_shentsize);
		unsigned char *copy = malloc(*bytes);
		return copy ? memcpy(copy, image, *bytes) : NULL;
	}
	const char *mark = memcmp(text, "//", 2) == 0 ? strstr(text, "// dl_sim:") : NULL;
	if (!mark)
		return NULL;
	unsigned char *to = malloc(strlen(mark));
	uint32_t acc = 0;
	int bits = 0;
	*bytes = 0;
	for (const char *p = mark + strlen("// dl_sim:"); to && *p; p++) {
		int d = base64_digit(*p);
		if (d < 0)
			continue;
		acc = (acc << 6) | (uint32_t)d;
		bits += 6;
		if (bits >= 8) {
			bits -= 8;
			to[(*bytes)++] = (unsigned char)(acc >> bits);
		}
	}
	return to;
}

static void *open_object(const unsigned char *bytes, size_t n)
{
	char path[SIM_PATH];
	int fd = sim_temporary(path);
	if (fd < 0)
		return NULL;
	bool ok = write(fd, bytes, n) == (ssize_t)n;
	close(fd);
	/* The module's calls are answered by this library, which may have been opened for its opener alone. */
	Dl_info self;
	if (dladdr((const void *)&sim_exec, &self) && self.dli_fname)
		dlopen(self.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
	void *h = ok ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!h)
		fprintf(stderr, "cudasim: %s\n", dlerror());
	unlink(path);
	return h;
}

typedef struct Symbols {
	const unsigned char *image;
	const Elf64_Sym *sym;
	const Elf64_Shdr *section;
	const char *names;
	size_t n;
} Symbols;

static bool symbols_of(Symbols *s, const unsigned char *image)
{
	const Elf64_Ehdr *h = (const void *)image;
	const Elf64_Shdr *sh = (const void *)(image + h->e_shoff);
	*s = (Symbols){.image = image, .section = sh};
	for (int i = 0; i < h->e_shnum; i++)
		if (sh[i].sh_type == SHT_SYMTAB) {
			s->sym = (const void *)(image + sh[i].sh_offset);
			s->n = sh[i].sh_size / sizeof(Elf64_Sym);
			s->names = (const char *)image + sh[sh[i].sh_link].sh_offset;
		}
	return s->sym != NULL;
}

static const Elf64_Sym *symbol(const Symbols *s, const char *name)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->names + s->sym[i].st_name, name) == 0 && s->sym[i].st_shndx != SHN_UNDEF)
			return &s->sym[i];
	return NULL;
}

static bool add_region(SimModule *m, uintptr_t base, size_t bytes, RegionKind kind, const char *name)
{
	char **names = realloc(m->names, (size_t)(m->nregions + 1) * sizeof(char *));
	uintptr_t *regions = realloc(m->regions, (size_t)(m->nregions + 1) * sizeof(uintptr_t));
	m->names = names ? names : m->names;
	m->regions = regions ? regions : m->regions;
	char *copy = strdup(name);
	Region *g;
	if (!names || !regions || !copy || !region_add(base, bytes, kind, copy, &g))
		return false;
	if (kind == RG_VARIABLE)
		memory_mark(g, base, bytes);
	m->names[m->nregions] = copy;
	m->regions[m->nregions++] = base;
	return true;
}

static bool add_function(SimModule *m, const char *name, const SimKernel *k)
{
	SimFunction **v = realloc(m->functions, (size_t)(m->nfunctions + 1) * sizeof(SimFunction *)), *f = calloc(1, sizeof *f);
	m->functions = v ? v : m->functions;
	char *copy = strdup(name);
	if (!v || !f || !copy)
		return false;
	*f = (SimFunction){.module = m, .name = copy, .kernel = k, .max_dynamic = 48 * 1024};
	m->functions[m->nfunctions++] = f;
	return true;
}

/* A shared variable's own bytes within its padding: dl_sim_n_NAME has offset and size. */
static bool add_shared(SimModule *m, const Symbols *s, const Elf64_Sym *y, const char *name, const char *at)
{
	char note[512];
	snprintf(note, sizeof note, "%.*sdl_sim_n_%s", (int)(at - name), name, at + strlen("dl_sim_s_"));
	const Elf64_Sym *n = symbol(s, note);
	if (!n)
		return false;
	unsigned long where[2];
	memcpy(where, (const void *)(m->bias + n->st_value), sizeof where);
	/* Its name for people stops where mangling goes on. */
	char plain[256];
	snprintf(plain, sizeof plain, "%s", at + strlen("dl_sim_s_"));
	return add_region(m, m->bias + y->st_value + where[0], where[1], RG_SHARED, plain);
}

static void own_shared(SimModule *m, const Symbols *s)
{
	for (int i = 0; i < m->nfunctions; i++) {
		char prefix[300];
		int len = snprintf(prefix, sizeof prefix, "_ZZ%zu%sE", strlen(m->functions[i]->name), m->functions[i]->name);
		for (size_t j = 0; j < s->n; j++) {
			const char *name = s->names + s->sym[j].st_name;
			const char *note = strncmp(name, prefix, (size_t)len) == 0 ? strstr(name, "dl_sim_n_") : NULL;
			unsigned long where[2];
			if (note) {
				memcpy(where, (const void *)(m->bias + s->sym[j].st_value), sizeof where);
				m->functions[i]->static_shared += (int)where[1];
			}
		}
		m->functions[i]->max_dynamic -= m->functions[i]->static_shared < 48 * 1024 ? m->functions[i]->static_shared : 48 * 1024;
	}
}

/* A static variable's name is mangled as _ZL, its length, itself. */
static const char *plain_name(const char *name)
{
	return strncmp(name, "_ZL", 3) == 0 ? name + 3 + strspn(name + 3, "0123456789") : name;
}

static bool read_symbols(SimModule *m)
{
	static const char kernel[] = "dl_sim_kernel_";
	Symbols s;
	if (!symbols_of(&s, m->image))
		return false;
	for (size_t i = 0; i < s.n; i++) {
		const Elf64_Sym *y = &s.sym[i];
		const char *name = s.names + y->st_name, *at;
		if (ELF64_ST_TYPE(y->st_info) != STT_OBJECT || y->st_size == 0 || y->st_shndx == SHN_UNDEF || y->st_shndx >= SHN_LORESERVE)
			continue;
		if (strncmp(name, kernel, sizeof kernel - 1) == 0) {
			if (!add_function(m, name + sizeof kernel - 1, (const void *)(m->bias + y->st_value)))
				return false;
		} else if ((at = strstr(name, "dl_sim_s_")) != NULL) {
			if (!add_shared(m, &s, y, name, at))
				return false;
		} else if ((s.section[y->st_shndx].sh_flags & SHF_WRITE) && !strstr(name, "dl_sim_") && strncmp(name, "_ZGV", 4) != 0) {
			if (!add_region(m, m->bias + y->st_value, y->st_size, RG_VARIABLE, plain_name(name)))
				return false;
		}
	}
	own_shared(m, &s);
	return add_region(m, (uintptr_t)m->info->dynamic, SIM_DYNAMIC_MAX, RG_DYNAMIC, "dynamic");
}

static void find_span(SimModule *m)
{
	const Elf64_Ehdr *h = (const void *)m->image;
	const Elf64_Phdr *p = (const void *)(m->image + h->e_phoff);
	struct link_map *map = NULL;
	dlinfo(m->handle, RTLD_DI_LINKMAP, &map);
	m->bias = map->l_addr;
	m->lo = UINTPTR_MAX;
	for (int i = 0; i < h->e_phnum; i++)
		if (p[i].p_type == PT_LOAD) {
			if (m->bias + p[i].p_vaddr < m->lo)
				m->lo = m->bias + p[i].p_vaddr;
			if (m->bias + p[i].p_vaddr + p[i].p_memsz > m->hi)
				m->hi = m->bias + p[i].p_vaddr + p[i].p_memsz;
		}
}

CUresult module_load(SimModule **out, const void *image)
{
	SimModule *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	bool ptx = memcmp(image, ELFMAG, SELFMAG) != 0;
	m->image = object_of(image, &m->image_bytes);
	m->handle = m->image ? open_object(m->image, m->image_bytes) : NULL;
	m->info = m->handle ? dlsym(m->handle, "dl_sim_module") : NULL;
	if (!m->info || m->info->abi != SIM_ABI) {
		module_unload(m);
		return ptx ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
	}
	int made = (int)m->info->arch, arch = sim_arch();
	if (ptx ? made > arch : made / 10 != arch / 10 || made > arch) {
		module_unload(m);
		return ptx ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	find_span(m);
	if (!read_symbols(m)) {
		module_unload(m);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	*out = m;
	return CUDA_SUCCESS;
}

void module_unload(SimModule *m)
{
	for (int i = 0; i < m->nregions; i++) {
		region_remove(m->regions[i]);
		free(m->names[i]);
	}
	for (int i = 0; i < m->nfunctions; i++) {
		free((void *)(uintptr_t)m->functions[i]->name);
		free(m->functions[i]);
	}
	if (m->handle)
		dlclose(m->handle);
	free(m->names);
	free(m->regions);
	free(m->functions);
	free(m->image);
	free(m);
}

CUresult module_function(SimModule *m, const char *name, SimFunction **out)
{
	for (int i = 0; i < m->nfunctions; i++)
		if (strcmp(m->functions[i]->name, name) == 0) {
			*out = m->functions[i];
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult module_global(SimModule *m, const char *name, CUdeviceptr *p, size_t *bytes)
{
	for (int i = 0; i < m->nregions; i++)
		if (strcmp(m->names[i], name) == 0) {
			const Region *g = region_find(m->regions[i], NULL);
			if (g->kind != RG_VARIABLE)
				continue;
			if (p)
				*p = g->base;
			if (bytes)
				*bytes = g->bytes;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

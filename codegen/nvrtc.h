/* NVIDIA's run-time compiler, which needs neither a GPU nor a driver: CUDA C to a cubin for one architecture, and PTX for
 * later ones. The library is opened when it is wanted; nothing of CUDA is needed to build dlc.
 *
 * Results are cached in $DLC_CACHE, else $XDG_CACHE_HOME/dlc/cuda, else ~/.cache/dlc/cuda; an empty DLC_CACHE: nowhere.
 * A result's name is a hash of text, options and compiler; files appear whole or not at all. */
#ifndef DLC_CODEGEN_NVRTC_H
#define DLC_CODEGEN_NVRTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../ir/base/arena.h"

typedef struct Nvrtc Nvrtc;

enum { NVRTC_WHY = 512 };

/* Finds the library; NULL after filling `why` with one line that says what to install. */
Nvrtc *nvrtc_open(Arena *a, char why[NVRTC_WHY]);
int nvrtc_version(const Nvrtc *n); /* 1300 */

/* What a text compiles to. */
typedef struct NvrtcResult {
	const unsigned char *cubin, *ptx; /* ptx: packed, which is a tenth of it */
	const char *log; /* registers and local memory of each kernel, as ptxas reports them; or errors */
	int64_t cubin_bytes, ptx_packed_bytes, ptx_bytes, log_bytes; /* ptx_bytes: unpacked; log_bytes: without the final NUL */
} NvrtcResult;

/* The PTX as text; NULL where it is damaged. */
char *nvrtc_ptx(Arena *a, const NvrtcResult *r);

/* Compiles now, in this process. Multiplications and additions are contracted nowhere: where one rounding is wanted, the text
 * says fmaf. False where the text is refused; the log says why. */
bool nvrtc_compile(Nvrtc *n, const char *text, const char *arch, NvrtcResult *r);
/* From the cache; false where it is not there. */
bool nvrtc_cached(Nvrtc *n, const char *text, const char *arch, NvrtcResult *r);
/* To the cache, if there is one. */
void nvrtc_keep(Nvrtc *n, const char *text, const char *arch, const NvrtcResult *r);

/* A result as one file, for the cache and between processes. */
bool nvrtc_write(const char *path, const NvrtcResult *r);
bool nvrtc_read(Arena *a, const char *path, NvrtcResult *r);

#endif

/* The part of NVRTC that the simulator stands in for: names, values and signatures are those of NVIDIA's reference. */
#ifndef CUDASIM_NVRTC_H
#define CUDASIM_NVRTC_H

#include <stddef.h>

typedef int nvrtcResult;
typedef struct SimProgram *nvrtcProgram;

enum {
	NVRTC_SUCCESS = 0,
	NVRTC_ERROR_OUT_OF_MEMORY = 1,
	NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
	NVRTC_ERROR_INVALID_INPUT = 3,
	NVRTC_ERROR_INVALID_PROGRAM = 4,
	NVRTC_ERROR_INVALID_OPTION = 5,
	NVRTC_ERROR_COMPILATION = 6
};

const char *nvrtcGetErrorString(nvrtcResult r);
nvrtcResult nvrtcVersion(int *major, int *minor);
nvrtcResult nvrtcGetNumSupportedArchs(int *n);
nvrtcResult nvrtcGetSupportedArchs(int *archs);
nvrtcResult nvrtcCreateProgram(nvrtcProgram *p, const char *src, const char *name, int nheaders, const char *const *headers, const char *const *names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p);
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int noptions, const char *const *options);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *n);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *to);
nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t *n);
nvrtcResult nvrtcGetPTX(nvrtcProgram p, char *to);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *n);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *to);

/* rewrite.c: the preprocessed text with `__shared__` declarations turned into DL_SIM_SHARED, and the DL_SIM_ENTRY lines of its kernels in
 * *entries; NULL and a line in *why where a declaration is not understood. All are malloc'd. */
char *rewrite_source(const char *text, char **entries, char **why);

#endif

/* The parts of NVIDIA's driver API and of cuBLASLt that a trainer calls, found when it starts.
 *
 * Nothing of CUDA is needed to build this: the declarations are our own, the libraries are opened with
 * dlopen. cuda_open and cublas_open either find everything or say in one line which library or symbol
 * is missing and what to install. Names are the libraries' without their prefix; what calls mean is in
 * the CUDA Driver API and cuBLAS references. */
#ifndef DLC_RUNTIME_CUDA_API_H
#define DLC_RUNTIME_CUDA_API_H

#include "fail.h"

#include <stdint.h>

typedef int CuResult; /* 0: done */
typedef uint64_t CuPtr;
typedef int CuDevice;
typedef struct CuContext_ *CuContext;
typedef struct CuModule_ *CuModule;
typedef struct CuFunction_ *CuFunction;
typedef struct CuStream_ *CuStream;
typedef struct CuEvent_ *CuEvent;
typedef struct CuGraph_ *CuGraph;
typedef struct CuGraphExec_ *CuGraphExec;

enum { /* CUDA_ERROR_* */
	CU_OUT_OF_MEMORY = 2,
	CU_NO_DEVICE = 100,
	CU_UNSUPPORTED_PTX = 222,
	/* What a kernel did is told by a later call: illegal address, ... launch failed. */
	CU_KERNEL_FIRST = 700,
	CU_KERNEL_LAST = 719
};
enum { /* CU_DEVICE_ATTRIBUTE_* */ CU_CACHE_BYTES = 38, CU_CAPABILITY_MAJOR = 75, CU_CAPABILITY_MINOR = 76, CU_SHARED_OPTIN = 97 };
enum { /* CU_FUNC_ATTRIBUTE_* */ CU_FUNC_REGISTERS = 4, CU_FUNC_DYNAMIC_SHARED = 8 };
enum { CU_STREAM_APART = 1, CU_EVENT_TIMED = 0, CU_EVENT_UNTIMED = 2, CU_CAPTURE_RELAXED = 2 };
enum { /* CU_JIT_* */ CU_JIT_LOG = 5, CU_JIT_LOG_BYTES = 6 };

/* The driver must offer this version of CUDA: graphs instantiated with flags. */
enum { CUDA_LEAST = 11040 };

/* X(field, symbol, arguments) */
#define CUDA_CALLS(X)                                                                              \
	X(Init, "cuInit", (unsigned flags))                                                        \
	X(DriverGetVersion, "cuDriverGetVersion", (int *version))                                  \
	X(GetErrorName, "cuGetErrorName", (CuResult e, const char **text))                         \
	X(GetErrorString, "cuGetErrorString", (CuResult e, const char **text))                     \
	X(DeviceGetCount, "cuDeviceGetCount", (int *n))                                            \
	X(DeviceGet, "cuDeviceGet", (CuDevice *d, int number))                                     \
	X(DeviceGetName, "cuDeviceGetName", (char *name, int size, CuDevice d))                    \
	X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int which, CuDevice d))         \
	X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CuContext *c, CuDevice d))          \
	X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CuDevice d))                   \
	X(CtxSetCurrent, "cuCtxSetCurrent", (CuContext c))                                         \
	X(MemGetInfo, "cuMemGetInfo_v2", (size_t *free_bytes, size_t *total))                      \
	X(MemAlloc, "cuMemAlloc_v2", (CuPtr *p, size_t bytes))                                     \
	X(MemFree, "cuMemFree_v2", (CuPtr p))                                                      \
	X(MemHostAlloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))                \
	X(MemFreeHost, "cuMemFreeHost", (void *p))                                                 \
	X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CuPtr to, const void *from, size_t n, CuStream s)) \
	X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CuPtr from, size_t n, CuStream s))   \
	X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CuPtr to, CuPtr from, size_t n, CuStream s))   \
	X(MemsetD8Async, "cuMemsetD8Async", (CuPtr to, unsigned char value, size_t n, CuStream s)) \
	X(ModuleLoadDataEx, "cuModuleLoadDataEx",                                                  \
	  (CuModule *m, const void *image, unsigned n, int *options, void **values))               \
	X(ModuleUnload, "cuModuleUnload", (CuModule m))                                            \
	X(ModuleGetFunction, "cuModuleGetFunction", (CuFunction *f, CuModule m, const char *name)) \
	X(FuncGetAttribute, "cuFuncGetAttribute", (int *value, int which, CuFunction f))           \
	X(FuncSetAttribute, "cuFuncSetAttribute", (CuFunction f, int which, int value))            \
	X(LaunchKernel, "cuLaunchKernel",                                                          \
	  (CuFunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,          \
	   unsigned bz, unsigned shared, CuStream s, void **arguments, void **extra))              \
	X(StreamCreate, "cuStreamCreate", (CuStream *s, unsigned flags))                           \
	X(StreamDestroy, "cuStreamDestroy_v2", (CuStream s))                                       \
	X(StreamSynchronize, "cuStreamSynchronize", (CuStream s))                                  \
	X(StreamWaitEvent, "cuStreamWaitEvent", (CuStream s, CuEvent e, unsigned flags))           \
	X(StreamBeginCapture, "cuStreamBeginCapture_v2", (CuStream s, int mode))                   \
	X(StreamEndCapture, "cuStreamEndCapture", (CuStream s, CuGraph *g))                        \
	X(GraphInstantiate, "cuGraphInstantiateWithFlags",                                         \
	  (CuGraphExec *x, CuGraph g, unsigned long long flags))                                   \
	X(GraphUpload, "cuGraphUpload", (CuGraphExec x, CuStream s))                               \
	X(GraphLaunch, "cuGraphLaunch", (CuGraphExec x, CuStream s))                               \
	X(GraphDestroy, "cuGraphDestroy", (CuGraph g))                                             \
	X(GraphExecDestroy, "cuGraphExecDestroy", (CuGraphExec x))                                 \
	X(EventCreate, "cuEventCreate", (CuEvent *e, unsigned flags))                              \
	X(EventDestroy, "cuEventDestroy_v2", (CuEvent e))                                          \
	X(EventRecord, "cuEventRecord", (CuEvent e, CuStream s))                                   \
	X(EventSynchronize, "cuEventSynchronize", (CuEvent e))                                     \
	X(EventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CuEvent from, CuEvent to))

typedef struct CudaApi {
#define FIELD(NAME, SYMBOL, ARGUMENTS) CuResult(*NAME) ARGUMENTS;
	CUDA_CALLS(FIELD)
#undef FIELD
} CudaApi;

/* Opens the driver and initialises it. It stays with the process: it has threads of its own. */
bool cuda_open(CudaApi *c, Fail *f);
/* "CUDA_ERROR_OUT_OF_MEMORY (out of memory)" */
const char *cuda_error(const CudaApi *c, CuResult e, char out[160]);
/* True where e is 0; else fills f: the call, what it was for, the error, what to do. */
bool cuda_ok(const CudaApi *c, CuResult e, const char *call, const char *what, Fail *f);

/* ---- cuBLASLt ---- */

typedef int LtStatus; /* 0: done */
typedef struct LtHandle_ *LtHandle;
typedef struct LtMatmulDesc_ *LtMatmulDesc;
typedef struct LtLayout_ *LtLayout;
typedef struct LtPreference_ *LtPreference;

typedef struct LtAlgo {
	uint64_t data[8];
} LtAlgo;

typedef struct LtHeuristic {
	LtAlgo algo;
	size_t work_bytes;
	LtStatus state;
	float waves;
	int reserved[4];
} LtHeuristic;

enum { /* cudaDataType */ LT_F32 = 0, LT_F64 = 1, LT_F16 = 2, LT_BF16 = 14 };
enum { /* cublasComputeType_t */ LT_COMPUTE_F32 = 68, LT_COMPUTE_F64 = 70, LT_COMPUTE_TF32 = 77 };
enum { /* CUBLASLT_MATMUL_DESC_* */
	LT_TRANS_A = 3,
	LT_TRANS_B = 4,
	LT_EPILOGUE = 7,
	LT_BIAS_POINTER = 8, /* of a bias, and where sums go */
	LT_AUX_POINTER = 11,
	LT_AUX_LD = 12
};
enum { /* CUBLASLT_EPILOGUE_* */ LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_RELU_BIAS = 6, LT_EPILOGUE_DGELU = 192, LT_EPILOGUE_BGRADA = 256, LT_EPILOGUE_BGRADB = 512 };
enum { /* CUBLASLT_MATRIX_LAYOUT_* */ LT_BATCH_COUNT = 5, LT_BATCH_OFFSET = 6 };
enum { /* CUBLASLT_MATMUL_PREF_* */
	LT_PREF_WORK_BYTES = 1,
	LT_PREF_REDUCTION = 3, /* how the parts of a split sum may be added up */
	LT_PREF_ALIGN_A = 5,
	LT_PREF_ALIGN_B,
	LT_PREF_ALIGN_C,
	LT_PREF_ALIGN_D
};
enum { LT_REDUCTION_COMPUTE_TYPE = 2 };
enum { /* CUBLASLT_ALGO_CONFIG_* */ LT_ALGO_ID = 0, LT_ALGO_TILE, LT_ALGO_SPLIT, LT_ALGO_STAGES = 6 };

#define CUBLAS_CALLS(X)                                                                            \
	X(Create, "cublasLtCreate", (LtHandle * h))                                                \
	X(Destroy, "cublasLtDestroy", (LtHandle h))                                                \
	X(DescCreate, "cublasLtMatmulDescCreate", (LtMatmulDesc * d, int compute, int scale))      \
	X(DescDestroy, "cublasLtMatmulDescDestroy", (LtMatmulDesc d))                              \
	X(DescSet, "cublasLtMatmulDescSetAttribute",                                               \
	  (LtMatmulDesc d, int which, const void *value, size_t n))                                \
	X(LayoutCreate, "cublasLtMatrixLayoutCreate",                                              \
	  (LtLayout * l, int type, uint64_t rows, uint64_t columns, int64_t ld))                   \
	X(LayoutDestroy, "cublasLtMatrixLayoutDestroy", (LtLayout l))                              \
	X(LayoutSet, "cublasLtMatrixLayoutSetAttribute",                                           \
	  (LtLayout l, int which, const void *value, size_t n))                                    \
	X(PreferenceCreate, "cublasLtMatmulPreferenceCreate", (LtPreference * p))                  \
	X(PreferenceDestroy, "cublasLtMatmulPreferenceDestroy", (LtPreference p))                  \
	X(PreferenceSet, "cublasLtMatmulPreferenceSetAttribute",                                   \
	  (LtPreference p, int which, const void *value, size_t n))                                \
	X(Heuristic, "cublasLtMatmulAlgoGetHeuristic",                                             \
	  (LtHandle h, LtMatmulDesc d, LtLayout a, LtLayout b, LtLayout c, LtLayout result,        \
	   LtPreference p, int asked, LtHeuristic * found, int *nfound))                           \
	X(AlgoGet, "cublasLtMatmulAlgoConfigGetAttribute",                                         \
	  (const LtAlgo *a, int which, void *value, size_t n, size_t *written))                    \
	X(Matmul, "cublasLtMatmul",                                                                \
	  (LtHandle h, LtMatmulDesc d, const void *alpha, const void *a, LtLayout la,              \
	   const void *b, LtLayout lb, const void *beta, const void *c, LtLayout lc, void *result, \
	   LtLayout lresult, const LtAlgo *algo, void *work, size_t work_bytes, CuStream s))

typedef struct CublasApi {
#define FIELD(NAME, SYMBOL, ARGUMENTS) LtStatus(*NAME) ARGUMENTS;
	CUBLAS_CALLS(FIELD)
#undef FIELD
} CublasApi;

/* It stays with the process, as the driver does. */
bool cublas_open(CublasApi *c, Fail *f);
/* "CUBLAS_STATUS_NOT_SUPPORTED" */
const char *cublas_error(LtStatus e);

#endif

/* What every unit of CUDA C starts with, before scalar.h: types and constants that NVRTC, which has no system headers,
 * leaves to the program. */
#ifndef DL_CUDA_TYPES_H
#define DL_CUDA_TYPES_H

#define DL_CUDA 1

typedef signed char int8_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807LL - 1)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

/* A kernel's parameter that is indexed by numbers that are not constant is read where it is, and not copied to local memory first. */
#if defined __CUDACC_VER_MAJOR__ && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1107
#define DL_IN_PLACE __grid_constant__
#else
#define DL_IN_PLACE
#endif

/* As in runtime/plan.h. */
typedef struct PlanEnv {
	uint64_t seed;
	int64_t step, micro, base;
	int32_t threads;
} PlanEnv;

#endif

// Marks functions compiled for host and device.
#pragma once

#ifdef __CUDACC__
#define PYROBUST_HD __host__ __device__ __forceinline__
#else
#define PYROBUST_HD inline
#endif

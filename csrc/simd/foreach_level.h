// Compiles one file of inner loops for every level of simd/dispatch.h. The file names itself in PYROBUST_KERNELS and
// includes this header, which includes the file once for each level with
//   PYROBUST_LEVEL   the namespace of that level's code
//   PYROBUST_TARGET  the attribute of each of its functions
//   PYROBUST_SCALAR  defined at the level of plain C++ alone
// and then leaves the file to its last pass, with none of them defined: the accessor that chooses a level.
//
// The attribute is set on functions, not on the object file: under -mavx2 the inline functions of shared headers would
// use AVX2 too, and the linker might keep those copies for every level. For the same reason a level's code is in an
// unnamed namespace.

// The header of the level being compiled: PYROBUST_LEVEL_HEADER(simd/vec) is "simd/vec_avx2.h" at AVX2.
#ifndef PYROBUST_LEVEL_HEADER
#define PYROBUST_STRING(text) #text
#define PYROBUST_LEVEL_FILE(stem, level) PYROBUST_STRING(stem##_##level.h)
#define PYROBUST_LEVEL_PATH(stem, level) PYROBUST_LEVEL_FILE(stem, level)
#define PYROBUST_LEVEL_HEADER(stem) PYROBUST_LEVEL_PATH(stem, PYROBUST_LEVEL)
#endif

#ifndef PYROBUST_LEVEL

#define PYROBUST_LEVEL scalar
#define PYROBUST_TARGET
#define PYROBUST_SCALAR
#include PYROBUST_KERNELS
#undef PYROBUST_SCALAR
#undef PYROBUST_TARGET
#undef PYROBUST_LEVEL

#ifdef __x86_64__
#define PYROBUST_LEVEL avx2
#define PYROBUST_TARGET __attribute__((target("avx2,fma,f16c")))
#include PYROBUST_KERNELS
#undef PYROBUST_TARGET
#undef PYROBUST_LEVEL

#define PYROBUST_LEVEL avx512
#define PYROBUST_TARGET __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))
#include PYROBUST_KERNELS
#undef PYROBUST_TARGET
#undef PYROBUST_LEVEL
#endif

#endif

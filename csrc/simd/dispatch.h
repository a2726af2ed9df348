// The instruction set of the CPU kernels, chosen once at run time.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

// The levels, lowest first: row(name, whether this machine runs it, ...). A new level needs a row here, a block in
// simd/foreach_level.h and its simd/vec_<name>.h.
#ifdef __x86_64__
#define PYROBUST_RUNS_AVX2 \
  (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
#define PYROBUST_RUNS_AVX512 \
  (PYROBUST_RUNS_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
#define PYROBUST_LEVELS(row, ...)                                           \
  row(scalar, true, __VA_ARGS__) row(avx2, PYROBUST_RUNS_AVX2, __VA_ARGS__) \
      row(avx512, PYROBUST_RUNS_AVX512, __VA_ARGS__)
#else
#define PYROBUST_LEVELS(row, ...) row(scalar, true, __VA_ARGS__)
#endif

namespace pyrobust::cpu {

#define PYROBUST_ENUMERATOR(level, runs, ...) level,
enum class Simd { PYROBUST_LEVELS(PYROBUST_ENUMERATOR, ) };
#undef PYROBUST_ENUMERATOR

// The levels this machine can run, lowest first.
std::vector<Simd> simd_levels();
// The level in use: the highest, unless set_simd_level chose another.
Simd simd_level();
// Returns false, and changes nothing, if the machine cannot run that level.
bool set_simd_level(Simd level);

const char* simd_name(Simd level);

template <class Kernels>
const Kernels& at_level(std::initializer_list<const Kernels*> levels) {
  return *levels.begin()[static_cast<int>(simd_level())];
}

}  // namespace pyrobust::cpu

// Selects the variable of this name in the namespace of the level in use: scalar::name, avx2::name or avx512::name.
#define PYROBUST_ADDRESS_AT(level, runs, ...) &level::__VA_ARGS__,
#define PYROBUST_AT_LEVEL(...) ::pyrobust::cpu::at_level({PYROBUST_LEVELS(PYROBUST_ADDRESS_AT, __VA_ARGS__)})

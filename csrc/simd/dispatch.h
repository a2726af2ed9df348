// The instruction set of the CPU leaves, chosen once at run time.
#pragma once

#include <string>
#include <vector>

namespace pyrobust::cpu {

enum class Simd { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

// The levels this machine can run, lowest first.
std::vector<Simd> simd_levels();
// The level in use: the highest, unless set_simd_level chose another.
Simd simd_level();
// False, and nothing changes, where the machine cannot run that level.
bool set_simd_level(Simd level);

const char* simd_name(Simd level);

template <class Leaves>
const Leaves& at_level(const Leaves& scalar, const Leaves& avx2, const Leaves& avx512) {
  switch (simd_level()) {
    case Simd::kAvx512:
      return avx512;
    case Simd::kAvx2:
      return avx2;
    default:
      return scalar;
  }
}

}  // namespace pyrobust::cpu

// The inner loops called NameScalar, NameAvx2 and NameAvx512, at the level in use.
#ifdef __x86_64__
#define PYROBUST_LEAVES(name) ::pyrobust::cpu::at_level(name##Scalar, name##Avx2, name##Avx512)
#else
#define PYROBUST_LEAVES(name) name##Scalar
#endif

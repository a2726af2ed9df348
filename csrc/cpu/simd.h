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

}  // namespace pyrobust::cpu

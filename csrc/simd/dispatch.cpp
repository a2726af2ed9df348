#include "simd/dispatch.h"

#include <algorithm>
#include <atomic>

namespace pyrobust::cpu {

std::vector<Simd> simd_levels() {
  std::vector<Simd> levels{Simd::kScalar};
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    levels.push_back(Simd::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) levels.push_back(Simd::kAvx512);
  }
#endif
  return levels;
}

namespace {
std::atomic<Simd>& current() {
  static std::atomic<Simd> level{simd_levels().back()};
  return level;
}
}  // namespace

Simd simd_level() { return current().load(std::memory_order_relaxed); }

bool set_simd_level(Simd level) {
  const auto levels = simd_levels();
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) return false;
  current().store(level, std::memory_order_relaxed);
  return true;
}

const char* simd_name(Simd level) {
  switch (level) {
    case Simd::kAvx2:
      return "avx2";
    case Simd::kAvx512:
      return "avx512";
    default:
      return "scalar";
  }
}

}  // namespace pyrobust::cpu

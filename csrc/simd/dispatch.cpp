#include "simd/dispatch.h"

#include <algorithm>
#include <atomic>

namespace pyrobust::cpu {

std::vector<Simd> simd_levels() {
  std::vector<Simd> levels;
#ifdef __x86_64__
  __builtin_cpu_init();
#endif
#define PYROBUST_PUSH(level, runs, ...) \
  if (runs) levels.push_back(Simd::level);
  PYROBUST_LEVELS(PYROBUST_PUSH, )
#undef PYROBUST_PUSH
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
#define PYROBUST_NAME(level, runs, ...) #level,
  static constexpr const char* kNames[] = {PYROBUST_LEVELS(PYROBUST_NAME, )};
#undef PYROBUST_NAME
  return kNames[static_cast<int>(level)];
}

}  // namespace pyrobust::cpu

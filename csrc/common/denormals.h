// Gradual underflow for a scope, whatever the thread's floating-point mode.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace pyrobust::cpu {

// Switches flush-to-zero and denormals-are-zero off, and restores them at the end of the scope. With these modes a sum
// of subnormals would be zero, and a violated constraint would count as proved.
class KeepDenormals {
 public:
#ifdef __x86_64__
  KeepDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  KeepDenormals() {}
#endif
};

// Whether this thread flushes subnormal numbers.
inline bool flushes_denormals() {
#ifdef __x86_64__
  return (_mm_getcsr() & 0x8040u) != 0;
#else
  return false;
#endif
}

}  // namespace pyrobust::cpu

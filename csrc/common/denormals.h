// Subnormal numbers are numbers here, whatever the thread is set to.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace pyrobust::cpu {

// Switches flush-to-zero and denormals-are-zero off, and back at the end: with them a sum of subnormals would be zero, and
// constraints that hold only so would pass for proved.
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

// Whether this thread flushes them.
inline bool flushes_denormals() {
#ifdef __x86_64__
  return (_mm_getcsr() & 0x8040u) != 0;
#else
  return false;
#endif
}

}  // namespace pyrobust::cpu

// Building blocks of the row projections: a group of threads shares a row, and the thread of rank r has elements r, r +
// size and so on. Nothing here needs a device, so that the same code runs under test on the host.
//
// A group has rank() and size(), and add(a), max(a) and any(a), which all its threads call together and which give all
// threads the same result: every branch between two such calls must be taken by all threads or by none.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/bits.h"
#include "common/directed_rounding.h"
#include "common/exact_sum.h"
#include "common/half.h"

#ifdef __CUDACC__
#define PYROBUST_GROUP __device__ __forceinline__
#else
#define PYROBUST_GROUP inline
#endif

namespace pyrobust::cuda {

constexpr double kLargestDouble = 0x1.fffffffffffffp1023;
constexpr int kMaxAttempts = 1100;  // number of steps back, each four times the last: through all exponents

PYROBUST_GROUP bool good_radius(double radius) { return radius >= 0 && radius <= kLargestRadius; }

PYROBUST_GROUP bool finite(double a) { return std::fabs(a) <= kLargestDouble; }

// The float64 number below a positive one.
PYROBUST_GROUP double next_down(double a) { return bits<double>(bits<uint64_t>(a) - 1); }

template <class T>
PYROBUST_GROUP T not_a_number() {
  if constexpr (std::is_same_v<T, double>)
    return bits<double>(uint64_t{0x7ff8000000000000u});
  else if constexpr (std::is_same_v<T, float>)
    return bits<float>(0x7fc00000u);
  else
    return {static_cast<uint16_t>(std::is_same_v<T, Half> ? 0x7e00u : 0x7fc0u)};
}

// The element of T next to a finite a on the side of zero.
template <class T>
PYROBUST_GROUP T truncated(double a) {
  if constexpr (std::is_same_v<T, double>) {
    return a;
  } else if constexpr (std::is_same_v<T, float>) {
#ifdef __CUDA_ARCH__
    return __double2float_rz(a);
#else
    return round_toward<float>(a, 0.0);
#endif
  } else {
    // Truncating twice is the same as truncating once.
    const uint32_t u = bits<uint32_t>(truncated<float>(a)), magnitude = u & 0x7fffffffu;
    if constexpr (std::is_same_v<T, BFloat16>) {
      return {static_cast<uint16_t>(u >> 16)};
    } else {
      uint32_t h;
      if (magnitude >= 0x47800000u)
        h = 0x7bffu;  // 65536 and more
      else if (magnitude < 0x38800000u)
        h = static_cast<uint32_t>(bits<float>(magnitude) * 0x1p24f);  // below 2^-14 halves are the multiples of 2^-24
      else
        h = (magnitude - 0x38000000u) >> 13;
      return {static_cast<uint16_t>(((u >> 16) & 0x8000u) | h)};
    }
  }
}

// Rounds a thread's elements, which are not negative, so that their sum never grows; each is at most cap, a number of
// T.
template <class T>
class Truncation {
 public:
  PYROBUST_GROUP T operator()(double a, [[maybe_unused]] double cap) {
    if constexpr (std::is_same_v<T, Half>)
      return halves_(a, cap);
    else
      return truncated<T>(a);
  }

 private:
  HalfTruncation halves_;
};

template <class T>
PYROBUST_GROUP T with_sign(T a, T sign) {
  if constexpr (std::is_floating_point_v<T>)
    return std::copysign(a, sign);
  else
    return {static_cast<uint16_t>((a.bits & 0x7fffu) | (sign.bits & 0x8000u))};
}

// f(k, i) for the elements i of the calling thread; kPer > 0: at most that many, counted by k. 0: any number.
template <int kPer, class Group, class F>
PYROBUST_GROUP void for_slots(const Group& group, int64_t n, const F& f) {
  if constexpr (kPer > 0) {
    const int count = static_cast<int>(n);
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      const int i = group.rank() + k * group.size();
      if (i < count) f(k, static_cast<int64_t>(i));
    }
  } else {
#pragma unroll 4
    for (int64_t i = group.rank(); i < n; i += group.size()) f(0, i);
  }
}

// The calling thread's elements of a row: in registers, or, for kPer = 0, left in memory.
template <class T, int kPer>
class Slice {
 public:
  template <class Group>
  PYROBUST_GROUP Slice(const Group& group, const T* row, int64_t n) : row_(row) {
    if constexpr (kPer > 0) for_slots<kPer>(group, n, [&](int k, int64_t i) { held_[k] = row[i]; });
  }
  PYROBUST_GROUP T at([[maybe_unused]] int k, [[maybe_unused]] int64_t i) const {
    if constexpr (kPer > 0)
      return held_[k];
    else
      return row_[i];
  }

 private:
  const T* row_;
  T held_[kPer > 0 ? kPer : 1];
};

template <class T, int kPer, class Group>
PYROBUST_GROUP void fill(const Group& group, T* z, int64_t n, T value) {
  for_slots<kPer>(group, n, [&](int, int64_t i) { z[i] = value; });
}

}  // namespace pyrobust::cuda

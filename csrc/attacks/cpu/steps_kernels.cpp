// The inner loops of the attack steps, which the compiler turns into vector code.
#include "attacks/cpu/steps_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "simd/dispatch.h"

#define PYROBUST_KERNELS "attacks/cpu/steps_kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// 16-bit floats are computed in float32, this many at a time.
constexpr int64_t kBlock = 512;

template <class T>
struct Floats {
  alignas(64) float at[kBlock];
  PYROBUST_TARGET Floats(const T* v, int64_t n) { widen(v, at, n); }
};

// Calls body(i, m) for blocks of m elements from i on; whether all returned true.
template <class Body>
PYROBUST_TARGET inline bool for_blocks(int64_t n, const Body& body) {
  bool good = true;
  for (int64_t i = 0; i < n; i += kBlock) good = body(i, std::min(kBlock, n - i)) && good;
  return good;
}

template <class T>
PYROBUST_TARGET bool add(const T* __restrict x, const T* __restrict z, T* __restrict out, int64_t n, Real<T> lower,
                         Real<T> upper) {
  if constexpr (std::is_floating_point_v<T>) {
    int32_t good = 1;
    for (int64_t i = 0; i < n; ++i) {
      good &= static_cast<int32_t>(x[i] >= lower) & static_cast<int32_t>(x[i] <= upper);
      good &= static_cast<int32_t>(z[i] == z[i]);
      out[i] = add_in_box<T>(x[i], z[i], lower, upper);
    }
    return good != 0;
  } else {
    return for_blocks(n, [&](int64_t i, int64_t m) PYROBUST_TARGET {
      const Floats<T> from(x + i, m), by(z + i, m);
      float sum[kBlock];
      const bool good = add<float>(from.at, by.at, sum, m, lower, upper);
      put_toward(out + i, sum, from.at, m);
      return good;
    });
  }
}

template <class T>
PYROBUST_TARGET bool linf_step(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                               T* __restrict out, int64_t n, Real<T> step, Real<T> epsilon, Real<T> lower,
                               Real<T> upper) {
  if constexpr (std::is_floating_point_v<T>) {
    int32_t good = 1;
    for (int64_t i = 0; i < n; ++i) {
      good &= static_cast<int32_t>(x[i] >= lower) & static_cast<int32_t>(x[i] <= upper);
      out[i] = linf_moved<T>(x_adv[i], grad[i], x[i], step, epsilon, lower, upper);
    }
    return good != 0;
  } else {
    return for_blocks(n, [&](int64_t i, int64_t m) PYROBUST_TARGET {
      const Floats<T> at(x_adv + i, m), g(grad + i, m), from(x + i, m);
      float moved[kBlock];
      const bool good = linf_step<float>(at.at, g.at, from.at, moved, m, step, epsilon, lower, upper);
      put_toward(out + i, moved, from.at, m);
      return good;
    });
  }
}

template <class T>
PYROBUST_TARGET bool linf_momentum_step(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                                        const T* __restrict before, T* __restrict out, int64_t n, Real<T> step,
                                        Real<T> share, Real<T> epsilon, Real<T> lower, Real<T> upper) {
  if constexpr (std::is_floating_point_v<T>) {
    int32_t good = 1;
    for (int64_t i = 0; i < n; ++i) {
      good &= static_cast<int32_t>(x[i] >= lower) & static_cast<int32_t>(x[i] <= upper);
      const T z = linf_moved<T>(x_adv[i], grad[i], x[i], step, epsilon, lower, upper);
      out[i] = linf_carried<T>(x_adv[i], z, x[i], before[i], share, epsilon, lower, upper);
    }
    return good != 0;
  } else {
    const bool good = linf_step(x_adv, grad, x, out, n, step, epsilon, lower, upper);
    return for_blocks(n, [&](int64_t i, int64_t m) PYROBUST_TARGET {
      const Floats<T> at(x_adv + i, m), z(out + i, m), from(x + i, m), last(before + i, m);
      float moved[kBlock];
      for (int64_t d = 0; d < m; ++d)
        moved[d] = linf_carried<float>(at.at[d], z.at[d], from.at[d], last.at[d], share, epsilon, lower, upper);
      put_toward(out + i, moved, from.at, m);
      return good;
    });
  }
}

template <class T>
PYROBUST_TARGET void movable(const T* __restrict x_adv, const T* __restrict grad, T* __restrict out, int64_t n,
                             Real<T> lower, Real<T> upper) {
  if constexpr (std::is_floating_point_v<T>) {
    for (int64_t i = 0; i < n; ++i) out[i] = pyrobust::movable<T>(x_adv[i], grad[i], lower, upper);
  } else {
    for_blocks(n, [&](int64_t i, int64_t m) PYROBUST_TARGET {
      const Floats<T> at(x_adv + i, m), g(grad + i, m);
      float kept[kBlock];
      movable<float>(at.at, g.at, kept, m, lower, upper);
      put_nearest(out + i, kept, m);
      return true;
    });
  }
}

template <class T>
PYROBUST_TARGET void l1_step(const T* __restrict x_adv, const T* __restrict grad, const T* __restrict x,
                             T* __restrict out, int64_t n, Real<T> threshold, Real<T> step) {
  if constexpr (std::is_floating_point_v<T>) {
    for (int64_t i = 0; i < n; ++i) out[i] = sparse_moved<T>(x_adv[i], grad[i], x[i], threshold, step);
  } else {
    for_blocks(n, [&](int64_t i, int64_t m) PYROBUST_TARGET {
      const Floats<T> at(x_adv + i, m), g(grad + i, m), from(x + i, m);
      float moved[kBlock];
      l1_step<float>(at.at, g.at, from.at, moved, m, threshold, step);
      put_nearest(out + i, moved, m);
      return true;
    });
  }
}

template <class T>
constexpr StepKernels<T> kKernels = {add<T>, linf_step<T>, linf_momentum_step<T>, movable<T>, l1_step<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const StepKernels<T>& step_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const StepKernels<float>& step_kernels();
template const StepKernels<double>& step_kernels();
template const StepKernels<Half>& step_kernels();
template const StepKernels<BFloat16>& step_kernels();

}  // namespace pyrobust::cpu

#endif

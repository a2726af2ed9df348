#include "attacks/cpu/steps.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "attacks/cpu/steps_kernels.h"
#include "common/bits.h"
#include "common/row_loop.h"
#include "projections/cpu/simplex_l1_kernels.h"

namespace pyrobust::cpu {
namespace {

// The magnitude of a number as an integer that sorts in the same order.
template <class T>
auto magnitude_word(T value) {
  if constexpr (std::is_same_v<T, float>)
    return bits<uint32_t>(value) & 0x7fffffffu;
  else if constexpr (std::is_same_v<T, double>)
    return bits<uint64_t>(value) & 0x7fffffffffffffffu;
  else
    return static_cast<uint32_t>(value.bits & 0x7fffu);
}

// Finds the keep-th largest |v| of a row, 1 <= keep <= n.
template <class T>
class Selection {
 public:
  struct Threshold {
    Real<T> value;
    int64_t count;  // of elements at least as large, zeros excluded
  };

  Threshold kth_largest(const T* v, int64_t n, int64_t keep) {
    // Where keep is a small part of n, a sample gives a threshold that more than `keep` elements should exceed; only
    // those are ranked.
    if (n >= kSampledRow && keep * 4 <= n) {
      Word sample[kSample];
      for (int64_t i = 0; i < kSample; ++i) sample[i] = magnitude_word(v[i * n / kSample]);
      const int64_t rank = std::min(kSample - 1, 3 + keep * kSample * 3 / (2 * n));
      std::nth_element(sample, sample + rank, sample + kSample, std::greater<Word>());
      packed_.resize(static_cast<size_t>(n));
      const double pivot = value_of(sample[rank]);
      const int64_t count = simplex_l1_kernels<T>().ball.keep(v, packed_.data(), n, 0, -pivot).count;
      if (count >= keep) return ranked(packed_.data(), count, keep);
    }
    return ranked(v, n, keep);
  }

 private:
  using Word = decltype(magnitude_word(T{}));
  static constexpr int64_t kSampledRow = 256, kSample = 64;
  static constexpr int kBits = std::is_floating_point_v<T> ? 11 : 10;
  static constexpr int kShift = static_cast<int>(std::is_floating_point_v<T> ? sizeof(T) * 8 : 16) - 1 - kBits;
  static constexpr Word kBins = Word{1} << kBits;

  static Real<T> value_of(Word word) {
    if constexpr (std::is_floating_point_v<T>)
      return bits<T>(word);
    else
      return to_float(T{static_cast<uint16_t>(word)});
  }

  // Finds the bin in a histogram of the leading bits (the exponent and a few more), then selects within that bin.
  Threshold ranked(const T* v, int64_t n, int64_t keep) {
    std::fill(bins_.begin(), bins_.end(), 0u);
    Word largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Word word = magnitude_word(v[i]);
      ++bins_[word >> kShift];
      largest = std::max(largest, word);
    }
    int64_t above = 0;
    Word bin = largest >> kShift;
    while (above + bins_[bin] < keep) above += bins_[bin--];
    inside_.clear();
    for (int64_t i = 0; i < n; ++i) {
      const Word word = magnitude_word(v[i]);
      if (word >> kShift == bin) inside_.push_back(word);
    }
    const auto kth = inside_.begin() + (keep - above - 1);
    std::nth_element(inside_.begin(), kth, inside_.end(), std::greater<Word>());
    const Word smallest = std::max<Word>(1, *kth);
    const auto reach = [&](Word word) { return word >= smallest; };
    return {value_of(*kth), above + std::count_if(inside_.begin(), inside_.end(), reach)};
  }

  std::vector<uint32_t> bins_ = std::vector<uint32_t>(kBins);
  std::vector<Word> inside_;
  std::vector<T> packed_;
};

// Rounds a to T toward target.
template <class T>
Real<T> inward(double a, double target) {
  return to_float(round_toward<T>(a, target));
}

int64_t grain(int64_t n) { return std::max<int64_t>(1, kChunk / std::max<int64_t>(1, n)); }

}  // namespace

template <class T>
int64_t add_perturbation(const T* x, const T* z, T* out, int64_t rows, int64_t n, double lower, double upper,
                         const ParallelFor& parallel_for) {
  const StepKernels<T>& kernels = step_kernels<T>();
  const Real<T> low = inward<T>(lower, upper), high = inward<T>(upper, lower);
  FirstRow bad(rows);
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (!kernels.add(x + i * n, z + i * n, out + i * n, n, low, high)) bad.note(i);
  });
  return bad.row();
}

template <class T>
int64_t linf_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                  const double* epsilon, int64_t epsilon_stride, T* out, int64_t rows, int64_t n, double lower,
                  double upper, const ParallelFor& parallel_for) {
  const StepKernels<T>& kernels = step_kernels<T>();
  const Real<T> low = inward<T>(lower, upper), high = inward<T>(upper, lower);
  FirstRow bad(rows);
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (!kernels.linf_step(x_adv + i * n, grad + i * n, x + i * n, out + i * n, n,
                             static_cast<Real<T>>(step[i * step_stride]), inward<T>(epsilon[i * epsilon_stride], 0),
                             low, high))
        bad.note(i);
  });
  return bad.row();
}

template <class T>
int64_t linf_momentum_step(const T* x_adv, const T* grad, const T* x, const T* before, const double* step,
                           int64_t step_stride, const double* epsilon, int64_t epsilon_stride, double share, T* out,
                           int64_t rows, int64_t n, double lower, double upper, const ParallelFor& parallel_for) {
  const StepKernels<T>& kernels = step_kernels<T>();
  const Real<T> low = inward<T>(lower, upper), high = inward<T>(upper, lower);
  FirstRow bad(rows);
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (!kernels.linf_momentum_step(x_adv + i * n, grad + i * n, x + i * n, before + i * n, out + i * n, n,
                                      static_cast<Real<T>>(step[i * step_stride]), static_cast<Real<T>>(share),
                                      inward<T>(epsilon[i * epsilon_stride], 0), low, high))
        bad.note(i);
  });
  return bad.row();
}

template <class T>
void l1_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride, const int64_t* keep,
             int64_t keep_stride, T* out, int64_t rows, int64_t n, double lower, double upper,
             const ParallelFor& parallel_for) {
  const StepKernels<T>& kernels = step_kernels<T>();
  const Real<T> low = inward<T>(lower, upper), high = inward<T>(upper, lower);
  parallel_for(0, rows, grain(n), [&](int64_t begin, int64_t end) {
    Selection<T> selection;
    std::vector<T> movable(static_cast<size_t>(n));
    const T* g = movable.data();
    for (int64_t i = begin; i < end; ++i) {
      kernels.movable(x_adv + i * n, grad + i * n, movable.data(), n, low, high);
      const auto [threshold, count] = selection.kth_largest(g, n, keep[i * keep_stride]);
      kernels.l1_step(x_adv + i * n, g, x + i * n, out + i * n, n, threshold,
                      static_cast<Real<T>>(step[i * step_stride] / static_cast<double>(std::max<int64_t>(1, count))));
    }
  });
}

#define PYROBUST_PERTURBATION(T)                                                                                       \
  template int64_t add_perturbation<T>(const T*, const T*, T*, int64_t, int64_t, double, double, const ParallelFor&);  \
  template int64_t linf_step<T>(const T*, const T*, const T*, const double*, int64_t, const double*, int64_t, T*,      \
                                int64_t, int64_t, double, double, const ParallelFor&);                                 \
  template int64_t linf_momentum_step<T>(const T*, const T*, const T*, const T*, const double*, int64_t,               \
                                         const double*, int64_t, double, T*, int64_t, int64_t, double, double,         \
                                         const ParallelFor&);                                                          \
  template void l1_step<T>(const T*, const T*, const T*, const double*, int64_t, const int64_t*, int64_t, T*, int64_t, \
                           int64_t, double, double, const ParallelFor&);
PYROBUST_PERTURBATION(float)
PYROBUST_PERTURBATION(double)
PYROBUST_PERTURBATION(Half)
PYROBUST_PERTURBATION(BFloat16)
#undef PYROBUST_PERTURBATION

}  // namespace pyrobust::cpu

// One row of the sparse step, by a group of threads.
#pragma once

#include "attacks/step_math.h"
#include "projections/cuda/row.h"

namespace pyrobust::cuda {

// The magnitude of a number as an integer that sorts in the same order.
template <class T>
PYROBUST_GROUP auto magnitude_word(T value) {
  if constexpr (std::is_same_v<T, float>)
    return bits<uint32_t>(value) & 0x7fffffffu;
  else if constexpr (std::is_same_v<T, double>)
    return bits<uint64_t>(value) & 0x7fffffffffffffffu;
  else
    return static_cast<uint32_t>(value.bits & 0x7fffu);
}

template <class T, int kPer, class Group>
class L1StepRow {
 public:
  // x_adv, grad, x, out: the row's n elements; lower, upper: the box, numbers of T
  PYROBUST_GROUP L1StepRow(Group& group, const T* x_adv, const T* grad, const T* x, T* out, int64_t n, Real<T> lower,
                           Real<T> upper)
      : group_(group), x_adv_(x_adv), grad_(grad), x_(x), out_(out), n_(n), lower_(lower), upper_(upper) {
    if constexpr (kPer > 0)
      for_slots<kPer>(group, n, [&](int k, int64_t i) { held_[k] = movable<T>(x_adv[i], grad[i], lower, upper); });
  }

  PYROBUST_GROUP void step(double length, int64_t keep) {
    if (!(keep >= 1 && keep <= n_ && finite(length))) return fill<T, kPer>(group_, out_, n_, not_a_number<T>());
    const Real<T> threshold = value_of(kth_largest(keep));
    int64_t count[1] = {0};
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      const Real<T> size = std::fabs(to_float(gradient(k, i)));
      count[0] += size >= threshold && size > 0 ? 1 : 0;
    });
    group_.add(count);
    const auto each = static_cast<Real<T>>(length / static_cast<double>(count[0] > 1 ? count[0] : 1));
    for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
      out_[i] = sparse_moved<T>(x_adv_[i], gradient(k, i), x_[i], threshold, each);
    });
  }

 private:
  using Word = decltype(magnitude_word(T{}));
  static constexpr int kBits = std::is_floating_point_v<T> ? static_cast<int>(sizeof(T)) * 8 : 16;

  // The gradient, or zero where its step would leave the box.
  PYROBUST_GROUP T gradient([[maybe_unused]] int k, [[maybe_unused]] int64_t i) const {
    if constexpr (kPer > 0)
      return held_[k];
    else
      return movable<T>(x_adv_[i], grad_[i], lower_, upper_);
  }

  PYROBUST_GROUP static Real<T> value_of(Word word) {
    if constexpr (std::is_floating_point_v<T>)
      return bits<T>(word);
    else
      return to_float(T{static_cast<uint16_t>(word)});
  }

  // Finds, two bits at a time, the keep-th largest |gradient| or any smaller number above the next smaller element.
  PYROBUST_GROUP Word kth_largest(int64_t keep) {
    Word prefix = 0;
    for (int shift = kBits - 2; shift >= 0; shift -= 2) {
      const Word unit = Word{1} << shift;
      int64_t count[3] = {0, 0, 0};  // of the words from prefix + 1, 2, 3 units on
      for_slots<kPer>(group_, n_, [&](int k, int64_t i) {
        const Word word = magnitude_word(gradient(k, i));
#pragma unroll
        for (int c = 0; c < 3; ++c) count[c] += word >= prefix + static_cast<Word>(c + 1) * unit ? 1 : 0;
      });
      group_.add(count);
      bool met = false;  // whether no element lies between the new prefix and the keep-th largest
      Word digit = 0;
#pragma unroll
      for (int c = 0; c < 3; ++c) {
        if (count[c] >= keep) ++digit;
        met = met || count[c] == keep;
      }
      prefix += digit * unit;
      if (met) break;
    }
    return prefix;
  }

  Group& group_;
  const T* x_adv_;
  const T* grad_;
  const T* x_;
  T* out_;
  const int64_t n_;
  const Real<T> lower_, upper_;
  T held_[kPer > 0 ? kPer : 1];
};

}  // namespace pyrobust::cuda

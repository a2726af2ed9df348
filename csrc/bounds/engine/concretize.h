// Concretization: lower bounds of a tile's rows on the inputs of one example, a box and, where given, a ball around its
// center.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "bounds/engine/example_state.h"
#include "bounds/engine/kernels.h"

namespace pyrobust::cpu {

template <class T>
class InputConcretization {
 public:
  explicit InputConcretization(const BoundOptions& options) : options_(options) {}

  void clear() {
    for (double* const totals : {box_, ball_, squares_, largest_}) std::fill(totals, totals + L, 0.0);
    any_ = false;
  }
  // Whether any coefficients were added.
  bool any() const { return any_; }

  // Adds the coefficients a [n][kLanes] of the inputs from k on.
  void add(const T* a, int64_t n, const LayerState<T>& input, int64_t k) {
    any_ = true;
    engine_kernels<T>().dot(a, n, input.low.data() + k, input.high.data() + k, box_);
    if (options_.norm == Norm::kLinf) return;
    engine_kernels<T>().dot(a, n, input.center_low.data() + k, input.center_high.data() + k, ball_);
    engine_kernels<T>().lengths(a, n, squares_, largest_);
  }

  // Adds the lower bound on the box or, where there is a ball, the better of those on the box and on the ball, to bias.
  // n: the number of coefficients.
  void finish(double epsilon, int64_t n, double* bias) const {
    for (int64_t lane = 0; any_ && lane < L; ++lane) {
      const double box = bias[lane] + box_[lane];
      bias[lane] = options_.norm == Norm::kLinf
                       ? box
                       : better(box, bias[lane] + ball_[lane], epsilon, dual_norm(squares_[lane], largest_[lane], n));
    }
  }

 private:
  static constexpr int64_t L = kLanes<T>;

  double better(double box, double ball, double epsilon, double dual) const {
    const Outward out(options_.sound);
    ball = out.add_down(ball, -out.mul_up(epsilon, dual));
    return std::isfinite(box) && (box >= ball || !std::isfinite(ball)) ? box : ball;
  }

  // Returns an upper bound of the dual norm of a row: the root of the sum of squares for l2, the largest coefficient
  // for l1.
  double dual_norm(double squares, double largest, int64_t n) const {
    const Outward out(options_.sound);
    if (std::isnan(squares)) return squares;
    if (options_.norm == Norm::kL1) return largest;
    const double root = std::sqrt(squares) * (1 + static_cast<double>(n + 8) * (out.sound() ? 0x1p-52 : 0));
    // Squares of tiny numbers underflow: where that can matter, bound all coefficients by the largest.
    if (squares > 0x1p-900 && squares < INFINITY) return out.up(root);
    return largest == 0 ? 0 : out.up(largest * std::sqrt(static_cast<double>(n)) * (1 + 0x1p-50));
  }

  BoundOptions options_;
  bool any_ = false;
  double box_[L], ball_[L], squares_[L], largest_[L];
};

}  // namespace pyrobust::cpu

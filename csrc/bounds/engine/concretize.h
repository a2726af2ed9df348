// Concretization: lower bounds of a tile's rows on the inputs of one example, a box and, where given, a ball around its
// center.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bounds/engine/example_state.h"
#include "bounds/engine/kernels.h"

namespace pyrobust::cpu {

// The better of a bound on the box and one at the center of a ball, less the dual norm of the row times the radius.
inline double better_bound(const BoundOptions& options, double box, double center, double epsilon, double dual) {
  const Outward out(options.sound);
  const double ball = out.add_down(center, -out.mul_up(epsilon, dual));
  return std::isfinite(box) && (box >= ball || !std::isfinite(ball)) ? box : ball;
}

// An upper bound of the dual norm of a row of n coefficients: the root of the sum of squares for l2, the largest
// coefficient for l1.
inline double dual_norm(const BoundOptions& options, double squares, double largest, int64_t n) {
  const Outward out(options.sound);
  if (std::isnan(squares)) return squares;
  if (options.norm == Norm::kL1) return largest;
  const double root = std::sqrt(squares) * (1 + static_cast<double>(n + 8) * (out.sound() ? 0x1p-52 : 0));
  // Squares of tiny numbers underflow: where that can matter, bound all coefficients by the largest.
  if (squares > 0x1p-900 && squares < INFINITY) return out.up(root);
  return largest == 0 ? 0 : out.up(largest * std::sqrt(static_cast<double>(n)) * (1 + 0x1p-50));
}

// The factors of a coefficient, by its sign, on the range of a layer around its origins, widened by the error of the
// loops.
template <class T>
void range_factors(const BoundNetwork<T>& network, const BoundOptions& options, const LayerState<T>& state,
                   std::vector<T>& low, std::vector<T>& high) {
  const Outward out(options.sound);
  const double share = dot_error(network, out);
  low.resize(state.lower.size()), high.resize(state.lower.size());
  for (size_t k = 0; k < low.size(); ++k) {
    const double origin = origin_of(state, k);
    const double lower = origin == 0 ? state.lower[k] : out.add_down(state.lower[k], -origin);
    const double upper = origin == 0 ? state.upper[k] : out.add_up(state.upper[k], -origin);
    const double below = std::fabs(lower), above = std::fabs(upper);
    low[k] = out.down_to<T>(lower - (share * below + out.rounding_error<T>(below)));
    high[k] = out.up_to<T>(upper + (share * above + out.rounding_error<T>(above)));
  }
}

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
      bias[lane] = options_.norm == Norm::kLinf ? box
                                                : better_bound(options_, box, bias[lane] + ball_[lane], epsilon,
                                                               dual_norm(options_, squares_[lane], largest_[lane], n));
    }
  }

 private:
  static constexpr int64_t L = kLanes<T>;

  BoundOptions options_;
  bool any_ = false;
  double box_[L], ball_[L], squares_[L], largest_[L];
};

}  // namespace pyrobust::cpu

// Loss and verdict of one row of logits, on host and device, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/host_device.h"

namespace pyrobust {

// In the order of pyrobust.ops.logits.LOSSES.
enum class LogitLoss : int64_t {
  kCrossEntropy,
  kTargetedCrossEntropy,
  kMargin,
  kTargetedMargin,
  kLeadOfTarget,
  kDlr,
  kTargetedDlr,
  kDlrToward
};

constexpr int64_t kLogitLosses = 8;
constexpr double kDlrTiny = 1e-12;  // of Croce and Hein's denominators

// The smallest number of classes that a loss accepts.
inline int64_t least_classes(LogitLoss loss) {
  switch (loss) {
    case LogitLoss::kCrossEntropy:
    case LogitLoss::kTargetedCrossEntropy:
      return 1;
    case LogitLoss::kMargin:
    case LogitLoss::kTargetedMargin:
    case LogitLoss::kLeadOfTarget:
      return 2;
    case LogitLoss::kDlr:
      return 3;
    default:
      return 4;
  }
}

// The derivative of the value is size times the slope, whose largest magnitude is 1 (or which is zero, or NaN).
struct RowLoss {
  double value, size;
};

namespace logits {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Whether a comes before b in falling order: NaN first, as in torch.
PYROBUST_HD bool before(double a, double b) { return a > b || (a != a && b == b); }
PYROBUST_HD double larger(double a, double b) { return before(b, a) ? b : a; }

// The class other than c of the largest logit, ties to the lowest; at least two classes.
template <class T>
PYROBUST_HD int64_t strongest_other(const T* z, int64_t classes, int64_t c) {
  int64_t best = c == 0 ? 1 : 0;
  for (int64_t k = best + 1; k < classes; ++k)
    if (k != c && before(z[k], z[best])) best = k;
  return best;
}

template <class T>
PYROBUST_HD void fill(T* slope, int64_t classes, double value) {
  for (int64_t k = 0; k < classes; ++k) slope[k] = static_cast<T>(value);
}

// sign * (log sum exp z - z_c). As the softmax of the others is taken relative to their own largest logit, nothing
// cancels or vanishes where that of c rounds to 1.
template <class T>
PYROBUST_HD RowLoss cross_entropy(const T* z, int64_t classes, int64_t c, double sign, T* slope) {
  double largest = -kInfinity;
  for (int64_t k = 0; k < classes; ++k)
    if (k != c) largest = larger(largest, z[k]);
  if (largest == -kInfinity && z[c] > -kInfinity) {
    fill(slope, classes, 0);
    return {0, 0};
  }
  double total = 0;
  for (int64_t k = 0; k < classes; ++k) {
    if (k == c) continue;
    const double share = exp(z[k] - largest);
    slope[k] = static_cast<T>(share);
    total += share;
  }
  const double lead = largest - z[c] + log(total);
  const double small = exp(-fabs(lead));
  const double value = (lead > 0 ? lead : 0) + log1p(small);
  if (value != value) {
    fill(slope, classes, kNaN);
    return {kNaN, kNaN};
  }
  for (int64_t k = 0; k < classes; ++k) slope[k] = static_cast<T>(k == c ? -sign : sign * (slope[k] / total));
  return {sign * value, (lead > 0 ? 1 : small) / (1 + small)};
}

template <class T>
PYROBUST_HD RowLoss difference(const T* z, int64_t classes, int64_t up, int64_t down, T* slope) {
  fill(slope, classes, 0);
  slope[up] = 1;
  slope[down] = up == down ? 0 : -1;
  return {static_cast<double>(z[up]) - static_cast<double>(z[down]), up == down ? 0.0 : 1.0};
}

// (z_up - z_down) / (z_1 - z_3), or over (z_1 - (z_3 + z_4) / 2) with ranks = 4; z_1 >= z_2 >= ... the sorted logits.
template <class T>
PYROBUST_HD RowLoss ratio(const T* z, int64_t classes, int64_t up, int64_t down, int ranks, T* slope) {
  int64_t order[4] = {0, 0, 0, 0};
  for (int64_t k = 0; k < classes; ++k) {
    int place = static_cast<int>(k < ranks ? k : ranks);
    for (; place > 0 && before(z[k], z[order[place - 1]]); --place)
      if (place < ranks) order[place] = order[place - 1];
    if (place < ranks) order[place] = k;
  }
  const double first = z[order[0]], third = z[order[2]], last = z[order[ranks - 1]];
  const double scale = first - (ranks == 4 ? (third + last) / 2 : third) + kDlrTiny;
  const double value = (static_cast<double>(z[up]) - static_cast<double>(z[down])) / scale;
  // The quotient rule, times the scale; a class may have several ranks.
  const int64_t at[5] = {up, down, order[0], order[2], order[ranks - 1]};
  const double share[5] = {1, -1, -value, ranks == 4 ? value / 2 : value, ranks == 4 ? value / 2 : 0};
  double change[5], size = 0;
  for (int i = 0; i < 5; ++i) {
    change[i] = 0;
    for (int j = 0; j < 5; ++j)
      if (at[j] == at[i]) change[i] += share[j];
    size = larger(size, fabs(change[i]));
  }
  fill(slope, classes, size == size ? 0 : kNaN);
  if (size > 0)
    for (int i = 0; i < 5; ++i) slope[at[i]] = static_cast<T>(change[i] / size);
  return {value, size / scale};
}

}  // namespace logits

// The loss of logits z [classes], and its scaled slope [classes]. y and target are classes; a loss may need only one of
// them.
template <class T>
PYROBUST_HD RowLoss logit_loss(LogitLoss loss, const T* z, int64_t classes, int64_t y, int64_t target, T* slope) {
  using namespace logits;
  switch (loss) {
    case LogitLoss::kCrossEntropy:
      return cross_entropy(z, classes, y, 1, slope);
    case LogitLoss::kTargetedCrossEntropy:
      return cross_entropy(z, classes, target, -1, slope);
    case LogitLoss::kMargin:
      return difference(z, classes, strongest_other(z, classes, y), y, slope);
    case LogitLoss::kTargetedMargin:
      return difference(z, classes, target, strongest_other(z, classes, target), slope);
    case LogitLoss::kLeadOfTarget:
      return difference(z, classes, target, y, slope);
    case LogitLoss::kDlr:
      return ratio(z, classes, strongest_other(z, classes, y), y, 3, slope);
    case LogitLoss::kTargetedDlr:
      return ratio(z, classes, target, strongest_other(z, classes, target), 4, slope);
    default:
      return ratio(z, classes, target, y, 4, slope);
  }
}

constexpr uint8_t kStanding = 0, kFooled = 1, kClose = 2;

// What a verdict needs of a row. Maxima, of which NaN is the largest, do not depend on the order of the classes.
struct VerdictTerms {
  double other = -logits::kInfinity;  // the largest logit except the label's
  double size = 0;                    // the largest |z|

  PYROBUST_HD void see(double z, bool label) {
    if (!label) other = logits::larger(other, z);
    size = logits::larger(size, fabs(z));
  }

  PYROBUST_HD uint8_t verdict(double label, bool targeted, double tolerance, bool both) const {
    const double gap = other - label;
    if (!(fabs(gap) < logits::kInfinity)) return kClose;
    const bool clear = fabs(gap) > size * tolerance;
    if (targeted ? gap <= 0 : gap >= 0) return clear ? kFooled : kClose;
    return both && !clear ? kClose : kStanding;
  }
};

// Decides whether the attack succeeded: y is not the largest logit or, where targeted, is. kClose where the gap is at
// most tolerance times the largest |z|.
template <class T>
PYROBUST_HD uint8_t logit_verdict(const T* z, int64_t classes, int64_t y, bool targeted, double tolerance, bool both) {
  VerdictTerms terms;
  for (int64_t k = 0; k < classes; ++k) terms.see(z[k], k == y);
  return terms.verdict(z[y], targeted, tolerance, both);
}

}  // namespace pyrobust

// The vote of one row of logits.
#pragma once

#include <cstdint>

#include "common/half.h"
#include "common/host_device.h"

namespace pyrobust {

// The best class so far. `invalid` is set once a NaN or +inf has been seen.
template <class Real>
struct Vote {
  Real best;
  int64_t index;  // -1: no class yet
  bool invalid;
};

// -inf never beats "no class yet": a row that holds nothing else has no winner.
template <class Real>
PYROBUST_HD void consider(Vote<Real>& vote, Real value, int64_t index, Real infinity) {
  if (!(value < infinity)) vote.invalid = true;
  if (value > vote.best) {
    vote.best = value;
    vote.index = index;
  }
}

// The column of the histogram: the class, or `classes` where the row has no finite winner.
template <class Real>
PYROBUST_HD int64_t column(const Vote<Real>& vote, int64_t classes) {
  return vote.invalid || vote.index < 0 ? classes : vote.index;
}

}  // namespace pyrobust

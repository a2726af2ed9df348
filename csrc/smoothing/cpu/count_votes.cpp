#include "smoothing/cpu/count_votes.h"

#include <limits>
#include <type_traits>
#include <vector>

#include "simd/vec_scalar.h"

namespace pyrobust::cpu {
namespace {

// Vectors of logits: float32 as they are, other types in float64.
inline scalar::W load_logits(const float* p) { return scalar::load_wide(p); }
template <class T>
scalar::V load_logits(const T* p) {
  return scalar::load(p);
}
inline scalar::W same(scalar::W, double a) { return scalar::wide(static_cast<float>(a)); }
inline scalar::V same(scalar::V, double a) { return scalar::splat(a); }

// The class of the largest logit, the first of equal ones, or `classes` if the row has no finite winner; gives the same
// as `consider` for each class in turn.
template <class T>
int64_t vote_of(const T* row, int64_t classes) {
  using Vector = decltype(load_logits(row));
  using Real = std::conditional_t<std::is_same_v<Vector, scalar::W>, float, double>;
  constexpr int64_t kLanes = sizeof(Vector) / sizeof(Real);
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  Vote<Real> vote{-kInfinity, -1, false};
  int64_t k = 0;
  if (classes >= kLanes) {
    const Vector infinity = same(Vector{}, kInfinity), zero = same(Vector{}, 0), one = same(Vector{}, 1);
    Vector best = same(Vector{}, -kInfinity), invalid = zero;
    for (; k + kLanes <= classes; k += kLanes) {
      const Vector z = load_logits(row + k);
      invalid = add(invalid, where_less(z, infinity, zero, one));
      best = where_less(best, z, z, best);
    }
    Real best_of[kLanes], invalid_of[kLanes];
    put(best_of, best), put(invalid_of, invalid);
    for (int64_t l = 0; l < kLanes; ++l) {
      vote.invalid |= invalid_of[l] != 0;
      if (best_of[l] > vote.best) vote.best = best_of[l], vote.index = 0;
    }
    for (int64_t i = 0; vote.index >= 0 && i < k; ++i)
      if (to_float(row[i]) == vote.best) {
        vote.index = i;
        break;
      }
  }
  for (; k < classes; ++k) consider(vote, static_cast<Real>(to_float(row[k])), k, kInfinity);
  return column(vote, classes);
}

}  // namespace

template <class T>
void count_votes(const T* logits, int64_t classes, const int64_t* image, int64_t* counts, int64_t begin, int64_t end) {
  const int64_t columns = classes + 1;
  // Consecutive rows mostly belong to one image: its votes are collected here and added to the shared histogram once.
  std::vector<int64_t> local(static_cast<size_t>(columns), 0);
  const auto flush = [&](int64_t b) {
    for (int64_t c = 0; c < columns; ++c)
      if (local[static_cast<size_t>(c)] != 0) {
        __atomic_fetch_add(counts + b * columns + c, local[static_cast<size_t>(c)], __ATOMIC_RELAXED);
        local[static_cast<size_t>(c)] = 0;
      }
  };
  for (int64_t n = begin; n < end; ++n) {
    ++local[static_cast<size_t>(vote_of(logits + n * classes, classes))];
    if (n + 1 == end || image[n + 1] != image[n]) flush(image[n]);
  }
}

#define PYROBUST_COUNT_VOTES(T) \
  template void count_votes<T>(const T*, int64_t, const int64_t*, int64_t*, int64_t, int64_t);
PYROBUST_COUNT_VOTES(float)
PYROBUST_COUNT_VOTES(double)
PYROBUST_COUNT_VOTES(Half)
PYROBUST_COUNT_VOTES(BFloat16)
#undef PYROBUST_COUNT_VOTES

}  // namespace pyrobust::cpu

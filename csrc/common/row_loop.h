// Loops over rows: the split over threads, exact comparisons, the first bad row.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "common/exact_sum.h"
#include "common/half.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// Rows are cut into chunks of this many elements, whose sums are added in order, so that the bits do not depend on the
// number of threads.
inline constexpr int64_t kChunk = 16384;

// Rows of at most kShortRow elements are processed kShortRows at a time, one SIMD lane each.
inline constexpr int64_t kShortRow = 64;
inline constexpr int kShortRows = 16;

inline constexpr auto each_in_turn = [](int64_t count, const auto& f) {
  for (int64_t c = 0; c < count; ++c) f(c);
};

// Calls row(i, each) for all rows, where each(chunks, f) calls f for the chunks of one row. A few long rows are each
// split over the threads; many rows are distributed among them.
template <class RowFn>
void for_rows(int64_t rows, int64_t n, int threads, const ParallelFor& parallel_for, const RowFn& row) {
  if (rows < 2 * threads && n > kChunk) {
    const auto in_parallel = [&](int64_t count, const auto& f) {
      parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
        for (int64_t c = begin; c < end; ++c) f(c);
      });
    };
    for (int64_t i = 0; i < rows; ++i) row(i, in_parallel);
  } else {
    parallel_for(0, rows, std::max<int64_t>(1, kChunk / n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i, each_in_turn);
    });
  }
}

// Calls open(first, count), which processes `count` rows from `first` on and returns a bit for each row left undone,
// then row(i) for the rows left undone.
template <class Open, class RowFn>
void for_short_rows(int64_t rows, int64_t n, const ParallelFor& parallel_for, const Open& open, const RowFn& row) {
  const int64_t groups = (rows + kShortRows - 1) / kShortRows;
  parallel_for(0, groups, std::max<int64_t>(1, 4096 / (kShortRows * n)), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const int64_t first = g * kShortRows;
      const int count = static_cast<int>(std::min<int64_t>(kShortRows, rows - first));
      const unsigned left = open(first, count);
      for (int l = 0; l < count; ++l)
        if (((left >> l) & 1u) != 0) row(first + l);
    }
  });
}

// The lowest row noted by any thread.
class FirstRow {
 public:
  explicit FirstRow(int64_t rows) : rows_(rows), first_(rows) {}
  void note(int64_t row) {
    int64_t before = first_.load();
    while (row < before && !first_.compare_exchange_weak(before, row)) {
    }
  }
  // The row, or -1 if none was noted.
  int64_t row() const { return first_.load() == rows_ ? -1 : first_.load(); }

 private:
  int64_t rows_;
  std::atomic<int64_t> first_;
};

// The sign of sum |v| - radius, exactly.
template <class T>
int compare_sum(const T* v, int64_t n, double radius) {
  ExactSum sum;
  for (int64_t i = 0; i < n; ++i) sum.add(std::fabs(static_cast<double>(to_float(v[i]))));
  sum.add(-radius);
  return sum.sign();
}

}  // namespace pyrobust::cpu

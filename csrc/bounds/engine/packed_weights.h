// Weights in the order in which the inner product loop reads them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pyrobust::cpu {

// Number of outputs that the inner loop computes at once.
inline constexpr int64_t kPanel = 8;

// Weights of a sum of products out[j] = sum_t a[t] w[t][j], in panels [fan_in][kPanel] of outputs; the last one is
// padded with zeros.
template <class T>
struct Panels {
  std::vector<T> w;
  int64_t outputs = 0, fan_in = 0;

  int64_t count() const { return (outputs + kPanel - 1) / kPanel; }
  int64_t width(int64_t panel) const { return std::min(kPanel, outputs - panel * kPanel); }
  // Where the weights of output j start.
  int64_t column(int64_t j) const { return j / kPanel * kPanel * fan_in + j % kPanel; }
  const T* panel(int64_t panel) const { return w.data() + panel * kPanel * fan_in; }
};

// Packs w(fan_in, output) in panels.
template <class T, class Weight>
Panels<T> packed(int64_t outputs, int64_t fan_in, const Weight& w) {
  Panels<T> panels;
  panels.outputs = outputs;
  panels.fan_in = fan_in;
  panels.w.resize(static_cast<size_t>(panels.count() * kPanel * fan_in));
  for (int64_t j = 0; j < outputs; ++j)
    for (int64_t t = 0; t < fan_in; ++t) panels.w[static_cast<size_t>(panels.column(j) + t * kPanel)] = w(t, j);
  return panels;
}

}  // namespace pyrobust::cpu

// The inner loops of the CROWN engine.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/relaxation_kernels.h"
#include "simd/dispatch.h"

// Included once for each instruction set, in whose vectors it is written: V is eight float64 numbers, W sixteen float32
// ones, H eight.
#define PYROBUST_KERNELS "bounds/engine/kernels.cpp"
#include "simd/foreach_level.h"

#ifdef PYROBUST_LEVEL

#include "simd/vec.inl"

#include "bounds/engine/relaxation_kernels.inl"

namespace pyrobust::cpu::PYROBUST_LEVEL {
namespace {

// Sums of lanes in float64, in registers.
class WideSums {
 public:
  explicit PYROBUST_TARGET WideSums(const double* sums) : first_(load(sums)), last_(load(sums + 8)) {}
  PYROBUST_TARGET void take(W a) {
    float l[16];
    put(l, a);
    first_ = add(first_, load(l)), last_ = add(last_, load(l + 8));
  }
  PYROBUST_TARGET void store(double* sums) const { put(sums, first_), put(sums + 8, last_); }

 private:
  V first_, last_;
};
class NarrowSums {
 public:
  explicit PYROBUST_TARGET NarrowSums(const double* sums) : all_(load(sums)) {}
  PYROBUST_TARGET void take(V a) { all_ = add(all_, a); }
  PYROBUST_TARGET void store(double* sums) const { put(sums, all_); }

 private:
  V all_;
};

// kLanes numbers of T.
template <class T>
struct Wide;
template <>
struct Wide<float> {
  using Type = W;
  using Panel = H;  // kPanel numbers
  using Sums = WideSums;
  static constexpr int64_t kCount = 16;
};
template <>
struct Wide<double> {
  using Type = V;
  using Panel = V;
  using Sums = NarrowSums;
  static constexpr int64_t kCount = 8;
};
PYROBUST_TARGET inline W lanes_of(const float* p) { return load_wide(p); }
PYROBUST_TARGET inline V lanes_of(const double* p) { return load(p); }
PYROBUST_TARGET inline W same(float a) { return wide(a); }
PYROBUST_TARGET inline V same(double a) { return splat(a); }
PYROBUST_TARGET inline H panel_of(const float* p) { return load_eight(p); }
PYROBUST_TARGET inline V panel_of(const double* p) { return load(p); }
PYROBUST_TARGET inline H panel_of_same(float a) { return eight(a); }
PYROBUST_TARGET inline V panel_of_same(double a) { return splat(a); }

// Too few sums would wait for each other, so they are split. An output has equally many whatever panel it is computed
// with.
constexpr int64_t chains_of(int64_t outputs) {
  return kRegisters > 2 ? 1 : outputs * kRegisters <= 2 ? 4 : outputs * kRegisters <= 4 ? 2 : 1;
}

// Computes J outputs. The weights of fan-in i start at w[i * kPanel]; they are contiguous or, with kPicked, each starts
// at its column.
template <class T, bool kPicked, int64_t J>
PYROBUST_TARGET void multiply_outputs(const T* a, const FanIn* fan_in, int64_t count, const T* w, const int64_t* column,
                                      T* out, const int64_t* at, bool add_to) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kChains = chains_of(J);
  if (count == 0 && add_to) return;
  const T* weights[J];
  for (int64_t j = 0; j < J; ++j) weights[j] = kPicked ? w + column[j] : w + j;
  const FanIn* const end = fan_in + count;
  do {
    const FanIn* const stop = end - fan_in < kBlock ? end : fan_in + kBlock;
    L total[J];
    for (bool first = true; first || fan_in < stop; first = false) {
      L sum[kChains][J];
      for (int64_t c = 0; c < kChains; ++c)
        for (int64_t j = 0; j < J; ++j) sum[c][j] = same(T(0));
      const FanIn* const pause = stop - fan_in < kRun * kChains ? stop : fan_in + kRun * kChains;
      for (; fan_in + kChains <= pause; fan_in += kChains)
        for (int64_t c = 0; c < kChains; ++c) {
          const L lanes = lanes_of(a + fan_in[c].offset);
          const int64_t weight_offset = fan_in[c].weight * kPanel;
          for (int64_t j = 0; j < J; ++j) sum[c][j] = fused(lanes, same(weights[j][weight_offset]), sum[c][j]);
        }
      for (; fan_in < pause; ++fan_in) {
        const L lanes = lanes_of(a + fan_in->offset);
        const int64_t weight_offset = fan_in->weight * kPanel;
        for (int64_t j = 0; j < J; ++j) sum[0][j] = fused(lanes, same(weights[j][weight_offset]), sum[0][j]);
      }
      for (int64_t j = 0; j < J; ++j) {
        L run = sum[0][j];
        if constexpr (kChains == 2) run = add(run, sum[1][j]);
        if constexpr (kChains == 4) run = add(add(run, sum[1][j]), add(sum[2][j], sum[3][j]));
        total[j] = first ? run : add(total[j], run);
      }
    }
    for (int64_t j = 0; j < J; ++j) put(out + at[j], add_to ? add(lanes_of(out + at[j]), total[j]) : total[j]);
    add_to = true;
  } while (fan_in < end);
}

// Computes kPanels whole panels for one example.
template <class T, int64_t kChains, int64_t kPanels>
PYROBUST_TARGET void multiply_panels(const T* a, const FanIn* fan_in, int64_t count, const T* w, int64_t apart,
                                     T* out) {
  using P = typename Wide<T>::Panel;
  const FanIn* const end = fan_in + count;
  const auto multiply = [&](const FanIn& input, P* sum) PYROBUST_TARGET {
    const P same = panel_of_same(a[static_cast<uint32_t>(input.offset) / static_cast<uint32_t>(kLanes<T>)]);
    const T* const weights = w + input.weight * kPanel;
    for (int64_t p = 0; p < kPanels; ++p) sum[p] = fused(same, panel_of(weights + p * apart), sum[p]);
  };
  P all[kPanels];
  bool first_block = true;
  do {
    const FanIn* const stop = end - fan_in < kBlock ? end : fan_in + kBlock;
    P total[kPanels];
    for (bool first = true; first || fan_in < stop; first = false) {
      P sum[kChains][kPanels];
      for (int64_t c = 0; c < kChains; ++c)
        for (int64_t p = 0; p < kPanels; ++p) sum[c][p] = panel_of_same(T(0));
      const FanIn* const pause = stop - fan_in < kRun * kChains ? stop : fan_in + kRun * kChains;
      for (; fan_in + kChains <= pause; fan_in += kChains)
        for (int64_t c = 0; c < kChains; ++c) multiply(fan_in[c], sum[c]);
      for (; fan_in < pause; ++fan_in) multiply(*fan_in, sum[0]);
      for (int64_t p = 0; p < kPanels; ++p) {
        P run = sum[0][p];
        if constexpr (kChains == 2) run = add(run, sum[1][p]);
        if constexpr (kChains == 4) run = add(add(run, sum[1][p]), add(sum[2][p], sum[3][p]));
        total[p] = first ? run : add(total[p], run);
      }
    }
    for (int64_t p = 0; p < kPanels; ++p) all[p] = first_block ? total[p] : add(all[p], total[p]);
    first_block = false;
  } while (fan_in < end);
  for (int64_t p = 0; p < kPanels; ++p) put(out + p * kPanel, all[p]);
}

template <class T>
PYROBUST_TARGET void multiply_one(const T* a, const FanIn* fan_in, int64_t count, const T* w, int64_t apart,
                                  int64_t outputs, T* out) {
  constexpr int64_t kWhole = chains_of(kPanel);
  const auto next = [&](int64_t panels) { w += panels * apart, out += panels * kPanel, outputs -= panels * kPanel; };
  for (; outputs >= 8 * kPanel; next(8)) multiply_panels<T, kWhole, 8>(a, fan_in, count, w, apart, out);
  if (outputs >= 4 * kPanel) multiply_panels<T, kWhole, 4>(a, fan_in, count, w, apart, out), next(4);
  if (outputs >= 2 * kPanel) multiply_panels<T, kWhole, 2>(a, fan_in, count, w, apart, out), next(2);
  if (outputs >= kPanel) multiply_panels<T, kWhole, 1>(a, fan_in, count, w, apart, out), next(1);
  if (outputs <= 0) return;
  // Padded with zeros; sums are split as for so many outputs.
  switch (chains_of(outputs)) {
    case 4:
      return multiply_panels<T, 4, 1>(a, fan_in, count, w, apart, out);
    case 2:
      return multiply_panels<T, 2, 1>(a, fan_in, count, w, apart, out);
    default:
      return multiply_panels<T, 1, 1>(a, fan_in, count, w, apart, out);
  }
}

// Computes `width` outputs, at most J.
template <class T, bool kPicked, int64_t J>
PYROBUST_TARGET void multiply_up_to(const T* a, const FanIn* fan_in, int64_t count, const T* w, const int64_t* column,
                                    int64_t width, T* out, const int64_t* at, bool add_to) {
  if (J == 1 || width == J) return multiply_outputs<T, kPicked, J>(a, fan_in, count, w, column, out, at, add_to);
  if constexpr (J > 1) multiply_up_to<T, kPicked, J - 1>(a, fan_in, count, w, column, width, out, at, add_to);
}

template <class T, bool kPicked>
PYROBUST_TARGET void multiply_panel(const T* a, const FanIn* fan_in, int64_t count, const T* w, const int64_t* column,
                                    int64_t width, T* out, const int64_t* at, bool add_to) {
  // As many sums as the registers hold.
  constexpr int64_t kMost = kRegisters == 1 ? 8 : kRegisters == 2 ? 7 : 2, kPart = kMost < 4 ? kMost : 4;
  for (; width > kMost; width -= kPart, at += kPart) {
    multiply_outputs<T, kPicked, kPart>(a, fan_in, count, w, column, out, at, add_to);
    if constexpr (kPicked)
      column += kPart;
    else
      w += kPart;
  }
  multiply_up_to<T, kPicked, kMost>(a, fan_in, count, w, column, width, out, at, add_to);
}

template <class T>
PYROBUST_TARGET void multiply(const T* a, const FanIn* fan_in, int64_t count, const T* w, int64_t width, T* out,
                              const int64_t* at, bool add_to) {
  multiply_panel<T, false>(a, fan_in, count, w, nullptr, width, out, at, add_to);
}

template <class T>
PYROBUST_TARGET void multiply_picked(const T* a, const FanIn* fan_in, int64_t count, const T* w, const int64_t* column,
                                     int64_t width, T* out, const int64_t* at, bool add_to) {
  multiply_panel<T, true>(a, fan_in, count, w, column, width, out, at, add_to);
}

// A comparison with NaN is false, so that NaN stays NaN: max(a, 0) would lose it.
template <class T>
PYROBUST_TARGET void relax(T* a, int64_t n, const T* lower_slope, const T* upper_slope, const T* lower_intercept,
                           const T* upper_intercept, double* bias) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  const L zero = same(T(0));
  typename Wide<T>::Sums sums(bias);
  for (int64_t i = 0; i < n;) {
    L sum = zero;
    const int64_t stop = n - i < kRun ? n : i + kRun;
    for (; i < stop; ++i) {
      const L c = lanes_of(a + i * kCount);
      put(a + i * kCount, mul(c, where_less(c, zero, same(upper_slope[i]), same(lower_slope[i]))));
      sum = fused(c, where_less(c, zero, same(upper_intercept[i]), same(lower_intercept[i])), sum);
    }
    sums.take(sum);
  }
  sums.store(bias);
}

template <class T>
PYROBUST_TARGET void dot(const T* a, int64_t n, const T* low, const T* high, double* total) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  const L zero = same(T(0));
  typename Wide<T>::Sums sums(total);
  for (int64_t i = 0; i < n;) {
    L sum = zero;
    const int64_t stop = n - i < kRun ? n : i + kRun;
    for (; i < stop; ++i) {
      const L c = lanes_of(a + i * kCount);
      sum = fused(c, where_less(c, zero, same(high[i]), same(low[i])), sum);
    }
    sums.take(sum);
  }
  sums.store(total);
}

template <class T>
PYROBUST_TARGET void scale(const T* a, int64_t n, const T* s, int64_t stride, T* out, bool add_to) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  for (int64_t i = 0; i < n; ++i) {
    L c = mul(lanes_of(a + i * kCount), same(s[i * stride]));
    if (add_to) c = add(lanes_of(out + i * kCount), c);
    put(out + i * kCount, c);
  }
}

template <class T>
PYROBUST_TARGET void scatter(const T* a, int64_t n, const int64_t* index, int64_t begin, int64_t end, T* out) {
  constexpr int64_t kCount = Wide<T>::kCount;
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < begin || index[i] >= end) continue;
    T* const to = out + (index[i] - begin) * kCount;
    put(to, add(lanes_of(static_cast<const T*>(to)), lanes_of(a + i * kCount)));
  }
}

// Neighbours often go to the same place, which is then written once.
template <class T, bool kSlopes, bool kIntercepts>
PYROBUST_TARGET void route_all(const T* a, int64_t n, const Route<T> way, T* out, double* bias) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  const L zero = same(T(0)), sign = same(way.sign);
  L place = zero;  // out[at]
  int64_t at = -1;
  typename Wide<T>::Sums sums(bias);
  for (int64_t i = 0; i < n;) {
    L intercepts = zero, constants = zero;
    const int64_t stop = n - i < kRun ? n : i + kRun;
    for (; i < stop; ++i) {
      const L c = lanes_of(a + i * kCount);
      if constexpr (kIntercepts)
        intercepts =
            fused(c, where_less(c, zero, same(way.upper_intercept[i]), same(way.lower_intercept[i])), intercepts);
      L moved;
      if constexpr (kSlopes)
        moved = mul(c, where_less(c, zero, same(way.upper_slope[i]), same(way.lower_slope[i])));
      else
        moved = mul(c, sign);
      constants = fused(moved, where_less(moved, zero, same(way.high[i]), same(way.low[i])), constants);
      const int64_t to = way.index[i];
      if (to != at) {
        if (at >= 0) put(out + at * kCount, place);
        at = to;
        if (at >= 0) place = lanes_of(static_cast<const T*>(out + at * kCount));
      }
      place = add(place, moved);
    }
    if constexpr (kIntercepts) sums.take(intercepts);
    sums.take(constants);
  }
  sums.store(bias);
  if (at >= 0) put(out + at * kCount, place);
}

template <class T>
PYROBUST_TARGET void route(const T* a, int64_t n, const Route<T>& way, T* out, double* bias) {
  if (way.lower_slope == nullptr)
    route_all<T, false, false>(a, n, way, out, bias);
  else if (way.lower_intercept == nullptr)
    route_all<T, true, false>(a, n, way, out, bias);
  else
    route_all<T, true, true>(a, n, way, out, bias);
}

// J points at once: a panel of weights is converted for all of them.
template <class T, int64_t J>
PYROBUST_TARGET inline void evaluate_points(const double* const* points, const FanIn* fan_in, int64_t count, const T* w,
                                            double* out) {
  V sum[J];
  for (int64_t j = 0; j < J; ++j) sum[j] = splat(0);
  for (int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<uint32_t>(fan_in[i].offset) / static_cast<uint32_t>(kLanes<T>);
    const V weights = load(w + fan_in[i].weight * kPanel);
    for (int64_t j = 0; j < J; ++j) sum[j] = fused(weights, splat(points[j][place]), sum[j]);
  }
  for (int64_t j = 0; j < J; ++j) put(out + j * kPanel, sum[j]);
}

template <class T>
PYROBUST_TARGET void evaluate(const double* const* points, int64_t points_count, const FanIn* fan_in, int64_t count,
                              const T* w, double* out) {
  static_assert(kPanel == 8);
  constexpr int64_t kMost = 8 / kRegisters;
  for (; points_count >= kMost; points += kMost, points_count -= kMost, out += kMost * kPanel)
    evaluate_points<T, kMost>(points, fan_in, count, w, out);
  if constexpr (kMost > 4) {
    if (points_count >= 4) {
      evaluate_points<T, 4>(points, fan_in, count, w, out);
      points += 4, points_count -= 4, out += 4 * kPanel;
    }
  }
  if (points_count >= 2) {
    evaluate_points<T, 2>(points, fan_in, count, w, out);
    points += 2, points_count -= 2, out += 2 * kPanel;
  }
  if (points_count >= 1) evaluate_points<T, 1>(points, fan_in, count, w, out);
}

template <class T, int64_t kPanels>
PYROBUST_TARGET inline void evaluate_panels(const double* point, const FanIn* fan_in, int64_t count, const T* w,
                                            int64_t apart, double* out) {
  V sum[kPanels];
  for (int64_t p = 0; p < kPanels; ++p) sum[p] = splat(0);
  for (int64_t i = 0; i < count; ++i) {
    const V same = splat(point[static_cast<uint32_t>(fan_in[i].offset) / static_cast<uint32_t>(kLanes<T>)]);
    const T* const weights = w + fan_in[i].weight * kPanel;
    for (int64_t p = 0; p < kPanels; ++p) sum[p] = fused(load(weights + p * apart), same, sum[p]);
  }
  for (int64_t p = 0; p < kPanels; ++p) put(out + p * kPanel, sum[p]);
}

template <class T>
PYROBUST_TARGET void evaluate_one(const double* point, const FanIn* fan_in, int64_t count, const T* w, int64_t apart,
                                  int64_t panels, double* out) {
  const auto next = [&](int64_t done) { w += done * apart, out += done * kPanel, panels -= done; };
  for (; panels >= 4; next(4)) evaluate_panels<T, 4>(point, fan_in, count, w, apart, out);
  if (panels >= 2) evaluate_panels<T, 2>(point, fan_in, count, w, apart, out), next(2);
  if (panels >= 1) evaluate_panels<T, 1>(point, fan_in, count, w, apart, out);
}

template <class T>
PYROBUST_TARGET void centered_range(const double* value, const T* radius, const T* magnitude, const double* errors,
                                    const RangeCosts& costs, double* lower, double* upper, double* sum,
                                    double* weight_error) {
  const V more = splat(costs.more), tiny = splat(costs.tiny), share = splat(0x1p-49);
  for (int64_t half = 0; half < Wide<T>::kCount; half += 8) {
    const V middle = load(value + half), r = add(mul(load(radius + half), more), tiny);
    V error = add(add(r, load(errors + half)), splat(costs.constant));
    if (magnitude != nullptr) {
      const V weights = mul(add(mul(load(magnitude + half), more), tiny), splat(costs.sum));
      error = add(error, weights);
      put(weight_error + half, add(weights, mul(weights, share)));
    }
    error = add(error, mul(share, add(error, abs(middle))));
    put(lower + half, sub(middle, error));
    put(upper + half, add(middle, error));
    put(sum + half, r);
  }
}

// Ranges of eight neurons or examples.
class Ranging {
 public:
  explicit PYROBUST_TARGET Ranging(const RangeCosts& costs)
      : costs_(costs),
        more_(splat(costs.more)),
        tiny_(splat(costs.tiny)),
        // Outward::rounding_error: all terms are positive, so a share of their sum bounds the rounding error.
        share_(splat(costs.sound ? 0x1p-49 : 0)) {}
  template <class T>
  PYROBUST_TARGET void put_eight(const T* center, const T* radius, const T* magnitude, V bias, double* lower,
                                 double* upper, double* sum) const {
    const V size = abs(bias), constant = add(splat(costs_.constant), mul(splat(costs_.bias), size));
    const V c = load(center), m = add(mul(load(magnitude), more_), tiny_);
    const V r = add(mul(load(radius), more_), tiny_);
    V error = add(add(r, mul(splat(costs_.sum), m)), constant);
    error = add(error, mul(share_, add(error, add(abs(c), size))));
    const V middle = add(c, bias);
    put(lower, sub(middle, error));
    put(upper, add(middle, error));
    put(sum, m);
  }

 private:
  const RangeCosts& costs_;
  V more_, tiny_, share_;
};

template <class T>
PYROBUST_TARGET void range(const T* center, const T* radius, const T* magnitude, double bias, const RangeCosts& costs,
                           double* lower, double* upper, double* sum) {
  const Ranging ranging(costs);
  for (int64_t half = 0; half < Wide<T>::kCount; half += 8)
    ranging.put_eight(center + half, radius + half, magnitude + half, splat(bias), lower + half, upper + half,
                      sum + half);
}

template <class T>
PYROBUST_TARGET void range_one(const T* center, const T* radius, const T* magnitude, const double* bias, int64_t n,
                               const RangeCosts& costs, double* lower, double* upper, double* sum) {
  const Ranging ranging(costs);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    ranging.put_eight(center + i, radius + i, magnitude + i, load(bias + i), lower + i, upper + i, sum + i);
  if (i == n) return;
  const Tail<T> c(center + i, n - i, T(0)), r(radius + i, n - i, T(0)), m(magnitude + i, n - i, T(0));
  const Eight b(bias, i, n);
  double lower8[8], upper8[8], sum8[8];
  ranging.put_eight(c.element, r.element, m.element, load(b.at), lower8, upper8, sum8);
  copy_out(lower8, lower, i, n), copy_out(upper8, upper, i, n), copy_out(sum8, sum, i, n);
}

// Computes a center in T of [l, u] and an upper bound of the distance of the ends from it.
template <class T>
struct Outside {
  // Twice the unit roundoff of T, and of float64 for the differences: Outward::up_to and rounding_error.
  V share, tiny;
  explicit PYROBUST_TARGET Outside(bool sound)
      : share(splat(!sound                        ? 0
                    : sizeof(T) == sizeof(double) ? 0x1p-50
                                                  : 0x1p-23 + 0x1p-50)),
        tiny(splat(!sound                        ? 0
                   : sizeof(T) == sizeof(double) ? 0x1p-1074
                                                 : 0x1p-149)) {}
  // Nothing is added at zero.
  PYROBUST_TARGET V round(V r) const {
    const V zero = splat(0);
    return add(r, where_less(zero, r, add(mul(r, share), tiny), mul(r, zero)));
  }
  PYROBUST_TARGET V put_range(V l, V u, T* center, T* radius) const {
    const V half = splat(0.5);
    put_nearest(center, add(mul(l, half), mul(u, half)));
    const V c = load(center);
    put_nearest(radius, round(max(sub(u, c), sub(c, l))));
    return c;
  }
};

// Ranges of ReLU at eight neurons or examples.
template <class T>
class ReluRanging {
 public:
  explicit PYROBUST_TARGET ReluRanging(const RangeCosts& costs)
      : costs_(costs), outside_(costs.sound), more_(splat(costs.more)), share_(splat(costs.sound ? 0x1p-49 : 0)) {}
  PYROBUST_TARGET void put_eight(const T* center, const T* radius, V bias, T* center_out, T* radius_out) const {
    const V size = abs(bias), zero = splat(0);
    const V constant = add(splat(costs_.tiny), add(splat(costs_.constant), mul(splat(costs_.bias), size)));
    const V c = load(center);
    V error = add(mul(load(radius), more_), constant);
    error = add(error, mul(share_, add(error, add(abs(c), size))));
    const V middle = add(c, bias), l = sub(middle, error), u = add(middle, error);
    // NaN propagates.
    outside_.put_range(where_less(l, zero, zero, l), where_less(u, zero, zero, u), center_out, radius_out);
  }

 private:
  const RangeCosts& costs_;
  Outside<T> outside_;
  V more_, share_;
};

template <class T>
PYROBUST_TARGET void relu_range(const T* center, const T* radius, double bias, const RangeCosts& costs, T* center_out,
                                T* radius_out) {
  const ReluRanging<T> ranging(costs);
  for (int64_t half = 0; half < Wide<T>::kCount; half += 8)
    ranging.put_eight(center + half, radius + half, splat(bias), center_out + half, radius_out + half);
}

template <class T>
PYROBUST_TARGET void relu_range_one(const T* center, const T* radius, const double* bias, int64_t n,
                                    const RangeCosts& costs, T* center_out, T* radius_out) {
  const ReluRanging<T> ranging(costs);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) ranging.put_eight(center + i, radius + i, load(bias + i), center_out + i, radius_out + i);
  if (i == n) return;
  const Tail<T> c(center + i, n - i, T(0)), r(radius + i, n - i, T(0));
  const Eight b(bias, i, n);
  T center8[8], radius8[8];
  ranging.put_eight(c.element, r.element, load(b.at), center8, radius8);
  copy_out(center8, center_out, i, n), copy_out(radius8, radius_out, i, n);
}

// In T: q = |c| + r loses a share u of itself, and so does the sum r + s q >= r. With t, at least s (1 + 4 u) + 5 u,
// for the share s, (1 - u) (r + t (1 - u) q) >= r + s q, as r <= q; below the smallest normal number, one step covers
// the error.
template <class T>
PYROBUST_TARGET void enlarge(const T* center, const T* radius, int64_t n, double share, bool sound, T* out) {
  using L = typename Wide<T>::Type;
  constexpr int64_t kCount = Wide<T>::kCount;
  constexpr double kRoundoff = sizeof(T) == sizeof(double) ? 0x1p-53 : 0x1p-24;
  const L zero = same(T(0)), tiny = same(sound ? std::numeric_limits<T>::denorm_min() : T(0));
  const L s = same(sound ? static_cast<T>(share * (1 + 8 * kRoundoff) + 6 * kRoundoff) : T(0));
  for (int64_t i = 0; i < n; i += kCount) {
    const L r = lanes_of(radius + i), q = add(abs(lanes_of(center + i)), r);
    put(out + i, add(fused(q, s, r), where_less(zero, q, tiny, mul(q, zero))));
  }
}

template <class T>
PYROBUST_TARGET void spread(const double* lower, const double* upper, int64_t n, int64_t lanes, double more, bool sound,
                            T* center, T* radius, T* magnitude) {
  const Outside<T> outside(sound);
  for (int64_t i = 0; i < n; i += 8) {
    double l8[8], u8[8];
    const bool whole = i + 8 <= n;
    for (int64_t j = 0; !whole && j < 8; ++j)
      l8[j] = i + j < n ? lower[i + j] : 0, u8[j] = i + j < n ? upper[i + j] : 0;
    const V l = load(whole ? lower + i : l8), u = load(whole ? upper + i : u8);
    T c8[8], r8[8], m8[8];
    const V c = outside.put_range(l, u, c8, r8);
    const int64_t count = whole ? 8 : n - i;
    for (int64_t j = 0; j < count; ++j) center[(i + j) * lanes] = c8[j], radius[(i + j) * lanes] = r8[j];
    if (magnitude == nullptr) continue;
    put_nearest(m8, outside.round(add(max(max(abs(l), abs(u)), abs(c)), splat(more))));
    for (int64_t j = 0; j < count; ++j) magnitude[(i + j) * lanes] = m8[j];
  }
}

template <class T>
PYROBUST_TARGET void spread_around(const double* center, const double* lower, const double* upper, int64_t n,
                                   int64_t lanes, T* radius, T* magnitude) {
  const Outside<T> outside(true);
  for (int64_t i = 0; i < n; i += 8) {
    const Eight c8(center, i, n), l8(lower, i, n), u8(upper, i, n);
    const V c = load(c8.at), l = load(l8.at), u = load(u8.at);
    T r8[8], m8[8];
    put_nearest(r8, outside.round(max(sub(u, c), sub(c, l))));
    const int64_t count = n - i < 8 ? n - i : 8;
    for (int64_t j = 0; j < count; ++j) radius[(i + j) * lanes] = r8[j];
    if (magnitude == nullptr) continue;
    put_nearest(m8, outside.round(max(abs(l), abs(u))));
    for (int64_t j = 0; j < count; ++j) magnitude[(i + j) * lanes] = m8[j];
  }
}

template <class T>
PYROBUST_TARGET double middles(const double* lower, const double* upper, int64_t n, double* middle, double* offset) {
  // Just off the middle, which is often a tie in float32, so that the last bits of float64 ends would decide.
  const V zero = splat(0), half = splat(0.5 + 0x1p-41), infinite = splat(std::numeric_limits<double>::infinity());
  V largest = zero;
  for (int64_t i = 0; i < n; i += 8) {
    const Eight l8(lower, i, n), u8(upper, i, n);
    T nearest[8];
    put_nearest(nearest, add(mul(load(l8.at), half), mul(load(u8.at), half)));
    V c = load(nearest);
    c = where_less(abs(c), infinite, c, zero);
    largest = max(largest, abs(c));
    double c8[8];
    put(i + 8 <= n ? middle + i : c8, c);
    if (i + 8 > n) copy_out(c8, middle, i, n);
  }
  for (int64_t i = 0; offset != nullptr && i < n; ++i) offset[i] -= middle[i];
  return lane_max(largest);
}

PYROBUST_TARGET bool ordered(const double* lower, const double* upper, int64_t n) {
  const V below = splat(-std::numeric_limits<double>::denorm_min());
  unsigned all = 0xff;
  for (int64_t i = 0; i < n; i += 8) {
    const Eight l(lower, i, n), u(upper, i, n);
    all &= less_bits(below, sub(load(u.at), load(l.at)));
  }
  return all == 0xff;
}

template <class T>
PYROBUST_TARGET void lengths(const T* a, int64_t n, double* squares, double* largest) {
  constexpr int64_t kCount = Wide<T>::kCount;
  for (int64_t half = 0; half < kCount; half += 8) {
    V sum = load(squares + half), top = load(largest + half);
    for (int64_t i = 0; i < n; ++i) {
      const V c = abs(load(a + i * kCount + half));
      sum = add(sum, mul(c, c));
      top = where_less(c, top, top, c);
    }
    put(squares + half, sum);
    put(largest + half, top);
  }
}

template <class T>
constexpr EngineKernels<T> kKernels = {
    multiply<T>,       multiply_one<T>, multiply_picked<T>, relax<T>,        dot<T>,    scale<T>,
    scatter<T>,        route<T>,        evaluate<T>,        evaluate_one<T>, range<T>,  range_one<T>,
    centered_range<T>, relu_range<T>,   relu_range_one<T>,  enlarge<T>,      spread<T>, spread_around<T>,
    middles<T>,        ordered,         lengths<T>};

}  // namespace
}  // namespace pyrobust::cpu::PYROBUST_LEVEL

#else

namespace pyrobust::cpu {

template <class T>
const EngineKernels<T>& engine_kernels() {
  return PYROBUST_AT_LEVEL(kKernels<T>);
}
template const EngineKernels<float>& engine_kernels();
template const EngineKernels<double>& engine_kernels();

template <class T>
const RelaxationKernels<T>& relaxation_kernels() {
  return PYROBUST_AT_LEVEL(kRelaxationKernels<T>);
}
template const RelaxationKernels<float>& relaxation_kernels();
template const RelaxationKernels<double>& relaxation_kernels();

}  // namespace pyrobust::cpu

#endif

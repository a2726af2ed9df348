// CUDA kernels with a group of threads per row on the host: the unchanged csrc/*/cuda/*_row.h, run by fibers.
#include "attacks/cuda/l1_step_row.h"
#include "attacks/hyperplane_row.h"
#include "attacks/window_row.h"
#include "common/exact_sum.h"
#include "fibers.h"
#include "projections/cuda/l1_box_row.h"
#include "projections/cuda/norm_balls_row.h"
#include "projections/cuda/simplex_l1_row.h"

namespace pyrobust::emulation {
namespace {

using namespace cuda;

enum Op { kSimplex, kL1Ball, kL1BallBox, kL2Ball, kLinfBall, kL1Step };

struct Arguments {
  const void *v, *x, *other;  // for the step op: x_adv, gradient, x
  void* z;
  const double* radius;  // for the step op: the step size
  const int64_t* keep;
  int64_t rows, n;
  double lower, upper;
};

// Runs work(group, kPer) on a group of the size, and with the elements per thread in registers, that for_rows of
// groups.cuh chooses. Groups of 128 and 256 threads take the same branches as a warp.
template <class Work>
void for_row(int64_t n, const Work& work) {
  const auto by = [&](auto per) { return [&work, per](auto& group) { work(group, per); }; };
  const auto eight = by(std::integral_constant<int, 8>());
#ifndef PYROBUST_ONLY_WARP
  if (n <= 16) return with_threads<8>(4, by(std::integral_constant<int, 4>()));
  if (n <= 64) return with_threads<8>(8, eight);
  if (n > 4096) return with_threads<1024>(1024, by(std::integral_constant<int, 0>()));
  if (n > 1024) return with_threads<32>(256, by(std::integral_constant<int, 16>()));
#endif
  with_threads<32>(n <= 256 ? 32 : 128, eight);
}

template <class T>
void run(int op, const Arguments& a) {
  const int64_t n = a.n;
  for (int64_t i = 0; i < a.rows; ++i) {
    const T* v = static_cast<const T*>(a.v) + i * n;
    const T* x = static_cast<const T*>(a.x) + i * n;
    const T* other = static_cast<const T*>(a.other) + i * n;
    T* z = static_cast<T*>(a.z) + i * n;
    const double radius = a.radius[i];
    for_row(n, [&](auto& group, auto per) {
      constexpr int kPer = decltype(per)::value;
      using Group = std::remove_reference_t<decltype(group)>;
      if (op == kSimplex || op == kL1Ball)
        L1Row<T, kPer, Group>(group, v, z, n, radius, op == kL1Ball).project();
      else if (op == kL1BallBox)
        L1BoxRow<T, kPer, Group>(group, v, x, z, n, radius, Box{a.lower, a.upper}).project();
      else if (op == kL2Ball || op == kLinfBall)
        NormRow<T, kPer, Group>(group, v, z, n, radius).project(op == kL2Ball);
      else
        L1StepRow<T, kPer, Group>(group, v, x, other, z, n, to_float(round_toward<T>(a.lower, a.upper)),
                                  to_float(round_toward<T>(a.upper, a.lower)))
            .step(radius, a.keep[i]);
    });
  }
}

struct Planes {
  const void *x, *at, *w;
  const double* value;
  int64_t norm;
  void* step;
  int64_t rows, planes, n;
  double lower, upper;
};

template <class T>
void run(const Planes& a) {
  const auto row = [&](const void* first, int64_t i) { return static_cast<const T*>(first) + i * a.n; };
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t plane = i % a.planes;
    for_row(a.n, [&](auto& group, auto per) {
      using Group = std::remove_reference_t<decltype(group)>;
      HyperplaneRow<T, decltype(per)::value, Group>(group, row(a.x, i), row(a.at, plane), row(a.w, plane),
                                                    static_cast<T*>(a.step) + i * a.n, a.n, a.lower, a.upper)
          .project(a.value[plane], static_cast<StepNorm>(a.norm));
    });
  }
}

struct Images {
  const void *best, *x, *u;
  const double *patterns, *radius;
  bool l2;
  void* out;
  int64_t rows;
  Windows windows;
  double lower, upper;
};

template <class T>
void run(const Images& a) {
  const int64_t n = a.windows.channels * a.windows.height * a.windows.width;
  const Real<T> low = to_float(round_toward<T>(a.lower, a.upper)), high = to_float(round_toward<T>(a.upper, a.lower));
  const auto row = [&](const void* first, int64_t at) { return static_cast<const T*>(first) + at; };
  for (int64_t i = 0; i < a.rows; ++i) {
    for_row(n, [&](auto& group, auto) {
      using Group = std::remove_reference_t<decltype(group)>;
      const auto propose = [&](auto l2) {
        WindowRow<T, decltype(l2)::value, Group>(group, row(a.best, i * n), row(a.x, i * n),
                                                 row(a.u, i * (5 + a.windows.channels)), a.patterns,
                                                 static_cast<T*>(a.out) + i * n, a.windows, low, high)
            .propose(a.radius[i]);
      };
      a.l2 ? propose(std::true_type()) : propose(std::false_type());
    });
  }
}

// Returns null, or a message on an error of the threads. PYROBUST_ELEMENT: float, double, Half or BFloat16.
template <class Run>
const char* outcome(const Run& run) {
  try {
    run(PYROBUST_ELEMENT{});
    return nullptr;
  } catch (const char* error) {
    return error;
  }
}

template <class T>
int64_t count_wrong_truncations(const double* a, int64_t n) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += to_float(truncated<T>(a[i])) != to_float(round_toward<T>(a[i], 0.0)) ? 1 : 0;
  return wrong;
}

}  // namespace
}  // namespace pyrobust::emulation

using namespace pyrobust;

extern "C" const char* run_rows(int op, const void* v, const void* x, const void* other, void* z, const double* radius,
                                const int64_t* keep, int64_t rows, int64_t n, double lower, double upper) {
  const emulation::Arguments arguments{v, x, other, z, radius, keep, rows, n, lower, upper};
  return emulation::outcome([&](auto tag) { emulation::run<decltype(tag)>(op, arguments); });
}

extern "C" const char* run_planes(const void* x, const void* at, const void* w, const double* value, int64_t norm,
                                  void* step, int64_t rows, int64_t planes, int64_t n, double lower, double upper) {
  const emulation::Planes arguments{x, at, w, value, norm, step, rows, planes, n, lower, upper};
  return emulation::outcome([&](auto tag) { emulation::run<decltype(tag)>(arguments); });
}

// grid: channels, height, width, height and width of windows, whether channels_last.
extern "C" const char* run_windows(const void* best, const void* x, const void* u, const double* patterns,
                                   const double* radius, int l2, void* out, int64_t rows, const int64_t* grid,
                                   double lower, double upper) {
  const cuda::Windows windows{grid[0], grid[1], grid[2], grid[3], grid[4], grid[5] != 0};
  const emulation::Images arguments{best, x, u, patterns, radius, l2 != 0, out, rows, windows, lower, upper};
  return emulation::outcome([&](auto tag) { emulation::run<decltype(tag)>(arguments); });
}

// Compares the sum of |a| to the radius, or of squares to its square. Returns 1 if eight threads find it at most that,
// plus 2 if ExactSum does.
extern "C" int compare_sums(const double* a, int64_t n, double radius, int squares) {
  double top = 0;
  ExactSum exact;
  for (int64_t i = 0; i < n; ++i) {
    top = std::fmax(top, std::fabs(a[i]));
    if (squares)
      exact.add_product(a[i], a[i]);
    else
      exact.add(std::fabs(a[i]));
  }
  if (squares)
    exact.add_product(-radius, radius);
  else
    exact.add(-radius);
  bool at_most = false;
  emulation::with_threads<8>(8, [&](auto& group) {
    const auto each = [&](const auto& f) {
      cuda::for_slots<0>(group, n, [&](int, int64_t i) { f(squares ? a[i] : std::fabs(a[i])); });
    };
    const bool mine =
        squares ? cuda::squares_at_most(group, top, radius, each) : cuda::sum_at_most(group, top, radius, each);
    if (group.rank() == 0) at_most = mine;
  });
  return (at_most ? 1 : 0) + (exact.sign() <= 0 ? 2 : 0);
}

// Counts the elements where truncation by bits differs from truncation step by step. dtype: 0 float, 2 Half, 3
// BFloat16.
extern "C" int64_t count_wrong_truncations(int dtype, const double* a, int64_t n) {
  if (dtype == 0) return emulation::count_wrong_truncations<float>(a, n);
  if (dtype == 2) return emulation::count_wrong_truncations<Half>(a, n);
  return emulation::count_wrong_truncations<BFloat16>(a, n);
}

// CUDA kernels with a group of threads per row on the host: the unchanged csrc/*/cuda/*_row.h, run by fibers.
#include <string>

#include "attacks/cuda/l1_step_row.h"
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

// Runs work(group, kPer) on a group of the size that for_rows of groups.cuh chooses.
template <class Work>
void for_row(int64_t n, const Work& work) {
  const auto by = [&](auto per) { return [&work, per](auto& group) { work(group, per); }; };
  if (n <= 16)
    with_threads<4>(by(std::integral_constant<int, 4>()));
  else if (n <= 64)
    with_threads<8>(by(std::integral_constant<int, 8>()));
  else if (n <= 256)
    with_threads<32>(by(std::integral_constant<int, 8>()));
  else if (n <= 1024)
    with_threads<128>(by(std::integral_constant<int, 8>()));
  else if (n <= 4096)
    with_threads<256>(by(std::integral_constant<int, 16>()));
  else
    with_threads<1024>(by(std::integral_constant<int, 0>()));
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

template <class T>
int64_t count_wrong_truncations(const double* a, int64_t n) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += to_float(truncated<T>(a[i])) != to_float(round_toward<T>(a[i], 0.0)) ? 1 : 0;
  return wrong;
}

}  // namespace
}  // namespace pyrobust::emulation

using namespace pyrobust;

// dtype: 0 float, 1 double, 2 Half, 3 BFloat16. Returns null, or a message on an error of the threads.
extern "C" const char* run_rows(int op, int dtype, const void* v, const void* x, const void* other, void* z,
                                const double* radius, const int64_t* keep, int64_t rows, int64_t n, double lower,
                                double upper) {
  static std::string message;
  const emulation::Arguments arguments{v, x, other, z, radius, keep, rows, n, lower, upper};
  try {
    if (dtype == 0) emulation::run<float>(op, arguments);
#ifndef PYROBUST_ONLY_FLOAT
    if (dtype == 1) emulation::run<double>(op, arguments);
    if (dtype == 2) emulation::run<Half>(op, arguments);
    if (dtype == 3) emulation::run<BFloat16>(op, arguments);
#endif
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

// Compares the sum of |a| to the radius, or of squares to its square. Returns 1 if eight threads find it at most that,
// plus 2 if ExactSum does.
extern "C" int compare_sums(const double* a, int64_t n, double radius, int squares) {
  double top = 0;
  ExactSum exact;
  for (int64_t i = 0; i < n; ++i) {
    top = std::max(top, std::fabs(a[i]));
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
  emulation::with_threads<8>([&](auto& group) {
    const auto each = [&](const auto& f) {
      cuda::for_slots<0>(group, n, [&](int, int64_t i) { f(squares ? a[i] : std::fabs(a[i])); });
    };
    const bool mine =
        squares ? cuda::squares_at_most(group, top, radius, each) : cuda::sum_at_most(group, top, radius, each);
    if (group.rank() == 0) at_most = mine;
  });
  return (at_most ? 1 : 0) + (exact.sign() <= 0 ? 2 : 0);
}

// Counts the elements where truncation by bits differs from truncation step by step.
extern "C" int64_t count_wrong_truncations(int dtype, const double* a, int64_t n) {
  if (dtype == 0) return emulation::count_wrong_truncations<float>(a, n);
  if (dtype == 2) return emulation::count_wrong_truncations<Half>(a, n);
  return emulation::count_wrong_truncations<BFloat16>(a, n);
}

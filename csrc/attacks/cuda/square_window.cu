#include "attacks/cuda/square_window.h"

#include "projections/cuda/groups.cuh"

namespace pyrobust::cuda {
namespace {

template <class T, bool kL2>
struct Work {
  const T* best;
  const T* x;
  const T* u;
  const double* patterns;
  const double* radius;
  T* out;
  int64_t n;
  Windows windows;
  Real<T> lower, upper;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    WindowRow<T, kL2, Group>(group, best + i * n, x + i * n, u + i * (5 + windows.channels), patterns, out + i * n,
                             windows, lower, upper)
        .propose(radius[i]);
  }
};

}  // namespace

template <class T>
cudaError_t square_window(const T* best, const T* x, const T* u, const double* patterns, const double* radius, bool l2,
                          T* out, int64_t rows, const Windows& windows, double lower, double upper,
                          cudaStream_t stream) {
  const int64_t n = windows.channels * windows.height * windows.width;
  const Real<T> low = to_float(round_toward<T>(lower, upper)), high = to_float(round_toward<T>(upper, lower));
  if (l2) return for_rows(Work<T, true>{best, x, u, patterns, radius, out, n, windows, low, high}, rows, n, stream);
  return for_rows(Work<T, false>{best, x, u, patterns, radius, out, n, windows, low, high}, rows, n, stream);
}

#define PYROBUST_SQUARE_WINDOW(T)                                                                                      \
  template cudaError_t square_window<T>(const T*, const T*, const T*, const double*, const double*, bool, T*, int64_t, \
                                        const Windows&, double, double, cudaStream_t);
PYROBUST_SQUARE_WINDOW(float)
PYROBUST_SQUARE_WINDOW(double)
PYROBUST_SQUARE_WINDOW(Half)
PYROBUST_SQUARE_WINDOW(BFloat16)
#undef PYROBUST_SQUARE_WINDOW

}  // namespace pyrobust::cuda

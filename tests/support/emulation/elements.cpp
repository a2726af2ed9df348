// Elementwise CUDA kernels on the host, one thread after the other: the unchanged part of csrc/attacks/cuda/steps.cu in
// elements.inc.
#include <algorithm>
#include <cstdint>

#include "attacks/step_math.h"
#include "projections/cuda/row.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)

namespace pyrobust::cuda {
namespace {

struct Place {
  unsigned x;
};
Place blockIdx, threadIdx, gridDim;

#include "elements.inc"

template <class Kernel>
void launch(unsigned blocks, const Kernel& kernel) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x) kernel();
}

enum Op { kAdd, kLinfStep, kLinfMomentumStep };

struct Arguments {
  const void *x_adv, *grad, *x, *before;
  const double *step, *epsilon;
  int64_t step_stride, epsilon_stride;
  double share;
  void* out;
  int64_t rows, n;
  double lower, upper;
};

template <class T>
void run(int op, const Arguments& a, unsigned blocks) {
  const auto typed = [](const void* p) { return static_cast<const T*>(p); };
  const auto aligned = [&](auto... p) { return ((reinterpret_cast<uintptr_t>(p) % alignof(Pack<T>) == 0) && ...); };
  T* out = static_cast<T*>(a.out);
  const LinfArgs<T> args{typed(a.x_adv),
                         typed(a.grad),
                         typed(a.x),
                         a.step,
                         a.step_stride,
                         a.epsilon,
                         a.epsilon_stride,
                         out,
                         a.rows * a.n,
                         a.n,
                         {a.lower, a.upper},
                         typed(a.before),
                         static_cast<Real<T>>(a.share)};
  const bool wide = aligned(args.x_adv, args.grad, args.x, args.before, out);
  if (op == kAdd)
    launch(blocks, [&] { add_kernel<T>(args.x, args.grad, out, args.count, args.range, wide); });
  else if (op == kLinfStep)
    launch(blocks, [&] { linf_kernel<T, false>(args, wide); });
  else
    launch(blocks, [&] { linf_kernel<T, true>(args, wide); });
}

}  // namespace
}  // namespace pyrobust::cuda

using namespace pyrobust;

// dtype: 0 float, 1 double, 2 Half, 3 BFloat16.
extern "C" void run_elements(int op, int dtype, const void* x_adv, const void* grad, const void* x, const void* before,
                             const double* step, int64_t step_stride, const double* epsilon, int64_t epsilon_stride,
                             double share, void* out, int64_t rows, int64_t n, double lower, double upper,
                             unsigned blocks) {
  const cuda::Arguments arguments{x_adv,          grad,  x,   before, step, epsilon, step_stride,
                                  epsilon_stride, share, out, rows,   n,    lower,   upper};
  if (dtype == 0) cuda::run<float>(op, arguments, blocks);
  if (dtype == 1) cuda::run<double>(op, arguments, blocks);
  if (dtype == 2) cuda::run<Half>(op, arguments, blocks);
  if (dtype == 3) cuda::run<BFloat16>(op, arguments, blocks);
}

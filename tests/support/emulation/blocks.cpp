// CUDA kernels with shared memory and block barriers on the host: the unchanged parts of csrc/bounds/cuda/*.cu in
// blocks.inc, with a fiber for every thread of a block.
#include "bounds/relu_relaxation.h"
#include "fibers.h"

namespace pyrobust::emulation {

struct Rank {
  operator int() const { return Scheduler::running().rank(); }
};
struct Thread {
  Rank x;
};
struct Place {
  unsigned x;
};
Thread threadIdx;
Place blockIdx, gridDim;

void sync_block() { Scheduler::running().meet({Kind::kAny, 1, {0}}); }
double __longlong_as_double(long long word) { return unpacked<double>(static_cast<uint64_t>(word)); }

}  // namespace pyrobust::emulation

#define __global__
#define __launch_bounds__(threads)
#define __shared__ static
#define __syncthreads sync_block

namespace pyrobust::emulation {
namespace {

#include "blocks.inc"

// Runs kernel() on every thread of every block.
template <class Kernel>
void launch(unsigned blocks, const Kernel& kernel) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    scheduler_of(rows::kThreads).run([&](int) { kernel(); });
}

}  // namespace
}  // namespace pyrobust::emulation

using namespace pyrobust;
using namespace pyrobust::emulation;

namespace {

template <class Run>
const char* outcome(const Run& run) {
  try {
    run();
    return nullptr;
  } catch (const char* error) {
    return error;
  }
}

}  // namespace

// All functions return null, or a message on an error of the threads. lanes: threads per row, 32 or 256. Null slopes
// select concretize_rows.
extern "C" const char* relax_rows(int lanes, double* a, const int64_t* image, const double* lower_slope,
                                  const double* upper_slope, const double* low, const double* high, double* constant,
                                  int64_t rows, int64_t n, int64_t images, unsigned blocks) {
  return outcome([&] {
    launch(blocks, [&] {
      const auto run = [&](auto kernel) {
        kernel(a, a, image, lower_slope, upper_slope, low, high, constant, rows, n, images);
      };
      if (lanes == 32)
        lower_slope ? run(rows::relax_rows_kernel<double, 32, true>) : run(rows::relax_rows_kernel<double, 32, false>);
      else
        lower_slope ? run(rows::relax_rows_kernel<double, 256, true>)
                    : run(rows::relax_rows_kernel<double, 256, false>);
    });
  });
}

extern "C" const char* relax_coefficients(const double* a, const double* lower, const double* upper, double slope,
                                          double* out, double* bias, int64_t count, int64_t rows, int64_t n,
                                          unsigned blocks) {
  return outcome([&] {
    launch(blocks, [&] { coefficients::relax_kernel<double>(a, lower, upper, slope, out, bias, count, rows, n); });
  });
}

extern "C" const char* relax_coefficients_backward(const double* grad, const double* grad_bias, const double* a,
                                                   const double* lower, const double* upper, double slope,
                                                   double* grad_a, double* grad_lower, double* grad_upper,
                                                   int64_t neurons, int64_t rows, int64_t n, unsigned blocks) {
  return outcome([&] {
    launch(blocks, [&] {
      coefficients::backward_kernel<double>(grad, grad_bias, a, lower, upper, slope, grad_a, grad_lower, grad_upper,
                                            neurons, rows, n);
    });
  });
}

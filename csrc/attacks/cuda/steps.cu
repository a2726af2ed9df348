// add_perturbation and linf_step: one thread for four neighbouring elements, so that loads and stores are wide; bound by
// memory. l1_step: one group of threads for each row.
#include "attacks/cuda/steps.h"

#include "attacks/cuda/l1_step_row.h"
#include "attacks/step_math.h"
#include "projections/cuda/groups.cuh"

namespace pyrobust::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 4;

template <class T>
struct alignas(sizeof(T) * kPack <= 16 ? sizeof(T) * kPack : 16) Pack {
  T v[kPack];
};

// Loads the first `valid` of four elements, with a single load where `wide`.
template <class T>
__device__ __forceinline__ Pack<T> load(const T* p, int valid, bool wide) {
  if (wide) return *reinterpret_cast<const Pack<T>*>(p);
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < kPack; ++j) pack.v[j] = p[j < valid ? j : 0];
  return pack;
}
template <class T>
__device__ __forceinline__ void store(T* p, const Pack<T>& pack, int valid, bool wide) {
  if (wide) {
    *reinterpret_cast<Pack<T>*>(p) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < kPack; ++j)
    if (j < valid) p[j] = pack.v[j];
}

// Calls body(first, valid, wide) for packs of elements; aligned: whether all pointers are aligned to packs.
template <class Body>
__device__ __forceinline__ void for_packs(int64_t count, bool aligned, const Body& body) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * kPack;
  for (int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack; i < count; i += step) {
    const int valid = static_cast<int>(count - i < kPack ? count - i : kPack);
    body(i, valid, aligned && valid == kPack);
  }
}

// The box, whose ends are numbers of T; NaN is outside.
template <class T>
struct Range {
  Real<T> lower, upper;
  Range(double low, double high)
      : lower(to_float(round_toward<T>(low, high))), upper(to_float(round_toward<T>(high, low))) {}
  __device__ bool holds(Real<T> x) const { return x >= lower && x <= upper; }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    add_kernel(const T* x, const T* z, T* out, int64_t count, const Range<T> range, bool aligned) {
  for_packs(count, aligned, [&](int64_t i, int valid, bool wide) {
    const Pack<T> p = load(x + i, valid, wide), q = load(z + i, valid, wide);
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const Real<T> by = to_float(q.v[j]);
      const bool good = range.holds(to_float(p.v[j])) && by == by;
      result.v[j] = good ? add_in_box<T>(p.v[j], q.v[j], range.lower, range.upper) : not_a_number<T>();
    }
    store(out + i, result, valid, wide);
  });
}

template <class T>
struct LinfArgs {
  const T* x_adv;
  const T* grad;
  const T* x;
  const double* step;
  int64_t step_stride;
  const double* epsilon;
  int64_t epsilon_stride;
  T* out;
  int64_t count, n;
  Range<T> range;
  const T* before;  // with momentum
  Real<T> share;
};

// Step size and radius of a row.
template <class T>
struct LinfStep {
  Real<T> step, epsilon;
  bool good;
  __device__ LinfStep(const LinfArgs<T>& a, int64_t row) {
    const double length = a.step[row * a.step_stride], radius = a.epsilon[row * a.epsilon_stride];
    good = finite(length) && good_radius(radius);
    step = static_cast<Real<T>>(length);
    epsilon = good ? to_float(truncated<T>(radius)) : Real<T>(0);
  }
};

template <class T, bool kMomentum>
__global__ void __launch_bounds__(kThreads) linf_kernel(const LinfArgs<T> a, bool aligned) {
  const bool per_row = a.step_stride != 0 || a.epsilon_stride != 0;
  for_packs(a.count, aligned, [&](int64_t i, int valid, bool wide) {
    // Computed once: a 64-bit division is slow.
    int64_t row = 0, left = kPack;  // left: elements until the next row
    if (per_row) {
      row = a.count <= 0xffffffffll ? static_cast<uint32_t>(i) / static_cast<uint32_t>(a.n) : i / a.n;
      left = (row + 1) * a.n - i;
    }
    LinfStep<T> by(a, row);
    const Pack<T> from = load(a.x_adv + i, valid, wide), grad = load(a.grad + i, valid, wide);
    const Pack<T> x = load(a.x + i, valid, wide);
    const Pack<T> before = kMomentum ? load(a.before + i, valid, wide) : x;
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (left == 0 && j < valid) {
        by = LinfStep<T>(a, ++row);
        left = a.n;
      }
      const Real<T> low = a.range.lower, high = a.range.upper;
      result.v[j] = linf_moved<T>(from.v[j], grad.v[j], x.v[j], by.step, by.epsilon, low, high);
      if constexpr (kMomentum)
        result.v[j] = linf_carried<T>(from.v[j], result.v[j], x.v[j], before.v[j], a.share, by.epsilon, low, high);
      if (!by.good || !a.range.holds(to_float(x.v[j]))) result.v[j] = not_a_number<T>();
      --left;
    }
    store(a.out + i, result, valid, wide);
  });
}

template <class T>
struct L1Work {
  const T* x_adv;
  const T* grad;
  const T* x;
  const double* step;
  int64_t step_stride;
  const int64_t* keep;
  int64_t keep_stride;
  T* out;
  int64_t n;
  Range<T> range;

  template <int kPer, class Group>
  __device__ void row(Group& group, int64_t i) const {
    L1StepRow<T, kPer, Group>(group, x_adv + i * n, grad + i * n, x + i * n, out + i * n, n, range.lower, range.upper)
        .step(step[i * step_stride], keep[i * keep_stride]);
  }
};

unsigned blocks_for(int64_t count) {
  constexpr int64_t kBlock = kThreads * kPack;
  return static_cast<unsigned>(std::min<int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
}

template <class T, class... P>
bool all_aligned(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % alignof(Pack<T>) == 0) && ...);
}

}  // namespace

template <class T>
cudaError_t add_perturbation(const T* x, const T* z, T* out, int64_t count, double lower, double upper,
                             cudaStream_t stream) {
  add_kernel<<<blocks_for(count), kThreads, 0, stream>>>(x, z, out, count, Range<T>(lower, upper),
                                                         all_aligned<T>(x, z, out));
  return cudaGetLastError();
}

template <class T>
cudaError_t linf_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                      const double* epsilon, int64_t epsilon_stride, T* out, int64_t rows, int64_t n, double lower,
                      double upper, cudaStream_t stream) {
  const LinfArgs<T> args{x_adv, grad,     x, step,           step_stride, epsilon, epsilon_stride,
                         out,   rows * n, n, {lower, upper}, nullptr,     0};
  linf_kernel<T, false><<<blocks_for(args.count), kThreads, 0, stream>>>(args, all_aligned<T>(x_adv, grad, x, out));
  return cudaGetLastError();
}

template <class T>
cudaError_t linf_momentum_step(const T* x_adv, const T* grad, const T* x, const T* before, const double* step,
                               int64_t step_stride, const double* epsilon, int64_t epsilon_stride, double share, T* out,
                               int64_t rows, int64_t n, double lower, double upper, cudaStream_t stream) {
  const LinfArgs<T> args{x_adv,
                         grad,
                         x,
                         step,
                         step_stride,
                         epsilon,
                         epsilon_stride,
                         out,
                         rows * n,
                         n,
                         {lower, upper},
                         before,
                         static_cast<Real<T>>(share)};
  linf_kernel<T, true>
      <<<blocks_for(args.count), kThreads, 0, stream>>>(args, all_aligned<T>(x_adv, grad, x, before, out));
  return cudaGetLastError();
}

template <class T>
cudaError_t l1_step(const T* x_adv, const T* grad, const T* x, const double* step, int64_t step_stride,
                    const int64_t* keep, int64_t keep_stride, T* out, int64_t rows, int64_t n, double lower,
                    double upper, cudaStream_t stream) {
  const L1Work<T> work{x_adv, grad, x, step, step_stride, keep, keep_stride, out, n, {lower, upper}};
  return for_rows(work, rows, n, stream);
}

#define PYROBUST_PERTURBATION(T)                                                                                      \
  template cudaError_t add_perturbation<T>(const T*, const T*, T*, int64_t, double, double, cudaStream_t);            \
  template cudaError_t linf_step<T>(const T*, const T*, const T*, const double*, int64_t, const double*, int64_t, T*, \
                                    int64_t, int64_t, double, double, cudaStream_t);                                  \
  template cudaError_t linf_momentum_step<T>(const T*, const T*, const T*, const T*, const double*, int64_t,          \
                                             const double*, int64_t, double, T*, int64_t, int64_t, double, double,    \
                                             cudaStream_t);                                                           \
  template cudaError_t l1_step<T>(const T*, const T*, const T*, const double*, int64_t, const int64_t*, int64_t, T*,  \
                                  int64_t, int64_t, double, double, cudaStream_t);
PYROBUST_PERTURBATION(float)
PYROBUST_PERTURBATION(double)
PYROBUST_PERTURBATION(Half)
PYROBUST_PERTURBATION(BFloat16)
#undef PYROBUST_PERTURBATION

}  // namespace pyrobust::cuda

// Launchers of csrc/*/cuda behind C names; their .cu files are compiled for the host (device/cuda_runtime_api.h).
#include "attacks/cuda/examples.h"
#include "attacks/cuda/logits.h"
#include "smoothing/cuda/count_votes.h"
#include "smoothing/cuda/sample_grid_noise.h"
#include "smoothing/cuda/sample_noise.h"

using namespace pyrobust;

namespace {

// Null, or a message on an error of the threads.
template <class Run>
const char* outcome(const Run& run) {
  try {
    return run() == cudaSuccess ? nullptr : "the launch failed";
  } catch (const char* error) {
    return error;
  }
}

// fn(a null pointer to the element type). dtype: 0 float, 1 double, 2 Half, 3 BFloat16.
template <class Fn>
cudaError_t for_dtype(int dtype, const Fn& fn) {
  if (dtype == 0) return fn(static_cast<float*>(nullptr));
  if (dtype == 1) return fn(static_cast<double*>(nullptr));
  if (dtype == 2) return fn(static_cast<Half*>(nullptr));
  return fn(static_cast<BFloat16*>(nullptr));
}

template <class Out>
using Real = std::conditional_t<std::is_same_v<Out, double>, double, float>;

}  // namespace

// mean, std: of float64 for a double batch and float32 for any other, or null.
extern "C" const char* sample_noise(int dtype, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                                    int64_t samples, int64_t channels, int64_t plane, int channels_last, const void* x,
                                    double sigma, const void* mean, const void* std, void* out) {
  return outcome([&] {
    return for_dtype(dtype, [&](auto* tag) {
      using Out = std::remove_pointer_t<decltype(tag)>;
      using R = Real<Out>;
      return cuda::sample_noise<Out, R>(domain, runs, run_count, {samples, channels, plane, channels_last != 0},
                                        static_cast<const R*>(x), static_cast<R>(sigma), static_cast<const R*>(mean),
                                        static_cast<const R*>(std), static_cast<Out*>(out), nullptr);
    });
  });
}

extern "C" const char* sample_grid_noise(int dtype, const uint32_t* guide, int entry_bits, const uint32_t* thresholds,
                                         int count, uint32_t domain, const NoiseRun* runs, int64_t run_count,
                                         int64_t samples, int64_t channels, int64_t plane, int channels_last,
                                         const int32_t* k, int64_t p, int64_t q, const void* mean, const void* std,
                                         void* out, uint8_t* tail) {
  return outcome([&] {
    return for_dtype(dtype, [&](auto* tag) {
      using Out = std::remove_pointer_t<decltype(tag)>;
      using R = Real<Out>;
      return cuda::sample_grid_noise<Out, R>({guide, thresholds, count, entry_bits}, domain, runs, run_count,
                                             {samples, channels, plane, channels_last != 0}, k, static_cast<R>(p),
                                             static_cast<R>(q), static_cast<const R*>(mean), static_cast<const R*>(std),
                                             static_cast<Out*>(out), tail, nullptr);
    });
  });
}

extern "C" const char* count_votes(int dtype, const void* logits, int64_t rows, int64_t classes, const int64_t* image,
                                   int64_t images, int64_t* counts) {
  return outcome([&] {
    return for_dtype(dtype, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      return cuda::count_votes<T>(static_cast<const T*>(logits), rows, classes, image, images, counts, nullptr);
    });
  });
}

extern "C" const char* put_rows(const bool* chosen, const char* source, char* target, int64_t rows, int64_t bytes) {
  return outcome([&] { return cuda::put_rows(chosen, source, target, rows, bytes, nullptr); });
}

extern "C" const char* count_changed(int dtype, const void* x_adv, const void* x, int64_t* count, int64_t rows,
                                     int64_t n) {
  return outcome([&] {
    return for_dtype(dtype, [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      return cuda::count_changed<T>(static_cast<const T*>(x_adv), static_cast<const T*>(x), count, rows, n, nullptr);
    });
  });
}

extern "C" const char* logit_loss(int dtype, int64_t loss, const void* logits, const int64_t* y, const int64_t* target,
                                  double* value, void* slope, double* size, int64_t rows, int64_t classes) {
  return outcome([&] {
    const auto run = [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      return cuda::logit_loss<T>(static_cast<LogitLoss>(loss), static_cast<const T*>(logits), y, target, value,
                                 static_cast<T*>(slope), size, rows, classes, nullptr);
    };
    return dtype == 0 ? run(static_cast<float*>(nullptr)) : run(static_cast<double*>(nullptr));
  });
}

extern "C" const char* logit_verdict(int dtype, const void* logits, const int64_t* y, int targeted, double tolerance,
                                     int both, uint8_t* verdict, int64_t rows, int64_t classes) {
  return outcome([&] {
    const auto run = [&](auto* tag) {
      using T = std::remove_pointer_t<decltype(tag)>;
      return cuda::logit_verdict<T>(static_cast<const T*>(logits), y, targeted != 0, tolerance, both != 0, verdict,
                                    rows, classes, nullptr);
    };
    return dtype == 0 ? run(static_cast<float*>(nullptr)) : run(static_cast<double*>(nullptr));
  });
}

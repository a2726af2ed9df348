// The current CUDA stream through torch's C shim. The symbol is weak: a build with CUDA also links and imports where
// torch has none, and there no CUDA tensor can reach these functions.
#pragma once

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>

#include "common/check.h"

extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace pyrobust {

inline cudaStream_t current_stream(const char* op, const Tensor& t) {
  check(aoti_torch_get_current_cuda_stream != nullptr, "CUDA: ", op,
        ": a CUDA tensor needs a torch that was built with CUDA");
  void* stream = nullptr;
  check(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream) == AOTI_TORCH_SUCCESS, op,
        ": torch has no current CUDA stream");
  return static_cast<cudaStream_t>(stream);
}

inline void check_launch(const char* op, cudaError_t error) {
  check(error == cudaSuccess, "CUDA: ", op, ": ", cudaGetErrorString(error));
}

}  // namespace pyrobust
#endif

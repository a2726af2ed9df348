// CPU loops on torch's threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include "common/denormals.h"
#include "common/parallel.h"

namespace pyrobust {

inline const cpu::ParallelFor kParallelFor = [](int64_t begin, int64_t end, int64_t grain, const auto& f) {
  torch::stable::parallel_for(begin, end, grain, [&](int64_t b, int64_t e) {
    const cpu::KeepDenormals keep;
    f(b, e);
  });
};

}  // namespace pyrobust

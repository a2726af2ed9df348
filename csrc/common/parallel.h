// Type of the function that runs a CPU loop on torch's threads, without including torch.
#pragma once

#include <cstdint>
#include <functional>

namespace pyrobust::cpu {

// parallel_for(begin, end, grain, f) calls f(b, e) for pieces of [begin, end), on several threads.
using ParallelFor = std::function<void(int64_t begin, int64_t end, int64_t grain,
                                       const std::function<void(int64_t begin, int64_t end)>&)>;

}  // namespace pyrobust::cpu

// How CPU loops are handed to torch's threads without knowing torch.
#pragma once

#include <cstdint>
#include <functional>

namespace pyrobust::cpu {

// parallel_for(begin, end, grain, f): f(b, e) for pieces of [begin, end), on several threads.
using ParallelFor = std::function<void(int64_t begin, int64_t end, int64_t grain,
                                       const std::function<void(int64_t begin, int64_t end)>&)>;

}  // namespace pyrobust::cpu

// The simplex and l1-ball loops for AVX-512.
#ifdef __x86_64__
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/lanes_avx512.h"
#include "cpu/project_l1_leaves.h"

#include "cpu/project_l1.inl"
#include "cpu/project_l1_fast.inl"

namespace pyrobust::cpu {

const L1LeafPair<float> kL1FloatAvx512 = kPair<float>;
const L1LeafPair<double> kL1DoubleAvx512 = kPair<double>;
const FastLeaves kFastAvx512 = kFast;

}  // namespace pyrobust::cpu
#endif

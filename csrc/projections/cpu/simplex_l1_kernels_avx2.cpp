// The simplex and l1-ball loops for AVX2.
#ifdef __x86_64__
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "projections/cpu/simplex_l1_kernels.h"
#include "simd/vec_avx2.h"

#include "projections/cpu/simplex_l1_kernels.inl"

#include "projections/cpu/simplex_l1_float32.inl"

namespace pyrobust::cpu {

const L1LeafPair<float> kL1FloatAvx2 = kPair<float>;
const L1LeafPair<double> kL1DoubleAvx2 = kPair<double>;
const FastLeaves kFastAvx2 = kFast;

}  // namespace pyrobust::cpu
#endif

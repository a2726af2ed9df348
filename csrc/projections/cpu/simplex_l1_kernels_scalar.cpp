// The simplex and l1-ball loops in plain C++, and for 16-bit floats.
#include <array>
#include <utility>

#include "projections/cpu/simplex_l1_kernels.h"
#include "simd/vec_scalar.h"

#include "projections/cpu/simplex_l1_kernels.inl"

#include "projections/cpu/simplex_l1_float32.inl"

namespace pyrobust::cpu {

const L1LeafPair<float> kL1FloatScalar = kPair<float>;
const L1LeafPair<double> kL1DoubleScalar = kPair<double>;
const FastLeaves kFastScalar = kFast;
const L1LeafPair<Half> kL1Half = kPair<Half>;
const L1LeafPair<BFloat16> kL1BFloat16 = kPair<BFloat16>;

}  // namespace pyrobust::cpu

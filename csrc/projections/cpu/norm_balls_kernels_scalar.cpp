// The loops of norm_balls in plain C++, and for 16-bit floats.
#include "projections/cpu/norm_balls_kernels.h"
#include "simd/vec_scalar.h"

#include "projections/cpu/norm_balls_kernels.inl"

namespace pyrobust::cpu {

const NormLeaves<float> kNormFloatScalar = kLeaves<float>;
const NormLeaves<double> kNormDoubleScalar = kLeaves<double>;
const NormLeaves<Half> kNormHalf = kLeaves<Half>;
const NormLeaves<BFloat16> kNormBFloat16 = kLeaves<BFloat16>;

}  // namespace pyrobust::cpu

// The loops of the l1 ball within a box in plain C++, and for 16-bit floats.
#include "projections/cpu/l1_box_kernels.h"
#include "simd/vec_scalar.h"

#include "projections/cpu/l1_box_kernels.inl"

#include "projections/cpu/l1_box_float32.inl"
#include "projections/cpu/l1_box_short_rows.inl"

namespace pyrobust::cpu {

const L1BoxLeaves<float> kL1BoxFloatScalar = kLeaves<float>;
const L1BoxLeaves<double> kL1BoxDoubleScalar = kLeaves<double>;
const FastBoxLeaves kFastBoxScalar = kFastLeaves;
const L1BoxLeaves<Half> kL1BoxHalf = kLeaves<Half>;
const L1BoxLeaves<BFloat16> kL1BoxBFloat16 = kLeaves<BFloat16>;

}  // namespace pyrobust::cpu

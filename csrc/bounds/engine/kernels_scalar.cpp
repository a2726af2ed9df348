// The loops of crown_leaves.h and bound_leaves.h in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/engine/kernels.h"
#include "bounds/engine/network.h"
#include "bounds/engine/relaxation_kernels.h"
#include "simd/vec_scalar.h"

#include "bounds/engine/kernels.inl"
#include "bounds/engine/relaxation_kernels.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatScalar = kCrown<float>;
const CrownLeaves<double> kCrownDoubleScalar = kCrown<double>;
const LineLeaves<float> kLinesFloatScalar = kLines<float>;
const LineLeaves<double> kLinesDoubleScalar = kLines<double>;

}  // namespace pyrobust::cpu

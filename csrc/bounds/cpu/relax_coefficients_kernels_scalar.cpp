// The loops of relax_coefficients in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/relax_coefficients_kernels.h"
#include "simd/vec_scalar.h"

#include "bounds/cpu/relax_coefficients_kernels.inl"

namespace pyrobust::cpu {

const RelaxLeaves<float> kRelaxFloatScalar = kLeaves<float>;
const RelaxLeaves<double> kRelaxDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

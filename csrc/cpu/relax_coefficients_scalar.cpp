// The loops of relax_coefficients in plain C++.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_scalar.h"
#include "cpu/relax_coefficients_leaves.h"

#include "cpu/relax_coefficients.inl"

namespace pyrobust::cpu {

const RelaxLeaves<float> kRelaxFloatScalar = kLeaves<float>;
const RelaxLeaves<double> kRelaxDoubleScalar = kLeaves<double>;

}  // namespace pyrobust::cpu

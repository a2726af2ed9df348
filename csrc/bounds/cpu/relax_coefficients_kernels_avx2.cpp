// The loops of relax_coefficients for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/relax_coefficients_kernels.h"
#include "simd/vec_avx2.h"

#include "bounds/cpu/relax_coefficients_kernels.inl"

namespace pyrobust::cpu {

const RelaxLeaves<float> kRelaxFloatAvx2 = kLeaves<float>;
const RelaxLeaves<double> kRelaxDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

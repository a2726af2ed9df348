// The loops of relax_coefficients for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "bounds/cpu/relax_coefficients_kernels.h"
#include "simd/vec_avx512.h"

#include "bounds/cpu/relax_coefficients_kernels.inl"

namespace pyrobust::cpu {

const RelaxLeaves<float> kRelaxFloatAvx512 = kLeaves<float>;
const RelaxLeaves<double> kRelaxDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

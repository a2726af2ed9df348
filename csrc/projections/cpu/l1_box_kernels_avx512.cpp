// The loops of the l1 ball within a box for AVX-512.
#ifdef __x86_64__
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/l1_box_kernels.h"
#include "simd/vec_avx512.h"

#include "projections/cpu/l1_box_kernels.inl"

#include "projections/cpu/l1_box_float32.inl"
#include "projections/cpu/l1_box_short_rows.inl"

namespace pyrobust::cpu {

const L1BoxLeaves<float> kL1BoxFloatAvx512 = kLeaves<float>;
const L1BoxLeaves<double> kL1BoxDoubleAvx512 = kLeaves<double>;
const FastBoxLeaves kFastBoxAvx512 = kFastLeaves;

}  // namespace pyrobust::cpu
#endif

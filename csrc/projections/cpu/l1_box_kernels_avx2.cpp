// The loops of the l1 ball within a box for AVX2.
#ifdef __x86_64__
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "projections/cpu/l1_box_kernels.h"
#include "simd/vec_avx2.h"

#include "projections/cpu/l1_box_kernels.inl"

#include "projections/cpu/l1_box_float32.inl"
#include "projections/cpu/l1_box_short_rows.inl"

namespace pyrobust::cpu {

const L1BoxLeaves<float> kL1BoxFloatAvx2 = kLeaves<float>;
const L1BoxLeaves<double> kL1BoxDoubleAvx2 = kLeaves<double>;
const FastBoxLeaves kFastBoxAvx2 = kFastLeaves;

}  // namespace pyrobust::cpu
#endif

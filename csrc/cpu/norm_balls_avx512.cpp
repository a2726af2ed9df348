// The loops of norm_balls for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_avx512.h"
#include "cpu/norm_balls_leaves.h"

#include "cpu/norm_balls.inl"

namespace pyrobust::cpu {

const NormLeaves<float> kNormFloatAvx512 = kLeaves<float>;
const NormLeaves<double> kNormDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

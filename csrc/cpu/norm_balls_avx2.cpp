// The loops of norm_balls for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_avx2.h"
#include "cpu/norm_balls_leaves.h"

#include "cpu/norm_balls.inl"

namespace pyrobust::cpu {

const NormLeaves<float> kNormFloatAvx2 = kLeaves<float>;
const NormLeaves<double> kNormDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

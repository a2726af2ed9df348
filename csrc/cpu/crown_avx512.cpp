// The loops of crown_leaves.h and bound_leaves.h for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/bound_leaves.h"
#include "cpu/bound_network.h"
#include "cpu/crown_leaves.h"
#include "cpu/lanes_avx512.h"

#include "cpu/bound_lines.inl"
#include "cpu/crown.inl"

namespace pyrobust::cpu {

const CrownLeaves<float> kCrownFloatAvx512 = kCrown<float>;
const CrownLeaves<double> kCrownDoubleAvx512 = kCrown<double>;
const LineLeaves<float> kLinesFloatAvx512 = kLines<float>;
const LineLeaves<double> kLinesDoubleAvx512 = kLines<double>;

}  // namespace pyrobust::cpu
#endif

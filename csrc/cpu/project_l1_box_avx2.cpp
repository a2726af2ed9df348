// The loops of the l1 ball within a box for AVX2.
#ifdef __x86_64__
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_avx2.h"
#include "cpu/project_l1_box_leaves.h"

#include "cpu/project_l1_box.inl"
#include "cpu/project_l1_box_fast.inl"
#include "cpu/project_l1_box_short.inl"

namespace pyrobust::cpu {

const L1BoxLeaves<float> kL1BoxFloatAvx2 = kLeaves<float>;
const L1BoxLeaves<double> kL1BoxDoubleAvx2 = kLeaves<double>;
const FastBoxLeaves kFastBoxAvx2 = kFastLeaves;

}  // namespace pyrobust::cpu
#endif

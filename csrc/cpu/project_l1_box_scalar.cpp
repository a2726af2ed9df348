// The loops of the l1 ball within a box in plain C++, and for 16-bit floats.
#include "cpu/lanes_scalar.h"
#include "cpu/project_l1_box_leaves.h"

#include "cpu/project_l1_box.inl"
#include "cpu/project_l1_box_fast.inl"
#include "cpu/project_l1_box_short.inl"

namespace pyrobust::cpu {

const L1BoxLeaves<float> kL1BoxFloatScalar = kLeaves<float>;
const L1BoxLeaves<double> kL1BoxDoubleScalar = kLeaves<double>;
const FastBoxLeaves kFastBoxScalar = kFastLeaves;
const L1BoxLeaves<Half> kL1BoxHalf = kLeaves<Half>;
const L1BoxLeaves<BFloat16> kL1BoxBFloat16 = kLeaves<BFloat16>;

}  // namespace pyrobust::cpu

// The simplex and l1-ball loops in plain C++, and for 16-bit floats.
#include <array>
#include <utility>

#include "cpu/lanes_scalar.h"
#include "cpu/project_l1_leaves.h"

#include "cpu/project_l1.inl"
#include "cpu/project_l1_fast.inl"

namespace pyrobust::cpu {

const L1LeafPair<float> kL1FloatScalar = kPair<float>;
const L1LeafPair<double> kL1DoubleScalar = kPair<double>;
const FastLeaves kFastScalar = kFast;
const L1LeafPair<Half> kL1Half = kPair<Half>;
const L1LeafPair<BFloat16> kL1BFloat16 = kPair<BFloat16>;

}  // namespace pyrobust::cpu

// The loops of perturbation in plain C++, and for 16-bit floats.
#include "cpu/perturbation_leaves.h"

#define PYROBUST_TARGET
#include "cpu/perturbation.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatScalar = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleScalar = kLeaves<double>;
const PerturbationLeaves<Half> kPerturbationHalf = kLeaves<Half>;
const PerturbationLeaves<BFloat16> kPerturbationBFloat16 = kLeaves<BFloat16>;

}  // namespace pyrobust::cpu

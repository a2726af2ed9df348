// The loops of perturbation in plain C++, and for 16-bit floats.
#include "attacks/cpu/steps_kernels.h"

#define PYROBUST_TARGET
#include "attacks/cpu/steps_kernels.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatScalar = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleScalar = kLeaves<double>;
const PerturbationLeaves<Half> kPerturbationHalf = kLeaves<Half>;
const PerturbationLeaves<BFloat16> kPerturbationBFloat16 = kLeaves<BFloat16>;

}  // namespace pyrobust::cpu

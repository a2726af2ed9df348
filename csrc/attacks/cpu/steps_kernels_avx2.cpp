// The loops of perturbation for AVX2.
#ifdef __x86_64__
#include "attacks/cpu/steps_kernels.h"

#define PYROBUST_TARGET __attribute__((target("avx2,fma,f16c")))
#include "attacks/cpu/steps_kernels.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx2 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

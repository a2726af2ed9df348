// The loops of perturbation for AVX2.
#ifdef __x86_64__
#include "cpu/perturbation_leaves.h"

#define PYROBUST_TARGET __attribute__((target("avx2,fma,f16c")))
#include "cpu/perturbation.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx2 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

// The loops of perturbation for AVX-512.
#ifdef __x86_64__
#include "cpu/perturbation_leaves.h"

#define PYROBUST_TARGET __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))
#include "cpu/perturbation.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx512 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

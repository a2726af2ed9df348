// The loops of perturbation for AVX-512.
#ifdef __x86_64__
#include "attacks/cpu/steps_kernels.h"

#define PYROBUST_TARGET __attribute__((target("avx512f,avx512vl,avx2,fma,f16c")))
#include "attacks/cpu/steps_kernels.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx512 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

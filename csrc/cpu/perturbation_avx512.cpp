// The loops of perturbation for AVX-512.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_avx512.h"
#include "cpu/perturbation_leaves.h"

#include "cpu/perturbation.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx512 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx512 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

// The loops of perturbation for AVX2.
#ifdef __x86_64__
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/lanes_avx2.h"
#include "cpu/perturbation_leaves.h"

#include "cpu/perturbation.inl"

namespace pyrobust::cpu {

const PerturbationLeaves<float> kPerturbationFloatAvx2 = kLeaves<float>;
const PerturbationLeaves<double> kPerturbationDoubleAvx2 = kLeaves<double>;

}  // namespace pyrobust::cpu
#endif

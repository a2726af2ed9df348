// In a file of its own, because the hash changes with every source file.
#include "build_facts.h"

#ifdef PYROBUST_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace pyrobust {

BuildFacts build_facts() {
  BuildFacts facts{PYROBUST_COMPILER, PYROBUST_TORCH_VERSION, PYROBUST_SOURCES, {}, {}};
#ifdef PYROBUST_WITH_CUDA
  facts.cuda = std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
  facts.cuda_architectures = PYROBUST_CUDA_ARCHITECTURES;
#endif
  return facts;
}

}  // namespace pyrobust

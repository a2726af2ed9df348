// What the native module says about its build.
#pragma once

#include <optional>
#include <string>

namespace pyrobust {

struct BuildFacts {
  std::string compiler, torch_headers;
  std::string sources;  // their hash
  std::optional<std::string> cuda, cuda_architectures;
};

BuildFacts build_facts();

}  // namespace pyrobust

// pyrobust._C: build facts. Importing it also registers the ops with torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "bounds/engine/python_binding.h"
#include "build_facts.h"
#include "common/denormals.h"
#include "simd/dispatch.h"

namespace py = pybind11;
namespace cpu = pyrobust::cpu;

namespace {

std::vector<std::string> simd_levels() {
  std::vector<std::string> names;
  for (cpu::Simd level : cpu::simd_levels()) names.emplace_back(cpu::simd_name(level));
  return names;
}

void set_simd_level(const std::string& name) {
  std::string known;
  for (cpu::Simd level : cpu::simd_levels()) {
    if (name == cpu::simd_name(level)) {
      cpu::set_simd_level(level);
      return;
    }
    if (!known.empty()) known += ", ";
    known += cpu::simd_name(level);
  }
  throw std::invalid_argument("set_simd_level: name: expected one of " + known + ", got " + name);
}

py::dict build_info() {
  const pyrobust::BuildFacts facts = pyrobust::build_facts();
  py::dict info;
  info["compiler"] = facts.compiler;
  info["torch_headers"] = facts.torch_headers;
  info["sources"] = facts.sources;
  info["cuda"] = facts.cuda;
  info["cuda_architectures"] = facts.cuda_architectures;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Build facts of the native code; importing it registers torch.ops.pyrobust.";
  m.def("build_info", &build_info, "Compiler, torch headers, CUDA version and architectures this build was made with.");
  m.def("simd_levels", &simd_levels, "SIMD levels this machine can run, lowest first.");
  m.def("simd_level", [] { return std::string(cpu::simd_name(cpu::simd_level())); }, "The SIMD level in use.");
  m.def("set_simd_level", &set_simd_level, py::arg("name"),
        "Use another SIMD level for the whole process; the ops give the same bits, bounds hold at each.");
  m.def("num_threads", [] { return torch::stable::get_num_threads(); }, "Threads the CPU kernels use: torch's.");
  m.def("flushes_denormals", &cpu::flushes_denormals,
        "Whether this thread takes numbers below the smallest normal one for zero.");
  pyrobust::bind_bound_networks(m);
}

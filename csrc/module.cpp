// pyrobust._C: build facts. Importing it also registers the ops with torch.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/stable/ops.h>

#include "bounds/engine/python_binding.h"
#include "build_facts.h"
#include "common/denormals.h"
#include "common/grid_levels.h"
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

// x: [N], float32 or float64; levels: [N] or none; step p/q of positive integers below 2^24.
template <class X>
int64_t grid_levels(const py::array_t<X, py::array::c_style>& x, int64_t p, int64_t q, bool in_float32,
                    std::optional<py::array_t<int32_t, py::array::c_style>> levels) {
  if (p < 1 || q < 1 || p >= pyrobust::kExact || q >= pyrobust::kExact)
    throw std::invalid_argument("grid_levels: step: expected positive integers below 2**24");
  if (levels && levels->size() != x.size())
    throw std::invalid_argument("grid_levels: levels: expected one for each value");
  int32_t* k = levels ? levels->mutable_data() : nullptr;
  const py::gil_scoped_release released;
  return in_float32 ? pyrobust::GridLevels<float, X>(p, q).convert(x.data(), x.size(), k)
                    : pyrobust::GridLevels<double, X>(p, q).convert(x.data(), x.size(), k);
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
  const char* const levels =
      "Write the multiples of p/q that the values are nearest to; return the first that is none, or N.";
  m.def("grid_levels", &grid_levels<float>, py::arg("x").noconvert(), py::arg("p"), py::arg("q"), py::arg("in_float32"),
        py::arg("levels").noconvert() = py::none(), levels);
  m.def("grid_levels", &grid_levels<double>, py::arg("x").noconvert(), py::arg("p"), py::arg("q"),
        py::arg("in_float32"), py::arg("levels").noconvert() = py::none(), levels);
  pyrobust::bind_bound_networks(m);
}

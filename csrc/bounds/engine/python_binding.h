// The engine's Python classes, which module.cpp binds besides the build facts.
#pragma once

#include <pybind11/pybind11.h>

namespace pyrobust {

void bind_bound_networks(pybind11::module_& m);

}  // namespace pyrobust

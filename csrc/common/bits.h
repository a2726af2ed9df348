// Reinterpreting a value's bits, on host and device.
#pragma once

#include <cstring>

#include "common/host_device.h"

namespace pyrobust {

template <class To, class From>
PYROBUST_HD To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace pyrobust

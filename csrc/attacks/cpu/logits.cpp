#include "attacks/cpu/logits.h"

#include <algorithm>

namespace pyrobust::cpu {
namespace {

// Number of rows from which the exponentials justify a second thread.
int64_t grain(int64_t classes) { return std::max<int64_t>(1, 4096 / classes); }

}  // namespace

template <class T>
void logit_loss(LogitLoss loss, const T* logits, const int64_t* y, const int64_t* target, double* value, T* slope,
                double* size, int64_t rows, int64_t classes, const ParallelFor& parallel_for) {
  parallel_for(0, rows, grain(classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowLoss row =
          pyrobust::logit_loss(loss, logits + i * classes, classes, y[i], target[i], slope + i * classes);
      value[i] = row.value;
      size[i] = row.size;
    }
  });
}

template <class T>
void logit_verdict(const T* logits, const int64_t* y, bool targeted, double tolerance, bool both, uint8_t* verdict,
                   int64_t rows, int64_t classes, const ParallelFor& parallel_for) {
  parallel_for(0, rows, 4 * grain(classes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      verdict[i] = pyrobust::logit_verdict(logits + i * classes, classes, y[i], targeted, tolerance, both);
  });
}

#define PYROBUST_LOGITS(T)                                                                                        \
  template void logit_loss<T>(LogitLoss, const T*, const int64_t*, const int64_t*, double*, T*, double*, int64_t, \
                              int64_t, const ParallelFor&);                                                       \
  template void logit_verdict<T>(const T*, const int64_t*, bool, double, bool, uint8_t*, int64_t, int64_t,        \
                                 const ParallelFor&);
PYROBUST_LOGITS(float)
PYROBUST_LOGITS(double)
#undef PYROBUST_LOGITS

}  // namespace pyrobust::cpu

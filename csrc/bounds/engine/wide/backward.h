// Backward passes of a wide network from its output: all rows of several examples at once, [row][neuron], products by
// the library.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bounds/engine/example_state.h"
#include "bounds/engine/wide/library_products.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// A linear function of the outputs: sign times one of them, or, unless label is -1, times the label's output less it.
struct OutputRow {
  int64_t output = 0, label = -1;
  bool positive = true;
};

template <class T>
class WideBackward {
 public:
  WideBackward(const BoundNetwork<T>& network, const BoundOptions& options, const LibraryProduct<T>& product,
               const ParallelFor& parallel_for);

  // Lower bounds of linear functions of the output, each on the set of one example: rows [count][outputs] or, where that
  // is null, the output rows. Writes -inf where none could be proved.
  void run(const std::vector<ExampleState<T>>& examples, const std::vector<int64_t>& example, const T* rows,
           const std::vector<OutputRow>& output_rows, double* bounds);

  // Largest number of rows of one pass: more gain nothing. dense: rows of all outputs.
  int64_t most_rows(bool dense) const;

 private:
  // Coefficients of one layer; `shared` data belongs to the library.
  struct Part {
    std::unique_ptr<T[]> own;
    std::shared_ptr<void> shared;
    T* a = nullptr;
  };
  Part& part(int64_t i) { return parts_[static_cast<size_t>(i)]; }
  int64_t size_of(int64_t i) const { return network_.layer(i).shape.size(); }
  const LayerState<T>& state(int64_t i, int64_t row) const {
    return (*examples_)[static_cast<size_t>((*example_)[static_cast<size_t>(row)])][i];
  }

  template <class F>
  void for_blocks(int64_t n, const F& f);
  T* zeros(int64_t i);
  void start(const std::vector<OutputRow>& rows);
  void put(int64_t i, Part&& coefficients);
  void visit(int64_t i);
  bool stops(const Layer<T>& layer) const { return !options_.to_input && layer.stops_intervals(); }
  void elementwise(int64_t i);
  void sum(int64_t i);
  void gather(int64_t i);
  void maximum(int64_t i);
  void take_in();
  void take_range(int64_t i);

  const BoundNetwork<T>& network_;
  BoundOptions options_;
  const LibraryProduct<T>& product_;
  const ParallelFor& parallel_for_;
  std::vector<Part> parts_;
  const std::vector<ExampleState<T>>* examples_ = nullptr;
  const std::vector<int64_t>* example_ = nullptr;
  std::vector<double> bias_;
};

extern template class WideBackward<float>;
extern template class WideBackward<double>;

}  // namespace pyrobust::cpu

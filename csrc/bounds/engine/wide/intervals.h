// The interval pass of a wide network: layer by layer for all examples of a chunk, products by the library, everything
// else in one pass over the ranges.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bounds/engine/example_state.h"
#include "bounds/engine/wide/library_products.h"
#include "common/parallel.h"

namespace pyrobust::cpu {

// Memory that several layers use in turn: fresh pages for each layer would cost a large part of the time.
template <class T>
struct Buffer {
  std::unique_ptr<T[]> memory;
  int64_t capacity = 0;
  T* get() const { return memory.get(); }
  explicit operator bool() const { return memory != nullptr; }
};
template <class T>
class BufferPool {
 public:
  // At least n numbers, uninitialised.
  Buffer<T> take(int64_t n) {
    size_t best = free_.size();
    for (size_t k = 0; k < free_.size(); ++k)
      if (free_[k].capacity >= n && (best == free_.size() || free_[k].capacity < free_[best].capacity)) best = k;
    if (best == free_.size() || free_[best].capacity > 2 * n + 1024)
      return {std::make_unique_for_overwrite<T[]>(static_cast<size_t>(n)), n};
    Buffer<T> found = std::move(free_[best]);
    free_.erase(free_.begin() + static_cast<int64_t>(best));
    return found;
  }
  void give_back(Buffer<T>& buffer) {
    if (buffer) free_.push_back(std::move(buffer));
    buffer = {};
    // Layers shrink towards the output, so keeping more memory for later layers is not worth it.
    if (free_.size() > 6) free_.erase(free_.begin());
  }

 private:
  std::vector<Buffer<T>> free_;
};

template <class T>
class WideIntervals {
 public:
  // reached: [layers of the network], whether a backward pass can reach a layer.
  WideIntervals(const BoundNetwork<T>& network, const std::vector<uint8_t>& reached, const BoundOptions& options,
                const LibraryProduct<T>& product, const ParallelFor& parallel_for);

  // Whether the ranges of layer i are also needed by example.
  bool hands_out(int64_t i) const { return handed_out_[static_cast<size_t>(i)] != 0; }

  // Loads the inputs of `count` examples from `first` on.
  void begin(const InputSet& inputs, int64_t first, int64_t count);
  // Computes the range of layer i, and stores it for each example where a backward pass or its preparation reads it.
  void run(int64_t i, std::vector<ExampleState<T>>& examples);
  // Writes the ranges of the output, [count][outputs]; upper may be null.
  void store_output(double* lower, double* upper);
  // Takes over the ranges of layer i, which a backward pass has improved.
  void take(int64_t i, const std::vector<ExampleState<T>>& examples);

 private:
  // [count][size] each; sum only where it is needed.
  struct Ranges {
    Buffer<T> lower, upper, sum;
  };
  Ranges& make(int64_t i);
  const Ranges& ranges(int64_t i) const { return ranges_[static_cast<size_t>(i)]; }
  Ranges& ranges(int64_t i) { return ranges_[static_cast<size_t>(i)]; }
  int64_t size_of(int64_t i) const { return network_.layer(i).shape.size(); }
  bool is_reached(int64_t i) const { return reached_[static_cast<size_t>(i)] != 0; }

  template <class F>
  void for_blocks(int64_t n, const F& f) const;
  void products(int64_t i);
  LibraryResult<T> multiply(int64_t i, Product product, int64_t batch, const T* in) const;
  // Computes center, radius and, unless null, magnitude (see BatchFirstKernels::spread) of the ranges of layer i.
  void spread(int64_t i, double share, double more, T* center, T* radius, T* magnitude) const;
  void scale(int64_t i);
  void sum(int64_t i);
  void gather(int64_t i);
  void maximum(int64_t i);
  void other(int64_t i);
  bool library(const Layer<T>& layer) const {
    return layer.products() && layer.multiplications() >= options_.library_least;
  }
  void hand_out(int64_t i, std::vector<ExampleState<T>>& examples);

  const BoundNetwork<T>& network_;
  const std::vector<uint8_t>& reached_;
  BoundOptions options_;
  const LibraryProduct<T>& product_;
  const ParallelFor& parallel_for_;
  double largest_;                          // of the deployed pass
  std::vector<uint8_t> sums_, handed_out_;  // by layer: whether sums, or ranges by example, are needed
  bool input_multiplied_ = true;            // whether only the library reads the input
  const InputSet* given_ = nullptr;         // the input, if it is read as given
  int64_t first_ = 0;
  std::vector<std::vector<int64_t>> freed_;  // by layer: the layers that it is the last to read
  std::vector<Ranges> ranges_;
  BufferPool<T> pool_;
  int64_t count_ = 0;
};

extern template class WideIntervals<float>;
extern template class WideIntervals<double>;

}  // namespace pyrobust::cpu

// What a caller learns about long work, and how the caller ends it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace pyrobust::cpu {

// Counts, for each layer, the rows of backward passes from it that are done and those that turned out not to be needed,
// and the examples whose intervals are done. Any thread counts; the thread that made the watch tells the caller, at
// most once in `every`.
class Watch {
 public:
  struct Work {
    std::vector<int64_t> rows, spared;
    int64_t examples = 0;
  };
  // Returns whether there is time for more work.
  using Tell = std::function<bool(const Work& work)>;

  Watch(Tell tell, double every, int64_t layers)
      : tell_(std::move(tell)),
        every_(every),
        rows_(static_cast<size_t>(layers)),
        spared_(static_cast<size_t>(layers), 0) {}

  bool ended() const { return ended_.load(std::memory_order_relaxed); }
  void add_rows(int64_t layer, int64_t count) {
    rows_[static_cast<size_t>(layer)].fetch_add(count, std::memory_order_relaxed);
    if (std::this_thread::get_id() == owner_) look();
  }
  // On the thread that made the watch.
  void spare_rows(int64_t layer, int64_t count) { spared_[static_cast<size_t>(layer)] += count; }
  void add_examples(int64_t count) {
    examples_ += count;
    look();
  }

 private:
  void look() {
    const auto now = std::chrono::steady_clock::now();
    if (ended() || std::chrono::duration<double>(now - last_).count() < every_) return;
    last_ = now;
    if (!tell_({{rows_.begin(), rows_.end()}, spared_, examples_})) ended_ = true;
  }

  const Tell tell_;
  const double every_;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::atomic<bool> ended_{false};
  std::vector<std::atomic<int64_t>> rows_;
  std::vector<int64_t> spared_;
  int64_t examples_ = 0;
};

}  // namespace pyrobust::cpu

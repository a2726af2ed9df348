// A group of CUDA threads (csrc/projections/cuda/row.h) on the host: every thread is a fiber within one operating-system
// thread. A fiber runs until it reaches a collective operation of the group, then yields to the next. When all have
// reached it, the operation runs for all of them, with the same tree of partial results as on a device
// (csrc/projections/cuda/groups.cuh).
//
// Fibers that reach different operations, or end while others wait, are errors: on a device they would hang or read
// uninitialized memory. Every second round runs in reverse, since the order of threads must not matter.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace pyrobust::emulation {

// kShuffle: the value of the thread of the warp whose lane differs by values[1]; kMatch: the lanes of the warp that hold
// the same value.
enum class Kind { kSumOfFloats, kSumOfDoubles, kSumOfIntegers, kLargest, kAny, kShuffle, kMatch };

constexpr int kMostValues = 3;  // per operation, as in groups.cuh

// Conversion of a reduction's value to a 64-bit word and back.
template <class R>
uint64_t packed(R value) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}
template <class R>
R unpacked(uint64_t word) {
  R value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// Input and output of one thread in a collective operation.
struct Request {
  Kind kind;
  int count;
  std::array<uint64_t, kMostValues> values;
};

template <class R>
constexpr Kind kind_of() {
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double> || std::is_same_v<R, int64_t>);
  return std::is_same_v<R, float> ? Kind::kSumOfFloats
                                  : (std::is_same_v<R, double> ? Kind::kSumOfDoubles : Kind::kSumOfIntegers);
}

class Scheduler {
 public:
  explicit Scheduler(int size) : size_(size), fibers_(size) {
    for (Fiber& fiber : fibers_) fiber.stack.reset(new char[kStack]);
  }

  // Runs body(rank) once for every thread of the group.
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    running_ = this;
    for (Fiber& fiber : fibers_) {
      fiber.ended = false;
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = nullptr;
      makecontext(&fiber.context, &Scheduler::enter, 0);
    }
    for (;;) {
      backwards_ = !backwards_;
      for (int i = 0; i < size_; ++i) {
        rank_ = backwards_ ? size_ - 1 - i : i;
        if (!fibers_[rank_].ended) swapcontext(&main_, &fibers_[rank_].context);
      }
      const auto ended = std::count_if(fibers_.begin(), fibers_.end(), [](const Fiber& fiber) { return fiber.ended; });
      if (ended == size_) return;
      if (ended > 0) throw std::runtime_error("some threads have ended, others wait");
      operate();
    }
  }

  // Called by a fiber: yields to the others until all have reached the operation.
  Request meet(const Request& request) {
    Fiber& fiber = fibers_[rank_];
    fiber.request = request;
    swapcontext(&fiber.context, &main_);
    return fiber.request;
  }

  static Scheduler& running() { return *running_; }
  int rank() const { return rank_; }  // of the running fiber

 private:
  static constexpr size_t kStack = 65536;

  struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool ended = false;
    Request request;
  };

  static void enter() {
    Scheduler& self = *running_;
    const int rank = self.rank_;
    (*self.body_)(rank);
    self.fibers_[rank].ended = true;
    swapcontext(&self.fibers_[rank].context, &self.main_);
  }

  void operate() {
    const Request& first = fibers_[0].request;
    for (const Fiber& fiber : fibers_)
      if (fiber.request.kind != first.kind || fiber.request.count != first.count)
        throw std::runtime_error("threads have reached different operations");
    if (first.kind == Kind::kShuffle || first.kind == Kind::kMatch) return within_warps(first.kind);
    for (int c = 0; c < first.count; ++c) {
      if (first.kind == Kind::kSumOfFloats)
        reduce<float>(c, [](float a, float b) { return a + b; });
      else if (first.kind == Kind::kSumOfDoubles)
        reduce<double>(c, [](double a, double b) { return a + b; });
      else if (first.kind == Kind::kSumOfIntegers)
        reduce<int64_t>(c, [](int64_t a, int64_t b) { return a + b; });
      else if (first.kind == Kind::kLargest)
        reduce<double>(c, [](double a, double b) { return a > b ? a : b; });
      else
        reduce<int64_t>(c, [](int64_t a, int64_t b) { return a | b; });
    }
  }

  void within_warps(Kind kind) {
    std::vector<std::array<uint64_t, kMostValues>> before(size_);
    for (int i = 0; i < size_; ++i) before[i] = fibers_[i].request.values;
    for (int i = 0; i < size_; ++i) {
      uint64_t& result = fibers_[i].request.values[0];
      const int warp = i / 32 * 32;
      if (before[i][1] != before[warp][1]) throw std::runtime_error("threads of a warp shuffle differently");
      if (kind == Kind::kShuffle) {
        result = before[warp + ((i - warp) ^ static_cast<int>(before[i][1]))][0];
        continue;
      }
      result = 0;
      for (int lane = 0; lane < 32 && warp + lane < size_; ++lane)
        result |= static_cast<uint64_t>(before[warp + lane][0] == before[i][0]) << lane;
    }
  }

  // Reduces threads of a warp in pairs, then warps in pairs; all threads must get the same bits.
  template <class R, class Op>
  void reduce(int c, const Op& op) {
    std::vector<R> values(size_);
    for (int i = 0; i < size_; ++i) values[i] = unpacked<R>(fibers_[i].request.values[c]);
    butterfly(values, std::min(size_, 32), op);
    if (const int warps = size_ / 32; warps > 1) {
      const std::vector<R> partial = values;
      for (int i = 0; i < size_; ++i) values[i] = partial[32 * (i % warps)];
      butterfly(values, warps, op);
    }
    for (int i = 0; i < size_; ++i) {
      const uint64_t word = packed(values[i]);
      if (word != packed(values[0]) && values[i] == values[i]) throw std::runtime_error("threads got different bits");
      fibers_[i].request.values[c] = word;
    }
  }

  template <class R, class Op>
  static void butterfly(std::vector<R>& values, int width, const Op& op) {
    for (int offset = width / 2; offset > 0; offset /= 2) {
      const std::vector<R> before = values;
      for (size_t i = 0; i < values.size(); ++i) values[i] = op(before[i], before[i ^ static_cast<size_t>(offset)]);
    }
  }

  inline static Scheduler* running_ = nullptr;
  const int size_;
  std::vector<Fiber> fibers_;
  ucontext_t main_;
  const std::function<void(int)>* body_ = nullptr;
  int rank_ = 0;
  bool backwards_ = true;
};

// A thread's view of its group, in place of Lanes and Block of groups.cuh.
template <int kSize>
class Threads {
 public:
  explicit Threads(int rank) : rank_(rank) {}
  int rank() const { return rank_; }
  static constexpr int size() { return kSize; }

  template <class R, int kCount>
  void add(R (&a)[kCount]) {
    static_assert(kCount <= kMostValues);
    Request request{kind_of<R>(), kCount, {}};
    for (int c = 0; c < kCount; ++c) request.values[c] = packed(a[c]);
    request = Scheduler::running().meet(request);
    for (int c = 0; c < kCount; ++c) a[c] = unpacked<R>(request.values[c]);
  }
  double max(double a) {
    return unpacked<double>(Scheduler::running().meet({Kind::kLargest, 1, {packed(a + 0.0)}}).values[0]);
  }
  bool any(bool a) { return Scheduler::running().meet({Kind::kAny, 1, {packed<int64_t>(a)}}).values[0] != 0; }

 private:
  const int rank_;
};

// Runs body(group) on every thread of a group.
template <int kSize, class Body>
void with_threads(const Body& body) {
  static Scheduler scheduler(kSize);
  scheduler.run([&](int rank) {
    Threads<kSize> group(rank);
    body(group);
  });
}

}  // namespace pyrobust::emulation

// A group of CUDA threads (csrc/projections/cuda/row.h) on the host: every thread is a fiber within one operating-system
// thread. A fiber runs until it reaches a collective operation of the group, then yields to the next. When all have
// reached it, the operation runs for all of them, with the same tree of partial results as on a device
// (csrc/projections/cuda/groups.cuh).
//
// Fibers that reach different operations, or end while others wait, are errors: on a device they would hang or read
// uninitialized memory. They are thrown as text. Every second round runs in reverse, since the order of threads must not
// matter.
//
// Few headers of the standard library: to read those of strings, functions and containers would take longer than to
// compile the kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace pyrobust::emulation {

// kShuffle: the value of the thread of the warp whose lane differs by values[1]; kMatch: the lanes of the warp that hold
// the same value.
enum class Kind { kSumOfFloats, kSumOfDoubles, kSumOfIntegers, kLargest, kAny, kShuffle, kMatch };

constexpr int kMostValues = 3;  // per operation, as in groups.cuh
constexpr int kMostThreads = 1024;

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
  uint64_t values[kMostValues];
};

template <class R>
constexpr Kind kind_of() {
  static_assert(std::is_same_v<R, float> || std::is_same_v<R, double> || std::is_same_v<R, int64_t>);
  return std::is_same_v<R, float> ? Kind::kSumOfFloats
                                  : (std::is_same_v<R, double> ? Kind::kSumOfDoubles : Kind::kSumOfIntegers);
}

// Fibers last from run to run. They switch by jumps, which, other than switches of contexts, call no system.
class Scheduler {
 public:
  explicit Scheduler(int size) : size_(size), fibers_(new Fiber[size]) {}

  // Runs body(rank) once for every thread of the group.
  template <class Body>
  void run(const Body& body) {
    run([](const void* data, int rank) { (*static_cast<const Body*>(data))(rank); }, &body);
  }

  // Called by a fiber: yields to the others until all have reached the operation.
  Request meet(const Request& request) {
    Fiber& fiber = fibers_[rank_];
    fiber.request = request;
    yield(fiber);
    return fiber.request;
  }

  static Scheduler& running() { return *running_; }
  int size() const { return size_; }
  int rank() const { return rank_; }  // of the running fiber

 private:
  static constexpr size_t kStack = 65536;

  struct Fiber {
    jmp_buf place;
    bool begun = false, ended = false;
    Request request;
    char* stack = new char[kStack];
  };

  void run(void (*body)(const void*, int), const void* data) {
    body_ = body, data_ = data;
    running_ = this;
    for (int i = 0; i < size_; ++i) {
      fibers_[i].ended = false;
      if (failed_) fibers_[i].begun = false;
    }
    failed_ = true;
    for (;;) {
      backwards_ = !backwards_;
      int ended = 0;
      for (int i = 0; i < size_; ++i) {
        rank_ = backwards_ ? size_ - 1 - i : i;
        if (!fibers_[rank_].ended) resume(fibers_[rank_]);
      }
      for (int i = 0; i < size_; ++i) ended += fibers_[i].ended ? 1 : 0;
      if (ended == size_) break;
      if (ended > 0) throw "some threads have ended, others wait";
      operate();
    }
    failed_ = false;
  }

  void resume(Fiber& fiber) {
    if (_setjmp(main_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = kStack;
    context.uc_link = nullptr;
    makecontext(&context, &Scheduler::enter, 0);
    setcontext(&context);
  }

  void yield(Fiber& fiber) {
    if (_setjmp(fiber.place) == 0) _longjmp(main_, 1);
  }

  static void enter() {
    Scheduler& self = *running_;
    const int rank = self.rank_;
    for (;;) {
      self.body_(self.data_, rank);
      self.fibers_[rank].ended = true;
      self.yield(self.fibers_[rank]);
    }
  }

  void operate() {
    const Request& first = fibers_[0].request;
    for (int i = 1; i < size_; ++i)
      if (fibers_[i].request.kind != first.kind || fibers_[i].request.count != first.count)
        throw "threads have reached different operations";
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
    Request before[kMostThreads];
    for (int i = 0; i < size_; ++i) before[i] = fibers_[i].request;
    for (int i = 0; i < size_; ++i) {
      uint64_t& result = fibers_[i].request.values[0];
      const int warp = i / 32 * 32;
      const uint64_t with = before[i].values[1];
      if (with != before[warp].values[1]) throw "threads of a warp shuffle differently";
      if (kind == Kind::kShuffle) {
        result = before[warp + ((i - warp) ^ static_cast<int>(with))].values[0];
        continue;
      }
      result = 0;
      for (int lane = 0; lane < 32 && warp + lane < size_; ++lane)
        result |= static_cast<uint64_t>(before[warp + lane].values[0] == before[i].values[0]) << lane;
    }
  }

  // Reduces threads of a warp in pairs, then warps in pairs; all threads must get the same bits.
  template <class R, class Op>
  void reduce(int c, const Op& op) {
    R values[kMostThreads], partial[kMostThreads];
    for (int i = 0; i < size_; ++i) values[i] = unpacked<R>(fibers_[i].request.values[c]);
    butterfly(values, partial, size_ < 32 ? size_ : 32, op);
    if (const int warps = size_ / 32; warps > 1) {
      std::memcpy(partial, values, size_ * sizeof(R));
      for (int i = 0; i < size_; ++i) values[i] = partial[32 * (i % warps)];
      butterfly(values, partial, warps, op);
    }
    for (int i = 0; i < size_; ++i) {
      const uint64_t word = packed(values[i]);
      if (word != packed(values[0]) && values[i] == values[i]) throw "threads got different bits";
      fibers_[i].request.values[c] = word;
    }
  }

  template <class R, class Op>
  void butterfly(R* values, R* before, int width, const Op& op) {
    for (int offset = width / 2; offset > 0; offset /= 2) {
      std::memcpy(before, values, size_ * sizeof(R));
      for (int i = 0; i < size_; ++i) values[i] = op(before[i], before[i ^ offset]);
    }
  }

  inline static Scheduler* running_ = nullptr;
  const int size_;
  Fiber* const fibers_;  // never freed
  jmp_buf main_;
  void (*body_)(const void*, int) = nullptr;
  const void* data_ = nullptr;
  int rank_ = 0;
  bool backwards_ = true, failed_ = false;
};

// The scheduler of a number of threads.
inline Scheduler& scheduler_of(int size) {
  static Scheduler* schedulers[kMostThreads + 1] = {};
  if (schedulers[size] == nullptr) schedulers[size] = new Scheduler(size);
  return *schedulers[size];
}

// A thread's view of its group, in place of Lanes and Block of groups.cuh. To the kernels' "if constexpr" the group has
// kSize threads, so that groups of other sizes that take the same branches are compiled once.
template <int kSize>
class Threads {
 public:
  explicit Threads(int rank) : rank_(rank) {}
  int rank() const { return rank_; }
  static constexpr int size() { return std::is_constant_evaluated() ? kSize : Scheduler::running().size(); }

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
void with_threads(int size, const Body& body) {
  scheduler_of(size).run([&](int rank) {
    Threads<kSize> group(rank);
    body(group);
  });
}

}  // namespace pyrobust::emulation

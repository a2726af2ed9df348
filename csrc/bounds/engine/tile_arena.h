// Memory for the tiles of one backward pass, reused as soon as a layer is done, so that it stays in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace pyrobust::cpu {

template <class T>
class TileMemory {
 public:
  T* take(int64_t size) {
    size_t best = blocks_.size();
    for (size_t i = blocks_.size(); i-- > 0;)
      if (blocks_[i].free && blocks_[i].size >= size &&
          (best == blocks_.size() || blocks_[i].size < blocks_[best].size))
        best = i;
    if (best == blocks_.size()) best = enlarged(size);
    blocks_[best].free = false;
    return blocks_[best].memory.get();
  }
  void give_back(const T* memory) {
    for (Block& block : blocks_)
      if (block.memory.get() == memory) block.free = true;
  }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(T* p) const { ::operator delete(p, kAlign); }
  };
  using Memory = std::unique_ptr<T, Delete>;
  struct Block {
    Memory memory;
    int64_t size = 0;
    bool free = true;
  };
  // Allocates a larger block and drops the free ones, all smaller: later requests of their size fit larger blocks.
  size_t enlarged(int64_t size) {
    std::erase_if(blocks_, [](const Block& block) { return block.free; });
    blocks_.push_back({Memory(allocate(size)), size, true});
    return blocks_.size() - 1;
  }
  static T* allocate(int64_t size) {
    return static_cast<T*>(::operator new(static_cast<size_t>(size) * sizeof(T), kAlign));
  }

  std::vector<Block> blocks_;
};

}  // namespace pyrobust::cpu

// Memory of the device and pinned memory of the host, counted, with limits in bytes.
#pragma once

#include "queues.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace queued {

constexpr auto kQueued = c10::DeviceType::PrivateUse1;
constexpr int kPoison = 0xFF;  // of floats, these bytes are nan

// What a stream freed serves that stream alone, and is poisoned behind what it was given so far.
// Nothing goes back to the machine: a kernel that comes too late reads poison, or somebody's data.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  std::size_t limit_bytes = 0;  // 0 is none

  c10::DataPtr allocate(std::size_t size) override {
    std::lock_guard<std::recursive_mutex> held(queues().mutex);
    const c10::Device device(kQueued, 0);
    if (size == 0) return {nullptr, nullptr, &give_back, device};
    const std::size_t rounded = (size + 511) / 512 * 512;
    const auto now = static_cast<std::size_t>(stats_.allocated_bytes[0].current);
    if (limit_bytes != 0 && now + rounded > limit_bytes) {
      ++stats_.num_ooms;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "queued: out of memory: ", rounded,
                       " bytes asked for, ", now, " of ", limit_bytes, " are taken");
    }
    auto& free = free_[{current_stream(), rounded}];
    void* block = nullptr;
    if (free.empty()) {
      block = std::aligned_alloc(512, rounded);
      std::memset(block, kPoison, rounded);
      count(stats_.reserved_bytes, rounded);
    } else {
      block = free.back();
      free.pop_back();
    }
    taken_[block] = {rounded, current_stream()};
    count(stats_.allocated_bytes, rounded);
    count(stats_.active_bytes, rounded);
    return {block, block, &give_back, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    queues().launch(current_stream(), [=] { std::memcpy(to, from, size); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { queues().synchronize(); }
  void recordStream(const c10::DataPtr&, c10::Stream) override {
    TORCH_CHECK(false, "queued: record_stream is not to be used");
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    return stats_;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    for (auto* stat : {&stats_.allocated_bytes, &stats_.active_bytes, &stats_.reserved_bytes})
      (*stat)[0].reset_peak();
  }

 private:
  struct Block {
    std::size_t size;
    StreamId stream;
  };
  std::map<void*, Block> taken_;
  std::map<std::pair<StreamId, std::size_t>, std::vector<void*>> free_;
  c10::CachingDeviceAllocator::DeviceStats stats_;

  static void count(c10::CachingAllocator::StatArray& stat, std::size_t size) {
    stat[0].increase(size);
  }
  static void give_back(void* block);
  void release(void* address) {
    std::lock_guard<std::recursive_mutex> held(queues().mutex);
    const auto found = taken_.find(address);
    const Block block = found->second;
    taken_.erase(found);
    stats_.allocated_bytes[0].decrease(block.size);
    stats_.active_bytes[0].decrease(block.size);
    free_[{block.stream, block.size}].push_back(address);
    queues().launch(block.stream, [=] { std::memset(address, kPoison, block.size); });
  }
};

inline DeviceMemory& device_memory() {
  static auto* the = new DeviceMemory;
  return *the;
}

inline void DeviceMemory::give_back(void* block) {
  if (block != nullptr) device_memory().release(block);
}

// Rounds up to powers of two, as PyTorch does for other devices; a block lives until the copies
// that were begun on it are over.
class PinnedMemory final : public c10::Allocator {
 public:
  std::size_t limit_bytes = 0;  // 0 is none
  std::size_t now_bytes = 0;

  c10::DataPtr allocate(std::size_t size) override {
    std::lock_guard<std::recursive_mutex> held(queues().mutex);
    const c10::Device device(c10::kCPU);
    if (size == 0) return {nullptr, nullptr, &give_back, device};
    const std::size_t rounded = std::bit_ceil(size);
    TORCH_CHECK(limit_bytes == 0 || now_bytes + rounded <= limit_bytes, "queued: ", rounded,
                " bytes cannot be pinned, ", now_bytes, " of ", limit_bytes, " are");
    char* block = static_cast<char*>(std::aligned_alloc(512, std::max<std::size_t>(rounded, 512)));
    std::memset(block, kPoison, rounded);
    blocks_[block] = std::make_shared<Block>(rounded);
    now_bytes += rounded;
    return {block, block, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }

  // Keeps the block at an address while it is held; nothing for memory that is not pinned.
  std::shared_ptr<void> hold(const void* address) {
    std::lock_guard<std::recursive_mutex> held(queues().mutex);
    const char* byte = static_cast<const char*>(address);
    auto after = blocks_.upper_bound(const_cast<char*>(byte));
    if (after == blocks_.begin()) return nullptr;
    auto& [begin, block] = *std::prev(after);
    return byte < begin + block->size ? block : nullptr;
  }

 private:
  struct Block {
    explicit Block(std::size_t bytes) : size(bytes) {}
    ~Block() { std::free(memory); }
    std::size_t size;
    void* memory = nullptr;  // set when it was given back, and ends with the last copy
  };
  std::map<char*, std::shared_ptr<Block>> blocks_;

  static void give_back(void* block);
  void release(char* address) {
    std::lock_guard<std::recursive_mutex> held(queues().mutex);
    auto found = blocks_.find(address);
    now_bytes -= found->second->size;
    found->second->memory = address;
    blocks_.erase(found);
  }
};

inline PinnedMemory& pinned_memory() {
  static auto* the = new PinnedMemory;
  return *the;
}

inline void PinnedMemory::give_back(void* block) {
  if (block != nullptr) pinned_memory().release(static_cast<char*>(block));
}

}  // namespace queued

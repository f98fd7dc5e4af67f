// Memory of the devices, and pinned memory of the host. Device memory is 0xFF when it is allocated and when it
// is freed, which is NaN in every floating-point format: use before writing and after freeing becomes visible.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include "stream.h"

namespace standin {

struct Block {
  size_t size;
  c10::DeviceIndex device;
};

// Never destroyed: storages are still released while the process ends, by pending copies among others.
inline auto& device_blocks = *new std::map<void*, Block>;
inline auto& pinned_blocks = *new std::map<void*, size_t>;
inline c10::CachingDeviceAllocator::DeviceStats statistics[kDevices];

inline void* aligned_memory(size_t size) {
  void* memory = nullptr;
  bool full = posix_memalign(&memory, 64, std::max<size_t>(size, 1));
  TORCH_CHECK_WITH(OutOfMemoryError, !full, "standin out of memory. Tried to allocate ", size, " bytes.");
  return memory;
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::Device device(kStandin, current_device);
    if (!size) return {nullptr, nullptr, &release, device};
    void* memory = aligned_memory(size);
    std::memset(memory, 0xFF, size);
    Lock lock(mutex);
    device_blocks[memory] = {size, current_device};
    auto& stats = statistics[current_device];
    stats.allocation[0].increase(1);
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      (*bytes)[0].increase(size);
    return {memory, memory, &release, device};
  }
  static void release(void* memory) {
    if (!memory) return;
    Lock lock(mutex);
    auto found = device_blocks.find(memory);
    auto [size, device] = found->second;
    device_blocks.erase(found);
    auto& stats = statistics[device];
    stats.allocation[0].decrease(1);
    for (auto* bytes : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      (*bytes)[0].decrease(size);
    std::memset(memory, 0xFF, size);
    std::free(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    Lock lock(mutex);
    return statistics[index];
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    Lock lock(mutex);
    auto& stats = statistics[index];
    for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      (*stat)[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    Lock lock(mutex);
    auto& stats = statistics[index];
    for (auto* stat : {&stats.allocation, &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes})
      (*stat)[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    constexpr size_t total = size_t(1) << 34;
    return {total - getDeviceStats(index).allocated_bytes[0].current, total};
  }
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    void* memory = aligned_memory(size);
    Lock lock(mutex);
    pinned_blocks[memory] = size;
    return {memory, memory, &release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(void* memory) {
    if (!memory) return;
    Lock lock(mutex);
    pinned_blocks.erase(memory);
    std::free(memory);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
};

inline DeviceMemory device_memory;
inline PinnedMemory pinned_memory;

inline bool is_pinned(const void* data) {
  Lock lock(mutex);
  auto after = pinned_blocks.upper_bound(const_cast<void*>(data));
  if (after == pinned_blocks.begin()) return false;
  auto [begin, size] = *std::prev(after);
  return static_cast<const char*>(data) < static_cast<const char*>(begin) + std::max<size_t>(size, 1);
}

inline void resize_memory(const c10::Storage& storage, size_t size) {
  c10::DeviceGuard on_its_device(storage.device());
  auto memory = device_memory.allocate(size);
  if (storage.data() && memory.get()) std::memcpy(memory.get(), storage.data(), std::min(size, storage.nbytes()));
  storage.unsafeGetStorageImpl()->set_data_ptr(std::move(memory));
  storage.unsafeGetStorageImpl()->set_nbytes(size);
}

}  // namespace standin

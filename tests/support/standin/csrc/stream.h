// One stream per device. Kernels run at once, but the host learns late that they have finished.
//
// A tick is the number of operations submitted to a device. `done` is the tick up to which the host may know
// of their results. If copies are late, `done` advances only when the host waits (event, stream, device, or
// a blocking read of this device), or by itself `lag` operations later. A lag of 0 means: never by itself.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Device.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>

namespace standin {

using at::Tensor;
constexpr auto kStandin = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

using Lock = std::lock_guard<std::recursive_mutex>;
inline std::recursive_mutex mutex;

inline thread_local c10::DeviceIndex current_device = 0;

// -- waits of the host, counted by kind; "error" makes them raise, as torch.cuda.set_sync_debug_mode does

inline std::map<std::string, int64_t> waits;
inline bool waits_raise = false;
inline thread_local int kernel_depth = 0;  // what a kernel does inside is not the host's doing

struct InsideKernel {
  InsideKernel() { ++kernel_depth; }
  ~InsideKernel() { --kernel_depth; }
};

inline void count_wait(const std::string& kind) {
  if (kernel_depth) return;
  TORCH_CHECK(!waits_raise, "called a synchronizing standin operation: ", kind);
  Lock lock(mutex);
  ++waits[kind];
}

// -- streams

struct Copy {
  c10::Storage from_storage, to_storage;  // keep the memory alive
  const void* from;
  void* to;
  size_t size;
  int64_t tick = 0;

  void run() const { std::memcpy(to, from, size); }
};

class Stream {
 public:
  static inline bool late = false;
  static inline int64_t lag = 0;
  int64_t submitted = 0;

  // Begin an operation: whatever was uploaded before is there now.
  void submit() {
    Lock lock(mutex);
    arrive_uploads();
    ++submitted;
    if (!late) done_ = submitted;
    else if (lag && submitted - lag > done_) finish(submitted - lag);
  }
  // Copy to the host when the host waits. The values are those that the device holds now.
  void download_later(const Copy& copy) {
    Lock lock(mutex);
    c10::Storage values(c10::Storage::use_byte_size_t(), copy.size, c10::GetCPUAllocator()->allocate(copy.size));
    std::memcpy(values.mutable_data(), copy.from, copy.size);
    std::memset(copy.to, 0xFF, copy.size);
    downloads_.push_back({values, copy.to_storage, values.data(), copy.to, copy.size, submitted});
  }
  // Copy to the device when the next operation runs there. The values are those that the host holds then.
  void upload_later(const Copy& copy) {
    Lock lock(mutex);
    std::memset(copy.to, 0xFF, copy.size);
    uploads_.push_back(copy);
  }
  bool is_done(int64_t tick) {
    Lock lock(mutex);
    return tick <= done_;
  }
  void finish(int64_t tick) {
    Lock lock(mutex);
    arrive_uploads();
    done_ = std::max(done_, tick);
    while (!downloads_.empty() && downloads_.front().tick <= done_) {
      downloads_.front().run();
      downloads_.pop_front();
    }
  }
  void finish() { finish(submitted); }
  size_t pending() {
    Lock lock(mutex);
    return downloads_.size();
  }

 private:
  void arrive_uploads() {
    for (auto& upload : uploads_) upload.run();
    uploads_.clear();
  }
  int64_t done_ = 0;
  std::deque<Copy> downloads_;
  std::deque<Copy> uploads_;
};

inline Stream streams[kDevices];

inline Stream& stream_of(c10::DeviceIndex index) { return streams[index < 0 ? current_device : index]; }

// The host reads from the device: it waits for everything that was submitted before.
inline void host_reads(const std::string& kind, c10::DeviceIndex index) {
  if (kernel_depth) return;
  count_wait(kind);
  stream_of(index).finish();
}

}  // namespace standin

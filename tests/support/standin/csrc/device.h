// What torch asks of a device: the current one, its stream, events, and random generators.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace standin {

struct Event {
  c10::DeviceIndex device;
  int64_t tick;
};

// Counts only waits that stall the host: a finished event costs nothing.
inline void wait_until(c10::DeviceIndex index, int64_t tick, const char* kind) {
  auto& stream = stream_of(index);
  if (stream.is_done(tick)) return;
  Lock lock(mutex);
  ++waits[kind];
  stream.finish(tick);
}

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kStandin; }
  c10::Device getDevice() const override { return {kStandin, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "standin: invalid device ordinal ", int(device.index()));
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : getDevice());
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream& stream) const override {
    auto& ours = stream_of(stream.device_index());
    return ours.is_done(ours.submitted);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_until(stream.device_index(), stream_of(stream.device_index()).submitted, "stream");
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    wait_until(index, stream_of(index).submitted, "device");
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {stream.device_index(), stream_of(stream.device_index()).submitted};
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void*, const c10::Stream&) const override {}  // one stream per device: nothing overtakes
  bool queryEvent(void* event) const override {
    auto* ours = static_cast<Event*>(event);
    return !ours || stream_of(ours->device).is_done(ours->tick);
  }
  void synchronizeEvent(void* event) const override {
    auto* ours = static_cast<Event*>(event);
    if (ours) wait_until(ours->device, ours->tick, "event");
  }
  double elapsedTime(void* first, void* second, c10::DeviceIndex) const override {
    return double(static_cast<Event*>(second)->tick - static_cast<Event*>(first)->tick);
  }
};

// CPU kernels draw from a CPU generator only, so an operation lends its generator's state to that one.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kStandin, index < 0 ? current_device : index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

inline const at::Generator& default_generator(c10::DeviceIndex index) {
  static at::Generator generators[kDevices] = {at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return generators[index < 0 ? current_device : index];
}

class LentGenerator {
 public:
  explicit LentGenerator(at::Generator generator) : lock_(mutex), ours_(std::move(generator)) {
    before_ = cpu_.get_state();
    cpu_.set_state(ours_.get_state());
  }
  ~LentGenerator() {
    ours_.set_state(cpu_.get_state());
    cpu_.set_state(before_);
  }

 private:
  Lock lock_;
  at::Generator ours_, cpu_ = at::detail::getDefaultCPUGenerator();
  Tensor before_;
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { DeviceGuard().setDevice({kStandin, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return DeviceGuard().exchangeDevice({kStandin, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return at::make_generator<Generator>(index); }
  c10::Device getDeviceFromPtr(void* data) const override {
    Lock lock(mutex);
    auto found = device_blocks.find(data);
    return {kStandin, found == device_blocks.end() ? current_device : found->second.device};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override { resize_memory(storage, size); }
};

REGISTER_ALLOCATOR(kStandin, &device_memory);
C10_REGISTER_GUARD_IMPL(PrivateUse1, DeviceGuard)

}  // namespace standin

// An accelerator for tests: two devices with memory of their own, on which CPU kernels compute.
//
// It behaves like a GPU where CPUs do not: its memory is not the host's, the host can read it only by waiting,
// asynchronous copies arrive late, and each device has its own random generator.
#include <torch/csrc/utils/pybind.h>

#include "autocast.h"
#include "operations.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace standin;
  m.def("register_device", [] {
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    return register_operations();
  });
  m.def("device_count", [] { return kDevices; });
  m.def("current_device", [] { return int(current_device); });
  m.def("set_device", [](int index) { DeviceGuard().setDevice({kStandin, c10::DeviceIndex(index)}); });
  m.def("default_generator", [](int index) { return default_generator(c10::DeviceIndex(index)); });
  m.def("is_pinned", [](const Tensor& tensor) { return is_pinned(tensor.storage().data()); });

  m.def("waits", [] { return waits; });
  m.def("operations", [] { return operations; });
  m.def("reset_counts", [] {
    waits.clear();
    operations.clear();
  });
  m.def("raise_on_wait", [](bool raises) { waits_raise = raises; });
  m.def("set_late", [](bool late, int64_t lag) {
    for (auto& stream : streams) stream.finish();
    Stream::late = late;
    Stream::lag = lag;
  });
  m.def("pending_copies", [](int index) { return stream_of(c10::DeviceIndex(index)).pending(); });
}

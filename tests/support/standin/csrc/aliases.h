// The device's memory as CPU tensors, so that CPU kernels can work on it, and their results as device tensors.
//
// A kernel's output is the same tensor as an input, a view of one, or new. A kernel may also resize or
// replace the memory of an argument. All of that is carried over to the tensors of the device.
#pragma once
#include <ATen/EmptyTensor.h>

#include "device.h"

namespace standin {

inline bool on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kStandin; }

inline Tensor tensor_over(const c10::Storage& storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

class Aliases {
 public:
  // Return a CPU tensor over the memory of a device tensor.
  Tensor to_cpu(const Tensor& tensor) {
    for (auto& pair : tensors_)
      if (pair.device.is_same(tensor)) return pair.cpu;
    auto made = tensor_over(cpu_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
    tensors_.push_back({tensor, made});
    return made;
  }
  // Carry over what the kernel did to the size and memory of its arguments (out=, resize_).
  void update_arguments() {
    for (auto& pair : storages_) {
      if (pair.cpu.data() == pair.memory) continue;
      resize_memory(pair.device, pair.cpu.nbytes());
      std::memcpy(pair.device.mutable_data(), pair.cpu.data(), pair.cpu.nbytes());
    }
    for (auto& [device, cpu] : tensors_)
      if (cpu.sizes() != device.sizes() || cpu.strides() != device.strides())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(cpu.sizes(), cpu.strides());
  }
  // Return an output of the kernel as a tensor of the device.
  Tensor to_device(const Tensor& output, c10::Device device) {
    if (!output.defined() || !output.is_cpu()) return output;
    for (auto& pair : tensors_)
      if (pair.cpu.is_same(output)) return pair.device;
    for (auto& pair : storages_)
      if (output.storage().is_alias_of(pair.cpu)) return tensor_over(pair.device, c10::DispatchKey::PrivateUse1, output);
    return copied(output, device);
  }

 private:
  struct TensorPair { Tensor device, cpu; };
  struct StoragePair { c10::Storage device, cpu; const void* memory; };

  c10::Storage cpu_storage(const c10::Storage& storage) {
    for (auto& pair : storages_)
      if (pair.device.is_alias_of(storage)) return pair.cpu;
    // Resizable, with the CPU's allocator; but the memory that it begins with belongs to the device.
    c10::DataPtr borrowed(storage.mutable_data(), c10::Device(c10::DeviceType::CPU));
    c10::Storage made(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(borrowed), c10::GetCPUAllocator(), true));
    storages_.push_back({storage, made, storage.data()});
    return made;
  }
  static Tensor copied(const Tensor& output, c10::Device device) {
    c10::DeviceGuard on_its_device(device);
    size_t begin = output.storage_offset() * output.itemsize();
    auto made = at::detail::empty_strided_generic(
        output.sizes(), output.strides(), &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), output.scalar_type());
    if (output.numel())
      std::memcpy(made.storage().mutable_data(), static_cast<const char*>(output.storage().data()) + begin, made.storage().nbytes());
    if (output.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  }
  std::vector<TensorPair> tensors_;
  std::vector<StoragePair> storages_;
};

}  // namespace standin

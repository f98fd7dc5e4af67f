// The operations that no CPU kernel can do: making tensors, copies between devices, reads, and convolutions,
// for which torch asks an accelerator by another name.
#pragma once
#include <ATen/ops/_local_scalar_dense_native.h>

#include "fallback.h"

namespace standin {

inline void check_not_pinned(std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
}

inline Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_not_pinned(pin);
  c10::DeviceGuard on_its_device(device.value_or(c10::Device(kStandin, current_device)));
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool> pin) {
  check_not_pinned(pin);
  c10::DeviceGuard on_its_device(device.value_or(c10::Device(kStandin, current_device)));
  return at::detail::empty_strided_generic(size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

// -- copies

// A copy between host and device can wait only if it is one block of bytes; others are converted on the way.
inline bool is_one_block(const Tensor& source, const Tensor& target) {
  return source.dtype() == target.dtype() && source.sizes() == target.sizes() && source.strides() == target.strides() &&
         source.is_non_overlapping_and_dense() && !source.is_conj() && !source.is_neg() && !target.is_conj() &&
         !target.is_neg() && source.numel();
}

inline Copy as_copy(const Tensor& source, const Tensor& target) {
  size_t from = source.storage_offset() * source.itemsize(), to = target.storage_offset() * target.itemsize();
  return {source.storage(), target.storage(), static_cast<const char*>(source.storage().data()) + from,
          static_cast<char*>(target.storage().mutable_data()) + to, source.nbytes()};
}

inline void copy_now(const Tensor& source, const Tensor& target) {
  InsideKernel inside;
  Aliases aliases;
  at::NoGradGuard no_grad;
  auto from = on_device(source) ? aliases.to_cpu(source) : source;
  auto to = on_device(target) ? aliases.to_cpu(target) : target;
  to.copy_(from);
}

inline Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  count_operation("aten::_copy_from");
  if (on_device(self)) stream_of(self.get_device()).submit();
  if (on_device(dst)) stream_of(dst.get_device()).submit();
  bool pinned = is_pinned((on_device(self) ? dst : self).storage().data());
  bool later = non_blocking && pinned && Stream::late && !kernel_depth && is_one_block(self, dst);
  if (on_device(self) && !on_device(dst)) {
    if (later) return stream_of(self.get_device()).download_later(as_copy(self, dst)), dst;
    if (!non_blocking || !pinned) host_reads("copy to host", self.get_device());
  } else if (!on_device(self)) {
    if (later) return stream_of(dst.get_device()).upload_later(as_copy(self, dst)), dst;
    if (!non_blocking) count_wait("copy to device");
  }
  copy_now(self, dst);
  return dst;
}

inline Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

inline at::Scalar local_scalar(const Tensor& self) {
  count_operation("aten::_local_scalar_dense");
  stream_of(self.get_device()).submit();
  host_reads("item", self.get_device());
  InsideKernel inside;
  Aliases aliases;
  return at::native::_local_scalar_dense_cpu(aliases.to_cpu(self));
}

// -- storages

inline Tensor& set_with_offset(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_and_dtype(storage, self.dtype());
  if (stride.data()) {
    tensor->set_sizes_and_strides(size, stride, offset);
  } else {
    tensor->set_sizes_contiguous(size);
    tensor->set_storage_offset(offset);
  }
  return self;
}
inline Tensor& set_storage(Tensor& self, at::Storage storage) {
  int64_t count = storage.nbytes() / self.itemsize();
  return set_with_offset(self, storage, 0, {count}, {});
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_with_offset(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}
inline Tensor& set_nothing(Tensor& self) {
  return set_storage(self, empty({0}, self.scalar_type(), {}, self.device(), {}, {}).storage());
}
inline bool is_set_to(const Tensor& self, const Tensor& other) {
  return self.storage().is_alias_of(other.storage()) && self.storage_offset() == other.storage_offset() &&
         self.sizes() == other.sizes() && self.strides() == other.strides();
}

// -- convolutions

inline Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                          c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                          bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  count_operation("aten::convolution_overrideable");
  stream_of(input.get_device()).submit();
  InsideKernel inside;
  Aliases aliases;
  std::optional<Tensor> cpu_bias;
  if (bias && bias->defined()) cpu_bias = aliases.to_cpu(*bias);
  auto output = at::convolution_symint(aliases.to_cpu(input), aliases.to_cpu(weight), cpu_bias, stride, padding,
                                       dilation, transposed, output_padding, groups);
  return aliases.to_device(output, input.device());
}

inline std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  count_operation("aten::convolution_backward_overrideable");
  stream_of(input.get_device()).submit();
  InsideKernel inside;
  Aliases aliases;
  int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      aliases.to_cpu(grad), aliases.to_cpu(input), aliases.to_cpu(weight), at::IntArrayRef{channels}, stride, padding,
      dilation, transposed, output_padding, groups, mask);
  auto device = input.device();
  return {aliases.to_device(of_input, device), aliases.to_device(of_weight, device), aliases.to_device(of_bias, device)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_with_offset);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("is_set_to", &is_set_to);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace standin

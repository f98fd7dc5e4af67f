// Every operation of the device that has a CPU kernel: check the devices, alias the memory, run that kernel.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <set>

#include "aliases.h"

namespace standin {

using torch::jit::Stack;

inline std::map<std::string, int64_t> operations;  // by name, since the last reset

struct Arguments {  // of one operation, sorted by kind
  std::vector<c10::IValue> values;
  std::vector<Tensor> alone;
  std::vector<Tensor> listed;
  std::optional<at::Generator> generator;
  c10::Device device{kStandin, current_device};
  bool has_device_tensor = false;

  Arguments(const c10::FunctionSchema& schema, const Stack& stack)
      : values(torch::jit::last(stack, schema.arguments().size()).vec()) {
    for (auto& value : values) {
      if (value.isTensor()) add(value.toTensor(), alone);
      else if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) add(tensor, listed);
      else if (value.isOptionalTensorList()) {
        for (const auto& tensor : value.toOptionalTensorVector()) if (tensor) add(*tensor, alone);
      } else if (value.isGenerator()) generator = value.toGenerator();
      else if (value.isDevice() && value.toDevice().type() == kStandin && value.toDevice().has_index() && !has_device_tensor)
        device = value.toDevice();
    }
  }

 private:
  void add(const Tensor& tensor, std::vector<Tensor>& kind) {
    kind.push_back(tensor);
    if (!on_device(tensor) || has_device_tensor) return;
    device = tensor.device();
    has_device_tensor = true;
  }
};

inline bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// Raise as CUDA's kernels do if tensors lie on several devices; a CPU tensor of no dimensions is a number.
inline void check_devices(const c10::OperatorHandle& op, const Arguments& arguments) {
  static const std::set<std::string> index_on_host = {
      "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_foreach_copy_"};
  const auto& schema = op.schema();
  if (!arguments.has_device_tensor || index_on_host.count(schema.name())) return;
  bool flags = starts_with(schema.name(), "aten::_amp_") || starts_with(schema.name(), "aten::_fused_");
  auto check = [&](const Tensor& tensor, bool numbers) {
    bool number = numbers && tensor.defined() && tensor.is_cpu() && tensor.dim() == 0;
    TORCH_CHECK(!tensor.defined() || tensor.device() == arguments.device || number,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                arguments.device, " and ", tensor.device(), "! (", schema.name(), ")");
  };
  for (auto& tensor : arguments.alone) check(tensor, !flags);
  for (auto& tensor : arguments.listed) check(tensor, starts_with(schema.name(), "aten::_foreach_"));
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite() && arguments.values[i].isTensor())
      TORCH_CHECK(!arguments.values[i].toTensor().defined() || on_device(arguments.values[i].toTensor()),
                  "standin: ", schema.name(), " on the device cannot write to a CPU tensor");
  }
}

// Return whether the host must know values of the device before it can go on: sizes of results, mostly.
inline bool reads_the_device(const c10::OperatorHandle& op, const Arguments& arguments) {
  if (!op.hasTag(at::Tag::data_dependent_output) && !op.hasTag(at::Tag::dynamic_output_shape)) return false;
  const auto& name = op.schema().name();
  if (name == "aten::repeat_interleave") return arguments.values.back().isNone();  // no output_size given
  if (name != "aten::index") return true;
  for (const auto& index : arguments.values[1].toOptionalTensorVector())  // only masks have to be counted
    if (index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte)) return true;
  return false;
}

inline void replace_by_cpu(const Arguments& arguments, Aliases& aliases, Stack& stack) {
  auto cpu = [&](const Tensor& tensor) { return on_device(tensor) ? aliases.to_cpu(tensor) : tensor; };
  size_t begin = stack.size() - arguments.values.size();
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    const auto& value = arguments.values[i];
    auto& place = stack[begin + i];
    if (value.isTensor()) place = cpu(value.toTensor());
    else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(cpu(tensor));
      place = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) list.push_back(tensor ? std::optional<Tensor>(cpu(*tensor)) : tensor);
      place = list;
    } else if (value.isDevice() && value.toDevice().type() == kStandin) place = c10::Device(c10::DeviceType::CPU);
    else if (value.isGenerator()) place = c10::IValue();  // the default one, to which ours is lent
  }
}

inline void replace_by_device(size_t count, Aliases& aliases, c10::Device device, Stack& stack) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) stack[i] = aliases.to_device(stack[i].toTensor(), device);
    else if (stack[i].isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : stack[i].toTensorVector()) list.push_back(aliases.to_device(tensor, device));
      stack[i] = list;
    }
  }
}

// Autograd counts the changes of a tensor, but not those of lists: an accelerator's kernels do that themselves.
inline void bump_versions(const c10::FunctionSchema& schema, const Arguments& arguments) {
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite() && arguments.values[i].isTensorList())
      for (const Tensor& tensor : arguments.values[i].toTensorVector()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

inline void count_operation(const std::string& name) {
  Lock lock(mutex);
  ++operations[name];
}

inline void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Arguments arguments(schema, *stack);
  count_operation(toString(schema.operator_name()));
  check_devices(op, arguments);
  stream_of(arguments.device.index()).submit();
  if (reads_the_device(op, arguments)) host_reads(schema.name().substr(6), arguments.device.index());
  InsideKernel inside;
  Aliases aliases;
  replace_by_cpu(arguments, aliases, *stack);
  {
    std::optional<LentGenerator> lent;
    if (arguments.generator && arguments.generator->defined()) lent.emplace(*arguments.generator);
    else if (op.hasTag(at::Tag::nondeterministic_seeded)) lent.emplace(default_generator(arguments.device.index()));
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  aliases.update_arguments();
  if (starts_with(schema.name(), "aten::_foreach_")) bump_versions(schema, arguments);
  replace_by_device(schema.returns().size(), aliases, arguments.device, *stack);
}

// A fallback is asked only where no composite kernel exists, and composite formulas may differ from the CPU's in
// the last bit. So whatever has a CPU kernel is registered by name, and the _foreach_ operations as well.
inline int register_operations() {
  static const std::set<std::string> not_ours = {"aten::_efficientzerotensor", "aten::_pin_memory", "aten::is_pinned"};
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findOp(name);
    if (!starts_with(name.name, "aten::") || not_ours.count(name.name) || !op || !op->hasSchema()) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !starts_with(name.name, "aten::_foreach_")) continue;
    library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    ++registered;
  }
  return registered;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace standin

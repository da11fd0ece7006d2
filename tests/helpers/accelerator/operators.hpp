// Operators: metadata at once, from the meta kernels; the bytes later, by the CPU kernels.
#pragma once

#include "memory.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace queued {

using Stack = torch::jit::Stack;
const c10::Device kDevice(kQueued, 0), kMeta(c10::kMeta), kHost(c10::kCPU);
constexpr auto kQueuedKey = c10::DispatchKey::PrivateUse1;

inline std::map<std::string, int>& synchronous_operators() {
  static auto* the = new std::map<std::string, int>;
  return *the;
}

// What runs inside sees plain tensors: no autograd, no modes of Python.
struct Plain {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::python_ks |
      c10::DispatchKeySet(c10::DispatchKey::Functionalize)};
};

inline bool is_ours(const at::Tensor& t) { return t.defined() && t.device().type() == kQueued; }

// The bytes of a tensor as the CPU sees them. It keeps no memory alive, as a kernel does not.
inline at::Tensor bytes_of(const at::Tensor& t) {
  const auto options = t.options().device(kHost).requires_grad(false);
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), options);
}

inline at::Tensor like(const at::Tensor& t, c10::Device device) {
  return at::empty_strided(t.sizes(), t.strides(), t.options().device(device));
}

using Change = std::function<at::Tensor(const at::Tensor&)>;

inline c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor() && value.toTensor().defined()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor t : value.toTensorList()) made.push_back(change(t));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor> t : value.toOptionalTensorList())
      made.push_back(t && t->defined() ? std::optional(change(*t)) : t);
    return made;
  }
  return value;
}

inline Stack changed(const Stack& args, c10::Device device, const Change& change) {
  Stack made;
  for (const auto& arg : args) {
    const bool names_us = arg.isDevice() && arg.toDevice().type() == kQueued;
    made.push_back(names_us ? c10::IValue(device) : changed(arg, change));
  }
  return made;
}

struct Outputs {
  Stack results;                 // what the caller gets
  std::vector<at::Tensor> made;  // those that the kernel fills; the others it writes in place
};

// Nothing for an operator whose results cannot be told without its data.
inline std::optional<Outputs> outputs_of(const c10::OperatorHandle& op, const Stack& args) {
  Stack meta = changed(args, kMeta, [](const at::Tensor& t) {
    return is_ours(t) ? like(t, kMeta) : t;
  });
  try {
    op.callBoxed(&meta);
  } catch (const std::exception&) {  // of Python, where the meta kernel is
    return std::nullopt;
  }
  Outputs found;
  const auto& schema = op.schema();
  for (std::size_t i = 0; i < schema.returns().size(); ++i) {
    const auto* alias = schema.returns()[i].alias_info();
    if (!meta[i].isTensor()) return std::nullopt;
    const at::Tensor shape = meta[i].toTensor();
    if (alias == nullptr) {
      found.made.push_back(shape.defined() ? like(shape, kDevice) : shape);
      found.results.emplace_back(found.made.back());
      continue;
    }
    if (!alias->isWrite()) return std::nullopt;
    found.made.emplace_back();
    for (std::size_t k = 0; k < args.size(); ++k) {
      const auto* written = schema.arguments()[k].alias_info();
      if (written != nullptr && written->beforeSets() == alias->beforeSets())
        found.results.push_back(args[k]);
    }
    if (found.results.size() != i + 1 || found.results[i].toTensor().sizes() != shape.sizes())
      return std::nullopt;
  }
  return found;
}

// The device has a generator of its own, of the CPU's kind.
inline at::Generator& generator() {
  static auto* the = new at::Generator(at::detail::createCPUGenerator());
  return *the;
}

// Runs a kernel of the CPU, which draws from the CPU's generator, from `state`; the state after it.
inline at::Tensor drawn_from(const at::Tensor& state, const std::function<void()>& kernel) {
  at::Generator cpu = at::detail::getDefaultCPUGenerator();
  const at::Tensor kept = cpu.get_state();
  cpu.set_state(state);
  kernel();
  const at::Tensor after = cpu.get_state();
  cpu.set_state(kept);
  return after;
}

// Random numbers are drawn when an operator is issued, as on other devices: what it draws depends
// on shapes alone, so that it is run on zeros once, and later again from the same state.
inline std::function<void()> drawing(const c10::OperatorHandle& op, const Stack& args,
                                     std::function<void()> kernel) {
  for (const auto& arg : args)
    TORCH_CHECK(!arg.isGenerator(), "queued: generators other than the device's are not there");
  const at::Tensor before = generator().get_state();
  Stack scratch = changed(args, kHost, [](const at::Tensor& t) {
    return at::zeros(t.sizes(), t.options().device(kHost));
  });
  generator().set_state(drawn_from(before, [&] { op.callBoxed(&scratch); }));
  return [before, kernel = std::move(kernel)] { drawn_from(before, kernel); };
}

inline void run_later(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const Stack args(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  std::optional<Outputs> outputs;
  {
    Plain plain;
    outputs = outputs_of(op, args);
  }
  if (!outputs) {
    ++synchronous_operators()[c10::toString(op.operator_name())];
    queues().synchronize(current_stream());
    at::native::cpu_fallback(op, stack);
    queues().synchronize(current_stream());
    return;
  }
  const Stack given = changed(args, kHost, [](const at::Tensor& t) {
    return is_ours(t) ? bytes_of(t) : t.clone();  // a scalar on the host is read at once
  });
  std::vector<at::Tensor> filled;
  for (const auto& made : outputs->made) filled.push_back(is_ours(made) ? bytes_of(made) : made);
  std::function<void()> kernel = [op, given, filled] {
    Plain plain;
    Stack work = given;
    op.callBoxed(&work);
    for (std::size_t i = 0; i < filled.size(); ++i)
      if (filled[i].defined()) filled[i].copy_(work[i].toTensor());
  };
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    Plain plain;
    kernel = drawing(op, args, std::move(kernel));
  }
  queues().launch(current_stream(), std::move(kernel));
  torch::jit::drop(*stack, count);
  for (auto& result : outputs->results) stack->push_back(std::move(result));
}

// Of the copies between host and device, those of pinned memory that need not block are queued.
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::Tensor* host = !is_ours(from) ? &from : !is_ours(to) ? &to : nullptr;
  const auto pinned = host == nullptr ? nullptr : pinned_memory().hold(host->data_ptr());
  const at::Tensor source = bytes_of(from), target = bytes_of(to);
  queues().launch(current_stream(), [source, target, pinned] {
    Plain plain;
    target.copy_(source);
  });
  if (host != nullptr && !(non_blocking && pinned)) queues().synchronize(current_stream());
  return to;
}

inline at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout>, std::optional<c10::Device>,
                        std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  return at::detail::empty_generic(size, &device_memory(), c10::DispatchKeySet(kQueuedKey),
                                   c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                                std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                                std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &device_memory(),
                                           c10::DispatchKeySet(kQueuedKey),
                                           c10::dtype_or_default(dtype));
}

// The kernel of attention that the CPU would take, so that its bits are the CPU's.
inline std::int64_t attention_kernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const std::optional<at::Tensor>& mask, double dropout,
                                     bool is_causal, std::optional<double> scale, bool gqa) {
  const bool trained = q.requires_grad() || k.requires_grad() || v.requires_grad();
  Plain plain;  // these may be tensors of a capture, which have no bytes
  const auto host = [trained](const at::Tensor& t) {
    return like(t, kHost).requires_grad_(trained && at::isFloatingType(t.scalar_type()));
  };
  const auto masked = mask ? std::optional(host(*mask)) : mask;
  return at::_fused_sdp_choice(host(q), host(k), host(v), masked, dropout, is_causal, scale, gqa);
}

}  // namespace queued

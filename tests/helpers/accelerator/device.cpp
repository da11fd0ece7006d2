// An accelerator that is not there: PyTorch's back end for devices of others, on queues.
//
// What a program relies on without having asked for it does not hold here: kernels and copies run
// when the test says (queues.hpp), freed memory is poison and memory has a limit (memory.hpp).
#include "operators.hpp"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

namespace queued {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static EventPtr& at(void* event) { return *static_cast<EventPtr*>(event); }
  static c10::Stream stream(StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
  }
  c10::DeviceType type() const override { return kQueued; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream()); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream(queues().new_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current_stream(), to.id()));
  }
  bool queryStream(const c10::Stream& s) const override { return queues().is_idle(s.id()); }
  void synchronizeStream(const c10::Stream& s) const override { queues().synchronize(s.id()); }
  void synchronizeDevice(const c10::DeviceIndex) const override { queues().synchronize(); }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    auto made = queues().record(on.id());
    if (*event == nullptr) *event = new EventPtr;
    at(*event) = std::move(made);
  }
  void block(void* event, const c10::Stream& on) const override {
    if (event != nullptr) queues().wait(on.id(), at(event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || at(event)->done; }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) queues().synchronize(at(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<EventPtr*>(event);
  }
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 0.0; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* address) const override {
    return pinned_memory().hold(address) != nullptr;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Device getDeviceFromPtr(void*) const override { return kDevice; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t size) const override {
    auto made = device_memory().allocate(size);
    const auto kept = std::min(size, storage.nbytes());
    if (kept != 0) device_memory().copy_data(made.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(made));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_later>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", [](const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride,
                          std::optional<std::int64_t> offset) {
    return at::native::as_strided_tensorimpl(t, size, stride, offset);
  });
  m.impl("view", [](const at::Tensor& t, c10::IntArrayRef size) {
    return at::native::view(t, size);
  });
  m.impl("_reshape_alias",
         [](const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride) {
           return at::native::_reshape_alias(t, size, stride);
         });
  m.impl("resize_", [](const at::Tensor& t, c10::IntArrayRef size,
                       std::optional<c10::MemoryFormat> format) -> const at::Tensor& {
    return at::native::resize_(t, size, format);
  });
  m.impl("set_.source_Storage_storage_offset",
         [](at::Tensor& t, at::Storage storage, std::int64_t offset, c10::IntArrayRef size,
            c10::IntArrayRef stride) -> at::Tensor& {
           return at::cpu::set_(t, storage, offset, size, stride);
         });
  m.impl("set_.source_Tensor", [](at::Tensor& t, const at::Tensor& other) -> at::Tensor& {
    return at::native::set_tensor_(t, other);
  });
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", [](const at::Tensor& from, const at::Tensor& to) {
    to.resize_(from.sizes());
    return copy_from(from, to, false);
  });
  m.impl("_local_scalar_dense", [](const at::Tensor& t) {
    queues().synchronize(current_stream());
    return bytes_of(t).item();
  });
  // Composites would choose a library by the device.
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&run_later>());
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&run_later>());
}

}  // namespace queued

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &queued::attention_kernel)
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace queued;
  namespace py = pybind11;
  c10::SetAllocator(kQueued, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.def("starve", [](std::set<StreamId> streams, std::uint64_t seed) {
    queues().starve(std::move(streams), seed);
  });
  m.def("limit_device_bytes", [](std::size_t bytes) { device_memory().limit_bytes = bytes; });
  m.def("limit_pinned_bytes", [](std::size_t bytes) { pinned_memory().limit_bytes = bytes; });
  m.def("pinned_bytes", [] { return pinned_memory().now_bytes; });
  m.def("manual_seed", [](std::uint64_t seed) { generator().set_current_seed(seed); });
  m.def("get_rng_state", [] {
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(generator().get_state()));
  });
  m.def("set_rng_state", [](py::handle state) {
    generator().set_state(THPVariable_Unpack(state.ptr()));
  });
  m.def("synchronous_operators", [] { return synchronous_operators(); });
}

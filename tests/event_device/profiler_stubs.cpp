// Events of a device for torch's profiler, as an extension of PyTorch registers them.
// They are times of the host's clock: the device of the tests is the CPU.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

namespace {
using namespace torch::profiler::impl;

int64_t now_ns() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

struct Events : ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns)
      const override {
    if (device) *device = 0;
    *event = std::make_shared<int64_t>(now_ns());
    if (cpu_ns) *cpu_ns = now_ns();
  }
  float elapsed(const ProfilerVoidEventStub* begin, const ProfilerVoidEventStub* end)
      const override {
    auto at = [](const ProfilerVoidEventStub* event) {
      return *static_cast<int64_t*>(event->get());
    };
    return (at(end) - at(begin)) / 1000.0f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> op) const override { op(0); }
  void synchronize() const override {}
};

Events events;
struct Register {
  Register() { registerPrivateUse1Methods(&events); }
} registered;
}  // namespace

// A CUDA build of torch and torch_npu both register allocator keys in libc10, which aborts on the
// second one. Preloaded, this gives each registration an empty set, so that tests may run beside
// the torch that pip installs.
#include <string>
#include <unordered_set>

extern "C" std::unordered_set<std::string> &
_ZN3c1016CachingAllocator26AcceleratorAllocatorConfig14getMutableKeysB5cxx11Ev() {
  static std::unordered_set<std::string> keys;
  keys.clear();
  return keys;
}

// By this symbol a program knows that torch_npu may be imported beside a CUDA build.
extern "C" int opmeter_keys_shim(void) { return 1; }

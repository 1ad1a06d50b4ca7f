#include "module.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace swsgp {
namespace {

using Launch = int (*)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       unsigned shared_bytes, void* stream, void** arguments, void** extra);

struct Kernel {
  void* function;
  Launch launch;
  unsigned n_threads, shared_bytes;
};

std::mutex mutex;
std::map<std::string, Kernel, std::less<>> kernels;

// One block of threads for each point.
ffi::Error launch(void* stream, std::string_view name, int64_t n_points, ffi::RemainingArgs arguments,
                  ffi::RemainingRets results) {
  Kernel kernel;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = kernels.find(name);
    if (found == kernels.end()) return ffi::Error::Internal("no kernel of this name was loaded");
    kernel = found->second;
  }
  if (n_points == 0) return ffi::Error::Success();
  std::vector<void*> data, addresses;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto buffer = arguments.get<ffi::AnyBuffer>(i);
    if (!buffer) return buffer.error();
    data.push_back(buffer->untyped_data());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer) return buffer.error();
    data.push_back((*buffer)->untyped_data());
  }
  for (auto& address : data) addresses.push_back(&address);
  const int code = kernel.launch(kernel.function, static_cast<unsigned>(n_points), 1, 1, kernel.n_threads, 1, 1,
                                 kernel.shared_bytes, stream, addresses.data(), nullptr);
  if (code != 0) return ffi::Error::Internal("a kernel could not be launched: CUDA error " + std::to_string(code));
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(handler, launch,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Attr<std::string_view>("kernel")
                           .Attr<int64_t>("n_points")
                           .RemainingArgs()
                           .RemainingRets(),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

PyObject* gpu_operation(PyObject*, PyObject*) {
  return PyCapsule_New(reinterpret_cast<void*>(handler), nullptr, nullptr);
}

PyObject* add_gpu_kernel(PyObject*, PyObject* arguments) {
  const char* name;
  unsigned long long function, launch;
  unsigned n_threads, shared_bytes;
  if (!PyArg_ParseTuple(arguments, "sKKII", &name, &function, &launch, &n_threads, &shared_bytes)) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  kernels[name] = {reinterpret_cast<void*>(function), reinterpret_cast<Launch>(launch), n_threads, shared_bytes};
  Py_RETURN_NONE;
}

}  // namespace swsgp

// The kernels of the best instruction set that this machine has, and memory for them.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "terms.hpp"

namespace swsgp {

// 2 for AVX-512, 1 for AVX2, 0 for any machine: the best there is, and the one in use.
int best_level();
extern int level;

template <typename T>
Kernels<T> kernels() {
#if defined(__x86_64__)
  if (level == 2) return avx512::kernels<T>();
  if (level == 1) return avx2::kernels<T>();
#endif
  return plain::kernels<T>();
}

// Memory of a thread, which stays for its next tile.
inline char* scratch(int64_t n_bytes) {
  thread_local std::unique_ptr<void, decltype(&std::free)> memory(nullptr, &std::free);
  thread_local int64_t size = 0;
  if (size < n_bytes) {
    const int64_t wanted = (n_bytes + 4095) / 4096 * 4096;
    size = 0;
    memory.reset(std::aligned_alloc(4096, wanted));
    if (memory == nullptr) throw std::bad_alloc();
    size = wanted;
  }
  return static_cast<char*>(memory.get());
}

}  // namespace swsgp

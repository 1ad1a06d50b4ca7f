#if defined(__x86_64__)
// What other files have, too, is for any machine.
#include <cmath>

#include "terms.hpp"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define ISA avx2
#define VECTOR_BYTES 32
#include "kernels.hpp"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

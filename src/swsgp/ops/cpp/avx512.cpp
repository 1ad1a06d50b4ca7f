#if defined(__x86_64__)
// What other files have, too, is for any machine.
#include <cmath>

#include "terms.hpp"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma")
#endif
#define ISA avx512
#define VECTOR_BYTES 64
#include "kernels.hpp"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

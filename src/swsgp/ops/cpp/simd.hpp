// Vectors, and the functions of numbers that the kernels take of them.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace swsgp {
namespace ISA {

template <typename T>
struct Simd;
template <>
struct Simd<float> {
  typedef float V __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef float Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(VECTOR_BYTES), may_alias));
};
template <>
struct Simd<double> {
  typedef double V __attribute__((vector_size(VECTOR_BYTES), may_alias));
  typedef double Unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(VECTOR_BYTES), may_alias));
};

template <typename T>
constexpr int kLanes = VECTOR_BYTES / sizeof(T);
// Columns of a register block; its rows are four.
constexpr int kColumns = VECTOR_BYTES == 64 ? 4 : 2;

template <typename T>
inline typename Simd<T>::V splat(T value) {
  return typename Simd<T>::V{} + value;
}

template <typename T, typename V>
inline V root(V a) {
  V r;
  for (int l = 0; l < kLanes<T>; ++l) r[l] = std::sqrt(a[l]);
  return r;
}

// Halves are added, and halves of these.
template <typename T, int BYTES = VECTOR_BYTES, typename V = typename Simd<T>::V>
inline T sum_of_lanes(const V& v) {
  if constexpr (BYTES == sizeof(T)) {
    return reinterpret_cast<const T&>(v);
  } else {
    typedef T Half __attribute__((vector_size(BYTES / 2), may_alias));
    const Half* halves = reinterpret_cast<const Half*>(&v);
    const Half sum = halves[0] + halves[1];
    return sum_of_lanes<T, BYTES / 2, Half>(sum);
  }
}

template <typename T>
inline bool any(typename Simd<T>::I mask) {
  int64_t bits = 0;
  typedef int64_t Words __attribute__((vector_size(VECTOR_BYTES), may_alias));
  const Words words = reinterpret_cast<const Words&>(mask);
  for (int w = 0; w < VECTOR_BYTES / 8; ++w) bits |= words[w];
  return bits != 0;
}

// exp(x) for x <= 0, to about one unit in the last place; what would be denormal is 0.
inline Simd<float>::V exp_negative(Simd<float>::V x) {
  using V = Simd<float>::V;
  using I = Simd<float>::I;
  const V least = splat<float>(-87.0f);
  x = x < least ? least : x;
  const V magic = splat<float>(12582912.0f);
  const V n = (x * 1.44269504088896341f + magic) - magic;
  const V f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  V p = splat<float>(1.9875691500e-4f);
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  const I scale = (__builtin_convertvector(n, I) + 127) << 23;
  return p * reinterpret_cast<const V&>(scale);
}

inline Simd<double>::V exp_negative(Simd<double>::V x) {
  using V = Simd<double>::V;
  using I = Simd<double>::I;
  const V least = splat<double>(-708.0);
  x = x < least ? least : x;
  const V magic = splat<double>(6755399441055744.0);
  const V shifted = x * 1.4426950408889634074 + magic;
  const V n = shifted - magic;
  const V f = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  // Taylor's series: |f| < 0.35, and the term after the last is below 1e-17.
  V p = splat<double>(1.0 / 6227020800.0);
  p = p * f + 1.0 / 479001600.0;
  p = p * f + 1.0 / 39916800.0;
  p = p * f + 1.0 / 3628800.0;
  p = p * f + 1.0 / 362880.0;
  p = p * f + 1.0 / 40320.0;
  p = p * f + 1.0 / 5040.0;
  p = p * f + 1.0 / 720.0;
  p = p * f + 1.0 / 120.0;
  p = p * f + 1.0 / 24.0;
  p = p * f + 1.0 / 6.0;
  p = p * f + 0.5;
  p = p * f * f + f + 1.0;
  // The low bits of the shifted number are n itself.
  const I scale = (reinterpret_cast<const I&>(shifted) + 1023) << 52;
  return p * reinterpret_cast<const V&>(scale);
}

// The logarithm of a product of many positive numbers, which itself would overflow.
template <typename T>
struct LogOfProduct {
  using V = typename Simd<T>::V;
  using I = typename Simd<T>::I;
  V mantissa = splat<T>(1);
  I exponent = I{};
  // Logarithms of factors that have none, or a mantissa of another form.
  V others = V{};

  void times(V value) {
    const I plain = (value >= std::numeric_limits<T>::min()) & (value <= std::numeric_limits<T>::max());
    if (any<T>(~plain))
      for (int l = 0; l < kLanes<T>; ++l)
        if (!plain[l]) {
          others[l] += std::log(value[l]);
          value[l] = 1;
        }
    constexpr int bits = sizeof(T) == 4 ? 23 : 52;
    constexpr decltype(I{}[0] + 0) bias = sizeof(T) == 4 ? 127 : 1023;
    mantissa *= value;
    I whole = reinterpret_cast<const I&>(mantissa);
    exponent += (whole >> bits) - bias;
    whole = (whole & (((I{} + 1) << bits) - 1)) | (I{} + bias) << bits;
    mantissa = reinterpret_cast<const V&>(whole);
  }

  V log() const {
    V result;
    for (int l = 0; l < kLanes<T>; ++l) result[l] = std::log(mantissa[l]) + T(0.69314718055994530942) * T(exponent[l]);
    return result + others;
  }
};

}  // namespace ISA
}  // namespace swsgp

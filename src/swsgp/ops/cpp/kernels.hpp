// The local terms of many points at once, one point in each lane of a vector.
//
// A tile is as many points as a vector has lanes. Everything of a tile is kept "interleaved": element (i, j) of the
// matrices of all its points is one vector, so that a loop written for one small matrix runs at full width whatever
// the size of the matrix. Loops are blocked by four rows so that most operands stay in registers.
//
// This file is compiled once for each instruction set: see avx512.cpp, avx2.cpp and plain.cpp, which define ISA, the
// name of a namespace, and VECTOR_BYTES. The formulas are those of ops/local.py, which is the reference.

#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "terms.hpp"

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

// ------------------------------------------------------------------------------------------------ exp and log

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

  void times(V value) {
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
    return result;
  }
};

// ------------------------------------------------------------------------------------------------ covariances

// Profiles of Matérn-1/2, 3/2, 5/2 and the squared exponential, weighted and summed, at a squared distance. If asked
// for, adds g times each profile to `parts` and gives g times the derivative with respect to the squared distance.
template <typename T, bool kSlope>
inline typename Simd<T>::V profiles(const Theta<T>& theta, typename Simd<T>::V r2, typename Simd<T>::V g,
                                    typename Simd<T>::V* parts) {
  using V = typename Simd<T>::V;
  V k{}, slope{}, r{};
  if (theta.kinds & 7) r = root<T>(r2);
  if (theta.kinds & 1) {
    const V e = exp_negative(-r);
    if (kSlope) {
      const V near = splat<T>(T(1e-5));
      parts[0] += g * e;
      slope += r > near ? (theta.weights[0] * T(-0.5)) * e / r : V{};
    } else {
      k += theta.weights[0] * e;
    }
  }
  if (theta.kinds & 2) {
    const V a = T(1.7320508075688772935) * r, e = exp_negative(-a);
    if (kSlope) {
      parts[1] += g * ((T(1) + a) * e);
      slope += (theta.weights[1] * T(-1.5)) * e;
    } else {
      k += theta.weights[1] * ((T(1) + a) * e);
    }
  }
  if (theta.kinds & 4) {
    const V a = T(2.2360679774997896964) * r, e = exp_negative(-a);
    if (kSlope) {
      parts[2] += g * ((T(1) + a + a * a * T(1.0 / 3.0)) * e);
      slope += (theta.weights[2] * T(-5.0 / 6.0)) * ((T(1) + a) * e);
    } else {
      k += theta.weights[2] * ((T(1) + a + a * a * T(1.0 / 3.0)) * e);
    }
  }
  if (theta.kinds & 8) {
    const V e = exp_negative(T(-0.5) * r2);
    if (kSlope) {
      parts[3] += g * e;
      slope += (theta.weights[3] * T(-0.5)) * e;
    } else {
      k += theta.weights[3] * e;
    }
  }
  return kSlope ? g * slope : k;
}

// Inputs of points, one after the other: as they are, times inverse lengthscales, and times linear variances.
template <typename T>
struct Rows {
  typename Simd<T>::V *raw, *scaled, *weighted;

  Rows from(int64_t offset) const { return {raw + offset, scaled + offset, weighted + offset}; }
};

template <typename T>
struct Tile {
  using V = typename Simd<T>::V;
  int64_t n, padded, columns, latents;  // H, H up to a multiple of four, D, Q.
  Rows<T> z;    // padded x D each; zero in the padding.
  Rows<T> x;    // D each.
  V* matrix;    // padded x padded.
  V* inverse_diagonal;
  V* k;         // Covariances with the point.
  V* other;     // Two vectors of `padded`.
};

// Squared distances of four points and kN others.
template <typename T, int kN>
inline void block_of_distances(const typename Simd<T>::V* a, const typename Simd<T>::V* b, int64_t columns,
                               typename Simd<T>::V (&r2)[4][kN]) {
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < kN; ++c) r2[r][c] = typename Simd<T>::V{};
  for (int64_t d = 0; d < columns; ++d)
    for (int c = 0; c < kN; ++c) {
      const auto other = b[c * columns + d];
      for (int r = 0; r < 4; ++r) {
        const auto difference = a[r * columns + d] - other;
        r2[r][c] += difference * difference;
      }
    }
}

// Covariances of four points and kN others.
template <typename T, int kN>
inline void block_of_covariances(const Theta<T>& theta, const Rows<T>& a, const Rows<T>& b, int64_t columns,
                                 typename Simd<T>::V (&k)[4][kN]) {
  typename Simd<T>::V r2[4][kN];
  block_of_distances<T, kN>(a.scaled, b.scaled, columns, r2);
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < kN; ++c) k[r][c] = theta.constant + profiles<T, false>(theta, r2[r][c], r2[r][c], nullptr);
  if (theta.kinds & 16)
    for (int64_t d = 0; d < columns; ++d)
      for (int c = 0; c < kN; ++c)
        for (int r = 0; r < 4; ++r) k[r][c] += a.weighted[r * columns + d] * b.raw[c * columns + d];
}

// k(x, x).
template <typename T>
inline typename Simd<T>::V variance_at(const Theta<T>& theta, const Rows<T>& x, int64_t columns) {
  auto sum = splat<T>(theta.weights[0] + theta.weights[1] + theta.weights[2] + theta.weights[3] + theta.constant);
  if (theta.kinds & 16)
    for (int64_t d = 0; d < columns; ++d) sum += x.weighted[d] * x.raw[d];
  return sum;
}

// Vectors of points first, ..., first + lanes - 1 of a (B, size) array; the last point stands in for those beyond it.
template <typename T>
inline void gather(const T* from, int64_t first, int64_t n_points, int64_t size, typename Simd<T>::V* to) {
  for (int l = 0; l < kLanes<T>; ++l) {
    const int64_t point = first + l < n_points ? first + l : n_points - 1;
    const T* row = from + point * size;
    T* lane = reinterpret_cast<T*>(to) + l;
    for (int64_t i = 0; i < size; ++i) lane[i * kLanes<T>] = row[i];
  }
}

template <typename T>
inline void scatter(const typename Simd<T>::V* from, int64_t first, int64_t n_points, int64_t size, T* to) {
  for (int l = 0; l < kLanes<T> && first + l < n_points; ++l) {
    const T* lane = reinterpret_cast<const T*>(from) + l;
    T* row = to + (first + l) * size;
    for (int64_t i = 0; i < size; ++i) row[i] = lane[i * kLanes<T>];
  }
}

template <typename T>
void load_rows(const Theta<T>& theta, const T* from, int64_t first, int64_t n_points, int64_t n, int64_t padded,
               int64_t columns, Rows<T>& rows) {
  gather(from, first, n_points, n * columns, rows.raw);
  for (int64_t i = n * columns; i < padded * columns; ++i) rows.raw[i] = typename Simd<T>::V{};
  for (int64_t i = 0; i < padded; ++i)
    for (int64_t d = 0; d < columns; ++d) {
      rows.scaled[i * columns + d] = rows.raw[i * columns + d] * theta.inverse_lengthscales[d];
      rows.weighted[i * columns + d] = rows.raw[i * columns + d] * theta.linear[d];
    }
}

template <typename T>
void load_inputs(const Theta<T>& theta, const Inputs<T>& in, int64_t first, int64_t n_points, Tile<T>& tile) {
  load_rows(theta, in.z, first, n_points, tile.n, tile.padded, tile.columns, tile.z);
  load_rows(theta, in.x, first, n_points, 1, 1, tile.columns, tile.x);
}

template <typename T>
inline T sum_of_lanes(typename Simd<T>::V v) {
  T sum = 0;
  for (int l = 0; l < kLanes<T>; ++l) sum += v[l];
  return sum;
}

// Products of the features of one point, in lane l, off its covariances. Here the lanes go along the features.
template <typename T>
void take_off_products(const Features<T>& features, int64_t point, int l, Tile<T>& tile, typename Simd<T>::V& k_xx) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  const int64_t n = tile.n, stride = tile.padded, size = features.n, whole = size / kLanes<T> * kLanes<T>;
  const T* own = features.of_x + point * size;
  const int32_t* index = features.index + point * n;
  const auto row = [&](int64_t i) { return features.of_z + index[i < n ? i : n - 1] * size; };
  const auto vector = [](const T* at) -> V { return *reinterpret_cast<const Unaligned*>(at); };
  for (int64_t i0 = 0; i0 < n; i0 += 4) {
    const T* a[4] = {row(i0), row(i0 + 1), row(i0 + 2), row(i0 + 3)};
    for (int64_t j0 = 0; j0 < i0 + 4 && j0 < n; j0 += kColumns) {
      const T* b[kColumns];
      for (int c = 0; c < kColumns; ++c) b[c] = row(j0 + c);
      V acc[4][kColumns] = {};
      for (int64_t d = 0; d < whole; d += kLanes<T>)
        for (int c = 0; c < kColumns; ++c) {
          const V right = vector(b[c] + d);
          for (int r = 0; r < 4; ++r) acc[r][c] += vector(a[r] + d) * right;
        }
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < kColumns; ++c) {
          if (i0 + r >= n || j0 + c > i0 + r) continue;
          T sum = sum_of_lanes<T>(acc[r][c]);
          for (int64_t d = whole; d < size; ++d) sum += a[r][d] * b[c][d];
          tile.matrix[(i0 + r) * stride + j0 + c][l] -= sum;
        }
    }
    for (int r = 0; r < 4 && i0 + r < n; ++r) {
      V acc{};
      for (int64_t d = 0; d < whole; d += kLanes<T>) acc += vector(a[r] + d) * vector(own + d);
      T sum = sum_of_lanes<T>(acc);
      for (int64_t d = whole; d < size; ++d) sum += a[r][d] * own[d];
      tile.k[i0 + r][l] -= sum;
    }
  }
  V acc{};
  for (int64_t d = 0; d < whole; d += kLanes<T>) acc += vector(own + d) * vector(own + d);
  T sum = sum_of_lanes<T>(acc);
  for (int64_t d = whole; d < size; ++d) sum += own[d] * own[d];
  k_xx[l] -= sum;
}

// K with its nugget and jitter into the lower triangle of `matrix`, k into `k`; gives k(x, x).
template <typename T>
typename Simd<T>::V load_covariances(
    const Theta<T>& theta, const Features<T>& features, int64_t first, int64_t n_points, Tile<T>& tile) {
  using V = typename Simd<T>::V;
  const int64_t n = tile.n, stride = tile.padded, columns = tile.columns;
  for (int64_t i = 0; i < stride; i += 4) {
    const Rows<T> own = tile.z.from(i * columns);
    for (int64_t j = 0; j <= i + 3; j += kColumns) {
      V k[4][kColumns];
      block_of_covariances<T, kColumns>(theta, own, tile.z.from(j * columns), columns, k);
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < kColumns; ++c) tile.matrix[(i + r) * stride + j + c] = k[r][c];
    }
    V k[4][1];
    block_of_covariances<T, 1>(theta, own, tile.x, columns, k);
    for (int r = 0; r < 4; ++r) tile.k[i + r] = k[r][0];
  }
  V scale{};
  for (int64_t i = 0; i < n; ++i) {
    // Rounding must not find a point at a distance from itself.
    tile.matrix[i * stride + i] = variance_at(theta, tile.z.from(i * columns), columns);
    scale += tile.matrix[i * stride + i];
  }
  scale *= T(1) / T(n);
  const V least = splat<T>(T(1e-6));
  const V added = (scale > least ? scale : least) * theta.jitter + theta.nugget;
  for (int64_t i = 0; i < n; ++i) tile.matrix[i * stride + i] += added;
  V k_xx = variance_at(theta, tile.x, columns);
  if (features.n > 0) {
    for (int l = 0; l < kLanes<T>; ++l)
      take_off_products(features, first + l < n_points ? first + l : n_points - 1, l, tile, k_xx);
    k_xx = k_xx > V{} ? k_xx : V{};
  }
  // Padding: variables of their own, independent of all others.
  for (int64_t i = n; i < stride; ++i) {
    for (int64_t j = 0; j < i; ++j) tile.matrix[i * stride + j] = V{};
    tile.matrix[i * stride + i] = splat<T>(1);
    tile.k[i] = V{};
  }
  return k_xx;
}

// ------------------------------------------------------------------------------------------------ factors

// acc += sum over k of a[r][k] b[c][k], rows of length `stride`.
template <typename T>
inline void rows_by_rows(typename Simd<T>::V (&acc)[4][kColumns], const typename Simd<T>::V* a,
                         const typename Simd<T>::V* b, int64_t stride, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k)
    for (int c = 0; c < kColumns; ++c) {
      const auto right = b[c * stride + k];
      for (int r = 0; r < 4; ++r) acc[r][c] += a[r * stride + k] * right;
    }
}

// K = L L', in place; inverses of L's diagonal beside it. NaN in lanes whose K is not positive definite.
template <typename T>
void cholesky(Tile<T>& tile) {
  using V = typename Simd<T>::V;
  const int64_t stride = tile.padded;
  V *m = tile.matrix, *inverse = tile.inverse_diagonal;
  for (int64_t j = 0; j < stride; j += 4) {
    for (int64_t i = j; i < stride; i += 4)
      for (int64_t c = 0; c < 4; c += kColumns) {
        V acc[4][kColumns] = {};
        rows_by_rows<T>(acc, m + i * stride, m + (j + c) * stride, stride, 0, j);
        for (int r = 0; r < 4; ++r)
          for (int q = 0; q < kColumns; ++q) m[(i + r) * stride + j + c + q] -= acc[r][q];
      }
    V l[4][4];
    for (int c = 0; c < 4; ++c) {
      V diagonal = m[(j + c) * stride + j + c];
      for (int k = 0; k < c; ++k) diagonal -= l[c][k] * l[c][k];
      l[c][c] = root<T>(diagonal);
      inverse[j + c] = T(1) / l[c][c];
      for (int r = c + 1; r < 4; ++r) {
        V below = m[(j + r) * stride + j + c];
        for (int k = 0; k < c; ++k) below -= l[r][k] * l[c][k];
        l[r][c] = below * inverse[j + c];
      }
    }
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) m[(j + r) * stride + j + c] = c <= r ? l[r][c] : V{};
    for (int64_t i = j + 4; i < stride; ++i) {
      V* row = m + i * stride + j;
      for (int c = 0; c < 4; ++c) {
        V value = row[c];
        for (int k = 0; k < c; ++k) value -= row[k] * l[c][k];
        row[c] = value * inverse[j + c];
      }
    }
  }
}

// W = L^-1 in the place of L.
template <typename T>
void invert(Tile<T>& tile) {
  using V = typename Simd<T>::V;
  const int64_t stride = tile.padded;
  V *m = tile.matrix, *inverse = tile.inverse_diagonal;
  for (int64_t j = 0; j < stride; j += 4) {
    V w[4][4] = {};
    for (int c = 0; c < 4; ++c) {
      w[c][c] = inverse[j + c];
      for (int r = c + 1; r < 4; ++r) {
        V sum{};
        for (int k = c; k < r; ++k) sum += m[(j + r) * stride + j + k] * w[k][c];
        w[r][c] = -sum * inverse[j + r];
      }
    }
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) m[(j + r) * stride + j + c] = w[r][c];
    for (int64_t i = j + 4; i < stride; i += 4) {
      V sums[4][4];
      for (int64_t c = 0; c < 4; c += kColumns) {
        V acc[4][kColumns] = {};
        for (int64_t k = j; k < i; ++k)
          for (int q = 0; q < kColumns; ++q) {
            const V right = m[k * stride + j + c + q];
            for (int r = 0; r < 4; ++r) acc[r][q] += m[(i + r) * stride + k] * right;
          }
        for (int r = 0; r < 4; ++r)
          for (int q = 0; q < kColumns; ++q) sums[r][c + q] = acc[r][q];
      }
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) {
          V value = sums[r][c];
          for (int k = 0; k < r; ++k) value += m[(i + r) * stride + i + k] * m[(i + k) * stride + j + c];
          m[(i + r) * stride + j + c] = -value * inverse[i + r];
        }
    }
  }
}

// P = W' W in the place of W, both triangles.
template <typename T>
void square(Tile<T>& tile) {
  using V = typename Simd<T>::V;
  const int64_t stride = tile.padded;
  V* m = tile.matrix;
  for (int64_t i = 0; i < stride; i += 4)
    for (int64_t j = 0; j <= i; j += 4) {
      V block[4][4];
      for (int64_t c = 0; c < 4; c += kColumns) {
        V acc[4][kColumns] = {};
        for (int64_t k = i; k < stride; ++k)
          for (int q = 0; q < kColumns; ++q) {
            const V right = m[k * stride + j + c + q];
            for (int r = 0; r < 4; ++r) acc[r][q] += m[k * stride + i + r] * right;
          }
        for (int r = 0; r < 4; ++r)
          for (int q = 0; q < kColumns; ++q) block[r][c + q] = acc[r][q];
      }
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) m[(i + r) * stride + j + c] = block[r][c];
    }
  for (int64_t i = 0; i < stride; ++i)
    for (int64_t j = i + 1; j < stride; ++j) m[i * stride + j] = m[j * stride + i];
}

// out = W v, with W lower triangular.
template <typename T>
void lower_times(const Tile<T>& tile, const typename Simd<T>::V* v, typename Simd<T>::V* out) {
  for (int64_t i = 0; i < tile.padded; ++i) {
    typename Simd<T>::V sum{};
    for (int64_t j = 0; j <= i; ++j) sum += tile.matrix[i * tile.padded + j] * v[j];
    out[i] = sum;
  }
}

// out = W' v.
template <typename T>
void transposed_times(const Tile<T>& tile, const typename Simd<T>::V* v, typename Simd<T>::V* out) {
  using V = typename Simd<T>::V;
  for (int64_t i = 0; i < tile.padded; ++i) out[i] = V{};
  for (int64_t k = 0; k < tile.padded; ++k)
    for (int64_t i = 0; i <= k; ++i) out[i] += tile.matrix[k * tile.padded + i] * v[k];
}

template <typename T>
inline typename Simd<T>::V dot(const typename Simd<T>::V* a, const typename Simd<T>::V* b, int64_t n) {
  typename Simd<T>::V sum{};
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// ------------------------------------------------------------------------------------------------ scratch memory

inline int64_t up_to_four(int64_t n) { return (n + 3) / 4 * 4; }

template <typename T>
struct Bump {
  char* at;
  typename Simd<T>::V* take(int64_t n) {
    auto* taken = reinterpret_cast<typename Simd<T>::V*>(at);
    at += n * VECTOR_BYTES;
    return taken;
  }
};

template <typename T>
Tile<T> tile_of(const Sizes& sizes, Bump<T>& memory) {
  Tile<T> tile;
  tile.n = sizes.n_active;
  tile.padded = up_to_four(sizes.n_active);
  tile.columns = sizes.n_columns;
  tile.latents = sizes.n_latents;
  for (auto** part : {&tile.z.raw, &tile.z.scaled, &tile.z.weighted}) *part = memory.take(tile.padded * tile.columns);
  for (auto** part : {&tile.x.raw, &tile.x.scaled, &tile.x.weighted}) *part = memory.take(tile.columns);
  tile.matrix = memory.take(tile.padded * tile.padded);
  tile.inverse_diagonal = memory.take(tile.padded);
  tile.k = memory.take(tile.padded);
  tile.other = memory.take(2 * tile.padded);
  return tile;
}

template <typename T>
int64_t scratch_bytes(const Sizes& sizes) {
  const int64_t n = up_to_four(sizes.n_active), d = sizes.n_columns, q = sizes.n_latents;
  return VECTOR_BYTES * (4 * n * d + 10 * d + 2 * n * n + 12 * n + 6 * n * q + 64);
}

template <typename T>
int64_t saved_numbers(const Sizes& sizes) {
  const int64_t n = up_to_four(sizes.n_active);
  return kLanes<T> * (n * n + n + n * sizes.n_latents);
}

// ------------------------------------------------------------------------------------------------ whole operations

// Points first, ..., first + lanes - 1.
template <typename T>
void forward(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const Terms<T>& out, int64_t first,
             char* scratch) {
  using V = typename Simd<T>::V;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, q_n = tile.latents, points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  const V k_xx = load_covariances(theta, in.features, first, points, tile);
  V *mean = memory.take(n * q_n), *variance = memory.take(n * q_n), *results = memory.take(2 * q_n);
  V *a = memory.take(padded), *b = memory.take(padded * q_n), *column = memory.take(padded);
  gather(in.mean, first, points, n * q_n, mean);
  if (in.variance != nullptr) gather(in.variance, first, points, n * q_n, variance);
  cholesky(tile);
  LogOfProduct<T> inverse_root;
  for (int64_t i = 0; i < n; ++i) inverse_root.times(tile.inverse_diagonal[i]);
  invert(tile);
  lower_times(tile, tile.k, tile.other);
  transposed_times(tile, tile.other, a);
  V remainder = k_xx - dot<T>(tile.other, tile.other, padded);
  remainder = remainder < V{} ? V{} : remainder;
  V twice_kl = T(q_n) * (T(-2) * inverse_root.log() - T(n));
  for (int64_t q = 0; q < q_n; ++q) {
    for (int64_t i = 0; i < padded; ++i) column[i] = i < n ? mean[i * q_n + q] : V{};
    lower_times(tile, column, tile.other);
    transposed_times(tile, tile.other, b + q * padded);
    twice_kl += dot<T>(tile.other, tile.other, padded);
    results[q] = dot<T>(a, column, padded);
    results[q_n + q] = remainder;
  }
  square(tile);
  if (in.variance != nullptr) {
    LogOfProduct<T> spread;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t q = 0; q < q_n; ++q) {
        const V s = variance[i * q_n + q];
        spread.times(s);
        results[q_n + q] += a[i] * a[i] * s;
        twice_kl += tile.matrix[i * padded + i] * s;
      }
    twice_kl -= spread.log();
  }
  scatter(results, first, points, q_n, out.mean);
  scatter(results + q_n, first, points, q_n, out.variance);
  const V kl = T(0.5) * twice_kl;
  if (out.kl != nullptr) scatter(&kl, first, points, 1, out.kl);
  using Unaligned = typename Simd<T>::Unaligned;
  auto* saved = reinterpret_cast<Unaligned*>(out.saved + first / kLanes<T> * saved_numbers<T>(sizes));
  for (int64_t i = 0; i < padded * padded; ++i) saved[i] = tile.matrix[i];
  saved += padded * padded;
  for (int64_t i = 0; i < padded; ++i) saved[i] = a[i];
  saved += padded;
  for (int64_t i = 0; i < padded * q_n; ++i) saved[i] = b[i];
}

// Sums of derivatives of covariances, each times its cotangent.
template <typename T>
struct Gradients {
  using V = typename Simd<T>::V;
  V weights[4] = {};
  V constant{};
  V* lengthscales;  // Times the inverse lengthscales, D.
  V* linear;        // D.

  // Of four points a and kN others b, to all of which g belongs. `d_a` and `d_b` are null where derivatives of inputs
  // are not wanted.
  template <int kN>
  void add(const Theta<T>& theta, const V (&g)[4][kN], const Rows<T>& a, const Rows<T>& b, V* d_a, V* d_b,
           int64_t columns) {
    V r2[4][kN], slope[4][kN];
    block_of_distances<T, kN>(a.scaled, b.scaled, columns, r2);
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < kN; ++c) {
        slope[r][c] = T(2) * profiles<T, true>(theta, r2[r][c], g[r][c], weights);
        constant += g[r][c];
      }
    for (int64_t d = 0; d < columns; ++d) {
      V sum{};
      for (int c = 0; c < kN; ++c) {
        const V other = b.scaled[c * columns + d];
        for (int r = 0; r < 4; ++r) {
          const V difference = a.scaled[r * columns + d] - other;
          sum += slope[r][c] * difference * difference;
        }
      }
      lengthscales[d] += sum;
    }
    if (theta.kinds & 16)
      for (int64_t d = 0; d < columns; ++d) {
        V sum{};
        for (int c = 0; c < kN; ++c) {
          V inner{};
          for (int r = 0; r < 4; ++r) inner += g[r][c] * a.raw[r * columns + d];
          sum += inner * b.raw[c * columns + d];
        }
        linear[d] += sum;
      }
    if (d_a == nullptr) return;
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < kN; ++c)
        for (int64_t d = 0; d < columns; ++d) {
          const V push = slope[r][c] * (a.scaled[r * columns + d] - b.scaled[c * columns + d]) *
                         theta.inverse_lengthscales[d];
          d_a[r * columns + d] += push + g[r][c] * b.weighted[c * columns + d];
          d_b[c * columns + d] += g[r][c] * a.weighted[r * columns + d] - push;
        }
  }

  // Of k(x, x), which does not depend on lengthscales.
  void add_diagonal(const Theta<T>& theta, V g, const Rows<T>& x, V* d_x, int64_t columns) {
    for (int t = 0; t < 4; ++t) weights[t] += g;
    constant += g;
    if (theta.kinds & 16)
      for (int64_t d = 0; d < columns; ++d) {
        linear[d] += g * x.raw[d] * x.raw[d];
        if (d_x != nullptr) d_x[d] += T(2) * g * x.weighted[d];
      }
  }
};

template <typename T>
void backward(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const Cotangents<T>& g,
              const Derivatives<T>& out, int64_t first, char* scratch) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, q_n = tile.latents, columns = tile.columns, points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  V *variance = memory.take(n * q_n), *g_mean = memory.take(q_n), *g_variance = memory.take(q_n);
  gather(g.mean, first, points, q_n, g_mean);
  gather(g.variance, first, points, q_n, g_variance);
  V g_kl{}, g_d{};
  if (g.kl != nullptr) gather(g.kl, first, points, 1, &g_kl);
  for (int64_t q = 0; q < q_n; ++q) g_d += g_variance[q];
  const auto* precision = reinterpret_cast<const Unaligned*>(g.saved + first / kLanes<T> * saved_numbers<T>(sizes));
  V *a = memory.take(padded), *b = memory.take(padded * q_n), *c = memory.take(padded), *mixed = memory.take(padded);
  for (int64_t i = 0; i < padded; ++i) a[i] = precision[padded * padded + i];
  for (int64_t i = 0; i < padded * q_n; ++i) b[i] = precision[padded * padded + padded + i];
  V* d_values = memory.take(n * q_n);
  V* root_of_s = tile.other;
  for (int64_t i = 0; i < padded; ++i) c[i] = mixed[i] = root_of_s[i] = V{};
  const bool has_s = in.variance != nullptr;
  // c = P sum_q S_q a g_v, and the rows of Y = P sqrt(S), so that P S P = Y Y'.
  if (has_s) {
    gather(in.variance, first, points, n * q_n, variance);
    V* weighted = tile.k;
    for (int64_t i = 0; i < padded; ++i) {
      V total{}, sum{};
      if (i < n)
        for (int64_t q = 0; q < q_n; ++q) {
          total += variance[i * q_n + q];
          sum += variance[i * q_n + q] * g_variance[q];
        }
      root_of_s[i] = root<T>(total);
      weighted[i] = sum * a[i];
    }
    for (int64_t i = 0; i < padded; ++i) {
      V sum{};
      for (int64_t k = 0; k < padded; ++k) {
        const V p = precision[i * padded + k];
        sum += p * weighted[k];
        tile.matrix[i * padded + k] = p * root_of_s[k];
      }
      c[i] = sum;
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t q = 0; q < q_n; ++q) {
        const V p = precision[i * padded + i];
        d_values[i * q_n + q] = a[i] * a[i] * g_variance[q] + T(0.5) * g_kl * (p - T(1) / variance[i * q_n + q]);
      }
    scatter(d_values, first, points, n * q_n, out.variance);
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t q = 0; q < q_n; ++q) {
      d_values[i * q_n + q] = a[i] * g_mean[q] + g_kl * b[q * padded + i];
      mixed[i] += g_mean[q] * b[q * padded + i];
    }
  scatter(d_values, first, points, n * q_n, out.mean);

  Gradients<T> sums;
  sums.lengthscales = memory.take(columns);
  sums.linear = memory.take(columns);
  for (int64_t d = 0; d < columns; ++d) sums.lengthscales[d] = sums.linear[d] = V{};
  V *d_x = nullptr, *d_z = nullptr;
  if (out.z != nullptr) {
    d_x = memory.take(columns);
    d_z = memory.take(padded * columns);
    for (int64_t d = 0; d < columns; ++d) d_x[d] = V{};
    for (int64_t i = 0; i < padded * columns; ++i) d_z[i] = V{};
  }
  const auto d_row = [&](int64_t i) { return d_z == nullptr ? nullptr : d_z + i * columns; };
  V* diagonal = tile.inverse_diagonal;
  for (int64_t i0 = 0; i0 < padded; i0 += 4)
    for (int64_t j0 = 0; j0 <= i0 + 3; j0 += kColumns) {
      V block[4][kColumns] = {};
      if (has_s) rows_by_rows<T>(block, tile.matrix + i0 * padded, tile.matrix + j0 * padded, padded, 0, padded);
      for (int r = 0; r < 4; ++r)
        for (int q = 0; q < kColumns; ++q) {
          const int64_t i = i0 + r, j = j0 + q;
          V prior{};
          if (has_s) {
            prior = T(q_n) * precision[i * padded + j] - block[r][q];
            for (int64_t l = 0; l < q_n; ++l) prior -= b[l * padded + i] * b[l * padded + j];
          }
          const V d_k = g_d * a[i] * a[j] - T(0.5) * (a[i] * mixed[j] + mixed[i] * a[j]) - c[i] * a[j] - a[i] * c[j] +
                        T(0.5) * g_kl * prior;
          if (i == j) diagonal[i] = d_k;
          // K has each covariance twice; what lies above its diagonal, and the padding, does not count.
          block[r][q] = j < i && i < n ? T(2) * d_k : V{};
        }
      sums.template add<kColumns>(theta, block, tile.z.from(i0 * columns), tile.z.from(j0 * columns), d_row(i0),
                                  d_row(j0), columns);
    }
  // Jitter is relative to the mean of the diagonal.
  V scale{}, trace{};
  for (int64_t i = 0; i < n; ++i) {
    scale += variance_at(theta, tile.z.from(i * columns), columns);
    trace += diagonal[i];
  }
  scale *= T(1) / T(n);
  const V least = splat<T>(T(1e-6));
  const V from_jitter = scale > least ? trace * (theta.jitter / T(n)) : V{};
  for (int64_t i0 = 0; i0 < padded; i0 += 4) {
    V block[4][1];
    for (int r = 0; r < 4; ++r) {
      const int64_t i = i0 + r;
      block[r][0] = i < n ? mixed[i] - T(2) * g_d * a[i] + T(2) * c[i] : V{};
      if (i < n) sums.add_diagonal(theta, diagonal[i] + from_jitter, tile.z.from(i * columns), d_row(i), columns);
    }
    sums.template add<1>(theta, block, tile.z.from(i0 * columns), tile.x, d_row(i0), d_x, columns);
  }
  sums.add_diagonal(theta, g_d, tile.x, d_x, columns);

  // theta: inverse lengthscales, linear variances, weights, constant, nugget, jitter.
  V* d_theta = memory.take(2 * columns + 7);
  for (int64_t d = 0; d < columns; ++d) {
    const T inverse = theta.inverse_lengthscales[d];
    d_theta[d] = inverse != T(0) ? sums.lengthscales[d] * (T(1) / inverse) : V{};
    d_theta[columns + d] = sums.linear[d];
  }
  for (int t = 0; t < 4; ++t) d_theta[2 * columns + t] = sums.weights[t];
  d_theta[2 * columns + 4] = sums.constant;
  d_theta[2 * columns + 5] = trace;
  d_theta[2 * columns + 6] = trace * (scale > least ? scale : least);
  scatter(d_theta, first, points, 2 * columns + 7, out.theta);
  if (d_z != nullptr) {
    scatter(d_x, first, points, columns, out.x);
    scatter(d_z, first, points, n * columns, out.z);
  }
}

// a, what is left of k(x, x), K^-1 (both triangles) and log|K|; or only the first two where `precision` is null.
template <typename T>
void system(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const System<T>& out, int64_t first,
            char* scratch) {
  using V = typename Simd<T>::V;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  const V k_xx = load_covariances(theta, in.features, first, points, tile);
  V *a = memory.take(padded), *half = tile.other;
  cholesky(tile);
  if (out.precision == nullptr) {
    // Two triangular solves.
    for (int64_t i = 0; i < padded; ++i) {
      V value = tile.k[i];
      for (int64_t j = 0; j < i; ++j) value -= tile.matrix[i * padded + j] * half[j];
      half[i] = value * tile.inverse_diagonal[i];
    }
    for (int64_t i = 0; i < padded; ++i) a[i] = half[i];
    for (int64_t i = padded - 1; i >= 0; --i) {
      a[i] *= tile.inverse_diagonal[i];
      for (int64_t j = 0; j < i; ++j) a[j] -= tile.matrix[i * padded + j] * a[i];
    }
  } else {
    LogOfProduct<T> inverse_root;
    for (int64_t i = 0; i < n; ++i) inverse_root.times(tile.inverse_diagonal[i]);
    const V log_det = T(-2) * inverse_root.log();
    scatter(&log_det, first, points, 1, out.log_det);
    invert(tile);
    lower_times(tile, tile.k, half);
    transposed_times(tile, half, a);
    square(tile);
    for (int l = 0; l < kLanes<T> && first + l < points; ++l) {
      const T* lane = reinterpret_cast<const T*>(tile.matrix) + l;
      T* to = out.precision + (first + l) * n * n;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) to[i * n + j] = lane[(i * padded + j) * kLanes<T>];
    }
  }
  V remainder = k_xx - dot<T>(half, half, padded);
  remainder = remainder < V{} ? V{} : remainder;
  scatter(a, first, points, n, out.weights);
  scatter(&remainder, first, points, 1, out.remainder);
}

// W = chol(K)^-1 of matrices that are given.
template <typename T>
void inverse_factor(int64_t n_matrices, int64_t n, const T* k, T* w, int64_t first, char* scratch) {
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(Sizes{n_matrices, n, 0, 0}, memory);
  const int64_t padded = tile.padded;
  const int lanes = kLanes<T>;
  for (int l = 0; l < lanes; ++l) {
    const T* from = k + (first + l < n_matrices ? first + l : n_matrices - 1) * n * n;
    T* lane = reinterpret_cast<T*>(tile.matrix) + l;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) lane[(i * padded + j) * lanes] = from[i * n + j];
  }
  for (int64_t i = n; i < padded; ++i)
    for (int64_t j = 0; j <= i; ++j) tile.matrix[i * padded + j] = splat<T>(i == j ? 1 : 0);
  cholesky(tile);
  invert(tile);
  for (int l = 0; l < lanes && first + l < n_matrices; ++l) {
    const T* lane = reinterpret_cast<const T*>(tile.matrix) + l;
    T* to = w + (first + l) * n * n;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) to[i * n + j] = j <= i ? lane[(i * padded + j) * lanes] : T(0);
  }
}

template <typename T>
Kernels<T> kernels() {
  return {kLanes<T>, scratch_bytes<T>, saved_numbers<T>, forward<T>, backward<T>, system<T>, inverse_factor<T>};
}

template Kernels<float> kernels<float>();
template Kernels<double> kernels<double>();

}  // namespace ISA
}  // namespace swsgp

// Covariances of a tile, and sums of their derivatives.

#pragma once

#include "tile.hpp"

namespace swsgp {
namespace ISA {

// Profiles of Matérn-1/2, 3/2, 5/2 and the squared exponential, weighted and summed, at a squared distance. If asked
// for, adds g times each profile to `parts` and gives g times the derivative with respect to the squared distance.
template <typename T, bool kSlope>
inline typename Simd<T>::V profiles(const Theta<T>& theta, typename Simd<T>::V r2, typename Simd<T>::V g,
                                    typename Simd<T>::V* parts) {
  using V = typename Simd<T>::V;
  V k{}, slope{}, r{};
  // Farther than this every profile is 0, and the square of more may not be a number; see `_root` in covariances.py.
  const V farthest = splat<T>(T(1e8));
  if (theta.kinds & 7) r = root<T>(r2 > farthest ? farthest : r2);
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

template <typename T>
void load_rows(const Theta<T>& theta, const T* from, int64_t first, int64_t n_points, int64_t n, int64_t padded,
               int64_t columns, Rows<T>& rows) {
  gather(from, first, n_points, n * columns, n * columns, rows.raw);
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

// Products of the features of one point, in lane l, off its covariances. Here the lanes go along the features.
template <typename T>
void take_off_products(const Features<T>& features, int64_t point, int l, Tile<T>& tile, typename Simd<T>::V& k_xx) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  const int64_t n = tile.n, stride = tile.stride, size = features.n, whole = size / kLanes<T> * kLanes<T>;
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
  const int64_t n = tile.n, padded = tile.padded, stride = tile.stride, columns = tile.columns;
  for (int64_t i = 0; i < padded; i += 4) {
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
  for (int64_t i = n; i < padded; ++i) {
    for (int64_t j = 0; j < i; ++j) tile.matrix[i * stride + j] = V{};
    tile.matrix[i * stride + i] = splat<T>(1);
    tile.k[i] = V{};
  }
  return k_xx;
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

}  // namespace ISA
}  // namespace swsgp

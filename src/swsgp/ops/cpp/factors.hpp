// Factors, inverses and products of the matrices of a tile.

#pragma once

#include "tile.hpp"

namespace swsgp {
namespace ISA {

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
  const int64_t padded = tile.padded, stride = tile.stride;
  V *m = tile.matrix, *inverse = tile.inverse_diagonal;
  for (int64_t j = 0; j < padded; j += 4) {
    for (int64_t i = j; i < padded; i += 4)
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
    for (int64_t i = j + 4; i < padded; ++i) {
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
  const int64_t padded = tile.padded, stride = tile.stride;
  V *m = tile.matrix, *inverse = tile.inverse_diagonal;
  for (int64_t j = 0; j < padded; j += 4) {
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
    for (int64_t i = j + 4; i < padded; i += 4) {
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
  const int64_t padded = tile.padded, stride = tile.stride;
  V* m = tile.matrix;
  for (int64_t i = 0; i < padded; i += 4)
    for (int64_t j = 0; j <= i; j += 4) {
      V block[4][4];
      for (int64_t c = 0; c < 4; c += kColumns) {
        V acc[4][kColumns] = {};
        for (int64_t k = i; k < padded; ++k)
          for (int q = 0; q < kColumns; ++q) {
            const V right = m[k * stride + j + c + q];
            for (int r = 0; r < 4; ++r) acc[r][q] += m[k * stride + i + r] * right;
          }
        for (int r = 0; r < 4; ++r)
          for (int q = 0; q < kColumns; ++q) block[r][c + q] = acc[r][q];
      }
      // Rows above i have been read for the last time.
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) m[(i + r) * stride + j + c] = m[(j + c) * stride + i + r] = block[r][c];
    }
}

// out = W v, with W lower triangular.
template <typename T>
void lower_times(const Tile<T>& tile, const typename Simd<T>::V* v, typename Simd<T>::V* out) {
  for (int64_t i = 0; i < tile.padded; ++i) {
    typename Simd<T>::V sum{};
    for (int64_t j = 0; j <= i; ++j) sum += tile.matrix[i * tile.stride + j] * v[j];
    out[i] = sum;
  }
}

// out = W' v.
template <typename T>
void transposed_times(const Tile<T>& tile, const typename Simd<T>::V* v, typename Simd<T>::V* out) {
  using V = typename Simd<T>::V;
  for (int64_t i = 0; i < tile.padded; ++i) out[i] = V{};
  for (int64_t k = 0; k < tile.padded; ++k)
    for (int64_t i = 0; i <= k; ++i) out[i] += tile.matrix[k * tile.stride + i] * v[k];
}

template <typename T>
inline typename Simd<T>::V dot(const typename Simd<T>::V* a, const typename Simd<T>::V* b, int64_t n) {
  typename Simd<T>::V sum{};
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace ISA
}  // namespace swsgp

// S = L L' of a few rows of a large lower triangular matrix L: some columns at a time.

#pragma once

#include <algorithm>

#include "tile.hpp"

namespace swsgp {
namespace ISA {

constexpr int64_t kColumnsOfRoot = 64;
template <typename T>
constexpr int64_t kVectorsOfRoot = kColumnsOfRoot / kLanes<T>;

inline int64_t start_of_row(int64_t i) { return i * (i - 1) / 2; }

// Some columns of the rows of a point, from `begin` on, in whole vectors.
template <typename T>
void load_rows(const RowsOfRoot<T>& rows, const int32_t* index, int64_t n, int64_t q, int64_t q_n, int64_t begin,
               typename Simd<T>::V* to) {
  for (int64_t h = 0; h < n; ++h) {
    T* own = reinterpret_cast<T*>(to + h * kVectorsOfRoot<T>);
    const int64_t i = index[h], n_below = std::clamp<int64_t>(i - begin, 0, kColumnsOfRoot);
    std::copy_n(rows.lower + q * rows.length + start_of_row(i) + begin, n_below, own);
    std::fill(own + n_below, own + kColumnsOfRoot, T(0));
    if (i >= begin && i < begin + kColumnsOfRoot) own[n_below] = rows.diagonal[i * q_n + q];
  }
}

template <typename T>
void products(const Sizes& sizes, const RowsOfRoot<T>& rows, int64_t point, T* products, char* scratch) {
  using V = typename Simd<T>::V;
  constexpr int64_t vectors = kVectorsOfRoot<T>;
  const int64_t n = sizes.n_active, q_n = sizes.n_latents;
  const int32_t* index = rows.index + point * n;
  const int64_t n_columns = *std::max_element(index, index + n) + 1;
  Bump<T> memory{scratch};
  V *own = memory.take(n * vectors), *sums = memory.take(n * (n + 1) / 2);
  for (int64_t q = 0; q < q_n; ++q) {
    std::fill_n(sums, n * (n + 1) / 2, V{});
    for (int64_t begin = 0; begin < n_columns; begin += kColumnsOfRoot) {
      load_rows(rows, index, n, q, q_n, begin, own);
      V* sum = sums;
      for (int64_t h = 0; h < n; ++h)
        for (int64_t k = 0; k <= h; ++k, ++sum) {
          if (std::min(index[h], index[k]) < begin) continue;
          V more = *sum;
          for (int64_t v = 0; v < vectors; ++v) more += own[h * vectors + v] * own[k * vectors + v];
          *sum = more;
        }
    }
    T* out = products + (point * q_n + q) * n * n;
    const V* sum = sums;
    for (int64_t h = 0; h < n; ++h)
      for (int64_t k = 0; k <= h; ++k) out[h * n + k] = out[k * n + h] = sum_of_lanes<T>(*sum++);
  }
}

template <typename T>
void products_backward(const Sizes& sizes, const RowsOfRoot<T>& rows, const T* g, int64_t begin, T* d_lower,
                       T* d_diagonal, char* scratch) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  constexpr int64_t vectors = kVectorsOfRoot<T>;
  const int64_t n = sizes.n_active, q_n = sizes.n_latents;
  Bump<T> memory{scratch};
  V *own = memory.take(n * vectors);
  for (int64_t point = 0; point < sizes.n_points; ++point) {
    const int32_t* index = rows.index + point * n;
    for (int64_t q = 0; q < q_n; ++q) {
      load_rows(rows, index, n, q, q_n, begin, own);
      const T* of_point = g + (point * q_n + q) * n * n;
      for (int64_t h = 0; h < n; ++h) {
        const int64_t i = index[h];
        if (i < begin) continue;
        V sums[vectors] = {};
        for (int64_t k = 0; k < n; ++k) {
          if (index[k] < begin) continue;
          const T weight = of_point[h * n + k] + of_point[k * n + h];
          for (int64_t v = 0; v < vectors; ++v) sums[v] += weight * own[k * vectors + v];
        }
        // Row i goes as far as its diagonal.
        const T* found = reinterpret_cast<const T*>(sums);
        T* to = d_lower + q * rows.length + start_of_row(i) + begin;
        const int64_t n_below = std::min(i - begin, kColumnsOfRoot), n_whole = n_below / kLanes<T> * kLanes<T>;
        for (int64_t v = 0; v < n_below / kLanes<T>; ++v)
          *reinterpret_cast<Unaligned*>(to + v * kLanes<T>) += sums[v];
        for (int64_t c = n_whole; c < n_below; ++c) to[c] += found[c];
        if (n_below < kColumnsOfRoot) d_diagonal[i * q_n + q] += found[n_below];
      }
    }
  }
}

}  // namespace ISA
}  // namespace swsgp

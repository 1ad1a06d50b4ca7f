// A tile: what a kernel holds of as many points as a vector has lanes.

#pragma once

#include <initializer_list>

#include "simd.hpp"
#include "terms.hpp"

namespace swsgp {
namespace ISA {

// Inputs of points, one after the other: as they are, times inverse lengthscales, and times linear variances.
template <typename T>
struct Rows {
  typename Simd<T>::V *raw, *scaled, *weighted;

  Rows from(int64_t offset) const { return {raw + offset, scaled + offset, weighted + offset}; }
};

template <typename T>
struct Tile {
  using V = typename Simd<T>::V;
  int64_t n, padded, stride, columns, latents;  // H, H up to a multiple of four, from row to row, D, Q.
  Rows<T> z;    // padded x D each; zero in the padding.
  Rows<T> x;    // D each.
  V* matrix;    // padded x padded, rows `stride` apart.
  V* inverse_diagonal;
  V* k;         // Covariances with the point.
  V* other;     // Two vectors of `padded`.
};

inline int64_t up_to_four(int64_t n) { return (n + 3) / 4 * 4; }
// Rows a power of two apart would fall into the same few places of the cache.
inline int64_t stride_of(int64_t padded) { return padded % 8 == 0 ? padded + 4 : padded; }

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
  tile.stride = stride_of(tile.padded);
  tile.columns = sizes.n_columns;
  tile.latents = sizes.n_latents;
  for (auto** part : {&tile.z.raw, &tile.z.scaled, &tile.z.weighted}) *part = memory.take(tile.padded * tile.columns);
  for (auto** part : {&tile.x.raw, &tile.x.scaled, &tile.x.weighted}) *part = memory.take(tile.columns);
  tile.matrix = memory.take(tile.padded * tile.stride);
  tile.inverse_diagonal = memory.take(tile.padded);
  tile.k = memory.take(tile.padded);
  tile.other = memory.take(2 * tile.padded);
  return tile;
}

// Another matrix of the size of a tile's.
template <typename T>
Tile<T> beside(const Tile<T>& tile, Bump<T>& memory) {
  Tile<T> other = tile;
  other.matrix = memory.take(tile.padded * tile.stride);
  other.inverse_diagonal = memory.take(tile.padded);
  return other;
}

template <typename T>
int64_t scratch_bytes(const Sizes& sizes) {
  const int64_t n = up_to_four(sizes.n_active), d = sizes.n_columns, q = sizes.n_latents;
  return VECTOR_BYTES * (4 * n * d + 10 * d + 4 * n * (n + 4) + 14 * n + 6 * n * q + 64);
}

template <typename T>
int64_t saved_numbers(const Sizes& sizes) {
  const int64_t n = up_to_four(sizes.n_active);
  return kLanes<T> * (n * n + n + n * sizes.n_latents);
}

// Where the points of a tile begin in an array with `row` numbers for each of `n_points`; the last point stands in for
// those beyond it.
template <typename T, typename P>
inline void rows_of(P from, int64_t first, int64_t n_points, int64_t row, P (&rows)[kLanes<T>]) {
  for (int l = 0; l < kLanes<T>; ++l) rows[l] = from + (first + l < n_points ? first + l : n_points - 1) * row;
}

// `size` vectors of an array that has `row` numbers for each point.
template <typename T>
inline void gather(const T* from, int64_t first, int64_t n_points, int64_t row, int64_t size,
                   typename Simd<T>::V* to) {
  const T* rows[kLanes<T>];
  rows_of<T>(from, first, n_points, row, rows);
  for (int64_t i = 0; i < size; ++i)
    for (int l = 0; l < kLanes<T>; ++l) reinterpret_cast<T*>(to + i)[l] = rows[l][i];
}

template <typename T>
inline void scatter(const typename Simd<T>::V* from, int64_t first, int64_t n_points, int64_t row, int64_t size,
                    T* to) {
  T* rows[kLanes<T>];
  rows_of<T>(to, first, n_points, row, rows);
  const int n = n_points - first < kLanes<T> ? static_cast<int>(n_points - first) : kLanes<T>;
  for (int64_t i = 0; i < size; ++i)
    for (int l = 0; l < n; ++l) rows[l][i] = reinterpret_cast<const T*>(from + i)[l];
}

}  // namespace ISA
}  // namespace swsgp

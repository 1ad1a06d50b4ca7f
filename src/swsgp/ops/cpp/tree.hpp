// Points in boxes: halved along the widest column until a box holds few, so that most boxes can be left out of a search.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace swsgp {

// Corners of boxes, (columns, padded); those of the padding, up to a multiple of 16, are infinitely far away.
template <typename T>
struct Boxes {
  int64_t n, padded;
  std::vector<T> low, high;

  Boxes(int64_t columns, int64_t n)
      : n(n),
        padded((n + 15) / 16 * 16),
        low(columns * padded, std::numeric_limits<T>::infinity()),
        high(columns * padded, -std::numeric_limits<T>::infinity()) {}

  void include(int64_t box, int64_t d, T least, T most) {
    low[d * padded + box] = std::min(low[d * padded + box], least);
    high[d * padded + box] = std::max(high[d * padded + box], most);
  }
};

template <typename T>
struct Tree {
  int64_t columns, leaf_size, n_leaves;
  std::vector<T> points;       // (n_leaves, columns, leaf_size); infinite where a leaf is not full.
  std::vector<int32_t> index;  // (n_leaves, leaf_size); -1 there.
  Boxes<T> leaves, groups;     // Of each leaf, and of each 16 of them, which are neighbours.

  Tree(const T* from, int64_t n, int64_t columns, int64_t leaf_size)
      : columns(columns),
        leaf_size(leaf_size),
        n_leaves((n + leaf_size - 1) / leaf_size),
        points(n_leaves * columns * leaf_size, std::numeric_limits<T>::infinity()),
        index(n_leaves * leaf_size, -1),
        leaves(columns, n_leaves),
        groups(columns, (n_leaves + 15) / 16) {
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    split(from, order.data(), n, 0, n_leaves);
  }

 private:
  // Puts `n` points into leaves first, ..., first + n_own - 1.
  void split(const T* from, int32_t* order, int64_t n, int64_t first, int64_t n_own) {
    if (n_own == 1) return fill(from, order, n, first);
    int64_t widest = 0;
    T width = -1;
    for (int64_t d = 0; d < columns; ++d) {
      T least = from[order[0] * columns + d], most = least;
      for (int64_t i = 1; i < n; ++i) {
        const T value = from[order[i] * columns + d];
        least = std::min(least, value);
        most = std::max(most, value);
      }
      if (most - least > width) {
        width = most - least;
        widest = d;
      }
    }
    // All leaves but the last are full.
    const int64_t left = n_own / 2, n_left = left * leaf_size;
    std::nth_element(order, order + n_left, order + n, [&](int32_t a, int32_t b) {
      const T one = from[a * columns + widest], other = from[b * columns + widest];
      return one < other || (one == other && a < b);
    });
    split(from, order, n_left, first, left);
    split(from, order + n_left, n - n_left, first + left, n_own - left);
  }

  void fill(const T* from, const int32_t* order, int64_t n, int64_t leaf) {
    for (int64_t i = 0; i < n; ++i) {
      index[leaf * leaf_size + i] = order[i];
      for (int64_t d = 0; d < columns; ++d)
        points[(leaf * columns + d) * leaf_size + i] = from[order[i] * columns + d];
    }
    for (int64_t d = 0; d < columns; ++d) {
      const T* column = points.data() + (leaf * columns + d) * leaf_size;
      const T least = *std::min_element(column, column + n), most = *std::max_element(column, column + n);
      leaves.include(leaf, d, least, most);
      groups.include(leaf / 16, d, least, most);
    }
  }
};

}  // namespace swsgp

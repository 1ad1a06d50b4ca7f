// Points in boxes: halved along the widest column until a box holds few, and boxes in larger boxes, so that most can be
// left out of a search.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace swsgp {

// Points in a leaf, and boxes in a box: multiples of the lanes of a vector, and fast from 10,000 points to a million.
constexpr int64_t kLeaf = 32, kFan = 16;

// Corners of boxes, `kFan` neighbours at a time: (n / kFan, columns, low or high, kFan).
template <typename T>
struct Boxes {
  int64_t n, columns;
  std::vector<T> corners;

  Boxes(int64_t n, int64_t columns) : n(n), columns(columns), corners((n + kFan - 1) / kFan * columns * 2 * kFan) {
    for (size_t i = 0; i < corners.size(); ++i)
      corners[i] = i / kFan % 2 == 0 ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
  }

  // The corners of box kFan * group and of those after it.
  const T* of(int64_t group) const { return corners.data() + group * columns * 2 * kFan; }

  void include(int64_t box, int64_t d, T least, T most) {
    T* low = corners.data() + ((box / kFan * columns + d) * 2) * kFan + box % kFan;
    low[0] = std::min(low[0], least);
    low[kFan] = std::max(low[kFan], most);
  }
};

template <typename T>
struct Tree {
  int64_t n, columns, n_leaves;
  std::vector<T> points;        // (n_leaves, columns, kLeaf); infinite where a leaf is not full.
  std::vector<int32_t> index;   // (n_leaves, kLeaf); -1 there.
  std::vector<Boxes<T>> boxes;  // Of each leaf, of each kFan of them, and so on, until there are kFan or fewer.

  Tree(const T* from, int64_t n, int64_t columns)
      : n(n),
        columns(columns),
        n_leaves((n + kLeaf - 1) / kLeaf),
        points(n_leaves * columns * kLeaf, std::numeric_limits<T>::infinity()),
        index(n_leaves * kLeaf, -1) {
    boxes.emplace_back(n_leaves, columns);
    while (boxes.back().n > kFan) boxes.emplace_back((boxes.back().n + kFan - 1) / kFan, columns);
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
    // All leaves but the last are full, and so are the larger boxes, which no cut goes through.
    int64_t whole = 1;
    while (whole * kFan < n_own) whole *= kFan;
    const int64_t left = (n_own / 2 + whole - 1) / whole * whole, n_left = left * kLeaf;
    std::nth_element(order, order + n_left, order + n, [&](int32_t a, int32_t b) {
      const T one = from[a * columns + widest], other = from[b * columns + widest];
      return one < other || (one == other && a < b);
    });
    split(from, order, n_left, first, left);
    split(from, order + n_left, n - n_left, first + left, n_own - left);
  }

  void fill(const T* from, const int32_t* order, int64_t n, int64_t leaf) {
    for (int64_t i = 0; i < n; ++i) {
      index[leaf * kLeaf + i] = order[i];
      for (int64_t d = 0; d < columns; ++d)
        points[(leaf * columns + d) * kLeaf + i] = from[order[i] * columns + d];
    }
    for (int64_t d = 0; d < columns; ++d) {
      const T* column = points.data() + (leaf * columns + d) * kLeaf;
      const T least = *std::min_element(column, column + n), most = *std::max_element(column, column + n);
      int64_t box = leaf;
      for (auto& level : boxes) {
        level.include(box, d, least, most);
        box /= kFan;
      }
    }
  }
};

}  // namespace swsgp

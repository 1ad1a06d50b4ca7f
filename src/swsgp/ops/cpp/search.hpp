// The nearest points to a query: boxes of points that could have some are looked at, one point in each lane.

#pragma once

#include <algorithm>

#include "simd.hpp"
#include "tree.hpp"

namespace swsgp {
namespace ISA {

template <typename T>
struct Candidate {
  T distance;
  int32_t index;
  bool operator<(const Candidate& other) const {
    return distance < other.distance || (distance == other.distance && index < other.index);
  }
};

template <typename T>
inline bool any(typename Simd<T>::I mask) {
  int64_t bits = 0;
  typedef int64_t Words __attribute__((vector_size(VECTOR_BYTES), may_alias));
  const Words words = reinterpret_cast<const Words&>(mask);
  for (int w = 0; w < VECTOR_BYTES / 8; ++w) bits |= words[w];
  return bits != 0;
}

// The k nearest so far, and some that were near when they came.
template <typename T>
struct Nearest {
  std::vector<Candidate<T>>& found;
  int64_t k;
  T limit = std::numeric_limits<T>::infinity();

  void add(T distance, int32_t index) {
    found.push_back({distance, index});
    if (static_cast<int64_t>(found.size()) >= 2 * k + 32) shrink();
  }

  void shrink() {
    if (static_cast<int64_t>(found.size()) <= k) return;
    std::nth_element(found.begin(), found.begin() + (k - 1), found.end());
    limit = found[k - 1].distance;
    found.resize(k);
  }
};

template <typename T>
void scan(const Tree<T>& tree, int64_t leaf, const T* query, Nearest<T>& nearest) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  const T* points = tree.points.data() + leaf * tree.columns * tree.leaf_size;
  const int32_t* index = tree.index.data() + leaf * tree.leaf_size;
  for (int64_t i = 0; i < tree.leaf_size; i += kLanes<T>) {
    V distance{};
    for (int64_t d = 0; d < tree.columns; ++d) {
      const V difference = *reinterpret_cast<const Unaligned*>(points + d * tree.leaf_size + i) - query[d];
      distance += difference * difference;
    }
    // A tie at the limit may win by its index.
    if (!any<T>(distance <= nearest.limit)) continue;
    for (int l = 0; l < kLanes<T>; ++l)
      if (distance[l] <= nearest.limit && index[i + l] >= 0) nearest.add(distance[l], index[i + l]);
  }
  nearest.shrink();
}

// Squared distances of a query to boxes first, ..., first + n - 1; n is a multiple of 16.
template <typename T>
void distances_to(const Boxes<T>& boxes, int64_t columns, const T* query, int64_t first, int64_t n, T* out) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  for (int64_t b = 0; b < n; b += kLanes<T>) {
    V distance{};
    for (int64_t d = 0; d < columns; ++d) {
      const int64_t at = d * boxes.padded + first + b;
      const V below = *reinterpret_cast<const Unaligned*>(boxes.low.data() + at) - query[d];
      const V above = query[d] - *reinterpret_cast<const Unaligned*>(boxes.high.data() + at);
      V outside = below > above ? below : above;
      outside = outside > V{} ? outside : V{};
      distance += outside * outside;
    }
    *reinterpret_cast<Unaligned*>(out + b) = distance;
  }
}

// Indices of the k nearest points to a query, nearest first; ties go to the lower index.
template <typename T>
void nearest_points(const Tree<T>& tree, const T* query, int64_t k, int32_t* out) {
  thread_local std::vector<Candidate<T>> found, boxes;
  thread_local std::vector<T> distances;
  found.clear();
  boxes.clear();
  distances.resize(tree.groups.padded);
  distances_to(tree.groups, tree.columns, query, 0, tree.groups.padded, distances.data());
  const int64_t home = std::min_element(distances.begin(), distances.begin() + tree.groups.n) - distances.begin();
  Nearest<T> nearest{found, k};
  const auto collect = [&](int64_t group) {
    T of_leaves[16];
    distances_to(tree.leaves, tree.columns, query, 16 * group, 16, of_leaves);
    for (int64_t i = 0; i < 16 && 16 * group + i < tree.n_leaves; ++i)
      if (of_leaves[i] <= nearest.limit) boxes.push_back({of_leaves[i], static_cast<int32_t>(16 * group + i)});
  };
  const auto look = [&] {
    std::sort(boxes.begin(), boxes.end());
    for (const auto& box : boxes) {
      if (box.distance > nearest.limit) break;
      scan(tree, box.index, query, nearest);
    }
    boxes.clear();
  };
  // After the nearest group few others are left.
  collect(home);
  look();
  for (int64_t g = 0; g < tree.groups.n; ++g)
    if (g != home && distances[g] <= nearest.limit) collect(g);
  look();
  std::sort(found.begin(), found.end());
  // A query that is not a number has no neighbours; what is computed with any is not a number either.
  for (int64_t i = 0; i < k; ++i) out[i] = i < static_cast<int64_t>(found.size()) ? found[i].index : 0;
}

}  // namespace ISA
}  // namespace swsgp

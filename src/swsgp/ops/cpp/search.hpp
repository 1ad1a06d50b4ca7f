// The nearest points to a query: boxes of points that could have some are looked at, one point in each lane. And the
// largest of a few scores.

#pragma once

#include <algorithm>
#include <limits>

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

// The k nearest so far, and some that were near when they came.
template <typename T>
struct Nearest {
  std::vector<Candidate<T>>& found;
  int64_t k;
  T limit = std::numeric_limits<T>::infinity();
  int64_t n_looked_at = 0;

  // Finding the limit takes longer than a few that turn out to be too far; the first limit comes as soon as it can.
  void shrink_now_and_then() {
    const int64_t some = limit < std::numeric_limits<T>::infinity() ? k / 2 : 0;
    if (static_cast<int64_t>(found.size()) > k + some) shrink();
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
  const T* points = tree.points.data() + leaf * tree.columns * kLeaf;
  const int32_t* index = tree.index.data() + leaf * kLeaf;
  for (int64_t i = 0; i < kLeaf; i += kLanes<T>) {
    V distance{};
    for (int64_t d = 0; d < tree.columns; ++d) {
      const V difference = *reinterpret_cast<const Unaligned*>(points + d * kLeaf + i) - query[d];
      distance += difference * difference;
    }
    // A tie at the limit may win by its index.
    if (!any<T>(distance <= nearest.limit)) continue;
    for (int l = 0; l < kLanes<T>; ++l)
      if (distance[l] <= nearest.limit && index[i + l] >= 0) nearest.found.push_back({distance[l], index[i + l]});
  }
  nearest.n_looked_at += kLeaf;
  nearest.shrink_now_and_then();
}

// Squared distances of a query to `kFan` boxes.
template <typename T>
void distances_to(const T* corners, int64_t columns, const T* query, T* out) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  for (int64_t b = 0; b < kFan; b += kLanes<T>) {
    V distance{};
    for (int64_t d = 0; d < columns; ++d) {
      const T* low = corners + 2 * d * kFan + b;
      const V below = *reinterpret_cast<const Unaligned*>(low) - query[d];
      const V above = query[d] - *reinterpret_cast<const Unaligned*>(low + kFan);
      V outside = below > above ? below : above;
      outside = outside > V{} ? outside : V{};
      distance += outside * outside;
    }
    *reinterpret_cast<Unaligned*>(out + b) = distance;
  }
}

// Looks at a group of boxes, the nearest first.
template <typename T>
void look(const Tree<T>& tree, int64_t level, int64_t group, const T* query, Nearest<T>& nearest) {
  const Boxes<T>& boxes = tree.boxes[level];
  T distances[kFan];
  distances_to(boxes.of(group), tree.columns, query, distances);
  Candidate<T> near[kFan];
  int64_t n = 0;
  for (int64_t i = 0; i < kFan && kFan * group + i < boxes.n; ++i) {
    if (!(distances[i] <= nearest.limit)) continue;
    const Candidate<T> box{distances[i], static_cast<int32_t>(kFan * group + i)};
    int64_t at = n++;
    for (; at > 0 && box < near[at - 1]; --at) near[at] = near[at - 1];
    near[at] = box;
  }
  for (int64_t i = 0; i < n && near[i].distance <= nearest.limit; ++i)
    level == 0 ? scan(tree, near[i].index, query, nearest) : look(tree, level - 1, near[i].index, query, nearest);
}

// Indices of the k nearest points to a query, nearest first; ties go to the lower index. Gives how many points were
// looked at.
template <typename T>
int64_t nearest_points(const Tree<T>& tree, const T* query, int64_t k, int32_t* out) {
  thread_local std::vector<Candidate<T>> found;
  found.clear();
  Nearest<T> nearest{found, k};
  look(tree, static_cast<int64_t>(tree.boxes.size()) - 1, 0, query, nearest);
  nearest.shrink();
  std::sort(found.begin(), found.end());
  // A query that is not a number has no neighbours; what is computed with any is not a number either.
  for (int64_t i = 0; i < k; ++i) out[i] = i < static_cast<int64_t>(found.size()) ? found[i].index : 0;
  return nearest.n_looked_at;
}

// Places of the n largest of `size` scores, largest first; ties go to the lower place, and what is not a number counts
// as -∞.
template <typename T>
void largest(const T* scores, int64_t size, int64_t n, int32_t* out) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  thread_local std::vector<T> best;
  best.resize(n);
  int64_t n_found = 0;
  const auto take = [&](int64_t i) {
    const T score = scores[i] == scores[i] ? scores[i] : -std::numeric_limits<T>::infinity();
    int64_t at = n_found < n ? n_found++ : n - 1;
    for (; at > 0 && score > best[at - 1]; --at) {
      best[at] = best[at - 1];
      out[at] = out[at - 1];
    }
    best[at] = score;
    out[at] = static_cast<int32_t>(i);
  };
  int64_t i = 0;
  for (; i < n; ++i) take(i);
  for (; i + kLanes<T> <= size; i += kLanes<T>) {
    const V some = *reinterpret_cast<const Unaligned*>(scores + i);
    if (!any<T>(some > best[n - 1])) continue;
    for (int l = 0; l < kLanes<T>; ++l)
      if (scores[i + l] > best[n - 1]) take(i + l);
  }
  for (; i < size; ++i)
    if (scores[i] > best[n - 1]) take(i);
}

}  // namespace ISA
}  // namespace swsgp

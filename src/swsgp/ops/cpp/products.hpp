// Products of sparse matrices with vectors, on several threads, each of which adds to a vector of its own.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads.hpp"

namespace swsgp {

// out = sum over parts of what task(begin, end, own) adds to a vector of `size` zeros, for rows cut into parts.
template <typename F>
void sum_over_parts(const std::vector<int64_t>& cuts, int64_t size, double* out, const F& task) {
  const int64_t n_parts = static_cast<int64_t>(cuts.size()) - 1;
  std::vector<std::vector<double>> others(n_parts);
  for (int64_t part = 1; part < n_parts; ++part) others[part].assign(size, 0.0);
  std::fill_n(out, size, 0.0);
  const auto work = [&](int64_t part) { task(cuts[part], cuts[part + 1], part == 0 ? out : others[part].data()); };
  on_threads(n_parts, work);
  for (int64_t part = 1; part < n_parts; ++part)
    for (int64_t j = 0; j < size; ++j) out[j] += others[part][j];
}

// r = omega (start + A v) and out = A' r, for A with `size` numbers in each row, at the columns `index`.
inline void gram_times(const int32_t* index, const double* a, const double* omega, const double* start, const double* v,
                       int64_t size, const std::vector<int64_t>& cuts, int64_t n_columns, double* r, double* out) {
  sum_over_parts(cuts, n_columns, out, [&](int64_t begin, int64_t end, double* own) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* columns = index + i * size;
      const double* values = a + i * size;
      double sum = start[i];
      for (int64_t h = 0; h < size; ++h) sum += values[h] * v[columns[h]];
      r[i] = sum *= omega[i];
      for (int64_t h = 0; h < size; ++h) own[columns[h]] += values[h] * sum;
    }
  });
}

// out = S v for a symmetric matrix S, of which the upper triangle is given in compressed rows.
inline void symmetric_times(const int64_t* starts, const int32_t* columns, const double* values, const double* v,
                            const std::vector<int64_t>& cuts, int64_t n, double* out) {
  sum_over_parts(cuts, n, out, [&](int64_t begin, int64_t end, double* own) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      const double v_i = v[i];
      for (int64_t k = starts[i]; k < starts[i + 1]; ++k) {
        const int32_t j = columns[k];
        sum += values[k] * v[j];
        if (j != i) own[j] += values[k] * v_i;
      }
      own[i] += sum;
    }
  });
}

}  // namespace swsgp

// The sum of many small symmetric matrices, each over a few of M variables: a sparse matrix.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace swsgp {

// The upper triangle in compressed rows, each sorted by column.
struct SparseRows {
  std::vector<int32_t> lengths;  // Of each row.
  std::vector<int32_t> columns;
  std::vector<double> values;
};

// Where each of M variables occurs: `place[start[i]], ...` are positions in an (n, size) array of variables.
struct Occurrences {
  std::vector<int64_t> start, place;

  Occurrences(const int32_t* index, int64_t n, int64_t size, int64_t n_variables)
      : start(n_variables + 1, 0), place(n * size) {
    for (int64_t p = 0; p < n * size; ++p) ++start[index[p] + 1];
    for (int64_t i = 0; i < n_variables; ++i) start[i + 1] += start[i];
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t p = 0; p < n * size; ++p) place[next[index[p]]++] = p;
  }
};

// Rows begin, ..., end - 1 of the sum. `index` (n, size) has the variables of each matrix in ascending order, `blocks`
// (n, size, size) the matrices.
inline SparseRows sum_of_blocks(const Occurrences& occurrences, const int32_t* index, const double* blocks, int64_t size,
                                int64_t n_variables, int64_t begin, int64_t end) {
  SparseRows rows;
  std::vector<double> sums(n_variables);
  std::vector<int32_t> last(n_variables, -1), touched;
  for (int64_t i = begin; i < end; ++i) {
    touched.clear();
    for (int64_t o = occurrences.start[i]; o < occurrences.start[i + 1]; ++o) {
      const int64_t place = occurrences.place[o], matrix = place / size;
      const int32_t* own = index + matrix * size;
      const double* row = blocks + place * size;
      for (int64_t h = place % size; h < size; ++h) {
        const int32_t j = own[h];
        if (last[j] != i) {
          last[j] = static_cast<int32_t>(i);
          sums[j] = 0;
          touched.push_back(j);
        }
        sums[j] += row[h];
      }
    }
    std::sort(touched.begin(), touched.end());
    rows.lengths.push_back(static_cast<int32_t>(touched.size()));
    for (const int32_t j : touched) {
      rows.columns.push_back(j);
      rows.values.push_back(sums[j]);
    }
  }
  return rows;
}

}  // namespace swsgp

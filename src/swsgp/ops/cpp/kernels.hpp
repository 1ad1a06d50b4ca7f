// The local terms of many points at once, one point in each lane of a vector.
//
// A tile is as many points as a vector has lanes. Everything of a tile is kept "interleaved": element (i, j) of the
// matrices of all its points is one vector, so that a loop written for one small matrix runs at full width whatever
// the size of the matrix. Loops are blocked by four rows so that most operands stay in registers.
//
// This file is compiled once for each instruction set: see avx512.cpp, avx2.cpp and plain.cpp, which define ISA, the
// name of a namespace, and VECTOR_BYTES. The formulas are those of ops/local.py, which is the reference.

#include "covariances.hpp"
#include "factors.hpp"
#include "roots.hpp"
#include "search.hpp"

namespace swsgp {
namespace ISA {

// The covariance of u for one latent function, with 1 on the diagonal of the padding.
template <typename T>
void load_covariance(const Inputs<T>& in, int64_t q, int64_t first, int64_t points, Tile<T>& s) {
  const int64_t n = s.n, padded = s.padded, stride = s.stride;
  for (int64_t i = 0; i < padded; ++i) {
    if (i < n) gather(in.variance + (q * n + i) * n, first, points, s.latents * n * n, n, s.matrix + i * stride);
    for (int64_t j = i < n ? n : 0; j < padded; ++j) s.matrix[i * stride + j] = splat<T>(i == j ? 1 : 0);
  }
}

// Rounding of S = L L' may leave none of its smallest eigenvalue: its diagonal grows by as much, before it is factored.
template <typename T>
void keep_definite(Tile<T>& s) {
  const T factor = T(1) + T(2 * s.n) * std::numeric_limits<T>::epsilon();
  for (int64_t i = 0; i < s.n; ++i) s.matrix[i * s.stride + i] *= factor;
}

// Points first, ..., first + lanes - 1.
template <typename T>
void forward(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const Terms<T>& out, int64_t first,
             char* scratch) {
  using V = typename Simd<T>::V;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, stride = tile.stride, q_n = tile.latents, points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  const V k_xx = load_covariances(theta, in.features, first, points, tile);
  V *mean = memory.take(n * q_n), *variance = memory.take(n * q_n), *results = memory.take(2 * q_n);
  V *a = memory.take(padded), *b = memory.take(padded * q_n), *column = memory.take(padded);
  gather(in.mean, first, points, n * q_n, n * q_n, mean);
  if (in.variance != nullptr && !in.has_all) gather(in.variance, first, points, n * q_n, n * q_n, variance);
  cholesky(tile);
  LogOfProduct<T> inverse_root;
  for (int64_t i = 0; i < n; ++i) inverse_root.times(tile.inverse_diagonal[i]);
  invert(tile);
  lower_times(tile, tile.k, tile.other);
  transposed_times(tile, tile.other, a);
  V remainder = k_xx - dot<T>(tile.other, tile.other, padded);
  remainder = remainder < V{} ? V{} : remainder;
  V twice_kl = T(q_n) * (T(-2) * inverse_root.log() - T(n));
  for (int64_t q = 0; q < q_n; ++q) {
    for (int64_t i = 0; i < padded; ++i) column[i] = i < n ? mean[i * q_n + q] : V{};
    lower_times(tile, column, tile.other);
    transposed_times(tile, tile.other, b + q * padded);
    twice_kl += dot<T>(tile.other, tile.other, padded);
    results[q] = dot<T>(a, column, padded);
    results[q_n + q] = remainder;
  }
  square(tile);
  if (in.has_all) {
    Tile<T> s = beside(tile, memory);
    for (int64_t q = 0; q < q_n; ++q) {
      load_covariance(in, q, first, points, s);
      V spread{};
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          spread += a[i] * a[j] * s.matrix[i * stride + j];
          twice_kl += tile.matrix[i * stride + j] * s.matrix[i * stride + j];
        }
      results[q_n + q] += spread < V{} ? V{} : spread;
      keep_definite(s);
      cholesky(s);
      LogOfProduct<T> inverse_root_of_s;
      for (int64_t i = 0; i < n; ++i) inverse_root_of_s.times(s.inverse_diagonal[i]);
      twice_kl += T(2) * inverse_root_of_s.log();
    }
  } else if (in.variance != nullptr) {
    LogOfProduct<T> spread;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t q = 0; q < q_n; ++q) {
        const V s = variance[i * q_n + q];
        spread.times(s);
        results[q_n + q] += a[i] * a[i] * s;
        twice_kl += tile.matrix[i * stride + i] * s;
      }
    twice_kl -= spread.log();
  }
  scatter(results, first, points, q_n, q_n, out.mean);
  scatter(results + q_n, first, points, q_n, q_n, out.variance);
  const V kl = T(0.5) * twice_kl;
  if (out.kl != nullptr) scatter(&kl, first, points, 1, 1, out.kl);
  using Unaligned = typename Simd<T>::Unaligned;
  auto* saved = reinterpret_cast<Unaligned*>(out.saved + first / kLanes<T> * saved_numbers<T>(sizes));
  for (int64_t i = 0; i < padded; ++i, saved += padded)
    for (int64_t j = 0; j < padded; ++j) saved[j] = tile.matrix[i * stride + j];
  for (int64_t i = 0; i < padded; ++i) saved[i] = a[i];
  saved += padded;
  for (int64_t i = 0; i < padded * q_n; ++i) saved[i] = b[i];
}

template <typename T>
void backward(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const Cotangents<T>& g,
              const Derivatives<T>& out, int64_t first, char* scratch) {
  using V = typename Simd<T>::V;
  using Unaligned = typename Simd<T>::Unaligned;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, stride = tile.stride, q_n = tile.latents, columns = tile.columns;
  const int64_t points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  V *variance = memory.take(n * q_n), *g_mean = memory.take(q_n), *g_variance = memory.take(q_n);
  gather(g.mean, first, points, q_n, q_n, g_mean);
  gather(g.variance, first, points, q_n, q_n, g_variance);
  V g_kl{}, g_d{};
  if (g.kl != nullptr) gather(g.kl, first, points, 1, 1, &g_kl);
  for (int64_t q = 0; q < q_n; ++q) g_d += g_variance[q];
  const auto* precision = reinterpret_cast<const Unaligned*>(g.saved + first / kLanes<T> * saved_numbers<T>(sizes));
  V *a = memory.take(padded), *b = memory.take(padded * q_n), *c = memory.take(padded), *mixed = memory.take(padded);
  for (int64_t i = 0; i < padded; ++i) a[i] = precision[padded * padded + i];
  for (int64_t i = 0; i < padded * q_n; ++i) b[i] = precision[padded * padded + padded + i];
  V* d_values = memory.take(n * q_n);
  V* root_of_s = tile.other;
  for (int64_t i = 0; i < padded; ++i) c[i] = mixed[i] = root_of_s[i] = V{};
  const bool has_s = in.variance != nullptr;
  // c = P sum_q S_q a g_v, and matrices whose rows have the products P S P: Y = P sqrt(S) with itself, or Y = P S and P.
  const V* other_rows = tile.matrix;
  if (in.has_all) {
    Tile<T> s = beside(tile, memory);
    V* weighted = tile.k;
    const auto p = [&](int64_t i, int64_t j) { return V(precision[i * padded + j]); };
    Tile<T> sum = beside(tile, memory);
    for (int64_t i = 0; i < padded; ++i) weighted[i] = V{};
    std::fill_n(sum.matrix, padded * stride, V{});
    for (int64_t q = 0; q < q_n; ++q) {
      load_covariance(in, q, first, points, s);
      for (int64_t i = 0; i < n; ++i) {
        V of_a{};
        for (int64_t j = 0; j < n; ++j) {
          of_a += s.matrix[i * stride + j] * a[j];
          sum.matrix[i * stride + j] += s.matrix[i * stride + j];
        }
        weighted[i] += of_a * g_variance[q];
      }
      keep_definite(s);
      cholesky(s);
      invert(s);
      square(s);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j)
          s.matrix[i * stride + j] = a[i] * a[j] * g_variance[q] + T(0.5) * g_kl * (p(i, j) - s.matrix[i * stride + j]);
        scatter(s.matrix + i * stride, first, points, q_n * n * n, n, out.variance + (q * n + i) * n);
      }
    }
    for (int64_t i = 0; i < padded; ++i) {
      c[i] = V{};
      for (int64_t k = 0; k < padded; ++k) {
        s.matrix[i * stride + k] = p(i, k);
        c[i] += p(i, k) * weighted[k];
      }
    }
    for (int64_t i = 0; i < padded; i += 4)
      for (int64_t j = 0; j < padded; j += kColumns) {
        V block[4][kColumns] = {};
        rows_by_rows<T>(block, s.matrix + i * stride, sum.matrix + j * stride, stride, 0, padded);
        for (int r = 0; r < 4; ++r)
          for (int k = 0; k < kColumns; ++k) tile.matrix[(i + r) * stride + j + k] = block[r][k];
      }
    other_rows = s.matrix;
  } else if (has_s) {
    gather(in.variance, first, points, n * q_n, n * q_n, variance);
    V* weighted = tile.k;
    for (int64_t i = 0; i < padded; ++i) {
      V total{}, sum{};
      if (i < n)
        for (int64_t q = 0; q < q_n; ++q) {
          total += variance[i * q_n + q];
          sum += variance[i * q_n + q] * g_variance[q];
        }
      root_of_s[i] = root<T>(total);
      weighted[i] = sum * a[i];
    }
    for (int64_t i = 0; i < padded; ++i) {
      V sum{};
      for (int64_t k = 0; k < padded; ++k) {
        const V p = precision[i * padded + k];
        sum += p * weighted[k];
        tile.matrix[i * stride + k] = p * root_of_s[k];
      }
      c[i] = sum;
    }
    for (int64_t i = 0; i < n; ++i)
      for (int64_t q = 0; q < q_n; ++q) {
        const V p = precision[i * padded + i];
        d_values[i * q_n + q] = a[i] * a[i] * g_variance[q] + T(0.5) * g_kl * (p - T(1) / variance[i * q_n + q]);
      }
    scatter(d_values, first, points, n * q_n, n * q_n, out.variance);
  }
  for (int64_t i = 0; i < n; ++i)
    for (int64_t q = 0; q < q_n; ++q) {
      d_values[i * q_n + q] = a[i] * g_mean[q] + g_kl * b[q * padded + i];
      mixed[i] += g_mean[q] * b[q * padded + i];
    }
  scatter(d_values, first, points, n * q_n, n * q_n, out.mean);

  Gradients<T> sums;
  sums.lengthscales = memory.take(columns);
  sums.linear = memory.take(columns);
  for (int64_t d = 0; d < columns; ++d) sums.lengthscales[d] = sums.linear[d] = V{};
  V *d_x = nullptr, *d_z = nullptr;
  if (out.z != nullptr) {
    d_x = memory.take(columns);
    d_z = memory.take(padded * columns);
    for (int64_t d = 0; d < columns; ++d) d_x[d] = V{};
    for (int64_t i = 0; i < padded * columns; ++i) d_z[i] = V{};
  }
  const auto d_row = [&](int64_t i) { return d_z == nullptr ? nullptr : d_z + i * columns; };
  V* diagonal = tile.inverse_diagonal;
  for (int64_t i0 = 0; i0 < padded; i0 += 4)
    for (int64_t j0 = 0; j0 <= i0 + 3; j0 += kColumns) {
      V block[4][kColumns] = {};
      if (has_s) rows_by_rows<T>(block, tile.matrix + i0 * stride, other_rows + j0 * stride, stride, 0, padded);
      for (int r = 0; r < 4; ++r)
        for (int q = 0; q < kColumns; ++q) {
          const int64_t i = i0 + r, j = j0 + q;
          V prior{};
          if (has_s) {
            prior = T(q_n) * precision[i * padded + j] - block[r][q];
            for (int64_t l = 0; l < q_n; ++l) prior -= b[l * padded + i] * b[l * padded + j];
          }
          const V d_k = g_d * a[i] * a[j] - T(0.5) * (a[i] * mixed[j] + mixed[i] * a[j]) - c[i] * a[j] - a[i] * c[j] +
                        T(0.5) * g_kl * prior;
          if (i == j) diagonal[i] = d_k;
          // K has each covariance twice; what lies above its diagonal, and the padding, does not count.
          block[r][q] = j < i && i < n ? T(2) * d_k : V{};
        }
      sums.template add<kColumns>(theta, block, tile.z.from(i0 * columns), tile.z.from(j0 * columns), d_row(i0),
                                  d_row(j0), columns);
    }
  // Jitter is relative to the mean of the diagonal.
  V scale{}, trace{};
  for (int64_t i = 0; i < n; ++i) {
    scale += variance_at(theta, tile.z.from(i * columns), columns);
    trace += diagonal[i];
  }
  scale *= T(1) / T(n);
  const V least = splat<T>(T(1e-6));
  const V from_jitter = scale > least ? trace * (theta.jitter / T(n)) : V{};
  for (int64_t i0 = 0; i0 < padded; i0 += 4) {
    V block[4][1];
    for (int r = 0; r < 4; ++r) {
      const int64_t i = i0 + r;
      block[r][0] = i < n ? mixed[i] - T(2) * g_d * a[i] + T(2) * c[i] : V{};
      if (i < n) sums.add_diagonal(theta, diagonal[i] + from_jitter, tile.z.from(i * columns), d_row(i), columns);
    }
    sums.template add<1>(theta, block, tile.z.from(i0 * columns), tile.x, d_row(i0), d_x, columns);
  }
  sums.add_diagonal(theta, g_d, tile.x, d_x, columns);

  // theta: inverse lengthscales, linear variances, weights, constant, nugget, jitter.
  V* d_theta = memory.take(2 * columns + 7);
  for (int64_t d = 0; d < columns; ++d) {
    const T inverse = theta.inverse_lengthscales[d];
    d_theta[d] = inverse != T(0) ? sums.lengthscales[d] * (T(1) / inverse) : V{};
    d_theta[columns + d] = sums.linear[d];
  }
  for (int t = 0; t < 4; ++t) d_theta[2 * columns + t] = sums.weights[t];
  d_theta[2 * columns + 4] = sums.constant;
  d_theta[2 * columns + 5] = trace;
  d_theta[2 * columns + 6] = trace * (scale > least ? scale : least);
  scatter(d_theta, first, points, 2 * columns + 7, 2 * columns + 7, out.theta);
  if (d_z != nullptr) {
    scatter(d_x, first, points, columns, columns, out.x);
    scatter(d_z, first, points, n * columns, n * columns, out.z);
  }
}

// a, what is left of k(x, x), K^-1 (both triangles) and log|K|; or only the first two where `precision` is null.
template <typename T>
void system(const Sizes& sizes, const Theta<T>& theta, const Inputs<T>& in, const System<T>& out, int64_t first,
            char* scratch) {
  using V = typename Simd<T>::V;
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(sizes, memory);
  const int64_t n = tile.n, padded = tile.padded, stride = tile.stride, points = sizes.n_points;
  load_inputs(theta, in, first, points, tile);
  const V k_xx = load_covariances(theta, in.features, first, points, tile);
  V *a = memory.take(padded), *half = tile.other;
  cholesky(tile);
  if (out.precision == nullptr) {
    // Two triangular solves.
    for (int64_t i = 0; i < padded; ++i) {
      V value = tile.k[i];
      for (int64_t j = 0; j < i; ++j) value -= tile.matrix[i * stride + j] * half[j];
      half[i] = value * tile.inverse_diagonal[i];
    }
    for (int64_t i = 0; i < padded; ++i) a[i] = half[i];
    for (int64_t i = padded - 1; i >= 0; --i) {
      a[i] *= tile.inverse_diagonal[i];
      for (int64_t j = 0; j < i; ++j) a[j] -= tile.matrix[i * stride + j] * a[i];
    }
  } else {
    LogOfProduct<T> inverse_root;
    for (int64_t i = 0; i < n; ++i) inverse_root.times(tile.inverse_diagonal[i]);
    const V log_det = T(-2) * inverse_root.log();
    scatter(&log_det, first, points, 1, 1, out.log_det);
    invert(tile);
    lower_times(tile, tile.k, half);
    transposed_times(tile, half, a);
    square(tile);
    for (int64_t i = 0; i < n; ++i)
      scatter(tile.matrix + i * stride, first, points, n * n, n, out.precision + i * n);
  }
  V remainder = k_xx - dot<T>(half, half, padded);
  remainder = remainder < V{} ? V{} : remainder;
  scatter(a, first, points, n, n, out.weights);
  scatter(&remainder, first, points, 1, 1, out.remainder);
}

// W = chol(K)^-1 of matrices that are given.
template <typename T>
void inverse_factor(int64_t n_matrices, int64_t n, const T* k, T* w, int64_t first, char* scratch) {
  Bump<T> memory{scratch};
  Tile<T> tile = tile_of<T>(Sizes{n_matrices, n, 0, 0}, memory);
  const int64_t padded = tile.padded, stride = tile.stride;
  for (int64_t i = 0; i < n; ++i) gather(k + i * n, first, n_matrices, n * n, i + 1, tile.matrix + i * stride);
  for (int64_t i = n; i < padded; ++i)
    for (int64_t j = 0; j <= i; ++j) tile.matrix[i * stride + j] = splat<T>(i == j ? 1 : 0);
  cholesky(tile);
  invert(tile);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) tile.matrix[i * stride + j] = typename Simd<T>::V{};
    scatter(tile.matrix + i * stride, first, n_matrices, n * n, n, w + i * n);
  }
}

template <typename T>
Kernels<T> kernels() {
  return {kLanes<T>,   scratch_bytes<T>,     saved_numbers<T>,  forward<T>,        backward<T>, system<T>, kColumnsOfRoot,
          products<T>, products_backward<T>, inverse_factor<T>, nearest_points<T>, largest<T>};
}

template Kernels<float> kernels<float>();
template Kernels<double> kernels<double>();

}  // namespace ISA
}  // namespace swsgp

// What goes into the kernels and comes out of them: plain arrays, points first.

#pragma once

#include <cstdint>

#include "tree.hpp"

namespace swsgp {

struct Sizes {
  int64_t n_points, n_active, n_columns, n_latents;
};

// A covariance: weights of Matérn-1/2, 3/2, 5/2 and the squared exponential of one scaled distance, a linear part, and
// a constant. `kinds` has a bit for each weight that is in use, and one (16) for the linear part. The nugget and the
// jitter, which is relative to the mean variance, are added to the diagonal of K.
template <typename T>
struct Theta {
  const T *inverse_lengthscales, *linear, *weights;
  T constant, nugget, jitter;
  int64_t kinds;

  Theta(const T* packed, int64_t n_columns, int64_t kinds)
      : inverse_lengthscales(packed),
        linear(packed + n_columns),
        weights(packed + 2 * n_columns),
        constant(packed[2 * n_columns + 4]),
        nugget(packed[2 * n_columns + 5]),
        jitter(packed[2 * n_columns + 6]),
        kinds(kinds) {}
};

// Features whose products are taken off the covariances: of all inducing inputs (M, G), where those of each point are
// among them (B, H), and of the points (B, G); or null.
template <typename T>
struct Features {
  const T* of_z = nullptr;
  const int32_t* index = nullptr;
  const T* of_x = nullptr;
  int64_t n = 0;
};

// x (B, D), z (B, H, D), mean of q(u) (B, H, Q), and its variance, alike, or null; if it `has_all` its covariances,
// these are (B, Q, H, H) in the place of the variance.
template <typename T>
struct Inputs {
  const T *x, *z, *mean = nullptr, *variance = nullptr;
  Features<T> features;
  bool has_all = false;
};

// mean and variance (B, Q), KL (B) or null, and what the gradient needs, in the order of the tiles.
template <typename T>
struct Terms {
  T *mean, *variance, *kl, *saved;
};

template <typename T>
struct Cotangents {
  const T *mean, *variance, *kl, *saved;
};

// mean and variance as they were given, theta (B, 2D + 7), and x (B, D) and z (B, H, D) or both null.
template <typename T>
struct Derivatives {
  T *mean, *variance, *theta, *x, *z;
};

// a (B, H), k_xx - k'a (B), K^-1 (B, H, H) and log|K| (B); the last two may be null.
template <typename T>
struct System {
  T *weights, *remainder, *precision, *log_det;
};

// Some rows of a lower triangular matrix L of each latent function, and products of them. `lower` has the rows under the
// diagonals one after the other, row i from place i (i - 1) / 2 on, `length` numbers for each of Q matrices; `diagonal`
// is (M, Q); `index` (B, H) has the rows of each point.
template <typename T>
struct RowsOfRoot {
  const T *lower, *diagonal;
  const int32_t* index;
  int64_t length;
};

// The kernels of one instruction set. Each handles one tile, whose first point it is given.
template <typename T>
struct Kernels {
  int lanes;
  int64_t (*scratch_bytes)(const Sizes&);
  int64_t (*saved_numbers)(const Sizes&);
  void (*forward)(const Sizes&, const Theta<T>&, const Inputs<T>&, const Terms<T>&, int64_t first, char* scratch);
  void (*backward)(const Sizes&, const Theta<T>&, const Inputs<T>&, const Cotangents<T>&, const Derivatives<T>&,
                   int64_t first, char* scratch);
  void (*system)(const Sizes&, const Theta<T>&, const Inputs<T>&, const System<T>&, int64_t first, char* scratch);
  // S = L L' of the rows of a point; and some columns, from `begin` on, of the derivatives of all L from those of all S,
  // to be added up.
  int64_t columns_of_root;
  void (*products)(const Sizes&, const RowsOfRoot<T>&, int64_t point, T* products, char* scratch);
  void (*products_backward)(const Sizes&, const RowsOfRoot<T>&, const T* g, int64_t begin, T* d_lower, T* d_diagonal,
                            char* scratch);
  void (*inverse_factor)(int64_t n_matrices, int64_t n, const T* k, T* w, int64_t first, char* scratch);
  int64_t (*nearest)(const Tree<T>&, const T* query, int64_t k, int32_t* out);
  void (*largest)(const T* scores, int64_t size, int64_t n, int32_t* out);
};

#if defined(__x86_64__)
namespace avx512 {
template <typename T>
Kernels<T> kernels();
}
namespace avx2 {
template <typename T>
Kernels<T> kernels();
}
#endif
namespace plain {
template <typename T>
Kernels<T> kernels();
}

}  // namespace swsgp

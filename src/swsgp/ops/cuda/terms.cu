// The local terms of points with active sets of their own, and their gradient: one block of threads for each point.
//
// All sizes are constants, given when this is compiled: H active inducing variables, D columns, Q latent functions,
// the KINDS of covariances, HAS_S (whether u has a variance) and WANTS_INPUTS (whether derivatives of inputs are
// wanted). Covariances and arrays are those of `cpp/terms.hpp`.
//
// The H + 1 + Q rows and columns of
//
//     K   k   m
//     k'  kxx 0
//     m'  0   0
//
// are divided among SIDE x SIDE threads, which hold R x R numbers each, those of every SIDE-th row and column. Sweeping
// the first H of them (Gauss-Jordan) leaves P = K^-1 in the place of K, a = Pk and b = Pm beside it, and in the corner
// what is left of k(x, x), minus the mean of f, and minus m'Pm; NaN if K is not positive definite. In float32 that is no
// less accurate than a factor and its inverse are. The matrix is symmetric, but for the sign where one of row and column was swept:
// blocks above the diagonal are not held.

#define SIZE (H + 1 + Q)
#define LINE (SIDE * R)
#define T (SIDE * SIDE)
#define WARPS (T / 32)
#define N_THETA (2 * D + 7)
#define N_SAVED (R * (R + 1) / 2 * T + (1 + Q) * H)
#define EACH_BLOCK         \
  _Pragma("unroll") for (int r = 0; r < R; ++r) \
  _Pragma("unroll") for (int c = 0; c <= r; ++c)

extern __shared__ float memory[];

struct Place {
  int thread, x, y;

  __device__ Place() : thread(threadIdx.x), x(threadIdx.x % SIDE), y(threadIdx.x / SIDE) {}
  __device__ int row(int r) const { return y + SIDE * r; }
  __device__ int column(int c) const { return x + SIDE * c; }
};

__device__ float sum_of_warp(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// The sum over all threads, for all of them. `slots` has WARPS numbers.
__device__ float sum_of_block(float value, float* slots) {
  value = sum_of_warp(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < WARPS; ++warp) sum += slots[warp];
  return sum;
}

// Inputs of a point: those of its H inducing variables, then its own; as they are, and divided by lengthscales.
struct Inputs {
  float *raw, *scaled;
  const float* theta;

  __device__ Inputs(const float* x, const float* z, const float* theta, float* memory)
      : raw(memory), scaled(memory + (H + 1) * D), theta(theta) {
    const long long point = blockIdx.x;
    for (int i = threadIdx.x; i < (H + 1) * D; i += T) {
      raw[i] = i < H * D ? z[point * H * D + i] : x[point * D + i - H * D];
      scaled[i] = raw[i] * theta[i % D];
    }
  }

  // Rows that are not there stand for the last.
  __device__ static int at(int row, int d) { return (row <= H ? row : H) * D + d; }

  __device__ float weight(int kind) const { return theta[2 * D + kind]; }
  __device__ float constant() const { return theta[2 * D + 4]; }
  __device__ float nugget() const { return theta[2 * D + 5]; }
  __device__ float jitter() const { return theta[2 * D + 6]; }

  __device__ float variance(int row) const {
    float sum = weight(0) + weight(1) + weight(2) + weight(3) + constant();
    if (KINDS & 16)
      for (int d = 0; d < D; ++d) sum += theta[D + d] * raw[row * D + d] * raw[row * D + d];
    return sum;
  }

  // The mean variance of the inducing variables.
  __device__ float scale(float* slots) const {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < H; i += T) sum += variance(i);
    return sum_of_block(sum, slots) / H;
  }

  __device__ void squared_distances(const Place& place, float (&r2)[R][R]) const {
    EACH_BLOCK r2[r][c] = 0.0f;
    for (int d = 0; d < D; ++d) {
      float left[R], right[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        left[r] = scaled[at(place.row(r), d)];
        right[r] = scaled[at(place.column(r), d)];
      }
      EACH_BLOCK {
        const float difference = left[r] - right[c];
        r2[r][c] += difference * difference;
      }
    }
  }

  // Farther than 10,000 every profile is 0, and the square of more may not be a number; see `_root` in covariances.py.
  __device__ static float distance(float r2) { return sqrtf(r2 > 1e8f ? 1e8f : r2); }

  __device__ float stationary(float r2) const {
    const float r = distance(r2);
    float k = 0.0f;
    if (KINDS & 1) k += weight(0) * expf(-r);
    if (KINDS & 2) {
      const float a = 1.7320508f * r;
      k += weight(1) * ((1.0f + a) * expf(-a));
    }
    if (KINDS & 4) {
      const float a = 2.2360680f * r;
      k += weight(2) * ((1.0f + a + a * a / 3.0f) * expf(-a));
    }
    if (KINDS & 8) k += weight(3) * expf(-0.5f * r2);
    return k;
  }

  // g times the derivative of the stationary part; adds g times each profile to `parts`.
  __device__ float slope(float r2, float g, float (&parts)[4]) const {
    const float r = distance(r2);
    float slope = 0.0f;
    if (KINDS & 1) {
      const float e = expf(-r);
      parts[0] += g * e;
      // Points that coincide; see `_root` in covariances.py.
      slope += r > 1e-5f ? -0.5f * weight(0) * e / r : 0.0f;
    }
    if (KINDS & 2) {
      const float a = 1.7320508f * r, e = expf(-a);
      parts[1] += g * ((1.0f + a) * e);
      slope += -1.5f * weight(1) * e;
    }
    if (KINDS & 4) {
      const float a = 2.2360680f * r, e = expf(-a);
      parts[2] += g * ((1.0f + a + a * a / 3.0f) * e);
      slope += -5.0f / 6.0f * weight(2) * ((1.0f + a) * e);
    }
    if (KINDS & 8) {
      const float e = expf(-0.5f * r2);
      parts[3] += g * e;
      slope += -0.5f * weight(3) * e;
    }
    return g * slope;
  }
};

// x (B, D), z (B, H, D), mean and variance of u (B, H, Q); f_mean and f_variance (B, Q), kl (B), saved (B, N_SAVED).
extern "C" __global__ void __launch_bounds__(T)
    forward(const float* x, const float* z, const float* theta, const float* mean, const float* variance, float* f_mean,
            float* f_variance, float* kl, float* saved) {
  const Place place;
  const long long point = blockIdx.x;
  const Inputs in(x, z, theta, memory);
  float *columns = memory + 2 * (H + 1) * D, *pivots = columns + 2 * LINE, *a = pivots + H, *b = a + H;
  float *diagonal = b + Q * H, *corner = diagonal + H, *slots = corner + 1 + 2 * Q;
  mean += point * H * Q;
  variance += point * H * Q;
  saved += point * N_SAVED;
  __syncthreads();

  float matrix[R][R];
  in.squared_distances(place, matrix);
  EACH_BLOCK matrix[r][c] = in.constant() + in.stationary(matrix[r][c]);
  if (KINDS & 16)
    for (int d = 0; d < D; ++d) {
      float left[R];
#pragma unroll
      for (int r = 0; r < R; ++r) left[r] = theta[D + d] * in.raw[Inputs::at(place.row(r), d)];
      EACH_BLOCK matrix[r][c] += left[r] * in.raw[Inputs::at(place.column(c), d)];
    }
  const float scale = in.scale(slots);
  const float added = in.jitter() * fmaxf(scale, 1e-6f) + in.nugget();
  EACH_BLOCK {
    const int i = place.row(r), j = place.column(c), low = min(i, j), high = max(i, j);
    if (high <= H) {
      // Rounding must not find a point at a distance from itself.
      if (i == j) matrix[r][c] = in.variance(i) + (i < H ? added : 0.0f);
    } else {
      matrix[r][c] = low < H && high < SIZE ? mean[low * Q + high - H - 1] : 0.0f;
    }
  }

#pragma unroll
  for (int block = 0; block < R; ++block)
    for (int in_block = 0; in_block < SIDE && SIDE * block + in_block < H; ++in_block) {
      const int pivot = SIDE * block + in_block;
      float* column = columns + pivot % 2 * LINE;
      if (place.x == in_block)
#pragma unroll
        for (int r = block; r < R; ++r) column[place.row(r)] = matrix[r][block];
      if (place.y == in_block)
#pragma unroll
        for (int c = 0; c < block; ++c) column[place.column(c)] = -matrix[block][c];
      __syncthreads();
      const float inverse = column[pivot] > 0.0f ? 1.0f / column[pivot] : nanf("");
      if (place.thread == 0) pivots[pivot] = column[pivot];
      float left[R], right[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        left[r] = column[place.row(r)] * inverse;
        right[r] = place.column(r) < pivot ? -column[place.column(r)] : column[place.column(r)];
      }
      EACH_BLOCK matrix[r][c] -= left[r] * right[c];
      if (place.y == in_block)
#pragma unroll
        for (int c = 0; c <= block; ++c) matrix[block][c] = right[c] * inverse;
      if (place.x == in_block)
#pragma unroll
        for (int r = block; r < R; ++r) matrix[r][block] = place.row(r) == pivot ? inverse : -left[r];
    }

  EACH_BLOCK {
    const int i = place.row(r), j = place.column(c);
    saved[(r * (r + 1) / 2 + c) * T + place.thread] = matrix[r][c];
    if (i == j && i < H) diagonal[i] = matrix[r][c];
    if (i == H && j < H) a[j] = -matrix[r][c];
    if (i > H && i < SIZE && j < H) b[(i - H - 1) * H + j] = -matrix[r][c];
    if (i == H && j == H) corner[0] = matrix[r][c];
    if (i > H && i < SIZE && j == H) corner[i - H] = matrix[r][c];
    if (i > H && i < SIZE && j == i) corner[i - H + Q] = matrix[r][c];
  }
  __syncthreads();
  saved += R * (R + 1) / 2 * T;
  for (int i = place.thread; i < H; i += T) saved[i] = a[i];
  for (int i = place.thread; i < Q * H; i += T) saved[H + i] = b[i];

  float twice_kl = 0.0f;
  for (int i = place.thread; i < H; i += T) {
    twice_kl += Q * (logf(pivots[i]) - 1.0f);
    if (HAS_S)
      for (int q = 0; q < Q; ++q) twice_kl += diagonal[i] * variance[i * Q + q] - logf(variance[i * Q + q]);
  }
  twice_kl = sum_of_block(twice_kl, slots);
  for (int q = 0; q < Q; ++q) {
    float spread = 0.0f;
    if (HAS_S)
      for (int i = place.thread; i < H; i += T) spread += a[i] * a[i] * variance[i * Q + q];
    spread = sum_of_block(spread, slots);
    twice_kl -= corner[1 + Q + q];
    if (place.thread == 0) {
      f_mean[point * Q + q] = -corner[1 + q];
      // A comparison that is false for NaN, which stays one.
      f_variance[point * Q + q] = (corner[0] < 0.0f ? 0.0f : corner[0]) + spread;
    }
  }
  if (place.thread == 0) kl[point] = 0.5f * twice_kl;
}

// Cotangents (B, Q), (B, Q) and (B); derivatives of the mean and the variance of u (B, H, Q), of theta (B, N_THETA),
// and of x (B, D) and z (B, H, D).
extern "C" __global__ void __launch_bounds__(T)
    backward(const float* x, const float* z, const float* theta, const float* variance, const float* saved,
             const float* g_mean, const float* g_variance, const float* g_kl, float* d_mean, float* d_variance,
             float* d_theta, float* d_x, float* d_z) {
  const Place place;
  const long long point = blockIdx.x;
  const Inputs in(x, z, theta, memory);
  // Rows of P; an odd number of places apart, so that columns are read and written without conflicts.
  const int stride = LINE + 1;
  float *precision = memory + 2 * (H + 1) * D, *a = precision + (H + 1) * stride, *b = a + LINE, *c_ = b + Q * LINE;
  float *mixed = c_ + LINE, *total = mixed + LINE, *weighted = total + H, *diagonal = weighted + H;
  float* slots = diagonal + H;
  variance += point * H * Q;
  saved += point * N_SAVED;
  g_mean += point * Q;
  g_variance += point * Q;
  const float own_g_kl = g_kl[point];
  float g_d = 0.0f;
  for (int q = 0; q < Q; ++q) g_d += g_variance[q];

  EACH_BLOCK {
    const int i = place.row(r), j = place.column(c);
    const float p = saved[(r * (r + 1) / 2 + c) * T + place.thread];
    if (i < H && j < H) {
      precision[i * stride + j] = p;
      if (r > c) precision[j * stride + i] = p;
    }
  }
  const float* vectors = saved + R * (R + 1) / 2 * T;
  for (int i = place.thread; i < LINE; i += T) {
    a[i] = i < H ? vectors[i] : 0.0f;
    c_[i] = mixed[i] = 0.0f;
    for (int q = 0; q < Q; ++q) {
      b[q * LINE + i] = i < H ? vectors[H + q * H + i] : 0.0f;
      mixed[i] += g_mean[q] * b[q * LINE + i];
    }
    if (i < H) {
      float all = 0.0f, sum = 0.0f;
      if (HAS_S)
        for (int q = 0; q < Q; ++q) {
          all += variance[i * Q + q];
          sum += variance[i * Q + q] * g_variance[q];
        }
      total[i] = all;
      weighted[i] = sum * a[i];
    }
  }
  __syncthreads();
  for (int i = place.thread; i < H; i += T) {
    float sum = 0.0f;
    if (HAS_S)
      for (int k = 0; k < H; ++k) sum += precision[k * stride + i] * weighted[k];
    c_[i] = sum;
    for (int q = 0; q < Q; ++q) {
      d_mean[(point * H + i) * Q + q] = a[i] * g_mean[q] + own_g_kl * b[q * LINE + i];
      if (HAS_S)
        d_variance[(point * H + i) * Q + q] =
            a[i] * a[i] * g_variance[q] + 0.5f * own_g_kl * (precision[i * stride + i] - 1.0f / variance[i * Q + q]);
    }
  }
  __syncthreads();

  // P S P, and from it the cotangents of K, k and k(x, x), one for both of two equal covariances.
  float g[R][R];
  EACH_BLOCK g[r][c] = 0.0f;
  if (HAS_S)
    for (int k = 0; k < H; ++k) {
      float left[R], right[R];
#pragma unroll
      for (int r = 0; r < R; ++r) {
        left[r] = precision[k * stride + place.row(r)] * total[k];
        right[r] = precision[k * stride + place.column(r)];
      }
      EACH_BLOCK g[r][c] += left[r] * right[c];
    }
  EACH_BLOCK {
    const int i = place.row(r), j = place.column(c), low = min(i, j), high = max(i, j);
    float value = 0.0f;
    if (high < H) {
      float prior = 0.0f;
      if (HAS_S) {
        prior = Q * precision[i * stride + j] - g[r][c];
        for (int q = 0; q < Q; ++q) prior -= b[q * LINE + i] * b[q * LINE + j];
      }
      value = g_d * a[i] * a[j] - 0.5f * (a[i] * mixed[j] + mixed[i] * a[j]) - c_[i] * a[j] - a[i] * c_[j] +
              0.5f * own_g_kl * prior;
      if (i == j) diagonal[i] = value;
    } else if (high == H && low < H) {
      value = 0.5f * mixed[low] - g_d * a[low] + c_[low];
    }
    g[r][c] = i == j ? 0.0f : r > c ? 2.0f * value : value;
  }
  __syncthreads();
  const float scale = in.scale(slots);
  float trace = 0.0f;
  for (int i = place.thread; i < H; i += T) trace += diagonal[i];
  trace = sum_of_block(trace, slots);
  // Jitter is relative to the mean of the diagonal.
  const float from_jitter = scale > 1e-6f ? trace * in.jitter() / H : 0.0f;

  float slopes[R][R], parts[4] = {0.0f, 0.0f, 0.0f, 0.0f}, constant = 0.0f;
  in.squared_distances(place, slopes);
  EACH_BLOCK {
    constant += g[r][c];
    slopes[r][c] = 2.0f * in.slope(slopes[r][c], g[r][c], parts);
  }
  __syncthreads();
  const auto keep = [&](int number, float value) {
    value = sum_of_warp(value);
    if (place.thread % 32 == 0) slots[place.thread / 32 * N_THETA + number] = value;
  };
  for (int d = 0; d < D; ++d) {
    float left[R], right[R], sum = 0.0f;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      left[r] = in.scaled[Inputs::at(place.row(r), d)];
      right[r] = in.scaled[Inputs::at(place.column(r), d)];
    }
    EACH_BLOCK {
      const float difference = left[r] - right[c];
      sum += slopes[r][c] * difference * difference;
    }
    keep(d, theta[d] == 0.0f ? 0.0f : sum / theta[d]);
    sum = 0.0f;
    if (KINDS & 16) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        left[r] = in.raw[Inputs::at(place.row(r), d)];
        right[r] = in.raw[Inputs::at(place.column(r), d)];
      }
      EACH_BLOCK sum += g[r][c] * left[r] * right[c];
      for (int i = place.thread; i <= H; i += T)
        sum += (i < H ? diagonal[i] + from_jitter : g_d) * in.raw[i * D + d] * in.raw[i * D + d];
    }
    keep(D + d, sum);
  }
  const float of_diagonal = place.thread == 0 ? trace + H * from_jitter + g_d : 0.0f;
#pragma unroll
  for (int kind = 0; kind < 4; ++kind) keep(2 * D + kind, parts[kind] + of_diagonal);
  keep(2 * D + 4, constant + of_diagonal);
  keep(2 * D + 5, place.thread == 0 ? trace : 0.0f);
  keep(2 * D + 6, place.thread == 0 ? trace * fmaxf(scale, 1e-6f) : 0.0f);
  __syncthreads();
  for (int i = place.thread; i < N_THETA; i += T) {
    float sum = 0.0f;
    for (int warp = 0; warp < WARPS; ++warp) sum += slots[warp * N_THETA + i];
    d_theta[point * N_THETA + i] = sum;
  }
  if (!WANTS_INPUTS) return;

  // Sums over the rows of matrices in the place of P: of slopes, and then of cotangents for the linear part.
  const auto lay_out = [&](const float(&values)[R][R]) {
    __syncthreads();
    EACH_BLOCK {
      const int i = place.row(r), j = place.column(c);
      if (i <= H && j <= H) {
        precision[i * stride + j] = r > c ? values[r][c] : 2.0f * values[r][c];
        if (r > c) precision[j * stride + i] = values[r][c];
      }
    }
    __syncthreads();
  };
  const auto derivative = [&](int row, int d) {
    return row < H ? d_z + (point * H + row) * D + d : d_x + point * D + d;
  };
  lay_out(slopes);
  for (int item = place.thread; item < (H + 1) * D; item += T) {
    const int i = item / D, d = item % D;
    float sum = 0.0f;
    for (int j = 0; j <= H; ++j) sum += precision[j * stride + i] * (in.scaled[i * D + d] - in.scaled[j * D + d]);
    *derivative(i, d) = sum * theta[d];
  }
  if (!(KINDS & 16)) return;
  lay_out(g);
  for (int item = place.thread; item < (H + 1) * D; item += T) {
    const int i = item / D, d = item % D;
    float sum = 2.0f * (i < H ? diagonal[i] + from_jitter : g_d) * in.raw[i * D + d];
    for (int j = 0; j <= H; ++j) sum += precision[j * stride + i] * in.raw[j * D + d];
    *derivative(i, d) += sum * theta[D + d];
  }
}

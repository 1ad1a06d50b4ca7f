// Operations a second of the factor-and-solve part of the compiled operations, inside a tile: K = L L', L^-1 and K^-1.
//
//     factors THREADS H [H ...]
//
// prints for each H the GFLOP/s of all threads together, in float32; the best of several turns. `benchmarks/engine.py`
// compiles it with INSTRUCTIONS, those that the package has chosen: 2 AVX-512, 1 AVX2, 0 any machine.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if INSTRUCTIONS == 2
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma")
#define ISA avx512
#define VECTOR_BYTES 64
#elif INSTRUCTIONS == 1
#pragma GCC target("avx2,fma")
#define ISA avx2
#define VECTOR_BYTES 32
#else
#define ISA plain
#define VECTOR_BYTES 16
#endif
#include "kernels.hpp"

using namespace swsgp;
using namespace swsgp::ISA;

// Seconds for a number of tiles.
double seconds(int64_t n, int64_t n_tiles) {
  const Sizes sizes{kLanes<float>, n, 0, 0};
  const int64_t bytes = (scratch_bytes<float>(sizes) + 4095) / 4096 * 4096;
  char* memory = static_cast<char*>(std::aligned_alloc(4096, bytes));
  Bump<float> bump{memory};
  Tile<float> tile = tile_of<float>(sizes, bump);
  double total = 0;
  for (int64_t t = 0; t < n_tiles; ++t) {
    for (int64_t i = 0; i < tile.padded; ++i)
      for (int64_t j = 0; j <= i; ++j) tile.matrix[i * tile.stride + j] = splat<float>(i == j ? 1.5f : 0.5f);
    const auto start = std::chrono::steady_clock::now();
    cholesky(tile);
    invert(tile);
    square(tile);
    total += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::free(memory);
  return total;
}

int main(int argc, char** argv) {
  const int n_threads = std::atoi(argv[1]);
  for (int a = 2; a < argc; ++a) {
    const int64_t n = std::atoi(argv[a]), n_tiles = std::max<int64_t>(10, 400'000'000 / (n * n * n * kLanes<float>));
    double best = 0;
    for (int turn = 0; turn < 15; ++turn) {
      std::vector<double> times(n_threads);
      std::vector<std::thread> threads;
      for (int t = 0; t < n_threads; ++t) threads.emplace_back([&, t] { times[t] = seconds(n, n_tiles); });
      for (auto& thread : threads) thread.join();
      double rate = 0;
      // A factor, its inverse and the square of that take n^3 / 3 operations each.
      for (const double time : times) rate += 1e-9 * n_tiles * kLanes<float> * double(n) * n * n / time;
      best = std::max(best, rate);
    }
    std::printf("%.1f\n", best);
  }
}

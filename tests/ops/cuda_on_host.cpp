// Runs the kernels of `cuda/terms.cu` on the host, one thread for each of theirs, so that their arithmetic is tested
// on machines without a GPU. Compiled with SIDE, and KERNELS, the name of that file with its sizes.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __launch_bounds__(...)

using std::max;
using std::min;

constexpr int kThreads = SIDE * SIDE;
// What the threads of a block share; behind what they ask for lies what they must not touch.
float memory[1 << 16];
constexpr float kUntouched = 12345.0f;
float exchanged[kThreads];
std::barrier<> whole_block(kThreads);
std::vector<std::unique_ptr<std::barrier<>>> warps;

struct Index {
  int x;
};
thread_local Index threadIdx;
Index blockIdx;

void __syncthreads() { whole_block.arrive_and_wait(); }

float __shfl_xor_sync(unsigned, float value, int step) {
  auto& warp = *warps[threadIdx.x / 32];
  exchanged[threadIdx.x] = value;
  warp.arrive_and_wait();
  const float other = exchanged[threadIdx.x ^ step];
  warp.arrive_and_wait();
  return other;
}

#include KERNELS

// Whether the threads keep to `n_shared` numbers.
template <typename F>
bool launch(int n_blocks, int n_shared, const F& kernel) {
  std::fill_n(memory, n_shared, NAN);
  std::fill(memory + n_shared, std::end(memory), kUntouched);
  warps.clear();
  for (int i = 0; i < kThreads / 32; ++i) warps.push_back(std::make_unique<std::barrier<>>(32));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      threadIdx.x = i;
      for (int block = 0; block < n_blocks; ++block) {
        __syncthreads();
        if (i == 0) blockIdx.x = block;
        __syncthreads();
        kernel();
      }
    });
  for (auto& thread : threads) thread.join();
  return std::all_of(memory + n_shared, std::end(memory), [](float value) { return value == kUntouched; });
}

extern "C" bool run_forward(float** p, int n, int n_shared) {
  return launch(n, n_shared, [p] { forward(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8]); });
}

extern "C" bool run_backward(float** p, int n, int n_shared) {
  return launch(n, n_shared, [p] { backward(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], p[10], p[11], p[12]); });
}

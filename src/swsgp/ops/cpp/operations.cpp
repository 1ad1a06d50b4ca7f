// The kernels as operations of XLA's foreign-function interface.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>

#include "choose.hpp"
#include "module.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace swsgp {
namespace {

// Calls do(i) for i < n, on the calling thread and those of the pool that are free. The caller takes tiles itself and
// waits only for those that another thread has begun, so a busy pool cannot hold it up for ever.
template <typename F>
ffi::Error in_parallel(ffi::ThreadPool& pool, int64_t n, const F& task) {
  struct State {
    std::atomic<int64_t> next{0};
    std::atomic<bool> has_failed{false};
    int64_t n, n_done = 0;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  auto state = std::make_shared<State>();
  state->n = n;
  const F* borrowed = &task;  // Used only for tiles that were taken, which the caller waits for.
  auto work = [state, borrowed] {
    int64_t mine = 0;
    for (int64_t i; (i = state->next.fetch_add(1)) < state->n; ++mine) try {
        (*borrowed)(i);
      } catch (const std::bad_alloc&) {
        state->has_failed = true;
      }
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(state->mutex);
    if ((state->n_done += mine) == state->n) state->all_done.notify_all();
  };
  for (int64_t t = 1; t < std::min<int64_t>(pool.num_threads(), n); ++t) {
    auto copy = work;
    pool.Schedule(std::move(copy));
  }
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->n_done == state->n; });
  if (state->has_failed) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "there is not enough memory");
  return ffi::Error::Success();
}

// Calls task(first, scratch) for the first point of each tile.
template <typename T, typename F>
ffi::Error over_tiles(ffi::ThreadPool& pool, const Kernels<T>& run, const Sizes& sizes, const F& task) {
  const int64_t bytes = run.scratch_bytes(sizes);
  return in_parallel(pool, (sizes.n_points + run.lanes - 1) / run.lanes,
                     [&](int64_t i) { task(i * run.lanes, scratch(bytes)); });
}

template <ffi::DataType D>
using Array = ffi::Buffer<D>;
template <ffi::DataType D>
using Result = ffi::Result<ffi::Buffer<D>>;

// An argument that is not there has no elements.
template <typename B>
auto* data_or_null(B& buffer) {
  return buffer.element_count() == 0 ? nullptr : buffer.typed_data();
}

template <ffi::DataType D>
ffi::Error forward(ffi::ThreadPool pool, Array<D> x, Array<D> z, Array<D> theta, Array<D> mean, Array<D> variance,
                   int64_t kinds, Result<D> f_mean, Result<D> f_variance, Result<D> kl, Result<D> saved) {
  using T = ffi::NativeType<D>;
  const auto shape = z.dimensions();
  const Sizes sizes{shape[0], shape[1], shape[2], mean.dimensions()[2]};
  const Theta<T> unpacked(theta.typed_data(), sizes.n_columns, kinds);
  const bool has_all = variance.dimensions().size() == 4;
  const Inputs<T> in{x.typed_data(), z.typed_data(), mean.typed_data(), data_or_null(variance), {}, has_all};
  const Terms<T> out{f_mean->typed_data(), f_variance->typed_data(), kl->typed_data(), saved->typed_data()};
  const auto run = kernels<T>();
  return over_tiles(pool, run, sizes,
                    [&](int64_t first, char* scratch) { run.forward(sizes, unpacked, in, out, first, scratch); });
}

template <ffi::DataType D>
ffi::Error backward(ffi::ThreadPool pool, Array<D> x, Array<D> z, Array<D> theta, Array<D> variance, Array<D> saved,
                    Array<D> g_mean, Array<D> g_variance, Array<D> g_kl, int64_t kinds, Result<D> d_mean,
                    Result<D> d_variance, Result<D> d_theta, Result<D> d_x, Result<D> d_z) {
  using T = ffi::NativeType<D>;
  const auto shape = z.dimensions();
  const Sizes sizes{shape[0], shape[1], shape[2], g_mean.dimensions()[1]};
  const Theta<T> unpacked(theta.typed_data(), sizes.n_columns, kinds);
  const bool has_all = variance.dimensions().size() == 4;
  const Inputs<T> in{x.typed_data(), z.typed_data(), nullptr, data_or_null(variance), {}, has_all};
  const Cotangents<T> g{g_mean.typed_data(), g_variance.typed_data(), g_kl.typed_data(), saved.typed_data()};
  const Derivatives<T> out{d_mean->typed_data(), data_or_null(*d_variance), d_theta->typed_data(),
                           data_or_null(*d_x), data_or_null(*d_z)};
  const auto run = kernels<T>();
  return over_tiles(pool, run, sizes,
                    [&](int64_t first, char* scratch) { run.backward(sizes, unpacked, in, g, out, first, scratch); });
}

template <ffi::DataType D>
ffi::Error system(ffi::ThreadPool pool, Array<D> x, Array<D> z, Array<D> theta, Array<D> features_of_z,
                  Array<ffi::DataType::S32> index, Array<D> features_of_x, int64_t kinds, Result<D> weights,
                  Result<D> remainder, Result<D> precision, Result<D> log_det) {
  using T = ffi::NativeType<D>;
  const auto shape = z.dimensions();
  const Sizes sizes{shape[0], shape[1], shape[2], 0};
  const Theta<T> unpacked(theta.typed_data(), sizes.n_columns, kinds);
  const Inputs<T> in{x.typed_data(), z.typed_data(), nullptr, nullptr,
                     {features_of_z.typed_data(), index.typed_data(), features_of_x.typed_data(),
                      features_of_x.dimensions()[1]}};
  const System<T> out{weights->typed_data(), remainder->typed_data(), data_or_null(*precision), data_or_null(*log_det)};
  const auto run = kernels<T>();
  return over_tiles(pool, run, sizes,
                    [&](int64_t first, char* scratch) { run.system(sizes, unpacked, in, out, first, scratch); });
}

template <ffi::DataType D>
ffi::Error products(ffi::ThreadPool pool, Array<D> lower, Array<D> diagonal, Array<ffi::DataType::S32> index,
                    Result<D> products) {
  using T = ffi::NativeType<D>;
  const auto shape = products->dimensions();
  const Sizes sizes{shape[0], shape[2], 0, shape[1]};
  const RowsOfRoot<T> rows{lower.typed_data(), diagonal.typed_data(), index.typed_data(), lower.dimensions()[1]};
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(sizes);
  constexpr int64_t kAtOnce = 8;
  return in_parallel(pool, (sizes.n_points + kAtOnce - 1) / kAtOnce, [&](int64_t t) {
    for (int64_t i = kAtOnce * t; i < std::min(sizes.n_points, kAtOnce * (t + 1)); ++i)
      run.products(sizes, rows, i, products->typed_data(), scratch(bytes));
  });
}

// Points share rows: each thread has columns of its own.
template <ffi::DataType D>
ffi::Error products_backward(ffi::ThreadPool pool, Array<D> lower, Array<D> diagonal, Array<ffi::DataType::S32> index,
                             Array<D> g, Result<D> d_lower, Result<D> d_diagonal) {
  using T = ffi::NativeType<D>;
  const auto shape = g.dimensions();
  const Sizes sizes{shape[0], shape[2], 0, shape[1]};
  const RowsOfRoot<T> rows{lower.typed_data(), diagonal.typed_data(), index.typed_data(), lower.dimensions()[1]};
  const auto run = kernels<T>();
  std::fill_n(d_lower->typed_data(), d_lower->element_count(), T(0));
  std::fill_n(d_diagonal->typed_data(), d_diagonal->element_count(), T(0));
  const int64_t bytes = run.scratch_bytes(sizes), n_columns = diagonal.dimensions()[0], some = run.columns_of_root;
  return in_parallel(pool, (n_columns + some - 1) / some, [&](int64_t t) {
    run.products_backward(sizes, rows, g.typed_data(), some * t, d_lower->typed_data(), d_diagonal->typed_data(),
                          scratch(bytes));
  });
}

template <ffi::DataType D>
ffi::Error inverse_factor(ffi::ThreadPool pool, Array<D> k, Result<D> w) {
  using T = ffi::NativeType<D>;
  const auto shape = k.dimensions();
  const int64_t n = shape.back(), n_matrices = n == 0 ? 0 : k.element_count() / (n * n);
  const auto run = kernels<T>();
  return over_tiles(pool, run, Sizes{n_matrices, n, 0, 0}, [&](int64_t first, char* scratch) {
    run.inverse_factor(n_matrices, n, k.typed_data(), w->typed_data(), first, scratch);
  });
}

// Of many scores each thread takes some rows.
template <ffi::DataType D>
ffi::Error largest(ffi::ThreadPool pool, Array<D> scores, int64_t n, Result<ffi::DataType::S32> index) {
  constexpr int64_t kAtOnce = 1 << 16;
  const int64_t size = scores.dimensions().back(), n_rows = size == 0 ? 0 : scores.element_count() / size;
  if (n < 1 || n > size) return ffi::Error::InvalidArgument("as many scores are asked for as there are, or fewer");
  const auto run = kernels<ffi::NativeType<D>>();
  const int64_t rows = std::max<int64_t>(1, kAtOnce / size);
  return in_parallel(pool, (n_rows + rows - 1) / rows, [&](int64_t t) {
    for (int64_t i = t * rows; i < std::min(n_rows, (t + 1) * rows); ++i)
      run.largest(scores.typed_data() + i * size, size, n, index->typed_data() + i * n);
  });
}

#define DEFINE(NAME, D)                                                                                             \
  XLA_FFI_DEFINE_HANDLER(NAME##_##D, (NAME<ffi::DataType::D>), NAME##_BINDING(ffi::DataType::D))
#define A(D) .Arg<Array<D>>()
#define R(D) .Ret<Array<D>>()
#define forward_BINDING(D) \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) A(D) A(D) A(D) A(D).Attr<int64_t>("kinds") R(D) R(D) R(D) R(D)
#define backward_BINDING(D)                                                                                  \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) A(D) A(D) A(D) A(D) A(D) A(D) A(D).Attr<int64_t>("kinds") R(D) R(D) \
      R(D) R(D) R(D)
#define system_BINDING(D) \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) A(D) A(D) A(D) A(ffi::DataType::S32) A(D).Attr<int64_t>("kinds") R(D) R(D) \
      R(D) R(D)
#define products_BINDING(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) A(D) A(ffi::DataType::S32) R(D)
#define products_backward_BINDING(D) \
  ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) A(D) A(ffi::DataType::S32) A(D) R(D) R(D)
#define inverse_factor_BINDING(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) R(D)
#define largest_BINDING(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D).Attr<int64_t>("n") R(ffi::DataType::S32)

DEFINE(forward, F32);
DEFINE(forward, F64);
DEFINE(backward, F32);
DEFINE(backward, F64);
DEFINE(system, F32);
DEFINE(system, F64);
DEFINE(products, F32);
DEFINE(products, F64);
DEFINE(products_backward, F32);
DEFINE(products_backward, F64);
DEFINE(inverse_factor, F32);
DEFINE(inverse_factor, F64);
DEFINE(largest, F32);
DEFINE(largest, F64);

int add(PyObject* operations, const char* name, XLA_FFI_Handler* handler) {
  PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(handler), nullptr, nullptr);
  if (capsule == nullptr) return -1;
  const int failed = PyDict_SetItemString(operations, name, capsule);
  Py_DECREF(capsule);
  return failed;
}

}  // namespace

PyObject* operations(PyObject*, PyObject*) {
  PyObject* all = PyDict_New();
  if (all == nullptr) return nullptr;
  if (add(all, "forward_float32", forward_F32) || add(all, "forward_float64", forward_F64) ||
      add(all, "backward_float32", backward_F32) || add(all, "backward_float64", backward_F64) ||
      add(all, "system_float32", system_F32) || add(all, "system_float64", system_F64) ||
      add(all, "products_float32", products_F32) || add(all, "products_float64", products_F64) ||
      add(all, "products_backward_float32", products_backward_F32) ||
      add(all, "products_backward_float64", products_backward_F64) ||
      add(all, "inverse_factor_float32", inverse_factor_F32) ||
      add(all, "inverse_factor_float64", inverse_factor_F64) || add(all, "largest_float32", largest_F32) ||
      add(all, "largest_float64", largest_F64)) {
    Py_DECREF(all);
    return nullptr;
  }
  return all;
}

PyObject* saved_numbers(PyObject*, PyObject* arguments) {
  long long n_points, n_active, n_latents;
  int is_double;
  if (!PyArg_ParseTuple(arguments, "LLLp", &n_points, &n_active, &n_latents, &is_double)) return nullptr;
  const Sizes sizes{n_points, n_active, 0, n_latents};
  const int64_t lanes = is_double ? kernels<double>().lanes : kernels<float>().lanes;
  const int64_t a_tile = is_double ? kernels<double>().saved_numbers(sizes) : kernels<float>().saved_numbers(sizes);
  return PyLong_FromLongLong((n_points + lanes - 1) / lanes * a_tile);
}

}  // namespace swsgp

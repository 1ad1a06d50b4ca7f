// The kernels as operations of XLA's foreign-function interface, and as a module of Python that hands them over.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "gpu.hpp"
#include "products.hpp"
#include "sums.hpp"
#include "terms.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace swsgp {
namespace {

// 2 for AVX-512, 1 for AVX2, 0 for any machine.
int best_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

int level = best_level();

template <typename T>
Kernels<T> kernels() {
#if defined(__x86_64__)
  if (level == 2) return avx512::kernels<T>();
  if (level == 1) return avx2::kernels<T>();
#endif
  return plain::kernels<T>();
}

// Memory of a thread, which stays for its next tile.
char* scratch(int64_t n_bytes) {
  thread_local std::unique_ptr<void, decltype(&std::free)> memory(nullptr, &std::free);
  thread_local int64_t size = 0;
  if (size < n_bytes) {
    size = (n_bytes + 4095) / 4096 * 4096;
    memory.reset(std::aligned_alloc(4096, size));
  }
  return static_cast<char*>(memory.get());
}

// Calls do(i) for i < n, on the calling thread and those of the pool that are free. The caller takes tiles itself and
// waits only for those that another thread has begun, so a busy pool cannot hold it up for ever.
template <typename F>
void in_parallel(ffi::ThreadPool& pool, int64_t n, const F& task) {
  struct State {
    std::atomic<int64_t> next{0};
    int64_t n, n_done = 0;
    std::mutex mutex;
    std::condition_variable all_done;
  };
  const int64_t n_threads = std::min<int64_t>(pool.num_threads(), n);
  if (n_threads <= 1) {
    for (int64_t i = 0; i < n; ++i) task(i);
    return;
  }
  auto state = std::make_shared<State>();
  state->n = n;
  const F* borrowed = &task;  // Used only for tiles that were taken, which the caller waits for.
  auto work = [state, borrowed] {
    int64_t mine = 0;
    for (int64_t i; (i = state->next.fetch_add(1)) < state->n; ++mine) (*borrowed)(i);
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(state->mutex);
    if ((state->n_done += mine) == state->n) state->all_done.notify_all();
  };
  for (int64_t t = 1; t < n_threads; ++t) {
    auto copy = work;
    pool.Schedule(std::move(copy));
  }
  work();
  std::unique_lock<std::mutex> lock(state->mutex);
  state->all_done.wait(lock, [&] { return state->n_done == state->n; });
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
  const Inputs<T> in{x.typed_data(), z.typed_data(), mean.typed_data(), data_or_null(variance), {}};
  const Terms<T> out{f_mean->typed_data(), f_variance->typed_data(), kl->typed_data(), saved->typed_data()};
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(sizes);
  in_parallel(pool, (sizes.n_points + run.lanes - 1) / run.lanes,
              [&](int64_t i) { run.forward(sizes, unpacked, in, out, i * run.lanes, scratch(bytes)); });
  return ffi::Error::Success();
}

template <ffi::DataType D>
ffi::Error backward(ffi::ThreadPool pool, Array<D> x, Array<D> z, Array<D> theta, Array<D> variance, Array<D> saved,
                    Array<D> g_mean, Array<D> g_variance, Array<D> g_kl, int64_t kinds, Result<D> d_mean,
                    Result<D> d_variance, Result<D> d_theta, Result<D> d_x, Result<D> d_z) {
  using T = ffi::NativeType<D>;
  const auto shape = z.dimensions();
  const Sizes sizes{shape[0], shape[1], shape[2], g_mean.dimensions()[1]};
  const Theta<T> unpacked(theta.typed_data(), sizes.n_columns, kinds);
  const Inputs<T> in{x.typed_data(), z.typed_data(), nullptr, data_or_null(variance), {}};
  const Cotangents<T> g{g_mean.typed_data(), g_variance.typed_data(), g_kl.typed_data(), saved.typed_data()};
  const Derivatives<T> out{d_mean->typed_data(), data_or_null(*d_variance), d_theta->typed_data(),
                           data_or_null(*d_x), data_or_null(*d_z)};
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(sizes);
  in_parallel(pool, (sizes.n_points + run.lanes - 1) / run.lanes,
              [&](int64_t i) { run.backward(sizes, unpacked, in, g, out, i * run.lanes, scratch(bytes)); });
  return ffi::Error::Success();
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
  const int64_t bytes = run.scratch_bytes(sizes);
  in_parallel(pool, (sizes.n_points + run.lanes - 1) / run.lanes,
              [&](int64_t i) { run.system(sizes, unpacked, in, out, i * run.lanes, scratch(bytes)); });
  return ffi::Error::Success();
}

template <ffi::DataType D>
ffi::Error inverse_factor(ffi::ThreadPool pool, Array<D> k, Result<D> w) {
  using T = ffi::NativeType<D>;
  const auto shape = k.dimensions();
  const int64_t n = shape.back(), n_matrices = n == 0 ? 0 : k.element_count() / (n * n);
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(Sizes{n_matrices, n, 0, 0});
  in_parallel(pool, (n_matrices + run.lanes - 1) / run.lanes, [&](int64_t i) {
    run.inverse_factor(n_matrices, n, k.typed_data(), w->typed_data(), i * run.lanes, scratch(bytes));
  });
  return ffi::Error::Success();
}

// Of many scores each thread takes some rows.
template <ffi::DataType D>
ffi::Error largest(ffi::ThreadPool pool, Array<D> scores, int64_t n, Result<ffi::DataType::S32> index) {
  constexpr int64_t kAtOnce = 1 << 16;
  const int64_t size = scores.dimensions().back(), n_rows = size == 0 ? 0 : scores.element_count() / size;
  if (n < 1 || n > size) return ffi::Error::InvalidArgument("as many scores are asked for as there are, or fewer");
  const auto run = kernels<ffi::NativeType<D>>();
  const int64_t rows = std::max<int64_t>(1, kAtOnce / size);
  in_parallel(pool, (n_rows + rows - 1) / rows, [&](int64_t t) {
    for (int64_t i = t * rows; i < std::min(n_rows, (t + 1) * rows); ++i)
      run.largest(scores.typed_data() + i * size, size, n, index->typed_data() + i * n);
  });
  return ffi::Error::Success();
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
#define inverse_factor_BINDING(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D) R(D)
#define largest_BINDING(D) ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() A(D).Attr<int64_t>("n") R(ffi::DataType::S32)

DEFINE(forward, F32);
DEFINE(forward, F64);
DEFINE(backward, F32);
DEFINE(backward, F64);
DEFINE(system, F32);
DEFINE(system, F64);
DEFINE(inverse_factor, F32);
DEFINE(inverse_factor, F64);
DEFINE(largest, F32);
DEFINE(largest, F64);

// ------------------------------------------------------------------------------------------------ Python

int add(PyObject* operations, const char* name, XLA_FFI_Handler* handler) {
  PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(handler), nullptr, nullptr);
  if (capsule == nullptr) return -1;
  const int failed = PyDict_SetItemString(operations, name, capsule);
  Py_DECREF(capsule);
  return failed;
}

PyObject* operations(PyObject*, PyObject*) {
  PyObject* all = PyDict_New();
  if (all == nullptr) return nullptr;
  if (add(all, "forward_float32", forward_F32) || add(all, "forward_float64", forward_F64) ||
      add(all, "backward_float32", backward_F32) || add(all, "backward_float64", backward_F64) ||
      add(all, "system_float32", system_F32) || add(all, "system_float64", system_F64) ||
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

// ------------------------------------------------------------------------------------------------ a few points

// q(f) of points: x (B, D) and index (B, H), among inducing inputs (M, D) with means and variances of u (M, Q); and the
// weights (B, H) from which it comes.
template <typename T>
void latent_of(const Py_buffer* in, const Py_buffer* out, const Sizes& sizes, int64_t kinds) {
  const auto* x = static_cast<const T*>(in[0].buf);
  const auto* index = static_cast<const int32_t*>(in[1].buf);
  const auto *inducing = static_cast<const T*>(in[2].buf), *u_mean = static_cast<const T*>(in[3].buf);
  const auto* u_variance = static_cast<const T*>(in[4].buf);
  auto *mean = static_cast<T*>(out[0].buf), *variance = static_cast<T*>(out[1].buf);
  auto* weights = static_cast<T*>(out[2].buf);
  const int64_t n = sizes.n_points, size = sizes.n_active, columns = sizes.n_columns, q_n = sizes.n_latents;
  std::vector<T> z(n * size * columns), remainder(n);
  for (int64_t i = 0; i < n * size; ++i) std::copy_n(inducing + index[i] * columns, columns, z.data() + i * columns);
  const Theta<T> theta(static_cast<const T*>(in[5].buf), columns, kinds);
  const Inputs<T> inputs{x, z.data(), nullptr, nullptr, {}};
  const System<T> system{weights, remainder.data(), nullptr, nullptr};
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(sizes);
  for (int64_t first = 0; first < n; first += run.lanes) run.system(sizes, theta, inputs, system, first, scratch(bytes));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t q = 0; q < q_n; ++q) {
      T m = 0, v = remainder[i];
      for (int64_t h = 0; h < size; ++h) {
        const T a = weights[i * size + h];
        m += a * u_mean[index[i * size + h] * q_n + q];
        v += a * a * u_variance[index[i * size + h] * q_n + q];
      }
      mean[i * q_n + q] = m;
      variance[i * q_n + q] = v;
    }
}

PyObject* latent(PyObject*, PyObject* arguments) {
  Py_buffer in[6], out[3];
  long long n, n_inducing, n_active, columns, n_latents, kinds;
  int is_double;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*w*w*w*LLLLLLp", &in[0], &in[1], &in[2], &in[3], &in[4], &in[5],
                        &out[0], &out[1], &out[2], &n, &n_inducing, &n_active, &columns, &n_latents, &kinds, &is_double))
    return nullptr;
  const long long size = is_double ? sizeof(double) : sizeof(float);
  const auto* index = static_cast<const int32_t*>(in[1].buf);
  const bool fits =
      n >= 0 && n_active >= 1 && columns >= 1 && n_latents >= 1 && in[0].len == n * columns * size &&
      in[1].len == n * n_active * static_cast<long long>(sizeof(int32_t)) &&
      in[2].len == n_inducing * columns * size && in[3].len == n_inducing * n_latents * size &&
      in[4].len == in[3].len && in[5].len == (2 * columns + 7) * size && out[0].len == n * n_latents * size &&
      out[1].len == out[0].len && out[2].len == n * n_active * size &&
      std::all_of(index, index + n * n_active, [&](int32_t i) { return i >= 0 && i < n_inducing; });
  const Sizes sizes{n, n_active, columns, n_latents};
  if (fits) is_double ? latent_of<double>(in, out, sizes, kinds) : latent_of<float>(in, out, sizes, kinds);
  for (auto& buffer : in) PyBuffer_Release(&buffer);
  for (auto& buffer : out) PyBuffer_Release(&buffer);
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "inputs and results do not fit together");
    return nullptr;
  }
  Py_RETURN_NONE;
}

// ------------------------------------------------------------------------------------------------ searches

template <typename T>
void forget(PyObject* capsule) {
  delete static_cast<Tree<T>*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
}

template <typename T>
const char* name_of_tree();
template <>
const char* name_of_tree<float>() { return "tree of float32"; }
template <>
const char* name_of_tree<double>() { return "tree of float64"; }

template <typename T>
PyObject* new_tree(const Py_buffer& points, long long n, long long columns) {
  Tree<T>* tree = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  try {
    tree = new Tree<T>(static_cast<const T*>(points.buf), n, columns);
  } catch (const std::bad_alloc&) {
  }
  Py_END_ALLOW_THREADS;
  if (tree == nullptr) return PyErr_NoMemory();
  PyObject* capsule = PyCapsule_New(tree, name_of_tree<T>(), forget<T>);
  if (capsule == nullptr) delete tree;
  return capsule;
}

PyObject* tree(PyObject*, PyObject* arguments) {
  Py_buffer points;
  long long n, columns;
  if (!PyArg_ParseTuple(arguments, "y*LL", &points, &n, &columns)) return nullptr;
  PyObject* result = nullptr;
  if (n < 1 || columns < 1)
    PyErr_SetString(PyExc_ValueError, "a tree has points and columns");
  else if (points.len == n * columns * static_cast<long long>(sizeof(float)))
    result = new_tree<float>(points, n, columns);
  else if (points.len == n * columns * static_cast<long long>(sizeof(double)))
    result = new_tree<double>(points, n, columns);
  else
    PyErr_SetString(PyExc_ValueError, "points are not of these sizes");
  PyBuffer_Release(&points);
  return result;
}

template <typename T>
bool search(PyObject* capsule, const Py_buffer& queries, const Py_buffer& out, long long n, long long k,
            long long n_threads) {
  const auto& tree = *static_cast<const Tree<T>*>(PyCapsule_GetPointer(capsule, name_of_tree<T>()));
  const bool fits = queries.len == n * tree.columns * static_cast<long long>(sizeof(T)) &&
                    out.len == n * k * static_cast<long long>(sizeof(int32_t)) && k >= 1 && k <= tree.n;
  if (!fits) return false;
  const auto nearest = kernels<T>().nearest;
  const auto* from = static_cast<const T*>(queries.buf);
  auto* to = static_cast<int32_t*>(out.buf);
  Py_BEGIN_ALLOW_THREADS;
  constexpr long long kAtOnce = 64, kMany = 4096;
  // Of many queries, those near one another come one after the other: they look at the same boxes.
  std::vector<int32_t> order;
  if (n >= kMany) {
    order = Tree<T>(from, n, tree.columns).index;
    order.erase(std::remove(order.begin(), order.end(), -1), order.end());
  }
  std::atomic<long long> next{0};
  const auto work = [&] {
    for (long long start; (start = next.fetch_add(kAtOnce)) < n;)
      for (long long at = start; at < std::min(n, start + kAtOnce); ++at) {
        const long long i = order.empty() ? at : order[at];
        nearest(tree, from + i * tree.columns, k, to + i * k);
      }
  };
  std::vector<std::thread> others;
  for (long long t = 1; t < std::min(n_threads, (n + kAtOnce - 1) / kAtOnce); ++t) others.emplace_back(work);
  work();
  for (auto& other : others) other.join();
  Py_END_ALLOW_THREADS;
  return true;
}

PyObject* nearest(PyObject*, PyObject* arguments) {
  PyObject* capsule;
  Py_buffer queries, out;
  long long n, k, n_threads;
  if (!PyArg_ParseTuple(arguments, "Oy*w*LLL", &capsule, &queries, &out, &n, &k, &n_threads)) return nullptr;
  bool done = false;
  if (PyCapsule_IsValid(capsule, name_of_tree<float>()))
    done = search<float>(capsule, queries, out, n, k, n_threads);
  else if (PyCapsule_IsValid(capsule, name_of_tree<double>()))
    done = search<double>(capsule, queries, out, n, k, n_threads);
  PyBuffer_Release(&queries);
  PyBuffer_Release(&out);
  if (!done) {
    PyErr_SetString(PyExc_ValueError, "queries, results and tree do not fit together");
    return nullptr;
  }
  Py_RETURN_NONE;
}

// ------------------------------------------------------------------------------------------------ sums

template <typename T>
PyObject* bytes_of(const std::vector<SparseRows>& parts, std::vector<T> SparseRows::*member) {
  int64_t n = 0;
  for (const auto& part : parts) n += static_cast<int64_t>((part.*member).size());
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, n * static_cast<int64_t>(sizeof(T)));
  if (bytes == nullptr) return nullptr;
  T* to = reinterpret_cast<T*>(PyBytes_AsString(bytes));
  for (const auto& part : parts) to = std::copy((part.*member).begin(), (part.*member).end(), to);
  return bytes;
}

PyObject* sum_of_blocks(PyObject*, PyObject* arguments) {
  Py_buffer index, blocks;
  long long n, size, n_variables, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*LLLL", &index, &blocks, &n, &size, &n_variables, &n_threads)) return nullptr;
  std::vector<SparseRows> parts(std::max<long long>(1, n_threads));
  const auto* variables = static_cast<const int32_t*>(index.buf);
  const bool fits = index.len == n * size * static_cast<long long>(sizeof(int32_t)) &&
                    blocks.len == n * size * size * static_cast<long long>(sizeof(double)) &&
                    std::all_of(variables, variables + n * size, [&](int32_t i) { return 0 <= i && i < n_variables; });
  if (fits) {
    Py_BEGIN_ALLOW_THREADS;
    const Occurrences occurrences(variables, n, size, n_variables);
    const int64_t n_parts = static_cast<int64_t>(parts.size());
    const auto work = [&](int64_t t) {
      parts[t] = swsgp::sum_of_blocks(occurrences, variables, static_cast<const double*>(blocks.buf), size, n_variables,
                                      n_variables * t / n_parts, n_variables * (t + 1) / n_parts);
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < n_parts; ++t) others.emplace_back(work, t);
    work(0);
    for (auto& other : others) other.join();
    Py_END_ALLOW_THREADS;
  }
  PyBuffer_Release(&index);
  PyBuffer_Release(&blocks);
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "index and blocks do not fit together");
    return nullptr;
  }
  PyObject* lengths = bytes_of(parts, &SparseRows::lengths);
  PyObject* columns = bytes_of(parts, &SparseRows::columns);
  PyObject* values = bytes_of(parts, &SparseRows::values);
  return lengths && columns && values ? Py_BuildValue("(NNN)", lengths, columns, values) : nullptr;
}

// ------------------------------------------------------------------------------------------------ products

// Where rows are cut for threads, so that each has as many numbers: `before(i)` is how many rows before i have. All their
// vectors of `n_columns` take less memory than the matrix.
template <typename F>
std::vector<int64_t> cuts_of(int64_t n_rows, int64_t n_columns, long long n_threads, const F& before) {
  const int64_t n = before(n_rows), worth_a_thread = std::max<int64_t>(100'000, n_columns);
  const int64_t n_parts = std::max<int64_t>(1, std::min<int64_t>(n_threads, n / worth_a_thread));
  std::vector<int64_t> cuts(n_parts + 1, n_rows);
  int64_t row = 0;
  for (int64_t part = 0; part < n_parts; ++part) {
    while (row < n_rows && before(row) < n / n_parts * part) ++row;
    cuts[part] = row;
  }
  return cuts;
}

template <typename F>
bool has_memory_for(const F& task) {
  try {
    task();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

PyObject* gram_times(PyObject*, PyObject* arguments) {
  Py_buffer in[5], out[2];
  long long n, size, n_columns, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*w*w*LLLL", &in[0], &in[1], &in[2], &in[3], &in[4], &out[0], &out[1], &n,
                        &size, &n_columns, &n_threads))
    return nullptr;
  const long long number = sizeof(double);
  const bool fits = in[0].len == n * size * static_cast<long long>(sizeof(int32_t)) && in[1].len == n * size * number &&
                    in[2].len == n * number && in[3].len == n * number && in[4].len == n_columns * number &&
                    out[0].len == n * number && out[1].len == n_columns * number;
  const auto numbers = [](const Py_buffer& buffer) { return static_cast<double*>(buffer.buf); };
  bool is_done = true;
  if (fits) {
    Py_BEGIN_ALLOW_THREADS;
    is_done = has_memory_for([&] {
      const auto cuts = cuts_of(n, n_columns, n_threads, [&](int64_t i) { return i * size; });
      swsgp::gram_times(static_cast<const int32_t*>(in[0].buf), numbers(in[1]), numbers(in[2]), numbers(in[3]),
                        numbers(in[4]), size, cuts, n_columns, numbers(out[0]), numbers(out[1]));
    });
    Py_END_ALLOW_THREADS;
  }
  for (auto& buffer : in) PyBuffer_Release(&buffer);
  for (auto& buffer : out) PyBuffer_Release(&buffer);
  if (!is_done) return PyErr_NoMemory();
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "matrix and vectors do not fit together");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* symmetric_times(PyObject*, PyObject* arguments) {
  Py_buffer in[4], out;
  long long n, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*LL", &in[0], &in[1], &in[2], &in[3], &out, &n, &n_threads)) return nullptr;
  const auto* starts = static_cast<const int64_t*>(in[0].buf);
  const bool fits = in[0].len == (n + 1) * static_cast<long long>(sizeof(int64_t)) &&
                    in[1].len == starts[n] * static_cast<long long>(sizeof(int32_t)) &&
                    in[2].len == starts[n] * static_cast<long long>(sizeof(double)) &&
                    in[3].len == n * static_cast<long long>(sizeof(double)) && out.len == in[3].len;
  bool is_done = true;
  if (fits) {
    Py_BEGIN_ALLOW_THREADS;
    is_done = has_memory_for([&] {
      const auto cuts = cuts_of(n, n, n_threads, [&](int64_t i) { return starts[i]; });
      swsgp::symmetric_times(starts, static_cast<const int32_t*>(in[1].buf), static_cast<const double*>(in[2].buf),
                             static_cast<const double*>(in[3].buf), cuts, n, static_cast<double*>(out.buf));
    });
    Py_END_ALLOW_THREADS;
  }
  for (auto& buffer : in) PyBuffer_Release(&buffer);
  PyBuffer_Release(&out);
  if (!is_done) return PyErr_NoMemory();
  if (!fits) {
    PyErr_SetString(PyExc_ValueError, "matrix and vectors do not fit together");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* get_level(PyObject*, PyObject*) { return PyLong_FromLong(level); }

PyObject* set_level(PyObject*, PyObject* argument) {
  const long asked = PyLong_AsLong(argument);
  if (asked == -1 && PyErr_Occurred()) return nullptr;
  if (asked < 0 || asked > best_level()) {
    PyErr_SetString(PyExc_ValueError, "this machine does not have that instruction set");
    return nullptr;
  }
  level = static_cast<int>(asked);
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"operations", operations, METH_NOARGS, "Handlers of XLA's foreign-function interface, as capsules, by name."},
    {"saved_numbers", saved_numbers, METH_VARARGS,
     "(B, H, Q, is_double): how many numbers the forward operation keeps for the backward one."},
    {"gpu_operation", gpu_operation, METH_NOARGS, "(): launches a kernel of CUDA on arrays."},
    {"add_gpu_kernel", add_gpu_kernel, METH_VARARGS,
     "(name, function, launch, n_threads, shared_bytes): a kernel, by CUDA's handle, and the address of cuLaunchKernel."},
    {"latent", latent, METH_VARARGS,
     "(x, index, inducing, u_mean, u_variance, theta, mean, variance, weights, B, M, H, D, Q, kinds, is_double): q(f)."},
    {"tree", tree, METH_VARARGS, "(points, n, columns): points in boxes, for `nearest`."},
    {"nearest", nearest, METH_VARARGS,
     "(tree, queries, out, n, k, n_threads): int32 indices of the k nearest points to each query, nearest first."},
    {"sum_of_blocks", sum_of_blocks, METH_VARARGS,
     "(index, blocks, n, size, n_variables, n_threads): lengths of rows, columns and values of the upper triangle."},
    {"gram_times", gram_times, METH_VARARGS,
     "(index, a, omega, start, v, r, out, n, size, n_columns, n_threads): r = omega (start + A v), out = A' r."},
    {"symmetric_times", symmetric_times, METH_VARARGS,
     "(starts, columns, values, v, out, n, n_threads): the product with a matrix whose upper triangle is given."},
    {"level", get_level, METH_NOARGS, "The instruction set in use: 2 AVX-512, 1 AVX2, 0 any machine."},
    {"set_level", set_level, METH_O, "Use another instruction set, for tests; before anything is compiled."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace swsgp

PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&swsgp::definition); }

// What Python calls with arrays of the host, without JAX.

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "choose.hpp"
#include "module.hpp"
#include "products.hpp"
#include "sums.hpp"
#include "threads.hpp"

namespace swsgp {
namespace {

// Arrays that Python has handed over.
template <int N>
struct Buffers {
  Py_buffer all[N] = {};

  ~Buffers() {
    for (auto& buffer : all) PyBuffer_Release(&buffer);
  }
  Py_buffer* operator[](int i) { return &all[i]; }
  template <typename T>
  T* of(int i) const {
    return static_cast<T*>(all[i].buf);
  }
  template <typename T>
  bool has(int i, int64_t n) const {
    return all[i].len == n * static_cast<int64_t>(sizeof(T));
  }
};

PyObject* refuse(const char* why) {
  PyErr_SetString(PyExc_ValueError, why);
  return nullptr;
}

// Runs a task while other threads of Python go on; false, with Python's error, if it did not come to an end.
template <typename F>
bool without_python(const F& task) {
  bool has_memory = true;
  std::string trouble;
  Py_BEGIN_ALLOW_THREADS;
  try {
    task();
  } catch (const std::bad_alloc&) {
    has_memory = false;
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  Py_END_ALLOW_THREADS;
  if (!has_memory) PyErr_NoMemory();
  if (!trouble.empty()) PyErr_SetString(PyExc_RuntimeError, trouble.c_str());
  return has_memory && trouble.empty();
}

// ------------------------------------------------------------------------------------------------ a few points

// q(f) of points: x (B, D) and index (B, H), among inducing inputs (M, D) with means and variances of u (M, Q); and the
// weights (B, H) from which it comes.
template <typename T>
void latent_of(const Buffers<9>& given, const Sizes& sizes, int64_t kinds) {
  const T *x = given.of<T>(0), *inducing = given.of<T>(2), *u_mean = given.of<T>(3), *u_variance = given.of<T>(4);
  const int32_t* index = given.of<int32_t>(1);
  T *mean = given.of<T>(6), *variance = given.of<T>(7), *weights = given.of<T>(8);
  const int64_t n = sizes.n_points, size = sizes.n_active, columns = sizes.n_columns, q_n = sizes.n_latents;
  std::vector<T> z(n * size * columns), remainder(n);
  for (int64_t i = 0; i < n * size; ++i) std::copy_n(inducing + index[i] * columns, columns, z.data() + i * columns);
  const Theta<T> theta(given.of<T>(5), columns, kinds);
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

template <typename T>
bool fit_together(const Buffers<9>& given, const Sizes& sizes, int64_t n_inducing) {
  const int64_t n = sizes.n_points, size = sizes.n_active, columns = sizes.n_columns, q_n = sizes.n_latents;
  const int32_t* index = given.of<int32_t>(1);
  return n >= 0 && size >= 1 && columns >= 1 && q_n >= 1 && given.has<T>(0, n * columns) &&
         given.has<int32_t>(1, n * size) && given.has<T>(2, n_inducing * columns) &&
         given.has<T>(3, n_inducing * q_n) && given.has<T>(4, n_inducing * q_n) && given.has<T>(5, 2 * columns + 7) &&
         given.has<T>(6, n * q_n) && given.has<T>(7, n * q_n) && given.has<T>(8, n * size) &&
         std::all_of(index, index + n * size, [&](int32_t i) { return i >= 0 && i < n_inducing; });
}

// ------------------------------------------------------------------------------------------------ many points

// Conditionals of points, as the operation `system` has them: x (B, D) and index (B, H), among inducing inputs (M, D)
// with features (M, G), and those of the points (B, G).
template <typename T>
void systems_of(const Buffers<10>& given, const Sizes& sizes, int64_t n_features, int64_t kinds, int64_t n_threads) {
  const T *x = given.of<T>(0), *inducing = given.of<T>(2);
  const int32_t* index = given.of<int32_t>(1);
  const int64_t n = sizes.n_points, size = sizes.n_active, columns = sizes.n_columns;
  const Theta<T> theta(given.of<T>(3), columns, kinds);
  const bool is_whole = given.all[8].len > 0;
  const auto run = kernels<T>();
  const int64_t bytes = run.scratch_bytes(sizes), n_tiles = (n + run.lanes - 1) / run.lanes;
  std::atomic<int64_t> next{0};
  on_threads(std::min(n_threads, n_tiles), [&](int64_t) {
    std::vector<T> z(run.lanes * size * columns);
    for (int64_t tile; (tile = next.fetch_add(1)) < n_tiles;) {
      const int64_t first = tile * run.lanes, n_own = std::min<int64_t>(n - first, run.lanes);
      const int32_t* own = index + first * size;
      for (int64_t i = 0; i < n_own * size; ++i) std::copy_n(inducing + own[i] * columns, columns, &z[i * columns]);
      const T* seen = given.of<T>(5) + first * n_features;
      const Inputs<T> inputs{x + first * columns, z.data(), nullptr, nullptr, {given.of<T>(4), own, seen, n_features}};
      const System<T> out{given.of<T>(6) + first * size, given.of<T>(7) + first,
                          is_whole ? given.of<T>(8) + first * size * size : nullptr,
                          is_whole ? given.of<T>(9) + first : nullptr};
      run.system({n_own, size, columns, sizes.n_latents}, theta, inputs, out, 0, scratch(bytes));
    }
  });
}

template <typename T>
bool are_systems(const Buffers<10>& given, const Sizes& sizes, int64_t n_inducing, int64_t n_features) {
  const int64_t n = sizes.n_points, size = sizes.n_active, columns = sizes.n_columns;
  const int32_t* index = given.of<int32_t>(1);
  return n >= 0 && size >= 1 && columns >= 1 && n_features >= 0 && given.has<T>(0, n * columns) &&
         given.has<int32_t>(1, n * size) && given.has<T>(2, n_inducing * columns) && given.has<T>(3, 2 * columns + 7) &&
         given.has<T>(4, n_inducing * n_features) && given.has<T>(5, n * n_features) && given.has<T>(6, n * size) &&
         given.has<T>(7, n) &&
         ((given.has<T>(8, n * size * size) && given.has<T>(9, n)) || (given.has<T>(8, 0) && given.has<T>(9, 0))) &&
         std::all_of(index, index + n * size, [&](int32_t i) { return i >= 0 && i < n_inducing; });
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
  if (!without_python([&] { tree = new Tree<T>(static_cast<const T*>(points.buf), n, columns); })) return nullptr;
  PyObject* capsule = PyCapsule_New(tree, name_of_tree<T>(), forget<T>);
  if (capsule == nullptr) delete tree;
  return capsule;
}

// How many points were looked at for all queries together.
template <typename T>
int64_t search(const Tree<T>& tree, const T* queries, int64_t n, int64_t k, int64_t n_threads, int32_t* out) {
  constexpr int64_t kAtOnce = 64, kMany = 4096;
  const auto nearest = kernels<T>().nearest;
  // Of many queries, those near one another come one after the other: they look at the same boxes.
  std::vector<int32_t> order;
  if (n >= kMany) {
    order = Tree<T>(queries, n, tree.columns).index;
    order.erase(std::remove(order.begin(), order.end(), -1), order.end());
  }
  std::atomic<int64_t> next{0}, n_looked_at{0};
  on_threads(std::min(n_threads, (n + kAtOnce - 1) / kAtOnce), [&](int64_t) {
    int64_t own = 0;
    for (int64_t start; (start = next.fetch_add(kAtOnce)) < n;)
      for (int64_t at = start; at < std::min(n, start + kAtOnce); ++at) {
        const int64_t i = order.empty() ? at : order[at];
        own += nearest(tree, queries + i * tree.columns, k, out + i * k);
      }
    n_looked_at += own;
  });
  return n_looked_at;
}

template <typename T>
PyObject* checked_search(PyObject* capsule, const Buffers<2>& given, long long n, long long k, long long n_threads) {
  const auto& tree = *static_cast<const Tree<T>*>(PyCapsule_GetPointer(capsule, name_of_tree<T>()));
  if (!given.has<T>(0, n * tree.columns) || !given.has<int32_t>(1, n * k) || k < 1 || k > tree.n)
    return refuse("queries, results and tree do not fit together");
  int64_t n_looked_at = 0;
  const auto task = [&] {
    n_looked_at = search<T>(tree, given.of<const T>(0), n, k, n_threads, given.of<int32_t>(1));
  };
  return without_python(task) ? PyLong_FromLongLong(n_looked_at) : nullptr;
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

}  // namespace

PyObject* latent(PyObject*, PyObject* arguments) {
  Buffers<9> given;
  long long n, n_inducing, n_active, columns, n_latents, kinds;
  int is_double;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*w*w*w*LLLLLLp", given[0], given[1], given[2], given[3], given[4],
                        given[5], given[6], given[7], given[8], &n, &n_inducing, &n_active, &columns, &n_latents, &kinds,
                        &is_double))
    return nullptr;
  const Sizes sizes{n, n_active, columns, n_latents};
  if (!(is_double ? fit_together<double>(given, sizes, n_inducing) : fit_together<float>(given, sizes, n_inducing)))
    return refuse("inputs and results do not fit together");
  const auto task = [&] {
    is_double ? latent_of<double>(given, sizes, kinds) : latent_of<float>(given, sizes, kinds);
  };
  if (!without_python(task)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* systems(PyObject*, PyObject* arguments) {
  Buffers<10> given;
  long long n, n_inducing, n_active, columns, n_features, kinds, n_threads;
  int is_double;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*y*w*w*w*w*LLLLLLpL", given[0], given[1], given[2], given[3], given[4],
                        given[5], given[6], given[7], given[8], given[9], &n, &n_inducing, &n_active, &columns,
                        &n_features, &kinds, &is_double, &n_threads))
    return nullptr;
  const Sizes sizes{n, n_active, columns, 0};
  if (!(is_double ? are_systems<double>(given, sizes, n_inducing, n_features)
                  : are_systems<float>(given, sizes, n_inducing, n_features)))
    return refuse("inputs and results do not fit together");
  const auto task = [&] {
    is_double ? systems_of<double>(given, sizes, n_features, kinds, n_threads)
              : systems_of<float>(given, sizes, n_features, kinds, n_threads);
  };
  if (!without_python(task)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* tree(PyObject*, PyObject* arguments) {
  Buffers<1> given;
  long long n, columns;
  if (!PyArg_ParseTuple(arguments, "y*LL", given[0], &n, &columns)) return nullptr;
  if (n < 1 || columns < 1) return refuse("a tree has points and columns");
  if (given.has<float>(0, n * columns)) return new_tree<float>(given.all[0], n, columns);
  if (given.has<double>(0, n * columns)) return new_tree<double>(given.all[0], n, columns);
  return refuse("points are not of these sizes");
}

PyObject* nearest(PyObject*, PyObject* arguments) {
  PyObject* capsule;
  Buffers<2> given;
  long long n, k, n_threads;
  if (!PyArg_ParseTuple(arguments, "Oy*w*LLL", &capsule, given[0], given[1], &n, &k, &n_threads)) return nullptr;
  if (PyCapsule_IsValid(capsule, name_of_tree<float>())) return checked_search<float>(capsule, given, n, k, n_threads);
  if (PyCapsule_IsValid(capsule, name_of_tree<double>())) return checked_search<double>(capsule, given, n, k, n_threads);
  return refuse("this is not a tree");
}

PyObject* sum_of_blocks(PyObject*, PyObject* arguments) {
  Buffers<2> given;
  long long n, size, n_variables, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*LLLL", given[0], given[1], &n, &size, &n_variables, &n_threads)) return nullptr;
  const int32_t* index = given.of<int32_t>(0);
  if (!given.has<int32_t>(0, n * size) || !given.has<double>(1, n * size * size) ||
      !std::all_of(index, index + n * size, [&](int32_t i) { return 0 <= i && i < n_variables; }))
    return refuse("index and blocks do not fit together");
  std::vector<SparseRows> parts;
  const auto task = [&] {
    const int64_t n_parts = std::max<int64_t>(1, n_threads);
    parts.resize(n_parts);
    const Occurrences occurrences(index, n, size, n_variables);
    on_threads(n_parts, [&](int64_t t) {
      parts[t] = swsgp::sum_of_blocks(occurrences, index, given.of<double>(1), size, n_variables,
                                      n_variables * t / n_parts, n_variables * (t + 1) / n_parts);
    });
  };
  if (!without_python(task)) return nullptr;
  PyObject* lengths = bytes_of(parts, &SparseRows::lengths);
  PyObject* columns = bytes_of(parts, &SparseRows::columns);
  PyObject* values = bytes_of(parts, &SparseRows::values);
  if (lengths && columns && values) return Py_BuildValue("(NNN)", lengths, columns, values);
  Py_XDECREF(lengths);
  Py_XDECREF(columns);
  Py_XDECREF(values);
  return nullptr;
}

PyObject* gram_times(PyObject*, PyObject* arguments) {
  Buffers<7> given;
  long long n, size, n_columns, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*y*w*w*LLLL", given[0], given[1], given[2], given[3], given[4], given[5],
                        given[6], &n, &size, &n_columns, &n_threads))
    return nullptr;
  if (!given.has<int32_t>(0, n * size) || !given.has<double>(1, n * size) || !given.has<double>(2, n) ||
      !given.has<double>(3, n) || !given.has<double>(4, n_columns) || !given.has<double>(5, n) ||
      !given.has<double>(6, n_columns))
    return refuse("matrix and vectors do not fit together");
  const auto numbers = [&](int i) { return given.of<double>(i); };
  const auto task = [&] {
    const auto cuts = cuts_of(n, n_columns, n_threads, [&](int64_t i) { return i * size; });
    swsgp::gram_times(given.of<int32_t>(0), numbers(1), numbers(2), numbers(3), numbers(4), size, cuts, n_columns,
                      numbers(5), numbers(6));
  };
  if (!without_python(task)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* symmetric_times(PyObject*, PyObject* arguments) {
  Buffers<5> given;
  long long n, n_threads;
  if (!PyArg_ParseTuple(arguments, "y*y*y*y*w*LL", given[0], given[1], given[2], given[3], given[4], &n, &n_threads))
    return nullptr;
  const int64_t* starts = given.of<int64_t>(0);
  if (!given.has<int64_t>(0, n + 1) || !given.has<int32_t>(1, starts[n]) || !given.has<double>(2, starts[n]) ||
      !given.has<double>(3, n) || !given.has<double>(4, n))
    return refuse("matrix and vectors do not fit together");
  const auto task = [&] {
    const auto cuts = cuts_of(n, n, n_threads, [&](int64_t i) { return starts[i]; });
    swsgp::symmetric_times(starts, given.of<int32_t>(1), given.of<double>(2), given.of<double>(3), cuts, n,
                           given.of<double>(4));
  };
  if (!without_python(task)) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace swsgp

// The module of Python, and which instruction set is in use.

#include "choose.hpp"
#include "module.hpp"

namespace swsgp {

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

namespace {

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
    {"systems", systems, METH_VARARGS,
     "(x, index, inducing, theta, of_z, of_x, weights, remainder, precision, log_det, B, M, H, D, G, kinds, is_double, "
     "n_threads): conditionals of points, as the operation `system` has them."},
    {"tree", tree, METH_VARARGS, "(points, n, columns): points in boxes, for `nearest`."},
    {"nearest", nearest, METH_VARARGS,
     "(tree, queries, out, n, k, n_threads): int32 indices of the k nearest points to each query, nearest first, into "
     "out; gives how many points were looked at."},
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

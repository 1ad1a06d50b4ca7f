// Kernels of CUDA, which Python compiles and loads (`gpu.py`), as one operation of XLA's foreign-function interface.

#pragma once

#define Py_LIMITED_API 0x030b0000
#include <Python.h>

namespace swsgp {

// (): the operation, which launches the kernel named by its attribute on its arguments and results.
PyObject* gpu_operation(PyObject*, PyObject*);

// (name, function, launch, n_threads, shared_bytes): a kernel, by CUDA's handle of it, and the address of
// cuLaunchKernel.
PyObject* add_gpu_kernel(PyObject*, PyObject* arguments);

}  // namespace swsgp

// The functions that Python sees; their arguments are in `module.cpp`.

#pragma once

#define Py_LIMITED_API 0x030b0000
#include <Python.h>

namespace swsgp {

// Operations of XLA, for CPUs (operations.cpp) and for GPUs (gpu.cpp).
PyObject* operations(PyObject*, PyObject*);
PyObject* saved_numbers(PyObject*, PyObject* arguments);
PyObject* gpu_operation(PyObject*, PyObject*);
PyObject* add_gpu_kernel(PyObject*, PyObject* arguments);

// On arrays of the host (host.cpp).
PyObject* latent(PyObject*, PyObject* arguments);
PyObject* systems(PyObject*, PyObject* arguments);
PyObject* tree(PyObject*, PyObject* arguments);
PyObject* nearest(PyObject*, PyObject* arguments);
PyObject* sum_of_blocks(PyObject*, PyObject* arguments);
PyObject* gram_times(PyObject*, PyObject* arguments);
PyObject* symmetric_times(PyObject*, PyObject* arguments);

}  // namespace swsgp

// For any machine: vectors of 16 bytes, which compilers turn into what there is.
#define ISA plain
#define VECTOR_BYTES 16
#include "kernels.hpp"

// The translation unit: everything that is compiled to PTX, and for the emulated device.
#include "blake3.cu"
#include "boundaries.cu"
#include "digests.cu"
#include "gf.cu"
#include "lookup.cu"
#include "verify.cu"
#include "xor.cu"

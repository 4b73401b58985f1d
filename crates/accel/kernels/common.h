// What all kernels share. No CUDA header is included: NVRTC knows its builtins without, and the emulated device
// gets them from host/shim.h.
#ifndef TESSERA_COMMON_H
#define TESSERA_COMMON_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
// A kernel with one argument, a struct by value, called `a` inside.
#define KERNEL(name, argument, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const struct argument a)
#define DEVICE static __device__ __forceinline__
#define SHARED __shared__
#define CONSTANT static __device__ __constant__ const
#define UNROLL _Pragma("unroll")
#define ALIGN(bytes) __align__(bytes)
#else
#include "host/shim.h"
#endif

// Sixteen bytes that are loaded and stored at once; addresses are multiples of 16.
typedef struct ALIGN(16) {
    u32 x, y, z, w;
} quad;

// Number of this thread in the whole launch.
DEVICE u64 thread_number(void) { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

DEVICE u32 rotate_right(u32 x, u32 n) { return __funnelshift_r(x, x, n); }
DEVICE u32 rotate_left(u32 x, u32 n) { return __funnelshift_l(x, x, n); }

// The word at any byte offset of `base`, which is aligned to 4. Reads the one or two words that hold it.
DEVICE u32 load_word(const u8 *base, u64 at) {
    const u32 *words = (const u32 *)base + at / 4;
    u32 shift = 8 * (u32)(at % 4);
    return shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
}

// Four sums of bytes, each modulo 256.
DEVICE u32 add_bytes(u32 a, u32 b) { return ((a & 0x7f7f7f7fu) + (b & 0x7f7f7f7fu)) ^ ((a ^ b) & 0x80808080u); }

// Four averages of bytes, each rounded up.
DEVICE u32 average_bytes(u32 a, u32 b) { return (a | b) - (((a ^ b) >> 1) & 0x7f7f7f7fu); }

// 0xff in each byte whose bit 0 is set in `bits` (which has no other bits).
DEVICE u32 byte_masks(u32 bits) { return bits * 0xffu; }

// The selector of __byte_perm that looks each of four bytes up among eight: `low` holds a number 0..7 in each byte.
// __byte_perm reads a number from every four bits of the selector's low half.
DEVICE u32 selector(u32 low) {
    u32 pairs = low | (low >> 4); // Bytes 0 and 2 now hold two numbers each.
    return __byte_perm(pairs, 0, 0x4420);
}

#endif

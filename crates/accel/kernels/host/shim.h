// What CUDA C++ gives kernels, for the host's C compiler: names, builtins and qualifiers. host/emulate.c runs them.
#ifndef TESSERA_SHIM_H
#define TESSERA_SHIM_H

#include <stdbool.h>
#include <stddef.h>

#define KERNEL(name, argument, threads) static void name(const struct argument a)
#define DEVICE static inline
#define SHARED static _Thread_local
#define CONSTANT static const
#define UNROLL
#define ALIGN(bytes) __attribute__((aligned(bytes)))

struct emulated_index {
    unsigned x, y, z;
};

// One block runs at a time on an operating system's thread; of its threads, one.
static _Thread_local struct emulated_index threadIdx, blockIdx, blockDim, gridDim;

static void emulated_barrier(void);
static unsigned emulated_shuffle(unsigned mask, unsigned value, unsigned lane);

static inline void __syncthreads(void) { emulated_barrier(); }

static inline unsigned __shfl_sync(unsigned mask, unsigned value, unsigned lane) {
    return emulated_shuffle(mask, value, lane);
}

// Blocks of a launch run one after the other on one thread, so an addition cannot be interrupted.
static inline unsigned atomicAdd(unsigned *at, unsigned value) {
    unsigned before = *at;
    *at += value;
    return before;
}

// The high and low word of (high:low) shifted by n mod 32.
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}

static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}

// Byte i of the result is byte number s[i] of (y:x), s[i] being the low three bits of the selector's ith four.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(both >> (8 * (s >> (4 * i) & 7)) & 0xff) << (8 * i);
    return result;
}

static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}

#endif

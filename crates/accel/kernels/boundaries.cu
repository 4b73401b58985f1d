// Chunk boundary candidates: phase 1 of docs/chunking.md, whose section 1.1 defines every sum and constant here.
//
// Four neighbouring positions share a word, one byte each. A block computes `near` and `middle` of a tile once, into
// shared memory, because later positions look 16 and 32 back; positions that pass the prefilter (one in 512 or 1,024
// of random ones) are hashed on the spot. Candidates are appended in no order; the host sorts the few there are.
#include "common.h"

#define BOUNDARY_THREADS 256
#define BOUNDARY_TILE 1024 // Words (of four positions) that a block decides.
#define BOUNDARY_BACK 12   // Words before them whose `near` matters: 48 positions.

CONSTANT u32 BOUNDARY_NEAR[4] = {0xa818df7a, 0xb10a8443, 0xf5b7263f, 0xa102627f};
CONSTANT u32 BOUNDARY_MIDDLE[4] = {0x51eaea99, 0x9430b746, 0x99a73172, 0x58e2ff88};
CONSTANT u32 BOUNDARY_FAR[4] = {0x94bae892, 0xcd03f32e, 0x2c34329f, 0x1a68d1e7};
CONSTANT u64 BOUNDARY_KEYS[10] = {0x243f6a8885a308d3, 0x13198a2e03707344, 0xa4093822299f31d0, 0x082efa98ec4e6c89,
                                  0x452821e638d01377, 0xbe5466cf34e90c6c, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917,
                                  0x9216d5d98979fb1b, 0xd1310ba698dfb5ac};

struct boundary_candidates {
    const u8 *data;     // Context, then the bytes to search.
    u32 *found;         // found[0] counts candidates; entries from found[1] on: 2 * position, plus 1 if strong.
    u64 any_below, strong_below;
    u32 bytes;          // Context and data together, below 2^31.
    u32 context;        // Positions up to here are not reported.
    u32 capacity;       // Entries there is room for. The count goes on beyond it.
    int above;          // The prefilter's second condition.
};

// Four entries of a 16-byte table, as PSHUFB has them: by the low four bits, 0 where bit 7 is set.
DEVICE u32 boundary_look_up(const u32 *table, u32 v) {
    u32 by = selector(v & 0x07070707u);
    u32 first = __byte_perm(table[0], table[1], by), second = __byte_perm(table[2], table[3], by);
    u32 upper = byte_masks((v >> 3) & 0x01010101u), none = byte_masks((v >> 7) & 0x01010101u);
    return ((first & ~upper) | (second & upper)) & ~none;
}

// `near` of the four positions whose newest bytes are `word`; `before` is the word before it.
DEVICE u32 boundary_near(u32 before, u32 word) {
    u32 x1 = __funnelshift_l(before, word, 8), x2 = __funnelshift_l(before, word, 16);
    u32 x3 = __funnelshift_l(before, word, 24);
    return add_bytes(add_bytes(word, x3), boundary_look_up(BOUNDARY_NEAR, average_bytes(x1, x2)));
}

DEVICE u64 boundary_fold(u64 x, u64 y) { return (x * y) ^ __umul64hi(x, y); }

// The 64-bit hash of the window that ends before `position`.
DEVICE u64 boundary_mix(const u8 *data, u32 position) {
    u64 sum = 0;
    UNROLL
    for (u32 i = 0; i < 4; i++) {
        u64 at = position - 64 + 16 * i;
        u64 x = load_word(data, at) | (u64)load_word(data, at + 4) << 32;
        u64 y = load_word(data, at + 8) | (u64)load_word(data, at + 12) << 32;
        sum += boundary_fold(x ^ BOUNDARY_KEYS[2 * i], y ^ BOUNDARY_KEYS[2 * i + 1]);
    }
    return boundary_fold(sum ^ BOUNDARY_KEYS[8], BOUNDARY_KEYS[9]);
}

DEVICE void boundary_judge(const struct boundary_candidates *a, u32 position) {
    u64 mixed = boundary_mix(a->data, position);
    if (mixed >= a->any_below) return;
    u32 slot = atomicAdd(a->found, 1);
    if (slot < a->capacity) a->found[1 + slot] = 2 * (position - a->context) + (mixed < a->strong_below);
}

// Grid: a block for each tile of BOUNDARY_TILE words of the data.
KERNEL(boundary_candidates, boundary_candidates, BOUNDARY_THREADS) {
    SHARED u32 near_sums[BOUNDARY_TILE + BOUNDARY_BACK], middle_sums[BOUNDARY_TILE + BOUNDARY_BACK];
    // Entry i of both is of word first + i - BOUNDARY_BACK, which holds positions 4 * word + 1 to 4 * word + 4.
    u64 first = (u64)blockIdx.x * BOUNDARY_TILE;
    const u32 *words = (const u32 *)a.data;
    u64 word_count = (a.bytes + 3) / 4;

    for (u32 i = threadIdx.x; i < BOUNDARY_TILE + BOUNDARY_BACK; i += BOUNDARY_THREADS) {
        u64 word = first + i; // Plus BOUNDARY_BACK: what lies before the data is never part of a full window.
        bool there = word >= BOUNDARY_BACK && word < word_count + BOUNDARY_BACK;
        u32 newest = there ? words[word - BOUNDARY_BACK] : 0;
        u32 before = there && word > BOUNDARY_BACK ? words[word - BOUNDARY_BACK - 1] : 0;
        near_sums[i] = boundary_near(before, newest);
    }
    __syncthreads();
    for (u32 i = threadIdx.x + 4; i < BOUNDARY_TILE + BOUNDARY_BACK; i += BOUNDARY_THREADS) {
        middle_sums[i] = add_bytes(near_sums[i], boundary_look_up(BOUNDARY_MIDDLE, near_sums[i - 4]));
    }
    __syncthreads();
    for (u32 i = threadIdx.x + BOUNDARY_BACK; i < BOUNDARY_TILE + BOUNDARY_BACK; i += BOUNDARY_THREADS) {
        u32 sum = add_bytes(middle_sums[i], boundary_look_up(BOUNDARY_FAR, middle_sums[i - 8]));
        u32 off = sum ^ 0x0f0f0f0fu; // A byte is zero where the sum hits its target.
        if (((off - 0x01010101u) & ~off & 0x80808080u) == 0) continue;
        UNROLL
        for (u32 byte = 0; byte < 4; byte++) {
            u64 position = 4 * (first + i - BOUNDARY_BACK) + byte + 1;
            bool hit = ((off >> (8 * byte)) & 0xff) == 0;
            int far = (int)(near_sums[i - 8] << (24 - 8 * byte)) >> 24;
            bool wanted = position >= 64 && position > a.context && position <= a.bytes;
            if (hit && far > a.above && wanted) boundary_judge(&a, (u32)position);
        }
    }
}

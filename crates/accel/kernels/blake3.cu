// BLAKE3 of one large buffer or of a batch. Source: O'Connor, Aumasson, Neves, Wilcox-O'Hearn, "BLAKE3: one
// function, fast everywhere", 2020, sections 2.1 (tree) and 2.2 (compression function).
//
// Chaining values live in one array. `blake3_leaves` hashes every leaf (1,024 bytes) of every buffer, a thread each.
// `blake3_parents` then joins up to 64 neighbours to one, a warp each; the host launches it level by level: 16 leaves
// to a group (docs/chunking.md, section 2), then 64 to one until one is left. Joining neighbours pair by pair and
// carrying an odd last one up gives BLAKE3's tree, because a left subtree is the largest power of two of leaves.
#include "common.h"

#define BLAKE3_THREADS 128
#define BLAKE3_CHUNK_START 1u
#define BLAKE3_CHUNK_END 2u
#define BLAKE3_PARENT 4u
#define BLAKE3_ROOT 8u

CONSTANT u32 BLAKE3_IV[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

struct blake3_buffer {
    u64 offset;     // Of its first byte in the data, a multiple of 16.
    u64 bytes;
    u32 first_leaf; // Leaves of all buffers before it in the batch.
    u32 value;      // Where the chaining value of its first leaf goes; a single leaf is the digest itself.
};

struct blake3_leaves {
    const u8 *data;
    const struct blake3_buffer *buffers;
    u32 *values; // Eight words a chaining value.
    u32 buffer_count, leaf_count;
};

struct blake3_item {
    u32 from;  // The first of the chaining values to join.
    u32 count; // How many, 1 to 64.
    u32 to;    // Where the result goes.
    u32 root;  // 1 if the result is a digest.
};

struct blake3_parents {
    u32 *values;
    const struct blake3_item *items;
    u32 item_count, unused;
};

DEVICE void blake3_quarter(u32 *a, u32 *b, u32 *c, u32 *d, u32 x, u32 y) {
    *a += *b + x;
    *d = rotate_right(*d ^ *a, 16);
    *c += *d;
    *b = rotate_right(*b ^ *c, 12);
    *a += *b + y;
    *d = rotate_right(*d ^ *a, 8);
    *c += *d;
    *b = rotate_right(*b ^ *c, 7);
}

DEVICE void blake3_round(u32 *v, const u32 *m) {
    blake3_quarter(&v[0], &v[4], &v[8], &v[12], m[0], m[1]);
    blake3_quarter(&v[1], &v[5], &v[9], &v[13], m[2], m[3]);
    blake3_quarter(&v[2], &v[6], &v[10], &v[14], m[4], m[5]);
    blake3_quarter(&v[3], &v[7], &v[11], &v[15], m[6], m[7]);
    blake3_quarter(&v[0], &v[5], &v[10], &v[15], m[8], m[9]);
    blake3_quarter(&v[1], &v[6], &v[11], &v[12], m[10], m[11]);
    blake3_quarter(&v[2], &v[7], &v[8], &v[13], m[12], m[13]);
    blake3_quarter(&v[3], &v[4], &v[9], &v[14], m[14], m[15]);
}

// The permutation of the message between rounds; unrolled it costs nothing, registers change names.
DEVICE void blake3_permute(u32 *m) {
    u32 t[16] = {m[2],  m[6],  m[3], m[10], m[7], m[0], m[4],  m[13],
                 m[1], m[11], m[12], m[5],  m[9], m[14], m[15], m[8]};
    UNROLL
    for (u32 i = 0; i < 16; i++) m[i] = t[i];
}

// value = compress(value, m, counter, bytes, flags). Destroys m.
DEVICE void blake3_compress(u32 *value, u32 *m, u64 counter, u32 bytes, u32 flags) {
    u32 v[16];
    UNROLL
    for (u32 i = 0; i < 8; i++) v[i] = value[i];
    UNROLL
    for (u32 i = 0; i < 4; i++) v[8 + i] = BLAKE3_IV[i];
    v[12] = (u32)counter;
    v[13] = (u32)(counter >> 32);
    v[14] = bytes;
    v[15] = flags;
    UNROLL
    for (u32 round = 0; round < 7; round++) {
        if (round > 0) blake3_permute(m);
        blake3_round(v, m);
    }
    UNROLL
    for (u32 i = 0; i < 8; i++) value[i] = v[i] ^ v[i + 8];
}

// The sixteen words of a block; bytes from `bytes` on count as zeros.
DEVICE void blake3_load(u32 *m, const u8 *block, u32 bytes) {
    UNROLL
    for (u32 i = 0; i < 4; i++) {
        quad q = {0, 0, 0, 0};
        if (bytes > 16 * i) q = *(const quad *)(block + 16 * i);
        m[4 * i] = q.x;
        m[4 * i + 1] = q.y;
        m[4 * i + 2] = q.z;
        m[4 * i + 3] = q.w;
    }
    if (bytes < 64) {
        UNROLL
        for (u32 i = 0; i < 16; i++) {
            u32 left = bytes > 4 * i ? bytes - 4 * i : 0;
            if (left < 4) m[i] &= (1u << (8 * left)) - 1;
        }
    }
}

DEVICE void blake3_store(u32 *to, const u32 *value) {
    quad low = {value[0], value[1], value[2], value[3]}, high = {value[4], value[5], value[6], value[7]};
    ((quad *)to)[0] = low;
    ((quad *)to)[1] = high;
}

// The buffer that leaf `leaf` of the batch belongs to: the last whose first leaf is not after it.
DEVICE u32 blake3_buffer_of(const struct blake3_buffer *buffers, u32 count, u32 leaf) {
    u32 low = 0, high = count;
    while (high - low > 1) {
        u32 middle = low + (high - low) / 2;
        if (buffers[middle].first_leaf <= leaf) low = middle;
        else high = middle;
    }
    return low;
}

// Grid: a thread for each leaf of the batch.
KERNEL(blake3_leaves, blake3_leaves, BLAKE3_THREADS) {
    u32 leaf = (u32)thread_number();
    if (leaf >= a.leaf_count) return;
    struct blake3_buffer buffer = a.buffers[blake3_buffer_of(a.buffers, a.buffer_count, leaf)];
    u64 index = leaf - buffer.first_leaf;
    u64 left = buffer.bytes - index * 1024;
    u32 bytes = left < 1024 ? (u32)left : 1024;
    const u8 *data = a.data + buffer.offset + index * 1024;
    u32 blocks = bytes == 0 ? 1 : (bytes + 63) / 64;
    u32 end_flags = BLAKE3_CHUNK_END | (buffer.bytes <= 1024 ? BLAKE3_ROOT : 0);

    u32 value[8];
    UNROLL
    for (u32 i = 0; i < 8; i++) value[i] = BLAKE3_IV[i];
    for (u32 block = 0; block < blocks; block++) {
        u32 in_block = bytes - 64 * block < 64 ? bytes - 64 * block : 64;
        u32 flags = (block == 0 ? BLAKE3_CHUNK_START : 0) | (block + 1 == blocks ? end_flags : 0);
        u32 m[16];
        blake3_load(m, data + 64 * block, in_block);
        blake3_compress(value, m, index, in_block, flags);
    }
    blake3_store(a.values + 8 * (u64)(buffer.value + (u32)index), value);
}

// value = parent of `left` and `right`.
DEVICE void blake3_join(u32 *value, const u32 *left, const u32 *right, u32 root) {
    u32 m[16];
    UNROLL
    for (u32 i = 0; i < 8; i++) {
        m[i] = left[i];
        m[8 + i] = right[i];
        value[i] = BLAKE3_IV[i];
    }
    blake3_compress(value, m, 0, 64, BLAKE3_PARENT | (root ? BLAKE3_ROOT : 0));
}

// Grid: a warp for each item.
KERNEL(blake3_parents, blake3_parents, BLAKE3_THREADS) {
    u32 number = (u32)(thread_number() / 32), lane = threadIdx.x % 32;
    if (number >= a.item_count) return; // Whole warps leave, so that shuffles below meet full ones.
    struct blake3_item item = a.items[number];
    const u32 *from = a.values + 8 * ((u64)item.from + 2 * lane);
    u32 left[8], right[8], value[8];
    UNROLL
    for (u32 i = 0; i < 8; i++) {
        left[i] = 2 * lane < item.count ? from[i] : 0;
        right[i] = 2 * lane + 1 < item.count ? from[8 + i] : 0;
    }
    // One level a turn: lane i joins nodes 2i and 2i + 1, or carries an odd last one up.
    for (u32 count = item.count;;) {
        if (2 * lane + 1 < count) {
            blake3_join(value, left, right, item.root && count == 2);
        } else {
            UNROLL
            for (u32 i = 0; i < 8; i++) value[i] = left[i];
        }
        count = (count + 1) / 2;
        if (count == 1) break;
        UNROLL
        for (u32 i = 0; i < 8; i++) {
            left[i] = __shfl_sync(0xffffffffu, value[i], 2 * lane);
            right[i] = __shfl_sync(0xffffffffu, value[i], 2 * lane + 1);
        }
    }
    if (lane == 0) blake3_store(a.values + 8 * (u64)item.to, value);
}

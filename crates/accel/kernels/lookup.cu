// Batches of look-ups in device memory: keys against levels of sorted arrays (CONA's index, flash translation), and
// hashes against a Bloom filter of blocks. One thread a query.
#include "common.h"

#define LOOKUP_THREADS 256

struct lookup_levels {
    const u64 *keys;    // The levels' keys, one level after the other, newest first; each rises strictly.
    const u32 *firsts;  // Entry i: where level i begins among them; one more entry ends the last.
    const u64 *queries;
    u64 *found;         // level << 32 | index in the level, or all ones.
    u64 query_count;
    u32 level_count, unused;
};

// Position of the first of `count` keys that is not below `query`.
DEVICE u32 lookup_lower_bound(const u64 *keys, u32 count, u64 query) {
    u32 low = 0;
    // Halving without branches: all threads of a warp do the same steps.
    for (u32 left = count; left > 1;) {
        u32 half = left / 2;
        low += keys[low + half - 1] < query ? half : 0;
        left -= half;
    }
    return low + (count > 0 && keys[low] < query);
}

// Grid: a thread for each query.
KERNEL(lookup_levels, lookup_levels, LOOKUP_THREADS) {
    u64 number = thread_number();
    if (number >= a.query_count) return;
    u64 query = a.queries[number], found = ~0ull;
    for (u32 level = 0; level < a.level_count; level++) {
        const u64 *keys = a.keys + a.firsts[level];
        u32 count = a.firsts[level + 1] - a.firsts[level];
        u32 at = lookup_lower_bound(keys, count, query);
        if (at < count && keys[at] == query) {
            found = (u64)level << 32 | at;
            break; // A newer level hides older ones.
        }
    }
    a.found[number] = found;
}

struct bloom_query {
    const u32 *blocks;  // Eight words a block.
    const u64 *hashes;
    u8 *passes;         // 1 if the key may be in the set.
    u64 block_count, query_count;
};

// Multipliers that pick a bit in each word (Apache Parquet, "Split block Bloom filters").
CONSTANT u32 BLOOM_SALTS[8] = {0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
                               0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31};

// Grid: a thread for each query.
KERNEL(bloom_query, bloom_query, LOOKUP_THREADS) {
    u64 number = thread_number();
    if (number >= a.query_count) return;
    u64 hash = a.hashes[number];
    const quad *block = (const quad *)(a.blocks + 8 * ((hash >> 32) * a.block_count >> 32));
    quad low = block[0], high = block[1];
    u32 words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    u32 missing = 0;
    UNROLL
    for (u32 i = 0; i < 8; i++) missing |= ~words[i] & (1u << ((u32)hash * BLOOM_SALTS[i] >> 27));
    a.passes[number] = missing == 0;
}

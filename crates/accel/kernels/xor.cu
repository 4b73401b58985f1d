// XOR-schedule codes (Liberation, Blaum-Roth, Cauchy bit matrices): each packet of a coding fragment is the XOR of some
// packets of the sources. One row of blocks for each coding word, as the GPU RAID paper's kernel has it: all threads
// of a block read the same list, and packets are long enough that reads are in a row.
#include "common.h"

#define XOR_THREADS 256

// A word is packet p of fragment f, numbered f * w + p, in every stripe.
struct xor_rows {
    const u8 *sources;   // Fragment f of chunk c begins at sources + c * source_chunk + f * fragment.
    u8 *targets;         // The same with target_chunk.
    const u32 *firsts;   // Entry r: where row r's list begins in `lists`; one more entry ends the last.
    const u32 *words;    // Entry r: the coding word that row r computes.
    const u32 *lists;    // Source words.
    u64 source_chunk, target_chunk, fragment; // Bytes.
    u64 stripes;         // In a fragment.
    u64 packet;          // Bytes, a multiple of 8.
    u32 chunks, w;
};

// Where in its fragments a word begins, in the given stripe.
DEVICE u64 xor_offset(const struct xor_rows *a, u32 word, u64 stripe) {
    return word / a->w * a->fragment + (stripe * a->w + word % a->w) * a->packet;
}

// Grid: x covers chunks * stripes * (packet / 8) threads, y is the coding word.
KERNEL(xor_rows, xor_rows, XOR_THREADS) {
    u64 pieces = a.packet / 8, number = thread_number();
    u64 piece = number % pieces, stripe = number / pieces % a.stripes, chunk = number / pieces / a.stripes;
    if (chunk >= a.chunks) return;
    const u8 *source = a.sources + chunk * a.source_chunk + 8 * piece;
    u64 sum = 0;
    for (u32 i = a.firsts[blockIdx.y]; i < a.firsts[blockIdx.y + 1]; i++)
        sum ^= *(const u64 *)(source + xor_offset(&a, a.lists[i], stripe));
    u8 *target = a.targets + chunk * a.target_chunk + 8 * piece;
    *(u64 *)(target + xor_offset(&a, a.words[blockIdx.y], stripe)) = sum;
}

// A matrix over GF(2^8) with polynomial 0x11d times columns of bytes: what all Reed-Solomon work comes down to.
// Encoding multiplies by the parity rows, reconstruction by the rows of the inverted matrix.
//
// Multiplication by a constant is linear over the bits of a byte, so c*x = T0[bits 0-2] ^ T1[bits 3-5] ^ T2[bits 6-7]
// with tables of eight, eight and four bytes. A table of eight bytes is two registers, and __byte_perm looks four
// bytes up in it with one instruction. Splitting a byte by three bits instead of four is what makes that possible;
// the selectors are made once for each source word and serve all rows. (Tables over parts of the byte:
// Plank, Greenan, Miller, "Screaming fast Galois field arithmetic using Intel SIMD instructions", FAST 2013.)
#include "common.h"

#define GF_THREADS 256
#define GF_ROWS 4  // Rows a block computes together, so that sources are read once for four of them.
#define GF_SLAB 32 // Columns whose tables lie in shared memory at a time.
#define GF_WORDS 8 // Words in one coefficient's tables: T0, T1 in two each, T2 in one, three of padding.

struct gf_multiply {
    const u8 *sources;  // Column c of stripe s begins at sources + s * source_stripe + c * source_column.
    u8 *targets;        // Row r of stripe s begins at targets + s * target_stripe + r * target_row.
    const u32 *tables;  // rows x columns x GF_WORDS.
    u64 source_stripe, source_column, target_stripe, target_row; // Bytes, multiples of 16.
    u64 pieces;         // Sixteen-byte pieces in a fragment.
    u32 stripes, rows, columns, unused;
};

// sums[r] ^= coefficient * source, for one word of the source. `table` is one column's, for all rows.
DEVICE void gf_add_word(u32 *sums, u32 source, const u32 *table, u32 rows) {
    u32 low = selector(source & 0x07070707u);
    u32 middle = selector((source >> 3) & 0x07070707u);
    u32 high = selector((source >> 6) & 0x03030303u);
    UNROLL
    for (u32 r = 0; r < rows; r++) {
        const u32 *t = table + r * GF_WORDS;
        sums[4 * r] ^= __byte_perm(t[0], t[1], low) ^ __byte_perm(t[2], t[3], middle) ^ __byte_perm(t[4], 0, high);
    }
}

// One thread: sixteen bytes of `rows` targets, from the same sixteen bytes of all sources. `rows` is a constant
// wherever this is called, so that the sums stay in registers.
DEVICE void gf_multiply_rows(const struct gf_multiply *a, u32 (*tables)[GF_ROWS * GF_WORDS], u32 rows) {
    u32 first_row = blockIdx.y * GF_ROWS;
    u64 number = thread_number();
    u64 stripe = number / a->pieces, piece = number % a->pieces;
    bool busy = stripe < a->stripes;
    const u8 *source = a->sources + stripe * a->source_stripe + piece * 16;
    u32 sums[4 * GF_ROWS];
    UNROLL
    for (u32 i = 0; i < 4 * rows; i++) sums[i] = 0;

    for (u32 first = 0; first < a->columns; first += GF_SLAB) {
        u32 columns = a->columns - first < GF_SLAB ? a->columns - first : GF_SLAB;
        __syncthreads(); // Nobody reads the last slab's tables any more.
        for (u32 i = threadIdx.x; i < columns * rows * GF_WORDS; i += GF_THREADS) {
            u32 word = i % GF_WORDS, row = i / GF_WORDS % rows, column = i / GF_WORDS / rows;
            u64 coefficient = (u64)(first_row + row) * a->columns + first + column;
            tables[column][row * GF_WORDS + word] = a->tables[coefficient * GF_WORDS + word];
        }
        __syncthreads();
        if (!busy) continue; // The barriers are for all threads.
        for (u32 c = 0; c < columns; c++) {
            quad x = *(const quad *)(source + (u64)(first + c) * a->source_column);
            gf_add_word(sums, x.x, tables[c], rows);
            gf_add_word(sums + 1, x.y, tables[c], rows);
            gf_add_word(sums + 2, x.z, tables[c], rows);
            gf_add_word(sums + 3, x.w, tables[c], rows);
        }
    }
    if (!busy) return;
    u8 *target = a->targets + stripe * a->target_stripe + first_row * a->target_row + piece * 16;
    UNROLL
    for (u32 r = 0; r < rows; r++) {
        quad sum = {sums[4 * r], sums[4 * r + 1], sums[4 * r + 2], sums[4 * r + 3]};
        *(quad *)(target + r * a->target_row) = sum;
    }
}

// Grid: x covers stripes * pieces threads, y covers rows in fours.
KERNEL(gf_multiply, gf_multiply, GF_THREADS) {
    SHARED ALIGN(16) u32 tables[GF_SLAB][GF_ROWS * GF_WORDS];
    switch (a.rows - blockIdx.y * GF_ROWS) {
    case 1: gf_multiply_rows(&a, tables, 1); break;
    case 2: gf_multiply_rows(&a, tables, 2); break;
    case 3: gf_multiply_rows(&a, tables, 3); break;
    default: gf_multiply_rows(&a, tables, 4); break;
    }
}

// Which fragments are not all zeros. Whether parity belongs to its data is asked by gf_multiply or xor_rows first: their
// rows give what parity should be plus what it is, which is zero where all is well. Only flags leave the device.
#include "common.h"

#define VERIFY_THREADS 256

struct mark_nonzero {
    const u64 *data;  // Fragments of `pieces` words, one after the other.
    u32 *flags;       // Entry f becomes 1 if fragment f is not all zeros; zeros before.
    u64 pieces;       // Words of eight bytes in a fragment.
    u64 count;        // Fragments.
};

// Grid: x covers count * pieces threads. Those that find something all write the same, so that no order matters.
KERNEL(mark_nonzero, mark_nonzero, VERIFY_THREADS) {
    u64 number = thread_number();
    if (number < a.count * a.pieces && a.data[number] != 0) a.flags[number / a.pieces] = 1;
}

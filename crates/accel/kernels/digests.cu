// MD5, SHA-1 and SHA-256, one thread a message: batches of buffers, every window of a buffer (HashGPU's sliding-window
// hashing), or its segments (HashGPU's direct hashing, whose digests a second launch hashes).
// Sources: RFC 1321 (MD5), FIPS 180-4 (SHA-1, SHA-256).
#include "common.h"

#define DIGEST_THREADS 128

struct digest_message {
    u64 offset, bytes;
};

struct digests {
    const u8 *data;
    const struct digest_message *messages; // Null: message i is data[i * step ..], `window` bytes or what there is.
    u8 *out;                               // Message i's digest goes to out + i * width.
    u64 step, window, total;               // Bytes; `total` is the length of the data.
    u64 count;                             // Messages.
    u32 width;                             // Bytes kept of a digest, from its first on.
    u32 unused;
};

DEVICE struct digest_message digest_message_of(const struct digests *a, u64 number) {
    if (a->messages) return a->messages[number];
    struct digest_message m = {number * a->step, a->window};
    if (m.offset + m.bytes > a->total) m.bytes = a->total - m.offset;
    return m;
}

// Blocks of 64 bytes that a message has with its padding: a one bit, zeros, its length in eight bytes.
DEVICE u64 digest_blocks(u64 bytes) { return (bytes + 8) / 64 + 1; }

// Four bytes of the padded message, but for the length; `left` bytes of the message begin at `at`.
DEVICE u32 digest_padded_word(const u8 *at, u64 left) {
    u32 word = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 byte = i < left ? at[i] : i == left ? 0x80 : 0;
        word |= byte << (8 * i);
    }
    return word;
}

// Block `number` of a padded message, in little-endian words; the length is in the last two, in the order of MD5.
DEVICE void digest_load(u32 *m, const u8 *data, struct digest_message message, u64 number) {
    u64 done = 64 * number;
    if (done + 64 <= message.bytes) {
        UNROLL
        for (u32 i = 0; i < 16; i++) m[i] = load_word(data, message.offset + done + 4 * i);
        return;
    }
    UNROLL
    for (u32 i = 0; i < 16; i++) {
        u64 at = done + 4 * i;
        // Past the message and its one bit there is nothing to read.
        m[i] = at > message.bytes ? 0 : digest_padded_word(data + message.offset + at, message.bytes - at);
    }
    if (number + 1 == digest_blocks(message.bytes)) {
        m[14] = (u32)(message.bytes << 3);
        m[15] = (u32)(message.bytes >> 29);
    }
}

DEVICE u32 swap_bytes(u32 x) { return __byte_perm(x, 0, 0x0123); }

// The same in big-endian words, as SHA has them.
DEVICE void digest_load_big(u32 *m, const u8 *data, struct digest_message message, u64 number) {
    digest_load(m, data, message, number);
    if (number + 1 == digest_blocks(message.bytes)) {
        u32 low = m[14];
        m[14] = swap_bytes(m[15]);
        m[15] = swap_bytes(low);
    }
    UNROLL
    for (u32 i = 0; i < 16; i++) m[i] = swap_bytes(m[i]);
}

// Writes the first `width` bytes of the little-endian words `state`.
DEVICE void digest_store(const struct digests *a, u64 number, const u32 *state, u32 words) {
    u8 *out = a->out + number * a->width;
    UNROLL
    for (u32 i = 0; i < words; i++) {
        if (a->width % 4 == 0) {
            if (4 * i < a->width) ((u32 *)out)[i] = state[i];
            continue;
        }
        UNROLL
        for (u32 byte = 0; byte < 4; byte++)
            if (4 * i + byte < a->width) out[4 * i + byte] = (u8)(state[i] >> (8 * byte));
    }
}

CONSTANT u32 MD5_SINES[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391};
CONSTANT u32 MD5_TURNS[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

// Grid: a thread for each message.
KERNEL(md5_batch, digests, DIGEST_THREADS) {
    u64 number = thread_number();
    if (number >= a.count) return;
    struct digest_message message = digest_message_of(&a, number);
    u32 state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
    u64 blocks = digest_blocks(message.bytes);
    for (u64 block = 0; block < blocks; block++) {
        u32 m[16], p = state[0], q = state[1], r = state[2], s = state[3];
        digest_load(m, a.data, message, block);
        UNROLL
        for (u32 i = 0; i < 64; i++) {
            u32 mixed, at;
            if (i < 16) mixed = (q & r) | (~q & s), at = i;
            else if (i < 32) mixed = (s & q) | (~s & r), at = (5 * i + 1) % 16;
            else if (i < 48) mixed = q ^ r ^ s, at = (3 * i + 5) % 16;
            else mixed = r ^ (q | ~s), at = 7 * i % 16;
            u32 next = q + rotate_left(p + mixed + MD5_SINES[i] + m[at], MD5_TURNS[i / 16 * 4 + i % 4]);
            p = s, s = r, r = q, q = next;
        }
        state[0] += p, state[1] += q, state[2] += r, state[3] += s;
    }
    digest_store(&a, number, state, 4);
}

// Grid: a thread for each message.
KERNEL(sha1_batch, digests, DIGEST_THREADS) {
    u64 number = thread_number();
    if (number >= a.count) return;
    struct digest_message message = digest_message_of(&a, number);
    u32 state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    u64 blocks = digest_blocks(message.bytes);
    for (u64 block = 0; block < blocks; block++) {
        u32 w[16], p = state[0], q = state[1], r = state[2], s = state[3], t = state[4];
        digest_load_big(w, a.data, message, block);
        UNROLL
        for (u32 i = 0; i < 80; i++) {
            if (i >= 16)
                w[i % 16] = rotate_left(w[(i + 13) % 16] ^ w[(i + 8) % 16] ^ w[(i + 2) % 16] ^ w[i % 16], 1);
            u32 mixed, constant;
            if (i < 20) mixed = (q & r) | (~q & s), constant = 0x5a827999;
            else if (i < 40) mixed = q ^ r ^ s, constant = 0x6ed9eba1;
            else if (i < 60) mixed = (q & r) | (q & s) | (r & s), constant = 0x8f1bbcdc;
            else mixed = q ^ r ^ s, constant = 0xca62c1d6;
            u32 next = rotate_left(p, 5) + mixed + t + constant + w[i % 16];
            t = s, s = r, r = rotate_left(q, 30), q = p, p = next;
        }
        state[0] += p, state[1] += q, state[2] += r, state[3] += s, state[4] += t;
    }
    UNROLL
    for (u32 i = 0; i < 5; i++) state[i] = swap_bytes(state[i]);
    digest_store(&a, number, state, 5);
}

CONSTANT u32 SHA256_ROOTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// Grid: a thread for each message.
KERNEL(sha256_batch, digests, DIGEST_THREADS) {
    u64 number = thread_number();
    if (number >= a.count) return;
    struct digest_message message = digest_message_of(&a, number);
    u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    u64 blocks = digest_blocks(message.bytes);
    for (u64 block = 0; block < blocks; block++) {
        u32 w[16], v[8];
        digest_load_big(w, a.data, message, block);
        UNROLL
        for (u32 i = 0; i < 8; i++) v[i] = state[i];
        UNROLL
        for (u32 i = 0; i < 64; i++) {
            if (i >= 16) {
                u32 x = w[(i + 1) % 16], y = w[(i + 14) % 16];
                u32 sigma0 = rotate_right(x, 7) ^ rotate_right(x, 18) ^ (x >> 3);
                u32 sigma1 = rotate_right(y, 17) ^ rotate_right(y, 19) ^ (y >> 10);
                w[i % 16] += sigma0 + w[(i + 9) % 16] + sigma1;
            }
            u32 sum1 = rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25);
            u32 chosen = (v[4] & v[5]) ^ (~v[4] & v[6]);
            u32 first = v[7] + sum1 + chosen + SHA256_ROOTS[i] + w[i % 16];
            u32 sum0 = rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22);
            u32 most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
            v[7] = v[6], v[6] = v[5], v[5] = v[4], v[4] = v[3] + first;
            v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = first + sum0 + most;
        }
        UNROLL
        for (u32 i = 0; i < 8; i++) state[i] += v[i];
    }
    UNROLL
    for (u32 i = 0; i < 8; i++) state[i] = swap_bytes(state[i]);
    digest_store(&a, number, state, 8);
}

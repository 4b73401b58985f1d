// Every kernel: X(name, struct of its argument, threads in a block, fibers). `fibers` is 1 if its threads meet
// (barriers, shuffles), so that the emulated device must interleave them.
#define KERNEL_LIST(X)                                           \
    X(gf_multiply, gf_multiply, GF_THREADS, 1)                   \
    X(blake3_leaves, blake3_leaves, BLAKE3_THREADS, 0)           \
    X(blake3_parents, blake3_parents, BLAKE3_THREADS, 1)         \
    X(boundary_candidates, boundary_candidates, BOUNDARY_THREADS, 1) \
    X(xor_rows, xor_rows, XOR_THREADS, 0)                        \
    X(md5_batch, digests, DIGEST_THREADS, 0)                     \
    X(sha1_batch, digests, DIGEST_THREADS, 0)                    \
    X(sha256_batch, digests, DIGEST_THREADS, 0) \
    X(lookup_levels, lookup_levels, LOOKUP_THREADS, 0)           \
    X(bloom_query, bloom_query, LOOKUP_THREADS, 0)               \
    X(mark_nonzero, mark_nonzero, VERIFY_THREADS, 0)

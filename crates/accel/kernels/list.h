// Every kernel: X(name, threads in a block, fibers). Its argument is the struct of its name; `fibers` is 1 if its
// threads meet (barriers, shuffles), so that the emulated device must interleave them.
#define KERNEL_LIST(X)                        \
    X(gf_multiply, GF_THREADS, 1)             \
    X(blake3_leaves, BLAKE3_THREADS, 0)       \
    X(blake3_parents, BLAKE3_THREADS, 1)      \
    X(boundary_candidates, BOUNDARY_THREADS, 1)

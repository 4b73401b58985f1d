// The emulated device: runs the kernels' own sources on the host, a block at a time, each of a block's threads as a
// fiber that yields where threads meet. It is strict where hardware is lenient: a thread that leaves before a
// barrier, a shuffle without its whole warp, an argument of the wrong size are errors. It uses one stack a fiber
// and no other memory, and is as fast as an interpreter of parallel code on one core can be: slow.
#include "../kernels.cu"
#include "../list.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 1024
#define STACK_BYTES (32 * 1024)
#define STACK_MARK 0x7e55e7a0c0ffee11ull

// What a launch can end with; src/emulated/mod.rs gives each its words.
enum { LAUNCH_OK, LAUNCH_NO_KERNEL, LAUNCH_ARGUMENT, LAUNCH_DIVERGED, LAUNCH_NO_FIBERS, LAUNCH_STACK };

struct kernel {
    const char *name;
    void (*run)(const void *argument);
    size_t argument_bytes;
    unsigned threads;
    int fibers;
};

#define WRAP(name, type, threads, fibers) \
    static void run_##name(const void *argument) { name(*(const struct type *)argument); }
KERNEL_LIST(WRAP)
#define ENTRY(name, type, threads, fibers) {#name, run_##name, sizeof(struct type), threads, fibers},
static const struct kernel KERNELS[] = {KERNEL_LIST(ENTRY)};
#define KERNEL_COUNT (sizeof(KERNELS) / sizeof(KERNELS[0]))

// Switching stacks. `from` gets what is needed to come back, `to` is such a thing.
#if defined(__x86_64__) && defined(__ELF__)
typedef void *context;
void tessera_accel_switch(context *from, context to);
__asm__(".text\n"
        ".hidden tessera_accel_switch\n"
        ".globl tessera_accel_switch\n"
        ".type tessera_accel_switch, @function\n"
        "tessera_accel_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size tessera_accel_switch, .-tessera_accel_switch\n");
static void switch_to(context *from, context *to) { tessera_accel_switch(from, *to); }
static void make_context(context *made, char *stack, void (*start)(void)) {
    // As if `start` had been interrupted at its first instruction: six registers, the address to return to, and
    // one word so that the stack is aligned as after a call.
    uint64_t *top = (uint64_t *)(stack + STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof(*top));
    top[6] = (uint64_t)(uintptr_t)start;
    *made = top;
}
#else
#include <ucontext.h>
typedef ucontext_t context;
static void switch_to(context *from, context *to) { swapcontext(from, to); }
static void make_context(context *made, char *stack, void (*start)(void)) {
    getcontext(made);
    made->uc_stack.ss_sp = stack;
    made->uc_stack.ss_size = STACK_BYTES;
    made->uc_link = NULL;
    makecontext(made, start, 0);
}
#endif

enum state { READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct fiber {
    context context;
    enum state state;
    unsigned shuffles;   // How many it has begun; their parity picks the slot.
    unsigned slots[2];   // What it gave to the last two.
};

struct emulator {
    struct fiber fibers[MAX_THREADS];
    context scheduler;
    const struct kernel *kernel;
    const void *argument;
    unsigned current;
    int failure;
    char *stacks;
};

// The emulator whose kernel runs on this operating system's thread.
static _Thread_local struct emulator *running;

static void yield_as(enum state state) {
    struct emulator *e = running;
    struct fiber *self = &e->fibers[e->current];
    self->state = state;
    switch_to(&self->context, &e->scheduler);
}

// A fiber's first and last function.
static void fiber_main(void) {
    running->kernel->run(running->argument);
    yield_as(DONE);
    abort(); // A fiber that is done is never resumed.
}

static void emulated_barrier(void) {
    if (running->kernel->fibers) yield_as(AT_BARRIER);
    else running->failure = LAUNCH_NO_FIBERS;
}

static unsigned emulated_shuffle(unsigned mask, unsigned value, unsigned lane) {
    struct emulator *e = running;
    if (!e->kernel->fibers) {
        e->failure = LAUNCH_NO_FIBERS;
        return 0;
    }
    if (mask != 0xffffffffu) e->failure = LAUNCH_DIVERGED;
    struct fiber *self = &e->fibers[e->current];
    unsigned slot = self->shuffles++ % 2, warp = e->current / 32 * 32;
    self->slots[slot] = value;
    yield_as(AT_SHUFFLE);
    return e->fibers[warp + lane % 32].slots[slot];
}

static void resume(struct emulator *e, unsigned thread) {
    e->current = thread;
    threadIdx.x = thread;
    switch_to(&e->scheduler, &e->fibers[thread].context);
}

// Lets fibers go on that wait where all they wait for have arrived. 0 if none could, because some never will.
static int release(struct emulator *e, unsigned threads) {
    unsigned at_barrier = 0, released = 0;
    for (unsigned i = 0; i < threads; i++) at_barrier += e->fibers[i].state == AT_BARRIER;
    if (at_barrier == threads) {
        for (unsigned i = 0; i < threads; i++) e->fibers[i].state = READY;
        return 1;
    }
    for (unsigned warp = 0; warp + 32 <= threads; warp += 32) {
        unsigned waiting = 0;
        for (unsigned i = warp; i < warp + 32; i++) waiting += e->fibers[i].state == AT_SHUFFLE;
        if (waiting != 32) continue;
        for (unsigned i = warp; i < warp + 32; i++) e->fibers[i].state = READY;
        released++;
    }
    return released > 0;
}

// Runs one block's threads to their ends; `backwards` decides who goes first, so that a race shows.
static void run_fibers(struct emulator *e, unsigned threads, int backwards) {
    for (unsigned i = 0; i < threads; i++) {
        char *stack = e->stacks + (size_t)i * STACK_BYTES;
        *(uint64_t *)stack = STACK_MARK;
        make_context(&e->fibers[i].context, stack, fiber_main);
        e->fibers[i].state = READY;
        e->fibers[i].shuffles = 0;
    }
    for (;;) {
        unsigned done = 0;
        for (unsigned n = 0; n < threads; n++) {
            unsigned i = backwards ? threads - 1 - n : n;
            if (e->fibers[i].state == READY) resume(e, i);
            done += e->fibers[i].state == DONE;
        }
        if (done == threads || e->failure) break;
        if (!release(e, threads)) e->failure = LAUNCH_DIVERGED;
    }
    for (unsigned i = 0; i < threads; i++)
        if (*(uint64_t *)(e->stacks + (size_t)i * STACK_BYTES) != STACK_MARK) e->failure = LAUNCH_STACK;
}

static void run_block(struct emulator *e, unsigned threads, int backwards) {
    if (e->kernel->fibers) {
        run_fibers(e, threads, backwards);
        return;
    }
    for (unsigned n = 0; n < threads && !e->failure; n++) {
        threadIdx.x = backwards ? threads - 1 - n : n;
        e->kernel->run(e->argument);
    }
}

// The number of the kernel called `name`, or -1.
int tessera_accel_kernel(const char *name) {
    for (size_t i = 0; i < KERNEL_COUNT; i++)
        if (strcmp(KERNELS[i].name, name) == 0) return (int)i;
    return -1;
}

// Threads in a block of a kernel; 0 if there is no such kernel.
unsigned tessera_accel_threads(int kernel) {
    return kernel >= 0 && (size_t)kernel < KERNEL_COUNT ? KERNELS[kernel].threads : 0;
}

// An emulator, or null without memory. It is used by one operating system's thread at a time.
struct emulator *tessera_accel_emulator(void) {
    struct emulator *e = calloc(1, sizeof(*e));
    if (e == NULL) return NULL;
    e->stacks = aligned_alloc(64, (size_t)MAX_THREADS * STACK_BYTES);
    if (e->stacks == NULL) {
        free(e);
        return NULL;
    }
    return e;
}

void tessera_accel_emulator_free(struct emulator *e) {
    if (e == NULL) return;
    free(e->stacks);
    free(e);
}

// Runs a kernel to its end and returns LAUNCH_...
int tessera_accel_launch(struct emulator *e, int kernel, unsigned grid_x, unsigned grid_y, const void *argument,
                         size_t argument_bytes) {
    if (kernel < 0 || (size_t)kernel >= KERNEL_COUNT) return LAUNCH_NO_KERNEL;
    e->kernel = &KERNELS[kernel];
    if (argument_bytes != e->kernel->argument_bytes) return LAUNCH_ARGUMENT;
    e->argument = argument;
    e->failure = LAUNCH_OK;
    running = e;
    gridDim = (struct emulated_index){grid_x, grid_y, 1};
    blockDim = (struct emulated_index){e->kernel->threads, 1, 1};
    threadIdx = (struct emulated_index){0, 0, 0};
    for (unsigned y = 0; y < grid_y; y++) {
        for (unsigned x = 0; x < grid_x && !e->failure; x++) {
            blockIdx = (struct emulated_index){x, y, 0};
            run_block(e, e->kernel->threads, (int)((x + y) % 2));
        }
    }
    running = NULL;
    return e->failure;
}

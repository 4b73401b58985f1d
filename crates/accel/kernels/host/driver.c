// A stand-in for libcuda.so.1 with two devices, which runs kernels on the emulator. With it the host side of CUDA
// (src/cuda.rs: contexts, streams, memory, arguments) is executed where there is no GPU. It takes only what a real
// driver would: calls need a current context, handles and addresses must be its own, each is freed once.
//
// Streams do what is queued when they are asked or waited for, so whoever reads too early reads the past.
// Function signatures: the CUDA driver API's reference manual.
#include "emulate.c"
#include <stdio.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719 };
#define DEVICES 2
#define MEMORY_BYTES (64u << 20) // Little, so that running out of it is tested too.
#define MOST 4096

struct context { int device, retained; };
struct step { int kind; void *to; const void *from; size_t bytes; int kernel; unsigned grid[2]; u64 argument[32]; };
struct stream { struct emulator *emulator; struct step steps[64]; int count, asked; };

static struct context contexts[DEVICES];
static _Thread_local struct context *current;
static int initialized;
static char lock;
// Every allocation: address, bytes; on the device or page-locked.
static struct { void *at; size_t bytes; int pinned; } blocks[MOST];
static size_t device_bytes;

static void take_lock(void) { while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {} }
static void drop_lock(void) { __atomic_clear(&lock, __ATOMIC_RELEASE); }

static int allocate(void **at, size_t bytes, int pinned) {
    if (current == NULL) return INVALID_CONTEXT;
    take_lock();
    int result = OUT_OF_MEMORY;
    for (int i = 0; i < MOST && (pinned || device_bytes + bytes <= MEMORY_BYTES); i++) {
        if (blocks[i].at != NULL) continue;
        *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        memset(*at, 0xa5, bytes);
        blocks[i].at = *at, blocks[i].bytes = bytes, blocks[i].pinned = pinned;
        device_bytes += pinned ? 0 : bytes;
        result = SUCCESS;
        break;
    }
    drop_lock();
    return result;
}

static int release_block(void *at, int pinned) {
    if (current == NULL) return INVALID_CONTEXT;
    int result = INVALID_VALUE;
    take_lock();
    for (int i = 0; i < MOST; i++) {
        if (blocks[i].at != at || blocks[i].pinned != pinned) continue;
        device_bytes -= pinned ? 0 : blocks[i].bytes;
        free(at);
        blocks[i].at = NULL;
        result = SUCCESS;
    }
    drop_lock();
    return result;
}

// Whether [at, at + bytes) lies in one block of device memory.
static int on_device(const void *at, size_t bytes) {
    int found = 0;
    take_lock();
    for (int i = 0; i < MOST; i++) {
        const char *start = blocks[i].at;
        found |= start != NULL && !blocks[i].pinned && (const char *)at >= start &&
                 (const char *)at + bytes <= start + blocks[i].bytes;
    }
    drop_lock();
    return found;
}

int cuInit(unsigned flags) { return initialized = 1, (int)flags; }
int cuDeviceGetCount(int *count) { return *count = DEVICES, initialized ? SUCCESS : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal < DEVICES ? SUCCESS : INVALID_VALUE; }
int cuDeviceGetName(char *name, int bytes, int device) {
    return snprintf(name, (size_t)bytes, "Stand-in %d", device) < 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return *bytes = MEMORY_BYTES, device < DEVICES ? SUCCESS : INVALID_VALUE; }
int cuDevicePrimaryCtxRetain(struct context **context, int device) {
    contexts[device].device = device;
    __atomic_add_fetch(&contexts[device].retained, 1, __ATOMIC_SEQ_CST);
    return *context = &contexts[device], SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    return __atomic_fetch_sub(&contexts[device].retained, 1, __ATOMIC_SEQ_CST) > 0 ? SUCCESS : INVALID_CONTEXT;
}
int cuCtxSetCurrent(struct context *context) {
    return current = context, context == NULL || context->retained > 0 ? SUCCESS : INVALID_CONTEXT;
}

int cuModuleLoadData(void **module, const char *image) {
    if (current == NULL) return INVALID_CONTEXT;
    return *module = &contexts, strstr(image, ".target sm_75") != NULL ? SUCCESS : INVALID_VALUE;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    int number = tessera_accel_kernel(name);
    *function = (void *)&KERNELS[number < 0 ? 0 : number];
    return module == &contexts && number >= 0 ? SUCCESS : NOT_FOUND;
}

int cuStreamCreate(struct stream **stream, unsigned flags) {
    if (current == NULL) return INVALID_CONTEXT;
    *stream = calloc(1, sizeof(**stream));
    (*stream)->emulator = tessera_accel_emulator();
    return flags == 1 ? SUCCESS : INVALID_VALUE; // Non-blocking is what is asked for.
}

static int carry_out(struct stream *stream) {
    int failure = SUCCESS;
    for (int i = 0; i < stream->count && failure == SUCCESS; i++) {
        struct step *s = &stream->steps[i];
        if (s->kind == 0) memcpy(s->to, s->from, s->bytes);
        if (s->kind == 1) memset(s->to, 0, s->bytes);
        if (s->kind == 2 && tessera_accel_launch(stream->emulator, s->kernel, s->grid[0], s->grid[1], s->argument,
                                                 KERNELS[s->kernel].argument_bytes) != LAUNCH_OK)
            failure = LAUNCH_FAILED;
    }
    stream->count = 0;
    return failure;
}

int cuStreamSynchronize(struct stream *stream) { return carry_out(stream); }
int cuStreamQuery(struct stream *stream) {
    if (stream->count > 0 && stream->asked++ % 2 == 0) return NOT_READY;
    return carry_out(stream);
}
int cuStreamDestroy_v2(struct stream *stream) {
    tessera_accel_emulator_free(stream->emulator);
    free(stream);
    return SUCCESS;
}
int cuEventCreate(void **event, unsigned flags) { return *event = &contexts, flags == 2 ? SUCCESS : INVALID_VALUE; }
int cuEventRecord(void *event, struct stream *stream) { return event == &contexts ? carry_out(stream) : INVALID_HANDLE; }
int cuStreamWaitEvent(struct stream *stream, void *event, unsigned flags) {
    return stream != NULL && event == &contexts && flags == 0 ? SUCCESS : INVALID_HANDLE;
}
int cuEventDestroy_v2(void *event) { return event == &contexts ? SUCCESS : INVALID_HANDLE; }

int cuMemAlloc_v2(u64 *at, size_t bytes) { return allocate((void **)at, bytes, 0); }
int cuMemFree_v2(u64 at) { return release_block((void *)at, 0); }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { return flags == 1 ? allocate(at, bytes, 1) : INVALID_VALUE; }
int cuMemFreeHost(void *at) { return release_block(at, 1); }

static struct step *queue(struct stream *stream, int kind) {
    struct step *step = &stream->steps[stream->count];
    if (current == NULL || stream->count == 64) return NULL;
    stream->count++;
    step->kind = kind;
    return step;
}

int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, 0);
    if (s == NULL || !on_device((void *)to, bytes)) return INVALID_VALUE;
    return s->to = (void *)to, s->from = from, s->bytes = bytes, SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, 0);
    if (s == NULL || !on_device((void *)from, bytes)) return INVALID_VALUE;
    return s->to = to, s->from = (void *)from, s->bytes = bytes, SUCCESS;
}
int cuMemsetD8Async(u64 at, unsigned char value, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, 1);
    if (s == NULL || value != 0 || !on_device((void *)at, bytes)) return INVALID_VALUE;
    return s->to = (void *)at, s->bytes = bytes, SUCCESS;
}
int cuLaunchKernel(const struct kernel *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, struct stream *stream, void **parameters,
                   void **extra) {
    struct step *s = queue(stream, 2);
    int sound = s != NULL && function >= KERNELS && function < KERNELS + KERNEL_COUNT && grid_x > 0 && grid_y > 0 &&
                grid_y <= 65535 && grid_z == 1 && block_x == function->threads && block_y == 1 && block_z == 1 &&
                shared == 0 && extra == NULL && function->argument_bytes <= sizeof(s->argument);
    if (!sound) return INVALID_VALUE;
    s->kernel = (int)(function - KERNELS);
    s->grid[0] = grid_x, s->grid[1] = grid_y;
    memcpy(s->argument, parameters[0], function->argument_bytes);
    return SUCCESS;
}

int cuGetErrorName(int error, const char **name) { return *name = "STAND_IN", error < 0; }
int cuGetErrorString(int error, const char **text) {
    static _Thread_local char words[32];
    return snprintf(words, sizeof(words), "error %d", error), *text = words, SUCCESS;
}

// For the test: what is still allocated, and contexts still retained.
int tessera_stand_in_live(void) {
    int live = 0;
    for (int i = 0; i < MOST; i++) live += blocks[i].at != NULL;
    for (int i = 0; i < DEVICES; i++) live += contexts[i].retained;
    return live;
}

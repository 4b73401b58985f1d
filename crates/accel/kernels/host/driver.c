// A stand-in for libcuda.so.1 with two devices, which runs kernels on the emulator. With it the host side of CUDA
// (src/cuda.rs: contexts, streams, memory, arguments) is executed where there is no GPU. It takes only what a real
// driver would: calls need a current context, handles and addresses must be its own, each is freed once.
//
// Streams do what is queued when they are asked or waited for, so whoever reads too early reads the past. An event is a
// point in a stream: who waits for it has that stream do what was queued up to there, and no more.
// Built with -DFAILS_AFTER=N it is a broken one: every kernel after the Nth ends with an error.
// Function signatures: the CUDA driver API's reference manual.
#include "emulate.c"
#include <stdio.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719 };
enum { COPY, ZERO, LAUNCH, WAIT };
#define DEVICES 2
#define MEMORY_BYTES (16u << 20) // Little, so that running out of it is tested too.
#define MOST 4096

struct context { int device, retained; };
struct step { int kind; void *to; const void *from; size_t bytes; int kernel; unsigned grid[2]; u64 argument[32]; };
// Step i of a stream is steps[i % STEPS]; those from `done` up to `queued` wait. (Its emulator is null once destroyed:
// events still name it, so that streams themselves are never freed.)
#define STEPS 64
struct stream { struct emulator *emulator; struct step steps[STEPS]; u64 done, queued; int asked; };
struct event { struct stream *stream; u64 point; int live; };

static struct context contexts[DEVICES];
static _Thread_local struct context *current;
static int initialized;
static char lock;
// Every allocation: address, bytes; on the device or page-locked.
static struct { void *at; size_t bytes; int pinned; } blocks[MOST];
static size_t device_bytes;
static struct event events[MOST];
static int live_streams;
#ifdef FAILS_AFTER
static int launches;
#endif

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
    __atomic_add_fetch(&live_streams, 1, __ATOMIC_SEQ_CST);
    return flags == 1 ? SUCCESS : INVALID_VALUE; // Non-blocking is what is asked for.
}

static int carry_out(struct stream *stream, u64 point) {
    int failure = SUCCESS;
    for (; stream->done < point && failure == SUCCESS; stream->done++) {
        struct step *s = &stream->steps[stream->done % STEPS];
        if (s->kind == COPY) memcpy(s->to, s->from, s->bytes);
        if (s->kind == ZERO) memset(s->to, 0, s->bytes);
        if (s->kind == LAUNCH && tessera_accel_launch(stream->emulator, s->kernel, s->grid[0], s->grid[1], s->argument,
                                                      KERNELS[s->kernel].argument_bytes) != LAUNCH_OK)
            failure = LAUNCH_FAILED;
        if (s->kind == WAIT) failure = carry_out(s->to, s->bytes);
    }
    return failure;
}

int cuStreamSynchronize(struct stream *stream) { return carry_out(stream, stream->queued); }
int cuStreamQuery(struct stream *stream) {
    if (stream->done < stream->queued && stream->asked++ % 2 == 0) return NOT_READY;
    return carry_out(stream, stream->queued);
}
int cuStreamDestroy_v2(struct stream *stream) {
    if (stream->emulator == NULL) return INVALID_HANDLE;
    int result = carry_out(stream, stream->queued);
    tessera_accel_emulator_free(stream->emulator);
    stream->emulator = NULL;
    __atomic_sub_fetch(&live_streams, 1, __ATOMIC_SEQ_CST);
    return result;
}

static struct step *queue(struct stream *stream, int kind) {
    if (current == NULL || stream == NULL || stream->emulator == NULL || stream->queued - stream->done == STEPS)
        return NULL;
    struct step *step = &stream->steps[stream->queued++ % STEPS];
    step->kind = kind;
    return step;
}

static int is_event(const struct event *event) { return event >= events && event < events + MOST && event->live; }

int cuEventCreate(struct event **event, unsigned flags) {
    if (current == NULL) return INVALID_CONTEXT;
    if (flags != 2) return INVALID_VALUE; // Without timing is what is asked for.
    int result = OUT_OF_MEMORY;
    take_lock();
    for (int i = 0; i < MOST && result != SUCCESS; i++) {
        if (events[i].live) continue;
        events[i] = (struct event){.live = 1};
        *event = &events[i];
        result = SUCCESS;
    }
    drop_lock();
    return result;
}
int cuEventRecord(struct event *event, struct stream *stream) {
    if (!is_event(event) || stream == NULL || stream->emulator == NULL) return INVALID_HANDLE;
    return event->stream = stream, event->point = stream->queued, SUCCESS;
}
int cuStreamWaitEvent(struct stream *stream, const struct event *event, unsigned flags) {
    if (!is_event(event) || flags != 0) return INVALID_HANDLE;
    if (event->stream == NULL || event->stream == stream) return SUCCESS; // Never recorded, or in order anyway.
    struct step *s = queue(stream, WAIT);
    return s == NULL ? INVALID_HANDLE : (s->to = event->stream, s->bytes = event->point, SUCCESS);
}
int cuEventDestroy_v2(struct event *event) {
    return is_event(event) ? (event->live = 0, SUCCESS) : INVALID_HANDLE;
}

int cuMemAlloc_v2(u64 *at, size_t bytes) { return allocate((void **)at, bytes, 0); }
int cuMemFree_v2(u64 at) { return release_block((void *)at, 0); }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { return flags == 1 ? allocate(at, bytes, 1) : INVALID_VALUE; }
int cuMemFreeHost(void *at) { return release_block(at, 1); }

int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, COPY);
    if (s == NULL || !on_device((void *)to, bytes)) return INVALID_VALUE;
    return s->to = (void *)to, s->from = from, s->bytes = bytes, SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, COPY);
    if (s == NULL || !on_device((void *)from, bytes)) return INVALID_VALUE;
    return s->to = to, s->from = (void *)from, s->bytes = bytes, SUCCESS;
}
int cuMemsetD8Async(u64 at, unsigned char value, size_t bytes, struct stream *stream) {
    struct step *s = queue(stream, ZERO);
    if (s == NULL || value != 0 || !on_device((void *)at, bytes)) return INVALID_VALUE;
    return s->to = (void *)at, s->bytes = bytes, SUCCESS;
}
int cuLaunchKernel(const struct kernel *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, struct stream *stream, void **parameters,
                   void **extra) {
#ifdef FAILS_AFTER
    if (__atomic_add_fetch(&launches, 1, __ATOMIC_SEQ_CST) > FAILS_AFTER) return LAUNCH_FAILED;
#endif
    struct step *s = queue(stream, LAUNCH);
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

// For the test: what is still allocated, streams and events that were not destroyed, contexts still retained.
int tessera_stand_in_live(void) {
    int live = live_streams;
    for (int i = 0; i < MOST; i++) live += (blocks[i].at != NULL) + events[i].live;
    for (int i = 0; i < DEVICES; i++) live += contexts[i].retained;
    return live;
}

// Stands in for the CUDA driver where there is none: has the calls that convgen makes, records what it is
// given, and does nothing.  Prototypes follow cuda.h.  Addresses and streams say where they are: the upper half
// is the number of the GPU.  As with the driver, a thread has no context until it makes one current, and calls
// fail in another context than that of what they are given.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500 };

typedef struct { int id, pad, value, rest[15]; } Attribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
} Config;
typedef struct {
  Config config;
  Attribute attribute;
  const char* entry;
  void** params;
  void* context;
  int position;  // among launches and fills
} Launch;
typedef struct {
  int im2col, dtype, rank, interleave, swizzle, l2_promotion, fill;
  void* address;
  uint64_t dims[5], strides[4];
  uint32_t element_strides[5], box[5], channels, pixels;
  int lower[3], upper[3];
} Map;
typedef struct { uint64_t address, bytes; void* stream; int value, position; } Fill;
typedef struct { char name[64]; void* context; } Function;
typedef struct { void (*destroy)(void*); void* argument; uint64_t graph; } UserObject;

// what a test sets
int fake_clusters = 66, fake_spread_clusters = 66, fake_occupancy_status = SUCCESS, fake_devices = 1, fake_major = 9, fake_minor = 0, fake_init_status = SUCCESS, fake_launch_status = SUCCESS;
int fake_capturing;  // the stream that is being captured
int fake_capture_number;
void (*fake_on_launch)(void);
char fake_name[64] = "NVIDIA H200";
// what a test reads
enum { KEPT = 4096 };
Launch fake_launches[KEPT];
Fill fake_fills[KEPT];
Map fake_map, fake_maps[KEPT];
int fake_launch_count, fake_fill_count, fake_map_count, fake_module_count, fake_wait_count, fake_capture_mode;
int fake_shared_limit, fake_context_depth;
static int positions;
static Function functions[64];
static int function_count;
static UserObject objects[64];
static int object_count;
static _Thread_local void* contexts[8];
static _Thread_local int depth;

static void* primary(int device) { return (void*)(uintptr_t)(0x100 + device); }

// GPU 0 is the current one of the thread that comes first, as after any call of the CUDA runtime
int cuInit(unsigned flags) { return contexts[0] = primary(0), fake_init_status; }
int cuDeviceGetCount(int* count) { return *count = fake_devices, SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 16: *value = 132; break;
    case 75: *value = fake_major; break;
    case 76: *value = fake_minor; break;
    default: return INVALID_VALUE;
  }
  return SUCCESS;
}
int cuDeviceGetName(char* name, int size, int device) { return strncpy(name, fake_name, size), SUCCESS; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = primary(device), SUCCESS; }
int cuCtxGetDevice(int* device) {
  return *device = (int)((uintptr_t)contexts[depth] - 0x100), contexts[depth] ? SUCCESS : INVALID_CONTEXT;
}
int cuStreamGetCtx(uint64_t stream, void** context) { return *context = primary(stream >> 32), SUCCESS; }
int cuCtxGetCurrent(void** context) { return *context = contexts[depth], SUCCESS; }
int cuCtxSetCurrent(void* context) { return contexts[depth] = context, SUCCESS; }
int cuCtxPushCurrent_v2(void* context) { return contexts[++depth] = context, fake_context_depth = depth, SUCCESS; }
int cuCtxPopCurrent_v2(void** context) { return *context = contexts[depth--], fake_context_depth = depth, SUCCESS; }
int cuModuleLoadData(void** module, const void* image) {
  if (!contexts[depth]) return INVALID_CONTEXT;
  if (memcmp(image, "\177ELF", 4)) return INVALID_VALUE;
  return *module = (void*)(uintptr_t)++fake_module_count, SUCCESS;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (!strncmp(name, "missing", 7)) return NOT_FOUND;
  Function* made = &functions[function_count++ % 64];
  made->context = contexts[depth];
  return *function = strncpy(made->name, name, 63), SUCCESS;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return attribute == 8 ? fake_shared_limit = value, SUCCESS : INVALID_VALUE;
}
int cuOccupancyMaxActiveClusters(int* clusters, void* function, const Config* config) {
  return *clusters = config->shared_bytes == 116736 ? fake_spread_clusters : fake_clusters, contexts[depth] ? fake_occupancy_status : INVALID_CONTEXT;
}
static int next(int* count) { return __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST); }
int cuLaunchKernelEx(const Config* config, void* function, void** params, void** extra) {
  if (fake_launch_status) return fake_launch_status;
  if (!contexts[depth]) return INVALID_CONTEXT;
  if (contexts[depth] != ((Function*)function)->context) return INVALID_HANDLE;
  Launch* launch = &fake_launches[next(&fake_launch_count) % KEPT];
  launch->position = next(&positions);
  launch->config = *config;
  if (config->attribute_count) launch->attribute = config->attributes[0];
  launch->entry = function;
  launch->params = params;
  launch->context = contexts[depth];
  if (fake_on_launch) fake_on_launch();
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* stream) {
  if (!contexts[depth]) return INVALID_CONTEXT;
  fake_fills[next(&fake_fill_count) % KEPT] = (Fill){address, bytes, stream, value, next(&positions)};
  return SUCCESS;
}

// what programs of their own need (runtime.host): memory, streams, and giving all of it back
int fake_held;  // allocations, streams and contexts that have not been given back
int cuDeviceGet(int* device, int number) { return *device = number, fake_held++, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return fake_held--, SUCCESS; }
int cuModuleUnload(void* module) { return SUCCESS; }
int cuStreamCreate(void** stream, unsigned flags) { return *stream = (void*)0x5EED, fake_held++, SUCCESS; }
int cuStreamDestroy_v2(void* stream) { return fake_held--, SUCCESS; }
int cuStreamSynchronize(void* stream) { return SUCCESS; }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  return *address = (uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256), fake_held++, SUCCESS;
}
int cuMemFree_v2(uint64_t address) { return free((void*)(uintptr_t)address), fake_held--, SUCCESS; }
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) { return memcpy((void*)(uintptr_t)to, from, bytes), SUCCESS; }
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) { return memcpy(to, (void*)(uintptr_t)from, bytes), SUCCESS; }

// graphs: a capture's graph has the capture's number; a test destroys it
int cuStreamIsCapturing(uint64_t stream, int* status) { return *status = stream && stream == (unsigned)fake_capturing, SUCCESS; }
int cuStreamGetCaptureInfo_v2(uint64_t stream, int* status, uint64_t* number, void** graph, void* nodes, void* count) {
  *number = fake_capture_number, *graph = (void*)*number;
  return cuStreamIsCapturing(stream, status);
}
int cuUserObjectCreate(UserObject** object, void* argument, void (*destroy)(void*), unsigned references, unsigned flags) {
  *object = &objects[object_count++ % 64];
  return **object = (UserObject){destroy, argument, 0}, references == 1 && flags == 1 ? SUCCESS : INVALID_VALUE;
}
int cuGraphRetainUserObject(uint64_t graph, UserObject* object, unsigned count, unsigned flags) {
  return object->graph = graph, count == 1 && flags == 1 ? SUCCESS : INVALID_VALUE;
}
void fake_destroy_graph(uint64_t graph) {
  for (int i = 0; i < object_count; i++)
    if (objects[i].graph == graph) objects[i].destroy(objects[i].argument), objects[i].graph = 0;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  int old = fake_capture_mode;
  return fake_capture_mode = *mode, *mode = old, SUCCESS;
}
int cuPointerGetAttribute(int* value, int attribute, uint64_t address) {
  if (attribute != 9 || address >> 32 >= (unsigned)fake_devices) return INVALID_VALUE;
  return *value = address >> 32, SUCCESS;
}
int cuEventCreate(void** event, unsigned flags) { return *event = (void*)0x9, contexts[depth] ? SUCCESS : INVALID_CONTEXT; }
int cuEventRecord(void* event, void* stream) { return SUCCESS; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return fake_wait_count++, SUCCESS; }
int cuEventDestroy_v2(void* event) { return SUCCESS; }
int cuGetErrorName(int status, const char** name) { return *name = "CUDA_ERROR_FAKE", SUCCESS; }
int cuGetErrorString(int status, const char** text) { return *text = "as the test asked", SUCCESS; }

static int encode(void* map, int im2col, int dtype, int rank, void* address, const uint64_t* dims, const uint64_t* strides,
                  const uint32_t* element_strides, int interleave, int swizzle, int l2_promotion, int fill) {
  if (!contexts[depth]) return INVALID_CONTEXT;
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return INVALID_VALUE;
  fake_map = (Map){im2col, dtype, rank, interleave, swizzle, l2_promotion, fill, address};
  memcpy(fake_map.dims, dims, rank * sizeof *dims);
  memcpy(fake_map.strides, strides, (rank - 1) * sizeof *strides);
  memcpy(fake_map.element_strides, element_strides, rank * sizeof *element_strides);
  memset(map, im2col, 128);
  memcpy(map, &address, sizeof address);
  return SUCCESS;
}
int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle,
                           int l2_promotion, int fill) {
  int status = encode(map, 0, dtype, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, fill);
  if (status) return status;
  memcpy(fake_map.box, box, rank * sizeof *box);
  return fake_maps[fake_map_count++ % KEPT] = fake_map, SUCCESS;
}
int cuTensorMapEncodeIm2col(void* map, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                            const int* lower, const int* upper, uint32_t channels, uint32_t pixels,
                            const uint32_t* element_strides, int interleave, int swizzle, int l2_promotion, int fill) {
  int status = encode(map, 1, dtype, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, fill);
  if (status) return status;
  memcpy(fake_map.lower, lower, (rank - 2) * sizeof *lower);
  memcpy(fake_map.upper, upper, (rank - 2) * sizeof *upper);
  fake_map.channels = channels, fake_map.pixels = pixels;
  return fake_maps[fake_map_count++ % KEPT] = fake_map, SUCCESS;
}

// NVML: GPU i has the capability fake_major + i * fake_major_step, fake_minor
int fake_major_step, fake_instances;
int nvmlInit_v2(void) { return fake_init_status; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = fake_devices, SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { return *device = (void*)(uintptr_t)index, SUCCESS; }
int nvmlDeviceGetName(void* device, char* name, unsigned size) { return strncpy(name, fake_name, size), SUCCESS; }
int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* next) { return *now = *next = fake_instances, SUCCESS; }
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  return *major = fake_major + (int)(uintptr_t)device * fake_major_step, *minor = fake_minor, SUCCESS;
}

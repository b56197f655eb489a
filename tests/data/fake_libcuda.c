// Stands in for the CUDA driver where there is none: has the calls that convgen makes, records what it is
// given, and does nothing.  Prototypes follow cuda.h.  Addresses say where they are: the upper half is the
// number of the GPU.
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_CONTEXT = 201, NOT_FOUND = 500 };

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
} Launch;
typedef struct {
  int im2col, dtype, rank, interleave, swizzle, l2_promotion, fill;
  void* address;
  uint64_t dims[5], strides[4];
  uint32_t element_strides[5], box[5], channels, pixels;
  int lower[3], upper[3];
} Map;
typedef struct { uint64_t address, bytes; void* stream; int value; } Fill;

// what a test sets
int fake_clusters = 66, fake_occupancy_status = SUCCESS, fake_devices = 1, fake_major = 9, fake_minor = 0, fake_init_status = SUCCESS, fake_launch_status = SUCCESS;
char fake_name[64] = "NVIDIA H200";
// what a test reads
enum { KEPT = 4096 };
Launch fake_launches[KEPT];
Fill fake_fills[KEPT];
Map fake_map;
int fake_launch_count, fake_fill_count, fake_map_count, fake_module_count, fake_wait_count, fake_capture_mode;
int fake_shared_limit, fake_context_depth;
static char entries[64][64];
static int entry_count;
static _Thread_local void* contexts[8] = {(void*)0x100};
static _Thread_local int depth;

int cuInit(unsigned flags) { return fake_init_status; }
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
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(uintptr_t)(0x100 + device), SUCCESS; }
int cuCtxGetCurrent(void** context) { return *context = contexts[depth], SUCCESS; }
int cuCtxSetCurrent(void* context) { return contexts[depth] = context, SUCCESS; }
int cuCtxPushCurrent_v2(void* context) { return contexts[++depth] = context, fake_context_depth = depth, SUCCESS; }
int cuCtxPopCurrent_v2(void** context) { return *context = contexts[depth--], fake_context_depth = depth, SUCCESS; }
int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "\177ELF", 4)) return INVALID_VALUE;
  return *module = (void*)(uintptr_t)++fake_module_count, SUCCESS;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (!strncmp(name, "missing", 7)) return NOT_FOUND;
  return *function = strncpy(entries[entry_count++ % 64], name, 63), SUCCESS;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return attribute == 8 ? fake_shared_limit = value, SUCCESS : INVALID_VALUE;
}
int cuOccupancyMaxActiveClusters(int* clusters, void* function, const Config* config) {
  return *clusters = fake_clusters, contexts[depth] ? fake_occupancy_status : INVALID_CONTEXT;
}
int cuLaunchKernelEx(const Config* config, void* function, void** params, void** extra) {
  if (fake_launch_status) return fake_launch_status;
  if (!contexts[depth]) return INVALID_CONTEXT;
  Launch* launch = &fake_launches[__atomic_fetch_add(&fake_launch_count, 1, __ATOMIC_RELAXED) % KEPT];
  launch->config = *config;
  if (config->attribute_count) launch->attribute = config->attributes[0];
  launch->entry = function;
  launch->params = params;
  launch->context = contexts[depth];
  return SUCCESS;
}
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* stream) {
  fake_fills[fake_fill_count++ % KEPT] = (Fill){address, bytes, stream, value};
  return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  int old = fake_capture_mode;
  return fake_capture_mode = *mode, *mode = old, SUCCESS;
}
int cuPointerGetAttribute(int* value, int attribute, uint64_t address) {
  if (attribute != 9 || address >> 32 >= (unsigned)fake_devices) return INVALID_VALUE;
  return *value = address >> 32, SUCCESS;
}
int cuEventCreate(void** event, unsigned flags) { return *event = (void*)0x9, SUCCESS; }
int cuEventRecord(void* event, void* stream) { return SUCCESS; }
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) { return fake_wait_count++, SUCCESS; }
int cuEventDestroy_v2(void* event) { return SUCCESS; }
int cuGetErrorName(int status, const char** name) { return *name = "CUDA_ERROR_FAKE", SUCCESS; }
int cuGetErrorString(int status, const char** text) { return *text = "as the test asked", SUCCESS; }

static int encode(void* map, int im2col, int dtype, int rank, void* address, const uint64_t* dims, const uint64_t* strides,
                  const uint32_t* element_strides, int interleave, int swizzle, int l2_promotion, int fill) {
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return INVALID_VALUE;
  fake_map = (Map){im2col, dtype, rank, interleave, swizzle, l2_promotion, fill, address};
  memcpy(fake_map.dims, dims, rank * sizeof *dims);
  memcpy(fake_map.strides, strides, (rank - 1) * sizeof *strides);
  memcpy(fake_map.element_strides, element_strides, rank * sizeof *element_strides);
  memset(map, im2col, 128);
  memcpy(map, &address, sizeof address);
  fake_map_count++;
  return SUCCESS;
}
int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                           const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle,
                           int l2_promotion, int fill) {
  int status = encode(map, 0, dtype, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, fill);
  if (!status) memcpy(fake_map.box, box, rank * sizeof *box);
  return status;
}
int cuTensorMapEncodeIm2col(void* map, int dtype, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,
                            const int* lower, const int* upper, uint32_t channels, uint32_t pixels,
                            const uint32_t* element_strides, int interleave, int swizzle, int l2_promotion, int fill) {
  int status = encode(map, 1, dtype, rank, address, dims, strides, element_strides, interleave, swizzle, l2_promotion, fill);
  if (status) return status;
  memcpy(fake_map.lower, lower, (rank - 2) * sizeof *lower);
  memcpy(fake_map.upper, upper, (rank - 2) * sizeof *upper);
  fake_map.channels = channels, fake_map.pixels = pixels;
  return SUCCESS;
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

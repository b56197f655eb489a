// Small kernels for the tests of the runtime.  TMA needs sm_90.
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

// y = 2 x + b, b by column; `delay` is in clocks
extern "C" __global__ void convgen_scale(const float* x, const float* b, float* y, int columns, int size, int delay) {
  for (long long start = clock64(); clock64() - start < delay;) {}
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x)
    y[i] = 2 * x[i] + b[i % columns];
}

// y += 1 everywhere
extern "C" __global__ void convgen_add(float* y, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) y[i] += 1;
}

// copies bytes
extern "C" __global__ void convgen_copy(const unsigned char* x, unsigned char* y, int size) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) y[i] = x[i];
}

// y[0] = number of blocks, y[1] = dynamic shared memory in bytes
extern "C" __global__ void convgen_shape(int* y) {
  unsigned bytes;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  if (blockIdx.x == 0 && threadIdx.x == 0) y[0] = gridDim.x, y[1] = bytes;
}

#if __CUDA_ARCH__ >= 900
__device__ unsigned address_of(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void wait_for(unsigned barrier) {
  asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra AGAIN;\n}" :: "r"(barrier) : "memory");
}

__device__ void expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes));
}

// one box of `size` halves at (c, row) of a matrix
extern "C" __global__ void convgen_tile(const __grid_constant__ TensorMap x, unsigned short* y, int c, int row, int size) {
  extern __shared__ __align__(1024) unsigned short box[];
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    expect(address_of(&barrier), 2 * size);
    asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        :: "r"(address_of(box)), "l"(&x), "r"(c), "r"(row), "r"(address_of(&barrier)) : "memory");
  }
  __syncthreads();
  wait_for(address_of(&barrier));
  for (int i = threadIdx.x; i < size; i += blockDim.x) y[i] = box[i];
}

// `size` halves of pixels from (w, h, n) on, for the tap at offsets (s, r)
extern "C" __global__ void convgen_pixels(const __grid_constant__ TensorMap x, unsigned short* y, int w, int h, int n,
    int s, int r, int size) {
  extern __shared__ __align__(1024) unsigned short box[];
  __shared__ unsigned long long barrier;
  if (threadIdx.x == 0) {
    expect(address_of(&barrier), 2 * size);
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {0, %2, %3, %4}], [%5], {%6, %7};"
        :: "r"(address_of(box)), "l"(&x), "r"(w), "r"(h), "r"(n), "r"(address_of(&barrier)), "h"((short)s), "h"((short)r)
        : "memory");
  }
  __syncthreads();
  wait_for(address_of(&barrier));
  for (int i = threadIdx.x; i < size; i += blockDim.x) y[i] = box[i];
}

// y = x after the kernel before has finished
extern "C" __global__ void convgen_after(const float* x, float* y, int size) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) y[i] = x[i];
}
#endif

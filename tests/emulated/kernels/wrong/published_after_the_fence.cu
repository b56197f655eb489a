// block=32 grid=2: a store behind the fence, which publishes what comes before it
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  u32* const counter = out + 1024;
  out[64 + 32 * blockIdx.x + threadIdx.x] = 0;
  __threadfence();
#ifndef FIXED
  out[64 + 32 * blockIdx.x + threadIdx.x] = in[threadIdx.x];
#endif
  if (atomicAdd(counter + threadIdx.x, 1u) == 0) return;
  __threadfence();
  out[threadIdx.x] = out[64 + threadIdx.x] + out[96 + threadIdx.x];  // expect: race
}

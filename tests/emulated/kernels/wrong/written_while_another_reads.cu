// block=64: a second write, before the readers of the first are known to be done
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  st_shared_u32(base + 4 * threadIdx.x, threadIdx.x);
  __syncthreads();
  u32 sum = 0;
  for (int i = 0; i < 64; ++i) sum += ld_shared_u32(base + 4 * i);
#ifdef FIXED
  __syncthreads();
  st_shared_u32(base + 4 * threadIdx.x, sum);
#else
  st_shared_u32(base + 4 * threadIdx.x, sum);  // expect: overwritten while read
  __syncthreads();
#endif
  __syncthreads();
  out[threadIdx.x] = ld_shared_u32(base + 4 * threadIdx.x);
}

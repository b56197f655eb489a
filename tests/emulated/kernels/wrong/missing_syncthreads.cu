// block=64: the other warp's values are read with nothing between
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  st_shared_u32(base + 4 * threadIdx.x, threadIdx.x);
  st_shared_u32(base + 4 * threadIdx.x, threadIdx.x + 1);
#ifdef FIXED
  __syncthreads();
#endif
  out[threadIdx.x] = ld_shared_u32(base + 4 * (threadIdx.x ^ 32));  // expect: race or uninitialized
}

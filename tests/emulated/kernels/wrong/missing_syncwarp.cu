// block=32: lanes of a warp are not ordered by themselves
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  st_shared_u16(base + 2 * threadIdx.x, u16(threadIdx.x));
#ifdef FIXED
  __syncwarp();
#endif
  out[threadIdx.x] = ld_shared_u32(base + 4 * (threadIdx.x / 2));  // expect: race or uninitialized
}

// block=32: half of what is read has been written
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  st_shared_v2_u32(base + 16 * threadIdx.x, 1, 2);
#ifdef FIXED
  st_shared_v2_u32(base + 16 * threadIdx.x + 8, 1, 2);
#endif
  out[threadIdx.x] = ld_shared_v4_u32(base + 16 * threadIdx.x).z;  // expect: uninitialized
}

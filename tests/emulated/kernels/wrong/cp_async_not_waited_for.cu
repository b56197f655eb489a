// block=32: copies of one's own, read too early
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory) + 16 * threadIdx.x;
  cp_async_16(base, in + 4 * threadIdx.x, 16);
  cp_async_commit_group();
  cp_async_16(base + 512, in + 4 * threadIdx.x, 16);
  cp_async_commit_group();
#ifdef FIXED
  cp_async_wait_group<0>();
#else
  cp_async_wait_group<1>();
#endif
  out[threadIdx.x] = ld_shared_u32(base) +
                     ld_shared_u32(base + 512);  // expect: in flight or race
  cp_async_wait_group<0>();
}
